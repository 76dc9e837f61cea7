use proptest::prelude::*;

use super::division::{Local, Route, divide, remote_seconds};
use super::{Completion, MAX_FUNCTIONS, Planner, Reason};

fn time() -> impl Strategy<Value = f64> {
    (-8.0..0.0f64).prop_map(|power| 10f64.powf(power))
}

fn route() -> impl Strategy<Value = Route> {
    (0u32..3, time(), time(), time(), time(), time(), time()).prop_map(
        |(link, overhead, latency, transfer, gap, run, margin)| Route {
            link,
            overhead: overhead / 100.0,
            latency,
            transfer,
            gap,
            run,
            margin,
        },
    )
}

fn local() -> impl Strategy<Value = Local> {
    (0u64..100_000, time(), 1u32..9).prop_map(|(calls, seconds, threads)| Local {
        calls,
        seconds,
        threads,
    })
}

fn sent(local: Local, routes: &[Route]) -> u64 {
    divide(local, routes).remote.iter().sum()
}

proptest! {
    #[test]
    fn predicted_wait_is_never_positive(local in local(), routes in prop::collection::vec(route(), 0..12)) {
        let division = divide(local, &routes);
        prop_assert_eq!(division.local + division.remote.iter().sum::<u64>(), local.calls);
        prop_assert_eq!(division.remote.len(), routes.len());
        prop_assert!(division.remote_seconds <= division.local_seconds * (1.0 + 1e-9));
        prop_assert_eq!(division.remote_seconds, remote_seconds(&routes, &division.remote));
    }

    #[test]
    fn remote_share_grows_with_bandwidth(
        local in local(), routes in prop::collection::vec(route(), 1..8), faster in 1.0..20.0f64
    ) {
        let improved: Vec<Route> =
            routes.iter().map(|route| Route { transfer: route.transfer / faster, ..*route }).collect();
        prop_assert!(sent(local, &improved) >= sent(local, &routes));
    }

    #[test]
    fn remote_share_falls_with_latency(
        local in local(), routes in prop::collection::vec(route(), 1..8), longer in 1.0..20.0f64
    ) {
        let worse: Vec<Route> = routes.iter().map(|route| Route { latency: route.latency * longer, ..*route }).collect();
        prop_assert!(sent(local, &worse) <= sent(local, &routes));
    }

    #[test]
    fn one_more_call_would_be_late(local in local(), route in route()) {
        let division = divide(local, &[route]);
        let more = division.remote[0] + 1;
        if more < local.calls && local.seconds > 2.0 * route.overhead {
            let rest = (local.calls - more) as f64 * local.seconds + 2.0 * route.overhead * more as f64;
            let shared = 2.0 * (route.latency + route.overhead) + more as f64 * route.transfer;
            prop_assert!(route.finish(more).max(shared) > rest / f64::from(local.threads) * (1.0 - 1e-9));
        }
    }

    #[test]
    fn nonsense_times_give_a_whole_split(
        records in prop::collection::vec((any::<bool>(), any::<f64>(), any::<f64>(), any::<f64>(), any::<u64>()), 0..40),
        calls in any::<u64>(), bytes in any::<u64>(), threads in any::<u32>()
    ) {
        let mut planner = Planner::new();
        planner.set_workers(3);
        for (index, (is_local, one, two, three, size)) in records.into_iter().enumerate() {
            if is_local {
                planner.record_local(7, size, calls, one);
            } else {
                let completion = Completion {
                    channel: (index % 2 == 0).then_some(index as u32 % 5),
                    submitted: one,
                    overhead: Some(three),
                    ended: two,
                    run: (index % 3 == 0).then_some(three),
                    is_exact: index % 4 != 0,
                };
                planner.record_remote(7, size, completion);
            }
            let split = planner.split(7, size, calls, threads);
            prop_assert!(split.local_seconds.is_finite() && split.remote_seconds.is_finite());
        }
        let split = planner.split(7, bytes, calls, threads);
        prop_assert_eq!(split.local + split.remote_total(), calls.min(super::MAX_CALLS));
        prop_assert!(split.remote_seconds <= split.local_seconds * (1.0 + 1e-9));
    }
}

#[test]
fn unusable_routes_get_no_calls() {
    let good = Route {
        link: 0,
        overhead: 0.0,
        latency: 1e-5,
        transfer: 0.0,
        gap: 0.0,
        run: 1e-3,
        margin: 0.0,
    };
    let work = Local {
        calls: 100,
        seconds: 1e-3,
        threads: 1,
    };
    for nonsense in [f64::NAN, f64::INFINITY, -1.0] {
        let division = divide(
            work,
            &[
                good,
                Route { run: nonsense, ..good },
                Route {
                    latency: nonsense,
                    ..good
                },
            ],
        );
        assert_eq!(division.remote[1..], [0, 0]);
        assert!(division.remote[0] > 40);
    }
}

#[test]
fn a_shared_link_limits_all_its_routes() {
    let route = Route {
        link: 0,
        overhead: 0.0,
        latency: 0.0,
        transfer: 1e-3,
        gap: 0.0,
        run: 1e-3,
        margin: 0.0,
    };
    let work = Local {
        calls: 1000,
        seconds: 1e-3,
        threads: 1,
    };
    let shared = sent(work, &[route; 4]);
    let apart: Vec<Route> = (0..4).map(|link| Route { link, ..route }).collect();
    assert!(sent(work, &apart) >= 790, "{}", sent(work, &apart));
    assert!((490..=500).contains(&shared), "{shared}");
    assert_eq!(shared, sent(work, &[route]) + 1, "the link is full with one route");
}

/// A pool of workers on a simulated network.
struct Pool {
    workers: u32,
    round_trip: f64,
    local: f64,
    remote: f64,
    now: f64,
}

impl Pool {
    /// Runs a step as `split` says, and returns how long it took.
    fn step(&mut self, planner: &mut Planner, calls: u64) -> f64 {
        let split = planner.split(1, 1000, calls, 1);
        let sent = split.remote_total();
        let mut last: f64 = 0.0;
        for index in 0..sent {
            let turn = index / u64::from(self.workers) + 1;
            let ended = self.round_trip + turn as f64 * self.remote;
            planner.record_remote(
                1,
                1000,
                Completion {
                    channel: None,
                    submitted: self.now,
                    overhead: Some(1e-7),
                    ended: self.now + ended,
                    run: None,
                    is_exact: true,
                },
            );
            last = last.max(ended);
        }
        let own = split.local as f64 * self.local;
        planner.record_local(1, 1000, split.local, own);
        self.now += own.max(last) + 1e-3;
        own.max(last)
    }
}

#[test]
fn steps_approach_the_best_division() {
    let mut planner = Planner::new();
    planner.set_workers(3);
    let mut pool = Pool {
        workers: 3,
        round_trip: 50e-6,
        local: 1e-3,
        remote: 1e-3,
        now: 0.0,
    };
    for _ in 0..5 {
        pool.step(&mut planner, 100);
    }
    let took = pool.step(&mut planner, 100);
    assert!(took < 0.027, "{took}: 25 ms would be perfect");
}

#[test]
fn slow_workers_get_fewer_calls() {
    let mut planner = Planner::new();
    planner.set_workers(1);
    let mut pool = Pool {
        workers: 1,
        round_trip: 50e-6,
        local: 1e-3,
        remote: 4e-3,
        now: 0.0,
    };
    for _ in 0..10 {
        pool.step(&mut planner, 100);
    }
    let took = pool.step(&mut planner, 100);
    assert!(took < 0.084, "{took}: 80 ms would be perfect");
}

#[test]
fn a_full_cluster_computes_everything_locally() {
    let mut planner = Planner::new();
    planner.record_local(1, 8, 10, 0.01);
    let split = planner.split(1, 8, 1000, 2);
    assert_eq!(
        (split.local, split.remote_total(), split.reason),
        (1000, 0, Reason::NoChannels)
    );
    assert!((split.local_seconds - 0.5).abs() < 1e-9);
}

#[test]
fn unknown_channels_get_a_few_calls() {
    let mut planner = Planner::new();
    planner.set_workers(20);
    assert_eq!(planner.split(1, 8, 1, 1).remote_total(), 0, "one call stays");
    let split = planner.split(1, 8, 80, 1);
    assert_eq!((split.local, split.probes, split.reason), (70, 10, Reason::Unknown));
    assert_eq!(planner.split(1, 8, 4, 1).remote_total(), 1);
}

#[test]
fn losing_channels_are_tried_seldom() {
    let mut planner = Planner::new();
    planner.set_workers(1);
    // A step has 1 ms of work, and a call takes 10 ms.
    let mut pool = Pool {
        workers: 1,
        round_trip: 10e-3,
        local: 10e-6,
        remote: 10e-6,
        now: 0.0,
    };
    pool.step(&mut planner, 100);
    let mut together = 0.0;
    let mut sent = 0;
    for _ in 0..5_000 {
        let took = pool.step(&mut planner, 100);
        together += took;
        sent += usize::from(took > 5e-3);
    }
    assert!(sent > 2, "the channel is never tried again");
    assert!(together < 5_000.0 * 1e-3 * 1.02, "{together}");
    // It recovers.
    pool.round_trip = 10e-6;
    for _ in 0..5_000 {
        pool.step(&mut planner, 100);
    }
    assert!(pool.step(&mut planner, 100) < 0.6e-3);
}

#[test]
fn calls_that_are_always_in_time_become_more() {
    let mut planner = Planner::new();
    planner.set_workers(1);
    let mut now = 0.0;
    let mut shares = Vec::new();
    for _ in 0..40 {
        let split = planner.split(1, 8, 100, 1);
        let took = split.local as f64 * 1e-3;
        for _ in 0..split.remote_total() {
            planner.record_remote(
                1,
                8,
                Completion {
                    channel: None,
                    submitted: now,
                    overhead: None,
                    ended: now + took,
                    run: None,
                    is_exact: false,
                },
            );
        }
        planner.record_local(1, 8, split.local, took);
        shares.push(split.remote_total());
        now += took + 1e-3;
    }
    assert!(*shares.last().unwrap() >= 30, "{shares:?}");
}

#[test]
fn memory_is_bounded() {
    let mut planner = Planner::new();
    planner.set_workers(u32::MAX);
    assert_eq!(planner.channels(), 4096);
    planner.set_workers(1);
    for function in 0..10_000 {
        planner.record_local(function, function, 1, 1.0);
    }
    assert!(planner.functions.len() <= MAX_FUNCTIONS);
    assert!(planner.local(9_999, 9_999).is_some());
}

#[test]
fn ends_seen_together_do_not_look_fast() {
    let mut planner = Planner::new();
    planner.set_workers(1);
    planner.record_local(1, 8, 100, 0.1);
    // A call takes 1 ms; the program looks each 10 ms.
    for step in 1..20 {
        let now = f64::from(step);
        for call in 1..=20 {
            let looked = (f64::from(call) / 10.0).ceil() * 10e-3;
            planner.record_remote(
                1,
                8,
                Completion {
                    channel: None,
                    submitted: now,
                    overhead: Some(1e-6),
                    ended: now + looked + f64::from(call) * 1e-6,
                    run: None,
                    is_exact: true,
                },
            );
        }
        planner.split(1, 8, 100, 1);
    }
    let run = planner.estimates(1, 8)[0].run.unwrap();
    assert!((0.5e-3..1.1e-3).contains(&run), "{run}");
}
