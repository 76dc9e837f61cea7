//! `dayfly endpoint`: the places where durable tasks run.

mod accounts;
mod config;
mod daemon;
mod directory;
mod nodes;
mod setup;

use std::time::Duration;

use clap::{Args, Subcommand};
use dayfly_client::encoded;
use dayfly_command::Global;
use dayfly_protocol::endpoints::{BlockStatus, EndpointStatus};
use dayfly_protocol::error::Failure;

pub use self::nodes::lending;
use crate::output::Align::{Left, Right};
use crate::{connect, output, task};

/// Show, set up and run endpoints, the places where durable tasks run.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly endpoint list
  dayfly endpoint setup cluster --provider slurm --option partition=idle --max-blocks 4
  dayfly endpoint start cluster                   on the login node; runs until it is stopped
  dayfly endpoint status cluster
  dayfly endpoint logs cluster --follow

An endpoint is a place where tasks run: this machine, or a cluster, whose batch system provides nodes while there are tasks. An
endpoint connects to the manager that it was set up with, and needs no incoming connections from it. `dayfly up` includes the
endpoint `local`.")]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show endpoints and their tasks of all tenants; done and failed tasks count since the manager's start
    List,
    /// Set up an endpoint on this machine: register it, and write its configuration
    Setup(setup::Arguments),
    /// Start an endpoint in the background
    Start(Start),
    /// Run an endpoint in the foreground, for service managers and debugging
    Run(Named),
    /// Run the daemon of an account; started by `run` if each tenant's tasks run under an account
    #[command(hide = true)]
    Account(Account),
    /// Stop an endpoint, and release its nodes
    Stop(Stop),
    /// Show the status of an endpoint on this machine
    Status(Named),
    /// Show the log of an endpoint on this machine
    Logs(Logs),
    /// Show running and past tasks of an endpoint
    Tasks(Tasks),
    /// Remove an endpoint from its manager and from this machine
    Remove(Named),
}

/// An endpoint of this machine.
#[derive(Debug, Args)]
struct Named {
    /// Name of the endpoint
    name: String,
}

/// The daemon of an account.
#[derive(Debug, Args)]
struct Account {
    /// Name of the endpoint for the account's tenant
    name: String,
    /// Process id of the parent
    #[arg(long, value_name = "PID")]
    parent: u32,
}

/// Start an endpoint in the background.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly endpoint start cluster

Returns when the endpoint is running. It continues after the session until `dayfly endpoint stop`. Pilot jobs of an earlier run
continue.")]
struct Start {
    /// Name of the endpoint
    name: String,
}

/// Stop an endpoint.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly endpoint stop cluster
  dayfly endpoint stop cluster --keep-blocks      pilot jobs wait up to 15 minutes for the next start

Tasks that have not begun return to the manager. Running tasks are stopped: repeatable ones are executed again, others end with
`maybe_executed`.")]
struct Stop {
    /// Name of the endpoint
    name: String,
    /// Keep its blocks (pilot jobs) for the next start
    #[arg(long)]
    keep_blocks: bool,
}

/// Show the log of an endpoint.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly endpoint logs cluster -n 100
  dayfly endpoint logs cluster --follow
  dayfly endpoint logs cluster --block cluster-3      the logs of the nodes of a block")]
struct Logs {
    /// Name of the endpoint
    name: String,
    /// Number of lines
    #[arg(short = 'n', long, value_name = "N", default_value_t = 40)]
    lines: usize,
    /// Follow the log
    #[arg(short, long)]
    follow: bool,
    /// Show the logs of the nodes of this block
    #[arg(long, value_name = "BLOCK")]
    block: Option<String>,
}

/// Show the tasks of an endpoint.
#[derive(Debug, Args)]
struct Tasks {
    /// Name of the endpoint, as `dayfly endpoint list` shows it
    name: String,
    /// Maximum number of tasks, latest first
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100)]
    limit: u32,
}

/// Limit of the start of a daemon, and of the release of its nodes.
const START_LIMIT: Duration = Duration::from_secs(60);

impl Arguments {
    /// Returns the log level and the service name. A running endpoint logs events of its blocks.
    pub fn logging(&self) -> (&'static str, Option<&'static str>) {
        match self.what {
            What::Run(_) | What::Account(_) => ("info", Some("dayfly-endpoint")),
            _ => ("warn", None),
        }
    }
}

pub fn run(arguments: &Arguments, global: &Global) -> Result<(), Failure> {
    match &arguments.what {
        What::List => list(global),
        What::Setup(wanted) => setup::run(wanted, global),
        What::Start(wanted) => directory::start(&wanted.name, global, START_LIMIT),
        What::Run(wanted) => daemon::run(&wanted.name, global),
        What::Account(wanted) => accounts::run(&wanted.name, wanted.parent, global),
        What::Stop(wanted) => directory::stop(&wanted.name, wanted.keep_blocks, global, START_LIMIT),
        What::Status(wanted) => directory::status(&wanted.name, global),
        What::Logs(wanted) => directory::logs(&wanted.name, wanted.block.as_deref(), wanted.lines, wanted.follow),
        What::Tasks(wanted) => tasks(wanted, global),
        What::Remove(wanted) => setup::remove(&wanted.name, global),
    }
}

fn list(global: &Global) -> Result<(), Failure> {
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
        ("OWNER", Left),
        ("PROVIDER", Left),
        ("NODES", Right),
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
        let or_none = |text: &str| {
            if text.is_empty() {
                "-".into()
            } else {
                output::plain(text)
            }
        };
        table.row([
            output::plain(&endpoint.name),
            endpoint.state.name().into(),
            or_none(&endpoint.owner),
            or_none(&endpoint.spec.provider),
            nodes_of(&endpoint.blocks),
            endpoint.workers.to_string(),
            tasks.queued.to_string(),
            // Waiting for a worker, or for its environment.
            (tasks.waiting + tasks.environment).to_string(),
            tasks.running.to_string(),
            tasks.done.to_string(),
            tasks.failed.to_string(),
            endpoint.trouble.as_deref().map_or_else(|| "-".into(), output::plain),
        ]);
    }
    table
}

/// Returns the number of running nodes of the requested ones.
fn nodes_of(blocks: &[BlockStatus]) -> String {
    let joined: u32 = blocks.iter().map(|block| block.joined).sum();
    let wanted: u32 = blocks.iter().map(|block| block.nodes).sum();
    match wanted {
        0 => "-".into(),
        wanted => format!("{joined}/{wanted}"),
    }
}

fn tasks(wanted: &Tasks, global: &Global) -> Result<(), Failure> {
    let client = connect::manager(global)?;
    let path = format!("/v1/tasks?endpoint={}", encoded(&wanted.name));
    task::list(path, wanted.limit, &client, global)
}
