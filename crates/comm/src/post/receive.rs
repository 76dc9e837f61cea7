//! Waiting for a message of a lane.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use super::state::Shared;
use super::{Message, PostError};

/// The next message of a lane. Dropping it takes no message.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Receive<'a> {
    pub(super) shared: &'a Shared,
    pub(super) lane: u32,
    pub(super) deadline: Option<Instant>,
    /// Its number among the waiters.
    pub(super) number: Option<u64>,
}

impl Future for Receive<'_> {
    type Output = Result<Message, PostError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let waiter = (&mut this.number, context.waker(), this.deadline);
        if let Some(taken) = this.shared.take(this.lane, Some(waiter)) {
            return Poll::Ready(taken);
        }
        match this.deadline {
            Some(deadline) if deadline <= Instant::now() => Poll::Ready(Err(PostError::Deadline)),
            _ => Poll::Pending,
        }
    }
}

impl Drop for Receive<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.shared.unregister(self.lane, number);
        }
    }
}
