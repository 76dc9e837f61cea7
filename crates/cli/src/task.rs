//! `mayfly task`: durable tasks, wherever they were submitted.

use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use mayfly_client::{Client, encoded};
use mayfly_protocol::error::{Code, Failure};
use mayfly_protocol::executor::Form;
use mayfly_protocol::ids::TaskId;
use mayfly_protocol::node_api::Stream;
use mayfly_protocol::tasks::{
    Cancellation, Cancelled, FunctionStatus, JSON_ANSWER, TaskCounts, TaskOutcome, TaskPrinted, TaskState, TaskStatus,
    TaskTimes,
};

use crate::output::Align::{Left, Right};
use crate::{Global, connect, invoke, output, values};

/// One request waits this long at most: less than a client waits for an answer.
const ASK: Duration = Duration::from_secs(20);
/// Between two requests, so that a manager which answers sooner than it is asked to has time for others.
const PAUSE: Duration = Duration::from_millis(100);
/// Of an id, which begins with the time, so that tasks that were submitted together differ in their last digits.
const SHORT_DIGITS: usize = 12;
/// Bytes of a value that are shown; whoever wants more of them wants them in a file.
const SHOWN_BYTES: usize = 1024;

/// Follow durable tasks, fetch their outcomes, and cancel them.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mayfly task list --tag sweep-7
  mayfly task list --json | jq -r '.[].id'                      ids in full, which the other commands take
  mayfly task show 019a51c3e0f07d2c9b64f1a85be3d207
  mayfly task result 019a51c3e0f07d2c9b64f1a85be3d207 --wait 10m
  mayfly task output 019a51c3e0f07d2c9b64f1a85be3d207 --follow
  mayfly task cancel --tag sweep-7
  mayfly task counts

A durable task is on the manager's disk once it is accepted, and ends in one outcome, whoever goes away meanwhile. Tasks
are submitted by client libraries; in Python, `client.tasks(\"sweep-7\")` has all of a tag with their results.")]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show your tasks, the latest first
    List(List),
    /// Show one task, and how long it waited and ran
    Show {
        /// Its id
        #[arg(value_name = "ID", value_parser = values::task)]
        task: TaskId,
    },
    /// Show how a task ended; fails as the task did
    Result(Outcome),
    /// Show what a task prints: the last 64 KiB, while its manager lives
    Output(Printed),
    /// End tasks: those that have not begun never will, those that run end soon
    Cancel(Cancel),
    /// Show how many of your tasks wait and run, and how many have ended since the manager started
    Counts,
}

/// Show what a task prints on standard output and error: the last 64 KiB, while its manager lives.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mayfly task output 019a51c3e0f07d2c9b64f1a85be3d207
  mayfly task output 019a51c3e0f07d2c9b64f1a85be3d207 --follow      until it has ended
  mayfly task output 019a51c3e0f07d2c9b64f1a85be3d207 --stream err  of the two streams this one")]
struct Printed {
    /// Its id
    #[arg(value_name = "ID", value_parser = values::task)]
    task: TaskId,
    /// Go on with what it prints next, until it has ended
    #[arg(long, short)]
    follow: bool,
    /// Standard output or error alone
    #[arg(long, value_enum, value_name = "STREAM")]
    stream: Option<Channel>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Channel {
    /// Standard output
    Out,
    /// Standard error
    Err,
}

/// Show your tasks, the latest first.
#[derive(Debug, Args)]
struct List {
    /// Those with this tag only
    #[arg(long)]
    tag: Option<String>,
    /// So many at most, 1 to 10,000
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Everybody's, for operators
    #[arg(long)]
    everybody: bool,
}

/// Show how a task ended; fails as the task did.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mayfly task result 019a51c3e0f07d2c9b64f1a85be3d207
  mayfly task result 019a51c3e0f07d2c9b64f1a85be3d207 --wait 90
  mayfly task result 019a51c3e0f07d2c9b64f1a85be3d207 --raw > answer

Fails with `timed_out` while the task has not ended, and with the task's own error if it did not end well. What a Python
function answers is encoded: `client.task(ID).result()` reads it in Python.")]
struct Outcome {
    /// Of which, by its id
    #[arg(value_name = "ID", value_parser = values::task)]
    task: TaskId,
    /// Wait so long for its end: seconds, or such as 10m [default: not at all]
    #[arg(long, value_name = "SECONDS", value_parser = values::wait)]
    wait: Option<Duration>,
    /// Write what the function answered as it is, as its runtime encodes it
    #[arg(long, conflicts_with = "json")]
    raw: bool,
}

/// End tasks: those that have not begun never will, those that run end soon.
#[derive(Debug, Args)]
struct Cancel {
    /// Which, by their ids
    #[arg(value_name = "ID", value_parser = values::task, required_unless_present = "tag")]
    tasks: Vec<TaskId>,
    /// All with this tag
    #[arg(long, conflicts_with = "tasks")]
    tag: Option<String>,
}

pub fn run(arguments: &Arguments, global: &Global) -> Result<(), Failure> {
    let client = connect::manager(global)?;
    match &arguments.what {
        What::List(wanted) => list_wanted(wanted, &client, global),
        What::Show { task } => show(*task, &client, global),
        What::Result(wanted) => result(wanted, &client, global),
        What::Output(wanted) => printed(wanted, &client, global),
        What::Cancel(wanted) => cancel(wanted, &client, global),
        What::Counts => counts(&client, global),
    }
}

fn list_wanted(wanted: &List, client: &Client, global: &Global) -> Result<(), Failure> {
    let mut path = format!("/v1/tasks?everybody={}", wanted.everybody);
    if let Some(tag) = &wanted.tag {
        path += &format!("&tag={}", encoded(tag));
    }
    list(path, wanted.limit, client, global)
}

/// Lists the tasks that a path of the manager's tells of.
pub fn list(path: String, limit: u32, client: &Client, global: &Global) -> Result<(), Failure> {
    let path = format!("{path}&limit={limit}");
    let tasks: Vec<TaskStatus> = client.get(&path).map_err(|error| error.0)?;
    output::line(&if global.json {
        output::json(&tasks)?
    } else if tasks.is_empty() {
        "No tasks.".into()
    } else {
        table(&tasks, output::now_ms()).text(output::colours(&std::io::stdout()))
    });
    if !global.json && tasks.len() == limit as usize {
        eprintln!("(There may be more, which --limit shows.)");
    }
    Ok(())
}

fn table(tasks: &[TaskStatus], now_ms: u64) -> output::Table {
    let mut table = output::Table::new(&[
        ("TASK", Left),
        ("FUNCTION", Left),
        ("STATE", Left),
        ("OUTCOME", Left),
        ("TAG", Left),
        ("ENDPOINT", Left),
        ("AGE", Right),
    ]);
    for task in tasks {
        table.row([
            short(task.id),
            output::plain(&task.name),
            task.state.name().into(),
            ending(task).into(),
            tag(task),
            output::plain(&task.endpoint),
            output::span(now_ms.saturating_sub(task.submitted_at_ms)),
        ]);
    }
    table
}

fn short(id: TaskId) -> String {
    let whole = id.to_string();
    let end = whole.len().saturating_sub(SHORT_DIGITS);
    format!("...{}", whole.get(end..).unwrap_or(&whole))
}

fn tag(task: &TaskStatus) -> String {
    match &task.tag[..] {
        "" => "-".into(),
        tag => output::plain(tag),
    }
}

/// How it ended: `ok`, or the code of its error.
fn ending(task: &TaskStatus) -> &'static str {
    match (&task.error, task.state) {
        (Some(failure), _) => failure.code.name(),
        (None, TaskState::Done) => "ok",
        (None, _) => "-",
    }
}

fn show(id: TaskId, client: &Client, global: &Global) -> Result<(), Failure> {
    let task: TaskStatus = client.get(&format!("/v1/tasks/{id}")).map_err(|error| error.0)?;
    output::line(&if global.json {
        output::json(&task)?
    } else {
        described(&task, output::now_ms())
    });
    Ok(())
}

fn described(task: &TaskStatus, now_ms: u64) -> String {
    let at = |ms: u64| match ms {
        0 => "-".into(),
        ms => format!("{} UTC", output::time(ms)),
    };
    let times = task.times(now_ms);
    let span = |ms, since| if since > 0 { output::span(ms) } else { "-".into() };
    let mut text = format!(
        "Task {}\n  function    {} ({})\n  endpoint    {}\n  tag         {}\n  priority    {}\n  state       {}\n  \
         outcome     {}\n  attempts    {}\n  submitted   {}\n  started     {}\n  ended       {}\n  queued      {}\n  \
         waiting     {}\n  environment {}\n  running     {}",
        task.id,
        output::plain(&task.name),
        task.function,
        output::plain(&task.endpoint),
        tag(task),
        task.priority,
        task.state.name(),
        ending(task),
        task.attempts,
        at(task.submitted_at_ms),
        at(task.started_at_ms),
        at(task.ended_at_ms),
        output::span(times.queued_ms),
        span(times.waiting_ms, task.waiting_at_ms),
        span(times.environment_ms, task.environment_at_ms),
        span(times.running_ms, task.started_at_ms),
    );
    if let Some(failure) = &task.error {
        text += &format!("\n  error       {}", output::plain(&failure.message));
    }
    text
}

fn result(wanted: &Outcome, client: &Client, global: &Global) -> Result<(), Failure> {
    let mut outcome = wait(wanted.task, wanted.wait.unwrap_or_default(), client)?;
    if let Some(mut failure) = outcome.error.take() {
        if outcome.raised {
            let task = wanted.task;
            failure.message += &format!("; in Python, `client.task(\"{task}\").result()` raises it");
        }
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
        answer(wanted.task, &outcome.answer, form(wanted.task, client).as_ref())
    });
    Ok(())
}

/// Asks for the outcome until there is one, or the wait is over: then it is the manager who says that there is none.
fn wait(task: TaskId, wait: Duration, client: &Client) -> Result<TaskOutcome, Failure> {
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

/// What a task's function is, which says how it answers; none if whoever owns it does not share it any more.
fn form(task: TaskId, client: &Client) -> Option<Form> {
    let task: TaskStatus = client.get(&format!("/v1/tasks/{task}")).ok()?;
    let function: FunctionStatus = client.get(&format!("/v1/functions/{}", task.function)).ok()?;
    Some(function.form)
}

/// An answer for people, as far as that goes without its runtime: of Python's, the last byte says what it is.
fn answer(task: TaskId, answer: &[u8], form: Option<&Form>) -> String {
    match (form, answer) {
        (Some(Form::Plain { .. } | Form::Checked { .. }), _) => match invoke::as_text(answer) {
            Some(text) => text.trim_end_matches('\n').into(),
            None => cut(answer, |shown| format!("hex:{}", hex::encode(shown))),
        },
        (Some(Form::EntryPoint { .. }), [text @ .., JSON_ANSWER]) => match serde_json::from_slice::<String>(text) {
            Ok(text) => match invoke::as_text(text.as_bytes()) {
                Some(text) => text.trim_end_matches('\n').into(),
                None => cut(text.as_bytes(), |shown| shown.escape_ascii().to_string()),
            },
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

/// Shows what a task prints, each stream where it belongs.
fn printed(wanted: &Printed, client: &Client, global: &Global) -> Result<(), Failure> {
    let mut from = 0;
    loop {
        let wait_ms = if wanted.follow { ASK.as_millis() } else { 0 };
        let path = format!("/v1/tasks/{}/output?from={from}&wait_ms={wait_ms}", wanted.task);
        let answer: TaskPrinted = client.get(&path).map_err(|error| error.0)?;
        if answer.from > from {
            eprintln!(
                "mayfly task: {} bytes before this are not kept any more",
                answer.from - from
            );
        }
        let is_done = answer.over || (!wanted.follow && answer.pieces.is_empty());
        from = answer.next;
        let shown = answer.pieces.into_iter().filter(|piece| match wanted.stream {
            None => true,
            Some(Channel::Out) => piece.stream == Stream::Out,
            Some(Channel::Err) => piece.stream == Stream::Err,
        });
        let shown = shown.map(|piece| (piece.stream, piece.bytes.to_vec()));
        if !output::printed(shown, global.json)? || is_done {
            return Ok(());
        }
    }
}

fn cancel(wanted: &Cancel, client: &Client, global: &Global) -> Result<(), Failure> {
    let what = Cancellation {
        tasks: wanted.tasks.clone(),
        tag: wanted.tag.clone(),
    };
    let cancelled: Cancelled = client.post("/v1/tasks/cancel", &what).map_err(|error| error.0)?;
    output::line(&if global.json {
        output::json(&cancelled)?
    } else {
        told(&cancelled)
    });
    Ok(())
}

fn told(cancelled: &Cancelled) -> String {
    let ended = output::count(cancelled.ended, "task");
    let told = output::count(cancelled.told, "task");
    match (cancelled.ended, cancelled.told) {
        (0, 0) => "Nothing to cancel: no such task of yours is queued or running.".into(),
        (_, 0) => format!("{ended} will never begin."),
        (0, _) => format!("{told} will end soon."),
        _ => format!("{ended} will never begin; {told} will end soon."),
    }
}

fn counts(client: &Client, global: &Global) -> Result<(), Failure> {
    let counts: TaskCounts = client.get("/v1/tasks/counts").map_err(|error| error.0)?;
    if global.json {
        output::line(&output::json(&counts)?);
        return Ok(());
    }
    let mut table = output::Table::new(&[
        ("QUEUED", Right),
        ("WAITING", Right),
        ("ENVIRONMENT", Right),
        ("RUNNING", Right),
        ("DONE", Right),
        ("FAILED", Right),
    ]);
    let numbers = [
        counts.queued,
        counts.waiting,
        counts.environment,
        counts.running,
        counts.done,
        counts.failed,
    ];
    table.row(numbers.map(|number| number.to_string()));
    let TaskTimes {
        queued_ms,
        waiting_ms,
        environment_ms,
        running_ms,
    } = counts.times;
    if counts.done > 0 {
        // In each column how long those that ended were in its state, all together.
        let [queued, waiting, environment, running] =
            [queued_ms, waiting_ms, environment_ms, running_ms].map(output::span);
        table.row([queued, waiting, environment, running, String::new(), String::new()]);
    }
    output::line(&table.text(output::colours(&std::io::stdout())));
    Ok(())
}

#[cfg(test)]
mod tests {
    use mayfly_protocol::ids::FunctionId;

    use super::*;

    const ID: TaskId = TaskId([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);

    fn task(state: TaskState, started_at_ms: u64, ended_at_ms: u64) -> TaskStatus {
        TaskStatus {
            id: ID,
            function: FunctionId([7; 16]),
            name: "area".into(),
            endpoint: "local".into(),
            tag: String::new(),
            state,
            error: None,
            attempts: 1,
            priority: 0,
            submitted_at_ms: 1_000,
            waiting_at_ms: 1_200,
            environment_at_ms: 0,
            started_at_ms,
            ended_at_ms,
            raw: false,
        }
    }

    #[test]
    fn tables_show_the_end_of_an_id_in_which_tasks_differ() {
        assert_eq!(short(ID), "...0a0b0c0d0e0f");
    }

    #[test]
    fn a_task_ends_well_or_with_a_code() {
        let mut failed = task(TaskState::Done, 1_500, 1_700);
        assert_eq!(
            (ending(&failed), ending(&task(TaskState::Running, 1_500, 0))),
            ("ok", "-")
        );
        failed.error = Some(Failure::new(Code::FunctionError, "one\ntwo"));
        assert_eq!(ending(&failed), "function_error");
        let text = described(&failed, 4_000);
        assert!(
            text.contains("\n  queued      0.2s\n  waiting     0.3s\n  environment -\n  running     0.2s\n")
                && text.ends_with("\n  error       one\\ntwo"),
            "{text}"
        );
    }

    #[test]
    fn of_pythons_answers_none_and_bytes_are_shown_and_others_counted() {
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
    fn answers_of_libraries_are_texts_or_hexadecimal_whatever_their_last_byte() {
        let library = Form::Plain { symbol: "area".into() };
        let shown = |bytes: &[u8]| answer(ID, bytes, Some(&library));
        assert_eq!(shown(b"done\n"), "done");
        assert_eq!(shown(&[42, 0, 0, 1]), "hex:2a000001");
        assert_eq!(shown(b""), "");
        assert!(answer(ID, &[1], None).starts_with("1 byte, "), "of an unknown function");
    }

    #[test]
    fn what_was_cancelled_is_told_in_a_sentence() {
        let sentence = |ended, running| told(&Cancelled { ended, told: running });
        assert!(sentence(0, 0).starts_with("Nothing to cancel"));
        assert_eq!(sentence(1, 0), "1 task will never begin.");
        assert_eq!(sentence(2, 1), "2 tasks will never begin; 1 task will end soon.");
    }
}
