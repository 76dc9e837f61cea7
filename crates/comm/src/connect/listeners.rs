//! Where a rank can be called.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;

use dayfly_protocol::error::Failure;
use dayfly_rendezvous::socket::{any, listen_on, watch_peer};

use super::attempt::Socket;
use super::{failed, socket};

/// Sockets that listen, none of which blocks.
pub struct Listeners {
    /// One for each family.
    pub tcp: Vec<TcpListener>,
    /// Within the host.
    pub unix: Option<UnixListener>,
}

impl Listeners {
    /// To be watched, each under its place.
    pub fn all(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let tcp = self.tcp.iter().map(AsFd::as_fd);
        tcp.chain(self.unix.iter().map(AsFd::as_fd))
    }

    /// The next call at the one in this place.
    pub fn accept(&self, at: u64) -> io::Result<Socket> {
        let tcp = usize::try_from(at).ok().and_then(|at| self.tcp.get(at));
        match (tcp, &self.unix) {
            (Some(listener), _) => listener.accept().map(|(socket, _)| Socket::Tcp(socket)),
            (None, Some(unix)) => unix.accept().map(|(socket, _)| Socket::Unix(socket)),
            (None, None) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

/// Listens in both families if the host has them; in the family of `like` on its very port.
pub fn listen(like: SocketAddr, name: &str, unix: bool) -> Result<Listeners, Failure> {
    let own = any(like, like.port());
    let first = listen_on(own).map_err(|error| failed(&format!("cannot listen at {own}"), error))?;
    let other: SocketAddr = match like {
        SocketAddr::V4(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
    };
    let mut tcp = vec![first];
    // A host may have one family only.
    tcp.extend(listen_on(other));
    for listener in &tcp {
        listener
            .set_nonblocking(true)
            .map_err(|error| failed("cannot listen", error))?;
    }
    let unix = if unix { socket::listen_local(name).ok() } else { None };
    Ok(Listeners { tcp, unix })
}

/// Makes an accepted socket what a dialled one is, and turns away other users of the host.
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
