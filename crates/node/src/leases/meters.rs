//! Time limits of a lease, and its workers' meters.

use dayfly_protocol::durations::DURATION_BUCKETS;
use dayfly_protocol::slot::has_begun;

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
/// The same without an open channel.
const IDLE_TICK: Duration = Duration::from_millis(250);

/// Number of calls by duration.
pub type Durations = [u64; DURATION_BUCKETS];

/// Adds counters. A worker may have written any values; they affect only this statistic.
pub fn add_durations(sum: &mut Durations, more: &Durations) {
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum = sum.saturating_add(*more);
    }
}

impl Run {
    /// Applies the time limits. Returns what the supervisor has to do.
    pub fn tick(&self) -> Tick {
        let now = clock::now_ms();
        let ticks = dayfly_fabric::clock::ticks();
        let mut inner = self.inner();
        Self::expire_delegations(&mut inner, now);
        let Inner {
            life, slots, control, ..
        } = &mut *inner;
        let (mut busy, mut awake, mut stuck) = (false, false, false);
        for (index, slot) in slots.iter_mut().enumerate() {
            let Some(channel) = &mut slot.channel else { continue };
            let reading = self.meters[index].read();
            let gone = channel.gone;
            let doomed = reading.is_running() && channel.doomed.remove(&reading.started);
            channel.doomed.retain(|sequence| !has_begun(reading.started, *sequence));
            busy |= reading.is_running();
            awake |= reading.awake || reading.is_running() || !channel.doomed.is_empty();
            if doomed {
                slot.kill(control.as_ref(), index, End::Cancelled);
            } else if reading.is_overdue(ticks) {
                slot.kill(control.as_ref(), index, End::Deadline);
            } else if let Some((since, end)) = gone
                && reading.is_running()
                && since.elapsed() > ORPHAN_GRACE
            {
                slot.kill(control.as_ref(), index, end);
            }
            stuck |= slot.kill.is_some_and(|(_, since)| since.elapsed() > KILL_DEADLINE);
        }
        match life.tick(now, busy) {
            Some(dayfly_lease::Step::End(_)) => return Tick::Over,
            Some(dayfly_lease::Step::Drain { .. }) => self.begin_draining(&mut inner),
            None => {}
        }
        if inner.life.is_draining() {
            self.drain(&mut inner);
        }
        let life = &inner.life;
        if !life.state().is_live() {
            return Tick::Over;
        }
        if stuck {
            return Tick::Stuck;
        }
        let pace = match (awake, life.channels()) {
            _ if life.is_draining() => DRAINING_TICK,
            (true, _) => AWAKE_TICK,
            (false, 1..) => ASLEEP_TICK,
            (false, 0) => IDLE_TICK,
        };
        let next_at = [life.next_at(), inner.delegations.next_at()]
            .into_iter()
            .flatten()
            .min();
        let due = next_at.map_or(u64::MAX, |at| at.saturating_sub(now).max(1));
        Tick::Again(pace.min(Duration::from_millis(due)))
    }

    /// Begins the end of a lease whose time is over: notes the running calls, and ends the channels without one.
    pub(super) fn begin_draining(&self, inner: &mut Inner) {
        for (slot, meter) in inner.slots.iter_mut().zip(&self.meters) {
            let reading = meter.read();
            slot.finishing = reading.is_running().then_some(reading.started);
        }
        self.drain(inner);
    }

    /// Ends the channels whose noted call has ended, even if another call has begun on them, which is too late.
    fn drain(&self, inner: &mut Inner) {
        let end = match inner.life.ends_as() {
            LeaseState::Revoked => End::Revoked,
            _ => End::Expired,
        };
        for index in 0..inner.slots.len() {
            let reading = self.meters[index].read();
            let finishes = reading.is_running() && inner.slots[index].finishing == Some(reading.started);
            if !finishes && inner.slots[index].channel.is_some() {
                self.end_channel(inner, index, end);
            }
        }
    }

    /// Plausible usage so far.
    pub fn usage(&self) -> Usage {
        self.usage_of(&mut self.inner())
    }

    /// Usage, if it has grown since the last call of this function.
    pub fn new_usage(&self) -> Option<Metered> {
        let mut inner = self.inner();
        let metered = self.metered_of(&mut inner);
        (metered != inner.journaled).then(|| {
            inner.journaled.clone_from(&metered);
            metered
        })
    }

    /// Usage so far, in total and by function.
    pub fn metered(&self) -> Metered {
        self.metered_of(&mut self.inner())
    }

    fn metered_of(&self, inner: &mut Inner) -> Metered {
        let usage = self.usage_of(inner);
        Metered {
            usage,
            functions: self.functions_of(inner, &usage),
        }
    }

    fn usage_of(&self, inner: &mut Inner) -> Usage {
        use dayfly_fabric::clock::{ticks, us_of_ticks};
        let wall_us = inner.life.allocated_ms(clock::now_ms()) * 1000;
        let mut total = Usage::default();
        for (slot, meter) in inner.slots.iter_mut().zip(&self.meters) {
            let reading = meter.read();
            let running = slot.up && reading.is_running();
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
            slot.believed = billing::clamp(billing::add(claimed, slot.lost), slot.believed, wall_us);
            total = billing::add(total, slot.believed);
        }
        total
    }

    /// Number of calls by duration.
    pub fn durations(&self) -> Durations {
        let mut sum = Durations::default();
        for meter in &self.meters {
            add_durations(&mut sum, &meter.durations());
        }
        sum
    }

    pub fn view(&self) -> LeaseView {
        let mut inner = self.inner();
        LeaseView {
            lease: self.id(),
            tenant: self.granted.tenant,
            mode: self.granted.reservation.mode,
            sandbox: self.sandbox(),
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
