//! Owned messages between the ranks of a group, sent and received by any thread.
//!
//! A [`Post`] has one thread that drives the rank's engine. It sleeps when nothing moves, and a send wakes it. A message
//! is a list of parts, each a run of bytes. The sender gives its parts away; nothing is borrowed. The receiver gets
//! parts in memory that the post allocated when the message was offered. Each part begins at a multiple of 64 bytes, as
//! Arrow wants its buffers.
//!
//! ```no_run
//! use std::time::{Duration, Instant};
//!
//! use dayfly_comm::Communicator;
//! use dayfly_comm::post::{Post, PostOptions};
//!
//! # fn example(communicator: &Communicator) -> Result<(), Box<dyn std::error::Error>> {
//! let post = Post::open(communicator, PostOptions::default())?; // called by all ranks
//! let deadline = Instant::now() + Duration::from_secs(60);
//! let next = (post.rank() + 1) % post.size();
//! let delivery = post.send(next, 7, vec!["name".into(), vec![0u8; 1 << 20].into()])?;
//! let message = post.receive(7, deadline)?; // or: post.next(7, None).await
//! println!("{} parts of rank {}", message.parts().len(), message.from());
//! delivery.wait(deadline)?; // optional: waits until the message has left
//! post.close(deadline)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Lanes
//!
//! A lane is a number that sender and receiver agree on, such as one stream of a query. Messages of one sender on one
//! lane arrive in order. Lanes do not wait for each other: while nobody receives on one, messages on others arrive.
//!
//! # Credit
//!
//! A message leaves only with credit of its receiver, which gets it back when the message is received. Messages of one
//! sender that were not received yet have at most [`PostOptions::window_bytes`] together, and beyond that at most one
//! message for each lane. So a lane always moves, and a message may be longer than the window. A message that waits for
//! credit stays in its sender's memory. A sender that is to be held back waits for its [`Delivery`].
//!
//! # Failures
//!
//! A send to a lost rank fails with [`PostError::PeerLost`]. The loss of a rank is reported once on every lane, after
//! the messages of that lane that had arrived; then the lane goes on with the other ranks. [`Post::revoke`] ends the
//! post on all ranks, so that nobody waits for those who have given up. Every blocking call has a deadline, and dropping
//! a post takes a few seconds at most.
//!
//! # Together with other operations
//!
//! A rank has one post at a time. Other operations of its communicators may run beside it, in other threads. While one
//! of them waits, it drives the engine too, and the post's messages may wait for it for some milliseconds.

mod delivery;
mod driver;
mod error;
mod incoming;
mod layout;
mod link;
mod memory;
mod outgoing;
mod receive;
mod registration;
mod state;
mod word;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dayfly_protocol::error::{Code, Failure};
use zerocopy::IntoBytes;

use crate::group::Communicator;
use crate::wake::Wake;

pub use delivery::Delivery;
use driver::Driver;
pub use error::PostError;
use layout::Layout;
pub use receive::Receive;
use registration::Registration;
use state::{Phase, Shared, Submission};

/// Most parts of a message.
pub const MAX_PARTS: usize = 65_535;
/// Most bytes of a message that [`PostOptions::message_bytes`] may allow.
pub const MAX_MESSAGE_BYTES: u64 = 1 << 40;
/// Smallest [`PostOptions::window_bytes`].
pub const MIN_WINDOW_BYTES: u64 = 64 << 10;
/// Longest time that dropping a post waits for its thread.
pub const MAX_DROP_TIME: Duration = Duration::from_secs(3);

/// Bounds of a post.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PostOptions {
    /// Bytes of messages from one sender that were not received yet; equal on all ranks. See [Credit](self#credit).
    pub window_bytes: u64,
    /// Most bytes of one message; equal on all ranks.
    pub message_bytes: u64,
    /// Bytes of memory that are kept for further messages when received ones are dropped.
    pub pool_bytes: usize,
}

impl Default for PostOptions {
    /// 64 MiB for each sender, messages of at most [`MAX_MESSAGE_BYTES`], 64 MiB kept.
    fn default() -> Self {
        Self {
            window_bytes: 64 << 20,
            message_bytes: MAX_MESSAGE_BYTES,
            pool_bytes: 64 << 20,
        }
    }
}

/// A received message.
#[derive(Debug)]
pub struct Message {
    from: u32,
    lane: u32,
    charge: u64,
    parts: Vec<Bytes>,
}

impl Message {
    /// Rank of the sender.
    pub fn from(&self) -> u32 {
        self.from
    }

    /// Its lane.
    pub fn lane(&self) -> u32 {
        self.lane
    }

    /// Its parts. All of them, also empty ones, begin at a multiple of 64 bytes. They share one allocation, which is
    /// released with the last of them.
    pub fn parts(&self) -> &[Bytes] {
        &self.parts
    }

    /// As [`Message::parts`], owned.
    pub fn into_parts(self) -> Vec<Bytes> {
        self.parts
    }

    /// What it counts for while it is not received.
    fn charge(&self) -> u64 {
        self.charge
    }
}

/// Owned messages between the ranks of a group.
#[derive(Debug)]
pub struct Post {
    shared: Arc<Shared>,
}

impl Post {
    /// Opens a post among the ranks of a communicator, which all must call it with the same options. Its messages are
    /// separate from those of the communicator.
    ///
    /// # Errors
    /// As every collective; [`Code::InvalidRequest`] when the options are out of bounds or a rank has a post already;
    /// [`Code::Mismatch`] when the ranks have different options.
    pub fn open(communicator: &Communicator, options: PostOptions) -> Result<Self, Failure> {
        if options.window_bytes < MIN_WINDOW_BYTES || options.message_bytes > MAX_MESSAGE_BYTES {
            return Err(Failure::new(
                Code::InvalidRequest,
                format!(
                    "a post has a window of at least {MIN_WINDOW_BYTES} bytes, and messages of at most {MAX_MESSAGE_BYTES}"
                ),
            ));
        }
        // Before any rank can know that all have called this, and so before any driver sleeps.
        communicator.engine.lock().engine().expect_sleep();
        let registered = Wake::new().and_then(|wake| {
            let wake = Arc::new(wake);
            Ok((Registration::new(&communicator.engine, &wake)?, wake))
        });
        let own = communicator.dup()?;
        let wanted = [options.window_bytes, options.message_bytes, registered.is_ok().into()];
        let mut all = vec![wanted; own.size() as usize];
        own.allgather(wanted.as_bytes(), all.as_mut_bytes())?;
        // Every rank fails if one does, so that none waits for it.
        let (registration, wake) = registered?;
        if let Some(rank) = all.iter().position(|other| other[2] != 1) {
            return Err(Failure::new(
                Code::InvalidRequest,
                format!("rank {rank} has a post already, or no descriptor is left there; its own error has the reason"),
            ));
        }
        if let Some(rank) = all.iter().position(|other| *other != wanted) {
            return Err(Failure::new(
                Code::Mismatch,
                format!("rank {rank} opens its post with other bounds; use the same ones on all ranks"),
            ));
        }
        let shared = Arc::new(Shared::new(wake, options, own.rank(), own.size()));
        let driver = Driver::new(shared.clone(), registration, own);
        let thread = std::thread::Builder::new().name("post".into());
        thread
            .spawn(move || driver.run())
            .map_err(|error| Failure::new(Code::Internal, format!("the thread of a post: {error}")))?;
        Ok(Self { shared })
    }

    /// This rank, from 0.
    pub fn rank(&self) -> u32 {
        self.shared.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> u32 {
        self.shared.size
    }

    /// Sends a message, and returns without waiting. The parts are released when the message has left. A rank may send
    /// to itself; parts that begin at multiples of 64 bytes are then passed on, not copied.
    ///
    /// The post's thread releases the parts, and wakes those that wait, while it holds the engine. Neither may use a
    /// communicator of the group there.
    ///
    /// # Errors
    /// [`PostError::TooLarge`], [`PostError::NoSuchRank`], [`PostError::Closed`] and [`PostError::Revoked`]. Others are
    /// those of the [`Delivery`].
    pub fn send(&self, to: u32, lane: u32, parts: Vec<Bytes>) -> Result<Delivery, PostError> {
        let (size, most) = (self.size(), self.shared.options.message_bytes);
        if to >= size {
            return Err(PostError::NoSuchRank { rank: to, size });
        }
        let lengths = parts.iter().map(|part| part.len() as u64);
        let layout = match parts.len() <= MAX_PARTS {
            true => Layout::of(lengths.clone(), most),
            false => None,
        };
        let layout = layout.ok_or_else(|| PostError::TooLarge {
            bytes: lengths.fold(0, u64::saturating_add),
            parts: parts.len(),
            most,
        })?;
        let (receipt, delivery) = Delivery::new();
        self.shared.submit(Submission {
            to,
            lane,
            parts,
            layout,
            receipt,
        })?;
        Ok(delivery)
    }

    /// Waits for the next message of a lane, from any rank.
    ///
    /// # Errors
    /// [`PostError::Deadline`] when none has arrived in time; [`PostError::PeerLost`] once for each lost rank;
    /// [`PostError::Revoked`]; [`PostError::Closed`] when all other ranks have closed their posts, or this lane has
    /// ended.
    pub fn receive(&self, lane: u32, deadline: Instant) -> Result<Message, PostError> {
        delivery::block_on(self.next(lane, None), deadline)
    }

    /// As [`Post::receive`], as a future of any runtime. Without a deadline, the caller bounds its wait.
    pub fn next(&self, lane: u32, deadline: Option<Instant>) -> Receive<'_> {
        Receive {
            shared: &self.shared,
            lane,
            deadline,
            number: None,
        }
    }

    /// Returns the next message of a lane; `None` if none has arrived.
    ///
    /// # Errors
    /// As [`Post::receive`].
    pub fn try_receive(&self, lane: u32) -> Result<Option<Message>, PostError> {
        self.shared.take(lane, None).transpose()
    }

    /// Ends a lane on this rank: what has arrived on it is dropped, and what will arrive. The number cannot be used
    /// again.
    pub fn end_lane(&self, lane: u32) {
        self.shared.end_lane(lane);
    }

    /// Ends the post on all ranks, without waiting for them. All operations fail with [`PostError::Revoked`].
    pub fn revoke(&self) {
        self.shared.revoke();
    }

    /// Ends this rank's part: sends the submitted messages, receives no more, and informs the others. Messages of
    /// others that were not received are dropped.
    ///
    /// # Errors
    /// [`PostError::Deadline`] when the other ranks have not taken all messages in time; the rest is given up.
    /// [`PostError::Revoked`] and [`PostError::OutOfMemory`] when the post ended before, with what was not sent. Messages
    /// to lost ranks fail at their [`Delivery`] only.
    pub fn close(self, deadline: Instant) -> Result<(), PostError> {
        self.shared.advance_to(Phase::Closing);
        let left = deadline.saturating_duration_since(Instant::now());
        match self.shared.wait_until_over(left) {
            true => self.shared.failure().map_or(Ok(()), Err),
            false => Err(PostError::Deadline),
        }
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        self.shared.advance_to(Phase::Stopping);
        // A thread that is held up by another operation ends later, by itself.
        self.shared.wait_until_over(MAX_DROP_TIME);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LostRanks, Options};

    #[test]
    fn closed_post_has_released_its_communicator() {
        let lost = Arc::new(LostRanks::default());
        let comm = Communicator::form(0, 1, vec![None], lost, Options::default()).unwrap();
        for round in 0..500 {
            let post = Post::open(&comm, PostOptions::default()).unwrap();
            post.close(Instant::now() + Duration::from_secs(20)).unwrap();
            assert_eq!(Arc::strong_count(&comm.engine), 1, "round {round}");
        }
    }
}
