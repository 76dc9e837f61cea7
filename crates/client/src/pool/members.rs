//! The part of [`Pool`] for a [`Fleet`](crate::Fleet), which adds workers and takes them away.

use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::thread::Thread;

use super::dispatch::Member;
use super::*;

/// Wakes the thread that leases workers when calls are queued.
#[derive(Default)]
pub struct Backlog {
    thread: OnceLock<Thread>,
    /// Whether that thread sleeps for long.
    dozes: AtomicBool,
}

impl Backlog {
    /// Wakes the thread if it sleeps for long.
    pub fn report(&self) {
        if self.dozes.load(Ordering::SeqCst) && self.dozes.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Wakes the thread.
    pub fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Makes the calling thread the one to wake.
    pub fn set_thread(&self) {
        let _ = self.thread.set(std::thread::current());
    }

    /// Sleeps for at most `limit`, until [`Backlog::wake`]. A reported backlog ends only a long sleep.
    pub fn sleep(&self, limit: Duration, is_long: bool) {
        self.dozes.store(is_long, Ordering::SeqCst);
        std::thread::park_timeout(limit);
        self.dozes.store(false, Ordering::SeqCst);
    }
}

/// The state of a fleet's pool.
pub struct Occupancy {
    pub members: Vec<Member>,
    /// Calls that have not ended.
    pub calls: usize,
    /// Whether calls are queued.
    pub has_queue: bool,
}

impl Pool {
    /// A pool without workers.
    pub(crate) fn without_lease(options: PoolOptions, backlog: Arc<Backlog>) -> Self {
        Self::over(Dispatch::without_lease(options, backlog), options)
    }

    /// Adds a worker. Drops the channel if the pool is closed.
    pub(crate) fn add_worker(&self, place: Place, channel: crate::Channel) {
        // Bound outside the lock's scope: dropping a channel takes a system call.
        let _refused = {
            let mut state = self.inner.lock();
            let added = state.dispatch.add_worker(place, channel);
            self.inner.begin_repairs(&mut state);
            added
        };
        self.inner.changed.notify_all();
    }

    /// Sends the workers of a lease no more calls.
    pub(crate) fn retire(&self, key: u64) {
        self.inner.lock().dispatch.retire(key);
    }

    /// Removes the workers of a lease and closes their channels, unless they have calls. Returns whether it did.
    pub(crate) fn remove(&self, key: u64) -> bool {
        let channels = self.inner.lock().dispatch.remove(key);
        channels.is_some()
    }

    pub(crate) fn occupancy(&self) -> Occupancy {
        let state = self.inner.lock();
        Occupancy {
            members: state.dispatch.members(),
            calls: state.dispatch.calls().pending(),
            has_queue: !state.dispatch.calls().is_queue_empty(),
        }
    }

    pub(crate) fn set_growing(&self, is_growing: bool) {
        self.inner.lock().dispatch.set_growing(is_growing);
    }

    /// Ends all queued calls with an error.
    pub(crate) fn fail_queued(&self, error: &CallError) {
        self.inner.lock().dispatch.fail_queued(error);
        self.inner.changed.notify_all();
    }

    /// Ends broken channels and takes in completions for threads that do not wait for calls.
    pub(crate) fn tend(&self) {
        let mut state = self.inner.lock();
        if state.is_driven {
            return;
        }
        if state.nodes_checked_at.elapsed() >= SLEEP_LIMIT {
            state.nodes_checked_at = Instant::now();
            state.dispatch.check_nodes();
        }
        state.dispatch.poll();
        self.inner.begin_repairs(&mut state);
        if state.dispatch.calls_mut().take_ended() > 0 && state.waiting > 0 {
            self.inner.changed.notify_all();
        }
    }
}
