//! The rendezvous server: one port for ranks and the relay's halves, and one that sends a client the address it is seen
//! from.
//!
//! A connection is a task, not a thread. It has one deadline to show a key and a group, so silent and malformed clients
//! cost little and only for a short time.

use std::collections::HashMap;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dayfly_fabric::tls::{Identity, presented, server_config_for_all};
use dayfly_lease::admission::{Admission, Place, place_of};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::PublicKey;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsAcceptor;

use crate::keys;
use crate::messages::{FromRank, Join, MAX_FROM_RANK, RELAY_MAGIC, Seat, ToRank, probe_bytes, take_frame, to_frame};
use crate::relay::Relay;
use crate::state::{Conn, Effect, State};

/// First byte of a TLS handshake.
const TLS_FIRST: u8 = 0x16;
const RELAY_FIRST: u8 = RELAY_MAGIC[0];
/// Most unauthenticated connections from one address: a quarter of all, and at most the ranks of one group, which may
/// arrive at once.
const MAX_UNKNOWN_OF_ONE: usize = 4_096;
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
    pub most_connections: usize,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
            seed: None,
            heartbeat: Duration::from_secs(5),
            patience: Duration::from_secs(5),
            relay: true,
            most_connections: 100_000,
        }
    }
}

/// The place of an unauthenticated connection.
type Unknown = Place<IpAddr>;

/// The state, and the mailbox of each rank. One lock covers both, so messages arrive in the order of the events.
#[derive(Default)]
struct Desk {
    state: State,
    mailboxes: HashMap<Conn, mpsc::UnboundedSender<Arc<[u8]>>>,
}

impl Desk {
    /// Sends messages. A mailbox holds at most one table and one loss for each rank, so it needs no other bound.
    fn deliver(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            let frame: Arc<[u8]> = to_frame(&effect.say).into();
            for conn in effect.to {
                if let Some(mailbox) = self.mailboxes.get(&conn) {
                    // A closed mailbox belongs to a rank that is about to be lost.
                    let _ = mailbox.send(frame.clone());
                }
            }
        }
    }
}

struct Shared {
    desk: Mutex<Desk>,
    conns: AtomicU64,
    acceptor: TlsAcceptor,
    options: ServeOptions,
    relay: Arc<Relay>,
    room: Arc<Semaphore>,
    /// Unauthenticated connections, by address.
    unknown: Admission<IpAddr>,
}

impl Shared {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bound sockets and a key: a server before it runs.
pub struct Bound {
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

impl Bound {
    /// Binds all sockets.
    pub async fn new(options: ServeOptions) -> Result<Self, Failure> {
        let identity = match options.seed {
            Some(seed) => keys::identity_from(seed),
            None => keys::new_identity()?,
        };
        let Identity { public: key, .. } = identity;
        let tls = server_config_for_all(&identity)
            .map_err(|error| Failure::new(Code::Internal, format!("the rendezvous' key is of no use: {error}")))?;
        let mut listeners = Vec::new();
        for address in &options.listen {
            let probe = SocketAddr::new(address.ip(), 0);
            listeners.push((listen(*address).await?, listen(probe).await?));
        }
        let shared = Shared {
            desk: Mutex::default(),
            conns: AtomicU64::new(0),
            acceptor: TlsAcceptor::from(tls),
            relay: Arc::new(Relay::new(options.relay)?),
            room: Arc::new(Semaphore::new(options.most_connections.min(Semaphore::MAX_PERMITS))),
            unknown: Admission::new(
                (options.most_connections * 3).div_ceil(4),
                options.most_connections.div_ceil(4).min(MAX_UNKNOWN_OF_ONE),
            ),
            options,
        };
        Ok(Self {
            shared: Arc::new(shared),
            key,
            listeners,
        })
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

async fn accept_ranks(shared: Arc<Shared>, listener: TcpListener, probe: u16, mut ended: watch::Receiver<()>) {
    loop {
        let Ok(room) = shared.room.clone().acquire_owned().await else {
            return;
        };
        let Some((socket, from)) = next_caller(&listener, &mut ended).await else {
            return;
        };
        let Some(unknown) = shared.unknown.admit(place_of(from.ip())) else {
            continue;
        };
        let shared = shared.clone();
        let mut ended = ended.clone();
        tokio::spawn(async move {
            let _room = room;
            tokio::select! {
                _ = ended.changed() => {}
                result = meet(&shared, socket, from, unknown, probe) => if let Err(failure) = result {
                    tracing::debug!(%from, %failure, "a caller was turned away");
                },
            }
        });
    }
}

async fn accept_probes(shared: Arc<Shared>, listener: TcpListener, mut ended: watch::Receiver<()>) {
    while let Some((mut socket, from)) = next_caller(&listener, &mut ended).await {
        let Some(unknown) = shared.unknown.admit(place_of(from.ip())) else {
            continue;
        };
        let patience = shared.options.patience;
        tokio::spawn(async move {
            let _unknown = unknown;
            // The bytes fit in the socket's buffer, so this does not block; then the client has time to close first.
            if socket.write_all(&probe_bytes(canonical(from))).await.is_ok() {
                let _ = timeout(patience, socket.read(&mut [0; 1])).await;
            }
        });
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn late() -> Failure {
    Failure::new(Code::TimedOut, "the caller did not say in time who it is")
}

fn broken(error: std::io::Error) -> Failure {
    Failure::new(Code::Unreachable, format!("its connection broke: {error}"))
}

/// Determines from the first bytes what a client wants.
async fn meet(
    shared: &Arc<Shared>,
    socket: TcpStream,
    from: SocketAddr,
    unknown: Unknown,
    probe: u16,
) -> Result<(), Failure> {
    let deadline = Instant::now() + shared.options.patience;
    socket.set_nodelay(true).map_err(broken)?;
    let mut first = [0];
    let peeked = timeout_at(deadline, socket.peek(&mut first))
        .await
        .map_err(|_| late())?;
    match (peeked.map_err(broken)?, first[0]) {
        (0, _) => Ok(()),
        (_, TLS_FIRST) => attend(shared, socket, canonical(from), unknown, probe, deadline).await,
        (_, RELAY_FIRST) => shared.relay.serve(socket, deadline, unknown).await,
        _ => Err(Failure::new(
            Code::ProtocolViolation,
            "it speaks neither TLS nor to the relay",
        )),
    }
}

/// Received bytes of a rank. Reading is cancel-safe.
struct Reader<R> {
    from: R,
    received: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// The next message; `None` at the end.
    async fn next<T: for<'a> Deserialize<'a>>(&mut self) -> Result<Option<T>, Failure> {
        loop {
            if let Some(message) = take_frame(&mut self.received, MAX_FROM_RANK)? {
                return Ok(Some(message));
            }
            match self.from.read_buf(&mut self.received).await {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                // A killed process sends no TLS farewell.
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
                Err(error) => return Err(broken(error)),
            }
        }
    }
}

async fn attend(
    shared: &Arc<Shared>,
    socket: TcpStream,
    from: SocketAddr,
    unknown: Unknown,
    probe: u16,
    deadline: Instant,
) -> Result<(), Failure> {
    let accepted = timeout_at(deadline, shared.acceptor.accept(socket)).await;
    let stream = accepted.map_err(|_| late())?.map_err(broken)?;
    let Some(verifier) = presented(stream.get_ref().1.peer_certificates()) else {
        return Err(Failure::new(Code::Unauthorized, "it showed no key"));
    };
    let (reading, mut writing) = tokio::io::split(stream);
    let mut reader = Reader {
        from: reading,
        received: Vec::new(),
    };
    let first = timeout_at(deadline, reader.next()).await.map_err(|_| late())??;
    let joined = match first {
        Some(FromRank::Join(join)) => Attendance::begin(shared, verifier, &join),
        Some(_) => Err(Failure::new(Code::ProtocolViolation, "the first word is to be `join`")),
        None => return Ok(()),
    };
    drop(unknown);
    let heartbeat = shared.options.heartbeat;
    let result = match joined {
        Ok((mut attendance, seat)) => {
            let welcome = ToRank::Seat {
                seat,
                observed: from,
                probe,
                heartbeat_ms: u64::try_from(heartbeat.as_millis()).unwrap_or(u64::MAX),
            };
            let result = match timeout(heartbeat, put(&mut writing, &to_frame(&welcome))).await {
                Ok(Ok(())) => attendance.serve(&mut reader, &mut writing).await,
                Ok(Err(error)) => Err(broken(error)),
                Err(_) => Err(silent(heartbeat)),
            };
            attendance.end(&result);
            result
        }
        Err(failure) => Err(failure),
    };
    if let Err(failure) = &result {
        // The rank may not receive it.
        let refused = to_frame(&ToRank::Refused {
            failure: failure.clone(),
        });
        let _ = timeout(heartbeat, async {
            writing.write_all(&refused).await?;
            writing.shutdown().await
        })
        .await;
    }
    result
}

/// Writes all bytes, including those that TLS holds back when the socket is full.
async fn put(writing: &mut (impl AsyncWrite + Unpin), frame: &[u8]) -> std::io::Result<()> {
    writing.write_all(frame).await?;
    writing.flush().await
}

fn silent(heartbeat: Duration) -> Failure {
    Failure::new(
        Code::RankLost,
        format!(
            "it was silent for {} ms: its host hangs or is cut off",
            heartbeat.as_millis()
        ),
    )
}

/// A rank's connection while it belongs to a group.
struct Attendance {
    shared: Arc<Shared>,
    conn: Conn,
    mailbox: mpsc::UnboundedReceiver<Arc<[u8]>>,
    ended: bool,
}

impl Attendance {
    fn begin(shared: &Arc<Shared>, verifier: PublicKey, join: &Join) -> Result<(Self, Seat), Failure> {
        let conn = shared.conns.fetch_add(1, Ordering::Relaxed);
        let nonce = keys::random()?;
        let (sender, mailbox) = mpsc::unbounded_channel();
        let mut desk = shared.desk();
        let seat = desk.state.join(conn, verifier, join, nonce)?;
        desk.mailboxes.insert(conn, sender);
        drop(desk);
        let attendance = Self {
            shared: shared.clone(),
            conn,
            mailbox,
            ended: false,
        };
        Ok((attendance, seat))
    }

    /// Serves until the rank leaves, its connection ends, or it is silent.
    async fn serve<R, W>(&mut self, reader: &mut Reader<R>, writing: &mut W) -> Result<(), Failure>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let heartbeat = self.shared.options.heartbeat;
        let mut heard = Instant::now();
        loop {
            let frame: Arc<[u8]> = tokio::select! {
                message = timeout_at(heard + heartbeat, reader.next()) => {
                    heard = Instant::now();
                    match message.map_err(|_| silent(heartbeat))?? {
                        Some(message) => match self.answer(message)? {
                            Some(answer) => to_frame(&answer).into(),
                            None if self.ended => return Ok(()),
                            None => continue,
                        },
                        None => return Err(Failure::new(Code::RankLost, "its process ended, or its connection was cut")),
                    }
                }
                frame = self.mailbox.recv() => match frame {
                    Some(frame) => frame,
                    None => return Ok(()),
                },
            };
            let begun = Instant::now();
            match timeout(heartbeat, put(writing, &frame)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return self.hear_last_word(reader, error).await,
                Err(_) => return Err(silent(heartbeat)),
            }
            // Nothing was read during the write.
            heard += begun.elapsed();
        }
    }

    /// A rank that takes no more bytes may have announced that it leaves.
    async fn hear_last_word<R>(&mut self, reader: &mut Reader<R>, error: std::io::Error) -> Result<(), Failure>
    where
        R: AsyncRead + Unpin,
    {
        let until = Instant::now() + self.shared.options.heartbeat;
        while let Ok(Ok(Some(message))) = timeout_at(until, reader.next()).await {
            if matches!(message, FromRank::Leave { .. }) {
                return self.answer(message).map(drop);
            }
        }
        Err(broken(error))
    }

    fn answer(&mut self, message: FromRank) -> Result<Option<ToRank>, Failure> {
        let mut desk = self.shared.desk();
        match message {
            FromRank::Join(_) => Err(Failure::new(Code::ProtocolViolation, "it has joined already")),
            FromRank::Card(card) => {
                let effects = desk.state.card(self.conn, card)?;
                desk.deliver(effects);
                Ok(None)
            }
            FromRank::Ping => {
                let (missing, missing_count) = desk.state.missing(self.conn)?;
                Ok(Some(ToRank::Pong { missing, missing_count }))
            }
            FromRank::Call { to } => {
                let effects = desk.state.call(self.conn, to)?;
                desk.deliver(effects);
                Ok(None)
            }
            FromRank::Relay { to } => {
                let (nonce, from, to) = desk.state.pair(self.conn, to)?;
                let ticket = self.shared.relay.ticket(nonce, from, to).map(hex::encode);
                Ok(Some(ToRank::Ticket { to, ticket }))
            }
            FromRank::Leave { reason } => {
                let effects = desk.state.leave(self.conn, reason.as_deref());
                desk.mailboxes.remove(&self.conn);
                desk.deliver(effects);
                self.ended = true;
                Ok(None)
            }
        }
    }

    fn end(&mut self, result: &Result<(), Failure>) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let reason = match result {
            Ok(()) => "its connection to the rendezvous ended",
            Err(failure) => &failure.message,
        };
        let mut desk = self.shared.desk();
        desk.mailboxes.remove(&self.conn);
        let effects = desk.state.gone(self.conn, reason);
        desk.deliver(effects);
    }
}

impl Drop for Attendance {
    /// The task may be dropped at any time.
    fn drop(&mut self) {
        self.end(&Ok(()));
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
                match Bound::new(options).await {
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
        self.shared.desk().state.counts()
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
        let bound = Bound::new(options).await?;
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
