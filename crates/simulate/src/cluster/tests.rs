use dayfly_harvest::Amount;
use dayfly_harvest::{Features, TenantId};
use proptest::prelude::*;

use super::*;
use crate::call::{Phase, Phases};
use crate::report::Report;

const MIB: u64 = 1 << 20;

/// A call of milliseconds of one core, with so many usable cores.
fn call(arrival_ms: u64, function: u64, owned_cores: u64, core_ms: u64, cores: u64) -> Call {
    let phase = Phase {
        core_us: core_ms * 1_000,
        milli_cores: cores * 1_000,
        memory_bytes: 100 * MIB,
    };
    Call {
        arrival_us: arrival_ms * 1_000,
        function: FunctionId(function),
        tenant: TenantId(0),
        features: Features {
            argument_bytes: 0,
            sizes: [core_ms as f64, 0.0, 0.0, 0.0],
        },
        owned: Amount::new(owned_cores * 1_000, 256 * MIB),
        phases: Phases::new(&[phase]).unwrap(),
        lend: true,
        borrow_cpu: true,
        borrow_memory: false,
    }
}

fn options(policy: Policy, cores: u64) -> Options {
    Options {
        capacity: Amount::new(cores * 1_000, 16 << 30),
        policy,
        cold_start_us: 10_000,
        decision_us: 0,
        ..Options::default()
    }
}

fn run(calls: &[Call], options: &Options) -> Outcome {
    simulate(calls, &[], options, &mut || 0).unwrap()
}

#[test]
fn default_matches_a_computed_example() {
    // Two of four cores each: the third call waits for the first, and has its warm worker.
    let calls = [call(0, 1, 2, 400, 8), call(100, 2, 2, 300, 1), call(150, 1, 2, 100, 2)];
    let options = options(Policy::Default, 4);
    let outcome = run(&calls, &options);
    let ends: Vec<_> = outcome.records.iter().map(|record| record.ended_us).collect();
    assert_eq!(ends, [210_000, 410_000, 260_000]);
    assert_eq!(outcome.records[2].started_us, 210_000);
    assert_eq!(outcome.records.map_cold(), [true, true, false]);
    let report = Report::new(&options, &outcome, Some(&outcome.records));
    assert_eq!((report.p99_s, report.p50_s, report.completion_s), (0.31, 0.21, 0.41));
    assert!((report.cpu_use - 0.8 / (4.0 * 0.41)).abs() < 1e-9);
    assert_eq!(report.worst_degradation, Some(0.0));
}

trait Cold {
    fn map_cold(&self) -> Vec<bool>;
}

impl Cold for Vec<Record> {
    fn map_cold(&self) -> Vec<bool> {
        self.iter().map(|record| record.is_cold).collect()
    }
}

#[test]
fn oracle_lends_what_a_call_cannot_use() {
    // The first uses one of its three cores for 2 s, the second could use four and owns one.
    let calls = [call(0, 1, 3, 2_000, 1), call(0, 2, 1, 1_500, 4)];
    let without = run(&calls, &options(Policy::Default, 4));
    let with = run(&calls, &options(Policy::Oracle, 4));
    assert_eq!(without.records[1].response_us(), 1_510_000);
    assert_eq!(with.records[1].response_us(), 510_000);
    assert_eq!(with.records[0].response_us(), without.records[0].response_us());
    assert_eq!(with.totals.borrows, 1);
}

#[test]
fn call_without_enough_memory_fails() {
    let mut large = call(0, 1, 1, 100, 1);
    large.owned.memory_bytes = 50 * MIB;
    let outcome = run(&[large], &options(Policy::Default, 4));
    let record = outcome.records[0];
    assert!(record.is_failed);
    assert_eq!(
        (record.attempts, record.ooms),
        (crate::node::MAX_ATTEMPTS, crate::node::MAX_ATTEMPTS)
    );
}

#[test]
fn calls_that_cannot_run_are_refused() {
    let refused = |calls: &[Call]| simulate(calls, &[], &options(Policy::Default, 4), &mut || 0).unwrap_err();
    assert_eq!(refused(&[]), SimulateError::Empty);
    assert_eq!(refused(&[call(0, 1, 0, 1, 1)]), SimulateError::OwnsNothing { call: 1 });
    assert!(matches!(
        refused(&[call(0, 1, 5, 1, 1)]),
        SimulateError::TooLarge { call: 1, .. }
    ));
    assert_eq!(
        refused(&[call(5, 1, 1, 1, 1), call(4, 1, 1, 1, 1)]),
        SimulateError::Order { call: 2 }
    );
    let none = Options {
        nodes: 0,
        ..Options::default()
    };
    assert!(simulate(&[call(0, 1, 1, 1, 1)], &[], &none, &mut || 0).is_err());
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let one = (0..3_000u64, 0..4u64, 1..5u64, 0..3_000u64, 1..9u64);
    prop::collection::vec(one, 1..60).prop_map(|calls| {
        let mut calls: Vec<_> = calls
            .into_iter()
            .map(|(at, function, owned, work, cores)| call(at, function, owned, work, cores))
            .collect();
        calls.sort_by_key(|call| call.arrival_us);
        calls
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_policy_does_the_work_of_the_trace(calls in calls(), nodes in 1..4usize, shards in 1..3usize) {
        let work: u128 = calls.iter().map(|call| u128::from(call.core_us()) * 1_000).sum();
        for policy in Policy::ALL {
            let options = Options { nodes, shards, ..options(policy, 8) };
            let outcome = run(&calls, &options);
            prop_assert_eq!(outcome.totals.work, work, "{}", policy);
            prop_assert!(outcome.records.iter().all(|record| !record.is_failed));
            let report = Report::new(&options, &outcome, None);
            prop_assert!((0.0..=1.0).contains(&report.cpu_use), "{}", report.cpu_use);
            prop_assert_eq!(run(&calls, &options).records, outcome.records, "the same again");
        }
    }
}

/// Calls of four functions at a rate that keeps two nodes half busy.
fn many(calls: u64) -> Vec<Call> {
    (0..calls)
        .map(|index| call(index * 50, index % 4, 1 + index % 3, 100 + index % 700, 1 + index % 8))
        .collect()
}

#[test]
fn hundred_thousand_calls_take_linear_time() {
    let options = Options {
        nodes: 2,
        ..options(Policy::Dayfly, 16)
    };
    let took = |calls: u64| {
        let calls = many(calls);
        let begin = std::time::Instant::now();
        let outcome = run(&calls, &options);
        assert!(
            outcome
                .records
                .iter()
                .all(|record| record.ended_us > 0 && !record.is_failed)
        );
        begin.elapsed().as_secs_f64()
    };
    let (few, many) = (took(25_000), took(100_000));
    println!("25,000 calls: {few:.2} s; 100,000 calls: {many:.2} s");
    assert!(many < 12.0 * few, "four times the calls took {few} s and {many} s");
}

#[test]
fn recorded_log_is_decided_again_to_the_byte() {
    let options = Options {
        logs: true,
        ..options(Policy::Dayfly, 16)
    };
    let outcome = run(&many(600), &options);
    let rules = dayfly_harvest::Rules::default();
    let trains = dayfly_harvest::Trains::AtOnce;
    let header = serde_json::to_string(&dayfly_harvest::record::Header { rules, trains }).unwrap();
    let entries = outcome.logs[0]
        .iter()
        .map(|entry| serde_json::to_string(entry).unwrap());
    let lines: Vec<_> = std::iter::once(header).chain(entries).collect();
    let text = lines.join("\n");
    let profiles = |_: &_| Box::new(dayfly_harvest::Profiles::default()) as Box<_>;
    assert_eq!(crate::log::replay(text.as_bytes(), profiles), Ok(lines.len() - 1));
    let line = lines.iter().position(|line| line.contains("\"units\"")).unwrap();
    let mut forged = lines.clone();
    forged[line] = forged[line].replace("\"units\":", "\"units\":1");
    let error = crate::log::replay(forged.join("\n").as_bytes(), profiles).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with(&format!("Line {} of the log differs.", line + 1)),
        "{error}"
    );
    let error = crate::log::replay(b"{}\n", profiles).unwrap_err();
    assert!(error.to_string().starts_with("Line 1, column"), "{error}");
}
