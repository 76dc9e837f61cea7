//! The five ways to choose among nodes. All of them choose only nodes with room.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::hash::weight;
use super::node::Node;
use super::{NodeIndex, Request, SchedulerKind, SchedulerOptions};
use crate::amount::Amount;
use crate::demand::FunctionId;
use crate::random::mix;

/// A function's set of workers grows when its least loaded node would be fuller than this.
const WIDEN_ABOVE: f64 = 0.8;
/// A function's set of workers shrinks when its least loaded node would be emptier than this.
const NARROW_BELOW: f64 = 0.4;
/// Choices for which the largest call is remembered, and as many again.
const MAX_GENERATION: u64 = 4_096;
/// Functions whose set of workers is remembered. Beyond it, all start again with one node.
const MAX_SETS: usize = 65_536;

/// How good a node is for a call that wants more than it owns. The first difference decides.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
struct Score {
    /// Demand coverage by all that the node can lend, less what a cold start takes from it.
    coverage: f64,
    /// Its share still holds the largest call of late, or did not hold it before. With several schedulers, each has a part
    /// of every node: calls that are spread evenly would leave no part whole.
    keeps_room: bool,
    /// Demand coverage by its pools alone: what is harvested does not stay idle.
    pool: f64,
    /// Processor time that is not reserved.
    free: u64,
    /// Makes equal nodes take turns.
    tie: u64,
}

/// What the choices remember from one call to the next.
#[derive(Debug)]
pub(super) struct State {
    cold_start_us: u64,
    salt: u64,
    /// Choices made.
    turns: u64,
    /// Where the round goes on.
    next: usize,
    /// Nodes that are up, by their numbers.
    up: Vec<usize>,
    /// Size of the set of workers of each function.
    sets: BTreeMap<FunctionId, usize>,
    /// The most that calls own: those of the current generation of [`MAX_GENERATION`] choices, and of the one before.
    largest: [Amount; 2],
}

impl State {
    pub fn new(options: &SchedulerOptions) -> Self {
        let shard = options.shard.index();
        Self {
            cold_start_us: options.cold_start_us,
            salt: mix(options.seed ^ mix(shard.into())),
            turns: 0,
            next: shard as usize,
            up: Vec::new(),
            sets: BTreeMap::new(),
            largest: [Amount::ZERO; 2],
        }
    }

    pub fn nodes_changed(&mut self, nodes: &[Node]) {
        self.up = (0..nodes.len()).filter(|&index| nodes[index].is_up).collect();
    }

    /// The node for a call, if one has room.
    pub fn choose(&mut self, kind: SchedulerKind, nodes: &[Node], now_us: u64, request: &Request) -> Option<NodeIndex> {
        if self.up.is_empty() {
            return None;
        }
        self.largest[0] = self.largest[0].max(request.owned);
        let chosen = match kind {
            SchedulerKind::Dayfly if request.want.is_something() => self.best_covered(nodes, now_us, request),
            SchedulerKind::Dayfly => self.in_order(nodes, now_us, request),
            SchedulerKind::Hash => self.home_or_next(nodes, now_us, request),
            SchedulerKind::RoundRobin => self.next_in_turn(nodes, now_us, request),
            SchedulerKind::ShortestQueue => self.fewest_calls(nodes, now_us, request),
            SchedulerKind::MinWorkerSet => self.in_worker_set(nodes, now_us, request),
        }?;
        self.turns += 1;
        if self.turns.is_multiple_of(MAX_GENERATION) {
            self.largest = [Amount::ZERO, self.largest[0]];
        }
        Some(NodeIndex(chosen as u32))
    }

    /// The node with the best [`Score`].
    fn best_covered(&self, nodes: &[Node], now_us: u64, request: &Request) -> Option<usize> {
        let turn = self.turn();
        let cold = cold_start(request, self.cold_start_us);
        let mut best: Option<(Score, usize)> = None;
        for index in self.open(nodes, now_us, request) {
            let node = &nodes[index];
            let lost = if node.is_warm(request.function) { 0.0 } else { cold };
            let (least, least_pool) = best.map_or((f64::MIN, 0.0), |(score, _)| (score.coverage, score.pool));
            let Some(coverage) = node.coverage(now_us, request, least + lost) else {
                continue;
            };
            let coverage = coverage - lost;
            let (free, largest) = (node.free(), self.largest[0].max(self.largest[1]));
            let keeps_room = (free - request.owned).covers(&largest) || !free.covers(&largest);
            // Only among equals does it matter what the pools alone cover.
            let is_equal = best.is_some_and(|(score, _)| score.coverage >= coverage && score.keeps_room == keeps_room);
            let least_pool = if is_equal { least_pool } else { 0.0 };
            let Some(pool) = node.pool_coverage(now_us, request, least_pool) else {
                continue;
            };
            let score = Score {
                coverage,
                keeps_room,
                pool,
                free: free.milli_cores,
                tie: weight(turn, node.key),
            };
            if best.is_none_or(|(most, _)| score > most) {
                best = Some((score, index));
            }
        }
        best.map(|(_, index)| index)
    }

    /// The first node with room in the function's order of nodes.
    fn in_order(&self, nodes: &[Node], now_us: u64, request: &Request) -> Option<usize> {
        let open = self.open(nodes, now_us, request);
        open.max_by_key(|&index| weight(request.function.0, nodes[index].key))
    }

    /// The function's home, or the first node with room in steps that visit all nodes.
    fn home_or_next(&self, nodes: &[Node], now_us: u64, request: &Request) -> Option<usize> {
        let count = self.up.len();
        let hash = mix(request.function.0);
        let home = (hash % count as u64) as usize;
        let step = step_of(count, hash >> 32);
        let order = (0..count).map(|turn| self.up[(home + turn * step) % count]);
        order
            .into_iter()
            .find(|&index| nodes[index].has_room(now_us, &request.owned))
    }

    fn next_in_turn(&mut self, nodes: &[Node], now_us: u64, request: &Request) -> Option<usize> {
        let count = self.up.len();
        let at = (0..count)
            .map(|turn| (self.next + turn) % count)
            .find(|&at| nodes[self.up[at]].has_room(now_us, &request.owned))?;
        self.next = (at + 1) % count;
        Some(self.up[at])
    }

    fn fewest_calls(&self, nodes: &[Node], now_us: u64, request: &Request) -> Option<usize> {
        let turn = self.turn();
        let open = self.open(nodes, now_us, request);
        open.min_by_key(|&index| (nodes[index].calls, weight(turn, nodes[index].key)))
    }

    /// The least loaded node of the function's set of workers: the first few nodes in its order. The set grows by one
    /// when this node would be too full or none has room, and shrinks by one when it would be nearly empty.
    fn in_worker_set(&mut self, nodes: &[Node], now_us: u64, request: &Request) -> Option<usize> {
        let key = request.function.0;
        let mut order: Vec<usize> = self.up.clone();
        order.sort_by_cached_key(|&index| Reverse(weight(key, nodes[index].key)));
        let size = self.sets.get(&request.function).copied().unwrap_or(1).min(order.len());
        let pressure = |index: usize| nodes[index].pressure(&request.owned);
        let least = |size: usize| {
            let open = order[..size]
                .iter()
                .copied()
                .filter(|&index| nodes[index].has_room(now_us, &request.owned));
            open.min_by(|&a, &b| pressure(a).total_cmp(&pressure(b)))
        };
        let mut set = size;
        let mut chosen = least(set);
        while set < order.len() && chosen.is_none_or(|index| pressure(index) > WIDEN_ABOVE) {
            set += 1;
            chosen = least(set);
        }
        if set == size && size > 1 && chosen.is_some_and(|index| pressure(index) < NARROW_BELOW) {
            set -= 1;
            chosen = least(set).or(chosen);
        }
        if self.sets.len() >= MAX_SETS && !self.sets.contains_key(&request.function) {
            self.sets.clear();
        }
        self.sets.insert(request.function, set);
        chosen
    }

    fn open<'a>(&'a self, nodes: &'a [Node], now_us: u64, request: &'a Request) -> impl Iterator<Item = usize> + 'a {
        let up = self.up.iter().copied();
        up.filter(move |&index| nodes[index].has_room(now_us, &request.owned))
    }

    /// A key that differs from choice to choice and from scheduler to scheduler.
    fn turn(&self) -> u64 {
        self.salt ^ self.turns
    }
}

/// A step that has no divisor in common with `count`, so that steps of it visit all of `count` places.
fn step_of(count: usize, hash: u64) -> usize {
    let coprime = |step: &usize| gcd(*step, count) == 1;
    let first = 1 + (hash % count.max(1) as u64) as usize;
    (first..=count).chain(1..first).find(coprime).unwrap_or(1)
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The demand coverage that is worth a cold start of this length. Full coverage of `x` thousandths of a core above `o`
/// owned ones shortens a call from `d (o + x) / o` to `d`. A start of `c` thus takes as long as coverage of `c o / (d x)`
/// saves.
fn cold_start(request: &Request, cold_start_us: u64) -> f64 {
    let start = cold_start_us as f64 * request.owned.milli_cores as f64;
    let saved = request.want.duration_us as f64 * request.want.extra.milli_cores as f64;
    if start < saved {
        start / saved
    } else {
        f64::from(start > 0.0)
    }
}
