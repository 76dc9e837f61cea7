//! `dayfly flow`: functions that receive the results of other functions.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use dayfly_client::{Client, encoded};
use dayfly_command::Global;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::flows::{FlowRequest, FlowState, FlowStatus, FlowStep};
use dayfly_protocol::functions::FunctionStatus;
use dayfly_protocol::ids::{FlowId, FunctionId};
use dayfly_protocol::tasks::TaskOptions;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::output::Align::{Left, Right};
use crate::{connect, output, values};

/// Maximum wait of one request for a flow's end.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Pass the results of functions to other functions, as tasks.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly flow run album.toml --input '{\"folder\": \"/data/photos\"}'     waits for its result
  dayfly flow start album.toml --input @photos.json
  dayfly flow show 0199...                                          the states of its steps
  dayfly flow list
  dayfly flow cancel 0199...

A flow is a file of steps. Each step calls a registered function with the result of the preceding step, or of the steps in
`from`, where `input` is the input of the flow. With `map`, it calls the function once for each element of a list:

  name = \"album\"

  [[step]]
  name = \"list\"
  function = \"list_photos\"

  [[step]]
  name = \"thumbnails\"
  function = \"thumbnail\"
  map = true
  retries = 2
  keywords = { width = 200 }

  [[step]]
  name = \"page\"
  function = \"make_page\"
  from = [\"thumbnails\", \"input\"]

`ann/thumbnail` is a function of the tenant ann; `NAME@ID` is exactly that version. Arguments and results of steps are JSON. Their
tasks have the tag `flow:ID`.")]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Start a flow, and wait for its result
    Run(Start),
    /// Start a flow, and print its id
    Start(Start),
    /// Show your flows, the latest first
    List(List),
    /// Show a flow, the states of its steps, and its result
    Show(Show),
    /// Cancel a flow and its tasks
    Cancel(Named),
}

#[derive(Debug, Args)]
struct Start {
    /// TOML or JSON file that describes the flow; see `dayfly flow --help`
    file: PathBuf,
    /// Input of the flow, in JSON, or @FILE for a file that contains it
    #[arg(long, value_name = "JSON", default_value = "null")]
    input: String,
    /// Time limit for the result, in seconds or such as 10m, for `run` [default: no limit]
    #[arg(long, value_name = "SECONDS", value_parser = values::wait)]
    wait: Option<Duration>,
}

#[derive(Debug, Args)]
struct List {
    /// Maximum number of flows, latest first
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: u32,
}

#[derive(Debug, Args)]
struct Named {
    /// Id of the flow
    #[arg(value_parser = flow)]
    id: FlowId,
}

#[derive(Debug, Args)]
struct Show {
    /// Id of the flow
    #[arg(value_parser = flow)]
    id: FlowId,
    /// Wait up to this long for its end, in seconds or such as 10m
    #[arg(long, value_name = "SECONDS", value_parser = values::wait, default_value = "0")]
    wait: Duration,
}

fn flow(text: &str) -> Result<FlowId, String> {
    text.parse::<FlowId>().map_err(|error| error.to_string())
}

/// A flow as written by people, with the names of functions.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    name: String,
    step: Vec<WrittenStep>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenStep {
    name: String,
    function: String,
    from: Option<Vec<String>>,
    #[serde(default)]
    map: bool,
    endpoint: Option<String>,
    #[serde(default)]
    retries: u16,
    walltime: Option<String>,
    repeatable: Option<bool>,
    #[serde(default)]
    memoize: bool,
    #[serde(default)]
    keywords: Map<String, Value>,
}

impl WrittenStep {
    fn step(self, function: FunctionId) -> Result<FlowStep, Failure> {
        let wrong = |text: String| Failure::new(Code::InvalidRequest, format!("the step `{}`: {text}", self.name));
        let walltime = self.walltime.as_deref().map(values::duration).transpose();
        let walltime = walltime.map_err(|error| wrong(format!("walltime: {error}")))?;
        let walltime_ms = u32::try_from(walltime.unwrap_or_default().as_millis())
            .map_err(|_| wrong("walltime is too long; 49 days are allowed".into()))?;
        Ok(FlowStep {
            name: self.name,
            function,
            from: self.from,
            map: self.map,
            endpoint: self.endpoint,
            options: TaskOptions {
                retries: self.retries,
                walltime_ms,
                repeatable: self.repeatable,
                memoize: self.memoize,
                ..TaskOptions::default()
            },
            keywords: self.keywords,
        })
    }
}

fn read(text: &str, is_json: bool) -> Result<Written, String> {
    match is_json {
        true => serde_json::from_str(text).map_err(|error| error.to_string()),
        false => toml::from_str(text).map_err(|error| error.to_string()),
    }
}

pub fn run(arguments: &Arguments, global: &Global) -> Result<(), Failure> {
    match &arguments.what {
        What::Run(wanted) => {
            let client = connect::manager(global)?;
            let started = start(wanted, &client)?;
            let limit = wanted.wait.unwrap_or(Duration::MAX);
            finish(&wait(started, limit, &client)?, global)
        }
        What::Start(wanted) => {
            let started = start(wanted, &connect::manager(global)?)?;
            output::line(&match global.json {
                true => output::json(&started)?,
                false => started.id.to_string(),
            });
            Ok(())
        }
        What::List(wanted) => list(wanted.limit, &connect::manager(global)?, global),
        What::Show(wanted) => {
            let client = connect::manager(global)?;
            let now = shown(wanted.id, Duration::ZERO, &client)?;
            let status = wait(now, wanted.wait, &client)?;
            output::line(&match global.json {
                true => output::json(&status)?,
                false => described(&status)?,
            });
            Ok(())
        }
        What::Cancel(wanted) => {
            let client = connect::manager(global)?;
            let ended: FlowStatus = client
                .post(&format!("/v1/flows/{}/cancel", wanted.id), &json!({}))
                .map_err(|error| error.0)?;
            output::line(&match global.json {
                true => output::json(&ended)?,
                false => format!("The flow is {}.", ended.state.name()),
            });
            Ok(())
        }
    }
}

fn start(wanted: &Start, client: &Client) -> Result<FlowStatus, Failure> {
    let (name, steps) = written(&wanted.file, client)?;
    let input = match wanted.input.strip_prefix('@') {
        None => wanted.input.clone(),
        Some(path) => std::fs::read_to_string(path).map_err(|error| wrong(path, error))?,
    };
    let input = serde_json::from_str(&input).map_err(|error| {
        wrong(
            "the input",
            format!("it is no JSON ({error}); texts stand in double quotes"),
        )
    })?;
    let request = FlowRequest {
        id: None,
        name,
        steps,
        input,
    };
    client.post("/v1/flows", &request).map_err(|error| error.0)
}

fn wrong(what: &str, why: impl std::fmt::Display) -> Failure {
    Failure::new(Code::InvalidRequest, format!("{what}: {why}"))
}

/// Returns the name and the steps of the flow in a file.
pub fn written(file: &Path, client: &Client) -> Result<(String, Vec<FlowStep>), Failure> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).map_err(|error| wrong(&name, error))?;
    let is_json = file.extension().is_some_and(|extension| extension == "json");
    let written = read(&text, is_json).map_err(|why| wrong(&name, why))?;
    let mut known: HashMap<String, FunctionId> = HashMap::new();
    let mut steps = Vec::with_capacity(written.step.len());
    for step in written.step {
        let function = match known.get(&step.function) {
            Some(function) => *function,
            None => {
                let path = format!("/v1/functions/{}", encoded(&step.function));
                let found: FunctionStatus = client.get(&path).map_err(|error| error.0)?;
                known.insert(step.function.clone(), found.id);
                found.id
            }
        };
        steps.push(step.step(function)?);
    }
    Ok((written.name, steps))
}

fn shown(id: FlowId, wait: Duration, client: &Client) -> Result<FlowStatus, Failure> {
    let path = format!("/v1/flows/{id}?wait_ms={}", wait.min(TIMEOUT).as_millis());
    client.get(&path).map_err(|error| error.0)
}

/// Returns the status of a flow when it has ended or the limit has passed.
fn wait(mut status: FlowStatus, limit: Duration, client: &Client) -> Result<FlowStatus, Failure> {
    let begun = Instant::now();
    while !status.state.is_over() && begun.elapsed() < limit {
        status = shown(status.id, limit - begun.elapsed(), client)?;
    }
    Ok(status)
}

/// Prints a flow's result; errors if it failed or has not ended.
fn finish(status: &FlowStatus, global: &Global) -> Result<(), Failure> {
    if global.json {
        output::line(&output::json(status)?);
    }
    match (status.state, &status.error) {
        (FlowState::Done, _) if global.json => Ok(()),
        (FlowState::Done, _) => {
            output::line(&output::json(&status.result)?);
            Ok(())
        }
        (_, Some(failure)) => Err(failure.clone()),
        (_, None) => {
            let text = format!(
                "the flow {} has not ended; `dayfly flow show` has how it does",
                status.id
            );
            Err(Failure::new(Code::TimedOut, text))
        }
    }
}

fn list(limit: u32, client: &Client, global: &Global) -> Result<(), Failure> {
    let path = format!("/v1/flows?limit={limit}");
    let flows: Vec<FlowStatus> = client.get(&path).map_err(|error| error.0)?;
    if global.json {
        output::line(&output::json(&flows)?);
        return Ok(());
    }
    if flows.is_empty() {
        output::line("No flows.");
        return Ok(());
    }
    let mut table = output::Table::new(&[
        ("FLOW", Left),
        ("NAME", Left),
        ("STATE", Left),
        ("STARTED", Left),
        ("TOOK", Right),
        ("ERROR", Left),
    ]);
    for flow in &flows {
        let until = if flow.ended_at_ms > 0 {
            flow.ended_at_ms
        } else {
            output::now_ms()
        };
        let error = flow.error.as_ref();
        table.row([
            flow.id.to_string(),
            output::plain(&flow.name),
            flow.state.name().into(),
            output::time(flow.started_at_ms),
            output::span(until.saturating_sub(flow.started_at_ms)),
            error.map_or_else(|| "-".into(), |failure| output::plain(&failure.message)),
        ]);
    }
    output::line(&table.text(output::colours(&std::io::stdout())));
    Ok(())
}

fn described(flow: &FlowStatus) -> Result<String, Failure> {
    let mut table = output::Table::new(&[("STEP", Left), ("STATE", Left), ("TASKS", Right), ("DONE", Right)]);
    for step in &flow.steps {
        table.row([
            output::plain(&step.name),
            step.state.name().into(),
            step.tasks.to_string(),
            step.done.to_string(),
        ]);
    }
    let mut text = format!(
        "Flow {}\n  name     {}\n  state    {}\n  started  {} UTC\n  tag      {}\n\n{}",
        flow.id,
        output::plain(&flow.name),
        flow.state.name(),
        output::time(flow.started_at_ms),
        output::plain(&flow.tag),
        table.text(output::colours(&std::io::stdout()))
    );
    if let Some(failure) = &flow.error {
        text += &format!("\n\n{}", output::lines(&failure.message));
    }
    if flow.state == FlowState::Done {
        text += &format!("\n\n{}", output::json(&flow.result)?);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_is_parsed_strictly_from_toml_and_json() {
        let toml =
            "name = 'a'\n[[step]]\nname = 'x'\nfunction = 'f'\nmap = true\nwalltime = '2s'\nkeywords = { w = 2 }";
        let read_toml = read(toml, false).unwrap();
        assert_eq!(read_toml.step.len(), 1);
        let step = read_toml.step.into_iter().next().unwrap();
        let step = step.step(FunctionId([1; 16])).unwrap();
        assert_eq!(
            (step.options.walltime_ms, step.map, &step.keywords["w"]),
            (2_000, true, &json!(2))
        );
        assert!(read("{\"step\": [{\"name\": \"x\", \"function\": \"f\"}]}", true).is_ok());
        let error = read("[[step]]\nname = 'x'\nfunktion = 'f'", false).unwrap_err();
        assert!(error.contains("funktion"), "{error}");
    }
}
