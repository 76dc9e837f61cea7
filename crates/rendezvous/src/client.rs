//! A rank's connection to the rendezvous. It does not block; its owner polls the socket.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use dayfly_fabric::tls;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::PublicKey;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::ClientConnection;

use crate::keys::GroupKeys;
use crate::messages::{FromRank, MAX_TO_RANK, PROBE_BYTES, ToRank, from_probe, take_frame, to_frame};
use crate::socket::{dial, wait_for};

/// Pings in each heartbeat interval, since some may be late.
const PINGS_PER_HEARTBEAT: u32 = 10;
/// Heartbeat intervals without a response after which the rendezvous counts as gone.
const SILENT_HEARTBEATS: u32 = 3;
/// Limit for the server to notice that a rank leaves.
const FAREWELL: Duration = Duration::from_millis(500);
/// Limit for the probe port's response.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// A TLS connection to the rendezvous.
pub struct RendezvousClient {
    socket: TcpStream,
    session: ClientConnection,
    received: Vec<u8>,
    server: SocketAddr,
    local: SocketAddr,
    heartbeat: Option<Duration>,
    pinged: Instant,
    last_received: Instant,
    ended: bool,
    /// A socket of the process that this rank acts for. When its other end closes, the connection fails.
    requester: Option<OwnedFd>,
}

/// Interval at which that process is checked.
const REQUESTER_CHECK: Duration = Duration::from_millis(250);

fn has_hung_up(socket: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(socket, PollFlags::RDHUP)];
    let gone = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR;
    poll(&mut polled, Some(&Timespec::default())).is_ok() && polled[0].revents().intersects(gone)
}

fn unreachable(server: impl std::fmt::Display, what: impl std::fmt::Display) -> Failure {
    Failure::new(Code::Unreachable, format!("the rendezvous at {server} {what}"))
}

fn until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Waits for a connection that was begun.
fn finish(socket: &TcpStream, deadline: Instant) -> io::Result<()> {
    while !wait_for(socket, true, until(deadline))? {
        if until(deadline).is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    socket.take_error()?.map_or(Ok(()), Err)
}

fn connected(server: SocketAddr, deadline: Instant) -> io::Result<TcpStream> {
    // Bind a port that later connections can share.
    let socket = dial(server, Some(0))?;
    finish(&socket, deadline)?;
    Ok(socket)
}

impl RendezvousClient {
    /// Connects to the first of the server's addresses that accepts, and authenticates with the group's key. With
    /// `pinned`, only a server with that key is accepted.
    pub fn open(
        server: &str,
        pinned: Option<&PublicKey>,
        keys: &GroupKeys,
        deadline: Instant,
    ) -> Result<Self, Failure> {
        let addresses = server.to_socket_addrs().map_err(|error| {
            Failure::new(
                Code::InvalidRequest,
                format!("`{server}` is not the address of a rendezvous (host:port): {error}"),
            )
        })?;
        let addresses: Vec<SocketAddr> = addresses.collect();
        let mut failed = Vec::new();
        for (at, address) in addresses.iter().enumerate() {
            // A name may have unreachable addresses; divide the remaining time among the rest.
            let others = u32::try_from(addresses.len() - at).unwrap_or(u32::MAX);
            match connected(*address, Instant::now() + until(deadline) / others) {
                Ok(socket) => return Self::over(socket, *address, pinned, keys),
                Err(error) => failed.push(format!("{address}: {error}")),
            }
        }
        Err(unreachable(
            server,
            format_args!("cannot be reached ({})", failed.join("; ")),
        ))
    }

    fn over(
        socket: TcpStream,
        server: SocketAddr,
        pinned: Option<&PublicKey>,
        keys: &GroupKeys,
    ) -> Result<Self, Failure> {
        let session = match pinned {
            Some(key) => tls::client(keys.member(), key),
            None => tls::client_of_any(keys.member()),
        };
        let mut session =
            session.map_err(|error| Failure::new(Code::Internal, format!("TLS cannot begin: {error}")))?;
        session.set_buffer_limit(None);
        let local = socket.local_addr().map_err(|error| unreachable(server, error))?;
        Ok(Self {
            socket,
            session,
            received: Vec::new(),
            server,
            local,
            heartbeat: None,
            pinged: Instant::now(),
            last_received: Instant::now(),
            ended: false,
            requester: None,
        })
    }

    /// Sets a socket whose end makes [`Self::pump`] fail.
    pub fn act_on_behalf_of(&mut self, requester: Option<OwnedFd>) {
        self.requester = requester;
    }

    /// How long this rank may be silent before the server considers it lost.
    pub fn heartbeat(&self) -> Option<Duration> {
        self.heartbeat
    }

    /// The server's address of this connection.
    pub fn server(&self) -> SocketAddr {
        self.server
    }

    /// The local address of this connection.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// The socket to poll.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Whether to poll for writing.
    pub fn wants_write(&self) -> bool {
        self.session.wants_write()
    }

    /// Whether the connection has ended.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Starts pings. `heartbeat` is how long this rank may be silent before the server considers it lost.
    pub fn keep_alive(&mut self, heartbeat: Duration) {
        self.heartbeat = Some(heartbeat);
        self.last_received = Instant::now();
    }

    /// Queues a message; the next [`Self::pump`] sends it.
    pub fn send(&mut self, message: &FromRank) -> Result<(), Failure> {
        let written = self.session.writer().write_all(&to_frame(message));
        written.map_err(|error| unreachable(self.server, error))
    }

    /// Writes and reads without blocking, and pings if it is due. The end of the connection is an error once everything
    /// before it has been read.
    pub fn pump(&mut self) -> Result<(), Failure> {
        if self.requester.as_ref().is_some_and(has_hung_up) {
            return Err(Failure::new(Code::Cancelled, "its process has ended"));
        }
        if let Some(heartbeat) = self.heartbeat {
            let now = Instant::now();
            if now.duration_since(self.last_received) > heartbeat * SILENT_HEARTBEATS {
                return Err(unreachable(self.server, "no longer responds"));
            }
            if now.duration_since(self.pinged) >= heartbeat / PINGS_PER_HEARTBEAT {
                self.pinged = now;
                self.send(&FromRank::Ping)?;
            }
        }
        self.write()?;
        self.read()?;
        // Send the handshake's response.
        self.write()
    }

    /// When the next ping is due.
    pub fn next_ping(&self) -> Option<Instant> {
        Some(self.pinged + self.heartbeat? / PINGS_PER_HEARTBEAT)
    }

    fn write(&mut self) -> Result<(), Failure> {
        while self.session.wants_write() && !self.ended {
            match self.session.write_tls(&mut self.socket) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The last messages may still be readable.
                Err(_) => return Ok(()),
            }
        }
        Ok(())
    }

    fn read(&mut self) -> Result<(), Failure> {
        let mut plain = [0; 16 << 10];
        while !self.ended {
            match self.session.read_tls(&mut self.socket) {
                Ok(0) => self.ended = true,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => self.ended = true,
            }
            let processed = self.session.process_new_packets().map_err(|error| {
                Failure::new(
                    Code::Unauthorized,
                    format!(
                        "the rendezvous at {} does not have the expected key, or is not a rendezvous: {error}",
                        self.server
                    ),
                )
            })?;
            let mut left = processed.plaintext_bytes_to_read();
            while left > 0 {
                let count = self.session.reader().read(&mut plain).unwrap_or(0);
                if count == 0 {
                    break;
                }
                self.received.extend_from_slice(&plain[..count]);
                self.last_received = Instant::now();
                left -= count;
            }
        }
        Ok(())
    }

    /// Takes the next received message. A refusal is returned as an error.
    pub fn take(&mut self) -> Result<Option<ToRank>, Failure> {
        match take_frame(&mut self.received, MAX_TO_RANK)? {
            Some(ToRank::Refused { failure }) => Err(failure),
            Some(message) => Ok(Some(message)),
            None if self.ended => Err(unreachable(self.server, "ended the connection")),
            None => Ok(None),
        }
    }

    /// Waits for the next message; `None` after the deadline.
    pub fn wait(&mut self, deadline: Instant) -> Result<Option<ToRank>, Failure> {
        loop {
            self.pump()?;
            if let Some(message) = self.take()? {
                return Ok(Some(message));
            }
            let now = Instant::now();
            if now >= deadline {
                return Ok(None);
            }
            let mut wake = self.next_ping().map_or(deadline, |ping| ping.min(deadline));
            if self.requester.is_some() {
                wake = wake.min(now + REQUESTER_CHECK);
            }
            wait_for(&self.socket, self.wants_write(), wake.saturating_duration_since(now))
                .map_err(|error| unreachable(self.server, error))?;
        }
    }

    /// Leaves the group; a reason informs the others that something is wrong. Returns when the server has noticed, or
    /// after 500 ms. So a rank that joins under the same name afterwards does not meet this one.
    pub fn leave(mut self, reason: Option<String>) {
        self.requester = None;
        let deadline = Instant::now() + FAREWELL;
        let mut result = self.send(&FromRank::Leave { reason });
        while result.is_ok() && !self.ended && Instant::now() < deadline {
            result = self.pump();
            let wait = wait_for(&self.socket, self.wants_write(), until(deadline));
            self.received.clear();
            if wait.is_err() {
                return;
            }
        }
    }

    /// Returns the address from which the probe port sees a second connection from our port. Pings continue meanwhile.
    pub fn probe(&mut self, port: u16, deadline: Instant) -> Result<io::Result<SocketAddr>, Failure> {
        let mut to = self.server;
        to.set_port(port);
        let mut probe = match dial(to, Some(self.local.port())) {
            Ok(socket) => Probe {
                socket,
                response: [0; PROBE_BYTES],
                had: 0,
            },
            Err(error) => return Ok(Err(error)),
        };
        let deadline = deadline.min(Instant::now() + PROBE_TIMEOUT);
        loop {
            self.pump()?;
            match probe.read() {
                Ok(None) if Instant::now() < deadline => {}
                Ok(None) => return Ok(Err(io::ErrorKind::TimedOut.into())),
                Ok(Some(seen)) => return Ok(Ok(seen)),
                Err(error) => return Ok(Err(error)),
            }
            let wake = self.next_ping().map_or(deadline, |ping| ping.min(deadline));
            if let Err(error) = wait_for(&probe.socket, probe.is_new(), until(wake)) {
                return Ok(Err(error));
            }
        }
    }
}

/// A connection to the probe port.
struct Probe {
    socket: TcpStream,
    response: [u8; PROBE_BYTES],
    had: usize,
}

impl Probe {
    fn is_new(&self) -> bool {
        self.socket.peer_addr().is_err()
    }

    /// The response, once it is complete.
    fn read(&mut self) -> io::Result<Option<SocketAddr>> {
        if let Some(error) = self.socket.take_error()? {
            return Err(error);
        }
        if self.is_new() {
            return Ok(None);
        }
        while self.had < self.response.len() {
            match self.socket.read(&mut self.response[self.had..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.had += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let seen = from_probe(&self.response).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Some(seen))
    }
}
