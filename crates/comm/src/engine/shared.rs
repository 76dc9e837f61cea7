//! The engine that a rank's communicators share, and the lock on it.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use super::Engine;
use crate::nonblocking::BackgroundCollectives;

/// The engine of a rank, which the rank's communicators share. One thread at a time uses it.
#[derive(Debug)]
pub struct SharedEngine {
    mutex: Mutex<()>,
    /// Threads that wait for the engine.
    wanted: AtomicU32,
    /// How often a waiting thread got the engine.
    turns: AtomicU32,
    engine: UnsafeCell<Engine>,
    /// Background collectives. Beside the engine, because they use it.
    background: UnsafeCell<BackgroundCollectives>,
}

// SAFETY: the engine is reached only through `EngineGuard`, which holds the mutex, or below one (see
// `SharedEngine::with`).
unsafe impl Sync for SharedEngine {}

impl SharedEngine {
    pub fn new(engine: Engine) -> Self {
        Self {
            mutex: Mutex::new(()),
            wanted: AtomicU32::new(0),
            turns: AtomicU32::new(0),
            engine: UnsafeCell::new(engine),
            background: UnsafeCell::default(),
        }
    }

    #[inline]
    pub fn lock(&self) -> EngineGuard<'_> {
        let guard = match self.mutex.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => self.lock_contended(),
        };
        EngineGuard {
            shared: self,
            guard: Some(guard),
        }
    }

    #[cold]
    fn lock_contended(&self) -> MutexGuard<'_, ()> {
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let guard = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        self.turns.fetch_add(1, Ordering::Relaxed);
        guard
    }

    /// Uses the engine, for futures that are polled and dropped only while an [`EngineGuard`] exists.
    ///
    /// # Safety
    /// An `EngineGuard` of this thread must exist, and no other reference to the engine may exist.
    #[inline]
    pub unsafe fn with<T>(&self, using: impl FnOnce(&mut Engine) -> T) -> T {
        // SAFETY: required of the caller.
        using(unsafe { &mut *self.engine.get() })
    }
}

impl Drop for SharedEngine {
    fn drop(&mut self) {
        self.engine.get_mut().leave();
    }
}

/// Pause of a yielding thread until another thread has the engine, and the number of such pauses.
const PAUSE: Duration = Duration::from_micros(20);
const MAX_PAUSES: u32 = 50;

/// Exclusive use of the engine.
#[derive(Debug)]
pub struct EngineGuard<'a> {
    shared: &'a SharedEngine,
    guard: Option<MutexGuard<'a, ()>>,
}

impl EngineGuard<'_> {
    /// Whether it is this engine that is locked.
    #[inline]
    pub fn is_of(&self, shared: &SharedEngine) -> bool {
        std::ptr::eq(self.shared, shared)
    }

    #[inline]
    pub fn engine(&mut self) -> &mut Engine {
        // SAFETY: the mutex is locked, and `&mut self` lends the engine once at a time.
        unsafe { &mut *self.shared.engine.get() }
    }

    /// Background collectives. Polling or dropping them uses the engine, so no reference to the engine may exist then.
    #[inline]
    pub fn background(&mut self) -> &mut BackgroundCollectives {
        // SAFETY: as for the engine.
        unsafe { &mut *self.shared.background.get() }
    }

    /// Moves bytes and polls background collectives. Returns whether anything moved.
    #[inline]
    pub fn progress(&mut self) -> bool {
        let moved = self.engine().progress();
        // What a rank has sent before it was lost arrives first.
        if !moved {
            self.engine().count_poll();
        }
        let completions = self.engine().matching.completions;
        if self.background().are_due(completions) {
            self.background().poll();
        }
        moved
    }

    /// Yields the engine to a waiting thread, if there is one, and then waits for it.
    pub fn yield_to_waiters(&mut self) {
        if self.shared.wanted.load(Ordering::Relaxed) == 0 {
            return;
        }
        let turn = self.shared.turns.load(Ordering::Relaxed);
        self.guard = None;
        // The mutex is not fair and this thread is awake: without a pause it would get the mutex again and again.
        for _ in 0..MAX_PAUSES {
            std::thread::sleep(PAUSE);
            if self.shared.turns.load(Ordering::Relaxed) != turn {
                break;
            }
        }
        self.guard = Some(self.shared.lock_contended());
    }
}
