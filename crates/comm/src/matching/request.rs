//! Sends and receives of this rank, and the table that holds them.

use std::ops::{Index, IndexMut};

use dayfly_protocol::error::{Code, Failure};

use crate::wire::envelope::{COLLECTIVE, Envelope};

/// Matches every source rank.
pub const ANY_SOURCE: u32 = u32::MAX;
/// Matches every tag.
pub const ANY_TAG: u32 = u32::MAX;

const INDEX_BITS: u32 = 20;

/// Index of a request, and the generation of that index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId(u32);

impl RequestId {
    fn new(index: usize, generation: u32) -> Self {
        Self(index as u32 | generation << INDEX_BITS)
    }

    fn index(self) -> usize {
        (self.0 & ((1 << INDEX_BITS) - 1)) as usize
    }

    /// The id as it is sent to another rank.
    pub fn to_wire(self) -> u32 {
        self.0
    }

    /// An id that another rank sent. It is not checked here.
    pub fn from_wire(token: u32) -> Self {
        Self(token)
    }
}

/// Result of a completed receive or a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Status {
    /// Rank of the sender.
    pub source: u32,
    /// The message's tag.
    pub tag: u32,
    /// Length of the message in bytes.
    pub length: u64,
}

/// The fields by which messages match receives, besides the sender.
#[derive(Debug, Clone, Copy)]
pub struct MatchKey {
    pub context: u32,
    pub tag: u32,
    pub call: u64,
}

impl MatchKey {
    /// Whether the envelope has this key and the required length. [`Matching::match_arrival`] handles the others.
    #[inline]
    pub fn fits(&self, envelope: &Envelope, room: usize) -> bool {
        let same = self.context == envelope.context && self.call == envelope.call;
        same && match self.context & COLLECTIVE {
            0 => (self.tag == envelope.tag || self.tag == ANY_TAG) && envelope.length <= room as u64,
            _ => self.tag == envelope.tag && envelope.length == room as u64,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Free,
    /// A receive without a match.
    Posted,
    /// A receive whose bytes are arriving.
    Receiving,
    /// A send that is not complete.
    Sending,
    Done,
}

/// How far a send is that was offered before its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rendezvous {
    /// It was not offered.
    None,
    Offered,
    /// The receiver has accepted it and copies it.
    Copied,
    /// The receiver has accepted it; its bytes are in the outbox.
    Queued,
}

/// A send or a receive.
#[derive(Debug)]
pub struct Request {
    generation: u32,
    pub state: State,
    /// The other rank, or [`ANY_SOURCE`].
    pub peer: u32,
    pub context: u32,
    pub tag: u32,
    pub call: u64,
    pub start: *mut u8,
    /// Bytes to send, or bytes of room.
    pub length: usize,
    pub status: Status,
    pub failure: Option<Failure>,
    /// Whether a send completes only when a receive has matched it.
    pub synchronous: bool,
    pub rendezvous: Rendezvous,
    /// Bytes received so far, of a message in several parts.
    pub filled: usize,
    /// Number of the request in the order of posting.
    pub(super) post: u64,
}

impl Request {
    /// A request that is in no table yet.
    #[inline]
    pub(super) fn new(state: State, peer: u32, key: MatchKey, start: *mut u8, length: usize, post: u64) -> Self {
        let MatchKey { context, tag, call } = key;
        Self {
            generation: 0,
            state,
            peer,
            context,
            tag,
            call,
            start,
            length,
            status: Status::default(),
            failure: None,
            synchronous: false,
            rendezvous: Rendezvous::None,
            filled: 0,
            post,
        }
    }
}

/// All requests of a rank. An id is valid until its request is removed.
#[derive(Debug, Default)]
pub(super) struct RequestTable {
    requests: Vec<Request>,
    free: Vec<u32>,
}

impl RequestTable {
    /// Adds a request. Returns an error if there are `2^INDEX_BITS` already.
    #[inline]
    pub fn insert(&mut self, request: Request) -> Result<RequestId, Failure> {
        let index = match self.free.pop() {
            Some(index) => {
                let slot = &mut self.requests[index as usize];
                let generation = slot.generation;
                *slot = Request { generation, ..request };
                index as usize
            }
            None if self.requests.len() >> INDEX_BITS != 0 => {
                return Err(Failure::new(
                    Code::OutOfMemory,
                    "a million requests are pending; wait for some of them",
                ));
            }
            None => {
                self.requests.push(request);
                self.requests.len() - 1
            }
        };
        Ok(RequestId::new(index, self.requests[index].generation))
    }

    /// Removes a request, if it exists.
    pub fn remove(&mut self, id: RequestId) {
        if let Some(request) = self.get_mut(id) {
            request.state = State::Free;
            request.failure = None;
            request.generation = (request.generation + 1) & ((1 << (32 - INDEX_BITS)) - 1);
            self.free.push(id.index() as u32);
        }
    }

    /// The request with this id, unless it was removed.
    #[inline]
    pub fn get(&self, id: RequestId) -> Option<&Request> {
        let request = self.requests.get(id.index())?;
        (id == RequestId::new(id.index(), request.generation) && request.state != State::Free).then_some(request)
    }

    /// As [`RequestTable::get`], mutable.
    #[inline]
    pub fn get_mut(&mut self, id: RequestId) -> Option<&mut Request> {
        let request = self.requests.get_mut(id.index())?;
        (id == RequestId::new(id.index(), request.generation) && request.state != State::Free).then_some(request)
    }

    /// All requests that are not complete.
    pub fn pending(&self) -> impl Iterator<Item = (RequestId, &Request)> {
        let all = self.requests.iter().enumerate();
        all.filter(|(_, request)| !matches!(request.state, State::Free | State::Done))
            .map(|(index, request)| (RequestId::new(index, request.generation), request))
    }
}

impl Index<RequestId> for RequestTable {
    type Output = Request;

    #[inline]
    fn index(&self, id: RequestId) -> &Request {
        &self.requests[id.index()]
    }
}

impl IndexMut<RequestId> for RequestTable {
    #[inline]
    fn index_mut(&mut self, id: RequestId) -> &mut Request {
        &mut self.requests[id.index()]
    }
}

/// The error of a receive whose buffer is too small.
pub fn truncated(request: &Request) -> Failure {
    Failure::new(
        Code::Truncated,
        format!(
            "rank {} sent {} bytes under tag {}, and the receiver has room for {}; receive into more, or probe first",
            request.status.source, request.status.length, request.status.tag, request.length
        ),
    )
}
