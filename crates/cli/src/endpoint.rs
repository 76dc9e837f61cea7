//! `mayfly endpoint`: where durable tasks run.

use clap::{Args, Subcommand};
use mayfly_protocol::error::Failure;
use mayfly_protocol::tasks::EndpointStatus;

use crate::output::Align::{Left, Right};
use crate::{Global, connect, output};

/// Show where durable tasks run, and how much there is to do.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mayfly endpoint list
  mayfly endpoint list --json | jq '.[] | select(.state == \"down\")'

An endpoint leases workers while it has tasks, and gives them back when it has none. `mayfly up` has one, `local`.")]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show endpoints with everybody's tasks; what is done and has failed, since the manager started
    List,
}

pub fn run(arguments: &Arguments, global: &Global) -> Result<(), Failure> {
    let What::List = arguments.what;
    let client = connect::manager(global)?;
    let endpoints: Vec<EndpointStatus> = client.get("/v1/endpoints").map_err(|error| error.0)?;
    output::line(&if global.json {
        output::json(&endpoints)?
    } else if endpoints.is_empty() {
        "No endpoints.".into()
    } else {
        table(&endpoints).text(output::colours(&std::io::stdout()))
    });
    Ok(())
}

fn table(endpoints: &[EndpointStatus]) -> output::Table {
    let mut table = output::Table::new(&[
        ("ENDPOINT", Left),
        ("STATE", Left),
        ("WORKERS", Right),
        ("QUEUED", Right),
        ("WAITING", Right),
        ("RUNNING", Right),
        ("DONE", Right),
        ("FAILED", Right),
        ("TROUBLE", Left),
    ]);
    for endpoint in endpoints {
        let tasks = &endpoint.tasks;
        table.row([
            output::plain(&endpoint.name),
            endpoint.state.clone(),
            endpoint.workers.to_string(),
            tasks.queued.to_string(),
            tasks.waiting.to_string(),
            tasks.running.to_string(),
            tasks.done.to_string(),
            tasks.failed.to_string(),
            endpoint.trouble.as_deref().map_or_else(|| "-".into(), output::plain),
        ]);
    }
    table
}
