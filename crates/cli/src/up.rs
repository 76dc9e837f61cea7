//! `dayfly up`: a manager and a node in one process, which speak to each other as if they were not.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use dayfly_client::{NodeStatus, default_state_dir};
use dayfly_endpoint::{Contents, Dispatcher};
use dayfly_manager::{LOCAL, Manager};
use dayfly_node::{ManagerLink, Node};
use dayfly_protocol::api::Connection;
use dayfly_protocol::blob::Blob;
use dayfly_protocol::contents::Content;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{TaskId, TenantId};
use serde_json::json;

use crate::contents::ContentArguments;
use crate::daemon::{self, Ending, StateDir};
use crate::resources::NodeArguments;
use crate::{Global, connect, output};

/// How long the node may take to reach the manager beside it.
const JOIN_LIMIT: Duration = Duration::from_secs(10);
/// Workers without a task are kept for so long.
const IDLE: Duration = Duration::from_secs(60);
/// A join token that is used at once.
const JOIN_TOKEN_FOR: Duration = Duration::from_secs(60);

/// Start a manager and a node on this machine.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly up                              for your own use: clients of yours find it by themselves
  dayfly up --cores 2 --memory 4G        leave the rest of the machine to others
  dayfly up --python /opt/py/bin/python  an interpreter for clients that bring none of their own
  dayfly up --listen 0.0.0.0:7070 --host-name pc7.example.org --listen-tcp 0.0.0.0:7071
                                         for clients on other machines too

Keys, certificates, leases and bills are kept in the state directory, for you alone. `connection.json` in it is what
a client needs; it is there while this runs. Ctrl-C or SIGTERM ends everything below it; a second one ends it at once.")]
pub struct Arguments {
    /// Where to keep state [default: $XDG_STATE_HOME/dayfly, or ~/.local/state/dayfly]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Where the manager listens; port 0 for any [default: 127.0.0.1:7070, or any port with --embedded]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,
    /// Where the node listens for clients that cannot share memory with it
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0")]
    listen_tcp: SocketAddr,
    /// Name or address under which others reach this machine; may be repeated, the first one is handed out
    #[arg(long, value_name = "NAME")]
    host_name: Vec<String>,
    #[command(flatten)]
    contents: ContentArguments,
    #[command(flatten)]
    node: NodeArguments,
    /// Serve one program only: for client libraries, which start this when they find no manager
    #[arg(long, requires = "parent", hide_short_help = true)]
    embedded: bool,
    /// End when this process ends, which must be the one that started this
    #[arg(long, value_name = "PID", hide_short_help = true)]
    parent: Option<u32>,
    /// Say that it is ready on this descriptor and not on standard output, which belongs to the workers then
    #[arg(long, value_name = "FD", requires = "embedded", hide_short_help = true)]
    ready_fd: Option<i32>,
}

impl Arguments {
    /// A daemon tells what happens to leases and nodes. An embedded one writes into another program's standard error,
    /// whose user knows nothing of either.
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
        // Keys are in it, and the program that it is for may have ended, too.
        state.remove();
    }
    served
}

/// Runs the manager and the node until they are told to end.
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
        // What a worker prints is for the program that called it.
        node.output = dayfly_node::Output::Own;
        // Nor has it anything to hide from that program's user, who is its own.
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

/// Says what a dispatcher beside a manager leases with.
pub fn tenants(manager: &dayfly_manager::Handle) -> dayfly_endpoint::Tenants {
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

/// Runs durable tasks on this machine.
async fn dispatch(manager: &dayfly_manager::Handle, status: &NodeStatus) -> Result<dayfly_endpoint::Handle, Failure> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let cores = u16::try_from(cores).unwrap_or(u16::MAX);
    let options = dayfly_endpoint::Options {
        places: None,
        tenants: tenants(manager),
        invites: None,
        // Its node looks at each client's own interpreter.
        suits: Box::new(|_| Ok(())),
        contents: Arc::new(Beside {
            manager: manager.clone(),
            runtime: tokio::runtime::Handle::current(),
        }),
        most_workers: cores.min(status.capacity.workers).max(1),
        idle: IDLE,
    };
    let conversation = manager.attach(LOCAL).await?;
    Dispatcher::start(options, conversation.heard, conversation.said)
}

/// What the manager knows of the node, once both know of each other.
async fn joined(manager: &dayfly_manager::Handle, node: &dayfly_node::Handle) -> Result<NodeStatus, Failure> {
    let mut events = manager.events();
    let id = node.address().id;
    let known = async {
        loop {
            let up = |status: &NodeStatus| status.address.id == id && status.state == "up";
            if let Some(status) = manager.nodes().into_iter().find(up) {
                // Until it has the manager's answer, it knows nobody who may lease from it.
                return node.joined(JOIN_LIMIT).await.map(|()| status);
            }
            // Whatever happened, look again; nothing else happens before the first node is there.
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
        // A client of the same user looks in one place; another place has to be named.
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
            output::count(capacity.workers.into(), "warm worker"),
            output::size(capacity.memory_bytes),
            state.display(),
        ))
    }

    /// The node first: it tells the manager how its leases ended.
    async fn end(self) {
        let dispatcher = self.dispatcher;
        // Its threads give their leases back, which they ask the manager for.
        let _ = tokio::task::spawn_blocking(move || dispatcher.stop()).await;
        self.node.shutdown().await;
        self.manager.shutdown().await;
    }
}

/// Names for the manager's certificate: those given, and the address that it listens on.
pub fn names(listen: SocketAddr, given: &[String]) -> Vec<String> {
    let mut names = given.to_vec();
    let address = listen.ip();
    if !address.is_unspecified() && !address.is_loopback() && !names.contains(&address.to_string()) {
        names.push(address.to_string());
    }
    names
}

/// What clients are told of where a node listens; none where that is the address itself. Port 0 stands for whichever it gets.
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

/// How the node in this process reaches the manager, whatever names others use for it.
fn loopback_url(address: SocketAddr) -> Option<String> {
    let port = address.port();
    match address.ip() {
        IpAddr::V4(ip) if ip.is_loopback() || ip.is_unspecified() => Some(format!("https://127.0.0.1:{port}")),
        IpAddr::V6(ip) if ip.is_loopback() || ip.is_unspecified() => Some(format!("https://[::1]:{port}")),
        _ => None,
    }
}

/// Lets clients find this manager while it runs, and only then: one that ended would be found in vain. Its token is kept
/// aside meanwhile, so that clients that know it are served again by the next start.
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
            // There is none at the first start.
            let _ = std::fs::rename(&here.aside, &here.shown);
        }
        here
    }
}

impl Drop for Findable {
    fn drop(&mut self) {
        // A start that failed before it had a file has none to hide.
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
    fn the_certificate_names_an_address_that_is_listened_on() {
        assert_eq!(names(at("127.0.0.1:1"), &[]), [""; 0]);
        assert_eq!(names(at("0.0.0.0:1"), &["a.b".into()]), ["a.b"]);
        assert_eq!(names(at("10.0.0.7:1"), &["a.b".into()]), ["a.b", "10.0.0.7"]);
    }

    #[test]
    fn clients_are_told_where_they_can_really_connect() {
        assert_eq!(advertised(at("127.0.0.1:0"), &["a.b".into()]), None);
        assert_eq!(advertised(at("10.0.0.7:7071"), &[]), None);
        assert_eq!(advertised(at("0.0.0.0:7071"), &["a.b".into()]), Some("a.b:7071".into()));
        let six = advertised(at("[::]:7071"), &["fd00::1".into()]);
        assert_eq!(six, Some("[fd00::1]:7071".into()));
    }
}
