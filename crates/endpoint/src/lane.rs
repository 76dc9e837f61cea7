//! One lease, the channels to its workers, and the thread that drives them.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mayfly_client::{
    CallError, CallId, CallOptions, ChannelOptions, Code, Error, Failure, FunctionId, Geometry, Input, Lease, Outcome,
    Output, Pool, PoolOptions, Status,
};
use mayfly_protocol::blob::Blob;
use mayfly_protocol::dispatch::{Assigned, Attempt, Ended, FromDispatcher, Program};
use mayfly_protocol::tasks::MOST_ANSWER_BYTES;
use mayfly_tasks::{Cost, gives};

use crate::crew::{Crew, Task};

/// How long a lane sleeps while nothing ends; also how soon a long execution shows as running.
const LOOK: Duration = Duration::from_millis(50);
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
    program: Arc<Program>,
    task: Assigned,
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
    /// When executions were last seen to have ended.
    last: Option<Instant>,
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
    calls: Mutex<Calls>,
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
            ..PoolOptions::default()
        })?;
        Ok(Self {
            lease,
            pool,
            calls: Mutex::default(),
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
    pub fn begin(&self, program: Arc<Program>, task: Assigned) -> Result<(), Task> {
        let mut calls = self.calls();
        let options = CallOptions {
            deadline_ms: task.walltime_ms,
            idempotent: task.repeatable,
            notify: true,
            ..CallOptions::default()
        };
        let function = match calls.functions.get(&program.id) {
            Some(known) => Ok((known.function, known.cost.expected_us())),
            None => self.learn(&mut calls, &program),
        };
        let input = |task: &Assigned| Input::Bytes(task.arguments.to_vec());
        let call = function.and_then(|(function, expected_us)| {
            let call = self.pool.submit(function, input(&task), options)?;
            Ok((call, expected_us))
        });
        match call {
            Ok((call, expected_us)) => {
                let running = Running {
                    program,
                    task,
                    since: Instant::now(),
                    expected_us,
                    told: false,
                };
                calls.ahead_us += expected_us;
                calls.running.insert(call, running);
                Ok(())
            }
            Err(error) => {
                tracing::info!(%error, "a lease takes no more tasks");
                Err((program, task))
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
            .filter(|(_, running)| wanted.contains(&running.task.attempt));
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
        let mut idle_since = Instant::now();
        let mut renewed = Instant::now();
        loop {
            let ended = self.pool.drive(LOOK);
            if !ended.is_empty() {
                let (ended, back) = self.collect(&ended);
                crew.ended(&self, ended, back);
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

    /// How executions ended, and those that must go elsewhere.
    fn collect(&self, ended: &[CallId]) -> (Vec<Ended>, Vec<Task>) {
        let mut outcomes = Vec::with_capacity(ended.len());
        let mut back = Vec::new();
        let mut calls = self.calls();
        let now = Instant::now();
        let since = calls.last.replace(now);
        let begun = ended
            .iter()
            .filter_map(|call| calls.running.get(call))
            .map(|call| call.since);
        let since = since.max(begun.min()).unwrap_or(now);
        // While others are ahead of an execution, what it waited is not what it cost: that is what all workers did since.
        let each = (now - since) * self.workers().max(1).into() / u32::try_from(ended.len().max(1)).unwrap_or(u32::MAX);
        for call in ended {
            let Some(running) = calls.running.remove(call) else {
                continue;
            };
            calls.ahead_us = calls.ahead_us.saturating_sub(running.expected_us);
            let took = each.min(now - running.since);
            let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            match self.pool.wait(*call, Some(Duration::ZERO)) {
                Err(error) if is_over(error.code()) && !self.is_retired() => back.push((running.program, running.task)),
                outcome => {
                    let mut one = told(running.task.attempt, outcome, took_us);
                    // What was cut off may have been at it.
                    one.begun |= self.closed.load(Ordering::Relaxed);
                    if one.begun
                        && let Some(known) = calls.functions.get_mut(&running.program.id)
                    {
                        known.cost.took(took_us);
                    }
                    outcomes.push(one);
                }
            }
        }
        (outcomes, back)
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
                running.task.attempt
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

/// What the manager is told of an execution.
fn told(attempt: Attempt, outcome: Outcome, took_us: u64) -> Ended {
    let ended = Ended {
        attempt,
        error: None,
        raised: false,
        begun: true,
        answer: Blob::default(),
        took_us,
    };
    match outcome {
        Ok(output) if output.as_slice().len() > MOST_ANSWER_BYTES => {
            let text = format!(
                "the function answered {} bytes, and a task's result may have {MOST_ANSWER_BYTES}; have it write a file, and \
                 answer the file's name",
                output.as_slice().len()
            );
            Ended {
                error: Some(Failure::new(Code::PayloadTooLarge, text)),
                ..ended
            }
        }
        Ok(output) => Ended {
            answer: bytes(output),
            ..ended
        },
        Err(CallError {
            failure,
            status,
            payload,
        }) => {
            let raised = status == Some(Status::PythonException);
            Ended {
                begun: status.is_some() || matches!(failure.code, Code::MaybeExecuted | Code::DeadlineExceeded),
                answer: Blob::from(if raised { payload } else { Vec::new() }),
                raised,
                error: Some(failure),
                ..ended
            }
        }
    }
}

fn bytes(output: Output) -> Blob {
    match output {
        Output::Small(bytes) => bytes.into(),
        // Where it landed is for the next output.
        Output::Large(received) => received.as_slice().to_vec().into(),
    }
}
