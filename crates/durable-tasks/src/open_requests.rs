//! Requests to a dispatcher that it has not answered, each with the receiver of its answer.

use std::collections::HashMap;

use tokio::sync::oneshot;

/// Unanswered requests of one kind to one dispatcher. Dropping it ends the waits.
pub struct OpenRequests<T> {
    last: u64,
    open: HashMap<u64, oneshot::Sender<T>>,
}

impl<T> Default for OpenRequests<T> {
    fn default() -> Self {
        Self {
            last: 0,
            open: HashMap::new(),
        }
    }
}

impl<T> OpenRequests<T> {
    /// Opens a request. Returns its number, and the receiver of its answer.
    pub fn open(&mut self) -> (u64, oneshot::Receiver<T>) {
        // Drops requests whose receivers have gone.
        self.open.retain(|_, waiting| !waiting.is_closed());
        self.last += 1;
        let (waiting, answer) = oneshot::channel();
        self.open.insert(self.last, waiting);
        (self.last, answer)
    }

    /// Passes an answer to its receiver. Ignores the answer to a request that is not open.
    pub fn answer(&mut self, number: u64, answer: T) {
        if let Some(waiting) = self.open.remove(&number) {
            let _ = waiting.send(answer);
        }
    }
}
