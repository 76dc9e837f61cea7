//! Partitioned messages: the threads of a program hand over the parts of one message one by one.
//!
//! The requests of two ranks match in the order in which they were made. The sender announces each of its requests once,
//! under the program's tag: how many parts it has, of how many bytes, and under which tags they come. Each part then is a
//! message of its own, which the receiver takes into its place. So both sides may divide the message differently. All
//! these messages are apart from those that the program sends otherwise (`CommObject::parts`).

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dayfly_comm::detached::{Detached, Turn};

use crate::communicator::{self, CommObject, Peer, send_tag};
use crate::datatype::TypeObject;
use crate::error::{Error, Result, class};
use crate::face::mpi;
use crate::handle::{Comm, Count, Datatype, Info, Request};
use crate::info;
use crate::point::Data;
use crate::pointer::{Buffer, In, Out};
use crate::request::{self, Active, make_persistent, with_active};
use crate::status::Completion;

/// Set in the tags of parts. Announcements have the tags of the program.
const OF_PARTS: u32 = 1 << 31;
/// Number of tags of parts. With one more, the greatest would be `ANY_TAG`.
const MAX_TAGS: u32 = OF_PARTS - 1;
/// Parts of one message. The receiver posts a receive for each.
const MAX_PARTS: usize = 1 << 20;

/// Tags of the parts of one request.
struct Tags {
    first: u32,
}

/// Tags in use, by the first one, and where to look for the next.
struct TagsInUse {
    next: u32,
    ends: BTreeMap<u32, u32>,
}

static TAGS: Mutex<TagsInUse> = Mutex::new(TagsInUse {
    next: 0,
    ends: BTreeMap::new(),
});

fn tags() -> MutexGuard<'static, TagsInUse> {
    TAGS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tags {
    /// Reserves tags that no other request of this process has.
    fn reserve(parts: usize) -> Result<Self> {
        let count = (parts as u32).max(1);
        let mut tags = tags();
        let mut first = tags.next;
        // Each round either ends or passes one of the ranges in use; one round more begins anew.
        for _ in 0..tags.ends.len() + 2 {
            if first + count > MAX_TAGS {
                first = 0;
            }
            match tags.ends.range(..first + count).next_back() {
                Some((_, end)) if *end > first => first = *end,
                _ => {
                    tags.ends.insert(first, first + count);
                    tags.next = first + count;
                    return Ok(Self { first });
                }
            }
        }
        Err(Error::new(class::OTHER, "there are too many partitioned requests"))
    }
}

impl Drop for Tags {
    fn drop(&mut self) {
        tags().ends.remove(&self.first);
    }
}

/// The memory of a message and its division.
struct Layout {
    buffer: Buffer,
    of: Arc<TypeObject>,
    /// Elements of a part.
    count: usize,
    parts: usize,
    /// Bytes of a part.
    bytes: usize,
}

impl Layout {
    fn new(data: Data, parts: c_int) -> Result<Self> {
        let parts = usize::try_from(parts).ok().filter(|parts| *parts <= MAX_PARTS);
        let parts = parts.ok_or_else(|| {
            Error::new(
                class::ARG,
                format!("a message has between 0 and {MAX_PARTS} partitions"),
            )
        })?;
        let (of, count) = data.check()?;
        let bytes = of.bytes(count)?;
        of.bytes(count.saturating_mul(parts))?;
        Ok(Self {
            buffer: data.buffer,
            of,
            count,
            parts,
            bytes,
        })
    }

    /// Where a part begins.
    fn place(&self, part: usize) -> Buffer {
        self.buffer.offset((part * self.count) as isize * self.of.extent)
    }

    /// Bytes of the whole message.
    fn length(&self) -> usize {
        self.bytes * self.parts
    }

    fn check(&self, part: c_int) -> Result<usize> {
        let found = usize::try_from(part).ok().filter(|part| *part < self.parts);
        found.ok_or_else(|| no_part(part, self.parts))
    }
}

fn no_part(part: c_int, parts: usize) -> Error {
    Error::new(
        class::ARG,
        format!("there is no partition {part} in a message of {parts}"),
    )
}

/// What a sender announces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Announcement {
    first_tag: u32,
    parts: usize,
    bytes: usize,
}

const ANNOUNCEMENT_BYTES: usize = 24;

impl Announcement {
    fn to_bytes(self) -> Vec<u8> {
        let words = [self.first_tag.into(), self.parts as u64, self.bytes as u64];
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// The announcement in a message of another rank; `None` if it makes no sense.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let [first, parts, bytes] = *bytes.as_chunks::<8>().0 else {
            return None;
        };
        let [first, parts, bytes] = [first, parts, bytes].map(u64::from_ne_bytes);
        let found = Self {
            first_tag: u32::try_from(first).ok()?,
            parts: usize::try_from(parts).ok().filter(|parts| *parts <= MAX_PARTS)?,
            bytes: usize::try_from(bytes).ok()?,
        };
        found.bytes.checked_mul(found.parts)?;
        (found.first_tag.checked_add(found.parts as u32)? <= MAX_TAGS).then_some(found)
    }

    fn tag(&self, part: usize) -> u32 {
        OF_PARTS | (self.first_tag + part as u32)
    }

    /// The sender's parts that a receiver's part consists of.
    fn parts_of(&self, part: usize, own: &Layout) -> Range<usize> {
        let (one, all) = match self.bytes > 0 && own.bytes > 0 {
            true => (own.bytes, self.bytes),
            // Without bytes, both sides divide the same nothing.
            false => (self.parts, own.parts),
        };
        let range = part * one / all..((part + 1) * one).div_ceil(all).min(self.parts);
        match range.is_empty() {
            // A part beyond the sender's bytes is there when all the others are.
            true => 0..self.parts,
            false => range,
        }
    }
}

/// A request that sends.
struct Sender {
    layout: Layout,
    comm: Arc<CommObject>,
    /// `None` for `MPI_PROC_NULL`.
    to: Option<u32>,
    tags: Tags,
}

impl Sender {
    fn announcement(&self) -> Announcement {
        Announcement {
            first_tag: self.tags.first,
            parts: self.layout.parts,
            bytes: self.layout.bytes,
        }
    }

    /// Sends the announcement. It needs no receiver that waits.
    fn announce(&self, to: u32, tag: u32) -> Result<()> {
        let bytes = self.announcement().to_bytes();
        // SAFETY: the request that keeps the bytes is dropped when the operation has ended.
        let operation = unsafe {
            self.comm
                .parts()?
                .start_send(bytes.as_ptr(), bytes.len(), to, tag, false)
        }?;
        if operation.status().is_none() {
            request::make_orphan(
                None,
                Active::Message(request::Message {
                    operation,
                    comm: self.comm.clone(),
                    is_receive: false,
                    packed: Some(bytes),
                    unpack: None,
                }),
            );
        }
        Ok(())
    }

    /// Starts the send of a part. Returns what must be kept until it is complete.
    fn send(&self, turn: &mut Turn<'_>, to: u32, part: usize) -> Result<(Detached, Option<Vec<u8>>)> {
        let Layout { of, count, bytes, .. } = &self.layout;
        let place = self.layout.place(part);
        let packed = (!of.dense).then(|| {
            let mut packed = vec![0; *bytes];
            of.pack(place, *count, &mut packed);
            packed
        });
        let start = match &packed {
            _ if *bytes == 0 => std::ptr::dangling(),
            Some(packed) => packed.as_ptr(),
            None => place.offset(of.true_lower).start().cast_const(),
        };
        let tag = self.announcement().tag(part);
        // SAFETY: the program leaves the part as it is until the operation is complete, and the round keeps a packed copy.
        let operation = unsafe { turn.start_send(self.comm.parts()?, start, *bytes, to, tag) }?;
        Ok((operation, packed))
    }
}

/// One run of a request that sends.
pub struct Sending {
    sender: Arc<Sender>,
    ready: Vec<bool>,
    /// Parts that are not ready.
    missing: usize,
    under_way: Vec<(Detached, Option<Vec<u8>>)>,
    failure: Option<Error>,
}

impl Sending {
    fn new(sender: Arc<Sender>) -> Self {
        let missing = sender.layout.parts;
        Self {
            ready: vec![false; missing],
            missing,
            under_way: Vec::new(),
            failure: None,
            sender,
        }
    }

    /// Sends a part.
    fn ready(&mut self, turn: &mut Turn<'_>, part: c_int) -> Result<()> {
        let at = self.sender.layout.check(part)?;
        if std::mem::replace(&mut self.ready[at], true) {
            return Err(Error::new(class::ARG, format!("partition {part} is ready already")));
        }
        self.missing -= 1;
        let Some(to) = self.sender.to else {
            return Ok(());
        };
        match self.sender.send(turn, to, at) {
            Ok((operation, packed)) => {
                if operation.status().is_none() {
                    self.under_way.push((operation, packed));
                }
                Ok(())
            }
            Err(error) => {
                self.failure.get_or_insert(error.clone());
                Err(error)
            }
        }
    }

    fn poll(&mut self, turn: &mut Turn<'_>) -> Option<Completion> {
        let failure = &mut self.failure;
        self.under_way.retain(|(operation, _)| match turn.take(operation) {
            None => true,
            Some(outcome) => {
                if let Err(error) = outcome {
                    failure.get_or_insert(error.into());
                }
                false
            }
        });
        let ends = self.missing == 0 || self.failure.is_some();
        (ends && self.under_way.is_empty()).then(|| Completion {
            error: self.failure.take(),
            ..Completion::empty()
        })
    }
}

/// What a receiver knows of its sender.
enum Known {
    Nothing,
    Arriving(Box<[u8; ANNOUNCEMENT_BYTES]>, Detached),
    Announced(Announcement),
    Failed(Error),
}

/// A request that receives.
pub struct Receiver {
    layout: Layout,
    comm: Arc<CommObject>,
    from: u32,
    tag: u32,
    state: Mutex<Receiving>,
}

/// The state of a request that receives.
struct Receiving {
    sender: Known,
    /// The run that is under way.
    run: Option<Run>,
}

/// One run of a request that receives.
#[derive(Default)]
struct Run {
    /// A receive for each of the sender's parts, `None` when it has ended; without any before the sender is known.
    parts: Option<Vec<Option<Detached>>>,
    /// The number of receives that have not ended.
    missing: usize,
    /// The bytes of the message, if they are unpacked from there, and which parts were.
    packed: Option<(Vec<u8>, Vec<bool>)>,
    received: u64,
    failure: Option<Error>,
}

impl Run {
    fn has_part(&self, part: usize, of: &Announcement, layout: &Layout) -> bool {
        let parts = self.parts.as_ref();
        parts.is_some_and(|parts| parts[of.parts_of(part, layout)].iter().all(Option::is_none))
    }
}

/// Receivers whose sender is not known yet, in the order in which they were made.
static WAITING: Mutex<Vec<Arc<Receiver>>> = Mutex::new(Vec::new());
static WAITING_COUNT: AtomicUsize = AtomicUsize::new(0);

fn waiting() -> MutexGuard<'static, Vec<Arc<Receiver>>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes announcements. Every wait calls it: a sender may wait for receives that this rank has started.
#[inline]
pub fn serve(turn: &mut Turn<'_>) {
    if WAITING_COUNT.load(Ordering::Relaxed) > 0 {
        serve_all(turn);
    }
}

#[cold]
fn serve_all(turn: &mut Turn<'_>) {
    let mut all = waiting();
    all.retain(|receiver| !receiver.is_freed() && (!receiver.comm.is_driven_by(turn) || !receiver.meet(turn)));
    WAITING_COUNT.store(all.len(), Ordering::Release);
}

/// Drops all receivers that wait.
pub fn clear() {
    let all = std::mem::take(&mut *waiting());
    WAITING_COUNT.store(0, Ordering::Release);
    drop(all);
}

impl Receiver {
    fn state(&self) -> MutexGuard<'_, Receiving> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether only the list of those that wait has it, and no message arrives for it.
    fn is_freed(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1 && matches!(self.state().sender, Known::Nothing)
    }

    /// Looks for the announcement of the sender. Returns whether there is nothing more to wait for.
    fn meet(&self, turn: &mut Turn<'_>) -> bool {
        let mut state = self.state();
        if let Known::Nothing = state.sender {
            match self.find(turn) {
                Ok(Some(found)) => state.sender = found,
                Ok(None) => return false,
                Err(error) => state.sender = Known::Failed(error),
            }
        }
        if let Known::Arriving(bytes, operation) = &state.sender {
            let Some(outcome) = turn.take(operation) else {
                return false;
            };
            let broken = || {
                Error::new(
                    class::INTERN,
                    "a rank announced a partitioned message that makes no sense",
                )
            };
            let found = outcome.map_err(Error::from);
            let found = found.and_then(|_| Announcement::from_bytes(&bytes[..]).ok_or_else(broken));
            state.sender = found.map_or_else(Known::Failed, Known::Announced);
        }
        self.post(turn, &mut state);
        true
    }

    /// Starts the receive of an announcement that has arrived.
    fn find(&self, turn: &mut Turn<'_>) -> Result<Option<Known>> {
        let Some(message) = turn.take_message(self.comm.parts()?, self.from, self.tag)? else {
            return Ok(None);
        };
        let mut bytes = Box::new([0; ANNOUNCEMENT_BYTES]);
        // SAFETY: the receiver keeps the bytes until the operation is complete; while it is not, it is in the list.
        let operation = unsafe { turn.start_matched(message, bytes.as_mut_ptr(), bytes.len()) }?;
        Ok(Some(Known::Arriving(bytes, operation)))
    }

    /// Starts the receives of a run whose sender is known.
    fn post(&self, turn: &mut Turn<'_>, state: &mut Receiving) {
        let Receiving { sender, run: Some(run) } = state else {
            return;
        };
        if run.parts.is_some() {
            return;
        }
        match sender {
            Known::Announced(announcement) => {
                if let Err(error) = self.post_parts(turn, announcement, run) {
                    run.failure.get_or_insert(error);
                }
            }
            Known::Failed(error) => {
                run.failure.get_or_insert(error.clone());
            }
            _ => {}
        }
    }

    fn post_parts(&self, turn: &mut Turn<'_>, of: &Announcement, run: &mut Run) -> Result<()> {
        let length = self.layout.length();
        let dense = self.layout.of.dense;
        let start = match dense {
            true => self.layout.buffer.offset(self.layout.of.true_lower).start(),
            false => {
                let (packed, _) = run.packed.insert((vec![0; length], vec![false; self.layout.parts]));
                packed.as_mut_ptr()
            }
        };
        let comm = self.comm.parts()?;
        let parts = run.parts.insert(Vec::with_capacity(of.parts));
        for part in 0..of.parts {
            let (begin, end) = ((part * of.bytes).min(length), ((part + 1) * of.bytes).min(length));
            let place = match end > begin {
                true => start.wrapping_add(begin),
                false => std::ptr::dangling_mut(),
            };
            // SAFETY: the program lends its buffer until the run is complete, and the run keeps the packed bytes.
            let operation = unsafe { turn.start_receive(comm, place, end - begin, self.from, of.tag(part)) }?;
            parts.push(Some(operation));
            run.missing += 1;
        }
        Ok(())
    }

    /// Takes the parts that have arrived.
    fn advance(&self, turn: &mut Turn<'_>, state: &mut Receiving) {
        self.post(turn, state);
        let (Some(run), Known::Announced(of)) = (&mut state.run, &state.sender) else {
            return;
        };
        let mut has_more = false;
        for place in run.parts.iter_mut().flatten() {
            let Some(outcome) = place.as_ref().and_then(|operation| turn.take(operation)) else {
                continue;
            };
            *place = None;
            run.missing -= 1;
            has_more = true;
            match outcome {
                Ok(status) => run.received += status.length,
                Err(failure) => {
                    run.failure.get_or_insert(failure.into());
                }
            }
        }
        if has_more && let Some((packed, mut done)) = run.packed.take() {
            for part in 0..self.layout.parts {
                if !done[part] && run.has_part(part, of, &self.layout) {
                    done[part] = true;
                    let Layout { of, count, bytes, .. } = &self.layout;
                    of.unpack(
                        &packed[part * bytes..(part + 1) * bytes],
                        self.layout.place(part),
                        *count,
                    );
                }
            }
            run.packed = Some((packed, done));
        }
    }

    /// Whether a part has arrived.
    fn has_arrived(&self, turn: &mut Turn<'_>, part: c_int) -> Result<bool> {
        let part = self.layout.check(part)?;
        let mut state = self.state();
        self.advance(turn, &mut state);
        let Some(run) = &state.run else {
            return Ok(true);
        };
        if let Some(error) = &run.failure {
            return Err(error.clone());
        }
        match &state.sender {
            Known::Announced(of) => Ok(run.has_part(part, of, &self.layout)),
            _ => Ok(false),
        }
    }

    fn poll(&self, turn: &mut Turn<'_>) -> Option<Completion> {
        let mut state = self.state();
        self.advance(turn, &mut state);
        let run = state.run.as_ref()?;
        if run.missing > 0 || (run.parts.is_none() && run.failure.is_none()) {
            return None;
        }
        let run = state.run.take()?;
        Some(Completion {
            source: self.from as c_int,
            tag: self.tag as c_int,
            bytes: run.received,
            cancelled: false,
            error: run.failure,
        })
    }
}

/// One run of a partitioned request.
pub enum Round {
    Send(Sending),
    Receive(Arc<Receiver>),
}

impl Round {
    /// The communicator of its messages.
    pub fn comm(&self) -> &CommObject {
        match self {
            Self::Send(sending) => &sending.sender.comm,
            Self::Receive(receiver) => &receiver.comm,
        }
    }

    /// How it has ended, if it has. The engine is `turn`'s.
    pub fn poll(&mut self, turn: &mut Turn<'_>) -> Option<Completion> {
        match self {
            Self::Send(sending) => sending.poll(turn),
            Self::Receive(receiver) => receiver.poll(turn),
        }
    }
}

fn make_sender(data: Data, parts: c_int, to: c_int, tag: c_int, comm: Comm) -> Result<Request> {
    let comm = communicator::get(comm)?;
    let layout = Layout::new(data, parts)?;
    let (peer, tag) = (comm.receiver(to)?, send_tag(tag)?);
    let to = match peer {
        Peer::Rank(to) => Some(to),
        Peer::Nobody => None,
    };
    let tags = Tags::reserve(layout.parts)?;
    let sender = Arc::new(Sender { layout, comm, to, tags });
    if let Some(to) = to {
        sender.announce(to, tag)?;
    }
    let start = move || Ok(Active::Parts(Round::Send(Sending::new(sender.clone()))));
    Ok(make_persistent(Box::new(start)))
}

fn make_receiver(data: Data, parts: c_int, from: c_int, tag: c_int, comm: Comm) -> Result<Request> {
    let comm = communicator::get(comm)?;
    let layout = Layout::new(data, parts)?;
    // Neither may be a wildcard.
    let (peer, tag) = (comm.receiver(from)?, send_tag(tag)?);
    let Peer::Rank(from) = peer else {
        return Ok(make_persistent(Box::new(|| Ok(Active::Over(Completion::nobody())))));
    };
    let receiver = Arc::new(Receiver {
        layout,
        comm,
        from,
        tag,
        state: Mutex::new(Receiving {
            sender: Known::Nothing,
            run: None,
        }),
    });
    let mut all = waiting();
    all.push(receiver.clone());
    WAITING_COUNT.store(all.len(), Ordering::Release);
    drop(all);
    Ok(make_persistent(Box::new(move || start_receiver(&receiver))))
}

fn start_receiver(receiver: &Arc<Receiver>) -> Result<Active> {
    let control = receiver.comm.control()?;
    let mut turn = control.turn();
    let mut state = receiver.state();
    state.run = Some(Run::default());
    receiver.post(&mut turn, &mut state);
    drop(state);
    // The announcement may have arrived.
    serve(&mut turn);
    Ok(Active::Parts(Round::Receive(receiver.clone())))
}

/// Hands over parts of a send that is under way.
fn make_ready(handle: Request, parts: impl Iterator<Item = c_int>) -> Result<()> {
    with_active(handle, |turn, active| match active {
        Some(Active::Parts(Round::Send(sending))) => {
            let mut parts = parts;
            parts.try_for_each(|part| sending.ready(turn, part))
        }
        _ => Err(Error::new(
            class::REQUEST,
            "the request is no partitioned send, or was not started",
        )),
    })
}

fn has_arrived(handle: Request, part: c_int) -> Result<bool> {
    with_active(handle, |turn, active| match active {
        Some(Active::Parts(Round::Receive(receiver))) => {
            turn.progress();
            request::serve(turn);
            receiver.has_arrived(turn, part)
        }
        // A run that has ended has all its parts.
        Some(Active::Over(_)) | None => Ok(true),
        Some(_) => Err(Error::new(class::REQUEST, "the request is no partitioned receive")),
    })
}

mpi! {
    fn MPI_Psend_init (
        buffer: Buffer, parts: c_int, count: Count, datatype: Datatype, to: c_int, tag: c_int, comm: Comm, given: Info,
        request: Out<Request>
    ) [comm] {
        info::optional(given)?;
        request.check()?.set(make_sender(Data { buffer, count, datatype }, parts, to, tag, comm)?);
        Ok(())
    }

    fn MPI_Precv_init (
        buffer: Buffer, parts: c_int, count: Count, datatype: Datatype, from: c_int, tag: c_int, comm: Comm, given: Info,
        request: Out<Request>
    ) [comm] {
        info::optional(given)?;
        request.check()?.set(make_receiver(Data { buffer, count, datatype }, parts, from, tag, comm)?);
        Ok(())
    }

    fn MPI_Pready (part: c_int, request: Request) [Comm::WORLD] {
        make_ready(request, std::iter::once(part))
    }

    fn MPI_Pready_range (first: c_int, last: c_int, request: Request) [Comm::WORLD] {
        make_ready(request, first..=last)
    }

    fn MPI_Pready_list (count: c_int, parts: In<c_int>, request: Request) [Comm::WORLD] {
        let count = usize::try_from(count).map_err(|_| Error::new(class::COUNT, "the number of partitions is negative"))?;
        make_ready(request, parts.slice(count)?.iter().copied())
    }

    fn MPI_Parrived (request: Request, part: c_int, flag: Out<c_int>) [Comm::WORLD] {
        flag.check()?.set(has_arrived(request, part)?.into());
        Ok(())
    }
}
