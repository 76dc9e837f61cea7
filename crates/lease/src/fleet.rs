//! Growth and shrinkage of a fleet: leases on many nodes that serve one queue.
//!
//! A fleet grows while calls wait, at most by doubling, and gives back whole leases whose workers have been idle. A
//! refused request is halved, because a node may have room for a part; a refused single worker makes the fleet wait,
//! each time longer.

use crate::allowance::pause_ms;

/// Most requests for leases at the same time.
const MAX_REQUESTS: usize = 4;

/// Bounds and times of a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Workers that the fleet holds also when it has no calls.
    pub min: u32,
    /// Most workers, with those that it is about to give back.
    pub max: u32,
    /// Most workers of one lease; at least 1.
    pub lease_workers: u16,
    /// How long calls must have waited before the fleet grows, in milliseconds.
    pub patience_ms: u64,
    /// How long all workers of a lease must have been idle before it is given back, in milliseconds.
    pub idle_ms: u64,
}

/// A lease of a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldLease {
    /// The fleet's number for it.
    pub key: u64,
    /// Workers that are not lost.
    pub workers: u16,
    /// How long all its workers have been idle; `None` while one of them has a call or is being opened.
    pub idle_ms: Option<u64>,
    /// Whether it is about to be given back: it gets no more calls.
    pub is_retiring: bool,
}

/// What a fleet has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Request a lease of so many workers. [`Planner::on_granted`] or [`Planner::on_refused`] must follow.
    Request {
        /// Number of workers.
        workers: u16,
    },
    /// Send this lease no more calls, and release it when its calls have ended.
    GiveBack {
        /// The lease.
        key: u64,
    },
}

/// Decides what a fleet leases and gives back.
#[derive(Debug, Clone)]
pub struct Planner {
    bounds: Bounds,
    /// Workers of requests without a response.
    requested: u32,
    /// Number of these requests.
    requests: usize,
    /// Workers of the next request at most.
    next_size: u16,
    /// Refused requests for one worker in a row.
    refusals: u32,
    /// No request before this time.
    pause_until_ms: u64,
    /// Since when more calls than workers have been there; `None` if there are not.
    backlog_since_ms: Option<u64>,
}

impl Planner {
    /// A planner of a fleet without leases.
    pub fn new(bounds: Bounds) -> Self {
        let bounds = Bounds {
            max: bounds.max.max(bounds.min),
            lease_workers: bounds.lease_workers.max(1),
            ..bounds
        };
        Self {
            bounds,
            requested: 0,
            requests: 0,
            next_size: bounds.lease_workers,
            refusals: 0,
            pause_until_ms: 0,
            backlog_since_ms: None,
        }
    }

    /// Workers of requests without a response.
    pub fn requested(&self) -> u32 {
        self.requested
    }

    /// Whether the fleet holds or has requested all workers that it may.
    pub fn is_full(&self, held: &[HeldLease]) -> bool {
        self.room(held) == 0
    }

    /// Returns what to do now. `calls` is the number of calls that have not ended, and `held` the leases of the fleet.
    pub fn plan(&mut self, now_ms: u64, calls: usize, held: &[HeldLease]) -> Vec<Step> {
        let serving: u32 = serving(held).map(|lease| u32::from(lease.workers)).sum();
        let calls = u32::try_from(calls).unwrap_or(u32::MAX);
        let wanted = self.wanted(now_ms, calls, serving);
        let lacking = wanted.saturating_sub(serving.saturating_add(self.requested));
        if lacking > 0 {
            return self.requests(now_ms, lacking.min(self.room(held)));
        }
        match calls > serving || self.requested > 0 {
            true => Vec::new(),
            false => self.surplus(serving, held),
        }
    }

    /// Number of workers that the fleet should have.
    fn wanted(&mut self, now_ms: u64, calls: u32, serving: u32) -> u32 {
        let Bounds { min, patience_ms, .. } = self.bounds;
        if calls <= serving {
            self.backlog_since_ms = None;
            return min;
        }
        if serving == 0 {
            // Nothing to wait for.
            return min.max(1);
        }
        let since = *self.backlog_since_ms.get_or_insert(now_ms);
        if now_ms.saturating_sub(since) < patience_ms || self.requested > 0 {
            return min;
        }
        self.backlog_since_ms = Some(now_ms);
        min.max(serving.saturating_add((calls - serving).min(serving)))
    }

    /// Number of workers that may be requested.
    fn room(&self, held: &[HeldLease]) -> u32 {
        let all: u32 = held.iter().map(|lease| u32::from(lease.workers)).sum();
        self.bounds.max.saturating_sub(all.saturating_add(self.requested))
    }

    fn requests(&mut self, now_ms: u64, mut workers: u32) -> Vec<Step> {
        let mut steps = Vec::new();
        if now_ms < self.pause_until_ms {
            return steps;
        }
        while workers > 0 && self.requests < MAX_REQUESTS {
            let size = workers.min(self.next_size.into()) as u16;
            workers -= u32::from(size);
            self.requested += u32::from(size);
            self.requests += 1;
            steps.push(Step::Request { workers: size });
        }
        steps
    }

    /// Leases to give back, the one that has been idle longest first.
    fn surplus(&self, serving_workers: u32, held: &[HeldLease]) -> Vec<Step> {
        let mut idle: Vec<_> = serving(held)
            .filter_map(|lease| Some((lease.idle_ms?, lease)))
            .filter(|(idle_ms, _)| *idle_ms >= self.bounds.idle_ms)
            .collect();
        idle.sort_by_key(|(idle_ms, lease)| (std::cmp::Reverse(*idle_ms), lease.key));
        let mut left = serving_workers;
        let mut steps = Vec::new();
        for (_, lease) in idle {
            let workers = u32::from(lease.workers);
            if left.saturating_sub(workers) >= self.bounds.min {
                left -= workers;
                steps.push(Step::GiveBack { key: lease.key });
            }
        }
        steps
    }

    /// Records the end of a request for `requested` workers that was granted.
    pub fn on_granted(&mut self, requested: u16) {
        self.on_response(requested);
        self.refusals = 0;
        self.pause_until_ms = 0;
        self.next_size = self.next_size.saturating_mul(2).min(self.bounds.lease_workers);
    }

    /// Records the end of a request for `requested` workers that was refused or failed.
    pub fn on_refused(&mut self, now_ms: u64, requested: u16, random: u64) {
        self.on_response(requested);
        if requested > 1 {
            self.next_size = self.next_size.min(requested / 2).max(1);
            return;
        }
        self.next_size = 1;
        self.pause_until_ms = now_ms.saturating_add(pause_ms(self.refusals, random));
        self.refusals = self.refusals.saturating_add(1);
    }

    fn on_response(&mut self, requested: u16) {
        self.requested = self.requested.saturating_sub(requested.into());
        self.requests = self.requests.saturating_sub(1);
    }
}

fn serving(held: &[HeldLease]) -> impl Iterator<Item = &HeldLease> {
    held.iter().filter(|lease| !lease.is_retiring)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOUNDS: Bounds = Bounds {
        min: 0,
        max: 8,
        lease_workers: 4,
        patience_ms: 10,
        idle_ms: 1000,
    };

    fn held(key: u64, workers: u16, idle_ms: Option<u64>) -> HeldLease {
        HeldLease {
            key,
            workers,
            idle_ms,
            is_retiring: false,
        }
    }

    fn requested(steps: &[Step]) -> u32 {
        let workers = steps.iter().map(|step| match step {
            Step::Request { workers } => u32::from(*workers),
            Step::GiveBack { .. } => 0,
        });
        workers.sum()
    }

    #[test]
    fn first_call_requests_a_worker_at_once() {
        let mut planner = Planner::new(BOUNDS);
        assert_eq!(planner.plan(0, 0, &[]), []);
        assert_eq!(planner.plan(0, 100, &[]), [Step::Request { workers: 1 }]);
        assert_eq!(planner.plan(5, 100, &[]), []);
    }

    #[test]
    fn minimum_is_requested_without_calls() {
        let mut planner = Planner::new(Bounds { min: 6, ..BOUNDS });
        let steps = planner.plan(0, 0, &[]);
        assert_eq!(steps, [Step::Request { workers: 4 }, Step::Request { workers: 2 }]);
    }

    #[test]
    fn short_backlog_does_not_grow() {
        let mut planner = Planner::new(BOUNDS);
        let one = [held(1, 1, None)];
        assert_eq!(planner.plan(0, 9, &one), []);
        assert_eq!(planner.plan(9, 1, &one), []);
        assert_eq!(planner.plan(12, 9, &one), []);
        assert_eq!(planner.plan(22, 9, &one), [Step::Request { workers: 1 }]);
    }

    #[test]
    fn refused_request_is_halved_then_delayed() {
        let mut planner = Planner::new(Bounds { min: 4, ..BOUNDS });
        assert_eq!(planner.plan(0, 0, &[]), [Step::Request { workers: 4 }]);
        planner.on_refused(0, 4, 0);
        let halves = planner.plan(0, 0, &[]);
        assert_eq!(halves, [Step::Request { workers: 2 }, Step::Request { workers: 2 }]);
        planner.on_refused(0, 2, 0);
        planner.on_granted(2);
        // The part that was granted stays, and the rest is requested in smaller pieces.
        let part = [held(1, 2, None)];
        assert_eq!(planner.plan(0, 0, &part), [Step::Request { workers: 2 }]);
        planner.on_refused(0, 2, 0);
        let ones = planner.plan(0, 0, &part);
        assert_eq!(ones, [Step::Request { workers: 1 }, Step::Request { workers: 1 }]);
        planner.on_refused(0, 1, 0);
        planner.on_refused(0, 1, 0);
        assert_eq!(planner.plan(0, 0, &part), []);
        assert_ne!(planner.plan(10_000, 0, &part), []);
    }

    #[test]
    fn lease_idle_longest_is_given_back_first() {
        let mut planner = Planner::new(Bounds { min: 2, ..BOUNDS });
        let leases = [held(1, 2, Some(1500)), held(2, 2, Some(3000)), held(3, 1, Some(10))];
        let steps = planner.plan(0, 1, &leases);
        assert_eq!(steps, [Step::GiveBack { key: 2 }, Step::GiveBack { key: 1 }][..1]);
    }

    #[test]
    fn lost_workers_are_replaced() {
        let mut planner = Planner::new(Bounds { min: 2, ..BOUNDS });
        assert_eq!(planner.plan(0, 0, &[held(1, 0, None)]), [Step::Request { workers: 2 }]);
    }

    proptest! {
        #[test]
        fn fleet_never_exceeds_its_bounds(
            min in 0..6u32, more in 0..10u32, lease_workers in 1..5u16,
            moments in proptest::collection::vec((0..50u64, 0..40usize, any::<u64>()), 1..80),
        ) {
            let bounds = Bounds { min, max: min + more, lease_workers, ..BOUNDS };
            let mut planner = Planner::new(bounds);
            let (mut now, mut next_key) = (0, 0);
            let mut leases: Vec<HeldLease> = Vec::new();
            let mut waiting: Vec<u16> = Vec::new();
            for (pause, calls, choice) in moments {
                now += pause;
                let before = planner.pause_until_ms;
                let steps = planner.plan(now, calls, &leases);
                let asked = requested(&steps);
                prop_assert!(asked == 0 || now >= before, "a request during the pause");
                let all: u32 = leases.iter().map(|lease| u32::from(lease.workers)).sum();
                prop_assert!(asked == 0 || all + planner.requested() <= bounds.max);
                let is_mixed = asked > 0 && steps.iter().any(|step| matches!(step, Step::GiveBack { .. }));
                prop_assert!(!is_mixed, "a request and a return in one plan");
                for step in steps {
                    match step {
                        Step::Request { workers } => {
                            prop_assert!((1..=lease_workers).contains(&workers));
                            waiting.push(workers);
                        }
                        Step::GiveBack { key } => {
                            let lease = leases.iter_mut().find(|lease| lease.key == key).unwrap();
                            prop_assert!(!lease.is_retiring && lease.idle_ms >= Some(bounds.idle_ms));
                            lease.is_retiring = true;
                            let left: u32 = serving(&leases).map(|lease| u32::from(lease.workers)).sum();
                            prop_assert!(left >= min);
                        }
                    }
                }
                prop_assert!(planner.requests <= MAX_REQUESTS);
                prop_assert_eq!(planner.requested(), waiting.iter().map(|workers| u32::from(*workers)).sum::<u32>());
                match (choice % 5, waiting.is_empty()) {
                    (0 | 1, false) => {
                        let workers = waiting.remove(0);
                        planner.on_granted(workers);
                        leases.push(held(next_key, workers, None));
                        next_key += 1;
                    }
                    (2, false) => planner.on_refused(now, waiting.remove(0), choice),
                    (3, _) => leases.retain(|lease| !lease.is_retiring),
                    _ => {
                        for lease in &mut leases {
                            lease.idle_ms = (choice % 2 == 0).then_some(choice % 3000);
                        }
                    }
                }
            }
        }

        #[test]
        fn fleet_reaches_its_demand_and_shrinks_again(max in 1..200u32, lease_workers in 1..9u16, calls in 1..400usize) {
            let bounds = Bounds { max, lease_workers, ..BOUNDS };
            let mut planner = Planner::new(bounds);
            let mut leases = Vec::new();
            let wanted = u32::min(max, calls as u32);
            let mut now = 0;
            let workers = |leases: &[HeldLease]| leases.iter().map(|lease| u32::from(lease.workers)).sum::<u32>();
            while workers(&leases) < wanted {
                now += bounds.patience_ms;
                prop_assert!(now < 200 * bounds.patience_ms, "no growth");
                for step in planner.plan(now, calls, &leases) {
                    let Step::Request { workers } = step else { continue };
                    planner.on_granted(workers);
                    leases.push(held(now + leases.len() as u64, workers, None));
                }
            }
            prop_assert_eq!(workers(&leases), wanted);
            for lease in &mut leases {
                lease.idle_ms = Some(bounds.idle_ms);
            }
            prop_assert_eq!(planner.plan(now, 0, &leases).len(), leases.len());
        }

        #[test]
        fn pause_is_bounded_and_ends(refusals in 1..100u32, random in any::<u64>()) {
            let mut planner = Planner::new(BOUNDS);
            for _ in 0..refusals {
                planner.pause_until_ms = 0;
                prop_assert_eq!(requested(&planner.plan(0, 1, &[])), 1);
                planner.on_refused(0, 1, random);
            }
            prop_assert!(planner.pause_until_ms <= crate::allowance::LONGEST_PAUSE_MS);
            let until = planner.pause_until_ms;
            prop_assert_eq!(requested(&planner.plan(until, 1, &[])), 1);
        }
    }
}
