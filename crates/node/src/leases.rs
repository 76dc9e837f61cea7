//! One lease on this node: its workers, their channels and meters, and their ends.
//!
//! One lock, held for microseconds, protects all state of a lease. Its [`crate::supervisor`] follows the executor and
//! the clock; connections are served independently.

mod channel_history;
mod channels;
mod functions;
mod meters;
mod sandbox_state;
mod terms;
mod view;
mod worker_slot;
mod workers;

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
use dayfly_lease::quota::Held;
use dayfly_lease::{Delegations, Lease, SigningKey, billing, shrink};
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

/// Time after which a killed process counts as stuck in the kernel.
const DEATH_DEADLINE: Duration = Duration::from_millis(200);

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
    pub fn new(granted: GrantedTerms, life: Lease, disconnects: Arc<DisconnectWatch>) -> std::io::Result<Self> {
        let workers = granted.reservation.workers;
        let length = meters_length(workers);
        let meters_file = sealed_memory("dayfly-meters", length as u64)?;
        let mapping = Arc::new(Mapping::of(&meters_file, length)?);
        Ok(Self {
            executor_key: OnceLock::new(),
            meters_file,
            disconnects,
            taken_at_ms: clock::now_ms(),
            meters: (0..workers).map(|index| Meter::new(mapping.clone(), index)).collect(),
            state: Mutex::new(LeaseData {
                life,
                delegations: Delegations::new(granted.request.holder, workers),
                control: None,
                sandbox: SandboxState::default(),
                failure: None,
                output: Arc::default(),
                slots: (0..workers).map(|_| WorkerSlot::default()).collect(),
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
    }

    pub fn id(&self) -> LeaseId {
        self.granted.id
    }

    pub fn holder(&self) -> PublicKey {
        self.granted.request.holder
    }

    /// Resources that it holds.
    pub fn held(&self) -> Held {
        let GrantedTerms {
            request, reservation, ..
        } = &self.granted;
        Held::by_one(reservation.workers, request.cores_per_worker, reservation.memory_bytes)
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

    /// Milliseconds that an idle worker polls; 0 if it is warm.
    pub fn hot_for_ms(&self) -> u32 {
        match self.granted.reservation.mode {
            Mode::Hot => self.granted.request.hot_for_ms,
            _ => 0,
        }
    }

    /// Whether its workers never sleep.
    pub fn never_sleeps(&self) -> bool {
        self.hot_for_ms() == u32::MAX
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

    /// Restarts its duration from now.
    pub fn renew(&self, duration_ms: u64) -> Result<(), Failure> {
        self.lock().life.renew(clock::now_ms(), duration_ms)?;
        self.wake.notify_one();
        Ok(())
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
        let is_busy = self.meters.iter().any(|meter| meter.read().is_running());
        shrink::Candidate {
            id: self.id(),
            held: self.granted.reservation.clone(),
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

    /// Records the assignment of an executor. The executor counts incarnations anew; the lease's count continues.
    pub fn set_executor(&self, control: ControlSocket, output: &Arc<OutputBuffer>) {
        let mut state = self.lock();
        let before = std::mem::replace(&mut state.output, output.clone());
        output.prepend(&before);
        for slot in &mut state.slots {
            slot.continue_count();
        }
        state.control = Some(control);
        state.failure = None;
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

    /// Kills every worker and waits until all are dead, so that no worker begins a call afterwards. Without an executor
    /// a worker lives on for a moment, and could begin a call after its client received `not_executed`. Blocks for some
    /// microseconds.
    fn kill_workers(state: &LeaseData) {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut alive: Vec<&OwnedFd> = state.slots.iter().filter_map(WorkerSlot::process).collect();
        for process in &alive {
            let _ = rustix::process::pidfd_send_signal(process, rustix::process::Signal::KILL);
        }
        let until = Instant::now() + DEATH_DEADLINE;
        while !alive.is_empty() && Instant::now() < until {
            let mut waiting: Vec<PollFd<'_>> = alive.iter().map(|fd| PollFd::new(*fd, PollFlags::IN)).collect();
            let limit = Timespec {
                tv_sec: 0,
                tv_nsec: 10_000_000,
            };
            if poll(&mut waiting, Some(&limit)).is_err() {
                return;
            }
            let dead: Vec<bool> = waiting.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(waiting);
            let mut dead = dead.into_iter();
            alive.retain(|_| !dead.next().unwrap_or(true));
        }
    }

    /// Handles the end of the executor, perhaps for lack of memory. Returns the process groups that its workers may
    /// have left.
    pub fn on_executor_end(&self, out_of_memory: bool) -> Vec<u32> {
        let mut state = self.lock();
        Self::kill_workers(&state);
        state.control = None;
        state.sandbox.clear();
        let cause = if out_of_memory {
            End::OutOfMemory
        } else {
            End::ExecutorDied
        };
        let mut groups = Vec::new();
        for index in 0..state.slots.len() {
            let end = state.slots[index].planned_end().unwrap_or(cause);
            groups.extend(self.release_worker(&mut state, index, end));
        }
        drop(state);
        self.notify_changed();
        groups
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

    pub fn on_worker_start(&self, worker: WorkerIndex, incarnation: Incarnation, pid: u32, process: Option<OwnedFd>) {
        if let Some(slot) = self.lock().slots.get_mut(worker.0 as usize) {
            slot.start(incarnation, pid, process);
        }
        self.notify_changed();
    }

    pub fn on_worker_end(&self, worker: WorkerIndex, status: i32, signal: i32, out_of_memory: bool) {
        let mut state = self.lock();
        let index = worker.0 as usize;
        let Some(slot) = state.slots.get(index) else { return };
        let without_memory = || slot.end_without_memory().filter(|_| signal == libc::SIGKILL);
        let end = match (slot.planned_end().or_else(without_memory), signal) {
            (Some(end), _) => end,
            (None, _) if out_of_memory => End::OutOfMemory,
            (None, 0) => End::Exited { status },
            (None, signal) => End::Signalled { signal },
        };
        self.release_worker(&mut state, index, end);
        drop(state);
        self.notify_changed();
    }

    fn release_worker(&self, state: &mut LeaseData, index: usize, end: End) -> Option<u32> {
        let reading = self.meters[index].read();
        let slot = &mut state.slots[index];
        let group = slot.stop();
        // Also if its channel has ended already, as at the lease's end: the running call is charged.
        if group.is_some() && reading.is_running() {
            let ticks = dayfly_fabric::clock::ticks().saturating_sub(reading.start_ticks);
            let computing_us = dayfly_fabric::clock::us_of_ticks(ticks);
            slot.add_lost_call(computing_us);
            if let Some(place) = reading.account.function() {
                let name = self.meters[index].function_name(place);
                let lost = functions::entry(&mut state.lost, name);
                lost.computing_us += computing_us;
                lost.calls += 1;
                lost.failures += 1;
            }
        }
        self.end_channel(state, index, end);
        // The call is over and counted. Without this it would appear as running until the next worker's first call.
        self.meters[index].attach();
        group
    }

    pub fn on_detached(&self, worker: WorkerIndex, channel: ChannelId) {
        let mut state = self.lock();
        let index = worker.0 as usize;
        let found = state.slots.get(index).and_then(WorkerSlot::channel);
        let Some(found) = found.filter(|found| found.id() == channel) else {
            return;
        };
        let end = match found.client_end() {
            Some(end) => end,
            None if found.is_disconnected() => End::ClientGone,
            None => End::Violation,
        };
        self.end_channel(&mut state, index, end);
        drop(state);
        self.notify_changed();
    }
}
