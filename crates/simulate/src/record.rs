//! What became of each call.

use dayfly_harvest::Amount;
use serde::{Deserialize, Serialize};

/// What became of one call.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Record {
    /// When it arrived, in microseconds of the trace.
    pub arrival_us: u64,
    /// When it left a queue for the first time.
    pub started_us: u64,
    /// When it ended.
    pub ended_us: u64,
    /// The node where it ran last.
    pub node: u32,
    /// How often it ran.
    pub attempts: u8,
    /// How often it ran out of memory.
    pub ooms: u8,
    /// It waited for a new worker.
    pub is_cold: bool,
    /// The safeguard recalled what it lent.
    pub is_safeguarded: bool,
    /// It did not return.
    pub is_failed: bool,
    /// Processor time that it offered, in core-seconds.
    pub offered_core_s: f32,
    /// Processor time that it could borrow, in core-seconds.
    pub borrowed_core_s: f32,
    /// Memory that it offered, in GiB-seconds.
    pub offered_gib_s: f32,
    /// Memory that it could borrow, in GiB-seconds.
    pub borrowed_gib_s: f32,
}

impl Record {
    /// From its arrival to its end, in microseconds.
    pub fn response_us(&self) -> u64 {
        self.ended_us.saturating_sub(self.arrival_us)
    }

    /// Adds what it offered and borrowed in a window.
    pub(crate) fn note_loans(&mut self, offered: Amount, borrowed: Amount, window_us: u64) {
        let seconds = window_us as f64 / 1e6;
        let cores = |amount: Amount| (amount.milli_cores as f64 / 1e3 * seconds) as f32;
        let gib = |amount: Amount| (amount.memory_bytes as f64 / f64::from(1 << 30) * seconds) as f32;
        self.offered_core_s += cores(offered);
        self.borrowed_core_s += cores(borrowed);
        self.offered_gib_s += gib(offered);
        self.borrowed_gib_s += gib(borrowed);
    }
}
