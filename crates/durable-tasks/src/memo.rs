//! Tasks whose outcome is known already, by function and arguments: one is executed, the others have its answer.
//!
//! Only what ended well is remembered, in memory and up to a bound. What may be answered so is written down with its key, so that a
//! manager that is started again reads the last answers, and knows which of the tasks that wait are the same. A tenant's tasks
//! are answered by its own alone: what others were answered may come from an endpoint that they have made answer what they like.

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
use crate::live_task::Stage;
use crate::state::State;

/// Answers that are remembered: so many bytes, each with what keeping it takes.
const MAX_BYTES: usize = 64 << 20;
const EACH_BYTES: usize = 160;
/// Answers that are read at a start: so many, and so many bytes.
const MAX_READ: u32 = 100_000;
const MAX_BYTES_READ: u64 = 32 << 20;

/// What is the same for tasks that have the same answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(pub [u8; 32]);

/// What answers depend on of a function: its code, and what that runs in, and not what it is called, described as or registered from.
pub fn computes(function: &FunctionRecord) -> [u8; 32] {
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
            // Paths of the machine that it was registered at.
            executable: None,
            path: Vec::new(),
            environment: environment.clone(),
            // It is in the function's own code.
            code: None,
        },
    };
    // Of ranks, each answers.
    let about = serde_json::to_vec(&(form, runtime, &spec.image, spec.resources.ranks)).unwrap_or_default();
    Sha256::new()
        .chain_update(function.hash.0)
        .chain_update(about)
        .finalize()
        .into()
}

impl Key {
    /// Of a tenant's call of a function, by what that [computes]. Answers of others that it is given are what their tasks are.
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

/// What is known of a key.
#[derive(Debug)]
enum Known {
    /// A task that is executed, and those that wait for its answer.
    Running(Vec<TaskId>),
    Answer(Answer),
}

/// An answer, and until when it is surely there, since the machine was booted. The content store keeps one for as long as a task
/// that has it.
#[derive(Debug)]
struct Answer {
    answer: Payload,
    until_ms: u64,
}

impl Answer {
    /// One whose task ended so long ago.
    fn new(answer: Payload, kept_ms: u64, age_ms: u64, now_ms: u64) -> Self {
        let until_ms = match answer.content() {
            Some(_) => now_ms + (kept_ms / 10 * 9).saturating_sub(age_ms),
            None => u64::MAX,
        };
        Self { answer, until_ms }
    }
}

/// What a task that may be answered from memory is to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nobody else is at it.
    Execute,
    /// Wait for the one that is.
    Follow,
    /// It has its answer.
    Answered(Payload),
}

/// Answers, and who waits for which.
#[derive(Debug, Default)]
pub struct Memo {
    known: HashMap<Key, Known>,
    /// Keys with answers, the oldest first.
    order: VecDeque<Key>,
    bytes: usize,
}

impl Memo {
    /// A task comes.
    pub fn comes(&mut self, key: Key, task: TaskId, now_ms: u64) -> Decision {
        if let Some(Known::Answer(answer)) = self.known.get(&key)
            && answer.until_ms <= now_ms
        {
            self.forget(key);
        }
        match self.known.get_mut(&key) {
            None => {
                self.known.insert(key, Known::Running(Vec::new()));
                Decision::Execute
            }
            Some(Known::Running(followers)) => {
                followers.push(task);
                Decision::Follow
            }
            Some(Known::Answer(answer)) => Decision::Answered(answer.answer.clone()),
        }
    }

    /// A task is executed already, from before a start; whether others may follow it.
    fn leads(&mut self, key: Key) -> bool {
        match self.known.entry(key) {
            Entry::Vacant(place) => {
                place.insert(Known::Running(Vec::new()));
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// The task that was executed ended well: those that followed have its answer, too.
    pub fn answered(&mut self, key: Key, answer: &Payload, kept_ms: u64, now_ms: u64) -> Vec<TaskId> {
        let known = Known::Answer(Answer::new(answer.clone(), kept_ms, 0, now_ms));
        let followers = match self.known.insert(key, known) {
            Some(Known::Running(followers)) => followers,
            Some(Known::Answer(earlier)) => {
                // Two that were executed before a start answered both.
                self.bytes += answer.inline_bytes();
                self.bytes -= earlier.answer.inline_bytes();
                return Vec::new();
            }
            None => Vec::new(),
        };
        self.order.push_back(key);
        self.bytes += answer.inline_bytes() + EACH_BYTES;
        while self.bytes > MAX_BYTES
            && let Some(oldest) = self.order.pop_front()
        {
            if let Some(Known::Answer(answer)) = self.known.remove(&oldest) {
                self.bytes -= answer.answer.inline_bytes() + EACH_BYTES;
            }
        }
        followers
    }

    /// An answer of an earlier life of the manager's, older than all that are known.
    fn recall(&mut self, key: Key, answer: Answer) {
        let bytes = answer.answer.inline_bytes() + EACH_BYTES;
        if self.bytes + bytes <= MAX_BYTES
            && let Entry::Vacant(place) = self.known.entry(key)
        {
            place.insert(Known::Answer(answer));
            self.order.push_front(key);
            self.bytes += bytes;
        }
    }

    /// An answer is not there any more.
    pub fn forget(&mut self, key: Key) {
        if let Some(Known::Answer(answer)) = self.known.get(&key) {
            self.bytes -= answer.answer.inline_bytes() + EACH_BYTES;
            self.known.remove(&key);
            self.order.retain(|other| *other != key);
        }
    }

    /// It did not: those that followed are to look anew.
    pub fn failed(&mut self, key: Key) -> Vec<TaskId> {
        match self.known.remove(&key) {
            Some(Known::Running(followers)) => followers,
            Some(answer @ Known::Answer(_)) => {
                self.known.insert(key, answer);
                Vec::new()
            }
            None => Vec::new(),
        }
    }
}

impl Tasks {
    /// Reads the last answers of an earlier life.
    pub(super) async fn recall(&self) -> Result<(), StoreError> {
        let now_ms = cautious_ms();
        let since_ms = now_ms.saturating_sub(self.kept_ms());
        let found = self.store.memoized(since_ms, MAX_READ, MAX_BYTES_READ);
        let found = found.within(LOAD_DEADLINE).await?;
        let since_boot_ms = since_boot_ms();
        let memo = &mut self.state().memo;
        for Memoized {
            memo: key,
            answer,
            ended_at_ms,
        } in found
        {
            let age_ms = now_ms.saturating_sub(ended_at_ms);
            memo.recall(Key(key), Answer::new(answer, self.kept_ms(), age_ms, since_boot_ms));
        }
        Ok(())
    }

    /// After a start: of those that may be answered so, some were sent already, and are followed by those that are the same; of those
    /// that wait, the first leads.
    pub(super) fn line_up_those_that_may_follow(&self) {
        let mut state = self.state();
        let State { live, memo, .. } = &mut *state;
        let mut waiting = Vec::new();
        for (task, live) in live.iter_mut() {
            let Some(key) = live.memo else { continue };
            if live.is_out() {
                live.leads = memo.leads(key);
            } else if live.place == Stage::Depending && !live.before.is_awaited() && live.before.failure().is_none() {
                waiting.push(*task);
            }
        }
        waiting.sort_unstable();
        let answered: Vec<_> = waiting.into_iter().filter_map(|task| state.line_up(task)).collect();
        self.end(&mut state, answered, None);
    }
}

#[cfg(test)]
mod tests {
    use dayfly_protocol::contents::Content;
    use dayfly_protocol::ids::ContentHash;
    use dayfly_store::conformance::tasks::{function, task as new_task};

    use super::*;

    const NOW: u64 = 1_000_000;
    const KEPT_MS: u64 = 7 * 24 * 3_600_000;

    fn task(n: u8) -> TaskId {
        TaskId([n; 16])
    }

    #[test]
    fn one_is_executed_those_that_come_meanwhile_follow_and_later_ones_have_the_answer() {
        let (mut memo, key, answer) = (Memo::default(), Key([1; 32]), Payload::Inline(vec![42].into()));
        assert_eq!(memo.comes(key, task(1), NOW), Decision::Execute);
        assert_eq!(memo.comes(key, task(2), NOW), Decision::Follow);
        assert_eq!(memo.comes(Key([2; 32]), task(3), NOW), Decision::Execute);
        assert_eq!(memo.answered(key, &answer, KEPT_MS, NOW), [task(2)]);
        assert_eq!(memo.comes(key, task(4), NOW), Decision::Answered(answer));
    }

    #[test]
    fn a_failure_is_nobody_elses() {
        let (mut memo, key) = (Memo::default(), Key([1; 32]));
        memo.comes(key, task(1), NOW);
        memo.comes(key, task(2), NOW);
        assert_eq!(memo.failed(key), [task(2)]);
        assert_eq!(memo.comes(key, task(2), NOW), Decision::Execute);
    }

    #[test]
    fn the_oldest_answers_are_forgotten_when_there_are_too_many() {
        let mut memo = Memo::default();
        let large = Payload::Inline(vec![0; MAX_BYTES / 4].into());
        for n in 0..5 {
            memo.comes(Key([n; 32]), task(n), NOW);
            memo.answered(Key([n; 32]), &large, KEPT_MS, NOW);
        }
        assert_eq!(memo.comes(Key([0; 32]), task(9), NOW), Decision::Execute);
        assert_eq!(memo.comes(Key([4; 32]), task(9), NOW), Decision::Answered(large));
        assert!(memo.bytes <= MAX_BYTES);
    }

    #[test]
    fn an_answer_in_the_content_store_is_given_for_as_long_as_it_is_surely_there() {
        let (mut memo, key) = (Memo::default(), Key([1; 32]));
        let answer = Payload::Stored(Content {
            hash: ContentHash([7; 32]),
            bytes: 1 << 30,
        });
        memo.comes(key, task(1), NOW);
        memo.answered(key, &answer, KEPT_MS, NOW);
        let day = 24 * 3_600_000;
        assert_eq!(memo.comes(key, task(2), NOW + 5 * day), Decision::Answered(answer));
        assert_eq!(memo.comes(key, task(3), NOW + 7 * day), Decision::Execute);
        assert_eq!(memo.comes(key, task(4), NOW + 7 * day), Decision::Follow);
        assert_eq!(memo.bytes, 0);
    }

    #[test]
    fn what_is_read_at_a_start_is_there_for_as_long_as_it_is_surely_there_and_can_be_forgotten() {
        let mut memo = Memo::default();
        let day = 24 * 3_600_000;
        let stored = Payload::Stored(Content {
            hash: ContentHash([7; 32]),
            bytes: 1 << 30,
        });
        // The machine was booted after the task had ended.
        memo.recall(Key([1; 32]), Answer::new(stored.clone(), KEPT_MS, 5 * day, NOW));
        let here = Payload::Inline(vec![42].into());
        memo.recall(Key([2; 32]), Answer::new(here.clone(), KEPT_MS, 6 * day, NOW));
        memo.recall(Key([2; 32]), Answer::new(stored.clone(), KEPT_MS, 6 * day, NOW));
        assert_eq!(memo.comes(Key([1; 32]), task(1), NOW + day), Decision::Answered(stored));
        assert_eq!(memo.comes(Key([2; 32]), task(2), NOW + day), Decision::Answered(here));
        assert_eq!(memo.comes(Key([1; 32]), task(3), NOW + 2 * day), Decision::Execute);
        memo.forget(Key([1; 32]));
        assert_eq!(memo.comes(Key([1; 32]), task(4), NOW + 2 * day), Decision::Follow);
        memo.forget(Key([2; 32]));
        assert_eq!(memo.comes(Key([2; 32]), task(5), NOW + day), Decision::Execute);
        assert_eq!((memo.bytes, memo.order.len()), (0, 0));
    }

    #[test]
    fn a_key_says_what_is_computed_and_not_what_that_is_called_or_where_it_was_registered() {
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
        let key = |function: &FunctionRecord, spec: &TaskSpec| Key::of(computes(function), spec, &arguments);
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
        assert_ne!(same, Key::of(computes(&one), &new, &Payload::default()));
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
