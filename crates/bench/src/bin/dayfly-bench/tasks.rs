//! `dayfly bench tasks`: durable tasks from Python, beside Parsl's high-throughput executor in the same run.

use std::fmt;
use std::time::Duration;

use dayfly_bench::busy::Watch;
use dayfly_command::bench::TasksArguments;
use dayfly_protocol::error::{Code, Failure};
use serde::{Deserialize, Serialize};

use crate::failure;
use crate::python::{ask, python};

/// Time to watch for other work before the measurement.
const WATCH_TIME: Duration = Duration::from_millis(500);

/// The result of a measurement.
#[derive(Debug, Serialize, Deserialize)]
pub struct TasksReport {
    durable: bool,
    workers: u32,
    argument_bytes: usize,
    tasks: usize,
    rounds: usize,
    latency_p50_ms: f64,
    latency_p99_ms: f64,
    tasks_per_s: f64,
    tasks_per_s_rounds: Vec<f64>,
    /// Outcomes per second of identical tasks.
    memoized_per_s: f64,
    /// Time to the first result of a new function.
    first_task_ms: f64,
    #[serde(flatten)]
    parsl: Option<ParslReport>,
}

/// Parsl's figures.
#[derive(Debug, Serialize, Deserialize)]
struct ParslReport {
    parsl_version: String,
    parsl_durable: bool,
    parsl_latency_p50_ms: f64,
    parsl_latency_p99_ms: f64,
    parsl_tasks_per_s: f64,
    parsl_tasks_per_s_rounds: Vec<f64>,
}

impl fmt::Display for TasksReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let workers = self.workers;
        writeln!(
            f,
            "Durable tasks that do nothing, {} bytes of argument, {workers} workers",
            self.argument_bytes
        )?;
        let mut line = |who: &str, p50: f64, p99: f64, rate: f64| {
            writeln!(
                f,
                "  {who:<24} {p50:>8.2} ms p50 {p99:>9.2} ms p99 {rate:>10.0} tasks/s"
            )
        };
        line("dayfly", self.latency_p50_ms, self.latency_p99_ms, self.tasks_per_s)?;
        if let Some(parsl) = &self.parsl {
            let who = format!("parsl {} (not durable)", parsl.parsl_version);
            line(
                &who,
                parsl.parsl_latency_p50_ms,
                parsl.parsl_latency_p99_ms,
                parsl.parsl_tasks_per_s,
            )?;
        }
        writeln!(
            f,
            "  {:<24} {:>10.0} answers/s where all are the same, {:.1} ms to the first of a new function",
            "", self.memoized_per_s, self.first_task_ms
        )
    }
}

pub fn run(options: &TasksArguments) -> Result<TasksReport, Failure> {
    // The measurement has too many processes to distinguish them from others, so others are watched beforehand.
    Watch::look(WATCH_TIME, &[])
        .judge(options.force)
        .map_err(|busy| failure(&dayfly_bench::Error::from(busy)))?;
    let mut command = python(&options.python, "tasks");
    for (name, value) in [
        ("--tasks", options.tasks),
        ("--calls", options.calls),
        ("--rounds", options.rounds),
        ("--size", options.size),
        ("--workers", options.workers.into()),
    ] {
        command.args([name, &value.to_string()]);
    }
    if let Some(parsl) = &options.parsl {
        command.args(["--parsl", parsl]);
    }
    let found = serde_json::from_value(ask(command)?.into());
    found.map_err(|error| Failure::new(Code::Internal, format!("the report makes no sense: {error}")))
}
