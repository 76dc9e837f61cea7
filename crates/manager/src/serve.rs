//! Listening: TLS, HTTP/1.1, and an end to both; and without TLS for programs of this machine.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use mayfly_protocol::here;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::control::stopped;
use crate::error::Error;

/// Connections at once, as far as this process may have descriptors: one each.
const CONNECTIONS: usize = 65_536;
/// Descriptors that are for other things than connections.
const KEPT_DESCRIPTORS: usize = 256;
/// A peer that has not finished its TLS handshake by then is not worth a descriptor.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);
/// A head that takes longer is an attack or a dead peer; also how long a connection may idle between requests.
const HEAD_DEADLINE: Duration = Duration::from_secs(75);
/// Requests that run when the manager stops get this long.
const DRAIN_DEADLINE: Duration = Duration::from_secs(2);

/// Takes the address.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|source| match source.kind() {
        ErrorKind::AddrInUse => Error::AddressInUse(address),
        _ => Error::Listen { address, source },
    })
}

/// Where a manager is connected to.
pub struct Listeners {
    /// From everywhere, by TLS.
    tcp: TcpListener,
    tls: Arc<ServerConfig>,
    /// From this machine: who connects there asks the kernel whose it is.
    here: Option<UnixListener>,
}

/// One that connected.
enum Stream {
    Tcp(TcpStream),
    Here(UnixStream),
}

impl Listeners {
    /// A port, and for programs of this machine what is known by it and the certificate authority.
    pub fn new(tcp: TcpListener, tls: Arc<ServerConfig>, ca_pem: &str) -> Self {
        let here = tcp.local_addr().and_then(|address| {
            let name = net::SocketAddr::from_abstract_name(here::name(ca_pem, address.port()))?;
            let listener = net::UnixListener::bind_addr(&name)?;
            listener.set_nonblocking(true)?;
            UnixListener::from_std(listener)
        });
        let here = here.inspect_err(|error| tracing::warn!(%error, "programs of this machine connect by TLS, too"));
        let here = here.ok();
        Self { tcp, tls, here }
    }

    async fn accept(&self) -> std::io::Result<Stream> {
        let here = async {
            match &self.here {
                Some(here) => here.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            accepted = self.tcp.accept() => accepted.map(|(stream, _)| Stream::Tcp(stream)),
            accepted = here => accepted.map(|(stream, _)| Stream::Here(stream)),
        }
    }
}

/// Raises the limit on descriptors as far as it goes, and answers how many connections that allows.
fn connections() -> usize {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Where that is not allowed, the limit is what it was.
    let _ = setrlimit(Resource::Nofile, limit);
    let most = getrlimit(Resource::Nofile).current;
    let most = most.map_or(CONNECTIONS, |most| usize::try_from(most).unwrap_or(CONNECTIONS));
    most.saturating_sub(KEPT_DESCRIPTORS).clamp(1, CONNECTIONS)
}

/// Serves until told to stop, and then until the requests that run are answered.
pub async fn serve(listeners: Listeners, router: Router, mut stopping: watch::Receiver<bool>) {
    let acceptor = TlsAcceptor::from(Arc::clone(&listeners.tls));
    let room = Arc::new(Semaphore::new(connections()));
    let mut connections = JoinSet::new();
    loop {
        // Full is told by not accepting: the kernel's queue and the peers' deadlines do the rest.
        let accept = async {
            let place = Arc::clone(&room).acquire_owned().await;
            (listeners.accept().await, place)
        };
        let (stream, place) = tokio::select! {
            accepted = accept => accepted,
            _ = stopped(&mut stopping) => break,
            Some(_) = connections.join_next() => continue,
        };
        match stream {
            Ok(stream) => {
                let (acceptor, router, stopping) = (acceptor.clone(), router.clone(), stopping.clone());
                connections.spawn(async move {
                    match stream {
                        Stream::Tcp(stream) => encrypted(stream, acceptor, router, stopping).await,
                        Stream::Here(stream) => connection(stream, router, stopping).await,
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
    drop(listeners);
    let drain = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(DRAIN_DEADLINE, drain).await;
    connections.shutdown().await;
}

async fn encrypted(stream: TcpStream, acceptor: TlsAcceptor, router: Router, stopping: watch::Receiver<bool>) {
    // Requests are small and answered at once: waiting to fill a packet would only add latency.
    let _ = stream.set_nodelay(true);
    if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_DEADLINE, acceptor.accept(stream)).await {
        connection(stream, router, stopping).await;
    }
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    mut stopping: watch::Receiver<bool>,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .max_buf_size(64 << 10);
    let serving = http
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .with_upgrades();
    let mut serving = std::pin::pin!(serving);
    tokio::select! {
        _ = serving.as_mut() => {}
        _ = stopped(&mut stopping) => {
            serving.as_mut().graceful_shutdown();
            let _ = serving.await;
        }
    }
}
