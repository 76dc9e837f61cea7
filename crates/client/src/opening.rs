//! A channel while it is being opened. That takes as long as a worker takes to start, and whoever has no use for the channel
//! any more can end it from another thread, so that the worker is free for somebody else at once.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard};

use dayfly_protocol::error::Code;

use crate::Error;

/// How far the opening of one channel is.
#[derive(Default)]
pub struct Opening(Mutex<Stage>);

#[derive(Default)]
enum Stage {
    #[default]
    Begun,
    /// The node was asked over this connection.
    Asked(OwnedFd),
    Opened,
    Ended,
}

impl Opening {
    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The node is about to be asked over this connection. An error if nobody wants the channel any more.
    pub fn asks(&self, connection: impl AsFd) -> Result<(), Error> {
        let mut stage = self.stage();
        if matches!(*stage, Stage::Ended) {
            return Err(unwanted());
        }
        let copy = connection.as_fd().try_clone_to_owned();
        *stage = Stage::Asked(copy.map_err(|error| Error::new(Code::OutOfMemory, error.to_string()))?);
        Ok(())
    }

    /// The channel is open. An error if nobody wants it any more.
    pub fn opened(&self) -> Result<(), Error> {
        let mut stage = self.stage();
        if matches!(*stage, Stage::Ended) {
            return Err(unwanted());
        }
        *stage = Stage::Opened;
        Ok(())
    }

    /// Nobody wants the channel any more: when this returns, its node can tell. Does nothing to an open channel.
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
