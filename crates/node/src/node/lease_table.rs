//! The leases of a node: the live ones with their resources, and the ended ones.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dayfly_lease::allowance::within_cap;
use dayfly_lease::ledger::{Offer, Resources, validate_change};
use dayfly_lease::quota::Held;
use dayfly_lease::{Lease, Ledger, Reservation, billing, shrink};
use dayfly_protocol::api::{Capacity, LeaseChange, LeaseRequest, LeaseState, Mode, NodeResize, Usage};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{AllowanceId, LeaseId, TenantId};

use crate::clock;
use crate::disconnects::DisconnectWatch;
use crate::executors::ExecutorKind;
use crate::journal;
use crate::leases::{CorePin, Durations, GrantedTerms, NodeLease, Origin, PresentedAllowance, add_durations};

/// How long the channels of an ended lease are remembered, in milliseconds.
pub(super) const MIN_ENDED_MS: u64 = 60_000;

/// All leases of a node. Each method is one step: it holds the lock to its end.
#[derive(Debug)]
pub(crate) struct LeaseTable {
    state: Mutex<TableState>,
}

#[derive(Debug)]
struct TableState {
    ledger: Ledger,
    live: BTreeMap<LeaseId, Arc<NodeLease>>,
    ended: HashMap<LeaseId, EndedLease>,
    /// Usage of ended leases, and the durations of their calls.
    past: Usage,
    past_durations: Durations,
    /// The cores that processes without own cores were pinned to last.
    pinned_cores: Vec<u16>,
    /// Allowances under which nothing more may start for now, and until when.
    exhausted: HashMap<AllowanceId, u64>,
    /// Whether the node is reclaimed: it has no leases and grants none until it is resumed.
    is_reclaimed: bool,
}

/// An ended lease. Its token is refused, and for a while the states of its channels are known.
#[derive(Debug)]
struct EndedLease {
    state: LeaseState,
    until_ms: u64,
    lease: Option<(Arc<NodeLease>, u64)>,
}

/// The result of looking up a lease.
pub(crate) enum Found {
    Live(Arc<NodeLease>),
    Ended(LeaseState),
    Unknown,
}

/// A lease to be added.
pub(crate) struct NewLease {
    pub id: LeaseId,
    pub tenant: TenantId,
    pub origin: Origin,
    pub request: LeaseRequest,
    pub kind: ExecutorKind,
    pub life: Lease,
}

impl LeaseTable {
    /// A table without live leases. `ended` are leases of earlier processes.
    pub fn new(resources: Resources, ended: HashMap<LeaseId, journal::Ended>) -> Self {
        let ended = ended.into_iter().map(|(lease, ended)| {
            let ended = EndedLease {
                state: ended.state,
                until_ms: ended.until_ms,
                lease: None,
            };
            (lease, ended)
        });
        Self {
            state: Mutex::new(TableState {
                ledger: Ledger::new(resources),
                live: BTreeMap::new(),
                ended: ended.collect(),
                past: Usage::default(),
                past_durations: Durations::default(),
                pinned_cores: Vec::new(),
                exhausted: HashMap::new(),
                is_reclaimed: false,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, TableState> {
        // Each change is a single call into the ledger or a map, so none is ever half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Total resources.
    pub fn capacity(&self) -> Capacity {
        self.state().ledger.capacity()
    }

    /// Resources that the node could offer.
    pub fn full_capacity(&self) -> Capacity {
        self.state().ledger.full_capacity()
    }

    /// Free resources.
    pub fn free(&self) -> Capacity {
        self.state().ledger.free()
    }

    /// Cores that no hot lease owns.
    pub fn shared_cores(&self) -> Vec<u16> {
        self.state().ledger.shared_cores()
    }

    /// Calls of warm workers that the shared cores can run at once.
    pub fn calls_at_once(&self) -> u32 {
        self.state().ledger.calls_at_once()
    }

    /// Number of live leases.
    pub fn count(&self) -> usize {
        self.state().ledger.leases()
    }

    /// The live leases.
    pub fn live(&self) -> Vec<Arc<NodeLease>> {
        self.state().live.values().cloned().collect()
    }

    /// Looks up a lease.
    pub fn find(&self, id: &LeaseId) -> Found {
        let state = self.state();
        match (state.live.get(id), state.ended.get(id)) {
            (Some(lease), _) => Found::Live(lease.clone()),
            (None, Some(ended)) => Found::Ended(ended.state),
            (None, None) => Found::Unknown,
        }
    }

    /// A lease that is live, or that ended a short time ago.
    pub fn find_recent(&self, id: &LeaseId) -> Option<Arc<NodeLease>> {
        let state = self.state();
        let ended = state.ended.get(id).and_then(|ended| ended.lease.as_ref());
        let lease = state.live.get(id).or(ended.map(|(lease, _)| lease));
        lease.cloned()
    }

    /// Reserves resources and adds a lease. Returns an error, and changes nothing, if the node is reclaimed, has no
    /// room, or the lease's allowance does not cover it.
    pub fn add(&self, new: NewLease, disconnects: &Arc<DisconnectWatch>) -> Result<Arc<NodeLease>, Failure> {
        let mut state = self.state();
        if state.is_reclaimed {
            return Err(Failure::new(
                Code::NoCapacity,
                "this node was taken back by its owner; lease elsewhere",
            ));
        }
        let id = new.id;
        let reservation = state.ledger.reserve(id, &new.request)?.clone();
        if let Some(allowance) = new.origin.allowance()
            && let Err(failure) = state.check_allowance(allowance, &new.request, &reservation)
        {
            state.ledger.release(&id);
            return Err(failure);
        }
        let granted = GrantedTerms {
            id,
            tenant: new.tenant,
            origin: new.origin,
            request: new.request,
            kind: new.kind,
        };
        match NodeLease::new(granted, reservation, new.life, disconnects.clone()) {
            Ok(lease) => {
                let lease = Arc::new(lease);
                state.live.insert(id, lease.clone());
                Ok(lease)
            }
            Err(error) => {
                state.ledger.release(&id);
                Err(Failure::new(
                    Code::OutOfMemory,
                    format!("there is no memory for the lease's meters: {error}; try later or elsewhere"),
                ))
            }
        }
    }

    /// Removes a lease that never started.
    pub fn remove(&self, id: &LeaseId) {
        let mut state = self.state();
        state.ledger.release(id);
        state.live.remove(id);
    }

    /// Releases the resources of an ended lease. Its token is refused until `until_ms`.
    pub fn end(&self, lease: &Arc<NodeLease>, end: LeaseState, until_ms: u64, now_ms: u64) {
        let mut state = self.state();
        state.ledger.release(&lease.id());
        state.live.remove(&lease.id());
        state.past = billing::add(state.past, lease.usage());
        add_durations(&mut state.past_durations, &lease.durations());
        let ended = EndedLease {
            state: end,
            until_ms,
            lease: Some((lease.clone(), now_ms + MIN_ENDED_MS)),
        };
        state.ended.insert(lease.id(), ended);
    }

    /// Forgets ended leases whose tokens have expired, and limits of allowances that are over.
    pub fn forget(&self, now_ms: u64) {
        let mut state = self.state();
        state.exhausted.retain(|_, until_ms| *until_ms > now_ms);
        state.ended.retain(|_, ended| {
            ended.lease.take_if(|(_, until_ms)| *until_ms <= now_ms);
            ended.until_ms > now_ms
        });
    }

    /// Refuses leases under an allowance for `for_ms` milliseconds. 0 permits them again.
    pub fn set_exhausted(&self, allowance: AllowanceId, for_ms: u64) {
        let mut state = self.state();
        match for_ms {
            0 => state.exhausted.remove(&allowance),
            _ => state
                .exhausted
                .insert(allowance, clock::wall_ms().saturating_add(for_ms)),
        };
    }

    /// Refuses new leases. Returns the live ones.
    pub fn reclaim(&self) -> Vec<Arc<NodeLease>> {
        let mut state = self.state();
        state.is_reclaimed = true;
        state.live.values().cloned().collect()
    }

    /// Permits leases again.
    pub fn resume(&self) {
        self.state().is_reclaimed = false;
    }

    /// Whether the node is reclaimed.
    pub fn is_reclaimed(&self) -> bool {
        self.state().is_reclaimed
    }

    /// Whether the node has GPUs, offered or not.
    pub fn has_gpus(&self) -> bool {
        self.state().ledger.has_gpus()
    }

    /// Changes what the node offers, and returns it.
    pub fn change_offer(&self, change: NodeResize) -> Result<Offer, Failure> {
        let mut state = self.state();
        state.ledger.change_offer(change)?;
        Ok(state.ledger.offer())
    }

    /// The leases that end already although the node still lacks what they hold, and those that have to end too.
    pub fn to_end(&self) -> (Vec<Arc<NodeLease>>, Vec<Arc<NodeLease>>) {
        let state = self.state();
        let shortfall = state.ledger.shortfall();
        if shortfall.is_none() {
            return Default::default();
        }
        let candidates: Vec<_> = state.live.values().map(|lease| lease.shrink_candidate()).collect();
        let chosen = shrink::to_end(shortfall, &candidates);
        let ending = candidates.iter().filter(|candidate| candidate.is_ending);
        let live = |id: &LeaseId| state.live.get(id).cloned();
        let helps = ending.filter(|candidate| shortfall.is_helped_by(&candidate.held));
        (
            helps.filter_map(|candidate| live(&candidate.id)).collect(),
            chosen.iter().filter_map(live).collect(),
        )
    }

    /// Changes a live lease: its mode, its polling, or its number of workers, for which [`LeaseChange::min_workers`] may
    /// accept fewer. Returns the processes to pin to other cores. Returns an error, and changes nothing, if there is no
    /// room.
    pub fn change(&self, lease: &NodeLease, change: &LeaseChange, grace: Duration) -> Result<Vec<CorePin>, Failure> {
        let mut state = self.state();
        validate_change(change)?;
        let now = lease.terms();
        let most = change.workers.unwrap_or(now.workers);
        let fewest = change.min_workers.unwrap_or(most);
        let modes: &[Mode] = match change.mode {
            None => &[now.mode],
            Some(Mode::Auto) => &[Mode::Hot, Mode::Warm],
            Some(Mode::Hot) => &[Mode::Hot],
            Some(Mode::Warm) => &[Mode::Warm],
        };
        // Returns a plan that fits, in the first mode in which it does.
        let planned = |state: &TableState, workers| {
            let mut refusal = None;
            for mode in modes {
                let plan = lease.plan(change, workers, *mode).and_then(|plan| {
                    state.ledger.check_change(&lease.id(), &plan.wanted())?;
                    Ok(plan)
                });
                match plan {
                    // The refusal of the preferred mode is the one to report.
                    Err(failure) => {
                        refusal.get_or_insert(failure);
                    }
                    fitting => return fitting,
                }
            }
            Err(refusal.unwrap_or_else(|| Failure::new(Code::Internal, "no mode of the lease was tried; report this")))
        };
        let plan = match planned(&state, most) {
            Err(refusal) if fewest < most && refusal.code != Code::InvalidRequest => {
                // Fewer workers never need more, so half of the numbers are left after each attempt.
                let (mut fitting, mut low, mut high) = (None, fewest, most - 1);
                while low <= high {
                    let workers = low + (high - low) / 2;
                    match planned(&state, workers) {
                        Ok(plan) => (fitting, low) = (Some(plan), workers + 1),
                        Err(_) => high = workers - 1,
                    }
                }
                // The refusal of the most workers is the one to report.
                fitting.ok_or(refusal)?
            }
            planned => planned?,
        };
        let reservation = state.ledger.change(&lease.id(), &plan.wanted())?;
        Ok(lease.apply(plan, reservation, grace))
    }

    /// Frees what retired workers of a lease held, and moves the cores of its workers that fell asleep or woke up. Returns
    /// the processes to pin to other cores.
    pub fn settle(&self, lease: &NodeLease) -> Option<Vec<CorePin>> {
        lease.needs_settling().then(|| lease.settle(&mut self.state().ledger))
    }

    /// Number of calls by duration since the node started.
    pub fn durations(&self) -> Durations {
        let state = self.state();
        let mut sum = state.past_durations;
        for lease in state.live.values() {
            add_durations(&mut sum, &lease.durations());
        }
        sum
    }

    /// Usage of all leases since the node started.
    pub fn usage(&self) -> Usage {
        let state = self.state();
        let live = state.live.values().map(|lease| lease.usage());
        live.fold(state.past, billing::add)
    }

    /// If the shared cores have changed since the last call: these cores, and the processes of warm workers to pin to
    /// them.
    pub fn changed_shared_cores(&self) -> Option<(Vec<u16>, Vec<u32>)> {
        let mut state = self.state();
        let shared = state.ledger.shared_cores();
        if state.pinned_cores == shared {
            return None;
        }
        state.pinned_cores.clone_from(&shared);
        let live = state.live.values();
        let processes = live.flat_map(|lease| lease.coreless_processes()).collect();
        Some((shared, processes))
    }
}

impl TableState {
    /// Returns an error unless the allowance covers a lease with this reservation.
    fn check_allowance(
        &self,
        allowance: &PresentedAllowance,
        request: &LeaseRequest,
        reservation: &Reservation,
    ) -> Result<(), Failure> {
        if self.exhausted.contains_key(&allowance.id) {
            return Err(Failure::new(
                Code::QuotaExceeded,
                "this allowance is used up, on all nodes together; release a lease, or ask for a larger one",
            ));
        }
        if request.gpus_per_worker > 0 {
            let text = "the lease asks for GPUs, which an allowance does not cover; lease from the manager";
            return Err(Failure::new(Code::InvalidRequest, text));
        }
        let same = self.live.values().filter(|lease| {
            let other = lease.granted.origin.allowance();
            other.is_some_and(|other| other.id == allowance.id)
        });
        let held = same.fold(Held::default(), |sum, lease| sum.plus(lease.held()));
        let wanted = Held::by_one(reservation.workers, request.cores_per_worker, reservation.memory_bytes);
        within_cap(&allowance.cap, &held, &wanted)
    }
}
