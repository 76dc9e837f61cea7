//! One lease on this node: its workers, their channels and meters, and what becomes of them.
//!
//! Everything about a lease stands behind one lock that is held for microseconds. Its [`crate::supervisor`] follows the
//! executor and the clock; connections come and go beside it.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mayfly_executor::meter::Meter;
use mayfly_fabric::memory::{Mapping, sealed_memory};
use mayfly_fabric::shm::ChannelMemory;
use mayfly_lease::{Lease, Reservation, SigningKey, State, billing};
use mayfly_protocol::api::{LeaseRequest, Mode, Usage};
use mayfly_protocol::error::{Code, Failure};
use mayfly_protocol::executor::{METER_BYTES, ToExecutor};
use mayfly_protocol::hello::{Hello, options};
use mayfly_protocol::ids::{ChannelId, Incarnation, LeaseId, PublicKey, TenantId, WorkerIndex};
use mayfly_protocol::node_api::{End, Fate};
use tokio::sync::{Notify, watch};

use crate::clock;
use crate::executors::{Control, Kind};
use crate::hangup::Hangups;

/// A worker that is not there by then will not come.
const WORKER_DEADLINE: Duration = Duration::from_secs(10);
/// A channel whose client is gone is waited for this long by whoever wants its worker next.
const DETACH_DEADLINE: Duration = Duration::from_secs(2);
/// A call whose client is gone may go on for this long: nobody can take its result any more.
const ORPHAN_GRACE: Duration = Duration::from_secs(10);
/// An executor that has not killed a worker in this time is stuck, and killed itself.
const KILL_DEADLINE: Duration = Duration::from_secs(2);
/// Fates kept for each lease: a client asks at once or never.
const MOST_FATES: usize = 256;
/// While a worker is awake its meter is read this often: so exact are deadlines.
const AWAKE_TICK: Duration = Duration::from_millis(10);
/// While channels are open but every worker sleeps: a wake-up is noticed after this long.
const ASLEEP_TICK: Duration = Duration::from_millis(50);
/// While no channel is open.
const IDLE_TICK: Duration = Duration::from_millis(250);

/// What a lease was granted under.
#[derive(Debug, Clone)]
pub struct Granted {
    pub id: LeaseId,
    pub tenant: TenantId,
    /// Epoch of the manager that granted it; 0 when this node did.
    pub epoch: u64,
    pub request: LeaseRequest,
    pub reservation: Reservation,
    pub kind: Kind,
}

/// One lease.
#[derive(Debug)]
pub struct Run {
    pub granted: Granted,
    /// The executor's identity in TLS.
    pub executor_key: SigningKey,
    pub meters_file: OwnedFd,
    hangups: Arc<Hangups>,
    meters: Vec<Meter>,
    inner: Mutex<Inner>,
    /// Bumped whenever a worker or the lease changes.
    changed: watch::Sender<u64>,
    /// Makes the supervisor look again at once.
    pub wake: Notify,
    /// True when everything of the lease is gone.
    pub over: watch::Sender<bool>,
    /// Wall-clock time up to which some token of this lease may be believed.
    token_end_ms: AtomicU64,
}

#[derive(Debug)]
struct Inner {
    life: Lease,
    control: Option<Control>,
    failure: Option<Failure>,
    slots: Vec<Slot>,
    fates: VecDeque<(ChannelId, Fate)>,
    /// What was journaled last.
    journaled: Usage,
}

#[derive(Debug, Default)]
struct Slot {
    /// As the executor counts, plus all incarnations under executors before it.
    incarnation: u32,
    base: u32,
    pid: u32,
    up: bool,
    /// Why we had it killed, and when.
    kill: Option<(End, Instant)>,
    channel: Option<Channel>,
    /// What its dead incarnations did not live to write down.
    lost: Usage,
    believed: Usage,
}

#[derive(Debug)]
struct Channel {
    id: ChannelId,
    memory: Option<ChannelMemory>,
    socket: OwnedFd,
    watched: u64,
    gone: Option<Instant>,
}

/// What the clock asks of a lease's supervisor.
#[derive(Debug, PartialEq, Eq)]
pub enum Tick {
    /// Look again after this time.
    Again(Duration),
    /// The executor does not do as told.
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

/// A row of `mayfly top`.
#[derive(Debug, Clone, serde::Serialize)]
pub struct LeaseView {
    /// Which.
    pub lease: LeaseId,
    /// Who pays.
    pub tenant: TenantId,
    /// Polling or sleeping.
    pub mode: Mode,
    /// Workers.
    pub workers: u16,
    /// Cores of its own.
    pub cores: Vec<u16>,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// As in [`mayfly_lease::State`].
    pub state: State,
    /// Milliseconds left.
    pub remaining_ms: u64,
    /// Channels open.
    pub channels: u32,
    /// Process ids of its workers; 0 for one that is being replaced.
    pub pids: Vec<u32>,
    /// What it used so far.
    pub usage: Usage,
}

impl Run {
    /// A lease with everything but its executor.
    pub fn new(granted: Granted, life: Lease, hangups: Arc<Hangups>, key: SigningKey) -> std::io::Result<Self> {
        let workers = granted.reservation.workers;
        let length = (workers as usize * METER_BYTES).next_multiple_of(4096);
        let meters_file = sealed_memory("mayfly-meters", length as u64)?;
        let mapping = Arc::new(Mapping::of(&meters_file, length)?);
        Ok(Self {
            executor_key: key,
            meters_file,
            hangups,
            meters: (0..workers).map(|index| Meter::new(mapping.clone(), index)).collect(),
            inner: Mutex::new(Inner {
                life,
                control: None,
                failure: None,
                slots: (0..workers).map(|_| Slot::default()).collect(),
                fates: VecDeque::new(),
                journaled: Usage::default(),
            }),
            changed: watch::channel(0).0,
            wake: Notify::new(),
            over: watch::channel(false).0,
            token_end_ms: AtomicU64::new(0),
            granted,
        })
    }

    pub fn id(&self) -> LeaseId {
        self.granted.id
    }

    pub fn holder(&self) -> PublicKey {
        self.granted.request.holder
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // No panic can happen between two changes that belong together.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn announce(&self) {
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Milliseconds for which a worker polls; none at all when warm.
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

    /// A token was signed that may be believed up to this time.
    pub fn promised(&self, until_ms: u64) {
        self.token_end_ms.fetch_max(until_ms, Ordering::Relaxed);
    }

    /// Up to when some token of this lease may be believed.
    pub fn token_end_ms(&self) -> u64 {
        self.token_end_ms.load(Ordering::Relaxed)
    }

    /// Process ids of its workers.
    pub fn processes(&self) -> Vec<u32> {
        let inner = self.inner();
        inner.slots.iter().filter(|slot| slot.up).map(|slot| slot.pid).collect()
    }

    /// Counts its length anew.
    pub fn renew(&self, duration_ms: u64) -> Result<(), Failure> {
        self.inner().life.renew(clock::now_ms(), duration_ms)?;
        self.wake.notify_one();
        Ok(())
    }

    /// Ends it, unless it has ended. Its supervisor does the rest; [`Run::over`] tells when.
    pub fn end(&self, state: State) {
        self.inner().life.end(state, clock::now_ms());
        self.announce();
        self.wake.notify_one();
    }

    pub fn state(&self) -> State {
        self.inner().life.state()
    }

    pub fn remaining_ms(&self) -> u64 {
        self.inner().life.remaining_ms(clock::now_ms())
    }

    /// Waits until everything of it is gone.
    pub async fn gone(&self, limit: Duration) {
        let mut over = self.over.subscribe();
        let _ = tokio::time::timeout(limit, over.wait_for(|over| *over)).await;
    }

    // -- the executor ------------------------------------------------------------------------------------------------

    /// An executor was assigned. Its count of incarnations starts anew, ours goes on.
    pub fn executor_assigned(&self, control: Control) {
        let mut inner = self.inner();
        for slot in &mut inner.slots {
            slot.base = slot.incarnation;
            slot.kill = None;
        }
        inner.control = Some(control);
        inner.failure = None;
        drop(inner);
        self.announce();
    }

    /// The executor is gone. Answers the process groups that its workers may have left.
    pub fn executor_gone(&self) -> Vec<u32> {
        let mut inner = self.inner();
        inner.control = None;
        let mut groups = Vec::new();
        for index in 0..inner.slots.len() {
            let end = inner.slots[index].kill.map_or(End::ExecutorDied, |(end, _)| end);
            groups.extend(self.worker_gone(&mut inner, index, end));
        }
        drop(inner);
        self.announce();
        groups
    }

    /// No executor can be had.
    pub fn executor_failed(&self, failure: Failure) {
        self.inner().failure = Some(failure);
        self.end(State::Lost);
    }

    /// Waits until an executor is assigned or none can be had.
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

    pub fn worker_started(&self, worker: WorkerIndex, incarnation: Incarnation, pid: u32) {
        if let Some(slot) = self.inner().slots.get_mut(worker.0 as usize) {
            slot.incarnation = slot.base.saturating_add(incarnation.0);
            slot.pid = pid;
            slot.up = true;
            slot.kill = None;
        }
        self.announce();
    }

    pub fn worker_ended(&self, worker: WorkerIndex, status: i32, signal: i32) {
        let mut inner = self.inner();
        let index = worker.0 as usize;
        let Some(slot) = inner.slots.get(index) else { return };
        let end = match (slot.kill, signal) {
            (Some((end, _)), _) => end,
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
        if slot.channel.is_some() && reading.is_running() {
            let ticks = mayfly_fabric::clock::ticks().saturating_sub(reading.start_ticks);
            slot.lost.computing_us += mayfly_fabric::clock::us_of_ticks(ticks);
            slot.lost.calls += 1;
            slot.lost.failures += 1;
        }
        self.end_channel(inner, index, end);
        group
    }

    pub fn detached(&self, worker: WorkerIndex, channel: ChannelId) {
        let mut inner = self.inner();
        let index = worker.0 as usize;
        let found = inner.slots.get(index).and_then(|slot| slot.channel.as_ref());
        let Some(found) = found.filter(|found| found.id == channel) else {
            return;
        };
        let end = if found.gone.is_some() || hung_up(&found.socket) {
            End::ClientGone
        } else {
            End::Violation
        };
        self.end_channel(&mut inner, index, end);
        drop(inner);
        self.announce();
    }

    // -- channels ----------------------------------------------------------------------------------------------------

    /// Waits until a worker is there and free.
    pub async fn worker_free(&self, worker: WorkerIndex) -> Result<(), Failure> {
        let begun = Instant::now();
        let mut changed = self.changed.subscribe();
        loop {
            let limit = {
                let mut inner = self.inner();
                inner.life.check(clock::now_ms())?;
                if let Some(failure) = &inner.failure {
                    return Err(failure.clone());
                }
                let slot = inner
                    .slots
                    .get_mut(worker.0 as usize)
                    .ok_or_else(|| Failure::new(Code::NotFound, format!("the lease has no worker {}", worker.0)))?;
                match &mut slot.channel {
                    Some(channel) => {
                        if channel.gone.is_none() && hung_up(&channel.socket) {
                            leave(channel);
                        }
                        if channel.gone.is_none() {
                            return Err(busy(worker));
                        }
                        DETACH_DEADLINE
                    }
                    None if slot.up => return Ok(()),
                    None => WORKER_DEADLINE,
                }
            };
            let left = limit.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(if limit == DETACH_DEADLINE {
                    busy(worker)
                } else {
                    Failure::new(
                        Code::ExecutorFailed,
                        format!(
                            "worker {} did not start in {} s; lease again",
                            worker.0,
                            limit.as_secs()
                        ),
                    )
                });
            }
            let _ = tokio::time::timeout(left, changed.changed()).await;
        }
    }

    /// Begins a channel to a free worker, and hands over its memory if it has some; a stream follows by
    /// [`Run::hand_over`] once its verdict is written.
    pub fn begin(
        self: &Arc<Self>,
        hello: &Hello,
        socket: OwnedFd,
        memory: Option<ChannelMemory>,
    ) -> Result<Begun, Failure> {
        let (worker, id) = (WorkerIndex(hello.worker.get()), hello.channel);
        let index = worker.0 as usize;
        let mut inner = self.inner();
        let Inner {
            life, slots, control, ..
        } = &mut *inner;
        let slot = slots.get_mut(index).filter(|slot| slot.up && slot.channel.is_none());
        let (Some(slot), Some(control)) = (slot, control) else {
            return Err(busy(worker));
        };
        let internal =
            |error: std::io::Error| Failure::new(Code::Internal, format!("the channel cannot be watched: {error}"));
        let watched = self.hangups.watch(&socket, self, id).map_err(internal)?;
        let first = life.open_channel(clock::now_ms()).inspect_err(|_| {
            self.hangups.forget(&socket, watched);
        })?;
        // The worker does the same when it takes the channel; if it dies before, nothing of the last one shall stand here.
        self.meters[index].attach();
        let begun = Begun {
            incarnation: Incarnation(slot.incarnation),
            pid: slot.pid,
            first,
        };
        let sent = match &memory {
            Some(memory) => control.send(&self.attach(hello), &[memory.file().as_fd()]),
            None => Ok(()),
        };
        slot.channel = Some(Channel {
            id,
            memory,
            socket,
            watched,
            gone: None,
        });
        if let Err(error) = sent {
            self.end_channel(&mut inner, index, End::ExecutorDied);
            return Err(unreachable_executor(&error));
        }
        drop(inner);
        self.wake.notify_one();
        Ok(begun)
    }

    /// Gives the worker the connection of a channel that was begun.
    pub fn hand_over(&self, hello: &Hello, socket: impl AsFd) -> Result<(), Failure> {
        let index = hello.worker.get() as usize;
        let mut inner = self.inner();
        let ours = inner.slots.get(index).and_then(|slot| slot.channel.as_ref());
        if ours.is_none_or(|channel| channel.id != hello.channel) {
            return Ok(());
        }
        let sent = match &inner.control {
            Some(control) => control.send(&self.attach(hello), &[socket.as_fd()]),
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        };
        sent.map_err(|error| {
            self.end_channel(&mut inner, index, End::ExecutorDied);
            unreachable_executor(&error)
        })
    }

    /// Takes back a channel whose verdict could not be delivered and that the worker has not got.
    pub fn abandon(&self, hello: &Hello) {
        let index = hello.worker.get() as usize;
        let mut inner = self.inner();
        let channel = inner.slots.get_mut(index).and_then(|slot| slot.channel.as_mut());
        let Some(channel) = channel.filter(|channel| channel.id == hello.channel) else {
            return;
        };
        if channel.memory.is_some() {
            leave(channel);
        } else {
            self.end_channel(&mut inner, index, End::ClientGone);
        }
        drop(inner);
        self.announce();
    }

    fn attach(&self, hello: &Hello) -> ToExecutor {
        let tls = hello.transport == mayfly_protocol::hello::transport::TLS;
        let never_sleeps = if self.never_sleeps() {
            options::WORKER_NEVER_SLEEPS
        } else {
            0
        };
        ToExecutor::Attach {
            worker: WorkerIndex(hello.worker.get()),
            channel: hello.channel,
            transport: hello.transport,
            slots: hello.slots.get(),
            stride_bytes: hello.stride_bytes.get(),
            bulk_bytes: hello.bulk_bytes.get(),
            options: hello.options.get() & options::CLIENT_NEVER_SLEEPS | never_sleeps,
            executor_key_pkcs8: tls.then(|| self.executor_key.to_pkcs8()),
            client_key: tls.then(|| self.holder()),
        }
    }

    /// The client of a channel went away.
    pub fn client_gone(&self, id: ChannelId) {
        let mut inner = self.inner();
        let channels = inner.slots.iter_mut().filter_map(|slot| slot.channel.as_mut());
        for channel in channels.filter(|channel| channel.id == id && channel.gone.is_none()) {
            leave(channel);
        }
        drop(inner);
        self.wake.notify_one();
    }

    fn end_channel(&self, inner: &mut Inner, index: usize, end: End) {
        let slot = &mut inner.slots[index];
        let Some(channel) = slot.channel.take() else { return };
        let reading = self.meters[index].read();
        let fate = Fate {
            worker: WorkerIndex(index as u16),
            incarnation: Incarnation(slot.incarnation),
            started: reading.started,
            finished: reading.finished,
            end: Some(end),
        };
        // The fate is there before the client can learn that the channel ended, and so before it can ask.
        inner.fates.push_back((channel.id, fate));
        if inner.fates.len() > MOST_FATES {
            inner.fates.pop_front();
        }
        if let Some(memory) = &channel.memory {
            memory.close(end);
        }
        self.hangups.forget(&channel.socket, channel.watched);
        let _ = rustix::net::shutdown(&channel.socket, rustix::net::Shutdown::Both);
        inner.life.close_channel(clock::now_ms());
        self.wake.notify_one();
    }

    /// Ends every channel: the lease has ended as its state tells.
    pub fn end_channels(&self) {
        let mut inner = self.inner();
        let end = match inner.life.state() {
            State::Expired => End::Expired,
            State::Revoked => End::Revoked,
            State::Lost => End::ExecutorDied,
            _ => End::Released,
        };
        for index in 0..inner.slots.len() {
            self.end_channel(&mut inner, index, end);
        }
    }

    /// What became of a channel.
    pub fn fate(&self, id: ChannelId) -> Result<Fate, Failure> {
        let inner = self.inner();
        let open = inner.slots.iter().enumerate();
        let alive = open
            .filter(|(_, slot)| slot.channel.as_ref().is_some_and(|channel| channel.id == id))
            .map(|(index, slot)| {
                let reading = self.meters[index].read();
                Fate {
                    worker: WorkerIndex(index as u16),
                    incarnation: Incarnation(slot.incarnation),
                    started: reading.started,
                    finished: reading.finished,
                    end: None,
                }
            });
        let ended = inner.fates.iter().rev().filter(|(ended, _)| *ended == id);
        alive
            .chain(ended.map(|(_, fate)| fate.clone()))
            .next()
            .ok_or_else(|| Failure::new(Code::NotFound, format!("this lease had no channel {id} of late")))
    }

    /// Kills the worker that runs this invocation. Does nothing when it does not run (any more).
    pub fn cancel(&self, id: ChannelId, sequence: u32) -> Result<(), Failure> {
        let mut inner = self.inner();
        let Inner { slots, control, .. } = &mut *inner;
        let found = slots
            .iter_mut()
            .enumerate()
            .find(|(_, slot)| slot.channel.as_ref().is_some_and(|channel| channel.id == id));
        let Some((index, slot)) = found else {
            return Err(Failure::new(
                Code::NotFound,
                format!("this lease has no open channel {id}"),
            ));
        };
        let reading = self.meters[index].read();
        if reading.is_running() && reading.started == sequence {
            slot.kill(control.as_ref(), index, End::Cancelled);
        }
        Ok(())
    }

    // -- time and meters ---------------------------------------------------------------------------------------------

    /// What time demands.
    pub fn tick(&self) -> Tick {
        let now = clock::now_ms();
        let ticks = mayfly_fabric::clock::ticks();
        let mut inner = self.inner();
        let Inner {
            life, slots, control, ..
        } = &mut *inner;
        let (mut busy, mut awake, mut stuck) = (false, false, false);
        for (index, slot) in slots.iter_mut().enumerate() {
            let Some(channel) = &slot.channel else { continue };
            let reading = self.meters[index].read();
            let gone = channel.gone;
            busy |= reading.is_running();
            awake |= reading.awake || reading.is_running();
            if reading.is_overdue(ticks) {
                slot.kill(control.as_ref(), index, End::Deadline);
            } else if reading.is_running() && gone.is_some_and(|since| since.elapsed() > ORPHAN_GRACE) {
                slot.kill(control.as_ref(), index, End::ClientGone);
            }
            stuck |= slot.kill.is_some_and(|(_, since)| since.elapsed() > KILL_DEADLINE);
        }
        if let Some(mayfly_lease::Step::End(_)) = life.tick(now, busy) {
            return Tick::Over;
        }
        if !life.state().is_live() {
            return Tick::Over;
        }
        if stuck {
            return Tick::Stuck;
        }
        let pace = match (awake, life.channels()) {
            (true, _) => AWAKE_TICK,
            (false, 1..) => ASLEEP_TICK,
            (false, 0) => IDLE_TICK,
        };
        let due = life.next_at().map_or(u64::MAX, |at| at.saturating_sub(now).max(1));
        Tick::Again(pace.min(Duration::from_millis(due)))
    }

    /// What it used so far, as far as that can be true.
    pub fn usage(&self) -> Usage {
        self.usage_of(&mut self.inner())
    }

    /// The same, if it is more than last time this was asked.
    pub fn new_usage(&self) -> Option<Usage> {
        let mut inner = self.inner();
        let usage = self.usage_of(&mut inner);
        (std::mem::replace(&mut inner.journaled, usage) != usage).then_some(usage)
    }

    fn usage_of(&self, inner: &mut Inner) -> Usage {
        use mayfly_fabric::clock::{ticks, us_of_ticks};
        let wall_us = inner.life.allocated_ms(clock::now_ms()) * 1000;
        let mut total = Usage::default();
        for (slot, meter) in inner.slots.iter_mut().zip(&self.meters) {
            let reading = meter.read();
            let running = slot.channel.is_some() && reading.is_running();
            let running = if running {
                ticks().saturating_sub(reading.start_ticks)
            } else {
                0
            };
            let claimed = Usage {
                computing_us: us_of_ticks(reading.computing.saturating_add(running)),
                polling_us: us_of_ticks(reading.polling),
                allocated_us: wall_us,
                calls: reading.calls,
                failures: reading.failures,
            };
            slot.believed = billing::clamp(billing::add(claimed, slot.lost), slot.believed, wall_us);
            total = billing::add(total, slot.believed);
        }
        total
    }

    pub fn view(&self) -> LeaseView {
        let mut inner = self.inner();
        LeaseView {
            lease: self.id(),
            tenant: self.granted.tenant,
            mode: self.granted.reservation.mode,
            workers: self.granted.reservation.workers,
            cores: self.granted.reservation.cores.clone(),
            memory_bytes: self.granted.reservation.memory_bytes,
            state: inner.life.state(),
            remaining_ms: inner.life.remaining_ms(clock::now_ms()),
            channels: inner.life.channels(),
            pids: inner.slots.iter().map(|slot| slot.pid).collect(),
            usage: self.usage_of(&mut inner),
        }
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
            // If it cannot be told it is stuck or dead, and either is found out.
            let _ = control.send(&ToExecutor::Kill { worker }, &[]);
        }
    }
}

/// Notes that a channel's client is gone, and tells the worker if the socket itself does not.
fn leave(channel: &mut Channel) {
    channel.gone = Some(Instant::now());
    if let Some(memory) = &channel.memory {
        memory.close(End::ClientGone);
    }
}

fn hung_up(socket: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut waiting = [PollFd::new(socket, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut waiting, Some(&now)), Ok(1..))
}

fn busy(worker: WorkerIndex) -> Failure {
    Failure::new(
        Code::WorkerBusy,
        format!(
            "another channel is open to worker {}; close it, use another worker or lease more",
            worker.0
        ),
    )
}

fn unreachable_executor(error: &std::io::Error) -> Failure {
    Failure::new(
        Code::ExecutorFailed,
        format!("the lease's executor does not take the channel: {error}; connect again"),
    )
}
