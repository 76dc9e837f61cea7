//! Tasks that come after others: each waits until all before it have ended well, and ends where one of them did not.
//!
//! How those ended that were told in memory stands in the books, where a later submission looks for it; whoever waits already is
//! told when it is written down.

use std::collections::{HashMap, HashSet};

use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{TaskId, TenantId};
use dayfly_protocol::tasks::{MAX_DEPENDENCIES, TaskInput};

use crate::Tasks;
use crate::live_task::Stage;
use crate::state::State;

/// How tasks ended that others come after: why not well.
pub type Endings = HashMap<TaskId, Option<Failure>>;

/// What a task waits for.
#[derive(Debug, Default)]
pub struct Dependencies {
    /// How many have not ended.
    left: u32,
    /// Why it cannot be executed any more.
    failure: Option<Box<Failure>>,
    /// All, whose answers it may be given.
    tasks: Box<[TaskId]>,
}

impl Dependencies {
    /// Whether some have not ended.
    pub fn is_awaited(&self) -> bool {
        self.left > 0
    }

    /// Why it cannot be executed any more.
    pub fn failure(&self) -> Option<Failure> {
        self.failure.as_deref().cloned()
    }

    /// Tasks that it comes after.
    pub fn tasks(&self) -> &[TaskId] {
        &self.tasks
    }

    /// It cannot be executed any more.
    pub fn fails(&mut self, failure: Failure) {
        self.failure.get_or_insert_with(|| Box::new(failure));
    }
}

/// An answer that is wanted is not there any more.
pub fn forgotten() -> Failure {
    Failure::new(
        Code::NotFound,
        "an answer that the task is to be given is forgotten: the task that answered ended too long ago, or its owner forgot it",
    )
}

fn failed(task: TaskId, why: &Failure) -> Failure {
    let text = format!(
        "the task {task}, whose end this one waited for, did not end well: {}",
        why.message
    );
    Failure::new(Code::DependencyFailed, text)
}

/// The tasks that those of a submission come after, without those of the submission, of which each may come after those that
/// stand before it.
pub fn before(tasks: &[TaskInput], ids: &[TaskId]) -> Result<HashSet<TaskId>, Failure> {
    let mut outside = HashSet::new();
    if tasks.iter().all(|task| task.after.is_empty()) {
        return Ok(outside);
    }
    let places: HashMap<TaskId, usize> = ids.iter().copied().zip(0..).collect();
    for (at, task) in tasks.iter().enumerate() {
        if task.after.len() > MAX_DEPENDENCIES {
            let text = format!(
                "a task after {} others; {MAX_DEPENDENCIES} are allowed",
                task.after.len()
            );
            return Err(Failure::new(Code::InvalidRequest, text));
        }
        for before in &task.after {
            match places.get(before) {
                None => drop(outside.insert(*before)),
                Some(place) if *place < at => {}
                Some(_) => {
                    let text = format!("a task comes after {before}, which does not stand before it in the submission");
                    return Err(Failure::new(Code::InvalidRequest, text));
                }
            }
        }
    }
    Ok(outside)
}

/// Answers are in the arguments where they were pickled, and nowhere else.
pub fn no_answers() -> Failure {
    Failure::new(
        Code::InvalidRequest,
        "answers go along to pickled Python functions alone; leave out `with_answers`, and name in `after` what is to end before",
    )
}

impl State {
    /// Of these tasks, those of which it is not known whether they have ended.
    pub(super) fn unknown(&self, tenant: TenantId, tasks: &HashSet<TaskId>, endings: &Endings) -> Vec<TaskId> {
        let is_known = |task: &TaskId| {
            let is_live = self.live.get(task).is_some_and(|live| live.tenant == tenant);
            is_live || endings.contains_key(task)
        };
        tasks.iter().copied().filter(|task| !is_known(task)).collect()
    }

    /// A task waits for those before it.
    pub(super) fn wait_for(&mut self, task: TaskId, before: &[TaskId], endings: &Endings) {
        let (mut left, mut failure) = (0, None);
        for one in before {
            match endings.get(one) {
                Some(None) => {}
                Some(Some(why)) => failure = Some(failed(*one, why)),
                None if self.live.contains_key(one) => {
                    left += 1;
                    self.later.entry(*one).or_default().push(task);
                }
                // Of a task that ran, all before it had ended.
                None => failure = Some(forgotten()),
            }
        }
        let Some(live) = self.live.get_mut(&task) else { return };
        live.before.left = left;
        live.before.tasks = before.into();
        if let Some(failure) = failure {
            live.before.fails(failure);
        }
        if live.place == Stage::Queued && left > 0 {
            live.place = Stage::Depending;
        }
    }
}

impl Tasks {
    /// Looks up how tasks ended. One that is not there, or somebody else's, is an error.
    pub(super) async fn learn_endings(
        &self,
        tenant: TenantId,
        tasks: Vec<TaskId>,
        endings: &mut Endings,
    ) -> Result<(), Failure> {
        let found = self.store.endings(tasks.clone()).wait().await?;
        for (task, found) in tasks.into_iter().zip(found) {
            match found {
                Some((owner, failure)) if owner == tenant => drop(endings.insert(task, failure)),
                // It ends just now, or it is not there at all.
                None if self.state().live.get(&task).is_some_and(|live| live.tenant == tenant) => {}
                _ => {
                    let text =
                        format!("you have no task {task}, after which another is to come, or it is forgotten by now");
                    return Err(Failure::new(Code::NotFound, text));
                }
            }
        }
        Ok(())
    }

    /// After a start: tasks that can never be executed end.
    pub(super) fn end_those_that_cannot_be(&self) {
        let mut state = self.state();
        let broken: Vec<_> = state
            .live
            .iter()
            .filter_map(|(task, live)| Some((*task, Some(live.before.failure()?))))
            .collect();
        self.end_unexecuted(&mut state, broken);
    }

    /// These tasks ended, and it is written down: those that waited for them go on, or end.
    pub(super) fn go_on(&self, state: &mut State, ended: &[(TaskId, Option<Failure>)]) {
        let (mut ready, mut broken) = (Vec::new(), Vec::new());
        for (task, why) in ended {
            for later in state.later.remove(task).unwrap_or_default() {
                let Some(live) = state.live.get_mut(&later) else {
                    continue;
                };
                live.before.left = live.before.left.saturating_sub(1);
                if let Some(why) = why {
                    live.before.fails(failed(*task, why));
                }
                match live.place {
                    Stage::Depending if live.before.failure.is_some() => broken.push((later, live.before.failure())),
                    Stage::Depending if live.before.left == 0 => ready.push(later),
                    // Being accepted, or ended.
                    _ => {}
                }
            }
        }
        let answered: Vec<_> = ready.into_iter().filter_map(|task| state.line_up(task)).collect();
        self.end(state, answered, None);
        self.end_unexecuted(state, broken);
    }
}
