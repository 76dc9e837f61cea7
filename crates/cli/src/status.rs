//! `dayfly status`: nodes, free resources and leases.

use clap::Args;
use dayfly_client::{Client, LeaseStatus, Mode, NodeStatus};
use dayfly_command::Global;
use dayfly_protocol::api::{HarvestStatus, Health, NodeState, VersionInfo};
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::error::Failure;
use dayfly_protocol::ids::NodeId;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::output::{Align, Table};
use crate::{connect, output};

/// Show nodes, free resources and leases.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly status
  dayfly status --all                    also leases that ended within the last hour
  dayfly status --json | jq .nodes[0].free

The exit status is 3 if no manager responds.")]
pub struct Arguments {
    /// Include leases that ended within the last hour
    #[arg(long)]
    all: bool,
}

/// Returns a resource of the manager's API.
pub fn get<T: DeserializeOwned>(client: &Client, path: &str) -> Result<T, Failure> {
    client.get(path).map_err(|error| error.0)
}

pub fn run(arguments: &Arguments, global: &Global) -> Result<(), Failure> {
    let client = connect::manager(global)?;
    let version: VersionInfo = get(&client, "/v1/version")?;
    let health: Health = get(&client, "/v1/health")?;
    let nodes = client.nodes().map_err(|error| error.0)?;
    let mut leases = client.leases().map_err(|error| error.0)?;
    leases.retain(|lease| arguments.all || lease.state.is_live());
    if global.json {
        output::line(&output::json(&json!({
            "manager": { "url": client.describe().trim_start_matches("manager at "), "version": version, "health": health },
            "nodes": nodes,
            "leases": leases,
        }))?);
        return Ok(());
    }
    let bold = output::colours(&std::io::stdout());
    let mut text = format!("{}, Dayfly {}: {}\n", client.describe(), version.version, health.status);
    if let Some(error) = &health.store_error {
        text += &format!("  its store cannot write: {}\n", output::plain(error));
    }
    text += "\n";
    text += &if nodes.is_empty() {
        "No nodes. Add one: `dayfly manager join-token`, then `dayfly node --join` on the machine.".into()
    } else {
        let mut table = node_table(&nodes).text(bold);
        for node in &nodes {
            if let Some(why) = &node.why {
                table += &format!(
                    "\n{} kept failing: {}",
                    output::plain(&node.address.name),
                    output::plain(why)
                );
            }
        }
        for node in &nodes {
            if let Some(harvest) = &node.harvest {
                table += &format!("\n{}: {}", output::plain(&node.address.name), harvest_line(harvest));
            }
        }
        table
    };
    text += "\n\n";
    text += &if leases.is_empty() {
        "No leases.".into()
    } else {
        lease_table(&leases, &nodes).text(bold)
    };
    output::line(&text);
    Ok(())
}

/// Returns a sentence about harvesting on a node.
fn harvest_line(harvest: &HarvestStatus) -> String {
    if let Some(why) = &harvest.why {
        return format!("nothing is harvested. {}", output::plain(why));
    }
    let hours = |ms: u64| ms as f64 / 3_600_000.0;
    format!(
        "harvest {}: {} of {} measured; they used {:.2} of {:.2} core hours that they own, and borrowed {:.2}.",
        harvest.mode,
        output::count(harvest.samples, "call"),
        output::count(harvest.functions.into(), "function"),
        hours(harvest.core_ms.used),
        hours(harvest.core_ms.owned),
        hours(harvest.core_ms.borrowed),
    )
}

fn node_table(nodes: &[NodeStatus]) -> Table {
    let columns = [
        ("NODE", Align::Left),
        ("STATE", Align::Left),
        ("HOT CORES", Align::Right),
        ("WARM WORKERS", Align::Right),
        ("GPUS", Align::Right),
        ("MEMORY", Align::Right),
        ("LEASES", Align::Right),
        ("REACHED BY", Align::Left),
        ("ID", Align::Left),
    ];
    let mut table = Table::new(&columns);
    let of = |free: MilliCores, all: MilliCores| format!("{free} of {all} free");
    for node in nodes {
        let transports: Vec<&str> = [node.address.unix.as_ref().map(|_| "shm"), node.address.tcp.as_deref()]
            .into_iter()
            .flatten()
            .collect();
        // For a node without heartbeats, show since when.
        let state = match node.state {
            NodeState::Lost | NodeState::Left => format!("{} for {}", node.state, output::span(node.heartbeat_age_ms)),
            NodeState::Suspended => format!("suspended, {} more", output::span(node.suspended_ms)),
            state => state.name().to_owned(),
        };
        table.row([
            node.address.name.clone(),
            state,
            of(node.free.cores.into(), node.capacity.cores.into()),
            of(node.free.workers, node.capacity.workers),
            match node.capacity.gpus {
                0 => "-".into(),
                gpus => format!("{} of {gpus} free", node.free.gpus),
            },
            format!(
                "{} of {} free",
                output::size(node.free.memory_bytes),
                output::size(node.capacity.memory_bytes)
            ),
            node.leases.to_string(),
            transports.join(", "),
            node.address.id.to_string(),
        ]);
    }
    table
}

/// Returns `hot` or `warm`.
pub fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Hot => "hot",
        Mode::Warm => "warm",
        Mode::Auto => "auto",
    }
}

/// Returns the name of a node, or its id if the manager no longer knows it.
pub fn node_name(id: NodeId, nodes: &[NodeStatus]) -> String {
    let known = nodes.iter().find(|node| node.address.id == id);
    known.map_or_else(|| id.to_string(), |node| node.address.name.clone())
}

/// Returns the isolation of the workers. For an image, adds the end of its name and the beginning of its digest.
fn sandbox(lease: &LeaseStatus) -> String {
    let Some(image) = &lease.image else {
        return lease.sandbox.name().into();
    };
    let (name, digest) = image.split_once("@sha256:").unwrap_or((image, ""));
    let name = name.rsplit('/').next().unwrap_or(name);
    match digest.get(..12) {
        Some(digest) => format!("{} {name}@{digest}", lease.sandbox),
        None => format!("{} {name}", lease.sandbox),
    }
}

/// Workers of a lease, and what each owns unless it is one core: `2 warm`, `2 warm of 0.5 cores`.
pub fn workers(lease: &LeaseStatus) -> String {
    let text = format!("{} {}", lease.workers, mode(lease.mode));
    match lease.cores_per_worker {
        MilliCores::ONE => text,
        cores => format!("{text} of {}", output::cores(cores)),
    }
}

/// Returns the table of leases for `dayfly status` and `dayfly lease list`.
pub fn lease_table(leases: &[LeaseStatus], nodes: &[NodeStatus]) -> Table {
    let columns = [
        ("LEASE", Align::Left),
        ("STATE", Align::Left),
        ("NODE", Align::Left),
        ("WORKERS", Align::Right),
        ("SANDBOX", Align::Left),
        ("MEMORY", Align::Right),
        ("ENDS IN", Align::Right),
        ("CALLS", Align::Right),
        ("FAILED", Align::Right),
        ("COMPUTED", Align::Right),
        ("POLLED", Align::Right),
    ];
    let now_ms = output::now_ms();
    let mut table = Table::new(&columns);
    for lease in leases {
        let ends = if lease.state.is_live() {
            output::span(lease.expires_at_ms.saturating_sub(now_ms))
        } else {
            "-".into()
        };
        table.row([
            lease.lease.to_string(),
            lease.state.name().into(),
            node_name(lease.node, nodes),
            workers(lease),
            sandbox(lease),
            output::size(lease.memory_bytes),
            ends,
            lease.usage.calls.to_string(),
            lease.usage.failures.to_string(),
            output::span(lease.usage.computing_us / 1000),
            output::span(lease.usage.polling_us / 1000),
        ]);
    }
    table
}
