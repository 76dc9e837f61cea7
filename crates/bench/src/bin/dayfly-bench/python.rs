//! Measurements in Python: runs `dayfly._bench` in the chosen interpreter.

use std::process::{Command, Stdio};

use dayfly_bench::baseline::matching;
use dayfly_bench::busy::Watch;
use dayfly_bench::report::{InvokeReport, Named, Setting};
use dayfly_bench::{Difference, Plan, Samples, Summary, measure};
use dayfly_client::Runtime;
use dayfly_command::bench::InvokeArguments;
use dayfly_command::beside;
use dayfly_protocol::error::{Code, Failure};
use serde_json::Value;

use crate::{failure, how};

pub fn python(interpreter: &str, what: &str) -> Command {
    let mut command = Command::new(interpreter);
    command.args(["-m", "dayfly._bench", what]).stdin(Stdio::null());
    command.env("DAYFLY_BIN", beside("dayfly"));
    command
}

/// Measures round trips of an empty Python function between two measurements of the raw baseline.
pub fn measure_python(options: &InvokeArguments) -> Result<(InvokeReport, serde_json::Map<String, Value>), Failure> {
    let how = how(options);
    let (transport, hot) = (how.transport.to_string(), how.hot);
    let mut raw = matching(how.transport, hot, how.size.min(112)).map_err(|error| failure(&error))?;
    let plan = Plan::of_calls(if hot && transport == "shm" { 200_000 } else { 10_000 });
    let watch = Watch::start(&[]);
    let mut baseline = Samples::with_capacity(0);
    let mut add = |samples: Samples| samples.sorted_ns().into_iter().for_each(|ns| baseline.push_ns(ns));
    add(measure(&mut *raw, plan).map_err(|error| failure(&error))?);
    let mut command = python(&options.python, "invoke");
    command.args(["--transport", &transport, "--mode", if hot { "hot" } else { "warm" }]);
    command.args(["--sandbox", how.sandbox.name()]);
    let numbers = [
        ("--size", options.size),
        ("--workers", options.workers.into()),
        ("--calls", options.calls),
        ("--items", options.items),
    ];
    for (name, value) in numbers {
        command.arg(name).arg(value.to_string());
    }
    let more = ask(command)?;
    add(measure(&mut *raw, plan).map_err(|error| failure(&error))?);
    // The measurement's own processes have ended by now and would count as foreign.
    let noise = watch
        .finish()
        .judge(true)
        .map_err(|busy| failure(&dayfly_bench::Error::from(busy)))?;
    let samples = more
        .get("samples_ns")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_f64);
    let invoke = Summary::of(samples);
    let setting = Setting {
        transport,
        mode: if hot { "hot" } else { "warm" }.into(),
        language: "python".into(),
        size: options.size as u64,
        depth: options.depth,
        workers: options.workers.into(),
        sandbox: how.sandbox.name().into(),
    };
    let latency = baseline.summary();
    let named = Named {
        name: raw.name().to_owned(),
        about: raw.about(),
        latency,
        per_s: None,
        bytes_per_s: None,
        share: None,
    };
    let per_s = match options.depth {
        0 | 1 => 1e9 / invoke.p50_ns.max(1.0),
        _ => more.get("futures_per_s").and_then(Value::as_f64).unwrap_or_default(),
    };
    let difference = Difference::between(&latency, &invoke, &[]);
    Ok((
        InvokeReport::new(setting, invoke, named, difference, per_s, noise),
        more,
    ))
}

/// Runs a measurement in Python and reads the JSON object that it prints.
pub fn ask(mut command: Command) -> Result<serde_json::Map<String, Value>, Failure> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| no_python(&command, &error.to_string()))?;
    if !output.status.success() {
        return Err(no_python(&command, &format!("it ended with {}", output.status)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| no_python(&command, &error.to_string()))
}

fn no_python(command: &Command, text: &str) -> Failure {
    let program = command.get_program().to_string_lossy().into_owned();
    Failure::new(
        Code::ExecutorFailed,
        format!(
            "the measurement in Python by `{program}` failed: {text}. Name an interpreter that has the dayfly module by --python"
        ),
    )
}

/// Code, format and input of a function.
type Described = (Vec<u8>, dayfly_client::Form, Vec<u8>);

/// Returns the runtime of an interpreter and a pickled function for it, as printed by `dayfly._bench describe`.
pub fn describe_python(interpreter: &str) -> Result<(Runtime, Described), Failure> {
    let command = python(interpreter, "describe");
    let unusable = no_python(&command, "its description makes no sense");
    let described = ask(command)?;
    let parse = || -> Option<_> {
        let runtime = serde_json::from_value(described.get("runtime")?.clone()).ok()?;
        let form = serde_json::from_value(described.get("form")?.clone()).ok()?;
        let bytes = |name: &str| decode(described.get(name)?.as_str()?);
        Some((runtime, (bytes("code")?, form, bytes("input")?)))
    };
    parse().ok_or(unusable)
}

fn decode(hex: &str) -> Option<Vec<u8>> {
    (0..hex.len() / 2)
        .map(|at| u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok())
        .collect()
}
