//! The requests of this rank, and the matching of messages with receives.
//!
//! Messages from one rank in one context match receives in the order in which they were sent. Receives are considered
//! in the order in which they were posted (the rules of MPI 4.0, section 3.5). Ranks are those of the whole group.

mod request;
mod unexpected;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_protocol::error::Failure;

use request::RequestTable;
pub use request::{ANY_SOURCE, ANY_TAG, MatchKey, Rendezvous, Request, RequestId, State, Status, truncated};
pub use unexpected::{Body, Unexpected, Waiting};

use crate::wake::Wake;
use crate::wire::envelope::{COLLECTIVE, Envelope};

/// How long to wait for the reason why another rank gave up a collective.
const GIVE_UP_LIMIT: Duration = Duration::from_millis(500);

/// An event that concerns a whole communicator.
#[derive(Debug, Clone, Copy)]
pub struct GroupEvent {
    /// The rank that caused it.
    pub source: u32,
    pub kind: GroupEventKind,
    pub context: u32,
    /// Number of the collective.
    pub tag: u32,
    /// The call of the other rank.
    pub call: u64,
}

impl GroupEvent {
    /// An event about another rank's envelope.
    pub fn of(source: u32, kind: GroupEventKind, envelope: &Envelope) -> Self {
        Self {
            source,
            kind,
            context: envelope.context,
            tag: envelope.tag,
            call: envelope.call,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub enum GroupEventKind {
    /// The other rank's call differs from ours.
    Called,
    /// The other rank sent this many bytes (first) where this many (second) were due.
    Length(u64, u64),
    /// The other rank reports that two ranks disagree.
    Mismatch(crate::wire::Mismatch),
    /// The other rank leaves.
    Leaves,
}

/// All requests of this rank, and messages without a matching receive.
#[derive(Debug)]
pub struct Matching {
    requests: RequestTable,
    posted: Vec<VecDeque<RequestId>>,
    posted_any: VecDeque<RequestId>,
    posts: u64,
    unexpected: Vec<VecDeque<Unexpected>>,
    waiting_bytes: usize,
    waiting_limit: usize,
    /// For each rank, whether its next message is held up by the limit.
    held_up: Vec<HeldUp>,
    is_any_held_up: bool,
    arrivals: u64,
    /// Requests that the other side gave up: when, and with which error.
    given_up: Vec<(RequestId, Instant, Failure)>,
    pub events: VecDeque<GroupEvent>,
    /// Incremented when a request completes.
    pub completions: u64,
    /// The thread that drives the engine, if there is one. It takes messages that no receive waits for.
    pub driver: Option<Arc<Wake>>,
    /// Contexts whose users have ended. Their messages are dropped.
    retired: HashSet<u32>,
}

// SAFETY: the raw pointers of requests point into memory that the request's creator keeps until the request is complete
// or cancelled; they are bound to no thread.
unsafe impl Send for Matching {}

impl Matching {
    pub fn new(size: u32, waiting_limit: usize) -> Self {
        Self {
            requests: RequestTable::default(),
            posted: (0..size).map(|_| VecDeque::new()).collect(),
            posted_any: VecDeque::new(),
            posts: 0,
            unexpected: (0..size).map(|_| VecDeque::new()).collect(),
            waiting_bytes: 0,
            waiting_limit,
            held_up: vec![HeldUp::No; size as usize],
            is_any_held_up: false,
            arrivals: 0,
            given_up: Vec::new(),
            events: VecDeque::new(),
            completions: 0,
            driver: None,
            retired: HashSet::new(),
        }
    }

    /// Adds a request.
    fn add(
        &mut self,
        state: State,
        peer: u32,
        key: MatchKey,
        start: *mut u8,
        length: usize,
    ) -> Result<RequestId, Failure> {
        self.posts += 1;
        self.requests
            .insert(Request::new(state, peer, key, start, length, self.posts))
    }

    /// Adds a send.
    pub fn add_send(
        &mut self,
        peer: u32,
        envelope: &Envelope,
        start: *const u8,
        length: usize,
    ) -> Result<RequestId, Failure> {
        let Envelope { context, tag, call, .. } = *envelope;
        let key = MatchKey { context, tag, call };
        self.add(State::Sending, peer, key, start.cast_mut(), length)
    }

    /// Posts a receive, which arriving messages may match.
    pub fn post(&mut self, peer: u32, key: MatchKey, start: *mut u8, length: usize) -> Result<RequestId, Failure> {
        let id = self.add(State::Posted, peer, key, start, length)?;
        match peer {
            ANY_SOURCE => self.posted_any.push_back(id),
            peer => self.posted[peer as usize].push_back(id),
        }
        Ok(id)
    }

    /// Whether no other receive can match a message of this rank, and none of its messages waits.
    #[inline]
    pub fn is_idle(&self, source: u32) -> bool {
        let source = source as usize;
        self.posted_any.is_empty() && self.posted[source].is_empty() && self.unexpected[source].is_empty()
    }

    /// Whether a receive waits that a message of this rank may match.
    #[inline]
    pub fn awaits(&self, source: u32) -> bool {
        !self.posted[source as usize].is_empty() || !self.posted_any.is_empty()
    }

    /// The request with this id, unless it has ended.
    pub fn get(&self, id: RequestId) -> Option<&Request> {
        self.requests.get(id)
    }

    /// As [`Matching::get`], mutable.
    pub fn get_mut(&mut self, id: RequestId) -> Option<&mut Request> {
        self.requests.get_mut(id)
    }

    /// All requests that are not complete.
    pub fn pending(&self) -> impl Iterator<Item = (RequestId, &Request)> {
        self.requests.pending()
    }

    /// The request that the other side named, if it has this state and this peer.
    pub fn named(&mut self, token: u32, state: State, source: u32) -> Option<(RequestId, &mut Request)> {
        let id = RequestId::from_wire(token);
        self.get_mut(id)
            .filter(|request| request.state == state && request.peer == source)
            .map(|request| (id, request))
    }

    /// Completes a request: all its bytes were sent or received.
    #[inline]
    pub fn complete(&mut self, id: RequestId) {
        if let Some(request) = self.get_mut(id) {
            request.state = State::Done;
            self.completions += 1;
        }
    }

    /// Ends a request with an error. Transports must have released its memory.
    pub fn fail(&mut self, id: RequestId, failure: Failure) {
        self.unpost(id);
        if let Some(request) = self.get_mut(id) {
            request.state = State::Done;
            request.failure.get_or_insert(failure);
            self.completions += 1;
        }
    }

    /// Records that the other side gave a request up. A collective has a cause that will be reported to this side too,
    /// and is more precise; the request fails with `failure` only if no such report arrives.
    pub fn give_up(&mut self, id: RequestId, failure: Failure) {
        match self.get(id) {
            Some(request) if request.context & COLLECTIVE != 0 => {
                self.given_up.push((id, Instant::now(), failure));
            }
            _ => self.fail(id, failure),
        }
    }

    /// Fails the requests that the other side gave up more than [`GIVE_UP_LIMIT`] ago.
    pub fn fail_given_up(&mut self) {
        while let Some((_, since, _)) = self.given_up.first()
            && since.elapsed() >= GIVE_UP_LIMIT
        {
            let (id, _, failure) = self.given_up.remove(0);
            self.fail(id, failure);
        }
    }

    /// Returns the outcome of a completed request and frees it; `None` if it is not complete.
    #[inline]
    pub fn take(&mut self, id: RequestId) -> Option<Result<Status, Failure>> {
        let request = self.get_mut(id)?;
        if request.state != State::Done {
            return None;
        }
        let outcome = match request.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(request.status),
        };
        self.forget(id);
        Some(outcome)
    }

    /// Frees a request.
    pub fn forget(&mut self, id: RequestId) {
        self.unpost(id);
        self.requests.remove(id);
    }

    fn unpost(&mut self, id: RequestId) {
        let Some((State::Posted, peer)) = self.get(id).map(|request| (request.state, request.peer)) else {
            return;
        };
        let queue = match peer {
            ANY_SOURCE => &mut self.posted_any,
            peer => &mut self.posted[peer as usize],
        };
        queue.retain(|posted| *posted != id);
    }

    fn find_in(&self, queue: &VecDeque<RequestId>, envelope: &Envelope) -> Option<(usize, u64)> {
        queue.iter().enumerate().find_map(|(at, id)| {
            let request = &self.requests[*id];
            let tag_fits =
                request.tag == envelope.tag || (request.tag == ANY_TAG && envelope.context & COLLECTIVE == 0);
            (request.context == envelope.context && tag_fits).then_some((at, request.post))
        })
    }

    /// The receive that matches this message: whether it is in the queue for any source, and its place there.
    fn find(&self, source: u32, envelope: &Envelope) -> Option<(bool, usize)> {
        let own = self.find_in(&self.posted[source as usize], envelope);
        if self.posted_any.is_empty() {
            return own.map(|(at, _)| (false, at));
        }
        match (own, self.find_in(&self.posted_any, envelope)) {
            (Some((at, post)), Some((_, other))) if post < other => Some((false, at)),
            (_, Some((at, _))) => Some((true, at)),
            (Some((at, _)), None) => Some((false, at)),
            (None, None) => None,
        }
    }

    /// Removes the bound on unexpected messages. After a loss, messages of abandoned operations must not block messages
    /// between the remaining ranks.
    pub fn lift_limit(&mut self) {
        self.waiting_limit = usize::MAX;
    }

    /// Receives that no message has matched.
    pub fn posted_receives(&self) -> usize {
        self.posted_any.len() + self.posted.iter().map(VecDeque::len).sum::<usize>()
    }

    /// Whether there is room for this message, matched or not. If not, it is held up.
    #[inline]
    pub fn admits(&mut self, source: u32, envelope: &Envelope) -> bool {
        self.waiting_bytes < self.waiting_limit || self.admits_above_limit(source, envelope)
    }

    #[cold]
    fn admits_above_limit(&mut self, source: u32, envelope: &Envelope) -> bool {
        if self.find(source, envelope).is_some() {
            return true;
        }
        let held_up = &mut self.held_up[source as usize];
        if *held_up == HeldUp::Allowed {
            *held_up = HeldUp::No;
            return true;
        }
        *held_up = HeldUp::Yes;
        self.is_any_held_up = true;
        false
    }

    /// Lets each rank whose next message is held up send one message above the limit. For a rank that can do nothing
    /// else: what it waits for may come after these messages. Returns whether there is such a rank.
    #[inline]
    pub fn relax_limit(&mut self) -> bool {
        if !self.is_any_held_up {
            return false;
        }
        self.is_any_held_up = false;
        for held_up in self.held_up.iter_mut().filter(|held_up| **held_up == HeldUp::Yes) {
            *held_up = HeldUp::Allowed;
        }
        true
    }

    /// Takes the receive that matches an arriving message out of its queue.
    #[inline]
    pub fn match_arrival(&mut self, source: u32, envelope: &Envelope) -> Match {
        let Some((any, at)) = self.find(source, envelope) else {
            return Match::Unexpected;
        };
        let id = match any {
            true => self.posted_any[at],
            false => self.posted[source as usize][at],
        };
        let request = &mut self.requests[id];
        if let Some(kind) = Self::objection(request, envelope) {
            self.events.push_back(GroupEvent::of(source, kind, envelope));
            return Match::Refused;
        }
        request.state = State::Receiving;
        request.peer = source;
        request.status = Status {
            source,
            tag: envelope.tag,
            length: envelope.length,
        };
        if any {
            self.posted_any.remove(at);
        } else if at == 0 {
            self.posted[source as usize].pop_front();
        } else {
            self.posted[source as usize].remove(at);
        }
        Match::Receive(id)
    }

    /// Whether a waiting message fits the receive that was posted for it; the receive then leaves its queue.
    pub fn match_with(&mut self, id: RequestId, source: u32, envelope: &Envelope) -> bool {
        let request = &self.requests[id];
        if let Some(kind) = Self::objection(request, envelope) {
            self.events.push_back(GroupEvent::of(source, kind, envelope));
            return false;
        }
        self.unpost(id);
        let request = &mut self.requests[id];
        request.state = State::Receiving;
        request.peer = source;
        request.status = Status {
            source,
            tag: envelope.tag,
            length: envelope.length,
        };
        true
    }

    /// Why a message of a collective does not fit its receive.
    #[inline]
    fn objection(request: &Request, envelope: &Envelope) -> Option<GroupEventKind> {
        if envelope.context & COLLECTIVE == 0 {
            None
        } else if request.call != envelope.call {
            Some(GroupEventKind::Called)
        } else if request.length as u64 != envelope.length {
            Some(GroupEventKind::Length(envelope.length, request.length as u64))
        } else {
            None
        }
    }

    /// Delivers a complete short message.
    #[inline]
    pub fn deliver(&mut self, source: u32, envelope: &Envelope, bytes: &[u8]) {
        match self.match_arrival(source, envelope) {
            Match::Receive(id) => self.fill(id, bytes),
            Match::Unexpected => self.keep(source, *envelope, Body::Bytes(bytes.to_vec())),
            Match::Refused => {}
        }
    }

    /// As [`Matching::deliver`], for owned bytes.
    pub fn deliver_owned(&mut self, source: u32, envelope: &Envelope, bytes: Vec<u8>) {
        match self.match_arrival(source, envelope) {
            Match::Receive(id) => self.fill(id, &bytes),
            Match::Unexpected => self.keep(source, *envelope, Body::Bytes(bytes)),
            Match::Refused => {}
        }
    }

    /// Passes a synchronous send of this rank to the receive of this rank that matched it, and completes both.
    pub fn fill_from_own(&mut self, id: RequestId, send: RequestId) {
        let Some((start, length)) = self.get(send).map(|request| (request.start, request.length)) else {
            return;
        };
        if length > 0 {
            // SAFETY: the creator of the send keeps `length` bytes readable until it is complete or cancelled.
            self.fill(id, unsafe { std::slice::from_raw_parts(start, length) });
        } else {
            self.fill(id, &[]);
        }
        self.complete(send);
    }

    /// Copies a complete message to its receive and completes it.
    #[inline]
    pub fn fill(&mut self, id: RequestId, bytes: &[u8]) {
        let request = &mut self.requests[id];
        let fits = bytes.len().min(request.length);
        // SAFETY: the creator of the request keeps room for `length` bytes until it is complete or cancelled.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), request.start, fits) };
        if bytes.len() > request.length {
            request.failure = Some(truncated(request));
        }
        request.state = State::Done;
        self.completions += 1;
    }
}

/// Whether the limit of unexpected messages holds up the next message of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HeldUp {
    No,
    Yes,
    /// One message may pass the limit.
    Allowed,
}

/// Result of matching an arriving message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Match {
    Receive(RequestId),
    Unexpected,
    /// It contradicts its receive; the error is reported to both sides.
    Refused,
}
