//! Sockets between ranks beyond those that the rendezvous needs too: within the host, and opened by both ends at once.

use std::io;
use std::net::TcpStream;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};

use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, listen, socket_with, sockopt};

/// Connections that the system holds for us; it has a limit of its own.
const BACKLOG: i32 = 4096;

/// Sets a connection's keep-alive going: Linux does not by itself where it came about by simultaneous open.
pub fn rearm(socket: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(socket, false)?;
    Ok(sockopt::set_socket_keepalive(socket, true)?)
}

/// Whether a connection does not leave this host.
pub fn is_near(socket: &TcpStream) -> bool {
    matches!((socket.local_addr(), socket.peer_addr()), (Ok(own), Ok(other)) if own.ip() == other.ip())
}

/// Listens on an abstract name, which is there as long as the socket is.
pub fn listen_local(name: &str) -> io::Result<UnixListener> {
    let listener = UnixListener::bind_addr(&UnixAddr::from_abstract_name(name)?)?;
    listener.set_nonblocking(true)?;
    // The library's own backlog is small.
    listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// Connects to an abstract name; `WouldBlock` if its queue is full just now.
pub fn dial_local(name: &str) -> io::Result<UnixStream> {
    use rustix::net::SocketAddrUnix;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    Ok(UnixStream::from(socket))
}

/// The user at the other end of a Unix socket.
pub fn user_of(socket: &UnixStream) -> io::Result<u32> {
    Ok(sockopt::socket_peercred(socket)?.uid.as_raw())
}
