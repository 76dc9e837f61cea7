//! The rendezvous server: one port for ranks and the relay's halves, and one that sends a client the address it is seen
//! from.
//!
//! A connection is a task, not a thread. It has one deadline to show a key and a group, so silent and malformed clients
//! cost little and only for a short time.

mod session;

use std::collections::HashMap;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dayfly_fabric::tls::{Identity, server_config_for_all};
use dayfly_lease::admission::{Admission, Place, place_of};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::PublicKey;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

pub use crate::groups::GroupSummary;
use crate::groups::{ConnectionId, Delivery, Groups};
use crate::keys;
use crate::messages::{probe_bytes, to_frame};
use crate::relay::Relay;
use session::handle_connection;

/// Most unauthenticated connections from one address: a quarter of all, and at most the ranks of one group, which may
/// arrive at once.
const MAX_UNAUTHENTICATED_OF_ONE: usize = 4_096;
/// Pause after a failed `accept`, for example for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Configuration of a server.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// Addresses for ranks; port 0 selects any free port.
    pub listen: Vec<SocketAddr>,
    /// Seed of its key, which ranks may pin; `None` for a random key.
    pub seed: Option<[u8; 32]>,
    /// A rank that is silent for this long is lost.
    pub heartbeat: Duration,
    /// Time limit of a client's authentication.
    pub patience: Duration,
    /// Whether it relays between pairs that cannot connect otherwise.
    pub relay: bool,
    /// Most connections; further ones wait in the kernel's queue.
    pub max_connections: usize,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
            seed: None,
            heartbeat: Duration::from_secs(5),
            patience: Duration::from_secs(5),
            relay: true,
            max_connections: 100_000,
        }
    }
}

/// The place of an unauthenticated connection.
type Unauthenticated = Place<IpAddr>;

/// The groups, and the mailbox of each rank. One lock covers both, so messages arrive in the order of the events.
#[derive(Default)]
struct Registry {
    groups: Groups,
    mailboxes: HashMap<ConnectionId, mpsc::UnboundedSender<Arc<[u8]>>>,
}

impl Registry {
    /// Sends messages. A mailbox holds at most one table and one loss for each rank, so it needs no other bound.
    fn deliver(&mut self, deliveries: Vec<Delivery>) {
        for delivery in deliveries {
            let frame: Arc<[u8]> = to_frame(&delivery.message).into();
            for conn in delivery.to {
                if let Some(mailbox) = self.mailboxes.get(&conn) {
                    // A closed mailbox belongs to a rank that is about to be lost.
                    let _ = mailbox.send(frame.clone());
                }
            }
        }
    }
}

struct Shared {
    registry: Mutex<Registry>,
    connections: AtomicU64,
    acceptor: TlsAcceptor,
    options: ServeOptions,
    relay: Arc<Relay>,
    room: Arc<Semaphore>,
    /// Unauthenticated connections, by address.
    unauthenticated: Admission<IpAddr>,
}

impl Shared {
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Describes the groups of a server.
#[derive(Clone)]
pub struct GroupList(Arc<Shared>);

impl GroupList {
    /// Describes groups whose names begin so, in the order of their names; at most `most`.
    pub fn groups(&self, prefix: &str, most: usize) -> Vec<GroupSummary> {
        self.0.registry().groups.list(prefix, most)
    }
}

/// Bound sockets and a key: a server before it runs.
pub struct BoundServer {
    shared: Arc<Shared>,
    key: PublicKey,
    /// Each with the probe listener beside it.
    listeners: Vec<(TcpListener, TcpListener)>,
}

async fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        let code = match error.kind() {
            std::io::ErrorKind::AddrInUse => Code::AddressInUse,
            _ => Code::InvalidRequest,
        };
        Failure::new(code, format!("the rendezvous cannot listen at {address}: {error}"))
    })
}

impl BoundServer {
    /// Binds all sockets.
    pub async fn new(options: ServeOptions) -> Result<Self, Failure> {
        let identity = match options.seed {
            Some(seed) => keys::identity_from(seed),
            None => keys::new_identity()?,
        };
        let Identity { public: key, .. } = identity;
        let tls = server_config_for_all(&identity)
            .map_err(|error| Failure::new(Code::Internal, format!("the key of the rendezvous is invalid: {error}")))?;
        let mut listeners = Vec::new();
        for address in &options.listen {
            let probe = SocketAddr::new(address.ip(), 0);
            listeners.push((listen(*address).await?, listen(probe).await?));
        }
        let shared = Shared {
            registry: Mutex::default(),
            connections: AtomicU64::new(0),
            acceptor: TlsAcceptor::from(tls),
            relay: Arc::new(Relay::new(options.relay)?),
            room: Arc::new(Semaphore::new(options.max_connections.min(Semaphore::MAX_PERMITS))),
            unauthenticated: Admission::new(
                (options.max_connections * 3).div_ceil(4),
                options.max_connections.div_ceil(4).min(MAX_UNAUTHENTICATED_OF_ONE),
            ),
            options,
        };
        Ok(Self {
            shared: Arc::new(shared),
            key,
            listeners,
        })
    }

    /// A view of the server's groups.
    pub fn groups(&self) -> GroupList {
        GroupList(Arc::clone(&self.shared))
    }

    /// The public key that ranks may pin.
    pub fn key(&self) -> PublicKey {
        self.key
    }

    /// Addresses for ranks, in the order of the options.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let addresses = self.listeners.iter().filter_map(|(ranks, _)| ranks.local_addr().ok());
        addresses.collect()
    }

    /// Serves until `stop` completes; then every connection ends.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        // Dropping the sender notifies its receivers.
        let (running, ended) = watch::channel(());
        for (ranks, probe) in self.listeners {
            let port = probe.local_addr().map_or(0, |address| address.port());
            tokio::spawn(accept_ranks(self.shared.clone(), ranks, port, ended.clone()));
            tokio::spawn(accept_probes(self.shared.clone(), probe, ended.clone()));
        }
        drop(ended);
        stop.await;
        drop(running);
    }
}

/// Accepts the next connection; `None` at the end.
async fn next_caller(listener: &TcpListener, ended: &mut watch::Receiver<()>) -> Option<(TcpStream, SocketAddr)> {
    loop {
        tokio::select! {
            _ = ended.changed() => return None,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => return Some(accepted),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

async fn accept_ranks(shared: Arc<Shared>, listener: TcpListener, probe: u16, mut ended: watch::Receiver<()>) {
    loop {
        let Ok(room) = shared.room.clone().acquire_owned().await else {
            return;
        };
        let Some((socket, from)) = next_caller(&listener, &mut ended).await else {
            return;
        };
        let Some(unauthenticated) = shared.unauthenticated.admit(place_of(from.ip())) else {
            continue;
        };
        let shared = shared.clone();
        let mut ended = ended.clone();
        tokio::spawn(async move {
            let _room = room;
            tokio::select! {
                _ = ended.changed() => {}
                result = handle_connection(&shared, socket, from, unauthenticated, probe) => if let Err(failure) = result {
                    tracing::debug!(%from, %failure, "a connection was refused");
                },
            }
        });
    }
}

async fn accept_probes(shared: Arc<Shared>, listener: TcpListener, mut ended: watch::Receiver<()>) {
    while let Some((mut socket, from)) = next_caller(&listener, &mut ended).await {
        let Some(unauthenticated) = shared.unauthenticated.admit(place_of(from.ip())) else {
            continue;
        };
        let patience = shared.options.patience;
        tokio::spawn(async move {
            let _unknown = unauthenticated;
            // The bytes fit in the socket's buffer, so this does not block; then the client has time to close first.
            if socket.write_all(&probe_bytes(canonical(from))).await.is_ok() {
                let _ = timeout(patience, socket.read(&mut [0; 1])).await;
            }
        });
    }
}

/// A server with its own thread, for programs without a runtime. Dropping it ends it.
pub struct Server {
    shared: Arc<Shared>,
    key: PublicKey,
    addresses: Vec<SocketAddr>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    /// Binds and starts to serve.
    pub fn start(options: ServeOptions) -> Result<Self, Failure> {
        let (tell, bound) = std::sync::mpsc::channel();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let failed = |error| Failure::new(Code::Internal, format!("the rendezvous cannot start: {error}"));
        let serve = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(error) => return drop(tell.send(Err(failed(error)))),
            };
            runtime.block_on(async {
                match BoundServer::new(options).await {
                    Ok(bound) => {
                        let _ = tell.send(Ok((bound.shared.clone(), bound.key(), bound.addresses())));
                        bound.run(async { drop(stopped.await) }).await;
                    }
                    Err(failure) => drop(tell.send(Err(failure))),
                }
            });
        };
        let thread = std::thread::Builder::new()
            .name("rendezvous".into())
            .spawn(serve)
            .map_err(failed)?;
        let bound = bound.recv();
        let (shared, key, addresses) =
            bound.map_err(|_| Failure::new(Code::Internal, "the rendezvous ended at once"))??;
        Ok(Self {
            shared,
            key,
            addresses,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// The public key that ranks may pin.
    pub fn key(&self) -> PublicKey {
        self.key
    }

    /// Addresses for ranks, in the order of the options.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Number of groups and of ranks.
    pub fn counts(&self) -> (usize, usize) {
        self.shared.registry().groups.counts()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Serves until SIGINT or SIGTERM; `ready` receives the key and the addresses. Implements `dayfly rendezvous`.
pub fn serve(options: ServeOptions, ready: impl FnOnce(PublicKey, &[SocketAddr])) -> Result<(), Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let failed = |error| Failure::new(Code::Internal, format!("the rendezvous cannot start: {error}"));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let bound = BoundServer::new(options).await?;
        ready(bound.key(), &bound.addresses());
        bound
            .run(async move {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
            })
            .await;
        Ok(())
    })
}
