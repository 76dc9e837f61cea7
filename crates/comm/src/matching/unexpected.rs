//! Messages that no receive has matched.

use std::collections::VecDeque;

use super::{ANY_SOURCE, ANY_TAG, Matching, RequestId, Status};
use crate::wire::envelope::{Envelope, Offer};

/// A message without a matching receive.
#[derive(Debug)]
pub struct Unexpected {
    pub envelope: Envelope,
    pub body: Body,
    arrival: u64,
}

/// A message without a receive, as [`Matching::take_arrived`] finds it.
#[derive(Debug)]
pub enum Waiting {
    /// Its bytes, which are taken.
    Bytes(Vec<u8>),
    /// Its length in bytes. It still waits.
    Offered(u64),
}

#[derive(Debug)]
pub enum Body {
    Bytes(Vec<u8>),
    Offer(Offer),
    /// A synchronous send of this rank to itself, which waits for its receive.
    Own(RequestId),
}

impl Matching {
    /// Keeps a message until a receive matches it.
    pub fn keep(&mut self, source: u32, envelope: Envelope, body: Body) {
        if self.retired.contains(&envelope.context) {
            return;
        }
        self.arrivals += 1;
        if let Body::Bytes(bytes) = &body {
            self.waiting_bytes += bytes.len() + size_of::<Unexpected>();
        }
        self.unexpected[source as usize].push_back(Unexpected {
            envelope,
            body,
            arrival: self.arrivals,
        });
        if let Some(driver) = &self.driver {
            driver.wake();
        }
    }

    fn find_unexpected(&self, source: u32, context: u32, tag: u32) -> Option<(u32, usize)> {
        let in_queue = |queue: &VecDeque<Unexpected>| {
            queue.iter().position(|waiting| {
                waiting.envelope.context == context && (tag == ANY_TAG || waiting.envelope.tag == tag)
            })
        };
        if source != ANY_SOURCE {
            let queue = &self.unexpected[source as usize];
            return if queue.is_empty() {
                None
            } else {
                in_queue(queue).map(|at| (source, at))
            };
        }
        let queues = self.unexpected.iter().enumerate();
        queues
            .filter_map(|(source, queue)| in_queue(queue).map(|at| (source as u32, at)))
            .min_by_key(|(source, at)| self.unexpected[*source as usize][*at].arrival)
    }

    /// The first waiting message that such a receive would match.
    pub fn probe(&self, source: u32, context: u32, tag: u32) -> Option<Status> {
        let (source, at) = self.find_unexpected(source, context, tag)?;
        let envelope = &self.unexpected[source as usize][at].envelope;
        Some(Status {
            source,
            tag: envelope.tag,
            length: envelope.length,
        })
    }

    /// Takes the first waiting message that such a receive would match.
    #[inline]
    pub fn take_unexpected(&mut self, source: u32, context: u32, tag: u32) -> Option<(u32, Unexpected)> {
        let (source, at) = self.find_unexpected(source, context, tag)?;
        let found = self.unexpected[source as usize].remove(at)?;
        if let Body::Bytes(bytes) = &found.body {
            self.waiting_bytes -= bytes.len() + size_of::<Unexpected>();
        }
        Some((source, found))
    }

    /// Takes the first waiting message of a rank with this tag, if all of it has arrived. One that is only offered stays,
    /// to be received.
    pub fn take_arrived(&mut self, source: u32, context: u32, tag: u32) -> Option<Waiting> {
        let (source, at) = self.find_unexpected(source, context, tag)?;
        let waiting = &self.unexpected[source as usize][at];
        if let Body::Offer(_) | Body::Own(_) = waiting.body {
            return Some(Waiting::Offered(waiting.envelope.length));
        }
        match self.take_unexpected(source, context, tag)?.1.body {
            Body::Bytes(bytes) => Some(Waiting::Bytes(bytes)),
            Body::Offer(_) | Body::Own(_) => None,
        }
    }

    /// Messages that wait for a receive, and the bytes of memory that they take up.
    pub fn waiting(&self) -> (usize, usize) {
        (self.unexpected.iter().map(VecDeque::len).sum(), self.waiting_bytes)
    }

    /// Removes an offer that its sender withdrew. Returns whether no receive had matched it.
    pub fn withdraw(&mut self, source: u32, token: u64) -> bool {
        let queue = &mut self.unexpected[source as usize];
        let all = queue.len();
        queue.retain(|waiting| !matches!(waiting.body, Body::Offer(offer) if offer.token == token));
        queue.len() < all
    }

    /// Removes a synchronous send of this rank to itself that no receive has matched.
    pub fn withdraw_own(&mut self, own: u32, send: RequestId) {
        self.unexpected[own as usize].retain(|waiting| !matches!(waiting.body, Body::Own(id) if id == send));
    }

    /// Drops the waiting messages of a context, and those that arrive later. Nothing may use it any more.
    pub fn retire(&mut self, context: u32) {
        self.purge(context);
        self.retired.insert(context);
    }

    /// Drops the waiting messages of a context without receives, to make room.
    pub fn purge(&mut self, context: u32) {
        for queue in &mut self.unexpected {
            queue.retain(|waiting| waiting.envelope.context != context);
        }
        let queues = self.unexpected.iter().flatten();
        let bytes = queues.map(|waiting| match &waiting.body {
            Body::Bytes(bytes) => bytes.len() + size_of::<Unexpected>(),
            Body::Offer(_) | Body::Own(_) => 0,
        });
        self.waiting_bytes = bytes.sum();
    }

    /// Drops the offers of a lost rank, which cannot be accepted any more.
    pub fn withdraw_all(&mut self, source: u32) {
        self.unexpected[source as usize].retain(|waiting| !matches!(waiting.body, Body::Offer(_)));
    }
}
