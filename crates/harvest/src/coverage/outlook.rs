//! The pools of a node as a scheduler expects them: what the last heartbeat said, less what the scheduler promised since,
//! plus what its own placements will lend.

use super::steps::Steps;
use super::{CPU_WEIGHT_PERCENT, Spare, Want, weighted};
use crate::amount::{Amount, Resource};

/// Units that join or leave a pool until a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// How much of each resource.
    pub amount: Amount,
    /// Until when, in microseconds.
    pub until_us: u64,
}

/// What a scheduler expects of both pools of one node. Times are those of the scheduler's clock.
#[derive(Debug, Clone, PartialEq)]
pub struct Forecast {
    cpu: Outlook,
    memory: Outlook,
    cpu_percent: u8,
}

impl Default for Forecast {
    fn default() -> Self {
        Self {
            cpu: Outlook::default(),
            memory: Outlook::default(),
            cpu_percent: CPU_WEIGHT_PERCENT,
        }
    }
}

impl Forecast {
    /// Pools as sent at `at_us`, less `taken` and plus `given`, each until its end. Where more is taken than there is, the
    /// rest is taken from what the node lends beside its pools.
    pub fn new(at_us: u64, spare: &Spare, taken: &[Change], given: &[Change]) -> Self {
        let outlook = |resource| {
            let units = |change: &Change| (change.until_us, change.amount.get(resource));
            Outlook::new(
                at_us,
                spare.get(resource),
                taken.iter().map(units),
                given.iter().map(units),
            )
        };
        Self {
            cpu: outlook(Resource::Cpu),
            memory: outlook(Resource::Memory),
            cpu_percent: CPU_WEIGHT_PERCENT,
        }
    }

    /// The same with another weight of processor time, in percent, in place of [`CPU_WEIGHT_PERCENT`].
    #[must_use]
    pub fn with_cpu_weight(mut self, percent: u8) -> Self {
        self.cpu_percent = percent.min(100);
        self
    }

    /// The weight of processor time, in percent.
    pub(super) fn cpu_weight(&self) -> u8 {
        self.cpu_percent
    }

    /// Demand coverage of a call that begins at `now_us`, between 0 and 1. It is 1 where nothing is wanted. `beside` is what
    /// the node can lend beside its pools, with no known end.
    pub fn coverage(&self, now_us: u64, want: &Want, beside: Amount) -> f64 {
        let share = |resource| self.share(now_us, want, beside, resource);
        weighted(self.cpu_percent, share(Resource::Cpu), share(Resource::Memory))
    }

    /// The same, or `None` where it is less than `least`. Bounds spare most of the work among many nodes.
    pub fn coverage_from(&self, now_us: u64, want: &Want, beside: Amount, least: f64) -> Option<f64> {
        let bound = |resource: Resource| {
            let (units, beside) = (want.extra.get(resource), beside.get(resource));
            self.get(resource).bound(now_us, want.duration_us, units, beside)
        };
        let memory = bound(Resource::Memory);
        if weighted(self.cpu_percent, bound(Resource::Cpu), memory) < least {
            return None;
        }
        let cpu = self.share(now_us, want, beside, Resource::Cpu);
        if weighted(self.cpu_percent, cpu, memory) < least {
            return None;
        }
        let coverage = weighted(
            self.cpu_percent,
            cpu,
            self.share(now_us, want, beside, Resource::Memory),
        );
        (coverage >= least).then_some(coverage)
    }

    fn share(&self, now_us: u64, want: &Want, beside: Amount, resource: Resource) -> f64 {
        want.share(resource, |units| {
            let outlook = self.get(resource);
            outlook.area(now_us, want.duration_us, units, beside.get(resource))
        })
    }

    fn get(&self, resource: Resource) -> &Outlook {
        match resource {
            Resource::Cpu => &self.cpu,
            Resource::Memory => &self.memory,
        }
    }
}

/// What a scheduler expects of one pool. Unlike [`Steps`] it may rise again, when promised units return, and it may
/// be below 0, where more was promised than the pool has.
#[derive(Debug, Clone, PartialEq, Default)]
struct Outlook {
    at_us: u64,
    levels: Vec<Level>,
    /// The most units at any time.
    most: u64,
    /// By how much more was promised than the pool has, at the worst time.
    owed: u64,
    /// Area of all that is above 0, rounded.
    total: f64,
}

/// Units until a time after the heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Level {
    remaining_us: u64,
    units: i64,
}

/// What a bound has above the value that it bounds, so that rounding never puts it below.
const BOUND_SLACK: f64 = 1.0 + 1e-9;

impl Outlook {
    fn new(
        at_us: u64,
        steps: &Steps,
        taken: impl Iterator<Item = (u64, u64)>,
        given: impl Iterator<Item = (u64, u64)>,
    ) -> Self {
        // Each change is in force from the beginning. At its end it is undone.
        let slice = steps.as_slice();
        let mut ends: Vec<(u64, i128)> = Vec::with_capacity(slice.len() + 8);
        for (index, step) in slice.iter().enumerate() {
            let next = slice.get(index + 1).map_or(0, |next| next.units);
            ends.push((step.remaining_us, i128::from(step.units - next)));
        }
        let changes = taken.map(|(until, units)| (until, -i128::from(units)));
        let changes = changes.chain(given.map(|(until, units)| (until, i128::from(units))));
        ends.extend(changes.filter_map(|(until_us, units)| {
            let remaining_us = until_us.saturating_sub(at_us);
            (remaining_us > 0 && units != 0).then_some((remaining_us, units))
        }));
        ends.sort_unstable();
        let mut level: i128 = ends.iter().map(|&(_, units)| units).sum();
        let mut outlook = Self {
            at_us,
            levels: Vec::with_capacity(ends.len()),
            most: 0,
            owed: 0,
            total: 0.0,
        };
        for (remaining_us, units) in ends {
            outlook.push(remaining_us, level.clamp(i64::MIN.into(), i64::MAX.into()) as i64);
            level -= units;
        }
        outlook.total = outlook.area(at_us, u64::MAX, u64::MAX, 0) as f64;
        outlook
    }

    fn push(&mut self, remaining_us: u64, units: i64) {
        self.most = self.most.max(units.max(0).unsigned_abs());
        self.owed = self.owed.max(units.min(0).unsigned_abs());
        match self.levels.last_mut() {
            // Of several changes at one time, the level before the first is in force until then.
            Some(last) if last.remaining_us == remaining_us => {}
            Some(last) if last.units == units => last.remaining_us = remaining_us,
            _ => self.levels.push(Level { remaining_us, units }),
        }
    }

    /// Time after `now_us` until nothing is left.
    fn left_us(&self, now_us: u64) -> u64 {
        let end_us = self.levels.last().map_or(0, |level| level.remaining_us);
        end_us.saturating_sub(now_us.saturating_sub(self.at_us))
    }

    /// A bound on the coverage of `units` during `duration_us`, without a look at the levels.
    fn bound(&self, now_us: u64, duration_us: u64, units: u64, beside: u64) -> f64 {
        let wanted = units as f64 * duration_us as f64;
        if wanted == 0.0 {
            return BOUND_SLACK;
        }
        let block = self.most.min(units) as f64 * self.left_us(now_us).min(duration_us) as f64;
        let beside = beside.min(units) as f64 * duration_us as f64;
        (block.min(self.total) + beside).min(wanted) / wanted * BOUND_SLACK
    }

    /// Integral from `now_us` over the duration of `min(limit, level + beside)`, where that is above 0.
    fn area(&self, now_us: u64, duration_us: u64, limit: u64, beside: u64) -> u128 {
        let mut begin_us = now_us.saturating_sub(self.at_us);
        let to_us = begin_us.saturating_add(duration_us);
        if beside.saturating_sub(self.owed) >= limit {
            return u128::from(to_us - begin_us) * u128::from(limit);
        }
        let mut sum = 0;
        for level in &self.levels {
            if begin_us >= to_us {
                break;
            }
            let end_us = level.remaining_us.min(to_us);
            if end_us > begin_us {
                let units = beside.saturating_add_signed(level.units).min(limit);
                sum += u128::from(end_us - begin_us) * u128::from(units);
                begin_us = end_us;
            }
        }
        sum + u128::from(to_us.saturating_sub(begin_us)) * u128::from(beside.min(limit))
    }
}
