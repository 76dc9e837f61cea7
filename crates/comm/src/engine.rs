//! The engine: transports, requests, and the state of the ranks.

mod contexts;
pub mod counters;
mod driver;
mod failures;
mod lazy_connect;
mod scratch;
mod shared;
mod synchronous;
mod wait;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dayfly_fabric::libfabric::Choice;
use dayfly_protocol::error::{Code, Failure};
use rustix::event::epoll;

use crate::matching::{
    ANY_SOURCE, Body, MatchKey, Matching, Rendezvous, Request, RequestId, State, Status, Unexpected,
};
use crate::options::Options;
use crate::wire::envelope::{Envelope, Offer, kind};
use crate::wire::{Outgoing, Payload, PeerTransport};
use crate::{LostRanks, Route};
pub use driver::Watched;
pub use failures::CommunicatorRecord;
use lazy_connect::LazyConnections;
pub use shared::{EngineGuard, SharedEngine};
pub use wait::WaitState;
use wait::online_cores;

/// How long a leaving rank waits for its sent bytes to be taken.
const LEAVE_LIMIT: Duration = Duration::from_secs(2);
/// Sends between two checks for arrivals and failures.
const SENDS_PER_LOOK: u64 = 1024;
/// Longest sleep while bytes wait for room in a ring of shared memory, which no event announces.
const MAX_UNFLUSHED_SLEEP: Duration = Duration::from_millis(1);
/// Events that are read at a time.
const EVENTS: usize = 64;

/// Result of starting an operation.
#[derive(Debug)]
pub enum Started {
    Done(Status),
    Pending(RequestId),
}

/// The state of a rank.
#[derive(Debug)]
pub struct Engine {
    pub rank: u32,
    pub size: u32,
    pub options: Options,
    pub matching: Matching,
    pub communicators: Vec<CommunicatorRecord>,
    /// Contexts below this one are, or were, in use.
    next_context: u32,
    transports: Vec<Option<PeerTransport>>,
    routes: Vec<Option<Route>>,
    /// Connections on demand, if ranks connect on demand.
    lazy: Option<Box<LazyConnections>>,
    /// Ranks whose transports must be polled: no event announces their messages.
    polled: Vec<u32>,
    /// Ranks whose sockets cause events.
    event_driven: Vec<u32>,
    /// Streams that may have more to read, by rank.
    readable: Vec<bool>,
    poller: Option<OwnedFd>,
    lost: Arc<LostRanks>,
    departed: Vec<bool>,
    /// Whether any failure is known that makes operations fail.
    has_failures: bool,
    checks: wait::FailureChecks,
    oversubscribed: bool,
    /// Whether new transports must expect that the other rank sleeps.
    peers_sleep: bool,
    scratch: Vec<Vec<u8>>,
    /// Number of started sends.
    sends: u64,
}

impl Engine {
    pub fn new(
        rank: u32,
        transports: Vec<Option<PeerTransport>>,
        routes: Vec<Option<Route>>,
        lost: Arc<LostRanks>,
        options: Options,
    ) -> Result<Self, Failure> {
        let size = transports.len() as u32;
        let of_kind = |wanted: fn(&PeerTransport) -> bool| -> Vec<u32> {
            let found = transports.iter().enumerate();
            let found = found.filter(|(_, transport)| transport.as_ref().is_some_and(wanted));
            found.map(|(rank, _)| rank as u32).collect()
        };
        let polled = of_kind(|transport| !transport.is_event_driven());
        let event_driven = of_kind(PeerTransport::is_event_driven);
        let neighbours = of_kind(PeerTransport::is_near).len();
        let mut engine = Self {
            rank,
            size,
            matching: Matching::new(size, options.unexpected_bytes),
            communicators: Vec::new(),
            next_context: 0,
            oversubscribed: neighbours + 1 > online_cores(),
            peers_sleep: false,
            poller: None,
            readable: vec![true; size as usize],
            transports,
            routes,
            lazy: None,
            polled,
            event_driven,
            lost,
            departed: vec![false; size as usize],
            has_failures: false,
            checks: wait::FailureChecks::default(),
            scratch: Vec::new(),
            sends: 0,
            options,
        };
        engine.watch_streams()?;
        Ok(engine)
    }

    /// The libfabric provider for this rank; `None` if the bytes do not go over libfabric.
    pub fn fabric(&self, rank: u32) -> Option<Choice> {
        match self.transports.get(rank as usize)? {
            Some(PeerTransport::Stream(transport)) => transport.fabric(),
            _ => None,
        }
    }

    /// How bytes to this rank travel; `None` without a connection.
    pub fn route(&self, rank: u32) -> Option<Route> {
        match self.fabric(rank) {
            Some(_) => Some(Route::Fabric),
            None => *self.routes.get(rank as usize)?,
        }
    }

    /// Sets an epoll up, if there are several streams.
    fn watch_streams(&mut self) -> Result<(), Failure> {
        if self.event_driven.len() < 2 {
            return Ok(());
        }
        let watch = || -> std::io::Result<OwnedFd> {
            let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            for peer in &self.event_driven {
                if let Some(transport) = &self.transports[*peer as usize] {
                    let data = epoll::EventData::new_u64((*peer).into());
                    epoll::add(&poller, transport.socket().0, data, epoll::EventFlags::IN)?;
                }
            }
            Ok(poller)
        };
        let poller = watch().map_err(|error| {
            let text = format!("watching the group's connections failed: {error}");
            Failure::new(Code::Internal, text)
        })?;
        self.poller = Some(poller);
        Ok(())
    }

    /// Moves bytes on all transports. Returns whether any moved.
    #[inline]
    pub fn progress(&mut self) -> bool {
        let mut moved = self.lazy.is_some() && self.connect_more();
        for at in 0..self.polled.len() {
            moved |= self.progress_with(self.polled[at]);
        }
        if !self.event_driven.is_empty() {
            moved |= self.progress_streams();
        }
        if !self.matching.events.is_empty() {
            self.handle_events();
        }
        if !moved && self.matching.relax_limit() {
            // A stream has read the message that it holds up, so that no event announces it.
            self.readable.fill(true);
            moved = true;
        }
        moved
    }

    fn progress_streams(&mut self) -> bool {
        if let Some(poller) = &self.poller {
            let mut events = [const { std::mem::MaybeUninit::uninit() }; EVENTS];
            let now = rustix::event::Timespec::default();
            if let Ok((ready, _)) = epoll::wait(poller, &mut events, Some(&now)) {
                for event in ready {
                    if let Some(readable) = self.readable.get_mut(event.data.u64() as usize) {
                        *readable = true;
                    }
                }
            }
        }
        let mut moved = false;
        let only = self.event_driven.len() == 1;
        for at in 0..self.event_driven.len() {
            let peer = self.event_driven[at];
            let unflushed = || {
                self.transports[peer as usize]
                    .as_ref()
                    .is_some_and(|transport| !transport.is_flushed())
            };
            if only || self.readable[peer as usize] || unflushed() {
                let more = self.progress_with(peer);
                self.readable[peer as usize] = more;
                moved |= more;
            }
        }
        moved
    }

    #[inline]
    fn progress_with(&mut self, peer: u32) -> bool {
        let Some(transport) = &mut self.transports[peer as usize] else {
            return false;
        };
        match transport.progress(&mut self.matching) {
            Ok(moved) => moved,
            Err(failure) => {
                self.lose(peer, failure.message);
                false
            }
        }
    }

    /// Starts a send.
    ///
    /// # Safety
    /// `length` bytes at `start` must be readable and unchanged until the request is complete or cancelled.
    #[inline]
    pub unsafe fn send(
        &mut self,
        peer: u32,
        key: MatchKey,
        start: *const u8,
        length: usize,
    ) -> Result<Started, Failure> {
        self.sends = self.sends.wrapping_add(1);
        if self.sends.is_multiple_of(SENDS_PER_LOOK) {
            self.check_progress();
        }
        if self.has_failures {
            self.check(peer, &key)?;
        }
        let MatchKey { context, tag, call } = key;
        let envelope = Envelope {
            sequence: 0,
            kind: kind::EAGER,
            context,
            tag,
            length: length as u64,
            call,
        };
        if peer == self.rank {
            // SAFETY: required of the caller.
            let bytes = unsafe { std::slice::from_raw_parts(start, length) };
            self.matching.deliver(peer, &envelope, bytes);
            return Ok(Started::Done(Status::default()));
        }
        let Some(Some(transport)) = self.transports.get_mut(peer as usize) else {
            return self.send_when_connected(peer, envelope, start, length);
        };
        if length <= transport.immediate_bytes() {
            // SAFETY: required of the caller.
            let bytes = unsafe { std::slice::from_raw_parts(start, length) };
            match transport.try_send(envelope, bytes) {
                Ok(true) => return Ok(Started::Done(Status::default())),
                Ok(false) => {}
                Err(failure) => {
                    self.lose(peer, failure.message);
                    return Err(self.lost_or_left(peer));
                }
            }
        }
        self.send_later(peer, envelope, start, length)
    }

    /// Checks for arrivals and failures, as a waiting rank does all the time. A rank that only sends never waits, and
    /// would go on long after the loss of a rank.
    #[cold]
    fn check_progress(&mut self) {
        self.progress();
        self.check_for_failures();
    }

    /// Starts a send that finds no room, or that must be offered first.
    #[cold]
    fn send_later(
        &mut self,
        peer: u32,
        envelope: Envelope,
        start: *const u8,
        length: usize,
    ) -> Result<Started, Failure> {
        let id = self.matching.add_send(peer, &envelope, start, length)?;
        self.send_as(id, peer, envelope, start, length)?;
        Ok(Started::Pending(id))
    }

    /// Passes a send to its transport.
    fn send_as(
        &mut self,
        id: RequestId,
        peer: u32,
        mut envelope: Envelope,
        start: *const u8,
        length: usize,
    ) -> Result<(), Failure> {
        let Some(Some(transport)) = self.transports.get_mut(peer as usize) else {
            return Err(self.no_connection(peer));
        };
        let synchronous = self.matching.get(id).is_some_and(|request| request.synchronous);
        let message = if length <= transport.eager_bytes() && !synchronous {
            Outgoing {
                envelope,
                payload: Payload::Borrowed(start, length),
                request: Some(id),
            }
        } else {
            envelope.kind = kind::OFFER;
            envelope.sequence = id.to_wire();
            if let Some(request) = self.matching.get_mut(id) {
                request.rendezvous = Rendezvous::Offered;
            }
            let offer = Offer {
                token: id.to_wire().into(),
                address: start as u64,
            };
            Outgoing {
                envelope,
                payload: Payload::Extra(zerocopy::transmute!(offer)),
                request: None,
            }
        };
        if let Err(failure) = transport.send(message, &mut self.matching) {
            self.cancel(id);
            self.lose(peer, failure.message);
            return Err(self.lost_or_left(peer));
        }
        Ok(())
    }

    /// Starts a receive.
    ///
    /// # Safety
    /// `length` bytes at `start` must be writable and used by no one else until the request is complete or cancelled.
    #[inline]
    pub unsafe fn receive(
        &mut self,
        peer: u32,
        key: MatchKey,
        start: *mut u8,
        length: usize,
    ) -> Result<Started, Failure> {
        if peer != ANY_SOURCE
            && self.matching.is_idle(peer)
            && let Some(Some(PeerTransport::Shm(transport))) = self.transports.get_mut(peer as usize)
            && let Some(envelope) = transport.try_receive(&key, start, length)
        {
            return Ok(Started::Done(Status {
                source: peer,
                tag: envelope.tag,
                length: envelope.length,
            }));
        }
        let waiting = self.matching.take_unexpected(peer, key.context, key.tag);
        if self.has_failures && waiting.is_none() {
            self.check(peer, &key)?;
        }
        if self.lazy.is_some() && waiting.is_none() {
            self.want(peer);
        }
        let id = self.matching.post(peer, key, start, length)?;
        if let Some((source, message)) = waiting {
            self.take_waiting(id, source, message)?;
        }
        Ok(Started::Pending(id))
    }

    /// Passes a waiting message to the receive that was just posted for it.
    #[cold]
    fn take_waiting(&mut self, id: RequestId, source: u32, message: Unexpected) -> Result<(), Failure> {
        if !self.matching.match_with(id, source, &message.envelope) {
            self.handle_events();
            return Ok(());
        }
        match message.body {
            Body::Bytes(bytes) => self.matching.fill(id, &bytes),
            Body::Own(send) => self.matching.fill_from_own(id, send),
            Body::Offer(offer) => {
                let Some(Some(transport)) = self.transports.get_mut(source as usize) else {
                    return Err(self.no_connection(source));
                };
                if let Err(failure) = transport.accept(offer, id, &mut self.matching) {
                    self.lose(source, failure.message);
                    return Err(self.lost_or_left(source));
                }
            }
        }
        Ok(())
    }

    /// Ends a request early, and releases its memory.
    pub fn cancel(&mut self, id: RequestId) {
        let concerned = match self.matching.get(id).map(|request| (request.state, request.peer)) {
            Some((State::Sending | State::Receiving, peer)) if peer != ANY_SOURCE => Some(peer),
            _ => None,
        };
        if let Some(peer) = concerned
            && let Some(Some(transport)) = self.transports.get_mut(peer as usize)
        {
            transport.cancel(id, &self.matching);
        }
        if concerned == Some(self.rank) {
            self.matching.withdraw_own(self.rank, id);
        }
        self.take_back(id);
        self.matching.forget(id);
    }

    /// Ends a request with an error, which the waiting caller receives.
    fn fail(&mut self, id: RequestId, failure: Failure) {
        if let Some(&Request { state, peer, .. }) = self.matching.get(id)
            && matches!(state, State::Sending | State::Receiving)
            && let Some(Some(transport)) = self.transports.get_mut(peer as usize)
        {
            transport.cancel(id, &self.matching);
        }
        self.take_back(id);
        self.matching.fail(id, failure);
    }

    /// Sends a control message to another rank, unless that rank is unreachable.
    pub fn tell(&mut self, peer: u32, message: Outgoing) {
        match self.transports.get_mut(peer as usize) {
            Some(Some(transport)) => {
                if let Err(failure) = transport.send(message, &mut self.matching) {
                    self.lose(peer, failure.message);
                }
            }
            _ => self.tell_when_connected(peer, message),
        }
    }

    /// Adds the record of a new communicator. Returns its index.
    pub fn add_record(&mut self, record: CommunicatorRecord) -> usize {
        match self
            .communicators
            .iter()
            .position(|record| !record.open.load(Ordering::Acquire))
        {
            Some(at) => {
                self.communicators[at] = record;
                at
            }
            None => {
                self.communicators.push(record);
                self.communicators.len() - 1
            }
        }
    }

    /// Sends a farewell to all ranks.
    fn leave(&mut self) {
        for peer in 0..self.size {
            if self.transports[peer as usize].is_some() && !self.departed[peer as usize] {
                let farewell = Envelope {
                    kind: kind::LEAVES,
                    ..Envelope::default()
                };
                self.tell(peer, Outgoing::control(farewell));
            }
        }
        let until = Instant::now() + LEAVE_LIMIT;
        let unflushed = |engine: &Self| {
            let mut transports = engine.transports.iter().flatten();
            engine.has_unsent() || transports.any(|transport| !transport.may_close() && !transport.is_closed())
        };
        while unflushed(self) && Instant::now() < until {
            if !self.progress() {
                std::thread::yield_now();
            }
        }
    }
}
