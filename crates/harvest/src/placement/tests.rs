use proptest::prelude::*;

use super::*;
use crate::coverage::Steps;

const GIB: u64 = 1 << 30;

fn amount(cores: u64) -> Amount {
    Amount::new(cores * 1_000, cores * GIB)
}

fn request(function: u64, cores: u64) -> Request {
    Request::new(FunctionId(function), TenantId(0), amount(cores))
}

fn wanting(function: u64, cores: u64, extra_cores: u64, duration_us: u64) -> Request {
    Request {
        want: Want {
            extra: Amount::new(extra_cores * 1_000, 0),
            duration_us,
        },
        ..request(function, cores)
    }
}

fn cluster(kind: SchedulerKind, nodes: u64, cores: u64) -> Scheduler {
    let mut scheduler = Scheduler::new(kind, SchedulerOptions::default());
    for key in 0..nodes {
        scheduler.join(key, amount(cores));
    }
    scheduler
}

fn heartbeat(at_us: u64, cores: u64, entries: &[(u64, u64)]) -> Heartbeat {
    Heartbeat {
        at_us,
        capacity: amount(cores),
        spare: Spare {
            cpu: Steps::of_pool(at_us, entries.iter().copied()),
            memory: Steps::default(),
        },
        unowned: Amount::ZERO,
        warm: Vec::new(),
    }
}

#[test]
fn accelerable_call_goes_where_coverage_is_greatest() {
    let mut scheduler = cluster(SchedulerKind::Dayfly, 3, 32);
    scheduler.heartbeat(10, NodeIndex(0), &heartbeat(10, 32, &[(1_000, 8_000)]));
    scheduler.heartbeat(10, NodeIndex(1), &heartbeat(10, 32, &[(9_000, 3_000)]));
    let call = wanting(1, 1, 2, 5_000);
    assert_eq!(scheduler.place(10, CallId(1), &call), Some(NodeIndex(1)));
    // Of 3 cores one is left there, for the second call of two.
    assert_eq!(scheduler.place(10, CallId(2), &call), Some(NodeIndex(1)));
    assert_eq!(scheduler.place(10, CallId(3), &call), Some(NodeIndex(0)));
}

#[test]
fn unowned_cores_count_beside_the_pools() {
    let mut scheduler = cluster(SchedulerKind::Dayfly, 2, 32);
    let beat = |at_us, entries: &[(u64, u64)], unowned: u64| Heartbeat {
        unowned: Amount::new(unowned, 0),
        ..heartbeat(at_us, 32, entries)
    };
    scheduler.heartbeat(10, NodeIndex(0), &beat(10, &[(9_000, 1_000)], 1_000));
    scheduler.heartbeat(10, NodeIndex(1), &beat(10, &[], 4_000));
    let call = wanting(1, 1, 2, 5_000);
    // Node 0 has one core left beside what the call owns; node 1 has three.
    assert_eq!(scheduler.place(10, CallId(1), &call), Some(NodeIndex(1)));
    scheduler.heartbeat(20_000, NodeIndex(0), &beat(20_000, &[(90_000, 2_000)], 9_000));
    scheduler.heartbeat(20_000, NodeIndex(1), &beat(20_000, &[], 10_000));
    // Both cover all of it. Harvested units are used first.
    assert_eq!(scheduler.place(20_000, CallId(2), &call), Some(NodeIndex(0)));
}

#[test]
fn small_calls_leave_one_share_whole() {
    let options = SchedulerOptions {
        shard: Shard::new(0, 4).unwrap(),
        ..SchedulerOptions::default()
    };
    let mut scheduler = Scheduler::new(SchedulerKind::Dayfly, options);
    for key in 0..4 {
        let index = scheduler.join(key, amount(32));
        let beat = Heartbeat {
            unowned: amount(32),
            ..heartbeat(10, 32, &[])
        };
        scheduler.heartbeat(10, index, &beat);
    }
    // The large call owns all that this scheduler has of a node.
    assert!(scheduler.place(10, CallId(0), &request(0, 8)).is_some());
    for call in 1..=8 {
        assert!(scheduler.place(10, CallId(call), &wanting(1, 1, 1, 1_000)).is_some());
    }
    assert!(scheduler.place(10, CallId(9), &request(0, 8)).is_some());
    assert!(scheduler.place(10, CallId(10), &request(0, 8)).is_some());
}

#[test]
fn warm_node_outweighs_a_cold_start() {
    for (cold_start_us, expected) in [(0, NodeIndex(0)), (1_000, NodeIndex(0)), (5_000, NodeIndex(1))] {
        let options = SchedulerOptions {
            cold_start_us,
            ..SchedulerOptions::default()
        };
        let mut scheduler = Scheduler::new(SchedulerKind::Dayfly, options);
        for (key, cores) in [(0, 2_000), (1, 1_000)] {
            let index = scheduler.join(key, amount(32));
            let warm = if key == 1 { vec![FunctionId(1)] } else { Vec::new() };
            let pool = [(100_000, cores)];
            scheduler.heartbeat(
                10,
                index,
                &Heartbeat {
                    warm,
                    ..heartbeat(10, 32, &pool)
                },
            );
        }
        // Two cores for 5 ms save 10 ms of 15. A start of 5 ms counts as half of that; the difference is 0.45.
        assert_eq!(
            scheduler.place(10, CallId(1), &wanting(1, 1, 2, 5_000)),
            Some(expected),
            "{cold_start_us}"
        );
    }
}

#[test]
fn engine_reports_its_pools_and_unowned_units() {
    use crate::engine::{Begin, Event, Mode};
    use crate::rules::Rules;

    let profiles = crate::Profiles::new(crate::Options::default());
    let mut engine = Engine::new(Rules::default(), Box::new(profiles));
    engine.handle(0, &Event::Mode { mode: Mode::On });
    engine.handle(0, &Event::Capacity { shared: amount(8) });
    engine.handle(
        1,
        &Event::Begin(Begin {
            call: CallId(1),
            tenant: TenantId(0),
            function: FunctionId(1),
            features: crate::Features::default(),
            owned: amount(3),
            lends: true,
            borrows_cpu: true,
            borrows_memory: false,
            group: None,
        }),
    );
    let beat = Heartbeat::of(&engine, 2, amount(8), Vec::new());
    assert_eq!((beat.at_us, beat.capacity, beat.unowned), (2, amount(8), amount(5)));
    assert_eq!(beat.spare, Spare::default());
    let json = serde_json::to_string(&beat).unwrap();
    assert_eq!(serde_json::from_str::<Heartbeat>(&json).unwrap(), beat);
}

#[test]
fn other_calls_stay_together_until_full() {
    let mut scheduler = cluster(SchedulerKind::Dayfly, 4, 4);
    let nodes: Vec<_> = (0..5)
        .map(|call| scheduler.place(0, CallId(call), &request(7, 1)))
        .collect();
    assert!(nodes[..4].iter().all(|node| *node == nodes[0]), "{nodes:?}");
    assert!(nodes[4].is_some() && nodes[4] != nodes[0], "{nodes:?}");
}

#[test]
fn shares_of_all_schedulers_add_up() {
    for count in 1..9 {
        let capacity = Amount::new(32_003, 7);
        let shares = (0..count).map(|index| Shard::new(index, count).unwrap().of(capacity));
        assert_eq!(shares.fold(Amount::ZERO, |sum, share| sum + share), capacity);
    }
    assert!(
        Shard::new(2, 2)
            .unwrap_err()
            .to_string()
            .contains("no scheduler 2 among 2")
    );
    assert!(Shard::new(0, 0).is_err());
}

#[test]
fn equal_nodes_take_turns() {
    for kind in [
        SchedulerKind::Dayfly,
        SchedulerKind::ShortestQueue,
        SchedulerKind::RoundRobin,
    ] {
        let mut scheduler = cluster(kind, 4, 8);
        let calls = 0..64_u64;
        let first: BTreeSet<_> = calls
            .map(|call| {
                let index = scheduler.place(0, CallId(call), &wanting(call, 1, 1, 10)).unwrap();
                scheduler.ended(CallId(call), index);
                index
            })
            .collect();
        assert_eq!(first.len(), 4, "{}", kind.name());
    }
}

#[test]
fn functions_have_different_homes() {
    for kind in [SchedulerKind::Dayfly, SchedulerKind::Hash, SchedulerKind::MinWorkerSet] {
        let mut scheduler = cluster(kind, 4, 32);
        let homes: BTreeSet<_> = (0..64)
            .filter_map(|call| scheduler.place(0, CallId(call), &request(call, 1)))
            .collect();
        assert_eq!(homes.len(), 4, "{}", kind.name());
    }
}

#[test]
fn refusing_node_is_left_out_for_a_while() {
    let mut scheduler = cluster(SchedulerKind::Dayfly, 2, 4);
    let home = scheduler.place(0, CallId(1), &request(1, 2)).unwrap();
    scheduler.refused(0, CallId(1), home);
    assert_eq!(scheduler.reserved(home), Amount::ZERO);
    let other = scheduler.place(0, CallId(1), &request(1, 2)).unwrap();
    assert_ne!(other, home);
    // A late copy of the refusal does not touch the second placement.
    scheduler.refused(0, CallId(1), home);
    assert_eq!(scheduler.reserved(other), amount(2));
    assert_eq!(
        scheduler.place(0, CallId(2), &request(1, 1)),
        Some(home),
        "smaller calls may fit"
    );
    scheduler.heartbeat(9, home, &heartbeat(9, 4, &[]));
    assert_eq!(scheduler.place(9, CallId(3), &request(1, 2)), Some(home));
}

#[test]
fn call_larger_than_a_share_is_not_placeable() {
    let options = SchedulerOptions {
        shard: Shard::new(0, 4).unwrap(),
        ..SchedulerOptions::default()
    };
    let mut scheduler = Scheduler::new(SchedulerKind::Dayfly, options);
    scheduler.join(0, amount(8));
    assert!(scheduler.is_placeable(amount(2)) && !scheduler.is_placeable(amount(3)));
    assert_eq!(scheduler.place(0, CallId(0), &request(0, 3)), None);
}

#[test]
fn placement_reported_after_its_end_leaves_nothing() {
    let mut scheduler = cluster(SchedulerKind::Dayfly, 1, 4);
    scheduler.ended(CallId(1), NodeIndex(0));
    scheduler.placed(0, CallId(1), NodeIndex(0), &request(1, 1));
    assert_eq!((scheduler.calls(), scheduler.reserved(NodeIndex(0))), (0, Amount::ZERO));
    scheduler.placed(0, CallId(2), NodeIndex(0), &request(1, 9));
    assert_eq!(
        scheduler.reserved(NodeIndex(0)),
        amount(9),
        "facts may exceed the share"
    );
    assert_eq!(scheduler.place(0, CallId(3), &request(1, 1)), None);
}

#[test]
fn node_that_left_gets_no_calls() {
    for kind in SchedulerKind::ALL {
        let mut scheduler = cluster(kind, 2, 4);
        scheduler.place(0, CallId(0), &request(0, 1));
        scheduler.leave(NodeIndex(0));
        scheduler.leave(NodeIndex(7));
        for call in 1..4 {
            assert_eq!(scheduler.place(0, CallId(call), &request(call, 1)), Some(NodeIndex(1)));
        }
        assert_eq!(scheduler.join(9, amount(4)), NodeIndex(0), "the number is free");
        assert_eq!(scheduler.join(9, amount(5)), NodeIndex(0), "the node is known");
        assert_eq!(
            (scheduler.share(NodeIndex(0)), scheduler.reserved(NodeIndex(0))),
            (amount(5), Amount::ZERO)
        );
    }
}

#[test]
fn worker_set_widens_under_pressure_and_narrows() {
    let mut scheduler = cluster(SchedulerKind::MinWorkerSet, 4, 10);
    let mut used = Vec::new();
    for call in 0..30 {
        used.push(scheduler.place(0, CallId(call), &request(1, 1)).unwrap());
    }
    assert!(used[..8].iter().all(|index| *index == used[0]), "{used:?}");
    assert_eq!(used.iter().collect::<BTreeSet<_>>().len(), 4);
    for (call, index) in used.iter().enumerate() {
        scheduler.ended(CallId(call as u64), *index);
    }
    let mut after = Vec::new();
    for call in 100..110 {
        let index = scheduler.place(0, CallId(call), &request(1, 1)).unwrap();
        after.push(index);
        scheduler.ended(CallId(call), index);
    }
    assert_eq!(after[5..], [used[0]; 5], "{after:?}");
}

/// What happens to a scheduler. Numbers are taken modulo what there is.
#[derive(Debug, Clone)]
enum Step {
    Place(u64, Request),
    Placed(u64, u32, Request),
    Ended(u64, u32),
    Refused(u64, u32),
    Heartbeat(u32, Heartbeat),
    Join(u64, Amount),
    Leave(u32),
    Wait(u64),
}

fn any_amount() -> impl Strategy<Value = Amount> {
    let some = (0..9_000u64, 0..9u64).prop_map(|(cores, gib)| Amount::new(cores, gib * GIB));
    let any = (any::<u64>(), any::<u64>()).prop_map(|(cores, bytes)| Amount::new(cores, bytes));
    prop_oneof![8 => some, 1 => any, 1 => Just(Amount::ZERO)]
}

fn any_request() -> impl Strategy<Value = Request> {
    (0..6u64, any_amount(), any_amount(), any_amount(), 0..900u64).prop_map(|(function, owned, extra, lends, us)| {
        Request {
            want: Want { extra, duration_us: us },
            lends,
            lends_us: us / 2,
            owned,
            ..request(function, 0)
        }
    })
}

fn any_heartbeat() -> impl Strategy<Value = Heartbeat> {
    let entries = proptest::collection::vec((0..900u64, 0..5_000u64), 0..5);
    let warm = proptest::collection::vec((0..6u64).prop_map(FunctionId), 0..4);
    (
        prop_oneof![0..2_000u64, any::<u64>()],
        any_amount(),
        any_amount(),
        entries,
        warm,
    )
        .prop_map(|(at_us, capacity, unowned, entries, warm)| Heartbeat {
            capacity,
            unowned,
            warm,
            ..heartbeat(at_us, 0, &entries)
        })
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        9 => (0..20u64, any_request()).prop_map(|(call, request)| Step::Place(call, request)),
        1 => (0..20u64, 0..5u32, any_request()).prop_map(|(call, node, request)| Step::Placed(call, node, request)),
        5 => (0..20u64, 0..5u32).prop_map(|(call, node)| Step::Ended(call, node)),
        1 => (0..20u64, 0..5u32).prop_map(|(call, node)| Step::Refused(call, node)),
        3 => (0..5u32, any_heartbeat()).prop_map(|(node, heartbeat)| Step::Heartbeat(node, heartbeat)),
        2 => (0..6u64, any_amount()).prop_map(|(key, capacity)| Step::Join(key, capacity)),
        1 => (0..5u32).prop_map(Step::Leave),
        2 => (0..500u64).prop_map(Step::Wait),
    ]
}

fn any_options() -> impl Strategy<Value = (SchedulerKind, SchedulerOptions)> {
    (0..5usize, 1..4u32, any::<u64>(), 0..100u64).prop_map(|(kind, count, seed, transit_us)| {
        let shard = Shard::new((seed % u64::from(count)) as u32, count).unwrap();
        (
            SchedulerKind::ALL[kind],
            SchedulerOptions {
                shard,
                seed,
                transit_us,
                cold_start_us: transit_us * 10,
                cpu_weight_percent: (seed % 101) as u8,
            },
        )
    })
}

/// Applies a step and returns the placement that it made.
fn apply(scheduler: &mut Scheduler, now_us: &mut u64, step: &Step) -> Option<NodeIndex> {
    match step {
        Step::Place(call, request) => return scheduler.place(*now_us, CallId(*call), request),
        Step::Placed(call, node, request) => scheduler.placed(*now_us, CallId(*call), NodeIndex(*node), request),
        Step::Ended(call, node) => scheduler.ended(CallId(*call), NodeIndex(*node)),
        Step::Refused(call, node) => scheduler.refused(*now_us, CallId(*call), NodeIndex(*node)),
        Step::Heartbeat(node, heartbeat) => scheduler.heartbeat(*now_us, NodeIndex(*node), heartbeat),
        Step::Join(key, capacity) => {
            scheduler.join(*key, *capacity);
        }
        Step::Leave(node) => scheduler.leave(NodeIndex(*node)),
        Step::Wait(us) => *now_us += us,
    }
    None
}

/// What is reserved on a node, counted from its calls.
fn counted(scheduler: &Scheduler, index: NodeIndex) -> Amount {
    let there = scheduler.calls.values().filter(|(on, _)| *on == index);
    there.fold(Amount::ZERO, |sum, (_, placed)| sum + placed.owned)
}

proptest! {
    #[test]
    fn calls_are_placed_only_where_room_is(
        (kind, options) in any_options(), steps in proptest::collection::vec(any_step(), 0..60),
    ) {
        let mut scheduler = Scheduler::new(kind, options);
        for key in 0..3 {
            scheduler.join(key, amount(20));
        }
        let mut now_us = 0;
        for step in &steps {
            let known = match step {
                Step::Place(call, _) => scheduler.calls.get(&CallId(*call)).map(|(index, _)| *index),
                _ => None,
            };
            let chosen = apply(&mut scheduler, &mut now_us, step);
            if let (Step::Place(call, request), Some(index)) = (step, chosen) {
                if known.is_some() {
                    prop_assert_eq!(known, chosen);
                } else {
                    for resource in Resource::ALL.into_iter().filter(|resource| request.owned.get(*resource) > 0) {
                        prop_assert!(scheduler.reserved(index).get(resource) <= scheduler.share(index).get(resource));
                    }
                    prop_assert!(scheduler.reserved(index).covers(&request.owned));
                    prop_assert_eq!(scheduler.calls[&CallId(*call)].0, index);
                }
            }
            for index in scheduler.nodes() {
                prop_assert_eq!(scheduler.reserved(index), counted(&scheduler, index));
            }
            prop_assert!(scheduler.calls.values().all(|(index, _)| scheduler.nodes().contains(index)));
        }
        let calls: Vec<(CallId, NodeIndex)> = scheduler.calls.iter().map(|(call, (index, _))| (*call, *index)).collect();
        for (call, index) in calls {
            scheduler.ended(call, index);
            scheduler.ended(call, index);
        }
        prop_assert_eq!(scheduler.calls(), 0);
        for node in scheduler.nodes.iter().filter(|node| node.is_up) {
            prop_assert_eq!((node.reserved(), node.calls, node.free()), (Amount::ZERO, 0, node.share));
        }
    }

    #[test]
    fn same_inputs_give_same_placements(
        (kind, options) in any_options(), steps in proptest::collection::vec(any_step(), 0..60),
    ) {
        let run = || {
            let mut scheduler = Scheduler::new(kind, options);
            scheduler.join(0, amount(20));
            scheduler.join(1, amount(20));
            let mut now_us = 0;
            steps.iter().map(|step| apply(&mut scheduler, &mut now_us, step)).collect::<Vec<_>>()
        };
        prop_assert_eq!(run(), run());
    }

    #[test]
    fn late_and_repeated_messages_change_nothing(
        (kind, options) in any_options(),
        steps in proptest::collection::vec(any_step(), 0..60),
        copies in proptest::collection::vec(any::<bool>(), 60),
    ) {
        let is_message = |step: &Step| matches!(step, Step::Heartbeat(..) | Step::Ended(..) | Step::Refused(..));
        let run = |repeats: bool| {
            let mut scheduler = Scheduler::new(kind, options);
            scheduler.join(0, amount(20));
            scheduler.join(1, amount(20));
            let mut now_us = 0;
            let mut placements = Vec::new();
            let mut sent: BTreeMap<u32, Heartbeat> = BTreeMap::new();
            for (step, &copy) in steps.iter().zip(&copies) {
                let placed = apply(&mut scheduler, &mut now_us, step);
                placements.push(placed);
                if let Step::Heartbeat(node, heartbeat) = step {
                    sent.entry(*node).or_insert_with(|| heartbeat.clone());
                }
                if let Step::Join(..) | Step::Leave(..) = step {
                    sent.clear();
                }
                if repeats && copy && (is_message(step) || placed.is_some()) {
                    apply(&mut scheduler, &mut now_us, step);
                    // The first heartbeat of each node comes again, late.
                    for (node, heartbeat) in &sent {
                        scheduler.heartbeat(now_us, NodeIndex(*node), heartbeat);
                    }
                }
            }
            placements
        };
        prop_assert_eq!(run(false), run(true));
    }
}
