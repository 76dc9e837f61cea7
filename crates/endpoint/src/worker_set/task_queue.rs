//! The tasks of a worker set that no driver has yet.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use dayfly_protocol::dispatch::{Assigned, Attempt, Program};

use crate::contents::{Fetched, needs_fetch};
use crate::lease_driver::LeaseDriver;

/// Tasks that are examined for one that fits.
const MAX_EXAMINED: usize = 64;

/// A task and its program.
pub struct Task {
    pub program: Arc<Program>,
    pub assigned: Assigned,
    /// Its arguments, if they were read from a content store.
    pub fetched: Option<Fetched>,
}

impl Task {
    pub fn new(program: Arc<Program>, assigned: Assigned) -> Self {
        Self {
            program,
            assigned,
            fetched: None,
        }
    }

    /// Whether inputs have to be read before a worker can have it.
    pub fn needs_fetch(&self) -> bool {
        self.fetched.is_none() && needs_fetch(&self.assigned)
    }
}

/// Tasks that wait for a worker, in order, and tasks whose inputs are being read.
#[derive(Default)]
pub struct TaskQueue {
    waiting: VecDeque<Task>,
    fetching: HashMap<Attempt, Task>,
}

impl TaskQueue {
    /// Appends a task.
    pub fn push_back(&mut self, task: Task) {
        self.waiting.push_back(task);
    }

    /// Puts a task before all others.
    pub fn push_front(&mut self, task: Task) {
        self.waiting.push_front(task);
    }

    /// Keeps a task while its inputs are read.
    pub fn add_fetching(&mut self, task: Task) {
        self.fetching.insert(task.assigned.attempt, task);
    }

    /// Removes a task whose inputs were being read; `None` if it was cancelled meanwhile.
    pub fn take_fetching(&mut self, attempt: Attempt) -> Option<Task> {
        self.fetching.remove(&attempt)
    }

    /// Removes the next task for a driver whose node remains for `remaining`: the first that fits, unless the driver
    /// does not accept it.
    pub fn next_for(&mut self, driver: &dyn LeaseDriver, remaining: Option<Duration>) -> Option<Task> {
        let at = self.position_for(driver, remaining)?;
        self.waiting.remove(at)
    }

    /// The task that [`Self::next_for`] would remove.
    pub fn peek_for(&self, driver: &dyn LeaseDriver, remaining: Option<Duration>) -> Option<&Task> {
        self.waiting.get(self.position_for(driver, remaining)?)
    }

    fn position_for(&self, driver: &dyn LeaseDriver, remaining: Option<Duration>) -> Option<usize> {
        let fits = |task: &Task| {
            let needed = Duration::from_millis(task.assigned.walltime_ms.into());
            remaining.is_none_or(|remaining| needed < remaining)
        };
        let at = self.waiting.iter().take(MAX_EXAMINED).position(fits)?;
        driver.accepts(&self.waiting.get(at)?.program).then_some(at)
    }

    /// Number of tasks that wait for a worker.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Number of tasks, including those whose inputs are being read.
    pub fn len(&self) -> usize {
        self.waiting.len() + self.fetching.len()
    }

    /// The executions that wait for a worker.
    pub fn waiting_attempts(&self) -> Vec<Attempt> {
        self.waiting.iter().map(|task| task.assigned.attempt).collect()
    }

    /// Walltime of the next task in milliseconds; 0 if there is none.
    pub fn first_walltime_ms(&self) -> u32 {
        self.waiting.front().map_or(0, |task| task.assigned.walltime_ms)
    }

    /// Longest walltime of a waiting task in milliseconds; 0 if there is none.
    pub fn longest_walltime_ms(&self) -> u32 {
        let walltimes = self.waiting.iter().map(|task| task.assigned.walltime_ms);
        walltimes.max().unwrap_or_default()
    }

    /// Removes those of these executions that it contains, and returns them.
    pub fn withdraw(&mut self, wanted: &HashSet<Attempt>) -> Vec<Attempt> {
        let mut withdrawn = Vec::new();
        let mut keeps = |task: &Task| {
            let attempt = task.assigned.attempt;
            let is_wanted = wanted.contains(&attempt);
            if is_wanted {
                withdrawn.push(attempt);
            }
            !is_wanted
        };
        self.waiting.retain(&mut keeps);
        self.fetching.retain(|_, task| keeps(task));
        withdrawn
    }

    /// Removes the tasks that wait for a worker.
    pub fn drain_waiting(&mut self) -> Vec<Task> {
        self.waiting.drain(..).collect()
    }

    /// Removes all tasks.
    pub fn drain(&mut self) -> Vec<Task> {
        let fetching = std::mem::take(&mut self.fetching).into_values();
        self.waiting.drain(..).chain(fetching).collect()
    }
}
