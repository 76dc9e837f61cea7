//! What one scheduler knows about one node.

use std::collections::BTreeMap;

use super::share::Shard;
use super::{Heartbeat, MAX_WARM, Request};
use crate::amount::{Amount, Resource};
use crate::coverage::{Claim, ExpectedPools};
use crate::demand::{CallId, FunctionId};

/// Time after a refusal in which a node gets no call as large as the refused one, unless something ends there or a
/// younger heartbeat comes.
const REFUSAL_PAUSE_US: u64 = 100_000;

/// A call on a node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placed {
    pub function: FunctionId,
    pub owned: Amount,
    claim: Claim,
}

impl Placed {
    pub fn new(now_us: u64, request: &Request) -> Self {
        Self {
            function: request.function,
            owned: request.owned,
            claim: Claim::new(now_us, request.owned, &request.want).lending(request.lends, request.lends_us),
        }
    }
}

/// Sums that cannot wrap: fewer than 2^64 calls of less than 2^64 units.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    milli_cores: u128,
    memory_bytes: u128,
}

/// One node.
#[derive(Debug)]
pub(super) struct Node {
    pub key: u64,
    pub is_up: bool,
    /// This scheduler's part of the capacity.
    pub share: Amount,
    /// When the last heartbeat was taken.
    pub heartbeat_us: Option<u64>,
    /// Calls of this scheduler there.
    pub calls: u64,
    sum: Sum,
    /// What is not reserved of the share.
    free: Amount,
    pools: ExpectedPools<CallId>,
    /// Idle warm workers by function.
    warm: BTreeMap<FunctionId, u32>,
    /// The refused amount, and when it was refused.
    refusal: Option<(u64, Amount)>,
}

impl Node {
    pub fn new(key: u64, cpu_weight_percent: u8) -> Self {
        Self {
            key,
            is_up: true,
            share: Amount::ZERO,
            heartbeat_us: None,
            calls: 0,
            sum: Sum::default(),
            free: Amount::ZERO,
            pools: ExpectedPools::with_cpu_weight(cpu_weight_percent),
            warm: BTreeMap::new(),
            refusal: None,
        }
    }

    pub fn set_capacity(&mut self, capacity: Amount, shard: Shard) {
        self.share = shard.of(capacity);
        self.set_free();
    }

    /// Takes a report. Calls that were placed at least `transit_us` before it are in its pools.
    pub fn report(&mut self, now_us: u64, heartbeat: &Heartbeat, transit_us: u64) {
        self.heartbeat_us = Some(heartbeat.at_us);
        let at_us = heartbeat.at_us.min(now_us);
        self.pools
            .report(at_us, &heartbeat.spare, heartbeat.unowned, transit_us);
        self.refusal = None;
        self.warm.clear();
        for function in heartbeat.warm.iter().take(MAX_WARM) {
            *self.warm.entry(*function).or_default() += 1;
        }
    }

    pub fn reserve(&mut self, call: CallId, placed: &Placed) {
        self.calls += 1;
        self.sum.milli_cores += u128::from(placed.owned.milli_cores);
        self.sum.memory_bytes += u128::from(placed.owned.memory_bytes);
        self.set_free();
        self.pools.add(call, placed.claim);
        if let Some(workers) = self.warm.get_mut(&placed.function) {
            *workers -= 1;
            if *workers == 0 {
                self.warm.remove(&placed.function);
            }
        }
    }

    pub fn release(&mut self, call: CallId, placed: &Placed) {
        self.calls -= 1;
        self.sum.milli_cores -= u128::from(placed.owned.milli_cores);
        self.sum.memory_bytes -= u128::from(placed.owned.memory_bytes);
        self.set_free();
        self.pools.remove(&call);
    }

    /// A call ended by itself: its worker is warm now, and there is room for others.
    pub fn note_end(&mut self, placed: &Placed) {
        self.refusal = None;
        if self.warm.len() < MAX_WARM || self.warm.contains_key(&placed.function) {
            *self.warm.entry(placed.function).or_default() += 1;
        }
    }

    pub fn note_refusal(&mut self, now_us: u64, owned: Amount) {
        self.refusal = Some((now_us, owned));
    }

    /// Whether the share has room for a call that owns this much, and the node did not just refuse as much.
    pub fn has_room(&self, now_us: u64, owned: &Amount) -> bool {
        self.is_up && self.free.covers(owned) && !self.has_refused(now_us, owned)
    }

    /// What is not reserved of the share.
    pub fn free(&self) -> Amount {
        self.free
    }

    /// What is reserved, at most what an [`Amount`] holds.
    pub fn reserved(&self) -> Amount {
        let units = |sum| u64::try_from(sum).unwrap_or(u64::MAX);
        Amount::new(units(self.sum.milli_cores), units(self.sum.memory_bytes))
    }

    /// The larger reserved part of the share of a resource, after a call that owns this much came: 0 to 1, above 1 when
    /// it is overbooked.
    pub fn pressure(&self, owned: &Amount) -> f64 {
        let after = self.reserved() + *owned;
        let part = |resource| match (after.get(resource), self.share.get(resource)) {
            (0, _) => 0.0,
            (units, share) => units as f64 / share.max(1) as f64,
        };
        f64::max(part(Resource::Cpu), part(Resource::Memory))
    }

    /// Demand coverage by all that the node could lend to this call: its pools, and what nobody owns once the call has
    /// what it owns. `None` if it is below `least`.
    pub fn coverage(&self, now_us: u64, request: &Request, least: f64) -> Option<f64> {
        self.pools.coverage_from(now_us, &request.want, request.owned, least)
    }

    /// Demand coverage by the pools alone. `None` if it is below `least`.
    pub fn pool_coverage(&self, now_us: u64, request: &Request, least: f64) -> Option<f64> {
        self.pools.pool_coverage_from(now_us, &request.want, least)
    }

    /// Whether an idle worker of this function is there.
    pub fn is_warm(&self, function: FunctionId) -> bool {
        self.warm.contains_key(&function)
    }

    fn has_refused(&self, now_us: u64, owned: &Amount) -> bool {
        self.refusal
            .is_some_and(|(at_us, refused)| now_us < at_us.saturating_add(REFUSAL_PAUSE_US) && owned.covers(&refused))
    }

    fn set_free(&mut self) {
        self.free = self.share - self.reserved();
    }
}
