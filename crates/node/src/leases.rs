//! One lease on this node: its workers, their channels and meters, and their ends.
//!
//! One lock, held for microseconds, protects all state of a lease. Its [`crate::supervisor`] follows the executor and
//! the clock; connections are served independently.

mod channels;
mod delegations;
mod functions;
mod meters;

pub use meters::{Durations, add_durations};

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use dayfly_executor::meter::{Meter, meters_length};
use dayfly_fabric::memory::{Mapping, sealed_memory};
use dayfly_fabric::shm::ChannelMemory;
use dayfly_lease::quota::Held;
use dayfly_lease::{Delegations, Lease, Reservation, SigningKey, billing};
use dayfly_protocol::api::{FunctionUsage, LeaseRequest, LeaseState, Metered, Mode, Sandbox, Usage};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::executor::ToExecutor;
use dayfly_protocol::hello::{Hello, Token, options};
use dayfly_protocol::ids::{AllowanceId, ChannelId, CodeHash, Incarnation, LeaseId, PublicKey, TenantId, WorkerIndex};
use dayfly_protocol::node_api::{ChannelStatus, End};
use tokio::sync::{Notify, watch};

use crate::connector::Connector;
use crate::door::Door;
use crate::executors::{Control, Kind};
use crate::hangup::Hangups;
use crate::node::random;
use crate::output::Printed;
use crate::{clock, enclosures};

/// Time after which a killed process counts as stuck in the kernel.
const SILENCE_DEADLINE: Duration = Duration::from_millis(200);

/// Who granted a lease.
#[derive(Debug, Clone)]
pub enum Origin {
    /// This node, under an allowance of its own.
    Node,
    /// Its manager, in this epoch.
    Manager(u64),
    /// This node, under an allowance of its manager.
    Allowance(Arc<Direct>),
}

/// An allowance of the manager, as a client presented it.
#[derive(Debug)]
pub struct Direct {
    pub allowance: AllowanceId,
    /// Upper bound of what may be leased here under it.
    pub cap: Held,
    /// The hello, as evidence for the manager.
    pub hello: Hello,
}

impl Origin {
    /// The manager's epoch of the grant; 0 for a grant of this node.
    pub fn epoch(&self) -> u64 {
        match self {
            Self::Manager(epoch) => *epoch,
            Self::Node | Self::Allowance(_) => 0,
        }
    }

    /// Whether a manager keeps its books.
    pub fn is_managed(&self) -> bool {
        !matches!(self, Self::Node)
    }

    /// Its allowance, if that is the manager's.
    pub fn direct(&self) -> Option<&Arc<Direct>> {
        match self {
            Self::Allowance(direct) => Some(direct),
            Self::Node | Self::Manager(_) => None,
        }
    }
}

/// The terms of a lease.
#[derive(Debug, Clone)]
pub struct Granted {
    pub id: LeaseId,
    pub tenant: TenantId,
    pub origin: Origin,
    pub request: LeaseRequest,
    pub reservation: Reservation,
    pub kind: Kind,
}

/// One lease.
#[derive(Debug)]
pub struct Run {
    pub granted: Granted,
    /// The executor's TLS identity, generated when the first channel needs it.
    executor_key: OnceLock<SigningKey>,
    pub meters_file: OwnedFd,
    hangups: Arc<Hangups>,
    meters: Vec<Meter>,
    inner: Mutex<Inner>,
    /// Incremented whenever a worker or the lease changes.
    changed: watch::Sender<u64>,
    /// Wakes the supervisor.
    pub wake: Notify,
    /// True when everything of the lease is gone.
    pub over: watch::Sender<bool>,
    /// Wall-clock time until which any token of this lease is valid, in milliseconds.
    token_end_ms: AtomicU64,
    /// The last token whose signature was verified.
    proven: Mutex<Option<Token>>,
}

#[derive(Debug)]
struct Inner {
    life: Lease,
    delegations: Delegations,
    control: Option<Control>,
    /// Directory of the code for isolated workers, while there is an executor.
    code_dir: Option<PathBuf>,
    /// Code that they may load.
    codes: BTreeSet<CodeHash>,
    /// Whether its isolated workers see the node's socket, and that socket.
    shows_node: bool,
    door: Option<Door>,
    /// The connector of isolated workers without a network.
    connector: Option<Connector>,
    failure: Option<Failure>,
    printed: Arc<Printed>,
    slots: Vec<Slot>,
    fates: VecDeque<(ChannelId, ChannelStatus)>,
    /// Usage of functions that dead workers did not record.
    lost: BTreeMap<String, FunctionUsage>,
    /// Usage that was journaled last.
    journaled: Metered,
}

#[derive(Debug, Default)]
struct Slot {
    /// The executor's count, plus all incarnations under executors before it.
    incarnation: u32,
    base: u32,
    pid: u32,
    process: Option<OwnedFd>,
    up: bool,
    /// Why and when the node had it killed.
    kill: Option<(End, Instant)>,
    /// The call that ran when the lease's time was over, and may finish.
    finishing: Option<u32>,
    channel: Option<Channel>,
    /// Usage that its dead incarnations did not record.
    lost: Usage,
    believed: Usage,
}

#[derive(Debug)]
struct Channel {
    id: ChannelId,
    /// Key of the client that opened it.
    holder: PublicKey,
    memory: Option<ChannelMemory>,
    socket: OwnedFd,
    watched: u64,
    /// Calls that were cancelled before they began.
    doomed: BTreeSet<u32>,
    /// Since when its client is gone, and why.
    gone: Option<(Instant, End)>,
}

/// What a lease's supervisor has to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Tick {
    /// Tick again after this time.
    Again(Duration),
    /// Kill the executor, which does not do what it is told.
    Stuck,
    /// The lease has ended.
    Over,
}

/// A channel that was begun.
#[derive(Debug, Clone, Copy)]
pub struct Begun {
    pub incarnation: Incarnation,
    pub pid: u32,
    /// Whether it is the lease's first.
    pub first: bool,
}

/// A row of `dayfly top`.
#[derive(Debug, Clone, serde::Serialize)]
pub struct LeaseView {
    pub lease: LeaseId,
    /// The tenant that pays.
    pub tenant: TenantId,
    /// Whether workers are hot or warm.
    pub mode: Mode,
    /// Isolation of its workers.
    pub sandbox: Sandbox,
    /// Number of workers.
    pub workers: u16,
    /// Cores that the lease owns.
    pub cores: Vec<u16>,
    pub memory_bytes: u64,
    /// Name of the state, as in [`dayfly_protocol::api::LeaseState`].
    pub state: LeaseState,
    pub remaining_ms: u64,
    /// Number of open channels.
    pub channels: u32,
    /// Process ids of its workers; 0 for one that is being replaced.
    pub pids: Vec<u32>,
    /// Usage so far.
    pub usage: Usage,
}

impl Run {
    /// A lease without an executor.
    pub fn new(granted: Granted, life: Lease, hangups: Arc<Hangups>) -> std::io::Result<Self> {
        let workers = granted.reservation.workers;
        let length = meters_length(workers);
        let meters_file = sealed_memory("dayfly-meters", length as u64)?;
        let mapping = Arc::new(Mapping::of(&meters_file, length)?);
        Ok(Self {
            executor_key: OnceLock::new(),
            meters_file,
            hangups,
            meters: (0..workers).map(|index| Meter::new(mapping.clone(), index)).collect(),
            inner: Mutex::new(Inner {
                life,
                delegations: Delegations::new(granted.request.holder, workers),
                control: None,
                code_dir: None,
                codes: BTreeSet::new(),
                shows_node: false,
                door: None,
                connector: None,
                failure: None,
                printed: Arc::default(),
                slots: (0..workers).map(|_| Slot::default()).collect(),
                fates: VecDeque::new(),
                lost: BTreeMap::new(),
                journaled: Metered::default(),
            }),
            changed: watch::channel(0).0,
            wake: Notify::new(),
            over: watch::channel(false).0,
            token_end_ms: AtomicU64::new(0),
            proven: Mutex::new(None),
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
        let Granted {
            request, reservation, ..
        } = &self.granted;
        Held::by_one(
            reservation.workers,
            request.cores_per_worker.max(1),
            reservation.memory_bytes,
        )
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // No panic can happen between two changes that belong together.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn announce(&self) {
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
    pub fn promised(&self, until_ms: u64) {
        self.token_end_ms.fetch_max(until_ms, Ordering::Relaxed);
    }

    /// Records that this token's signature was verified.
    pub fn prove(&self, token: &Token) {
        *self.proven.lock().unwrap_or_else(PoisonError::into_inner) = Some(*token);
    }

    /// Whether this exact token's signature was verified before.
    pub fn is_proven(&self, token: &Token) -> bool {
        self.proven.lock().unwrap_or_else(PoisonError::into_inner).as_ref() == Some(token)
    }

    /// Wall-clock time until which any token of this lease is valid, in milliseconds.
    pub fn token_end_ms(&self) -> u64 {
        self.token_end_ms.load(Ordering::Relaxed)
    }

    /// The meter of a worker.
    pub fn meter(&self, worker: WorkerIndex) -> Option<&Meter> {
        self.meters.get(usize::from(worker.0))
    }

    /// Process ids of its workers.
    pub fn processes(&self) -> Vec<u32> {
        let inner = self.inner();
        inner.slots.iter().filter(|slot| slot.up).map(|slot| slot.pid).collect()
    }

    /// The worker with this process id.
    pub fn worker_of(&self, process: u32) -> Option<WorkerIndex> {
        let inner = self.inner();
        let index = inner.slots.iter().position(|slot| slot.up && slot.pid == process)?;
        Some(WorkerIndex(index as u16))
    }

    /// Number of calls of this worker, if its meter shows that it sleeps.
    pub fn calls_before_sleep(&self, worker: WorkerIndex) -> Option<u64> {
        let meter = self.meters.get(usize::from(worker.0))?;
        (!meter.read().awake).then(|| meter.total().calls)
    }

    /// Ends a worker, which is then replaced.
    pub fn kill_worker(&self, worker: WorkerIndex, end: End) {
        let mut inner = self.inner();
        let Inner { slots, control, .. } = &mut *inner;
        if let Some(slot) = slots.get_mut(usize::from(worker.0)) {
            slot.kill(control.as_ref(), usize::from(worker.0), end);
        }
    }

    /// Restarts its duration from now.
    pub fn renew(&self, duration_ms: u64) -> Result<(), Failure> {
        self.inner().life.renew(clock::now_ms(), duration_ms)?;
        self.wake.notify_one();
        Ok(())
    }

    /// Ends the lease, unless it has ended. Its supervisor completes that; [`Run::over`] reports it.
    pub fn end(&self, state: LeaseState) {
        self.inner().life.end(state, clock::now_ms());
        self.announce();
        self.wake.notify_one();
    }

    /// Recalls the lease: channels without a running call end now, the others when their call ends or the grace is
    /// over.
    pub fn recall(&self, grace: Duration) {
        let mut inner = self.inner();
        inner.life.recall(clock::now_ms(), grace.as_millis() as u64);
        self.begin_draining(&mut inner);
        drop(inner);
        self.announce();
        self.wake.notify_one();
    }

    pub fn state(&self) -> LeaseState {
        self.inner().life.state()
    }

    pub fn remaining_ms(&self) -> u64 {
        self.inner().life.remaining_ms(clock::now_ms())
    }

    /// Waits until everything of it is gone, at most `limit`.
    pub async fn gone(&self, limit: Duration) {
        let mut over = self.over.subscribe();
        let _ = tokio::time::timeout(limit, over.wait_for(|over| *over)).await;
    }

    /// Isolation of its workers.
    pub fn sandbox(&self) -> Sandbox {
        self.granted.kind.sandbox()
    }

    /// For containers, the exact identity of their image.
    pub fn image(&self) -> Option<String> {
        let image = self.granted.kind.opening.as_ref()?.image.as_ref()?;
        Some(image.described.clone())
    }

    /// Shows code from the node's store `kept` to its isolated workers. They cannot read other leases' code.
    pub fn show_code(&self, kept: &Path, hash: CodeHash) -> std::io::Result<()> {
        let mut inner = self.inner();
        if self.sandbox() == Sandbox::Process || !inner.codes.insert(hash) {
            return Ok(());
        }
        match &inner.code_dir {
            Some(dir) => enclosures::show_code(kept, dir, &hash),
            None => Ok(()),
        }
    }

    /// Prepares `dir` as the code directory of the executor that is about to be assigned.
    pub fn code_goes_to(&self, kept: &Path, dir: &Path) -> std::io::Result<()> {
        let mut inner = self.inner();
        for hash in &inner.codes {
            enclosures::show_code(kept, dir, hash)?;
        }
        inner.code_dir = Some(dir.to_path_buf());
        Ok(())
    }

    /// Keeps the connector of the executor that is about to be assigned.
    pub fn keep_connector(&self, connector: Option<Connector>) {
        self.inner().connector = connector;
    }

    /// Records the assignment of an executor. The executor counts incarnations anew; the lease's count continues.
    pub fn executor_assigned(&self, control: Control, printed: &Arc<Printed>) {
        let mut inner = self.inner();
        let before = std::mem::replace(&mut inner.printed, printed.clone());
        printed.follow(&before);
        for slot in &mut inner.slots {
            slot.base = slot.incarnation;
            slot.kill = None;
        }
        inner.control = Some(control);
        inner.failure = None;
        drop(inner);
        self.announce();
    }

    /// Output of its workers.
    pub fn printed(&self) -> Arc<Printed> {
        self.inner().printed.clone()
    }

    /// Kills every worker and waits until all are dead, so that no worker begins a call afterwards. Without an executor
    /// a worker lives on for a moment, and could begin a call after its client received `not_executed`. Blocks for some
    /// microseconds.
    fn silence_workers(inner: &Inner) {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut alive: Vec<&OwnedFd> = inner.slots.iter().filter_map(|slot| slot.process.as_ref()).collect();
        for process in &alive {
            let _ = rustix::process::pidfd_send_signal(process, rustix::process::Signal::KILL);
        }
        let until = Instant::now() + SILENCE_DEADLINE;
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
    pub fn executor_gone(&self, out_of_memory: bool) -> Vec<u32> {
        let mut inner = self.inner();
        Self::silence_workers(&inner);
        inner.control = None;
        inner.code_dir = None;
        inner.door = None;
        inner.connector = None;
        let cause = if out_of_memory {
            End::OutOfMemory
        } else {
            End::ExecutorDied
        };
        let mut groups = Vec::new();
        for index in 0..inner.slots.len() {
            let end = inner.slots[index].kill.map_or(cause, |(end, _)| end);
            groups.extend(self.worker_gone(&mut inner, index, end));
        }
        drop(inner);
        self.announce();
        groups
    }

    /// Ends the lease, since no executor can be started.
    pub fn executor_failed(&self, failure: Failure) {
        self.inner().failure = Some(failure);
        self.end(LeaseState::Lost);
    }

    /// Waits until an executor is assigned, or returns why none can be.
    pub async fn assigned(&self) -> Result<(), Failure> {
        let mut changed = self.changed.subscribe();
        loop {
            {
                let inner = self.inner();
                if let Some(failure) = &inner.failure {
                    return Err(failure.clone());
                }
                inner.life.check(clock::now_ms())?;
                if inner.control.is_some() {
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

    pub fn worker_started(&self, worker: WorkerIndex, incarnation: Incarnation, pid: u32, process: Option<OwnedFd>) {
        if let Some(slot) = self.inner().slots.get_mut(worker.0 as usize) {
            slot.incarnation = slot.base.saturating_add(incarnation.0);
            slot.pid = pid;
            slot.process = process;
            slot.up = true;
            slot.kill = None;
        }
        self.announce();
    }

    pub fn worker_ended(&self, worker: WorkerIndex, status: i32, signal: i32, out_of_memory: bool) {
        let mut inner = self.inner();
        let index = worker.0 as usize;
        let Some(slot) = inner.slots.get(index) else { return };
        let end = match (slot.kill, signal) {
            (Some((end, _)), _) => end,
            (None, _) if out_of_memory => End::OutOfMemory,
            (None, 0) => End::Exited { status },
            (None, signal) => End::Signalled { signal },
        };
        self.worker_gone(&mut inner, index, end);
        drop(inner);
        self.announce();
    }

    fn worker_gone(&self, inner: &mut Inner, index: usize, end: End) -> Option<u32> {
        let reading = self.meters[index].read();
        let slot = &mut inner.slots[index];
        let group = std::mem::take(&mut slot.up).then_some(slot.pid);
        slot.pid = 0;
        slot.process = None;
        // Also if its channel has ended already, as at the lease's end: the running call is charged.
        if group.is_some() && reading.is_running() {
            let ticks = dayfly_fabric::clock::ticks().saturating_sub(reading.start_ticks);
            let computing_us = dayfly_fabric::clock::us_of_ticks(ticks);
            slot.lost.computing_us += computing_us;
            slot.lost.calls += 1;
            slot.lost.failures += 1;
            if let Some(place) = reading.account.function() {
                let name = self.meters[index].function_name(place);
                let lost = functions::entry(&mut inner.lost, name);
                lost.computing_us += computing_us;
                lost.calls += 1;
                lost.failures += 1;
            }
        }
        self.end_channel(inner, index, end);
        // The call is over and counted. Without this it would appear as running until the next worker's first call.
        self.meters[index].attach();
        group
    }

    pub fn detached(&self, worker: WorkerIndex, channel: ChannelId) {
        let mut inner = self.inner();
        let index = worker.0 as usize;
        let found = inner.slots.get(index).and_then(|slot| slot.channel.as_ref());
        let Some(found) = found.filter(|found| found.id == channel) else {
            return;
        };
        let end = match found.gone {
            Some((_, end)) => end,
            None if channels::hung_up(&found.socket) => End::ClientGone,
            None => End::Violation,
        };
        self.end_channel(&mut inner, index, end);
        drop(inner);
        self.announce();
    }
}

impl Slot {
    fn kill(&mut self, control: Option<&Control>, index: usize, end: End) {
        if self.kill.is_some() || !self.up {
            return;
        }
        self.kill = Some((end, Instant::now()));
        if let Some(control) = control {
            let worker = WorkerIndex(index as u16);
            // If the executor cannot take it, it is stuck or dead, and either is noticed.
            let _ = control.send(&ToExecutor::Kill { worker }, &[]);
        }
    }
}
