//! The daemon of an endpoint: a dispatcher, a manager for the nodes of its site, and a provider of nodes.
//!
//! Nodes join this site manager and not the manager that sends the tasks. They need no connection out of their site,
//! leases are made locally, and leases continue while the other manager is unavailable.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_client::Client;
use dayfly_command::Global;
use dayfly_endpoint::connection::{self, ConnectionState};
use dayfly_endpoint::{Dispatcher, ElasticNodes, Invitations, blocks};
use dayfly_manager::Manager;
use dayfly_protocol::api::{Connection, Sandbox};
use dayfly_protocol::error::{Code, Failure};
use serde_json::json;

use super::accounts;
use super::config::Config;
use super::directory::{CREDENTIAL, Directory};
use super::nodes::{self, Board, Lasting, Nodes};
use crate::daemon::{self, Ending, StateDir, Why};
use crate::{output, up};

/// Directory of outcomes that the manager has not received yet.
const OUTBOX: &str = "outbox";
/// File with the port that nodes of an earlier run use.
const PORT: &str = "port";
/// Interval of checks that all parts are running.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Limit for the last messages to the manager.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// How long idle workers are kept, unless their block ends sooner.
const IDLE: Duration = Duration::from_secs(60);

pub fn run(name: &str, global: &Global) -> Result<(), Failure> {
    let directory = Directory::existing(name)?;
    run_in(name, StateDir::take(directory.path())?, None, global)
}

/// Runs the daemon in a locked directory. It ends with its parent, if there is one.
pub fn run_in(name: &str, state: StateDir, parent: Option<u32>, global: &Global) -> Result<(), Failure> {
    daemon::run(serve(name, state, parent, global))
}

async fn serve(name: &str, state: StateDir, parent: Option<u32>, global: &Global) -> Result<(), Failure> {
    let mut ending = Ending::new(parent)?;
    let config = Config::read(state.path())?;
    let credential = credential(state.path())?;
    if !config.accounts.is_empty() {
        return accounts::serve(name, global, state, config, credential, ending).await;
    }
    let manager = tokio::select! {
        manager = site_manager(&config, state.path()) => manager?,
        _ = ending.told() => return Ok(()),
    };
    tokio::spawn(daemon::log_leases(manager.events()));
    let board = Arc::new(Board::new(state.path(), credential.manager.clone()));
    let contents = Client::manager_at(&credential).and_then(|client| client.held_contents());
    let channels = connection::open(connection::Options {
        managers: credential.managers(),
        token: credential.token,
        outbox: Some(state.path().join(OUTBOX)),
        // For an account's daemon, the parent has registered the endpoint.
        spec: parent.is_none().then(|| config.spec()),
    })?;
    let lasting = Arc::new(Lasting::new(manager.clone(), config.blocks.clone()));
    let options = dayfly_endpoint::Options {
        elastic_nodes: Some(Arc::clone(&lasting) as Arc<dyn ElasticNodes>),
        tenants: up::tenants(&manager),
        invitations: Some(invites(&manager, config.is_shared())),
        runtime_check: nodes::suits(&config),
        contents: Arc::new(contents.map_err(|error| error.0)?),
        lending: nodes::lending(&manager),
        max_workers: config.max_workers(),
        idle: IDLE.min(config.blocks.idle),
    };
    let dispatcher = Dispatcher::start(options, channels.incoming, channels.outgoing.clone())?;
    let blocks = {
        let site = Nodes {
            config: config.clone(),
            directory: state.path().to_owned(),
            client: Client::manager_at(manager.connection()).map_err(|error| error.0)?,
            manager: manager.clone(),
            runtime: tokio::runtime::Handle::current(),
            demand: Box::new(dispatcher.demand()),
            leased: Box::new(dispatcher.workers()),
            said: channels.outgoing,
            board: Arc::clone(&board),
            lasting,
        };
        let options = blocks::Options {
            name: name.to_owned(),
            terms: config.terms(),
            nodes: config.blocks.nodes,
            walltime: config.blocks.walltime,
            poll: nodes::poll(&config),
            late: nodes::late(&config),
            directory: state.path().to_owned(),
        };
        blocks::start(options, nodes::provider(&config, state.path())?, Box::new(site))?
    };
    let mut seen = channels.state;
    // The starting process waits for success or for the error.
    tokio::select! {
        _ = seen.wait_for(|state| *state != ConnectionState::Connecting) => {}
        _ = ending.told() => {}
    }
    output::announce(&match global.json {
        true => output::json(&json!({ "ready": true, "endpoint": name, "pid": std::process::id() }))?,
        false => format!("The endpoint {name} runs. Ctrl-C ends it, and gives its nodes back."),
    });
    let showing = async {
        loop {
            let text = seen.borrow_and_update().to_string();
            board.show(|status| status.connection = text);
            if seen.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    // An account's daemon ends when idle, and is started again on demand.
    let idle = {
        let (demand, board) = (dispatcher.demand(), Arc::clone(&board));
        // Dropped together with the data it reads, so that it does not keep the connection open.
        async move {
            let mut busy_at = Instant::now();
            while parent.is_none() || busy_at.elapsed() < config.accounts.idle {
                tokio::time::sleep(POLL_INTERVAL).await;
                if demand().workers > 0 || board.has_blocks() {
                    busy_at = Instant::now();
                }
            }
        }
    };
    let broken = async {
        while !dispatcher.has_ended() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    let (why, result) = tokio::select! {
        why = ending.told() => (why, Ok(())),
        () = showing => (Why::Signal, Ok(())),
        () = idle => (Why::Signal, Ok(())),
        // Keep the nodes for the next start.
        () = broken => (Why::HungUp, Err(Failure::new(Code::Internal, "the dispatcher ended; see above, and report this"))),
    };
    tracing::info!("ending");
    let ended = channels.ended;
    let end = async {
        let stopped = tokio::task::spawn_blocking(move || {
            dispatcher.stop();
            // A daemon that ends with its terminal is started again, and finds its nodes.
            blocks.stop(why == Why::Signal);
        });
        let _ = stopped.await;
        let _ = tokio::time::timeout(LAST_WORDS, ended).await;
        manager.shutdown().await;
    };
    ending.orderly(end).await;
    result
}

fn credential(directory: &Path) -> Result<Connection, Failure> {
    let path = directory.join(CREDENTIAL);
    let read = std::fs::read(&path).map_err(|error| error.to_string());
    read.and_then(|json| serde_json::from_slice(&json).map_err(|error| error.to_string()))
        .map_err(|error| {
            let path = path.display();
            let text = format!("{path} cannot be used: {error}; remove the endpoint, and set it up anew");
            Failure::new(Code::StoreFailed, text)
        })
}

/// Starts the manager of this site's nodes, on the port that earlier nodes use.
async fn site_manager(config: &Config, directory: &Path) -> Result<dayfly_manager::Handle, Failure> {
    let path = directory.join(PORT);
    let known: Option<u16> = std::fs::read_to_string(&path)
        .ok()
        .and_then(|text| text.trim().parse().ok());
    let started = match known {
        None => Manager::start(options(config, directory, 0)).await,
        Some(port) => match Manager::start(options(config, directory, port)).await {
            Err(dayfly_manager::Error::AddressInUse(address)) => {
                tracing::warn!(%address, "another program listens where nodes look for this endpoint: those that run are lost");
                Manager::start(options(config, directory, 0)).await
            }
            started => started,
        },
    };
    let manager = started?;
    std::fs::write(&path, format!("{}\n", manager.address().port())).map_err(|error| {
        let text = format!("{} cannot be written: {error}", path.display());
        Failure::new(Code::StoreFailed, text)
    })?;
    Ok(manager)
}

/// Returns the rule for leases from the site's manager.
fn invites(manager: &dayfly_manager::Handle, is_shared: bool) -> Invitations {
    let manager = manager.clone();
    Box::new(move |tenant, name, guest| {
        let manager = manager.clone();
        Box::pin(async move {
            if guest && !is_shared {
                // Other tenants' tasks need isolation, and the owner's leases have none.
                let text = "the endpoint is not shared any more; ask its owner";
                return Err(Failure::new(Code::Forbidden, text));
            }
            manager.for_guest(tenant, &name).await
        })
    })
}

fn options(config: &Config, directory: &Path, port: u16) -> dayfly_manager::Options {
    let ip: Option<IpAddr> = config.address.parse().ok();
    let loopback = ip.is_some_and(|ip| ip.is_loopback());
    let listen = match ip {
        Some(ip) if loopback => ip,
        _ => Ipv4Addr::UNSPECIFIED.into(),
    };
    let mut options = dayfly_manager::Options::new(directory.join("manager"));
    options.listen = SocketAddr::new(listen, port);
    options.names = if loopback {
        Vec::new()
    } else {
        vec![config.address.clone()]
    };
    // The site's manager keeps no tasks, and learns of leases from its nodes. Losses are logged.
    options.accept_loss = true;
    options.sandboxes = match config.is_shared() {
        true => vec![Sandbox::Isolated, Sandbox::Container],
        false => vec![Sandbox::Process, Sandbox::Isolated, Sandbox::Container],
    };
    options
}
