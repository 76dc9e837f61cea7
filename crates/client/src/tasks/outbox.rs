//! Submitted tasks that are not sent yet, and the part of the [session](super::Inner) that sends them, in order. Long
//! arguments are stored before their task is sent.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_protocol::blob::Blob;
use dayfly_protocol::contents::{Content, INLINE_BYTES};
use dayfly_protocol::error::Code;
use dayfly_protocol::ids::{FunctionId, TaskId};
use dayfly_protocol::tasks::{AcceptedTasks, TaskInput, TaskOptions, TaskSubmission};

use super::{Inner, RETRY, State, Tasks, refused, wait};
use crate::Error;

/// Bounds of one request: tasks, and bytes of arguments.
const MAX_AT_ONCE: usize = 10_000;
const MAX_BYTES: usize = 16 << 20;
/// Threads that store long arguments.
const STORED_AT_ONCE: usize = 6;
/// Most unsent tasks; submitting more blocks.
const MAX_UNSENT: usize = 200_000;
/// Most bytes of unsent arguments; a single task may exceed this.
const MAX_UNSENT_BYTES: usize = 256 << 20;

/// Where the arguments of a task are.
enum Arguments {
    /// In the task's request.
    Inline,
    /// Into the content store, before the task is sent.
    ToStore,
    /// They are in the content store.
    Stored(Content),
    /// They cannot be stored.
    Refused(Error),
}

struct Unsent {
    id: TaskId,
    function: FunctionId,
    options: Arc<TaskOptions>,
    arguments: Blob,
    /// Tasks whose results are inputs of this one.
    after: Vec<TaskId>,
    place: Arguments,
    /// Whether they were stored before and were missing when the manager received the task.
    is_repeated: bool,
}

impl Unsent {
    fn is_ready(&self) -> bool {
        !matches!(self.place, Arguments::ToStore)
    }
}

#[derive(Default)]
pub struct Outbox {
    /// Their ids are consecutive.
    unsent: VecDeque<Unsent>,
    bytes: usize,
    /// Tasks that left the queue so far.
    sent: u64,
    /// Tasks with arguments that no thread stores yet.
    to_store: VecDeque<TaskId>,
}

impl Outbox {
    pub fn is_empty(&self) -> bool {
        self.unsent.is_empty()
    }

    /// Tasks that left the queue so far, accepted or refused.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Whether a task with `more` bytes of arguments has to wait.
    pub fn is_full(&self, more: usize) -> bool {
        let too_long = self.bytes + more > MAX_UNSENT_BYTES && !self.is_empty();
        self.unsent.len() >= MAX_UNSENT || too_long
    }

    /// Appends a task. Returns whether its arguments must be stored first.
    pub fn push(
        &mut self,
        id: TaskId,
        function: FunctionId,
        options: Arc<TaskOptions>,
        arguments: Blob,
        after: Vec<TaskId>,
    ) -> bool {
        let is_long = arguments.len() > INLINE_BYTES;
        if is_long {
            self.to_store.push_back(id);
        }
        self.bytes += arguments.len();
        self.unsent.push_back(Unsent {
            id,
            function,
            options,
            arguments,
            after,
            place: if is_long { Arguments::ToStore } else { Arguments::Inline },
            is_repeated: false,
        });
        is_long
    }

    fn get(&mut self, task: TaskId) -> Option<&mut Unsent> {
        let number = |task: TaskId| u128::from_be_bytes(task.0);
        let first = number(self.unsent.front()?.id);
        let at = usize::try_from(number(task).checked_sub(first)?).ok()?;
        self.unsent.get_mut(at)
    }

    pub fn contains(&mut self, task: TaskId) -> bool {
        self.get(task).is_some()
    }

    /// The leading ready tasks of one function and equal options as one request within its bounds, or the refusal of
    /// the first one. `None` if the first is not ready.
    fn next(&self, tag: &str, endpoint: Option<&String>) -> Option<Result<TaskSubmission, (TaskId, Error)>> {
        let first = self.unsent.front().filter(|unsent| unsent.is_ready())?;
        if let Arguments::Refused(error) = &first.place {
            return Some(Err((first.id, error.clone())));
        }
        let (mut tasks, mut bytes) = (Vec::new(), 0);
        for unsent in self.unsent.iter().take(MAX_AT_ONCE) {
            let is_same = unsent.function == first.function
                && (Arc::ptr_eq(&unsent.options, &first.options) || unsent.options == first.options);
            let (arguments, content) = match &unsent.place {
                Arguments::Inline => (unsent.arguments.clone(), None),
                Arguments::Stored(content) => (Blob::default(), Some(*content)),
                Arguments::ToStore | Arguments::Refused(_) => break,
            };
            bytes += arguments.len();
            if !is_same || (bytes > MAX_BYTES && !tasks.is_empty()) {
                break;
            }
            tasks.push(TaskInput {
                id: Some(unsent.id),
                arguments,
                content,
                with_answers: !unsent.after.is_empty(),
                after: unsent.after.clone(),
                ..TaskInput::default()
            });
        }
        Some(Ok(TaskSubmission {
            function: first.function,
            endpoint: endpoint.cloned(),
            tag: tag.to_owned(),
            options: (*first.options).clone(),
            tasks,
        }))
    }

    /// Removes the first `count` tasks, which were sent or refused.
    fn remove(&mut self, count: usize) {
        self.sent += count as u64;
        self.bytes -= self
            .unsent
            .drain(..count)
            .map(|task| task.arguments.len())
            .sum::<usize>();
    }

    /// Marks contents of the first `count` tasks to be stored again, once for each. Returns whether there were any.
    fn store_again(&mut self, count: usize) -> bool {
        let mut any = false;
        for unsent in self.unsent.iter_mut().take(count) {
            if matches!(unsent.place, Arguments::Stored(_)) && !std::mem::replace(&mut unsent.is_repeated, true) {
                unsent.place = Arguments::ToStore;
                self.to_store.push_back(unsent.id);
                any = true;
            }
        }
        any
    }
}

impl Inner {
    /// Starts the threads that store long arguments, unless they run.
    pub(super) fn start_storing(self: &Arc<Self>, state: &mut State) -> Result<(), Error> {
        if !std::mem::replace(&mut state.storing, true) {
            for _ in 0..STORED_AT_ONCE {
                self.spawn("dayfly-store", Self::store)?;
            }
        }
        Ok(())
    }

    /// Sends submitted tasks until the session is closed.
    pub(super) fn send(&self) {
        loop {
            let mut state = self.state();
            let next = loop {
                if let Some(next) = state.outbox.next(&self.tag, self.endpoint.as_ref()) {
                    break next;
                }
                if state.closed && state.outbox.is_empty() {
                    return;
                }
                state = wait(&self.submitted, state, RETRY);
            };
            match next {
                Err((id, error)) => {
                    state.outbox.remove(1);
                    self.end(state, [refused(id, &error)].into_iter());
                }
                Ok(submission) => {
                    drop(state);
                    self.send_some(&submission);
                }
            }
            self.sent.notify_all();
        }
    }

    fn send_some(&self, submission: &TaskSubmission) {
        let count = submission.tasks.len();
        let accepted: Result<AcceptedTasks, Error> = self.with_retries(Tasks::RETRY_TIMEOUT, || {
            self.manager.post_packed("/v1/tasks", submission)
        });
        let mut state = self.state();
        if accepted.as_ref().is_err_and(|error| error.code() == Code::NotFound) && state.outbox.store_again(count) {
            self.contents.forget();
            drop(state);
            return self.to_store.notify_all();
        }
        state.outbox.remove(count);
        if let Err(error) = accepted {
            let ended = submission.tasks.iter().filter_map(|task| task.id);
            self.end(state, ended.map(|id| refused(id, &error)));
        }
    }

    /// Stores long arguments until the session is closed.
    fn store(&self) {
        loop {
            let mut state = self.state();
            let (id, arguments) = loop {
                if let Some(id) = state.outbox.to_store.pop_front() {
                    match state.outbox.get(id) {
                        Some(unsent) => break (id, unsent.arguments.clone()),
                        None => continue,
                    }
                }
                if state.closed {
                    return;
                }
                state = wait(&self.to_store, state, RETRY);
            };
            drop(state);
            let stored = self.with_retries(Tasks::RETRY_TIMEOUT, || self.contents.store(&arguments));
            if let Some(unsent) = self.state().outbox.get(id) {
                unsent.place = stored.map_or_else(Arguments::Refused, Arguments::Stored);
            }
            self.submitted.notify_all();
        }
    }

    /// Repeats a request until it succeeds, fails for good, or `limit` is over. Sending tasks or bytes twice has no
    /// effect.
    pub(super) fn with_retries<T>(&self, limit: Duration, ask: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
        let since = Instant::now();
        loop {
            match ask() {
                Err(error) if Tasks::is_temporary(&error) && since.elapsed() < limit => {
                    let state = self.state();
                    if state.closed {
                        return Err(error);
                    }
                    drop(wait(&self.submitted, state, RETRY));
                }
                result => return result,
            }
        }
    }
}
