//! Requests that receive the parts of a message.

use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dayfly_comm::detached::{Detached, Turn};

use super::{ANNOUNCEMENT_BYTES, Announcement, Layout, Round};
use crate::communicator::{self, CommObject, Peer, send_tag};
use crate::error::{Error, Result, class};
use crate::handle::{Comm, Request};
use crate::point::Data;
use crate::request::{Active, make_persistent};
use crate::status::Completion;

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
    pub fn comm(&self) -> &CommObject {
        &self.comm
    }

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
    pub fn has_arrived(&self, turn: &mut Turn<'_>, part: c_int) -> Result<bool> {
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

    /// How the run has ended, if it has.
    pub fn poll(&self, turn: &mut Turn<'_>) -> Option<Completion> {
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

/// Makes a request that receives.
pub fn make(data: Data, parts: c_int, from: c_int, tag: c_int, comm: Comm) -> Result<Request> {
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
