//! A channel that is being opened. Opening takes as long as a worker takes to start. Another thread can end it, and the
//! worker is then free at once.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard};

use dayfly_protocol::error::Code;

use crate::Error;

/// The stage of one channel's opening. Any thread may end it.
#[derive(Default)]
pub struct Opening(Mutex<Stage>);

#[derive(Default)]
enum Stage {
    #[default]
    Begun,
    /// The request is on this connection.
    Asked(OwnedFd),
    Opened,
    Ended,
}

impl Opening {
    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Records the connection that carries the request. Returns an error if [`Opening::end`] was called before.
    pub fn asks(&self, connection: impl AsFd) -> Result<(), Error> {
        let mut stage = self.stage();
        if matches!(*stage, Stage::Ended) {
            return Err(unwanted());
        }
        let copy = connection.as_fd().try_clone_to_owned();
        *stage = Stage::Asked(copy.map_err(|error| Error::new(Code::OutOfMemory, error.to_string()))?);
        Ok(())
    }

    /// Records that the channel is open. Returns an error if [`Opening::end`] was called before.
    pub fn opened(&self) -> Result<(), Error> {
        let mut stage = self.stage();
        if matches!(*stage, Stage::Ended) {
            return Err(unwanted());
        }
        *stage = Stage::Opened;
        Ok(())
    }

    /// Ends the opening and shuts its connection down, so that the node notices. Does nothing to an open channel.
    pub fn end(&self) {
        let mut stage = self.stage();
        match &*stage {
            Stage::Begun | Stage::Ended => {}
            Stage::Asked(connection) => {
                let _ = rustix::net::shutdown(connection, rustix::net::Shutdown::Both);
            }
            Stage::Opened => return,
        }
        *stage = Stage::Ended;
    }
}

fn unwanted() -> Error {
    Error::new(Code::LeaseEnded, "the channel was given up while it was being opened")
}
