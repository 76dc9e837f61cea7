//! Requests: operations that are under way.
//!
//! One thread at a time drives an engine (`Turn`), and then polls all requests that it waits for. Locks are taken in
//! this order: engine, request. A request is polled with the engine that its communicator lies over
//! ([`crate::realm`]).

mod complete;

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dayfly_comm::detached::{Detached, Turn};
use dayfly_comm::{Request as ScopeRequest, Scope};
use dayfly_protocol::error::Code;

use crate::buffers::{self, Owner};
use crate::collective::Kept;
use crate::communicator::CommObject;
use crate::datatype::TypeObject;
use crate::errhandler::Place;
use crate::error::{Error, Result};
use crate::handle::{Request, Table};
use crate::interface::{self, Number};
use crate::partitioned;
use crate::pointer::Buffer;
use crate::realm::{Control, Wheel};
use crate::room::Room;
use crate::status::{Completion, Status, no_request};
use crate::window;

/// The handle of all sends that ended at once: there is nothing to know of each.
const SENT: Request = Request((interface::DYNAMIC | KIND << 26) as Number);
const KIND: u32 = 11;
pub static REQUESTS: Table<RequestObject> = Table::starting(KIND, 1);

/// Freed requests and buffered sends that are still under way; of the latter, whose buffer they use.
static ORPHANS: Mutex<Vec<Orphan>> = Mutex::new(Vec::new());
/// Their number, so that a process without any pays one load.
static ORPHAN_COUNT: AtomicUsize = AtomicUsize::new(0);

type Orphan = (Option<Owner>, Arc<RequestObject>);

/// An operation that was started.
pub enum Active {
    /// It has ended.
    Over(Completion),
    Message(Message),
    /// A send that the program has cancelled, and that the other rank knows of.
    Cancelling(Message),
    Collective(Collective),
    Generalized(Generalized),
    Window(window::Pending),
    Parts(partitioned::Round),
    Flush(buffers::Flush),
    /// A receive and a send that are one operation, with the status of the receive.
    Both(Box<(Self, Self)>),
}

/// A send or a receive.
pub struct Message {
    pub operation: Detached,
    pub comm: Arc<CommObject>,
    pub is_receive: bool,
    /// Its bytes, if the datatype is not dense, or the send is buffered.
    pub packed: Option<Room>,
    /// Where the bytes of a receive are unpacked.
    pub unpack: Option<(Arc<TypeObject>, Buffer, usize)>,
}

/// What is done when a collective has ended.
pub type Finish = Box<dyn FnOnce(&Kept, &mut Turn<'_>) -> Result<()> + Send>;

/// A collective in the background. Its scope is dropped before what the scope borrows.
pub struct Collective {
    pub scope: Scope<'static>,
    pub request: ScopeRequest,
    pub finish: Option<Finish>,
    pub kept: Box<Kept>,
    /// Only kept: the scope borrows from it.
    pub _comm: Arc<CommObject>,
}

/// A request that the program completes itself.
pub struct Generalized {
    query: extern "C" fn(*mut c_void, *mut Status) -> c_int,
    free: extern "C" fn(*mut c_void) -> c_int,
    cancel: extern "C" fn(*mut c_void, c_int) -> c_int,
    state: Buffer,
    is_complete: bool,
}

/// What starts a persistent operation.
pub type Start = Box<dyn Fn() -> Result<Active> + Send + Sync>;

/// A request.
pub struct RequestObject {
    start: Option<Start>,
    /// `None` between the runs of a persistent operation.
    active: Mutex<Option<Active>>,
    /// Whether the operation goes on only when it is polled.
    needs_polls: AtomicBool,
}

impl Message {
    fn end(
        &mut self,
        outcome: std::result::Result<dayfly_comm::Status, dayfly_protocol::error::Failure>,
    ) -> Completion {
        let mut completion = Completion::empty();
        match outcome {
            Ok(status) if self.is_receive => {
                completion.source = self.comm.peer_of_world(status.source);
                completion.tag = status.tag as c_int;
                completion.bytes = status.length;
                if let (Some(packed), Some((of, buffer, count))) = (&self.packed, &self.unpack) {
                    let length = packed.len().min(status.length as usize);
                    of.unpack(&packed[..length], *buffer, *count);
                }
            }
            Ok(_) => {}
            Err(failure) => completion.error = Some(failure.into()),
        }
        completion
    }
}

impl Active {
    /// The group whose engine the operation needs.
    fn control(&self) -> Result<Control> {
        match self {
            Self::Message(message) | Self::Cancelling(message) => message.comm.control(),
            Self::Collective(collective) => collective._comm.control(),
            Self::Window(pending) => pending.control(),
            Self::Both(both) => both.0.control(),
            Self::Parts(round) => round.comm().control(),
            Self::Over(_) | Self::Generalized(_) | Self::Flush(_) => Control::world(),
        }
    }

    /// Ends the operation if it can. The engine is `turn`'s.
    fn poll(&mut self, turn: &mut Turn<'_>) -> bool {
        let completion = match self {
            Self::Over(_) => return true,
            Self::Generalized(request) => return request.is_complete,
            Self::Both(both) => {
                let (received, sent) = (both.0.poll(turn), both.1.poll(turn));
                if !received || !sent {
                    return false;
                }
                let mut completion = both.0.completion();
                completion.error = completion.error.or(both.1.completion().error);
                completion
            }
            Self::Window(pending) => match pending.poll(turn) {
                Some(outcome) => Completion {
                    error: outcome.err(),
                    ..Completion::empty()
                },
                None => return false,
            },
            Self::Parts(round) if !round.comm().is_driven_by(turn) => return false,
            Self::Parts(round) => match round.poll(turn) {
                Some(completion) => completion,
                None => return false,
            },
            Self::Flush(flush) => match flush.poll(turn) {
                true => Completion::empty(),
                false => return false,
            },
            Self::Message(message) | Self::Cancelling(message) if !message.comm.is_driven_by(turn) => return false,
            Self::Collective(collective) if !collective._comm.is_driven_by(turn) => return false,
            Self::Message(message) => match turn.take(&message.operation) {
                Some(outcome) => message.end(outcome),
                None => return false,
            },
            Self::Cancelling(message) => match turn.take(&message.operation) {
                Some(Err(failure)) if failure.code == Code::Cancelled => Completion {
                    cancelled: true,
                    ..Completion::empty()
                },
                Some(outcome) => message.end(outcome),
                None => return false,
            },
            Self::Collective(collective) => {
                let Some(outcome) = collective.scope.take_in(turn, collective.request) else {
                    return false;
                };
                let finish = collective.finish.take();
                let ended = outcome.map_err(Error::from).and_then(|_| match finish {
                    Some(finish) => finish(&collective.kept, turn),
                    None => Ok(()),
                });
                Completion {
                    error: ended.err(),
                    ..Completion::empty()
                }
            }
        };
        let place = self.place();
        let mut completion = completion;
        if let Some(error) = &mut completion.error {
            error.place = error.place.or(place);
        }
        *self = Self::Over(completion);
        true
    }

    /// Where its errors are raised; `None` if no object has it.
    fn place(&self) -> Option<Place> {
        match self {
            Self::Message(message) | Self::Cancelling(message) => Some(message.comm.place()),
            Self::Collective(collective) => Some(collective._comm.place()),
            Self::Parts(round) => Some(round.comm().place()),
            Self::Window(pending) => pending.place(),
            Self::Both(both) => both.0.place().or_else(|| both.1.place()),
            Self::Over(_) | Self::Generalized(_) | Self::Flush(_) => None,
        }
    }

    /// Whether the operation goes on only when it is polled. The engine ends messages by itself.
    fn needs_polls(&self) -> bool {
        !matches!(self, Self::Over(_) | Self::Message(_))
    }

    /// The completion of an operation that has ended.
    fn completion(&self) -> Completion {
        match self {
            Self::Over(completion) => completion.clone(),
            Self::Generalized(request) => {
                let mut status = Status::empty();
                let code = (request.query)(request.state.start().cast(), &raw mut status);
                Completion {
                    error: (code != 0).then(|| Error::new(code, "")),
                    ..status.completion()
                }
            }
            _ => Completion::empty(),
        }
    }

    /// Releases the memory of the operation.
    fn abandon(&mut self, turn: &mut Turn<'_>) {
        match self {
            // The other engines of this process go with their communicators.
            Self::Message(message) | Self::Cancelling(message) if message.comm.is_driven_by(turn) => {
                turn.abandon(&message.operation);
            }
            Self::Both(both) => {
                both.0.abandon(turn);
                both.1.abandon(turn);
            }
            _ => {}
        }
    }
}

impl RequestObject {
    fn new(start: Option<Start>, active: Option<Active>) -> Self {
        Self {
            start,
            needs_polls: AtomicBool::new(active.as_ref().is_some_and(Active::needs_polls)),
            active: Mutex::new(active),
        }
    }

    fn active(&self) -> MutexGuard<'_, Option<Active>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the operation has ended, or is not under way.
    pub fn poll(&self, turn: &mut Turn<'_>) -> bool {
        self.active().as_mut().is_none_or(|active| active.poll(turn))
    }

    fn is_active(&self) -> bool {
        self.active().is_some()
    }

    /// The group whose engine the operation needs.
    fn control(&self) -> Result<Control> {
        self.active().as_ref().map_or_else(Control::world, Active::control)
    }
}

/// A handle for an operation that was started.
pub fn make(active: Active) -> Request {
    match &active {
        Active::Over(completion) if completion.is_empty() => SENT,
        _ => Request(REQUESTS.insert(Arc::new(RequestObject::new(None, Some(active))))),
    }
}

/// A handle for a persistent operation.
pub fn make_persistent(start: Start) -> Request {
    Request(REQUESTS.insert(Arc::new(RequestObject::new(Some(start), None))))
}

/// Lets an operation end by itself. A buffered send names whose buffer it uses.
pub fn make_orphan(owner: Option<Owner>, active: Active) {
    keep_orphan((owner, Arc::new(RequestObject::new(None, Some(active)))));
}

fn keep_orphan(orphan: Orphan) {
    let mut all = orphans();
    all.push(orphan);
    ORPHAN_COUNT.store(all.len(), Ordering::Release);
}

fn orphans() -> MutexGuard<'static, Vec<Orphan>> {
    ORPHANS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Drops all requests and orphans.
pub fn clear() {
    REQUESTS.clear();
    partitioned::clear();
    let all = std::mem::take(&mut *orphans());
    ORPHAN_COUNT.store(0, Ordering::Release);
    drop(all);
}

/// Ends orphans that can end. Returns whether there are any left.
#[inline]
pub fn poll_orphans(turn: &mut Turn<'_>) -> bool {
    ORPHAN_COUNT.load(Ordering::Relaxed) > 0 && poll_all_orphans(turn)
}

#[cold]
fn poll_all_orphans(turn: &mut Turn<'_>) -> bool {
    let mut all = orphans();
    all.retain(|(_, orphan)| !orphan.poll(turn));
    ORPHAN_COUNT.store(all.len(), Ordering::Release);
    !all.is_empty()
}

/// The buffered sends that use a buffer and are still under way.
pub fn buffered(owner: Owner) -> Vec<Arc<RequestObject>> {
    let all = orphans();
    let own = all.iter().filter(|(of, _)| *of == Some(owner));
    own.map(|(_, object)| object.clone()).collect()
}

/// Does what other ranks wait for. Every wait calls it.
#[inline]
pub fn serve(turn: &mut Turn<'_>) {
    window::serve(turn);
    partitioned::serve(turn);
}

/// Calls a function with the engine and an operation: `None` between the runs of a persistent one.
pub fn with_active<T>(handle: Request, act: impl FnOnce(&mut Turn<'_>, Option<&mut Active>) -> Result<T>) -> Result<T> {
    let request = REQUESTS.get(handle.0).ok_or_else(no_request)?;
    let control = request.control()?;
    let mut turn = control.turn();
    act(&mut turn, request.active().as_mut())
}

/// Gives an operation up that has no handle: nothing uses its memory after that.
pub fn abandon(mut active: Active) {
    // Without a group there is nothing that uses it.
    if let Ok(control) = active.control() {
        active.abandon(&mut control.turn());
    }
}

/// Gives all messages of an engine up, before what they use goes.
pub fn abandon_all(turn: &mut Turn<'_>) {
    let orphans = std::mem::take(&mut *orphans());
    ORPHAN_COUNT.store(0, Ordering::Release);
    for object in REQUESTS
        .all()
        .into_iter()
        .chain(orphans.into_iter().map(|(_, object)| object))
    {
        if let Some(active) = object.active().as_mut() {
            active.abandon(turn);
        }
    }
}

/// Waits for an operation that has no handle.
pub fn finish(mut active: Active, what: &'static str) -> Result<Completion> {
    if !matches!(active, Active::Over(_)) {
        let control = active.control()?;
        let mut wheel = Wheel::new(&control);
        wheel.each(|turn| {
            poll_orphans(turn);
        });
        loop {
            let mut has_ended = false;
            wheel.each(|turn| has_ended = has_ended || active.poll(turn));
            if has_ended {
                break;
            }
            if let Err(failure) = wheel.step(what) {
                drop(wheel);
                active.abandon(&mut control.turn());
                return Err(failure.into());
            }
        }
    }
    active.completion().check()
}
