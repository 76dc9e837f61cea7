//! `dayfly node`: a node, which offers a machine's resources to leases, under a manager or standalone.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use dayfly_client::Client;
use dayfly_command::Global;
use dayfly_node::{ManagerLink, Node};
use dayfly_protocol::api::{Capacity, HarvestMode, JoinToken, NodeResize, NodeState, Sandbox};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{NodeId, TenantId};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::daemon::{self, Ending, StateDir};
use crate::manager::write_private;
use crate::resources::NodeArguments;
use crate::{connect, output, resources, up, values};

/// File in a node's state directory that names its manager.
const MANAGER_FILE: &str = "manager.json";

/// Start a node that joins a manager, or a standalone one; or reclaim a node for its owner.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Examples:
  dayfly node --join join.json --listen-tcp 0.0.0.0:7071
                       joins the manager that made join.json (`dayfly manager join-token`)
  dayfly node --manager https://head.example.org:7070 --ca ca.pem --token TOKEN
                       the same, with separate options
  dayfly node          joins the manager that it joined before; else runs standalone
  dayfly node reclaim rack3-07 --grace 2s     ends its leases, and refuses new ones
  dayfly node resume rack3-07                 offers it to leases again

A standalone node writes `allowance.json` into its state directory; your clients lease from it with this file. A node connects
to its manager, and needs no incoming connection from it. Clients connect to --listen-tcp, or share memory with the node.")]
pub struct Arguments {
    #[command(subcommand)]
    what: Option<What>,
    /// File from `dayfly manager join-token`; - for standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["ca", "token", "standalone"])]
    join: Option<PathBuf>,
    /// PEM file with the certificate authority of the manager at --manager https://...
    #[arg(long, value_name = "FILE", requires = "token")]
    ca: Option<PathBuf>,
    /// Join token
    #[arg(
        long,
        value_name = "TOKEN",
        requires = "ca",
        env = "DAYFLY_JOIN_TOKEN",
        hide_env_values = true
    )]
    token: Option<String>,
    /// Run standalone, even if the node joined a manager before
    #[arg(long)]
    standalone: bool,
    /// State directory [default: `node` in the state directory of `dayfly up`]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Remove the state directory at the end, if it was empty at the start: for nodes that live as long as a job
    #[arg(long)]
    ephemeral: bool,
    /// End after this time without the manager: for unattended nodes
    #[arg(long, value_name = "DURATION", value_parser = values::duration, conflicts_with = "standalone")]
    alone_for: Option<Duration>,
    /// End when this process ends; it must be the parent
    #[arg(long, value_name = "PID", hide_short_help = true)]
    parent: Option<u32>,
    /// Address to listen on for clients that cannot share memory with the node; port 0 for any free port
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0")]
    listen_tcp: SocketAddr,
    /// Name or address under which clients reach this machine
    #[arg(long, value_name = "NAME")]
    host_name: Option<String>,
    #[command(flatten)]
    node: NodeArguments,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Reclaim a node for its owner
    Reclaim(Reclaim),
    /// Offer a reclaimed or suspended node to leases again
    Resume(Resume),
    /// Change how much of a node is offered to leases
    Resize(Resize),
    /// Switch what a node does with resources that calls own and do not use
    Harvest(Harvest),
}

/// Reclaim a node for its owner: its leases end, and it gets no new ones.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly node reclaim rack3-07                at once
  dayfly node reclaim 5f0c... --grace 30s     running calls may continue for 30 seconds

Returns when the node has no lease and the last bill is recorded. A batch system can do the same with the request
DELETE /v1/nodes/ID?grace=SECONDS.")]
struct Reclaim {
    /// Name of the node, if it is unique, or its id
    #[arg(value_name = "NAME_OR_ID")]
    node: String,
    /// How long running calls may continue
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = values::duration)]
    grace: Duration,
}

/// Offer a reclaimed or suspended node to leases again.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly node resume rack3-07

A batch system can do the same with the request PUT /v1/nodes/ID.")]
struct Resume {
    /// Name of the node, if it is unique, or its id
    #[arg(value_name = "NAME_OR_ID")]
    node: String,
}

/// Change how much of a node is offered to leases, for example while a batch job has the rest.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly node resize rack3-07 --cores 3 --memory 8G --grace 2s     a job gets the other cores and memory
  dayfly node resize rack3-07 --cores 0 --gpus 0                   what is parked stays warm in memory
  dayfly node resize rack3-07 --cores 15 --memory 48G --gpus 4     all again

A node offers at most what it was started with. Free resources leave at once. Then idle leases end, and others when
their calls have ended or the grace is over. Returns when no lease holds more than the node offers. A batch system can
do the same with the request PATCH /v1/nodes/ID?grace=SECONDS.")]
struct Resize {
    /// Name of the node, if it is unique, or its id
    #[arg(value_name = "NAME_OR_ID")]
    node: String,
    /// Cores of hot workers
    #[arg(long, value_name = "N")]
    cores: Option<u16>,
    /// Memory of all leases
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    memory: Option<u64>,
    /// Most warm workers of one core; follows --cores in proportion if it is not given
    #[arg(long, value_name = "N")]
    workers: Option<u16>,
    /// Number of GPUs
    #[arg(long, value_name = "N")]
    gpus: Option<u16>,
    /// How long running calls may continue
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = values::duration)]
    grace: Duration,
}

/// Switch what a node does with resources that calls own and do not use, until the node ends.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly node harvest rack3-07 watch          measures what could be lent
  dayfly node harvest rack3-07 on             lends cores as long as their owners do not use them
  dayfly node harvest rack3-07 off            takes everything back, and measures nothing

A node that starts again follows its option --harvest. `dayfly status` shows the measurements.")]
struct Harvest {
    /// Name of the node, if it is unique, or its id
    #[arg(value_name = "NAME_OR_ID")]
    node: String,
    /// What it does from now on
    #[arg(value_name = "MODE", value_parser = resources::harvest_mode())]
    mode: HarvestMode,
}

/// Limit of the initial wait for the manager. A node is useful without it.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);

/// A node's manager, and the tenant of the node's owner there.
type Belonging = (ManagerLink, Option<TenantId>);

#[derive(Serialize, Deserialize)]
struct Joined {
    manager: String,
    ca_pem: String,
    /// The tenant that made the join token.
    #[serde(default)]
    owner: Option<TenantId>,
}

pub fn run(arguments: &Arguments, global: &Global) -> Result<(), Failure> {
    match &arguments.what {
        None => daemon::run(serve(arguments, global)),
        Some(What::Reclaim(wanted)) => {
            let client = connect::manager(global)?;
            let reclaimed = client
                .reclaim_node(named(&client, &wanted.node)?, wanted.grace)
                .map_err(|error| error.0)?;
            output::line(&match global.json {
                true => output::json(&reclaimed)?,
                false => format!(
                    "The node {} is empty: {} ended, nothing of them left after {:.1} ms.",
                    reclaimed.node.address.name,
                    output::count(reclaimed.leases.into(), "lease"),
                    reclaimed.empty_ms
                ),
            });
            Ok(())
        }
        Some(What::Harvest(wanted)) => {
            let client = connect::manager(global)?;
            let node = named(&client, &wanted.node)?;
            let status = client.switch_harvest(node, wanted.mode).map_err(|error| error.0)?;
            output::line(&match global.json {
                true => output::json(&status)?,
                false => format!("The node {} harvests: {}.", status.address.name, wanted.mode),
            });
            Ok(())
        }
        Some(What::Resize(wanted)) => {
            let client = connect::manager(global)?;
            let node = named(&client, &wanted.node)?;
            let change = NodeResize {
                cores: wanted.cores,
                memory_bytes: wanted.memory,
                workers: wanted.workers,
                gpus: wanted.gpus,
            };
            if change.is_empty() {
                let text = "this changes nothing; name --cores, --memory, --workers or --gpus";
                return Err(Failure::new(Code::InvalidRequest, text));
            }
            let status = client
                .resize_node(node, &change, wanted.grace)
                .map_err(|error| error.0)?;
            output::line(&match global.json {
                true => output::json(&status)?,
                false => format!("The node {} offers {}.", status.address.name, offered(&status.capacity)),
            });
            Ok(())
        }
        Some(What::Resume(wanted)) => {
            let client = connect::manager(global)?;
            let node = named(&client, &wanted.node)?;
            let status = client.resume_node(node).map_err(|error| error.0)?;
            output::line(&match global.json {
                true => output::json(&status)?,
                false => format!("The node {} is {}.", status.address.name, status.state),
            });
            Ok(())
        }
    }
}

fn offered(capacity: &Capacity) -> String {
    let mut parts = vec![
        output::count(capacity.cores.into(), "core"),
        format!(
            "{} for warm workers",
            output::count(capacity.workers.whole_part().into(), "place")
        ),
        output::size(capacity.memory_bytes),
    ];
    if capacity.gpus > 0 {
        parts.push(output::count(capacity.gpus.into(), "GPU"));
    }
    parts.join(", ")
}

/// Returns the node with this name or id. Nodes that left only count if no other has the name.
fn named(client: &Client, wanted: &str) -> Result<NodeId, Failure> {
    if let Ok(id) = wanted.parse() {
        return Ok(id);
    }
    let mut nodes = client.nodes().map_err(|error| error.0)?;
    nodes.retain(|node| node.address.name == wanted);
    if nodes.iter().any(|node| node.state != NodeState::Left) {
        nodes.retain(|node| node.state != NodeState::Left);
    }
    match &nodes[..] {
        [node] => Ok(node.address.id),
        [] => Err(Failure::new(
            Code::NotFound,
            format!("no node is called `{wanted}`; `dayfly status` lists those there are"),
        )),
        several => {
            let ids: Vec<String> = several.iter().map(|node| node.address.id.to_string()).collect();
            let text = format!(
                "{} nodes are called `{wanted}`; name one by its id: {}",
                ids.len(),
                ids.join(", ")
            );
            Err(Failure::new(Code::InvalidRequest, text))
        }
    }
}

async fn serve(arguments: &Arguments, global: &Global) -> Result<(), Failure> {
    let ending = Ending::new(arguments.parent)?;
    let path = match &arguments.state_dir {
        Some(dir) => connect::state_dir(Some(dir))?,
        None => connect::state_dir(None)?.join("node"),
    };
    let state = StateDir::take(&path)?;
    let served = serve_with(arguments, global, ending, &state).await;
    if arguments.ephemeral {
        // Also if the node did not start to serve: the directory contains its key.
        state.remove();
    }
    served
}

/// Runs a node until it is told to stop.
async fn serve_with(
    arguments: &Arguments,
    global: &Global,
    mut ending: Ending,
    state: &StateDir,
) -> Result<(), Failure> {
    let (link, owner) = link(arguments, global, state.path())?.unzip();
    let owner = owner.flatten();
    let mut options = arguments.node.options(state.path().to_owned())?;
    if arguments.node.sandboxes().is_empty() {
        options.sandboxes = vec![Sandbox::Isolated];
        if arguments.node.has_images() {
            options.sandboxes.push(Sandbox::Container);
        }
    }
    options.listen_tcp = Some(arguments.listen_tcp);
    options.advertised_tcp = up::advertised(arguments.listen_tcp, arguments.host_name.as_slice());
    NodeArguments::own(&mut options, owner);
    options.manager = link.clone();
    let node = tokio::select! {
        node = Node::start(options) => node?,
        _ = ending.told() => return Ok(()),
    };
    if let Some(link) = &link {
        let joined = Joined {
            manager: link.url.clone(),
            ca_pem: link.ca_pem.clone(),
            owner,
        };
        write_private(&state.path().join(MANAGER_FILE), &output::json(&joined)?)?;
    }
    let joined = match &link {
        Some(_) => tokio::select! {
            joined = node.wait_until_joined(JOIN_TIMEOUT) => Some(joined),
            _ = ending.told() => {
                ending.orderly(node.shutdown()).await;
                return Ok(());
            }
        },
        None => None,
    };
    output::announce(&describe(&node, link.as_ref(), joined, state.path(), global)?);
    let alone = async {
        match arguments.alone_for {
            Some(limit) => node.wait_until_alone(limit).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = ending.told() => tracing::info!("ending"),
        () = alone => tracing::warn!("ending: the manager has not been there for too long"),
    }
    ending.orderly(node.shutdown()).await;
    Ok(())
}

/// Returns the node's manager and its owner's tenant: from the arguments, else from an earlier join.
fn link(arguments: &Arguments, global: &Global, state: &Path) -> Result<Option<Belonging>, Failure> {
    let wrong = |text: String| Failure::new(Code::InvalidRequest, text);
    if arguments.standalone {
        return Ok(None);
    }
    if let Some(path) = &arguments.join {
        let text = match path.as_os_str() == "-" {
            true => std::io::read_to_string(std::io::stdin()),
            false => std::fs::read_to_string(path),
        };
        let text = text.map_err(|error| wrong(format!("{} cannot be read: {error}", path.display())))?;
        let join: JoinToken = serde_json::from_str(&text).map_err(|error| {
            wrong(format!(
                "{} is not what `dayfly manager join-token` writes: {error}",
                path.display()
            ))
        })?;
        let link = ManagerLink {
            url: join.manager,
            ca_pem: join.ca_pem,
            join_token: Some(join.token),
            others: join.others,
        };
        return Ok(Some((link, join.owner)));
    }
    let url = global
        .manager
        .as_ref()
        .map(|named| named.to_string_lossy().into_owned());
    let Some((ca, token)) = arguments.ca.as_ref().zip(arguments.token.as_ref()) else {
        return match url {
            Some(url) => Err(wrong(format!(
                "to join {url}, a node needs --ca and --token too, or all in one with --join FILE; the manager makes \
                 them by `dayfly manager join-token`"
            ))),
            None => joined_before(state),
        };
    };
    let url = url.filter(|url| url.starts_with("https://"));
    let url = url.ok_or_else(|| wrong("name the manager to join by --manager https://HOST:PORT".into()))?;
    let ca_pem =
        std::fs::read_to_string(ca).map_err(|error| wrong(format!("{} cannot be read: {error}", ca.display())))?;
    let link = ManagerLink {
        url,
        ca_pem,
        join_token: Some(token.clone()),
        others: Vec::new(),
    };
    // The separate arguments do not contain the tenant.
    Ok(Some((link, None)))
}

fn joined_before(state: &Path) -> Result<Option<Belonging>, Failure> {
    let path = state.join(MANAGER_FILE);
    let text = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        text => text,
    };
    let joined: Result<Joined, String> = text
        .map_err(|error| error.to_string())
        .and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()));
    let joined = joined.map_err(|error| {
        let text = format!(
            "{} cannot be used: {error}; join again with --join FILE",
            path.display()
        );
        Failure::new(Code::StoreFailed, text)
    })?;
    let link = ManagerLink {
        url: joined.manager,
        ca_pem: joined.ca_pem,
        join_token: None,
        others: Vec::new(),
    };
    Ok(Some((link, joined.owner)))
}

fn describe(
    node: &dayfly_node::Handle,
    link: Option<&ManagerLink>,
    joined: Option<Result<(), String>>,
    state: &Path,
    global: &Global,
) -> Result<String, Failure> {
    let status = node.status();
    let (address, capacity) = (&status.address, &status.capacity);
    let allowance = link.is_none().then(|| state.join("allowance.json"));
    if global.json {
        return output::json(&json!({
            "ready": true,
            "node": address.id,
            "name": address.name,
            "unix": address.unix,
            "tcp": address.tcp,
            "capacity": capacity,
            "manager": link.map(|link| &link.url),
            "joined": joined.as_ref().map(Result::is_ok),
            "allowance": allowance,
            "state_dir": state,
            "pid": std::process::id(),
        }));
    }
    let whose = match (link, &allowance) {
        (Some(link), _) => match joined {
            Some(Err(why)) => format!("manager  {}: not joined yet, it goes on trying. {why}", link.url),
            _ => format!("manager  {}", link.url),
        },
        (None, Some(path)) => format!("clients  lease with {}", path.display()),
        (None, None) => String::new(),
    };
    Ok(format!(
        "The node {} is ready.\n\n  node     {}: {}, {}, {}\n  {whose}\n  state    {}\n\nCtrl-C ends it.",
        address.name,
        address.id,
        output::count(capacity.cores.into(), "hot core"),
        output::count(capacity.workers.whole_part().into(), "warm worker"),
        output::size(capacity.memory_bytes),
        state.display(),
    ))
}
