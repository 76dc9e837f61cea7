//! Retention: deletes ended tasks and their results before the end of their retention, on request of their owner.
//!
//! Adds to `State` the search for tasks that are needed, and their removal from memory.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use dayfly_protocol::error::Failure;
use dayfly_protocol::ids::{TaskId, TenantId};
use dayfly_protocol::tasks::{DeletedTasks, TaskDeletion};
use dayfly_store::tasks::DeletedTask;

use crate::Tasks;
use crate::detached::run_detached;
use crate::live_tasks::Stage;
use crate::memo::Key;
use crate::state::State;

/// Maximum number of tasks that are deleted in one step.
const MAX_BATCH: usize = 2_000;

/// The ended tasks that must stay.
struct Needed {
    /// Dependencies of tasks that have not ended.
    tasks: HashSet<TaskId>,
    /// Tags of unfinished flows. A restarted flow would execute deleted tasks again.
    tags: Vec<String>,
    /// Number of the last published outcome.
    up_to: u64,
    /// Tasks with the tag that have not ended.
    left: u64,
}

impl Tasks {
    /// Deletes tasks of a tenant that have ended: the named ones, and those of a tag. Leaves those that unfinished
    /// tasks and flows need.
    pub async fn delete_tasks(self: &Arc<Self>, tenant: TenantId, what: TaskDeletion) -> Result<DeletedTasks, Failure> {
        let tasks = Arc::clone(self);
        // Store and memory must both lose them.
        run_detached(async move { tasks.delete_all(tenant, what).await }).await
    }

    async fn delete_all(&self, tenant: TenantId, what: TaskDeletion) -> Result<DeletedTasks, Failure> {
        let needed = self.state().needed_tasks(tenant, what.tag.as_deref());
        let mut done = DeletedTasks {
            forgotten: 0,
            left: needed.left,
        };
        if let Some(tag) = what.tag {
            let mut after = 0;
            loop {
                let found = self
                    .store
                    .ended(tenant, tag.clone(), after, needed.up_to, MAX_BATCH as u32);
                let found = found.wait().await?;
                let Some((last, _)) = found.last() else { break };
                after = *last;
                let ids = found.into_iter().map(|(_, task)| task).collect();
                self.delete_some(tenant, ids, &needed, &mut done).await?;
            }
        }
        let mut seen = HashSet::with_capacity(what.tasks.len());
        let named: Vec<TaskId> = what.tasks.into_iter().filter(|task| seen.insert(*task)).collect();
        for some in named.chunks(MAX_BATCH) {
            let ended = {
                let state = self.state();
                let own = some.iter().filter_map(|task| state.tasks.get(*task));
                done.left += own.filter(|live| live.tenant() == tenant).count() as u64;
                some.iter()
                    .filter(|task| !state.tasks.contains(**task))
                    .copied()
                    .collect()
            };
            self.delete_some(tenant, ended, &needed, &mut done).await?;
        }
        Ok(done)
    }

    async fn delete_some(
        &self,
        tenant: TenantId,
        tasks: Vec<TaskId>,
        needed: &Needed,
        done: &mut DeletedTasks,
    ) -> Result<(), Failure> {
        let (kept, going): (Vec<_>, Vec<_>) = tasks.into_iter().partition(|task| needed.tasks.contains(task));
        done.left += kept.len() as u64;
        if going.is_empty() {
            return Ok(());
        }
        let gone = self
            .store
            .delete_tasks(tenant, going, needed.up_to, needed.tags.clone());
        let gone = gone.wait().await?;
        done.forgotten += gone.len() as u64;
        let printed: u64 = gone.iter().map(|gone| gone.freed_bytes).sum();
        self.contents.count([(tenant, -(printed as i64))]);
        self.state().remove_deleted(tenant, gone);
        Ok(())
    }
}

impl State {
    fn needed_tasks(&self, tenant: TenantId, tag: Option<&str>) -> Needed {
        let mut needed = Needed {
            tasks: HashSet::new(),
            tags: self.flows.tags_of(tenant),
            up_to: self.outcomes.published(),
            left: 0,
        };
        for live in self.tasks.values().filter(|live| live.tenant() == tenant) {
            needed.left += u64::from(tag == Some(live.tag().name()));
            if live.stage() != Stage::Ending {
                needed.tasks.extend(live.dependencies().tasks());
            }
        }
        needed
    }

    /// Removes what memory has of tasks that the store has deleted.
    fn remove_deleted(&mut self, tenant: TenantId, gone: Vec<DeletedTask>) {
        let mut by_tag: HashMap<String, HashSet<TaskId>> = HashMap::new();
        for DeletedTask { id, tag, memo, .. } in gone {
            if let Some(key) = memo {
                // The content of its result may be deleted too.
                self.memo.remove(Key(key));
            }
            by_tag.entry(tag).or_default().insert(id);
        }
        for (tag, tasks) in by_tag {
            if let Some(tag) = self.tags.get(tenant, &tag) {
                tag.remove(&tasks);
            }
        }
    }
}
