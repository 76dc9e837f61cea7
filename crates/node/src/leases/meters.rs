//! Time limits and usage of a lease. This `impl` reads the workers' meters, and ends what takes too long.

use dayfly_protocol::durations::DURATION_BUCKETS;

use super::*;

/// Grace of a call whose client is gone: its result cannot be delivered.
const ORPHAN_GRACE: Duration = Duration::from_secs(10);
/// Time after which an executor that has not killed a worker counts as stuck, and is killed itself.
const KILL_DEADLINE: Duration = Duration::from_secs(2);
/// Interval of meter readings while a worker is awake: the accuracy of deadlines.
const AWAKE_TICK: Duration = Duration::from_millis(10);
/// The same while a lease only finishes its running calls: bounds the idle time of its cores.
const DRAINING_TICK: Duration = Duration::from_millis(1);
/// The same while channels are open and every worker sleeps: the delay until a wake-up is noticed.
const ASLEEP_TICK: Duration = Duration::from_millis(50);
/// The same while cores of sleeping workers are lent.
const LENT_TICK: Duration = Duration::from_millis(20);
/// The same without an open channel.
const IDLE_TICK: Duration = Duration::from_millis(250);

/// What a lease's supervisor has to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Tick {
    /// Tick again after this time.
    Again(Duration),
    /// Kill the executor, which does not follow its orders.
    Stuck,
    /// The lease has ended.
    Over,
}

/// Number of calls by duration.
pub type Durations = [u64; DURATION_BUCKETS];

/// Adds counters. A worker may have written any values; they affect only this statistic.
pub fn add_durations(sum: &mut Durations, more: &Durations) {
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum = sum.saturating_add(*more);
    }
}

impl NodeLease {
    /// Applies the time limits. Returns what the supervisor has to do.
    pub fn tick(&self) -> Tick {
        let now = clock::now_ms();
        let ticks = dayfly_fabric::clock::ticks();
        let mut state = self.lock();
        Self::expire_delegations(&mut state, now);
        let LeaseData {
            slots,
            control,
            busy_at_ms,
            ..
        } = &mut *state;
        let (mut busy, mut awake, mut stuck) = (false, false, false);
        for (index, slot) in slots.iter_mut().enumerate() {
            let reading = self.meters[index].read();
            stuck |= slot.is_kill_overdue(KILL_DEADLINE);
            let Some(channel) = slot.channel_mut() else { continue };
            let is_cancelled = channel.take_cancelled(reading.started, reading.is_running());
            busy |= reading.is_running();
            awake |= reading.awake || reading.is_running() || channel.has_cancelled();
            let orphaned = channel.orphaned(ORPHAN_GRACE).filter(|_| reading.is_running());
            if is_cancelled {
                slot.kill(control.as_ref(), index, End::Cancelled);
            } else if reading.is_overdue(ticks) {
                slot.kill(control.as_ref(), index, End::Deadline);
            } else if let Some(end) = orphaned {
                slot.kill(control.as_ref(), index, end);
            }
        }
        if busy {
            *busy_at_ms = now;
        }
        let is_retiring = self.advance_retirements(&mut state, now);
        let life = &mut state.life;
        match life.tick(now, busy) {
            Some(dayfly_lease::Step::End(_)) => return Tick::Over,
            Some(dayfly_lease::Step::Drain { .. }) => {
                self.begin_draining(&mut state);
                self.notify_changed();
            }
            None => {}
        }
        if state.life.is_draining() {
            self.drain(&mut state);
        }
        let life = &state.life;
        if !life.state().is_live() {
            return Tick::Over;
        }
        if stuck {
            return Tick::Stuck;
        }
        let pace = match (awake, life.channels()) {
            _ if life.is_draining() || is_retiring => DRAINING_TICK,
            (true, _) => AWAKE_TICK,
            // A lent core is wanted back soon after its worker wakes up.
            (false, _) if state.slots.iter().any(|slot| slot.lent().is_some()) => LENT_TICK,
            (false, 1..) => ASLEEP_TICK,
            (false, 0) => IDLE_TICK,
        };
        let next_at = [life.next_at(), state.delegations.next_at()]
            .into_iter()
            .flatten()
            .min();
        let due = next_at.map_or(u64::MAX, |at| at.saturating_sub(now).max(1));
        Tick::Again(pace.min(Duration::from_millis(due)))
    }

    /// Begins the end of a lease whose time is over: notes the running calls, and ends the channels without one.
    pub(super) fn begin_draining(&self, state: &mut LeaseData) {
        for (slot, meter) in state.slots.iter_mut().zip(&self.meters) {
            let reading = meter.read();
            slot.set_finishing(reading.is_running().then_some(reading.started));
        }
        self.drain(state);
    }

    /// Ends the channels whose noted call has ended, even if another call has begun on them, which is too late.
    fn drain(&self, state: &mut LeaseData) {
        let end = match state.life.ends_as() {
            LeaseState::Revoked => End::Revoked,
            _ => End::Expired,
        };
        for index in 0..state.slots.len() {
            let reading = self.meters[index].read();
            let finishes = reading.is_running() && state.slots[index].is_finishing(reading.started);
            if !finishes && state.slots[index].channel().is_some() {
                self.end_channel(state, index, end);
            }
        }
    }

    /// Plausible usage so far.
    pub fn usage(&self) -> Usage {
        self.usage_of(&mut self.lock())
    }

    /// Usage, if it has grown since the last call of this function.
    pub fn new_usage(&self) -> Option<Metered> {
        let mut state = self.lock();
        let metered = self.metered_of(&mut state);
        (metered != state.journaled).then(|| {
            state.journaled.clone_from(&metered);
            metered
        })
    }

    /// Usage so far, in total and by function.
    pub fn metered(&self) -> Metered {
        self.metered_of(&mut self.lock())
    }

    fn metered_of(&self, state: &mut LeaseData) -> Metered {
        let usage = self.usage_of(state);
        Metered {
            usage,
            functions: functions::functions_of(state, &self.meters, &usage),
            loans: state.loans.usage(),
        }
    }

    fn usage_of(&self, state: &mut LeaseData) -> Usage {
        use dayfly_fabric::clock::{ticks, us_of_ticks};
        let allocated_ms = state.life.allocated_ms(clock::now_ms());
        let mut total = Usage::default();
        for (slot, meter) in state.slots.iter_mut().zip(&self.meters) {
            let wall_us = slot.allocated_at(allocated_ms) * 1000;
            let reading = meter.read();
            let running = slot.is_up() && reading.is_running();
            let running = if running {
                ticks().saturating_sub(reading.start_ticks)
            } else {
                0
            };
            let counted = meter.total();
            let claimed = Usage {
                computing_us: us_of_ticks(counted.computing.saturating_add(running)),
                polling_us: us_of_ticks(meter.polling()),
                allocated_us: wall_us,
                calls: counted.calls,
                failures: counted.failures,
            };
            total = billing::add(total, slot.update_usage(claimed, wall_us));
        }
        // A lender does not pay for its wait. A window is measured up to 100 ms later than its meter.
        let waited_us = state.loans.usage().waited_us;
        total.computing_us = total.computing_us.saturating_sub(waited_us);
        total
    }

    /// Adds what a call of this lease lent and borrowed in a window.
    pub fn add_loans(&self, window: &LoanWindow) {
        self.lock().loans.add(window);
    }

    /// Number of calls by duration.
    pub fn durations(&self) -> Durations {
        let state = self.lock();
        let mut sum = Durations::default();
        for meter in self.metered_slots(&state) {
            add_durations(&mut sum, &meter.durations());
        }
        sum
    }

    pub fn view(&self) -> LeaseView {
        let mut state = self.lock();
        LeaseView {
            lease: self.id(),
            tenant: self.granted.tenant,
            mode: state.terms.mode,
            sandbox: self.sandbox(),
            workers: state.terms.workers,
            cores: state.reservation.cores.clone(),
            memory_bytes: state.reservation.memory_bytes,
            state: state.life.state(),
            remaining_ms: state.life.remaining_ms(clock::now_ms()),
            channels: state.life.channels(),
            pids: state
                .slots
                .iter()
                .filter(|slot| !slot.is_gone())
                .map(WorkerSlot::pid)
                .collect(),
            usage: self.usage_of(&mut state),
            loans: state.loans.usage(),
        }
    }
}
