//! The place of a post at its rank's engine, which has one.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use dayfly_protocol::error::Failure;

use crate::engine::SharedEngine;
use crate::wake::Wake;

/// While it exists, the engine wakes the post's thread for what other threads find.
#[derive(Debug)]
pub struct Registration {
    engine: Arc<SharedEngine>,
    /// The background task that wakes the thread when another one completes its requests.
    hook: usize,
}

impl Registration {
    /// # Errors
    /// [`dayfly_protocol::error::Code::InvalidRequest`] when the engine has a post already.
    pub fn new(engine: &Arc<SharedEngine>, wake: &Arc<Wake>) -> Result<Self, Failure> {
        let mut guard = engine.lock();
        guard.engine().attach_driver(wake)?;
        let wake = wake.clone();
        let hook = guard.background().add(Box::pin(poll_fn(move |_| {
            wake.wake();
            Poll::Pending
        })));
        drop(guard);
        Ok(Self {
            engine: engine.clone(),
            hook,
        })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut guard = self.engine.lock();
        guard.background().cancel(self.hook);
        guard.engine().detach_driver();
    }
}
