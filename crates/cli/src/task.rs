//! `dayfly task`: durable tasks, also those that other clients submitted.

mod loans;
mod outcome;
mod printed;
mod run;

use std::io::IsTerminal;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use dayfly_client::{Client, encoded};
use dayfly_command::Global;
use dayfly_protocol::error::Failure;
use dayfly_protocol::id_pattern::{self, IdPattern};
use dayfly_protocol::ids::TaskId;
use dayfly_protocol::tasks::{
    Cancellation, CancelledTasks, DeletedTasks, TaskCounts, TaskDeletion, TaskState, TaskStatus, TaskTimes,
};
use dayfly_protocol::text;

pub use self::outcome::wait;
pub use self::run::submit;
use crate::output::Align::{Left, Right};
use crate::{connect, output, values};

/// Maximum length of an error in a list, in bytes; `dayfly task show` prints all of it.
const SHOWN_ERROR_BYTES: usize = 100;

/// Submit, follow and cancel durable tasks, and fetch their outcomes.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly task run extract report.pdf --keyword pages=3 --wait
  dayfly task list --tag sweep-7
  dayfly task list --failed --function extract
  dayfly task show f1a85be3d207                                 an abbreviated id, as the list shows it
  dayfly task show 019a51c3e0f07d2c9b64f1a85be3d207
  dayfly task result 019a51c3e0f07d2c9b64f1a85be3d207 --wait 10m
  dayfly task output 019a51c3e0f07d2c9b64f1a85be3d207 --follow
  dayfly task cancel --tag sweep-7
  dayfly task counts --tag sweep-7

An accepted task is on the manager's disk and ends in exactly one outcome, even if its client disconnects or a node fails. Tasks
are submitted here and by client libraries; in Python, `client.tasks(\"sweep-7\")` returns all tasks of a tag with their results.")]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Submit a task: one call of a function, by its name
    Run(Box<run::Run>),
    /// Show your tasks, latest first
    List(List),
    /// Show a task, how long it waited and ran, and what it lent and borrowed if its node measured it
    Show {
        /// Id, or at least six digits of its beginning or end
        #[arg(value_name = "ID", value_parser = values::id)]
        task: IdPattern,
    },
    /// Show the outcome of a task; fails if the task failed
    Result(outcome::Outcome),
    /// Show the output of a task: the last 64 KiB, kept with its outcome
    Output(printed::Printed),
    /// Cancel tasks: waiting ones never run, running ones end soon
    Cancel(Cancel),
    /// Delete tasks that have ended, with their results, before their retention ends
    Forget(Forget),
    /// Show how many of your tasks wait, run, and have ended since the manager's start
    Counts(Count),
}

/// Show your tasks, latest first.
#[derive(Debug, Args)]
struct List {
    /// Show only tasks with this tag
    #[arg(long)]
    tag: Option<String>,
    /// Show only tasks of this function: a name for all versions, OWNER/NAME for another tenant's, or the id of one
    /// version
    #[arg(long, value_name = "NAME_OR_ID", value_parser = NonEmptyStringValueParser::new())]
    function: Option<String>,
    /// Show only tasks at this endpoint, by name or id
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    endpoint: Option<String>,
    /// Show only tasks in this state: queued, waiting, environment, running or done
    #[arg(long, value_name = "STATE", value_parser = state)]
    state: Option<TaskState>,
    /// Show only tasks that failed
    #[arg(long, conflicts_with = "state")]
    failed: bool,
    /// Maximum number of tasks, 1 to 10,000
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Show tasks of all tenants, for operators
    #[arg(long)]
    everybody: bool,
}

/// Cancel tasks: waiting ones never run, running ones end soon.
#[derive(Debug, Args)]
struct Cancel {
    /// Ids, or at least six digits of their beginning or end
    #[arg(value_name = "ID", value_parser = values::id, required_unless_present_any = ["tag", "endpoint"])]
    tasks: Vec<IdPattern>,
    /// Cancel all tasks with this tag
    #[arg(long, conflicts_with = "tasks")]
    tag: Option<String>,
    /// Cancel only tasks at this endpoint; without a tag, all tasks there
    #[arg(long, value_name = "NAME_OR_ID", value_parser = NonEmptyStringValueParser::new())]
    endpoint: Option<String>,
    /// Cancel tasks of all tenants, for operators and, with --endpoint, for the endpoint's owner
    #[arg(long)]
    everybody: bool,
    /// Cancel only tasks that were not given to a worker; running ones continue
    #[arg(long)]
    only_waiting: bool,
}

/// Delete tasks that have ended, with their results.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly task forget --tag sweep-7
  dayfly task forget 019a51c3e0f07d2c9b64f1a85be3d207

Deletes their results too; large ones within an hour. Deleted results do not count towards your limit of stored content. Keeps
tasks that have not ended, and those on which such tasks depend.")]
struct Forget {
    /// Ids, or at least six digits of their beginning or end
    #[arg(value_name = "ID", value_parser = values::id, required_unless_present = "tag")]
    tasks: Vec<IdPattern>,
    /// Delete all ended tasks with this tag
    #[arg(long, conflicts_with = "tasks")]
    tag: Option<String>,
}

/// Show how many of your tasks wait, run, and have ended since the manager's start.
#[derive(Debug, Args)]
struct Count {
    /// Count only tasks with this tag, including all whose outcomes are kept
    #[arg(long)]
    tag: Option<String>,
}

fn state(text: &str) -> Result<TaskState, String> {
    TaskState::from_name(text).ok_or_else(|| {
        let names = TaskState::ALL.map(TaskState::name).join(", ");
        format!("`{text}` is no state of a task; there are {names}")
    })
}

pub fn run(arguments: &Arguments, global: &Global) -> Result<(), Failure> {
    let client = connect::manager(global)?;
    match &arguments.what {
        What::Run(wanted) => run::run(wanted, &client, global),
        What::List(wanted) => list_wanted(wanted, &client, global),
        What::Show { task } => show(task, &client, global),
        What::Result(wanted) => outcome::result(wanted, &client, global),
        What::Output(wanted) => printed::printed(wanted, &client, global),
        What::Cancel(wanted) => cancel(wanted, &client, global),
        What::Forget(wanted) => forget(wanted, &client, global),
        What::Counts(wanted) => counts(wanted, &client, global),
    }
}

fn list_wanted(wanted: &List, client: &Client, global: &Global) -> Result<(), Failure> {
    let mut path = format!("/v1/tasks?everybody={}", wanted.everybody);
    let texts = [
        ("tag", &wanted.tag),
        ("function", &wanted.function),
        ("endpoint", &wanted.endpoint),
    ];
    for (name, text) in texts {
        if let Some(text) = text {
            path += &format!("&{name}={}", encoded(text));
        }
    }
    if let Some(state) = wanted.state {
        path += &format!("&state={}", state.name());
    }
    if wanted.failed {
        path += "&failed=true";
    }
    list(path, wanted.limit, client, global)
}

/// Prints the tasks at a path of the manager's API.
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
        ("ERROR", Left),
    ]);
    for task in tasks {
        table.row([
            id_pattern::abbreviate(&task.id),
            output::plain(&task.name),
            task.state.name().into(),
            ending(task).into(),
            tag(task),
            output::plain(&task.endpoint),
            output::span(now_ms.saturating_sub(task.submitted_at_ms)),
            task.error
                .as_ref()
                .map_or_else(String::new, |failure| text::line(&failure.message, SHOWN_ERROR_BYTES)),
        ]);
    }
    table
}

fn tag(task: &TaskStatus) -> String {
    match &task.tag[..] {
        "" => "-".into(),
        tag => output::plain(tag),
    }
}

/// Returns how it ended: `ok`, or the code of its error.
fn ending(task: &TaskStatus) -> &'static str {
    match (&task.error, task.state) {
        (Some(failure), _) => failure.code.name(),
        (None, TaskState::Done) => "ok",
        (None, _) => "-",
    }
}

/// Returns the status of the task with this id, or this beginning or end of one.
fn status(given: &IdPattern, client: &Client) -> Result<TaskStatus, Failure> {
    client.get(&format!("/v1/tasks/{given}")).map_err(|error| error.0)
}

/// Returns the full id.
fn whole(given: &IdPattern, client: &Client) -> Result<TaskId, Failure> {
    given
        .full_id()
        .map_or_else(|| status(given, client).map(|task| task.id), Ok)
}

fn all_whole(given: &[IdPattern], client: &Client) -> Result<Vec<TaskId>, Failure> {
    given.iter().map(|given| whole(given, client)).collect()
}

fn show(given: &IdPattern, client: &Client, global: &Global) -> Result<(), Failure> {
    let task = status(given, client)?;
    let loans = loans::of(&task, client)?;
    output::line(&if global.json {
        let (task, loans) = (&task, loans.as_ref());
        output::json(&loans::ShownTask { task, loans })?
    } else {
        let has_chart = std::io::stdout().is_terminal();
        let loans = loans.map_or_else(String::new, |loans| loans::described(&loans, has_chart));
        described(&task, output::now_ms()) + &loans
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
    if let Some(how) = &task.building {
        text += &format!("\n  building    {}", output::plain(how));
    }
    if let Some(failure) = &task.error {
        let indented = |foreign: &str| output::lines(foreign).trim_end().replace('\n', "\n              ");
        text += &format!("\n  error       {}", indented(&failure.message));
        if let Some(exception) = &failure.exception {
            text += &format!("\n  traceback   {}", indented(&exception.traceback));
        }
    }
    text
}

fn cancel(wanted: &Cancel, client: &Client, global: &Global) -> Result<(), Failure> {
    let what = Cancellation {
        tasks: all_whole(&wanted.tasks, client)?,
        tag: wanted.tag.clone(),
        endpoint: wanted.endpoint.clone(),
        everybody: wanted.everybody,
        only_waiting: wanted.only_waiting,
    };
    let cancelled: CancelledTasks = client.post("/v1/tasks/cancel", &what).map_err(|error| error.0)?;
    output::line(&if global.json {
        output::json(&cancelled)?
    } else {
        told(&cancelled)
    });
    Ok(())
}

fn forget(wanted: &Forget, client: &Client, global: &Global) -> Result<(), Failure> {
    let what = TaskDeletion {
        tasks: all_whole(&wanted.tasks, client)?,
        tag: wanted.tag.clone(),
    };
    let done: DeletedTasks = client.post("/v1/tasks/forget", &what).map_err(|error| error.0)?;
    output::line(&if global.json {
        output::json(&done)?
    } else {
        let gone = output::count(done.forgotten, "task");
        match done.left {
            0 => format!("Forgot {gone}."),
            left => format!("Forgot {gone}; {left} more have not ended, or others come after them."),
        }
    });
    Ok(())
}

fn told(cancelled: &CancelledTasks) -> String {
    let line = |count, what: &str| (count > 0).then(|| format!("{} {what}", output::count(count, "task")));
    let lines = [
        line(cancelled.ended, "will never begin"),
        line(cancelled.told, "will end soon"),
        line(
            cancelled.running,
            "cannot be cancelled any more: leave --only-waiting out to end what runs",
        ),
    ];
    let lines: Vec<String> = lines.into_iter().flatten().collect();
    match lines.is_empty() {
        true => "Nothing to cancel: no such task of yours is queued or running.".into(),
        false => format!("{}.", lines.join("; ")),
    }
}

fn counts(wanted: &Count, client: &Client, global: &Global) -> Result<(), Failure> {
    let path = match &wanted.tag {
        None => "/v1/tasks/counts".into(),
        Some(tag) => format!("/v1/tasks/counts?tag={}", encoded(tag)),
    };
    let counts: TaskCounts = client.get(&path).map_err(|error| error.0)?;
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
    if counts.done > 0 || wanted.tag.is_some() {
        // Each column is the total time of all tasks in that state: of ended tasks, and with a tag also of the others.
        let [queued, waiting, environment, running] =
            [queued_ms, waiting_ms, environment_ms, running_ms].map(output::span);
        table.row([queued, waiting, environment, running, String::new(), String::new()]);
    }
    output::line(&table.text(output::colours(&std::io::stdout())));
    Ok(())
}

#[cfg(test)]
mod tests {
    use dayfly_protocol::error::Code;
    use dayfly_protocol::ids::FunctionId;

    use super::*;

    const ID: TaskId = TaskId([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);

    fn task(state: TaskState, started_at_ms: u64, ended_at_ms: u64) -> TaskStatus {
        TaskStatus {
            id: ID,
            owner: "astro".into(),
            function: FunctionId([7; 16]),
            name: "area".into(),
            endpoint: "local".into(),
            tag: String::new(),
            state,
            building: None,
            error: None,
            attempts: 1,
            priority: 0,
            submitted_at_ms: 1_000,
            waiting_at_ms: 1_200,
            environment_at_ms: 0,
            started_at_ms,
            ended_at_ms,
            raw: false,
            argument_bytes: None,
        }
    }

    #[test]
    fn task_succeeds_or_has_a_code() {
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
                && text.ends_with("\n  error       one\n              two"),
            "{text}"
        );
    }

    #[test]
    fn cancelled_tasks_are_summarized() {
        let sentence = |ended, ending, running| {
            let told_of = CancelledTasks {
                ended,
                told: ending,
                running,
            };
            told(&told_of)
        };
        assert!(sentence(0, 0, 0).starts_with("Nothing to cancel"));
        assert_eq!(sentence(1, 0, 0), "1 task will never begin.");
        assert_eq!(sentence(2, 1, 0), "2 tasks will never begin; 1 task will end soon.");
        assert!(sentence(2, 0, 1).starts_with("2 tasks will never begin; 1 task cannot be cancelled any more: "));
    }
}
