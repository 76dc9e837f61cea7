//! Which call goes to which worker, and what happens when a worker dies. Used under the pool's lock.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mayfly_fabric::{Allocator, Buffer, Link, LinkError, Payload, Received, Sleeper};
use mayfly_protocol::error::{Code, Retry};
use mayfly_protocol::executor::Form;
use mayfly_protocol::ids::{CodeHash, FunctionIndex, WorkerIndex};
use mayfly_protocol::node_api::Fate;
use mayfly_protocol::slot::Status;

use super::repair::{Broken, Repair, verdict};
use super::{CallId, CallOptions, FunctionId, Input, Outcome, Output, PoolOptions};
use crate::channel::{Channel, Completion, load_request, read_index};
use crate::error::{CallError, Error};
use crate::lease::Lease;
use crate::opening::Opening;

/// Work that a worker may have waiting: enough to bridge the caller's own pauses, little enough that no worker idles
/// while another has a queue.
const WAITING_NS: f64 = 200_000.0;
/// A call that was rejected for want of a core is tried on other workers for so long; then it runs all the same, sharing one.
const REJECTED_AT_MOST: Duration = Duration::from_millis(1);
/// A worker that rejected a call gets no other for so long, and twice as long each time that it rejects again.
const FIRST_REST: Duration = Duration::from_micros(100);
const MOST_DOUBLINGS: u32 = 7;
/// A worker that is busy with long calls still has one more waiting, so that it never idles between two.
const SMALLEST_DEPTH: usize = 2;

enum Call {
    /// In the queue, parked at a worker, or sent and kept for another try.
    Waiting(Box<Pending>),
    /// Sent to a worker.
    Sent(usize),
    Ended(Outcome),
    /// Nobody waits for it any more.
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

/// What an outstanding message of a worker's is about.
pub enum InFlight {
    Load(FunctionId),
    Call(Sent),
}

/// A call that was sent.
pub struct Sent {
    pub id: CallId,
    function: FunctionId,
    /// Kept if it may be tried again and travelled as bytes.
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
    loaded: HashMap<FunctionId, Loaded>,
    /// Memory for the outputs of outstanding calls that wanted some, by their numbers.
    rooms: VecDeque<(u32, Buffer)>,
    /// Calls that wait until their function is loaded here.
    parked: VecDeque<CallId>,
    /// Moving average of the time between two completions while busy, in nanoseconds.
    pace_ns: f64,
    last: Option<Instant>,
    /// What is to be decided while its channel is repaired.
    broken: Option<Broken>,
    /// Why it is gone for good.
    gone: Option<CallError>,
    /// How often in a row it found no core, and up to when it is left alone for that.
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
    notices: Vec<CallId>,
    notify: std::collections::HashSet<CallId>,
    /// Calls that run for their own sake.
    discarded: std::collections::HashSet<CallId>,
    next_call: u64,
    ended: usize,
    pending: usize,
    /// Whether a worker may find no core, and another may have one.
    rejectable: bool,
    /// When the first of those workers may be tried again that found no core.
    next_try: Option<Instant>,
}

impl Dispatch {
    pub fn open(lease: &Lease, options: PoolOptions) -> Result<Self, Error> {
        let mut workers = Vec::new();
        for index in 0..lease.workers() {
            workers.push(Worker {
                channel: Some(lease.channel(WorkerIndex(index), &options.channel)?),
                in_flight: VecDeque::new(),
                loaded: HashMap::new(),
                rooms: VecDeque::new(),
                parked: VecDeque::new(),
                pace_ns: WAITING_NS,
                last: None,
                broken: None,
                gone: None,
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
            notices: Vec::new(),
            notify: std::collections::HashSet::new(),
            discarded: std::collections::HashSet::new(),
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
            // The submitter helps: what ended makes room for what waits.
            if !self.poll() && self.is_hopeless(&options) {
                // Nothing will ever come that would have it looked at again.
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

    /// The worker with least to do that may take the call. One that found no core lately only gets calls that must run.
    fn choose(&self, options: &CallOptions, must_run: bool) -> Option<usize> {
        let load = |worker: &Worker| worker.in_flight.len() + worker.parked.len();
        self.workers
            .iter()
            .enumerate()
            .filter(|(index, worker)| {
                worker.channel.is_some()
                    && options.worker.is_none_or(|wanted| wanted.0 as usize == *index)
                    && load(worker) < self.depth(worker)
                    && (must_run || worker.rests_until.is_none() || options.worker.is_some())
            })
            .min_by_key(|(_, worker)| (worker.rests_until.is_some(), load(worker)))
            .map(|(index, _)| index)
    }

    /// Gives a call to a worker: sends it, or parks it until its function is loaded there.
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
                // A call that may run twice keeps its input; a buffer leaves with its first try.
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

    /// Takes in what has come from every worker and sends what waits. Whether anything came.
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

    /// Whether a worker that found no core may be tried again from now on.
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

    /// How long nobody needs to look for what only time brings about.
    pub fn patience(&self) -> Duration {
        self.next_try
            .map_or(Duration::MAX, |next| next.saturating_duration_since(Instant::now()))
    }

    /// Finds channels whose node died without a word.
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

    /// Sends queued calls to whoever has room.
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
                    // A call for one worker must not hold up those for any.
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
        able.all(|(_, worker)| worker.gone.is_some())
    }

    fn why_hopeless(&self, options: &CallOptions) -> CallError {
        let index = options.worker.map_or(0, |worker| worker.0 as usize);
        let gone = self.workers.get(index).and_then(|worker| worker.gone.clone());
        gone.unwrap_or_else(|| CallError::new(Code::Unreachable, "no worker is left"))
    }

    fn on_completion(
        &mut self,
        index: usize,
        Completion {
            sequence,
            status,
            in_room,
        }: Completion,
    ) {
        if status == Status::Rejected as u16 {
            return self.on_rejected(index);
        }
        let worker = &mut self.workers[index];
        let Some(channel) = &mut worker.channel else { return };
        if worker.rejections > 0 {
            (worker.rejections, worker.rests_until) = (0, None);
        }
        if let Some(last) = worker.last {
            let now = Instant::now();
            worker.pace_ns += ((now - last).as_nanos() as f64 - worker.pace_ns) / 8.0;
            worker.last = Some(now);
        }
        let Some((expected, in_flight)) = worker.in_flight.pop_front() else {
            return;
        };
        debug_assert_eq!(expected, sequence);
        let room = match worker.rooms.front() {
            Some((wanted, _)) if *wanted == sequence => worker.rooms.pop_front(),
            _ => None,
        };
        let outcome = if status == Status::Ok as u16 {
            Ok(match (in_room, room) {
                (Some(length), Some((_, mut buffer))) => {
                    // Longer than its room it cannot be: the link checked that.
                    buffer.resize(length);
                    Output::Large(Received::Own(buffer))
                }
                _ => match channel.take_output() {
                    Some(received) => Output::Large(received),
                    None => Output::Small(channel.output().to_vec()),
                },
            })
        } else {
            Err(CallError::answered(status, channel.output()))
        };
        channel.done();
        match in_flight {
            InFlight::Load(function) => {
                self.on_loaded(
                    index,
                    function,
                    outcome.and_then(|output| read_index(output.as_slice())),
                );
            }
            InFlight::Call(sent) => match outcome {
                Err(error) if error.code().retry() == Retry::Elsewhere => self.retry(sent, error),
                outcome => self.end(sent.id, outcome),
            },
        }
    }

    /// A worker found no core for a call, which goes to another one.
    fn on_rejected(&mut self, index: usize) {
        let worker = &mut self.workers[index];
        let Some(channel) = &mut worker.channel else { return };
        let error = CallError::answered(Status::Rejected as u16, channel.output());
        channel.done();
        let now = Instant::now();
        let rest = FIRST_REST * (1 << worker.rejections.min(MOST_DOUBLINGS));
        worker.rejections += 1;
        worker.rests_until = Some(now + rest);
        self.next_try = Some(self.next_try.map_or(now + rest, |next| next.min(now + rest)));
        match worker.in_flight.pop_front() {
            Some((sequence, InFlight::Call(mut sent))) => {
                if worker.rooms.front().is_some_and(|(wanted, _)| *wanted == sequence) {
                    worker.rooms.pop_front();
                }
                sent.rejected.get_or_insert(now);
                match must_run(sent.rejected) {
                    // It is no try: nothing was lost by it.
                    false => self.again(sent, error),
                    true => self.retry(sent, error),
                }
            }
            Some((_, InFlight::Load(function))) => self.on_loaded(index, function, Err(error)),
            None => {}
        }
    }

    fn on_loaded(&mut self, index: usize, function: FunctionId, result: Result<FunctionIndex, CallError>) {
        let loaded = match result {
            Ok(function) => Loaded::Ready(function),
            Err(error) => Loaded::Failed(error),
        };
        let worker = &mut self.workers[index];
        worker.loaded.insert(function, loaded);
        for id in std::mem::take(&mut worker.parked) {
            match self.calls.remove(&id) {
                Some(Call::Waiting(pending)) if pending.function == function => self.assign(index, id, pending),
                Some(other) => {
                    self.calls.insert(id, other);
                    self.workers[index].parked.push_back(id);
                }
                None => {}
            }
        }
    }

    fn retry(&mut self, mut sent: Sent, error: CallError) {
        if sent.input.is_some() && sent.tries < self.options.retries && sent.options.incarnation.is_none() {
            sent.tries += 1;
            self.again(sent, error);
        } else {
            self.end(sent.id, Err(error));
        }
    }

    /// Puts a call that was sent back into the queue, unless nobody waits for it.
    fn again(&mut self, sent: Sent, error: CallError) {
        let Sent {
            id,
            function,
            input: Some(input),
            options,
            tries,
            rejected,
        } = sent
        else {
            return self.end(sent.id, Err(error));
        };
        if matches!(self.calls.get(&id), Some(Call::Forgotten)) {
            return self.end(id, Err(error));
        }
        let pending = Box::new(Pending {
            function,
            input,
            options,
            tries,
            rejected,
        });
        self.calls.insert(id, Call::Waiting(pending));
        self.queue.push_front(id);
    }

    /// A channel broke. Its calls wait for the verdict of a [`Repair`], which the pool runs.
    fn on_broken(&mut self, index: usize, error: LinkError) {
        let worker = &mut self.workers[index];
        let Some(channel) = worker.channel.take() else { return };
        worker.loaded.clear();
        worker.rooms.clear();
        let opening = Arc::<Opening>::default();
        worker.broken = Some(Broken {
            error,
            in_flight: std::mem::take(&mut worker.in_flight),
            parked: std::mem::take(&mut worker.parked),
            opening: Arc::clone(&opening),
        });
        self.repairs.push(Repair {
            index,
            channel,
            lease: self.lease.clone(),
            options: self.options.channel,
            opening,
        });
    }

    /// Repairs to be run, each once.
    pub fn take_repairs(&mut self) -> Vec<Repair> {
        std::mem::take(&mut self.repairs)
    }

    /// It is known what became of a broken channel: ends what ran, and sends on what did not.
    pub fn on_fate(&mut self, index: usize, fate: &Result<Fate, Error>) {
        // None when all was disconnected meanwhile.
        let Some(broken) = &mut self.workers[index].broken else {
            return;
        };
        let (in_flight, parked) = (
            std::mem::take(&mut broken.in_flight),
            std::mem::take(&mut broken.parked),
        );
        let judged: Vec<_> = in_flight
            .into_iter()
            .map(|(sequence, message)| (verdict(fate, sequence, &broken.error), message))
            .collect();
        for (failure, message) in judged.into_iter().rev() {
            let InFlight::Call(sent) = message else { continue };
            let again = match failure.code().retry() {
                Retry::Elsewhere => true,
                Retry::IfIdempotent => sent.options.idempotent && failure.code() == Code::MaybeExecuted,
                Retry::Never | Retry::Later => false,
            };
            if again {
                self.retry(sent, failure);
            } else {
                self.end(sent.id, Err(failure));
            }
        }
        for id in parked.into_iter().rev() {
            self.queue.push_front(id);
        }
        self.feed();
    }

    /// A repair is done: takes the worker back.
    pub fn on_repaired(&mut self, index: usize, opened: Result<Channel, CallError>) {
        let worker = &mut self.workers[index];
        // A new channel is of no use when all was disconnected meanwhile.
        if worker.broken.take().is_none() {
            return;
        }
        match opened {
            Ok(channel) => worker.channel = Some(channel),
            Err(error) => worker.gone = Some(error),
        }
        self.feed();
    }

    /// Whether some worker is being repaired.
    pub fn is_repairing(&self) -> bool {
        self.workers.iter().any(|worker| worker.broken.is_some())
    }

    /// Whether there is no channel to hear anything from until a repair is done.
    pub fn waits_for_repair(&self) -> bool {
        self.workers.iter().all(|worker| worker.channel.is_none()) && self.is_repairing()
    }

    pub fn is_done(&self, call: CallId) -> bool {
        matches!(self.calls.get(&call), Some(Call::Ended(_)) | None)
    }

    pub fn is_known(&self, call: CallId) -> bool {
        self.calls.contains_key(&call)
    }

    pub fn take(&mut self, call: CallId) -> Option<Outcome> {
        if !matches!(self.calls.get(&call), Some(Call::Ended(_))) {
            return None;
        }
        match self.calls.remove(&call) {
            Some(Call::Ended(outcome)) => Some(outcome),
            _ => None,
        }
    }

    /// How many calls ended since this was asked last.
    pub fn take_ended(&mut self) -> usize {
        std::mem::take(&mut self.ended)
    }

    pub fn has_notices(&self) -> bool {
        !self.notices.is_empty()
    }

    pub fn take_notices(&mut self) -> Vec<CallId> {
        std::mem::take(&mut self.notices)
    }

    pub fn cancel(&mut self, call: CallId) -> bool {
        if !matches!(self.calls.get(&call), Some(Call::Waiting(_))) {
            return false;
        }
        self.queue.retain(|queued| *queued != call);
        for worker in &mut self.workers {
            worker.parked.retain(|parked| *parked != call);
            if let Some(broken) = &mut worker.broken {
                broken.parked.retain(|parked| *parked != call);
            }
        }
        self.end(
            call,
            Err(CallError::new(
                Code::Cancelled,
                "the call was cancelled before it was sent",
            )),
        );
        true
    }

    pub fn disconnect(&mut self) {
        let over = CallError::new(Code::LeaseEnded, "the channels of this lease were closed; lease again");
        for worker in &mut self.workers {
            worker.channel = None;
            worker.gone = Some(over.clone());
            worker.in_flight.clear();
            worker.rooms.clear();
            worker.parked.clear();
            worker.broken = None;
        }
        self.repairs.clear();
        self.queue.clear();
        let open = |call: &Call| matches!(call, Call::Waiting(_) | Call::Sent(_));
        let left: Vec<_> = self
            .calls
            .iter()
            .filter(|(_, call)| open(call))
            .map(|(id, _)| *id)
            .collect();
        for call in left {
            self.end(call, Err(over.clone()));
        }
    }

    pub fn cancel_all(&mut self) {
        let waiting: Vec<_> = self
            .calls
            .iter()
            .filter(|(_, call)| matches!(call, Call::Waiting(_)))
            .map(|(id, _)| *id)
            .collect();
        self.queue.clear();
        for call in waiting {
            self.cancel(call);
        }
    }

    pub fn kill(&mut self, call: CallId) -> Result<(), Error> {
        if self.cancel(call) {
            return Ok(());
        }
        let Some(Call::Sent(index)) = self.calls.get(&call) else {
            return Err(Error::new(Code::NotFound, "the call is over"));
        };
        let worker = &self.workers[*index];
        if worker.broken.is_some() {
            // Its worker has ended already; what became of the call is being asked.
            return Ok(());
        }
        let sequence = worker.in_flight.iter().find_map(|(sequence, message)| match message {
            InFlight::Call(sent) if sent.id == call => Some(*sequence),
            _ => None,
        });
        match (&worker.channel, sequence) {
            (Some(channel), Some(sequence)) => channel.cancel(sequence),
            _ => Err(Error::new(Code::NotFound, "the call is over")),
        }
    }

    pub fn forget(&mut self, call: CallId) {
        self.notify.remove(&call);
        match self.calls.get_mut(&call) {
            Some(Call::Ended(_)) => {
                self.calls.remove(&call);
            }
            Some(state @ Call::Sent(_)) => *state = Call::Forgotten,
            Some(Call::Waiting(_)) => {
                self.cancel(call);
                self.calls.remove(&call);
            }
            Some(Call::Forgotten) | None => {}
        }
    }

    pub fn notify(&mut self, call: CallId) {
        match self.calls.get(&call) {
            Some(Call::Ended(_)) => self.notices.push(call),
            Some(Call::Waiting(_) | Call::Sent(_)) => {
                self.notify.insert(call);
            }
            Some(Call::Forgotten) | None => {}
        }
    }

    pub fn watched(&self) -> usize {
        self.notify.len() + self.notices.len()
    }

    pub fn needs_help(&self) -> bool {
        !self.queue.is_empty() || self.workers.iter().any(|worker| !worker.parked.is_empty())
    }

    pub fn is_sent(&self, call: CallId) -> bool {
        matches!(self.calls.get(&call), Some(Call::Sent(_)))
    }

    pub fn discard(&mut self, call: CallId) {
        self.notify.remove(&call);
        match self.calls.get(&call) {
            Some(Call::Ended(_)) => {
                self.calls.remove(&call);
            }
            Some(Call::Waiting(_) | Call::Sent(_)) => {
                self.discarded.insert(call);
            }
            Some(Call::Forgotten) | None => {}
        }
    }

    pub fn pending(&self) -> usize {
        self.pending
    }

    /// What to sleep on; none if there is something to poll for.
    pub fn prepare_sleep(&mut self) -> Option<Vec<Sleeper>> {
        let mut sleepers = Vec::with_capacity(self.workers.len());
        for worker in &mut self.workers {
            if let Some(channel) = &mut worker.channel {
                sleepers.push(channel.link().prepare_sleep()?);
            }
        }
        Some(sleepers)
    }

    pub fn allocator(&self) -> Result<(Allocator, WorkerIndex), Error> {
        let worker = self
            .workers
            .iter()
            .enumerate()
            .filter_map(|(index, worker)| Some((index, worker.in_flight.len(), worker.channel.as_ref()?)))
            .min_by_key(|(_, load, _)| *load);
        match worker {
            Some((index, _, channel)) => Ok((channel.allocator(), WorkerIndex(index as u16))),
            // Whoever takes it then copies it, which is better than to wait.
            None if self.is_repairing() => Ok((
                Allocator::heap(self.options.channel.geometry.bulk_bytes),
                WorkerIndex(0),
            )),
            None => Err(self.why_hopeless(&CallOptions::default()).into()),
        }
    }

    pub fn inline_bytes(&self) -> usize {
        self.options.channel.geometry.inline_bytes()
    }

    pub fn transport(&self) -> crate::Transport {
        let open = self.workers.iter().find_map(|worker| worker.channel.as_ref());
        open.map_or_else(|| self.lease.best_transport(), Channel::transport)
    }

    pub fn incarnations(&self) -> Vec<u32> {
        let of = |worker: &Worker| worker.channel.as_ref().map_or(0, |channel| channel.incarnation().0);
        self.workers.iter().map(of).collect()
    }
}

/// Whether a call that was first rejected then goes to a worker that may not reject it.
fn must_run(rejected: Option<Instant>) -> bool {
    rejected.is_some_and(|first| first.elapsed() >= REJECTED_AT_MOST)
}
