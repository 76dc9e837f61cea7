//! Sockets between two ranks: within the host, over TCP, or the local end of a route through a store.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};

use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, listen, socket_with, sockopt};

/// Connections in the kernel's queue; the system has a limit of its own.
const BACKLOG: i32 = 4096;

/// A non-blocking socket of any kind.
pub enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// The local end of a route through a store.
    Stored(UnixStream),
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(socket) => socket.as_fd(),
            Self::Unix(socket) | Self::Stored(socket) => socket.as_fd(),
        }
    }
}

impl Read for &Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => (&mut &*socket).read(into),
            Socket::Unix(socket) | Socket::Stored(socket) => (&mut &*socket).read(into),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => (&mut &*socket).write(from),
            Socket::Unix(socket) | Socket::Stored(socket) => (&mut &*socket).write(from),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Restarts a connection's keep-alive timer: Linux does not start it after a simultaneous open.
pub fn rearm(socket: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(socket, false)?;
    Ok(sockopt::set_socket_keepalive(socket, true)?)
}

/// Whether both ends of a connection have the same address, which is then on this host.
pub fn is_near(socket: &TcpStream) -> bool {
    matches!((socket.local_addr(), socket.peer_addr()), (Ok(own), Ok(other)) if own.ip() == other.ip())
}

/// Listens on an abstract name, which exists as long as the socket.
pub fn listen_local(name: &str) -> io::Result<UnixListener> {
    let listener = UnixListener::bind_addr(&UnixAddr::from_abstract_name(name)?)?;
    listener.set_nonblocking(true)?;
    // The standard library's backlog is small.
    listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// Connects to an abstract name. Returns `WouldBlock` if its queue is full.
pub fn dial_local(name: &str) -> io::Result<UnixStream> {
    use rustix::net::SocketAddrUnix;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    Ok(UnixStream::from(socket))
}

/// User id of the process at the other end of a Unix socket.
pub fn user_of(socket: &UnixStream) -> io::Result<u32> {
    Ok(sockopt::socket_peercred(socket)?.uid.as_raw())
}
