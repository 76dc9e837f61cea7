//! Accepts connections, reads exactly one hello from each, verifies it and passes the connection on.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_fabric::{descriptors, tls};
use dayfly_lease::admission::{Admission, Queue, place_of};
use dayfly_lease::{TokenError, token};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::hello::{HELLO_BYTES, Hello, Verdict, purpose};
use dayfly_protocol::ids::{PublicKey, TenantId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use zerocopy::{FromBytes, IntoBytes};

use crate::node::Node;
use crate::{NodeError, Options, channel, clock, control};

/// Limit for a complete hello.
const HELLO_DEADLINE: Duration = Duration::from_secs(1);
/// Limit for the peer to take a verdict.
const VERDICT_DEADLINE: Duration = Duration::from_secs(1);
/// Limit for a TLS handshake.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(5);
/// Most connections without a verified hello, by TCP and by the Unix socket. One address or one user may have half of
/// them. Each costs a task and a hello's bytes.
const MAX_UNVERIFIED: usize = 1024;
/// A connection without a free place waits for 2 s and checks this often, if no more wait than there are places.
const QUEUE_CHECKS: u32 = 100;
const QUEUE_PAUSE: Duration = Duration::from_millis(20);
/// Most open control connections. One tenant may have three quarters of them.
const MAX_CONTROL: usize = 4096;

/// Silence after which the kernel probes a peer, and the interval of its three probes.
const KEEPALIVE: Duration = Duration::from_secs(3);

/// How long an address may stay in use, and the interval of checks.
const IN_USE_LIMIT: Duration = Duration::from_secs(1);
const IN_USE_INTERVAL: Duration = Duration::from_millis(20);

/// Longest path in the kernel's `sockaddr_un`, without the final zero byte.
const MAX_PATH_BYTES: usize = 107;

#[derive(Debug)]
pub enum Connection {
    Unix(UnixStream),
    Tcp(TcpStream, SocketAddr),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection {
    /// Fills `bytes`. Returns an error if the connection ends before.
    pub async fn read_exact(&mut self, bytes: &mut [u8]) -> std::io::Result<()> {
        match self {
            Self::Unix(stream) => stream.read_exact(bytes).await.map(drop),
            Self::Tcp(stream, _) => stream.read_exact(bytes).await.map(drop),
            Self::Tls(stream) => stream.read_exact(bytes).await.map(drop),
        }
    }

    /// Reads some bytes. Returns their number, 0 at the end.
    pub async fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(bytes).await,
            Self::Tcp(stream, _) => stream.read(bytes).await,
            Self::Tls(stream) => stream.read(bytes).await,
        }
    }

    /// Writes and flushes all bytes.
    pub async fn write_all(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Self::Unix(stream) => stream.write_all(bytes).await,
            Self::Tcp(stream, _) => stream.write_all(bytes).await,
            Self::Tls(stream) => {
                stream.write_all(bytes).await?;
                stream.flush().await
            }
        }
    }

    /// Sends a verdict. Returns an error if the peer does not take it in time.
    pub async fn send_verdict(&mut self, verdict: &Verdict) -> std::io::Result<()> {
        tokio::time::timeout(VERDICT_DEADLINE, self.write_all(verdict.as_bytes()))
            .await
            .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
    }

    /// Continues under TLS with the holder of `holder`'s private key.
    pub async fn encrypt(self, node: &Node, holder: &PublicKey) -> std::io::Result<Self> {
        let Self::Tcp(stream, _) = self else {
            return Err(std::io::ErrorKind::Unsupported.into());
        };
        let identity = tls::Identity {
            pkcs8: node.key.to_pkcs8(),
            public: node.key.public(),
        };
        let config = tls::server_config(&identity, holder).map_err(std::io::Error::other)?;
        let handshake = TlsAcceptor::from(config).accept(stream);
        let stream = tokio::time::timeout(HANDSHAKE_DEADLINE, handshake)
            .await
            .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))?;
        Ok(Self::Tls(Box::new(stream)))
    }

    /// Whether its bytes may be read or changed on their way.
    pub fn is_exposed(&self) -> bool {
        matches!(self, Self::Tcp(_, peer) if !peer.ip().is_loopback())
    }

    /// Sends a verdict with a descriptor; only for the Unix socket. It is the first message on the socket, so there is
    /// room for it.
    pub fn send_verdict_with(&self, verdict: &Verdict, file: std::os::fd::BorrowedFd<'_>) -> std::io::Result<()> {
        let Self::Unix(stream) = self else {
            return Err(std::io::ErrorKind::Unsupported.into());
        };
        match descriptors::send(stream, verdict.as_bytes(), &[file])? {
            sent if sent == verdict.as_bytes().len() => Ok(()),
            _ => Err(std::io::ErrorKind::WriteZero.into()),
        }
    }
}

/// Listening sockets.
#[derive(Debug)]
pub struct Sockets {
    unix: UnixListener,
    tcp: Option<TcpListener>,
}

/// Listens on the addresses in the options. Waits a moment for an address in use: a killed node may have left a
/// process that was being started, which holds its sockets until it notices.
pub async fn bind(options: &Options) -> Result<Sockets, NodeError> {
    let until = Instant::now() + IN_USE_LIMIT;
    loop {
        match try_bind(options).await {
            Err(NodeError::AddressInUse(_)) if Instant::now() < until => tokio::time::sleep(IN_USE_INTERVAL).await,
            bound => return bound,
        }
    }
}

async fn try_bind(options: &Options) -> Result<Sockets, NodeError> {
    let path = options.unix_path();
    let bytes = path.as_os_str().len();
    if bytes > MAX_PATH_BYTES {
        return Err(NodeError::LongPath { path, bytes });
    }
    remove_stale(&path)?;
    let unix = UnixListener::bind(&path).map_err(|error| refused(format!("`{}`", path.display()), error))?;
    let tcp = match options.listen_tcp {
        Some(address) => Some(
            TcpListener::bind(address)
                .await
                .map_err(|error| refused(address.to_string(), error))?,
        ),
        None => None,
    };
    Ok(Sockets { unix, tcp })
}

fn refused(address: String, error: std::io::Error) -> NodeError {
    if error.kind() == std::io::ErrorKind::AddrInUse {
        NodeError::AddressInUse(address)
    } else {
        NodeError::Listen { address, error }
    }
}

/// Removes the socket of a dead node, but not of a living one.
fn remove_stale(path: &Path) -> Result<(), NodeError> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if !is_socket {
        return Ok(());
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(NodeError::AddressInUse(format!("`{}`", path.display()))),
        Err(_) => std::fs::remove_file(path).map_err(|error| NodeError::State {
            path: path.into(),
            error,
        }),
    }
}

impl Sockets {
    /// The TCP address, if it listens there.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().and_then(|tcp| tcp.local_addr().ok())
    }

    /// Accepts until the node closes.
    pub fn serve(self, node: &Arc<Node>) {
        let gate = Gate::new(MAX_UNVERIFIED, MAX_CONTROL);
        // A flood of the port does not exclude this machine's clients.
        let (unix, mine, its_gate) = (self.unix, node.clone(), gate.with_own_bound(MAX_UNVERIFIED));
        node.tasks
            .spawn_until_closing(async move { its_gate.accept_unix(&mine, unix).await });
        if let Some(tcp) = self.tcp {
            let mine = node.clone();
            node.tasks.spawn_until_closing(async move {
                loop {
                    match tcp.accept().await {
                        Ok((stream, peer)) => {
                            set_socket_options(&stream);
                            let origin = PeerOrigin::Address(place_of(peer.ip()));
                            gate.admit(&mine, origin, Connection::Tcp(stream, peer));
                        }
                        Err(error) => pause_after(error).await,
                    }
                }
            });
        }
    }
}

/// Sends bytes without delay, and notices within seconds when the peer's host is gone.
fn set_socket_options(stream: &TcpStream) {
    use rustix::net::sockopt;
    let _ = stream.set_nodelay(true);
    // A kernel without these options still serves.
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, KEEPALIVE);
    let _ = sockopt::set_tcp_keepintvl(stream, KEEPALIVE);
    let _ = sockopt::set_tcp_keepcnt(stream, 3);
}

/// Pauses after a failed accept: without descriptors, trying again at once would only occupy a core.
async fn pause_after(error: std::io::Error) {
    tracing::warn!(%error, "a connection could not be accepted; raise `ulimit -n`?");
    tokio::time::sleep(Duration::from_millis(100)).await;
}

/// Bounds of connections before and after their verdict.
pub struct Gate {
    unverified: Queue<PeerOrigin>,
    control: Arc<Admission<TenantId>>,
}

/// Origin of a connection before its hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum PeerOrigin {
    Address(IpAddr),
    User(u32),
}

impl Gate {
    pub fn new(max_unverified: usize, max_control: usize) -> Arc<Self> {
        let control = Admission::new(max_control, (max_control * 3).div_ceil(4));
        Self::with_control(max_unverified, Arc::new(control))
    }

    /// Another gate with its own bound before the verdict, and a shared one after it.
    fn with_own_bound(&self, max_unverified: usize) -> Arc<Self> {
        Self::with_control(max_unverified, Arc::clone(&self.control))
    }

    fn with_control(max_unverified: usize, control: Arc<Admission<TenantId>>) -> Arc<Self> {
        let places = || Admission::new(max_unverified, max_unverified.div_ceil(2));
        let unverified = Queue::new(places(), places());
        Arc::new(Self { unverified, control })
    }

    /// Admits connections to a Unix socket, without end.
    pub async fn accept_unix(self: Arc<Self>, node: &Arc<Node>, listener: UnixListener) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    // A peer that is gone already has no credentials.
                    let Ok(peer) = stream.peer_cred() else { continue };
                    self.admit(node, PeerOrigin::User(peer.uid()), Connection::Unix(stream));
                }
                Err(error) => pause_after(error).await,
            }
        }
    }

    fn admit(self: &Arc<Self>, node: &Arc<Node>, origin: PeerOrigin, connection: Connection) {
        let (node, gate) = (node.clone(), self.clone());
        node.clone().tasks.spawn_until_closing(async move {
            let pause = || tokio::time::sleep(QUEUE_PAUSE);
            let Some(place) = gate.unverified.enter(origin, QUEUE_CHECKS, pause).await else {
                return;
            };
            let mut connection = connection;
            let mut bytes = [0; HELLO_BYTES];
            match tokio::time::timeout(HELLO_DEADLINE, connection.read_exact(&mut bytes)).await {
                Ok(Ok(())) => {}
                _ => return,
            }
            let hello = match verify_hello(&node, &bytes) {
                Ok(hello) => hello,
                Err(failure) => {
                    let _ = connection.send_verdict(&token::refuse(&failure)).await;
                    return;
                }
            };
            drop(place);
            if hello.purpose == purpose::CHANNEL {
                channel::open(&node, &hello, connection).await;
                return;
            }
            match gate.control.admit(hello.token.tenant) {
                Some(_place) => control::serve(&node, &hello, connection).await,
                None => {
                    let text =
                        "too many control connections are open, of this tenant or of all; close some or try later";
                    let _ = connection
                        .send_verdict(&token::refuse(&Failure::new(Code::NoCapacity, text)))
                        .await;
                }
            }
        });
    }
}

/// Verifies a hello. Returns an error if this node may not serve it.
fn verify_hello(node: &Node, bytes: &[u8; HELLO_BYTES]) -> Result<Hello, Failure> {
    let mut hello = Hello::read_from_bytes(bytes).map_err(|_| {
        Failure::new(
            Code::ProtocolViolation,
            "malformed hello; the peer is not a Dayfly client",
        )
    })?;
    let lease = node.live_or_recent_lease(&hello.token).ok();
    let is_verified = lease.as_ref().is_some_and(|lease| lease.is_verified(&hello.token));
    let trusted = node.trusted.all();
    let now_ms = clock::wall_ms();
    let tolerance_ms = node.options.skew_tolerance.as_millis() as u64;
    // Verify without the lock: a signature takes as long as some thousand look-ups.
    let verified = token::check_hello(&hello, is_verified, now_ms, tolerance_ms, &node.address.id, &trusted);
    match verified {
        // The manager sends its keys when the node registers.
        Err(TokenError::UnknownIssuer { .. }) if node.is_waiting_for_manager() => {
            return Err(Failure::new(
                Code::Unreachable,
                "the node has just started and has not reached its manager yet; try again",
            ));
        }
        verified => verified?,
    }
    node.accept_hello(&hello, now_ms)?;
    if let Some(lease) = lease {
        if !is_verified {
            lease.set_verified_token(&hello.token);
        }
        if hello.purpose == purpose::CHANNEL {
            // The holder of a part counts workers from the part's first one.
            let part = lease.part_of(&hello.token.holder)?;
            hello.worker.set(hello.worker.get().saturating_add(part.workers.start));
        }
    }
    Ok(hello)
}
