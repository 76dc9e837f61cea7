//! The figures of clusters: 9 to 12, and 16.

use dayfly_harvest::SchedulerKind;

use super::{Chart, Lab, Series, line, mean, node, panel};
use crate::cluster::{Options, SimulateError};
use crate::generate::{Generator, MULTI_RATES};
use crate::policy::Policy;

/// Time between two points of use, of which the highest is the peak.
const TIMELINE_US: u64 = 500_000;
/// Calls a minute at which the weight of coverage is varied.
const WEIGHT_RATE: u32 = 120;
/// Nodes of the scaling clusters.
const SCALING_NODES: [usize; 5] = [10, 20, 30, 40, 50];
/// Calls of weak scaling for each node.
pub(super) const CALLS_A_NODE: u32 = 20;
const MAX_SHARDS: usize = 4;

const RATE: &str = "calls a minute";
const LATENCY: &str = "response latency (s)";

pub(super) fn draw(lab: &mut Lab<'_>) -> Result<Vec<(&'static str, Chart)>, SimulateError> {
    let [figure_9, figure_10, figure_11] = rates(lab)?;
    Ok(vec![
        ("figure-09", figure_9),
        ("figure-10", figure_10),
        ("figure-11", figure_11),
        ("figure-12", scaling(lab)?),
        ("figure-16", weights(lab)?),
    ])
}

/// Four nodes of 32 cores.
fn four_nodes() -> Options {
    Options {
        nodes: 4,
        capacity: node(32),
        ..Options::default()
    }
}

/// What one scheduler reaches at one rate, in the mean over seeds.
#[derive(Debug, Clone, Copy, Default)]
struct Figures {
    p99_s: f64,
    completion_s: f64,
    idle_core_s: f64,
    idle_gib_s: f64,
    cpu: [f64; 2],
    memory: [f64; 2],
}

impl Figures {
    fn of(
        lab: &mut Lab<'_>,
        generator: Generator,
        options: &Options,
        borrows_memory: bool,
    ) -> Result<Self, SimulateError> {
        let mut mean = Self::default();
        let part = 1.0 / lab.seeds as f64;
        for seed in lab.all_seeds() {
            let runs = lab.run(generator, &[Policy::Dayfly], seed, options, borrows_memory)?;
            for run in &runs {
                let peak = |of: fn(&crate::cluster::TimelinePoint) -> f64| {
                    run.outcome.timeline.iter().map(of).fold(0.0, f64::max)
                };
                mean.p99_s += part * run.report.p99_s;
                mean.completion_s += part * run.report.completion_s;
                mean.idle_core_s += part * run.report.idle_core_s;
                mean.idle_gib_s += part * run.report.idle_memory_gib_s;
                mean.cpu[0] += 100.0 * part * run.report.cpu_use;
                mean.cpu[1] += 100.0 * part * peak(|point| point.cpu);
                mean.memory[0] += 100.0 * part * run.report.memory_use;
                mean.memory[1] += 100.0 * part * peak(|point| point.memory);
            }
        }
        Ok(mean)
    }
}

fn rates(lab: &mut Lab<'_>) -> Result<[Chart; 3], SimulateError> {
    let mut all = Vec::new();
    for scheduler in SchedulerKind::ALL {
        let options = Options {
            scheduler,
            timeline_us: TIMELINE_US,
            ..four_nodes()
        };
        let of = |rate| Figures::of(lab, Generator::Multi(rate), &options, false);
        let figures = MULTI_RATES.into_iter().map(of).collect::<Result<Vec<_>, _>>()?;
        all.push((scheduler.name(), figures));
    }
    let by = |of: fn(&Figures) -> f64| -> Vec<Series> {
        let points = |figures: &[Figures]| {
            MULTI_RATES
                .iter()
                .map(|rate| f64::from(*rate))
                .zip(figures.iter().map(of))
                .collect()
        };
        all.iter().map(|(name, figures)| line(name, points(figures))).collect()
    };
    let chart = |title: &str, panels| Chart {
        title: title.into(),
        subtitle: format!("4 nodes of 32 cores, a minute of calls; means over {} seeds", lab.seeds),
        panels,
    };
    Ok([
        chart(
            "Latency of five schedulers",
            vec![panel(
                "Latency that 99 % of calls do not exceed",
                RATE,
                LATENCY,
                by(|all| all.p99_s),
            )],
        ),
        chart(
            "Completion and idle harvested resources of five schedulers",
            vec![
                panel(
                    "(a) From the first arrival to the last end",
                    RATE,
                    "completion time (s)",
                    by(|all| all.completion_s),
                ),
                panel(
                    "(b) Processor time that was harvested and not lent",
                    RATE,
                    "core-seconds",
                    by(|all| all.idle_core_s),
                ),
                panel(
                    "(c) Memory that was harvested and not lent",
                    RATE,
                    "GiB-seconds",
                    by(|all| all.idle_gib_s),
                ),
            ],
        ),
        chart(
            "Use of processors and memory by five schedulers",
            vec![
                panel("(a) Processors, mean", RATE, "processor use (%)", by(|all| all.cpu[0])),
                panel(
                    "(b) Processors, highest half second",
                    RATE,
                    "processor use (%)",
                    by(|all| all.cpu[1]),
                ),
                panel("(c) Memory, mean", RATE, "memory use (%)", by(|all| all.memory[0])),
                panel(
                    "(d) Memory, highest half second",
                    RATE,
                    "memory use (%)",
                    by(|all| all.memory[1]),
                ),
            ],
        ),
    ])
}

fn scaling(lab: &mut Lab<'_>) -> Result<Chart, SimulateError> {
    let calls_a_node = lab.calls_a_node;
    let mut completion = |calls: u32, nodes: usize, shards: usize| {
        let options = Options {
            nodes,
            shards,
            capacity: node(24),
            ..Options::default()
        };
        let runs = lab.run(Generator::Scaling(calls), &[Policy::Dayfly], lab.seed, &options, false)?;
        let run = &runs[0];
        let decisions: Vec<_> = run
            .outcome
            .decisions_ns
            .iter()
            .map(|took| f64::from(*took) / 1e3)
            .collect();
        Ok::<_, SimulateError>((run.report.completion_s, mean(&decisions)))
    };
    let (mut strong, mut weak, mut overhead) = (Vec::new(), Vec::new(), Vec::new());
    for shards in 1..=MAX_SHARDS {
        let (mut of_strong, mut of_weak) = (Vec::new(), Vec::new());
        for nodes in SCALING_NODES {
            of_strong.push((nodes as f64, completion(50 * calls_a_node, nodes, shards)?.0));
            of_weak.push((nodes as f64, completion(calls_a_node * nodes as u32, nodes, shards)?.0));
        }
        let name = format!("{shards} schedulers");
        let name = if shards == 1 { "1 scheduler" } else { &name };
        strong.push(line(name, of_strong));
        weak.push(line(name, of_weak));
    }
    for calls in SCALING_NODES.map(|nodes| calls_a_node * nodes as u32) {
        overhead.push((f64::from(calls), completion(calls, 50, MAX_SHARDS)?.1));
    }
    let seconds = "completion time (s)";
    Ok(Chart {
        title: "Scaling with nodes and schedulers".into(),
        subtitle: format!("Nodes of 24 cores, all calls at once, seed {}", lab.seed),
        panels: vec![
            panel(
                &format!("(a) {} calls on more nodes", 50 * calls_a_node),
                "nodes",
                seconds,
                strong,
            ),
            panel(
                &format!("(b) {calls_a_node} calls for each node"),
                "nodes",
                seconds,
                weak,
            ),
            panel(
                "(c) Mean time of a decision, 50 nodes",
                "calls at once",
                "time of a decision (us)",
                vec![line("4 schedulers", overhead)],
            ),
        ],
    })
}

fn weights(lab: &mut Lab<'_>) -> Result<Chart, SimulateError> {
    let (mut cpu, mut memory, mut p99) = (Vec::new(), Vec::new(), Vec::new());
    for percent in (0..=100).step_by(10) {
        let weight = f64::from(percent) / 100.0;
        let options = Options {
            cpu_weight_percent: percent,
            ..four_nodes()
        };
        let figures = Figures::of(lab, Generator::Multi(WEIGHT_RATE), &options, true)?;
        cpu.push((weight, figures.idle_core_s));
        memory.push((weight, figures.idle_gib_s));
        p99.push((weight, figures.p99_s));
    }
    let x = "weight of processor time in the demand coverage";
    Ok(Chart {
        title: "Weight of processor time in the demand coverage".into(),
        subtitle: format!(
            "{WEIGHT_RATE} calls a minute that also borrow memory, 4 nodes of 32 cores; means over {} seeds",
            lab.seeds
        ),
        panels: vec![
            panel(
                "(a) Processor time that was harvested and not lent",
                x,
                "core-seconds",
                vec![line("dayfly", cpu)],
            ),
            panel(
                "(b) Memory that was harvested and not lent",
                x,
                "GiB-seconds",
                vec![line("dayfly", memory)],
            ),
            panel(
                "(c) Latency that 99 % of calls do not exceed",
                x,
                LATENCY,
                vec![line("dayfly", p99)],
            ),
        ],
    })
}
