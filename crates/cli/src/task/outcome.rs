//! The outcome of a task, and its result.

use std::time::{Duration, Instant};

use clap::Args;
use dayfly_client::{Client, Form};
use dayfly_command::Global;
use dayfly_protocol::encoding::JSON_RESULT;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::functions::FunctionStatus;
use dayfly_protocol::id_pattern::IdPattern;
use dayfly_protocol::ids::TaskId;
use dayfly_protocol::tasks::{TaskOutcome, TaskStatus};
use dayfly_protocol::text;

use crate::{invoke, output, values};

/// Maximum wait of one request, shorter than a client's time limit for a response.
pub const ASK: Duration = Duration::from_secs(20);
/// Pause between two requests, to limit the load if the manager responds early.
const PAUSE: Duration = Duration::from_millis(100);
/// Maximum length of a printed value, in bytes. Larger values belong in a file.
const SHOWN_BYTES: usize = 1024;

/// Show the outcome of a task; fails if the task failed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly task result 019a51c3e0f07d2c9b64f1a85be3d207
  dayfly task result 019a51c3e0f07d2c9b64f1a85be3d207 --wait 90
  dayfly task result 019a51c3e0f07d2c9b64f1a85be3d207 --raw > answer

Fails with `timed_out` while the task has not ended, and with the task's own error if it failed. For an exception of the function,
standard error contains the worker's traceback. Results of Python functions are encoded: read them with
`client.task(ID).result()` in Python.")]
pub struct Outcome {
    /// Id, or at least six digits of its beginning or end
    #[arg(value_name = "ID", value_parser = values::id)]
    task: IdPattern,
    /// Wait for its end: seconds, or a duration such as 10m [default: do not wait]
    #[arg(long, value_name = "SECONDS", value_parser = values::wait)]
    wait: Option<Duration>,
    /// Write the result as its runtime encoded it
    #[arg(long, conflicts_with = "json")]
    raw: bool,
}

pub fn result(wanted: &Outcome, client: &Client, global: &Global) -> Result<(), Failure> {
    let task = super::whole(&wanted.task, client)?;
    let mut outcome = wait(task, wanted.wait.unwrap_or_default(), client)?;
    if let Some(failure) = outcome.error.take() {
        return Err(failure);
    }
    if let Some(content) = outcome.content.filter(|_| wanted.raw || !global.json) {
        outcome.answer = client.read_content(content).map_err(|error| error.0)?.into();
    }
    if wanted.raw {
        output::bytes(&outcome.answer);
        return Ok(());
    }
    output::line(&if global.json {
        output::json(&outcome)?
    } else {
        answer(task, &outcome.answer, form(task, client).as_ref())
    });
    Ok(())
}

/// Requests the outcome until there is one or the wait is over. Then returns the manager's error.
pub fn wait(task: TaskId, wait: Duration, client: &Client) -> Result<TaskOutcome, Failure> {
    let begun = Instant::now();
    loop {
        let left = wait.saturating_sub(begun.elapsed());
        let path = format!("/v1/tasks/{task}/outcome?wait_ms={}", left.min(ASK).as_millis());
        match client.get(&path).map_err(|error| error.0) {
            Err(failure) if failure.code == Code::TimedOut && !left.is_zero() => {
                std::thread::sleep(left.min(PAUSE));
            }
            answered => return answered,
        }
    }
}

/// Returns the form of a task's function, which determines the encoding of its result; `None` if its owner no longer
/// shares it.
fn form(task: TaskId, client: &Client) -> Option<Form> {
    let task: TaskStatus = client.get(&format!("/v1/tasks/{task}")).ok()?;
    let function: FunctionStatus = client.get(&format!("/v1/functions/{}", task.function)).ok()?;
    Some(function.form)
}

/// Returns a result in readable form, as far as that is possible without its runtime. The last byte of a Python result
/// is its form.
fn answer(task: TaskId, answer: &[u8], form: Option<&Form>) -> String {
    match (form, answer) {
        (Some(Form::Plain { .. } | Form::Checked { .. }), _) => match invoke::as_text(answer) {
            Some(text) => text.trim_end_matches('\n').into(),
            None => cut(answer, |shown| format!("hex:{}", hex::encode(shown))),
        },
        (Some(Form::EntryPoint { .. }), [text @ .., JSON_RESULT]) => match serde_json::from_slice::<String>(text) {
            Ok(text) => match invoke::as_text(text.as_bytes()) {
                Some(text) => text.trim_end_matches('\n').into(),
                None => cut(text.as_bytes(), |shown| shown.escape_ascii().to_string()),
            },
            Err(_) => cut(text, |shown| shown.escape_ascii().to_string()),
        },
        (Some(form), [text @ .., JSON_RESULT]) if form.speaks_json() => match std::str::from_utf8(text) {
            Ok(json) => text::line(json, usize::MAX),
            Err(_) => cut(text, |shown| shown.escape_ascii().to_string()),
        },
        (Some(Form::Python { .. }), [.., 1]) => "None".into(),
        (Some(Form::Python { .. }), [bytes @ .., 2]) => cut(bytes, |shown| format!("b'{}'", shown.escape_ascii())),
        _ => format!(
            "{}, encoded by the function's runtime: in Python `client.task(\"{task}\").result()` reads them, and --raw \
             writes them as they are",
            output::count(answer.len() as u64, "byte")
        ),
    }
}

fn cut(bytes: &[u8], text: impl Fn(&[u8]) -> String) -> String {
    match bytes.get(..SHOWN_BYTES) {
        Some(shown) if shown.len() < bytes.len() => format!("{}... ({} bytes in all)", text(shown), bytes.len()),
        _ => text(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: TaskId = TaskId([7; 16]);

    #[test]
    fn python_none_and_bytes_are_shown() {
        let python = Form::Python {
            python: "3.11".into(),
            cloudpickle: "3.1".into(),
            name: "area".into(),
        };
        let shown = |bytes: &[u8]| answer(ID, bytes, Some(&python));
        assert_eq!(shown(&[1]), "None");
        assert_eq!(shown(b"a\nb'\xff\x02"), r"b'a\nb\'\xff'");
        assert_eq!(shown(&[2]), "b''");
        let long = [&[b'x'; 2000][..], &[2]].concat();
        assert!(shown(&long).ends_with("xxx'... (2000 bytes in all)"));
        let text = shown(b"\x80\x05K*.\0");
        assert!(
            text.starts_with("6 bytes, ") && text.contains(&ID.to_string()),
            "{text}"
        );
    }

    #[test]
    fn library_results_are_text_or_hexadecimal() {
        let library = Form::Plain { symbol: "area".into() };
        let shown = |bytes: &[u8]| answer(ID, bytes, Some(&library));
        assert_eq!(shown(b"done\n"), "done");
        assert_eq!(shown(&[42, 0, 0, 1]), "hex:2a000001");
        assert_eq!(shown(b""), "");
        assert!(answer(ID, &[1], None).starts_with("1 byte, "), "of an unknown function");
    }

    #[test]
    fn json_result_is_shown_unchanged() {
        let source = Form::Source { entry: "area".into() };
        let shown = |text: &str| answer(ID, &[text.as_bytes(), &[JSON_RESULT]].concat(), Some(&source));
        assert_eq!(shown("{\"sides\": [6, 7]}"), "{\"sides\": [6, 7]}");
        assert_eq!(shown("\"\u{9b}2J\""), "\"\\u{9b}2J\"");
    }
}
