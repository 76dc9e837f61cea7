//! Ordered writes of tasks. All waiting writes form one transaction, which begins with an update of the row that names
//! the owner of the tasks.
//!
//! That update waits for another manager's takeover, fails after one, and writes a number. After a lost connection the
//! number shows whether the transaction was committed. Each write is therefore done exactly once, and its results are
//! valid.

use std::collections::VecDeque;

use dayfly_protocol::ids::PublicKey;
use futures_util::future::try_join3;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::super::LAST_WAIT;
use super::super::connect::{Address, Session};
use super::super::faults::Fault;
use super::super::retry_queue::{self, RetryQueue};
use super::super::rows::signed;
use super::super::writer::{Job, within_deadline};
use crate::system::random;
use crate::{LOAD_DEADLINE, StoreError, WRITE_DEADLINE};

/// Most writes in one transaction. Limits how long the first of them waits.
const GROUP: usize = 256;

/// The epoch in which a manager owns the tasks.
#[derive(Debug, Clone, Copy)]
pub struct Epoch {
    pub me: PublicKey,
    pub number: u64,
}

/// Kind of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A write, in one transaction with others.
    Write,
    /// A read by itself.
    Read,
    /// A read by itself that takes long.
    Load,
}

/// A queued command.
pub struct Command {
    /// When it was queued.
    pub since: Instant,
    pub kind: Kind,
    /// The work.
    pub job: Box<dyn Job>,
}

struct Queue {
    address: Address,
    epoch: Epoch,
    session: Option<Session>,
    waiting: VecDeque<Command>,
    /// A transaction that may have been committed: its number, and how many of the first waiting commands it contains.
    doubt: Option<(i64, usize)>,
    /// Whether another manager has the tasks.
    over: bool,
}

/// Works until no more commands can be queued.
pub async fn run(address: Address, epoch: Epoch, commands: mpsc::UnboundedReceiver<Command>) {
    let queue = Queue {
        address,
        epoch,
        session: None,
        waiting: VecDeque::new(),
        doubt: None,
        over: false,
    };
    retry_queue::run(queue, commands).await;
}

impl RetryQueue<Command> for Queue {
    fn push(&mut self, one: Command) {
        self.waiting.push_back(one);
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    async fn attempt(&mut self) -> Result<(), Fault> {
        if self.session.as_ref().is_none_or(Session::is_closed) {
            match open(&self.address).await {
                Ok(open) => self.session = Some(open),
                Err(Fault::Refused(error)) => {
                    // Retrying cannot help: the password is wrong, or the tables are of another release.
                    return self.finish(self.waiting.len(), &Err(error));
                }
                Err(fault) => return Err(fault),
            }
        }
        let Some(session) = &self.session else { return Ok(()) };
        let kind = |command: &Command| command.kind;
        match self.waiting.front().map(kind) {
            None => Ok(()),
            Some(Kind::Write) if self.over => self.finish(1, &Err(StoreError::Moved)),
            Some(Kind::Write) => {
                let more = self.waiting.iter().take(GROUP);
                let count = more.take_while(|command| command.kind == Kind::Write).count();
                // A transaction in doubt is repeated with the same commands.
                let count = self.doubt.map_or(count, |(_, count)| count);
                self.write(count).await
            }
            Some(kind) => {
                let Some(first) = self.waiting.front_mut() else {
                    return Ok(());
                };
                let done = match kind {
                    Kind::Load => load(session, first.job.run(session)).await,
                    _ => within_deadline(session, first.job.run(session)).await,
                };
                self.settle(1, done)
            }
        }
    }

    fn on_lost(&mut self, why: &str) {
        tracing::warn!(why, "the connection to the tasks in the database is lost");
        self.session = None;
    }

    fn fail_late(&mut self, fault: &Fault) {
        let now = Instant::now();
        while let Some(first) = self.waiting.front() {
            let patience = match first.kind {
                Kind::Load => LOAD_DEADLINE,
                _ => WRITE_DEADLINE,
            };
            if now.duration_since(first.since) + LAST_WAIT <= patience {
                return;
            }
            // It may have been committed. A repetition by the caller finds that it is known.
            self.doubt = None;
            if let Some(late) = self.waiting.pop_front() {
                late.job.finish(Err(fault.to_error()));
            }
        }
    }
}

impl Queue {
    /// Writes the first `count` commands.
    async fn write(&mut self, count: usize) -> Result<(), Fault> {
        let doubt = self.doubt.take();
        // Use the number of the transaction in doubt: the write is done if either of the two commits.
        let number = doubt.map_or_else(|| i64::from_ne_bytes(random()), |(number, _)| number);
        let Some(session) = &self.session else { return Ok(()) };
        let group = self.waiting.iter_mut().take(count);
        let written = within_deadline(session, transaction(session, self.epoch, doubt, group, number)).await;
        match written {
            Ok(Written::Kept) => self.finish(count, &Ok(())),
            Ok(Written::Stale) => {
                self.over = true;
                self.finish(count, &Err(StoreError::Moved))
            }
            // One of them is at fault. Run each alone, so that the others succeed.
            Err(Fault::Refused(_)) if count > 1 => {
                for _ in 0..count {
                    Box::pin(self.write(1)).await?;
                }
                Ok(())
            }
            Err(Fault::Lost(why)) => {
                self.doubt = Some((number, count));
                Err(Fault::Lost(why))
            }
            Err(fault) => {
                self.doubt = doubt.filter(|_| matches!(fault, Fault::Again(_)));
                self.settle(count, Err(fault))
            }
        }
    }

    /// Completes commands, unless they must be retried.
    fn settle(&mut self, count: usize, done: Result<(), Fault>) -> Result<(), Fault> {
        match done {
            Ok(()) => self.finish(count, &Ok(())),
            Err(Fault::Refused(error)) => self.finish(count, &Err(error)),
            Err(fault) => Err(fault),
        }
    }

    fn finish(&mut self, count: usize, result: &Result<(), StoreError>) -> Result<(), Fault> {
        for command in self.waiting.drain(..count) {
            command.job.finish(result.clone());
        }
        Ok(())
    }
}

/// Cached plans outlive the table sizes that they were made for: a plan that scans an empty table would do so forever.
/// There is an index for every frequent query.
const PLANS: &str = "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off";

async fn open(address: &Address) -> Result<Session, Fault> {
    let session = Session::open(address, None).await?;
    session.batch(PLANS).await?;
    Ok(session)
}

enum Written {
    Kept,
    Stale,
}

/// Runs one transaction. If the transaction in doubt was committed, does nothing.
async fn transaction(
    session: &Session,
    epoch: Epoch,
    doubt: Option<(i64, usize)>,
    group: impl Iterator<Item = &mut Command>,
    number: i64,
) -> Result<Written, Fault> {
    if let Some((earlier, _)) = doubt {
        // Wait for it if it is being committed now.
        session.batch("BEGIN").await?;
        let found = session.query("SELECT written FROM tasks_owner FOR UPDATE", &[]).await?;
        let stands = found.first().map(|row| row.try_get::<_, i64>(0)).transpose()? == Some(earlier);
        session.batch("ROLLBACK").await?;
        if stands {
            return Ok(Written::Kept);
        }
    }
    const OWN: &str = "UPDATE tasks_owner SET written = $1 WHERE manager = $2 AND epoch = $3";
    let begin = async { session.batch("BEGIN").await.map_err(Fault::from) };
    let (manager, under) = (epoch.me.0.as_slice(), signed(epoch.number));
    let own = async {
        let changed = session.execute(OWN, &[&number, &manager, &under]).await;
        changed.map_err(Fault::from)
    };
    let jobs = async {
        for command in group {
            command.job.run(session).await?;
        }
        Ok(())
    };
    // Sent one after the other, without waiting for the earlier responses.
    let ((), owned, ()) = try_join3(begin, own, jobs).await?;
    if owned == 0 {
        session.batch("ROLLBACK").await?;
        return Ok(Written::Stale);
    }
    session.batch("COMMIT").await?;
    Ok(Written::Kept)
}

/// Runs a read that may return much data.
async fn load(session: &Session, job: impl Future<Output = Result<(), Fault>>) -> Result<(), Fault> {
    let reading = async {
        session
            .batch("BEGIN READ ONLY; SET LOCAL statement_timeout = '60s'")
            .await?;
        job.await?;
        Ok(session.batch("COMMIT").await?)
    };
    let done = tokio::time::timeout(LOAD_DEADLINE, reading).await;
    let done = done.unwrap_or_else(|_| Err(Fault::Lost("it does not respond".into())));
    if let Err(Fault::Again(_) | Fault::Refused(_)) = &done {
        session.batch("ROLLBACK").await?;
    }
    done
}

impl Epoch {
    /// Releases the ownership of the tasks.
    pub async fn give_up(session: &Session, epoch: &Self) -> Result<(), Fault> {
        let sql = "UPDATE tasks_owner SET manager = NULL WHERE manager = $1 AND epoch = $2";
        session
            .execute(sql, &[&epoch.me.0.as_slice(), &signed(epoch.number)])
            .await?;
        Ok(())
    }
}
