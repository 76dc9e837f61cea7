//! A pool that follows the renewals of its lease.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::{CHANGE_LOOK, Inner};

/// A pool that follows the renewals of its lease, as long as it exists.
#[derive(Clone)]
pub(crate) struct Follower(Weak<Inner>);

impl Follower {
    pub(super) fn of(pool: &Arc<Inner>) -> Self {
        Self(Arc::downgrade(pool))
    }

    /// Whether the pool exists.
    pub fn exists(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Has the pool use the lease's present workers, which `may_sleep` from now on. Returns when the added ones serve or
    /// are lost, at most after `limit`.
    pub fn follow_lease(&self, may_sleep: bool, limit: Duration) {
        let Some(inner) = self.0.upgrade() else { return };
        let until = Instant::now() + limit;
        let mut state = inner.lock();
        state.dispatch.follow_lease(may_sleep);
        inner.changed.notify_all();
        loop {
            if !state.is_driven {
                state.dispatch.poll();
                if state.dispatch.calls_mut().take_ended() > 0 {
                    inner.changed.notify_all();
                }
            }
            inner.begin_repairs(&mut state);
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || !state.dispatch.is_opening() {
                return;
            }
            state = inner.wait_changed(state, left.min(CHANGE_LOOK));
        }
    }
}
