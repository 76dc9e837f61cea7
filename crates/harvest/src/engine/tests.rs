//! Examples and properties of the engine, with a driver that applies its actions one by one.

use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::*;
use crate::demand::{Demand, Features, Prediction, Sample, TenantId};

const MIB: u64 = 1 << 20;
const SHARED: Amount = Amount::new(16_000, 4_096 * MIB);

/// Predicts what the function's id says: its use in tenths of 1,000 and of 256 MiB.
struct Scripted;

fn scripted(function: FunctionId) -> Demand {
    match function.0 {
        0 => Demand::Unknown,
        1 => Demand::Profiling,
        2 => Demand::Known(Prediction {
            median: Amount::new(u64::MAX, u64::MAX),
            high: Amount::new(u64::MAX, u64::MAX),
            short_us: u64::MAX,
            median_us: u64::MAX,
        }),
        3 => Demand::Known(Prediction {
            median_us: u64::MAX,
            ..Prediction::default()
        }),
        tenths => Demand::Known(Prediction {
            median: Amount::new(tenths * 100, tenths * 26 * MIB),
            high: Amount::new(tenths * 120, tenths * 28 * MIB),
            short_us: tenths * 20_000,
            median_us: tenths * 30_000,
        }),
    }
}

impl Predictor for Scripted {
    fn predict(&mut self, function: FunctionId, _features: &Features) -> Demand {
        scripted(function)
    }

    fn learn(&mut self, _function: FunctionId, _sample: Sample) {}
}

/// Keeps what it should learn.
#[derive(Debug, Clone, Default)]
struct Recorded(Arc<Mutex<Vec<Sample>>>);

impl Predictor for Recorded {
    fn predict(&mut self, function: FunctionId, _features: &Features) -> Demand {
        scripted(function)
    }

    fn learn(&mut self, _function: FunctionId, sample: Sample) {
        self.0.lock().unwrap().push(sample);
    }
}

fn begin(call: u64, function: u64, owned: Amount) -> Begin {
    Begin {
        call: CallId(call),
        tenant: TenantId(0),
        function: FunctionId(function),
        features: Features::default(),
        owned,
        lends: true,
        borrows_cpu: true,
        borrows_memory: false,
        group: None,
    }
}

fn engine(rules: Rules) -> Engine {
    let mut engine = Engine::new(rules, Box::new(Scripted));
    engine.handle(0, &Event::Capacity { shared: SHARED });
    engine.handle(0, &Event::Mode { mode: Mode::On });
    engine
}

/// Rules without the capacity that nobody owns, for examples of what calls lend each other.
fn between_calls() -> Rules {
    Rules {
        lends_unreserved: false,
        ..Rules::default()
    }
}

fn limit(call: u64, units: u64) -> Action {
    Action::Limit {
        call: CallId(call),
        resource: Resource::Cpu,
        units,
    }
}

fn end(call: u64) -> Event {
    Event::End {
        call: CallId(call),
        outcome: Outcome::Returned,
    }
}

fn usage(call: u64, milli_cores: u64) -> Event {
    waiting(call, milli_cores, 0)
}

fn waiting(call: u64, milli_cores: u64, waiting_ppm: u32) -> Event {
    Event::Usage {
        call: CallId(call),
        milli_cores,
        memory_bytes: MIB,
        waiting_ppm,
    }
}

const FOUR: Amount = Amount::new(4_000, 256 * MIB);
const ONE: Amount = Amount::new(1_000, 256 * MIB);

#[test]
fn idle_cores_go_to_the_call_that_wants() {
    let mut engine = engine(between_calls());
    // Uses up to 1.2 cores, so it keeps 1.5 of 4.
    assert_eq!(engine.handle(0, &Event::Begin(begin(1, 10, FOUR))), []);
    // Wants 3 cores and owns one.
    assert_eq!(engine.handle(10, &Event::Begin(begin(2, 30, ONE))), [limit(2, 3_000)]);
    assert_eq!(engine.handle(20, &end(1)), [limit(2, 1_000)]);
}

#[test]
fn call_that_waits_gets_what_becomes_free() {
    let mut engine = engine(between_calls());
    engine.handle(0, &Event::Begin(begin(1, 30, ONE)));
    assert_eq!(engine.handle(10, &Event::Begin(begin(2, 10, FOUR))), [limit(1, 3_000)]);
    engine.handle(20, &Event::Begin(begin(3, 20, ONE)));
    assert_eq!(engine.handle(30, &end(1)), [limit(3, 1_500 + 500)]);
}

#[test]
fn first_call_of_a_function_runs_as_configured() {
    let mut engine = engine(Rules::default());
    assert_eq!(engine.handle(0, &Event::Begin(begin(1, 0, FOUR))), []);
    assert_eq!(engine.view(CallId(1)).unwrap().offered, Amount::ZERO);
}

#[test]
fn profiled_call_gets_what_can_be_spared() {
    let mut engine = engine(Rules::default());
    assert_eq!(engine.handle(0, &Event::Begin(begin(1, 1, FOUR))), [limit(1, 8_000)]);
}

#[test]
fn lender_that_needs_more_gets_everything_back() {
    let mut engine = engine(between_calls());
    engine.handle(0, &Event::Begin(begin(1, 10, FOUR)));
    engine.handle(0, &Event::Begin(begin(2, 30, ONE)));
    assert_eq!(
        engine.handle(100_000, &usage(1, 1_200)),
        [],
        "0.8 of 1.5 cores is as predicted"
    );
    assert_eq!(engine.handle(200_000, &usage(1, 1_201)), [limit(2, 1_000)]);
    assert_eq!(engine.counts().safeguards, 1);
    assert_eq!(engine.handle(300_000, &usage(1, 100)), [], "it does not lend again");
}

#[test]
fn lender_that_waits_gets_everything_back() {
    let mut engine = engine(between_calls());
    engine.handle(0, &Event::Begin(begin(1, 10, FOUR)));
    engine.handle(0, &Event::Begin(begin(2, 30, ONE)));
    assert_eq!(engine.handle(100_000, &waiting(1, 100, 20_001)), [limit(2, 1_000)]);
    assert_eq!(engine.handle(200_000, &waiting(1, 100, 20_000)), [], "the loan was why");
    assert_eq!(engine.handle(300_000, &waiting(1, 100, 900_000)), []);
}

#[test]
fn lender_that_waits_without_loans_lends_again() {
    let mut engine = engine(between_calls());
    engine.handle(0, &Event::Begin(begin(1, 10, FOUR)));
    // Nobody has its units.
    assert_eq!(engine.handle(50_000, &waiting(1, 100, 10_000)), []);
    assert_eq!(
        engine.handle(60_000, &Event::Begin(begin(2, 30, ONE))),
        [limit(2, 3_000)]
    );
    assert_eq!(engine.handle(150_000, &waiting(1, 100, 30_000)), [], "2 % more");
    assert_eq!(engine.handle(250_000, &waiting(1, 100, 30_001)), [limit(2, 1_000)]);
    assert_eq!(engine.handle(350_000, &waiting(1, 100, 50_000)), [limit(2, 3_000)]);
    assert_eq!(engine.handle(450_000, &waiting(1, 100, 70_000)), [], "2 % more");
    // Three times, then no more.
    for (window, share) in [(6, 70_000), (8, 90_000)] {
        let at = window * 100_000;
        assert_eq!(engine.handle(at, &waiting(1, 100, share + 1)), [limit(2, 1_000)]);
        let next = engine.handle(at + 100_000, &waiting(1, 100, share));
        assert_eq!(next, [limit(2, 3_000)]);
    }
    assert_eq!(engine.handle(1_000_000, &waiting(1, 100, 200_000)), [limit(2, 1_000)]);
    assert_eq!(engine.handle(1_100_000, &waiting(1, 100, 200_000)), []);
    assert_eq!(engine.counts().safeguards, 4);
}

#[test]
fn lender_that_nobody_measures_gets_everything_back() {
    let mut engine = engine(between_calls());
    engine.handle(0, &Event::Begin(begin(1, 10, FOUR)));
    engine.handle(0, &Event::Begin(begin(2, 30, ONE)));
    assert_eq!(engine.handle(300_000, &Event::Tick), []);
    assert_eq!(engine.handle(300_001, &Event::Tick), [limit(2, 1_000)]);
    assert_eq!(engine.counts().unmeasured, 1);
}

#[test]
fn unused_loan_returns_after_two_windows() {
    let mut engine = engine(between_calls());
    engine.handle(0, &Event::Begin(begin(1, 10, FOUR)));
    engine.handle(0, &Event::Begin(begin(2, 30, ONE)));
    engine.handle(100_000, &usage(1, 1_000));
    assert_eq!(engine.handle(100_000, &usage(2, 900)), []);
    assert_eq!(engine.handle(200_000, &usage(2, 900)), [limit(2, 1_000)]);
    assert_eq!(engine.handle(200_001, &Event::Tick), [], "it wants no more");
}

fn throttled(call: u64, milli_cores: u64) -> Event {
    waiting(call, milli_cores, 500_000)
}

#[test]
fn throttled_call_gets_twice_until_profiling_limit() {
    let mut engine = engine(Rules::default());
    // Predicted to need half a core.
    assert_eq!(engine.handle(0, &Event::Begin(begin(1, 5, ONE))), []);
    assert_eq!(engine.handle(100_000, &usage(1, 1_000)), [], "it does not wait");
    assert_eq!(
        engine.handle(200_000, &throttled(1, 900)),
        [],
        "others have the processor"
    );
    for (window, limits) in [(3, 2_000), (4, 4_000), (5, 8_000)] {
        let used = throttled(1, limits / 2);
        assert_eq!(engine.handle(window * 100_000, &used), [limit(1, limits)]);
    }
    assert_eq!(engine.handle(600_000, &throttled(1, 8_000)), []);
}

#[test]
fn throttled_first_call_stays_as_configured() {
    let mut engine = engine(Rules::default());
    engine.handle(0, &Event::Begin(begin(1, 0, ONE)));
    assert_eq!(engine.handle(100_000, &throttled(1, 1_000)), []);
}

#[test]
fn throttled_call_that_may_not_borrow_gets_nothing() {
    let mut engine = engine(Rules::default());
    let mut begin = begin(1, 5, ONE);
    begin.borrows_cpu = false;
    engine.handle(0, &Event::Begin(begin));
    assert_eq!(engine.handle(100_000, &throttled(1, 1_000)), []);
}

#[test]
fn borrower_that_waits_keeps_its_loan() {
    let mut engine = engine(between_calls());
    engine.handle(0, &Event::Begin(begin(1, 10, FOUR)));
    engine.handle(0, &Event::Begin(begin(2, 30, ONE)));
    let (borrowed, waits) = (engine.view(CallId(2)).unwrap().borrowed.milli_cores, 900_000);
    for at_us in [100_000, 200_000, 300_000] {
        engine.handle(at_us, &usage(1, 1_000));
        assert_eq!(engine.handle(at_us, &waiting(2, 100 + borrowed, waits)), []);
    }
}

#[test]
fn call_that_waited_teaches_a_lower_bound() {
    for (waiting_ppm, is_bound) in [(0, false), (300_000, false), (460_000, true)] {
        let learnt = Recorded::default();
        let mut engine = Engine::new(Rules::default(), Box::new(learnt.clone()));
        engine.handle(0, &Event::Capacity { shared: SHARED });
        engine.handle(0, &Event::Mode { mode: Mode::Watch });
        engine.handle(0, &Event::Begin(begin(1, 10, ONE)));
        engine.handle(100_000, &waiting(1, 500, waiting_ppm));
        let outcome = Outcome::Returned;
        engine.handle(
            110_000,
            &Event::End {
                call: CallId(1),
                outcome,
            },
        );
        let samples = learnt.0.lock().unwrap();
        assert_eq!(samples.len(), 1);
        assert_eq!((samples[0].peak.milli_cores, samples[0].cpu_is_bound), (500, is_bound));
    }
}

#[test]
fn tenants_share_what_is_idle() {
    let mut engine = engine(between_calls());
    for call in 1..=3 {
        let mut begin = begin(call, 60, ONE);
        begin.tenant = TenantId(u32::from(call == 3));
        engine.handle(call, &Event::Begin(begin));
    }
    engine.handle(9, &Event::Begin(begin(9, 10, FOUR)));
    let borrowed = |call| engine.view(CallId(call)).unwrap().borrowed.milli_cores;
    assert_eq!(borrowed(3), 1_250);
    assert_eq!(borrowed(1) + borrowed(2), 1_250);
}

#[test]
fn hot_grant_recalls_loans() {
    let mut engine = engine(between_calls());
    engine.handle(0, &Event::Begin(begin(1, 10, FOUR)));
    engine.handle(0, &Event::Begin(begin(2, 30, ONE)));
    // 1.5 and 1 core are kept; half a core is left.
    let shared = Amount::new(3_000, SHARED.memory_bytes);
    assert_eq!(engine.handle(5, &Event::Capacity { shared }), [limit(2, 1_500)]);
}

#[test]
fn ranks_lend_what_all_can() {
    let mut engine = engine(between_calls());
    let rank = |call, function| {
        let mut rank = begin(call, function, FOUR);
        rank.group = Some(Group { id: 1, size: 2 });
        Event::Begin(rank)
    };
    engine.handle(0, &rank(1, 10));
    assert_eq!(
        engine.view(CallId(1)).unwrap().offered.milli_cores,
        0,
        "one rank is missing"
    );
    engine.handle(0, &rank(2, 20));
    assert_eq!(engine.view(CallId(1)).unwrap().offered.milli_cores, 1_000);
    engine.handle(100_000, &usage(2, 2_900));
    assert_eq!(
        engine.view(CallId(1)).unwrap().offered.milli_cores,
        0,
        "the other recalled"
    );
}

#[test]
fn ranks_borrow_all_or_none() {
    let mut engine = engine(between_calls());
    for call in 1..=2 {
        let mut rank = begin(call, 30, ONE);
        rank.group = Some(Group { id: 1, size: 2 });
        engine.handle(0, &Event::Begin(rank));
    }
    let borrowed = |engine: &Engine, call| engine.view(CallId(call)).unwrap().borrowed.milli_cores;
    engine.handle(0, &Event::Begin(begin(3, 10, FOUR)));
    assert_eq!(
        (borrowed(&engine, 1), borrowed(&engine, 2)),
        (0, 0),
        "2.5 cores are too few"
    );
    engine.handle(0, &Event::Begin(begin(4, 10, FOUR)));
    assert_eq!((borrowed(&engine, 1), borrowed(&engine, 2)), (2_000, 2_000));
    engine.handle(1, &end(4));
    assert_eq!((borrowed(&engine, 1), borrowed(&engine, 2)), (0, 0));
}

/// One call lends memory, and another borrows it.
fn lent_memory() -> Engine {
    let mut engine = engine(between_calls());
    engine.handle(0, &Event::Begin(begin(1, 4, Amount::new(1_000, 1_024 * MIB))));
    let mut borrower = begin(2, 20, Amount::new(2_000, 256 * MIB));
    borrower.borrows_memory = true;
    let actions = engine.handle(0, &Event::Begin(borrower));
    let raised = Action::Limit {
        call: CallId(2),
        resource: Resource::Memory,
        units: 520 * MIB,
    };
    assert_eq!(actions, [raised]);
    engine
}

#[test]
fn borrower_that_keeps_memory_is_ended() {
    let mut engine = lent_memory();
    let actions = engine.handle(1_000, &end(1));
    let (call, memory_bytes) = (CallId(2), 264 * MIB);
    let lower = Action::Limit {
        call,
        resource: Resource::Memory,
        units: 256 * MIB,
    };
    let by_us = 101_000;
    assert_eq!(
        actions,
        [
            lower,
            Action::Reclaim {
                call,
                memory_bytes,
                by_us
            }
        ]
    );
    let holds = Event::Reclaimed {
        call,
        memory_bytes: 300 * MIB,
    };
    assert_eq!(engine.handle(50_000, &holds), []);
    assert_eq!(engine.handle(by_us, &Event::Tick), []);
    assert_eq!(engine.handle(by_us + 1, &Event::Tick), [Action::EndCall { call }]);
    assert_eq!(engine.handle(by_us + 2, &Event::Tick), [], "it is ended once");
}

#[test]
fn memory_moves_to_a_second_lender() {
    let mut engine = lent_memory();
    engine.handle(0, &Event::Begin(begin(3, 4, Amount::new(1_000, 1_024 * MIB))));
    assert_eq!(engine.handle(1_000, &end(1)), []);
    assert_eq!(engine.view(CallId(2)).unwrap().borrowed.memory_bytes, 264 * MIB);
}

#[test]
fn memory_is_left_alone_after_running_out() {
    let mut engine = engine(between_calls());
    let lender = || Event::Begin(begin(1, 4, Amount::new(1_000, 1_024 * MIB)));
    let offered = |engine: &Engine| engine.view(CallId(1)).unwrap().offered.memory_bytes;
    engine.handle(0, &lender());
    assert_ne!(offered(&engine), 0);
    engine.handle(1, &Event::OutOfMemory { call: CallId(1) });
    engine.handle(2, &end(1));
    engine.handle(3, &lender());
    assert_eq!(offered(&engine), 0);
    engine.handle(4, &end(1));
    engine.handle(3_600_000_001, &lender());
    assert_ne!(offered(&engine), 0, "an hour later");
}

#[test]
fn limit_that_cannot_be_lowered_ends_the_borrower() {
    let mut engine = engine(between_calls());
    engine.handle(0, &Event::Begin(begin(1, 10, FOUR)));
    engine.handle(0, &Event::Begin(begin(2, 30, ONE)));
    engine.handle(1, &end(1));
    let refused = Event::Refused {
        call: CallId(2),
        resource: Resource::Cpu,
        raising: false,
    };
    assert_eq!(engine.handle(2, &refused), [Action::EndCall { call: CallId(2) }]);
}

#[test]
fn watching_learns_and_lends_nothing() {
    let learnt = Recorded::default();
    let mut engine = Engine::new(Rules::default(), Box::new(learnt.clone()));
    engine.handle(0, &Event::Capacity { shared: SHARED });
    engine.handle(0, &Event::Mode { mode: Mode::Watch });
    assert_eq!(engine.handle(0, &Event::Begin(begin(1, 10, FOUR))), []);
    assert_eq!(engine.view(CallId(1)).unwrap().offered, Amount::ZERO);
    engine.handle(100_000, &usage(1, 4_000));
    engine.handle(200_000, &end(1));
    assert_eq!(learnt.0.lock().unwrap().len(), 1);
}

#[test]
fn switching_off_returns_everything() {
    let mut engine = engine(Rules::default());
    engine.handle(0, &Event::Begin(begin(1, 10, FOUR)));
    engine.handle(0, &Event::Begin(begin(2, 30, ONE)));
    assert_eq!(engine.handle(1, &Event::Mode { mode: Mode::Watch }), [limit(2, 1_000)]);
    assert_eq!(engine.view(CallId(1)).unwrap().offered, Amount::ZERO);
    assert_eq!(engine.handle(2, &Event::Mode { mode: Mode::On }), [limit(2, 3_000)]);
}

fn amount() -> impl Strategy<Value = Amount> {
    prop_oneof![
        8 => (0..8u64, 0..8u64).prop_map(|(cores, parts)| Amount::new(cores * 1_000, parts * 256 * MIB)),
        1 => Just(Amount::new(u64::MAX, u64::MAX)),
        1 => Just(Amount::ZERO),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let call = || (0..8u64).prop_map(CallId);
    let begin = (
        call(),
        0..3u32,
        0..60u64,
        amount(),
        any::<[bool; 3]>(),
        prop::option::weighted(0.2, 0..2u64),
    );
    let begin = begin.prop_map(|(call, tenant, function, owned, [lends, cpu, memory], group)| {
        Event::Begin(Begin {
            call,
            tenant: TenantId(tenant),
            function: FunctionId(function),
            features: Features::default(),
            owned,
            lends: lends || cpu,
            borrows_cpu: cpu || memory,
            borrows_memory: memory,
            group: group.map(|id| Group { id, size: 2 }),
        })
    });
    let usage = (call(), amount(), 0..30_000u32).prop_map(|(call, used, waiting_ppm)| Event::Usage {
        call,
        milli_cores: used.milli_cores,
        memory_bytes: used.memory_bytes,
        waiting_ppm,
    });
    prop_oneof![
        6 => begin,
        6 => usage,
        4 => (call(), any::<bool>()).prop_map(|(call, returned)| Event::End {
            call,
            outcome: if returned { Outcome::Returned } else { Outcome::Aborted },
        }),
        2 => Just(Event::Tick),
        1 => call().prop_map(|call| Event::OutOfMemory { call }),
        2 => (call(), 0..2_048u64).prop_map(|(call, mib)| Event::Reclaimed { call, memory_bytes: mib * MIB }),
        1 => (call(), any::<[bool; 2]>()).prop_map(|(call, [cpu, raising])| Event::Refused {
            call,
            resource: if cpu { Resource::Cpu } else { Resource::Memory },
            raising,
        }),
        1 => amount().prop_map(|shared| Event::Capacity { shared: shared.max(Amount::new(1_000, MIB)) }),
        1 => prop_oneof![Just(Mode::On), Just(Mode::On), Just(Mode::Watch), Just(Mode::Off)]
            .prop_map(|mode| Event::Mode { mode }),
    ]
}

fn rules() -> impl Strategy<Value = Rules> {
    any::<[bool; 4]>().prop_map(|[unreserved, tenant, regrants, lowers]| Rules {
        lends_unreserved: unreserved,
        stays_within_tenant: tenant,
        regrants,
        lowers_lenders: lowers,
        ..Rules::default()
    })
}

/// Limits as a node would have set them, action by action.
#[derive(Default)]
struct Driver {
    limits: BTreeMap<CallId, Amount>,
}

impl Driver {
    /// A limit that the node could not set is whatever the engine takes it for.
    fn refuse(&mut self, engine: &Engine, event: &Event) {
        if let Event::Refused { call, .. } = event
            && let Some(running) = engine.calls.get(call)
        {
            self.limits.insert(*call, running.limits(&engine.rules));
        }
    }

    /// Applies actions, and checks that a borrower is raised only into units that are free.
    fn apply(&mut self, engine: &Engine, actions: &[Action]) {
        self.limits.retain(|call, _| engine.calls.contains_key(call));
        for (id, call) in &engine.calls {
            self.limits.entry(*id).or_insert(call.owned);
        }
        for action in actions {
            let Action::Limit { call, resource, units } = action else {
                continue;
            };
            let limit = self.limits.get_mut(call).expect("actions are about running calls");
            let raised = *units > limit.get(*resource);
            *limit.get_mut(*resource) = *units;
            if raised && !engine.rules.lowers_lenders {
                let over = |id: &CallId, limit: &Amount| {
                    limit
                        .get(*resource)
                        .saturating_sub(engine.calls[id].owned.get(*resource))
                };
                let lent: u64 = self.limits.iter().map(|(id, limit)| over(id, limit)).sum();
                assert!(lent <= engine.lendable(*resource), "raised before units are free");
            }
        }
    }
}

fn check(engine: &Engine, driver: &Driver) {
    let mut kept = Amount::ZERO;
    let mut owned = Amount::ZERO;
    for (id, call) in &engine.calls {
        for resource in Resource::ALL {
            let pool = &engine.pools[index(resource)];
            assert_eq!(pool.offered(*id), call.offered.get(resource));
            let unowned = engine.unreserved[index(resource)].loan(*id);
            assert_eq!(pool.borrowed(*id) + unowned, call.borrowed.get(resource));
            let floor = engine.rules.floor.get(resource).min(call.owned.get(resource));
            assert!(call.kept(resource) >= floor, "below its floor");
            assert!(call.offered.get(resource) == 0 || call.may_lend[index(resource)]);
        }
        kept += call.owned - call.offered;
        owned += call.owned;
        assert_eq!(
            driver.limits[id],
            call.limits(&engine.rules),
            "the node's limits are the engine's"
        );
        if !engine.rules.lowers_lenders {
            assert!(driver.limits[id].covers(&call.owned), "a lender's limit was lowered");
        }
    }
    assert_eq!((kept, owned), (engine.kept, engine.owned));
    for resource in Resource::ALL {
        let pool = &engine.pools[index(resource)];
        assert!(
            engine.lent(resource) <= engine.lendable(resource),
            "more is lent than there is"
        );
        for lender in pool.lenders() {
            assert!(engine.calls.contains_key(&lender), "a call that ended is named");
            for loan in pool.loans_of(lender) {
                assert!(engine.calls.contains_key(&loan.borrower), "a call that ended is named");
                assert_ne!(loan.borrower, lender);
            }
        }
        for borrower in engine.unreserved[index(resource)].borrowers() {
            assert!(engine.calls.contains_key(&borrower), "a call that ended is named");
        }
        let totals = pool.totals();
        assert!(totals.promised >= totals.lent + totals.idle + totals.returned);
    }
    assert!(engine.wanting.iter().all(|call| engine.calls.contains_key(call)));
    assert!(engine.reclaims.keys().all(|call| engine.calls.contains_key(call)));
    let members = engine.groups.values().flatten();
    assert!(members.into_iter().all(|call| engine.calls.contains_key(call)));
    if engine.mode != Mode::On {
        assert!(Resource::ALL.iter().all(|resource| engine.lent(*resource) == 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn invariants_hold_after_every_event(
        rules in rules(),
        events in prop::collection::vec((event(), 0..300_000u64, prop::bool::weighted(0.05)), 0..120),
    ) {
        let (mut engine, mut driver, mut now) = (engine(rules), Driver::default(), 0);
        for (event, wait, is_late) in events {
            now += wait;
            // A late event carries an old time, and a duplicate comes twice.
            let at = if is_late { now / 2 } else { now };
            for _ in 0..1 + u32::from(is_late) {
                let actions = engine.handle(at, &event);
                driver.refuse(&engine, &event);
                driver.apply(&engine, &actions);
                check(&engine, &driver);
            }
        }
        for call in 0..8 {
            let actions = engine.handle(now, &end(call));
            driver.apply(&engine, &actions);
            check(&engine, &driver);
        }
        for resource in Resource::ALL {
            let totals = engine.totals(resource, now);
            prop_assert_eq!(totals.promised, totals.lent + totals.idle + totals.returned);
            prop_assert_eq!(engine.lent(resource), 0);
        }
        prop_assert_eq!(engine.owned, Amount::ZERO);
        prop_assert_eq!(engine.running(), 0);
    }

    #[test]
    fn same_events_give_same_actions(events in prop::collection::vec((event(), 0..300_000u64), 0..80)) {
        let run = || {
            let (mut engine, mut now, mut log) = (engine(Rules::default()), 0, Vec::new());
            for (event, wait) in &events {
                now += wait;
                log.push(serde_json::to_string(&engine.handle(now, event)).unwrap());
            }
            log
        };
        prop_assert_eq!(run(), run());
    }

    #[test]
    fn log_of_events_is_read_back(event in event()) {
        let text = serde_json::to_string(&event).unwrap();
        prop_assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event);
    }
}
