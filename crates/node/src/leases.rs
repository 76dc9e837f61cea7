//! One lease on this node: its workers, their channels and meters, and their ends.
//!
//! One lock, held for microseconds, protects all state of a lease. Its [`crate::supervisor`] follows the executor and
//! the clock; connections are served independently.

mod changes;
mod channel_history;
mod channels;
mod functions;
mod lending;
mod meters;
mod processes;
mod sandbox_state;
mod terms;
mod view;
mod worker_slot;
mod workers;

pub use self::changes::CurrentTerms;
pub use self::lending::CorePin;
pub use self::meters::{Durations, Tick, add_durations};
pub use self::terms::{GrantedTerms, Origin, PresentedAllowance};
pub use self::view::{LeaseView, WorkerActivity};

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use dayfly_executor::meter::{Meter, meters_length};
use dayfly_fabric::memory::{Mapping, sealed_memory};
use dayfly_fabric::shm::ChannelMemory;
use dayfly_lease::ledger::MAX_WORKERS;
use dayfly_lease::quota::Held;
use dayfly_lease::{Delegations, Lease, Reservation, SigningKey, billing, shrink};
use dayfly_protocol::api::{FunctionUsage, LeaseState, Metered, Mode, Sandbox, Usage};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::executor::ToExecutor;
use dayfly_protocol::hello::{Hello, Token, options};
use dayfly_protocol::ids::{ChannelId, CodeHash, Incarnation, LeaseId, PublicKey, WorkerIndex};
use dayfly_protocol::node_api::{ChannelStatus, End};
use tokio::sync::{Notify, watch};

use self::channel_history::ChannelHistory;
use self::sandbox_state::SandboxState;
use self::worker_slot::{Channel, WorkerSlot};
use crate::clock;
use crate::connector::Connector;
use crate::disconnects::DisconnectWatch;
use crate::ended_loans::EndedCalls;
use crate::executors::ControlSocket;
use crate::loan_sums::{LoanSums, LoanWindow};
use crate::node::random;
use crate::output::OutputBuffer;
use crate::sandbox_socket::SandboxSocket;

/// One lease.
#[derive(Debug)]
pub struct NodeLease {
    pub granted: GrantedTerms,
    /// The executor's TLS identity, generated when the first channel needs it.
    executor_key: OnceLock<SigningKey>,
    pub meters_file: OwnedFd,
    disconnects: Arc<DisconnectWatch>,
    /// When the node took the lease, in milliseconds of its clock.
    taken_at_ms: u64,
    meters: Vec<Meter>,
    state: Mutex<LeaseData>,
    /// What its last measured calls had over time.
    ended_loans: EndedCalls,
    /// Incremented whenever a worker or the lease changes.
    changed: watch::Sender<u64>,
    /// Wakes the supervisor.
    pub wake: Notify,
    /// True when everything of the lease is gone.
    pub over: watch::Sender<bool>,
    /// Wall-clock time until which any token of this lease is valid, in milliseconds.
    token_end_ms: AtomicU64,
    /// The last token whose signature was verified.
    verified_token: Mutex<Option<Token>>,
}

#[derive(Debug)]
struct LeaseData {
    life: Lease,
    /// What it holds now.
    reservation: Reservation,
    terms: CurrentTerms,
    /// Whether a renewal has changed what it holds.
    has_changed: bool,
    /// Whether the limits of its sandbox are outdated.
    has_new_limits: bool,
    delegations: Delegations,
    control: Option<ControlSocket>,
    sandbox: SandboxState,
    failure: Option<Failure>,
    /// Output of its workers.
    output: Arc<OutputBuffer>,
    slots: Vec<WorkerSlot>,
    history: ChannelHistory,
    /// Usage of functions that dead workers did not record.
    lost: BTreeMap<String, FunctionUsage>,
    /// What its calls lent and borrowed.
    loans: LoanSums,
    /// Usage that was journaled last.
    journaled: Metered,
    /// When the supervisor last saw a running call, in milliseconds of the node's clock.
    busy_at_ms: u64,
}

/// A channel that was begun.
#[derive(Debug, Clone, Copy)]
pub struct OpenedChannel {
    pub incarnation: Incarnation,
    pub pid: u32,
    /// Whether it is the lease's first.
    pub first: bool,
}

impl NodeLease {
    /// A lease without an executor.
    pub fn new(
        granted: GrantedTerms,
        reservation: Reservation,
        life: Lease,
        disconnects: Arc<DisconnectWatch>,
    ) -> std::io::Result<Self> {
        let workers = reservation.workers;
        // Room for workers that a renewal adds. Pages that no worker uses take no memory.
        let length = meters_length(MAX_WORKERS);
        let meters_file = sealed_memory("dayfly-meters", length as u64)?;
        let mapping = Arc::new(Mapping::of(&meters_file, length)?);
        Ok(Self {
            executor_key: OnceLock::new(),
            meters_file,
            disconnects,
            taken_at_ms: clock::now_ms(),
            meters: (0..MAX_WORKERS)
                .map(|index| Meter::new(mapping.clone(), index))
                .collect(),
            state: Mutex::new(LeaseData {
                life,
                delegations: Delegations::new(granted.request.holder, workers),
                control: None,
                sandbox: SandboxState::default(),
                failure: None,
                output: Arc::default(),
                slots: worker_slots(&reservation),
                terms: CurrentTerms::of(&granted.request, &reservation),
                reservation,
                has_changed: false,
                has_new_limits: false,
                history: ChannelHistory::default(),
                lost: BTreeMap::new(),
                loans: LoanSums::default(),
                journaled: Metered::default(),
                busy_at_ms: clock::now_ms(),
            }),
            ended_loans: EndedCalls::default(),
            changed: watch::channel(0).0,
            wake: Notify::new(),
            over: watch::channel(false).0,
            token_end_ms: AtomicU64::new(0),
            verified_token: Mutex::new(None),
            granted,
        })
        .inspect(|lease| lease.give_orders(&lease.lock()))
    }

    pub fn id(&self) -> LeaseId {
        self.granted.id
    }

    pub fn holder(&self) -> PublicKey {
        self.granted.request.holder
    }

    /// Resources that it holds.
    pub fn held(&self) -> Held {
        let cores_per_worker = self.granted.request.cores_per_worker;
        let Reservation {
            workers, memory_bytes, ..
        } = self.reservation();
        Held::by_one(workers, cores_per_worker, memory_bytes)
    }

    fn lock(&self) -> MutexGuard<'_, LeaseData> {
        // No panic can happen between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify_changed(&self) {
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// The executor's TLS identity.
    pub fn executor_key(&self) -> Result<&SigningKey, Failure> {
        if self.executor_key.get().is_none() {
            // If two channels open at once, the first key is kept.
            let _ = self.executor_key.set(SigningKey::from_seed(random()?));
        }
        self.executor_key
            .get()
            .ok_or_else(|| Failure::new(Code::Internal, "the executor has no key; report this"))
    }

    /// Whether its workers never sleep.
    pub fn never_sleeps(&self) -> bool {
        self.terms().never_sleeps()
    }

    /// Records that a token was signed that is valid until this time.
    pub fn extend_token_end(&self, until_ms: u64) {
        self.token_end_ms.fetch_max(until_ms, Ordering::Relaxed);
    }

    /// Records that this token's signature was verified.
    pub fn set_verified_token(&self, token: &Token) {
        *self.verified_token.lock().unwrap_or_else(PoisonError::into_inner) = Some(*token);
    }

    /// Whether this exact token's signature was verified before.
    pub fn is_verified(&self, token: &Token) -> bool {
        self.verified_token
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
            == Some(token)
    }

    /// Wall-clock time until which any token of this lease is valid, in milliseconds.
    pub fn token_end_ms(&self) -> u64 {
        self.token_end_ms.load(Ordering::Relaxed)
    }

    /// Ends the lease, unless it has ended. Its supervisor completes that; [`NodeLease::over`] reports it.
    pub fn end(&self, state: LeaseState) {
        self.lock().life.end(state, clock::now_ms());
        self.notify_changed();
        self.wake.notify_one();
    }

    /// Recalls the lease: channels without a running call end now, the others when their call ends or the grace is
    /// over.
    pub fn recall(&self, grace: Duration) {
        let mut state = self.lock();
        state.life.recall(clock::now_ms(), grace.as_millis() as u64);
        self.begin_draining(&mut state);
        drop(state);
        self.notify_changed();
        self.wake.notify_one();
    }

    /// The lease as the choice of leases to end sees it.
    pub fn shrink_candidate(&self) -> shrink::Candidate {
        let now_ms = clock::now_ms();
        let state = self.lock();
        let is_busy = self.metered_slots(&state).any(|meter| meter.read().is_running());
        shrink::Candidate {
            id: self.id(),
            held: state.reservation.clone(),
            idle_ms: (!is_busy).then(|| now_ms.saturating_sub(state.busy_at_ms)),
            age_ms: now_ms.saturating_sub(self.taken_at_ms),
            is_ending: state.life.is_draining() || !state.life.state().is_live(),
        }
    }

    /// Waits at most `limit` until the lease starts no more calls. Returns whether that is so.
    pub async fn wait_until_recalled(&self, limit: Duration) -> bool {
        let mut changed = self.changed.subscribe();
        let is_recalled = || {
            let state = self.lock();
            state.life.is_draining() || !state.life.state().is_live()
        };
        let recalled = async { while !is_recalled() && changed.changed().await.is_ok() {} };
        let _ = tokio::time::timeout(limit, recalled).await;
        is_recalled()
    }

    pub fn state(&self) -> LeaseState {
        self.lock().life.state()
    }

    pub fn remaining_ms(&self) -> u64 {
        self.lock().life.remaining_ms(clock::now_ms())
    }

    /// Waits until everything of it is gone, at most `limit`.
    pub async fn wait_until_over(&self, limit: Duration) {
        let mut over = self.over.subscribe();
        let _ = tokio::time::timeout(limit, over.wait_for(|over| *over)).await;
    }

    /// Isolation of its workers.
    pub fn sandbox(&self) -> Sandbox {
        self.granted.kind.sandbox()
    }

    /// For containers, the exact identity of their image.
    pub fn image(&self) -> Option<String> {
        let image = self.granted.kind.host_access.as_ref()?.image.as_ref()?;
        Some(image.described.clone())
    }

    /// Calls a function with the state of the sandbox.
    fn with_sandbox<T>(&self, change: impl FnOnce(&mut SandboxState) -> T) -> T {
        change(&mut self.lock().sandbox)
    }

    /// Shows code from the node's store `kept` to its isolated workers. They cannot read other leases' code.
    pub fn show_code(&self, kept: &Path, hash: CodeHash) -> std::io::Result<()> {
        match self.sandbox() {
            Sandbox::Process => Ok(()),
            _ => self.with_sandbox(|sandbox| sandbox.show_code(kept, hash)),
        }
    }

    /// Prepares `dir` as the code directory of the executor that is about to be assigned.
    pub fn set_code_dir(&self, kept: &Path, dir: &Path) -> std::io::Result<()> {
        self.with_sandbox(|sandbox| sandbox.set_code_dir(kept, dir))
    }

    /// Keeps the connector of the executor that is about to be assigned.
    pub fn set_connector(&self, connector: Option<Connector>) {
        self.with_sandbox(|sandbox| sandbox.set_connector(connector));
    }

    /// Requests the node's socket in the sandbox. Returns the directory to open it in now; `None` if it is open, or
    /// there is no sandbox.
    pub fn request_socket(&self) -> Option<PathBuf> {
        self.with_sandbox(SandboxState::request_socket)
    }

    /// Whether a new sandbox needs the node's socket.
    pub fn wants_socket(&self) -> bool {
        self.with_sandbox(|sandbox| sandbox.wants_socket())
    }

    /// Keeps a socket open while the sandbox with this directory exists.
    pub fn set_socket(&self, dir: &Path, socket: SandboxSocket) {
        self.with_sandbox(|sandbox| sandbox.set_socket(dir, socket));
    }

    /// Records the assignment of an executor, which named so many workers and these as retired. The executor counts
    /// incarnations anew; the lease's count continues.
    pub fn set_executor(&self, control: ControlSocket, output: &Arc<OutputBuffer>, (workers, retired): (u16, &[u16])) {
        let mut state = self.lock();
        let before = std::mem::replace(&mut state.output, output.clone());
        output.prepend(&before);
        for slot in &mut state.slots {
            slot.continue_count();
        }
        state.control = Some(control);
        state.failure = None;
        for index in retired {
            // Its executor has ended, and this one does not start it.
            Self::end_retirement(&mut state, usize::from(*index));
        }
        // A renewal may have come while it was assigned.
        Self::complete_assignment(&state, workers, retired);
        drop(state);
        self.notify_changed();
    }

    /// What its last measured calls had over time.
    pub fn ended_loans(&self) -> &EndedCalls {
        &self.ended_loans
    }

    /// Output of its workers.
    pub fn output(&self) -> Arc<OutputBuffer> {
        self.lock().output.clone()
    }

    /// The meters of all workers so far, in the order of their numbers.
    fn metered_slots(&self, state: &LeaseData) -> impl Iterator<Item = &Meter> {
        self.meters.iter().take(state.slots.len())
    }

    /// Ends the lease, since no executor can be started.
    pub fn fail(&self, failure: Failure) {
        self.lock().failure = Some(failure);
        self.end(LeaseState::Lost);
    }

    /// Waits until an executor is assigned. Returns an error if none can be.
    pub async fn wait_for_executor(&self) -> Result<(), Failure> {
        let mut changed = self.changed.subscribe();
        loop {
            {
                let state = self.lock();
                if let Some(failure) = &state.failure {
                    return Err(failure.clone());
                }
                state.life.check(clock::now_ms())?;
                if state.control.is_some() {
                    return Ok(());
                }
            }
            if changed.changed().await.is_err() {
                return Err(Failure::new(
                    Code::Internal,
                    "the lease's supervisor is gone; lease again",
                ));
            }
        }
    }
}

/// The workers of a new lease, each with its cores.
fn worker_slots(reservation: &Reservation) -> Vec<WorkerSlot> {
    let share = reservation.cores.len() / usize::from(reservation.workers.max(1));
    let of = |index: u16| {
        let first = usize::from(index) * share;
        WorkerSlot::with_cores(reservation.cores.get(first..first + share).unwrap_or_default().to_vec())
    };
    (0..reservation.workers).map(of).collect()
}
