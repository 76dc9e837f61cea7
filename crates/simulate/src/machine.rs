//! The processors and the memory of one node in virtual time, as fluids.
//!
//! A running call uses processors at a rate that is constant between events: the least of its parallelism, its limit and
//! its share. Those who own units come first, which is the meaning of a borrower's idle group; what they leave
//! is shared between borrowers in proportion to what they borrowed. Work is counted in whole thousandths of a core times
//! microseconds, so that nothing is lost to rounding.
//!
//! In each phase, memory goes in proportion to the work done from that of the phase before to its own, which it reaches in
//! the middle of the phase. A call gets no faster from memory: it runs, or it runs out.

mod sharing;

use std::collections::BTreeMap;

use dayfly_harvest::{Amount, CallId, Resource};

use crate::call::Phases;

/// Work of one core for one microsecond, in thousandths of a core times microseconds.
pub const CORE_MICROSECOND: u64 = 1_000;

/// Why a call no longer runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Its work is done.
    Finished,
    /// It needs more memory than its limit.
    OutOfMemory,
}

/// What a call used since it was measured last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measured {
    /// Length of the window, in microseconds.
    pub window_us: u64,
    /// Mean use of processors, in thousandths of a core.
    pub milli_cores: u64,
    /// Memory at the end of the window.
    pub memory_bytes: u64,
    /// Share of the window, in millionths, in which it could have used more than it got.
    pub waiting_ppm: u32,
}

/// What a machine did so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Work done: thousandths of a core times microseconds.
    pub work: u128,
    /// Memory used: bytes times microseconds.
    pub memory: u128,
}

/// A running call.
#[derive(Debug)]
struct Running {
    owned: Amount,
    phases: Phases,
    limit: Amount,
    /// Its limit of memory does not bind, since it is asked to give memory back first.
    is_reclaimed: bool,
    phase: usize,
    /// Work at which the phase began, and at which it ends.
    phase_begin: u64,
    phase_end: u64,
    done: u64,
    /// Work at which it needs more memory than its limit.
    memory_end: u64,
    rate: u64,
    window_us: u64,
    window_done: u64,
    waited_us: u64,
}

impl Running {
    fn new(owned: Amount, phases: Phases) -> Self {
        let mut call = Self {
            owned,
            phases,
            limit: owned,
            is_reclaimed: false,
            phase: 0,
            phase_begin: 0,
            phase_end: phases.first().map_or(0, |phase| work_of(phase.core_us)),
            done: 0,
            memory_end: u64::MAX,
            rate: 0,
            window_us: 0,
            window_done: 0,
            waited_us: 0,
        };
        call.skip_phases();
        call.limit_memory();
        call
    }

    /// Goes on to the phase that has work left. Returns whether the phase changed.
    fn skip_phases(&mut self) -> bool {
        let before = self.phase;
        while self.done >= self.phase_end && self.phase < self.phases.len() {
            self.phase += 1;
            let work = self.phases.get(self.phase).map_or(0, |phase| work_of(phase.core_us));
            self.phase_begin = self.phase_end;
            self.phase_end = self.phase_end.saturating_add(work);
        }
        let has_changed = self.phase != before;
        if has_changed {
            self.limit_memory();
        }
        has_changed
    }

    fn parallelism(&self) -> u64 {
        self.phases.get(self.phase).map_or(0, |phase| phase.milli_cores)
    }

    fn memory(&self) -> u64 {
        let (from, to) = self.phase_memory();
        let half = self.half();
        let done = u128::from((self.done - self.phase_begin).min(half));
        let step = |change: u64| (u128::from(change) * done / u128::from(half)) as u64;
        if to >= from {
            from + step(to - from)
        } else {
            from - step(from - to)
        }
    }

    /// Memory at the begin of the phase, and from its middle on.
    fn phase_memory(&self) -> (u64, u64) {
        let of = |phase: usize| self.phases.get(phase).map(|phase| phase.memory_bytes);
        let from = self.phase.checked_sub(1).and_then(of).unwrap_or(0);
        (from, of(self.phase).unwrap_or(from))
    }

    fn half(&self) -> u64 {
        (self.phase_end - self.phase_begin).div_ceil(2).max(1)
    }

    /// Computes when its memory exceeds its limit in this phase.
    fn limit_memory(&mut self) {
        let limit = self.limit.memory_bytes;
        let (from, to) = self.phase_memory();
        self.memory_end = if self.is_reclaimed || (self.memory() <= limit && to <= limit) {
            u64::MAX
        } else if self.memory() > limit {
            self.done
        } else {
            // The first work at which the memory, rounded down, is above the limit.
            let over = u128::from(limit - from) + 1;
            let work = (over * u128::from(self.half())).div_ceil(u128::from(to - from));
            self.phase_begin.saturating_add(work as u64)
        };
    }

    /// Microseconds until it stops or changes its phase, at its rate.
    fn remaining_us(&self) -> Option<u64> {
        if self.stop().is_some() {
            return Some(0);
        }
        let work = self.phase_end.min(self.memory_end).saturating_sub(self.done);
        (self.rate > 0).then(|| work.div_ceil(self.rate))
    }

    fn stop(&self) -> Option<Stop> {
        if self.phase >= self.phases.len() {
            Some(Stop::Finished)
        } else if self.done >= self.memory_end {
            Some(Stop::OutOfMemory)
        } else {
            None
        }
    }
}

fn work_of(core_us: u64) -> u64 {
    core_us.saturating_mul(CORE_MICROSECOND)
}

/// The shared processors and memory of one node.
#[derive(Debug)]
pub struct Machine {
    capacity: Amount,
    now_us: u64,
    calls: BTreeMap<CallId, Running>,
    must_share: bool,
    totals: Totals,
}

impl Machine {
    /// An idle machine.
    pub fn new(capacity: Amount) -> Self {
        Self {
            capacity,
            now_us: 0,
            calls: BTreeMap::new(),
            must_share: false,
            totals: Totals::default(),
        }
    }

    /// What it has.
    pub fn capacity(&self) -> Amount {
        self.capacity
    }

    /// Its time.
    pub fn now_us(&self) -> u64 {
        self.now_us
    }

    /// What it did.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Whether no call runs.
    pub fn is_idle(&self) -> bool {
        self.calls.is_empty()
    }

    /// The running calls, in the order of their ids.
    pub fn calls(&self) -> impl Iterator<Item = CallId> + '_ {
        self.calls.keys().copied()
    }

    /// Starts a call, whose limits are what it owns at first. A call of this id must not run.
    pub fn start(&mut self, id: CallId, owned: Amount, phases: Phases) {
        let before = self.calls.insert(id, Running::new(owned, phases));
        debug_assert!(before.is_none(), "a call starts twice");
        self.must_share = true;
    }

    /// Removes a call. Returns whether it ran.
    pub fn remove(&mut self, id: CallId) -> bool {
        self.must_share = true;
        self.calls.remove(&id).is_some()
    }

    /// Sets a limit. With `reclaims`, a call whose memory is above it goes on, until somebody removes it.
    pub fn limit(&mut self, id: CallId, resource: Resource, units: u64, reclaims: bool) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        *call.limit.get_mut(resource) = units;
        if resource == Resource::Memory {
            call.is_reclaimed = reclaims && call.memory() > units;
            call.limit_memory();
        }
        self.must_share = true;
    }

    /// What calls other than this one are limited to, in all.
    pub fn allocated(&self, except: CallId) -> Amount {
        let others = self.calls.iter().filter(|(id, _)| **id != except);
        others.fold(Amount::ZERO, |sum, (_, call)| sum + call.limit)
    }

    /// The memory of a call.
    pub fn memory(&self, id: CallId) -> u64 {
        self.calls.get(&id).map_or(0, Running::memory)
    }

    /// Work of a call that is done.
    pub fn done(&self, id: CallId) -> u64 {
        self.calls.get(&id).map_or(0, |call| call.done)
    }

    /// When a call stops or changes its phase next, if nothing else happens.
    pub fn next_us(&mut self) -> Option<u64> {
        self.share();
        let remaining = self.calls.values().filter_map(Running::remaining_us).min();
        remaining.map(|remaining| self.now_us.saturating_add(remaining))
    }

    /// Lets time pass, not beyond [`Machine::next_us`].
    pub fn advance(&mut self, to_us: u64) {
        let elapsed = to_us.saturating_sub(self.now_us);
        if elapsed == 0 {
            return;
        }
        self.share();
        for call in self.calls.values_mut() {
            let before = call.memory();
            let work = call.rate.saturating_mul(elapsed).min(call.phase_end - call.done);
            call.done += work;
            self.totals.work += u128::from(work);
            self.totals.memory += u128::from(before.midpoint(call.memory())) * u128::from(elapsed);
            call.window_us += elapsed;
            call.waited_us += if call.rate < call.parallelism() { elapsed } else { 0 };
        }
        self.now_us = to_us;
    }

    /// Begins the next phases of calls, and returns those that stopped. They stay until they are removed.
    pub fn stopped(&mut self) -> Vec<(CallId, Stop)> {
        let mut stopped = Vec::new();
        for (id, call) in &mut self.calls {
            self.must_share |= call.skip_phases();
            if let Some(stop) = call.stop() {
                stopped.push((*id, stop));
            }
        }
        stopped
    }

    /// Measures a call, unless its window would be shorter than `min_window_us`.
    pub fn measure(&mut self, id: CallId, min_window_us: u64) -> Option<Measured> {
        let call = self.calls.get_mut(&id)?;
        let window_us = call.window_us;
        if window_us == 0 || window_us < min_window_us {
            return None;
        }
        let measured = Measured {
            window_us,
            milli_cores: (call.done - call.window_done) / window_us,
            memory_bytes: call.memory(),
            waiting_ppm: (u128::from(call.waited_us) * 1_000_000 / u128::from(window_us)) as u32,
        };
        call.window_us = 0;
        call.waited_us = 0;
        call.window_done = call.done;
        Some(measured)
    }

    /// Computes rates, if anything changed.
    fn share(&mut self) {
        if std::mem::take(&mut self.must_share) {
            sharing::share(self.capacity.milli_cores, self.calls.values_mut());
        }
    }
}

#[cfg(test)]
mod tests;
