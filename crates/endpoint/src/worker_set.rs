//! The workers of one tenant and one runtime, and their tasks.

mod covered;
mod key;
mod lease_loop;
mod task_queue;

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dayfly_client::{Client, Output};
use dayfly_protocol::cores::{MIN_WORKER_CORES, MilliCores};
use dayfly_protocol::dispatch::{Attempt, Ended, FromDispatcher};
use dayfly_protocol::error::{Code, Failure};
use dayfly_scheduling::Demand;

pub use self::key::WorkerKey;
pub use self::task_queue::Task;
use self::task_queue::TaskQueue;
use crate::contents::{Fetched, endpoint_stopped};
use crate::dispatcher_state::DispatcherState;
use crate::fair_share::ShareState;
use crate::lease_driver::LeaseDriver;

/// Workers to lease at once, even for fewer tasks: more tasks usually follow, and a lease of several costs no more.
const MIN_WORKERS: u16 = 4;

#[derive(Default)]
struct WorkerSetState {
    tasks: TaskQueue,
    drivers: Vec<Arc<dyn LeaseDriver>>,
    /// Whether a thread is leasing.
    leasing: bool,
    share_state: ShareState,
    closed: bool,
}

impl WorkerSetState {
    fn workers(&self) -> u32 {
        self.drivers.iter().map(|driver| u32::from(driver.workers())).sum()
    }
}

/// The workers of one tenant and one runtime, and their waiting tasks.
pub struct WorkerSet {
    key: WorkerKey,
    client: Client,
    pub shared: Arc<DispatcherState>,
    state: Mutex<WorkerSetState>,
    closing: Condvar,
}

impl WorkerSet {
    pub fn new(key: WorkerKey, client: Client, shared: Arc<DispatcherState>) -> Arc<Self> {
        Arc::new(Self {
            key,
            client,
            shared,
            state: Mutex::default(),
            closing: Condvar::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, WorkerSetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds tasks.
    pub fn add(self: &Arc<Self>, tasks: Vec<Task>) {
        let mut state = self.state();
        for task in tasks {
            self.enqueue(&mut state, task, TaskQueue::push_back);
        }
        self.assign_tasks(&mut state);
    }

    /// Queues a task for a worker, after its inputs are read.
    fn enqueue(self: &Arc<Self>, state: &mut WorkerSetState, task: Task, push: impl Fn(&mut TaskQueue, Task)) {
        if !task.needs_fetch() {
            return push(&mut state.tasks, task);
        }
        let attempt = task.assigned.attempt;
        let worker_set = Arc::clone(self);
        let done = move |fetched| worker_set.fetched(attempt, fetched);
        self.shared.transfer.fetch(&task.assigned, done);
        state.tasks.add_fetching(task);
    }

    fn fetched(self: &Arc<Self>, attempt: Attempt, fetched: Result<Fetched, Failure>) {
        let mut state = self.state();
        // Otherwise it was cancelled meanwhile.
        let Some(mut task) = state.tasks.take_fetching(attempt) else {
            return;
        };
        match fetched {
            Ok(fetched) => {
                task.fetched = Some(fetched);
                state.tasks.push_back(task);
                self.assign_tasks(&mut state);
            }
            Err(failure) => self
                .shared
                .send(FromDispatcher::Ended(vec![Ended::unexecuted(attempt, Some(failure))])),
        }
    }

    /// Gives tasks to drivers with room, and leases more workers if tasks remain.
    fn assign_tasks(self: &Arc<Self>, state: &mut WorkerSetState) {
        let (mut over, mut back) = (Vec::new(), Vec::new());
        self.assign_covered(state, &mut over, &mut back);
        for driver in &state.drivers {
            let left = self.remaining(driver.as_ref());
            while let Some(task) = state.tasks.next_for(driver.as_ref(), left) {
                if let Some(task) = driver.begin(task) {
                    back.push(task);
                    over.push(Arc::clone(driver));
                    break;
                }
            }
        }
        for driver in over {
            self.remove_driver(state, &driver);
        }
        for task in back {
            self.enqueue(state, task, TaskQueue::push_front);
        }
        self.yield_room(state);
        self.update_activity(state);
        // A worker set without workers leases as soon as it may.
        let wants = state.drivers.is_empty() || self.workers_to_lease(state).is_some();
        if state.tasks.waiting() == 0 || state.leasing || state.closed || !wants {
            return;
        }
        // Lease for the next task; others may need less.
        let needed_ms = state.tasks.first_walltime_ms();
        state.leasing = true;
        let worker_set = Arc::clone(self);
        let leasing = move || worker_set.lease(Duration::from_millis(needed_ms.into()));
        if let Err(error) = std::thread::Builder::new().name("dayfly-lease".into()).spawn(leasing) {
            tracing::error!(%error, "no thread to lease with");
            state.leasing = false;
        }
    }

    /// Number of workers to lease, if the worker set may have more.
    fn workers_to_lease(&self, state: &WorkerSetState) -> Option<u16> {
        let (workers, most) = (state.workers(), self.max_workers());
        match self.key.ranks {
            0 => {
                let tasks = u32::try_from(state.tasks.waiting()).unwrap_or(u32::MAX);
                let wanted = tasks.max(MIN_WORKERS.into()).min(most.saturating_sub(workers));
                let wanted = u16::try_from(wanted).unwrap_or(u16::MAX);
                (wanted > 0).then_some(wanted)
            }
            // One gang is always allowed.
            ranks => (most > 0 && (workers == 0 || workers + u32::from(ranks) <= most)).then_some(ranks),
        }
    }

    /// Cores to count for a worker. A worker with GPUs counts all cores that other GPU workers cannot use.
    fn cores_per_worker(&self) -> MilliCores {
        let own = self.key.cores.max(MIN_WORKER_CORES);
        match &self.shared.options.elastic_nodes {
            Some(elastic_nodes) => elastic_nodes.limits().cores_beside(self.key.gpus).max(own),
            None => own,
        }
    }

    /// Most workers of this worker set.
    fn max_workers(&self) -> u32 {
        let shared = &self.shared;
        let cores = match shared.fair_share.is_contended() {
            true => shared.fair_share.share(&self.key, shared.available_cores()),
            false => shared.options.max_workers.into(),
        };
        if cores == MilliCores::ZERO {
            return 0;
        }
        u32::try_from(cores.holds(self.cores_per_worker()))
            .unwrap_or(u32::MAX)
            .max(1)
    }

    /// Retires drivers while other worker sets find no room and this one has more than its share.
    fn yield_room(&self, state: &mut WorkerSetState) {
        if !self.shared.fair_share.is_contended() {
            return;
        }
        let most = self.max_workers();
        while state.workers() > most
            // Empty one node before the next: a waiting worker set may need much room at one place.
            && let Some(driver) = state.drivers.iter().min_by_key(|driver| (driver.nodes(), driver.workers())).cloned()
        {
            self.remove_driver(state, &driver);
        }
    }

    /// Counts this worker set as active if it has tasks or workers.
    fn update_activity(&self, state: &mut WorkerSetState) {
        let has_any = state.tasks.waiting() > 0 || !state.drivers.is_empty();
        let active = has_any && !state.closed;
        self.shared.fair_share.set_active(&mut state.share_state, active);
    }

    /// Records since when the worker set has found no room; `None` if it finds some.
    fn record_wait(&self, state: &mut WorkerSetState, since: Option<Instant>) {
        let has = self.cores_per_worker() * state.workers();
        let shared = &self.shared;
        shared
            .fair_share
            .record_wait(&self.key, &mut state.share_state, since, has, shared.available_cores());
    }

    /// How long a driver's nodes remain; `None` without end.
    fn remaining(&self, driver: &dyn LeaseDriver) -> Option<Duration> {
        let elastic_nodes = self.shared.options.elastic_nodes.as_ref()?;
        driver
            .nodes()
            .into_iter()
            .filter_map(|node| elastic_nodes.remaining(node))
            .min()
    }

    /// Adds this worker set's demand.
    pub fn demand(&self, demand: &mut Demand) {
        let state = self.state();
        let running: usize = state.drivers.iter().map(|driver| driver.running()).sum();
        let tasks = u32::try_from(state.tasks.len() + running).unwrap_or(u32::MAX);
        let cores = self.cores_per_worker() * u32::from(self.key.ranks.max(1)) * tasks;
        let most = MilliCores::from(self.shared.options.max_workers);
        demand.workers += u64::from(cores.min(most).rounded_up());
        demand.longest_ms = demand.longest_ms.max(state.tasks.longest_walltime_ms().into());
    }

    /// Handles ended executions of a driver. Those that never began are queued again.
    pub fn on_ended(
        self: &Arc<Self>,
        driver: &Arc<dyn LeaseDriver>,
        ended: Vec<Ended>,
        long: Vec<(Ended, Output)>,
        back: Vec<Task>,
    ) {
        self.forget_claims(driver.as_ref(), &ended, &long, &back);
        self.shared
            .record_durations(ended.iter().chain(long.iter().map(|(one, _)| one)));
        if !ended.is_empty() {
            self.shared.send(FromDispatcher::Ended(ended));
        }
        if !long.is_empty() {
            // A task shows as running until its result is stored, even if it was too short to be reported before.
            let attempts = long.iter().map(|(one, _)| one.attempt).collect();
            self.shared.send(FromDispatcher::Running(attempts));
        }
        for (ended, output) in long {
            let shared = Arc::clone(&self.shared);
            let done = move |ended| shared.send(FromDispatcher::Ended(vec![ended]));
            self.shared.transfer.store(self.key.tenant, ended, output, done);
        }
        let mut state = self.state();
        if !back.is_empty() {
            driver.retire();
        }
        for task in back.into_iter().rev() {
            self.enqueue(&mut state, task, TaskQueue::push_front);
        }
        if driver.is_retired() {
            self.remove_driver(&mut state, driver);
        }
        self.assign_tasks(&mut state);
    }

    /// Removes a driver: it gets no more tasks.
    fn remove_driver(&self, state: &mut WorkerSetState, driver: &Arc<dyn LeaseDriver>) {
        let before = state.drivers.len();
        state.drivers.retain(|other| !Arc::ptr_eq(other, driver));
        if state.drivers.len() < before {
            driver.retire();
            self.shared.workers_changed(-i64::from(driver.workers()), None);
        }
    }

    /// Whether a driver should end, after this idle time or because its lease is over.
    pub fn ends_driver(&self, driver: &Arc<dyn LeaseDriver>, idle: Duration) -> bool {
        let mut state = self.state();
        let is_awaited = self.shared.fair_share.is_contended() && state.tasks.waiting() == 0;
        if (idle >= self.shared.options.idle || is_awaited) && driver.running() == 0 {
            self.remove_driver(&mut state, driver);
            self.update_activity(&mut state);
        }
        driver.is_retired() && driver.running() == 0
    }

    /// Ends those of these executions that this worker set has.
    pub fn cancel(&self, attempts: &[Attempt]) {
        let wanted: HashSet<Attempt> = attempts.iter().copied().collect();
        let mut state = self.state();
        let withdrawn = state.tasks.withdraw(&wanted);
        for driver in &state.drivers {
            driver.cancel(&wanted);
        }
        drop(state);
        self.report_cancelled(&withdrawn);
    }

    /// Ends those of these executions that no worker has, and returns them.
    pub fn withdraw(&self, attempts: &[Attempt]) -> Vec<Attempt> {
        let wanted: HashSet<Attempt> = attempts.iter().copied().collect();
        let mut state = self.state();
        let mut withdrawn = state.tasks.withdraw(&wanted);
        // Drivers report the end of their executions themselves.
        let from_drivers: Vec<Attempt> = state
            .drivers
            .iter()
            .flat_map(|driver| driver.withdraw(&wanted))
            .collect();
        drop(state);
        self.report_cancelled(&withdrawn);
        withdrawn.extend(from_drivers);
        withdrawn
    }

    fn report_cancelled(&self, attempts: &[Attempt]) {
        if attempts.is_empty() {
            return;
        }
        let failure = Failure::new(Code::Cancelled, "the task was cancelled before it began");
        let ended = |attempt: &Attempt| Ended::unexecuted(*attempt, Some(failure.clone()));
        self.shared
            .send(FromDispatcher::Ended(attempts.iter().map(ended).collect()));
    }

    /// Ends the worker set, its tasks and its drivers.
    pub fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let unexecuted = |task: Task| Ended::unexecuted(task.assigned.attempt, Some(endpoint_stopped()));
        let back: Vec<Ended> = state.tasks.drain().into_iter().map(unexecuted).collect();
        if !back.is_empty() {
            self.shared.send(FromDispatcher::Ended(back));
        }
        for driver in state.drivers.drain(..) {
            driver.close();
        }
        self.record_wait(&mut state, None);
        self.update_activity(&mut state);
        self.closing.notify_all();
    }
}
