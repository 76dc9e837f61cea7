//! What the engine knows about a running call.

use super::lending::Waiting;
use super::{Begin, Group, index};
use crate::amount::{Amount, Resource};
use crate::demand::{Demand, Features, FunctionId, Sample, TenantId, is_bound};
use crate::rules::Rules;

/// A running call. Only `engine/` changes it.
#[derive(Debug)]
pub(super) struct Call {
    pub tenant: TenantId,
    pub function: FunctionId,
    pub owned: Amount,
    pub demand: Demand,
    pub group: Option<Group>,
    pub may_lend: [bool; 2],
    pub may_borrow: [bool; 2],
    /// What it put into the pools.
    pub offered: Amount,
    /// What it has of others.
    pub borrowed: Amount,
    /// What it wants above what it owns.
    pub wanted: Amount,
    /// Its use in the last window.
    pub used: Amount,
    /// What it would have used in the last window if it had not waited for a processor.
    pub sought: Amount,
    pub is_measured: bool,
    /// When it was measured last, or began.
    pub measured_us: u64,
    /// Units that it borrowed and did not use in the last window.
    pub unused: Amount,
    /// What the safeguard knows about its waiting.
    pub waiting: Waiting,
    features: Features,
    begun_us: u64,
    peak: Amount,
    max_limit: Amount,
    is_bound: [bool; 2],
}

impl Call {
    pub fn new(begin: &Begin, demand: Demand, now_us: u64) -> Self {
        Self {
            tenant: begin.tenant,
            function: begin.function,
            owned: begin.owned,
            demand,
            group: begin.group,
            may_lend: [begin.lends; 2],
            // Memory of one rank cannot be reclaimed without harm to all.
            may_borrow: [begin.borrows_cpu, begin.borrows_memory && begin.group.is_none()],
            offered: Amount::ZERO,
            borrowed: Amount::ZERO,
            wanted: Amount::ZERO,
            used: Amount::ZERO,
            sought: Amount::ZERO,
            is_measured: false,
            measured_us: now_us,
            unused: Amount::ZERO,
            waiting: Waiting::default(),
            features: begin.features,
            begun_us: now_us,
            peak: Amount::ZERO,
            max_limit: begin.owned,
            is_bound: [false; 2],
        }
    }

    /// What it kept of what it owns.
    pub fn kept(&self, resource: Resource) -> u64 {
        self.owned.get(resource) - self.offered.get(resource)
    }

    /// What it may use.
    pub fn limits(&self, rules: &Rules) -> Amount {
        let own = if rules.lowers_lenders {
            self.owned - self.offered
        } else {
            self.owned
        };
        own + self.borrowed
    }

    /// What it wants and has not got.
    pub fn missing(&self, resource: Resource) -> u64 {
        if self.may_borrow[index(resource)] {
            self.wanted.get(resource).saturating_sub(self.borrowed.get(resource))
        } else {
            0
        }
    }

    /// Notes a window. A call that waits for a processor would use more than it does: without that, a node whose cores
    /// are busy would teach that nobody wants any.
    pub fn note_usage(&mut self, used: Amount, waiting_ppm: u32, now_us: u64) {
        let limit = self.owned + self.borrowed;
        let waited = Amount::new(u64::from(waiting_ppm) / 1_000, 0);
        self.sought = used + waited;
        for resource in Resource::ALL {
            self.is_bound[index(resource)] |= is_bound(self.sought.get(resource), limit.get(resource));
        }
        self.max_limit = self.max_limit.max(limit);
        self.peak = self.peak.max(used);
        self.used = used;
        self.is_measured = true;
        self.measured_us = now_us;
    }

    pub fn note_out_of_memory(&mut self) {
        self.is_bound[index(Resource::Memory)] = true;
    }

    /// What is learnt from it when it ended.
    pub fn sample(&self, now_us: u64) -> Sample {
        let [cpu_is_bound, memory_is_bound] = self.is_bound;
        Sample {
            features: self.features,
            allocation: self.max_limit,
            peak: self.peak,
            duration_us: now_us.saturating_sub(self.begun_us),
            cpu_is_bound,
            memory_is_bound,
        }
    }
}
