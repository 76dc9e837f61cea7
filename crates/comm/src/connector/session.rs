//! The session of one rank in a sandbox.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use dayfly_fabric::stream::wire::Wire;
use dayfly_protocol::error::{Code, Failure};
use dayfly_rendezvous::client::RendezvousClient;
use dayfly_rendezvous::messages;
use dayfly_rendezvous::socket::timespec;
use rustix::event::epoll;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, Shutdown, SocketFlags, SocketType, socketpair};

use super::config::ConnectorConfig;
use super::forwarder::{End, Forwarder, Turn};
use super::messages::{ConnectorMessage, ConnectorRequest, VERSION, is_for_now, receive, send};
use crate::connect::plan::RouteOptions;
use crate::connect::socket::is_near;
use crate::invitation::Invitation;
use crate::join::{ConnectedRank, JoinOptions, form};
use crate::{PeerConnection, Route};

/// Limit for a rank to send its request, and to take what it is sent.
const MESSAGE_LIMIT: Duration = Duration::from_secs(5);
/// How long the last bytes of a rank that left are carried on.
const LINGER: Duration = Duration::from_secs(10);
/// Interval at which those bytes are checked for acknowledgement.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Longest wait.
const LONG: Duration = Duration::from_secs(60);
/// Memory for all connections of one rank, divided among them within these bounds.
const BUFFERS: usize = 32 << 20;
const MIN_BUFFER: usize = 16 << 10;
const MAX_BUFFER: usize = 256 << 10;

const CONTROL: u64 = 0;
const RENDEZVOUS: u64 = 1;
const FIRST_FORWARDER: u64 = 2;

/// Serves a rank to its end.
pub fn serve(socket: OwnedFd, config: &ConnectorConfig) {
    let invitation = match read_request(&socket) {
        Ok(Some(invitation)) => invitation,
        Ok(None) => return,
        Err(failure) => return refuse(&socket, failure),
    };
    let formed = config.check(&invitation).and_then(|()| join(&socket, &invitation));
    match formed {
        // If the rank is gone or takes nothing, dropping the connection reports the loss to the rendezvous.
        Ok(formed) => drop(Session::begin(socket, formed).and_then(|mut session| session.run())),
        Err(failure) => refuse(&socket, failure),
    }
}

/// Sends a refusal.
pub fn refuse(socket: &OwnedFd, failure: Failure) {
    // Unread bytes on a closed packet socket would discard the refusal.
    let _ = rustix::net::shutdown(socket, Shutdown::Read);
    while rustix::net::recv(socket, &mut [0; 1], RecvFlags::DONTWAIT).is_ok_and(|(count, _)| count > 0) {}
    let _ = send(socket, &ConnectorMessage::Failed { failure }, None);
}

fn violation(text: impl std::fmt::Display) -> Failure {
    Failure::new(
        Code::ProtocolViolation,
        format!("the node did not understand what a rank asked of it: {text}; use one release of Dayfly"),
    )
}

/// Reads which group the rank wants to join; `None` if the rank has closed the connection.
fn read_request(socket: &OwnedFd) -> Result<Option<Invitation>, Failure> {
    let limits = set_socket_timeout(socket, Timeout::Recv, Some(MESSAGE_LIMIT))
        .and_then(|()| set_socket_timeout(socket, Timeout::Send, Some(MESSAGE_LIMIT)));
    limits.map_err(|error| Failure::new(Code::Internal, format!("a limit cannot be set: {error}")))?;
    match receive(socket) {
        Ok(Some((ConnectorRequest::Join { version, invitation }, _))) if version == VERSION => Ok(Some(*invitation)),
        Ok(Some((ConnectorRequest::Join { version, .. }, _))) => Err(Failure::new(
            Code::VersionMismatch,
            format!(
                "the node joins groups in version {VERSION} and the rank asks in {version}; use one release of Dayfly"
            ),
        )),
        Ok(Some(_)) => Err(violation("its first word was not which group it wants")),
        Ok(None) => Ok(None),
        Err(error) if is_for_now(&error) => Err(Failure::new(Code::TimedOut, "a rank did not say what it wants")),
        Err(error) => Err(violation(error)),
    }
}

fn join(socket: &OwnedFd, invitation: &Invitation) -> Result<ConnectedRank, Failure> {
    let requester = socket
        .try_clone()
        .map_err(|error| Failure::new(Code::Internal, format!("no descriptor is left: {error}")))?;
    let options = JoinOptions {
        routes: RouteOptions {
            cautious: true,
            ..RouteOptions::default()
        },
        ..invitation.options()?
    };
    form(&options, requester)
}

/// A rank that belongs to a group.
struct Session {
    socket: OwnedFd,
    /// The connection to the rendezvous, while it lasts and the rank belongs to the group.
    rendezvous: Option<RendezvousClient>,
    writing: bool,
    heartbeat: Duration,
    last_ping: Instant,
    forwarders: Vec<Option<Forwarder>>,
    /// Pumps that can continue at once.
    ready: Vec<usize>,
    /// Losses that are not sent to the rank yet.
    unsent_losses: VecDeque<ConnectorMessage>,
    /// After the rank left or died: the deadline for the last bytes.
    until: Option<Instant>,
    epoll: OwnedFd,
}

impl Session {
    /// Sends the rank its place and its sockets.
    fn begin(socket: OwnedFd, formed: ConnectedRank) -> io::Result<Self> {
        let ConnectedRank {
            seat,
            connections,
            hosts,
            connecting,
            rendezvous,
            ..
        } = formed;
        let heartbeat = rendezvous.heartbeat().unwrap_or(LONG);
        let host = |rank: usize| hosts.get(rank).copied().unwrap_or(seat.rank);
        let said = ConnectorMessage::Seat {
            rank: seat.rank,
            size: seat.size,
            host: host(seat.rank as usize),
            connecting_us: u64::try_from(connecting.as_micros()).unwrap_or(u64::MAX),
            heartbeat_ms: u64::try_from(heartbeat.as_millis()).unwrap_or(u64::MAX),
        };
        send(&socket, &said, None)?;
        let buffer = (BUFFERS / 2 / connections.len().max(1)).clamp(MIN_BUFFER, MAX_BUFFER);
        let mut forwarders = Vec::new();
        for (at, (connection, rank)) in connections.into_iter().zip(0u32..).enumerate() {
            let said = |route, shares, near| ConnectorMessage::Connection {
                rank,
                host: host(at),
                route,
                shares,
                near,
            };
            match connection {
                // A group with a store was refused.
                None | Some(PeerConnection::Stored { .. }) => {}
                Some(PeerConnection::Local(far) | PeerConnection::Carried { socket: far, .. }) => {
                    send(&socket, &said(Route::Local, true, true), Some(far.as_fd()))?;
                }
                Some(PeerConnection::Remote {
                    socket: far,
                    session,
                    route,
                }) => {
                    let near = is_near(&far);
                    let (ours, theirs) =
                        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
                    let far = Wire::over(far.into(), session)?;
                    send(&socket, &said(route, false, near), Some(theirs.as_fd()))?;
                    forwarders.push(Some(Forwarder::new(ours, far, buffer)));
                }
            }
        }
        rustix::io::ioctl_fionbio(&socket, true)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let watch = |source: rustix::fd::BorrowedFd<'_>, token, flags| {
            epoll::add(&epoll, source, epoll::EventData::new_u64(token), flags)
        };
        watch(socket.as_fd(), CONTROL, epoll::EventFlags::IN)?;
        watch(rendezvous.socket().as_fd(), RENDEZVOUS, epoll::EventFlags::IN)?;
        let changes = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        for (forwarder, token) in forwarders.iter().flatten().zip((FIRST_FORWARDER..).step_by(2)) {
            watch(forwarder.socket(End::Near), token, changes)?;
            watch(forwarder.socket(End::Far), token + 1, changes)?;
        }
        Ok(Self {
            socket,
            rendezvous: Some(rendezvous),
            writing: false,
            heartbeat,
            last_ping: Instant::now(),
            // Bytes that arrived with the handshakes cause no further event.
            ready: (0..forwarders.len()).collect(),
            forwarders,
            unsent_losses: VecDeque::new(),
            until: None,
            epoll,
        })
    }

    /// Runs until the rank has gone and its last bytes were sent.
    fn run(&mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(256);
        loop {
            self.read_rendezvous()?;
            self.tell();
            let now = Instant::now();
            if self.until.is_none() && now.duration_since(self.last_ping) > self.heartbeat {
                let silent = format!("it was silent for {} ms: its process hangs", self.heartbeat.as_millis());
                if let Some(rendezvous) = self.rendezvous.take() {
                    rendezvous.leave(Some(silent));
                }
                return Ok(());
            }
            if let Some(until) = self.until
                && (now >= until || self.forwarders.iter().all(Option::is_none))
            {
                return Ok(());
            }
            events.clear();
            let timeout = timespec(self.wait(now));
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                match event.data.u64() {
                    CONTROL => self.listen(),
                    RENDEZVOUS => {}
                    token => self.wake(token - FIRST_FORWARDER, event.flags),
                }
            }
            self.carry();
        }
    }

    /// Longest wait until something is due.
    fn wait(&self, now: Instant) -> Duration {
        if !self.ready.is_empty() {
            return Duration::ZERO;
        }
        if self.forwarders.iter().flatten().any(Forwarder::lingers) {
            return POLL_INTERVAL;
        }
        let ping = self.rendezvous.as_ref().and_then(RendezvousClient::next_ping);
        let next = [ping, self.until, Some(self.last_ping + self.heartbeat)];
        let next = next.into_iter().flatten().min().unwrap_or(now + LONG);
        next.saturating_duration_since(now)
    }

    fn wake(&mut self, place: u64, flags: epoll::EventFlags) {
        let (at, end) = (
            (place / 2) as usize,
            if place.is_multiple_of(2) { End::Near } else { End::Far },
        );
        let over = flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::RDHUP | epoll::EventFlags::ERR);
        if let Some(Some(forwarder)) = self.forwarders.get_mut(at) {
            let (reads, writes) = (epoll::EventFlags::IN, epoll::EventFlags::OUT);
            forwarder.wake(end, over || flags.intersects(reads), over || flags.intersects(writes));
            if !self.ready.contains(&at) {
                self.ready.push(at);
            }
        }
    }

    fn carry(&mut self) {
        let lingering = self.forwarders.iter().enumerate();
        let lingering =
            lingering.filter_map(|(at, forwarder)| forwarder.as_ref().is_some_and(Forwarder::lingers).then_some(at));
        let mut ready = std::mem::take(&mut self.ready);
        ready.extend(lingering);
        for at in ready {
            let Some(Some(forwarder)) = self.forwarders.get_mut(at) else {
                continue;
            };
            match forwarder.turn() {
                Turn::Waits => {}
                Turn::GoesOn => self.ready.push(at),
                Turn::Over => self.forwarders[at] = None,
            }
        }
        self.ready.dedup();
    }

    /// Reads the rank's messages.
    fn listen(&mut self) {
        loop {
            match receive::<ConnectorRequest>(&self.socket) {
                Ok(Some((ConnectorRequest::Ping, _))) => self.last_ping = Instant::now(),
                Ok(Some((ConnectorRequest::Leave, _))) => {
                    if let Some(rendezvous) = self.rendezvous.take() {
                        rendezvous.leave(None);
                    }
                    let _ = send(&self.socket, &ConnectorMessage::Left, None);
                    return self.end();
                }
                Err(error) if is_for_now(&error) => return,
                // It died, or sent a malformed message. Its connection ends without a farewell, so the others treat it
                // as dead.
                Ok(_) | Err(_) => {
                    self.rendezvous = None;
                    return self.end();
                }
            }
        }
    }

    fn end(&mut self) {
        self.until.get_or_insert_with(|| Instant::now() + LINGER);
        // Otherwise the closed socket would cause events without end.
        let _ = epoll::delete(&self.epoll, &self.socket);
    }

    /// Reads messages of the rendezvous. Without a rendezvous the group goes on.
    fn read_rendezvous(&mut self) -> io::Result<()> {
        let Some(rendezvous) = &mut self.rendezvous else {
            return Ok(());
        };
        let sound = rendezvous.pump();
        // Messages from before its end count.
        while let Ok(Some(message)) = rendezvous.take() {
            if let messages::ToRank::Lost { rank, reason } = message {
                self.unsent_losses.push_back(ConnectorMessage::Lost { rank, reason });
            }
        }
        if sound.is_err() || rendezvous.has_ended() {
            self.rendezvous = None;
            return Ok(());
        }
        if self.writing != rendezvous.wants_write() {
            self.writing = !self.writing;
            let write = if self.writing {
                epoll::EventFlags::OUT
            } else {
                epoll::EventFlags::empty()
            };
            let flags = epoll::EventFlags::IN | write;
            epoll::modify(
                &self.epoll,
                rendezvous.socket(),
                epoll::EventData::new_u64(RENDEZVOUS),
                flags,
            )?;
        }
        Ok(())
    }

    /// Sends losses to the rank, as far as its socket has room.
    fn tell(&mut self) {
        while let Some(loss) = self.unsent_losses.front() {
            match send(&self.socket, loss, None) {
                // Retried at the next ping; or the rank is gone.
                Err(error) if is_for_now(&error) => return,
                _ => drop(self.unsent_losses.pop_front()),
            }
        }
    }
}
