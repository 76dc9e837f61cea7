//! `dayfly endpoint`: where durable tasks run.

mod accounts;
mod config;
mod daemon;
mod directory;
mod nodes;
mod setup;

use std::time::Duration;

use clap::{Args, Subcommand};
use dayfly_client::encoded;
use dayfly_protocol::error::Failure;
use dayfly_protocol::tasks::{BlockStatus, EndpointStatus};

use crate::output::Align::{Left, Right};
use crate::{Global, connect, output, task};

/// Show where durable tasks run, and make and run such places.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly endpoint list
  dayfly endpoint setup cluster --provider slurm --option partition=idle --max-blocks 4
  dayfly endpoint start cluster                   on the login node, for as long as it is to run tasks
  dayfly endpoint status cluster
  dayfly endpoint logs cluster --follow

An endpoint is a place where tasks run: this machine, or a cluster that it gets nodes of from its batch system while there are
tasks. It only opens connections, to the manager that it was set up with. `dayfly up` has one of its own, `local`.")]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show endpoints with everybody's tasks; what is done and has failed, since the manager started
    List,
    /// Make an endpoint on this machine: register it, and write its configuration
    Setup(setup::Arguments),
    /// Start an endpoint in the background
    Start(Start),
    /// Run an endpoint in the foreground: for service managers, and to see what it does
    Run(Named),
    /// Run the daemon of an account: for `run`, where each tenant's tasks run as an account
    #[command(hide = true)]
    Account(Account),
    /// Stop an endpoint, and give its nodes back
    Stop(Stop),
    /// Show how an endpoint on this machine does
    Status(Named),
    /// Show what an endpoint on this machine wrote
    Logs(Logs),
    /// Show the tasks that run, or ran, at an endpoint
    Tasks(Tasks),
    /// Forget an endpoint: at its manager, and on this machine
    Remove(Named),
}

/// An endpoint of this machine.
#[derive(Debug, Args)]
struct Named {
    /// Which
    name: String,
}

/// The daemon of an account.
#[derive(Debug, Args)]
struct Account {
    /// The endpoint of the tenant that the account is
    name: String,
    /// The process that started this one
    #[arg(long, value_name = "PID")]
    parent: u32,
}

/// Start an endpoint in the background.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly endpoint start cluster

Returns when it runs. It ends by `dayfly endpoint stop`, not with the session. Pilot jobs that an earlier life left go on.")]
struct Start {
    /// Which
    name: String,
}

/// Stop an endpoint.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly endpoint stop cluster
  dayfly endpoint stop cluster --keep-blocks      its pilot jobs wait for the next start, for a while

Tasks that have not begun go back to the manager. Those that run end: repeatable ones are executed again elsewhere or later, others
end as maybe executed.")]
struct Stop {
    /// Which
    name: String,
    /// Leave its nodes to the next start
    #[arg(long)]
    keep_blocks: bool,
}

/// Show what an endpoint wrote.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly endpoint logs cluster -n 100
  dayfly endpoint logs cluster --follow
  dayfly endpoint logs cluster --block cluster-3      what the nodes of a block wrote")]
struct Logs {
    /// Which
    name: String,
    /// Lines
    #[arg(short = 'n', long, value_name = "N", default_value_t = 40)]
    lines: usize,
    /// Go on with what it writes from now on
    #[arg(short, long)]
    follow: bool,
    /// Of a block's nodes, by its name
    #[arg(long, value_name = "BLOCK")]
    block: Option<String>,
}

/// Show the tasks of an endpoint.
#[derive(Debug, Args)]
struct Tasks {
    /// Which, of those that `dayfly endpoint list` shows
    name: String,
    /// At most so many, the latest
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100)]
    limit: u32,
}

/// How long a daemon may take to come up, or to give its nodes back.
const START_LIMIT: Duration = Duration::from_secs(60);

impl Arguments {
    /// What is logged, and as which service: one that runs tells what happens to its blocks.
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
            endpoint.state.clone(),
            or_none(&endpoint.owner),
            or_none(&endpoint.spec.provider),
            nodes_of(&endpoint.blocks),
            endpoint.workers.to_string(),
            tasks.queued.to_string(),
            // For a worker, or first for what it imports.
            (tasks.waiting + tasks.environment).to_string(),
            tasks.running.to_string(),
            tasks.done.to_string(),
            tasks.failed.to_string(),
            endpoint.trouble.as_deref().map_or_else(|| "-".into(), output::plain),
        ]);
    }
    table
}

/// Nodes that are there, of those that were asked for.
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
