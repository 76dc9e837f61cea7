//! The policy of one node: what happens goes in with its time, changes of limits come out in the order in which they
//! must be made.
//!
//! Each running call is in one of these relations to each resource: it owns units and keeps some of them; the rest is in
//! the [`Pool`], idle or with a borrower. A handler first changes these relations. Then [`Engine::handle`] compares the
//! limits before and after: borrowers that lose units come first, and those that gain units last, so that no borrower is
//! raised before its units are free. Handlers are in `engine/`: `lending` (offers, the safeguard), `borrowing` (who gets
//! what is idle), `memory` (units that must be reclaimed, functions whose memory is left alone) and `ranks` (groups).

mod borrowing;
mod call;
mod events;
mod lending;
mod memory;
mod ranks;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use self::call::Call;
pub use self::events::{Action, Begin, Counts, Event, Group, LoanView, Mode, Outcome};
use self::memory::MemoryTrust;
use crate::amount::{Amount, Resource};
use crate::demand::{CallId, FunctionId, Predictor};
use crate::pool::{Pool, PoolTotals};
use crate::rules::Rules;
use crate::unreserved::Unreserved;

/// Bound on each amount that a call may own: beyond every machine, and sums of it cannot overflow.
const MAX_OWNED: Amount = Amount::new(1 << 30, 1 << 50);

/// The policy of one node.
pub struct Engine {
    rules: Rules,
    predictor: Box<dyn Predictor + Send>,
    mode: Mode,
    now_us: u64,
    shared: Amount,
    /// Sum over the running calls.
    owned: Amount,
    /// Sum over the running calls of what they keep.
    kept: Amount,
    calls: BTreeMap<CallId, Call>,
    groups: BTreeMap<u64, BTreeSet<CallId>>,
    pools: [Pool; 2],
    unreserved: [Unreserved; 2],
    /// Calls that want more than they have.
    wanting: BTreeSet<CallId>,
    /// Limits before the event, of the calls whose limits it changed.
    touched: BTreeMap<CallId, Amount>,
    /// Borrowers to end.
    ending: BTreeSet<CallId>,
    /// Memory that borrowers have to give back, and until when.
    reclaims: BTreeMap<CallId, (u64, u64)>,
    memory_trust: BTreeMap<FunctionId, MemoryTrust>,
    counts: Counts,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("mode", &self.mode)
            .field("now_us", &self.now_us)
            .field("calls", &self.calls)
            .finish_non_exhaustive()
    }
}

fn index(resource: Resource) -> usize {
    match resource {
        Resource::Cpu => 0,
        Resource::Memory => 1,
    }
}

impl Engine {
    /// An engine that is switched off and has no capacity.
    pub fn new(rules: Rules, predictor: Box<dyn Predictor + Send>) -> Self {
        Self {
            rules,
            predictor,
            mode: Mode::Off,
            now_us: 0,
            shared: Amount::ZERO,
            owned: Amount::ZERO,
            kept: Amount::ZERO,
            calls: BTreeMap::new(),
            groups: BTreeMap::new(),
            pools: Default::default(),
            unreserved: Default::default(),
            wanting: BTreeSet::new(),
            touched: BTreeMap::new(),
            ending: BTreeSet::new(),
            reclaims: BTreeMap::new(),
            memory_trust: BTreeMap::new(),
            counts: Counts::default(),
        }
    }

    /// Handles an event. Times that go back count as the last one. Events about unknown calls change nothing.
    pub fn handle(&mut self, now_us: u64, event: &Event) -> Vec<Action> {
        self.now_us = self.now_us.max(now_us);
        match *event {
            Event::Mode { mode } => self.switch(mode),
            Event::Capacity { shared } => self.resize(shared),
            Event::Begin(begin) => self.begin(&begin),
            Event::Usage {
                call,
                milli_cores,
                memory_bytes,
                waiting_ppm,
            } => self.measure(call, Amount::new(milli_cores, memory_bytes), waiting_ppm),
            Event::OutOfMemory { call } => self.run_out_of_memory(call),
            Event::Reclaimed { call, memory_bytes } => self.note_reclaimed(call, memory_bytes),
            Event::Refused {
                call,
                resource,
                raising,
            } => self.refuse(call, resource, raising),
            Event::End { call, outcome } => self.end(call, outcome),
            Event::Adopted { function, sample } => self.predictor.adopt(function, sample),
            Event::TrainingBegun { function } => self.predictor.begin_training(function),
            Event::TrainingEnded { function } => self.predictor.end_training(function),
            Event::Tick => self.tick(),
        }
        self.settle_memory();
        self.distribute();
        self.actions()
    }

    /// Exchanges the predictor's knowledge, as when a manager sends samples of other nodes.
    pub fn predictor(&mut self) -> &mut (dyn Predictor + Send) {
        self.predictor.as_mut()
    }

    /// What is idle in the pool of a resource by its expiry: pairs of microseconds and units.
    pub fn idle_by_expiry(&self, resource: Resource) -> Vec<(u64, u64)> {
        self.pools[index(resource)].idle_by_expiry()
    }

    /// Units of a resource that no call owns and nobody has borrowed; 0 under rules that do not lend them.
    pub fn idle_unowned(&self, resource: Resource) -> u64 {
        self.unreserved[index(resource)].idle()
    }

    /// Totals of a resource up to a time.
    pub fn totals(&mut self, resource: Resource, now_us: u64) -> PoolTotals {
        let pool = &mut self.pools[index(resource)];
        pool.advance(now_us);
        pool.totals()
    }

    /// What happened so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// What a running call owns, uses, lends and borrows.
    pub fn view(&self, call: CallId) -> Option<LoanView> {
        let lent = |resource| self.lent_by(call, resource);
        self.calls.get(&call).map(|call| LoanView {
            owned: call.owned,
            used: call.used,
            offered: call.offered,
            lent: Amount::new(lent(Resource::Cpu), lent(Resource::Memory)),
            borrowed: call.borrowed,
        })
    }

    /// Running calls whose processor time others have.
    pub fn lenders(&self) -> impl Iterator<Item = CallId> {
        let has_loans = |id: &CallId| self.lent_by(*id, Resource::Cpu) > 0;
        self.calls.keys().copied().filter(has_loans)
    }

    /// Whether the safeguard would take back what a lender lent if it used this many thousandths of a core in a window.
    pub fn would_recall(&self, lender: CallId, milli_cores: u64) -> bool {
        let call = self.calls.get(&lender);
        call.is_some_and(|call| self.rules.exceeds(call.kept(Resource::Cpu), milli_cores))
    }

    /// Number of running calls.
    pub fn running(&self) -> usize {
        self.calls.len()
    }

    fn switch(&mut self, mode: Mode) {
        if mode == self.mode {
            return;
        }
        self.mode = mode;
        let calls: Vec<_> = self.calls.keys().copied().collect();
        if mode == Mode::On {
            for call in calls {
                self.offer(call);
                self.want(call);
            }
        } else {
            for call in calls {
                self.recall_all(call);
                self.stop_wanting(call);
                for resource in Resource::ALL {
                    self.give_back(call, resource, u64::MAX);
                }
            }
        }
        self.fit_unreserved();
    }

    fn resize(&mut self, shared: Amount) {
        self.shared = shared.min(MAX_OWNED);
        self.fit_unreserved();
        self.fit_loans();
    }

    fn begin(&mut self, begin: &Begin) {
        if self.mode == Mode::Off || self.calls.contains_key(&begin.call) {
            return;
        }
        let demand = self.predictor.predict(begin.function, &begin.features);
        let mut call = Call::new(begin, demand, self.now_us);
        call.owned = call.owned.min(MAX_OWNED);
        self.owned += call.owned;
        self.kept += call.owned;
        if let Some(group) = begin.group {
            self.groups.entry(group.id).or_default().insert(begin.call);
        }
        self.calls.insert(begin.call, call);
        // The call owns its units from now on. Their borrowers give them back before anything else is decided.
        self.fit_unreserved();
        if self.mode == Mode::On {
            self.offer(begin.call);
            self.want(begin.call);
        }
        self.fit_loans();
        if !self.rules.regrants {
            self.grant_once(begin.call);
        }
    }

    fn end(&mut self, id: CallId, outcome: Outcome) {
        if !self.calls.contains_key(&id) {
            return;
        }
        self.leave_group(id);
        self.recall_all(id);
        self.stop_wanting(id);
        for resource in Resource::ALL {
            self.give_back(id, resource, u64::MAX);
        }
        self.reclaims.remove(&id);
        self.ending.remove(&id);
        self.touched.remove(&id);
        let Some(call) = self.calls.remove(&id) else { return };
        self.owned -= call.owned;
        self.kept -= call.owned;
        self.note_call(call.function);
        if outcome == Outcome::Returned && call.is_measured {
            self.predictor.learn(call.function, call.sample(self.now_us));
        }
        self.fit_unreserved();
    }

    fn measure(&mut self, id: CallId, used: Amount, waiting_ppm: u32) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        call.note_usage(used, waiting_ppm, self.now_us);
        self.note_reclaimed(id, used.memory_bytes);
        if self.mode != Mode::On {
            return;
        }
        self.guard(id, waiting_ppm);
        if self.rules.returns_unused {
            self.return_unused(id);
        }
        self.want_more(id, waiting_ppm);
    }

    fn tick(&mut self) {
        self.recall_unmeasured();
        self.end_late_borrowers();
    }

    /// A limit cannot be changed: the call takes no further part in this resource. If it could not be lowered, it ends.
    fn refuse(&mut self, id: CallId, resource: Resource, raising: bool) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        call.may_borrow[index(resource)] = false;
        call.may_lend[index(resource)] = false;
        self.recall(id, resource);
        self.stop_wanting(id);
        self.give_back(id, resource, u64::MAX);
        // The limits that this changed are those that the node could not set.
        self.touched.remove(&id);
        if !raising {
            self.end_borrower(id);
        }
    }

    /// Remembers the limits that a call had before this event.
    fn touch(&mut self, id: CallId) {
        if let Some(call) = self.calls.get(&id) {
            let limits = call.limits(&self.rules);
            self.touched.entry(id).or_insert(limits);
        }
    }

    fn actions(&mut self) -> Vec<Action> {
        let (mut lower, mut reclaim, mut raise) = (Vec::new(), Vec::new(), Vec::new());
        for (id, before) in std::mem::take(&mut self.touched) {
            let Some(call) = self.calls.get(&id) else { continue };
            let after = call.limits(&self.rules);
            for resource in Resource::ALL {
                let (before, units) = (before.get(resource), after.get(resource));
                let action = Action::Limit {
                    call: id,
                    resource,
                    units,
                };
                if units < before {
                    lower.push(action);
                } else if units > before {
                    raise.push(action);
                }
            }
            if let Some((memory_bytes, by_us)) = self.reclaims.get(&id)
                && after.memory_bytes < before.memory_bytes
            {
                reclaim.push(Action::Reclaim {
                    call: id,
                    memory_bytes: *memory_bytes,
                    by_us: *by_us,
                });
            }
        }
        let ending = std::mem::take(&mut self.ending);
        lower.extend(reclaim);
        lower.extend(ending.into_iter().map(|call| Action::EndCall { call }));
        lower.extend(raise);
        lower
    }
}
