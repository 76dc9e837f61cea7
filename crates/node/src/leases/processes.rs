//! Starts and ends of a lease's processes. This `impl` records them, and ends the channels of what is gone.

use super::changes::retire_workers;
use super::*;

/// Time after which a killed process counts as stuck in the kernel.
const DEATH_DEADLINE: Duration = Duration::from_millis(200);

impl NodeLease {
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

    /// Records the start of a worker's process.
    pub fn on_worker_start(&self, worker: WorkerIndex, incarnation: Incarnation, pid: u32, process: Option<OwnedFd>) {
        let mut state = self.lock();
        let LeaseData { slots, control, .. } = &mut *state;
        match slots.get_mut(worker.0 as usize) {
            // It ended by itself while it was being given back, and was replaced.
            Some(slot) if slot.is_gone() => retire_workers(control.as_ref(), vec![worker]),
            Some(slot) => slot.start(incarnation, pid, process),
            None => {}
        }
        drop(state);
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
        Self::end_retirement(state, index);
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
        let is_serving = state.slots[index].is_serving();
        let end = match found.client_end() {
            _ if !is_serving => End::Retired,
            Some(end) => end,
            None if found.is_disconnected() => End::ClientGone,
            None => End::Violation,
        };
        self.end_channel(&mut state, index, end);
        drop(state);
        self.notify_changed();
    }
}
