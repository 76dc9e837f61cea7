//! Functions that are known, and their removal: of named ones when their owner wants that, of those without a name when
//! nobody has used them for long.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use dayfly_protocol::blob::Blob;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{FunctionId, TaskId, TenantId};
use dayfly_store::system::cautious_ms;
use dayfly_store::tasks::{FunctionRecord, Passed};

use crate::Tasks;
use crate::state::State;
use crate::triggers::to_its_end;

/// A function without a name is kept for so long after it was registered, and after its last use: programs that submit tasks know
/// it by its id for as long as they run.
const UNNAMED: Duration = Duration::from_secs(30 * 24 * 3600);
/// It was not asked for so long: whoever registered it again a moment ago is about to use it.
const AT_REST: Duration = Duration::from_secs(3600);
/// Most that go at once.
const AT_ONCE: usize = 500;

/// When functions were used since the manager started.
#[derive(Debug, Default)]
pub struct LastUses(HashMap<FunctionId, u64>);

impl LastUses {
    /// One is used.
    pub fn note(&mut self, function: FunctionId, now_ms: u64) {
        self.0.insert(function, now_ms);
    }
}

/// One walk through all tasks in the books, in which the functions are noted that they name.
#[derive(Debug)]
pub struct TaskScan {
    begun_at_ms: u64,
    named: HashSet<FunctionId>,
}

impl TaskScan {
    /// One that begins now.
    pub fn new(now_ms: u64) -> Self {
        Self {
            begun_at_ms: now_ms,
            named: HashSet::new(),
        }
    }

    /// Some of the tasks were seen. Where those were the last, answers what was found, and begins anew.
    pub fn passed(&mut self, passed: Passed, now_ms: u64) -> (Option<TaskId>, Option<Self>) {
        self.named.extend(passed.functions);
        let whole = match passed.next {
            Some(_) => None,
            None => Some(std::mem::replace(self, Self::new(now_ms))),
        };
        (passed.next, whole)
    }
}

impl State {
    /// Functions without a name that nobody needs any more, some at a time.
    fn unused(&self, walk: &TaskScan, now_ms: u64) -> Vec<FunctionId> {
        let since = |length: Duration| now_ms.saturating_sub(u64::try_from(length.as_millis()).unwrap_or(u64::MAX));
        let (old_ms, at_rest_ms) = (since(UNNAMED), since(AT_REST));
        let is_old = |function: &&Arc<FunctionRecord>| {
            let used_at_ms = self.uses.0.get(&function.id).copied();
            function.name.is_none()
                && function.registered_at_ms < old_ms
                && used_at_ms.is_none_or(|at_ms| at_ms < old_ms)
                // Of what was before the start, nothing is known.
                && self.started_at_ms < at_rest_ms
                && used_at_ms.is_none_or(|at_ms| at_ms < walk.begun_at_ms)
                && !walk.named.contains(&function.id)
        };
        let old = self.functions.values().filter(is_old).take(AT_ONCE);
        let mut old: HashSet<FunctionId> = old.map(|function| function.id).collect();
        if !old.is_empty() {
            for live in self.live.values() {
                old.remove(&live.function.id);
            }
            old.retain(|id| {
                let it = HashSet::from([*id]);
                let is_called = self.triggers.calling(&it, |_| true) > 0;
                !is_called && !self.flows.values().any(|flow| flow.calls(&it))
            });
        }
        old.into_iter().collect()
    }

    /// Why these functions of one owner's cannot go, if somebody needs them.
    fn needed(&self, which: &str, functions: &[Arc<FunctionRecord>]) -> Option<Failure> {
        let ids: HashSet<FunctionId> = functions.iter().map(|function| function.id).collect();
        let owner = functions.first()?.tenant;
        // What others have set up does not count once they may not run it any more.
        let is_shared = functions.iter().any(|function| !function.spec.shared_with.is_empty());
        let may = |tenant: TenantId| is_shared || tenant == owner;
        let tasks = self
            .live
            .values()
            .filter(|live| ids.contains(&live.function.id))
            .count();
        let flows = self
            .flows
            .values()
            .filter(|flow| may(flow.tenant()) && flow.calls(&ids))
            .count();
        let triggers = self.triggers.calling(&ids, may);
        if tasks + flows + triggers == 0 {
            return None;
        }
        let count = |count: usize, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
        let text = format!(
            "`{which:.80}` is used by {} that have not ended, {} that have not, and {}; cancel or wait for those, and remove these",
            count(tasks, "task"),
            count(flows, "flow"),
            count(triggers, "trigger")
        );
        Some(Failure::new(Code::InvalidRequest, text))
    }

    /// Functions are not there any more, from now on.
    fn drop_functions(&mut self, functions: &[FunctionId]) -> Vec<Arc<FunctionRecord>> {
        let gone = functions.iter().filter_map(|id| {
            self.codes.remove(*id);
            self.uses.0.remove(id);
            self.functions.remove(id)
        });
        gone.collect()
    }
}

impl Tasks {
    /// A function that was registered.
    pub(super) fn function(&self, id: FunctionId) -> Option<Arc<FunctionRecord>> {
        self.state().functions.get(&id).cloned()
    }

    /// Every function.
    pub fn functions(&self) -> Vec<Arc<FunctionRecord>> {
        self.state().functions.values().cloned().collect()
    }

    /// A function's code.
    pub async fn code(&self, id: FunctionId) -> Result<Blob, Failure> {
        if let Some(code) = self.state().codes.get(id) {
            return Ok(code);
        }
        let code = self.store.code(id).wait().await?;
        let code = code.ok_or_else(|| Failure::new(Code::NotFound, format!("there is no function {id}")))?;
        self.state().codes.insert(id, code.clone());
        Ok(code)
    }

    /// Forgets functions that no task, trigger or flow needs: one version by its id, or all of the caller's that have a name.
    /// Answers which they were, the last version last.
    pub async fn remove_function(
        self: &Arc<Self>,
        by: TenantId,
        may_remove_any: bool,
        which: String,
    ) -> Result<Vec<Arc<FunctionRecord>>, Failure> {
        let tasks = Arc::clone(self);
        to_its_end(async move { tasks.remove_this_function(by, may_remove_any, &which).await }).await
    }

    async fn remove_this_function(
        &self,
        by: TenantId,
        may_remove_any: bool,
        which: &str,
    ) -> Result<Vec<Arc<FunctionRecord>>, Failure> {
        let _changing = self.changing_functions.write().await;
        // Operators remove anybody's, by its id.
        let anybodys = which.parse().ok().filter(|_| may_remove_any);
        let found = match anybodys.and_then(|id| self.function(id)) {
            Some(function) => vec![function],
            None => self.own_functions_named(by, which)?,
        };
        let (gone, removed) = {
            let mut state = self.state();
            if let Some(failure) = state.needed(which, &found) {
                return Err(failure);
            }
            let ids: Vec<FunctionId> = found.iter().map(|function| function.id).collect();
            // First of all from memory, so that nothing is accepted for them meanwhile.
            state.drop_functions(&ids);
            (found, self.store.remove_functions(ids))
        };
        if let Err(error) = removed.wait().await {
            let mut state = self.state();
            let back = gone.into_iter().map(|function| (function.id, function));
            state.functions.extend(back);
            return Err(error.into());
        }
        Ok(gone)
    }

    /// All tasks in the books were looked at: functions go that none of them names.
    pub(super) async fn forget_unused_functions(&self, walk: TaskScan) {
        let _changing = self.changing_functions.write().await;
        let (gone, removed) = {
            let mut state = self.state();
            let unused = state.unused(&walk, cautious_ms());
            if unused.is_empty() {
                return;
            }
            (state.drop_functions(&unused), self.store.remove_functions(unused))
        };
        match removed.wait().await {
            Ok(()) => tracing::info!(
                count = gone.len(),
                "functions that nobody has used for long are forgotten"
            ),
            // A later walk tries again.
            Err(_) => self
                .state()
                .functions
                .extend(gone.into_iter().map(|function| (function.id, function))),
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
            state.functions.insert(record.id, Arc::new(record));
        }
        state
    }

    #[test]
    fn unnamed_functions_go_when_nothing_names_them_and_nobody_used_them_for_a_month() {
        let now_ms = 100 * DAY_MS;
        let mut state = state([
            (1, None, 0),
            (2, Some("f"), 0),
            (3, None, now_ms - DAY_MS),
            (4, None, 0),
            (5, None, 0),
        ]);
        let id = |id: u8| FunctionId([id; 16]);
        state.uses.note(id(5), now_ms - DAY_MS);
        let mut walk = TaskScan::new(now_ms - 1);
        let first = Passed {
            next: Some(TaskId([1; 16])),
            functions: vec![id(4)],
            ..Passed::default()
        };
        let (next, whole) = walk.passed(first, now_ms);
        assert!(next.is_some() && whole.is_none());
        let (_, whole) = walk.passed(Passed::default(), now_ms);
        let whole = whole.expect("all of it");
        assert_eq!(state.unused(&whole, now_ms), [id(1)]);
        assert!(walk.named.is_empty() && walk.begun_at_ms == now_ms);
        // Just started, nothing is known of what clients are about to use.
        state.started_at_ms = now_ms - 1;
        assert_eq!(state.unused(&whole, now_ms), []);
    }
}
