//! `dayfly task run`: one call of a function, by its name.

use std::io::{IsTerminal, Read};
use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use dayfly_client::{Client, Form, encoded};
use dayfly_command::Global;
use dayfly_protocol::contents::INLINE_BYTES;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::functions::FunctionStatus;
use dayfly_protocol::ids::TaskId;
use dayfly_protocol::tasks::{AcceptedTasks, JsonCall, TaskInput, TaskOptions, TaskOutcome, TaskSubmission};
use serde_json::Value;

use super::outcome::wait;
use super::printed::{Printed, printed};
use crate::{output, values};

/// Value of `--wait` without an argument.
const FOR_EVER: &str = "for-ever";

/// Submit a task: one call of a function, by its name.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly task run extract report.pdf 3                      prints the task's id
  dayfly task run extract report.pdf --keyword pages='[1, 2]' --endpoint cluster --tag reports
  dayfly task run extract report.pdf --wait                 prints its result, in JSON
  dayfly task run convert photo.jpg small.png --wait --raw  a string without quotes
  dayfly task run simulate wing --follow                    shows its output, and fails if it fails
  dayfly task run area --input sides.bin --wait > area.bin  a function of a shared library

Arguments are JSON; an argument that is not valid JSON is passed as a string. 3 is a number, '\"3\"' a string. After `--`,
arguments may begin with a dash. To get the result later, use the task's id: `dayfly task result ID --wait 10m`.")]
pub struct Run {
    /// Function to call: a name for its latest version, OWNER/NAME for another tenant's, NAME@ID for exactly that
    /// version, or an id
    #[arg(value_name = "NAME_OR_ID", value_parser = NonEmptyStringValueParser::new())]
    function: String,
    /// Positional arguments, in JSON; other text is passed as a string
    #[arg(value_name = "ARGUMENT", value_parser = values::argument, allow_negative_numbers = true)]
    arguments: Vec<Value>,
    /// Keyword argument, in JSON; other text is passed as a string; may be repeated
    #[arg(long, value_name = "NAME=JSON", value_parser = values::keyword)]
    keyword: Vec<(String, Value)>,
    /// Input for a function of a shared library: a file, or - for standard input [default: none]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["arguments", "keyword"])]
    input: Option<String>,
    /// Endpoint, as `dayfly endpoint list` shows it [default: the manager's own, or the only one]
    #[arg(long, value_name = "NAME")]
    endpoint: Option<String>,
    /// Tag, to group tasks
    #[arg(long, default_value = "", hide_default_value = true)]
    tag: String,
    /// Number of retries after the function failed
    #[arg(long, value_name = "N", default_value_t = 0)]
    retries: u16,
    /// Wait before the first retry; doubles for each further one [default: none]
    #[arg(long, value_name = "DURATION", requires = "retries", value_parser = values::duration)]
    retry_wait: Option<Duration>,
    /// Priority among your tasks, -128 to 127; higher ones run first
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    priority: i8,
    /// Time limit until its end, including all waiting [default: none]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    deadline: Option<Duration>,
    /// Time limit of one execution [default: that of the function]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    walltime: Option<Duration>,
    /// Reuse the result of an earlier task of yours with the same function and arguments
    #[arg(long)]
    memoize: bool,
    /// Allow another execution after a fault, when the first may have run [default: that of the function]
    #[arg(long)]
    repeatable: bool,
    /// Wait for its end, at most this long (seconds, or a duration such as 10m), and print its result: JSON, or the
    /// bytes of a shared library's function
    #[arg(
        long,
        value_name = "SECONDS",
        value_parser = patience,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = FOR_EVER
    )]
    wait: Option<Duration>,
    /// Show its output until it has ended
    #[arg(long, short)]
    follow: bool,
    /// Print a result that is a string without JSON quotes
    #[arg(long, requires = "wait", conflicts_with = "json")]
    raw: bool,
}

fn patience(text: &str) -> Result<Duration, String> {
    match text {
        FOR_EVER => Ok(Duration::MAX),
        text => values::wait(text),
    }
}

fn wrong(text: impl Into<String>) -> Failure {
    Failure::new(Code::InvalidRequest, text)
}

fn milliseconds(length: Option<Duration>, option: &str) -> Result<u32, Failure> {
    u32::try_from(length.unwrap_or_default().as_millis())
        .map_err(|_| wrong(format!("{option} is too long; 49 days are allowed")))
}

/// Submits one task. Returns the manager's response, and the task's id in it.
pub fn submit(submission: &TaskSubmission, client: &Client) -> Result<(AcceptedTasks, TaskId), Failure> {
    let accepted: AcceptedTasks = client.post("/v1/tasks", submission).map_err(|error| error.0)?;
    let task = accepted.tasks.first().copied();
    let task =
        task.ok_or_else(|| Failure::new(Code::Internal, "the manager accepted a task without telling its id"))?;
    Ok((accepted, task))
}

pub fn run(wanted: &Run, client: &Client, global: &Global) -> Result<(), Failure> {
    let options = wanted.options()?;
    let path = format!("/v1/functions/{}", encoded(&wanted.function));
    let function: FunctionStatus = client.get(&path).map_err(|error| error.0)?;
    let submission = TaskSubmission {
        function: function.id,
        endpoint: wanted.endpoint.clone(),
        tag: wanted.tag.clone(),
        options,
        tasks: vec![wanted.input(&function.form, client)?],
    };
    let (accepted, task) = submit(&submission, client)?;
    if wanted.wait.is_none() && !wanted.follow {
        output::line(&match global.json {
            true => output::json(&accepted)?,
            false => task.to_string(),
        });
        return Ok(());
    }
    // Tell people who stop waiting how to find the task.
    if std::io::stderr().is_terminal() {
        eprintln!("task {task}");
    }
    if wanted.follow {
        let all = Printed {
            task: task.into(),
            follow: true,
            stream: None,
            raw: wanted.raw,
        };
        printed(&all, client, global)?;
    }
    let ended = wait(task, wanted.wait.unwrap_or(Duration::MAX), client)?;
    wanted.told(ended, &function.form, client, global)
}

impl Run {
    fn options(&self) -> Result<TaskOptions, Failure> {
        let deadline_ms = u64::try_from(self.deadline.unwrap_or_default().as_millis());
        Ok(TaskOptions {
            priority: self.priority,
            deadline_ms: deadline_ms.map_err(|_| wrong("--deadline is too long"))?,
            walltime_ms: milliseconds(self.walltime, "--walltime")?,
            retries: self.retries,
            retry_wait_ms: milliseconds(self.retry_wait, "--retry-wait")?,
            repeatable: self.repeatable.then_some(true),
            memoize: self.memoize,
        })
    }

    /// Returns the input of the function.
    fn input(&self, form: &Form, client: &Client) -> Result<TaskInput, Failure> {
        if form.speaks_json() {
            return match &self.input {
                Some(_) => Err(wrong(
                    "--input is for functions of shared libraries; give this one its arguments",
                )),
                None => Ok(TaskInput {
                    call: Some(JsonCall {
                        arguments: self.arguments.clone(),
                        keywords: self.keyword.iter().cloned().collect(),
                    }),
                    ..TaskInput::default()
                }),
            };
        }
        if !self.arguments.is_empty() || !self.keyword.is_empty() {
            return Err(wrong(
                "a function of a shared library takes bytes and no arguments; give them by --input",
            ));
        }
        let bytes = self.input.as_deref().map_or_else(|| Ok(Vec::new()), bytes)?;
        let stored = bytes.len() > INLINE_BYTES;
        let content = stored
            .then(|| client.store_content(&bytes))
            .transpose()
            .map_err(|error| error.0)?;
        Ok(TaskInput {
            arguments: if stored { Vec::new() } else { bytes }.into(),
            content,
            ..TaskInput::default()
        })
    }

    /// Prints or writes the result; fails if the task failed.
    fn told(&self, mut ended: TaskOutcome, form: &Form, client: &Client, global: &Global) -> Result<(), Failure> {
        if let Some(failure) = ended.error.take() {
            return Err(failure);
        }
        if self.wait.is_none() {
            return Ok(());
        }
        if global.json {
            output::line(&output::json(&ended)?);
            return Ok(());
        }
        // The result of a library's function may look like JSON by chance.
        match ended.result.as_ref().filter(|_| form.speaks_json()) {
            Some(Value::String(text)) if self.raw => output::bytes(text.as_bytes()),
            Some(result) => output::line(&output::json(result)?),
            None => match ended.content {
                None => output::bytes(&ended.answer),
                Some(content) => output::bytes(&client.read_content(content).map_err(|error| error.0)?),
            },
        }
        Ok(())
    }
}

/// Reads a file, or standard input.
fn bytes(file: &str) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = match file {
        "-" => std::io::stdin().lock().read_to_end(&mut bytes).map(drop),
        file => std::fs::read(file).map(|read| bytes = read),
    };
    read.map_err(|error| wrong(format!("--input {file} cannot be read: {error}")))?;
    Ok(bytes)
}
