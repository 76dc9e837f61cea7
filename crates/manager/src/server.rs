//! The listeners: TLS and HTTP/1.1 on a port, HTTP/1.1 on a local socket, and their shutdown.

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
use crate::error::Error;
use crate::shutdown::stopped;

/// Connections at a time, if the process may have as many descriptors.
const MAX_CONNECTIONS: usize = 65_536;
/// Descriptors for other purposes.
const RESERVED_DESCRIPTORS: usize = 256;
/// Connections over the local socket. They are counted separately, so that a flood of the port does not exclude the
/// administrator.
const MAX_LOCAL_CONNECTIONS: usize = 1_024;
/// Connections of ranks to the rendezvous. They are counted separately too.
const MAX_RENDEZVOUS_CONNECTIONS: usize = 100_000;
/// Unauthenticated connections from one origin: a quarter of the limit on all, and at most this.
const MAX_UNAUTHENTICATED_OF_ONE: usize = 1_024;
/// Attempts of a connection to get a place when all are taken. With [`QUEUE_PAUSE`], it waits for 2 s.
const QUEUE_ATTEMPTS: u32 = 100;
/// Pause between these attempts.
const QUEUE_PAUSE: Duration = Duration::from_millis(20);
/// Waiting connections from one origin: a sixteenth of the limit on all, and at most this. All together are at most an
/// eighth.
const MAX_WAITING_OF_ONE: usize = 1_024;
/// Time limit for the TLS handshake.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(5);
/// Time limit for the head of a request, and for an idle connection. An unauthenticated connection has less; see
/// [`crate::connection`].
const HEAD_DEADLINE: Duration = Duration::from_secs(75);
/// Time for running requests when the manager stops.
const DRAIN_DEADLINE: Duration = Duration::from_secs(2);
/// Connections that wait to be accepted. The kernel's own limit is lower on most machines.
const BACKLOG: u32 = 1_024;

/// A socket that is bound and does not listen yet: connections to it are refused at once.
pub struct BoundSocket {
    address: SocketAddr,
    socket: TcpSocket,
}

/// Binds a socket to this address.
pub fn bind(address: SocketAddr) -> Result<BoundSocket, Error> {
    let bound = || {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        // A restarted manager need not wait for the connections of the earlier one.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        Ok(socket)
    };
    let socket = bound().map_err(|source| cannot_listen(address, source))?;
    Ok(BoundSocket { address, socket })
}

fn cannot_listen(address: SocketAddr, source: std::io::Error) -> Error {
    match source.kind() {
        ErrorKind::AddrInUse => Error::AddressInUse(address),
        _ => Error::Listen { address, source },
    }
}

impl BoundSocket {
    /// Returns the address with the actual port.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Begins to listen.
    pub fn listen(self) -> Result<TcpListener, Error> {
        let Self { address, socket } = self;
        socket.listen(BACKLOG).map_err(|source| cannot_listen(address, source))
    }
}

/// Limits on connections by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Connections to the port.
    api: usize,
    /// Connections over the local socket.
    local: usize,
    /// Connections to the rendezvous.
    pub rendezvous: usize,
}

impl ConnectionLimits {
    /// Raises the process's limit on descriptors as far as possible, and divides the descriptors.
    pub fn from_descriptors() -> Self {
        Self::of(descriptors::raise_limit())
    }

    fn of(descriptors: usize) -> Self {
        let available = descriptors.saturating_sub(RESERVED_DESCRIPTORS);
        let local = (available / 12).clamp(4, MAX_LOCAL_CONNECTIONS);
        let rendezvous = (available / 4).clamp(4, MAX_RENDEZVOUS_CONNECTIONS);
        let api = available.saturating_sub(local + rendezvous).clamp(4, MAX_CONNECTIONS);
        Self { api, local, rendezvous }
    }
}

/// The listeners of a manager.
pub struct Listeners {
    /// The port, with TLS.
    tcp: TcpListener,
    tls: Arc<ServerConfig>,
    /// The local socket. Clients ask the kernel who listens.
    here: Option<UnixListener>,
}

impl Listeners {
    /// Returns listeners on this port, and on the local socket named after it and the certificate authority.
    pub fn new(tcp: TcpListener, tls: Arc<ServerConfig>, ca_pem: &str) -> Self {
        let here = tcp.local_addr().and_then(|address| {
            let name = net::SocketAddr::from_abstract_name(local_socket::name(ca_pem, address.port()))?;
            let listener = net::UnixListener::bind_addr(&name)?;
            listener.set_nonblocking(true)?;
            UnixListener::from_std(listener)
        });
        let here = here.inspect_err(
            |error| tracing::warn!(%error, "cannot listen on the local socket; local programs connect with TLS too"),
        );
        let here = here.ok();
        Self { tcp, tls, here }
    }
}

/// One listener.
enum Listener {
    Tcp(TcpListener, TlsAcceptor),
    Here(UnixListener),
}

/// An accepted connection.
enum Stream {
    Tcp(TcpStream, TlsAcceptor),
    Here(UnixStream),
}

impl Listener {
    /// Returns the next connection and the origin that it counts for while it is unauthenticated. The local user and
    /// root have no origin: they are not limited.
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

/// Serves until the manager stops and its running requests are finished.
pub async fn serve(listeners: Listeners, limits: ConnectionLimits, router: Router, stopping: watch::Receiver<bool>) {
    let Listeners { tcp, tls, here } = listeners;
    let tcp = Listener::Tcp(tcp, TlsAcceptor::from(tls));
    let by_tcp = accept_connections(tcp, limits.api, router.clone(), stopping.clone());
    let by_socket = async {
        if let Some(here) = here {
            accept_connections(Listener::Here(here), limits.local, router, stopping).await;
        }
    };
    tokio::join!(by_tcp, by_socket);
}

/// Serves the connections of a listener, at most `limit` at a time.
async fn accept_connections(listener: Listener, limit: usize, router: Router, mut stopping: watch::Receiver<bool>) {
    let places = Arc::new(Semaphore::new(limit));
    // A quarter of the places is for authenticated connections.
    let unauthenticated = Admission::new(
        (limit * 3).div_ceil(4),
        limit.div_ceil(4).min(MAX_UNAUTHENTICATED_OF_ONE),
    );
    let waiting = Admission::new(limit.div_ceil(8), limit.div_ceil(16).min(MAX_WAITING_OF_ONE));
    let queue = Arc::new(Queue::new(unauthenticated, waiting));
    let mut connections = JoinSet::new();
    loop {
        // Accept nothing while all places are taken: connections wait in the kernel's queue.
        let accept = async {
            let place = Arc::clone(&places).acquire_owned().await;
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
                    let place_of_origin = match origin {
                        None => None,
                        Some(origin) => tokio::select! {
                            admitted = queue.enter(origin, QUEUE_ATTEMPTS, pause) => match admitted {
                                // The origin has its maximum of unauthenticated connections.
                                None => return,
                                admitted => admitted,
                            },
                            _ = stopped(&mut stopping) => return,
                        },
                    };
                    match stream {
                        Stream::Tcp(stream, acceptor) => {
                            serve_tls(stream, acceptor, place_of_origin, router, stopping).await
                        }
                        Stream::Here(stream) => serve_http(stream, place_of_origin, router, stopping).await,
                    }
                    drop(place);
                });
            }
            Err(error) => {
                // Out of descriptors, or the peer disconnected already: an immediate retry would not help.
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

async fn serve_tls(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    place: Option<Place<Origin>>,
    router: Router,
    stopping: watch::Receiver<bool>,
) {
    // Requests are small: waiting to fill a packet would only add latency.
    let _ = stream.set_nodelay(true);
    if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_DEADLINE, acceptor.accept(stream)).await {
        serve_http(stream, place, router, stopping).await;
    }
}

async fn serve_http(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    place: Option<Place<Origin>>,
    router: Router,
    mut stopping: watch::Receiver<bool>,
) {
    let state = Arc::<ConnectionState>::default();
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .max_buf_size(64 << 10);
    let service = ConnectionService::new(router, Arc::clone(&state));
    let serving = http.serve_connection(TokioIo::new(stream), service).with_upgrades();
    let mut serving = std::pin::pin!(serving);
    tokio::select! {
        _ = serving.as_mut() => {}
        () = state.timed_out(place) => {}
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
    async fn bound_socket_refuses_connections_until_it_listens() {
        let bound = bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let address = bound.local_addr().unwrap();
        let refused = TcpStream::connect(address).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let _listener = bound.listen().unwrap();
        TcpStream::connect(address).await.unwrap();
        assert!(matches!(bind(address), Err(Error::AddressInUse(in_use)) if in_use == address));
    }

    #[test]
    fn connection_limits_fit_the_descriptors() {
        for descriptors in [1_024, 4_096, 65_536, 1_048_576, usize::MAX] {
            let ConnectionLimits { api, local, rendezvous } = ConnectionLimits::of(descriptors);
            assert!(
                api + local + rendezvous + RESERVED_DESCRIPTORS <= descriptors,
                "{descriptors}"
            );
            assert!(api >= 500 && local >= 64 && rendezvous >= 128, "{descriptors}");
        }
        // Even with very few descriptors.
        assert!(ConnectionLimits::of(64).api > 0);
    }
}
