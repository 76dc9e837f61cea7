//! `dayfly up`: a manager and a node in one process, which communicate like separate ones.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use dayfly_client::{NodeStatus, default_state_dir};
use dayfly_command::Global;
use dayfly_durable_tasks::LOCAL;
use dayfly_endpoint::{Contents, Dispatcher};
use dayfly_manager::Manager;
use dayfly_node::{ManagerLink, Node};
use dayfly_protocol::api::{Connection, NodeState};
use dayfly_protocol::blob::Blob;
use dayfly_protocol::contents::Content;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{TaskId, TenantId};
use serde_json::json;

use crate::contents::ContentArguments;
use crate::daemon::{self, Ending, StateDir};
use crate::endpoint::lending;
use crate::resources::NodeArguments;
use crate::{connect, output};

/// Limit for the node to join the manager.
const JOIN_LIMIT: Duration = Duration::from_secs(10);
/// How long idle workers are kept.
const IDLE: Duration = Duration::from_secs(60);
/// Validity of the join token, which is used at once.
const JOIN_TOKEN_FOR: Duration = Duration::from_secs(60);

/// Start a manager and a node on this machine.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly up                              for your own use: your clients find it automatically
  dayfly up --cores 2 --memory 4G        leave the rest of the machine to others
  dayfly up --python /opt/py/bin/python  an interpreter for clients that bring none of their own
  dayfly up --listen 0.0.0.0:7070 --host-name pc7.example.org --listen-tcp 0.0.0.0:7071
                                         also for clients on other machines

The state directory contains keys, certificates, leases and bills, and is private to you. Clients need the file `connection.json`
in it, which exists while this command runs. Ctrl-C or SIGTERM stops the manager, the node and all workers; a second one does so
at once.")]
pub struct Arguments {
    /// State directory [default: $XDG_STATE_HOME/dayfly, or ~/.local/state/dayfly]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Address of the manager; port 0 for any free port [default: 127.0.0.1:7070, or any free port with --embedded]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,
    /// Address of the node, for clients that cannot share memory with it
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0")]
    listen_tcp: SocketAddr,
    /// Name or address under which others reach this machine; may be repeated, the first is given to clients
    #[arg(long, value_name = "NAME")]
    host_name: Vec<String>,
    #[command(flatten)]
    contents: ContentArguments,
    #[command(flatten)]
    node: NodeArguments,
    /// Serve one program only: used by client libraries, which start this if they find no manager
    #[arg(long, requires = "parent", hide_short_help = true)]
    embedded: bool,
    /// End when this process ends; it must be the parent
    #[arg(long, value_name = "PID", hide_short_help = true)]
    parent: Option<u32>,
    /// Report readiness on this descriptor instead of standard output, which then carries only the workers' output
    #[arg(long, value_name = "FD", requires = "embedded", hide_short_help = true)]
    ready_fd: Option<i32>,
}

impl Arguments {
    /// Returns the log level. A daemon logs events of leases and nodes. An embedded one logs less, because it writes to
    /// another program's standard error.
    pub fn log_level(&self) -> &'static str {
        if self.embedded { "error" } else { "info" }
    }
}

pub fn run(arguments: &Arguments, global: &Global) -> Result<(), Failure> {
    daemon::run(up(arguments, global))
}

async fn up(arguments: &Arguments, global: &Global) -> Result<(), Failure> {
    let ending = Ending::new(arguments.parent)?;
    let state = StateDir::take(&connect::state_dir(arguments.state_dir.as_deref())?)?;
    let served = serve(arguments, global, ending, &state).await;
    if arguments.embedded {
        // The directory contains keys, and its program may have ended.
        state.remove();
    }
    served
}

/// Runs the manager and the node until they are told to stop.
async fn serve(arguments: &Arguments, global: &Global, mut ending: Ending, state: &StateDir) -> Result<(), Failure> {
    let node_state = StateDir::take(&state.path().join("node"))?;
    let connection = Findable::at(state.path());
    let running = tokio::select! {
        running = start(arguments, state, &node_state) => running?,
        _ = ending.told() => return Ok(()),
    };
    let ready = running.describe(state.path(), global)?;
    match arguments.ready_fd {
        Some(fd) => output::announce_on(fd, &ready)?,
        None => output::announce(&ready),
    }
    ending.told().await;
    tracing::info!("ending");
    ending.orderly(running.end()).await;
    drop(connection);
    Ok(())
}

struct Running {
    dispatcher: dayfly_endpoint::Handle,
    manager: dayfly_manager::Handle,
    node: dayfly_node::Handle,
    status: NodeStatus,
}

async fn start(arguments: &Arguments, state: &StateDir, node_state: &StateDir) -> Result<Running, Failure> {
    let port = if arguments.embedded { 0 } else { 7070 };
    let listen = arguments
        .listen
        .unwrap_or(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let mut node = arguments.node.options(node_state.path().to_owned())?;
    if arguments.embedded {
        // The output of workers belongs to the program that called them.
        node.output = dayfly_node::Output::Own;
        // The node serves only the user of that program, who also owns it.
        node.shows_owner_all = true;
    }
    node.listen_tcp = Some(arguments.listen_tcp);
    node.advertised_tcp = advertised(arguments.listen_tcp, &arguments.host_name);

    let mut options = dayfly_manager::Options::new(state.path());
    options.listen = listen;
    options.names = names(listen, &arguments.host_name);
    options.sandboxes.clone_from(&node.sandboxes);
    arguments.contents.apply(&mut options)?;
    let manager = Manager::start(options).await?;
    tokio::spawn(daemon::log_leases(manager.events()));
    NodeArguments::own(&mut node, manager.owner());
    let token = manager.join_token(JOIN_TOKEN_FOR).await?;
    node.manager = Some(ManagerLink {
        url: loopback_url(manager.address()).unwrap_or_else(|| manager.url().to_owned()),
        ca_pem: manager.ca_pem().to_owned(),
        join_token: Some(token.token),
        others: token.others,
    });
    let node = Node::start(node).await?;
    let status = joined(&manager, &node).await?;
    let dispatcher = dispatch(&manager, &status).await?;
    Ok(Running {
        dispatcher,
        manager,
        node,
        status,
    })
}

/// Returns the interface through which a dispatcher leases from a manager in this process.
pub fn tenants(manager: &dayfly_manager::Handle) -> dayfly_endpoint::TenantConnections {
    let manager = manager.clone();
    let near = loopback_url(manager.address()).unwrap_or_else(|| manager.url().to_owned());
    Box::new(move |tenant, name| {
        let (manager, near) = (manager.clone(), near.clone());
        Box::pin(async move {
            let connection = manager.for_tenant(tenant, &name).await?;
            Ok(Connection {
                manager: near,
                ..connection
            })
        })
    })
}

/// The content store of a manager in this process.
struct Beside {
    manager: dayfly_manager::Handle,
    runtime: tokio::runtime::Handle,
}

impl Contents for Beside {
    fn read(&self, tenant: TenantId, _: TaskId, content: Content) -> Result<Blob, Failure> {
        let contents = self.manager.contents()?;
        self.runtime.block_on(contents.read_whole(tenant, content))
    }

    fn store(&self, tenant: TenantId, _: TaskId, bytes: &[u8]) -> Result<Content, Failure> {
        let contents = self.manager.contents()?;
        self.runtime.block_on(contents.put_copy(tenant, bytes))
    }
}

/// Starts the dispatcher of durable tasks on this machine.
async fn dispatch(manager: &dayfly_manager::Handle, status: &NodeStatus) -> Result<dayfly_endpoint::Handle, Failure> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let cores = u16::try_from(cores).unwrap_or(u16::MAX);
    let options = dayfly_endpoint::Options {
        elastic_nodes: None,
        tenants: tenants(manager),
        invitations: None,
        // The node checks each client's interpreter itself.
        runtime_check: Box::new(|_| Ok(())),
        contents: Arc::new(Beside {
            manager: manager.clone(),
            runtime: tokio::runtime::Handle::current(),
        }),
        lending: lending(manager),
        max_workers: cores
            .min(u16::try_from(status.capacity.workers.whole_part()).unwrap_or(u16::MAX))
            .max(1),
        idle: IDLE,
    };
    let conversation = manager.attach(LOCAL).await?;
    Dispatcher::start(options, conversation.from_manager, conversation.to_manager)
}

/// Waits until the node has joined, and returns its status.
async fn joined(manager: &dayfly_manager::Handle, node: &dayfly_node::Handle) -> Result<NodeStatus, Failure> {
    let mut events = manager.events();
    let id = node.address().id;
    let known = async {
        loop {
            let up = |status: &NodeStatus| status.address.id == id && status.state == NodeState::Up;
            if let Some(status) = manager.nodes().into_iter().find(up) {
                // Before the manager's response, the node knows no tenant that may lease from it.
                return node.wait_until_joined(JOIN_LIMIT).await.map(|()| status);
            }
            // Check again after any event. Before the first node joins, there are no others.
            let _ = events.recv().await;
        }
    };
    let known = tokio::time::timeout(JOIN_LIMIT, known).await.ok().and_then(Result::ok);
    known.ok_or_else(|| {
        let limit = JOIN_LIMIT.as_secs();
        let text = format!(
            "the node did not reach its manager at {} within {limit} s; see the log above",
            manager.url()
        );
        Failure::new(Code::Unreachable, text)
    })
}

impl Running {
    fn describe(&self, state: &Path, global: &Global) -> Result<String, Failure> {
        let NodeStatus { address, capacity, .. } = &self.status;
        if global.json {
            return output::json(&json!({
                "ready": true,
                "manager": self.manager.url(),
                "connection": self.manager.connection_path(),
                "node": address.id,
                "name": address.name,
                "unix": address.unix,
                "tcp": address.tcp,
                "capacity": capacity,
                "state_dir": state,
                "pid": std::process::id(),
            }));
        }
        // Clients of this user find only the default directory; another one must be named.
        let place = match default_state_dir().is_some_and(|usual| usual == state) {
            true => String::new(),
            false => format!(" --manager {}", state.display()),
        };
        Ok(format!(
            "Dayfly {} is ready.\n\n  manager  {}\n  node     {}: {}, {}, {}\n  state    {}\n\n\
             Try, in another terminal:\n  dayfly status{place}\n\nCtrl-C ends it.",
            env!("CARGO_PKG_VERSION"),
            self.manager.url(),
            address.name,
            output::count(capacity.cores.into(), "hot core"),
            output::count(capacity.workers.whole_part().into(), "warm worker"),
            output::size(capacity.memory_bytes),
            state.display(),
        ))
    }

    /// Stops the node first, so that it can report the ends of its leases to the manager.
    async fn end(self) {
        let dispatcher = self.dispatcher;
        // The dispatcher's threads release their leases through the manager.
        let _ = tokio::task::spawn_blocking(move || dispatcher.stop()).await;
        self.node.shutdown().await;
        self.manager.shutdown().await;
    }
}

/// Returns the names for the manager's certificate: the given ones and the listening address.
pub fn names(listen: SocketAddr, given: &[String]) -> Vec<String> {
    let mut names = given.to_vec();
    let address = listen.ip();
    if !address.is_unspecified() && !address.is_loopback() && !names.contains(&address.to_string()) {
        names.push(address.to_string());
    }
    names
}

/// Returns the address that clients use in place of the listening one; `None` for the same address. Port 0 stands for
/// the port that the node gets.
pub fn advertised(listen: SocketAddr, host_names: &[String]) -> Option<String> {
    let host = match host_names.first() {
        Some(name) => name.clone(),
        None if !listen.ip().is_unspecified() => return None,
        None => rustix::system::uname().nodename().to_string_lossy().into_owned(),
    };
    if listen.ip().is_loopback() {
        return None;
    }
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    Some(format!("{host}:{}", listen.port()))
}

/// Returns the URL under which the node in this process reaches the manager.
fn loopback_url(address: SocketAddr) -> Option<String> {
    let port = address.port();
    match address.ip() {
        IpAddr::V4(ip) if ip.is_loopback() || ip.is_unspecified() => Some(format!("https://127.0.0.1:{port}")),
        IpAddr::V6(ip) if ip.is_loopback() || ip.is_unspecified() => Some(format!("https://[::1]:{port}")),
        _ => None,
    }
}

/// Makes the manager discoverable only while it runs, so that clients do not find one that has ended. Its token is kept
/// aside meanwhile, so that the next start accepts clients that have it.
struct Findable {
    shown: PathBuf,
    aside: PathBuf,
}

impl Findable {
    fn at(state: &Path) -> Self {
        let here = Self {
            shown: state.join("connection.json"),
            aside: state.join("connection.stopped.json"),
        };
        if !here.shown.exists() {
            // The first start has no such file.
            let _ = std::fs::rename(&here.aside, &here.shown);
        }
        here
    }
}

impl Drop for Findable {
    fn drop(&mut self) {
        // A start that failed early has no such file.
        let _ = std::fs::rename(&self.shown, &self.aside);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn certificate_names_the_listening_address() {
        assert_eq!(names(at("127.0.0.1:1"), &[]), [""; 0]);
        assert_eq!(names(at("0.0.0.0:1"), &["a.b".into()]), ["a.b"]);
        assert_eq!(names(at("10.0.0.7:1"), &["a.b".into()]), ["a.b", "10.0.0.7"]);
    }

    #[test]
    fn announced_address_is_reachable() {
        assert_eq!(advertised(at("127.0.0.1:0"), &["a.b".into()]), None);
        assert_eq!(advertised(at("10.0.0.7:7071"), &[]), None);
        assert_eq!(advertised(at("0.0.0.0:7071"), &["a.b".into()]), Some("a.b:7071".into()));
        let six = advertised(at("[::]:7071"), &["fd00::1".into()]);
        assert_eq!(six, Some("[fd00::1]:7071".into()));
    }
}
