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
    println!(
        "{:<13}{:>27}{:>27}{:>27}{:>24}{:>24}{:>22}",
        "policy", "p99", "completion", "mean", "worst degradation", "memory use / default", "p99 gain / oracle"
    );
    for (index, policy) in Policy::ALL.iter().enumerate() {
        let against = |of: fn(&Report) -> f64| {
            let changes = all
                .iter()
                .map(|reports| 100.0 * (of(&reports[index]) / of(&reports[0]) - 1.0));
            median_and_range(changes.collect())
        };
        let oracle = Policy::ALL.iter().position(|policy| *policy == Policy::Oracle).unwrap();
        let gain = all.iter().map(|reports| {
            let gain = |report: &Report| reports[0].p99_s - report.p99_s;
            100.0 * gain(&reports[index]) / gain(&reports[oracle]).max(1e-9)
        });
        println!(
            "{:<13}{:>27}{:>27}{:>27}{:>24}{:>24}{:>22}",
            policy.name(),
            against(|report| report.p99_s),
            against(|report| report.completion_s),
            against(|report| report.mean_s),
            median_and_range(
                all.iter()
                    .map(|reports| 100.0 * reports[index].worst_degradation.unwrap())
                    .collect()
            ),
            median_and_range(
                all.iter()
                    .map(|reports| 100.0 * reports[index].memory_use / reports[0].memory_use)
                    .collect()
            ),
            median_and_range(gain.collect()),
        );
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
