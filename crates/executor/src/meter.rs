//! A worker's record of its work, in memory that its node also maps, so that it survives the worker.
//!
//! Each worker has blocks of 128 bytes: one for the running call, one for what is charged to no function, one for the
//! durations of calls, and one for each function with an account of its own. Only the worker writes them; the node
//! reads them, and trusts them no further than the clock permits. Replacement workers continue the same counters.
//!
//! One more block has the node's orders for the worker, which only the node writes: how long to poll, and whether it
//! owns cores.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use dayfly_fabric::memory::Mapping;
use dayfly_protocol::durations::{DURATION_BUCKETS, duration_bucket};
use dayfly_protocol::executor::{METER_BYTES, METERED_FUNCTIONS, METERED_NAME_BYTES};
use dayfly_protocol::sizes::{Sizes, plausible};

const STARTED: usize = 0;
const FINISHED: usize = 4;
const DEADLINE_MS: usize = 8;
const STATE: usize = 12;
const START_TICKS: usize = 16;
const RUNNING: usize = 24;
/// Bytes of the arguments of an announced call, its sequence number, and the sizes that its client stated.
const ARGUMENT_BYTES: usize = 32;
const ANNOUNCED: usize = 40;
const SIZES: usize = 48;
/// The second block: [`COMPUTING`] and the following for loading functions, and all polling.
const UNCHARGED: usize = 128;
const POLLING: usize = 152;
/// The third block: histogram of call durations.
const DURATIONS: usize = 256;
/// One block for each function.
const FUNCTIONS: usize = 384;
const FUNCTION_BYTES: usize = 128;
/// Offsets in the second block and in those of functions.
const COMPUTING: usize = 0;
const CALLS: usize = 8;
const FAILURES: usize = 16;
/// Offsets in the blocks of functions: the length of the name (0 without one), and the name.
const NAME_LENGTH: usize = 24;
const NAME: usize = 32;

/// The last block: the orders as one word, so that a worker never reads half of a change.
const ORDERS: usize = FUNCTIONS + METERED_FUNCTIONS * FUNCTION_BYTES;
/// The bits of [`ORDERS`] for cores of its own, and to begin no more calls. The others are the polling time.
const OWNS_CORES: u64 = 1 << 63;
const STOPS: u64 = 1 << 62;

/// Length in bytes of the meters file of `workers` workers.
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

/// How a worker waits for calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Orders {
    /// Whether it has cores to itself. If not, it claims a shared one for calls.
    pub owns_cores: bool,
    /// Whether it begins no more calls, because its lease gives it back.
    pub stops: bool,
    /// How long it polls after a call before it sleeps, in microseconds; [`Orders::WITHOUT_END`] for no limit.
    pub poll_us: u64,
}

impl Orders {
    /// The longest time of polling, which never ends.
    pub const WITHOUT_END: u64 = STOPS - 1;

    fn to_word(self) -> u64 {
        let flag = |is_set, bit| if is_set { bit } else { 0 };
        self.poll_us.min(Self::WITHOUT_END) | flag(self.owns_cores, OWNS_CORES) | flag(self.stops, STOPS)
    }

    fn from_word(word: u64) -> Self {
        Self {
            owns_cores: word & OWNS_CORES != 0,
            stops: word & STOPS != 0,
            poll_us: word & Self::WITHOUT_END,
        }
    }
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
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Reading {
    /// Last sequence number begun on the current channel.
    pub started: u32,
    /// Last sequence number finished on the current channel.
    pub finished: u32,
    /// Permitted execution time of the last call, in milliseconds; 0 for no limit.
    pub deadline_ms: u32,
    /// Ticks ([`dayfly_fabric::clock`]) at its begin.
    pub start_ticks: u64,
    pub awake: bool,
    /// What it is charged to.
    pub account: Account,
    /// Bytes of the running call's arguments, if the worker announced the call; otherwise 0.
    pub argument_bytes: u64,
    /// The sizes that its client stated, finite and not negative, if the worker announced the call; otherwise 0.
    pub sizes: Sizes,
}

/// What calls are charged to: one function, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Account(u32);

impl Account {
    /// No function; for loading.
    pub const NONE: Self = Self(0);

    /// Index of the function among those with accounts.
    pub fn function(self) -> Option<usize> {
        (self.0 as usize)
            .checked_sub(1)
            .filter(|place| *place < METERED_FUNCTIONS)
    }

    /// Offset of its counters. It lies within the meter for every value in shared memory.
    #[inline(always)]
    fn offset(self) -> usize {
        match self.function() {
            Some(place) => FUNCTIONS + place * FUNCTION_BYTES,
            None => UNCHARGED,
        }
    }
}

/// Counters, of everything or of one function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counted {
    /// Ticks spent inside functions.
    pub computing: u64,
    /// Calls that ended.
    pub calls: u64,
    /// Calls among them that ended in an error.
    pub failures: u64,
}

impl Reading {
    /// Whether a call is running.
    pub fn is_running(&self) -> bool {
        self.started != self.finished
    }

    /// Whether the running call is past its deadline at `now`, in ticks.
    pub fn is_overdue(&self, now: u64) -> bool {
        self.is_running()
            && self.deadline_ms > 0
            && now.saturating_sub(self.start_ticks) > dayfly_fabric::clock::ticks_of_ms(self.deadline_ms.into())
    }
}

impl Meter {
    /// The meter of worker `index` in a mapped meters file. Panics if the file is too short.
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

    /// Begins a new channel, with new sequence numbers.
    pub fn attach(&self) {
        self.word(ANNOUNCED).store(0, Ordering::Relaxed);
        self.word(DEADLINE_MS).store(0, Ordering::Relaxed);
        self.word(STARTED).store(0, Ordering::Relaxed);
        self.word(FINISHED).store(0, Ordering::Release);
    }

    /// The account of the function with this name. It stays the same in replacement workers, in whatever order they
    /// load functions.
    pub fn account(&self, name: &str) -> Account {
        let name = &name.as_bytes()[..name.len().min(METERED_NAME_BYTES)];
        let mut places = 0..METERED_FUNCTIONS - 1;
        let place = places.find(|place| self.name(*place).is_none_or(|known| known == name));
        if let Some(place) = place.filter(|place| self.name(*place).is_none()) {
            let start = FUNCTIONS + place * FUNCTION_BYTES;
            for (index, byte) in name.iter().enumerate() {
                // SAFETY: inside the mapping, since a name fits in its block, and any bit pattern is a byte.
                unsafe { self.memory.at(self.start + start + NAME + index).write_volatile(*byte) };
            }
            self.word(start + NAME_LENGTH)
                .store(name.len() as u32, Ordering::Release);
        }
        Account(place.unwrap_or(METERED_FUNCTIONS - 1) as u32 + 1)
    }

    /// The stored name of the function with this index, if there is one.
    fn name(&self, place: usize) -> Option<Vec<u8>> {
        let start = FUNCTIONS + place * FUNCTION_BYTES;
        let length = self.word(start + NAME_LENGTH).load(Ordering::Acquire) as usize;
        let length = length.min(METERED_NAME_BYTES);
        // SAFETY: as in `account`. The worker may write meanwhile, so the bytes are read one by one, and may be
        // anything.
        let byte = |index| unsafe { self.memory.at(self.start + start + NAME + index).read_volatile() };
        (length > 0).then(|| (0..length).map(byte).collect())
    }

    /// Counters of each function with an account, by name; `None` for functions without one.
    pub fn functions(&self) -> impl Iterator<Item = (Option<String>, Counted)> {
        (0..METERED_FUNCTIONS).filter_map(|place| {
            let counted = self.counted(FUNCTIONS + place * FUNCTION_BYTES);
            (counted != Counted::default()).then(|| (self.function_name(place), counted))
        })
    }

    /// Name of the function with this index, if it is printable.
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

    /// Sum of all counters.
    pub fn total(&self) -> Counted {
        let starts = (0..METERED_FUNCTIONS).map(|place| FUNCTIONS + place * FUNCTION_BYTES);
        let all = starts.chain([UNCHARGED]).map(|start| self.counted(start));
        // A worker may have written any values.
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

    /// Records the begin of a call.
    #[inline(always)]
    pub fn begin(&self, account: Account, sequence: u32, deadline_ms: u32, now: u64) {
        self.long(START_TICKS).store(now, Ordering::Relaxed);
        self.word(RUNNING).store(account.0, Ordering::Relaxed);
        self.word(DEADLINE_MS).store(deadline_ms, Ordering::Relaxed);
        self.word(STARTED).store(sequence, Ordering::Release);
    }

    /// Records the size of the arguments of a call that is about to begin, and the sizes that its client stated.
    pub fn announce(&self, sequence: u32, argument_bytes: u64, sizes: &Sizes) {
        self.long(ARGUMENT_BYTES).store(argument_bytes, Ordering::Relaxed);
        for (index, size) in sizes.iter().enumerate() {
            self.long(SIZES + 8 * index).store(size.to_bits(), Ordering::Relaxed);
        }
        self.word(ANNOUNCED).store(sequence, Ordering::Relaxed);
    }

    /// Records the end of a call, after `computing` ticks, and after `polling` ticks of polling before it.
    #[inline(always)]
    pub fn finish(&self, account: Account, sequence: u32, failed: bool, computing: u64, polling: u64) {
        self.word(FINISHED).store(sequence, Ordering::Release);
        // There is one writer: a load and a store suffice, and are cheaper than an atomic addition.
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

    /// Number of calls in each bucket of [`dayfly_protocol::durations::duration_bucket`].
    pub fn durations(&self) -> [u64; DURATION_BUCKETS] {
        std::array::from_fn(|bucket| self.long(DURATIONS + 8 * bucket).load(Ordering::Relaxed))
    }

    /// Adds polling without a following call.
    pub fn polled(&self, ticks: u64) {
        let counter = self.long(POLLING);
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(ticks), Ordering::Relaxed);
    }

    /// Gives the worker orders. Only the node does.
    pub fn set_orders(&self, orders: Orders) {
        self.long(ORDERS).store(orders.to_word(), Ordering::Relaxed);
        // A worker that wakes up reads its orders after it shows that it is awake: either it reads these, or the next
        // reading of its meter shows that it is awake.
        fence(Ordering::SeqCst);
    }

    /// The orders, as a word that changes with them.
    #[inline(always)]
    pub fn orders_word(&self) -> u64 {
        self.long(ORDERS).load(Ordering::Relaxed)
    }

    /// The orders.
    pub fn orders(&self) -> Orders {
        Orders::from_word(self.orders_word())
    }

    /// Records that the worker is awake after a sleep. Orders that are read afterwards are at least as new as the node's
    /// last reading of the meter.
    pub fn set_awake(&self) {
        self.set_activity(Activity::Awake);
        fence(Ordering::SeqCst);
    }

    /// Records whether the worker is about to block.
    pub fn set_activity(&self, activity: Activity) {
        self.word(STATE)
            .store((activity == Activity::Awake).into(), Ordering::Relaxed);
    }

    /// Reads the current state. The values may be from slightly different moments.
    pub fn read(&self) -> Reading {
        let finished = self.word(FINISHED).load(Ordering::Acquire);
        let started = self.word(STARTED).load(Ordering::Acquire);
        let is_announced = self.word(ANNOUNCED).load(Ordering::Relaxed) == started;
        Reading {
            finished,
            started,
            deadline_ms: self.word(DEADLINE_MS).load(Ordering::Relaxed),
            start_ticks: self.long(START_TICKS).load(Ordering::Relaxed),
            awake: self.word(STATE).load(Ordering::Relaxed) != 0,
            account: Account(self.word(RUNNING).load(Ordering::Relaxed)),
            argument_bytes: match is_announced {
                true => self.long(ARGUMENT_BYTES).load(Ordering::Relaxed),
                false => 0,
            },
            sizes: match is_announced {
                true => self.sizes(),
                false => Sizes::default(),
            },
        }
    }

    /// The announced sizes. A worker may have written anything.
    fn sizes(&self) -> Sizes {
        std::array::from_fn(|index| plausible(f64::from_bits(self.long(SIZES + 8 * index).load(Ordering::Relaxed))))
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
    fn calls_are_counted_by_function_and_in_total() {
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
    fn orders_are_read_as_given() {
        let meter = meter();
        assert_eq!(meter.orders(), Orders::default());
        for orders in [
            Orders {
                owns_cores: true,
                stops: false,
                poll_us: Orders::WITHOUT_END,
            },
            Orders {
                owns_cores: false,
                stops: true,
                poll_us: 250,
            },
        ] {
            meter.set_orders(orders);
            assert_eq!(meter.orders(), orders);
        }
        assert_eq!(meter.total(), Counted::default(), "they are in a block of their own");
    }

    #[test]
    fn argument_size_is_that_of_announced_call() {
        let meter = meter();
        let account = meter.account("area@1");
        meter.announce(7, 1 << 40, &[512.0, 0.25, 0.0, 0.0]);
        meter.begin(account, 7, 0, 0);
        assert_eq!(meter.read().argument_bytes, 1 << 40);
        assert_eq!(meter.read().sizes, [512.0, 0.25, 0.0, 0.0]);
        meter.finish(account, 7, false, 1, 0);
        meter.begin(account, 8, 0, 0);
        assert_eq!(meter.read().argument_bytes, 0);
        assert_eq!(meter.read().sizes, Sizes::default());
        meter.attach();
        meter.begin(account, 7, 0, 0);
        assert_eq!(meter.read().argument_bytes, 0);
    }

    #[test]
    fn replacement_worker_continues_existing_accounts() {
        let meter = meter();
        let (first, second) = (meter.account("first@1"), meter.account("second@2"));
        assert_eq!((meter.account("second@2"), meter.account("first@1")), (second, first));
        assert_ne!(first, second);
    }

    #[test]
    fn functions_beyond_the_limit_share_an_account() {
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
    fn corrupt_meter_is_read_within_its_bounds() {
        let meter = meter();
        meter.account(&"x".repeat(500));
        meter.word(FUNCTIONS + NAME_LENGTH).store(u32::MAX, Ordering::Relaxed);
        meter.word(RUNNING).store(u32::MAX, Ordering::Relaxed);
        assert_eq!(meter.function_name(0).unwrap().len(), METERED_NAME_BYTES);
        assert_eq!(meter.read().account.function(), None);
        meter.long(FUNCTIONS + COMPUTING).store(u64::MAX, Ordering::Relaxed);
        meter.finish(meter.read().account, 1, false, 9, 0);
        assert_eq!(meter.total().computing, u64::MAX);
        meter.announce(1, 0, &[f64::NAN, f64::INFINITY, -1.0, -0.0]);
        meter.begin(Account::NONE, 1, 0, 0);
        assert_eq!(meter.read().sizes.map(f64::to_bits), [0; 4]);
    }
}
