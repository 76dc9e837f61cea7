//! The calls of a pool, from submission until their outcome is taken.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Instant;

use super::super::{CallId, CallOptions, FunctionId, Input, Outcome, OutputBuffer};

/// A call that waits for a worker.
pub struct PendingCall {
    pub function: FunctionId,
    pub input: Input,
    /// The caller's memory for the output.
    pub output: Option<OutputBuffer>,
    pub options: CallOptions,
    pub retries: u8,
    /// When it was first rejected for want of a core.
    pub first_rejection: Option<Instant>,
}

enum Call {
    /// In the queue, parked at a worker, or sent and kept for a retry.
    Waiting(Box<PendingCall>),
    /// Sent to the worker with this index.
    Sent(usize),
    Ended(Outcome),
    /// Its outcome will be dropped.
    Forgotten,
}

/// All calls, and the queue of those that wait for any worker.
#[derive(Default)]
pub struct CallTable {
    calls: HashMap<CallId, Call>,
    queue: VecDeque<CallId>,
    /// Calls whose end will be reported.
    watched: HashSet<CallId>,
    /// Watched calls that have ended and are not reported yet.
    notices: Vec<CallId>,
    /// Calls whose outcomes are dropped.
    discarded: HashSet<CallId>,
    /// Calls to be killed, which are not sent again.
    killed: HashSet<CallId>,
    /// Number of the last call; 0 for none.
    last_id: u64,
    /// Calls that ended since the last [`CallTable::take_ended`].
    ended: usize,
    /// Calls that have not ended.
    pending: usize,
}

impl CallTable {
    /// Returns the id of a new call.
    pub fn add(&mut self, notify: bool) -> CallId {
        self.last_id += 1;
        self.pending += 1;
        let id = CallId(self.last_id);
        if notify {
            self.watched.insert(id);
        }
        id
    }

    /// Appends a waiting call to the queue.
    pub fn push_back(&mut self, id: CallId, call: Box<PendingCall>) {
        self.park(id, call);
        self.queue.push_back(id);
    }

    /// Prepends a waiting call to the queue.
    pub fn push_front(&mut self, id: CallId, call: Box<PendingCall>) {
        self.park(id, call);
        self.queue.push_front(id);
    }

    /// Stores a waiting call outside the queue.
    pub fn park(&mut self, id: CallId, call: Box<PendingCall>) {
        self.calls.insert(id, Call::Waiting(call));
    }

    /// Prepends a parked call to the queue.
    pub fn unpark(&mut self, id: CallId) {
        self.queue.push_front(id);
    }

    /// Removes the first call from the queue; the call still waits.
    pub fn pop_front(&mut self) -> Option<CallId> {
        self.queue.pop_front()
    }

    /// Returns a call that waits.
    pub fn waiting(&self, id: CallId) -> Option<&PendingCall> {
        match self.calls.get(&id) {
            Some(Call::Waiting(call)) => Some(call),
            _ => None,
        }
    }

    /// Takes a call that waits, to send it.
    pub fn take_waiting(&mut self, id: CallId) -> Option<Box<PendingCall>> {
        match self.calls.remove(&id)? {
            Call::Waiting(call) => Some(call),
            other => {
                self.calls.insert(id, other);
                None
            }
        }
    }

    /// Records that a call was sent to the worker with this index.
    pub fn sent(&mut self, id: CallId, worker: usize) {
        self.calls.insert(id, Call::Sent(worker));
    }

    /// Returns the index of the worker that a call was sent to, if it has not ended.
    pub fn worker_of(&self, id: CallId) -> Option<usize> {
        match self.calls.get(&id) {
            Some(Call::Sent(worker)) => Some(*worker),
            _ => None,
        }
    }

    /// Stores the outcome of a call, unless it is unwanted.
    pub fn end(&mut self, id: CallId, outcome: Outcome) {
        self.pending = self.pending.saturating_sub(1);
        self.ended += 1;
        if !self.killed.is_empty() {
            self.killed.remove(&id);
        }
        if self.watched.remove(&id) {
            self.notices.push(id);
        }
        match self.calls.get(&id) {
            _ if !self.discarded.is_empty() && self.discarded.remove(&id) => {
                self.calls.remove(&id);
            }
            Some(Call::Forgotten) => {
                self.calls.remove(&id);
            }
            _ => {
                self.calls.insert(id, Call::Ended(outcome));
            }
        }
    }

    pub fn is_done(&self, id: CallId) -> bool {
        matches!(self.calls.get(&id), Some(Call::Ended(_)) | None)
    }

    pub fn is_known(&self, id: CallId) -> bool {
        self.calls.contains_key(&id)
    }

    pub fn is_forgotten(&self, id: CallId) -> bool {
        matches!(self.calls.get(&id), Some(Call::Forgotten))
    }

    pub fn is_killed(&self, id: CallId) -> bool {
        self.killed.contains(&id)
    }

    pub fn is_queue_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Number of calls that have not ended.
    pub fn pending(&self) -> usize {
        self.pending
    }

    /// Number of calls whose end has still to be reported.
    pub fn watched(&self) -> usize {
        self.watched.len() + self.notices.len()
    }

    pub fn has_notices(&self) -> bool {
        !self.notices.is_empty()
    }

    /// Takes the watched calls that have ended.
    pub fn take_notices(&mut self) -> Vec<CallId> {
        std::mem::take(&mut self.notices)
    }

    /// Returns how many calls ended since the last call of this function.
    pub fn take_ended(&mut self) -> usize {
        std::mem::take(&mut self.ended)
    }

    /// Takes the outcome of a call that has ended.
    pub fn take(&mut self, id: CallId) -> Option<Outcome> {
        if !matches!(self.calls.get(&id), Some(Call::Ended(_))) {
            return None;
        }
        match self.calls.remove(&id) {
            Some(Call::Ended(outcome)) => Some(outcome),
            _ => None,
        }
    }

    /// Removes a call from the queue; the call still waits.
    pub fn remove_queued(&mut self, id: CallId) {
        self.queue.retain(|queued| *queued != id);
    }

    pub fn clear_queue(&mut self) {
        self.queue.clear();
    }

    /// Returns all waiting calls, in no particular order.
    pub fn all_waiting(&self) -> Vec<CallId> {
        self.having(|call| matches!(call, Call::Waiting(_)))
    }

    /// Returns all waiting and sent calls, in no particular order.
    pub fn all_unfinished(&self) -> Vec<CallId> {
        self.having(|call| matches!(call, Call::Waiting(_) | Call::Sent(_)))
    }

    fn having(&self, wanted: impl Fn(&Call) -> bool) -> Vec<CallId> {
        let wanted = self.calls.iter().filter(|(_, call)| wanted(call));
        wanted.map(|(id, _)| *id).collect()
    }

    /// Records that a call is killed, so that it is not sent again.
    pub fn kill(&mut self, id: CallId) {
        self.killed.insert(id);
    }

    /// Drops the outcome of an ended or sent call. A waiting call has to be cancelled before.
    pub fn forget(&mut self, id: CallId) {
        self.watched.remove(&id);
        match self.calls.get_mut(&id) {
            Some(Call::Ended(_)) => {
                self.calls.remove(&id);
            }
            Some(state @ Call::Sent(_)) => *state = Call::Forgotten,
            Some(Call::Waiting(_) | Call::Forgotten) | None => {}
        }
    }

    /// Drops the outcome of a call, now or when it ends.
    pub fn discard(&mut self, id: CallId) {
        self.watched.remove(&id);
        match self.calls.get(&id) {
            Some(Call::Ended(_)) => {
                self.calls.remove(&id);
            }
            Some(Call::Waiting(_) | Call::Sent(_)) => {
                self.discarded.insert(id);
            }
            Some(Call::Forgotten) | None => {}
        }
    }

    /// Has the end of a call reported; at once if it has ended.
    pub fn notify(&mut self, id: CallId) {
        match self.calls.get(&id) {
            Some(Call::Ended(_)) => self.notices.push(id),
            Some(Call::Waiting(_) | Call::Sent(_)) => {
                self.watched.insert(id);
            }
            Some(Call::Forgotten) | None => {}
        }
    }
}
