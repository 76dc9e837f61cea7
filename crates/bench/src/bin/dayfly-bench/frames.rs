//! `dayfly bench frames`: queries across ranks, beside other engines in the same run.

use std::fmt;
use std::time::Duration;

use dayfly_bench::busy::Watch;
use dayfly_bench::machine::Machine;
use dayfly_command::bench::FramesArguments;
use dayfly_protocol::error::{Code, Failure};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::failure;
use crate::python::{ask, python};

/// Time to watch for other work before the measurement.
const WATCH_TIME: Duration = Duration::from_millis(500);

/// The result of a measurement.
#[derive(Debug, Serialize)]
pub struct FramesReport {
    machine: Machine,
    rows: Vec<Row>,
}

/// What the package prints.
#[derive(Debug, Deserialize)]
struct Measured {
    rows: Vec<Row>,
}

/// One comparison.
#[derive(Debug, Serialize, Deserialize)]
struct Row {
    name: String,
    /// The median.
    value: f64,
    unit: String,
    baseline: String,
    /// The baseline's median, in the same unit.
    baseline_value: f64,
    /// Our time over the baseline's.
    ratio: f64,
    /// Whether the results of both sides were compared, and were equal.
    checked: bool,
    runs: usize,
    /// The worst of the runs.
    worst: f64,
    baseline_worst: f64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    note: Option<String>,
    /// Other engines, and what is known of this row alone.
    #[serde(flatten)]
    more: Map<String, Value>,
}

impl fmt::Display for FramesReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.rows {
            let (unit, runs) = (&row.unit, row.runs);
            writeln!(
                f,
                "{:<22} {:>10.4} {unit:<5} worst {:>10.4}   ratio {:>7.3}   {runs} runs",
                row.name, row.value, row.worst, row.ratio
            )?;
            writeln!(
                f,
                "{:<22} {:>10.4} {unit:<5} worst {:>10.4}   {}",
                "", row.baseline_value, row.baseline_worst, row.baseline
            )?;
            if let Some(note) = &row.note {
                writeln!(f, "{:<22} {note}", "")?;
            }
        }
        Ok(())
    }
}

pub fn run(options: &FramesArguments) -> Result<FramesReport, Failure> {
    // The measurement has too many processes to distinguish them from others, so others are watched beforehand.
    Watch::look(WATCH_TIME, &[])
        .judge(options.force)
        .map_err(|busy| failure(&dayfly_bench::Error::from(busy)))?;
    let mut command = python(&options.python, "frames");
    for name in &options.only {
        command.args(["--only", name]);
    }
    if options.quick {
        command.arg("--quick");
    }
    let measured: Result<Measured, _> = serde_json::from_value(ask(command)?.into());
    let measured =
        measured.map_err(|error| Failure::new(Code::Internal, format!("the report makes no sense: {error}")))?;
    Ok(FramesReport {
        machine: Machine::this(),
        rows: measured.rows,
    })
}
