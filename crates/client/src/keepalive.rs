//! Notices within 300 ms that a node on another host is lost: switched off, or cut off by the network.
//!
//! A connection says nothing when its far host disappears, and a worker that computes says nothing either. So one thread for
//! each such node asks it something small ten times a second, over a connection of its own. Whether the host is there is read
//! from what its kernel acknowledges and not from the answers, so that a node that is merely slow is not taken for lost.
//! Shared memory and the loopback need none of this: the kernel tells.

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

/// How often a node that answers is asked.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// How often one is asked that has acknowledged nothing since: a question that was lost on its way is repaired by the
/// acknowledgement of the next.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// A host that acknowledges nothing for this long, and four round trips, is lost.
const SILENCE: Duration = Duration::from_millis(140);
/// Sleep of ours that took this much longer than it should says something about this host, and nothing about the other.
const OVERSLEPT: Duration = Duration::from_millis(50);
/// Questions that a node may leave unanswered while its kernel acknowledges them.
const MOST_UNANSWERED: u32 = 1024;

/// Watches over one node for all that this client has open to it.
pub struct Keepalive {
    node: NodeAddress,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What ends with the node.
    connections: Vec<Weak<OwnedFd>>,
    /// For how long nothing came from the node, when it was given up.
    lost: Option<Duration>,
    /// Nobody watches any more.
    over: bool,
}

/// The nodes that a client watches over.
#[derive(Default)]
pub struct Keepalives(Mutex<HashMap<NodeId, Weak<Keepalive>>>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Keepalives {
    /// The watch over a node, which begins with the first who asks and ends with the last who holds it.
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
                // Whoever connects to a node that refuses this hears of it by themselves.
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
    /// Ends this connection when the node is lost.
    pub fn guard(&self, connection: &Arc<OwnedFd>) {
        let mut state = lock(&self.state);
        if state.lost.is_some() {
            let _ = rustix::net::shutdown(connection, rustix::net::Shutdown::Both);
        }
        state.connections.retain(|other| other.strong_count() > 0);
        state.connections.push(Arc::downgrade(connection));
    }

    /// That the node is lost, if it is.
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

/// What is asked over one connection, and what came of it.
struct Questions {
    socket: Socket,
    unanswered: u32,
    /// Bytes of an answer that is not complete.
    partial: Vec<u8>,
    asked: Instant,
    /// When the first of those questions went out that were not acknowledged; none if all were.
    unacknowledged: Option<Instant>,
    /// Smoothed time between a question and its answer.
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

    /// Asks until nobody holds the watch any more or the node is gone; answers for how long it was silent if its host is lost.
    fn ask(mut self, watch: &Weak<Keepalive>) -> Option<Duration> {
        let question = frame(&Request::Ping).ok()?;
        loop {
            let every = if self.unacknowledged.is_some() {
                ASK_AGAIN
            } else {
                ASK_EVERY
            };
            let nap = every.saturating_sub(self.asked.elapsed());
            if nap.is_zero() && self.unanswered < MOST_UNANSWERED {
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
                // We did not listen meanwhile: the silence counts anew.
                self.unacknowledged = self.unacknowledged.map(|_| Instant::now());
            }
            let silence = self.unacknowledged.map(|since| since.elapsed());
            match silence {
                Some(silence) if silence > SILENCE + 4 * self.round_trip => return Some(silence),
                _ => {}
            }
        }
    }

    /// Takes in answers for as long as this.
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
                // No node's answer is that long.
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

/// What came of listening.
enum Heard {
    /// Answers, or nothing for the time being.
    Something,
    /// The node has closed the connection. Its channels end by themselves.
    Closed,
    /// The kernel knows no way to that host any more.
    NoWay,
}

/// Bytes of the answer that stands first, once it is complete.
fn first_answer(bytes: &[u8]) -> Option<usize> {
    let (length, rest) = bytes.split_first_chunk()?;
    let length = u32::from_le_bytes(*length) as usize;
    (rest.len() >= length).then_some(length + 4)
}
