//! All tasks that have not ended: by id, by the end of their ids, by deadline, and by the tasks that they depend on.

mod task;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};

use dayfly_protocol::contents::Payload;
use dayfly_protocol::dispatch::Assigned;
use dayfly_protocol::id_pattern::{IdPattern, MIN_DIGITS};
use dayfly_protocol::ids::TaskId;

pub use task::{LiveTask, Stage, Summary};

/// Bytes of arguments that are kept in memory. Other arguments are read from the store when their task is sent.
const MAX_CACHED_BYTES: usize = 64 << 20;
/// Bytes of [`MIN_DIGITS`].
const END_BYTES: usize = MIN_DIGITS / 2;

/// The tasks that have not ended.
#[derive(Default)]
pub struct LiveTasks {
    tasks: HashMap<TaskId, LiveTask>,
    /// Ids by their last bytes.
    ends: BTreeSet<([u8; END_BYTES], TaskId)>,
    /// The tasks that depend on a task.
    dependents: HashMap<TaskId, Vec<TaskId>>,
    /// Deadlines in milliseconds since boot. May contain tasks that have ended.
    deadlines: BinaryHeap<Reverse<(u64, TaskId)>>,
    /// Ends of the delays before retries, in milliseconds since boot. May contain tasks that have ended.
    rests: BinaryHeap<Reverse<(u64, TaskId)>>,
    /// Bytes of arguments in memory.
    cached_bytes: usize,
}

impl LiveTasks {
    pub fn insert(&mut self, id: TaskId, task: LiveTask) {
        if let Some(at_ms) = task.deadline_since_boot_ms() {
            self.deadlines.push(Reverse((at_ms, id)));
        }
        self.ends.insert((end_of(id), id));
        self.cached_bytes += task.cached_bytes();
        self.tasks.insert(id, task);
    }

    /// Removes a task that has ended or was not accepted.
    pub fn remove(&mut self, id: TaskId) -> Option<LiveTask> {
        self.ends.remove(&(end_of(id), id));
        let task = self.tasks.remove(&id)?;
        self.cached_bytes -= task.cached_bytes();
        Some(task)
    }

    pub fn get(&self, id: TaskId) -> Option<&LiveTask> {
        self.tasks.get(&id)
    }

    pub fn get_mut(&mut self, id: TaskId) -> Option<&mut LiveTask> {
        self.tasks.get_mut(&id)
    }

    pub fn contains(&self, id: TaskId) -> bool {
        self.tasks.contains_key(&id)
    }

    pub fn is_at_stage(&self, id: TaskId, stage: Stage) -> bool {
        self.get(id).is_some_and(|task| task.stage() == stage)
    }

    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (TaskId, &LiveTask)> {
        self.tasks.iter().map(|(id, task)| (*id, task))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (TaskId, &mut LiveTask)> {
        self.tasks.iter_mut().map(|(id, task)| (*id, task))
    }

    pub fn values(&self) -> impl Iterator<Item = &LiveTask> {
        self.tasks.values()
    }

    /// The ids that end with the same digits as the given one, and that `fits` accepts.
    pub fn ending_like(&self, given: &IdPattern, fits: impl Fn(&LiveTask) -> bool) -> Vec<TaskId> {
        let digits = given.digits();
        let last = &digits[digits.len().saturating_sub(MIN_DIGITS)..];
        let Ok(end) = hex::decode(last).map(<[u8; END_BYTES]>::try_from) else {
            return Vec::new();
        };
        let Ok(end) = end else { return Vec::new() };
        let alike = self.ends.range((end, TaskId([0; 16]))..=(end, TaskId([0xff; 16])));
        alike
            .map(|(_, id)| *id)
            .filter(|id| given.matches(&id.0) && self.get(*id).is_some_and(&fits))
            .collect()
    }

    /// Whether arguments of this length may be kept in memory.
    pub fn can_cache(&self, bytes: usize) -> bool {
        self.cached_bytes + bytes <= MAX_CACHED_BYTES
    }

    /// Sets the inputs of a task's next attempt.
    pub fn set_inputs(&mut self, id: TaskId, arguments: Payload, results: Vec<Payload>) {
        if let Some(task) = self.tasks.get_mut(&id) {
            self.cached_bytes -= task.cached_bytes();
            task.set_inputs(arguments, results);
            self.cached_bytes += task.cached_bytes();
        }
    }

    /// Marks a task as sent. Returns the message for its dispatcher.
    pub fn send(&mut self, id: TaskId, now_ms: u64) -> Option<Assigned> {
        let task = self.tasks.get_mut(&id)?;
        self.cached_bytes -= task.cached_bytes();
        Some(task.send(id, now_ms))
    }

    /// Marks a task as ending, after an execution of `took_us` microseconds. Returns `None` if it is ending already, or
    /// has ended.
    pub fn end(&mut self, id: TaskId, took_us: u64, since_boot_ms: u64) -> Option<Summary> {
        let task = self.tasks.get_mut(&id).filter(|task| task.stage() != Stage::Ending)?;
        self.cached_bytes -= task.cached_bytes();
        Some(task.end(took_us, since_boot_ms))
    }

    /// Takes the next task whose deadline has passed, and marks it as late.
    pub fn pop_late(&mut self, since_boot_ms: u64) -> Option<(TaskId, &LiveTask)> {
        let id = loop {
            let id = pop_due(&mut self.deadlines, since_boot_ms)?;
            if let Some(task) = self.tasks.get_mut(&id) {
                task.pass_deadline();
                break id;
            }
        };
        self.get(id).map(|task| (id, task))
    }

    /// Notes when a resting task is to be queued again, in milliseconds since boot.
    pub fn rest_until(&mut self, id: TaskId, until_ms: u64) {
        self.rests.push(Reverse((until_ms, id)));
    }

    /// Takes the next task whose rest has ended.
    pub fn pop_rested(&mut self, since_boot_ms: u64) -> Option<(TaskId, &LiveTask)> {
        let id = loop {
            let id = pop_due(&mut self.rests, since_boot_ms)?;
            if let Some(task) = self.tasks.get_mut(&id).filter(|task| task.stage() == Stage::Resting) {
                task.end_rest();
                break id;
            }
        };
        self.get(id).map(|task| (id, task))
    }

    /// Notes that a task depends on another.
    pub fn add_dependent(&mut self, on: TaskId, task: TaskId) {
        self.dependents.entry(on).or_default().push(task);
    }

    pub fn has_dependents(&self, id: TaskId) -> bool {
        self.dependents.contains_key(&id)
    }

    /// Removes and returns the tasks that depend on a task.
    pub fn take_dependents(&mut self, id: TaskId) -> Vec<TaskId> {
        self.dependents.remove(&id).unwrap_or_default()
    }

    /// Number of indexed ends of ids.
    #[cfg(test)]
    pub fn indexed_ends(&self) -> usize {
        self.ends.len()
    }
}

fn pop_due(heap: &mut BinaryHeap<Reverse<(u64, TaskId)>>, now_ms: u64) -> Option<TaskId> {
    let Reverse((at_ms, id)) = *heap.peek()?;
    if at_ms > now_ms {
        return None;
    }
    heap.pop();
    Some(id)
}

/// The last bytes of an id, by which it is found.
fn end_of(id: TaskId) -> [u8; END_BYTES] {
    let mut end = [0; END_BYTES];
    end.copy_from_slice(&id.0[id.0.len() - END_BYTES..]);
    end
}
