//! The part of [`Pool`] that delegates some of its workers and takes them back.

use std::ops::Range;

use super::*;
use crate::Delegation;

impl Pool {
    /// Delegates `workers` workers of this pool for at most `duration`. Waits at most `limit` until their calls have
    /// ended; other calls go on, on the other workers. Isolated workers of the lease `users` can use the
    /// delegation.
    pub fn delegate(
        &self,
        workers: u16,
        duration: Duration,
        users: Option<&Lease>,
        limit: Duration,
    ) -> Result<Delegation, Error> {
        let (lease, range) = {
            let mut state = self.inner.lock();
            (state.dispatch.lease()?, state.dispatch.set_aside(workers)?)
        };
        self.inner.changed.notify_all();
        let delegated = self
            .close_when_idle(&range, limit)
            .and_then(|()| lease.delegate(range.clone(), duration, users));
        match delegated {
            Ok(delegation) => {
                let mut state = self.inner.lock();
                state.dispatch.add_delegation(delegation.clone(), range);
                Ok(delegation)
            }
            Err(error) => {
                self.reclaim(&range);
                Err(error)
            }
        }
    }

    /// Takes a delegation back. Its workers serve this pool again as soon as they are free.
    pub fn take_back(&self, delegation: &Delegation) -> Result<(), Error> {
        let (lease, range) = {
            let mut state = self.inner.lock();
            let range = state.dispatch.remove_delegation(delegation).ok_or_else(|| {
                Error::new(
                    Code::NotFound,
                    "this pool has no such delegation, or has taken it back already",
                )
            })?;
            (state.dispatch.lease()?, range)
        };
        let taken = lease.take_back(delegation);
        self.reclaim(&range);
        match taken {
            // The delegation has expired.
            Err(error) if error.code() == Code::NotFound => Ok(()),
            taken => taken,
        }
    }

    /// Waits until the workers are idle, and closes their channels.
    fn close_when_idle(&self, range: &Range<u16>, limit: Duration) -> Result<(), Error> {
        let until = Instant::now() + limit;
        let mut state = self.inner.lock();
        while !state.dispatch.is_idle(range) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::new(
                    Code::TimedOut,
                    format!(
                        "the workers to be delegated did not end their calls within {} ms",
                        limit.as_millis()
                    ),
                ));
            }
            state = match state.is_driven {
                true => self.inner.wait_changed(state, left),
                false => self.inner.drive_until(state, left, |dispatch| dispatch.is_idle(range)),
            };
        }
        state.dispatch.close_channels(range);
        Ok(())
    }

    /// Lets the workers serve this pool again.
    fn reclaim(&self, range: &Range<u16>) {
        let mut state = self.inner.lock();
        state.dispatch.reclaim(range);
        self.inner.begin_repairs(&mut state);
        self.inner.changed.notify_all();
    }
}
