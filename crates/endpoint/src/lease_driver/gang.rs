//! A driver for gangs: the leases of a gang, the channels to its ranks, and their thread. One task has all ranks at a
//! time. Each rank is called with the task's arguments and an invitation to the task's own group.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dayfly_client::{
    CallError, CallId, CallOptions, Code, Error, FunctionId, Input, Lease, Outcome, OutputReader, Pool, WorkerIndex,
    WorkerOutput,
};
use dayfly_protocol::api::MeetingPlace;
use dayfly_protocol::dispatch::{Attempt, FromDispatcher, Program, TaskOutput};
use dayfly_protocol::encoding::{CALL_OF_RANK, join};
use dayfly_protocol::ids::{self, NodeId};
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;

use super::rank_outcomes::outcome_of_ranks;
use super::{
    DRIVE_LIMIT, LeaseDriver, MAX_ENDED, channels, drive_until_retired, is_over, output, report_of, was_begun,
};
use crate::contents::{Fetched, inline_inputs};
use crate::worker_set::{Task, WorkerSet};

/// How long one of several pools is driven before the next one.
const TURN_LIMIT: Duration = Duration::from_millis(2);
/// Time for the other ranks to end by themselves after one has failed.
const FAILURE_GRACE: Duration = Duration::from_secs(5);
/// Limit of one group operation in a task without walltime.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Time for all ranks to arrive after the first: a function may do something else before.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(600);
/// Microseconds that a waiting rank polls before it sleeps.
const SPIN_US: u64 = 500;

/// A part of a gang: its ranks on one node.
struct GangPart {
    lease: Lease,
    pool: Pool,
    printed: Mutex<Option<OutputReader>>,
}

/// Index of a part, and its call.
type Place = (usize, CallId);

/// A task that all ranks have.
struct RunningTask {
    task: Task,
    /// Memory of its arguments.
    _room: Option<OwnedSemaphorePermit>,
    since: Instant,
    /// The ranks that have not ended.
    calls: HashMap<Place, usize>,
    /// Outcomes of ranks, in the order of their ends.
    ended: Vec<(usize, Outcome)>,
    /// When the first rank failed.
    failed_at: Option<Instant>,
    /// Whether the other ranks have been ended for it.
    ends: bool,
    is_reported: bool,
}

#[derive(Default)]
struct GangState {
    /// For each part, the functions that its pool knows.
    functions: Vec<HashMap<ids::FunctionId, FunctionId>>,
    running: Option<RunningTask>,
    /// The last calls that ended: their output may arrive later.
    ended: VecDeque<(Place, Attempt)>,
}

impl GangState {
    /// The execution of a call, also shortly after its end.
    fn attempt(&self, place: Place) -> Option<Attempt> {
        let running = self
            .running
            .as_ref()
            .filter(|running| running.calls.contains_key(&place));
        if let Some(running) = running {
            return Some(running.task.assigned.attempt);
        }
        let ended = self.ended.iter().rev().find(|(ended, _)| *ended == place);
        ended.map(|(_, attempt)| *attempt)
    }
}

/// The leases of a gang, and the task that its ranks have.
pub struct GangDriver {
    parts: Vec<GangPart>,
    /// Part and worker of each rank.
    ranks: Vec<(usize, WorkerIndex)>,
    place: MeetingPlace,
    state: Mutex<GangState>,
    retired: AtomicBool,
    /// Whether its channels were closed, even with running calls.
    closed: AtomicBool,
}

impl GangDriver {
    /// Opens a channel to each rank.
    pub fn open(leases: Vec<Lease>, place: MeetingPlace) -> Result<Self, Error> {
        let part = |lease: Lease| {
            let pool = channels(&lease)?;
            let printed = Mutex::new(Some(lease.output()?));
            Ok(GangPart { lease, pool, printed })
        };
        let parts: Vec<GangPart> = leases.into_iter().map(part).collect::<Result<_, Error>>()?;
        let ranks = parts.iter().enumerate();
        let ranks = ranks.flat_map(|(at, part)| (0..part.lease.workers()).map(move |worker| (at, WorkerIndex(worker))));
        let state = GangState {
            functions: parts.iter().map(|_| HashMap::new()).collect(),
            ..GangState::default()
        };
        Ok(Self {
            ranks: ranks.collect(),
            parts,
            place,
            state: Mutex::new(state),
            retired: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        })
    }

    fn state(&self) -> MutexGuard<'_, GangState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls all ranks. After an error no rank was called.
    fn call(&self, state: &mut GangState, task: &Task, arguments: &[u8]) -> Result<SubmittedCalls, Error> {
        let group = self.invitation(task)?;
        let mut called = SubmittedCalls::default();
        for (rank, (at, worker)) in self.ranks.iter().enumerate() {
            let submitted = self.submit(state, task, *at, *worker, &[arguments, &group.of(rank)]);
            match submitted {
                Ok(call) => {
                    called.calls.insert((*at, call), rank);
                }
                Err(error) if called.calls.is_empty() => return Err(error),
                // Other ranks are called already: treat it as a failure of this one.
                Err(error) => called.failed.push((rank, CallError::from(error))),
            }
        }
        Ok(called)
    }

    fn submit(
        &self,
        state: &mut GangState,
        task: &Task,
        at: usize,
        worker: WorkerIndex,
        parts: &[&[u8]],
    ) -> Result<CallId, Error> {
        let part = &self.parts[at];
        let known = &mut state.functions[at];
        let function = match known.get(&task.program.id) {
            Some(function) => *function,
            None => {
                let hash = part.lease.put_code(&task.program.code)?;
                let function = part.pool.register(hash, task.program.form.clone())?;
                known.insert(task.program.id, function);
                function
            }
        };
        let options = CallOptions {
            deadline_ms: task.assigned.walltime_ms,
            worker: Some(worker),
            notify: true,
            ..CallOptions::default()
        };
        let input = Input::Blob(join(parts, CALL_OF_RANK).into());
        part.pool.submit(function, input, options)
    }

    fn invitation(&self, task: &Task) -> Result<Invitation, Error> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|error| Error::new(Code::Internal, error.to_string()))?;
        let longest = match task.assigned.walltime_ms {
            0 => DEFAULT_DEADLINE,
            walltime_ms => Duration::from_millis(walltime_ms.into()),
        };
        let attempt = task.assigned.attempt;
        Ok(Invitation(json!({
            "rendezvous": self.place.rendezvous.address,
            "key": self.place.rendezvous.key,
            "voucher": self.place.rendezvous.voucher,
            "name": format!("{}task-{}-{}", self.place.group_prefix, attempt.task, attempt.number),
            "secret": secret.map(|byte| format!("{byte:02x}")).concat(),
            "size": self.ranks.len(),
            "spin_us": SPIN_US,
            "patience_s": ARRIVAL_LIMIT.as_secs(),
            "deadline_s": longest.as_secs() + 1,
        })))
    }

    /// Handles the end of a rank.
    fn on_ended(&self, place: Place) {
        let mut state = self.state();
        let GangState { running, ended, .. } = &mut *state;
        let Some(running) = running else { return };
        let Some(rank) = running.calls.remove(&place) else {
            return;
        };
        if ended.len() >= MAX_ENDED.max(self.ranks.len()) {
            ended.pop_front();
        }
        ended.push_back((place, running.task.assigned.attempt));
        let outcome = self.parts[place.0].pool.wait(place.1, Some(Duration::ZERO));
        running.on_outcome(rank, outcome);
    }

    /// Takes the task when all ranks have ended.
    fn take_finished(&self) -> Option<RunningTask> {
        let mut state = self.state();
        state.running.take_if(|running| running.calls.is_empty())
    }

    /// Ends the other ranks [`FAILURE_GRACE`] after one has failed, and reports long executions as running.
    fn check_ranks(&self, worker_set: &Arc<WorkerSet>) {
        let mut state = self.state();
        let Some(running) = &mut state.running else { return };
        if !running.ends && running.failed_at.is_some_and(|at| at.elapsed() >= FAILURE_GRACE) {
            running.ends = true;
            self.end(running);
        }
        let is_sent = |(at, call): &Place| self.parts[*at].pool.is_sent(*call);
        if !running.is_reported && running.since.elapsed() >= DRIVE_LIMIT && running.calls.keys().any(is_sent) {
            running.is_reported = true;
            let attempt = running.task.assigned.attempt;
            drop(state);
            worker_set.shared.send(FromDispatcher::Running(vec![attempt]));
        }
    }

    /// Ends the ranks that have not ended.
    fn end(&self, running: &RunningTask) {
        for (at, call) in running.calls.keys() {
            let pool = &self.parts[*at].pool;
            if !pool.cancel(*call)
                && let Err(error) = pool.kill(*call)
            {
                tracing::warn!(%error, "a rank cannot be ended");
            }
        }
    }

    /// Attributes output of a part to executions. Other output is dropped.
    fn printed_by(&self, at: usize, pieces: Vec<WorkerOutput>) -> Vec<TaskOutput> {
        let pool = &self.parts[at].pool;
        let called: Vec<_> = pieces.iter().map(|piece| pool.printer(piece.by?)).collect();
        let state = self.state();
        let known = pieces.into_iter().zip(called).filter_map(|(piece, call)| {
            Some(TaskOutput {
                attempt: state.attempt((at, call?))?,
                stream: piece.stream,
                bytes: piece.bytes.into(),
                loans: None,
            })
        });
        known.collect()
    }

    /// Whether a worker is lost for good, so that no task can have all its ranks.
    fn lacks_workers(&self) -> bool {
        let lacks = |part: &GangPart| part.pool.remaining_workers() < part.lease.workers().into();
        self.parts.iter().any(lacks)
    }

    /// Reports the outcome of a task.
    fn report_outcome(self: &Arc<Self>, worker_set: &Arc<WorkerSet>, running: RunningTask) {
        let driver: Arc<dyn LeaseDriver> = Arc::clone(self) as _;
        let took_us = u64::try_from(running.since.elapsed().as_micros()).unwrap_or(u64::MAX);
        let begun = running.was_begun() || self.closed.load(Ordering::Relaxed);
        let task = running.task;
        let outcome = outcome_of_ranks(running.ended);
        let lacks_workers = self.lacks_workers();
        let lost = outcome
            .as_ref()
            .is_err_and(|error| lacks_workers || is_over(error.code()));
        if lost && !begun && !self.is_retired() {
            return worker_set.on_ended(&driver, Vec::new(), Vec::new(), vec![task]);
        }
        let (mut one, output) = report_of(task.assigned.attempt, outcome, took_us);
        one.begun |= begun;
        if lost {
            // A gang without one of its parts is useless.
            self.retire();
        }
        match output {
            Some(output) => worker_set.on_ended(&driver, Vec::new(), vec![(one, output)], Vec::new()),
            None => worker_set.on_ended(&driver, vec![one], Vec::new(), Vec::new()),
        }
    }
}

/// The invitation to a group, without the rank.
struct Invitation(serde_json::Value);

impl Invitation {
    fn of(&self, rank: usize) -> Vec<u8> {
        let mut invitation = self.0.clone();
        invitation["rank"] = rank.into();
        invitation.to_string().into_bytes()
    }
}

#[derive(Default)]
struct SubmittedCalls {
    calls: HashMap<Place, usize>,
    failed: Vec<(usize, CallError)>,
}

impl RunningTask {
    fn on_outcome(&mut self, rank: usize, outcome: Outcome) {
        if outcome.is_err() {
            self.failed_at.get_or_insert_with(Instant::now);
        }
        self.ended.push((rank, outcome));
    }

    /// Whether any rank may have begun.
    fn was_begun(&self) -> bool {
        self.ended.iter().any(|(_, outcome)| match outcome {
            Ok(_) => true,
            Err(error) => was_begun(error),
        })
    }
}

impl LeaseDriver for GangDriver {
    fn workers(&self) -> u16 {
        u16::try_from(self.ranks.len()).unwrap_or(u16::MAX)
    }

    fn nodes(&self) -> Vec<NodeId> {
        self.parts.iter().map(|part| part.lease.node()).collect()
    }

    fn accepts(&self, _: &Program) -> bool {
        self.running() == 0
    }

    fn mean_us(&self, _: &Program) -> Option<u64> {
        None
    }

    fn running(&self) -> usize {
        self.state().running.iter().count()
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
        for part in &self.parts {
            part.pool.disconnect();
        }
    }

    fn begin(&self, mut task: Task) -> Option<Task> {
        let mut state = self.state();
        let (bytes, room) = match task.fetched.take() {
            Some(Fetched { bytes, room }) => (Some(bytes), Some(room)),
            None => (inline_inputs(&task.assigned), None),
        };
        let unread = || Error::new(Code::Internal, "a task whose arguments were not read");
        let called = bytes
            .ok_or_else(unread)
            .and_then(|bytes| self.call(&mut state, &task, &bytes));
        match called {
            Ok(SubmittedCalls { calls, failed }) => {
                let mut running = RunningTask {
                    task,
                    _room: room,
                    since: Instant::now(),
                    calls,
                    ended: Vec::with_capacity(self.ranks.len()),
                    failed_at: None,
                    ends: false,
                    is_reported: false,
                };
                for (rank, error) in failed {
                    running.on_outcome(rank, Err(error));
                }
                state.running = Some(running);
                None
            }
            Err(error) => {
                tracing::info!(%error, "a gang accepts no more tasks");
                Some(task)
            }
        }
    }

    fn cancel(&self, wanted: &HashSet<Attempt>) {
        let mut state = self.state();
        let hit = |running: &&mut RunningTask| wanted.contains(&running.task.assigned.attempt);
        if let Some(running) = state.running.as_mut().filter(hit) {
            running.ends = true;
            self.end(running);
        }
    }

    fn withdraw(&self, _: &HashSet<Attempt>) -> Vec<Attempt> {
        // A task's ranks get it as soon as it arrives.
        Vec::new()
    }

    fn run(self: Arc<Self>, worker_set: &Arc<WorkerSet>) {
        let driver: Arc<dyn LeaseDriver> = Arc::clone(&self) as _;
        for (at, part) in self.parts.iter().enumerate() {
            if let Some(printed) = part.printed.lock().unwrap_or_else(PoisonError::into_inner).take() {
                // The ranks of a group have no series of their task.
                let whose = move |gang: &Self, pieces, _| gang.printed_by(at, pieces);
                output::forward(Arc::downgrade(&self), printed, Arc::clone(&worker_set.shared), whose);
            }
        }
        let turn = || {
            let turn = match (self.running(), self.parts.len()) {
                (0, parts) => DRIVE_LIMIT / u32::try_from(parts).unwrap_or(u32::MAX),
                (_, 1) => DRIVE_LIMIT,
                _ => TURN_LIMIT,
            };
            for (at, part) in self.parts.iter().enumerate() {
                for call in part.pool.drive(turn) {
                    self.on_ended((at, call));
                }
            }
            let done = self.take_finished();
            let ended = done.is_some();
            if let Some(running) = done {
                self.report_outcome(worker_set, running);
            }
            ended
        };
        let leases = || self.parts.iter().map(|part| &part.lease).collect();
        drive_until_retired(&driver, worker_set, leases, turn, || self.check_ranks(worker_set));
    }
}
