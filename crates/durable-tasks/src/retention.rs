//! Tasks that have ended are forgotten before their time, with their answers: what their owner has fetched and does not need.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use dayfly_protocol::error::Failure;
use dayfly_protocol::ids::{TaskId, TenantId};
use dayfly_protocol::tasks::{DeletedTasks, TaskDeletion};
use dayfly_store::tasks::Gone;

use crate::Tasks;
use crate::live_task::Stage;
use crate::memo::Key;
use crate::state::State;
use crate::triggers::to_its_end;

/// Most that are forgotten in one step.
const AT_ONCE: usize = 2_000;

/// What is left alone.
struct Needed {
    /// Tasks that others come after which have not ended.
    tasks: HashSet<TaskId>,
    /// Tags of flows that have not ended: such a one would execute again what is not there any more.
    tags: Vec<String>,
    /// The last outcome that was told.
    up_to: u64,
    /// Tasks with the tag that have not ended.
    left: u64,
}

impl Tasks {
    /// Forgets tasks of a tenant's that have ended.
    pub async fn forget(self: &Arc<Self>, tenant: TenantId, what: TaskDeletion) -> Result<DeletedTasks, Failure> {
        let tasks = Arc::clone(self);
        // What goes in the books goes here, too.
        to_its_end(async move { tasks.forget_all(tenant, what).await }).await
    }

    async fn forget_all(&self, tenant: TenantId, what: TaskDeletion) -> Result<DeletedTasks, Failure> {
        let needed = self.state().needed_of(tenant, what.tag.as_deref());
        let mut done = DeletedTasks {
            forgotten: 0,
            left: needed.left,
        };
        if let Some(tag) = what.tag {
            let mut after = 0;
            loop {
                let found = self
                    .store
                    .ended(tenant, tag.clone(), after, needed.up_to, AT_ONCE as u32);
                let found = found.wait().await?;
                let Some((last, _)) = found.last() else { break };
                after = *last;
                let ids = found.into_iter().map(|(_, task)| task).collect();
                self.forget_some(tenant, ids, &needed, &mut done).await?;
            }
        }
        let mut seen = HashSet::with_capacity(what.tasks.len());
        let named: Vec<TaskId> = what.tasks.into_iter().filter(|task| seen.insert(*task)).collect();
        for some in named.chunks(AT_ONCE) {
            let ended = {
                let state = self.state();
                let own = some.iter().filter_map(|task| state.live.get(task));
                done.left += own.filter(|live| live.tenant == tenant).count() as u64;
                some.iter()
                    .filter(|task| !state.live.contains_key(task))
                    .copied()
                    .collect()
            };
            self.forget_some(tenant, ended, &needed, &mut done).await?;
        }
        Ok(done)
    }

    async fn forget_some(
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
            .forget_these(tenant, going, needed.up_to, needed.tags.clone());
        let gone = gone.wait().await?;
        done.forgotten += gone.len() as u64;
        let printed: u64 = gone.iter().map(|gone| gone.printed_bytes).sum();
        self.contents.count([(tenant, -(printed as i64))]);
        self.state().forget(tenant, gone);
        Ok(())
    }
}

impl State {
    fn needed_of(&self, tenant: TenantId, tag: Option<&str>) -> Needed {
        let mut needed = Needed {
            tasks: HashSet::new(),
            tags: self
                .flows
                .values()
                .filter(|flow| flow.tenant() == tenant)
                .map(|flow| flow.tag())
                .collect(),
            up_to: self.published,
            left: 0,
        };
        for live in self.live.values().filter(|live| live.tenant == tenant) {
            needed.left += u64::from(tag == Some(live.tag.name()));
            if live.place != Stage::Ending {
                needed.tasks.extend(live.before.tasks());
            }
        }
        needed
    }

    /// Tasks are not in the books any more.
    fn forget(&mut self, tenant: TenantId, gone: Vec<Gone>) {
        let mut by_tag: HashMap<String, HashSet<TaskId>> = HashMap::new();
        for Gone { id, tag, memo, .. } in gone {
            if let Some(key) = memo {
                // The answer may go with it.
                self.memo.forget(Key(key));
            }
            by_tag.entry(tag).or_default().insert(id);
        }
        let tags = self.tags.get(&tenant);
        for (tag, tasks) in by_tag {
            if let Some(tag) = tags.and_then(|tags| tags.get(&*tag)) {
                tag.forget(&tasks);
            }
        }
    }
}
