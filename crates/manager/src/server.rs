//! Listening: TLS, HTTP/1.1, and an end to both; and without TLS for programs of this machine.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use dayfly_lease::admission::{Admission, Place, Queue, place_of};
use dayfly_protocol::local_socket;
use dayfly_sandbox::descriptors;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::connection::{ConnectionService, ConnectionState, Origin};
use crate::control::stopped;
use crate::error::Error;

/// Connections at once, as far as this process may have descriptors: one each.
const CONNECTIONS: usize = 65_536;
/// Descriptors that are for other things than connections.
const KEPT_DESCRIPTORS: usize = 256;
/// Connections from this machine, which have places of their own: whoever floods the port does not keep its administrator out.
const LOCAL_CONNECTIONS: usize = 1_024;
/// Connections of groups' ranks, which have places of their own too.
const RENDEZVOUS_CONNECTIONS: usize = 100_000;
/// Connections from one origin that have shown no token: a quarter of all there is room for, and no more than this.
const MAX_UNKNOWN_OF_ONE: usize = 1_024;
/// A connection that finds all of these taken waits 2 s for a place, with so many looks and such pauses. At most an eighth of all
/// there is room for waits, and of one origin a sixteenth and no more than this.
const QUEUE_LOOKS: u32 = 100;
const QUEUE_PAUSE: Duration = Duration::from_millis(20);
const MAX_WAITING_OF_ONE: usize = 1_024;
/// A peer that has not finished its TLS handshake by then is not worth a descriptor.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(5);
/// A head that takes longer is an attack or a dead peer; also how long a connection may idle between requests. One without a
/// token has less; see [`crate::connection`].
const HEAD_DEADLINE: Duration = Duration::from_secs(75);
/// Requests that run when the manager stops get this long.
const DRAIN_DEADLINE: Duration = Duration::from_secs(2);

/// Connections that wait to be accepted; the kernel's own bound is lower on most machines.
const BACKLOG: u32 = 1_024;

/// An address that is taken. Whoever connects is refused, and does not wait, until it is listened on.
pub struct Taken {
    address: SocketAddr,
    socket: TcpSocket,
}

/// Takes the address.
pub fn take(address: SocketAddr) -> Result<Taken, Error> {
    let taken = || {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        // A manager that starts anew need not wait for the connections of the one before.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        Ok(socket)
    };
    let socket = taken().map_err(|source| cannot_listen(address, source))?;
    Ok(Taken { address, socket })
}

fn cannot_listen(address: SocketAddr, source: std::io::Error) -> Error {
    match source.kind() {
        ErrorKind::AddrInUse => Error::AddressInUse(address),
        _ => Error::Listen { address, source },
    }
}

impl Taken {
    /// With the port that it got.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// From now on connections are taken.
    pub fn listen(self) -> Result<TcpListener, Error> {
        let Self { address, socket } = self;
        socket.listen(BACKLOG).map_err(|source| cannot_listen(address, source))
    }
}

/// How many connections of each kind there is room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// From everywhere.
    api: usize,
    /// From this machine.
    local: usize,
    /// To the rendezvous.
    pub rendezvous: usize,
}

impl Room {
    /// Raises the limit on descriptors as far as it goes, and divides them.
    pub fn take() -> Self {
        Self::of(descriptors::raise_limit())
    }

    fn of(descriptors: usize) -> Self {
        let most = descriptors.saturating_sub(KEPT_DESCRIPTORS);
        let local = (most / 12).clamp(4, LOCAL_CONNECTIONS);
        let rendezvous = (most / 4).clamp(4, RENDEZVOUS_CONNECTIONS);
        let api = most.saturating_sub(local + rendezvous).clamp(4, CONNECTIONS);
        Self { api, local, rendezvous }
    }
}

/// Where a manager is connected to.
pub struct Listeners {
    /// From everywhere, by TLS.
    tcp: TcpListener,
    tls: Arc<ServerConfig>,
    /// From this machine: who connects there asks the kernel whose it is.
    here: Option<UnixListener>,
}

impl Listeners {
    /// A port, and for programs of this machine what is known by it and the certificate authority.
    pub fn new(tcp: TcpListener, tls: Arc<ServerConfig>, ca_pem: &str) -> Self {
        let here = tcp.local_addr().and_then(|address| {
            let name = net::SocketAddr::from_abstract_name(local_socket::name(ca_pem, address.port()))?;
            let listener = net::UnixListener::bind_addr(&name)?;
            listener.set_nonblocking(true)?;
            UnixListener::from_std(listener)
        });
        let here = here.inspect_err(|error| tracing::warn!(%error, "programs of this machine connect by TLS, too"));
        let here = here.ok();
        Self { tcp, tls, here }
    }
}

/// One way in.
enum Listener {
    Tcp(TcpListener, TlsAcceptor),
    Here(UnixListener),
}

/// One that connected.
enum Stream {
    Tcp(TcpStream, TlsAcceptor),
    Here(UnixStream),
}

impl Listener {
    /// The next that connects, and whose places it takes while it is not known; none for those who may always come.
    async fn accept(&self) -> std::io::Result<(Stream, Option<Origin>)> {
        match self {
            Self::Tcp(listener, acceptor) => {
                let (stream, address) = listener.accept().await?;
                let origin = Origin::Address(place_of(address.ip()));
                Ok((Stream::Tcp(stream, acceptor.clone()), Some(origin)))
            }
            Self::Here(listener) => {
                let (stream, _) = listener.accept().await?;
                let user = stream.peer_cred()?.uid();
                let own = rustix::process::geteuid().as_raw();
                Ok((
                    Stream::Here(stream),
                    (user != own && user != 0).then_some(Origin::User(user)),
                ))
            }
        }
    }
}

/// Serves until told to stop, and then until the requests that run are answered.
pub async fn serve(listeners: Listeners, room: Room, router: Router, stopping: watch::Receiver<bool>) {
    let Listeners { tcp, tls, here } = listeners;
    let tcp = Listener::Tcp(tcp, TlsAcceptor::from(tls));
    let by_tcp = welcome(tcp, room.api, router.clone(), stopping.clone());
    let by_socket = async {
        if let Some(here) = here {
            welcome(Listener::Here(here), room.local, router, stopping).await;
        }
    };
    tokio::join!(by_tcp, by_socket);
}

/// Serves whoever comes this way, so many at once.
async fn welcome(listener: Listener, most: usize, router: Router, mut stopping: watch::Receiver<bool>) {
    let room = Arc::new(Semaphore::new(most));
    // Some of the room is for those who are known.
    let unknown = Admission::new((most * 3).div_ceil(4), most.div_ceil(4).min(MAX_UNKNOWN_OF_ONE));
    let waiting = Admission::new(most.div_ceil(8), most.div_ceil(16).min(MAX_WAITING_OF_ONE));
    let queue = Arc::new(Queue::new(unknown, waiting));
    let mut connections = JoinSet::new();
    loop {
        // Full is told by not accepting: the kernel's queue and the peers' deadlines do the rest.
        let accept = async {
            let place = Arc::clone(&room).acquire_owned().await;
            (listener.accept().await, place)
        };
        let (stream, place) = tokio::select! {
            accepted = accept => accepted,
            _ = stopped(&mut stopping) => break,
            Some(_) = connections.join_next() => continue,
        };
        match stream {
            Ok((stream, origin)) => {
                let (router, mut stopping, queue) = (router.clone(), stopping.clone(), Arc::clone(&queue));
                connections.spawn(async move {
                    let pause = || tokio::time::sleep(QUEUE_PAUSE);
                    let unknown = match origin {
                        None => None,
                        Some(origin) => tokio::select! {
                            admitted = queue.enter(origin, QUEUE_LOOKS, pause) => match admitted {
                                // Whoever comes from there has as many connections without a token as they may.
                                None => return,
                                admitted => admitted,
                            },
                            _ = stopped(&mut stopping) => return,
                        },
                    };
                    match stream {
                        Stream::Tcp(stream, acceptor) => encrypted(stream, acceptor, unknown, router, stopping).await,
                        Stream::Here(stream) => connection(stream, unknown, router, stopping).await,
                    }
                    drop(place);
                });
            }
            Err(error) => {
                // Out of descriptors, or the peer is gone already: neither is cured by trying at once.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    let drain = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(DRAIN_DEADLINE, drain).await;
    connections.shutdown().await;
}

async fn encrypted(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    unknown: Option<Place<Origin>>,
    router: Router,
    stopping: watch::Receiver<bool>,
) {
    // Requests are small and answered at once: waiting to fill a packet would only add latency.
    let _ = stream.set_nodelay(true);
    if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_DEADLINE, acceptor.accept(stream)).await {
        connection(stream, unknown, router, stopping).await;
    }
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    unknown: Option<Place<Origin>>,
    router: Router,
    mut stopping: watch::Receiver<bool>,
) {
    let visitor = Arc::<ConnectionState>::default();
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .max_buf_size(64 << 10);
    let reception = ConnectionService::new(router, Arc::clone(&visitor));
    let serving = http.serve_connection(TokioIo::new(stream), reception).with_upgrades();
    let mut serving = std::pin::pin!(serving);
    tokio::select! {
        _ = serving.as_mut() => {}
        () = visitor.outstays(unknown) => {}
        _ = stopped(&mut stopping) => {
            serving.as_mut().graceful_shutdown();
            let _ = serving.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn taken_address_refuses_connections_until_it_is_listened_on() {
        let taken = take(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let address = taken.local_addr().unwrap();
        let refused = TcpStream::connect(address).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let _listener = taken.listen().unwrap();
        TcpStream::connect(address).await.unwrap();
        assert!(matches!(take(address), Err(Error::AddressInUse(in_use)) if in_use == address));
    }

    #[test]
    fn room_is_no_more_than_there_are_descriptors() {
        for descriptors in [1_024, 4_096, 65_536, 1_048_576, usize::MAX] {
            let Room { api, local, rendezvous } = Room::of(descriptors);
            assert!(
                api + local + rendezvous + KEPT_DESCRIPTORS <= descriptors,
                "{descriptors}"
            );
            assert!(api >= 500 && local >= 64 && rendezvous >= 128, "{descriptors}");
        }
        // However few there are, somebody gets in.
        assert!(Room::of(64).api > 0);
    }
}
