//! Operations whose memory no scope keeps: for bindings that own their requests, such as MPI's.
//!
//! The ranks of a [`Detached`] operation's status are ranks of the whole group. All communicators of a rank share one
//! engine, so one [`Turn`] drives and completes the operations of any of them.

use std::time::Duration;

use dayfly_protocol::error::{Code, Failure};

pub use crate::engine::counters::Counters;
use crate::engine::{Engine, EngineGuard, Started, WaitState};
use crate::group::Communicator;
use crate::matching::{ANY_SOURCE, RequestId, State, Status, Unexpected};
use crate::options::Options;

/// Set in the context of [`Communicator::apart`]. No agreement leads to a context that has it.
const APART: u32 = 1 << 29;

/// A send or a receive that was started. Complete or cancel it through a [`Turn`].
#[derive(Debug)]
#[must_use = "its memory is in use until it is taken or cancelled"]
pub struct Detached(Progress);

#[derive(Debug, Clone, Copy)]
enum Progress {
    Done(Status),
    Pending(RequestId),
}

impl Detached {
    /// Its status, if it was complete at once.
    #[inline]
    pub fn status(&self) -> Option<Status> {
        match self.0 {
            Progress::Done(status) => Some(status),
            Progress::Pending(_) => None,
        }
    }

    fn new(started: Started) -> Self {
        Self(match started {
            Started::Done(status) => Progress::Done(status),
            Started::Pending(id) => Progress::Pending(id),
        })
    }
}

/// A message that a matching probe took: only [`Communicator::start_matched`] can receive it.
#[derive(Debug)]
pub struct Matched {
    source: u32,
    message: Unexpected,
}

impl Matched {
    /// The message's sender in the whole group, its tag and its length.
    pub fn status(&self) -> Status {
        Status {
            source: self.source,
            tag: self.message.envelope.tag,
            length: self.message.envelope.length,
        }
    }
}

impl Communicator {
    /// Starts a send. A synchronous one completes only when a receive has matched it.
    ///
    /// # Safety
    /// `length` bytes at `start` must be readable and unchanged until the operation was taken or cancelled.
    pub unsafe fn start_send(
        &self,
        start: *const u8,
        length: usize,
        to: u32,
        tag: u32,
        synchronous: bool,
    ) -> Result<Detached, Failure> {
        let (to, key) = self.send_key(to, tag)?;
        let mut guard = self.engine.lock();
        // SAFETY: required of the caller.
        let started = unsafe {
            match synchronous {
                false => guard.engine().send(to, key, start, length),
                true => guard.engine().send_synchronously(to, key, start, length),
            }
        };
        started.map(Detached::new)
    }

    /// Starts a receive.
    ///
    /// # Safety
    /// `length` bytes at `start` must be writable and used by no one else until the operation was taken or cancelled.
    pub unsafe fn start_receive(
        &self,
        start: *mut u8,
        length: usize,
        from: u32,
        tag: u32,
    ) -> Result<Detached, Failure> {
        let (from, key) = self.receive_key(from, tag)?;
        let mut guard = self.engine.lock();
        // SAFETY: required of the caller.
        let started = unsafe { guard.engine().receive(from, key, start, length) };
        started.map(Detached::new)
    }

    /// Starts the receive of a message that [`Communicator::take_message`] took.
    ///
    /// # Safety
    /// As [`Communicator::start_receive`].
    pub unsafe fn start_matched(&self, message: Matched, start: *mut u8, length: usize) -> Result<Detached, Failure> {
        let mut guard = self.engine.lock();
        let Matched { source, message } = message;
        // SAFETY: required of the caller.
        let started = unsafe { guard.engine().receive_matched(source, message, start, length) };
        started.map(Detached::new)
    }

    /// Takes the first message that such a receive would match, so that no other receive can; `None` if none has
    /// arrived.
    ///
    /// # Errors
    /// [`Code::RankLost`] when the message cannot arrive any more.
    pub fn take_message(&self, from: u32, tag: u32) -> Result<Option<Matched>, Failure> {
        let (from, key) = self.receive_key(from, tag)?;
        let mut guard = self.engine.lock();
        guard.progress();
        let found = guard.engine().matching.take_unexpected(from, key.context, key.tag);
        if found.is_none() {
            guard.engine().check_can_arrive(from, key)?;
        }
        Ok(found.map(|(source, message)| Matched { source, message }))
    }

    /// The engine, to drive operations of any communicator of this rank.
    pub fn turn(&self) -> Turn<'_> {
        Turn {
            guard: self.engine.lock(),
            wait_state: None,
        }
    }

    /// As [`Communicator::turn`], for a wait that [`Turn::pause`] has interrupted.
    pub fn resume(&self, waiting: Option<Waiting>) -> Turn<'_> {
        Turn {
            guard: self.engine.lock(),
            wait_state: waiting.map(|waiting| waiting.0),
        }
    }

    /// Whether both communicators are of the same rank of the same group, and so share one engine.
    pub fn shares_engine(&self, other: &Self) -> bool {
        std::sync::Arc::ptr_eq(&self.engine, &other.engine)
    }

    /// A context for [`Communicator::with_members`] that no other rank proposes: propose it, and agree on the greatest.
    /// The next greater number is free too, for a second communicator.
    pub fn propose_context(&self) -> u32 {
        self.engine.lock().engine().propose_context()
    }

    /// A communicator of these ranks of the whole group, in a context on which all of them have agreed. This rank need
    /// not be among them; it can then exchange messages with them, and not take part in collectives.
    ///
    /// # Errors
    /// [`Code::InvalidRequest`] when a rank does not exist, or the context was not proposed.
    pub fn with_members(&self, context: u32, members: Vec<u32>) -> Result<Self, Failure> {
        self.turn().with_members(self, context, members)
    }

    /// The same ranks, with messages apart from those of this communicator; for messages only. The ranks need not agree:
    /// all such communicators of one communicator have the same messages.
    pub fn apart(&self) -> Self {
        let mut guard = self.engine.lock();
        self.among(guard.engine(), self.context | APART, self.members.to_vec(), self.rank)
    }

    /// As [`Communicator::with_members`]; the engine is this communicator's.
    fn part_of_all(&self, engine: &mut Engine, context: u32, members: Vec<u32>) -> Result<Self, Failure> {
        if context >= APART || members.iter().any(|member| *member >= engine.size) {
            return Err(Failure::new(
                Code::InvalidRequest,
                "a communicator has ranks of the group, and a context that its ranks agreed on",
            ));
        }
        engine.note_context(context);
        let own = engine.rank;
        let rank = members.iter().position(|member| *member == own);
        Ok(self.among(engine, context, members, rank.map_or(ANY_SOURCE, |rank| rank as u32)))
    }

    /// For each rank of the whole group the lowest rank on its host; empty if unknown.
    pub fn hosts_of_all(&self) -> &[u32] {
        &self.hosts_of_all
    }
}

/// Exclusive use of a rank's engine.
#[derive(Debug)]
pub struct Turn<'a> {
    guard: EngineGuard<'a>,
    wait_state: Option<WaitState>,
}

/// How long an interrupted wait has lasted.
#[derive(Debug)]
pub struct Waiting(WaitState);

impl<'a> Turn<'a> {
    /// Releases the engine in the middle of a wait; [`Communicator::resume`] goes on with it.
    pub fn pause(self) -> Option<Waiting> {
        self.wait_state.map(Waiting)
    }

    /// Whether this is the engine of a communicator.
    #[inline]
    pub fn drives(&self, comm: &Communicator) -> bool {
        self.guard.is_of(&comm.engine)
    }

    pub(crate) fn guard(&mut self) -> &mut EngineGuard<'a> {
        &mut self.guard
    }

    /// Moves bytes. Returns whether any moved.
    pub fn progress(&mut self) -> bool {
        self.guard.progress()
    }

    /// Moves bytes; without any, waits a little. `what` is the operation that waits, for the error after the deadline.
    ///
    /// # Errors
    /// [`Code::TimedOut`] after the deadline of the group.
    #[inline]
    pub fn step(&mut self, what: &'static str) -> Result<(), Failure> {
        let wait_state = self.wait_state.get_or_insert_with(|| WaitState::new(what));
        self.guard.step(wait_state)
    }

    /// The outcome of an operation, once; `None` if it is not complete.
    #[inline]
    pub fn take(&mut self, operation: &Detached) -> Option<Result<Status, Failure>> {
        match operation.0 {
            Progress::Done(status) => Some(Ok(status)),
            Progress::Pending(id) => self.guard.engine().matching.take(id),
        }
    }

    /// As [`Communicator::take_message`], for a caller that has the engine. It moves no bytes.
    ///
    /// # Errors
    /// As [`Communicator::take_message`].
    pub fn take_message(&mut self, comm: &Communicator, from: u32, tag: u32) -> Result<Option<Matched>, Failure> {
        let (from, key) = comm.receive_key(from, tag)?;
        let engine = self.guard.engine();
        match engine.matching.take_unexpected(from, key.context, key.tag) {
            Some((source, message)) => Ok(Some(Matched { source, message })),
            None => engine.check_can_arrive(from, key).map(|()| None),
        }
    }

    /// The first message that such a receive would match, if it has arrived; its sender is a rank of the whole group.
    ///
    /// # Errors
    /// As [`Communicator::take_message`].
    pub fn probe(&mut self, comm: &Communicator, from: u32, tag: u32) -> Result<Option<Status>, Failure> {
        let (from, key) = comm.receive_key(from, tag)?;
        let engine = self.guard.engine();
        match engine.matching.probe(from, key.context, key.tag) {
            Some(status) => Ok(Some(status)),
            None => engine.check_can_arrive(from, key).map(|()| None),
        }
    }

    /// As [`Communicator::start_matched`], for a caller that has the engine.
    ///
    /// # Safety
    /// As [`Communicator::start_receive`].
    pub unsafe fn start_matched(
        &mut self,
        message: Matched,
        start: *mut u8,
        length: usize,
    ) -> Result<Detached, Failure> {
        let Matched { source, message } = message;
        // SAFETY: required of the caller.
        let started = unsafe { self.guard.engine().receive_matched(source, message, start, length) };
        started.map(Detached::new)
    }

    /// As [`Communicator::start_send`], of a standard send, for a caller that has the engine.
    ///
    /// # Safety
    /// As [`Communicator::start_send`].
    pub unsafe fn start_send(
        &mut self,
        comm: &Communicator,
        start: *const u8,
        length: usize,
        to: u32,
        tag: u32,
    ) -> Result<Detached, Failure> {
        let (to, key) = comm.send_key(to, tag)?;
        // SAFETY: required of the caller.
        let started = unsafe { self.guard.engine().send(to, key, start, length) };
        started.map(Detached::new)
    }

    /// As [`Communicator::start_receive`], for a caller that has the engine.
    ///
    /// # Safety
    /// As [`Communicator::start_receive`].
    pub unsafe fn start_receive(
        &mut self,
        comm: &Communicator,
        start: *mut u8,
        length: usize,
        from: u32,
        tag: u32,
    ) -> Result<Detached, Failure> {
        let (from, key) = comm.receive_key(from, tag)?;
        // SAFETY: required of the caller.
        let started = unsafe { self.guard.engine().receive(from, key, start, length) };
        started.map(Detached::new)
    }

    /// As [`Communicator::with_members`], for a caller that has the engine.
    ///
    /// # Errors
    /// As [`Communicator::with_members`].
    pub fn with_members(
        &mut self,
        comm: &Communicator,
        context: u32,
        members: Vec<u32>,
    ) -> Result<Communicator, Failure> {
        comm.part_of_all(self.guard.engine(), context, members)
    }

    /// What the engine counts.
    pub fn counters(&mut self) -> Counters {
        self.guard.engine().counters()
    }

    /// The options of the engine.
    pub fn options(&mut self) -> &Options {
        &self.guard.engine().options
    }

    /// Changes the longest duration of one operation.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.guard.engine().options.deadline = deadline;
    }

    /// Changes how long a waiting rank polls before it sleeps.
    ///
    /// # Errors
    /// [`Code::InvalidRequest`] when this rank polls without end: the others do not expect that it sleeps.
    pub fn set_spin(&mut self, spin: Duration) -> Result<(), Failure> {
        self.guard.engine().set_spin(spin)
    }

    /// Whether [`Turn::take`] would return an outcome.
    pub fn is_complete(&mut self, operation: &Detached) -> bool {
        match operation.0 {
            Progress::Done(_) => true,
            Progress::Pending(id) => {
                let request = self.guard.engine().matching.get(id);
                request.is_none_or(|request| request.state == State::Done)
            }
        }
    }

    /// Cancels a receive that no message has matched, or a send that the other rank does not know of. Returns whether it
    /// did; then the operation has ended. The other rank is asked for a send that it knows of: the send then ends with
    /// [`Code::Cancelled`] if no receive has matched it.
    pub fn cancel(&mut self, operation: &Detached) -> bool {
        let Progress::Pending(id) = operation.0 else {
            return false;
        };
        let engine = self.guard.engine();
        match engine.matching.get(id).map(|request| request.state) {
            Some(State::Posted) => {
                engine.cancel(id);
                true
            }
            Some(State::Sending) => engine.cancel_send(id),
            _ => false,
        }
    }

    /// Ends an operation, complete or not, and releases its memory.
    pub fn abandon(&mut self, operation: &Detached) {
        if let Progress::Pending(id) = operation.0 {
            self.guard.engine().cancel(id);
        }
    }
}
