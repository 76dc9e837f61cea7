//! `dayfly bench apps`: applications with leased workers, beside the same applications without, in the same run.

use std::fmt;
use std::process::{Command, Stdio};
use std::time::Duration;

use dayfly_bench::busy::Watch;
use dayfly_bench::machine::Machine;
use dayfly_command::bench::AppsArguments;
use dayfly_command::beside;
use dayfly_protocol::error::{Code, Failure};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::failure;
use crate::python::ask;

/// Time to watch for other work before the measurement.
const WATCH_TIME: Duration = Duration::from_millis(500);
/// The program of the suite that measures.
const PROGRAM: &str = "main.py";

/// The result of a measurement.
#[derive(Debug, Serialize)]
pub struct AppsReport {
    machine: Machine,
    #[serde(flatten)]
    measured: Measured,
}

/// What the suite prints.
#[derive(Debug, Serialize, Deserialize)]
struct Measured {
    rows: Vec<Row>,
    left_out: Vec<LeftOut>,
    /// Whether the inputs were too small for figures.
    quick: bool,
    /// The picture, as a path.
    picture: String,
}

/// One comparison.
#[derive(Debug, Serialize, Deserialize)]
struct Row {
    app: String,
    ours: String,
    against: String,
    /// Times as fast as the other side: the median of the rounds, with an interval of 95 %.
    speedup: f64,
    low: f64,
    high: f64,
    /// The medians of both sides, with intervals of 95 %.
    ours_ms: f64,
    ours_low_ms: f64,
    ours_high_ms: f64,
    against_ms: f64,
    against_low_ms: f64,
    against_high_ms: f64,
    rounds: usize,
    /// Cores of the other side.
    cores: u32,
    leased_cores: u32,
    /// Whether every result was compared, and was right.
    checked: bool,
    /// Who won, and why.
    said: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    input: Option<String>,
    /// What is known of this row alone.
    #[serde(flatten)]
    more: Map<String, Value>,
}

/// A comparison that this machine cannot make.
#[derive(Debug, Serialize, Deserialize)]
struct LeftOut {
    app: String,
    against: String,
    why: String,
}

impl fmt::Display for AppsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Measured { rows, left_out, .. } = &self.measured;
        for row in rows {
            let input = row.input.as_deref().unwrap_or_default();
            writeln!(
                f,
                "{} {input}: {:.2} times as fast (95 %: {:.2} to {:.2}), {} rounds",
                row.app, row.speedup, row.low, row.high, row.rounds
            )?;
            side(f, &row.ours, [row.ours_ms, row.ours_low_ms, row.ours_high_ms])?;
            side(
                f,
                &row.against,
                [row.against_ms, row.against_low_ms, row.against_high_ms],
            )?;
        }
        writeln!(f)?;
        for row in rows {
            writeln!(f, "{}", row.said)?;
        }
        for each in left_out {
            writeln!(f, "{} beside {} was left out: {}.", each.app, each.against, each.why)?;
        }
        if self.measured.quick {
            writeln!(f, "The inputs were small: the figures show only that it works.")?;
        }
        write!(f, "Picture: {}", self.measured.picture)
    }
}

/// Writes the median of one side, with its interval.
fn side(f: &mut fmt::Formatter<'_>, name: &str, [median, low, high]: [f64; 3]) -> fmt::Result {
    writeln!(f, "  {name:<40} {median:>10.3} ms (95 %: {low:.3} to {high:.3})")
}

pub fn run(options: &AppsArguments) -> Result<AppsReport, Failure> {
    let program = options.suite.join(PROGRAM);
    if !program.is_file() {
        let text = format!(
            "{} is not there. Run the command in a checkout of Dayfly, or name its directory benches/apps by --suite",
            program.display()
        );
        return Err(Failure::new(Code::NotFound, text));
    }
    // The measurement has too many processes to distinguish them from others, so others are watched beforehand.
    Watch::look(WATCH_TIME, &[])
        .judge(options.force)
        .map_err(|busy| failure(&dayfly_bench::Error::from(busy)))?;
    let mut command = Command::new(&options.python);
    command
        .arg(&program)
        .arg("--out")
        .arg(&options.out)
        .stdin(Stdio::null());
    command.env("DAYFLY_BIN", beside("dayfly"));
    for app in &options.only {
        command.args(["--only", app]);
    }
    if options.quick {
        command.arg("--quick");
    }
    let measured = serde_json::from_value(ask(command)?.into());
    let measured =
        measured.map_err(|error| Failure::new(Code::Internal, format!("the report makes no sense: {error}")))?;
    Ok(AppsReport {
        machine: Machine::this(),
        measured,
    })
}
