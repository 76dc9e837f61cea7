//! Assignment of calls to workers, under the pool's lock.

mod call_table;
mod members;
mod outcomes;
mod requests;
mod worker;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_fabric::{Allocator, Link, LinkError, Payload, Received, Sleeper};
use dayfly_protocol::error::{Code, Retry};
use dayfly_protocol::executor::Form;
use dayfly_protocol::ids::{CodeHash, FunctionIndex, WorkerIndex};
use dayfly_protocol::node_api::ChannelStatus;
use dayfly_protocol::slot::Status;

use super::repair::{BrokenChannel, Repair, verdict};
use super::{CallId, CallOptions, FunctionId, Input, Output, PoolOptions};
use crate::channel::{Channel, Completion, load_request, read_index};
use crate::delegation::Delegation;
use crate::error::{CallError, Error};
use crate::lease::Lease;
use crate::open_request::OpenRequest;
use call_table::{CallTable, PendingCall};
use members::Members;
use worker::{LoadState, Worker};

pub use members::Member;
pub use worker::{InFlight, Place, SentCall};

/// Work to queue at a worker, in nanoseconds: enough to bridge the caller's pauses, and so little that no worker idles
/// while another has a queue.
const QUEUED_WORK_NS: f64 = 200_000.0;
/// How long a call that was rejected for want of a core is tried on other workers; then it runs and shares a core.
const MAX_REJECTED_TIME: Duration = Duration::from_millis(1);
/// First rest of a worker that rejected a call; each further rejection doubles it.
const FIRST_REST: Duration = Duration::from_micros(100);
const MAX_DOUBLINGS: u32 = 7;
/// Calls that are remembered for each worker: more than may be outstanding, to include calls that ended.
const REMEMBERED: usize = 256;
/// A worker with long calls has one more waiting, so that it does not idle between two.
const MIN_DEPTH: usize = 2;

/// The calls, workers and functions of a pool.
pub struct Dispatch {
    /// The only lease of the pool; `None` in a fleet's.
    lease: Option<Lease>,
    /// The leases of a fleet; `None` in a pool of one lease.
    members: Option<Members>,
    options: PoolOptions,
    workers: Vec<Worker>,
    functions: Vec<(CodeHash, Form)>,
    calls: CallTable,
    /// Repairs that the pool has still to start.
    repairs: Vec<Repair>,
    /// Delegations, and the workers of each.
    delegations: Vec<(Delegation, Range<u16>)>,
    /// Whether workers may reject calls for want of a core, and another worker may have a core.
    is_rejectable: bool,
    /// When the first rest of a worker ends.
    first_rest_end: Option<Instant>,
}

impl Dispatch {
    /// Opens a channel to every worker of the lease.
    pub fn open(lease: &Lease, options: PoolOptions) -> Result<Self, Error> {
        let open = |index| {
            let place = Place {
                lease: lease.clone(),
                index,
                key: 0,
            };
            let channel = lease.channel(WorkerIndex(index), &options.channel)?;
            Ok(Worker::new(place, channel))
        };
        Ok(Self {
            lease: Some(lease.clone()),
            members: None,
            options,
            workers: (0..lease.workers()).map(open).collect::<Result<_, Error>>()?,
            functions: Vec::new(),
            calls: CallTable::default(),
            repairs: Vec::new(),
            delegations: Vec::new(),
            is_rejectable: !lease.is_hot() && lease.workers() > 1,
            first_rest_end: None,
        })
    }

    pub fn calls(&self) -> &CallTable {
        &self.calls
    }

    pub fn calls_mut(&mut self) -> &mut CallTable {
        &mut self.calls
    }

    pub fn register(&mut self, hash: CodeHash, form: Form) -> Result<FunctionId, Error> {
        if let Some(known) = self
            .functions
            .iter()
            .position(|known| known.0 == hash && known.1 == form)
        {
            return Ok(FunctionId(known as u32));
        }
        self.functions.push((hash, form));
        Ok(FunctionId(self.functions.len() as u32 - 1))
    }

    pub fn submit(&mut self, function: FunctionId, input: Input, options: CallOptions) -> Result<CallId, Error> {
        if function.0 as usize >= self.functions.len() {
            return Err(Error::new(
                Code::UnknownFunction,
                "register the function with this pool first",
            ));
        }
        if self.members.is_some() && (options.worker.is_some() || options.incarnation.is_some()) {
            return Err(Error::new(
                Code::InvalidRequest,
                "a fleet chooses the worker of each call, and its workers come and go; use a lease for calls that need a certain \
                 worker or its state",
            ));
        }
        if options
            .worker
            .is_some_and(|worker| worker.0 as usize >= self.workers.len())
        {
            return Err(Error::new(
                Code::InvalidRequest,
                format!("this lease has {} workers", self.workers.len()),
            ));
        }
        let id = self.calls.add(options.notify);
        let call = Box::new(PendingCall {
            function,
            input,
            options,
            retries: 0,
            first_rejection: None,
        });
        if self.calls.is_queue_empty()
            && let Some(worker) = self.choose(&options, false)
        {
            self.assign(worker, id, call);
        } else {
            self.calls.push_back(id, call);
            if let Some(members) = &self.members {
                members.report_backlog();
            }
            // The submitter polls: ended calls make room for queued ones.
            if !self.poll() && self.has_no_worker_for(&options) {
                // No completion would ever trigger another attempt.
                self.assign_queued();
            }
        }
        Ok(id)
    }

    fn depth(&self, worker: &Worker) -> usize {
        let slots = self.options.channel.geometry.slots as usize;
        let depth = match self.options.depth {
            0 => (QUEUED_WORK_NS / worker.pace_ns.max(1.0)) as usize,
            fixed => fixed as usize,
        };
        let least = match self.members {
            // A call behind a long one could not move to another node.
            Some(_) => 1,
            None => MIN_DEPTH,
        };
        depth.clamp(least.min(slots), slots)
    }

    /// The worker with the fewest calls that may take this one. A resting worker gets only calls that must run or that
    /// name it.
    fn choose(&self, options: &CallOptions, must_run: bool) -> Option<usize> {
        self.workers
            .iter()
            .enumerate()
            .filter(|(index, worker)| {
                worker.channel.is_some()
                    && !worker.is_delegated
                    && !worker.is_retiring
                    && options.worker.is_none_or(|wanted| wanted.0 as usize == *index)
                    && worker.load() < self.depth(worker)
                    && (must_run || worker.rests_until.is_none() || options.worker.is_some())
            })
            .min_by_key(|(_, worker)| (worker.rests_until.is_some(), worker.load()))
            .map(|(index, _)| index)
    }

    /// Gives a call to a worker: sends it, or parks it until the worker has loaded its function.
    fn assign(&mut self, index: usize, id: CallId, call: Box<PendingCall>) {
        let worker = &mut self.workers[index];
        if let (Some(wanted), Some(channel)) = (call.options.incarnation, &worker.channel)
            && channel.incarnation().0 != wanted
        {
            let found = channel.incarnation().0;
            let text = format!(
                "the call depends on incarnation {wanted} of worker {index}, which has been replaced by {found}"
            );
            return self.calls.end(id, Err(CallError::new(Code::StateLost, text)));
        }
        match worker.loaded.get(&call.function) {
            Some(LoadState::Ready(function)) => {
                let function = *function;
                self.send(index, id, function, call);
            }
            Some(LoadState::Failed(error)) => {
                let error = error.clone();
                self.calls.end(id, Err(error));
            }
            Some(LoadState::Requested) => {
                worker.parked.push_back(id);
                self.calls.park(id, call);
            }
            None => {
                let function = call.function;
                worker.parked.push_back(id);
                self.calls.park(id, call);
                self.request_load(index, function);
            }
        }
    }

    fn request_load(&mut self, index: usize, function: FunctionId) {
        let (hash, form) = &self.functions[function.0 as usize];
        let worker = &mut self.workers[index];
        let Some(channel) = &mut worker.channel else { return };
        worker.loaded.insert(function, LoadState::Requested);
        channel.link().set_rejectable(false);
        let sent = load_request(*hash, form).and_then(|request| channel.submit(FunctionIndex::LOAD, &request, 0));
        match sent {
            Ok(sequence) => worker.in_flight.push_back((sequence, InFlight::Load(function))),
            Err(error) => self.on_loaded(index, function, Err(error)),
        }
    }

    fn send(&mut self, index: usize, id: CallId, function: FunctionIndex, call: Box<PendingCall>) {
        let worker = &mut self.workers[index];
        let Some(channel) = &mut worker.channel else {
            return self.calls.push_front(id, call);
        };
        let PendingCall {
            function: function_id,
            input,
            options,
            retries,
            first_rejection,
        } = *call;
        if worker.in_flight.is_empty() {
            worker.last_completion = Some(Instant::now());
        }
        let inline = input.as_slice().len() <= channel.inline_bytes();
        let mut room = match options.room {
            0 => None,
            length => match channel.allocate(length) {
                Ok(buffer) => Some(buffer),
                Err(error) => return self.calls.end(id, Err(error.into())),
            },
        };
        let place = room.as_mut().map(|buffer| channel.link().room(buffer));
        if self.is_rejectable && worker.is_warm {
            let leaves = matches!(input, Input::Buffer(..)) && (!inline || place.is_some()) && !options.idempotent;
            let elsewhere = !leaves && options.worker.is_none() && options.incarnation.is_none();
            channel.link().set_rejectable(elsewhere && !must_run(first_rejection));
        }
        let (sent, kept) = 'sent: {
            match input {
                Input::Buffer(buffer, length) if !inline || place.is_some() => {
                    // A call that may be retried keeps its input; the buffer itself goes with the first try.
                    let copy = options
                        .idempotent
                        .then(|| Input::Bytes(buffer.as_slice()[..length].to_vec()));
                    if self.members.is_some() && copy.is_none() {
                        // Kept, so that the call can move to another node.
                        let buffer = Arc::new(buffer);
                        let payload = Payload::Buffer(&buffer, length);
                        let sent = channel
                            .link()
                            .post_bulk(function.0, options.deadline_ms, payload, place);
                        break 'sent (sent.map_err(CallError::from), Some(Input::Shared(buffer, length)));
                    }
                    let payload = Payload::Owned(buffer, length);
                    (
                        channel
                            .link()
                            .post_bulk(function.0, options.deadline_ms, payload, place)
                            .map_err(CallError::from),
                        copy,
                    )
                }
                Input::Shared(buffer, length) if !inline || place.is_some() => {
                    let payload = Payload::Buffer(&buffer, length);
                    let sent = channel
                        .link()
                        .post_bulk(function.0, options.deadline_ms, payload, place);
                    (sent.map_err(CallError::from), Some(Input::Shared(buffer, length)))
                }
                input if place.is_some() => {
                    let payload = Payload::Bytes(input.as_slice());
                    let sent = channel
                        .link()
                        .post_bulk(function.0, options.deadline_ms, payload, place);
                    (sent.map_err(CallError::from), Some(input))
                }
                input => (
                    channel.submit_uncounted(function, input.as_slice(), options.deadline_ms),
                    Some(input),
                ),
            }
        };
        match sent {
            Ok(sequence) => {
                channel.count_sent();
                if self.options.remembers {
                    worker.recent.truncate(REMEMBERED - 1);
                    worker.recent.push_front((sequence, id));
                }
                if let Some(room) = room {
                    worker.rooms.push_back((sequence, room));
                }
                worker.in_flight.push_back((
                    sequence,
                    InFlight::Call(SentCall {
                        id,
                        function: function_id,
                        input: kept,
                        options,
                        retries,
                        first_rejection,
                    }),
                ));
                self.calls.sent(id, index);
            }
            Err(error) => self.calls.end(id, Err(error)),
        }
    }

    /// Takes in completions from every worker and sends queued calls. Returns whether there were completions.
    pub fn poll(&mut self) -> bool {
        let mut came = false;
        for index in 0..self.workers.len() {
            // Bounded, so that one busy worker does not starve the others.
            for _ in 0..self.options.channel.geometry.slots {
                let Some(channel) = &mut self.workers[index].channel else {
                    break;
                };
                match channel.poll() {
                    Ok(Some(completion)) => {
                        came = true;
                        self.on_completion(index, completion);
                    }
                    Ok(None) => break,
                    Err(error) => {
                        came = true;
                        self.on_broken(index, error);
                        break;
                    }
                }
            }
        }
        if came || self.end_rests() {
            self.assign_queued();
        }
        came
    }

    /// Ends rests that are over. Returns whether there were any.
    fn end_rests(&mut self) -> bool {
        let Some(next) = self.first_rest_end else { return false };
        let now = Instant::now();
        if now < next {
            return false;
        }
        for worker in &mut self.workers {
            worker.rests_until.take_if(|until| *until <= now);
        }
        self.first_rest_end = self.workers.iter().filter_map(|worker| worker.rests_until).min();
        true
    }

    /// Time until the first rest ends.
    pub fn patience(&self) -> Duration {
        self.first_rest_end
            .map_or(Duration::MAX, |next| next.saturating_duration_since(Instant::now()))
    }

    /// Finds channels whose node died.
    pub fn check_nodes(&mut self) {
        for index in 0..self.workers.len() {
            let Some(channel) = &self.workers[index].channel else {
                continue;
            };
            if let Err(error) = channel.check_node() {
                self.on_broken(index, error);
            }
        }
    }

    /// Sends queued calls to workers with room.
    fn assign_queued(&mut self) {
        let mut stuck = VecDeque::new();
        while let Some(id) = self.calls.pop_front() {
            let Some(call) = self.calls.waiting(id) else {
                continue;
            };
            let options = call.options;
            match self.choose(&options, must_run(call.first_rejection)) {
                Some(worker) => {
                    if let Some(call) = self.calls.take_waiting(id) {
                        self.assign(worker, id, call);
                    }
                }
                None if self.has_no_worker_for(&options) => {
                    let error = self.no_worker_error(&options);
                    self.calls.end(id, Err(error));
                }
                None => {
                    stuck.push_back(id);
                    // A call for one worker must not delay those for any worker.
                    if options.worker.is_none() {
                        break;
                    }
                }
            }
        }
        while let Some(id) = stuck.pop_back() {
            self.calls.unpark(id);
        }
    }

    /// Workers that are neither delegated nor lost for good.
    pub fn remaining_workers(&self) -> usize {
        self.workers.iter().filter(|worker| worker.is_available()).count()
    }

    /// Whether no worker will ever be able to run a call with these options.
    fn has_no_worker_for(&self, options: &CallOptions) -> bool {
        if self.members.as_ref().is_some_and(Members::is_open) {
            return false;
        }
        let mut able = self
            .workers
            .iter()
            .enumerate()
            .filter(|(index, _)| options.worker.is_none_or(|w| w.0 as usize == *index));
        able.all(|(_, worker)| !worker.is_available())
    }

    /// Returns why no worker can run a call with these options.
    fn no_worker_error(&self, options: &CallOptions) -> CallError {
        let index = options.worker.map_or(0, |worker| worker.0 as usize);
        let error = match self.workers.get(index) {
            Some(worker) if worker.is_delegated => Some(requests::delegated(options.worker)),
            worker => worker.and_then(|worker| worker.final_error.clone()),
        };
        error.unwrap_or_else(|| CallError::new(Code::Unreachable, "no worker is left"))
    }
}

/// Whether a call that was first rejected at this time must no longer be rejected.
fn must_run(first_rejection: Option<Instant>) -> bool {
    first_rejection.is_some_and(|first| first.elapsed() >= MAX_REJECTED_TIME)
}
