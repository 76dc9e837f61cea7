//! Memoization: of identical tasks, by function and arguments, one is executed and the others get its result.
//!
//! Only successful results are kept, in memory and up to a bound. The store has the key of each memoized task, so a
//! restarted manager reads the last results, and knows which waiting tasks are identical. A tenant never gets another
//! tenant's results: that tenant's endpoint can return anything.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use dayfly_protocol::api::Runtime;
use dayfly_protocol::contents::Payload;
use dayfly_protocol::executor::Form;
use dayfly_protocol::ids::TaskId;
use dayfly_store::system::{cautious_ms, since_boot_ms};
use dayfly_store::tasks::{FunctionRecord, Memoized, TaskSpec};
use dayfly_store::{LOAD_DEADLINE, StoreError};
use sha2::{Digest, Sha256};

use crate::Tasks;
use crate::live_tasks::Stage;
use crate::state::State;

/// Maximum size of the kept results, and the overhead of one entry.
const MAX_BYTES: usize = 64 << 20;
const ENTRY_BYTES: usize = 160;
/// Number and bytes of the results that are read at a start.
const MAX_READ: u32 = 100_000;
const MAX_BYTES_READ: u64 = 32 << 20;

/// Equal for tasks that have the same result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(pub [u8; 32]);

/// The hash of what a function computes: its code and its environment, without its name, its description and the
/// machine that registered it.
pub fn computation_hash(function: &FunctionRecord) -> [u8; 32] {
    let spec = &function.spec;
    let form = match &spec.form {
        Form::Python {
            python, cloudpickle, ..
        } => Form::Python {
            python: python.clone(),
            cloudpickle: cloudpickle.clone(),
            name: String::new(),
        },
        Form::EntryPoint { .. } => Form::EntryPoint { name: String::new() },
        other => other.clone(),
    };
    let runtime = match &spec.runtime {
        Runtime::Native => Runtime::Native,
        Runtime::Python {
            version,
            cloudpickle,
            environment,
            ..
        } => Runtime::Python {
            version: version.clone(),
            cloudpickle: cloudpickle.clone(),
            // Paths of the machine that registered it.
            executable: None,
            path: Vec::new(),
            environment: environment.clone(),
            // The function's own code has it.
            code: None,
        },
    };
    // Each rank returns a result.
    let about = serde_json::to_vec(&(form, runtime, &spec.image, spec.resources.ranks)).unwrap_or_default();
    Sha256::new()
        .chain_update(function.hash.0)
        .chain_update(about)
        .finalize()
        .into()
}

impl Key {
    /// The key of a call: its tenant, the hash of the computation, its arguments, and the tasks whose results it is
    /// given.
    pub fn of(computes: [u8; 32], task: &TaskSpec, arguments: &Payload) -> Self {
        let mut hash = Sha256::new();
        hash.update(task.tenant.0);
        hash.update(computes);
        match arguments {
            Payload::Inline(bytes) => hash.update(blake3::hash(bytes).as_bytes()),
            Payload::Stored(content) => hash.update(content.hash.0),
        }
        for before in task.after.iter().filter(|_| task.with_answers) {
            hash.update(before.0);
        }
        Self(hash.finalize().into())
    }
}

/// State of a key.
#[derive(Debug)]
enum Known {
    /// One task is executed, and these wait for its result.
    Running(Vec<TaskId>),
    Result(KnownResult),
}

/// A result, and until when its content certainly exists, in milliseconds since boot. The content store keeps it for as
/// long as a task refers to it.
#[derive(Debug)]
struct KnownResult {
    result: Payload,
    until_ms: u64,
}

impl KnownResult {
    /// The result of a task that ended `age_ms` ago.
    fn new(result: Payload, retention_ms: u64, age_ms: u64, now_ms: u64) -> Self {
        let until_ms = match result.content() {
            Some(_) => now_ms + (retention_ms / 10 * 9).saturating_sub(age_ms),
            None => u64::MAX,
        };
        Self { result, until_ms }
    }
}

/// What a memoized task is to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Reuse {
    /// Run: no identical task runs.
    Execute,
    /// Wait for the identical task that runs.
    Follow,
    /// End with this result.
    Finish(Payload),
}

/// The kept results, and the tasks that wait for one.
#[derive(Debug, Default)]
pub struct Memo {
    known: HashMap<Key, Known>,
    /// Keys with results, the oldest first.
    order: VecDeque<Key>,
    bytes: usize,
}

impl Memo {
    /// Decides about a task that is ready.
    pub fn decide(&mut self, key: Key, task: TaskId, now_ms: u64) -> Reuse {
        if let Some(Known::Result(kept)) = self.known.get(&key)
            && kept.until_ms <= now_ms
        {
            self.remove(key);
        }
        match self.known.get_mut(&key) {
            None => {
                self.known.insert(key, Known::Running(Vec::new()));
                Reuse::Execute
            }
            Some(Known::Running(followers)) => {
                followers.push(task);
                Reuse::Follow
            }
            Some(Known::Result(kept)) => Reuse::Finish(kept.result.clone()),
        }
    }

    /// A task was sent before the start of this manager. Returns whether others may wait for its result.
    fn lead(&mut self, key: Key) -> bool {
        match self.known.entry(key) {
            Entry::Vacant(place) => {
                place.insert(Known::Running(Vec::new()));
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// The executed task succeeded. Returns the tasks that wait for its result.
    pub fn finish(&mut self, key: Key, result: &Payload, retention_ms: u64, now_ms: u64) -> Vec<TaskId> {
        let known = Known::Result(KnownResult::new(result.clone(), retention_ms, 0, now_ms));
        let followers = match self.known.insert(key, known) {
            Some(Known::Running(followers)) => followers,
            Some(Known::Result(earlier)) => {
                // Two identical tasks were sent before a start.
                self.bytes += result.inline_bytes();
                self.bytes -= earlier.result.inline_bytes();
                return Vec::new();
            }
            None => Vec::new(),
        };
        self.order.push_back(key);
        self.bytes += result.inline_bytes() + ENTRY_BYTES;
        while self.bytes > MAX_BYTES
            && let Some(oldest) = self.order.pop_front()
        {
            if let Some(Known::Result(kept)) = self.known.remove(&oldest) {
                self.bytes -= kept.result.inline_bytes() + ENTRY_BYTES;
            }
        }
        followers
    }

    /// Adds a result from the store that is older than all known ones.
    fn restore(&mut self, key: Key, kept: KnownResult) {
        let bytes = kept.result.inline_bytes() + ENTRY_BYTES;
        if self.bytes + bytes <= MAX_BYTES
            && let Entry::Vacant(place) = self.known.entry(key)
        {
            place.insert(Known::Result(kept));
            self.order.push_front(key);
            self.bytes += bytes;
        }
    }

    /// Removes a result.
    pub fn remove(&mut self, key: Key) {
        if let Some(Known::Result(kept)) = self.known.get(&key) {
            self.bytes -= kept.result.inline_bytes() + ENTRY_BYTES;
            self.known.remove(&key);
            self.order.retain(|other| *other != key);
        }
    }

    /// The executed task failed. Returns the tasks that waited for its result.
    pub fn fail(&mut self, key: Key) -> Vec<TaskId> {
        match self.known.remove(&key) {
            Some(Known::Running(followers)) => followers,
            Some(kept @ Known::Result(_)) => {
                self.known.insert(key, kept);
                Vec::new()
            }
            None => Vec::new(),
        }
    }
}

impl Tasks {
    /// Reads the last results from the store.
    pub(super) async fn load_memo(&self) -> Result<(), StoreError> {
        let now_ms = cautious_ms();
        let since_ms = now_ms.saturating_sub(self.retention_ms());
        let found = self.store.memoized(since_ms, MAX_READ, MAX_BYTES_READ);
        let found = found.within(LOAD_DEADLINE).await?;
        let since_boot_ms = since_boot_ms();
        let memo = &mut self.state().memo;
        for Memoized {
            memo: key,
            answer: result,
            ended_at_ms,
        } in found
        {
            let age_ms = now_ms.saturating_sub(ended_at_ms);
            memo.restore(
                Key(key),
                KnownResult::new(result, self.retention_ms(), age_ms, since_boot_ms),
            );
        }
        Ok(())
    }

    /// At a start: identical tasks wait for one that was sent before, or for the first of them.
    pub(super) fn enqueue_memoized(&self) {
        let mut state = self.state();
        let State { tasks, memo, .. } = &mut *state;
        let mut waiting = Vec::new();
        for (task, live) in tasks.iter_mut() {
            let Some(key) = live.memo() else { continue };
            let dependencies = live.dependencies();
            let is_ready = !dependencies.is_awaited() && dependencies.failure().is_none();
            if live.is_out() {
                live.set_leader(memo.lead(key));
            } else if live.stage() == Stage::Depending && is_ready {
                waiting.push(task);
            }
        }
        waiting.sort_unstable();
        let known: Vec<_> = waiting.into_iter().filter_map(|task| state.enqueue(task)).collect();
        self.end(&mut state, known, None);
    }
}

#[cfg(test)]
mod tests {
    use dayfly_protocol::contents::Content;
    use dayfly_protocol::ids::ContentHash;
    use dayfly_store::conformance::tasks::{function, task as new_task};

    use super::*;

    const NOW: u64 = 1_000_000;
    const RETENTION_MS: u64 = 7 * 24 * 3_600_000;

    fn task(n: u8) -> TaskId {
        TaskId([n; 16])
    }

    #[test]
    fn identical_tasks_follow_first_and_get_its_result() {
        let (mut memo, key, result) = (Memo::default(), Key([1; 32]), Payload::Inline(vec![42].into()));
        assert_eq!(memo.decide(key, task(1), NOW), Reuse::Execute);
        assert_eq!(memo.decide(key, task(2), NOW), Reuse::Follow);
        assert_eq!(memo.decide(Key([2; 32]), task(3), NOW), Reuse::Execute);
        assert_eq!(memo.finish(key, &result, RETENTION_MS, NOW), [task(2)]);
        assert_eq!(memo.decide(key, task(4), NOW), Reuse::Finish(result));
    }

    #[test]
    fn failure_is_not_shared_with_followers() {
        let (mut memo, key) = (Memo::default(), Key([1; 32]));
        memo.decide(key, task(1), NOW);
        memo.decide(key, task(2), NOW);
        assert_eq!(memo.fail(key), [task(2)]);
        assert_eq!(memo.decide(key, task(2), NOW), Reuse::Execute);
    }

    #[test]
    fn oldest_results_are_evicted_beyond_the_bound() {
        let mut memo = Memo::default();
        let large = Payload::Inline(vec![0; MAX_BYTES / 4].into());
        for n in 0..5 {
            memo.decide(Key([n; 32]), task(n), NOW);
            memo.finish(Key([n; 32]), &large, RETENTION_MS, NOW);
        }
        assert_eq!(memo.decide(Key([0; 32]), task(9), NOW), Reuse::Execute);
        assert_eq!(memo.decide(Key([4; 32]), task(9), NOW), Reuse::Finish(large));
        assert!(memo.bytes <= MAX_BYTES);
    }

    #[test]
    fn stored_result_is_reused_only_within_its_retention() {
        let (mut memo, key) = (Memo::default(), Key([1; 32]));
        let result = Payload::Stored(Content {
            hash: ContentHash([7; 32]),
            bytes: 1 << 30,
        });
        memo.decide(key, task(1), NOW);
        memo.finish(key, &result, RETENTION_MS, NOW);
        let day = 24 * 3_600_000;
        assert_eq!(memo.decide(key, task(2), NOW + 5 * day), Reuse::Finish(result));
        assert_eq!(memo.decide(key, task(3), NOW + 7 * day), Reuse::Execute);
        assert_eq!(memo.decide(key, task(4), NOW + 7 * day), Reuse::Follow);
        assert_eq!(memo.bytes, 0);
    }

    #[test]
    fn restored_result_expires_and_can_be_removed() {
        let mut memo = Memo::default();
        let day = 24 * 3_600_000;
        let stored = Payload::Stored(Content {
            hash: ContentHash([7; 32]),
            bytes: 1 << 30,
        });
        // The task ended before the machine was booted.
        memo.restore(
            Key([1; 32]),
            KnownResult::new(stored.clone(), RETENTION_MS, 5 * day, NOW),
        );
        let here = Payload::Inline(vec![42].into());
        memo.restore(Key([2; 32]), KnownResult::new(here.clone(), RETENTION_MS, 6 * day, NOW));
        memo.restore(
            Key([2; 32]),
            KnownResult::new(stored.clone(), RETENTION_MS, 6 * day, NOW),
        );
        assert_eq!(memo.decide(Key([1; 32]), task(1), NOW + day), Reuse::Finish(stored));
        assert_eq!(memo.decide(Key([2; 32]), task(2), NOW + day), Reuse::Finish(here));
        assert_eq!(memo.decide(Key([1; 32]), task(3), NOW + 2 * day), Reuse::Execute);
        memo.remove(Key([1; 32]));
        assert_eq!(memo.decide(Key([1; 32]), task(4), NOW + 2 * day), Reuse::Follow);
        memo.remove(Key([2; 32]));
        assert_eq!(memo.decide(Key([2; 32]), task(5), NOW + day), Reuse::Execute);
        assert_eq!((memo.bytes, memo.order.len()), (0, 0));
    }

    #[test]
    fn key_depends_on_computation_but_not_on_name() {
        let python = |executable: Option<&str>, version: &str| Runtime::Python {
            version: version.into(),
            cloudpickle: "3.1".into(),
            executable: executable.map(str::to_owned),
            path: executable.map(str::to_owned).into_iter().collect(),
            environment: None,
            code: None,
        };
        let mut one = function(1, "one");
        one.spec.runtime = python(Some("/opt/ann/bin/python"), "3.12.1");
        let mut other = function(2, "other");
        other.spec.runtime = python(None, "3.12.1");
        (other.spec.description, other.spec.source, other.version) = ("better".into(), "def f".into(), 7);
        let (new, arguments) = (new_task(1, "a").spec, Payload::Inline(vec![1].into()));
        let key = |function: &FunctionRecord, spec: &TaskSpec| Key::of(computation_hash(function), spec, &arguments);
        let same = key(&one, &new);
        assert_eq!(
            same,
            key(
                &other,
                &TaskSpec {
                    tag: "b".into(),
                    ..new.clone()
                }
            )
        );
        assert_ne!(same, Key::of(computation_hash(&one), &new, &Payload::default()));
        let others = TaskSpec {
            tenant: dayfly_protocol::ids::TenantId([9; 16]),
            ..new.clone()
        };
        assert_ne!(same, key(&one, &others));
        other.spec.runtime = python(None, "3.13.1");
        assert_ne!(same, key(&other, &new));
        one.spec.image = Some("debian".into());
        assert_ne!(same, key(&one, &new));
    }
}
