//! Windows: memory that other ranks read and write.
//!
//! A window that MPI allocates on one host lies in memory that its ranks share (`shared`). In others, an access is a message
//! to the rank that has the memory, which applies it whenever it waits in this library and responds. So accesses work over
//! every transport, and all accesses to a window are atomic with each other.

mod access;
mod apply;
mod create;
mod direct;
mod shared;
mod sync;
mod wire;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dayfly_comm::Status;
use dayfly_comm::detached::{Detached, Turn};
use dayfly_protocol::error::{Code, Failure};

use crate::attribute::{Attributes, Holder};
use crate::communicator::CommObject;
use crate::datatype::TypeObject;
use crate::error::{Error, Result, class};
use crate::handle::{Table, Win};
use crate::interface::{self, AtomicNumber};
use crate::pointer::Buffer;
use crate::realm::Wheel;

pub use access::Pending;
use shared::{Part, Shared};
use wire::{Request, Response};

pub static WINDOWS: Table<WindowObject> = Table::new(8);
/// Windows that must be served.
static OPEN: Mutex<Vec<Arc<WindowObject>>> = Mutex::new(Vec::new());
static OPEN_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Tags of the messages of a window.
const REQUESTS: u32 = 1;
const RESPONSES: u32 = 2;

/// The memory of a rank in a window.
pub struct Memory {
    pub part: Part,
    /// Memory that the library allocated, which goes with the window.
    pub _owned: Owned,
}

/// What is released with a window.
pub enum Owned {
    Nothing,
    Bytes { _memory: Vec<u64> },
    Mapping { start: usize, length: usize },
}

/// A window.
pub struct WindowObject {
    pub comm: Arc<CommObject>,
    pub memory: Memory,
    /// If all ranks share the memory.
    shared: Option<Shared>,
    pub flavor: i32,
    /// Values of the predefined attributes, to whose addresses programs get pointers.
    pub values: [i64; 4],
    pub handler: AtomicNumber,
    /// Its handle, for its error handler; `MPI_WIN_NULL` while it is made.
    handle: AtomicNumber,
    pub name: Mutex<String>,
    pub info: Mutex<Vec<(String, String)>>,
    attributes: Attributes,
    state: Mutex<State>,
}

/// A lock that a rank wants or has.
#[derive(Clone, Copy)]
struct Claim {
    rank: usize,
    id: u64,
    is_exclusive: bool,
}

/// Number of no access: its failure is the window's, as when a rank is lost.
const WINDOW: u64 = 0;

/// Where the bytes of a response go.
struct Waiting {
    target: usize,
    into: Option<(Buffer, usize, Arc<TypeObject>)>,
}

#[derive(Default)]
struct State {
    next: u64,
    waiting: HashMap<u64, Waiting>,
    /// Messages that arrive, in their order, until all their bytes are there.
    incoming: VecDeque<(usize, Vec<u8>, Option<Detached>)>,
    responses: Vec<(Vec<u8>, Detached)>,
    outgoing: Vec<(Vec<u8>, Detached)>,
    /// Locks of this rank's memory.
    holders: Vec<Claim>,
    queue: VecDeque<Claim>,
    /// Exposures and ends of accesses that other ranks have announced.
    posts: HashMap<usize, usize>,
    completes: HashMap<usize, usize>,
    /// Memory of a dynamic window: start and length.
    attached: BTreeMap<usize, usize>,
    /// The ranks of the exposure and of the access that this rank has begun.
    exposed_to: Option<Vec<usize>>,
    accesses: Option<Vec<usize>>,
    /// Errors of accesses, by their numbers, until the program gets them.
    failures: BTreeMap<u64, Error>,
    /// The ranks that this rank has locked.
    locked: HashSet<usize>,
}

impl Holder for WindowObject {
    fn attributes(&self) -> &Attributes {
        &self.attributes
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Self::Mapping { start, length } = self {
            // SAFETY: the window mapped it, and goes with it.
            unsafe { libc::munmap(*start as *mut libc::c_void, *length) };
        }
    }
}

pub fn get(window: Win) -> Result<Arc<WindowObject>> {
    WINDOWS
        .get(window.0)
        .ok_or_else(|| Error::new(class::WIN, "the handle is no window"))
}

fn open() -> MutexGuard<'static, Vec<Arc<WindowObject>>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers a window, so that it is served.
fn register(window: &Arc<WindowObject>) {
    open().push(window.clone());
    OPEN_COUNT.fetch_add(1, Ordering::AcqRel);
}

fn unregister(window: &Arc<WindowObject>) {
    open().retain(|other| !Arc::ptr_eq(other, window));
    OPEN_COUNT.fetch_sub(1, Ordering::AcqRel);
}

/// Drops all windows.
pub fn clear() {
    WINDOWS.clear();
    let all = std::mem::take(&mut *open());
    OPEN_COUNT.store(0, Ordering::Release);
    drop(all);
}

/// Serves all windows. Every wait calls it.
#[inline]
pub fn serve(turn: &mut Turn<'_>) {
    if OPEN_COUNT.load(Ordering::Relaxed) > 0 {
        serve_all(turn);
    }
}

#[cold]
fn serve_all(turn: &mut Turn<'_>) {
    let all = open().clone();
    for window in all {
        if !window.comm.is_driven_by(turn) {
            continue;
        }
        let mut state = window.state();
        if let Err(error) = window.serve(&mut state, turn) {
            state.failures.entry(WINDOW).or_insert(error);
        }
    }
}

fn no_memory() -> Error {
    Error::new(class::NO_MEM, "there is no memory for an access to a window")
}

/// An empty vector with room for so many bytes, whose number another rank has chosen.
fn room_for(length: usize) -> Result<Vec<u8>> {
    let mut room = Vec::new();
    room.try_reserve_exact(length).map_err(|_| no_memory())?;
    Ok(room)
}

/// An empty vector with room for a message that arrives, or for its head only if there is no memory for all of it; and
/// the bytes of room.
fn arrival_room(length: u64) -> Result<(Vec<u8>, usize)> {
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    match room_for(length) {
        Ok(room) => Ok((room, length)),
        Err(_) => Ok((room_for(wire::HEAD_BYTES)?, wire::HEAD_BYTES)),
    }
}

/// The bytes of a message whose receive has ended, and whether they are all of it.
fn arrived(outcome: std::result::Result<Status, Failure>, mut bytes: Vec<u8>) -> Result<(Vec<u8>, bool)> {
    let (length, is_whole) = match outcome {
        Ok(status) => (status.length as usize, true),
        Err(failure) if failure.code == Code::Truncated => (wire::HEAD_BYTES, false),
        Err(failure) => return Err(failure.into()),
    };
    // SAFETY: the receive has filled so many bytes of the room.
    unsafe { bytes.set_len(length) };
    Ok((bytes, is_whole))
}

impl WindowObject {
    fn new(comm: Arc<CommObject>, memory: Memory, shared: Option<Shared>, flavor: i32) -> Self {
        let model = interface::window::UNIFIED;
        let values = [
            memory.part.size as i64,
            memory.part.unit as i64,
            flavor.into(),
            model.into(),
        ];
        // Not the communicator's.
        let handler = AtomicNumber::new(crate::handle::Errhandler::FATAL.0);
        Self {
            comm,
            memory,
            shared,
            flavor,
            values,
            handler,
            handle: AtomicNumber::new(Win::NULL.0),
            name: Mutex::default(),
            info: Mutex::default(),
            attributes: Attributes::default(),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rank(&self) -> usize {
        self.comm.rank() as usize
    }

    /// Sends a message of the window. The engine is `turn`'s.
    fn send(&self, state: &mut State, turn: &mut Turn<'_>, to: usize, tag: u32, bytes: Vec<u8>) -> Result<()> {
        let local = self.comm.local()?;
        // SAFETY: the bytes are kept until the send is complete; moving the vector does not move them.
        let sent = unsafe { turn.start_send(local, bytes.as_ptr(), bytes.len(), to as u32, tag) }?;
        state.outgoing.push((bytes, sent));
        Ok(())
    }

    /// Sends a request, or applies it to this rank's own memory.
    fn request(&self, state: &mut State, turn: &mut Turn<'_>, to: usize, request: &Request) -> Result<()> {
        match to == self.rank() {
            true => self.apply(state, turn, to, request),
            false => self.send(state, turn, to, REQUESTS, request.to_bytes()),
        }
    }

    fn respond(&self, state: &mut State, turn: &mut Turn<'_>, to: usize, response: Response) -> Result<()> {
        match to == self.rank() {
            true => {
                state.accept(response);
                Ok(())
            }
            false => self.send(state, turn, to, RESPONSES, response.to_bytes()),
        }
    }

    /// Takes arrived messages, applies requests and accepts responses.
    fn serve(&self, state: &mut State, turn: &mut Turn<'_>) -> Result<()> {
        let local = self.comm.local()?;
        for tag in [REQUESTS, RESPONSES] {
            while let Some(message) = turn.take_message(local, dayfly_comm::ANY_SOURCE, tag)? {
                let status = message.status();
                let source = self.comm.peer_of_world(status.source) as usize;
                let (mut bytes, room) = arrival_room(status.length)?;
                // SAFETY: the bytes are kept until the receive is complete; moving the vector does not move them.
                let received = unsafe { turn.start_matched(message, bytes.as_mut_ptr(), room) }?;
                match tag {
                    REQUESTS => state.incoming.push_back((source, bytes, Some(received))),
                    _ => state.responses.push((bytes, received)),
                }
            }
        }
        state.outgoing.retain(|(_, sent)| turn.take(sent).is_none());
        let mut at = 0;
        while at < state.responses.len() {
            match turn.take(&state.responses[at].1) {
                Some(outcome) => {
                    // It leaves the queue whatever its outcome is: that is returned once.
                    let (bytes, _) = state.responses.swap_remove(at);
                    let (bytes, is_whole) = arrived(outcome, bytes)?;
                    let mut response = Response::from_bytes(&bytes)?;
                    if !is_whole {
                        response.error = Some(no_memory());
                    }
                    state.accept(response);
                }
                None => at += 1,
            }
        }
        while let Some((_, _, received)) = state.incoming.front() {
            let Some(outcome) = received.as_ref().and_then(|received| turn.take(received)) else {
                break;
            };
            let Some((source, bytes, _)) = state.incoming.pop_front() else {
                break;
            };
            match arrived(outcome, bytes)? {
                (bytes, true) => self.apply(state, turn, source, &Request::from_bytes(&bytes)?)?,
                (head, false) => self.refuse(state, turn, source, &head)?,
            }
        }
        Ok(())
    }

    /// Refuses a request for which there was no memory; `head` is its beginning.
    fn refuse(&self, state: &mut State, turn: &mut Turn<'_>, source: usize, head: &[u8]) -> Result<()> {
        let response = Response {
            id: Request::id_of(head)?,
            error: Some(no_memory()),
            bytes: Vec::new(),
        };
        self.respond(state, turn, source, response)
    }

    /// Waits until something is true of the window's state. Errors of accesses do not end the wait: other ranks rely on
    /// what follows it.
    fn wait(&self, what: &'static str, mut done: impl FnMut(&mut State) -> bool) -> Result<()> {
        let control = self.comm.control()?;
        let mut wheel = Wheel::new(&control);
        // A program that polls its own memory calls a flush, so that the accesses of others arrive.
        wheel.progress();
        loop {
            wheel.each(|_| ());
            {
                let mut state = self.state();
                if let Some(error) = state.failures.remove(&WINDOW) {
                    return Err(error);
                }
                if done(&mut state) {
                    return state.check();
                }
            }
            wheel.step(what)?;
        }
    }
}

impl State {
    fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Returns the first of the errors that the program has not got, and forgets them all.
    fn check(&mut self) -> Result<()> {
        let first = std::mem::take(&mut self.failures).pop_first();
        first.map_or(Ok(()), |(_, error)| Err(error))
    }

    /// The outcome of an access that has ended, or that cannot end because the window has failed.
    fn outcome(&mut self, id: u64) -> Option<Result<()>> {
        let broken = self.failures.get(&WINDOW).cloned();
        if broken.is_none() && self.waiting.contains_key(&id) {
            return None;
        }
        self.waiting.remove(&id);
        Some(self.failures.remove(&id).or(broken).map_or(Ok(()), Err))
    }

    /// Ends the operation that a response names.
    fn accept(&mut self, response: Response) {
        let Some(waiting) = self.waiting.remove(&response.id) else {
            return;
        };
        if let Some(error) = response.error {
            self.failures.insert(response.id, error);
        } else if let Some((buffer, count, of)) = waiting.into {
            of.unpack_elements(&response.bytes, buffer, count);
        }
    }

    /// Whether all bytes between two addresses are attached to the dynamic window.
    fn is_attached(&self, first: usize, end: usize) -> bool {
        let mut next = first;
        while next < end {
            let before = self.attached.range(..=next).next_back();
            match before.map(|(start, length)| start.saturating_add(*length)) {
                Some(after) if after > next => next = after,
                _ => return false,
            }
        }
        true
    }
}
