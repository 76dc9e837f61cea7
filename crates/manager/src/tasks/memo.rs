//! Tasks whose outcome is known already, by function and arguments: one is executed, the others have its answer.
//!
//! Only what ended well is remembered, in memory and up to a bound: a manager that is started again executes anew. A tenant's
//! tasks are answered by its own alone.

use std::collections::{HashMap, VecDeque};

use mayfly_protocol::contents::Payload;
use mayfly_protocol::ids::TaskId;
use sha2::{Digest, Sha256};

use super::KEPT;
use crate::store::tasks::{FunctionRecord, TaskSpec};

/// Answers that are remembered: so many bytes, each with what keeping it takes.
const MOST_BYTES: usize = 64 << 20;
const EACH_BYTES: usize = 160;

/// What is the same for tasks that have the same answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key([u8; 32]);

impl Key {
    /// Of a tenant's call of a function: the id of a function says its code, its environment and what runs it. Answers of
    /// others that it is given are what their tasks are.
    pub fn of(function: &FunctionRecord, task: &TaskSpec, arguments: &Payload) -> Self {
        let mut hash = Sha256::new();
        hash.update(task.tenant.0);
        hash.update(function.id.0);
        match arguments {
            Payload::Here(bytes) => hash.update(blake3::hash(bytes).as_bytes()),
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

/// An answer, and when it came, since the machine was booted.
#[derive(Debug)]
struct Answer {
    answer: Payload,
    at_ms: u64,
}

impl Answer {
    /// Whether it is there for a task that comes now. The content store keeps one for as long as a task that has it.
    fn is_there(&self, now_ms: u64) -> bool {
        let age_ms = u128::from(now_ms.saturating_sub(self.at_ms));
        self.answer.content().is_none() || age_ms < KEPT.as_millis() * 9 / 10
    }
}

/// What a task that may be answered from memory is to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn {
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
    pub fn comes(&mut self, key: Key, task: TaskId, now_ms: u64) -> Turn {
        if let Some(Known::Answer(answer)) = self.known.get(&key)
            && !answer.is_there(now_ms)
        {
            let bytes = answer.answer.bytes_here();
            self.known.remove(&key);
            self.order.retain(|other| *other != key);
            self.bytes -= bytes + EACH_BYTES;
        }
        match self.known.get_mut(&key) {
            None => {
                self.known.insert(key, Known::Running(Vec::new()));
                Turn::Execute
            }
            Some(Known::Running(followers)) => {
                followers.push(task);
                Turn::Follow
            }
            Some(Known::Answer(answer)) => Turn::Answered(answer.answer.clone()),
        }
    }

    /// The task that was executed ended well: those that followed have its answer, too.
    pub fn answered(&mut self, key: Key, answer: &Payload, at_ms: u64) -> Vec<TaskId> {
        let known = Known::Answer(Answer {
            answer: answer.clone(),
            at_ms,
        });
        let Some(Known::Running(followers)) = self.known.insert(key, known) else {
            return Vec::new();
        };
        self.order.push_back(key);
        self.bytes += answer.bytes_here() + EACH_BYTES;
        while self.bytes > MOST_BYTES
            && let Some(oldest) = self.order.pop_front()
        {
            if let Some(Known::Answer(answer)) = self.known.remove(&oldest) {
                self.bytes -= answer.answer.bytes_here() + EACH_BYTES;
            }
        }
        followers
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

#[cfg(test)]
mod tests {
    use mayfly_protocol::contents::Content;
    use mayfly_protocol::ids::ContentHash;

    use super::*;

    const NOW: u64 = 1_000_000;

    fn task(n: u8) -> TaskId {
        TaskId([n; 16])
    }

    #[test]
    fn one_is_executed_those_that_come_meanwhile_follow_and_later_ones_have_the_answer() {
        let (mut memo, key, answer) = (Memo::default(), Key([1; 32]), Payload::Here(vec![42].into()));
        assert_eq!(memo.comes(key, task(1), NOW), Turn::Execute);
        assert_eq!(memo.comes(key, task(2), NOW), Turn::Follow);
        assert_eq!(memo.comes(Key([2; 32]), task(3), NOW), Turn::Execute);
        assert_eq!(memo.answered(key, &answer, NOW), [task(2)]);
        assert_eq!(memo.comes(key, task(4), NOW), Turn::Answered(answer));
    }

    #[test]
    fn a_failure_is_nobody_elses() {
        let (mut memo, key) = (Memo::default(), Key([1; 32]));
        memo.comes(key, task(1), NOW);
        memo.comes(key, task(2), NOW);
        assert_eq!(memo.failed(key), [task(2)]);
        assert_eq!(memo.comes(key, task(2), NOW), Turn::Execute);
    }

    #[test]
    fn the_oldest_answers_are_forgotten_when_there_are_too_many() {
        let mut memo = Memo::default();
        let large = Payload::Here(vec![0; MOST_BYTES / 4].into());
        for n in 0..5 {
            memo.comes(Key([n; 32]), task(n), NOW);
            memo.answered(Key([n; 32]), &large, NOW);
        }
        assert_eq!(memo.comes(Key([0; 32]), task(9), NOW), Turn::Execute);
        assert_eq!(memo.comes(Key([4; 32]), task(9), NOW), Turn::Answered(large));
        assert!(memo.bytes <= MOST_BYTES);
    }

    #[test]
    fn an_answer_in_the_content_store_is_given_for_as_long_as_it_is_surely_there() {
        let (mut memo, key) = (Memo::default(), Key([1; 32]));
        let answer = Payload::Stored(Content {
            hash: ContentHash([7; 32]),
            bytes: 1 << 30,
        });
        memo.comes(key, task(1), NOW);
        memo.answered(key, &answer, NOW);
        let day = 24 * 3_600_000;
        assert_eq!(memo.comes(key, task(2), NOW + 5 * day), Turn::Answered(answer));
        assert_eq!(memo.comes(key, task(3), NOW + 7 * day), Turn::Execute);
        assert_eq!(memo.comes(key, task(4), NOW + 7 * day), Turn::Follow);
        assert_eq!(memo.bytes, 0);
    }
}
