//! Measures a baseline and a subject in turns, so that the machine's drift affects both alike.

use crate::error::Error;
use crate::stats::{Samples, Summary, percentile};
use serde::{Deserialize, Serialize};

/// Makes calls in blocks and times each of them.
pub trait Block {
    /// Makes `calls` calls one after the other and records the latency of each.
    fn block(&mut self, calls: usize, samples: &mut Samples) -> Result<(), Error>;

    /// Undoes [`Block::pause`]. Called before each block.
    fn resume(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Makes the other side stop polling, so that it leaves its core to the next measurement.
    fn pause(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

impl<F: FnMut(usize, &mut Samples) -> Result<(), Error>> Block for F {
    fn block(&mut self, calls: usize, samples: &mut Samples) -> Result<(), Error> {
        self(calls, samples)
    }
}

/// Numbers of calls and turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Turns of each side.
    pub blocks: usize,
    /// Measured calls of each side in one turn.
    pub calls: usize,
    /// Calls before the measured ones, to warm caches, branch predictors and the core's clock.
    pub warm_up: usize,
}

impl Plan {
    /// Makes a plan for a total number of measured calls in 20 turns, or fewer if there are few calls.
    pub fn of_calls(calls: usize) -> Self {
        let blocks = calls.clamp(1, 20);
        let per_block = calls.div_ceil(blocks).max(1);
        Plan {
            blocks,
            calls: per_block,
            warm_up: (per_block / 10).clamp(1, 2000),
        }
    }
}

/// Comparison of the subject with the baseline.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// The subject's median minus the baseline's.
    pub overhead_p50_ns: f64,
    /// The subject's 99th percentile minus the baseline's.
    pub overhead_p99_ns: f64,
    /// The subject's 99.9th percentile minus the baseline's.
    pub overhead_p999_ns: f64,
    /// The median, over the turns, of the difference of the two medians of one turn: drift that lasts longer than a
    /// turn cancels out of it.
    pub overhead_paired_p50_ns: f64,
    /// The subject's median over the baseline's.
    pub ratio_p50: f64,
    /// The subject's 99th percentile over the baseline's.
    pub ratio_p99: f64,
}

/// Both sets of samples of one alternating measurement.
#[derive(Debug, Clone)]
pub struct Alternated {
    /// Latencies of the baseline.
    pub baseline: Samples,
    /// Latencies of the subject.
    pub subject: Samples,
    /// For each turn, the subject's median minus the baseline's, in nanoseconds.
    pub turns: Vec<f64>,
}

impl Alternated {
    /// The baseline's percentiles.
    pub fn baseline(&self) -> Summary {
        self.baseline.summary()
    }

    /// The subject's percentiles.
    pub fn subject(&self) -> Summary {
        self.subject.summary()
    }

    /// Returns differences and ratios.
    pub fn difference(&self) -> Difference {
        Difference::between(&self.baseline(), &self.subject(), &self.turns)
    }
}

impl Difference {
    /// Compares two summaries; `turns` are the differences of the medians of each pair of blocks.
    pub fn between(baseline: &Summary, subject: &Summary, turns: &[f64]) -> Self {
        let mut turns = turns.to_vec();
        turns.sort_unstable_by(f64::total_cmp);
        let tenth = |ns: f64| (ns * 10.0).round() / 10.0;
        let ratio = |a: f64, b: f64| {
            if b > 0.0 {
                (a / b * 1000.0).round() / 1000.0
            } else {
                0.0
            }
        };
        Difference {
            overhead_p50_ns: tenth(subject.p50_ns - baseline.p50_ns),
            overhead_p99_ns: tenth(subject.p99_ns - baseline.p99_ns),
            overhead_p999_ns: tenth(subject.p999_ns - baseline.p999_ns),
            overhead_paired_p50_ns: tenth(percentile(&turns, 0.5)),
            ratio_p50: ratio(subject.p50_ns, baseline.p50_ns),
            ratio_p99: ratio(subject.p99_ns, baseline.p99_ns),
        }
    }
}

/// Measures a subject without a baseline, as [`alternate`] does.
pub fn measure(subject: &mut dyn Block, plan: Plan) -> Result<Samples, Error> {
    let mut samples = Samples::with_capacity(plan.blocks * plan.calls);
    let mut scratch = Samples::with_capacity(plan.warm_up);
    for _ in 0..plan.blocks {
        turn(subject, plan, &mut samples, &mut scratch)?;
    }
    Ok(samples)
}

/// Measures baseline and subject in turns. The side that goes first alternates.
pub fn alternate(baseline: &mut dyn Block, subject: &mut dyn Block, plan: Plan) -> Result<Alternated, Error> {
    let room = plan.blocks * plan.calls;
    let mut both = Alternated {
        baseline: Samples::with_capacity(room),
        subject: Samples::with_capacity(room),
        turns: Vec::with_capacity(plan.blocks),
    };
    let mut scratch = Samples::with_capacity(plan.warm_up);
    for number in 0..plan.blocks {
        let (first_baseline, first_subject) = (both.baseline.len(), both.subject.len());
        if number % 2 == 0 {
            turn(baseline, plan, &mut both.baseline, &mut scratch)?;
            turn(subject, plan, &mut both.subject, &mut scratch)?;
        } else {
            turn(subject, plan, &mut both.subject, &mut scratch)?;
            turn(baseline, plan, &mut both.baseline, &mut scratch)?;
        }
        both.turns
            .push(both.subject.median_from(first_subject) - both.baseline.median_from(first_baseline));
    }
    Ok(both)
}

fn turn(block: &mut dyn Block, plan: Plan, samples: &mut Samples, scratch: &mut Samples) -> Result<(), Error> {
    block.resume()?;
    scratch.clear();
    let measured = block
        .block(plan.warm_up, scratch)
        .and_then(|()| block.block(plan.calls, samples));
    // The other side is measured next, so the pollers must stop even if this side failed.
    measured.and(block.pause())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn fixed(ns: f64, log: &RefCell<String>, name: char) -> impl FnMut(usize, &mut Samples) -> Result<(), Error> {
        move |calls, samples| {
            if calls > 1 {
                log.borrow_mut().push(name);
            }
            (0..calls).for_each(|_| samples.push_ns(ns));
            Ok(())
        }
    }

    #[test]
    fn turns_alternate_their_first_side() {
        let log = RefCell::new(String::new());
        let (mut b, mut s) = (fixed(100.0, &log, 'b'), fixed(150.0, &log, 's'));
        let both = alternate(
            &mut b,
            &mut s,
            Plan {
                blocks: 4,
                calls: 10,
                warm_up: 1,
            },
        )
        .unwrap();
        assert_eq!(*log.borrow(), "bssbbssb");
        assert_eq!((both.baseline.len(), both.subject.len(), both.turns.len()), (40, 40, 4));
    }

    #[test]
    fn difference_and_ratio_compare_subject_with_baseline() {
        let log = RefCell::new(String::new());
        let (mut b, mut s) = (fixed(10_000.0, &log, 'b'), fixed(15_000.0, &log, 's'));
        let d = alternate(
            &mut b,
            &mut s,
            Plan {
                blocks: 3,
                calls: 5,
                warm_up: 1,
            },
        )
        .unwrap()
        .difference();
        assert!((d.overhead_p50_ns - 5000.0).abs() < 2.0, "{d:?}");
        assert!((d.overhead_paired_p50_ns - 5000.0).abs() < 2.0, "{d:?}");
        assert!(
            (d.ratio_p50 - 1.5).abs() < 0.01 && (d.ratio_p99 - 1.5).abs() < 0.01,
            "{d:?}"
        );
    }

    #[test]
    fn drift_cancels_out_of_the_paired_difference() {
        // The machine becomes ten times slower half-way; the subject is always 50 ns over the baseline.
        let summary = Summary::of([0.0]);
        let d = Difference::between(&summary, &summary, &[50.0, 51.0, 49.0, 50.0]);
        assert_eq!(d.overhead_paired_p50_ns, 50.0);
    }

    #[test]
    fn failing_subject_is_paused_and_reported() {
        struct Broken(bool);
        impl Block for Broken {
            fn block(&mut self, _: usize, _: &mut Samples) -> Result<(), Error> {
                Err(Error::Subject("no such function".into()))
            }
            fn pause(&mut self) -> Result<(), Error> {
                self.0 = true;
                Ok(())
            }
        }
        let mut broken = Broken(false);
        let error = measure(&mut broken, Plan::of_calls(10)).unwrap_err();
        assert!(error.to_string().contains("no such function") && broken.0);
    }

    #[test]
    fn plan_makes_at_least_the_requested_calls() {
        for calls in [1, 7, 20, 1001, 1_000_000] {
            let plan = Plan::of_calls(calls);
            assert!(
                plan.blocks * plan.calls >= calls && plan.blocks * plan.calls < calls + plan.blocks,
                "{plan:?}"
            );
        }
    }
}
