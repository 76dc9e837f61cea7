//! Tasks with inputs of many sizes, made from one sample, so that nodes learn a function at once (LIBRA, section 4.2).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use dayfly_client::{Client, encoded};
use dayfly_protocol::api::NodeStatus;
use dayfly_protocol::contents::INLINE_BYTES;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::functions::FunctionStatus;
use dayfly_protocol::ids::TaskId;
use dayfly_protocol::tasks::{JsonCall, TaskInput, TaskOptions, TaskOutcome, TaskSubmission};
use serde_json::Value;

use crate::task::{submit, wait};
use crate::values;

/// Most runs of one command.
const MAX_RUNS: u32 = 1_000;
/// Largest multiple of the sample. The published duplicator goes up to 100 times.
const MAX_TIMES: u32 = 100;
/// Most bytes of a sample, and of one input that is made from it.
const MAX_INPUT_BYTES: usize = 64 << 20;

/// What to run before the profile is shown.
#[derive(Debug, Args)]
pub struct Sample {
    /// Run the function on inputs that are made from this file, at your cost: arguments in JSON (a list of them, or an
    /// object with `arguments` and `keywords`), or the input of a function of a shared library. The function must be
    /// registered as repeatable
    #[arg(long, value_name = "FILE")]
    sample: Option<PathBuf>,
    /// Number of inputs. Their sizes are evenly spaced: the sample's content is cut or repeated, and numbers are scaled
    #[arg(long, value_name = "N", default_value_t = 20, requires = "sample",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_RUNS)))]
    sizes: u32,
    /// Size of the largest input, in multiples of the sample
    #[arg(long, value_name = "N", default_value_t = 2, requires = "sample",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_TIMES)))]
    times: u32,
    /// Argument to scale: its place from 1, or its keyword; may be repeated [default: all]
    #[arg(long, value_name = "ARGUMENT", requires = "sample")]
    scale: Vec<String>,
    /// Endpoint that runs the tasks [default: the manager's own, or the only one]
    #[arg(long, value_name = "NAME", requires = "sample")]
    endpoint: Option<String>,
    /// Time limit of all runs together
    #[arg(long, value_name = "DURATION", default_value = "1h", requires = "sample", value_parser = values::duration)]
    deadline: Duration,
}

/// What a sample contains.
#[derive(Debug, Clone, PartialEq)]
enum Content {
    Bytes(Vec<u8>),
    Json(JsonCall),
}

impl Sample {
    /// Runs the function, if there is a sample. Returns when all runs have ended. Runs that fail are counted.
    ///
    /// # Errors
    /// `InvalidRequest` if the function is not repeatable, no node measures calls, or the sample does not suit it; the
    /// failure of the last run if none succeeds.
    pub fn run(&self, function: &str, client: &Client) -> Result<(), Failure> {
        let Some(path) = &self.sample else { return Ok(()) };
        let found: FunctionStatus = client
            .get(&format!("/v1/functions/{}", encoded(function)))
            .map_err(|error| error.0)?;
        if !found.repeatable {
            return Err(wrong(
                "the function is not registered as repeatable, so it must not run only to be measured. Register it with \
                 --repeatable (`repeatable=True` in Python) if a further execution does no harm",
            ));
        }
        check_measuring(&client.get::<Vec<NodeStatus>>("/v1/nodes").map_err(|error| error.0)?)?;
        let content = Content::read(path, found.form.speaks_json())?;
        let scaled: BTreeSet<&str> = self.scale.iter().map(String::as_str).collect();
        content.check(&scaled)?;
        let tag = format!("profile:{}", found.id);
        let mut tasks = Vec::new();
        for step in 1..=self.sizes {
            let factor = f64::from(step) * f64::from(self.times) / f64::from(self.sizes);
            tasks.push(self.submit(&found, &tag, content.scaled(factor, &scaled)?, client)?);
        }
        eprintln!("{} tasks with tag {tag}", tasks.len());
        wait_for(&tasks, self.deadline, client)
    }

    fn submit(
        &self,
        function: &FunctionStatus,
        tag: &str,
        content: Content,
        client: &Client,
    ) -> Result<TaskId, Failure> {
        let input = match content {
            Content::Json(call) => TaskInput {
                call: Some(call),
                ..TaskInput::default()
            },
            Content::Bytes(bytes) if bytes.len() > INLINE_BYTES => TaskInput {
                content: Some(client.store_content(&bytes).map_err(|error| error.0)?),
                ..TaskInput::default()
            },
            Content::Bytes(bytes) => TaskInput {
                arguments: bytes.into(),
                ..TaskInput::default()
            },
        };
        let submission = TaskSubmission {
            function: function.id,
            endpoint: self.endpoint.clone(),
            tag: tag.to_owned(),
            options: TaskOptions {
                deadline_ms: u64::try_from(self.deadline.as_millis()).unwrap_or(u64::MAX),
                ..TaskOptions::default()
            },
            tasks: vec![input],
        };
        Ok(submit(&submission, client)?.1)
    }
}

/// Waits until all tasks have ended.
fn wait_for(tasks: &[TaskId], limit: Duration, client: &Client) -> Result<(), Failure> {
    let begun = std::time::Instant::now();
    let (mut failed, mut last) = (0, None);
    for task in tasks {
        let ended: TaskOutcome = wait(*task, limit.saturating_sub(begun.elapsed()), client)?;
        if let Some(failure) = ended.error {
            failed += 1;
            last = Some(failure);
        }
    }
    match last {
        Some(failure) if failed == tasks.len() => Err(failure),
        Some(failure) => {
            eprintln!("{failed} of {} runs failed; the last one: {failure}", tasks.len());
            Ok(())
        }
        None => Ok(()),
    }
}

fn wrong(text: impl Into<String>) -> Failure {
    Failure::new(Code::InvalidRequest, text)
}

/// Refuses to run anything if no node would learn from it.
fn check_measuring(nodes: &[NodeStatus]) -> Result<(), Failure> {
    let measures = |node: &NodeStatus| node.harvest.as_ref().is_some_and(|status| status.why.is_none());
    match nodes.iter().any(measures) {
        true => Ok(()),
        false => Err(wrong(
            "no node measures calls, so none would learn from these runs. Start nodes with `--harvest watch`",
        )),
    }
}

impl Content {
    fn read(path: &Path, is_json: bool) -> Result<Self, Failure> {
        let unreadable = |why: String| wrong(format!("--sample {} cannot be read: {why}", path.display()));
        let bytes = std::fs::read(path).map_err(|error| unreadable(error.to_string()))?;
        if bytes.len() > MAX_INPUT_BYTES {
            return Err(unreadable(format!("it has more than {} MiB", MAX_INPUT_BYTES >> 20)));
        }
        if !is_json {
            return Ok(Self::Bytes(bytes));
        }
        let text = String::from_utf8(bytes).map_err(|_| unreadable("the function takes JSON".into()))?;
        Ok(Self::Json(call_of(text)))
    }

    /// Refuses names of arguments that the sample does not have.
    fn check(&self, scaled: &BTreeSet<&str>) -> Result<(), Failure> {
        let has = |name: &str| match self {
            Self::Bytes(_) => false,
            Self::Json(call) => {
                let place = name
                    .parse::<usize>()
                    .is_ok_and(|place| (1..=call.arguments.len()).contains(&place));
                place || call.keywords.contains_key(name)
            }
        };
        match scaled.iter().find(|name| !has(name)) {
            Some(name) => Err(wrong(format!("--scale {name}: the sample has no such argument"))),
            None => Ok(()),
        }
    }

    /// The content at a multiple of its size.
    fn scaled(&self, factor: f64, chosen: &BTreeSet<&str>) -> Result<Self, Failure> {
        let scaled = match self {
            Self::Bytes(bytes) => Self::Bytes(repeated(bytes, factor)?),
            Self::Json(call) => {
                let one = |name: &str, value: &Value| match chosen.is_empty() || chosen.contains(name) {
                    true => scaled_value(value, factor),
                    false => Ok(value.clone()),
                };
                let places = call.arguments.iter().enumerate();
                let arguments = places.map(|(place, value)| one(&(place + 1).to_string(), value));
                let keywords = call.keywords.iter();
                let keywords = keywords.map(|(name, value)| Ok((name.clone(), one(name, value)?)));
                Self::Json(JsonCall {
                    arguments: arguments.collect::<Result<_, Failure>>()?,
                    keywords: keywords.collect::<Result<_, Failure>>()?,
                })
            }
        };
        Ok(scaled)
    }
}

/// The call in a sample: a list of arguments, an object with `arguments` and `keywords`, or its only argument. A text
/// that is no JSON is a string.
fn call_of(text: String) -> JsonCall {
    let positional = |arguments| JsonCall {
        arguments,
        ..JsonCall::default()
    };
    match serde_json::from_str(&text) {
        Err(_) => positional(vec![Value::String(text)]),
        Ok(Value::Array(arguments)) => positional(arguments),
        Ok(Value::Object(members))
            if !members.is_empty() && members.keys().all(|key| key == "arguments" || key == "keywords") =>
        {
            let value = Value::Object(members);
            serde_json::from_value(value.clone()).unwrap_or_else(|_| positional(vec![value]))
        }
        Ok(value) => positional(vec![value]),
    }
}

fn scaled_value(value: &Value, factor: f64) -> Result<Value, Failure> {
    Ok(match value {
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => ((whole as f64 * factor).round() as i64).into(),
            (None, Some(float)) => serde_json::Number::from_f64(float * factor).map_or(Value::Null, Value::Number),
            (None, None) => value.clone(),
        },
        Value::String(text) => {
            let characters: Vec<char> = text.chars().collect();
            Value::String(repeated(&characters, factor)?.into_iter().collect())
        }
        Value::Array(items) => Value::Array(repeated(items, factor)?),
        other => other.clone(),
    })
}

/// The items repeated, and cut to a multiple of their number; at least one of them.
fn repeated<T: Clone>(items: &[T], factor: f64) -> Result<Vec<T>, Failure> {
    let wanted = (items.len() as f64 * factor).round().max(1.0) as usize;
    if wanted.saturating_mul(size_of::<T>()) > MAX_INPUT_BYTES {
        return Err(wrong(format!(
            "--times makes inputs of more than {} MiB; take a smaller sample",
            MAX_INPUT_BYTES >> 20
        )));
    }
    Ok(items.iter().cycle().take(wanted).cloned().collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn scaled(text: &str, factor: f64, chosen: &[&str]) -> Value {
        let content = Content::Json(call_of(text.into()));
        match content.scaled(factor, &chosen.iter().copied().collect()).unwrap() {
            Content::Json(call) => json!([call.arguments, call.keywords]),
            Content::Bytes(_) => unreachable!(),
        }
    }

    #[test]
    fn sample_is_cut_repeated_and_scaled() {
        assert_eq!(
            scaled("[[1, 2, 3, 4], \"abcd\", 100]", 0.5, &[]),
            json!([[[1, 2], "ab", 50], {}])
        );
        assert_eq!(
            scaled("[[1, 2], \"grün\", 1.5, null]", 1.5, &[]),
            json!([[[1, 2, 1], "grüngr", 2.25, null], {}])
        );
        assert_eq!(
            scaled("{\"arguments\": [4], \"keywords\": {\"n\": 6}}", 2.0, &[]),
            json!([[8], {"n": 12}])
        );
        assert_eq!(scaled("plain text", 0.5, &[]), json!([["plain"], {}]));
        assert_eq!(scaled("{\"n\": 6}", 2.0, &[]), json!([[{"n": 6}], {}]));
    }

    #[test]
    fn only_chosen_arguments_are_scaled() {
        let text = "{\"arguments\": [4, 5], \"keywords\": {\"n\": 6}}";
        assert_eq!(scaled(text, 2.0, &["2"]), json!([[4, 10], {"n": 6}]));
        assert_eq!(scaled(text, 2.0, &["n"]), json!([[4, 5], {"n": 12}]));
        let call = Content::Json(call_of(text.into()));
        for unknown in ["0", "3", "m"] {
            assert!(call.check(&BTreeSet::from([unknown])).is_err(), "{unknown}");
        }
    }

    #[test]
    fn bytes_are_never_empty_nor_too_long() {
        assert_eq!(repeated(b"abc", 0.01).unwrap(), b"a");
        assert_eq!(repeated(b"abc", 2.0).unwrap(), b"abcabc");
        assert!(repeated(b"", 1.0).unwrap().is_empty());
        let error = repeated(&vec![0_u8; 1 << 20], 100.0).unwrap_err();
        assert!(error.message.contains("64 MiB"), "{error}");
    }

    #[test]
    fn nothing_runs_if_no_node_measures() {
        assert!(check_measuring(&[]).is_err());
    }
}
