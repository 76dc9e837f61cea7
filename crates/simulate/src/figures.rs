//! Drawings of simulations: figures 6 to 14 and 16 of LIBRA (Yu and others, HPDC 2023), by the numbers that they have there.
//! `bench harvest` measures what figure 15 shows.

mod chart;
mod cluster;
mod single;

use dayfly_harvest::Amount;

use crate::cluster::{Options, Outcome, SimulateError};
use crate::functions::Functions;
use crate::generate::Generator;
use crate::history::history;
use crate::policy::Policy;
use crate::record::Record;
use crate::report::Report;
use crate::study::Study;
use chart::{Chart, Panel, Series, Shape};

/// Calls of each function that policies have learned from.
const HISTORY: usize = 100;
/// Traces that a mean is over: as many as the paper repeats each experiment.
const SEEDS: u64 = 5;

/// One figure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figure {
    /// Name of its file, without the ending: `figure-06`.
    pub name: &'static str,
    /// The drawing, an SVG document.
    pub svg: String,
}

/// Draws all figures. The same seed gives the same ones, but for the time of decisions, which `clock_ns` measures.
///
/// # Errors
///
/// [`SimulateError`] for measurements of functions that cannot be simulated.
pub fn figures(
    functions: &Functions,
    seed: u64,
    clock_ns: &mut dyn FnMut() -> u64,
) -> Result<Vec<Figure>, SimulateError> {
    draw(&mut Lab {
        functions,
        seed,
        seeds: SEEDS,
        calls_a_node: cluster::CALLS_A_NODE,
        clock_ns,
    })
}

fn draw(lab: &mut Lab<'_>) -> Result<Vec<Figure>, SimulateError> {
    let mut all = single::draw(lab)?;
    all.extend(cluster::draw(lab)?);
    let figure = |(name, chart): (&'static str, Chart)| Figure {
        name,
        svg: chart.to_svg(),
    };
    let mut figures: Vec<_> = all.into_iter().map(figure).collect();
    figures.sort_by_key(|figure| figure.name);
    Ok(figures)
}

/// What simulations are made of.
struct Lab<'a> {
    functions: &'a Functions,
    seed: u64,
    /// Traces that a mean is over.
    seeds: u64,
    /// Calls of weak scaling for each node. Strong scaling has 50 times as many in all.
    calls_a_node: u32,
    clock_ns: &'a mut dyn FnMut() -> u64,
}

/// One policy on one trace.
struct Run {
    report: Report,
    outcome: Outcome,
    /// The calls without harvesting.
    without: Vec<Record>,
}

impl Lab<'_> {
    /// Seeds of the traces that means are over.
    fn all_seeds(&self) -> impl Iterator<Item = u64> + use<> {
        let first = self.seed;
        (0..self.seeds).map(move |number| first.wrapping_add(number))
    }

    /// Runs policies on a generated trace.
    fn run(
        &mut self,
        generator: Generator,
        policies: &[Policy],
        seed: u64,
        options: &Options,
        borrows_memory: bool,
    ) -> Result<Vec<Run>, SimulateError> {
        let trace = generator.generate(self.functions, seed);
        let history = history(&trace, self.functions, HISTORY, seed);
        let mut calls = trace.calls().to_vec();
        calls.iter_mut().for_each(|call| call.borrow_memory = borrows_memory);
        let options = Options {
            seed,
            ..options.clone()
        };
        let study = Study::new(&calls, &history, options)?;
        let run = |policy: &Policy| {
            let (report, outcome) = study.run(*policy, self.clock_ns)?;
            Ok(Run {
                report,
                outcome,
                without: study.without().to_vec(),
            })
        };
        policies.iter().map(run).collect()
    }
}

impl Run {
    /// By how much each call was faster than without harvesting, in percent of that: sorted.
    fn speedups(&self) -> Vec<f64> {
        let pairs = self.outcome.records.iter().zip(&self.without);
        let mut speedups: Vec<_> = pairs.map(|(record, without)| speedup(record, without)).collect();
        speedups.sort_by(f64::total_cmp);
        speedups
    }

    /// Seconds from arrival to end, sorted.
    fn responses(&self) -> Vec<f64> {
        let mut responses: Vec<_> = self
            .outcome
            .records
            .iter()
            .map(|record| record.response_us() as f64 / 1e6)
            .collect();
        responses.sort_by(f64::total_cmp);
        responses
    }
}

/// By how much a call was faster than without harvesting, in percent of that.
fn speedup(record: &Record, without: &Record) -> f64 {
    let (now, before) = (record.response_us() as f64, without.response_us() as f64);
    if before > 0.0 {
        100.0 * (1.0 - now / before)
    } else {
        0.0
    }
}

/// A node of cores with a gibibyte of memory each.
fn node(cores: u64) -> Amount {
    Amount::new(1000 * cores, cores << 30)
}

/// The share of values up to each, as steps.
fn distribution(name: &str, sorted: &[f64]) -> Series {
    let share = |number: usize| 100.0 * number as f64 / sorted.len().max(1) as f64;
    let first = sorted.first().map(|least| (*least, 0.0));
    let steps = sorted
        .iter()
        .enumerate()
        .map(|(index, value)| (*value, share(index + 1)));
    Series {
        name: name.into(),
        shape: Shape::Steps,
        points: first.into_iter().chain(steps).collect(),
    }
}

fn line(name: &str, points: Vec<(f64, f64)>) -> Series {
    Series {
        name: name.into(),
        shape: Shape::Line,
        points,
    }
}

fn panel(title: &str, x: &'static str, y: &'static str, series: Vec<Series>) -> Panel {
    Panel {
        title: title.into(),
        x,
        y,
        from_zero: true,
        series,
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_figures_are_drawn_with_titles() {
        let figures = draw(&mut Lab {
            functions: Functions::measured(),
            seed: 1,
            seeds: 1,
            calls_a_node: 2,
            clock_ns: &mut || 0,
        })
        .unwrap();
        let names: Vec<_> = figures.iter().map(|figure| figure.name).collect();
        let numbers = [6, 7, 8, 9, 10, 11, 12, 13, 14, 16];
        assert_eq!(names, numbers.map(|number| format!("figure-{number:02}")));
        for figure in &figures {
            assert!(figure.svg.starts_with("<svg"), "{}", figure.name);
            assert!(figure.svg.ends_with("</svg>\n"), "{}", figure.name);
            assert!(!figure.svg.contains("NaN"), "{}", figure.name);
        }
    }

    #[test]
    fn distribution_ends_at_all_values() {
        let series = distribution("one", &[1.0, 3.0]);
        assert_eq!(series.points, [(1.0, 0.0), (1.0, 50.0), (3.0, 100.0)]);
        assert!(distribution("none", &[]).points.is_empty());
    }
}
