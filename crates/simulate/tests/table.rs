//! The figures of the policies over several seeds. The tables are printed on request:
//! `cargo test --release -p dayfly-simulate --test table -- --ignored --nocapture`.

use dayfly_simulate::cluster::Options;
use dayfly_simulate::functions::Functions;
use dayfly_simulate::generate::Generator;
use dayfly_simulate::history::history;
use dayfly_simulate::policy::Policy;
use dayfly_simulate::report::Report;
use dayfly_simulate::study::Study;

const SEEDS: std::ops::RangeInclusive<u64> = 1..=10;

/// The reports of all policies on a generated trace, with the default one first.
fn reports(kind: &str, seed: u64, options: &Options, earlier_calls: usize) -> Vec<Report> {
    let functions = Functions::measured();
    let trace = kind.parse::<Generator>().unwrap().generate(functions, seed);
    let history = history(&trace, functions, earlier_calls, seed);
    let options = Options {
        seed,
        ..options.clone()
    };
    let study = Study::new(trace.calls(), &history, options).unwrap();
    let run = |policy| study.run(policy, &mut || 0).unwrap().0;
    Policy::ALL.into_iter().map(run).collect()
}

fn median_and_range(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let middle = values[values.len() / 2].midpoint(values[(values.len() - 1) / 2]);
    format!("{middle:7.1} ({:.1} to {:.1})", values[0], values[values.len() - 1])
}

fn print_table(kind: &str, options: &Options, earlier_calls: usize) {
    let all: Vec<_> = SEEDS.map(|seed| reports(kind, seed, options, earlier_calls)).collect();
    println!(
        "\n{kind}, {earlier_calls} earlier calls of each function: median (range) over {} seeds, in %",
        all.len()
    );
    let place = |of| Policy::ALL.iter().position(|policy| *policy == of).unwrap();
    let (oracle, freyr) = (place(Policy::Oracle), place(Policy::Freyr));
    let change = |of: fn(&Report) -> f64, index: usize, base: usize| {
        let changes = all
            .iter()
            .map(|reports| 100.0 * (of(&reports[index]) / of(&reports[base]) - 1.0));
        median_and_range(changes.collect())
    };
    print!("{:<13}", "policy");
    for title in [
        "p99",
        "p99 / freyr",
        "completion",
        "completion / freyr",
        "mean",
        "memory use",
        "processor use",
        "slowed at worst",
        "p99 gain / oracle",
    ] {
        print!("{title:>27}");
    }
    println!();
    for (index, policy) in Policy::ALL.iter().enumerate() {
        let gain = all.iter().map(|reports| {
            let gain = |report: &Report| reports[0].p99_s - report.p99_s;
            // Where the oracle gains nothing, there is nothing to share.
            if gain(&reports[oracle]) > 0.0 {
                100.0 * gain(&reports[index]) / gain(&reports[oracle])
            } else {
                100.0
            }
        });
        let worst = all
            .iter()
            .map(|reports| 100.0 * reports[index].worst_degradation.unwrap());
        print!("{:<13}", policy.name());
        for column in [
            change(|report| report.p99_s, index, 0),
            change(|report| report.p99_s, index, freyr),
            change(|report| report.completion_s, index, 0),
            change(|report| report.completion_s, index, freyr),
            change(|report| report.mean_s, index, 0),
            change(|report| report.memory_use, index, 0),
            change(|report| report.cpu_use, index, 0),
            median_and_range(worst.collect()),
            median_and_range(gain.collect()),
        ] {
            print!("{column:>27}");
        }
        println!();
    }
    for (index, policy) in Policy::ALL.iter().enumerate() {
        println!(
            "{:<13} seed 1: {}",
            policy.name(),
            all[0][index].to_string().replace('\n', ";")
        );
    }
}

#[test]
#[ignore = "prints"]
fn single_is_printed() {
    for kind in ["single", "single-related", "single-unrelated"] {
        for earlier_calls in [100, 0] {
            print_table(kind, &Options::default(), earlier_calls);
        }
    }
}

#[test]
#[ignore = "prints"]
fn rates_are_printed() {
    use dayfly_harvest::{Amount, SchedulerKind};
    use dayfly_simulate::generate::MULTI_RATES;
    println!(
        "\n4 nodes of 32 cores: sums over {} seeds; p99 s, completion s, idle core-s",
        SEEDS.count()
    );
    for rate in MULTI_RATES {
        print!("{rate:>4}");
        for scheduler in SchedulerKind::ALL {
            let options = Options {
                nodes: 4,
                capacity: Amount::new(32_000, 32 << 30),
                scheduler,
                ..Options::default()
            };
            let mut sums = [0.0; 3];
            for seed in SEEDS {
                let report = one(&format!("multi-{rate}"), seed, &options, Policy::Dayfly);
                sums[0] += report.p99_s;
                sums[1] += report.completion_s;
                sums[2] += report.idle_core_s;
            }
            print!("  {}: {:.2} {:.1} {:.1}", scheduler.name(), sums[0], sums[1], sums[2]);
        }
        println!();
    }
}

#[test]
#[ignore = "prints"]
fn scaling_is_printed() {
    use dayfly_harvest::Amount;
    let options = |nodes, shards| Options {
        nodes,
        shards,
        capacity: Amount::new(24_000, 24 << 30),
        ..Options::default()
    };
    println!("\nnodes of 24 cores, 20 calls a node, 4 shards: completion s");
    for nodes in [10, 20, 30, 40, 50] {
        let report = one(
            &format!("scaling-{}", 20 * nodes),
            1,
            &options(nodes, 4),
            Policy::Dayfly,
        );
        println!("{nodes} nodes: {:.3}", report.completion_s);
    }
    for shards in 1..=4 {
        for nodes in [10, 50] {
            let report = one("scaling-1000", 1, &options(nodes, shards), Policy::Dayfly);
            println!(
                "1,000 calls, {nodes} nodes, {shards} shards: {:.3} s",
                report.completion_s
            );
        }
    }
    for nodes in [50, 1_000] {
        let report = one("scaling-1000", 1, &options(nodes, 4), Policy::Dayfly);
        println!("{nodes} nodes, 4 shards: one decision {:?} us", report.decision_p50_us);
    }
}

/// The report of one policy, with measured decisions.
fn one(kind: &str, seed: u64, options: &Options, policy: Policy) -> Report {
    let functions = Functions::measured();
    let trace = kind.parse::<Generator>().unwrap().generate(functions, seed);
    let history = history(&trace, functions, 100, seed);
    let options = Options {
        seed,
        ..options.clone()
    };
    let begin = std::time::Instant::now();
    let mut clock = || begin.elapsed().as_nanos() as u64;
    let study = Study::new(trace.calls(), &history, options).unwrap();
    study.run(policy, &mut clock).unwrap().0
}

#[test]
#[ignore = "prints"]
fn slowest_calls_are_printed() {
    let functions = Functions::measured();
    for seed in 1..=3 {
        let trace = "single".parse::<Generator>().unwrap().generate(functions, seed);
        let history = history(&trace, functions, 100, seed);
        let study = Study::new(trace.calls(), &history, Options::default()).unwrap();
        let dayfly = study.run(Policy::Dayfly, &mut || 0).unwrap().1.records;
        let oracle = study.run(Policy::Oracle, &mut || 0).unwrap().1.records;
        let without = study.without();
        let mut order: Vec<_> = (0..without.len()).collect();
        order.sort_by_key(|index| std::cmp::Reverse(without[*index].response_us()));
        println!("\nseed {seed}: function, default s, dayfly s, oracle s, own cores, peak cores, core-s");
        for index in order.into_iter().take(8) {
            let call = &trace.calls()[index];
            println!(
                "{:<16}{:>8.2}{:>8.2}{:>8.2}{:>6.1}{:>6.1}{:>8.2}",
                trace.function_name(call.function),
                without[index].response_us() as f64 / 1e6,
                dayfly[index].response_us() as f64 / 1e6,
                oracle[index].response_us() as f64 / 1e6,
                call.owned.milli_cores as f64 / 1e3,
                call.peak().milli_cores as f64 / 1e3,
                call.core_us() as f64 / 1e6,
            );
        }
    }
}

#[test]
fn single_gains_most_of_what_the_oracle_gains() {
    for seed in 1..=4 {
        let [default, dayfly, oracle] = [Policy::Default, Policy::Dayfly, Policy::Oracle]
            .map(|policy| one("single", seed, &Options::default(), policy));
        let gain = |report: &Report| default.p99_s - report.p99_s;
        assert!(gain(&oracle) > 0.3 * default.p99_s, "seed {seed}: {oracle}");
        assert!(gain(&dayfly) >= 0.9 * gain(&oracle), "seed {seed}: {dayfly}");
        assert!(dayfly.completion_s <= default.completion_s, "seed {seed}: {dayfly}");
    }
}

/// Calls that end earlier need fewer workers, so a later call may have to wait for a new one: nothing else slows any.
#[test]
fn calls_are_slowed_by_cold_starts_alone() {
    let cluster = Options {
        nodes: 4,
        capacity: dayfly_harvest::Amount::new(32_000, 32 << 30),
        ..Options::default()
    };
    for (kind, options) in [
        ("single", Options::default()),
        ("single-related", Options::default()),
        ("single-unrelated", Options::default()),
        ("multi-60", cluster.clone()),
        ("multi-300", cluster),
    ] {
        for seed in 5..=8 {
            let report = one(kind, seed, &options, Policy::Dayfly);
            let slowed = report.slowed.unwrap();
            assert_eq!(
                (slowed.queue, slowed.memory, slowed.running),
                (0, 0, 0),
                "{kind}, seed {seed}: {report}"
            );
            assert!(slowed.cold_start * 50 <= report.calls, "{kind}, seed {seed}: {report}");
        }
    }
}

#[test]
fn lenders_of_libra_are_slowed() {
    let worst = |policy| one("single", 1, &Options::default(), policy).worst_degradation;
    assert!(worst(Policy::Libra) > worst(Policy::Dayfly));
}

/// 2,000 calls a minute for 500 minutes.
#[test]
#[ignore = "takes minutes"]
fn million_calls_are_simulated() {
    use dayfly_harvest::Amount;
    let functions = Functions::measured();
    let mut calls = Vec::new();
    for minute in 0..500 {
        let trace = "multi-2000".parse::<Generator>().unwrap().generate(functions, minute);
        calls.extend(trace.calls().iter().map(|call| dayfly_simulate::Call {
            arrival_us: call.arrival_us + minute * 60_000_000,
            ..*call
        }));
    }
    let options = Options {
        nodes: 8,
        capacity: Amount::new(32_000, 32 << 30),
        shards: 4,
        ..Options::default()
    };
    for count in [250_000, 1_000_000] {
        let begin = std::time::Instant::now();
        let study = Study::new(&calls[..count], &[], options.clone()).unwrap();
        let without_s = begin.elapsed().as_secs_f64();
        let report = study.run(Policy::Dayfly, &mut || 0).unwrap().0;
        let both_s = begin.elapsed().as_secs_f64();
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let peak = status
            .lines()
            .find(|line| line.starts_with("VmHWM"))
            .unwrap_or_default();
        println!("{count} calls: default {without_s:.1} s, with dayfly {both_s:.1} s, {peak}; {report}");
    }
}
