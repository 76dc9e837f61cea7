//! One channel to one worker, used by one thread at a time.

mod open;
mod verdict;
mod wait;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_fabric::{Allocator, AnyLink, Buffer, Link, LinkError, Meta, Payload, Received, Transport};
use dayfly_protocol::error::Code;
use dayfly_protocol::executor::{Form, LoadFunction};
use dayfly_protocol::ids::{ChannelId, CodeHash, FunctionIndex, Incarnation, WorkerIndex};
use dayfly_protocol::node_api::{ChannelStatus, Request};
use dayfly_protocol::slot::{Geometry, Status};

use crate::error::{CallError, Error};
use crate::keepalive::Keepalive;
use crate::lease::Lease;

pub(crate) use verdict::verdict_on;

/// Longest time that the node may take to notice a worker's death.
const FATE_LIMIT: Duration = Duration::from_secs(3);

/// Transport, sizes and spinning of a channel.
#[derive(Debug, Clone, Copy)]
pub struct ChannelOptions {
    /// Transport; `None` selects the best one.
    pub transport: Option<Transport>,
    /// Sizes of the rings and of the bulk memory.
    pub geometry: Geometry,
    /// Time that a wait spins before it sleeps; `None` spins without end, which saves the worker a fence.
    pub spin: Option<Duration>,
}

impl Default for ChannelOptions {
    /// Sleeps after 50 us: about the cost of sleeping and waking, so a wait costs at most twice the optimum.
    fn default() -> Self {
        Self {
            transport: None,
            geometry: Geometry::DEFAULT,
            spin: Some(Duration::from_micros(50)),
        }
    }
}

/// A channel to one worker. One thread at a time uses it.
pub struct Channel {
    link: AnyLink,
    lease: Lease,
    id: ChannelId,
    worker: WorkerIndex,
    incarnation: Incarnation,
    worker_pid: u32,
    spin: Option<Duration>,
    outstanding: u16,
    /// The connection by which the node sees that this client is alive. A stream is that connection itself.
    control: Option<OwnedFd>,
    /// Watches the node if it is on another host.
    keepalive: Option<Arc<Keepalive>>,
}

/// The output of a call, in the memory that it was received in. Dropping it frees its slot.
pub struct Reply<'a> {
    channel: &'a mut Channel,
}

impl Reply<'_> {
    /// Returns a large output without a copy; `None` if the output is small and lies in the slot.
    pub fn take(self) -> Option<Received> {
        self.channel.link.take()
    }
}

impl std::ops::Deref for Reply<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.channel.link.input()
    }
}

impl Drop for Reply<'_> {
    fn drop(&mut self) {
        self.channel.link.done();
    }
}

/// A response to an earlier [`Channel::submit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The sequence number that `submit` returned.
    pub sequence: u32,
    /// The [`Status`] word that the worker wrote.
    pub status: u16,
    /// Bytes of output in the buffer that the request named; `None` if it named no buffer.
    pub in_room: Option<usize>,
}

impl Channel {
    /// The transport in use.
    pub fn transport(&self) -> Transport {
        self.link.transport()
    }

    /// Sizes of the rings and of the bulk memory.
    pub fn geometry(&self) -> Geometry {
        self.link.geometry()
    }

    /// Index of the channel's worker in the lease.
    pub fn worker(&self) -> WorkerIndex {
        self.worker
    }

    /// How many times that worker has been started. State in the worker is lost when this number changes.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Process id of the worker on its host.
    pub fn worker_pid(&self) -> u32 {
        self.worker_pid
    }

    /// Calls that were sent and have no response yet.
    pub fn outstanding(&self) -> u16 {
        self.outstanding
    }

    /// Largest input that fits in a slot, in bytes.
    pub fn inline_bytes(&self) -> usize {
        self.link.geometry().inline_bytes()
    }

    /// Allocates a buffer of `length` bytes that this channel sends from and receives into without a copy. Returns an
    /// error if the bulk memory has no room.
    pub fn allocate(&mut self, length: usize) -> Result<Buffer, Error> {
        Ok(self.link.allocate(length)?)
    }

    /// Returns an allocator for such buffers that any thread can use.
    pub fn allocator(&self) -> Allocator {
        self.link.allocator()
    }

    pub(crate) fn link(&mut self) -> &mut AnyLink {
        &mut self.link
    }

    pub(crate) fn link_ref(&self) -> &AnyLink {
        &self.link
    }

    /// Resolves a function whose code the node has ([`Lease::put_code`]), and returns its index on this channel.
    pub fn load(&mut self, hash: CodeHash, form: &Form) -> Result<FunctionIndex, CallError> {
        let reply = self.call(FunctionIndex::LOAD, &load_request(hash, form)?)?;
        read_index(&reply)
    }

    /// Sets whether later calls may end with [`Code::Rejected`] when a warm worker wakes up and every core that it may
    /// use is busy. Otherwise such calls run and share a core. A [`crate::Pool`] sets this itself.
    pub fn set_rejectable(&mut self, rejectable: bool) {
        self.link.set_rejectable(rejectable);
    }

    /// Calls a function and waits for its output. No earlier [`Channel::submit`] may be outstanding.
    #[inline]
    pub fn call(&mut self, function: FunctionIndex, input: &[u8]) -> Result<Reply<'_>, CallError> {
        self.call_within(function, input, 0)
    }

    /// As [`Channel::call`], with at most `deadline_ms` milliseconds of execution (0: no limit); the node then ends the
    /// worker.
    #[inline]
    pub fn call_within(
        &mut self,
        function: FunctionIndex,
        input: &[u8],
        deadline_ms: u32,
    ) -> Result<Reply<'_>, CallError> {
        if self.outstanding > 0 {
            return Err(CallError::new(
                Code::InvalidRequest,
                "collect the submitted calls before a synchronous one",
            ));
        }
        let sequence = self.submit(function, input, deadline_ms)?;
        let completion = self.receive(sequence)?;
        self.reply(completion)
    }

    /// Calls a function on the first `length` bytes of `input` and has the output written into `output`; both buffers
    /// belong to this channel. Returns the output's length in bytes. Shared memory copies nothing.
    pub fn call_into(
        &mut self,
        function: FunctionIndex,
        input: &Buffer,
        length: usize,
        output: &mut Buffer,
        deadline_ms: u32,
    ) -> Result<usize, CallError> {
        if self.outstanding > 0 {
            return Err(CallError::new(
                Code::InvalidRequest,
                "collect the submitted calls before a synchronous one",
            ));
        }
        let room = self.link.room(output);
        let sequence = self
            .link
            .post_bulk(function.0, deadline_ms, Payload::Buffer(input, length), Some(room))?;
        self.outstanding += 1;
        let completion = self.receive(sequence)?;
        if let Some(length) = completion.in_room {
            self.link.done();
            return Ok(length);
        }
        let reply = self.reply(completion)?;
        let length = reply.len();
        if length > output.len() {
            return Err(CallError::new(
                Code::OutputOverflow,
                format!("an output of {length} bytes for a buffer of {}", output.len()),
            ));
        }
        // A small output is inside the slot.
        output.as_mut_slice()[..length].copy_from_slice(&reply);
        Ok(length)
    }

    #[inline]
    fn reply(&mut self, completion: Completion) -> Result<Reply<'_>, CallError> {
        if completion.status == Status::Ok as u16 {
            return Ok(Reply { channel: self });
        }
        let error = CallError::from_response(completion.status, self.link.current().input);
        self.link.done();
        Err(error)
    }

    /// Sends a call without waiting and returns its sequence number. At most as many calls may be outstanding as the
    /// ring has slots.
    #[inline]
    pub fn submit(&mut self, function: FunctionIndex, input: &[u8], deadline_ms: u32) -> Result<u32, CallError> {
        if self.outstanding >= self.link.geometry().slots {
            return Err(CallError::new(
                Code::Rejected,
                "the ring is full; take a completion first",
            ));
        }
        let sequence = self.submit_uncounted(function, input, deadline_ms)?;
        self.count_sent();
        Ok(sequence)
    }

    #[inline]
    pub(crate) fn submit_uncounted(
        &mut self,
        function: FunctionIndex,
        input: &[u8],
        deadline_ms: u32,
    ) -> Result<u32, CallError> {
        let place = self.link.compose();
        if input.len() <= place.len() {
            place[..input.len()].copy_from_slice(input);
            return Ok(self.link.post(function.0, deadline_ms, input.len())?);
        }
        Ok(self
            .link
            .post_bulk(function.0, deadline_ms, Payload::Bytes(input), None)?)
    }

    #[inline]
    pub(crate) fn count_sent(&mut self) {
        self.outstanding += 1;
    }

    /// As [`Channel::submit`], with a buffer of this channel. The channel keeps it until the response arrives.
    pub fn submit_buffer(
        &mut self,
        function: FunctionIndex,
        input: Buffer,
        length: usize,
        deadline_ms: u32,
    ) -> Result<u32, CallError> {
        if self.outstanding >= self.link.geometry().slots {
            return Err(CallError::new(
                Code::Rejected,
                "the ring is full; take a completion first",
            ));
        }
        let sequence = self
            .link
            .post_bulk(function.0, deadline_ms, Payload::Owned(input, length), None)?;
        self.outstanding += 1;
        Ok(sequence)
    }

    /// Returns the next completion, in the order of submission, or `None` if none has arrived. Its output is
    /// [`Channel::output`] until [`Channel::done`], which must follow.
    #[inline]
    pub fn poll(&mut self) -> Result<Option<Completion>, LinkError> {
        let Some(Meta { sequence, function, .. }) = self.link.poll()? else {
            return Ok(None);
        };
        self.outstanding = self.outstanding.saturating_sub(1);
        Ok(Some(Completion {
            sequence,
            status: function,
            in_room: self.link.arrived_in_room(),
        }))
    }

    /// Output of the last completion.
    #[inline]
    pub fn output(&mut self) -> &[u8] {
        self.link.current().input
    }

    /// Takes the output of the last completion without a copy; `None` if it is small.
    pub fn take_output(&mut self) -> Option<Received> {
        self.link.take()
    }

    /// Frees the slot of the last completion.
    #[inline]
    pub fn done(&mut self) {
        self.link.done();
    }

    /// Returns an error if the channel's node is lost.
    pub(crate) fn check_lost(&self) -> Result<(), Error> {
        self.keepalive.as_ref().map_or(Ok(()), |watch| watch.check())
    }

    pub(crate) fn id(&self) -> ChannelId {
        self.id
    }

    /// Asks the node why this channel ended and which of its calls ran. Waits up to 3 s until the node knows.
    pub fn fate(&self) -> Result<ChannelStatus, Error> {
        self.check_lost()?;
        let until = Instant::now() + FATE_LIMIT;
        loop {
            let fate = self.lease.inner.fate(self.id)?;
            if fate.end.is_some() || Instant::now() >= until {
                return Ok(fate);
            }
            // The node has not reaped the dead worker yet.
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends the call `sequence` by ending its worker, now or when the call begins.
    pub fn cancel(&self, sequence: u32) -> Result<(), Error> {
        let channel = self.id;
        self.lease
            .inner
            .with_control(|control| control.ask(&Request::Cancel { channel, sequence }))
            .map(|_| ())
    }

    fn broken(&mut self, error: LinkError, sequence: u32) -> CallError {
        match error {
            LinkError::Ended(_) | LinkError::PeerGone | LinkError::Io(_) => match self.fate() {
                Ok(fate) => verdict_on(&fate, sequence),
                // The node is unreachable too.
                Err(unknown) => CallError::new(
                    Code::MaybeExecuted,
                    format!("the channel broke ({error}), and its node cannot report whether the call ran: {unknown}"),
                ),
            },
            other => other.into(),
        }
    }
}

impl Drop for Channel {
    /// Shuts the connections down, so that the node notices at once. Closing alone may be noticed late: a child that
    /// another thread forks at this moment holds copies of the connections until it executes its program.
    fn drop(&mut self) {
        let sockets = self.control.iter().chain(self.link.socket().map(|socket| &**socket));
        for socket in sockets {
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        }
    }
}

pub(crate) fn load_request(hash: CodeHash, form: &Form) -> Result<Vec<u8>, CallError> {
    serde_json::to_vec(&LoadFunction {
        hash,
        form: form.clone(),
    })
    .map_err(|error| CallError::new(Code::Internal, error.to_string()))
}

pub(crate) fn read_index(output: &[u8]) -> Result<FunctionIndex, CallError> {
    let bytes: [u8; 2] = output
        .try_into()
        .map_err(|_| CallError::new(Code::ProtocolViolation, "a function index of the wrong size"))?;
    Ok(FunctionIndex(u16::from_le_bytes(bytes)))
}
