//! Dependencies: a task waits until all tasks that it depends on have succeeded, and ends if one of them did not.
//!
//! Adds rules to `State` and `Tasks` that need the live tasks together with the store: a dependency that has ended is
//! in the store, where a later submission finds its ending. A task that waits already is notified when that ending is
//! written.

use std::collections::{HashMap, HashSet};

use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{TaskId, TenantId};
use dayfly_protocol::tasks::{MAX_DEPENDENCIES, TaskInput};

use crate::Tasks;
use crate::live_tasks::Stage;
use crate::state::State;

/// Tasks that have ended: `None` for success, or the failure.
pub type Endings = HashMap<TaskId, Option<Failure>>;

/// The tasks that one task depends on.
#[derive(Debug, Default)]
pub struct Dependencies {
    /// Number of tasks that have not ended.
    unfinished: u32,
    /// Why the task cannot be executed any more.
    failure: Option<Box<Failure>>,
    /// All of them, in the order of the submission.
    tasks: Box<[TaskId]>,
}

impl Dependencies {
    /// Whether some have not ended.
    pub fn is_awaited(&self) -> bool {
        self.unfinished > 0
    }

    /// Why the task cannot be executed any more.
    pub fn failure(&self) -> Option<Failure> {
        self.failure.as_deref().cloned()
    }

    pub fn tasks(&self) -> &[TaskId] {
        &self.tasks
    }

    pub fn set(&mut self, tasks: &[TaskId], unfinished: u32) {
        (self.tasks, self.unfinished) = (tasks.into(), unfinished);
    }

    pub fn end_one(&mut self) {
        self.unfinished = self.unfinished.saturating_sub(1);
    }

    /// Keeps the first failure.
    pub fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert_with(|| Box::new(failure));
    }
}

/// The failure of a task whose dependency's result has been deleted.
pub fn deleted_result() -> Failure {
    Failure::new(
        Code::NotFound,
        "a result that the task depends on was deleted, by its owner or at the end of its retention; run that task \
         again",
    )
}

fn failed_dependency(task: TaskId, failure: &Failure) -> Failure {
    let text = format!(
        "the task {task}, which this one depends on, failed: {}",
        failure.message
    );
    Failure::new(Code::DependencyFailed, text)
}

/// Returns the dependencies outside a submission. Inside it, a task may depend on tasks that precede it.
///
/// # Errors
/// `InvalidRequest` for too many dependencies, and for a task that depends on a later one of the submission.
pub fn outside_dependencies(tasks: &[TaskInput], ids: &[TaskId]) -> Result<HashSet<TaskId>, Failure> {
    let mut outside = HashSet::new();
    if tasks.iter().all(|task| task.after.is_empty()) {
        return Ok(outside);
    }
    let positions: HashMap<TaskId, usize> = ids.iter().copied().zip(0..).collect();
    for (at, task) in tasks.iter().enumerate() {
        if task.after.len() > MAX_DEPENDENCIES {
            let text = format!(
                "a task depends on {} others; {MAX_DEPENDENCIES} are allowed",
                task.after.len()
            );
            return Err(Failure::new(Code::InvalidRequest, text));
        }
        for dependency in &task.after {
            match positions.get(dependency) {
                None => drop(outside.insert(*dependency)),
                Some(position) if *position < at => {}
                Some(_) => {
                    let text = format!("a task depends on {dependency}, which does not precede it in the submission");
                    return Err(Failure::new(Code::InvalidRequest, text));
                }
            }
        }
    }
    Ok(outside)
}

/// The failure of a submission that passes results to a function that cannot take them.
pub fn takes_no_results() -> Failure {
    Failure::new(
        Code::InvalidRequest,
        "only pickled Python functions take the results of other tasks; leave out `with_answers`, and name the \
         dependencies in `after`",
    )
}

impl State {
    /// Returns those of a tenant's tasks that are neither live nor in `endings`.
    pub fn unknown_endings(&self, tenant: TenantId, tasks: &HashSet<TaskId>, endings: &Endings) -> Vec<TaskId> {
        let is_known = |task: &TaskId| {
            let is_live = self.tasks.get(*task).is_some_and(|live| live.tenant() == tenant);
            is_live || endings.contains_key(task)
        };
        tasks.iter().copied().filter(|task| !is_known(task)).collect()
    }

    /// Makes a live task depend on others.
    pub fn set_dependencies(&mut self, task: TaskId, dependencies: &[TaskId], endings: &Endings) {
        let (mut unfinished, mut failure) = (0, None);
        for one in dependencies {
            match endings.get(one) {
                Some(None) => {}
                Some(Some(why)) => failure = Some(failed_dependency(*one, why)),
                None if self.tasks.contains(*one) => {
                    unfinished += 1;
                    self.tasks.add_dependent(*one, task);
                }
                // Not reached for a task that has run, since all its dependencies had ended then.
                None => failure = Some(deleted_result()),
            }
        }
        if let Some(live) = self.tasks.get_mut(task) {
            live.set_dependencies(dependencies, unfinished, failure);
        }
    }
}

impl Tasks {
    /// Looks up how tasks ended, and adds that to `endings`.
    ///
    /// # Errors
    /// `NotFound` for a task that does not exist, or is another tenant's.
    pub(super) async fn find_endings(
        &self,
        tenant: TenantId,
        tasks: Vec<TaskId>,
        endings: &mut Endings,
    ) -> Result<(), Failure> {
        let found = self.store.endings(tasks.clone()).wait().await?;
        for (task, found) in tasks.into_iter().zip(found) {
            match found {
                Some((owner, failure)) if owner == tenant => drop(endings.insert(task, failure)),
                // Its outcome is being written.
                None if self.state().tasks.get(task).is_some_and(|live| live.tenant() == tenant) => {}
                _ => {
                    let text = format!(
                        "you have no task {task}, which another one is to depend on; it may have been deleted since it \
                         ended"
                    );
                    return Err(Failure::new(Code::NotFound, text));
                }
            }
        }
        Ok(())
    }

    /// At a start: ends the tasks that can never be executed.
    pub(super) fn end_failed_dependents(&self) {
        let mut state = self.state();
        let failed: Vec<_> = state
            .tasks
            .iter()
            .filter_map(|(task, live)| Some((task, Some(live.dependencies().failure()?))))
            .collect();
        self.end_unexecuted(&mut state, failed);
    }

    /// The outcomes of these tasks are written: queues or ends the tasks that depend on them.
    pub(super) fn release_dependents(&self, state: &mut State, ended: &[(TaskId, Option<Failure>)]) {
        let (mut ready, mut failed) = (Vec::new(), Vec::new());
        for (task, why) in ended {
            for dependent in state.tasks.take_dependents(*task) {
                let Some(live) = state.tasks.get_mut(dependent) else {
                    continue;
                };
                live.end_dependency(why.as_ref().map(|why| failed_dependency(*task, why)));
                if live.stage() != Stage::Depending {
                    // It is being accepted, or has ended.
                    continue;
                }
                match live.dependencies().failure() {
                    Some(failure) => failed.push((dependent, Some(failure))),
                    None if !live.dependencies().is_awaited() => ready.push(dependent),
                    None => {}
                }
            }
        }
        let known: Vec<_> = ready.into_iter().filter_map(|task| state.enqueue(task)).collect();
        self.end(state, known, None);
        self.end_unexecuted(state, failed);
    }
}
