//! Durable tasks: submitted in batches, followed by their tag.
//!
//! Two threads communicate with the manager, so submitting does not wait for it. One sends the tasks that were
//! submitted since its last request, so requests grow with the load ([`outbox`]). The other keeps one request open, to
//! which the manager responds as soon as tasks have ended ([`outcomes`]). Further threads store long arguments. A
//! thread that waits for a task sleeps until the task has ended. The client makes the task ids, so a request can be
//! repeated when its response was lost.

mod outbox;
mod outcomes;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dayfly_protocol::blob::Blob;
use dayfly_protocol::error::{Code, Failure, Retry};
use dayfly_protocol::functions::{FunctionRegistration, FunctionStatus};
use dayfly_protocol::ids::{FunctionId, TaskId, time_first};
use dayfly_protocol::tasks::{Cancellation, CancelledTasks, TaskOptions, TaskOutcome};

use crate::Error;
use crate::contents::Contents;
use crate::manager::ManagerClient;
use crate::random::fill_random;
use outbox::Outbox;

/// How long to wait for a manager that accepts no task before a cancellation fails.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit for the response to a cancellation. The manager asks endpoints, which takes up to 5 s.
const CANCEL_LIMIT: Duration = Duration::from_secs(10);
/// Pause between two attempts.
const RETRY: Duration = Duration::from_millis(200);

/// Tag and endpoint of submitted tasks.
#[derive(Debug, Clone, Default)]
pub struct TasksOptions {
    /// The tag; `None` makes a random one.
    pub tag: Option<String>,
    /// The endpoint to run on; `None` if the site has only one.
    pub endpoint: Option<String>,
}

#[derive(Default)]
struct State {
    outbox: Outbox,
    /// Tasks whose outcome has not arrived.
    waiting: HashSet<TaskId>,
    ended: HashMap<TaskId, TaskOutcome>,
    watched: HashSet<TaskId>,
    /// Tasks whose outcomes are dropped when they arrive.
    forgotten: HashSet<TaskId>,
    notices: Vec<TaskId>,
    /// Waiting threads return.
    closed: bool,
    next_id: u128,
    /// Whether the threads run, and those that store long arguments.
    started: bool,
    storing: bool,
}

struct Inner {
    manager: Arc<ManagerClient>,
    contents: Contents,
    tag: String,
    endpoint: Option<String>,
    state: Mutex<State>,
    /// A task was submitted, or the session was closed.
    submitted: Condvar,
    /// There are long arguments to store, or the session was closed.
    to_store: Condvar,
    /// Outcomes arrived.
    changed: Condvar,
    /// Outcomes arrived that [`Tasks::serve`] reports. Separate from `changed`, so that no thread wakes up in vain.
    noticed: Condvar,
    /// Submitted tasks were sent.
    sent: Condvar,
}

/// Durable tasks of one tag. Dropping it does not end them: they run, and their outcomes can be read by the tag.
pub struct Tasks {
    inner: Arc<Inner>,
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.close();
    }
}

impl Tasks {
    /// How long an unreachable manager is retried before a submission or a registration fails.
    pub const RETRY_TIMEOUT: Duration = Duration::from_secs(120);

    pub(crate) fn open(manager: Arc<ManagerClient>, options: TasksOptions) -> Result<Self, Error> {
        let mut chance = [0; 16];
        fill_random(&mut chance)?;
        let tag = options.tag.unwrap_or_else(|| hex::encode(chance));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let next_id = u128::from_be_bytes(time_first(now_ms, chance));
        let state = State {
            next_id,
            ..State::default()
        };
        Ok(Self {
            inner: Arc::new(Inner {
                contents: Contents::new(Arc::clone(&manager)),
                manager,
                tag,
                endpoint: options.endpoint,
                state: Mutex::new(state),
                submitted: Condvar::new(),
                to_store: Condvar::new(),
                changed: Condvar::new(),
                noticed: Condvar::new(),
                sent: Condvar::new(),
            }),
        })
    }

    /// The tag of these tasks.
    pub fn tag(&self) -> &str {
        &self.inner.tag
    }

    /// Registers a function with the manager. Idempotent: registering a function again returns the existing one.
    /// Retries an unavailable manager for `limit`; see [`Tasks::is_temporary`].
    pub fn register(&self, function: &FunctionRegistration, limit: Duration) -> Result<FunctionStatus, Error> {
        self.inner
            .with_retries(limit, || self.inner.manager.post_packed("/v1/functions", function))
    }

    /// Whether the error is temporary, as while the manager restarts.
    pub fn is_temporary(error: &Error) -> bool {
        // A quota or a budget does not become free in a moment: tasks must end, or an administrator must raise it.
        error.retry() == Retry::Later && error.code() != Code::QuotaExceeded
    }

    /// Submits a task, whose inputs include the results of the tasks in `after`. Returns before the task is sent;
    /// [`Tasks::flush`] waits until the manager has accepted it.
    pub fn submit(
        &self,
        function: FunctionId,
        arguments: Vec<u8>,
        after: Vec<TaskId>,
        options: &Arc<TaskOptions>,
    ) -> Result<TaskId, Error> {
        let mut state = self.inner.state();
        self.inner.start(&mut state)?;
        while state.outbox.is_full(arguments.len()) && !state.closed {
            state = wait(&self.inner.sent, state, RETRY);
        }
        if state.closed {
            return Err(Error::new(
                Code::Cancelled,
                "no more tasks can be submitted after the end of their executor",
            ));
        }
        state.next_id += 1;
        let id = TaskId(state.next_id.to_be_bytes());
        let stores = state
            .outbox
            .push(id, function, Arc::clone(options), arguments.into(), after);
        if stores {
            self.inner.start_storing(&mut state)?;
        }
        state.waiting.insert(id);
        drop(state);
        match stores {
            true => self.inner.to_store.notify_one(),
            false => self.inner.submitted.notify_all(),
        }
        Ok(id)
    }

    /// Waits until the manager has accepted all submitted tasks. Returns false if `limit` is over before.
    pub fn flush(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut state = self.inner.state();
        while !state.outbox.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = wait(&self.inner.sent, state, left);
        }
        true
    }

    /// As [`Tasks::flush`], but gives up only when the manager accepts no task for `patience`.
    fn flush_while_accepted(&self, patience: Duration) -> bool {
        let mut state = self.inner.state();
        let mut sent = state.outbox.sent();
        let mut until = Instant::now() + patience;
        while !state.outbox.is_empty() {
            if std::mem::replace(&mut sent, state.outbox.sent()) != state.outbox.sent() {
                until = Instant::now() + patience;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = wait(&self.inner.sent, state, left);
        }
        true
    }

    /// Waits for the outcome of a task and takes it; `None` when `limit` is over. An outcome that was taken before, or
    /// a task of another session, is an error.
    pub fn wait(&self, task: TaskId, limit: Duration) -> Result<Option<TaskOutcome>, Error> {
        let until = Instant::now() + limit;
        let mut state = self.inner.state();
        loop {
            let mut nap = Duration::MAX;
            if let Some(mut outcome) = state.ended.remove(&task) {
                drop(state);
                if self.complete(&mut outcome) {
                    return Ok(Some(outcome));
                }
                state = self.inner.state();
                state.ended.insert(task, outcome);
                nap = RETRY;
            } else if !state.waiting.contains(&task) {
                return Err(Error::new(Code::NotFound, "this task's outcome was taken already"));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || state.closed {
                return Ok(None);
            }
            state = wait(&self.inner.changed, state, left.min(nap));
        }
    }

    /// Fetches the result of an outcome from the content store if it is there. Returns false if it is unavailable now.
    fn complete(&self, outcome: &mut TaskOutcome) -> bool {
        let Some(content) = outcome.content else { return true };
        match self.inner.contents.read(content) {
            Ok(bytes) => outcome.answer = bytes.into(),
            Err(error) if error.retry() == Retry::Later => return false,
            Err(error) => {
                let text = format!(
                    "the task succeeded, but its result can no longer be read: {}",
                    error.0.message
                );
                outcome.error = Some(Failure::new(error.code(), text));
                outcome.raised = false;
            }
        }
        outcome.content = None;
        true
    }

    /// Follows tasks of this tag that another session submitted.
    pub fn adopt(&self, tasks: &[TaskId]) -> Result<(), Error> {
        let mut state = self.inner.state();
        let follows = state.started;
        self.inner.start(&mut state)?;
        let new: Vec<TaskId> = tasks
            .iter()
            .copied()
            .filter(|task| !state.ended.contains_key(task) && state.waiting.insert(*task))
            .collect();
        drop(state);
        self.inner.submitted.notify_all();
        if !follows {
            return Ok(());
        }
        self.inner.catch_up(&new).inspect_err(|_| {
            let mut state = self.inner.state();
            for task in &new {
                state.waiting.remove(task);
            }
        })
    }

    /// Waits until every outcome has arrived. Returns false if `limit` is over before.
    pub fn drain(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut state = self.inner.state();
        while !state.waiting.is_empty() && !state.closed {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = wait(&self.inner.changed, state, left);
        }
        true
    }

    /// Whether this session has received the end of a task.
    pub fn is_done(&self, task: TaskId) -> bool {
        !self.inner.state().waiting.contains(&task)
    }

    /// Whether a task was sent to the manager and its outcome has not arrived.
    pub fn is_sent(&self, task: TaskId) -> bool {
        let mut state = self.inner.state();
        state.waiting.contains(&task) && !state.outbox.contains(task)
    }

    /// Tasks whose outcome has not arrived.
    pub fn pending(&self) -> usize {
        self.inner.state().waiting.len()
    }

    /// Has [`Tasks::serve`] report the end of this task; at once if it has ended.
    pub fn notify(&self, task: TaskId) {
        let mut state = self.inner.state();
        if state.waiting.contains(&task) {
            state.watched.insert(task);
        } else {
            state.notices.push(task);
            drop(state);
            self.inner.noticed.notify_all();
        }
    }

    /// Waits until watched tasks ([`Tasks::notify`]) end, and returns them. Returns an empty list when the session is
    /// closed.
    pub fn serve(&self) -> Vec<TaskId> {
        let mut state = self.inner.state();
        loop {
            if !state.notices.is_empty() || state.closed {
                return std::mem::take(&mut state.notices);
            }
            state = wait(&self.inner.noticed, state, RETRY);
        }
    }

    /// Drops the outcome of this task.
    pub fn forget(&self, task: TaskId) {
        let mut state = self.inner.state();
        state.ended.remove(&task);
        state.watched.remove(&task);
        if state.waiting.contains(&task) {
            state.forgotten.insert(task);
        }
    }

    /// Cancels those of these tasks that are not given to a worker yet. Running tasks go on. Returns `unreachable` when
    /// the manager accepts no submitted task for 5 s, or sends no response for 10 s; the tasks may then run.
    pub fn cancel(&self, tasks: Vec<TaskId>) -> Result<CancelledTasks, Error> {
        self.cancel_within(CANCEL_TIMEOUT, CANCEL_LIMIT, tasks)
    }

    fn cancel_within(&self, patience: Duration, limit: Duration, tasks: Vec<TaskId>) -> Result<CancelledTasks, Error> {
        // The manager cannot cancel a task that it does not have.
        if !self.flush_while_accepted(patience) {
            let text = format!(
                "the manager at {} accepted no task for {patience:?}, so that none was cancelled. Is it running? Run `dayfly status`",
                self.inner.manager.url()
            );
            return Err(Error::new(Code::Unreachable, text));
        }
        let what = Cancellation {
            tasks,
            only_waiting: true,
            ..Cancellation::default()
        };
        self.inner.manager.post_packed_within(limit, "/v1/tasks/cancel", &what)
    }

    /// Ends tasks, both waiting and running ones.
    pub fn kill(&self, tasks: Vec<TaskId>) -> Result<CancelledTasks, Error> {
        // The manager cannot end a task that it does not have.
        self.flush(Self::RETRY_TIMEOUT);
        let what = Cancellation {
            tasks,
            ..Cancellation::default()
        };
        self.inner.manager.post_packed("/v1/tasks/cancel", &what)
    }

    /// Cancels all waiting tasks of this session, as [`Tasks::cancel`] does.
    pub fn cancel_all(&self) -> Result<CancelledTasks, Error> {
        let waiting = self.inner.state().waiting.iter().copied().collect();
        self.cancel(waiting)
    }

    /// Ends all waits of this session; the tasks go on. Sends the submitted tasks first, for at most
    /// [`Tasks::RETRY_TIMEOUT`].
    pub fn close(&self) {
        let started = self.inner.state().started;
        if started {
            self.flush(Self::RETRY_TIMEOUT);
        }
        self.inner.state().closed = true;
        self.inner.submitted.notify_all();
        self.inner.to_store.notify_all();
        self.inner.changed.notify_all();
        self.inner.noticed.notify_all();
        self.inner.sent.notify_all();
    }
}

fn wait<'a>(condition: &Condvar, state: MutexGuard<'a, State>, limit: Duration) -> MutexGuard<'a, State> {
    match condition.wait_timeout(state, limit) {
        Ok((state, _)) => state,
        Err(poisoned) => poisoned.into_inner().0,
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(self: &Arc<Self>, state: &mut State) -> Result<(), Error> {
        if state.started {
            return Ok(());
        }
        self.spawn("dayfly-submit", Self::send)?;
        self.spawn("dayfly-follow", Self::follow)?;
        state.started = true;
        Ok(())
    }

    fn spawn(self: &Arc<Self>, name: &str, run: fn(&Self)) -> Result<(), Error> {
        let inner = Arc::clone(self);
        let started = std::thread::Builder::new().name(name.into()).spawn(move || run(&inner));
        let impossible = |error| {
            Error::new(
                Code::Internal,
                format!("no thread can be started for requests to the manager: {error}"),
            )
        };
        started.map(drop).map_err(impossible)
    }
}

/// The outcome of a task that the manager refused.
fn refused(id: TaskId, error: &Error) -> TaskOutcome {
    TaskOutcome {
        id,
        number: 0,
        error: Some(Failure::new(
            error.code(),
            format!("the task was not accepted: {}", error.0.message),
        )),
        raised: false,
        answer: Blob::default(),
        content: None,
        result: None,
        attempts: 0,
        foreign: Vec::new(),
        ran: None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use dayfly_protocol::api::Connection;

    use super::*;

    /// A session with a manager that accepts connections and sends no response.
    fn tasks_of_a_silent_manager() -> (Tasks, TcpListener) {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let manager = ManagerClient::new(&Connection {
            manager: format!("http://{}", silent.local_addr().unwrap()),
            ca_pem: "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".into(),
            token: String::new(),
            others: Vec::new(),
        });
        let tasks = Tasks::open(Arc::new(manager.unwrap()), TasksOptions::default()).unwrap();
        (tasks, silent)
    }

    #[test]
    fn cancellation_at_silent_manager_fails_within_its_limits() {
        let (tasks, _silent) = tasks_of_a_silent_manager();
        let task = TaskId([1; 16]);
        let since = Instant::now();
        let patience = Duration::from_millis(200);
        let refused = tasks.cancel_within(patience, patience, vec![task]).unwrap_err();
        assert_eq!(refused.code(), Code::Unreachable);
        // The same result with tasks that the manager has not accepted.
        tasks
            .inner
            .state()
            .outbox
            .push(task, FunctionId([2; 16]), Arc::default(), Blob::default(), Vec::new());
        let refused = tasks.cancel_within(patience, patience, vec![task]).unwrap_err();
        assert_eq!(refused.code(), Code::Unreachable);
        assert!(refused.0.message.contains("accepted no task"), "{refused}");
        assert!(since.elapsed() < Duration::from_secs(10));
    }
}
