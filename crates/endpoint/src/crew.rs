//! The workers of one tenant and one runtime.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mayfly_client::{Client, Error, LeaseOptions, Mode};
use mayfly_protocol::api::Runtime;
use mayfly_protocol::dispatch::{Assigned, Attempt, Ended, FromDispatcher, Program};
use mayfly_protocol::error::{Code, Failure};
use mayfly_protocol::ids::TenantId;
use mayfly_tasks::Window;
use tokio::sync::mpsc::UnboundedSender;

use crate::dispatcher::Options;
use crate::lane::Lane;

/// Workers that are leased at once, however few tasks there are: more follow at once mostly, and a lease of several costs no more.
const BLOCK: u16 = 4;
/// Between two attempts to lease where there is no room.
const RETRY: Duration = Duration::from_millis(250);
/// By what part the room must have changed to be told anew.
const SAY_ROOM_AT: f64 = 0.2;

/// What all crews of a dispatcher share.
pub struct Shared {
    pub options: Options,
    said: UnboundedSender<FromDispatcher>,
    window: Mutex<(Window, u32)>,
    workers: AtomicU32,
}

impl Shared {
    pub fn new(options: Options, said: UnboundedSender<FromDispatcher>) -> Self {
        Self {
            options,
            said,
            window: Mutex::default(),
            workers: AtomicU32::new(0),
        }
    }

    /// Tells the manager. One that is gone hears nothing, and needs not.
    pub fn say(&self, message: FromDispatcher) {
        let _ = self.said.send(message);
    }

    /// Executions took so long: there may be room for more, or should be for fewer.
    fn learn(&self, ended: &[Ended]) {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        for one in ended.iter().filter(|one| one.begun) {
            window.0.took(one.took_us);
        }
        let workers = self
            .workers
            .load(Ordering::Relaxed)
            .max(self.options.most_workers.into());
        let tasks = window.0.tasks(workers);
        let told = f64::from(window.1);
        if (f64::from(tasks) - told).abs() > told * SAY_ROOM_AT {
            window.1 = tasks;
            self.say(FromDispatcher::Room { tasks });
        }
    }

    fn workers_changed(&self, by: i64, trouble: Option<String>) {
        let change = |count: u32| u32::try_from(i64::from(count) + by).ok();
        let before = self.workers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
        let count = before.ok().and_then(change).unwrap_or_default();
        self.say(FromDispatcher::Workers { count, trouble });
    }
}

/// What workers must have in common to be of one crew.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    pub tenant: TenantId,
    runtime: String,
    cores: u16,
    memory_bytes: u64,
}

impl Key {
    pub fn of(tenant: TenantId, program: &Program) -> Self {
        Self {
            tenant,
            runtime: format!("{:?}", program.runtime),
            cores: program.resources.cores,
            memory_bytes: program.resources.memory_bytes,
        }
    }
}

/// A task, and what it runs.
pub type Task = (Arc<Program>, Assigned);

#[derive(Default)]
struct State {
    waiting: VecDeque<Task>,
    lanes: Vec<Arc<Lane>>,
    /// Whether a thread is leasing.
    leasing: bool,
    closed: bool,
}

/// The workers of one tenant and one runtime, and the tasks that wait for them.
pub struct Crew {
    key: Key,
    client: Client,
    pub shared: Arc<Shared>,
    state: Mutex<State>,
    closing: Condvar,
}

impl Crew {
    pub fn new(key: Key, client: Client, shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(Self {
            key,
            client,
            shared,
            state: Mutex::default(),
            closing: Condvar::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// More tasks.
    pub fn take(self: &Arc<Self>, tasks: Vec<Task>) {
        let mut state = self.state();
        state.waiting.extend(tasks);
        self.feed(&mut state);
    }

    /// Gives the lanes what they have room for, and leases more where that is not all.
    fn feed(self: &Arc<Self>, state: &mut State) {
        let mut over = Vec::new();
        for lane in &state.lanes {
            while state.waiting.front().is_some_and(|(program, _)| lane.takes(program)) {
                let Some((program, task)) = state.waiting.pop_front() else {
                    break;
                };
                if let Err((program, task)) = lane.begin(program, task) {
                    state.waiting.push_front((program, task));
                    over.push(Arc::clone(lane));
                    break;
                }
            }
        }
        for lane in over {
            self.remove(state, &lane);
        }
        let workers: u32 = state.lanes.iter().map(|lane| u32::from(lane.workers())).sum();
        let most = u32::from(self.shared.options.most_workers);
        if state.waiting.is_empty() || state.leasing || state.closed || workers >= most {
            return;
        }
        let wanted = u32::try_from(state.waiting.len()).unwrap_or(u32::MAX).max(BLOCK.into());
        let wanted = u16::try_from(wanted.min(most - workers)).unwrap_or(u16::MAX);
        state.leasing = true;
        let runtime = state.waiting.front().map(|(program, _)| program.runtime.clone());
        let crew = Arc::clone(self);
        let leasing = move || crew.lease(wanted, runtime.unwrap_or(Runtime::Native));
        if let Err(error) = std::thread::Builder::new().name("mayfly-lease".into()).spawn(leasing) {
            tracing::error!(%error, "no thread to lease with");
            state.leasing = false;
        }
    }

    /// Leases until there are workers, or no task waits any more.
    fn lease(self: Arc<Self>, mut wanted: u16, runtime: Runtime) {
        let mut told = None;
        loop {
            match self.open(wanted, &runtime) {
                Ok(lane) => {
                    let workers = lane.workers();
                    let mut state = self.state();
                    state.leasing = false;
                    if state.closed {
                        return;
                    }
                    self.shared.workers_changed(workers.into(), None);
                    state.lanes.push(Arc::clone(&lane));
                    self.feed(&mut state);
                    drop(state);
                    return lane.run(&self);
                }
                Err(error) => {
                    let code = error.code();
                    if matches!(code, Code::NoCapacity | Code::QuotaExceeded | Code::TooLarge) && wanted > 1 {
                        wanted /= 2;
                        continue;
                    }
                    let words = error.to_string();
                    if told.as_ref() != Some(&words) {
                        tracing::warn!(tenant = %self.key.tenant, error = words, "no workers");
                        self.shared.workers_changed(0, Some(words.clone()));
                        told = Some(words);
                    }
                    if self.give_up(&error) {
                        return;
                    }
                }
            }
        }
    }

    fn open(&self, workers: u16, runtime: &Runtime) -> Result<Arc<Lane>, Error> {
        let options = LeaseOptions {
            mode: Mode::Warm,
            runtime: runtime.clone(),
            cores_per_worker: self.key.cores,
            memory_bytes: self.key.memory_bytes.saturating_mul(workers.into()),
            ..LeaseOptions::native(workers)
        };
        Ok(Arc::new(Lane::open(self.client.lease(options)?)?))
    }

    /// Waits before the next attempt. True if there is to be none: nobody waits, or waiting is in vain.
    fn give_up(self: &Arc<Self>, error: &Error) -> bool {
        let mut state = self.state();
        if error.retry() == mayfly_client::Retry::Never {
            // What these tasks ask for they will never get.
            let ended = state.waiting.drain(..).map(|(_, task)| failed(task.attempt, &error.0));
            let ended: Vec<_> = ended.collect();
            self.shared.say(FromDispatcher::Ended(ended));
        } else {
            let until = Instant::now() + RETRY;
            while !state.closed {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                state = match self.closing.wait_timeout(state, left) {
                    Ok((state, _)) => state,
                    Err(poisoned) => poisoned.into_inner().0,
                };
            }
        }
        let done = state.closed || state.waiting.is_empty();
        if done {
            state.leasing = false;
        }
        done
    }

    /// Executions ended on a lane. Those that never began there go elsewhere.
    pub fn ended(self: &Arc<Self>, lane: &Arc<Lane>, ended: Vec<Ended>, back: Vec<Task>) {
        self.shared.learn(&ended);
        if !ended.is_empty() {
            self.shared.say(FromDispatcher::Ended(ended));
        }
        let mut state = self.state();
        if !back.is_empty() {
            for task in back.into_iter().rev() {
                state.waiting.push_front(task);
            }
            self.remove(&mut state, lane);
        }
        self.feed(&mut state);
    }

    /// A lane gets no more tasks.
    fn remove(&self, state: &mut State, lane: &Arc<Lane>) {
        let before = state.lanes.len();
        state.lanes.retain(|other| !Arc::ptr_eq(other, lane));
        if state.lanes.len() < before {
            lane.retire();
            self.shared.workers_changed(-i64::from(lane.workers()), None);
        }
    }

    /// Whether a lane that has been idle for so long, or whose lease is over, should end.
    pub fn lets_go(&self, lane: &Arc<Lane>, idle: Duration) -> bool {
        let mut state = self.state();
        if idle >= self.shared.options.idle && lane.is_empty() {
            self.remove(&mut state, lane);
        }
        lane.is_retired() && lane.is_empty()
    }

    /// Ends these executions, if they are here.
    pub fn cancel(&self, attempts: &[Attempt]) {
        let mut state = self.state();
        let wanted: HashSet<Attempt> = attempts.iter().copied().collect();
        let mut ended = Vec::new();
        state.waiting.retain(|(_, task)| {
            let hit = wanted.contains(&task.attempt);
            if hit {
                let failure = Failure::new(Code::Cancelled, "the task was cancelled before it began");
                ended.push(failed(task.attempt, &failure));
            }
            !hit
        });
        for lane in &state.lanes {
            lane.cancel(&wanted);
        }
        drop(state);
        if !ended.is_empty() {
            self.shared.say(FromDispatcher::Ended(ended));
        }
    }

    /// Ends all of it.
    pub fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.waiting.clear();
        for lane in state.lanes.drain(..) {
            lane.close();
        }
        self.closing.notify_all();
    }
}

/// An execution that did not begin, and will not.
fn failed(attempt: Attempt, failure: &Failure) -> Ended {
    Ended {
        attempt,
        error: Some(failure.clone()),
        raised: false,
        begun: false,
        answer: Vec::new().into(),
        took_us: 0,
    }
}
