//! Assigns calls to workers, and handles the death of a worker. Used under the pool's lock.

mod calls;
mod lending;
mod outcomes;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_fabric::{Allocator, Buffer, Link, LinkError, Payload, Received, Sleeper};
use dayfly_protocol::error::{Code, Retry};
use dayfly_protocol::executor::Form;
use dayfly_protocol::ids::{CodeHash, FunctionIndex, WorkerIndex};
use dayfly_protocol::node_api::ChannelStatus;
use dayfly_protocol::slot::Status;

use super::repair::{Broken, Repair, verdict};
use super::{CallId, CallOptions, FunctionId, Input, Outcome, Output, PoolOptions};
use crate::channel::{Channel, Completion, load_request, read_index};
use crate::delegation::Delegation;
use crate::error::{CallError, Error};
use crate::lease::Lease;
use crate::opening::Opening;

/// Work to queue at a worker, in nanoseconds: enough to bridge the caller's pauses, and so little that no worker idles
/// while another has a queue.
const WAITING_NS: f64 = 200_000.0;
/// How long a call that was rejected for want of a core is tried on other workers; then it runs and shares a core.
const MAX_REJECTED_TIME: Duration = Duration::from_millis(1);
/// First rest of a worker that rejected a call; each further rejection doubles it.
const FIRST_REST: Duration = Duration::from_micros(100);
const MAX_DOUBLINGS: u32 = 7;
/// Calls that are remembered for each worker: more than may be outstanding, to include calls that ended.
const REMEMBERED: usize = 256;
/// A worker with long calls has one more waiting, so that it does not idle between two.
const SMALLEST_DEPTH: usize = 2;

enum Call {
    /// In the queue, parked at a worker, or sent and kept for a retry.
    Waiting(Box<Pending>),
    /// Sent to the worker with this index.
    Sent(usize),
    Ended(Outcome),
    /// Its outcome will be dropped.
    Forgotten,
}

struct Pending {
    function: FunctionId,
    input: Input,
    options: CallOptions,
    tries: u8,
    /// When it was first rejected for want of a core.
    rejected: Option<Instant>,
}

/// An outstanding message to a worker.
pub enum InFlight {
    Load(FunctionId),
    Call(Sent),
}

/// A call that was sent.
pub struct Sent {
    pub id: CallId,
    function: FunctionId,
    /// Kept if the call may be retried and the input is bytes.
    input: Option<Input>,
    options: CallOptions,
    tries: u8,
    rejected: Option<Instant>,
}

enum Loaded {
    Asked,
    Ready(FunctionIndex),
    Failed(CallError),
}

struct Worker {
    channel: Option<Channel>,
    in_flight: VecDeque<(u32, InFlight)>,
    /// The last calls on its channel, if the pool remembers them.
    recent: VecDeque<(u32, CallId)>,
    loaded: HashMap<FunctionId, Loaded>,
    /// Buffers for the outputs of outstanding calls, by sequence number.
    rooms: VecDeque<(u32, Buffer)>,
    /// Calls that wait until this worker has loaded their function.
    parked: VecDeque<CallId>,
    /// Moving average of the time between two completions while busy, in nanoseconds.
    pace_ns: f64,
    last: Option<Instant>,
    /// Calls whose end its repair decides.
    broken: Option<Broken>,
    /// Why it is gone for good.
    gone: Option<CallError>,
    /// Whether the worker is delegated, or set aside for a delegation.
    lent: bool,
    /// Rejections in a row for want of a core, and the end of the rest that follows.
    rejections: u32,
    rests_until: Option<Instant>,
}

pub struct Dispatch {
    lease: Lease,
    options: PoolOptions,
    workers: Vec<Worker>,
    functions: Vec<(CodeHash, Form)>,
    calls: HashMap<CallId, Call>,
    queue: VecDeque<CallId>,
    repairs: Vec<Repair>,
    /// Delegations, and the workers of each.
    lent: Vec<(Delegation, Range<u16>)>,
    notices: Vec<CallId>,
    notify: std::collections::HashSet<CallId>,
    /// Calls whose outcomes are dropped.
    discarded: std::collections::HashSet<CallId>,
    /// Calls to be killed, which are not sent again.
    killed: std::collections::HashSet<CallId>,
    next_call: u64,
    ended: usize,
    pending: usize,
    /// Whether workers may reject calls for want of a core, and another worker may have a core.
    rejectable: bool,
    /// When the first rest of a worker ends.
    next_try: Option<Instant>,
}

impl Dispatch {
    pub fn open(lease: &Lease, options: PoolOptions) -> Result<Self, Error> {
        let mut workers = Vec::new();
        for index in 0..lease.workers() {
            workers.push(Worker {
                channel: Some(lease.channel(WorkerIndex(index), &options.channel)?),
                in_flight: VecDeque::new(),
                recent: VecDeque::new(),
                loaded: HashMap::new(),
                rooms: VecDeque::new(),
                parked: VecDeque::new(),
                pace_ns: WAITING_NS,
                last: None,
                broken: None,
                gone: None,
                lent: false,
                rejections: 0,
                rests_until: None,
            });
        }
        Ok(Self {
            lease: lease.clone(),
            options,
            workers,
            functions: Vec::new(),
            calls: HashMap::new(),
            queue: VecDeque::new(),
            repairs: Vec::new(),
            lent: Vec::new(),
            notices: Vec::new(),
            notify: std::collections::HashSet::new(),
            discarded: std::collections::HashSet::new(),
            killed: std::collections::HashSet::new(),
            next_call: 1,
            ended: 0,
            pending: 0,
            rejectable: !lease.is_hot() && lease.workers() > 1,
            next_try: None,
        })
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
        if options
            .worker
            .is_some_and(|worker| worker.0 as usize >= self.workers.len())
        {
            return Err(Error::new(
                Code::InvalidRequest,
                format!("this lease has {} workers", self.workers.len()),
            ));
        }
        let id = CallId(self.next_call);
        self.next_call += 1;
        self.pending += 1;
        if options.notify {
            self.notify.insert(id);
        }
        let pending = Box::new(Pending {
            function,
            input,
            options,
            tries: 0,
            rejected: None,
        });
        if self.queue.is_empty()
            && let Some(worker) = self.choose(&options, false)
        {
            self.assign(worker, id, pending);
        } else {
            self.calls.insert(id, Call::Waiting(pending));
            self.queue.push_back(id);
            // The submitter polls: ended calls make room for queued ones.
            if !self.poll() && self.is_hopeless(&options) {
                // No completion would ever trigger another attempt.
                self.feed();
            }
        }
        Ok(id)
    }

    fn depth(&self, worker: &Worker) -> usize {
        let slots = self.options.channel.geometry.slots as usize;
        let depth = match self.options.depth {
            0 => (WAITING_NS / worker.pace_ns.max(1.0)) as usize,
            fixed => fixed as usize,
        };
        depth.clamp(SMALLEST_DEPTH.min(slots), slots)
    }

    /// The worker with the fewest calls that may take this one. A resting worker gets only calls that must run or that
    /// name it.
    fn choose(&self, options: &CallOptions, must_run: bool) -> Option<usize> {
        let load = |worker: &Worker| worker.in_flight.len() + worker.parked.len();
        self.workers
            .iter()
            .enumerate()
            .filter(|(index, worker)| {
                worker.channel.is_some()
                    && !worker.lent
                    && options.worker.is_none_or(|wanted| wanted.0 as usize == *index)
                    && load(worker) < self.depth(worker)
                    && (must_run || worker.rests_until.is_none() || options.worker.is_some())
            })
            .min_by_key(|(_, worker)| (worker.rests_until.is_some(), load(worker)))
            .map(|(index, _)| index)
    }

    /// Gives a call to a worker: sends it, or parks it until the worker has loaded its function.
    fn assign(&mut self, index: usize, id: CallId, pending: Box<Pending>) {
        let worker = &mut self.workers[index];
        if let (Some(wanted), Some(channel)) = (pending.options.incarnation, &worker.channel)
            && channel.incarnation().0 != wanted
        {
            let found = channel.incarnation().0;
            let text = format!(
                "the call depends on incarnation {wanted} of worker {index}, which has been replaced by {found}"
            );
            return self.end(id, Err(CallError::new(Code::StateLost, text)));
        }
        match worker.loaded.get(&pending.function) {
            Some(Loaded::Ready(function)) => {
                let function = *function;
                self.send(index, id, function, pending);
            }
            Some(Loaded::Failed(error)) => {
                let error = error.clone();
                self.end(id, Err(error));
            }
            Some(Loaded::Asked) => {
                worker.parked.push_back(id);
                self.calls.insert(id, Call::Waiting(pending));
            }
            None => {
                let function = pending.function;
                worker.parked.push_back(id);
                self.calls.insert(id, Call::Waiting(pending));
                self.ask_to_load(index, function);
            }
        }
    }

    fn ask_to_load(&mut self, index: usize, function: FunctionId) {
        let (hash, form) = &self.functions[function.0 as usize];
        let worker = &mut self.workers[index];
        let Some(channel) = &mut worker.channel else { return };
        worker.loaded.insert(function, Loaded::Asked);
        channel.link().set_rejectable(false);
        let sent = load_request(*hash, form).and_then(|request| channel.submit(FunctionIndex::LOAD, &request, 0));
        match sent {
            Ok(sequence) => worker.in_flight.push_back((sequence, InFlight::Load(function))),
            Err(error) => self.on_loaded(index, function, Err(error)),
        }
    }

    fn send(&mut self, index: usize, id: CallId, function: FunctionIndex, pending: Box<Pending>) {
        let worker = &mut self.workers[index];
        let Some(channel) = &mut worker.channel else {
            self.calls.insert(id, Call::Waiting(pending));
            return self.queue.push_front(id);
        };
        let Pending {
            function: function_id,
            input,
            options,
            tries,
            rejected,
        } = *pending;
        if worker.in_flight.is_empty() {
            worker.last = Some(Instant::now());
        }
        let inline = input.as_slice().len() <= channel.inline_bytes();
        let mut room = match options.room {
            0 => None,
            length => match channel.allocate(length) {
                Ok(buffer) => Some(buffer),
                Err(error) => return self.end(id, Err(error.into())),
            },
        };
        let place = room.as_mut().map(|buffer| channel.link().room(buffer));
        if self.rejectable {
            let leaves = matches!(input, Input::Buffer(..)) && (!inline || place.is_some()) && !options.idempotent;
            let elsewhere = !leaves && options.worker.is_none() && options.incarnation.is_none();
            channel.link().set_rejectable(elsewhere && !must_run(rejected));
        }
        let (sent, kept) = match input {
            Input::Buffer(buffer, length) if !inline || place.is_some() => {
                // A call that may be retried keeps its input; the buffer itself goes with the first try.
                let copy = options
                    .idempotent
                    .then(|| Input::Bytes(buffer.as_slice()[..length].to_vec()));
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
                    InFlight::Call(Sent {
                        id,
                        function: function_id,
                        input: kept,
                        options,
                        tries,
                        rejected,
                    }),
                ));
                self.calls.insert(id, Call::Sent(index));
            }
            Err(error) => self.end(id, Err(error)),
        }
    }

    fn end(&mut self, id: CallId, outcome: Outcome) {
        self.pending = self.pending.saturating_sub(1);
        self.ended += 1;
        if !self.killed.is_empty() {
            self.killed.remove(&id);
        }
        if self.notify.remove(&id) {
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
            self.feed();
        }
        came
    }

    /// Ends rests that are over. Returns whether there were any.
    fn end_rests(&mut self) -> bool {
        let Some(next) = self.next_try else { return false };
        let now = Instant::now();
        if now < next {
            return false;
        }
        for worker in &mut self.workers {
            worker.rests_until.take_if(|until| *until <= now);
        }
        self.next_try = self.workers.iter().filter_map(|worker| worker.rests_until).min();
        true
    }

    /// Time until the first rest ends.
    pub fn patience(&self) -> Duration {
        self.next_try
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
    fn feed(&mut self) {
        let mut stuck = VecDeque::new();
        while let Some(id) = self.queue.pop_front() {
            let Some(Call::Waiting(pending)) = self.calls.get(&id) else {
                continue;
            };
            let options = pending.options;
            match self.choose(&options, must_run(pending.rejected)) {
                Some(worker) => {
                    if let Some(Call::Waiting(pending)) = self.calls.remove(&id) {
                        self.assign(worker, id, pending);
                    }
                }
                None if self.is_hopeless(&options) => {
                    let error = self.why_hopeless(&options);
                    self.end(id, Err(error));
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
            self.queue.push_front(id);
        }
    }

    fn is_hopeless(&self, options: &CallOptions) -> bool {
        let mut able = self
            .workers
            .iter()
            .enumerate()
            .filter(|(index, _)| options.worker.is_none_or(|w| w.0 as usize == *index));
        able.all(|(_, worker)| worker.gone.is_some() || worker.lent)
    }

    fn why_hopeless(&self, options: &CallOptions) -> CallError {
        let index = options.worker.map_or(0, |worker| worker.0 as usize);
        let gone = match self.workers.get(index) {
            Some(worker) if worker.lent => Some(lending::delegated(options.worker)),
            worker => worker.and_then(|worker| worker.gone.clone()),
        };
        gone.unwrap_or_else(|| CallError::new(Code::Unreachable, "no worker is left"))
    }
}

/// Whether a call that was first rejected at this time must no longer be rejected.
fn must_run(rejected: Option<Instant>) -> bool {
    rejected.is_some_and(|first| first.elapsed() >= MAX_REJECTED_TIME)
}
