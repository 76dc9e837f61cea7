//! The sockets at which a rank accepts connections.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;

use dayfly_protocol::error::Failure;
use dayfly_rendezvous::socket::{any, listen_on, watch_peer};

use super::socket::Socket;
use super::{failed, socket};

/// Non-blocking listening sockets.
pub struct Listeners {
    /// One for each address family.
    pub tcp: Vec<TcpListener>,
    /// For ranks on the same host.
    pub unix: Option<UnixListener>,
}

impl Listeners {
    /// All sockets to poll, in the order of their tokens.
    pub fn all(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let tcp = self.tcp.iter().map(AsFd::as_fd);
        tcp.chain(self.unix.iter().map(AsFd::as_fd))
    }

    /// Accepts a connection at the socket with this token.
    pub fn accept(&self, at: u64) -> io::Result<Socket> {
        let tcp = usize::try_from(at).ok().and_then(|at| self.tcp.get(at));
        match (tcp, &self.unix) {
            (Some(listener), _) => listener.accept().map(|(socket, _)| Socket::Tcp(socket)),
            (None, Some(unix)) => unix.accept().map(|(socket, _)| Socket::Unix(socket)),
            (None, None) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

/// Listens in every address family of the host; in the family of `like` on the same port.
pub fn listen(like: SocketAddr, name: &str, unix: bool) -> Result<Listeners, Failure> {
    let own = any(like, like.port());
    let first = listen_on(own).map_err(|error| failed(&format!("cannot listen at {own}"), error))?;
    let other: SocketAddr = match like {
        SocketAddr::V4(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
    };
    let mut tcp = vec![first];
    // A host may have only one family.
    tcp.extend(listen_on(other));
    for listener in &tcp {
        listener
            .set_nonblocking(true)
            .map_err(|error| failed("cannot listen", error))?;
    }
    let unix = if unix { socket::listen_local(name).ok() } else { None };
    Ok(Listeners { tcp, unix })
}

/// Configures an accepted socket like a dialled one, and rejects other users of the host.
pub fn prepare(socket: &Socket) -> io::Result<()> {
    match socket {
        Socket::Tcp(socket) => {
            socket.set_nonblocking(true)?;
            socket.set_nodelay(true)?;
            watch_peer(socket)
        }
        Socket::Unix(socket) | Socket::Stored(socket) => {
            socket.set_nonblocking(true)?;
            if socket::user_of(socket)? == rustix::process::geteuid().as_raw() {
                Ok(())
            } else {
                Err(io::ErrorKind::PermissionDenied.into())
            }
        }
    }
}
