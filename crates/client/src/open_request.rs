//! A request to open a channel. Opening takes as long as a worker takes to start. Another thread can cancel the
//! request; the worker is then free at once.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard};

use dayfly_protocol::error::Code;

use crate::Error;

/// A request to open one channel. Any thread may cancel it.
#[derive(Default)]
pub struct OpenRequest(Mutex<Stage>);

#[derive(Default)]
enum Stage {
    #[default]
    Begun,
    /// The request is on this connection.
    Sent(OwnedFd),
    Opened,
    Cancelled,
}

impl OpenRequest {
    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Records the connection that carries the request. Returns an error if [`OpenRequest::cancel`] was called before.
    pub fn send_over(&self, connection: impl AsFd) -> Result<(), Error> {
        let mut stage = self.stage();
        if matches!(*stage, Stage::Cancelled) {
            return Err(cancelled());
        }
        let copy = connection.as_fd().try_clone_to_owned();
        *stage = Stage::Sent(copy.map_err(|error| Error::new(Code::OutOfMemory, error.to_string()))?);
        Ok(())
    }

    /// Records that the channel is open. Returns an error if [`OpenRequest::cancel`] was called before.
    pub fn complete(&self) -> Result<(), Error> {
        let mut stage = self.stage();
        if matches!(*stage, Stage::Cancelled) {
            return Err(cancelled());
        }
        *stage = Stage::Opened;
        Ok(())
    }

    /// Cancels the request and shuts its connection down, so that the node notices. Does nothing to an open channel.
    pub fn cancel(&self) {
        let mut stage = self.stage();
        match &*stage {
            Stage::Begun | Stage::Cancelled => {}
            Stage::Sent(connection) => {
                let _ = rustix::net::shutdown(connection, rustix::net::Shutdown::Both);
            }
            Stage::Opened => return,
        }
        *stage = Stage::Cancelled;
    }
}

fn cancelled() -> Error {
    Error::new(Code::LeaseEnded, "the opening of the channel was cancelled")
}
