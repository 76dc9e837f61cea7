//! `dayfly task`: durable tasks, wherever they were submitted.

mod outcome;
mod printed;
mod run;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use dayfly_client::{Client, encoded};
use dayfly_protocol::error::Failure;
use dayfly_protocol::ids::TaskId;
use dayfly_protocol::short::{self, GivenId};
use dayfly_protocol::tasks::{
    Cancellation, Cancelled, Forgetting, Forgotten, TaskCounts, TaskState, TaskStatus, TaskTimes,
};
use dayfly_protocol::text;

use crate::output::Align::{Left, Right};
use crate::{Global, connect, output, values};

/// Bytes of an error that a list shows; `dayfly task show` has all of it.
const SHOWN_ERROR_BYTES: usize = 100;

/// Submit and follow durable tasks, fetch their outcomes, and cancel them.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly task run extract report.pdf --keyword pages=3 --wait
  dayfly task list --tag sweep-7
  dayfly task list --failed --function extract
  dayfly task show f1a85be3d207                                 the end of an id, as the list shows it
  dayfly task show 019a51c3e0f07d2c9b64f1a85be3d207
  dayfly task result 019a51c3e0f07d2c9b64f1a85be3d207 --wait 10m
  dayfly task output 019a51c3e0f07d2c9b64f1a85be3d207 --follow
  dayfly task cancel --tag sweep-7
  dayfly task counts --tag sweep-7

A durable task is on the manager's disk once it is accepted, and ends in one outcome, whoever goes away meanwhile. Tasks
are submitted here and by client libraries; in Python, `client.tasks(\"sweep-7\")` has all of a tag with their results.")]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Submit a task: one call of a function, by its name
    Run(Box<run::Run>),
    /// Show your tasks, the latest first
    List(List),
    /// Show one task, and how long it waited and ran
    Show {
        /// Its id, or six digits or more of its beginning or end
        #[arg(value_name = "ID", value_parser = values::id)]
        task: GivenId,
    },
    /// Show how a task ended; fails as the task did
    Result(outcome::Outcome),
    /// Show what a task prints: the last 64 KiB, kept with its outcome
    Output(printed::Printed),
    /// End tasks: those that have not begun never will, those that run end soon
    Cancel(Cancel),
    /// Forget tasks that have ended, with their results, before they are forgotten by themselves
    Forget(Forget),
    /// Show how many of your tasks wait and run, and how many have ended since the manager started
    Counts(Count),
}

/// Show your tasks, the latest first.
#[derive(Debug, Args)]
struct List {
    /// Those with this tag only
    #[arg(long)]
    tag: Option<String>,
    /// Those of this function only: of all versions of a name, OWNER/NAME for another tenant's, or of one by its id
    #[arg(long, value_name = "NAME_OR_ID", value_parser = NonEmptyStringValueParser::new())]
    function: Option<String>,
    /// Those at this endpoint only, by its name or id
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    endpoint: Option<String>,
    /// Those in this state only: queued, waiting, environment, running or done
    #[arg(long, value_name = "STATE", value_parser = state)]
    state: Option<TaskState>,
    /// Those only that have not ended well
    #[arg(long, conflicts_with = "state")]
    failed: bool,
    /// So many at most, 1 to 10,000
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Everybody's, for operators
    #[arg(long)]
    everybody: bool,
}

/// End tasks: those that have not begun never will, those that run end soon.
#[derive(Debug, Args)]
struct Cancel {
    /// Which, by their ids, or beginnings or ends of these
    #[arg(value_name = "ID", value_parser = values::id, required_unless_present_any = ["tag", "endpoint"])]
    tasks: Vec<GivenId>,
    /// All with this tag
    #[arg(long, conflicts_with = "tasks")]
    tag: Option<String>,
    /// Of these those at this endpoint; by itself, all there
    #[arg(long, value_name = "NAME_OR_ID", value_parser = NonEmptyStringValueParser::new())]
    endpoint: Option<String>,
    /// Whoever's they are, for operators, and, with --endpoint, for its owner
    #[arg(long)]
    everybody: bool,
    /// Only those that no worker has been given yet; those that run go on
    #[arg(long)]
    only_waiting: bool,
}

/// Forget tasks that have ended, with their results.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly task forget --tag sweep-7
  dayfly task forget 019a51c3e0f07d2c9b64f1a85be3d207

What they answered goes, too, within an hour if it was long, and does not count against what the content store holds for
you. Tasks that have not ended, or that others come after which have not, are left alone.")]
struct Forget {
    /// Which, by their ids, or beginnings or ends of these
    #[arg(value_name = "ID", value_parser = values::id, required_unless_present = "tag")]
    tasks: Vec<GivenId>,
    /// All with this tag
    #[arg(long, conflicts_with = "tasks")]
    tag: Option<String>,
}

/// Show how many of your tasks wait and run, and how many have ended since the manager started.
#[derive(Debug, Args)]
struct Count {
    /// Of those with this tag, of which all count whose outcomes are kept
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
        ("ERROR", Left),
    ]);
    for task in tasks {
        table.row([
            short::shown(&task.id),
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

/// How it ended: `ok`, or the code of its error.
fn ending(task: &TaskStatus) -> &'static str {
    match (&task.error, task.state) {
        (Some(failure), _) => failure.code.name(),
        (None, TaskState::Done) => "ok",
        (None, _) => "-",
    }
}

/// The task of this id, or of this beginning or end of one.
fn status(given: &GivenId, client: &Client) -> Result<TaskStatus, Failure> {
    client.get(&format!("/v1/tasks/{given}")).map_err(|error| error.0)
}

/// The whole id.
fn whole(given: &GivenId, client: &Client) -> Result<TaskId, Failure> {
    given
        .whole()
        .map_or_else(|| status(given, client).map(|task| task.id), Ok)
}

fn all_whole(given: &[GivenId], client: &Client) -> Result<Vec<TaskId>, Failure> {
    given.iter().map(|given| whole(given, client)).collect()
}

fn show(given: &GivenId, client: &Client, global: &Global) -> Result<(), Failure> {
    let task = status(given, client)?;
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
    let cancelled: Cancelled = client.post("/v1/tasks/cancel", &what).map_err(|error| error.0)?;
    output::line(&if global.json {
        output::json(&cancelled)?
    } else {
        told(&cancelled)
    });
    Ok(())
}

fn forget(wanted: &Forget, client: &Client, global: &Global) -> Result<(), Failure> {
    let what = Forgetting {
        tasks: all_whole(&wanted.tasks, client)?,
        tag: wanted.tag.clone(),
    };
    let done: Forgotten = client.post("/v1/tasks/forget", &what).map_err(|error| error.0)?;
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

fn told(cancelled: &Cancelled) -> String {
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
        // In each column how long all together were in its state: those that ended, and of a tag the others, too.
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
        }
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
                && text.ends_with("\n  error       one\n              two"),
            "{text}"
        );
    }

    #[test]
    fn what_was_cancelled_is_told_in_a_sentence() {
        let sentence = |ended, ending, running| {
            let told_of = Cancelled {
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
