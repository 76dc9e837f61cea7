//! What a worker writes down about itself, in memory that its node also maps, so that nothing of it dies with the worker.
//!
//! Each worker has three 128-byte blocks: one for the call that runs, one for the counters, one for how long calls took. All are
//! written by the worker alone and read by the node, which believes no more than the clock allows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use mayfly_fabric::memory::Mapping;
use mayfly_protocol::durations::{DURATION_BUCKETS, duration_bucket};
use mayfly_protocol::executor::METER_BYTES;

const STARTED: usize = 0;
const FINISHED: usize = 4;
const DEADLINE_MS: usize = 8;
const STATE: usize = 12;
const START_TICKS: usize = 16;
const COMPUTING: usize = 128;
const POLLING: usize = 136;
const CALLS: usize = 144;
const FAILURES: usize = 152;
/// The third block: calls by how long they took.
const DURATIONS: usize = 256;

/// Bytes of the meters file of so many workers.
pub fn meters_length(workers: u16) -> usize {
    (usize::from(workers) * METER_BYTES).next_multiple_of(4096)
}

/// What a worker is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// Blocked: without a channel, or asleep on one.
    Asleep,
    /// Polling for a request or running one.
    Awake,
}

/// The meter of one worker.
#[derive(Debug, Clone)]
pub struct Meter {
    memory: Arc<Mapping>,
    start: usize,
    /// Nanoseconds in 1,024 ticks.
    ns_of_kilo: u64,
}

/// One reading of a meter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reading {
    /// Last sequence number begun on the current channel.
    pub started: u32,
    /// Last sequence number finished on the current channel.
    pub finished: u32,
    /// Execution time allowed for the call that was begun last, in milliseconds; 0 for no limit.
    pub deadline_ms: u32,
    /// Ticks ([`mayfly_fabric::clock`]) when it began.
    pub start_ticks: u64,
    /// Whether the worker is awake.
    pub awake: bool,
    /// Ticks spent inside functions.
    pub computing: u64,
    /// Ticks spent polling.
    pub polling: u64,
    /// Calls that ended.
    pub calls: u64,
    /// Of them, those that ended in an error.
    pub failures: u64,
}

impl Reading {
    /// Whether a call is running.
    pub fn is_running(&self) -> bool {
        self.started != self.finished
    }

    /// Whether the running call is past its deadline at `now` (ticks).
    pub fn is_overdue(&self, now: u64) -> bool {
        self.is_running()
            && self.deadline_ms > 0
            && now.saturating_sub(self.start_ticks) > mayfly_fabric::clock::ticks_of_ms(self.deadline_ms.into())
    }
}

impl Meter {
    /// The meter of worker `index` in a mapped meters file.
    pub fn new(memory: Arc<Mapping>, index: u16) -> Self {
        let start = index as usize * METER_BYTES;
        assert!(
            start + METER_BYTES <= memory.length(),
            "the meters file is too short for worker {index}"
        );
        Self {
            memory,
            start,
            ns_of_kilo: (1024.0 * 1000.0 / mayfly_fabric::clock::ticks_per_us()) as u64,
        }
    }

    #[inline(always)]
    fn word(&self, offset: usize) -> &AtomicU32 {
        self.memory.word(self.start + offset)
    }

    #[inline(always)]
    fn long(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: inside the mapping (checked in `new`), a multiple of 8, and any bit pattern is a u64.
        unsafe { &*self.memory.at(self.start + offset).cast::<AtomicU64>() }
    }

    /// A new channel: its sequence numbers start anew.
    pub fn attach(&self) {
        self.word(DEADLINE_MS).store(0, Ordering::Relaxed);
        self.word(STARTED).store(0, Ordering::Relaxed);
        self.word(FINISHED).store(0, Ordering::Release);
    }

    /// A call begins.
    #[inline(always)]
    pub fn begin(&self, sequence: u32, deadline_ms: u32, now: u64) {
        self.long(START_TICKS).store(now, Ordering::Relaxed);
        self.word(DEADLINE_MS).store(deadline_ms, Ordering::Relaxed);
        self.word(STARTED).store(sequence, Ordering::Release);
    }

    /// A call has ended, in an error or not, after `computing` ticks and `polling` ticks of waiting before it.
    #[inline(always)]
    pub fn finish(&self, sequence: u32, failed: bool, computing: u64, polling: u64) {
        self.word(FINISHED).store(sequence, Ordering::Release);
        // One writer: a load and a store are enough, and cheaper than an atomic addition.
        let add = |offset, amount| {
            let counter = self.long(offset);
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
        };
        add(COMPUTING, computing);
        add(POLLING, polling);
        add(CALLS, 1);
        if failed {
            add(FAILURES, 1);
        }
        // Overflows after months.
        let ns = computing.saturating_mul(self.ns_of_kilo) >> 10;
        add(DURATIONS + 8 * duration_bucket(ns), 1);
    }

    /// How many calls took how long, as [`mayfly_protocol::durations::duration_bucket`] sorts them.
    pub fn durations(&self) -> [u64; DURATION_BUCKETS] {
        std::array::from_fn(|bucket| self.long(DURATIONS + 8 * bucket).load(Ordering::Relaxed))
    }

    /// More polling, without a call after it.
    pub fn polled(&self, ticks: u64) {
        let counter = self.long(POLLING);
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(ticks), Ordering::Relaxed);
    }

    /// Whether the worker is about to block.
    pub fn set_activity(&self, activity: Activity) {
        self.word(STATE)
            .store((activity == Activity::Awake).into(), Ordering::Relaxed);
    }

    /// All of it, now. Values may be of slightly different moments.
    pub fn read(&self) -> Reading {
        let finished = self.word(FINISHED).load(Ordering::Acquire);
        Reading {
            finished,
            started: self.word(STARTED).load(Ordering::Acquire),
            deadline_ms: self.word(DEADLINE_MS).load(Ordering::Relaxed),
            start_ticks: self.long(START_TICKS).load(Ordering::Relaxed),
            awake: self.word(STATE).load(Ordering::Relaxed) != 0,
            computing: self.long(COMPUTING).load(Ordering::Relaxed),
            polling: self.long(POLLING).load(Ordering::Relaxed),
            calls: self.long(CALLS).load(Ordering::Relaxed),
            failures: self.long(FAILURES).load(Ordering::Relaxed),
        }
    }
}
