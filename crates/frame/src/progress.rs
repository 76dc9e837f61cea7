//! What the tasks of queries have done, by the ranks that execute them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use datafusion_distributed::TaskKey;
use uuid::Uuid;

use crate::label::Label;

/// Ended queries that are remembered: a task reports what it took after its query has ended.
const MAX_ENDED: usize = 64;

/// What a task took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Rows that it sent.
    pub rows: u64,
    /// Bytes that it received from other tasks.
    pub received_bytes: u64,
    /// Bytes that it wrote to disk for want of memory.
    pub spilled_bytes: u64,
    /// Time that its nodes computed, of all threads together.
    pub computing: Duration,
}

/// A task of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Task {
    /// Number of its stage.
    pub stage: usize,
    /// Rank that executes it, or has done so last.
    pub rank: u32,
    /// Its runs, of which all but the last were lost with their ranks.
    pub attempts: u32,
    /// What it took; `None` until it has ended.
    pub work: Option<Work>,
}

/// A query under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// Time since its first task was sent.
    pub elapsed: Duration,
    /// Its tasks, in the order of stages.
    pub tasks: Vec<Task>,
}

#[derive(Debug)]
struct Query {
    id: Uuid,
    label: Option<Arc<Label>>,
    since: Instant,
    /// Tasks whose plans a rank still keeps.
    kept_plans: usize,
    tasks: BTreeMap<(usize, usize), Task>,
}

/// The queries that this rank has planned, the oldest first.
#[derive(Debug, Default)]
pub struct Queries(Mutex<VecDeque<Query>>);

impl Queries {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Query>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A task of a query with this label is sent to a rank.
    pub fn begin(&self, key: TaskKey, rank: u32, label: Option<Arc<Label>>) {
        let mut queries = self.lock();
        let known = queries.iter().position(|query| query.id == key.query_id);
        let at = known.unwrap_or_else(|| {
            queries.push_back(Query {
                id: key.query_id,
                label,
                since: Instant::now(),
                kept_plans: 0,
                tasks: BTreeMap::new(),
            });
            queries.len() - 1
        });
        let task = Task {
            stage: key.stage_id,
            rank,
            attempts: 1,
            work: None,
        };
        queries[at].kept_plans += 1;
        queries[at].tasks.insert((key.stage_id, key.task_number), task);
    }

    /// A task that was lost is sent to another rank.
    pub fn begin_again(&self, key: TaskKey, rank: u32) {
        let mut queries = self.lock();
        let query = queries.iter_mut().find(|query| query.id == key.query_id);
        if let Some(task) = query.and_then(|query| query.tasks.get_mut(&(key.stage_id, key.task_number))) {
            (task.rank, task.work) = (rank, None);
            task.attempts += 1;
        }
    }

    /// A task has ended.
    pub fn end(&self, key: TaskKey, work: Work) {
        let mut queries = self.lock();
        let query = queries.iter_mut().find(|query| query.id == key.query_id);
        if let Some(task) = query.and_then(|query| query.tasks.get_mut(&(key.stage_id, key.task_number))) {
            task.work = Some(work);
        }
    }

    /// The query of a task has ended, or the rank of the task is lost.
    pub fn forget_plan(&self, key: TaskKey) {
        let mut queries = self.lock();
        if let Some(query) = queries.iter_mut().find(|query| query.id == key.query_id) {
            query.kept_plans = query.kept_plans.saturating_sub(1);
        }
        let mut surplus = queries.iter().filter(|query| query.kept_plans == 0).count();
        queries.retain(|query| {
            let is_dropped = query.kept_plans == 0 && surplus > MAX_ENDED;
            surplus -= usize::from(is_dropped);
            !is_dropped
        });
    }

    /// The queries under way, the oldest first.
    pub fn running(&self) -> Vec<Running> {
        let queries = self.lock();
        let running = queries.iter().filter(|query| query.kept_plans > 0);
        let running = running.map(|query| Running {
            elapsed: query.since.elapsed(),
            tasks: query.tasks.values().copied().collect(),
        });
        running.collect()
    }

    /// The tasks of a query, in the order of stages.
    pub fn tasks_of(&self, query: Uuid) -> Vec<Task> {
        let queries = self.lock();
        let found = queries.iter().find(|other| other.id == query);
        found.map_or_else(Vec::new, |query| query.tasks.values().copied().collect())
    }

    /// The tasks of the last query with this label, in the order of stages.
    pub fn tasks_labelled(&self, label: &Arc<Label>) -> Vec<Task> {
        let queries = self.lock();
        let is_labelled = |query: &&Query| query.label.as_ref().is_some_and(|known| Arc::ptr_eq(known, label));
        let found = queries.iter().rfind(is_labelled);
        found.map_or_else(Vec::new, |query| query.tasks.values().copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(query: u128, stage_id: usize, task_number: usize) -> TaskKey {
        TaskKey {
            query_id: Uuid::from_u128(query),
            stage_id,
            task_number,
        }
    }

    #[test]
    fn queries_run_until_no_rank_keeps_their_plans() {
        let queries = Queries::default();
        queries.begin(key(1, 2, 0), 3, None);
        queries.begin(key(1, 1, 0), 0, None);
        queries.begin(key(1, 1, 1), 1, None);
        let work = Work {
            rows: 7,
            ..Work::default()
        };
        queries.end(key(1, 1, 1), work);
        let running = queries.running();
        let tasks: Vec<_> = running[0]
            .tasks
            .iter()
            .map(|task| (task.stage, task.rank, task.work))
            .collect();
        assert_eq!(tasks, [(1, 0, None), (1, 1, Some(work)), (2, 3, None)]);
        for task in [key(1, 1, 0), key(1, 1, 1), key(1, 2, 0)] {
            assert_eq!(queries.running().len(), 1);
            queries.forget_plan(task);
        }
        assert_eq!(queries.running(), []);
        // The last task reports after that.
        queries.end(key(1, 2, 0), work);
        assert_eq!(queries.tasks_of(Uuid::from_u128(1))[2].work, Some(work));
    }

    #[test]
    fn oldest_ended_queries_are_forgotten() {
        let queries = Queries::default();
        queries.begin(key(0, 1, 0), 0, None);
        for query in 1..=MAX_ENDED as u128 + 3 {
            queries.begin(key(query, 1, 0), 0, None);
            queries.forget_plan(key(query, 1, 0));
        }
        let is_known = |query| !queries.tasks_of(Uuid::from_u128(query)).is_empty();
        assert!(is_known(0), "it is under way");
        assert!(!is_known(3) && is_known(4));
    }

    #[test]
    fn last_query_of_a_label_is_found() {
        let (queries, label) = (Queries::default(), Arc::new(Label::default()));
        queries.begin(key(1, 1, 0), 0, Some(Arc::clone(&label)));
        queries.begin(key(2, 1, 0), 5, Some(Arc::clone(&label)));
        queries.begin(key(3, 1, 0), 0, Some(Arc::default()));
        queries.begin(key(4, 1, 0), 0, None);
        let ranks: Vec<_> = queries.tasks_labelled(&label).iter().map(|task| task.rank).collect();
        assert_eq!(ranks, [5]);
        assert_eq!(queries.tasks_labelled(&Arc::default()), []);
    }
}
