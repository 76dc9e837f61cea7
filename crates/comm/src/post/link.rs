//! The engine, as messages with one rank use it.

use dayfly_protocol::error::Failure;

use super::incoming::Trouble;
use crate::engine::{Engine, Started};
use crate::matching::{MatchKey, RequestId, Status, Waiting};

/// The engine, as messages with one rank use it.
#[derive(Debug)]
pub struct Link<'a> {
    engine: &'a mut Engine,
    /// The rank in the post.
    rank: u32,
    /// The rank in the whole group.
    world: u32,
    context: u32,
}

impl<'a> Link<'a> {
    pub fn new(engine: &'a mut Engine, rank: u32, world: u32, context: u32) -> Self {
        Self {
            engine,
            rank,
            world,
            context,
        }
    }

    /// The rank in the post.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    fn key(&self, tag: u32) -> MatchKey {
        MatchKey {
            context: self.context,
            tag,
            call: 0,
        }
    }

    /// Starts a send. Returns its request unless it is complete.
    ///
    /// # Safety
    /// As [`Engine::send`].
    pub unsafe fn send(&mut self, tag: u32, start: *const u8, length: usize) -> Result<Option<RequestId>, Failure> {
        // SAFETY: required of the caller.
        match unsafe { self.engine.send(self.world, self.key(tag), start, length) }? {
            Started::Done(_) => Ok(None),
            Started::Pending(request) => Ok(Some(request)),
        }
    }

    /// Starts a receive of exactly `length` bytes. Returns its request unless it is complete.
    ///
    /// # Safety
    /// As [`Engine::receive`].
    pub unsafe fn receive(&mut self, tag: u32, start: *mut u8, length: usize) -> Result<Option<RequestId>, Trouble> {
        // SAFETY: required of the caller.
        match unsafe { self.engine.receive(self.world, self.key(tag), start, length) }? {
            Started::Done(status) if status.length != length as u64 => {
                Err(Trouble::Violation("bytes of another length than announced"))
            }
            Started::Done(_) => Ok(None),
            Started::Pending(request) => Ok(Some(request)),
        }
    }

    /// The outcome of a request; `None` if it is not complete.
    pub fn take(&mut self, request: RequestId) -> Option<Result<Status, Failure>> {
        self.engine.matching.take(request)
    }

    pub fn cancel(&mut self, request: RequestId) {
        self.engine.cancel(request);
    }

    /// The first waiting message with this tag.
    pub fn take_arrived(&mut self, tag: u32) -> Option<Waiting> {
        self.engine.matching.take_arrived(self.world, self.context, tag)
    }
}
