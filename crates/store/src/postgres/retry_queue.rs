//! Processing of a queue over a connection that may be lost: each entry is retried until it is done or has waited too
//! long.

use tokio::sync::mpsc;

use super::faults::Fault;
use super::{FIRST_WAIT, LAST_WAIT};

/// A queue and its connection.
pub trait RetryQueue<T: Send>: Send {
    /// Adds an entry.
    fn push(&mut self, one: T);

    fn is_empty(&self) -> bool;

    /// Processes the queue in order. After a fault, the remaining entries stay in the queue.
    fn attempt(&mut self) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Handles the loss of the connection.
    fn on_lost(&mut self, why: &str);

    /// Fails the entries that have waited too long.
    fn fail_late(&mut self, fault: &Fault);
}

/// Works until no more entries can be added.
pub async fn run<T: Send>(mut backlog: impl RetryQueue<T>, mut asked: mpsc::UnboundedReceiver<T>) {
    let mut wait = FIRST_WAIT;
    loop {
        if backlog.is_empty() {
            match asked.recv().await {
                Some(one) => backlog.push(one),
                None => return,
            }
        }
        while let Ok(one) = asked.try_recv() {
            backlog.push(one);
        }
        let fault = match backlog.attempt().await {
            Ok(()) => {
                wait = FIRST_WAIT;
                continue;
            }
            Err(fault) => fault,
        };
        if let Fault::Lost(why) = &fault {
            backlog.on_lost(why);
        }
        backlog.fail_late(&fault);
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(LAST_WAIT);
    }
}
