//! The figures of one node of 72 cores: 6, 7, 8, 13 and 14.

use super::{Chart, Lab, Panel, Run, Series, Shape, distribution, line, mean, panel, speedup};
use crate::cluster::{Options, SimulateError};
use crate::generate::{Generator, Mix};
use crate::policy::Policy;

/// Those of the paper's six, with what is published and what could be reached. Ours is drawn above the others.
const POLICIES: [Policy; 8] = [
    Policy::Default,
    Policy::Freyr,
    Policy::Libra,
    Policy::NoSafeguard,
    Policy::NoProfiler,
    Policy::Neither,
    Policy::Oracle,
    Policy::Dayfly,
];
/// Time between two points of use.
const TIMELINE_US: u64 = 100_000;
/// Reassigned core-seconds below which a call counts as left alone.
const NOTHING_CORE_S: f32 = 1e-3;

const LATENCY: &str = "response latency (s)";
const SPEEDUP: &str = "faster than without harvesting (%)";
const SHARE: &str = "share of calls (%)";

pub(super) fn draw(lab: &mut Lab<'_>) -> Result<Vec<(&'static str, Chart)>, SimulateError> {
    let options = Options {
        timeline_us: TIMELINE_US,
        ..Options::default()
    };
    let hybrid = Generator::Single(Mix::Hybrid);
    let runs = lab.run(hybrid, &POLICIES, lab.seed, &options, false)?;
    let setting = format!("165 calls, one node of 72 cores, seed {}", lab.seed);
    Ok(vec![
        ("figure-06", latencies(&runs, &setting)),
        ("figure-07", use_over_time(&runs, &setting)),
        ("figure-08", calls(&runs, &setting)),
        ("figure-13", input_sizes(lab, &setting)?),
        ("figure-14", thresholds(lab)?),
    ])
}

fn latencies(runs: &[Run], setting: &str) -> Chart {
    let responses = runs
        .iter()
        .map(|run| distribution(name(run), &run.responses()))
        .collect();
    let speedups = runs
        .iter()
        .map(|run| distribution(name(run), &run.speedups()))
        .collect();
    Chart {
        title: "Latency and speed-up of calls under each policy".into(),
        subtitle: setting.into(),
        panels: vec![
            panel("(a) Response latency", LATENCY, SHARE, responses),
            panel("(b) Speed-up", SPEEDUP, SHARE, speedups),
        ],
    }
}

fn name(run: &Run) -> &'static str {
    run.report.policy.name()
}

fn use_over_time(runs: &[Run], setting: &str) -> Chart {
    let of = |share: fn(&crate::cluster::TimelinePoint) -> f64| {
        let series = |run: &Run| {
            let points = run.outcome.timeline.iter();
            let points = points.map(|point| (point.at_us as f64 / 1e6, 100.0 * share(point)));
            line(name(run), points.collect())
        };
        runs.iter().map(series).collect()
    };
    Chart {
        title: "Use of a node's processors and memory over time".into(),
        subtitle: setting.into(),
        panels: vec![
            panel("(a) Processors", "time (s)", "processor use (%)", of(|point| point.cpu)),
            panel("(b) Memory", "time (s)", "memory use (%)", of(|point| point.memory)),
        ],
    }
}

/// Each call as a mark: what it gave or got, and what came of it.
fn calls(runs: &[Run], setting: &str) -> Chart {
    let panel_of = |run: &Run| {
        let mut series = ["as configured", "accelerated", "harvested", "safeguarded"].map(|name| Series {
            name: name.into(),
            shape: Shape::Marks,
            points: Vec::new(),
        });
        for (record, without) in run.outcome.records.iter().zip(&run.without) {
            let reassigned = record.borrowed_core_s - record.offered_core_s;
            let kind = if record.is_safeguarded {
                3
            } else if reassigned < -NOTHING_CORE_S {
                2
            } else {
                usize::from(reassigned > NOTHING_CORE_S)
            };
            series[kind]
                .points
                .push((f64::from(reassigned), speedup(record, without)));
        }
        Panel {
            title: name(run).into(),
            x: "borrowed less offered processor time (core-seconds)",
            y: SPEEDUP,
            from_zero: true,
            series: series.into(),
        }
    };
    Chart {
        title: "What each call lent or borrowed, and its speed-up".into(),
        subtitle: setting.into(),
        panels: runs
            .iter()
            .filter(|run| run.report.policy != Policy::Default)
            .map(panel_of)
            .collect(),
    }
}

fn input_sizes(lab: &mut Lab<'_>, setting: &str) -> Result<Chart, SimulateError> {
    let models = [Policy::Dayfly, Policy::Histogram, Policy::Forest];
    let published = [Policy::Default, Policy::Freyr, Policy::Dayfly];
    let mut speedups = |title: &str, mix, policies: &[Policy]| {
        let runs = lab.run(Generator::Single(mix), policies, lab.seed, &Options::default(), false)?;
        let series = runs
            .iter()
            .map(|run| distribution(name(run), &run.speedups()))
            .collect();
        Ok(panel(title, SPEEDUP, SHARE, series))
    };
    Ok(Chart {
        title: "Speed-up by models, and by the kind of function".into(),
        subtitle: setting.into(),
        panels: vec![
            speedups(
                "(a) All functions: both models, histograms alone, forests alone",
                Mix::Hybrid,
                &models,
            )?,
            speedups(
                "(b) Functions whose demand the input's size decides",
                Mix::Related,
                &published,
            )?,
            speedups(
                "(c) Functions whose demand the input's content decides",
                Mix::Unrelated,
                &published,
            )?,
        ],
    })
}

fn thresholds(lab: &mut Lab<'_>) -> Result<Chart, SimulateError> {
    let (mut safeguarded, mut p99) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    let policies = [Policy::Dayfly, Policy::Libra];
    for tenth in 0..=10 {
        let threshold = f64::from(tenth) / 10.0;
        let options = Options {
            safeguard: Some(threshold),
            ..Options::default()
        };
        let mut sums = [[0.0; 2]; 2];
        for seed in lab.all_seeds() {
            let runs = lab.run(Generator::Single(Mix::Hybrid), &policies, seed, &options, false)?;
            for (sum, run) in sums.iter_mut().zip(&runs) {
                let records = &run.outcome.records;
                let guarded: Vec<_> = records
                    .iter()
                    .map(|record| 100.0 * f64::from(u8::from(record.is_safeguarded)))
                    .collect();
                sum[0] += mean(&guarded) / lab.seeds as f64;
                sum[1] += run.report.p99_s / lab.seeds as f64;
            }
        }
        for (index, [guarded, slowest]) in sums.into_iter().enumerate() {
            safeguarded[index].push((threshold, guarded));
            p99[index].push((threshold, slowest));
        }
    }
    let both = |points: [Vec<(f64, f64)>; 2]| {
        let lines = policies.iter().zip(points);
        lines.map(|(policy, points)| line(policy.name(), points)).collect()
    };
    let x = "threshold of the safeguard (share of what a lender keeps)";
    Ok(Chart {
        title: "Threshold of the safeguard".into(),
        subtitle: format!("165 calls, one node of 72 cores; means over {} seeds", lab.seeds),
        panels: vec![
            panel(
                "(a) Calls that the safeguard gave their units back",
                x,
                "share of calls (%)",
                both(safeguarded),
            ),
            panel("(b) Latency that 99 % of calls do not exceed", x, LATENCY, both(p99)),
        ],
    })
}
