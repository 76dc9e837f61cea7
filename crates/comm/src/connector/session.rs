//! The session of one rank in a sandbox.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use dayfly_fabric::stream::wire::Wire;
use dayfly_protocol::error::{Code, Failure};
use dayfly_rendezvous::client::Contact;
use dayfly_rendezvous::messages;
use dayfly_rendezvous::socket::timespec;
use rustix::event::epoll;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, Shutdown, SocketFlags, SocketType, socketpair};

use super::messages::{FromRank, ToRank, VERSION, is_for_now, receive, send};
use super::permit::Orders;
use super::pump::{End, Pump, Turn};
use crate::connect::plan::Ways;
use crate::connect::socket::is_near;
use crate::invitation::Invitation;
use crate::join::{Formed, JoinOptions, form};
use crate::road::{Road, Via};

/// Limit for a rank to send its request, and to take what it is sent.
const WORD: Duration = Duration::from_secs(5);
/// How long the last bytes of a rank that left are carried on.
const LINGER: Duration = Duration::from_secs(10);
/// Interval at which those bytes are checked for acknowledgement.
const LOOK: Duration = Duration::from_millis(10);
/// Longest wait.
const LONG: Duration = Duration::from_secs(60);
/// Memory for all connections of one rank, divided among them within these bounds.
const BUFFERS: usize = 32 << 20;
const LEAST_BUFFER: usize = 16 << 10;
const MAX_BUFFER: usize = 256 << 10;

const CONTROL: u64 = 0;
const CONTACT: u64 = 1;
const FIRST_PUMP: u64 = 2;

/// Serves a rank to its end.
pub fn serve(socket: OwnedFd, orders: &Orders) {
    let invitation = match first_word(&socket) {
        Ok(Some(invitation)) => invitation,
        Ok(None) => return,
        Err(failure) => return refuse(&socket, failure),
    };
    let formed = orders.check(&invitation).and_then(|()| join(&socket, &invitation));
    match formed {
        // If the rank is gone or takes nothing, dropping its contact reports the loss to the rendezvous.
        Ok(formed) => drop(Session::begin(socket, formed).and_then(|mut session| session.run())),
        Err(failure) => refuse(&socket, failure),
    }
}

/// Sends a refusal.
pub fn refuse(socket: &OwnedFd, failure: Failure) {
    // Unread bytes on a closed packet socket would discard the refusal.
    let _ = rustix::net::shutdown(socket, Shutdown::Read);
    while rustix::net::recv(socket, &mut [0; 1], RecvFlags::DONTWAIT).is_ok_and(|(count, _)| count > 0) {}
    let _ = send(socket, &ToRank::Failed { failure }, None);
}

fn violation(text: impl std::fmt::Display) -> Failure {
    Failure::new(
        Code::ProtocolViolation,
        format!("the node did not understand what a rank asked of it: {text}; use one release of Dayfly"),
    )
}

/// Reads which group the rank wants to join; `None` if the rank has closed the connection.
fn first_word(socket: &OwnedFd) -> Result<Option<Invitation>, Failure> {
    let limits = set_socket_timeout(socket, Timeout::Recv, Some(WORD))
        .and_then(|()| set_socket_timeout(socket, Timeout::Send, Some(WORD)));
    limits.map_err(|error| Failure::new(Code::Internal, format!("a limit cannot be set: {error}")))?;
    match receive(socket) {
        Ok(Some((FromRank::Join { version, invitation }, _))) if version == VERSION => Ok(Some(*invitation)),
        Ok(Some((FromRank::Join { version, .. }, _))) => Err(Failure::new(
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

fn join(socket: &OwnedFd, invitation: &Invitation) -> Result<Formed, Failure> {
    let asker = socket
        .try_clone()
        .map_err(|error| Failure::new(Code::Internal, format!("no descriptor is left: {error}")))?;
    let options = JoinOptions {
        ways: Ways {
            cautious: true,
            ..Ways::default()
        },
        ..invitation.options()?
    };
    form(&options, asker)
}

/// A rank that belongs to a group.
struct Session {
    socket: OwnedFd,
    /// The connection to the rendezvous, while it lasts and the rank belongs to the group.
    contact: Option<Contact>,
    writing: bool,
    heartbeat: Duration,
    heard: Instant,
    pumps: Vec<Option<Pump>>,
    /// Pumps that can continue at once.
    ready: Vec<usize>,
    /// Losses that are not sent to the rank yet.
    untold: VecDeque<ToRank>,
    /// After the rank left or died: the deadline for the last bytes.
    until: Option<Instant>,
    epoll: OwnedFd,
}

impl Session {
    /// Sends the rank its place and its sockets.
    fn begin(socket: OwnedFd, formed: Formed) -> io::Result<Self> {
        let Formed {
            seat,
            roads,
            hosts,
            connecting,
            contact,
            ..
        } = formed;
        let heartbeat = contact.heartbeat().unwrap_or(LONG);
        let host = |rank: usize| hosts.get(rank).copied().unwrap_or(seat.rank);
        let said = ToRank::Seat {
            rank: seat.rank,
            size: seat.size,
            host: host(seat.rank as usize),
            connecting_us: u64::try_from(connecting.as_micros()).unwrap_or(u64::MAX),
            heartbeat_ms: u64::try_from(heartbeat.as_millis()).unwrap_or(u64::MAX),
        };
        send(&socket, &said, None)?;
        let buffer = (BUFFERS / 2 / roads.len().max(1)).clamp(LEAST_BUFFER, MAX_BUFFER);
        let mut pumps = Vec::new();
        for (at, (road, rank)) in roads.into_iter().zip(0u32..).enumerate() {
            let said = |via, shares, near| ToRank::Road {
                rank,
                host: host(at),
                via,
                shares,
                near,
            };
            match road {
                // A group with a store was refused.
                None | Some(Road::Stored { .. }) => {}
                Some(Road::Local(far) | Road::Carried { socket: far, .. }) => {
                    send(&socket, &said(Via::Local, true, true), Some(far.as_fd()))?;
                }
                Some(Road::Remote {
                    socket: far,
                    session,
                    via,
                }) => {
                    let near = is_near(&far);
                    let (ours, theirs) =
                        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
                    let far = Wire::over(far.into(), session)?;
                    send(&socket, &said(via, false, near), Some(theirs.as_fd()))?;
                    pumps.push(Some(Pump::new(ours, far, buffer)));
                }
            }
        }
        rustix::io::ioctl_fionbio(&socket, true)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let watch = |source: rustix::fd::BorrowedFd<'_>, token, flags| {
            epoll::add(&epoll, source, epoll::EventData::new_u64(token), flags)
        };
        watch(socket.as_fd(), CONTROL, epoll::EventFlags::IN)?;
        watch(contact.socket().as_fd(), CONTACT, epoll::EventFlags::IN)?;
        let changes = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        for (pump, token) in pumps.iter().flatten().zip((FIRST_PUMP..).step_by(2)) {
            watch(pump.socket(End::Near), token, changes)?;
            watch(pump.socket(End::Far), token + 1, changes)?;
        }
        Ok(Self {
            socket,
            contact: Some(contact),
            writing: false,
            heartbeat,
            heard: Instant::now(),
            // Bytes that arrived with the handshakes cause no further event.
            ready: (0..pumps.len()).collect(),
            pumps,
            untold: VecDeque::new(),
            until: None,
            epoll,
        })
    }

    /// Runs until the rank has gone and its last bytes were sent.
    fn run(&mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(256);
        loop {
            self.attend_contact()?;
            self.tell();
            let now = Instant::now();
            if self.until.is_none() && now.duration_since(self.heard) > self.heartbeat {
                let silent = format!("it was silent for {} ms: its process hangs", self.heartbeat.as_millis());
                if let Some(contact) = self.contact.take() {
                    contact.leave(Some(silent));
                }
                return Ok(());
            }
            if let Some(until) = self.until
                && (now >= until || self.pumps.iter().all(Option::is_none))
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
                    CONTACT => {}
                    token => self.wake(token - FIRST_PUMP, event.flags),
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
        if self.pumps.iter().flatten().any(Pump::lingers) {
            return LOOK;
        }
        let ping = self.contact.as_ref().and_then(Contact::next_ping);
        let next = [ping, self.until, Some(self.heard + self.heartbeat)];
        let next = next.into_iter().flatten().min().unwrap_or(now + LONG);
        next.saturating_duration_since(now)
    }

    fn wake(&mut self, place: u64, flags: epoll::EventFlags) {
        let (at, end) = (
            (place / 2) as usize,
            if place.is_multiple_of(2) { End::Near } else { End::Far },
        );
        let over = flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::RDHUP | epoll::EventFlags::ERR);
        if let Some(Some(pump)) = self.pumps.get_mut(at) {
            let (reads, writes) = (epoll::EventFlags::IN, epoll::EventFlags::OUT);
            pump.wake(end, over || flags.intersects(reads), over || flags.intersects(writes));
            if !self.ready.contains(&at) {
                self.ready.push(at);
            }
        }
    }

    fn carry(&mut self) {
        let lingering = self.pumps.iter().enumerate();
        let lingering = lingering.filter_map(|(at, pump)| pump.as_ref().is_some_and(Pump::lingers).then_some(at));
        let mut ready = std::mem::take(&mut self.ready);
        ready.extend(lingering);
        for at in ready {
            let Some(Some(pump)) = self.pumps.get_mut(at) else {
                continue;
            };
            match pump.turn() {
                Turn::Waits => {}
                Turn::GoesOn => self.ready.push(at),
                Turn::Over => self.pumps[at] = None,
            }
        }
        self.ready.dedup();
    }

    /// Reads the rank's messages.
    fn listen(&mut self) {
        loop {
            match receive::<FromRank>(&self.socket) {
                Ok(Some((FromRank::Ping, _))) => self.heard = Instant::now(),
                Ok(Some((FromRank::Leave, _))) => {
                    if let Some(contact) = self.contact.take() {
                        contact.leave(None);
                    }
                    let _ = send(&self.socket, &ToRank::Left, None);
                    return self.end();
                }
                Err(error) if is_for_now(&error) => return,
                // It died, or sent a malformed message. Its contact ends without a farewell, so the others treat it as
                // dead.
                Ok(_) | Err(_) => {
                    self.contact = None;
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
    fn attend_contact(&mut self) -> io::Result<()> {
        let Some(contact) = &mut self.contact else {
            return Ok(());
        };
        let sound = contact.pump();
        // Messages from before its end count.
        while let Ok(Some(message)) = contact.take() {
            if let messages::ToRank::Lost { rank, reason } = message {
                self.untold.push_back(ToRank::Lost { rank, reason });
            }
        }
        if sound.is_err() || contact.has_ended() {
            self.contact = None;
            return Ok(());
        }
        if self.writing != contact.wants_write() {
            self.writing = !self.writing;
            let write = if self.writing {
                epoll::EventFlags::OUT
            } else {
                epoll::EventFlags::empty()
            };
            let flags = epoll::EventFlags::IN | write;
            epoll::modify(&self.epoll, contact.socket(), epoll::EventData::new_u64(CONTACT), flags)?;
        }
        Ok(())
    }

    /// Sends losses to the rank, as far as its socket has room.
    fn tell(&mut self) {
        while let Some(loss) = self.untold.front() {
            match send(&self.socket, loss, None) {
                // Retried at the next ping; or the rank is gone.
                Err(error) if is_for_now(&error) => return,
                _ => drop(self.untold.pop_front()),
            }
        }
    }
}
