//! The asynchronous tasks of a node, and its end.

use std::sync::{Mutex, PoisonError};

use tokio::sync::{mpsc, watch};

/// Starts tasks until the node closes, and reports when all of them have ended.
#[derive(Debug)]
pub(crate) struct TaskGroup {
    closing: watch::Sender<bool>,
    /// Each task holds a copy. The receiver ends when the last copy is dropped.
    alive: Mutex<Option<mpsc::Sender<()>>>,
}

impl TaskGroup {
    /// An empty group. The receiver ends when the group is closed and all tasks have ended.
    pub fn new() -> (Self, mpsc::Receiver<()>) {
        let (alive, all_ended) = mpsc::channel(1);
        let group = Self {
            closing: watch::channel(false).0,
            alive: Mutex::new(Some(alive)),
        };
        (group, all_ended)
    }

    /// Runs a task to its end. Does nothing if the group is closed.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(alive) = alive else { return };
        tokio::spawn(async move {
            task.await;
            drop(alive);
        });
    }

    /// Runs a task until it ends or the node closes.
    pub fn spawn_until_closing(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut closing = self.closing.subscribe();
        self.spawn(async move {
            tokio::select! {
                () = task => {}
                _ = closing.wait_for(|closing| *closing) => {}
            }
        });
    }

    /// Becomes true when the node begins to close.
    pub fn closing(&self) -> watch::Receiver<bool> {
        self.closing.subscribe()
    }

    /// Whether the node is closing.
    pub fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// Ends the tasks that run until the node closes.
    pub fn begin_closing(&self) {
        self.closing.send_replace(true);
    }

    /// Starts no further tasks.
    pub fn close(&self) {
        drop(self.alive.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}
