//! Memory: it is not free before its borrower gave it back, and some functions do not bear lending it.

use super::{Engine, Mode, index};
use crate::amount::Resource;
use crate::demand::{CallId, FunctionId};

/// Calls among which two safeguards for memory are one too many.
const SAFEGUARD_CALLS: u64 = 20;
/// How long a function's memory is left alone at first.
const FIRST_REST_US: u64 = 3_600_000_000;
/// Bound on it: 2^10 hours are six weeks.
const MAX_REST_US: u64 = FIRST_REST_US << 10;

/// Whether the memory of a function's calls is lent.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MemoryTrust {
    calls: u64,
    last_safeguard: Option<u64>,
    rests_until_us: u64,
    rest_us: u64,
}

impl MemoryTrust {
    fn rest(&mut self, now_us: u64) {
        self.rest_us = match self.rest_us {
            0 => FIRST_REST_US,
            rest_us => (rest_us * 2).min(MAX_REST_US),
        };
        self.rests_until_us = now_us.saturating_add(self.rest_us);
        self.last_safeguard = None;
    }
}

impl Engine {
    pub(super) fn may_lend_memory(&self, function: FunctionId) -> bool {
        let trust = self.memory_trust.get(&function);
        trust.is_none_or(|trust| trust.rests_until_us <= self.now_us)
    }

    /// Counts a call that ended.
    pub(super) fn note_call(&mut self, function: FunctionId) {
        if let Some(trust) = self.memory_trust.get_mut(&function) {
            trust.calls += 1;
        }
    }

    pub(super) fn note_memory_safeguard(&mut self, function: FunctionId) {
        let now_us = self.now_us;
        let trust = self.memory_trust.entry(function).or_default();
        let before = trust.last_safeguard.replace(trust.calls);
        if before.is_some_and(|before| trust.calls - before < SAFEGUARD_CALLS) {
            trust.rest(now_us);
        }
    }

    pub(super) fn run_out_of_memory(&mut self, id: CallId) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        call.note_out_of_memory();
        call.may_lend[index(Resource::Memory)] = false;
        let (function, now_us) = (call.function, self.now_us);
        self.counts.out_of_memory += 1;
        self.memory_trust.entry(function).or_default().rest(now_us);
        self.recall(id, Resource::Memory);
    }

    /// Memory that borrowers hold above their limits. Nobody else gets it.
    pub(super) fn owed_memory(&self) -> u64 {
        self.reclaims.values().map(|(bytes, _)| bytes).sum()
    }

    /// Borrowers that lost memory get other idle memory before anybody else. What is missing then must be reclaimed.
    pub(super) fn settle_memory(&mut self) {
        if self.rules.lowers_lenders {
            return;
        }
        let mut lost = Vec::new();
        for (id, before) in &self.touched {
            let Some(call) = self.calls.get(id) else { continue };
            let bytes = before
                .memory_bytes
                .saturating_sub(call.limits(&self.rules).memory_bytes);
            if bytes > 0 {
                lost.push((*id, bytes));
            }
        }
        let by_us = self.now_us.saturating_add(self.rules.reclaim_us);
        for (id, bytes) in &lost {
            let owed = self.reclaims.entry(*id).or_insert((0, by_us));
            owed.0 += bytes;
        }
        if !lost.is_empty() {
            self.fit_unreserved();
        }
        for (id, bytes) in lost {
            let missing = self.calls.get(&id).map_or(0, |call| call.missing(Resource::Memory));
            if self.mode == Mode::On && missing > 0 {
                // What it still holds is counted as taken: it may keep that if nobody owns it.
                self.pay(id, bytes.min(missing));
                self.fit_unreserved();
                let got = self.grant(id, Resource::Memory, bytes.min(missing));
                let short = bytes.min(missing) - got;
                if short > 0 {
                    self.reclaims.entry(id).or_insert((0, by_us)).0 += short;
                    self.fit_unreserved();
                }
            }
        }
    }

    /// A borrower owes less.
    fn pay(&mut self, id: CallId, bytes: u64) {
        if let Some(owed) = self.reclaims.get_mut(&id) {
            owed.0 = owed.0.saturating_sub(bytes);
            if owed.0 == 0 {
                self.reclaims.remove(&id);
            }
        }
    }

    /// Notes what a call holds: a borrower whose memory is below its limit owes nothing.
    pub(super) fn note_reclaimed(&mut self, id: CallId, memory_bytes: u64) {
        let Some(call) = self.calls.get(&id) else { return };
        let over = memory_bytes.saturating_sub(call.limits(&self.rules).memory_bytes);
        let Some(owed) = self.reclaims.get_mut(&id) else { return };
        owed.0 = owed.0.min(over);
        if over == 0 {
            self.reclaims.remove(&id);
        }
        self.fit_unreserved();
    }

    /// Ends borrowers that did not give memory back in time.
    pub(super) fn end_late_borrowers(&mut self) {
        let now_us = self.now_us;
        let late: Vec<_> = self
            .reclaims
            .iter()
            .filter(|(_, (_, by_us))| *by_us < now_us)
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            // It is ended once. What it holds stays owed until it is gone.
            if let Some(owed) = self.reclaims.get_mut(&id) {
                owed.1 = u64::MAX;
            }
            self.end_borrower(id);
        }
    }

    pub(super) fn end_borrower(&mut self, id: CallId) {
        if self.ending.insert(id) {
            self.counts.ended += 1;
        }
    }
}
