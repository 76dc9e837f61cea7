//! The registry of functions, and their removal: named ones on request of their owner, unnamed ones after a month
//! without use.
//!
//! Adds to `State` the search for uses of a function, which needs tasks, triggers and flows.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use dayfly_protocol::blob::Blob;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{FunctionId, TaskId, TenantId};
use dayfly_store::system::{cautious_ms, now_ms};
use dayfly_store::tasks::{ExpiryStep, FunctionRecord};

use crate::Tasks;
use crate::code_cache::CodeCache;
use crate::detached::run_detached;
use crate::function_names::name_of;
use crate::state::State;
use crate::submission::Submitter;

/// An unnamed function is kept for this time after its registration and after its last use. Programs know it by its id
/// for as long as they run.
const UNNAMED_RETENTION: Duration = Duration::from_secs(30 * 24 * 3600);
/// No unnamed function is removed in this time after a start: a client that registered one before is about to use it.
const START_GRACE: Duration = Duration::from_secs(3600);
/// Maximum number of functions that are removed at once.
const MAX_BATCH: usize = 500;

/// The registered functions, and their code as far as it was used lately.
#[derive(Default)]
pub struct Functions {
    known: HashMap<FunctionId, Arc<FunctionRecord>>,
    code: CodeCache,
    /// Last use of each function since the manager started, in milliseconds since the Unix epoch.
    used_at_ms: HashMap<FunctionId, u64>,
    /// Start of the manager, in milliseconds since the Unix epoch.
    started_at_ms: u64,
}

impl Functions {
    /// The functions that the store has.
    pub fn restored(records: Vec<FunctionRecord>) -> Self {
        let known = records.into_iter().map(|function| (function.id, Arc::new(function)));
        Self {
            known: known.collect(),
            started_at_ms: now_ms(),
            ..Self::default()
        }
    }

    pub fn get(&self, id: FunctionId) -> Option<&Arc<FunctionRecord>> {
        self.known.get(&id)
    }

    pub fn values(&self) -> impl Iterator<Item = &Arc<FunctionRecord>> {
        self.known.values()
    }

    /// Adds functions, or replaces their records.
    pub fn extend(&mut self, functions: impl IntoIterator<Item = Arc<FunctionRecord>>) {
        let functions = functions.into_iter().map(|function| (function.id, function));
        self.known.extend(functions);
    }

    fn remove(&mut self, functions: &[FunctionId]) -> Vec<Arc<FunctionRecord>> {
        let removed = functions.iter().filter_map(|id| {
            self.code.remove(*id);
            self.used_at_ms.remove(id);
            self.known.remove(id)
        });
        removed.collect()
    }

    /// The function for people; empty if it was removed.
    pub fn name(&self, id: FunctionId) -> String {
        self.get(id).map_or_else(String::new, |function| name_of(function))
    }

    /// The function with this id, if the caller may run it.
    ///
    /// # Errors
    /// `NotFound` otherwise.
    pub fn find_for(&self, by: &Submitter, id: FunctionId) -> Result<Arc<FunctionRecord>, Failure> {
        let found = self.get(id).filter(|function| may_run(function, by));
        found.cloned().ok_or_else(|| {
            let text = format!("there is no function {id} that you may run; register it, or ask its owner to share it");
            Failure::new(Code::NotFound, text)
        })
    }

    /// The code, if it is in memory.
    pub fn code(&mut self, id: FunctionId) -> Option<Blob> {
        self.code.get(id)
    }

    pub fn keep_code(&mut self, id: FunctionId, code: Blob) {
        self.code.insert(id, code);
    }

    /// Notes a use.
    pub fn note_use(&mut self, id: FunctionId, now_ms: u64) {
        self.used_at_ms.insert(id, now_ms);
    }

    /// Unnamed functions that are older than their retention, were not used in that time, and are not named by any task
    /// in `scan`.
    fn expired(&self, scan: &TaskScan, now_ms: u64) -> HashSet<FunctionId> {
        let since = |length: Duration| now_ms.saturating_sub(u64::try_from(length.as_millis()).unwrap_or(u64::MAX));
        let (old_ms, grace_ms) = (since(UNNAMED_RETENTION), since(START_GRACE));
        let is_expired = |function: &&Arc<FunctionRecord>| {
            let used_at_ms = self.used_at_ms.get(&function.id).copied();
            function.name.is_none()
                && function.registered_at_ms < old_ms
                && used_at_ms.is_none_or(|at_ms| at_ms < old_ms)
                // Uses before the start are unknown.
                && self.started_at_ms < grace_ms
                && used_at_ms.is_none_or(|at_ms| at_ms < scan.begun_at_ms)
                && !scan.named.contains(&function.id)
        };
        let expired = self.known.values().filter(is_expired).take(MAX_BATCH);
        expired.map(|function| function.id).collect()
    }
}

/// Whether a submitter may run a function.
pub fn may_run(function: &FunctionRecord, by: &Submitter) -> bool {
    function.tenant == by.tenant || by.is_among(&function.spec.shared_with)
}

/// One pass over all tasks in the store, with the functions that they name.
#[derive(Debug)]
pub struct TaskScan {
    begun_at_ms: u64,
    named: HashSet<FunctionId>,
}

impl TaskScan {
    /// Begins a pass.
    pub fn new(now_ms: u64) -> Self {
        Self {
            begun_at_ms: now_ms,
            named: HashSet::new(),
        }
    }

    /// Adds some of the tasks. Returns where to continue. After the last ones, returns the whole pass and begins
    /// another.
    pub fn add(&mut self, step: ExpiryStep, now_ms: u64) -> (Option<TaskId>, Option<Self>) {
        self.named.extend(step.functions);
        let whole = match step.next {
            Some(_) => None,
            None => Some(std::mem::replace(self, Self::new(now_ms))),
        };
        (step.next, whole)
    }
}

impl State {
    /// Expired functions that nothing uses, at most `MAX_BATCH`.
    fn unused_functions(&self, scan: &TaskScan, now_ms: u64) -> Vec<FunctionId> {
        let mut unused = self.functions.expired(scan, now_ms);
        if !unused.is_empty() {
            for live in self.tasks.values() {
                unused.remove(&live.function().id);
            }
            unused.retain(|id| {
                let it = HashSet::from([*id]);
                self.triggers.count_calling(&it, |_| true) == 0 && self.flows.count_calling(&it, |_| true) == 0
            });
        }
        unused.into_iter().collect()
    }

    /// Returns a failure if unfinished tasks, flows or triggers need these functions of one owner.
    fn check_unneeded(&self, which: &str, functions: &[Arc<FunctionRecord>]) -> Result<(), Failure> {
        let ids: HashSet<FunctionId> = functions.iter().map(|function| function.id).collect();
        let Some(owner) = functions.first().map(|function| function.tenant) else {
            return Ok(());
        };
        // Other tenants' triggers and flows do not count if they may not run the functions any more.
        let is_shared = functions.iter().any(|function| !function.spec.shared_with.is_empty());
        let may = |tenant: TenantId| is_shared || tenant == owner;
        let tasks = self
            .tasks
            .values()
            .filter(|live| ids.contains(&live.function().id))
            .count();
        let flows = self.flows.count_calling(&ids, may);
        let triggers = self.triggers.count_calling(&ids, may);
        if tasks + flows + triggers == 0 {
            return Ok(());
        }
        let count = |count: usize, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
        let text = format!(
            "`{which:.80}` is used by {} and {} that have not ended, and by {}; cancel or await the tasks and flows, \
             and remove the triggers",
            count(tasks, "task"),
            count(flows, "flow"),
            count(triggers, "trigger")
        );
        Err(Failure::new(Code::InvalidRequest, text))
    }
}

impl Tasks {
    /// A registered function.
    pub(super) fn function(&self, id: FunctionId) -> Option<Arc<FunctionRecord>> {
        self.state().functions.get(id).cloned()
    }

    /// All functions.
    pub fn functions(&self) -> Vec<Arc<FunctionRecord>> {
        self.state().functions.values().cloned().collect()
    }

    /// A function's code.
    ///
    /// # Errors
    /// `NotFound` for an unknown function, and those of the store.
    pub async fn code(&self, id: FunctionId) -> Result<Blob, Failure> {
        if let Some(code) = self.state().functions.code(id) {
            return Ok(code);
        }
        let code = self.store.code(id).wait().await?;
        let code = code.ok_or_else(|| Failure::new(Code::NotFound, format!("there is no function {id}")))?;
        self.state().functions.keep_code(id, code.clone());
        Ok(code)
    }

    /// Removes functions that no unfinished task or flow, and no trigger, needs: one version by its id, or all versions
    /// of one of the caller's names. `may_remove_any`: the caller may remove any tenant's function by its id. Returns
    /// the functions, the last version last.
    pub async fn remove_function(
        self: &Arc<Self>,
        by: TenantId,
        may_remove_any: bool,
        which: String,
    ) -> Result<Vec<Arc<FunctionRecord>>, Failure> {
        let tasks = Arc::clone(self);
        run_detached(async move {
            let _changing = tasks.changing_functions.write().await;
            let by_id = which.parse().ok().filter(|_| may_remove_any);
            let found = match by_id.and_then(|id| tasks.function(id)) {
                Some(function) => vec![function],
                None => tasks.own_functions_named(by, &which)?,
            };
            let removed = {
                let mut state = tasks.state();
                state.check_unneeded(&which, &found)?;
                let ids: Vec<FunctionId> = found.iter().map(|function| function.id).collect();
                // Removed from memory first, so that no task is accepted for them meanwhile.
                state.functions.remove(&ids);
                tasks.store.remove_functions(ids)
            };
            if let Err(error) = removed.wait().await {
                tasks.state().functions.extend(found);
                return Err(error.into());
            }
            Ok(found)
        })
        .await
    }

    /// Removes expired functions that no task of a whole pass names.
    pub(super) async fn remove_unused_functions(&self, scan: TaskScan) {
        let _changing = self.changing_functions.write().await;
        let (gone, removed) = {
            let mut state = self.state();
            let unused = state.unused_functions(&scan, cautious_ms());
            if unused.is_empty() {
                return;
            }
            (state.functions.remove(&unused), self.store.remove_functions(unused))
        };
        match removed.wait().await {
            Ok(()) => tracing::info!(count = gone.len(), "unused functions are removed"),
            // A later pass tries again.
            Err(_) => self.state().functions.extend(gone),
        }
    }
}

#[cfg(test)]
mod tests {
    use dayfly_store::conformance::tasks::function;

    use super::*;

    const DAY_MS: u64 = 24 * 3_600_000;

    fn state(functions: impl IntoIterator<Item = (u8, Option<&'static str>, u64)>) -> State {
        let mut state = State::default();
        for (id, name, registered_at_ms) in functions {
            let record = FunctionRecord {
                name: name.map(str::to_owned),
                registered_at_ms,
                ..function(id, "f")
            };
            state.functions.extend([Arc::new(record)]);
        }
        state
    }

    #[test]
    fn unnamed_function_unused_for_a_month_is_removed() {
        let now_ms = 100 * DAY_MS;
        let mut state = state([
            (1, None, 0),
            (2, Some("f"), 0),
            (3, None, now_ms - DAY_MS),
            (4, None, 0),
            (5, None, 0),
        ]);
        let id = |id: u8| FunctionId([id; 16]);
        state.functions.note_use(id(5), now_ms - DAY_MS);
        let mut scan = TaskScan::new(now_ms - 1);
        let first = ExpiryStep {
            next: Some(TaskId([1; 16])),
            functions: vec![id(4)],
            ..ExpiryStep::default()
        };
        let (next, whole) = scan.add(first, now_ms);
        assert!(next.is_some() && whole.is_none());
        let (_, whole) = scan.add(ExpiryStep::default(), now_ms);
        let whole = whole.expect("all of it");
        assert_eq!(state.unused_functions(&whole, now_ms), [id(1)]);
        assert!(scan.named.is_empty() && scan.begun_at_ms == now_ms);
        // Just after a start, clients may be about to use any function.
        state.functions.started_at_ms = now_ms - 1;
        assert_eq!(state.unused_functions(&whole, now_ms), []);
    }
}
