//! `dayfly trigger`: starts functions when events happen.

mod show;

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use dayfly_client::{Client, Error, encoded};
use dayfly_command::Global;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::functions::FunctionStatus;
use dayfly_protocol::tasks::TaskOptions;
use dayfly_protocol::triggers::{
    AcceptedEvent, EventSource, NewTrigger, TriggerRegistration, TriggerSpec, TriggerStatus,
};
use serde_json::{Value, json};

use crate::{connect, flow, output, values};

/// Start functions at set times, when files arrive, and at requests of other programs.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly trigger timer nightly '30 2 * * *' --zone Europe/Berlin --function report
  dayfly trigger files scans /data/in --pattern '*.tif' --function convert --keyword dpi=300
  dayfly trigger webhook pushed --function build                prints the address for requests
  dayfly trigger list
  dayfly trigger history scans --limit 20
  dayfly trigger fire pushed --event '{\"branch\": \"main\"}'       like a request
  dayfly trigger pause nightly

An event is on the manager's disk before it is acknowledged, and starts at least one task of the function, even if the manager
restarts. The function's only positional argument is the event, a JSON object. Its tasks have the tag `trigger:NAME`. Making a
trigger with an existing name changes the trigger and its token.")]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Start a function at set times
    Timer(Timer),
    /// Start a function for each file that arrives in a directory, or object in a bucket
    Files(Files),
    /// Start a function for each request to a secret address, which this prints
    Webhook(Webhook),
    /// Show your triggers
    List,
    /// Show a trigger
    Show(Named),
    /// Show the events of a trigger, latest first, and their tasks
    History(History),
    /// Send an event to a trigger
    Fire(Fire),
    /// Pause a trigger: times pass, files wait, requests are refused
    Pause(Named),
    /// Resume a paused trigger
    Resume(Named),
    /// Remove a trigger and its history; its tasks continue
    Remove(Named),
}

/// Name of a trigger.
#[derive(Debug, Args)]
struct Named {
    /// Name of the trigger
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    name: String,
}

/// The function that a trigger starts, and its options.
#[derive(Debug, Args)]
struct Start {
    /// Function to start: an id, or a name for its version that is the latest now; OWNER/NAME for another tenant's
    #[arg(long, value_name = "NAME_OR_ID", value_parser = NonEmptyStringValueParser::new())]
    function: String,
    /// Endpoint, as `dayfly endpoint list` shows it [default: the manager's own, or the only one]
    #[arg(long, value_name = "NAME")]
    endpoint: Option<String>,
    /// Flow to start afterwards: a file (see `dayfly flow --help`) whose first step receives the result
    #[arg(long, value_name = "FILE")]
    then: Option<PathBuf>,
    /// Additional keyword argument, in JSON; other text is passed as a string; may be repeated
    #[arg(long, value_name = "NAME=JSON", value_parser = values::keyword)]
    keyword: Vec<(String, Value)>,
    /// How long the trigger is valid [default: as long as the token that makes it, which is also the maximum]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    valid_for: Option<Duration>,
    /// Number of retries of a task after its function failed
    #[arg(long, value_name = "N", default_value_t = 0)]
    retries: u16,
    /// Time limit of one execution [default: that of the function]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    walltime: Option<Duration>,
    /// Allow another execution of a task after a fault, when the first may have run [default: that of the function]
    #[arg(long)]
    repeatable: bool,
    /// Description for people
    #[arg(long, value_name = "TEXT", default_value = "")]
    description: String,
    /// Make the trigger in the paused state
    #[arg(long)]
    paused: bool,
}

/// Start a function at set times.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly trigger timer nightly '30 2 * * *' --zone Europe/Berlin --function report
  dayfly trigger timer often '*/10 * * * * *' --function look      every ten seconds

The function gets {\"trigger\", \"kind\": \"timer\", \"number\", \"at_ms\", \"due_ms\", \"missed\"}: when it was due, and how many
earlier times passed while the manager was not running.")]
struct Timer {
    /// Name of the trigger, unique among yours
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    name: String,
    /// Times in cron syntax: minute, hour, day of month, month, day of week; seconds may precede them
    cron: String,
    /// Time zone, such as Europe/Berlin
    #[arg(long, default_value = "UTC")]
    zone: String,
    /// Do not make up for a time that passed while the manager was not running
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

The function gets {\"trigger\", \"kind\": \"files\", \"number\", \"at_ms\", \"path\", \"bytes\", \"modified_at_ms\"}. A file starts the function
when it no longer changes, and again if it changes later. An endpoint watches files only for its owner, with its own rights; for a
bucket it needs the AWS_* variables.")]
struct Files {
    /// Name of the trigger, unique among yours
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    name: String,
    /// Directory on the endpoint's nodes, or s3://BUCKET/PREFIX
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    place: String,
    /// Pattern of paths below it, such as *.tif, or **/*.tif to include subdirectories
    #[arg(long, default_value = "*")]
    pattern: String,
    /// Include files that already exist
    #[arg(long)]
    existing: bool,
    /// Interval of checks [default: 1s for a directory, 10s for a bucket]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    every: Option<Duration>,
    /// Endpoint of yours that watches the directory or bucket [default: the endpoint of the tasks]
    #[arg(long, value_name = "ENDPOINT")]
    watched_at: Option<String>,
    #[command(flatten)]
    start: Start,
}

/// Start a function for each request to a secret address, which this prints.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly trigger webhook pushed --function build --valid-for 30d
  dayfly trigger webhook pushed --function build --json > pushed.json      then, in another program:
  jq -r .ca_pem pushed.json > ca.pem
  curl --cacert ca.pem -H 'content-type: application/json' -d '{\"branch\": \"main\"}' \"$(jq -r .url pushed.json)\"

The function gets {\"trigger\", \"kind\": \"webhook\", \"number\", \"at_ms\", \"content_type\", \"body\"}; the body is the
request's JSON, a string, or {\"base64\": ...}. The address is printed once. Everyone who knows it can start this function, and
nothing else.")]
struct Webhook {
    /// Name of the trigger, unique among yours
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    name: String,
    #[command(flatten)]
    start: Start,
}

/// Show the events of a trigger, latest first, and their tasks.
#[derive(Debug, Args)]
struct History {
    /// Name of the trigger
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    name: String,
    /// Maximum number of events, 1 to 1,000
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
}

/// Send an event to a trigger.
#[derive(Debug, Args)]
struct Fire {
    /// Name of the trigger
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    name: String,
    /// Body of the event
    #[arg(long, value_name = "JSON", default_value = "null", value_parser = body)]
    event: Value,
    /// Idempotency key: events with the same key count once
    #[arg(long)]
    key: Option<String>,
}

fn body(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("this is no JSON ({error}); texts stand in double quotes"))
}

/// Returns the path of a trigger in the manager's API.
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

/// Prints how a trigger changed.
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

/// Returns an absolute directory, or a bucket.
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
    let taken: AcceptedEvent = client.post(&path, &wanted.event).map_err(|error| error.0)?;
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
    fn relative_directory_becomes_absolute() {
        assert_eq!(absolute("/data/in"), Ok("/data/in".into()));
        assert_eq!(absolute("s3://lab/runs"), Ok("s3://lab/runs".into()));
        let here = std::env::current_dir().unwrap().join("in");
        assert_eq!(absolute("./in"), Ok(here.to_str().unwrap().into()));
    }
}
