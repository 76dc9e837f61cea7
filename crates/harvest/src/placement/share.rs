//! The part of every node that one of several schedulers may use.

use crate::amount::Amount;

/// Which of how many schedulers this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    index: u32,
    count: u32,
}

/// Why there is no such shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there is no scheduler {index} among {count}; number them from 0, and have at least one")]
pub struct ShardError {
    index: u32,
    count: u32,
}

impl Shard {
    /// The only scheduler.
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    /// Scheduler `index` of `count`, counted from 0.
    pub fn new(index: u32, count: u32) -> Result<Self, ShardError> {
        if index < count {
            Ok(Self { index, count })
        } else {
            Err(ShardError { index, count })
        }
    }

    /// Number of this scheduler, from 0.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Its share of a node. The shares of all schedulers add up to the capacity: where it cannot be divided, the first
    /// ones have a unit more.
    pub fn of(&self, capacity: Amount) -> Amount {
        Amount::new(self.part(capacity.milli_cores), self.part(capacity.memory_bytes))
    }

    fn part(&self, units: u64) -> u64 {
        let (index, count) = (u64::from(self.index), u64::from(self.count));
        units / count + u64::from(index < units % count)
    }
}
