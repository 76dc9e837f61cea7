//! One worker of a lease: its process, its channel, and its usage.

use std::collections::BTreeSet;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use dayfly_fabric::shm::ChannelMemory;
use dayfly_lease::billing;
use dayfly_protocol::api::Usage;
use dayfly_protocol::executor::ToExecutor;
use dayfly_protocol::ids::{ChannelId, Incarnation, PublicKey, WorkerIndex};
use dayfly_protocol::node_api::End;
use dayfly_protocol::slot::{MAX_SLOTS, has_begun};

use crate::executors::ControlSocket;
use crate::harvest::MemoryWatch;

/// Most cancelled calls that are remembered for each channel until they begin: the most slots of a ring.
const MAX_CANCELLED: usize = MAX_SLOTS as usize;

/// The place of a worker. Its process is replaced when it ends.
#[derive(Debug, Default)]
pub(super) struct WorkerSlot {
    /// The executor's count, plus all incarnations under executors before it.
    incarnation: u32,
    base: u32,
    /// 0 while there is no process.
    pid: u32,
    process: Option<OwnedFd>,
    is_up: bool,
    /// Of its own control group, if that limits its memory.
    memory: Option<MemoryWatch>,
    /// Why and when the node had it killed.
    kill: Option<(End, Instant)>,
    /// The call that ran when the lease's time was over, and may finish.
    finishing: Option<u32>,
    channel: Option<Channel>,
    /// Usage that its dead incarnations did not record.
    lost: Usage,
    /// Plausible usage so far.
    usage: Usage,
    /// Cores to itself; none if it shares cores.
    cores: Vec<u16>,
    /// Cores that it lent while it slept, and since when it sleeps with cores of its own, in milliseconds of the node's
    /// clock.
    lent: Option<Vec<u16>>,
    asleep_since_ms: Option<u64>,
    stage: Stage,
    /// Milliseconds of the lease for which it was allocated before, and since when it is now.
    allocated_ms: u64,
    allocated_since_ms: u64,
}

/// How far a worker's retirement is, after a renewal with fewer workers.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It belongs to the lease.
    #[default]
    Serving,
    /// It stops to begin calls, and may finish its running call, between these times of the node's clock, in
    /// milliseconds.
    Finishing { stopped_ms: u64, until_ms: u64 },
    /// Its executor was requested to end it.
    Ending,
    /// It is gone. Another worker may take its number.
    Gone,
}

impl WorkerSlot {
    /// A worker with these cores to itself.
    pub fn with_cores(cores: Vec<u16>) -> Self {
        Self {
            cores,
            ..Self::default()
        }
    }

    /// Its cores; none if it shares cores.
    pub fn cores(&self) -> &[u16] {
        &self.cores
    }

    /// Gives it cores, or none.
    pub fn set_cores(&mut self, cores: Vec<u16>) {
        self.cores = cores;
        self.lent = None;
        self.asleep_since_ms = None;
    }

    /// The cores that it lent.
    pub fn lent(&self) -> Option<&Vec<u16>> {
        self.lent.as_ref()
    }

    /// Lends its cores and returns them.
    pub fn lend_cores(&mut self) -> Vec<u16> {
        let cores = std::mem::take(&mut self.cores);
        self.lent = Some(cores.clone());
        self.asleep_since_ms = None;
        cores
    }

    /// How long it has been asleep with cores of its own, in milliseconds, as far as this was called. `is_asleep` is
    /// whether it sleeps now.
    pub fn asleep_ms(&mut self, is_asleep: bool, now_ms: u64) -> u64 {
        if !is_asleep || self.cores.is_empty() || !self.is_up {
            self.asleep_since_ms = None;
            return 0;
        }
        now_ms.saturating_sub(*self.asleep_since_ms.get_or_insert(now_ms))
    }

    /// Whether it belongs to the lease and is not being retired.
    pub fn is_serving(&self) -> bool {
        self.stage == Stage::Serving
    }

    /// Whether it was retired and is gone.
    pub fn is_gone(&self) -> bool {
        self.stage == Stage::Gone
    }

    /// Begins its retirement: it begins no call after the start of this time, and its running call may take until the
    /// end.
    pub fn retire(&mut self, time: Range<u64>) {
        self.stage = Stage::Finishing {
            stopped_ms: time.start,
            until_ms: time.end,
        };
    }

    /// The time of [`WorkerSlot::retire`], until it is ended.
    pub fn retires_within(&self) -> Option<Range<u64>> {
        match self.stage {
            Stage::Finishing { stopped_ms, until_ms } => Some(stopped_ms..until_ms),
            _ => None,
        }
    }

    /// Records that the executor is requested to end it for good.
    pub fn end_for_good(&mut self) {
        self.stage = Stage::Ending;
        if self.is_up && self.kill.is_none() {
            self.kill = Some((End::Retired, Instant::now()));
        }
    }

    /// Completes its retirement, at this time of the lease in milliseconds. Does nothing if it is not being retired.
    pub fn end_retirement(&mut self, allocated_ms: u64) {
        if matches!(self.stage, Stage::Serving | Stage::Gone) {
            return;
        }
        self.allocated_ms = self.allocated_at(allocated_ms);
        self.stage = Stage::Gone;
        self.set_cores(Vec::new());
    }

    /// Takes the number into use again, at this time of the lease in milliseconds.
    pub fn revive(&mut self, allocated_ms: u64) {
        self.continue_count();
        self.stage = Stage::Serving;
        self.allocated_since_ms = allocated_ms;
    }

    /// Milliseconds for which the worker is allocated when the lease is for `allocated_ms`.
    pub fn allocated_at(&self, allocated_ms: u64) -> u64 {
        match self.stage {
            Stage::Gone => self.allocated_ms,
            _ => self.allocated_ms + allocated_ms.saturating_sub(self.allocated_since_ms),
        }
    }

    /// Continues the count of incarnations under a new executor.
    pub fn continue_count(&mut self) {
        self.base = self.incarnation;
        self.kill = None;
    }

    /// Records the start of a process.
    pub fn start(&mut self, incarnation: Incarnation, pid: u32, process: Option<OwnedFd>) {
        self.incarnation = self.base.saturating_add(incarnation.0);
        self.pid = pid;
        self.process = process;
        self.is_up = true;
        self.kill = None;
        self.memory = None;
    }

    /// Notices kills in its own control group, which limits its memory.
    pub fn watch_memory(&mut self, watch: MemoryWatch) {
        self.memory = Some(watch);
    }

    /// The end of its process, if the kernel killed processes in its own control group for lack of memory.
    pub fn end_without_memory(&self) -> Option<End> {
        self.memory.as_ref().and_then(MemoryWatch::end)
    }

    /// Records the end of its process. Returns the process's group if it was running.
    pub fn stop(&mut self) -> Option<u32> {
        let group = self.running_pid();
        self.is_up = false;
        self.pid = 0;
        self.process = None;
        group
    }

    /// Requests the executor to kill its process, once.
    pub fn kill(&mut self, control: Option<&ControlSocket>, index: usize, end: End) {
        if self.kill.is_some() || !self.is_up {
            return;
        }
        self.kill = Some((end, Instant::now()));
        if let Some(control) = control {
            let worker = WorkerIndex(index as u16);
            // If the executor cannot take it, it is stuck or dead, and either is noticed.
            let _ = control.send(&ToExecutor::Kill { worker }, &[]);
        }
    }

    /// The reason for which the node had it killed.
    pub fn planned_end(&self) -> Option<End> {
        self.kill.map(|(end, _)| end)
    }

    /// Whether the executor has not killed it for this time.
    pub fn is_kill_overdue(&self, limit: Duration) -> bool {
        self.is_up && self.kill.is_some_and(|(_, since)| since.elapsed() > limit)
    }

    /// Whether it has a process.
    pub fn is_up(&self) -> bool {
        self.is_up
    }

    /// Process id; 0 while it is replaced.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Process id, if there is a process.
    pub fn running_pid(&self) -> Option<u32> {
        self.is_up.then_some(self.pid)
    }

    /// The process, if it is known.
    pub fn process(&self) -> Option<&OwnedFd> {
        self.process.as_ref()
    }

    /// Number of its process.
    pub fn incarnation(&self) -> Incarnation {
        Incarnation(self.incarnation)
    }

    /// The open channel.
    pub fn channel(&self) -> Option<&Channel> {
        self.channel.as_ref()
    }

    /// The open channel.
    pub fn channel_mut(&mut self) -> Option<&mut Channel> {
        self.channel.as_mut()
    }

    /// Adds a channel.
    pub fn set_channel(&mut self, channel: Channel) {
        self.channel = Some(channel);
    }

    /// Removes the channel.
    pub fn take_channel(&mut self) -> Option<Channel> {
        self.channel.take()
    }

    /// Records the call that may finish after the lease's time.
    pub fn set_finishing(&mut self, call: Option<u32>) {
        self.finishing = call;
    }

    /// Whether this call may finish after the lease's time.
    pub fn is_finishing(&self, call: u32) -> bool {
        self.finishing == Some(call)
    }

    /// Charges a call whose worker died.
    pub fn add_lost_call(&mut self, computing_us: u64) {
        self.lost.computing_us += computing_us;
        self.lost.calls += 1;
        self.lost.failures += 1;
    }

    /// Computes the plausible usage from the claim of the process; `wall_us` is the lease's time so far.
    pub fn update_usage(&mut self, claimed: Usage, wall_us: u64) -> Usage {
        self.usage = billing::clamp(billing::add(claimed, self.lost), self.usage, wall_us);
        self.usage
    }
}

/// An open channel.
#[derive(Debug)]
pub(super) struct Channel {
    id: ChannelId,
    /// Key of the client that opened it.
    holder: PublicKey,
    memory: Option<ChannelMemory>,
    socket: OwnedFd,
    /// Key of the socket in the [`DisconnectWatch`](crate::disconnects::DisconnectWatch).
    watch_key: u64,
    /// Calls that were cancelled before they began.
    cancelled: BTreeSet<u32>,
    /// Since when its client is gone, and why.
    client_gone: Option<(Instant, End)>,
}

impl Channel {
    /// A channel whose client is present.
    pub fn new(
        id: ChannelId,
        holder: PublicKey,
        memory: Option<ChannelMemory>,
        socket: OwnedFd,
        watch_key: u64,
    ) -> Self {
        Self {
            id,
            holder,
            memory,
            socket,
            watch_key,
            cancelled: BTreeSet::new(),
            client_gone: None,
        }
    }

    /// Its id.
    pub fn id(&self) -> ChannelId {
        self.id
    }

    /// Key of the client that opened it.
    pub fn holder(&self) -> &PublicKey {
        &self.holder
    }

    /// The shared memory, if it has some.
    pub fn memory(&self) -> Option<&ChannelMemory> {
        self.memory.as_ref()
    }

    /// The socket, and its key in the watch.
    pub fn socket(&self) -> (&OwnedFd, u64) {
        (&self.socket, self.watch_key)
    }

    /// Records that its client is gone, or should be, and informs the worker.
    pub fn mark_client_gone(&mut self, end: End) {
        self.client_gone = Some((Instant::now(), end));
        match &self.memory {
            Some(memory) => memory.close(end),
            // The socket reports nothing if the network to its client was cut, so shut it down.
            None => {
                let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
            }
        }
    }

    /// Why the client is gone; `None` while it is present.
    pub fn client_end(&self) -> Option<End> {
        self.client_gone.map(|(_, end)| end)
    }

    /// Why the client is gone, if it has been for this time.
    pub fn orphaned(&self, grace: Duration) -> Option<End> {
        let (since, end) = self.client_gone?;
        (since.elapsed() > grace).then_some(end)
    }

    /// Whether the kernel has noticed that the client closed its end.
    pub fn is_disconnected(&self) -> bool {
        is_disconnected(&self.socket)
    }

    /// Remembers a cancelled call that has not begun. An honest client cancels at most as many calls as a ring has
    /// slots; the first of any more is dropped.
    pub fn cancel(&mut self, sequence: u32) {
        if self.cancelled.len() >= MAX_CANCELLED {
            self.cancelled.pop_first();
        }
        self.cancelled.insert(sequence);
    }

    /// Whether the call that runs was cancelled. Forgets the calls that have begun before.
    pub fn take_cancelled(&mut self, started: u32, is_running: bool) -> bool {
        let was_cancelled = is_running && self.cancelled.remove(&started);
        self.cancelled.retain(|sequence| !has_begun(started, *sequence));
        was_cancelled
    }

    /// Whether any cancelled call has not begun.
    pub fn has_cancelled(&self) -> bool {
        !self.cancelled.is_empty()
    }
}

/// Whether a process has not ended.
pub(super) fn is_alive(process: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut waiting = [PollFd::new(process, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut waiting, Some(&now)), Ok(0))
}

/// Whether the kernel has noticed that the peer of a socket closed its end.
pub(super) fn is_disconnected(socket: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut waiting = [PollFd::new(socket, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut waiting, Some(&now)), Ok(1..))
}
