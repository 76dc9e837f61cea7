//! The engine: links, requests, and the state of the ranks.

mod lazily;
mod troubles;
mod wait;

use std::cell::UnsafeCell;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use dayfly_fabric::libfabric::Choice;
use dayfly_protocol::error::{Code, Failure};
use rustix::event::epoll;

use crate::book::{ANY_SOURCE, Body, Book, Request, RequestId, State, Status, Wanted};
use crate::nonblocking::Tasks;
use crate::options::Options;
use crate::road::{Lost, Via};
use crate::wire::envelope::{Envelope, Offer, kind};
use crate::wire::{Link, Outgoing, Payload};
use lazily::Lazily;
pub use troubles::Record;
pub use wait::Patience;

/// How long a leaving rank waits for its sent bytes to be taken.
const LEAVE_LIMIT: Duration = Duration::from_secs(2);
/// Sends between two checks for arrivals and failures.
const SENDS_PER_LOOK: u32 = 1024;
/// Events that are read at a time.
const EVENTS: usize = 64;

/// Address of a message, beside its rank.
pub type Address = Wanted;

/// Result of starting an operation: complete, or pending.
#[derive(Debug)]
pub enum Started {
    Done(Status),
    Pending(RequestId),
}

/// The state of a rank.
#[derive(Debug)]
pub struct Engine {
    pub rank: u32,
    pub size: u32,
    pub options: Options,
    pub book: Book,
    pub records: Vec<Record>,
    /// Contexts below this one are, or were, in use.
    pub next_context: u32,
    links: Vec<Option<Link>>,
    vias: Vec<Option<Via>>,
    /// Connections on demand, if ranks connect lazily.
    lazily: Option<Box<Lazily>>,
    /// Ranks whose links must be polled: no event announces their messages.
    polled: Vec<u32>,
    /// Ranks whose sockets cause events.
    told: Vec<u32>,
    /// Streams that may have more to read, by rank.
    talking: Vec<bool>,
    poller: Option<OwnedFd>,
    lost: Arc<Lost>,
    departed: Vec<bool>,
    /// Whether any failure is known that makes operations fail.
    troubled: bool,
    lost_seen: u64,
    crowded: bool,
    scratch: Vec<Vec<u8>>,
    /// Number of started sends.
    sends: u32,
}

impl Engine {
    pub fn new(
        rank: u32,
        links: Vec<Option<Link>>,
        vias: Vec<Option<Via>>,
        lost: Arc<Lost>,
        options: Options,
    ) -> Result<Self, Failure> {
        let size = links.len() as u32;
        let of_kind = |wanted: fn(&Link) -> bool| -> Vec<u32> {
            let found = links.iter().enumerate();
            let found = found.filter(|(_, link)| link.as_ref().is_some_and(wanted));
            found.map(|(rank, _)| rank as u32).collect()
        };
        let polled = of_kind(|link| !link.is_told());
        let told = of_kind(Link::is_told);
        let neighbours = of_kind(Link::is_near).len();
        let mut engine = Self {
            rank,
            size,
            book: Book::new(size, options.unexpected_bytes),
            records: Vec::new(),
            next_context: 0,
            crowded: neighbours + 1 > online_cores(),
            poller: None,
            talking: vec![true; size as usize],
            links,
            vias,
            lazily: None,
            polled,
            told,
            lost,
            departed: vec![false; size as usize],
            troubled: false,
            lost_seen: 0,
            scratch: Vec::new(),
            sends: 0,
            options,
        };
        engine.watch_streams()?;
        Ok(engine)
    }

    /// The libfabric provider for this rank; `None` if the bytes do not go over libfabric.
    pub fn fabric(&self, rank: u32) -> Option<Choice> {
        match self.links.get(rank as usize)? {
            Some(Link::Stream(link)) => link.fabric(),
            _ => None,
        }
    }

    /// How bytes to this rank travel; `None` without a connection.
    pub fn via(&self, rank: u32) -> Option<Via> {
        match self.fabric(rank) {
            Some(_) => Some(Via::Fabric),
            None => *self.vias.get(rank as usize)?,
        }
    }

    /// Sets an epoll up, if there are several streams.
    fn watch_streams(&mut self) -> Result<(), Failure> {
        if self.told.len() < 2 {
            return Ok(());
        }
        let watch = || -> std::io::Result<OwnedFd> {
            let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            for peer in &self.told {
                if let Some(link) = &self.links[*peer as usize] {
                    let data = epoll::EventData::new_u64((*peer).into());
                    epoll::add(&poller, link.socket().0, data, epoll::EventFlags::IN)?;
                }
            }
            Ok(poller)
        };
        let poller = watch().map_err(|error| {
            let text = format!("watching the group's connections failed: {error}");
            Failure::new(Code::Internal, text)
        })?;
        self.poller = Some(poller);
        Ok(())
    }

    /// Moves bytes on all links. Returns whether any moved.
    #[inline]
    pub fn progress(&mut self) -> bool {
        let mut moved = self.lazily.is_some() && self.connect_more();
        for at in 0..self.polled.len() {
            moved |= self.progress_with(self.polled[at]);
        }
        if !self.told.is_empty() {
            moved |= self.progress_streams();
        }
        if !self.book.notes.is_empty() {
            self.read_notes();
        }
        moved
    }

    fn progress_streams(&mut self) -> bool {
        if let Some(poller) = &self.poller {
            let mut events = [const { std::mem::MaybeUninit::uninit() }; EVENTS];
            let now = rustix::event::Timespec::default();
            if let Ok((ready, _)) = epoll::wait(poller, &mut events, Some(&now)) {
                for event in ready {
                    if let Some(talking) = self.talking.get_mut(event.data.u64() as usize) {
                        *talking = true;
                    }
                }
            }
        }
        let mut moved = false;
        let only = self.told.len() == 1;
        for at in 0..self.told.len() {
            let peer = self.told[at];
            let unflushed = || {
                self.links[peer as usize]
                    .as_ref()
                    .is_some_and(|link| !link.is_flushed())
            };
            if only || self.talking[peer as usize] || unflushed() {
                let more = self.progress_with(peer);
                self.talking[peer as usize] = more;
                moved |= more;
            }
        }
        moved
    }

    #[inline]
    fn progress_with(&mut self, peer: u32) -> bool {
        let Some(link) = &mut self.links[peer as usize] else {
            return false;
        };
        match link.progress(&mut self.book) {
            Ok(moved) => moved,
            Err(failure) => {
                self.lose(peer, failure.message);
                false
            }
        }
    }

    /// Starts a send.
    ///
    /// # Safety
    /// `length` bytes at `start` must be readable and unchanged until the request is complete or cancelled.
    #[inline]
    pub unsafe fn send(
        &mut self,
        peer: u32,
        address: Address,
        start: *const u8,
        length: usize,
    ) -> Result<Started, Failure> {
        self.sends = self.sends.wrapping_add(1);
        if self.sends.is_multiple_of(SENDS_PER_LOOK) {
            self.look_up();
        }
        if self.troubled {
            self.check(peer, &address)?;
        }
        let Address { context, tag, call } = address;
        let envelope = Envelope {
            sequence: 0,
            kind: kind::EAGER,
            context,
            tag,
            length: length as u64,
            call,
        };
        if peer == self.rank {
            // SAFETY: required of the caller.
            let bytes = unsafe { std::slice::from_raw_parts(start, length) };
            self.book.deliver(peer, &envelope, bytes);
            return Ok(Started::Done(Status::default()));
        }
        let Some(Some(link)) = self.links.get_mut(peer as usize) else {
            return self.send_when_connected(peer, envelope, start, length);
        };
        if length <= link.immediate_bytes() {
            // SAFETY: required of the caller.
            let bytes = unsafe { std::slice::from_raw_parts(start, length) };
            match link.try_send(envelope, bytes) {
                Ok(true) => return Ok(Started::Done(Status::default())),
                Ok(false) => {}
                Err(failure) => {
                    self.lose(peer, failure.message);
                    return Err(self.lost_or_left(peer));
                }
            }
        }
        self.send_later(peer, envelope, start, length)
    }

    /// Checks for arrivals and failures, as a waiting rank does all the time. A rank that only sends never waits, and
    /// would go on long after the loss of a rank.
    #[cold]
    fn look_up(&mut self) {
        self.progress();
        self.look_for_trouble();
    }

    /// Starts a send that finds no room, or that must be offered first.
    #[cold]
    fn send_later(
        &mut self,
        peer: u32,
        envelope: Envelope,
        start: *const u8,
        length: usize,
    ) -> Result<Started, Failure> {
        let id = self.book.add_send(peer, &envelope, start, length)?;
        self.send_as(id, peer, envelope, start, length)?;
        Ok(Started::Pending(id))
    }

    /// Passes a send to its link.
    fn send_as(
        &mut self,
        id: RequestId,
        peer: u32,
        mut envelope: Envelope,
        start: *const u8,
        length: usize,
    ) -> Result<(), Failure> {
        let Some(Some(link)) = self.links.get_mut(peer as usize) else {
            return Err(self.no_road(peer));
        };
        let message = if length <= link.eager_bytes() {
            Outgoing {
                envelope,
                payload: Payload::Borrowed(start, length),
                request: Some(id),
            }
        } else {
            envelope.kind = kind::OFFER;
            envelope.sequence = id.to_wire();
            let offer = Offer {
                token: id.to_wire().into(),
                address: start as u64,
            };
            Outgoing {
                envelope,
                payload: Payload::Extra(zerocopy::transmute!(offer)),
                request: None,
            }
        };
        if let Err(failure) = link.send(message, &mut self.book) {
            self.cancel(id);
            self.lose(peer, failure.message);
            return Err(self.lost_or_left(peer));
        }
        Ok(())
    }

    /// Starts a receive.
    ///
    /// # Safety
    /// `length` bytes at `start` must be writable and used by no one else until the request is complete or cancelled.
    #[inline]
    pub unsafe fn receive(
        &mut self,
        peer: u32,
        address: Address,
        start: *mut u8,
        length: usize,
    ) -> Result<Started, Failure> {
        if peer != ANY_SOURCE
            && self.book.is_idle(peer)
            && let Some(Some(Link::Shm(link))) = self.links.get_mut(peer as usize)
            && let Some(envelope) = link.try_receive(&address, start, length)
        {
            return Ok(Started::Done(Status {
                source: peer,
                tag: envelope.tag,
                length: envelope.length,
            }));
        }
        let waiting = self.book.take_unexpected(peer, address.context, address.tag);
        if self.troubled && waiting.is_none() {
            self.check(peer, &address)?;
        }
        if self.lazily.is_some() && waiting.is_none() {
            self.want(peer);
        }
        let id = self.book.post(peer, address, start, length)?;
        if let Some((source, message)) = waiting {
            self.take_waiting(id, source, message)?;
        }
        Ok(Started::Pending(id))
    }

    /// Passes a waiting message to the receive that was just posted for it.
    #[cold]
    fn take_waiting(&mut self, id: RequestId, source: u32, message: crate::book::Unexpected) -> Result<(), Failure> {
        if !self.book.match_with(id, source, &message.envelope) {
            self.read_notes();
            return Ok(());
        }
        match message.body {
            Body::Bytes(bytes) => self.book.fill(id, &bytes),
            Body::Offer(offer) => {
                let Some(Some(link)) = self.links.get_mut(source as usize) else {
                    return Err(self.no_road(source));
                };
                if let Err(failure) = link.accept(offer, id, &mut self.book) {
                    self.lose(source, failure.message);
                    return Err(self.lost_or_left(source));
                }
            }
        }
        Ok(())
    }

    /// Ends a request early, and releases its memory.
    pub fn cancel(&mut self, id: RequestId) {
        let concerned = match self.book.get(id).map(|request| (request.state, request.peer)) {
            Some((State::Sending | State::Receiving, peer)) if peer != ANY_SOURCE => Some(peer),
            _ => None,
        };
        if let Some(peer) = concerned
            && let Some(Some(link)) = self.links.get_mut(peer as usize)
        {
            link.cancel(id, &self.book);
        }
        self.take_back(id);
        self.book.forget(id);
    }

    /// Ends a request with an error, which the waiting caller receives.
    fn fail(&mut self, id: RequestId, failure: Failure) {
        if let Some(&Request { state, peer, .. }) = self.book.get(id)
            && matches!(state, State::Sending | State::Receiving)
            && let Some(Some(link)) = self.links.get_mut(peer as usize)
        {
            link.cancel(id, &self.book);
        }
        self.take_back(id);
        self.book.fail(id, failure);
    }

    /// Sends a control message to another rank, unless that rank is unreachable.
    pub fn tell(&mut self, peer: u32, message: Outgoing) {
        match self.links.get_mut(peer as usize) {
            Some(Some(link)) => {
                if let Err(failure) = link.send(message, &mut self.book) {
                    self.lose(peer, failure.message);
                }
            }
            _ => self.tell_when_connected(peer, message),
        }
    }

    /// Adds the record of a new communicator. Returns its index.
    pub fn add_record(&mut self, record: Record) -> usize {
        match self.records.iter().position(|record| !record.open) {
            Some(at) => {
                self.records[at] = record;
                at
            }
            None => {
                self.records.push(record);
                self.records.len() - 1
            }
        }
    }

    /// Scratch memory of `length` bytes with undefined contents.
    pub fn borrow_scratch(&mut self, length: usize) -> Vec<u8> {
        let mut memory = self.scratch.pop().unwrap_or_default();
        if memory.len() < length {
            memory.resize(length, 0);
        }
        memory.truncate(length);
        memory
    }

    /// Returns scratch memory.
    pub fn return_scratch(&mut self, memory: Vec<u8>) {
        const KEPT: usize = 8;
        if self.scratch.len() < KEPT {
            self.scratch.push(memory);
        }
    }

    /// Sends a farewell to all ranks.
    fn leave(&mut self) {
        for peer in 0..self.size {
            if self.links[peer as usize].is_some() && !self.departed[peer as usize] {
                let farewell = Envelope {
                    kind: kind::LEAVES,
                    ..Envelope::default()
                };
                self.tell(peer, Outgoing::control(farewell));
            }
        }
        let until = Instant::now() + LEAVE_LIMIT;
        let unflushed = |engine: &Self| {
            let mut links = engine.links.iter().flatten();
            engine.has_unsent() || links.any(|link| !link.may_close() && !link.is_closed())
        };
        while unflushed(self) && Instant::now() < until {
            if !self.progress() {
                std::thread::yield_now();
            }
        }
    }
}

fn online_cores() -> usize {
    // SAFETY: sysconf reads no memory of this process.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).unwrap_or(1)
}

/// The engine of a rank, which the rank's communicators share. One thread at a time uses it.
#[derive(Debug)]
pub struct Core {
    mutex: Mutex<()>,
    /// Threads that wait for the engine.
    wanted: AtomicU32,
    /// How often a waiting thread got the engine.
    turns: AtomicU32,
    engine: UnsafeCell<Engine>,
    /// Background collectives. Beside the engine, because they use it.
    tasks: UnsafeCell<Tasks>,
}

// SAFETY: the engine is reached only through `Held`, which holds the mutex, or below one (see `Core::with`).
unsafe impl Sync for Core {}

impl Core {
    pub fn new(engine: Engine) -> Self {
        Self {
            mutex: Mutex::new(()),
            wanted: AtomicU32::new(0),
            turns: AtomicU32::new(0),
            engine: UnsafeCell::new(engine),
            tasks: UnsafeCell::default(),
        }
    }

    #[inline]
    pub fn hold(&self) -> Held<'_> {
        let guard = match self.mutex.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => self.hold_contended(),
        };
        Held {
            core: self,
            guard: Some(guard),
        }
    }

    #[cold]
    fn hold_contended(&self) -> MutexGuard<'_, ()> {
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let guard = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        self.turns.fetch_add(1, Ordering::Relaxed);
        guard
    }

    /// Uses the engine, for futures that are polled and dropped only while a [`Held`] exists.
    ///
    /// # Safety
    /// A `Held` of this thread must exist, and no other reference to the engine may exist.
    #[inline]
    pub unsafe fn with<T>(&self, using: impl FnOnce(&mut Engine) -> T) -> T {
        // SAFETY: required of the caller.
        using(unsafe { &mut *self.engine.get() })
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.engine.get_mut().leave();
    }
}

/// Pause of a yielding thread until another thread has the engine, and the number of such pauses.
const PAUSE: Duration = Duration::from_micros(20);
const MAX_PAUSES: u32 = 50;

/// Exclusive use of the engine.
#[derive(Debug)]
pub struct Held<'a> {
    core: &'a Core,
    guard: Option<MutexGuard<'a, ()>>,
}

impl Held<'_> {
    #[inline]
    pub fn engine(&mut self) -> &mut Engine {
        // SAFETY: the mutex is held, and `&mut self` lends the engine once at a time.
        unsafe { &mut *self.core.engine.get() }
    }

    /// Background collectives. Polling or dropping them uses the engine, so no reference to the engine may exist then.
    #[inline]
    pub fn tasks(&mut self) -> &mut Tasks {
        // SAFETY: as for the engine.
        unsafe { &mut *self.core.tasks.get() }
    }

    /// Moves bytes and polls background collectives. Returns whether anything moved.
    #[inline]
    pub fn nudge(&mut self) -> bool {
        let moved = self.engine().progress();
        let completions = self.engine().book.completions;
        if self.tasks().are_due(completions) {
            self.tasks().poll();
        }
        moved
    }

    /// Yields the engine to a waiting thread, if there is one, and then waits for it.
    fn give_way(&mut self) {
        if self.core.wanted.load(Ordering::Relaxed) == 0 {
            return;
        }
        let turn = self.core.turns.load(Ordering::Relaxed);
        self.guard = None;
        // The mutex is not fair and this thread is awake: without a pause it would get the mutex again and again.
        for _ in 0..MAX_PAUSES {
            std::thread::sleep(PAUSE);
            if self.core.turns.load(Ordering::Relaxed) != turn {
                break;
            }
        }
        self.guard = Some(self.core.hold_contended());
    }
}
