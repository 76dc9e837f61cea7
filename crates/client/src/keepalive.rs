//! Notices within 300 ms that a node on another host is lost: switched off, or cut off by the network.
//!
//! A connection reports nothing when its remote host disappears, and a computing worker is silent too. So one thread
//! for each such node sends a small request ten times a second over a separate connection. The host's state is derived
//! from its kernel's acknowledgements, not from the responses, so a slow node is not taken for lost. Shared memory and
//! the loopback interface need none of this: the kernel reports the end.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use dayfly_fabric::stream::wire::unacknowledged_bytes;
use dayfly_lease::SigningKey;
use dayfly_protocol::api::NodeAddress;
use dayfly_protocol::error::Code;
use dayfly_protocol::hello::Token;
use dayfly_protocol::ids::NodeId;
use dayfly_protocol::node_api::{MAX_FRAME_BYTES, Request};

use crate::Error;
use crate::node::{Socket, frame, open_control};

/// Interval of requests to a node that responds.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// Interval while requests are unacknowledged. The acknowledgement of the next request also covers a lost one.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// A host is lost when it acknowledges nothing for this time plus four round trips.
const SILENCE: Duration = Duration::from_millis(140);
/// A sleep that takes this much longer than requested means that this host was slow, not the other.
const OVERSLEPT: Duration = Duration::from_millis(50);
/// Most requests without a response while the kernel acknowledges them.
const MAX_PENDING_REPLIES: u32 = 1024;

/// Watches one node for all connections of this client to it.
pub struct Keepalive {
    node: NodeAddress,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Connections to shut down when the node is lost.
    connections: Vec<Weak<OwnedFd>>,
    /// How long the node was silent when it was declared lost.
    lost: Option<Duration>,
    /// The watching thread has ended.
    over: bool,
}

/// The watched nodes of a client.
#[derive(Default)]
pub struct Keepalives(Mutex<HashMap<NodeId, Weak<Keepalive>>>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Keepalives {
    /// Returns the watch of a node. It begins at the first call and ends when its last holder drops it.
    pub fn of(&self, node: &NodeAddress, token: &Token, holder: &SigningKey) -> Result<Arc<Keepalive>, Error> {
        let mut all = lock(&self.0);
        let known = all.get(&node.id).and_then(Weak::upgrade);
        if let Some(known) = known.filter(|known| !lock(&known.state).over) {
            return Ok(known);
        }
        all.retain(|_, watch| watch.strong_count() > 0);
        let watch = Arc::new(Keepalive {
            node: node.clone(),
            state: Mutex::default(),
        });
        let (weak, address, token, holder) = (Arc::downgrade(&watch), node.clone(), *token, holder.clone());
        std::thread::Builder::new()
            .name("dayfly-keepalive".into())
            .spawn(move || {
                // A node that refuses this connection refuses the others too; they report the error.
                let socket = open_control(&address, false, &token, &holder).ok();
                let lost = socket.and_then(|socket| Questions::new(socket).ask(&weak));
                if let Some(watch) = weak.upgrade() {
                    watch.end(lost);
                }
            })
            .map_err(|error| Error::new(Code::OutOfMemory, format!("no thread can watch over the node: {error}")))?;
        all.insert(node.id, Arc::downgrade(&watch));
        Ok(watch)
    }
}

impl Keepalive {
    /// Shuts this connection down when the node is lost.
    pub fn guard(&self, connection: &Arc<OwnedFd>) {
        let mut state = lock(&self.state);
        if state.lost.is_some() {
            let _ = rustix::net::shutdown(connection, rustix::net::Shutdown::Both);
        }
        state.connections.retain(|other| other.strong_count() > 0);
        state.connections.push(Arc::downgrade(connection));
    }

    /// Returns an error if the node is lost.
    pub fn check(&self) -> Result<(), Error> {
        match lock(&self.state).lost {
            None => Ok(()),
            Some(silence) => Err(Error::new(
                Code::Unreachable,
                format!(
                    "the node {} ({}) is lost: its host has acknowledged nothing for {} ms; lease elsewhere, or wait until it \
                     is back",
                    self.node.name,
                    self.node.id,
                    silence.as_millis()
                ),
            )),
        }
    }

    fn end(&self, lost: Option<Duration>) {
        let mut state = lock(&self.state);
        (state.lost, state.over) = (lost, true);
        let connections = std::mem::take(&mut state.connections);
        if lost.is_some() {
            for connection in connections.iter().filter_map(Weak::upgrade) {
                let _ = rustix::net::shutdown(connection, rustix::net::Shutdown::Both);
            }
        }
    }
}

/// Requests over one connection, and the state of their responses.
struct Questions {
    socket: Socket,
    unanswered: u32,
    /// Bytes of an incomplete response.
    partial: Vec<u8>,
    asked: Instant,
    /// When the first unacknowledged request was sent; `None` if all are acknowledged.
    unacknowledged: Option<Instant>,
    /// Smoothed time between a request and its response.
    round_trip: Duration,
}

impl Questions {
    fn new(socket: Socket) -> Self {
        Self {
            socket,
            unanswered: 0,
            partial: Vec::new(),
            asked: Instant::now(),
            unacknowledged: None,
            round_trip: Duration::ZERO,
        }
    }

    /// Sends requests until the watch is dropped or the node is gone. Returns how long the host was silent if it is
    /// lost.
    fn ask(mut self, watch: &Weak<Keepalive>) -> Option<Duration> {
        let question = frame(&Request::Ping).ok()?;
        loop {
            let every = if self.unacknowledged.is_some() {
                ASK_AGAIN
            } else {
                ASK_EVERY
            };
            let nap = every.saturating_sub(self.asked.elapsed());
            if nap.is_zero() && self.unanswered < MAX_PENDING_REPLIES {
                self.socket.write_all(&question).ok()?;
                self.socket.flush().ok()?;
                self.asked = Instant::now();
                self.unanswered += 1;
                self.unacknowledged.get_or_insert(self.asked);
            }
            let nap = if nap.is_zero() { ASK_AGAIN } else { nap };
            let begun = Instant::now();
            match self.listen(nap) {
                Heard::Something => {}
                Heard::Closed => return None,
                Heard::NoWay => return Some(self.unacknowledged.unwrap_or(self.asked).elapsed()),
            }
            if watch.strong_count() == 0 {
                return None;
            }
            if unacknowledged_bytes(&self.socket) == 0 {
                self.unacknowledged = None;
            }
            if begun.elapsed() > nap + OVERSLEPT {
                // This thread did not read meanwhile: the silence counts anew.
                self.unacknowledged = self.unacknowledged.map(|_| Instant::now());
            }
            let silence = self.unacknowledged.map(|since| since.elapsed());
            match silence {
                Some(silence) if silence > SILENCE + 4 * self.round_trip => return Some(silence),
                _ => {}
            }
        }
    }

    /// Reads responses for `limit`.
    fn listen(&mut self, limit: Duration) -> Heard {
        let mut bytes = [0; 1024];
        let read = self.socket.set_limit(limit).and_then(|()| self.socket.read(&mut bytes));
        match read {
            Ok(0) => Heard::Closed,
            Ok(count) => {
                self.partial.extend(&bytes[..count]);
                while let Some(length) = first_answer(&self.partial) {
                    self.partial.drain(..length);
                    self.unanswered = self.unanswered.saturating_sub(1);
                    if self.unanswered == 0 {
                        self.round_trip = (self.round_trip * 7 + self.asked.elapsed()) / 8;
                    }
                }
                // No response is that long.
                match self.partial.len() > MAX_FRAME_BYTES as usize {
                    true => Heard::Closed,
                    false => Heard::Something,
                }
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::Interrupted => Heard::Something,
                ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => Heard::NoWay,
                _ => Heard::Closed,
            },
        }
    }
}

/// Result of one read.
enum Heard {
    /// Responses, or nothing yet.
    Something,
    /// The node closed the connection. Its channels end by themselves.
    Closed,
    /// The kernel has no route to the host.
    NoWay,
}

/// Length of the first response in bytes, including its length field; `None` if it is incomplete.
fn first_answer(bytes: &[u8]) -> Option<usize> {
    let (length, rest) = bytes.split_first_chunk()?;
    let length = u32::from_le_bytes(*length) as usize;
    (rest.len() >= length).then_some(length + 4)
}
