//! Tasks whose outcome is known already, by function and arguments: one is executed, the others have its answer.
//!
//! Only what ended well is remembered, in memory and up to a bound: a manager that is started again executes anew. A tenant's
//! tasks are answered by its own alone.

use std::collections::{HashMap, VecDeque};

use mayfly_protocol::blob::Blob;
use mayfly_protocol::ids::{TaskId, TenantId};
use sha2::{Digest, Sha256};

use crate::store::tasks::FunctionRecord;

/// Answers that are remembered: so many bytes, each with what keeping it takes.
const MOST_BYTES: usize = 64 << 20;
const EACH_BYTES: usize = 160;

/// What is the same for tasks that have the same answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key([u8; 32]);

impl Key {
    /// Of a tenant's call of a function: the id of a function says its code, its environment and what runs it.
    pub fn of(tenant: TenantId, function: &FunctionRecord, arguments: &Blob) -> Self {
        let mut hash = Sha256::new();
        hash.update(tenant.0);
        hash.update(function.id.0);
        hash.update(&arguments[..]);
        Self(hash.finalize().into())
    }
}

/// What is known of a key.
#[derive(Debug)]
enum Known {
    /// A task that is executed, and those that wait for its answer.
    Running(Vec<TaskId>),
    Answer(Blob),
}

/// What a task that may be answered from memory is to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn {
    /// Nobody else is at it.
    Execute,
    /// Wait for the one that is.
    Follow,
    /// It has its answer.
    Answered(Blob),
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
    pub fn comes(&mut self, key: Key, task: TaskId) -> Turn {
        match self.known.get_mut(&key) {
            None => {
                self.known.insert(key, Known::Running(Vec::new()));
                Turn::Execute
            }
            Some(Known::Running(followers)) => {
                followers.push(task);
                Turn::Follow
            }
            Some(Known::Answer(answer)) => Turn::Answered(answer.clone()),
        }
    }

    /// The task that was executed ended well: those that followed have its answer, too.
    pub fn answered(&mut self, key: Key, answer: &Blob) -> Vec<TaskId> {
        let Some(Known::Running(followers)) = self.known.insert(key, Known::Answer(answer.clone())) else {
            return Vec::new();
        };
        self.order.push_back(key);
        self.bytes += answer.len() + EACH_BYTES;
        while self.bytes > MOST_BYTES
            && let Some(oldest) = self.order.pop_front()
        {
            if let Some(Known::Answer(answer)) = self.known.remove(&oldest) {
                self.bytes -= answer.len() + EACH_BYTES;
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
    use super::*;

    fn task(n: u8) -> TaskId {
        TaskId([n; 16])
    }

    #[test]
    fn one_is_executed_those_that_come_meanwhile_follow_and_later_ones_have_the_answer() {
        let (mut memo, key, answer) = (Memo::default(), Key([1; 32]), Blob::from(vec![42]));
        assert_eq!(memo.comes(key, task(1)), Turn::Execute);
        assert_eq!(memo.comes(key, task(2)), Turn::Follow);
        assert_eq!(memo.comes(Key([2; 32]), task(3)), Turn::Execute);
        assert_eq!(memo.answered(key, &answer), [task(2)]);
        assert_eq!(memo.comes(key, task(4)), Turn::Answered(answer));
    }

    #[test]
    fn a_failure_is_nobody_elses() {
        let (mut memo, key) = (Memo::default(), Key([1; 32]));
        memo.comes(key, task(1));
        memo.comes(key, task(2));
        assert_eq!(memo.failed(key), [task(2)]);
        assert_eq!(memo.comes(key, task(2)), Turn::Execute);
    }

    #[test]
    fn the_oldest_answers_are_forgotten_when_there_are_too_many() {
        let mut memo = Memo::default();
        let large = Blob::from(vec![0; MOST_BYTES / 4]);
        for n in 0..5 {
            memo.comes(Key([n; 32]), task(n));
            memo.answered(Key([n; 32]), &large);
        }
        assert_eq!(memo.comes(Key([0; 32]), task(9)), Turn::Execute);
        assert_eq!(memo.comes(Key([4; 32]), task(9)), Turn::Answered(large));
        assert!(memo.bytes <= MOST_BYTES);
    }
}
