//! Plans, requests and batches between ranks, over posts.
//!
//! All requests go to lane 0 of a rank. A request names lanes of its sender, on which the responses arrive: one for each
//! partition, so that no partition waits for another. A lane carries its schema, batches, and an end or an error.
//! Batches that are there at once share a message. A sender makes no further batch while more than a few MiB of a lane
//! have not left: the receiver's memory is bounded by the post's credit, the sender's by that.

mod batches;
mod channel;
mod error;
mod held;
mod measures;
mod outputs;
mod reader;
mod recoveries;
mod requests;
mod samples;
mod server;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Instant;

use bytes::Bytes;
use dayfly_comm::post::{Delivery, Post, PostError};
use dayfly_protocol::error::{Code, Failure};
use url::Url;

use crate::kept::FrameId;
use crate::progress::Queries;
use recoveries::Recoveries;
use samples::Sorts;

pub use batches::compact;
pub use channel::{RECEIVED_BYTES, RankChannels, copied_parts, kept_rows};
pub use error::ExchangeError;
pub use held::Holder;
pub use measures::unplanned;
pub use recoveries::{Policy, Recovering, guide, recovering_of};
pub use samples::{Part, cuts_of};
pub use server::serve;

/// The lane of requests.
const REQUESTS: u32 = 0;

/// One rank's end of all exchanges.
#[derive(Debug)]
pub struct Exchange {
    post: Post,
    /// Number of ranks that execute tasks: the first ones.
    workers: u32,
    next_lane: AtomicU32,
    queries: Queries,
    recoveries: Recoveries,
    sorts: Sorts,
    /// Frames of the session whose rows the ranks keep.
    kept_frames: AtomicUsize,
}

impl Exchange {
    /// Exchanges over this post, whose lanes belong to it, with so many ranks that execute tasks.
    pub fn new(post: Post, workers: u32) -> Arc<Self> {
        Arc::new(Self {
            post,
            workers,
            next_lane: AtomicU32::new(1),
            queries: Queries::default(),
            recoveries: Recoveries::default(),
            sorts: Sorts::default(),
            kept_frames: AtomicUsize::new(0),
        })
    }

    /// Number of ranks.
    pub fn size(&self) -> u32 {
        self.post.size()
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.post.rank()
    }

    /// Number of ranks that execute tasks. This rank may be one of them.
    pub fn workers(&self) -> u32 {
        self.workers
    }

    /// The queries that this rank has planned.
    pub fn queries(&self) -> &Queries {
        &self.queries
    }

    /// The tasks of these that may run again.
    fn recoveries(&self) -> &Recoveries {
        &self.recoveries
    }

    /// The ranks that execute tasks and are not known to be lost. Only [`guide`] learns of losses.
    pub fn left(&self) -> Vec<u32> {
        let lost = self.recoveries.lost();
        (0..self.workers).filter(|rank| !lost.contains(rank)).collect()
    }

    /// Tells the rank of the session that this one takes requests.
    pub fn announce(&self, session: u32) {
        // A rank that is lost needs no word.
        let _ = self.send(session, REQUESTS, vec![requests::encoded(&requests::Request::Ready)]);
    }

    /// Waits until all workers take requests. A loss before would keep those that still open their posts from it, and
    /// the session would lose them too.
    pub fn wait_for_workers(&self, deadline: Instant) -> Result<(), Failure> {
        let mut ready = BTreeSet::new();
        while ready.len() < self.workers as usize {
            let message = self.post.receive(REQUESTS, deadline).map_err(|error| match error {
                PostError::Closed => Failure::new(Code::RankLost, "the ranks ended before they took requests"),
                error => error.into(),
            })?;
            let part = message.parts().first();
            if let Some(Ok(requests::Request::Ready)) = part.map(|part| rmp_serde::from_slice(part)) {
                ready.insert(message.from());
            }
        }
        Ok(())
    }

    /// The session has a kept frame, until it [forgets](Self::forget) it.
    pub fn remember(&self) {
        self.kept_frames.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether no query is under way, and no frame is kept.
    pub fn is_idle(&self) -> bool {
        self.kept_frames.load(Ordering::Relaxed) == 0 && self.queries.running().is_empty()
    }

    /// Has the ranks forget a kept frame.
    pub fn forget(&self, id: FrameId) {
        self.kept_frames.fetch_sub(1, Ordering::Relaxed);
        for rank in 0..self.workers {
            // A rank that is lost keeps nothing.
            let _ = self.send(
                rank,
                REQUESTS,
                vec![requests::encoded(&requests::Request::Forget { id })],
            );
        }
    }

    /// Ends the exchanges of all ranks.
    pub fn revoke(&self) {
        self.post.revoke();
    }

    /// Lanes of this rank that nobody uses: the first of them. Lane 0 is never among them.
    fn lanes(&self, count: u32) -> u32 {
        loop {
            let first = self.next_lane.fetch_add(count, Ordering::Relaxed);
            if first != REQUESTS && first.checked_add(count).is_some() {
                return first;
            }
        }
    }

    fn send(&self, to: u32, lane: u32, parts: Vec<Bytes>) -> Result<Delivery, PostError> {
        self.post.send(to, lane, parts)
    }
}

/// The address by which the planner knows a rank.
pub fn address_of(rank: u32) -> Url {
    Url::parse(&format!("rank://{rank}/")).expect("a number makes an address")
}

/// The rank that is lost, if that is the error. A lane goes on with the other ranks then.
fn lost_rank(error: &PostError) -> Option<u32> {
    match error {
        PostError::PeerLost { rank, .. } => Some(*rank),
        _ => None,
    }
}

/// The rank of an address.
fn rank_of(address: &Url) -> Option<u32> {
    (address.scheme() == "rank").then(|| address.host_str()?.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_names_its_rank() {
        assert_eq!(rank_of(&address_of(7)), Some(7));
        assert_eq!(rank_of(&Url::parse("http://7/").unwrap()), None);
        assert_eq!(rank_of(&Url::parse("rank://x/").unwrap()), None);
    }
}
