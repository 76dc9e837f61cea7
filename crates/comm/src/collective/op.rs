//! Sends and receives for algorithms.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::atomic::AtomicPtr;
use std::task::{Context, Poll};

use dayfly_protocol::error::Failure;

use crate::engine::{Engine, SharedEngine, Started};
use crate::matching::MatchKey;
use crate::matching::{RequestId, Status};

/// A send or a receive over memory that is borrowed for `'a`. Polled and dropped only while the engine is locked.
#[derive(Debug)]
#[must_use = "it is cancelled when dropped"]
pub struct Op<'a> {
    engine: &'a SharedEngine,
    state: OpState,
    memory: PhantomData<&'a mut [u8]>,
}

#[derive(Debug)]
enum OpState {
    Pending(RequestId),
    Over(Option<Result<Status, Failure>>),
}

impl Op<'_> {
    fn new(engine: &SharedEngine, started: Result<Started, Failure>) -> Op<'_> {
        let state = match started {
            Ok(Started::Pending(id)) => OpState::Pending(id),
            Ok(Started::Done(status)) => OpState::Over(Some(Ok(status))),
            Err(failure) => OpState::Over(Some(Err(failure))),
        };
        Op {
            engine,
            state,
            memory: PhantomData,
        }
    }

    fn with<T>(&self, using: impl FnOnce(&mut Engine) -> T) -> T {
        // SAFETY: operations are polled and dropped only while an `EngineGuard` of this thread exists.
        unsafe { self.engine.with(using) }
    }
}

impl Future for Op<'_> {
    type Output = Result<Status, Failure>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.state {
            OpState::Over(outcome) => outcome.take().map_or(Poll::Pending, Poll::Ready),
            OpState::Pending(id) => {
                let id = *id;
                let Some(outcome) = self.with(|engine| engine.matching.take(id)) else {
                    return Poll::Pending;
                };
                self.state = OpState::Over(None);
                Poll::Ready(outcome)
            }
        }
    }
}

impl Drop for Op<'_> {
    fn drop(&mut self) {
        if let OpState::Pending(id) = self.state {
            self.with(|engine| engine.cancel(id));
        }
    }
}

/// A part of a buffer that was received into.
pub type Part<'a> = Result<&'a mut [u8], Failure>;

/// One collective on one rank: its ranks, and the key of its messages. Used only while the engine is locked.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    engine: &'a SharedEngine,
    members: &'a [u32],
    key: MatchKey,
    /// This rank in the communicator, and the communicator's size.
    pub rank: usize,
    pub size: usize,
}

impl<'a> Run<'a> {
    pub fn new(engine: &'a SharedEngine, members: &'a [u32], rank: usize, key: MatchKey) -> Self {
        Self {
            engine,
            members,
            key,
            rank,
            size: members.len(),
        }
    }

    /// The same collective among some of its ranks. `members` are ranks of the whole group; `rank` is this rank's index
    /// in it.
    pub fn among<'b>(&self, members: &'b [u32], rank: usize) -> Run<'b>
    where
        'a: 'b,
    {
        Run {
            rank,
            members,
            size: members.len(),
            ..*self
        }
    }

    fn with<T>(&self, using: impl FnOnce(&mut Engine) -> T) -> T {
        // SAFETY: as for `Op`.
        unsafe { self.engine.with(using) }
    }

    /// Starts sending to a rank of the communicator.
    #[inline]
    pub fn send<'b>(&self, peer: usize, bytes: &'b [u8]) -> Op<'b>
    where
        'a: 'b,
    {
        let peer = self.members[peer];
        // SAFETY: the operation borrows the bytes until it is complete; dropping it cancels it.
        let started = self.with(|engine| unsafe { engine.send(peer, self.key, bytes.as_ptr(), bytes.len()) });
        Op::new(self.engine, started)
    }

    /// Starts receiving exactly `into.len()` bytes from a rank of the communicator.
    #[inline]
    pub fn receive<'b>(&self, peer: usize, into: &'b mut [u8]) -> Op<'b>
    where
        'a: 'b,
    {
        let peer = self.members[peer];
        // SAFETY: as above.
        let started = self.with(|engine| unsafe { engine.receive(peer, self.key, into.as_mut_ptr(), into.len()) });
        Op::new(self.engine, started)
    }

    /// As [`Run::receive`]; returns the memory when it is complete.
    pub fn receive_part<'b>(
        &self,
        peer: usize,
        into: &'b mut [u8],
    ) -> impl Future<Output = Part<'b>> + Send + use<'a, 'b>
    where
        'a: 'b,
    {
        let (start, length) = (AtomicPtr::new(into.as_mut_ptr()), into.len());
        let receive = self.receive(peer, into);
        async move {
            receive.await?;
            // SAFETY: the memory is borrowed for 'b, and the operation that used it is complete.
            Ok(unsafe { std::slice::from_raw_parts_mut(start.into_inner(), length) })
        }
    }

    /// Sends to one rank while receiving from another or the same.
    #[inline]
    pub async fn exchange(&self, to: usize, bytes: &[u8], from: usize, into: &mut [u8]) -> Result<(), Failure> {
        let send = self.send(to, bytes);
        let receive = self.receive(from, into);
        receive.await?;
        send.await?;
        Ok(())
    }

    /// Scratch memory of `length` bytes with undefined contents.
    pub fn scratch(&self, length: usize) -> Scratch<'a> {
        Scratch {
            engine: self.engine,
            memory: self.with(|engine| engine.borrow_scratch(length)),
        }
    }
}

/// Memory that returns to the engine when dropped. Drop it only while the engine is locked.
#[derive(Debug)]
pub struct Scratch<'a> {
    engine: &'a SharedEngine,
    memory: Vec<u8>,
}

impl std::ops::Deref for Scratch<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.memory
    }
}

impl std::ops::DerefMut for Scratch<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        // SAFETY: as for `Op`.
        unsafe {
            self.engine
                .with(|engine| engine.return_scratch(std::mem::take(&mut self.memory)))
        };
    }
}
