//! Requests to a manager on this machine, over a local socket. Encryption would add no protection there.
//!
//! The client checks the peer's credentials before it sends its token. The peer must be root, or this user in the same
//! user namespace; an isolated function has another one. Any other manager is reached over TLS.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use dayfly_protocol::local_socket;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, UCred, connect, socket_with, sockopt::socket_peercred,
};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, RustlsConnector, ShutdownHandle, TcpConnector,
    Transport,
};
use ureq::{Error, Timeout};

/// Returns the connector for a manager with this certificate authority.
pub fn connector(ca_pem: &str) -> impl Connector {
    LocalConnector { ca_pem: ca_pem.into() }
        .chain(TcpConnector::default())
        .chain(RustlsConnector::default())
}

/// Connects to a manager on this machine, and passes all others to the next connector.
struct LocalConnector {
    ca_pem: String,
}

impl fmt::Debug for LocalConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalConnector").finish_non_exhaustive()
    }
}

impl Connector for LocalConnector {
    type Out = LocalTransport;

    fn connect(&self, details: &ConnectionDetails<'_>, _: Option<()>) -> Result<Option<LocalTransport>, Error> {
        let Some(port) = details.uri.port_u16().filter(|_| details.needs_tls()) else {
            return Ok(None);
        };
        // A copy of the manager may listen on this machine, for example to test a backup.
        if !details.addrs.iter().any(is_own_address) {
            return Ok(None);
        }
        let Ok(stream) = dial(&local_socket::name(&self.ca_pem, port)) else {
            return Ok(None);
        };
        let local = LocalTransport {
            stream: Arc::new(Stream(stream)),
            buffers: LazyBuffers::new(details.config.input_buffer_size(), details.config.output_buffer_size()),
            timeouts: [None; 2],
        };
        let handle: Arc<dyn ShutdownHandle> = Arc::clone(&local.stream) as _;
        (details.register_shutdown)(Arc::downgrade(&handle))?;
        Ok(Some(local))
    }
}

/// Whether an address belongs to this machine.
fn is_own_address(address: &SocketAddr) -> bool {
    address.ip().is_loopback() || UdpSocket::bind((address.ip(), 0)).is_ok()
}

/// Whether a process is this user's and shares our user namespace, which an isolated function does not.
fn is_own_process(peer: UCred) -> bool {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/user"));
    let (theirs, ours) = (namespace(&peer.pid.to_string()), namespace("self"));
    peer.uid == rustix::process::geteuid() && theirs.is_ok() && theirs.ok() == ours.ok()
}

/// Connects to the local socket `name`, and returns an error unless its peer may receive a token.
fn dial(name: &str) -> io::Result<UnixStream> {
    // Without an accepting peer, this must not block.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    let peer = socket_peercred(&socket)?;
    if !peer.uid.is_root() && !is_own_process(peer) {
        return Err(Errno::PERM.into());
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

struct Stream(UnixStream);

impl ShutdownHandle for Stream {
    fn shutdown(&self) {
        // The socket may be closed already.
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}

/// A connection to a manager on this machine.
struct LocalTransport {
    stream: Arc<Stream>,
    buffers: LazyBuffers,
    /// Timeouts of the socket: reading, writing.
    timeouts: [Option<Duration>; 2],
}

impl fmt::Debug for LocalTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalTransport").finish_non_exhaustive()
    }
}

/// Converts an error of the socket; an expired timeout becomes `Error::Timeout`.
fn timeout_error(error: io::Error, timeout: Timeout) -> Error {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Error::Timeout(timeout),
        _ => error.into(),
    }
}

impl LocalTransport {
    /// Sets a timeout if it differs from the current one.
    fn set_timeout(
        &mut self,
        which: usize,
        timeout: NextTimeout,
        set: fn(&UnixStream, Option<Duration>) -> io::Result<()>,
    ) -> io::Result<()> {
        let wanted = timeout.not_zero().map(|limit| *limit);
        if self.timeouts[which] != wanted {
            set(&self.stream.0, wanted)?;
            self.timeouts[which] = wanted;
        }
        Ok(())
    }
}

impl Transport for LocalTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.set_timeout(0, timeout, UnixStream::set_write_timeout)?;
        let output = &self.buffers.output()[..amount];
        match (&self.stream.0).write_all(output) {
            // A peer that responded before it read everything may have closed its end. Without a response, reading
            // reports the error.
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => Ok(()),
            written => written.map_err(|error| timeout_error(error, timeout.reason)),
        }
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.set_timeout(1, timeout, UnixStream::set_read_timeout)?;
        let input = self.buffers.input_append_buf();
        let amount = loop {
            match (&self.stream.0).read(input) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(timeout_error(error, timeout.reason)),
                Ok(amount) => break amount,
            }
        };
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        // An idle connection has nothing to read except its end.
        let peek = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
        matches!(rustix::net::recv(&self.stream.0, &mut [0; 1], peek), Err(Errno::AGAIN))
    }

    fn is_tls(&self) -> bool {
        // Claim TLS, so that no connector adds it.
        true
    }
}
