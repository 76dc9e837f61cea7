//! `dayfly bench harvest`: what lending idle cores gives the borrower and costs the lender.

mod simulated;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use dayfly_bench::busy::{Noise, Watch};
use dayfly_command::bench::HarvestArguments;
use dayfly_protocol::error::{Code, Failure};
use serde::{Deserialize, Serialize};

use self::simulated::Simulated;
use crate::failure;
use crate::python::{ask, python};

/// Time to watch for other work before the measurement.
const WATCH_TIME: Duration = Duration::from_millis(500);
/// The lender's functions.
const FUNCTIONS: &str = include_str!("../../../../../examples/python/harvest_functions.py");

/// The result of a measurement. Slowdowns are shares: 0.01 is one hundredth slower.
#[derive(Debug, Serialize, Deserialize)]
pub struct HarvestReport {
    cores: u32,
    rounds: usize,
    /// Calls of the lender in each mode, each made twice.
    lender_calls: usize,
    lender_slowdown_p50: f64,
    lender_slowdown_p99: f64,
    slowdown_p50_by_function: BTreeMap<String, f64>,
    /// The same call without lending, against itself.
    noise_p50: f64,
    noise_p99: f64,
    /// The borrower's rate over its rate with all cores and no lender's limits.
    borrower_share: f64,
    /// The borrower's rate over its rate without lending.
    borrower_gain: f64,
    /// The part of the lender's idle core that the borrower used.
    idle_used_share: f64,
    bursts: usize,
    /// Until a lender that begins to compute has 95 % of its core.
    owner_back_ms: f64,
    owner_back_p99_ms: f64,
    /// The same without lending: other processes run beside it.
    owner_back_watch_ms: f64,
    owner_back_watch_p99_ms: f64,
    /// Until all that it lent is recalled.
    recall_ms: f64,
    recall_p99_ms: f64,
    /// The node's own use of a core.
    overhead_core_share: f64,
    /// Calls that were measured meanwhile.
    overhead_calls: u32,
    /// Recorded calls in the simulator.
    #[serde(skip_deserializing)]
    simulated: Option<Simulated>,
    #[serde(skip_deserializing)]
    noise: Option<Noise>,
}

impl fmt::Display for HarvestReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| format!("{:+.1} %", 100.0 * share);
        writeln!(f, "Lending idle cores, {} cores, {} rounds", self.cores, self.rounds)?;
        writeln!(
            f,
            "  lender: {} slower p50, {} p99 of {} calls (without lending, two runs differ by {} p50, {} p99)",
            percent(self.lender_slowdown_p50),
            percent(self.lender_slowdown_p99),
            self.lender_calls,
            percent(self.noise_p50),
            percent(self.noise_p99)
        )?;
        for (name, slowdown) in &self.slowdown_p50_by_function {
            writeln!(f, "    {name:<18} {:>8}", percent(*slowdown))?;
        }
        writeln!(
            f,
            "  borrower: {:.2} times as fast as without, {:.2} of the same cores by hand",
            self.borrower_gain, self.borrower_share
        )?;
        writeln!(f, "  idle cores that were used: {:.0} %", 100.0 * self.idle_used_share)?;
        writeln!(
            f,
            "  a sudden lender has its core after {:.1} ms p50, {:.1} ms p99 (without lending, {:.1} ms, {:.1} ms)",
            self.owner_back_ms, self.owner_back_p99_ms, self.owner_back_watch_ms, self.owner_back_watch_p99_ms
        )?;
        writeln!(
            f,
            "  all that it lent is recalled after {:.1} ms p50, {:.1} ms p99",
            self.recall_ms, self.recall_p99_ms
        )?;
        writeln!(
            f,
            "  the node itself: {:.1} % of a core with {} calls",
            100.0 * self.overhead_core_share,
            self.overhead_calls
        )?;
        let Some(simulated) = &self.simulated else {
            return Ok(());
        };
        writeln!(
            f,
            "  {} recorded calls: P99 {:.3} s, simulated {:.2} of it; completion {:.1} s, simulated {:.2} of it",
            simulated.calls,
            simulated.live_p99_s,
            simulated.p99_ratio,
            simulated.live_completion_s,
            simulated.completion_ratio
        )
    }
}

/// Measures on a node of its own.
pub fn run(options: &HarvestArguments) -> Result<HarvestReport, Failure> {
    // The measurement has too many processes to distinguish them from others, so others are watched beforehand.
    let noise = Watch::look(WATCH_TIME, &[])
        .judge(options.force)
        .map_err(|busy| failure(&dayfly_bench::Error::from(busy)))?;
    let unwritable = |error: std::io::Error| {
        Failure::new(
            Code::Internal,
            format!("the measured functions could not be written: {error}"),
        )
    };
    let dir = tempfile::tempdir().map_err(unwritable)?;
    let functions = dir.path().join("harvest_functions.py");
    std::fs::write(&functions, FUNCTIONS).map_err(unwritable)?;
    let record = dir.path().join("harvest.jsonl");
    let mut command = python(&options.python, "harvest");
    command.arg("--functions").arg(&functions).arg("--record").arg(&record);
    for (name, value) in [("--rounds", options.rounds), ("--bursts", options.bursts)] {
        command.args([name, &value.max(1).to_string()]);
    }
    for name in &options.only {
        command.args(["--only", name]);
    }
    let found = serde_json::from_value(ask(command)?.into());
    let mut report: HarvestReport =
        found.map_err(|error| Failure::new(Code::Internal, format!("the report makes no sense: {error}")))?;
    report.simulated = Some(simulated::simulate(&record)?);
    report.noise = Some(noise);
    Ok(report)
}
