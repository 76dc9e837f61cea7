//! Who gets what is idle.

use std::collections::BTreeMap;

use super::{Engine, Mode, index};
use crate::amount::{Amount, Resource};
use crate::demand::{CallId, Demand, TenantId, is_bound};

/// Share of a window, in millionths, that a call may wait for a processor before it wants more.
const MAX_WAITING_PPM: u32 = 20_000;

impl Engine {
    /// Decides what a call wants above what it owns.
    pub(super) fn want(&mut self, id: CallId) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        call.wanted = self.rules.wanted(&call.demand, call.owned);
        for resource in Resource::ALL {
            let wanted = call.wanted.get_mut(resource);
            *wanted = (*wanted).min(self.shared.get(resource));
            if *wanted < self.rules.min_loan.get(resource) {
                *wanted = 0;
            }
        }
        self.note_wanting(id);
    }

    /// Remembers whether a call wants more than it has.
    pub(super) fn note_wanting(&mut self, id: CallId) {
        let call = self.calls.get(&id);
        if call.is_some_and(|call| Resource::ALL.iter().any(|resource| call.missing(*resource) > 0)) {
            self.wanting.insert(id);
        } else {
            self.wanting.remove(&id);
        }
    }

    pub(super) fn stop_wanting(&mut self, id: CallId) {
        if let Some(call) = self.calls.get_mut(&id) {
            call.wanted = Amount::ZERO;
        }
        self.note_wanting(id);
    }

    /// A call that waits for a processor although it uses all that it may was predicted to need less than it does. It wants
    /// twice what it may use, up to what profiling calls get, or to what its use rarely exceeds. So a function whose median
    /// call needs little speeds up its large calls too. Ranks are not considered: they borrow all or none.
    pub(super) fn want_more(&mut self, id: CallId, waiting_ppm: u32) {
        let resource = Resource::Cpu;
        let Some(call) = self.calls.get_mut(&id) else { return };
        let Demand::Known(prediction) = call.demand else {
            return;
        };
        let (owned, limit) = (call.owned.get(resource), (call.owned + call.borrowed).get(resource));
        let is_throttled = waiting_ppm > MAX_WAITING_PPM && is_bound(call.used.get(resource), limit);
        if !is_throttled || !self.rules.regrants || call.group.is_some() {
            return;
        }
        let most = self.rules.profiling.max(prediction.high).min(self.shared).get(resource);
        let wanted = most.min(limit.saturating_mul(2)).saturating_sub(owned);
        if wanted >= self.rules.min_loan.get(resource) && wanted > call.wanted.get(resource) {
            *call.wanted.get_mut(resource) = wanted;
            self.note_wanting(id);
        }
    }

    /// Gives idle units to calls that want them, so that each tenant borrows as much as the others.
    pub(super) fn distribute(&mut self) {
        if self.mode != Mode::On || !self.rules.regrants || self.wanting.is_empty() {
            return;
        }
        for resource in Resource::ALL {
            self.distribute_to_groups(resource);
            while self.available(resource, None) >= self.rules.min_loan.get(resource).max(1) {
                let Some((call, units)) = self.next_grant(resource) else {
                    break;
                };
                if self.grant(call, resource, units) == 0 {
                    break;
                }
            }
        }
    }

    /// The call that gets units next, and how many: the oldest of the tenant that has borrowed least, until
    /// all tenants that want have borrowed equally much.
    fn next_grant(&self, resource: Resource) -> Option<(CallId, u64)> {
        let mut tenants: BTreeMap<TenantId, CallId> = BTreeMap::new();
        for id in &self.wanting {
            let Some(call) = self.calls.get(id) else { continue };
            if call.group.is_some() || call.missing(resource) < self.rules.min_loan.get(resource).max(1) {
                continue;
            }
            if self.available_to(*id, resource) < self.rules.min_loan.get(resource).max(1) {
                continue;
            }
            tenants.entry(call.tenant).or_insert(*id);
        }
        let count = tenants.len() as u64;
        let mut borrowed: BTreeMap<TenantId, u64> = tenants.keys().map(|tenant| (*tenant, 0)).collect();
        for call in self.calls.values() {
            if let Some(sum) = borrowed.get_mut(&call.tenant) {
                *sum += call.borrowed.get(resource);
            }
        }
        let (tenant, has) = borrowed.iter().min_by_key(|(tenant, units)| (**units, **tenant))?;
        let id = tenants[tenant];
        let fair = (borrowed.values().sum::<u64>() + self.available(resource, None)) / count.max(1);
        let share = fair.saturating_sub(*has).max(self.rules.min_loan.get(resource)).max(1);
        Some((id, self.calls.get(&id)?.missing(resource).min(share)))
    }

    /// Lends to a call that just began, under rules that do not lend later.
    pub(super) fn grant_once(&mut self, id: CallId) {
        for resource in Resource::ALL {
            let missing = self.calls.get(&id).map_or(0, |call| call.missing(resource));
            self.grant(id, resource, missing);
        }
        self.stop_wanting(id);
    }

    /// Lends up to `units` to a call: of the pool first, then of what nobody owns. Returns how many.
    pub(super) fn grant(&mut self, id: CallId, resource: Resource, units: u64) -> u64 {
        let only = self.only_lenders_of(id);
        let units = units.min(self.lendable(resource).saturating_sub(self.lent(resource)));
        if units == 0 {
            return 0;
        }
        self.touch(id);
        let loans = self.pools[index(resource)].get(id, units, only, self.now_us);
        let mut got: u64 = loans.iter().map(|loan| loan.units).sum();
        if self.rules.lends_unreserved {
            got += self.unreserved[index(resource)].get(id, units - got);
        }
        if let Some(call) = self.calls.get_mut(&id) {
            *call.borrowed.get_mut(resource) += got;
        }
        self.note_wanting(id);
        self.counts.loans += u64::from(got > 0);
        got
    }

    /// Units that could be lent now.
    fn available(&self, resource: Resource, only: Option<TenantId>) -> u64 {
        let unreserved = if self.rules.lends_unreserved {
            self.unreserved[index(resource)].idle()
        } else {
            0
        };
        let idle = self.pools[index(resource)].idle(only) + unreserved;
        idle.min(self.lendable(resource).saturating_sub(self.lent(resource)))
    }

    /// Units that could be lent to this call now. A call does not borrow from itself.
    pub(super) fn available_to(&self, id: CallId, resource: Resource) -> u64 {
        let own = self.pools[index(resource)].idle_of(id);
        let idle = self.available(resource, self.only_lenders_of(id));
        idle.saturating_sub(own)
    }

    fn only_lenders_of(&self, id: CallId) -> Option<TenantId> {
        let tenant = self.calls.get(&id).map(|call| call.tenant);
        tenant.filter(|_| self.rules.stays_within_tenant)
    }

    /// Returns units of a borrower to where they came from: first what nobody owns, since the next call may need it.
    pub(super) fn give_back(&mut self, id: CallId, resource: Resource, units: u64) {
        let borrowed = self.calls.get(&id).map_or(0, |call| call.borrowed.get(resource));
        let units = units.min(borrowed);
        if units == 0 {
            return;
        }
        self.touch(id);
        let unowned = self.unreserved[index(resource)].give_back(id, units);
        let pooled = self.pools[index(resource)].give_back(id, units - unowned, self.now_us);
        if let Some(call) = self.calls.get_mut(&id) {
            *call.borrowed.get_mut(resource) -= unowned + pooled;
        }
    }

    /// A borrower lost units whose owner needs them. It may get others.
    pub(super) fn lose(&mut self, id: CallId, resource: Resource, units: u64) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        *call.borrowed.get_mut(resource) -= units;
        if self.rules.regrants && self.mode == Mode::On {
            self.note_wanting(id);
        }
        self.lose_ranks(id, resource);
    }

    /// Returns what a borrower neither used nor waited for in two windows, and wants it no more.
    pub(super) fn return_unused(&mut self, id: CallId) {
        // Borrowed memory is returned by asking for it, never by guessing that it is not needed.
        for resource in [Resource::Cpu] {
            let Some(call) = self.calls.get_mut(&id) else { return };
            let borrowed = call.borrowed.get(resource);
            let over = call.sought.get(resource).saturating_sub(call.owned.get(resource));
            let unused = borrowed.saturating_sub(over);
            let before = std::mem::replace(call.unused.get_mut(resource), unused);
            let spare = unused.min(before);
            // What it uses of a loan swings by a few hundredths from window to window.
            let is_worth = spare >= self.rules.min_loan.get(resource) && spare >= borrowed / 4;
            if borrowed == 0 || !is_worth || call.group.is_some() {
                continue;
            }
            *call.unused.get_mut(resource) = 0;
            *call.wanted.get_mut(resource) = borrowed - spare;
            self.give_back(id, resource, spare);
            self.note_wanting(id);
        }
    }

    /// Adjusts what nobody owns to the running calls. Borrowers lose what a call owns now.
    pub(super) fn fit_unreserved(&mut self) {
        for resource in Resource::ALL {
            let mut free = self.shared.get(resource).saturating_sub(self.owned.get(resource));
            if resource == Resource::Memory {
                free = free.saturating_sub(self.owed_memory());
            }
            if self.mode != Mode::On || !self.rules.lends_unreserved {
                free = 0;
            }
            let borrowers = self.unreserved[index(resource)].borrowers();
            for borrower in borrowers {
                self.touch(borrower);
            }
            for (borrower, units) in self.unreserved[index(resource)].resize(free) {
                self.lose(borrower, resource, units);
            }
        }
    }
}
