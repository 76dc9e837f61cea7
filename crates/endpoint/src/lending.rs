//! What the site's nodes could lend to tasks, as this dispatcher expects it: by their last heartbeats, less what tasks that
//! the dispatcher gave to their workers since will borrow.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dayfly_harvest::{Amount, Claim, ExpectedPools, Spare, Want};
use dayfly_protocol::dispatch::Attempt;
use dayfly_protocol::executor::MIN_LONG_CALL_US;
use dayfly_protocol::ids::NodeId;

/// How old the reports may be that choices use. Nodes send one every two seconds.
const REFRESH: Duration = Duration::from_millis(250);
/// Time from when a worker is given a task until the node's pools show it, in microseconds: nodes report the pools of their
/// last window of 100 ms.
const TRANSIT_US: u64 = 150_000;
/// Tasks on a node that are counted between two heartbeats. Further ones are not counted: loans are smaller.
const MAX_CLAIMS: usize = 256;

/// What one node of the site last reported that it could lend.
#[derive(Debug, Clone)]
pub struct LendingNode {
    /// The node.
    pub node: NodeId,
    /// When its heartbeat arrived.
    pub at: Instant,
    /// The pools of what running calls own.
    pub spare: Spare,
    /// What nobody owns and nobody has borrowed.
    pub unowned: Amount,
}

/// Returns the nodes of the site that lend now.
pub type LendingNodes = Box<dyn Fn() -> Vec<LendingNode> + Send + Sync>;

/// What is expected of all nodes.
pub struct Lending {
    source: LendingNodes,
    /// Zero of the times of pools.
    origin: Instant,
    is_any: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    read_at: Option<Instant>,
    nodes: HashMap<NodeId, Reported>,
}

struct Reported {
    at: Instant,
    pools: ExpectedPools<Attempt>,
}

impl Lending {
    /// Nothing is read before the first choice.
    pub fn new(source: LendingNodes) -> Self {
        Self {
            source,
            origin: Instant::now(),
            is_any: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the reports again if they are too old. Returns whether any node lends.
    pub fn refresh(&self, now: Instant) -> bool {
        let mut state = self.state();
        let is_fresh = |at: Instant| now.saturating_duration_since(at) < REFRESH;
        if !state.read_at.is_some_and(is_fresh) {
            state.read_at = Some(now);
            let lending = (self.source)();
            state
                .nodes
                .retain(|node, _| lending.iter().any(|one| one.node == *node));
            for one in lending {
                self.report(&mut state, &one);
            }
            self.is_any.store(!state.nodes.is_empty(), Ordering::Relaxed);
        }
        self.is_any()
    }

    /// Whether any node lent at the last look.
    pub fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Relaxed)
    }

    fn report(&self, state: &mut State, one: &LendingNode) {
        let known = state.nodes.get(&one.node);
        if known.is_some_and(|known| known.at == one.at) {
            return;
        }
        let reported = state.nodes.entry(one.node).or_insert_with(|| Reported {
            at: one.at,
            pools: ExpectedPools::default(),
        });
        reported.at = one.at;
        let at_us = self.us(one.at);
        reported.pools.report(at_us, &one.spare, one.unowned, TRANSIT_US);
    }

    /// How much of what a task wants, which owns `owned`, this node could lend, in hundredths.
    pub fn coverage_percent(&self, now: Instant, node: NodeId, want: &Want, owned: Amount) -> u8 {
        let state = self.state();
        let reported = state.nodes.get(&node);
        reported.map_or(0, |reported| reported.pools.gain_percent(self.us(now), want, owned))
    }

    /// Counts a task that a worker of this node was given.
    pub fn add(&self, now: Instant, node: NodeId, attempt: Attempt, want: &Want, owned: Amount) {
        if let Some(reported) = self.state().nodes.get_mut(&node)
            && reported.pools.claims() < MAX_CLAIMS
        {
            reported.pools.add(attempt, Claim::new(self.us(now), owned, want));
        }
    }

    /// Counts tasks of this node no more.
    pub fn remove(&self, node: NodeId, attempts: &[Attempt]) {
        if let Some(reported) = self.state().nodes.get_mut(&node) {
            for attempt in attempts {
                reported.pools.remove(attempt);
            }
        }
    }

    fn us(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.origin);
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }
}

/// What a task wants above what it owns, by the known mean duration of its function; `None` if it is so short that it never
/// borrows. How many cores it could use is not known here.
pub fn wanted(mean_us: Option<u64>) -> Option<Want> {
    match mean_us {
        None => Some(Want::NOMINAL),
        Some(us) if us < MIN_LONG_CALL_US => None,
        Some(duration_us) => Some(Want {
            duration_us,
            ..Want::NOMINAL
        }),
    }
}

#[cfg(test)]
pub mod tests {
    use std::sync::Arc;

    use dayfly_harvest::Steps;
    use dayfly_protocol::ids::TaskId;

    use super::*;

    pub const OWNED: Amount = Amount::new(1_000, 0);

    pub fn attempt(n: u8) -> Attempt {
        Attempt {
            task: TaskId([n; 16]),
            number: 1,
        }
    }

    /// A node that can lend so much for a minute.
    pub fn lending(node: u8, at: Instant, milli_cores: u64) -> LendingNode {
        LendingNode {
            node: NodeId([node; 16]),
            at,
            spare: Spare {
                cpu: Steps::of_pool(0, [(60_000_000, milli_cores)]),
                memory: Steps::default(),
            },
            unowned: Amount::ZERO,
        }
    }

    fn coverage(lending: &Lending, now: Instant, node: u8) -> u8 {
        lending.coverage_percent(now, NodeId([node; 16]), &Want::NOMINAL, OWNED)
    }

    #[test]
    fn own_tasks_count_until_a_heartbeat_shows_them() {
        let begun = Instant::now();
        let after = |ms| begun + Duration::from_millis(ms);
        let reports = Arc::new(Mutex::new(vec![lending(1, begun, 1_500)]));
        let source = Arc::clone(&reports);
        let lends = Lending::new(Box::new(move || source.lock().unwrap().clone()));
        let node = NodeId([1; 16]);
        assert!(lends.refresh(after(0)));
        assert_eq!((coverage(&lends, after(0), 1), coverage(&lends, after(0), 2)), (100, 0));
        lends.add(after(0), node, attempt(1), &Want::NOMINAL, OWNED);
        assert_eq!(coverage(&lends, after(0), 1), 50);
        // The same report again is no news.
        assert!(lends.refresh(after(300)));
        lends.add(after(300), node, attempt(2), &Want::NOMINAL, OWNED);
        lends.remove(node, &[attempt(2), attempt(3)]);
        assert_eq!(coverage(&lends, after(0), 1), 50);
        *reports.lock().unwrap() = vec![lending(1, after(500), 400)];
        assert!(lends.refresh(after(600)));
        assert_eq!(coverage(&lends, after(600), 1), 40);
        reports.lock().unwrap().clear();
        assert!(lends.refresh(after(700)), "read again only after a while");
        assert!(!lends.refresh(after(900)));
        assert_eq!(coverage(&lends, after(900), 1), 0);
    }

    #[test]
    fn short_functions_want_nothing() {
        assert_eq!(wanted(Some(MIN_LONG_CALL_US - 1)), None);
        assert_eq!(wanted(Some(3_000_000)).unwrap().duration_us, 3_000_000);
        assert_eq!(wanted(None), Some(Want::NOMINAL));
    }
}
