//! The helper thread of a pool, which progresses calls that no thread waits for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use dayfly_client::{CallId, Pool as ClientPool};

/// Interval at which the helper progresses calls that no thread waits for. It equals a scheduler's tick, so that it
/// does not disturb a program that waits for its own calls.
const HELP: Duration = Duration::from_millis(1);
/// How long the helper stays awake after its last work.
const LINGER: Duration = Duration::from_millis(100);

/// State that all calls of a pool share.
pub struct Shared {
    pub pool: Arc<ClientPool>,
    pub inline_bytes: usize,
    closed: AtomicBool,
    /// Whether the helper sleeps until it is woken.
    parked: AtomicBool,
    lock: Mutex<()>,
    woken: Condvar,
}

impl Shared {
    pub fn new(pool: Arc<ClientPool>) -> Self {
        Self {
            inline_bytes: pool.inline_bytes(),
            pool,
            closed: AtomicBool::new(false),
            parked: AtomicBool::new(false),
            lock: Mutex::new(()),
            woken: Condvar::new(),
        }
    }

    /// Wakes the helper if it sleeps and a call needs it.
    pub fn call_helper(&self, needed: bool) {
        if self.parked.load(Ordering::SeqCst) && (needed || self.pool.needs_driver()) {
            self.wake();
        }
    }

    /// Stops the helper.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.wake();
    }

    fn wake(&self) {
        if self.parked.swap(false, Ordering::SeqCst) {
            let _guard = self.lock.lock();
            self.woken.notify_all();
        }
    }

    fn park(&self) {
        let Ok(guard) = self.lock.lock() else { return };
        self.parked.store(true, Ordering::SeqCst);
        let is_needed = || self.closed.load(Ordering::SeqCst) || self.pool.needs_driver() || self.pool.watched() > 0;
        if is_needed() {
            self.parked.store(false, Ordering::SeqCst);
            return;
        }
        let _unused = self.woken.wait_while(guard, |()| self.parked.load(Ordering::SeqCst));
    }

    /// Progresses calls that no thread waits for, until some with a notification have ended. Returns those.
    pub fn help(&self) -> Vec<CallId> {
        let mut idle_since = Instant::now();
        loop {
            let closed = self.closed.load(Ordering::SeqCst);
            if self.pool.watched() > 0 {
                // Calls that ended are returned even after the pool was closed, because a future waits for them.
                let ended = self.pool.drive(Duration::from_millis(50));
                if !ended.is_empty() {
                    return ended;
                }
                idle_since = Instant::now();
            }
            if closed {
                return Vec::new();
            }
            if self.pool.watched() > 0 {
                continue;
            }
            self.pool.poll();
            if self.pool.needs_driver() {
                idle_since = Instant::now();
            }
            if idle_since.elapsed() > LINGER {
                self.park();
                idle_since = Instant::now();
            } else {
                std::thread::sleep(HELP);
            }
        }
    }
}
