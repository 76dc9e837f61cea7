//! One lease, the channels to its workers, and the thread that drives them.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mayfly_client::{
    CallError, CallId, CallOptions, ChannelOptions, Code, Error, FunctionId, Geometry, Input, Lease, Outcome, Output,
    Pool, PoolOptions, Status,
};
use mayfly_protocol::blob::Blob;
use mayfly_protocol::dispatch::{Assigned, Attempt, Ended, FromDispatcher, Program};
use mayfly_tasks::Window;

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
    told: bool,
}

#[derive(Default)]
struct Calls {
    running: HashMap<CallId, Running>,
    functions: HashMap<mayfly_protocol::ids::FunctionId, FunctionId>,
    window: Window,
    /// When executions were last seen to have ended.
    last: Option<Instant>,
}

/// One lease, the channels to its workers, and what runs there.
pub struct Lane {
    lease: Lease,
    pool: Pool,
    calls: Mutex<Calls>,
    retired: AtomicBool,
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
        })
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn workers(&self) -> u16 {
        self.lease.workers()
    }

    pub fn has_room(&self) -> bool {
        let calls = self.calls();
        calls.running.len() < calls.window.at_workers(self.workers().into()) as usize
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
            Some(function) => Ok(*function),
            None => self.learn(&mut calls, &program),
        };
        let input = |task: &Assigned| Input::Bytes(task.arguments.to_vec());
        let call = function.and_then(|function| self.pool.submit(function, input(&task), options));
        match call {
            Ok(call) => {
                let since = Instant::now();
                let running = Running {
                    program,
                    task,
                    since,
                    told: false,
                };
                calls.running.insert(call, running);
                Ok(())
            }
            Err(error) => {
                tracing::info!(%error, "a lease takes no more tasks");
                Err((program, task))
            }
        }
    }

    fn learn(&self, calls: &mut Calls, program: &Program) -> Result<FunctionId, Error> {
        let hash = self.lease.put_code(&program.code)?;
        let function = self.pool.register(hash, program.form.clone())?;
        calls.functions.insert(program.id, function);
        Ok(function)
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
            let took = each.min(now - running.since);
            let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            match self.pool.wait(*call, Some(Duration::ZERO)) {
                Err(error) if is_over(error.code()) && !self.is_retired() => back.push((running.program, running.task)),
                outcome => {
                    let one = told(running.task.attempt, outcome, took_us);
                    if one.begun {
                        calls.window.took(took_us);
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
