//! Leasing from nodes directly under an allowance: its limits, its use, and the order in which a client tries nodes.
//!
//! The manager signs an allowance and counts the leases under it. Nodes enforce its limit for one node. Clients try
//! nodes in random order from a list that may be outdated. Follows the decentralised allocation of rFaaS (Copik et al.,
//! "rFaaS: RDMA-Enabled FaaS Platform for Serverless High-Performance Computing"), in which full executors drop off the
//! list.

use std::collections::{BTreeMap, HashMap};

use dayfly_protocol::api::{Capacity, LeaseRequest};
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::hello::Token;
use dayfly_protocol::ids::{LeaseId, NodeId};

use crate::placement::mode_on;
use crate::quantity::Quantity;
use crate::quota::Held;

/// Milliseconds for which a client does not ask a full node again, unless an update reports free resources.
pub const FULL_FOR_MS: u64 = 1_000;
/// Milliseconds for which a client does not ask an unreachable node again.
pub const GONE_FOR_MS: u64 = 5_000;
/// First pause after a round in which no node had room, in milliseconds.
pub const FIRST_PAUSE_MS: u64 = 2;
/// Longest pause after a round in which no node had room, in milliseconds.
pub const LONGEST_PAUSE_MS: u64 = 200;

/// Returns the most that one node may hold under an allowance.
pub fn cap_of(allowance: &Token) -> Held {
    Held {
        leases: u32::MAX,
        workers: allowance.workers.get().into(),
        cores: MilliCores::new(allowance.milli_cores.get().into()),
        memory_bytes: allowance.memory_bytes.get(),
    }
}

/// Checks that a node holding `held` under an allowance may hold `wanted` more. A memory limit of 0 leaves memory to
/// the node.
///
/// # Errors
/// `TooLarge` if the lease alone exceeds a limit, `NoCapacity` if it does so together with what the node holds.
pub fn within_cap(cap: &Held, held: &Held, wanted: &Held) -> Result<(), Failure> {
    let bounds: [(&str, Quantity, Quantity, Quantity); 3] = [
        (
            "workers",
            held.workers.into(),
            wanted.workers.into(),
            cap.workers.into(),
        ),
        ("cores", held.cores.into(), wanted.cores.into(), cap.cores.into()),
        (
            "bytes of memory",
            held.memory_bytes.into(),
            wanted.memory_bytes.into(),
            cap.memory_bytes.into(),
        ),
    ];
    for (what, held, wanted, most) in bounds {
        let unlimited = what == "bytes of memory" && most == Quantity::Count(0);
        if !unlimited && wanted > most {
            return Err(Failure::new(
                Code::TooLarge,
                format!(
                    "the lease asks for {wanted} {what} and the allowance permits {most} on one node; ask for less"
                ),
            ));
        }
        if !unlimited && held.plus(wanted) > most {
            return Err(Failure::new(
                Code::NoCapacity,
                format!("{held} {what} are leased here under this allowance, of at most {most}; lease elsewhere"),
            ));
        }
    }
    Ok(())
}

/// The leases under an allowance, as the manager counts them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowanceLedger {
    total: Held,
    live: BTreeMap<LeaseId, (NodeId, Held)>,
    exhausted: bool,
}

/// A change that the manager sends to nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Availability {
    /// No further leases may start under the allowance.
    Exhausted,
    /// Leases may start again.
    Room,
}

impl AllowanceLedger {
    /// Returns a ledger with a limit of `total` and no leases.
    pub fn new(total: Held) -> Self {
        Self {
            total,
            live: BTreeMap::new(),
            exhausted: false,
        }
    }

    /// Resources of all live leases. May exceed the limit, because several nodes may grant at the same time.
    pub fn held(&self) -> Held {
        self.live.values().fold(Held::default(), |sum, (_, one)| sum.plus(*one))
    }

    /// Resources of the live leases on one node.
    pub fn held_on(&self, node: &NodeId) -> Held {
        let there = self.live.values().filter(|(on, _)| on == node);
        there.fold(Held::default(), |sum, (_, one)| sum.plus(*one))
    }

    /// Resources that may still be leased.
    pub fn left(&self) -> Held {
        self.total.minus(self.held())
    }

    /// Whether the limit was reached at the last change.
    pub fn is_exhausted(&self) -> bool {
        self.exhausted
    }

    /// Records a lease that a node has started, even beyond the limit. Returns the change to send to nodes, if any.
    pub fn start(&mut self, lease: LeaseId, node: NodeId, held: Held) -> Option<Availability> {
        self.live.insert(lease, (node, held));
        self.change()
    }

    /// Records the end of a lease. Returns the change to send to nodes, if any.
    pub fn end(&mut self, lease: &LeaseId) -> Option<Availability> {
        self.live.remove(lease)?;
        self.change()
    }

    fn change(&mut self) -> Option<Availability> {
        let left = self.left();
        let exhausted = left.workers == 0
            || left.cores == MilliCores::ZERO
            || (self.total.memory_bytes > 0 && left.memory_bytes == 0);
        if std::mem::replace(&mut self.exhausted, exhausted) == exhausted {
            return None;
        }
        Some(if exhausted {
            Availability::Exhausted
        } else {
            Availability::Room
        })
    }
}

/// The nodes that a client may try, and those that it leaves alone for now.
#[derive(Debug, Clone, Default)]
pub struct Candidates {
    nodes: Vec<(NodeId, Capacity)>,
    /// When each resting node may be asked again, in milliseconds.
    resting: HashMap<NodeId, u64>,
}

impl Candidates {
    /// Replaces the list with the manager's latest one, best first. A resting node whose entry changed may be asked
    /// again.
    pub fn update(&mut self, nodes: Vec<(NodeId, Capacity)>) {
        let known: HashMap<_, _> = std::mem::replace(&mut self.nodes, nodes).into_iter().collect();
        // A list may have been under way while a node filled up, so only a changed entry counts as an update.
        for (node, free) in &self.nodes {
            if known.get(node) != Some(free) {
                self.resting.remove(node);
            }
        }
    }

    /// Returns the nodes to ask in this round, each once: first those with enough free resources, then the others, both
    /// in random order.
    pub fn round(&mut self, request: &LeaseRequest, random: u64, now_ms: u64) -> Vec<NodeId> {
        self.resting.retain(|_, until| *until > now_ms);
        let may = |node: &NodeId| !self.resting.contains_key(node) && request.node.is_none_or(|wanted| wanted == *node);
        let mut nodes: Vec<(bool, u64, NodeId)> = self
            .nodes
            .iter()
            .filter(|(node, _)| may(node))
            .enumerate()
            .map(|(index, (node, free))| (mode_on(request, *free).is_none(), mix(random ^ index as u64), *node))
            .collect();
        nodes.sort_unstable();
        nodes.into_iter().map(|(_, _, node)| node).collect()
    }

    /// Records that a node had no room.
    pub fn full(&mut self, node: NodeId, now_ms: u64) {
        self.resting.insert(node, now_ms.saturating_add(FULL_FOR_MS));
    }

    /// Records that a node could not be reached.
    pub fn gone(&mut self, node: NodeId, now_ms: u64) {
        self.resting.insert(node, now_ms.saturating_add(GONE_FOR_MS));
    }

    /// Returns when the next resting node may be asked again, in milliseconds, or `None` if no node rests.
    pub fn next_at(&self) -> Option<u64> {
        self.resting.values().min().copied()
    }
}

/// Returns the pause in milliseconds after this many rounds without success. Doubles up to [`LONGEST_PAUSE_MS`]; half
/// of it is random, so that clients do not retry together.
pub fn pause_ms(rounds: u32, random: u64) -> u64 {
    let longest = (FIRST_PAUSE_MS << rounds.min(10)).min(LONGEST_PAUSE_MS);
    longest / 2 + random % (longest / 2 + 1)
}

/// Returns a pseudorandom number derived from `number`: a step of SplitMix64 (Steele, Lea and Flood).
pub fn mix(number: u64) -> u64 {
    let mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use dayfly_protocol::api::Mode;
    use dayfly_protocol::ids::PublicKey;
    use proptest::prelude::*;

    use super::*;

    fn node(number: u8) -> NodeId {
        NodeId([number; 16])
    }

    fn held(workers: u32) -> Held {
        Held {
            leases: 1,
            workers,
            cores: workers.into(),
            memory_bytes: 0,
        }
    }

    fn free(workers: u16) -> Capacity {
        Capacity {
            cores: 0,
            workers: workers.into(),
            memory_bytes: u64::MAX,
            gpus: 0,
        }
    }

    fn request() -> LeaseRequest {
        LeaseRequest::native(2, Mode::Warm, 1000, PublicKey([0; 32]))
    }

    #[test]
    fn node_distinguishes_too_large_from_no_capacity() {
        let cap = held(4);
        assert!(within_cap(&cap, &held(1), &held(3)).is_ok());
        assert_eq!(within_cap(&cap, &held(2), &held(3)).unwrap_err().code, Code::NoCapacity);
        assert_eq!(within_cap(&cap, &held(0), &held(5)).unwrap_err().code, Code::TooLarge);
    }

    #[test]
    fn allowance_counts_thousandths_of_cores() {
        let cores = |thousandths| Held {
            cores: MilliCores::new(thousandths),
            ..Held::default()
        };
        assert!(within_cap(&cores(1_000), &cores(750), &cores(250)).is_ok());
        let refused = within_cap(&cores(1_000), &cores(750), &cores(251)).unwrap_err();
        assert!(refused.message.contains("0.75 cores are leased here"), "{refused}");
    }

    #[test]
    fn exhaustion_and_room_are_each_reported_once() {
        let mut ledger = AllowanceLedger::new(held(4));
        let lease = |number| LeaseId([number; 16]);
        assert_eq!(ledger.start(lease(1), node(1), held(3)), None);
        assert_eq!(ledger.start(lease(2), node(2), held(2)), Some(Availability::Exhausted));
        assert_eq!(ledger.start(lease(3), node(3), held(1)), None);
        assert_eq!((ledger.held().workers, ledger.left().workers), (6, 0));
        assert_eq!(ledger.held_on(&node(2)).workers, 2);
        assert_eq!(ledger.end(&lease(3)), None);
        assert_eq!(ledger.end(&lease(1)), Some(Availability::Room));
        assert_eq!(ledger.end(&lease(1)), None, "it ended before");
    }

    #[test]
    fn nodes_with_room_come_first_in_random_order() {
        let mut candidates = Candidates::default();
        let list = (0..10)
            .map(|number| (node(number), free(if number < 4 { 2 } else { 1 })))
            .collect();
        candidates.update(list);
        let mut first = BTreeSet::new();
        for random in 0..200 {
            let round = candidates.round(&request(), mix(random), 0);
            let distinct: BTreeSet<_> = round.iter().collect();
            assert_eq!(
                (round.len(), distinct.len()),
                (10, 10),
                "nobody is asked twice in a round"
            );
            assert!(round[..4].iter().all(|node| node.0[0] < 4));
            first.insert(round[0]);
        }
        assert_eq!(first.len(), 4);
    }

    #[test]
    fn full_nodes_rest_until_an_update_reports_room() {
        let mut candidates = Candidates::default();
        candidates.update(vec![(node(1), free(2)), (node(2), free(2))]);
        candidates.full(node(1), 0);
        assert_eq!(candidates.round(&request(), 7, 10), [node(2)]);
        // An unchanged list is no update.
        candidates.update(vec![(node(1), free(2)), (node(2), free(2))]);
        assert_eq!(candidates.round(&request(), 7, 20), [node(2)]);
        candidates.update(vec![(node(1), free(1)), (node(2), free(2))]);
        assert_eq!(candidates.round(&request(), 7, 30).len(), 2);
        candidates.full(node(1), 40);
        assert_eq!(candidates.next_at(), Some(40 + FULL_FOR_MS));
        assert_eq!(candidates.round(&request(), 7, 40 + FULL_FOR_MS).len(), 2);
    }

    proptest! {
        #[test]
        fn pauses_grow_within_their_bounds(rounds in 0..100u32, random: u64) {
            let pause = pause_ms(rounds, random);
            prop_assert!((FIRST_PAUSE_MS / 2..=LONGEST_PAUSE_MS).contains(&pause));
            prop_assert!(rounds < 8 || pause >= LONGEST_PAUSE_MS / 2);
        }

        #[test]
        fn left_and_held_add_up_to_the_total(sizes in prop::collection::vec(1..5u32, 0..20)) {
            let mut ledger = AllowanceLedger::new(held(10));
            for (number, size) in sizes.iter().enumerate() {
                ledger.start(LeaseId([number as u8; 16]), node(0), held(*size));
                let sum: u32 = sizes[..=number].iter().sum();
                prop_assert_eq!(ledger.is_exhausted(), sum >= 10);
                prop_assert_eq!(ledger.left().workers, 10u32.saturating_sub(sum));
            }
        }
    }
}
