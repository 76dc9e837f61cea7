//! Chooses the node on which a call runs. Pure: callers bring the time, heartbeats of nodes, and what became of calls.
//!
//! # How `dayfly` decides
//!
//! 1. Only nodes are considered that have room for what the call *owns* in this scheduler's share of the node. If there
//!    is none, [`Scheduler::place`] returns `None`: the caller keeps the call in its queue and asks again after an end or
//!    a heartbeat.
//! 2. A call that wants more than it owns (it is *accelerable*) goes where its demand coverage is greatest
//!    ([`crate::coverage`]). The scheduler counts the pools of the last heartbeat, less what calls that it placed since
//!    will borrow, each until its expected end, plus what they will lend. Where nodes also lend what nobody owns, this
//!    counts too, less what the call itself will own and what calls placed since own: a loan of it ends when another call
//!    needs it, but it makes a call as fast as a harvested unit does. A node without a warm worker counts as much less
//!    as its cold start would take from what full coverage saves.
//! 3. Among nodes of equal coverage, the call goes where the share still holds the largest call of late, then where the
//!    pools alone cover most of it, so that what is harvested
//!    does not stay idle while there is more than enough; then to the node with the most processor time that is not
//!    reserved.
//! 4. All other calls of a function go to one node, which rendezvous hashing finds: there they find warm workers. If that
//!    node is full, the next one in the function's order of nodes takes the call.
//! 5. What is still equal is decided by a hash of the node and a counter, so that equal nodes take turns.
//!
//! # Several schedulers
//!
//! Each of `K` schedulers has an equal share of every node's capacity ([`Shard`]) and sees the coverage of the whole
//! node. Schedulers share nothing: two may count the same idle units, which makes loans smaller and breaks nothing. The
//! node has the last word: a call that it refuses goes to [`Scheduler::refused`] and is placed again.
//!
//! # Late, lost and repeated messages
//!
//! A heartbeat that is not younger than the last one is ignored, and so is an end or a refusal of a call that is not
//! on the node that reports it. What a scheduler reserved for a call is returned exactly once.

mod choice;
mod hash;
mod node;
mod share;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use crate::amount::{Amount, Resource};
use crate::coverage::{CPU_WEIGHT_PERCENT, Spare, Steps, Want};
use crate::demand::{CallId, Demand, FunctionId, TenantId};
use crate::engine::Engine;
use crate::rules::Rules;
use node::{Node, Placed};
pub use share::{Shard, ShardError};

/// Functions that a heartbeat may name as warm.
pub const MAX_WARM: usize = 1_024;
/// Ends that are remembered, so that a placement which is reported after its end leaves nothing.
const MAX_LAST_ENDS: usize = 1_024;

/// A node, as this scheduler numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeIndex(pub u32);

/// A call that needs a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// What it runs.
    pub function: FunctionId,
    /// Who pays for it.
    pub tenant: TenantId,
    /// What it reserves.
    pub owned: Amount,
    /// What it wants above that, and for how long.
    pub want: Want,
    /// What it will lend of what it owns.
    pub lends: Amount,
    /// For how long it will lend at least, in microseconds.
    pub lends_us: u64,
}

impl Request {
    /// A call whose demand is not known.
    pub fn new(function: FunctionId, tenant: TenantId, owned: Amount) -> Self {
        Self {
            function,
            tenant,
            owned,
            want: Want::default(),
            lends: Amount::ZERO,
            lends_us: 0,
        }
    }

    /// The same call with what an engine under `rules` would lend it, and would harvest from it, given this demand. A call
    /// in its profiling window wants what the rules give to one, for a time that is not known: one second is taken.
    #[must_use]
    pub fn with_demand(mut self, demand: &Demand, rules: &Rules) -> Self {
        const PROFILING_US: u64 = 1_000_000;
        self.want.extra = rules.wanted(demand, self.owned);
        match demand {
            Demand::Unknown => {}
            Demand::Profiling => self.want.duration_us = PROFILING_US,
            Demand::Known(prediction) if rules.leaves_alone(prediction) => {}
            Demand::Known(prediction) => {
                self.want.duration_us = prediction.median_us;
                for resource in Resource::ALL {
                    let owned = self.owned.get(resource);
                    let kept = rules.kept(resource, owned, prediction.high.get(resource), 0);
                    *self.lends.get_mut(resource) = owned - kept;
                }
                self.lends_us = prediction.short_us;
            }
        }
        self
    }
}

/// What a node reports of itself.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Heartbeat {
    /// When it was taken, on the scheduler's clock. Where clocks differ, the receiver puts the time of arrival here: it
    /// never copies this from a node, which could thereby silence its own later reports.
    pub at_us: u64,
    /// What calls share on the node, owned or not.
    pub capacity: Amount,
    /// What its pools can spare.
    pub spare: Spare,
    /// What no call owns and nobody has borrowed, where the node lends that too.
    pub unowned: Amount,
    /// Functions that have an idle warm worker there. At most [`MAX_WARM`] count.
    pub warm: Vec<FunctionId>,
}

impl Heartbeat {
    /// What a node reports whose policy is `engine`, now. `warm` are functions with an idle warm worker.
    pub fn of(engine: &Engine, now_us: u64, capacity: Amount, warm: Vec<FunctionId>) -> Self {
        let steps = |resource| Steps::of_pool(now_us, engine.idle_by_expiry(resource));
        Self {
            at_us: now_us,
            capacity,
            spare: Spare {
                cpu: steps(Resource::Cpu),
                memory: steps(Resource::Memory),
            },
            unowned: Amount::new(
                engine.idle_unowned(Resource::Cpu),
                engine.idle_unowned(Resource::Memory),
            ),
            warm,
        }
    }
}

/// How a scheduler decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SchedulerKind {
    /// By demand coverage; see the module.
    Dayfly,
    /// As OpenWhisk: all calls of a function to one node; if it is full, a fixed number of nodes further.
    Hash,
    /// To each node in turn.
    RoundRobin,
    /// To the node with the fewest calls of this scheduler.
    ShortestQueue,
    /// Each function to as few nodes as carry it, the least loaded of these first (Zhang and others, SOSP 2021).
    MinWorkerSet,
}

impl SchedulerKind {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Dayfly,
        Self::Hash,
        Self::RoundRobin,
        Self::ShortestQueue,
        Self::MinWorkerSet,
    ];

    /// Its name in commands and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dayfly => "dayfly",
            Self::Hash => "hash",
            Self::RoundRobin => "round-robin",
            Self::ShortestQueue => "shortest-queue",
            Self::MinWorkerSet => "min-worker-set",
        }
    }
}

/// How a scheduler is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedulerOptions {
    /// Its share of each node.
    pub shard: Shard,
    /// Seed of the order in which equal nodes take turns.
    pub seed: u64,
    /// Time after which the pools in a heartbeat show a placement: from the decision to the call's begin on the node, in
    /// microseconds.
    pub transit_us: u64,
    /// How much longer a call takes where no worker of its function is warm, in microseconds.
    pub cold_start_us: u64,
    /// What the coverage of processor time counts in that of a call, in percent; that of memory counts the rest.
    pub cpu_weight_percent: u8,
}

impl Default for SchedulerOptions {
    fn default() -> Self {
        Self {
            shard: Shard::WHOLE,
            seed: 0,
            // The begin of a call reaches the engine of a node within 2 ms.
            transit_us: 2_000,
            cold_start_us: 0,
            cpu_weight_percent: CPU_WEIGHT_PERCENT,
        }
    }
}

/// One scheduler and its view of the nodes. Deterministic: the same calls of its methods give the same placements.
#[derive(Debug)]
pub struct Scheduler {
    kind: SchedulerKind,
    options: SchedulerOptions,
    nodes: Vec<Node>,
    calls: BTreeMap<CallId, (NodeIndex, Placed)>,
    last_ends: VecDeque<(CallId, NodeIndex)>,
    choice: choice::State,
}

impl Scheduler {
    /// A scheduler that knows no node.
    pub fn new(kind: SchedulerKind, options: SchedulerOptions) -> Self {
        Self {
            kind,
            options,
            nodes: Vec::new(),
            calls: BTreeMap::new(),
            last_ends: VecDeque::new(),
            choice: choice::State::new(&options),
        }
    }

    /// Adds a node, or changes the capacity of one that is there, and returns its number: 0 for the first node. `key`
    /// names the node for hashing. It must be the same for all schedulers and at all times. After [`Self::leave`] the
    /// number may go to another node.
    pub fn join(&mut self, key: u64, capacity: Amount) -> NodeIndex {
        let known = self.nodes.iter().position(|node| node.is_up && node.key == key);
        let free = || self.nodes.iter().position(|node| !node.is_up);
        let index = known.or_else(free).unwrap_or(self.nodes.len());
        if known.is_none() {
            let node = Node::new(key, self.options.cpu_weight_percent);
            match self.nodes.get_mut(index) {
                Some(slot) => *slot = node,
                None => self.nodes.push(node),
            }
        }
        self.nodes[index].set_capacity(capacity, self.options.shard);
        self.choice.nodes_changed(&self.nodes);
        NodeIndex(index as u32)
    }

    /// Removes a node with all of its calls.
    pub fn leave(&mut self, index: NodeIndex) {
        let Some(node) = self.nodes.get_mut(index.0 as usize) else {
            return;
        };
        node.is_up = false;
        self.calls.retain(|_, (on, _)| *on != index);
        self.choice.nodes_changed(&self.nodes);
    }

    /// Takes a node's report. One that is not younger than the last is ignored.
    pub fn heartbeat(&mut self, now_us: u64, index: NodeIndex, heartbeat: &Heartbeat) {
        let (shard, transit_us) = (self.options.shard, self.options.transit_us);
        let Some(node) = self.node_mut(index) else { return };
        if node.heartbeat_us.is_some_and(|last| heartbeat.at_us <= last) {
            return;
        }
        node.set_capacity(heartbeat.capacity, shard);
        node.report(now_us, heartbeat, transit_us);
    }

    /// Chooses a node for a call and reserves what it owns there, or returns `None` when no node has room. A call that is
    /// already placed keeps its node.
    pub fn place(&mut self, now_us: u64, call: CallId, request: &Request) -> Option<NodeIndex> {
        if let Some((index, _)) = self.calls.get(&call) {
            return Some(*index);
        }
        let index = self.choice.choose(self.kind, &self.nodes, now_us, request)?;
        self.reserve(now_us, call, index, request);
        Some(index)
    }

    /// Notes a call that runs on a node though this scheduler did not place it there, as after a restart. Its reservation
    /// may exceed the share. Without effect if the call is known, or if its end there was reported before.
    pub fn placed(&mut self, now_us: u64, call: CallId, index: NodeIndex, request: &Request) {
        if self.last_ends.contains(&(call, index)) {
            return;
        }
        if self.node_mut(index).is_some() && !self.calls.contains_key(&call) {
            self.reserve(now_us, call, index, request);
        }
    }

    /// A call ended on a node: what it owned there is free again.
    pub fn ended(&mut self, call: CallId, index: NodeIndex) {
        self.last_ends.push_back((call, index));
        if self.last_ends.len() > MAX_LAST_ENDS {
            self.last_ends.pop_front();
        }
        let Some(placed) = self.release(call, index) else {
            return;
        };
        if let Some(node) = self.node_mut(index) {
            node.note_end(&placed);
        }
    }

    /// A node refused a call: nothing is reserved for it any more, and the next call of this size goes elsewhere until the
    /// node has more room.
    pub fn refused(&mut self, now_us: u64, call: CallId, index: NodeIndex) {
        let Some(placed) = self.release(call, index) else {
            return;
        };
        if let Some(node) = self.node_mut(index) {
            node.note_refusal(now_us, placed.owned);
        }
    }

    /// Whether the call would find room if nothing else ran. One that would not must be refused, not queued.
    pub fn is_placeable(&self, owned: Amount) -> bool {
        self.nodes.iter().any(|node| node.is_up && node.share.covers(&owned))
    }

    /// What this scheduler reserved on a node, beyond 2^64 - 1 units that number.
    pub fn reserved(&self, index: NodeIndex) -> Amount {
        self.nodes
            .get(index.0 as usize)
            .filter(|node| node.is_up)
            .map_or(Amount::ZERO, Node::reserved)
    }

    /// This scheduler's share of a node.
    pub fn share(&self, index: NodeIndex) -> Amount {
        self.nodes
            .get(index.0 as usize)
            .filter(|node| node.is_up)
            .map_or(Amount::ZERO, |node| node.share)
    }

    /// Calls that are placed and have not ended.
    pub fn calls(&self) -> usize {
        self.calls.len()
    }

    /// Nodes that are up.
    pub fn nodes(&self) -> BTreeSet<NodeIndex> {
        let up = self.nodes.iter().enumerate().filter(|(_, node)| node.is_up);
        up.map(|(index, _)| NodeIndex(index as u32)).collect()
    }

    fn reserve(&mut self, now_us: u64, call: CallId, index: NodeIndex, request: &Request) {
        let placed = Placed::new(now_us, request);
        if let Some(node) = self.node_mut(index) {
            node.reserve(call, &placed);
            self.calls.insert(call, (index, placed));
        }
    }

    /// Forgets a call if it is on this node.
    fn release(&mut self, call: CallId, index: NodeIndex) -> Option<Placed> {
        if self.calls.get(&call).is_none_or(|(on, _)| *on != index) {
            return None;
        }
        let (_, placed) = self.calls.remove(&call)?;
        self.node_mut(index)?.release(call, &placed);
        Some(placed)
    }

    fn node_mut(&mut self, index: NodeIndex) -> Option<&mut Node> {
        self.nodes.get_mut(index.0 as usize).filter(|node| node.is_up)
    }
}

#[cfg(test)]
mod tests;
