//! Prints triggers and their histories, for people and for programs.

use dayfly_client::Client;
use dayfly_command::Global;
use dayfly_protocol::error::Failure;
use dayfly_protocol::tasks::TaskState;
use dayfly_protocol::triggers::{EventSource, EventStatus, NewTrigger, TriggerStatus};
use serde_json::Value;

use super::path;
use crate::output;
use crate::output::Align::{Left, Right};

/// Maximum length of an event in a table, in characters.
const SHOWN_LETTERS: usize = 60;

/// Returns the text to print after a trigger was made.
pub fn made(new: &NewTrigger) -> String {
    let status = &new.status;
    let name = output::plain(&status.name);
    let until = output::time(status.expires_at_ms);
    let mut text = match &status.spec.source {
        EventSource::Webhook {} => format!(
            "The trigger {name} starts its function for what is sent to\n\n  {}\n\nThis address is told once. It is good until \
             {until} UTC, for whoever knows it.",
            new.url
        ),
        source => format!(
            "The trigger {name} starts its function for {}, until {until} UTC.",
            waits_for(source)
        ),
    };
    if status.next_at_ms > 0 {
        text += &format!(" It is due at {} UTC.", output::time(status.next_at_ms));
    }
    if status.spec.paused {
        text += &format!(" It is paused; `dayfly trigger resume {name}` has it begin.");
    }
    text
}

/// Describes the source of events briefly.
fn waits_for(source: &EventSource) -> String {
    output::plain(&match source {
        EventSource::Timer { cron, zone, .. } => format!("{cron} ({zone})"),
        EventSource::Webhook {} => "requests".into(),
        EventSource::Files { place, pattern, .. } => format!("{}/{pattern}", place.trim_end_matches('/')),
    })
}

pub fn list(client: &Client, global: &Global) -> Result<(), Failure> {
    let triggers: Vec<TriggerStatus> = client.get("/v1/triggers").map_err(|error| error.0)?;
    output::line(&if global.json {
        output::json(&triggers)?
    } else if triggers.is_empty() {
        "No triggers.".into()
    } else {
        table(&triggers).text(output::colours(&std::io::stdout()))
    });
    Ok(())
}

fn table(triggers: &[TriggerStatus]) -> output::Table {
    let mut table = output::Table::new(&[
        ("TRIGGER", Left),
        ("KIND", Left),
        ("WAITS FOR", Left),
        ("STATE", Left),
        ("NEXT", Left),
        ("WAITING", Right),
        ("STARTED", Right),
        ("REFUSED", Right),
        ("TROUBLE", Left),
    ]);
    for trigger in triggers {
        table.row([
            output::plain(&trigger.name),
            trigger.spec.source.kind().into(),
            waits_for(&trigger.spec.source),
            trigger.state.name().into(),
            at(trigger.next_at_ms),
            trigger.waiting.to_string(),
            trigger.started.to_string(),
            trigger.refused.to_string(),
            trouble(trigger),
        ]);
    }
    table
}

fn at(ms: u64) -> String {
    match ms {
        0 => "-".into(),
        ms => output::time(ms),
    }
}

fn trouble(trigger: &TriggerStatus) -> String {
    let failure = trigger.trouble.as_ref();
    failure.map_or_else(|| "-".into(), |failure| output::plain(&failure.message))
}

pub fn one(name: &str, client: &Client, global: &Global) -> Result<(), Failure> {
    let trigger: TriggerStatus = client.get(&path(name)).map_err(|error| error.0)?;
    output::line(&if global.json {
        output::json(&trigger)?
    } else {
        described(&trigger)
    });
    Ok(())
}

fn described(trigger: &TriggerStatus) -> String {
    let spec = &trigger.spec;
    let watched_at = trigger.watched_at.as_deref().map_or_else(|| "-".into(), output::plain);
    let mut text = format!(
        "Trigger {}\n  owner       {}\n  kind        {}\n  waits for   {}\n  watched at  {watched_at}\n  function    {}\n  \
         endpoint    {}\n  state       {}\n  next        {}\n  waiting     {}\n  started     {}\n  refused     {}\n  \
         created     {} UTC\n  expires     {} UTC\n  trouble     {}",
        output::plain(&trigger.name),
        output::plain(&trigger.owner),
        spec.source.kind(),
        waits_for(&spec.source),
        spec.function,
        spec.endpoint.as_deref().map_or_else(|| "-".into(), output::plain),
        trigger.state,
        at(trigger.next_at_ms),
        trigger.waiting,
        trigger.started,
        trigger.refused,
        output::time(trigger.created_at_ms),
        output::time(trigger.expires_at_ms),
        trouble(trigger),
    );
    for (name, value) in &spec.keywords {
        text += &format!("\n  keyword     {}", output::plain(&format!("{name}={value}")));
    }
    if !spec.description.is_empty() {
        text += &format!("\n\n{}", output::plain(&spec.description));
    }
    text
}

pub fn history(name: &str, limit: u32, client: &Client, global: &Global) -> Result<(), Failure> {
    let path = format!("{}/events?limit={limit}", path(name));
    let events: Vec<EventStatus> = client.get(&path).map_err(|error| error.0)?;
    if global.json {
        output::line(&output::json(&events)?);
        return Ok(());
    }
    if events.is_empty() {
        output::line("No events.");
        return Ok(());
    }
    let mut table = output::Table::new(&[
        ("EVENT", Right),
        ("HEARD", Left),
        ("WHAT", Left),
        ("STATE", Left),
        ("OUTCOME", Left),
        ("TASK OR FLOW", Left),
    ]);
    for event in &events {
        let state = event.task_state.map_or(event.state.name(), TaskState::name);
        table.row([
            event.number.to_string(),
            output::time(event.at_ms),
            what(&event.event),
            state.into(),
            ending(event).into(),
            id(event),
        ]);
    }
    output::line(&table.text(output::colours(&std::io::stdout())));
    if events.len() == limit as usize {
        eprintln!("(There may be more, which --limit shows.)");
    }
    Ok(())
}

/// Describes an event briefly.
fn what(event: &Value) -> String {
    let text = match (&event["due_ms"], &event["path"], &event["body"]) {
        (Value::Number(due), _, _) => format!("due {}", at(due.as_u64().unwrap_or_default())),
        (_, Value::String(path), _) => path.clone(),
        (_, _, body) => body.to_string(),
    };
    let mut shown: String = text.chars().take(SHOWN_LETTERS).collect();
    if shown.len() < text.len() {
        shown += "...";
    }
    output::plain(&shown)
}

/// Returns how it ended: `ok`, or the code of its error.
fn ending(event: &EventStatus) -> &'static str {
    match (&event.error, event.task_state) {
        (Some(failure), _) => failure.code.name(),
        (None, Some(TaskState::Done)) => "ok",
        (None, _) => "-",
    }
}

/// Returns the id of the task or the flow that the event started.
fn id(event: &EventStatus) -> String {
    let task = event.task.map(|task| task.to_string());
    task.or_else(|| event.flow.map(|flow| flow.to_string()))
        .unwrap_or_else(|| "-".into())
}

#[cfg(test)]
mod tests {
    use dayfly_protocol::error::Code;
    use dayfly_protocol::ids::TaskId;
    use dayfly_protocol::triggers::EventState;
    use serde_json::json;

    use super::*;

    #[test]
    fn event_is_shown_by_its_subject() {
        assert_eq!(
            what(&json!({ "due_ms": 86_400_000, "missed": 0 })),
            "due 1970-01-02 00:00:00"
        );
        assert_eq!(what(&json!({ "path": "/data/in/a.tif", "bytes": 7 })), "/data/in/a.tif");
        assert_eq!(what(&json!({ "body": { "a": 1 } })), "{\"a\":1}");
        assert!(what(&json!({ "body": "x".repeat(100) })).ends_with("xxx..."));
    }

    #[test]
    fn event_has_the_outcome_of_its_task() {
        let mut event = EventStatus {
            number: 1,
            key: "a".into(),
            at_ms: 0,
            event: Value::Null,
            state: EventState::Waiting,
            task: Some(TaskId([7; 16])),
            flow: None,
            task_state: None,
            error: None,
        };
        assert_eq!(ending(&event), "-");
        event.task_state = Some(TaskState::Done);
        assert_eq!(ending(&event), "ok");
        event.error = Some(Failure::new(Code::FunctionError, "no"));
        assert_eq!(ending(&event), "function_error");
    }
}
