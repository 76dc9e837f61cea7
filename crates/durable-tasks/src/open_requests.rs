//! Questions to a dispatcher, each with the request that waits for its answer.

use std::collections::HashMap;

use tokio::sync::oneshot;

/// Questions of one kind that a dispatcher has not answered yet. Dropping it ends the waits.
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
    /// Opens a question. Returns its number, and where its answer arrives.
    pub fn ask(&mut self) -> (u64, oneshot::Receiver<T>) {
        // Requests that were given up wait no more.
        self.open.retain(|_, waiting| !waiting.is_closed());
        self.last += 1;
        let (waiting, answer) = oneshot::channel();
        self.open.insert(self.last, waiting);
        (self.last, answer)
    }

    /// Passes an answer on. Ignores the answer to a question that was not asked.
    pub fn answer(&mut self, number: u64, answer: T) {
        if let Some(waiting) = self.open.remove(&number) {
            let _ = waiting.send(answer);
        }
    }
}
