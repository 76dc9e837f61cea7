//! The lock-free heart of a shared-memory channel: how a slot is published and how a sleeper is woken.
//!
//! There is no head and no tail. Each slot carries a sequence word; the sender writes everything else of the slot and
//! then stores the word with release, the receiver waits for the number that it expects and loads it with acquire.
//! Response `n` frees request slot `n`, so neither side can overrun the other.
//!
//! Sleeping is announced. The receiver sets `asleep` and looks at the slot once more before it blocks; the sender looks
//! at `asleep` after it has published. Without a sequentially consistent fence between each side's store and load, both
//! loads could miss both stores (store buffering), and a wake-up would be lost.
//!
//! Everything is generic over [`Word`], so that loom explores the same code that runs (`tests/loom.rs`).

use std::sync::atomic::{AtomicU32, Ordering, fence};

/// A 32-bit atomic word and the fence that goes with it.
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

/// Makes the slot's content visible under `number`. Everything else in the slot must be written before.
#[inline(always)]
pub fn publish<W: Word>(sequence: &W, number: u32) {
    sequence.store(number, Ordering::Release);
}

/// Whether the slot holds message `number`; if so, all of the slot's content may be read.
#[inline(always)]
pub fn has_arrived<W: Word>(sequence: &W, number: u32) -> bool {
    sequence.load(Ordering::Acquire) == number
}

/// To be called after [`publish`]: whether the receiver sleeps, or is about to, and must be woken by the caller. At most
/// one caller is told so for each time that the receiver sleeps.
#[inline(always)]
pub fn must_wake<W: Word>(asleep: &W) -> bool {
    W::full_fence();
    asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::Relaxed) != 0
}

/// Announces sleep. True when the caller must now block until `asleep` is no longer 1; false when message `number` came
/// meanwhile and the announcement was taken back.
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

/// Takes the announcement back after waking up, for whatever reason.
#[inline(always)]
pub fn wake_up<W: Word>(asleep: &W) {
    asleep.store(0, Ordering::Relaxed);
}
