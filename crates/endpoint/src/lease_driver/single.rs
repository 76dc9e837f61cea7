//! A driver with one lease, the channels to its workers, and their thread.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dayfly_client::{
    CallId, CallOptions, Code, Error, FunctionId, Input, Lease, Output, OutputReader, Pool, WorkerOutput,
};
use dayfly_protocol::dispatch::{Attempt, Ended, FromDispatcher, Program, TaskOutput};
use dayfly_protocol::ids::NodeId;
use dayfly_protocol::node_api::CallLoans;
use dayfly_scheduling::{BusyTime, Cost, accepts_more};
use tokio::sync::OwnedSemaphorePermit;

use super::{DRIVE_LIMIT, LeaseDriver, MAX_ENDED, channels, drive_until_retired, never_runs, output, report_of};
use crate::contents::{Fetched, inline_inputs};
use crate::worker_set::{Task, WorkerSet};

struct RunningCall {
    task: Task,
    /// Memory of its arguments.
    _room: Option<OwnedSemaphorePermit>,
    since: Instant,
    /// Expected duration in microseconds.
    expected_us: u64,
    is_reported: bool,
}

#[derive(Default)]
struct Calls {
    running: HashMap<CallId, RunningCall>,
    functions: HashMap<dayfly_protocol::ids::FunctionId, KnownFunction>,
    /// Expected duration of everything that runs, in microseconds.
    ahead_us: u64,
    /// Busy time of its workers.
    busy_time: BusyTime,
    /// The last calls that ended: their output may arrive later.
    ended: VecDeque<(CallId, Attempt)>,
}

impl Calls {
    /// The execution of a call, also shortly after its end.
    fn attempt(&self, call: CallId) -> Option<Attempt> {
        if let Some(running) = self.running.get(&call) {
            return Some(running.task.assigned.attempt);
        }
        let ended = self.ended.iter().rev().find(|(ended, _)| *ended == call);
        ended.map(|(_, attempt)| *attempt)
    }
}

/// A function that this driver's pool knows.
struct KnownFunction {
    function: FunctionId,
    cost: Cost,
}

/// One lease, the channels to its workers, and the running calls.
pub struct SingleDriver {
    lease: Lease,
    pool: Pool,
    /// Output of its workers, until a reader takes it.
    printed: Mutex<Option<OutputReader>>,
    calls: Mutex<Calls>,
    begun: Instant,
    retired: AtomicBool,
    /// Whether its channels were closed, even with running calls.
    closed: AtomicBool,
}

impl SingleDriver {
    /// Opens a channel to each worker.
    pub fn open(lease: Lease) -> Result<Self, Error> {
        let pool = channels(&lease)?;
        let printed = lease.output()?.with_loans();
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

    fn register_function(&self, calls: &mut Calls, program: &Program) -> Result<(FunctionId, u64), Error> {
        let hash = self.lease.put_code(&program.code)?;
        let function = self.pool.register(hash, program.form.clone())?;
        let cost = Cost::default();
        let expected_us = cost.expected_us();
        calls.functions.insert(program.id, KnownFunction { function, cost });
        Ok((function, expected_us))
    }

    /// Attributes output, and what calls lent and borrowed, to executions. Other output is dropped.
    fn printed_by(&self, pieces: Vec<WorkerOutput>, loans: Vec<CallLoans>) -> Vec<TaskOutput> {
        let called: Vec<_> = pieces.iter().map(|piece| self.pool.printer(piece.by?)).collect();
        let measured: Vec<_> = loans.iter().map(|one| self.pool.printer(one.by)).collect();
        let calls = self.calls();
        let known = pieces.into_iter().zip(called).filter_map(|(piece, call)| {
            Some(TaskOutput {
                attempt: calls.attempt(call?)?,
                stream: piece.stream,
                bytes: piece.bytes.into(),
                loans: None,
            })
        });
        let measured = loans.into_iter().zip(measured);
        let measured = measured.filter_map(|(one, call)| Some(TaskOutput::of_loans(calls.attempt(call?)?, one.series)));
        known.chain(measured).collect()
    }

    /// Ended executions, those with long results, and those to be queued again.
    fn collect(&self, ended: &[CallId]) -> (Vec<Ended>, Vec<(Ended, Output)>, Vec<Task>) {
        let mut outcomes = Vec::with_capacity(ended.len());
        let mut long = Vec::new();
        let mut back = Vec::new();
        let is_lost = self.pool.remaining_workers() == 0;
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
            .busy_time
            .share(since(now), since(begun), outstanding, workers, ended.len());
        for call in ended {
            let Some(running) = calls.running.remove(call) else {
                continue;
            };
            calls.ahead_us = calls.ahead_us.saturating_sub(running.expected_us);
            if calls.ended.len() == MAX_ENDED {
                calls.ended.pop_front();
            }
            calls.ended.push_back((*call, running.task.assigned.attempt));
            let took = each.min(now - running.since);
            let left = calls.running.len();
            calls.busy_time.count(took, left);
            let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            match self.pool.wait(*call, Some(Duration::ZERO)) {
                Err(error) if never_runs(&error, is_lost) && !self.is_retired() => back.push(running.task),
                outcome => {
                    let (mut one, output) = report_of(running.task.assigned.attempt, outcome, took_us);
                    // An interrupted execution may have begun.
                    one.begun |= self.closed.load(Ordering::Relaxed);
                    if one.begun
                        && let Some(known) = calls.functions.get_mut(&running.task.program.id)
                    {
                        known.cost.record(took_us);
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

    /// Reports long executions as running.
    fn report_running(&self, worker_set: &Arc<WorkerSet>) {
        let mut calls = self.calls();
        let long = calls.running.iter_mut().filter(|(call, running)| {
            !running.is_reported && running.since.elapsed() >= DRIVE_LIMIT && self.pool.is_sent(**call)
        });
        let attempts: Vec<_> = long
            .map(|(_, running)| {
                running.is_reported = true;
                running.task.assigned.attempt
            })
            .collect();
        drop(calls);
        if !attempts.is_empty() {
            worker_set.shared.send(FromDispatcher::Running(attempts));
        }
    }
}

impl LeaseDriver for SingleDriver {
    fn workers(&self) -> u16 {
        self.lease.workers()
    }

    fn accepts(&self, program: &Program) -> bool {
        let calls = self.calls();
        let unknown = Cost::default();
        let cost = calls.functions.get(&program.id).map_or(&unknown, |known| &known.cost);
        accepts_more(self.workers().into(), calls.running.len(), calls.ahead_us, cost)
    }

    fn mean_us(&self, program: &Program) -> Option<u64> {
        self.calls().functions.get(&program.id)?.cost.mean_us()
    }

    fn nodes(&self) -> Vec<NodeId> {
        vec![self.lease.node()]
    }

    fn running(&self) -> usize {
        self.calls().running.len()
    }

    fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    fn close(&self) {
        self.retire();
        self.closed.store(true, Ordering::Relaxed);
        self.pool.disconnect();
    }

    fn begin(&self, mut task: Task) -> Option<Task> {
        let mut calls = self.calls();
        let options = CallOptions {
            deadline_ms: task.assigned.walltime_ms,
            // The manager counts retries and decides about them.
            idempotent: false,
            notify: true,
            ..CallOptions::default()
        };
        let function = match calls.functions.get(&task.program.id) {
            Some(known) => Ok((known.function, known.cost.expected_us())),
            None => self.register_function(&mut calls, &task.program),
        };
        let call = function.and_then(|(function, expected_us)| {
            let (bytes, room) = match task.fetched.take() {
                Some(Fetched { bytes, room }) => (Some(bytes), Some(room)),
                None => (inline_inputs(&task.assigned), None),
            };
            let unread = || Error::new(Code::Internal, "a task whose arguments were not read");
            let bytes = bytes.ok_or_else(unread)?;
            let call = self.pool.submit(function, Input::Blob(bytes), options)?;
            Ok((call, room, expected_us))
        });
        match call {
            Ok((call, room, expected_us)) => {
                let running = RunningCall {
                    task,
                    _room: room,
                    since: Instant::now(),
                    expected_us,
                    is_reported: false,
                };
                calls.ahead_us += expected_us;
                calls.running.insert(call, running);
                None
            }
            Err(error) => {
                tracing::info!(%error, "a lease accepts no more tasks");
                Some(task)
            }
        }
    }

    fn cancel(&self, wanted: &HashSet<Attempt>) {
        let calls = self.calls();
        let hit = calls
            .running
            .iter()
            .filter(|(_, running)| wanted.contains(&running.task.assigned.attempt));
        for (call, _) in hit {
            if !self.pool.cancel(*call)
                && let Err(error) = self.pool.kill(*call)
            {
                tracing::warn!(%error, "a cancelled task cannot be ended");
            }
        }
    }

    fn withdraw(&self, wanted: &HashSet<Attempt>) -> Vec<Attempt> {
        let calls = self.calls();
        let hit = calls
            .running
            .iter()
            .filter(|(call, running)| wanted.contains(&running.task.assigned.attempt) && self.pool.cancel(**call));
        hit.map(|(_, running)| running.task.assigned.attempt).collect()
    }

    fn run(self: Arc<Self>, worker_set: &Arc<WorkerSet>) {
        let driver: Arc<dyn LeaseDriver> = Arc::clone(&self) as _;
        if let Some(printed) = self.printed.lock().unwrap_or_else(PoisonError::into_inner).take() {
            output::forward(
                Arc::downgrade(&self),
                printed,
                Arc::clone(&worker_set.shared),
                Self::printed_by,
            );
        }
        let turn = || {
            let ended = self.pool.drive(DRIVE_LIMIT);
            if ended.is_empty() {
                return false;
            }
            let (ended, long, back) = self.collect(&ended);
            worker_set.on_ended(&driver, ended, long, back);
            true
        };
        drive_until_retired(
            &driver,
            worker_set,
            || vec![&self.lease],
            turn,
            || self.report_running(worker_set),
        );
    }
}
