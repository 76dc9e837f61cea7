//! `dayfly trigger`: what starts a function when something happens.

mod show;

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use dayfly_client::{Client, Error, encoded};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::tasks::{FunctionStatus, TaskOptions};
use dayfly_protocol::triggers::{EventSource, EventTaken, NewTrigger, TriggerRegistration, TriggerSpec, TriggerStatus};
use serde_json::{Value, json};

use crate::{Global, connect, flow, output, values};

/// Start functions by the clock, by files that arrive, and by requests of other programs.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly trigger timer nightly '30 2 * * *' --zone Europe/Berlin --function report
  dayfly trigger files scans /data/in --pattern '*.tif' --function convert --keyword dpi=300
  dayfly trigger webhook pushed --function build                prints the address that starts it
  dayfly trigger list
  dayfly trigger history scans --limit 20
  dayfly trigger fire pushed --event '{\"branch\": \"main\"}'       as a request would
  dayfly trigger pause nightly

What happens is on the manager's disk before anybody hears that it is known, and becomes a task of the function at least once,
whoever goes away meanwhile. The function's only argument by place is the event, an object; its tasks have the tag
`trigger:NAME`. A trigger that is made again is changed, and has another token.")]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Start a function at certain times
    Timer(Timer),
    /// Start a function for each file that arrives in a directory, or object in a bucket
    Files(Files),
    /// Start a function for each request of programs that know an address, which this prints
    Webhook(Webhook),
    /// Show your triggers
    List,
    /// Show one trigger
    Show(Named),
    /// Show what a trigger heard of, the latest first, and the tasks that came of it
    History(History),
    /// Send a trigger an event
    Fire(Fire),
    /// Have a trigger start nothing for now: times pass, files wait, requests are refused
    Pause(Named),
    /// Have a trigger go on
    Resume(Named),
    /// Forget a trigger and its history; its tasks go on
    Remove(Named),
}

/// A trigger.
#[derive(Debug, Args)]
struct Named {
    /// Which
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    name: String,
}

/// What a trigger starts, and how.
#[derive(Debug, Args)]
struct Start {
    /// What it starts: a function's id, or its name for the version that is the last now; OWNER/NAME for another tenant's
    #[arg(long, value_name = "NAME_OR_ID", value_parser = NonEmptyStringValueParser::new())]
    function: String,
    /// Where, of those that `dayfly endpoint list` shows [default: the manager's own, or the only one]
    #[arg(long, value_name = "NAME")]
    endpoint: Option<String>,
    /// What comes after it: a flow's file (see `dayfly flow --help`), whose first step takes its result
    #[arg(long, value_name = "FILE")]
    then: Option<PathBuf>,
    /// Argument by name that goes along, in JSON, or a text that is none; may be repeated
    #[arg(long, value_name = "NAME=JSON", value_parser = values::keyword)]
    keyword: Vec<(String, Value)>,
    /// For how long it is good [default: as long as the token that it is made with, which it cannot outlive]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    valid_for: Option<Duration>,
    /// How often a task is executed again when its function fails
    #[arg(long, value_name = "N", default_value_t = 0)]
    retries: u16,
    /// How long one execution may take [default: what the function says]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    walltime: Option<Duration>,
    /// A task may be executed again after a fault, when it may have been executed already [default: what the function says]
    #[arg(long)]
    repeatable: bool,
    /// For people
    #[arg(long, value_name = "TEXT", default_value = "")]
    description: String,
    /// Make it paused
    #[arg(long)]
    paused: bool,
}

/// Start a function at certain times.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly trigger timer nightly '30 2 * * *' --zone Europe/Berlin --function report
  dayfly trigger timer often '*/10 * * * * *' --function look      each ten seconds

The function gets {\"trigger\", \"kind\": \"timer\", \"number\", \"at_ms\", \"due_ms\", \"missed\"}: when it was due, and how many times
before that one passed while the manager was away.")]
struct Timer {
    /// Its name, among yours
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    name: String,
    /// When, in cron syntax: minute, hour, day of month, month, day of week; seconds may stand before them
    cron: String,
    /// Time zone of that, such as Europe/Berlin
    #[arg(long, default_value = "UTC")]
    zone: String,
    /// Do not make up for the last time that passed while the manager was away
    #[arg(long)]
    no_catch_up: bool,
    #[command(flatten)]
    start: Start,
}

/// Start a function for each file that arrives in a directory, or object in a bucket.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly trigger files scans /data/in --pattern '*.tif' --function convert
  dayfly trigger files runs s3://lab/runs --pattern '**/*.json' --every 30s --function collect --watched-at cluster

The function gets {\"trigger\", \"kind\": \"files\", \"number\", \"at_ms\", \"path\", \"bytes\", \"modified_at_ms\"}. A file counts once it does not
change any more; one that changes later counts again. An endpoint looks for files for its owner only, with its own rights; for
a bucket it needs the AWS_* variables.")]
struct Files {
    /// Its name, among yours
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    name: String,
    /// Directory, as the endpoint's nodes see it, or s3://BUCKET/PREFIX
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    place: String,
    /// Paths below it that count, such as *.tif, or **/*.tif for those in directories below, too
    #[arg(long, default_value = "*")]
    pattern: String,
    /// Those that are there already count, too
    #[arg(long)]
    existing: bool,
    /// How often to look [default: 1s in a directory, 10s in a bucket]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    every: Option<Duration>,
    /// Endpoint of yours that looks for them [default: where the tasks run]
    #[arg(long, value_name = "ENDPOINT")]
    watched_at: Option<String>,
    #[command(flatten)]
    start: Start,
}

/// Start a function for each request of programs that know an address, which this prints.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly trigger webhook pushed --function build --valid-for 30d
  dayfly trigger webhook pushed --function build --json > pushed.json      and as another program would use it:
  jq -r .ca_pem pushed.json > ca.pem
  curl --cacert ca.pem -H 'content-type: application/json' -d '{\"branch\": \"main\"}' \"$(jq -r .url pushed.json)\"

The function gets {\"trigger\", \"kind\": \"webhook\", \"number\", \"at_ms\", \"content_type\", \"body\"}; the body is what was sent in JSON, or a
text, or {\"base64\": ...}. The address is told once; whoever knows it can start this function, and nothing else.")]
struct Webhook {
    /// Its name, among yours
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    name: String,
    #[command(flatten)]
    start: Start,
}

/// Show what a trigger heard of, the latest first, and the tasks that came of it.
#[derive(Debug, Args)]
struct History {
    /// Of which
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    name: String,
    /// So many events at most, 1 to 1,000
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
}

/// Send a trigger an event.
#[derive(Debug, Args)]
struct Fire {
    /// Which
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    name: String,
    /// The event's body
    #[arg(long, value_name = "JSON", default_value = "null", value_parser = body)]
    event: Value,
    /// What it is known by: what is sent again with the same key is the same event
    #[arg(long)]
    key: Option<String>,
}

fn body(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("this is no JSON ({error}); texts stand in double quotes"))
}

/// The path of the manager's API at which a trigger is.
fn path(name: &str) -> String {
    format!("/v1/triggers/{}", encoded(name))
}

pub fn run(arguments: &Arguments, global: &Global) -> Result<(), Failure> {
    let client = connect::manager(global)?;
    match &arguments.what {
        What::Timer(wanted) => make(&wanted.name, wanted.source(), &wanted.start, &client, global),
        What::Files(wanted) => make(&wanted.name, wanted.source()?, &wanted.start, &client, global),
        What::Webhook(wanted) => make(&wanted.name, EventSource::Webhook {}, &wanted.start, &client, global),
        What::List => show::list(&client, global),
        What::Show(wanted) => show::one(&wanted.name, &client, global),
        What::History(wanted) => show::history(&wanted.name, wanted.limit, &client, global),
        What::Fire(wanted) => fire(wanted, &client, global),
        What::Pause(wanted) => {
            let paused = client.post(&format!("{}/pause", path(&wanted.name)), &json!({}));
            told(paused, "starts nothing for now", global)
        }
        What::Resume(wanted) => {
            let resumed = client.post(&format!("{}/resume", path(&wanted.name)), &json!({}));
            told(resumed, "goes on", global)
        }
        What::Remove(wanted) => told(client.delete(&path(&wanted.name)), "is gone; its tasks go on", global),
    }
}

/// Says what became of a trigger.
fn told(answer: Result<TriggerStatus, Error>, what: &str, global: &Global) -> Result<(), Failure> {
    let status = answer.map_err(|error| error.0)?;
    output::line(&if global.json {
        output::json(&status)?
    } else {
        format!("The trigger {} {what}.", output::plain(&status.name))
    });
    Ok(())
}

impl Timer {
    fn source(&self) -> EventSource {
        EventSource::Timer {
            cron: self.cron.clone(),
            zone: self.zone.clone(),
            catch_up: !self.no_catch_up,
        }
    }
}

impl Files {
    fn source(&self) -> Result<EventSource, Failure> {
        Ok(EventSource::Files {
            endpoint: self.watched_at.clone(),
            place: absolute(&self.place)?,
            pattern: self.pattern.clone(),
            existing: self.existing,
            every_ms: milliseconds(self.every, "--every")?,
        })
    }
}

/// A directory, from the root, or a bucket.
fn absolute(place: &str) -> Result<String, Failure> {
    if place.starts_with("s3://") {
        return Ok(place.into());
    }
    let wrong = |why: &str| Failure::new(Code::InvalidRequest, format!("{place} is no usable path: {why}"));
    let path = std::path::absolute(place).map_err(|error| wrong(&error.to_string()))?;
    path.into_os_string().into_string().map_err(|_| wrong("it is no UTF-8"))
}

fn milliseconds(length: Option<Duration>, option: &str) -> Result<u32, Failure> {
    u32::try_from(length.unwrap_or_default().as_millis()).map_err(|_| {
        Failure::new(
            Code::InvalidRequest,
            format!("{option} is too long; 49 days are allowed"),
        )
    })
}

fn make(name: &str, source: EventSource, start: &Start, client: &Client, global: &Global) -> Result<(), Failure> {
    let walltime_ms = milliseconds(start.walltime, "--walltime")?;
    let wanted = format!("/v1/functions/{}", encoded(&start.function));
    let function: FunctionStatus = client.get(&wanted).map_err(|error| error.0)?;
    let registration = TriggerRegistration {
        name: name.into(),
        spec: TriggerSpec {
            description: start.description.clone(),
            source,
            function: function.id,
            endpoint: start.endpoint.clone(),
            options: TaskOptions {
                retries: start.retries,
                walltime_ms,
                repeatable: start.repeatable.then_some(true),
                ..TaskOptions::default()
            },
            then: match &start.then {
                None => Vec::new(),
                Some(file) => flow::written(file, client)?.1,
            },
            keywords: start.keyword.iter().cloned().collect(),
            paused: start.paused,
        },
        valid_for_ms: start.valid_for.map_or(0, |length| length.as_millis() as u64),
    };
    let new: NewTrigger = client.post("/v1/triggers", &registration).map_err(|error| error.0)?;
    output::line(&if global.json {
        output::json(&new)?
    } else {
        show::made(&new)
    });
    Ok(())
}

fn fire(wanted: &Fire, client: &Client, global: &Global) -> Result<(), Failure> {
    let mut path = format!("{}/events", path(&wanted.name));
    if let Some(key) = &wanted.key {
        path += &format!("?key={}", encoded(key));
    }
    let taken: EventTaken = client.post(&path, &wanted.event).map_err(|error| error.0)?;
    output::line(&if global.json {
        output::json(&taken)?
    } else {
        let known = if taken.known { ", which was known already," } else { "" };
        let more = match (taken.task, taken.flow) {
            (Some(task), _) => format!("the task {task}.\n\n  dayfly task result {task} --wait 60"),
            (None, Some(flow)) => format!("the flow {flow}.\n\n  dayfly flow show {flow} --wait 60"),
            (None, None) => "a task.".into(),
        };
        format!("Event {}{known} becomes {more}", taken.number)
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_told_from_the_root_unless_it_is_a_bucket() {
        assert_eq!(absolute("/data/in"), Ok("/data/in".into()));
        assert_eq!(absolute("s3://lab/runs"), Ok("s3://lab/runs".into()));
        let here = std::env::current_dir().unwrap().join("in");
        assert_eq!(absolute("./in"), Ok(here.to_str().unwrap().into()));
    }
}
