//! Connections to a node: the hello exchange, and framed requests.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dayfly_fabric::{Transport, descriptors, tls};
use dayfly_lease::SigningKey;
use dayfly_lease::token::{Opening, check_verdict};
use dayfly_protocol::api::NodeAddress;
use dayfly_protocol::error::Code;
use dayfly_protocol::hello::{Token, VERDICT_BYTES, Verdict};
use dayfly_protocol::ids::{ChannelId, CodeHash, PublicKey};
use dayfly_protocol::node_api::{MAX_FRAME_BYTES, Request, Response};
use rustls::{ClientConnection, StreamOwned};
use zerocopy::{FromBytes, IntoBytes};

use crate::Error;
use crate::random::fill_random;

/// Limit for the node's verdict on a hello. A node allows an executor 10 s to start.
const VERDICT_LIMIT: Duration = Duration::from_secs(15);
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// A connected socket.
pub enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Socket {
    pub fn set_limit(&self, limit: Duration) -> std::io::Result<()> {
        use rustix::net::sockopt::{Timeout, set_socket_timeout};
        set_socket_timeout(self, Timeout::Recv, Some(limit))?;
        set_socket_timeout(self, Timeout::Send, Some(limit))?;
        Ok(())
    }

    /// Continues under TLS with the holder of `peer`'s private key.
    fn encrypt(self, holder: &SigningKey, peer: &PublicKey) -> std::io::Result<Self> {
        let Self::Tcp(socket) = self else {
            return Err(std::io::ErrorKind::Unsupported.into());
        };
        let identity = tls::Identity {
            pkcs8: holder.to_pkcs8(),
            public: holder.public(),
        };
        let session = tls::client(&identity, peer).map_err(std::io::Error::other)?;
        Ok(Self::Tls(Box::new(StreamOwned::new(session, socket))))
    }

    pub fn into_fd(self) -> OwnedFd {
        match self {
            Self::Unix(socket) => socket.into(),
            Self::Tcp(socket) => socket.into(),
            Self::Tls(session) => session.sock.into(),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(socket) => socket.as_fd(),
            Self::Tcp(socket) => socket.as_fd(),
            Self::Tls(session) => session.sock.as_fd(),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Unix(socket) => socket.read(bytes),
            Self::Tcp(socket) => socket.read(bytes),
            Self::Tls(session) => session.read(bytes),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Unix(socket) => socket.write(bytes),
            Self::Tcp(socket) => socket.write(bytes),
            Self::Tls(session) => session.write(bytes),
        }
    }
    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Self::Unix(_) | Self::Tcp(_) => Ok(()),
            Self::Tls(session) => session.flush(),
        }
    }
}

fn unreachable(node: &NodeAddress, error: impl std::fmt::Display) -> Error {
    Error::new(
        Code::Unreachable,
        format!(
            "the node {} ({}) cannot be reached: {error}. `dayfly status` lists the nodes",
            node.name, node.id
        ),
    )
}

/// Whether this process runs on the node's host and can reach the node's socket.
pub fn is_local(node: &NodeAddress) -> bool {
    static BOOT: OnceLock<String> = OnceLock::new();
    let boot = BOOT.get_or_init(|| std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default());
    node.host == boot.trim()
        && node
            .unix
            .as_ref()
            .is_some_and(|path| std::path::Path::new(path).exists())
}

/// The best transport for a node: shared memory on its host, TCP on the loopback interface, TLS elsewhere.
pub fn best_transport(node: &NodeAddress) -> Transport {
    if is_local(node) {
        return Transport::Shm;
    }
    if is_on_loopback(node) {
        Transport::Tcp
    } else {
        Transport::Tls
    }
}

/// Whether the node's address is on the loopback interface.
pub fn is_on_loopback(node: &NodeAddress) -> bool {
    let address = node.tcp.as_ref();
    address
        .and_then(|address| address.to_socket_addrs().ok()?.next())
        .is_some_and(|address| address.ip().is_loopback())
}

/// Connects by Unix socket if `unix`, else by TCP.
pub fn connect(node: &NodeAddress, unix: bool) -> Result<Socket, Error> {
    if unix {
        let path = node
            .unix
            .as_ref()
            .ok_or_else(|| unreachable(node, "it has no Unix socket"))?;
        return UnixStream::connect(path)
            .map(Socket::Unix)
            .map_err(|error| unreachable(node, error));
    }
    let address = node
        .tcp
        .as_ref()
        .ok_or_else(|| unreachable(node, "it has no TCP address"))?;
    let mut last = None;
    for address in address.to_socket_addrs().map_err(|error| unreachable(node, error))? {
        match TcpStream::connect_timeout(&address, CONNECT_LIMIT) {
            Ok(socket) => {
                let _ = socket.set_nodelay(true);
                return Ok(Socket::Tcp(socket));
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.map_or_else(
        || unreachable(node, "its name has no address"),
        |error| unreachable(node, error),
    ))
}

/// A random channel id.
pub fn random_channel() -> Result<ChannelId, Error> {
    let mut id = [0; 16];
    fill_random(&mut id)?;
    Ok(ChannelId(id))
}

fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}

/// Sends the hello and reads the verdict, with the memory file if the node sends one.
pub fn open(
    node: &NodeAddress,
    socket: &mut Socket,
    opening: Opening,
    token: &Token,
    holder: &SigningKey,
    channel: ChannelId,
) -> Result<(Verdict, Option<OwnedFd>), Error> {
    let hello = opening.sign(node.id, *token, channel, now_ms(), holder);
    socket
        .set_limit(VERDICT_LIMIT)
        .map_err(|error| unreachable(node, error))?;
    socket
        .write_all(hello.as_bytes())
        .map_err(|error| unreachable(node, error))?;
    let mut bytes = [0; VERDICT_BYTES];
    let (mut filled, mut file) = (0, None);
    while filled < VERDICT_BYTES {
        let received = match &mut *socket {
            Socket::Unix(unix) => descriptors::receive(&*unix, &mut bytes[filled..]).map(|(length, files)| {
                file = files.into_iter().next().or(file.take());
                length
            }),
            other => other.read(&mut bytes[filled..]),
        };
        match received {
            Ok(0) => return Err(unreachable(node, "it closed the connection before its verdict")),
            Ok(length) => filled += length,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                return Err(unreachable(
                    node,
                    format!("no verdict within {} s", VERDICT_LIMIT.as_secs()),
                ));
            }
            Err(error) => return Err(unreachable(node, error)),
        }
    }
    let verdict = Verdict::read_from_bytes(&bytes).map_err(|_| unreachable(node, "its verdict is too short"))?;
    check_verdict(&verdict, &channel, &node.key)?;
    Ok((verdict, file))
}

/// Opens a connection for framed requests, under TLS if it leaves this host.
pub fn open_control(node: &NodeAddress, unix: bool, token: &Token, holder: &SigningKey) -> Result<Socket, Error> {
    let mut socket = connect(node, unix)?;
    let encrypted = !unix && !is_on_loopback(node);
    let opening = Opening::Control { encrypted };
    open(node, &mut socket, opening, token, holder, random_channel()?)?;
    match encrypted {
        true => socket
            .encrypt(holder, &node.key)
            .map_err(|error| unreachable(node, error)),
        false => Ok(socket),
    }
}

/// Encodes a request: the length of its JSON as a little-endian `u32`, then the JSON.
pub fn frame(request: &Request) -> Result<Vec<u8>, Error> {
    let json = serde_json::to_vec(request).map_err(|error| Error::new(Code::Internal, error.to_string()))?;
    Ok([&(json.len() as u32).to_le_bytes()[..], &json].concat())
}

/// The error for a response of the wrong kind.
pub fn unexpected(what: &str, response: &Response) -> Error {
    Error::new(
        Code::ProtocolViolation,
        format!("unexpected response to {what}: {response:?}"),
    )
}

/// Framed requests to a node.
pub struct Control {
    node: NodeAddress,
    socket: Socket,
    /// The same socket, for threads that shut it down.
    end: Arc<OwnedFd>,
}

impl Control {
    pub fn open(node: &NodeAddress, token: &Token, holder: &SigningKey) -> Result<Self, Error> {
        let socket = open_control(node, is_local(node), token, holder)?;
        let end = socket.as_fd().try_clone_to_owned();
        Ok(Self {
            node: node.clone(),
            end: Arc::new(end.map_err(|error| unreachable(node, error))?),
            socket,
        })
    }

    /// The socket to shut down in order to end this connection.
    pub fn end(&self) -> &Arc<OwnedFd> {
        &self.end
    }

    /// Lets each response take `wait` longer than the node's usual limit.
    pub fn wait_longer(&self, wait: Duration) -> Result<(), Error> {
        let set = self.socket.set_limit(VERDICT_LIMIT + wait);
        set.map_err(|error| unreachable(&self.node, error))
    }

    fn write(&mut self, request: &Request) -> Result<(), Error> {
        self.send(&frame(request)?)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let sent = self.socket.write_all(bytes).and_then(|()| self.socket.flush());
        sent.map_err(|error| unreachable(&self.node, error))
    }

    fn read(&mut self) -> Result<Response, Error> {
        let mut length = [0; 4];
        self.socket
            .read_exact(&mut length)
            .map_err(|error| unreachable(&self.node, error))?;
        let length = u32::from_le_bytes(length);
        if length > MAX_FRAME_BYTES {
            return Err(Error::new(
                Code::ProtocolViolation,
                format!("the node announced a response of {length} bytes"),
            ));
        }
        let mut json = vec![0; length as usize];
        self.socket
            .read_exact(&mut json)
            .map_err(|error| unreachable(&self.node, error))?;
        match serde_json::from_slice(&json) {
            Ok(Response::Failed(failure)) => Err(Error(failure)),
            Ok(response) => Ok(response),
            Err(error) => Err(Error::new(
                Code::ProtocolViolation,
                format!("the node's response cannot be decoded: {error}"),
            )),
        }
    }

    /// Sends a request and reads its response.
    pub fn ask(&mut self, request: &Request) -> Result<Response, Error> {
        self.write(request)?;
        self.read()
    }

    /// Sends code. The node checks that it has this hash.
    pub fn put_code(&mut self, hash: CodeHash, code: &[u8]) -> Result<(), Error> {
        self.write(&Request::PutCode {
            hash,
            length: code.len() as u64,
        })?;
        self.send(code)?;
        self.read().map(|_| ())
    }
}
