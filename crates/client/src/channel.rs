//! One channel to one worker, used by one thread at a time.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_fabric::{
    Allocator, AnyLink, Buffer, FabricLink, Link, LinkError, Meta, Payload, Received, StreamLink, Transport, shm, tls,
};
use dayfly_lease::token;
use dayfly_protocol::error::Code;
use dayfly_protocol::executor::{Form, LoadFunction};
use dayfly_protocol::hello::{options as hello_options, transport as wire_transport};
use dayfly_protocol::ids::{ChannelId, CodeHash, FunctionIndex, Incarnation, WorkerIndex};
use dayfly_protocol::node_api::{ChannelStatus, End, Request};
use dayfly_protocol::slot::{Geometry, Status, has_begun};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::error::{CallError, Error};
use crate::keepalive::Keepalive;
use crate::lease::Lease;
use crate::node;
use crate::opening::Opening;

/// Empty polls of shared memory between two reads of the clock: less than a microsecond.
const POLLS_PER_LOOK: u32 = 256;
/// Empty polls of a stream between two reads of the clock. Each is a system call.
const STREAM_POLLS_PER_LOOK: u32 = 2;
/// Longest sleep without a wake-up before the channel is polled again.
const SLEEP_LIMIT: Duration = Duration::from_millis(100);
/// Interval at which a waiting thread checks that the node is alive.
const LOOK_EVERY: Duration = Duration::from_millis(50);
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
    /// Requests a channel from the lease's node and waits until it is open or `opening` is ended.
    pub(crate) fn open(
        lease: &Lease,
        worker: WorkerIndex,
        options: &ChannelOptions,
        opening: &Opening,
    ) -> Result<Self, Error> {
        let geometry = options
            .geometry
            .check()
            .map_err(|error| Error::new(Code::InvalidRequest, error.to_string()))?;
        let inner = &lease.inner;
        let transport = options.transport.unwrap_or_else(|| node::best_transport(&inner.node));
        let wire = match transport {
            Transport::Shm => wire_transport::SHM,
            Transport::Tcp => wire_transport::TCP,
            Transport::Tls => wire_transport::TLS,
            Transport::Libfabric(_) => wire_transport::LIBFABRIC,
            Transport::Inproc => return Err(Error::new(Code::TransportRefused, "inproc reaches no other process")),
        };
        let set = if options.spin.is_none() {
            hello_options::CLIENT_NEVER_SLEEPS
        } else {
            0
        };
        let hello = token::Opening::Channel {
            worker,
            transport: wire,
            geometry,
            options: set,
        };
        let id = node::random_channel()?;
        let mut socket = node::connect(&inner.node, transport == Transport::Shm)?;
        opening.asks(&socket)?;
        let (verdict, file) = node::open(&inner.node, &mut socket, hello, &inner.token(), &inner.holder, id)?;
        let never_sleeps = u32::from(verdict.options.get()) & hello_options::WORKER_NEVER_SLEEPS != 0;
        let (link, control) = match transport {
            Transport::Shm => {
                let file = file.ok_or_else(|| {
                    Error::new(
                        Code::ProtocolViolation,
                        "the node accepted a shared-memory channel and sent no memory",
                    )
                })?;
                (
                    AnyLink::Mapped(shm::client(file, geometry, never_sleeps)?),
                    Some(socket.into_fd()),
                )
            }
            Transport::Tls | Transport::Libfabric(_) => {
                let identity = tls::Identity {
                    pkcs8: inner.holder.to_pkcs8(),
                    public: inner.holder.public(),
                };
                let session = tls::client(&identity, &verdict.executor_key)
                    .map_err(|error| Error::new(Code::Unauthorized, format!("TLS cannot be set up: {error}")))?;
                let (socket, spins) = (socket.into_fd(), options.spin.is_none());
                let link = match transport {
                    Transport::Libfabric(wanted) => {
                        AnyLink::Fabric(Box::new(FabricLink::client(socket, session, geometry, wanted, spins)?))
                    }
                    _ => AnyLink::Stream(Box::new(StreamLink::tls(socket, session, geometry)?)),
                };
                (link, None)
            }
            Transport::Tcp | Transport::Inproc => (
                AnyLink::Stream(Box::new(StreamLink::tcp(socket.into_fd(), geometry)?)),
                None,
            ),
        };
        let keepalive = inner.keepalive(transport == Transport::Shm)?;
        if let (Some(watch), Some(socket)) = (&keepalive, link.socket()) {
            watch.guard(socket);
        }
        opening.opened()?;
        Ok(Self {
            link,
            lease: lease.clone(),
            id,
            worker,
            incarnation: Incarnation(verdict.incarnation.get()),
            worker_pid: verdict.worker_pid.get(),
            spin: options.spin,
            outstanding: 0,
            control,
            keepalive,
        })
    }

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
        let error = CallError::answered(completion.status, self.link.current().input);
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

    /// As [`Channel::submit`], with a buffer of this channel. The channel keeps it until the call has its response.
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

    /// Waits at most `limit` for the next completion. Returns an error if no call is outstanding.
    pub fn wait(&mut self, limit: Duration) -> Result<Completion, CallError> {
        let oldest = self.outstanding;
        if oldest == 0 {
            return Err(CallError::new(Code::InvalidRequest, "no call is outstanding"));
        }
        match self.spin_or_sleep(Some(Instant::now() + limit)) {
            Ok(Some(completion)) => Ok(completion),
            Ok(None) => Err(CallError::new(
                Code::TimedOut,
                format!("no completion within {} ms", limit.as_millis()),
            )),
            Err(error) => Err(self.broken(error, 0)),
        }
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

    #[inline]
    fn receive(&mut self, sequence: u32) -> Result<Completion, CallError> {
        match self.spin_or_sleep(None) {
            Ok(Some(completion)) if completion.sequence == sequence => Ok(completion),
            Ok(_) => Err(CallError::new(Code::ProtocolViolation, "an answer to another call")),
            Err(error) => Err(self.broken(error, sequence)),
        }
    }

    #[inline]
    fn spin_or_sleep(&mut self, until: Option<Instant>) -> Result<Option<Completion>, LinkError> {
        for _ in 0..self.polls_per_look() {
            if let Some(completion) = self.poll()? {
                return Ok(Some(completion));
            }
        }
        self.wait_longer(until)
    }

    #[inline]
    fn polls_per_look(&self) -> u32 {
        match &self.link {
            AnyLink::Mapped(_) => POLLS_PER_LOOK,
            AnyLink::Stream(_) | AnyLink::Fabric(_) => STREAM_POLLS_PER_LOOK,
        }
    }

    #[cold]
    fn wait_longer(&mut self, until: Option<Instant>) -> Result<Option<Completion>, LinkError> {
        let since = Instant::now();
        let mut looked_after = Duration::ZERO;
        loop {
            for _ in 0..self.polls_per_look() {
                if let Some(completion) = self.poll()? {
                    return Ok(Some(completion));
                }
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            if since.elapsed() >= looked_after + LOOK_EVERY {
                looked_after = since.elapsed();
                self.check_node()?;
            }
            if self.spin.is_some_and(|spin| since.elapsed() >= spin) {
                self.link.wait(left.unwrap_or(SLEEP_LIMIT).min(SLEEP_LIMIT))?;
            }
        }
    }

    /// Returns an error if the node closed the connection. A node that died sends no reason.
    pub(crate) fn check_node(&self) -> Result<(), LinkError> {
        let Some(control) = &self.control else { return Ok(()) };
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut waiting = [PollFd::new(control, PollFlags::IN | PollFlags::RDHUP)];
        match rustix::event::poll(&mut waiting, Some(&now)) {
            Ok(1..) => Err(LinkError::PeerGone),
            _ => Ok(()),
        }
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
                    format!("the channel broke ({error}) and its node cannot say whether the call ran: {unknown}"),
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

/// The error of call `sequence` on a channel with this fate.
pub(crate) fn verdict_on(fate: &ChannelStatus, sequence: u32) -> CallError {
    let worker = fate.worker.0;
    let cause = match fate.end {
        None => "its channel broke".to_owned(),
        Some(End::Exited { status }) => format!("its function ended the process with exit status {status}"),
        Some(End::Signalled { signal }) => {
            format!("its process crashed with signal {signal} ({})", signal_name(signal))
        }
        Some(End::OutOfMemory) => {
            "its lease's memory was used up; lease with more memory, or work on less at a time".to_owned()
        }
        Some(End::Deadline) => "a call ran past its deadline".to_owned(),
        Some(End::Cancelled) => "a running call was cancelled".to_owned(),
        Some(End::ExecutorDied) => "its executor was killed".to_owned(),
        Some(End::Expired) => "the lease expired; renew it in time, or lease for longer".to_owned(),
        Some(End::Released) => "the lease was released".to_owned(),
        Some(End::Revoked) => "the lease was revoked by an operator".to_owned(),
        Some(End::DelegationRevoked) => "its part of the lease was taken back by whoever delegated it".to_owned(),
        Some(End::ClientGone) => "the node saw this client go away".to_owned(),
        Some(End::Violation) => "its node saw it violate the protocol, or take what belongs to others".to_owned(),
    };
    if !has_begun(fate.started, sequence) {
        let code = match fate.end {
            Some(End::Expired) => Code::LeaseExpired,
            Some(End::Released | End::Revoked | End::DelegationRevoked) => Code::LeaseEnded,
            _ => Code::NotExecuted,
        };
        return CallError::new(
            code,
            format!("worker {worker} ended before it began this call: {cause}. It was not executed"),
        );
    }
    let was_running = fate.started == sequence && fate.finished != sequence;
    let code = match fate.end {
        Some(End::Deadline) if was_running => Code::DeadlineExceeded,
        Some(End::Cancelled) if was_running => Code::Cancelled,
        _ => Code::MaybeExecuted,
    };
    CallError::new(
        code,
        format!("worker {worker} ended during this call: {cause}. It may have been executed, in part or whole"),
    )
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGSEGV => "SIGSEGV: memory that is not the function's to touch, such as output beyond its room",
        libc::SIGABRT => "SIGABRT",
        libc::SIGFPE => "SIGFPE: arithmetic such as a division by zero",
        libc::SIGILL => "SIGILL",
        libc::SIGBUS => "SIGBUS",
        libc::SIGKILL => "SIGKILL: killed from outside, perhaps for want of memory",
        libc::SIGTERM => "SIGTERM",
        _ => "see `man 7 signal`",
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
