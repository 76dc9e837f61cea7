//! Doing what waits over a connection that may be lost: again and again, until it is done or whoever waits has waited for too long.

use tokio::sync::mpsc;

use super::faults::Fault;
use super::{FIRST_WAIT, LAST_WAIT};

/// What waits, and the connection that it is done over.
pub trait Backlog<T: Send>: Send {
    /// Something more.
    fn push(&mut self, one: T);

    /// Whether nothing waits.
    fn is_empty(&self) -> bool;

    /// Does what waits, in order. A fault leaves what was not done.
    fn attempt(&mut self) -> impl Future<Output = Result<(), Fault>> + Send;

    /// The connection is lost.
    fn lose(&mut self, why: &str);

    /// Whoever has waited for too long hears why.
    fn give_up_late(&mut self, fault: &Fault);
}

/// Works until nobody can ask any more.
pub async fn work<T: Send>(mut backlog: impl Backlog<T>, mut asked: mpsc::UnboundedReceiver<T>) {
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
            backlog.lose(why);
        }
        backlog.give_up_late(&fault);
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(LAST_WAIT);
    }
}
