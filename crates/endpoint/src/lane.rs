//! One lease, the channels to its workers, and the thread that drives them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mayfly_client::{
    CallError, CallId, CallOptions, ChannelOptions, Code, Error, FunctionId, Geometry, Input, Lease, Outcome, Output,
    Pool, PoolOptions, Printed, Reader, Status,
};
use mayfly_protocol::contents::{INLINE_BYTES, Payload};
use mayfly_protocol::dispatch::{Attempt, Ended, FromDispatcher, Program, TaskOutput};
use mayfly_protocol::ids::NodeId;
use mayfly_protocol::tasks::{JSON_ANSWER, MOST_ANSWER_BYTES};
use mayfly_tasks::{Busy, Cost, gives};
use tokio::sync::OwnedSemaphorePermit;

use crate::contents::{Fetched, at_hand};
use crate::crew::{Crew, Shared, Task};

/// How long a lane sleeps while nothing ends; also how soon a long execution shows as running.
const LOOK: Duration = Duration::from_millis(50);
/// How long it is waited for something to be printed, before it is looked whether there is anybody left to print.
const LISTEN: Duration = Duration::from_secs(5);
/// Until it is tried again to hear it, where its node could not be asked.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);
/// What is heard of a lane at most; its node keeps the last 256 KiB meanwhile.
const HEARD_BYTES_PER_S: u32 = 256 << 10;
/// Executions that have ended and may not have been heard to the end.
const REMEMBERED: usize = 1024;
/// A lease is made longer when so much of it is over.
const RENEW_EVERY: Duration = Duration::from_secs(6 * 3600);
/// What a lease is renewed for.
const LENGTH: Duration = Duration::from_secs(24 * 3600);
/// Slots of a channel, and their stride: arguments of up to 2 KiB travel inside a slot.
const GEOMETRY: Geometry = Geometry {
    slots: 64,
    stride_bytes: 2048,
    bulk_bytes: 8 << 30,
};

struct Running {
    task: Task,
    /// What its arguments take of the memory.
    _room: Option<OwnedSemaphorePermit>,
    since: Instant,
    /// What it was expected to take.
    expected_us: u64,
    told: bool,
}

#[derive(Default)]
struct Calls {
    running: HashMap<CallId, Running>,
    functions: HashMap<mayfly_protocol::ids::FunctionId, Known>,
    /// What all that runs is expected to take.
    ahead_us: u64,
    /// What its workers did.
    busy: Busy,
    /// Those that ended last: what they printed may come after their end.
    ended: VecDeque<(CallId, Attempt)>,
}

impl Calls {
    /// The execution that a call is, or was a moment ago.
    fn attempt(&self, call: CallId) -> Option<Attempt> {
        if let Some(running) = self.running.get(&call) {
            return Some(running.task.assigned.attempt);
        }
        let ended = self.ended.iter().rev().find(|(ended, _)| *ended == call);
        ended.map(|(_, attempt)| *attempt)
    }
}

/// A function of this lane's.
struct Known {
    function: FunctionId,
    cost: Cost,
}

/// One lease, the channels to its workers, and what runs there.
pub struct Lane {
    lease: Lease,
    pool: Pool,
    /// What its workers print, until somebody reads it.
    printed: Mutex<Option<Reader>>,
    calls: Mutex<Calls>,
    begun: Instant,
    retired: AtomicBool,
    /// Whether its channels were closed, whatever ran.
    closed: AtomicBool,
}

impl Lane {
    /// Opens a channel to each worker.
    pub fn open(lease: Lease) -> Result<Self, Error> {
        let pool = lease.pool(PoolOptions {
            channel: ChannelOptions {
                geometry: GEOMETRY,
                spin: Some(Duration::ZERO),
                ..ChannelOptions::default()
            },
            remembers: true,
            ..PoolOptions::default()
        })?;
        let printed = lease.printed()?;
        Ok(Self {
            printed: Mutex::new(Some(printed)),
            lease,
            pool,
            calls: Mutex::default(),
            begun: Instant::now(),
            retired: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        })
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn workers(&self) -> u16 {
        self.lease.workers()
    }

    /// Whether it is to be given one more execution of this function.
    pub fn takes(&self, program: &Program) -> bool {
        let calls = self.calls();
        let unknown = Cost::default();
        let cost = calls.functions.get(&program.id).map_or(&unknown, |known| &known.cost);
        gives(self.workers().into(), calls.running.len(), calls.ahead_us, cost)
    }

    /// Where its workers are.
    pub fn node(&self) -> NodeId {
        self.lease.node()
    }

    /// Executions that it has.
    pub fn running(&self) -> usize {
        self.calls().running.len()
    }

    pub fn is_empty(&self) -> bool {
        self.calls().running.is_empty()
    }

    /// Whether it gets no more tasks.
    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    pub fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    /// Ends what runs.
    pub fn close(&self) {
        self.retire();
        self.closed.store(true, Ordering::Relaxed);
        self.pool.disconnect();
    }

    /// Sends a task to a worker. The task comes back where the lease is over.
    pub fn begin(&self, mut task: Task) -> Option<Task> {
        let mut calls = self.calls();
        let options = CallOptions {
            deadline_ms: task.assigned.walltime_ms,
            idempotent: task.assigned.repeatable,
            notify: true,
            ..CallOptions::default()
        };
        let function = match calls.functions.get(&task.program.id) {
            Some(known) => Ok((known.function, known.cost.expected_us())),
            None => self.learn(&mut calls, &task.program),
        };
        let call = function.and_then(|(function, expected_us)| {
            let (bytes, room) = match task.fetched.take() {
                Some(Fetched { bytes, room }) => (Some(bytes), Some(room)),
                None => (at_hand(&task.assigned), None),
            };
            let unread = || Error::new(Code::Internal, "a task whose arguments were not read");
            let bytes = bytes.ok_or_else(unread)?;
            let call = self.pool.submit(function, Input::Blob(bytes), options)?;
            Ok((call, room, expected_us))
        });
        match call {
            Ok((call, room, expected_us)) => {
                let running = Running {
                    task,
                    _room: room,
                    since: Instant::now(),
                    expected_us,
                    told: false,
                };
                calls.ahead_us += expected_us;
                calls.running.insert(call, running);
                None
            }
            Err(error) => {
                tracing::info!(%error, "a lease takes no more tasks");
                Some(task)
            }
        }
    }

    fn learn(&self, calls: &mut Calls, program: &Program) -> Result<(FunctionId, u64), Error> {
        let hash = self.lease.put_code(&program.code)?;
        let function = self.pool.register(hash, program.form.clone())?;
        let cost = Cost::default();
        let expected_us = cost.expected_us();
        calls.functions.insert(program.id, Known { function, cost });
        Ok((function, expected_us))
    }

    /// Ends these executions, if they are here.
    pub fn cancel(&self, wanted: &HashSet<Attempt>) {
        let calls = self.calls();
        let hit = calls
            .running
            .iter()
            .filter(|(_, running)| wanted.contains(&running.task.assigned.attempt));
        for (call, _) in hit {
            if !self.pool.cancel(*call)
                && let Err(error) = self.pool.kill(*call)
            {
                tracing::warn!(%error, "a task that is cancelled cannot be ended");
            }
        }
    }

    /// Drives the channels until the lane is empty and gets no more tasks.
    pub fn run(self: Arc<Self>, crew: &Arc<Crew>) {
        if let Err(error) = self.listen(Arc::clone(&crew.shared)) {
            tracing::error!(%error, "no thread to read what tasks print");
        }
        let mut idle_since = Instant::now();
        let mut renewed = Instant::now();
        loop {
            let ended = self.pool.drive(LOOK);
            if !ended.is_empty() {
                let (ended, long, back) = self.collect(&ended);
                crew.ended(&self, ended, long, back);
                idle_since = Instant::now();
                continue;
            }
            if !self.is_empty() {
                idle_since = Instant::now();
            }
            self.tell_running(crew);
            if crew.lets_go(&self, idle_since.elapsed()) {
                return;
            }
            if renewed.elapsed() > RENEW_EVERY {
                renewed = Instant::now();
                if let Err(error) = self.lease.renew(LENGTH) {
                    tracing::warn!(%error, "a lease cannot be renewed");
                }
            }
        }
    }

    /// Passes on what its workers print, for as long as there are any.
    fn listen(self: &Arc<Self>, shared: Arc<Shared>) -> std::io::Result<()> {
        let printed = self.printed.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut printed) = printed else { return Ok(()) };
        let lane = Arc::downgrade(self);
        let listening = move || {
            loop {
                let heard = printed.next(LISTEN);
                let Some(lane) = lane.upgrade().filter(|_| !printed.is_over()) else {
                    return;
                };
                let pause = match heard {
                    Ok(pieces) => {
                        let bytes: usize = pieces.iter().map(|piece| piece.bytes.len()).sum();
                        let printed = lane.printed_by(pieces);
                        if !printed.is_empty() {
                            shared.say(FromDispatcher::Printed(printed));
                        }
                        // What prints without end is heard in part.
                        Duration::from_secs(1) * u32::try_from(bytes).unwrap_or(u32::MAX) / HEARD_BYTES_PER_S
                    }
                    Err(error) => {
                        tracing::debug!(%error, "what tasks print is not heard now");
                        LISTEN_AGAIN
                    }
                };
                drop(lane);
                std::thread::sleep(pause);
            }
        };
        let thread = std::thread::Builder::new().name("mayfly-output".into());
        thread.spawn(listening).map(drop)
    }

    /// Which executions printed what; of what none of them printed nobody hears.
    fn printed_by(&self, pieces: Vec<Printed>) -> Vec<TaskOutput> {
        let called: Vec<_> = pieces.iter().map(|piece| self.pool.printer(piece.by?)).collect();
        let calls = self.calls();
        let known = pieces.into_iter().zip(called).filter_map(|(piece, call)| {
            Some(TaskOutput {
                attempt: calls.attempt(call?)?,
                stream: piece.stream,
                bytes: piece.bytes.into(),
            })
        });
        known.collect()
    }

    /// How executions ended, those with long answers, and those that must go elsewhere.
    fn collect(&self, ended: &[CallId]) -> (Vec<Ended>, Vec<(Ended, Output)>, Vec<Task>) {
        let mut outcomes = Vec::with_capacity(ended.len());
        let mut long = Vec::new();
        let mut back = Vec::new();
        let mut calls = self.calls();
        let now = Instant::now();
        let since = |at: Instant| at.saturating_duration_since(self.begun);
        let begun = ended
            .iter()
            .filter_map(|call| calls.running.get(call))
            .map(|call| call.since);
        let begun = begun.min().unwrap_or(now);
        let (outstanding, workers) = (calls.running.len(), self.workers().into());
        let each = calls
            .busy
            .share(since(now), since(begun), outstanding, workers, ended.len());
        for call in ended {
            let Some(running) = calls.running.remove(call) else {
                continue;
            };
            calls.ahead_us = calls.ahead_us.saturating_sub(running.expected_us);
            if calls.ended.len() == REMEMBERED {
                calls.ended.pop_front();
            }
            calls.ended.push_back((*call, running.task.assigned.attempt));
            let took = each.min(now - running.since);
            let left = calls.running.len();
            calls.busy.count(took, left);
            let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            match self.pool.wait(*call, Some(Duration::ZERO)) {
                Err(error) if is_over(error.code()) && !self.is_retired() => back.push(running.task),
                outcome => {
                    let (mut one, output) = told(running.task.assigned.attempt, outcome, took_us);
                    // What was cut off may have been at it.
                    one.begun |= self.closed.load(Ordering::Relaxed);
                    if one.begun
                        && let Some(known) = calls.functions.get_mut(&running.task.program.id)
                    {
                        known.cost.took(took_us);
                    }
                    match output {
                        Some(output) => long.push((one, output)),
                        None => outcomes.push(one),
                    }
                }
            }
        }
        (outcomes, long, back)
    }

    /// Long executions show as such.
    fn tell_running(&self, crew: &Arc<Crew>) {
        let mut calls = self.calls();
        let long = calls
            .running
            .iter_mut()
            .filter(|(call, running)| !running.told && running.since.elapsed() >= LOOK && self.pool.is_sent(**call));
        let attempts: Vec<_> = long
            .map(|(_, running)| {
                running.told = true;
                running.task.assigned.attempt
            })
            .collect();
        drop(calls);
        if !attempts.is_empty() {
            crew.shared.say(FromDispatcher::Running(attempts));
        }
    }
}

/// Whether the lease takes no more calls, and never began this one.
fn is_over(code: Code) -> bool {
    matches!(
        code,
        Code::NotExecuted | Code::LeaseEnded | Code::LeaseExpired | Code::Unreachable | Code::StaleEpoch
    )
}

/// What the manager is told of an execution, and its answer, where that is long.
fn told(attempt: Attempt, outcome: Outcome, took_us: u64) -> (Ended, Option<Output>) {
    let ended = Ended {
        begun: true,
        took_us,
        ..Ended::unexecuted(attempt, None)
    };
    match outcome {
        Ok(output) if is_long(output.as_slice()) => (ended, Some(output)),
        Ok(output) => {
            let answer = Payload::Here(output.into_bytes().into());
            (Ended { answer, ..ended }, None)
        }
        Err(CallError {
            failure,
            status,
            payload,
        }) => {
            let raised = status == Some(Status::PythonException);
            let ended = Ended {
                begun: status.is_some() || matches!(failure.code, Code::MaybeExecuted | Code::DeadlineExceeded),
                raised,
                error: Some(failure),
                ..ended
            };
            match payload {
                payload if raised && is_long(&payload) => (ended, Some(Output::Small(payload))),
                payload if raised => (
                    Ended {
                        answer: Payload::Here(payload.into()),
                        ..ended
                    },
                    None,
                ),
                _ => (ended, None),
            }
        }
    }
}

/// Whether an answer goes to the content store. In JSON it is for whoever asks in JSON, and goes along.
fn is_long(answer: &[u8]) -> bool {
    let most = match answer.last() {
        Some(&JSON_ANSWER) => MOST_ANSWER_BYTES,
        _ => INLINE_BYTES,
    };
    answer.len() > most
}
