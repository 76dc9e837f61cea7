//! The limits of memory of one worker.
//!
//! Only a worker whose lease borrows memory has one: what it owns and what it borrowed. The limit is raised at once, its
//! sandbox's first. It falls as far as the kernel can reclaim, its sandbox's last.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use dayfly_protocol::node_api::End;
use dayfly_sandbox::cgroup::{Group, GroupError, MemoryKills, WorkerGroup};

/// Why a worker was killed for lack of memory.
#[derive(Debug, Clone)]
pub struct MemoryWatch {
    kills: MemoryKills,
    /// Whether the running call had more memory before.
    was_recalled: Arc<AtomicBool>,
}

impl MemoryWatch {
    /// The end of its process, if the kernel killed processes of it for lack of memory.
    pub fn end(&self) -> Option<End> {
        (self.kills.count() > 0).then(|| match self.was_recalled.load(Ordering::Relaxed) {
            true => End::MemoryReturned,
            false => End::OutOfMemory,
        })
    }
}

/// The limits of memory of one worker. All amounts are bytes.
#[derive(Debug)]
pub(super) struct MemoryLimits {
    owned: u64,
    sandbox: Option<Weak<Group>>,
    /// Of its group, as far as the kernel could lower it. `None` without one.
    limit: Option<u64>,
    /// What `limit` is to be.
    target: u64,
    /// What its sandbox still has of what it borrowed, beyond `limit`: other workers of the sandbox hold it.
    left_in_sandbox: u64,
    watch: MemoryWatch,
    /// Kills that were reported.
    known_kills: u64,
}

impl MemoryLimits {
    /// Of a worker without a limit.
    pub fn new(group: &WorkerGroup, sandbox: Option<Weak<Group>>, owned: u64) -> Result<Self, GroupError> {
        Ok(Self {
            owned,
            sandbox,
            limit: None,
            target: owned,
            left_in_sandbox: 0,
            watch: MemoryWatch {
                kills: group.memory_kills()?,
                was_recalled: Arc::default(),
            },
            known_kills: 0,
        })
    }

    /// Finds out why its process was killed.
    pub fn watch(&self) -> MemoryWatch {
        self.watch.clone()
    }

    /// Records that no call runs which could have had more memory before.
    pub fn forget_recall(&self) {
        self.watch.was_recalled.store(false, Ordering::Relaxed);
    }

    /// Whether processes were killed for lack of memory since this was asked last.
    pub fn was_killed(&mut self) -> bool {
        let known = self.known_kills;
        // The counter of a group that is gone is 0.
        self.known_kills = self.watch.kills.count().max(known);
        self.known_kills > known
    }

    /// What it borrowed, or still holds of it.
    pub fn borrowed(&self) -> u64 {
        let borrowed = self.limit.unwrap_or(0).saturating_sub(self.owned);
        borrowed.saturating_add(self.left_in_sandbox)
    }

    /// What it may use now: more than it should while it has not returned what it borrowed.
    pub fn held(&self) -> u64 {
        self.owned.saturating_add(self.borrowed())
    }

    /// Whether it has more than it should.
    pub fn is_returning(&self) -> bool {
        self.limit.is_some_and(|limit| limit > self.target) || self.left_in_sandbox > 0
    }

    /// What it owns.
    pub fn owned(&self) -> u64 {
        self.owned
    }

    /// Whether it has a limit.
    pub fn is_bound(&self) -> bool {
        self.limit.is_some()
    }

    /// Whether a change to this would raise its limit.
    pub fn would_rise(&self, bytes: u64) -> bool {
        self.limit.is_none_or(|limit| bytes > limit)
    }

    /// Whether its own processes hold more than they should.
    pub fn holds_too_much(&self) -> bool {
        self.limit.is_some_and(|limit| limit > self.target)
    }

    /// Limits it to what it owns, unless it has a limit. Returns an error, and changes nothing, if it holds more.
    pub fn bind(&mut self, group: &WorkerGroup) -> Result<(), GroupError> {
        if self.limit.is_none() {
            group.limit_memory(self.owned)?;
            (self.limit, self.target) = (Some(self.owned), self.owned);
        }
        Ok(())
    }

    /// Removes its limit. It has returned what it borrowed.
    pub fn free(&mut self, group: &WorkerGroup) -> Result<(), GroupError> {
        if self.limit.take().is_some() {
            group.limit_memory(0)?;
        }
        Ok(())
    }

    /// Changes its limit, which is at least what it owns. `others` is what other workers of its lease borrowed.
    pub fn set(&mut self, group: &WorkerGroup, bytes: u64, others: u64) -> Result<(), GroupError> {
        let bytes = bytes.max(self.owned);
        if self.limit.is_some_and(|limit| bytes <= limit) {
            if bytes < self.target {
                self.watch.was_recalled.store(true, Ordering::Relaxed);
            }
            self.target = bytes;
            return self.lower(group, others);
        }
        let borrowed = bytes - self.owned;
        self.lend_to_sandbox(others.saturating_add(borrowed))?;
        if let Err(error) = group.limit_memory(bytes) {
            let before = self.limit.unwrap_or(self.owned).saturating_sub(self.owned);
            let _ = self.lend_to_sandbox(others.saturating_add(before));
            return Err(error);
        }
        (self.limit, self.target, self.left_in_sandbox) = (Some(bytes), bytes, 0);
        Ok(())
    }

    /// Lowers its limit as far as the kernel can reclaim, then that of its sandbox, also if its own group is gone.
    pub fn lower(&mut self, group: &WorkerGroup, others: u64) -> Result<(), GroupError> {
        let lowered = group.shrink_memory(self.target);
        let due = match &lowered {
            Ok(limit) => {
                self.limit = Some(*limit);
                others.saturating_add(limit.saturating_sub(self.owned))
            }
            // Its processes still count as having the rest, until they are gone.
            Err(error) if error.is_vanished() => others,
            Err(_) => return lowered.map(drop),
        };
        self.left_in_sandbox = self.lend_to_sandbox(due)?.saturating_sub(due);
        lowered.map(drop)
    }

    /// Takes from its sandbox what no worker has, when it has left its group. Returns whether that is done.
    pub fn leave_sandbox(&self, others: u64) -> bool {
        !self.is_bound() || self.lend_to_sandbox(others).map_or(true, |left| left <= others)
    }

    /// Returns what its sandbox has then.
    fn lend_to_sandbox(&self, borrowed: u64) -> Result<u64, GroupError> {
        match self.sandbox.as_ref().and_then(Weak::upgrade) {
            Some(sandbox) => match sandbox.lend_memory(borrowed) {
                // It ends with all its workers.
                Err(error) if error.is_vanished() => Ok(borrowed),
                result => result,
            },
            None => Ok(borrowed),
        }
    }
}
