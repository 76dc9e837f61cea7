//! Writes in progress.

use std::time::Duration;

use tokio::sync::oneshot;

use crate::{StoreError, WRITE_DEADLINE};

/// A write in progress.
#[derive(Debug)]
pub struct Pending<T>(pub(crate) oneshot::Receiver<Result<T, StoreError>>);

impl<T> Pending<T> {
    /// Returns a write that has completed or failed.
    pub fn ready(result: Result<T, StoreError>) -> Self {
        let (sender, receiver) = oneshot::channel();
        // The receiver exists, so sending cannot fail.
        let _ = sender.send(result);
        Self(receiver)
    }

    /// Waits until the write is durable or has failed. After the time limit, with [`StoreError::Slow`], it may still
    /// become durable.
    pub async fn wait(self) -> Result<T, StoreError> {
        self.within(WRITE_DEADLINE).await
    }

    /// Like [`Pending::wait`], with another time limit.
    pub async fn within(self, deadline: Duration) -> Result<T, StoreError> {
        match tokio::time::timeout(deadline, self.0).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(StoreError::Broken("its writer has stopped".into())),
            Err(_) => Err(StoreError::Slow),
        }
    }
}

impl<T> From<oneshot::Receiver<Result<T, StoreError>>> for Pending<T> {
    /// Returns a write whose result the store sends. It fails if the sender is dropped.
    fn from(result: oneshot::Receiver<Result<T, StoreError>>) -> Self {
        Self(result)
    }
}
