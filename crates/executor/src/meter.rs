//! What a worker writes down about itself, in memory that its node also maps, so that nothing of it dies with the worker.
//!
//! Each worker has blocks of 128 bytes: one for the call that runs, one for what no function is charged with, one for how long calls
//! took, and one for each function that is told apart. All are written by the worker alone and read by the node, which believes no
//! more than the clock allows. Worker after worker goes on with the same counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use dayfly_fabric::memory::Mapping;
use dayfly_protocol::durations::{DURATION_BUCKETS, duration_bucket};
use dayfly_protocol::executor::{METER_BYTES, METERED_FUNCTIONS, METERED_NAME_BYTES};

const STARTED: usize = 0;
const FINISHED: usize = 4;
const DEADLINE_MS: usize = 8;
const STATE: usize = 12;
const START_TICKS: usize = 16;
const RUNNING: usize = 24;
/// The second block: [`COMPUTING`] and what follows it for the loading of functions, and all polling.
const UNCHARGED: usize = 128;
const POLLING: usize = 152;
/// The third block: calls by how long they took.
const DURATIONS: usize = 256;
/// One block for each function.
const FUNCTIONS: usize = 384;
const FUNCTION_BYTES: usize = 128;
/// In the second block, and in those of functions.
const COMPUTING: usize = 0;
const CALLS: usize = 8;
const FAILURES: usize = 16;
/// In those of functions: how long its name is, 0 where there is none, and that.
const NAME_LENGTH: usize = 24;
const NAME: usize = 32;

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
    /// Ticks ([`dayfly_fabric::clock`]) when it began.
    pub start_ticks: u64,
    /// Whether the worker is awake.
    pub awake: bool,
    /// What it is charged to.
    pub account: Account,
}

/// What calls are charged to: a function that is told apart, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Account(u32);

impl Account {
    /// Loading a function is charged to none.
    pub const NONE: Self = Self(0);

    /// Place of its function among those that are told apart.
    pub fn function(self) -> Option<usize> {
        (self.0 as usize)
            .checked_sub(1)
            .filter(|place| *place < METERED_FUNCTIONS)
    }

    /// Where its counters are. Whatever stands in shared memory, they lie within the meter.
    #[inline(always)]
    fn offset(self) -> usize {
        match self.function() {
            Some(place) => FUNCTIONS + place * FUNCTION_BYTES,
            None => UNCHARGED,
        }
    }
}

/// What was counted, in all or for one function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counted {
    /// Ticks spent inside functions.
    pub computing: u64,
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
            && now.saturating_sub(self.start_ticks) > dayfly_fabric::clock::ticks_of_ms(self.deadline_ms.into())
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
            ns_of_kilo: (1024.0 * 1000.0 / dayfly_fabric::clock::ticks_per_us()) as u64,
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

    /// The account of a function of this name, which it keeps: also in the next worker here, whichever functions that loads first.
    pub fn account(&self, name: &str) -> Account {
        let name = &name.as_bytes()[..name.len().min(METERED_NAME_BYTES)];
        let mut places = 0..METERED_FUNCTIONS - 1;
        let place = places.find(|place| self.name(*place).is_none_or(|known| known == name));
        if let Some(place) = place.filter(|place| self.name(*place).is_none()) {
            let start = FUNCTIONS + place * FUNCTION_BYTES;
            for (index, byte) in name.iter().enumerate() {
                // SAFETY: inside the mapping, since a name fits into its block, and any bit pattern is a byte.
                unsafe { self.memory.at(self.start + start + NAME + index).write_volatile(*byte) };
            }
            self.word(start + NAME_LENGTH)
                .store(name.len() as u32, Ordering::Release);
        }
        Account(place.unwrap_or(METERED_FUNCTIONS - 1) as u32 + 1)
    }

    /// What stands as the name of the function at this place, if anything does.
    fn name(&self, place: usize) -> Option<Vec<u8>> {
        let start = FUNCTIONS + place * FUNCTION_BYTES;
        let length = self.word(start + NAME_LENGTH).load(Ordering::Acquire) as usize;
        let length = length.min(METERED_NAME_BYTES);
        // SAFETY: as in `account`; the worker may write meanwhile, so that bytes are read one by one, and mean what they mean.
        let byte = |index| unsafe { self.memory.at(self.start + start + NAME + index).read_volatile() };
        (length > 0).then(|| (0..length).map(byte).collect())
    }

    /// What is charged to each function that is told apart, by its name; those without one are together under none.
    pub fn functions(&self) -> impl Iterator<Item = (Option<String>, Counted)> {
        (0..METERED_FUNCTIONS).filter_map(|place| {
            let counted = self.counted(FUNCTIONS + place * FUNCTION_BYTES);
            (counted != Counted::default()).then(|| (self.function_name(place), counted))
        })
    }

    /// Name of the function at this place, if it is one that can be shown.
    pub fn function_name(&self, place: usize) -> Option<String> {
        let name = String::from_utf8(self.name(place)?).ok()?;
        name.chars().all(|c| !c.is_control()).then_some(name)
    }

    fn counted(&self, start: usize) -> Counted {
        let load = |offset| self.long(start + offset).load(Ordering::Relaxed);
        Counted {
            computing: load(COMPUTING),
            calls: load(CALLS),
            failures: load(FAILURES),
        }
    }

    /// What was counted in all.
    pub fn total(&self) -> Counted {
        let starts = (0..METERED_FUNCTIONS).map(|place| FUNCTIONS + place * FUNCTION_BYTES);
        let all = starts.chain([UNCHARGED]).map(|start| self.counted(start));
        // What a worker wrote there need not make sense.
        all.fold(Counted::default(), |sum, part| Counted {
            computing: sum.computing.saturating_add(part.computing),
            calls: sum.calls.saturating_add(part.calls),
            failures: sum.failures.saturating_add(part.failures),
        })
    }

    /// Ticks spent polling.
    pub fn polling(&self) -> u64 {
        self.long(POLLING).load(Ordering::Relaxed)
    }

    /// A call begins.
    #[inline(always)]
    pub fn begin(&self, account: Account, sequence: u32, deadline_ms: u32, now: u64) {
        self.long(START_TICKS).store(now, Ordering::Relaxed);
        self.word(RUNNING).store(account.0, Ordering::Relaxed);
        self.word(DEADLINE_MS).store(deadline_ms, Ordering::Relaxed);
        self.word(STARTED).store(sequence, Ordering::Release);
    }

    /// A call has ended, in an error or not, after `computing` ticks and `polling` ticks of waiting before it.
    #[inline(always)]
    pub fn finish(&self, account: Account, sequence: u32, failed: bool, computing: u64, polling: u64) {
        self.word(FINISHED).store(sequence, Ordering::Release);
        // One writer: a load and a store are enough, and cheaper than an atomic addition.
        let add = |offset, amount| {
            let counter = self.long(offset);
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
        };
        let own = account.offset();
        add(own + COMPUTING, computing);
        add(own + CALLS, 1);
        if failed {
            add(own + FAILURES, 1);
        }
        add(POLLING, polling);
        // Overflows after months.
        let ns = computing.saturating_mul(self.ns_of_kilo) >> 10;
        add(DURATIONS + 8 * duration_bucket(ns), 1);
    }

    /// How many calls took how long, as [`dayfly_protocol::durations::duration_bucket`] sorts them.
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

    /// What it does now. Values may be of slightly different moments.
    pub fn read(&self) -> Reading {
        let finished = self.word(FINISHED).load(Ordering::Acquire);
        Reading {
            finished,
            started: self.word(STARTED).load(Ordering::Acquire),
            deadline_ms: self.word(DEADLINE_MS).load(Ordering::Relaxed),
            start_ticks: self.long(START_TICKS).load(Ordering::Relaxed),
            awake: self.word(STATE).load(Ordering::Relaxed) != 0,
            account: Account(self.word(RUNNING).load(Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use dayfly_fabric::memory::sealed_memory;

    use super::*;

    fn meter() -> Meter {
        let length = meters_length(2);
        let file = sealed_memory("meters", length as u64).unwrap();
        Meter::new(Arc::new(Mapping::of(&file, length).unwrap()), 1)
    }

    #[test]
    fn calls_are_charged_to_their_functions_and_all_of_it_is_in_the_total() {
        let meter = meter();
        let (area, mean) = (meter.account("area@1"), meter.account("mean@2"));
        meter.finish(Account::NONE, 1, false, 50, 5);
        meter.finish(area, 2, false, 10, 5);
        meter.finish(mean, 3, true, 7, 0);
        meter.finish(area, 4, false, 10, 0);
        let found: Vec<_> = meter.functions().collect();
        let counted = |computing, calls, failures| Counted {
            computing,
            calls,
            failures,
        };
        let expected = [
            (Some("area@1".to_owned()), counted(20, 2, 0)),
            (Some("mean@2".to_owned()), counted(7, 1, 1)),
        ];
        assert_eq!(found, expected);
        assert_eq!(meter.total(), counted(77, 4, 1));
        assert_eq!(meter.polling(), 10);
        meter.begin(mean, 5, 0, 0);
        assert_eq!(meter.read().account, mean);
    }

    #[test]
    fn the_next_worker_finds_the_accounts_of_the_one_before_it() {
        let meter = meter();
        let (first, second) = (meter.account("first@1"), meter.account("second@2"));
        assert_eq!((meter.account("second@2"), meter.account("first@1")), (second, first));
        assert_ne!(first, second);
    }

    #[test]
    fn functions_beyond_those_that_are_told_apart_share_an_account_without_a_name() {
        let meter = meter();
        let accounts: Vec<_> = (0..40).map(|n| meter.account(&format!("f{n}@1"))).collect();
        for account in &accounts {
            meter.finish(*account, 1, false, 1, 0);
        }
        let found: Vec<_> = meter.functions().collect();
        assert_eq!(found.len(), METERED_FUNCTIONS);
        assert_eq!(found[METERED_FUNCTIONS - 1].0, None);
        assert_eq!(
            found[METERED_FUNCTIONS - 1].1.calls,
            40 - (METERED_FUNCTIONS as u64 - 1)
        );
    }

    #[test]
    fn whatever_a_worker_writes_stays_within_its_meter() {
        let meter = meter();
        meter.account(&"x".repeat(500));
        meter.word(FUNCTIONS + NAME_LENGTH).store(u32::MAX, Ordering::Relaxed);
        meter.word(RUNNING).store(u32::MAX, Ordering::Relaxed);
        assert_eq!(meter.function_name(0).unwrap().len(), METERED_NAME_BYTES);
        assert_eq!(meter.read().account.function(), None);
        meter.long(FUNCTIONS + COMPUTING).store(u64::MAX, Ordering::Relaxed);
        meter.finish(meter.read().account, 1, false, 9, 0);
        assert_eq!(meter.total().computing, u64::MAX);
    }
}
