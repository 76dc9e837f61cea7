//! The lock-free core of a shared-memory channel: publishing a slot and waking a sleeper.
//!
//! There is no head and no tail. Each slot has a sequence word. The sender writes the rest of the slot and then stores
//! the word with release ordering. The receiver waits for the expected number and loads it with acquire ordering.
//! Response `n` frees request slot `n`, so neither side can overrun the other.
//!
//! Sleep is announced. The receiver sets `asleep` and checks the slot once more before it blocks. The sender checks
//! `asleep` after it has published. Without a sequentially consistent fence between each side's store and load, both
//! loads could miss both stores (store buffering), and a wake-up would be lost.
//!
//! All functions are generic over [`Word`], so that loom checks the same code that runs (`tests/loom.rs`).

use std::sync::atomic::{AtomicU32, Ordering, fence};

/// A 32-bit atomic word and its fence.
pub trait Word {
    /// As `AtomicU32::load`.
    fn load(&self, ordering: Ordering) -> u32;
    /// As `AtomicU32::store`.
    fn store(&self, value: u32, ordering: Ordering);
    /// As `AtomicU32::swap`.
    fn swap(&self, value: u32, ordering: Ordering) -> u32;
    /// As `std::sync::atomic::fence(SeqCst)`.
    fn full_fence();
}

impl Word for AtomicU32 {
    #[inline(always)]
    fn load(&self, ordering: Ordering) -> u32 {
        AtomicU32::load(self, ordering)
    }
    #[inline(always)]
    fn store(&self, value: u32, ordering: Ordering) {
        AtomicU32::store(self, value, ordering);
    }
    #[inline(always)]
    fn swap(&self, value: u32, ordering: Ordering) -> u32 {
        AtomicU32::swap(self, value, ordering)
    }
    #[inline(always)]
    fn full_fence() {
        fence(Ordering::SeqCst);
    }
}

/// Publishes a slot's content under `number`. Everything else in the slot must be written before.
#[inline(always)]
pub fn publish<W: Word>(sequence: &W, number: u32) {
    sequence.store(number, Ordering::Release);
}

/// Whether the slot contains message `number`. If so, all of the slot's content may be read.
#[inline(always)]
pub fn has_arrived<W: Word>(sequence: &W, number: u32) -> bool {
    sequence.load(Ordering::Acquire) == number
}

/// Whether the receiver sleeps or is about to, and the caller must wake it. Call it after [`publish`]. At most one
/// caller gets `true` for each sleep.
#[inline(always)]
pub fn must_wake<W: Word>(asleep: &W) -> bool {
    W::full_fence();
    asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::Relaxed) != 0
}

/// Announces sleep. Returns `true` if the caller must now block until `asleep` is no longer 1, and `false` if message
/// `number` has arrived and the announcement was withdrawn.
#[inline(always)]
pub fn fall_asleep<W: Word>(asleep: &W, sequence: &W, number: u32) -> bool {
    asleep.store(1, Ordering::Relaxed);
    W::full_fence();
    if has_arrived(sequence, number) {
        asleep.store(0, Ordering::Relaxed);
        return false;
    }
    true
}

/// Withdraws the announcement after any wake-up.
#[inline(always)]
pub fn wake_up<W: Word>(asleep: &W) {
    asleep.store(0, Ordering::Relaxed);
}
