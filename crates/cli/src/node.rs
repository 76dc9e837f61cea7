//! `dayfly node`: what a machine gives to leases, under a manager or on its own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use dayfly_client::Client;
use dayfly_node::{ManagerLink, Node};
use dayfly_protocol::api::{JoinToken, Sandbox};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{NodeId, TenantId};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::daemon::{self, Ending, StateDir};
use crate::manager::write_private;
use crate::resources::NodeArguments;
use crate::{Global, connect, output, up, values};

/// In a node's state directory: which manager it belongs to.
const MANAGER_FILE: &str = "manager.json";

/// Start a node: of a manager's, or on its own; or take one back for its owner.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Examples:
  dayfly node --join join.json --listen-tcp 0.0.0.0:7071
                       joins the manager that made join.json (`dayfly manager join-token`)
  dayfly node --manager https://head.example.org:7070 --ca ca.pem --token TOKEN
                       the same, piece by piece
  dayfly node          joins the manager that it joined before; with none, it is a node on its own
  dayfly node reclaim rack3-07 --grace 2s     ends its leases, and keeps new ones away
  dayfly node resume rack3-07                 gives it to leases again

A node on its own writes `allowance.json` into its state directory: clients of yours lease from it with that file.
It needs no access from its manager, only to it; clients reach it on --listen-tcp, or share memory with it.")]
pub struct Arguments {
    #[command(subcommand)]
    what: Option<What>,
    /// What `dayfly manager join-token` wrote; - for standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["ca", "token", "standalone"])]
    join: Option<PathBuf>,
    /// Certificate authority of the manager that --manager https://... names, PEM
    #[arg(long, value_name = "FILE", requires = "token")]
    ca: Option<PathBuf>,
    /// Token with which to join it
    #[arg(
        long,
        value_name = "TOKEN",
        requires = "ca",
        env = "DAYFLY_JOIN_TOKEN",
        hide_env_values = true
    )]
    token: Option<String>,
    /// Belong to no manager, whatever it joined before
    #[arg(long)]
    standalone: bool,
    /// Where to keep state [default: `node` in the state directory of `dayfly up`]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Remove the state directory at the end, if it was empty at the beginning: for nodes that come and go with a job
    #[arg(long)]
    ephemeral: bool,
    /// End when the manager has not been there for so long: for nodes that nobody looks after
    #[arg(long, value_name = "DURATION", value_parser = values::duration, conflicts_with = "standalone")]
    alone_for: Option<Duration>,
    /// Where to listen for clients that cannot share memory with it; port 0 for any
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
    /// Take a node back for its owner
    Reclaim(Reclaim),
    /// Give a node that was taken back, or is suspended, to leases again
    Resume(Resume),
}

/// Take a node back for its owner: its leases end, and it gets no new ones.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly node reclaim rack3-07                at once
  dayfly node reclaim 5f0c... --grace 30s     calls that run may end within half a minute

Returns when the node is empty and the last bill is booked. For a batch system, the same as one request:
DELETE /v1/nodes/ID?grace=SECONDS.")]
struct Reclaim {
    /// Which: its name, if no other node has it, or its id
    #[arg(value_name = "NAME_OR_ID")]
    node: String,
    /// How long running calls may go on
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = values::duration)]
    grace: Duration,
}

/// Give a node that was taken back, or is suspended, to leases again.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly node resume rack3-07

For a batch system, the same as one request: PUT /v1/nodes/ID.")]
struct Resume {
    /// Which: its name, if no other node has it, or its id
    #[arg(value_name = "NAME_OR_ID")]
    node: String,
}

/// A node is of use without its manager, so that whoever starts it does not wait for one for longer.
const JOIN_PATIENCE: Duration = Duration::from_secs(5);

/// A node's manager, and the tenant of its owner there.
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

/// The node of this name or id. Of several with one name, those that left do not count where another has not.
fn named(client: &Client, wanted: &str) -> Result<NodeId, Failure> {
    if let Ok(id) = wanted.parse() {
        return Ok(id);
    }
    let mut nodes = client.nodes().map_err(|error| error.0)?;
    nodes.retain(|node| node.address.name == wanted);
    if nodes.iter().any(|node| node.state != "left") {
        nodes.retain(|node| node.state != "left");
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
    let ending = Ending::new(None)?;
    let path = match &arguments.state_dir {
        Some(dir) => connect::state_dir(Some(dir))?,
        None => connect::state_dir(None)?.join("node"),
    };
    let state = StateDir::take(&path)?;
    let served = serve_with(arguments, global, ending, &state).await;
    if arguments.ephemeral {
        // Also where it did not come to serve: its key is there.
        state.remove();
    }
    served
}

/// Runs a node until it is told to end.
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
            joined = node.joined(JOIN_PATIENCE) => Some(joined),
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
            Some(limit) => node.alone_for(limit).await,
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

/// Which manager the node belongs to, and which of its tenants the node does: as told now, or as it joined before.
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
    // The pieces do not say who made the token.
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
        output::count(capacity.workers.into(), "warm worker"),
        output::size(capacity.memory_bytes),
        state.display(),
    ))
}
