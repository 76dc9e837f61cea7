//! The lost ranks of a group.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dayfly_protocol::error::{Code, Failure};

use crate::wake::Wake;

/// Lost ranks of a group, with reasons. The watching thread adds them; operations check before they wait.
#[derive(Debug, Default)]
pub struct LostRanks {
    /// Incremented with every loss, so that a check costs one load.
    count: AtomicU64,
    ranks: Mutex<Vec<(u32, String)>>,
    /// Ranks whose processes are gone.
    gone: Mutex<Vec<u32>>,
    /// The thread to wake for a loss.
    watcher: Mutex<Option<Arc<Wake>>>,
}

impl LostRanks {
    fn ranks(&self) -> MutexGuard<'_, Vec<(u32, String)>> {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks a rank as lost. Only the first reason is kept.
    pub fn add(&self, rank: u32, reason: impl Into<String>) {
        let mut ranks = self.ranks();
        if ranks.iter().all(|(known, _)| *known != rank) {
            ranks.push((rank, reason.into()));
            self.count.fetch_add(1, Ordering::Release);
            if let Some(watcher) = &*self.watcher.lock().unwrap_or_else(PoisonError::into_inner) {
                watcher.wake();
            }
        }
    }

    /// Sets the thread to wake for a loss.
    pub(crate) fn watch(&self, watcher: Option<Arc<Wake>>) {
        *self.watcher.lock().unwrap_or_else(PoisonError::into_inner) = watcher;
    }

    /// Marks a rank as lost whose process is gone, so that it receives no more messages.
    pub fn add_gone(&self, rank: u32, reason: impl Into<String>) {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner).push(rank);
        self.add(rank, reason);
    }

    /// Whether this rank's process is gone.
    pub fn is_gone(&self, rank: u32) -> bool {
        let gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        gone.contains(&rank)
    }

    /// Number of lost ranks.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// The lost ranks, in the order of their detection.
    pub fn all(&self) -> Vec<(u32, String)> {
        self.ranks().clone()
    }

    /// Returns the error of an operation that needs this rank, if the rank is lost.
    pub fn check(&self, rank: u32) -> Result<(), Failure> {
        if self.count() == 0 {
            return Ok(());
        }
        match self.ranks().iter().find(|(lost, _)| *lost == rank) {
            Some((_, reason)) => Err(Failure::new(
                Code::RankLost,
                format!("rank {rank} is lost: {reason}; go on without it (shrink), or run again"),
            )),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_rank_keeps_its_first_reason() {
        let lost = LostRanks::default();
        assert!(lost.check(3).is_ok());
        lost.add(3, "its process ended");
        lost.add(3, "its connection broke");
        assert_eq!(lost.count(), 1);
        let failure = lost.check(3).unwrap_err();
        assert_eq!(failure.code, Code::RankLost);
        assert!(
            failure.message.contains("rank 3 is lost: its process ended"),
            "{failure}"
        );
        assert!(lost.check(2).is_ok());
    }
}
