//! Sockets for connecting: non-blocking, with shared ports, and with a bound on a silent peer.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, listen, socket_with, sockopt};

/// Connections in the kernel's queue; the system has a limit of its own.
const BACKLOG: i32 = 4096;
/// Silence after which keep-alive probes begin.
const IDLE: Duration = Duration::from_secs(2);
/// Interval of the probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Number of probes. Sent bytes must be acknowledged within the same time.
const PROBES: u32 = 3;

/// Makes a connection fail within about 5 s when its other host is gone or unreachable.
pub fn watch_peer(socket: impl AsFd) -> io::Result<()> {
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, IDLE)?;
    sockopt::set_tcp_keepintvl(&socket, PROBE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(&socket, PROBES)?;
    let unacknowledged = IDLE + PROBE_INTERVAL * PROBES;
    sockopt::set_tcp_user_timeout(&socket, u32::try_from(unacknowledged.as_millis()).unwrap_or(u32::MAX))?;
    Ok(())
}

fn new(to: SocketAddr) -> io::Result<OwnedFd> {
    let family = match to {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    if to.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    Ok(socket)
}

/// The unspecified address of the family of `like`.
pub fn any(like: SocketAddr, port: u16) -> SocketAddr {
    match like {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, port).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, port).into(),
    }
}

/// Lets several sockets of this user share one port, since a NAT maps the port.
fn share(socket: &OwnedFd, at: SocketAddr) -> io::Result<()> {
    sockopt::set_socket_reuseaddr(socket, true)?;
    sockopt::set_socket_reuseport(socket, true)?;
    bind(socket, &at)?;
    Ok(())
}

/// Begins to connect. `from` is a local port that other sockets share; 0 selects a new one.
pub fn dial(to: SocketAddr, from: Option<u16>) -> io::Result<TcpStream> {
    let socket = new(to)?;
    if let Some(port) = from {
        share(&socket, any(to, port))?;
    }
    sockopt::set_tcp_nodelay(&socket, true)?;
    watch_peer(&socket)?;
    match connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(TcpStream::from(socket)),
        Err(error) => Err(error.into()),
    }
}

/// Listens on a port that connections share.
pub fn listen_on(at: SocketAddr) -> io::Result<TcpListener> {
    let socket = new(at)?;
    share(&socket, at)?;
    listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

/// Converts a duration for the kernel. A duration out of its range becomes an hour.
pub fn timespec(time: Duration) -> Timespec {
    Timespec::try_from(time).unwrap_or(Timespec {
        tv_sec: 3600,
        tv_nsec: 0,
    })
}

/// Waits until a socket is readable, or writable if `writing`. Returns whether it is.
pub(crate) fn wait_for(socket: impl AsFd, writing: bool, at_most: Duration) -> io::Result<bool> {
    let flags = if writing {
        PollFlags::IN | PollFlags::OUT
    } else {
        PollFlags::IN
    };
    let mut polled = [PollFd::from_borrowed_fd(socket.as_fd(), flags)];
    match poll(&mut polled, Some(&timespec(at_most))) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
