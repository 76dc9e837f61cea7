//! Demand of ten measured functions by the size of their input.
//!
//! `data/functions.json` has the measurements, with when, how and on which kind of machine they were made;
//! `measure.py` makes them. A function that is related to its input's size has curves: the median of each measured
//! size, made monotone, with logarithmic interpolation in between and the measured extremes beyond. A call adds the
//! residual of one measured run, drawn at random. For an unrelated function, the content of the input decides: a call
//! repeats one measured run, drawn independently of the size that its caller states.

mod curve;

use std::sync::OnceLock;

use dayfly_harvest::random::Random;
use dayfly_harvest::{Amount, Features};
use serde::Deserialize;

use crate::call::{MAX_PHASES, Phase, Phases};
use curve::Curve;

/// Why measurements cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FunctionsError {
    /// Not JSON of the expected structure.
    #[error("The measurements cannot be read: {0}. Write the file anew with crates/simulate/measure.py.")]
    Json(#[from] serde_json::Error),
    /// A function without usable runs.
    #[error("The measurements of function {name:?} are unusable: {reason}. Measure it again.")]
    Function {
        /// The function.
        name: String,
        /// What is wrong.
        reason: &'static str,
    },
}

#[derive(Deserialize)]
struct File {
    functions: Vec<FileFunction>,
}

#[derive(Deserialize)]
struct FileFunction {
    name: String,
    related: bool,
    configured_memory_bytes: u64,
    configured_milli_cores: u64,
    points: Vec<FilePoint>,
}

#[derive(Deserialize)]
struct FilePoint {
    size: f64,
    argument_bytes: u64,
    runs: Vec<FileRun>,
}

#[derive(Deserialize)]
struct FileRun {
    phases: Vec<Phase>,
}

/// The measured functions.
#[derive(Debug, Clone)]
pub struct Functions {
    list: Vec<Function>,
}

impl Functions {
    /// The functions whose measurements come with this crate.
    pub fn measured() -> &'static Self {
        static MEASURED: OnceLock<Functions> = OnceLock::new();
        MEASURED.get_or_init(|| {
            Self::from_json(include_str!("../data/functions.json")).expect("a test reads the committed measurements")
        })
    }

    /// Reads measurements.
    pub fn from_json(text: &str) -> Result<Self, FunctionsError> {
        let file: File = serde_json::from_str(text)?;
        let list = file
            .functions
            .into_iter()
            .map(Function::new)
            .collect::<Result<Vec<_>, _>>()?;
        if list.is_empty() {
            return Err(FunctionsError::Function {
                name: String::new(),
                reason: "the file lists no function",
            });
        }
        Ok(Self { list })
    }

    /// All functions, at least one, in the order of the file.
    pub fn list(&self) -> &[Function] {
        &self.list
    }

    /// The function of a name.
    pub fn by_name(&self, name: &str) -> Option<&Function> {
        self.list.iter().find(|function| function.name == name)
    }
}

/// One measured function.
#[derive(Debug, Clone)]
pub struct Function {
    name: String,
    is_related: bool,
    configured: Amount,
    peak: Amount,
    argument_bytes: Curve,
    sizes: (f64, f64),
    curves: Vec<PhaseCurves>,
    runs: Vec<Run>,
}

/// How one phase grows with the size.
#[derive(Debug, Clone)]
struct PhaseCurves {
    core_us: Curve,
    milli_cores: Curve,
    memory_bytes: Curve,
}

/// One measured run, and by how much it differs from the curves.
#[derive(Debug, Clone)]
struct Run {
    phases: Vec<Phase>,
    work_factor: f64,
    memory_factor: f64,
}

impl Function {
    fn new(of: FileFunction) -> Result<Self, FunctionsError> {
        let refuse = |reason| FunctionsError::Function {
            name: of.name.clone(),
            reason,
        };
        let phases = of.points.first().and_then(|point| point.runs.first());
        let phases = phases.map_or(0, |run| run.phases.len());
        if !(1..=MAX_PHASES).contains(&phases) {
            return Err(refuse("a run has one to four phases"));
        }
        for point in &of.points {
            if !point.size.is_finite() || point.size < 0.0 {
                return Err(refuse("a size is a number from 0"));
            }
            if point.runs.is_empty() || point.runs.iter().any(|run| run.phases.len() != phases) {
                return Err(refuse("each size has runs, and all runs have equally many phases"));
            }
            if point.runs.iter().any(|run| Phases::new(&run.phases).is_none()) {
                return Err(refuse("a phase exceeds its bounds"));
            }
        }
        let curve_of = |value: &dyn Fn(&Phase) -> u64, phase: usize| {
            Curve::new(of.points.iter().map(|point| {
                let mut values: Vec<u64> = point.runs.iter().map(|run| value(&run.phases[phase])).collect();
                values.sort_unstable();
                (point.size, values[values.len() / 2] as f64)
            }))
        };
        let curves: Vec<_> = (0..phases)
            .map(|phase| PhaseCurves {
                core_us: curve_of(&|phase| phase.core_us, phase),
                milli_cores: curve_of(&|phase| phase.milli_cores, phase),
                memory_bytes: curve_of(&|phase| phase.memory_bytes, phase),
            })
            .collect();
        let mut runs = Vec::new();
        let mut sizes = (f64::INFINITY, 0.0_f64);
        for point in &of.points {
            sizes = (sizes.0.min(point.size), sizes.1.max(point.size));
            let usual = usual_phases(&curves, point.size);
            runs.extend(point.runs.iter().map(|run| Run {
                work_factor: ratio(&run.phases, &usual, |phases| {
                    phases.iter().map(|phase| phase.core_us).sum()
                }),
                memory_factor: ratio(&run.phases, &usual, memory_of),
                phases: run.phases.clone(),
            }));
        }
        Ok(Self {
            argument_bytes: Curve::new(of.points.iter().map(|point| (point.size, point.argument_bytes as f64))),
            name: of.name,
            is_related: of.related,
            configured: Amount::new(of.configured_milli_cores, of.configured_memory_bytes),
            sizes,
            peak: runs
                .iter()
                .flat_map(|run| &run.phases)
                .fold(Amount::ZERO, |peak, phase| {
                    peak.max(Amount::new(phase.milli_cores, phase.memory_bytes))
                }),
            curves,
            runs,
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the size of the input decides its demand. Otherwise the content does.
    pub fn is_related(&self) -> bool {
        self.is_related
    }

    /// What it is configured to get: see [`crate::generate`].
    pub fn configured(&self) -> Amount {
        self.configured
    }

    /// The smallest and the largest measured size.
    pub fn sizes(&self) -> (f64, f64) {
        self.sizes
    }

    /// What a client would state about a call of `size`.
    pub fn features(&self, size: f64) -> Features {
        Features {
            argument_bytes: self.argument_bytes.at(size).round() as u64,
            sizes: [size, 0.0, 0.0, 0.0],
        }
    }

    /// Draws the demand of one call. A size beyond the measured ones counts as the nearest of them.
    pub fn draw(&self, size: f64, random: &mut Random) -> Phases {
        let run = &self.runs[random.index(self.runs.len())];
        if !self.is_related {
            return phases_of(&run.phases);
        }
        let mut phases = usual_phases(&self.curves, size);
        for phase in &mut phases {
            phase.core_us = (phase.core_us as f64 * run.work_factor).round() as u64;
            phase.memory_bytes =
                ((phase.memory_bytes as f64 * run.memory_factor).round() as u64).min(self.peak.memory_bytes);
            // A phase that mostly waits takes its time whatever its work.
            if phase.milli_cores < 1000 {
                phase.milli_cores = ((phase.milli_cores as f64 * run.work_factor).round() as u64).clamp(1, 999);
            }
        }
        phases_of(&phases)
    }

    /// The most that any measured run needed. No drawn call needs more.
    pub fn peak(&self) -> Amount {
        self.peak
    }
}

/// The phases of a median run of one size.
fn usual_phases(curves: &[PhaseCurves], size: f64) -> Vec<Phase> {
    let phase = |of: &PhaseCurves| {
        let milli_cores = of.milli_cores.at(size).round();
        Phase {
            core_us: of.core_us.at(size).round() as u64,
            // Threads are whole.
            milli_cores: if milli_cores < 1000.0 {
                milli_cores.max(1.0) as u64
            } else {
                (milli_cores / 1000.0).round() as u64 * 1000
            },
            memory_bytes: of.memory_bytes.at(size).round() as u64,
        }
    };
    curves.iter().map(phase).collect()
}

fn memory_of(phases: &[Phase]) -> u64 {
    phases.iter().map(|phase| phase.memory_bytes).max().unwrap_or(0)
}

fn ratio(measured: &[Phase], usual: &[Phase], of: impl Fn(&[Phase]) -> u64) -> f64 {
    of(measured) as f64 / of(usual).max(1) as f64
}

/// Phases without those that have no work. A call that has none at all keeps its first.
fn phases_of(phases: &[Phase]) -> Phases {
    let mut kept = [Phase::default(); MAX_PHASES];
    let mut count = 0;
    for phase in phases.iter().filter(|phase| phase.core_us > 0).take(MAX_PHASES) {
        kept[count] = *phase;
        count += 1;
    }
    let kept = if count == 0 { &phases[..1] } else { &kept[..count] };
    Phases::new(kept).unwrap_or_else(|| unreachable!("measured phases are within bounds, and residuals near 1"))
}

#[cfg(test)]
mod tests;
