//! Durable tasks: submitted in batches, followed by their tag.
//!
//! Two threads do the talking, so that submitting waits for nobody: one sends what was submitted since its last request, so that
//! requests are the fuller the more there is to send; the other keeps a request open that the manager answers as soon as tasks
//! have ended. Some more store arguments that are long ([`outbox`]). Whoever waits for a task sleeps until it is among those that
//! ended. The ids of tasks are made here, so that a request whose answer was lost can be sent again.

mod outbox;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dayfly_protocol::blob::Blob;
use dayfly_protocol::error::{Code, Failure, Retry};
use dayfly_protocol::ids::{FunctionId, TaskId, time_first};
use dayfly_protocol::tasks::{
    Cancellation, Cancelled, FunctionRegistration, FunctionStatus, MOST_WAIT_MS, Outcomes, TaskOptions, TaskOutcome,
};

use crate::Error;
use crate::contents::Contents;
use crate::embedded::getrandom_into;
use crate::manager::ManagerClient;
use outbox::Outbox;

/// How long a manager that does not answer is tried before what was submitted, or registered, fails.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a manager that accepts no task is waited for before those to be cancelled are left alone.
const CANCEL_PATIENCE: Duration = Duration::from_secs(5);
/// How long a manager has to answer what is cancelled. It asks endpoints itself, for 5 s.
const CANCEL_LIMIT: Duration = Duration::from_secs(10);
/// Between two attempts.
const RETRY: Duration = Duration::from_millis(200);

/// Outcomes that are asked for one by one, where following a tag from its beginning may be long.
const FEW: usize = 16;

/// How tasks are submitted.
#[derive(Debug, Clone, Default)]
pub struct TasksOptions {
    /// What all of them have in common; random if none is given, and then nobody else's.
    pub tag: Option<String>,
    /// Where they run; none where there is one endpoint alone.
    pub endpoint: Option<String>,
}

#[derive(Default)]
struct State {
    outbox: Outbox,
    /// Tasks whose outcome is not here yet.
    waiting: HashSet<TaskId>,
    ended: HashMap<TaskId, TaskOutcome>,
    watched: HashSet<TaskId>,
    /// Whose outcomes are to be dropped when they come.
    forgotten: HashSet<TaskId>,
    notices: Vec<TaskId>,
    /// Waits for the manager are of no use any more.
    closed: bool,
    next_id: u128,
    /// Threads were started, and those that store long arguments.
    started: bool,
    storing: bool,
}

struct Inner {
    manager: Arc<ManagerClient>,
    contents: Contents,
    tag: String,
    endpoint: Option<String>,
    state: Mutex<State>,
    /// Something was submitted, or all is closed.
    submitted: Condvar,
    /// There are long arguments to store, or all is closed.
    to_store: Condvar,
    /// Outcomes came.
    changed: Condvar,
    /// Some that are to be told. Apart, so that nobody is woken for what others wait for.
    noticed: Condvar,
    /// What was submitted was sent.
    sent: Condvar,
}

/// Durable tasks of one tag. Dropping it leaves them alone: they run, and their outcomes can be asked for by the tag.
pub struct Tasks {
    inner: Arc<Inner>,
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.close();
    }
}

impl Tasks {
    /// How long a manager that does not answer is tried before what was submitted, or registered, fails.
    pub const PATIENCE: Duration = PATIENCE;

    pub(crate) fn open(manager: Arc<ManagerClient>, options: TasksOptions) -> Result<Self, Error> {
        let mut chance = [0; 16];
        getrandom_into(&mut chance)?;
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

    /// What its tasks have in common.
    pub fn tag(&self) -> &str {
        &self.inner.tag
    }

    /// Makes a function known to the manager. Idempotent: registering a function again returns the existing one. Tries a manager
    /// that is not there for so long; see [`Tasks::passes`].
    pub fn register(&self, function: &FunctionRegistration, limit: Duration) -> Result<FunctionStatus, Error> {
        self.inner
            .patiently(limit, || self.inner.manager.post_packed("/v1/functions", function))
    }

    /// Whether what failed with this error may succeed in a moment, as when the manager is being started again.
    pub fn passes(error: &Error) -> bool {
        // A tenant's quota has room again when its tasks have ended, and its budget when somebody says so: not in a moment.
        error.retry() == Retry::Later && error.code() != Code::QuotaExceeded
    }

    /// Submits a task, which gets the answers of those before it. It is on its way when this returns; [`Tasks::flush`] waits
    /// until the manager has it.
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

    /// Waits until the manager has accepted all that was submitted. Whether it has.
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

    /// As [`Tasks::flush`], for as long as the manager accepts some within `patience`.
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

    /// Waits for the outcome of a task and takes it; none when the time is over. One that was taken, or that is not of this
    /// session, is an error.
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

    /// Reads the answer of an outcome, wherever it is. False if it cannot be had just now.
    fn complete(&self, outcome: &mut TaskOutcome) -> bool {
        let Some(content) = outcome.content else { return true };
        match self.inner.contents.read(content) {
            Ok(bytes) => outcome.answer = bytes.into(),
            Err(error) if error.retry() == Retry::Later => return false,
            Err(error) => {
                let text = format!(
                    "the task ended well, and its result cannot be read any more: {}",
                    error.0.message
                );
                outcome.error = Some(Failure::new(error.code(), text));
                outcome.raised = false;
            }
        }
        outcome.content = None;
        true
    }

    /// Follows tasks of this tag that were submitted by somebody else, or earlier.
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

    /// Waits until no outcome is missing. Whether none is.
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

    /// Whether a task has ended, as far as is known here.
    pub fn is_done(&self, task: TaskId) -> bool {
        !self.inner.state().waiting.contains(&task)
    }

    /// Whether a task has left for the manager.
    pub fn is_sent(&self, task: TaskId) -> bool {
        let mut state = self.inner.state();
        state.waiting.contains(&task) && !state.outbox.contains(task)
    }

    /// Tasks whose outcomes are not here yet.
    pub fn pending(&self) -> usize {
        self.inner.state().waiting.len()
    }

    /// From now on [`Tasks::serve`] shall tell of this task's end; at once if it has ended.
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

    /// Waits until tasks ended of whose end was to be told; nothing once all is closed.
    pub fn serve(&self) -> Vec<TaskId> {
        let mut state = self.inner.state();
        loop {
            if !state.notices.is_empty() || state.closed {
                return std::mem::take(&mut state.notices);
            }
            state = wait(&self.inner.noticed, state, RETRY);
        }
    }

    /// Nobody will ask for this task's outcome.
    pub fn forget(&self, task: TaskId) {
        let mut state = self.inner.state();
        state.ended.remove(&task);
        state.watched.remove(&task);
        if state.waiting.contains(&task) {
            state.forgotten.insert(task);
        }
    }

    /// Cancels those of these tasks that no worker has been given yet. Those that run go on. Fails with `unreachable` when the
    /// manager accepts none of the tasks that were submitted for 5 s, or does not answer for 10 s: then they may run.
    pub fn cancel(&self, tasks: Vec<TaskId>) -> Result<Cancelled, Error> {
        self.cancel_within(CANCEL_PATIENCE, CANCEL_LIMIT, tasks)
    }

    fn cancel_within(&self, patience: Duration, limit: Duration, tasks: Vec<TaskId>) -> Result<Cancelled, Error> {
        // What the manager has not been told of, it cannot cancel.
        if !self.flush_while_accepted(patience) {
            let text = format!(
                "the manager at {} accepted no task for {patience:?}, so that none was cancelled. Is it running? `dayfly status` tells",
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

    /// Ends tasks: those that wait, and those that run.
    pub fn kill(&self, tasks: Vec<TaskId>) -> Result<Cancelled, Error> {
        // What the manager has not been told of, it cannot end.
        self.flush(PATIENCE);
        let what = Cancellation {
            tasks,
            ..Cancellation::default()
        };
        self.inner.manager.post_packed("/v1/tasks/cancel", &what)
    }

    /// Cancels all tasks that wait and whose outcomes are not here, as by [`Tasks::cancel`].
    pub fn cancel_all(&self) -> Result<Cancelled, Error> {
        let waiting = self.inner.state().waiting.iter().copied().collect();
        self.cancel(waiting)
    }

    /// Ends the waits for this session's tasks, not the tasks. What was submitted is sent first, for so long.
    pub fn close(&self) {
        let started = self.inner.state().started;
        if started {
            self.flush(PATIENCE);
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
    /// Outcomes are here, and whoever waits for them is told.
    fn end(&self, mut state: MutexGuard<'_, State>, outcomes: impl Iterator<Item = TaskOutcome>) {
        state.end(outcomes);
        let noticed = !state.notices.is_empty();
        drop(state);
        self.changed.notify_all();
        if noticed {
            self.noticed.notify_all();
        }
    }

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
        let impossible = |error| Error::new(Code::Internal, format!("no thread to talk to the manager: {error}"));
        started.map(drop).map_err(impossible)
    }

    /// Hears of outcomes that whoever follows may have passed by already, when nobody waited for them.
    fn catch_up(&self, tasks: &[TaskId]) -> Result<(), Error> {
        if tasks.len() <= FEW {
            for task in tasks {
                match self
                    .manager
                    .get_packed(&format!("/v1/tasks/{task}/outcome"), Duration::ZERO)
                {
                    Ok(outcome) => self.end(self.state(), std::iter::once(outcome)),
                    Err(error) if error.code() == Code::TimedOut => {}
                    Err(error) => return Err(error),
                }
            }
            return Ok(());
        }
        let mut after = 0;
        loop {
            let path = format!("/v1/outcomes?tag={}&after={after}", encoded(&self.tag));
            let Outcomes { outcomes, next } = self.manager.get_packed(&path, Duration::ZERO)?;
            if outcomes.is_empty() {
                return Ok(());
            }
            after = next;
            self.end(self.state(), outcomes.into_iter());
        }
    }

    /// Hears of outcomes while any is wanted, until all is closed.
    fn follow(&self) {
        let mut after = 0;
        loop {
            let mut state = self.state();
            while state.waiting.is_empty() {
                if state.closed {
                    return;
                }
                state = wait(&self.submitted, state, RETRY);
            }
            if state.closed {
                return;
            }
            drop(state);
            let path = format!(
                "/v1/outcomes?tag={}&after={after}&wait_ms={MOST_WAIT_MS}",
                encoded(&self.tag)
            );
            let longer = Duration::from_millis(MOST_WAIT_MS);
            match self.manager.get_packed::<Outcomes>(&path, longer) {
                Ok(Outcomes { outcomes, next }) => {
                    after = next;
                    self.end(self.state(), outcomes.into_iter());
                }
                Err(_) => {
                    // It comes back, or whoever waits has a limit: the tasks are safe.
                    let state = self.state();
                    if state.closed {
                        return;
                    }
                    drop(wait(&self.submitted, state, RETRY));
                }
            }
        }
    }
}

impl State {
    fn end(&mut self, outcomes: impl Iterator<Item = TaskOutcome>) {
        for outcome in outcomes {
            // Others use the same tag, or it was heard before.
            if !self.waiting.remove(&outcome.id) {
                continue;
            }
            if self.watched.remove(&outcome.id) {
                self.notices.push(outcome.id);
            }
            if !self.forgotten.remove(&outcome.id) {
                self.ended.insert(outcome.id, outcome);
            }
        }
    }
}

/// What a task ends with that the manager did not accept.
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

/// A tag or a name as it stands in a path of the manager's API.
pub fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes()
        .map(|byte| {
            if plain(byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use dayfly_protocol::api::Connection;

    use super::*;

    /// Tasks of a manager that takes connections and never answers.
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
    fn cancelling_gives_up_on_a_silent_manager_soon() {
        let (tasks, _silent) = tasks_of_a_silent_manager();
        let task = TaskId([1; 16]);
        let since = Instant::now();
        let patience = Duration::from_millis(200);
        let refused = tasks.cancel_within(patience, patience, vec![task]).unwrap_err();
        assert_eq!(refused.code(), Code::Unreachable);
        // The same where there are tasks that it has not accepted.
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
