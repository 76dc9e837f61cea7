//! Offers of running calls to the pools, and how they get them back.

use super::{Engine, index};
use crate::amount::Resource;
use crate::demand::{CallId, Demand};

/// Windows without a measurement after which a lender gets everything back.
const MAX_LATE_WINDOWS: u64 = 3;
/// How often a call may lend again after it waited.
const MAX_TRIALS: u8 = 3;

/// How long a lender waits for processors, with its loans and without them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Waiting {
    /// Its waiting in the last window in which nobody had its units, in millionths.
    background_ppm: u32,
    /// Whether somebody had its units at the end of the last window.
    had_loans: bool,
    /// Whether it lost its loans since it waited, and its next window shows if they were the cause.
    is_on_trial: bool,
    /// How often it was allowed to lend again.
    trials: u8,
}

impl Engine {
    /// Puts what a call is not expected to use into the pools.
    pub(super) fn offer(&mut self, id: CallId) {
        if self.calls.get(&id).is_some_and(|call| call.group.is_some()) {
            return self.offer_ranks(id);
        }
        for resource in Resource::ALL {
            let units = self.spare(id, resource);
            self.put(id, resource, units);
        }
    }

    /// Units that a call is not expected to use.
    pub(super) fn spare(&self, id: CallId, resource: Resource) -> u64 {
        let Some(call) = self.calls.get(&id) else { return 0 };
        let Demand::Known(prediction) = call.demand else {
            return 0;
        };
        let may_lend = call.may_lend[index(resource)] && !self.rules.leaves_alone(&prediction);
        let is_open = may_lend && call.offered.get(resource) == 0;
        if !is_open || (resource == Resource::Memory && !self.may_lend_memory(call.function)) {
            return 0;
        }
        let owned = call.owned.get(resource);
        let (high, now) = (prediction.high.get(resource), call.used.get(resource));
        let spare = owned - self.rules.kept(resource, owned, high, now);
        if spare < self.rules.min_loan.get(resource) {
            return 0;
        }
        spare
    }

    pub(super) fn put(&mut self, id: CallId, resource: Resource, units: u64) {
        if units == 0 {
            return;
        }
        self.touch(id);
        let Some(call) = self.calls.get_mut(&id) else { return };
        let short_us = match call.demand {
            Demand::Known(prediction) => prediction.short_us,
            Demand::Unknown | Demand::Profiling => 0,
        };
        let expiry_us = self.now_us.saturating_add(short_us);
        if self.pools[index(resource)].put(id, call.tenant, units, expiry_us, self.now_us) {
            *call.offered.get_mut(resource) += units;
            *self.kept.get_mut(resource) -= units;
            self.counts.offers += 1;
        }
    }

    /// Gives a call everything back that it lent. Its borrowers lose it at once.
    pub(super) fn recall_all(&mut self, id: CallId) {
        for resource in Resource::ALL {
            self.recall(id, resource);
        }
    }

    pub(super) fn recall(&mut self, id: CallId, resource: Resource) {
        let offered = self.pools[index(resource)].offered(id);
        if offered == 0 {
            return;
        }
        self.touch(id);
        let loans = self.pools[index(resource)].loans_of(id);
        for loan in &loans {
            self.touch(loan.borrower);
        }
        self.pools[index(resource)].release(id, self.now_us);
        if let Some(call) = self.calls.get_mut(&id) {
            *call.offered.get_mut(resource) = 0;
        }
        *self.kept.get_mut(resource) += offered;
        for loan in loans {
            self.lose(loan.borrower, resource, loan.units);
        }
        self.recall_group(id, resource);
        self.fit_loans();
    }

    /// The safeguard: a lender that uses nearly all that it kept, or waits for a processor longer than it would without
    /// its loans, gets everything back.
    pub(super) fn guard(&mut self, id: CallId, waiting_ppm: u32) {
        self.compare_waiting(id, waiting_ppm);
        for resource in Resource::ALL {
            let has_loans = self.lent_by(id, resource) > 0;
            let Some(call) = self.calls.get_mut(&id) else { return };
            if call.offered.get(resource) == 0 {
                continue;
            }
            let max_ppm = self.rules.max_waiting_ppm.saturating_add(call.waiting.background_ppm);
            let waits = resource == Resource::Cpu && has_loans && waiting_ppm > max_ppm;
            let exceeds = self.rules.exceeds(call.kept(resource), call.used.get(resource));
            if !waits && !exceeds {
                continue;
            }
            // If it was predicted wrongly, it does not lend again.
            call.may_lend[index(resource)] = false;
            call.waiting.is_on_trial |= waits && !exceeds;
            let function = call.function;
            self.counts.safeguards += 1;
            if resource == Resource::Memory {
                self.note_memory_safeguard(function);
            }
            self.recall(id, resource);
        }
        let has_loans = self.lent_by(id, Resource::Cpu) > 0;
        if let Some(call) = self.calls.get_mut(&id) {
            call.waiting.had_loans = has_loans;
        }
    }

    /// Notes how long a call waits while nobody has its units. Other processes of the machine make it wait, too. If it
    /// lost its loans since it waited and waits on without them, they were not the cause, and it lends again.
    fn compare_waiting(&mut self, id: CallId, waiting_ppm: u32) {
        let has_loans = self.lent_by(id, Resource::Cpu) > 0;
        let Some(call) = self.calls.get_mut(&id) else { return };
        if has_loans || call.waiting.had_loans {
            return;
        }
        call.waiting.background_ppm = waiting_ppm;
        let was_on_trial = std::mem::take(&mut call.waiting.is_on_trial);
        if was_on_trial && waiting_ppm > self.rules.max_waiting_ppm && call.waiting.trials < MAX_TRIALS {
            call.waiting.trials += 1;
            call.may_lend[index(Resource::Cpu)] = true;
            self.offer(id);
        }
    }

    /// Units of a call that borrowers have.
    pub(super) fn lent_by(&self, id: CallId, resource: Resource) -> u64 {
        let offered = self.calls.get(&id).map_or(0, |call| call.offered.get(resource));
        offered.saturating_sub(self.pools[index(resource)].idle_of(id))
    }

    /// Returns everything to lenders that were not measured for too long, as when the node was suspended.
    pub(super) fn recall_unmeasured(&mut self) {
        if self.rules.safeguard.is_none() {
            return;
        }
        let latest_us = self.now_us.saturating_sub(MAX_LATE_WINDOWS * self.rules.window_us);
        for resource in Resource::ALL {
            for lender in self.pools[index(resource)].lenders() {
                let measured_us = self.calls.get(&lender).map_or(0, |call| call.measured_us);
                if measured_us < latest_us {
                    self.counts.unmeasured += 1;
                    self.recall(lender, resource);
                }
            }
        }
    }

    /// Recalls loans, those that expire first at first, until no more is lent than the shared capacity leaves beside what
    /// all calls keep.
    pub(super) fn fit_loans(&mut self) {
        for resource in Resource::ALL {
            while self.lent(resource) > self.lendable(resource) {
                let Some(lender) = self.pools[index(resource)].first_to_expire() else {
                    break;
                };
                let over = self.lent(resource) - self.lendable(resource);
                let Some(loan) = self.pools[index(resource)].loans_of(lender).first().copied() else {
                    break;
                };
                self.touch(loan.borrower);
                let units = loan.units.min(over);
                let taken = self.pools[index(resource)].take_back(loan.lender, loan.borrower, units, self.now_us);
                self.lose(loan.borrower, resource, taken);
            }
        }
    }

    /// Units of a resource that are with borrowers.
    pub(super) fn lent(&self, resource: Resource) -> u64 {
        self.pools[index(resource)].lent() + self.unreserved[index(resource)].lent()
    }

    /// Units of a resource that may be with borrowers.
    pub(super) fn lendable(&self, resource: Resource) -> u64 {
        self.shared.get(resource).saturating_sub(self.kept.get(resource))
    }
}
