//! `dayfly task run`: one call of a function, by its name.

use std::io::{IsTerminal, Read};
use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use dayfly_client::{Client, Form, encoded};
use dayfly_protocol::contents::INLINE_BYTES;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::tasks::{Accepted, FunctionStatus, JsonCall, TaskInput, TaskOptions, TaskOutcome, TaskSubmission};
use serde_json::Value;

use super::outcome::wait;
use super::printed::{Printed, printed};
use crate::{Global, output, values};

/// What `--wait` says that says no more.
const FOR_EVER: &str = "for-ever";

/// Submit a task: one call of a function, by its name.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly task run extract report.pdf 3                      prints the task's id
  dayfly task run extract report.pdf --keyword pages='[1, 2]' --endpoint cluster --tag reports
  dayfly task run extract report.pdf --wait                 prints its result, in JSON
  dayfly task run convert photo.jpg small.png --wait --raw  a text as it is
  dayfly task run simulate wing --follow                    shows what it prints, and fails as it does
  dayfly task run area --input sides.bin --wait > area.bin  a function of a shared library

Arguments are JSON, or texts that are none: 3 is a number, and '\"3\"' a text; behind `--` they may begin with a dash. Whoever
does not wait, or stops waiting, finds the task by its id: `dayfly task result ID --wait 10m`.")]
pub struct Run {
    /// What to call: its name for its last version, OWNER/NAME for another tenant's, with @ID behind it for exactly that version, or an id
    #[arg(value_name = "NAME_OR_ID", value_parser = NonEmptyStringValueParser::new())]
    function: String,
    /// What it is called with, in JSON, or a text that is none
    #[arg(value_name = "ARGUMENT", value_parser = values::argument, allow_negative_numbers = true)]
    arguments: Vec<Value>,
    /// Argument by name, in JSON, or a text that is none; may be repeated
    #[arg(long, value_name = "NAME=JSON", value_parser = values::keyword)]
    keyword: Vec<(String, Value)>,
    /// Input of a function of a shared library: a file, or - for standard input [default: none]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["arguments", "keyword"])]
    input: Option<String>,
    /// Where, of those that `dayfly endpoint list` shows [default: the manager's own, or the only one]
    #[arg(long, value_name = "NAME")]
    endpoint: Option<String>,
    /// Name of yours for all that belongs together
    #[arg(long, default_value = "", hide_default_value = true)]
    tag: String,
    /// How often it is executed again when its function fails
    #[arg(long, value_name = "N", default_value_t = 0)]
    retries: u16,
    /// How long to wait before the first of these; before each further one, twice as long as before the last [default: not at all]
    #[arg(long, value_name = "DURATION", requires = "retries", value_parser = values::duration)]
    retry_wait: Option<Duration>,
    /// Those of yours with a higher one run first, -128 to 127
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    priority: i8,
    /// How long it may take until its end, with all waiting [default: as long as it takes]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    deadline: Option<Duration>,
    /// How long one execution may take [default: what the function says]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    walltime: Option<Duration>,
    /// It may have the result of an earlier one of yours with the same function and arguments
    #[arg(long)]
    memoize: bool,
    /// It may be executed again after a fault, when it may have been executed already [default: what the function says]
    #[arg(long)]
    repeatable: bool,
    /// Wait for its end, or so long, in seconds or such as 10m, and print its result in JSON; that of a shared library's as it is
    #[arg(
        long,
        value_name = "SECONDS",
        value_parser = patience,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = FOR_EVER
    )]
    wait: Option<Duration>,
    /// Show what it prints until it has ended
    #[arg(long, short)]
    follow: bool,
    /// Print a result that is a text as that text, and not in JSON
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
    let accepted: Accepted = client.post("/v1/tasks", &submission).map_err(|error| error.0)?;
    let task = *accepted
        .tasks
        .first()
        .ok_or_else(|| Failure::new(Code::Internal, "the manager accepted a task without telling its id"))?;
    if wanted.wait.is_none() && !wanted.follow {
        output::line(&match global.json {
            true => output::json(&accepted)?,
            false => task.to_string(),
        });
        return Ok(());
    }
    // Whoever looks on and stops waiting goes on by this.
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

    /// What the function is called with.
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

    /// Prints the result where that is wanted; fails as the task did.
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
        // What a library's function answers may look like JSON.
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

/// The bytes of a file, or of standard input.
fn bytes(file: &str) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = match file {
        "-" => std::io::stdin().lock().read_to_end(&mut bytes).map(drop),
        file => std::fs::read(file).map(|read| bytes = read),
    };
    read.map_err(|error| wrong(format!("--input {file} cannot be read: {error}")))?;
    Ok(bytes)
}
