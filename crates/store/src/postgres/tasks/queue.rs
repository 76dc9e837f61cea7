//! What is written of tasks, in order: what waits is one transaction, and begins with a change of the row that says whose they are.
//!
//! That change waits for whoever else takes them, fails when somebody has, and leaves a number behind. After a lost connection that
//! number tells whether the transaction stands: so each is done once, and what was answered in it is right.

use std::collections::VecDeque;

use dayfly_protocol::ids::PublicKey;
use futures_util::future::try_join3;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::super::LAST_WAIT;
use super::super::backlog::{self, Backlog};
use super::super::connect::{Address, Link};
use super::super::faults::Fault;
use super::super::rows::signed;
use super::super::writer::{Alone, in_time};
use crate::system::random;
use crate::{LOAD_DEADLINE, StoreError, WRITE_DEADLINE};

/// Most writes in one transaction: bounds how long the first of them waits.
const GROUP: usize = 256;

/// Under which a manager has the tasks.
#[derive(Debug, Clone, Copy)]
pub struct Epoch {
    pub me: PublicKey,
    pub number: u64,
}

/// Whether something is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// With others, in one transaction.
    Write,
    /// By itself.
    Read,
    /// By itself, and takes long.
    Load,
}

/// Something to do.
pub struct Command {
    /// Since when it waits.
    pub since: Instant,
    /// Whether it writes.
    pub kind: Kind,
    /// What it is.
    pub job: Box<dyn Alone>,
}

struct Queue {
    address: Address,
    epoch: Epoch,
    link: Option<Link>,
    waiting: VecDeque<Command>,
    /// A transaction that may stand: its number, and how many of the first that wait were in it.
    doubt: Option<(i64, usize)>,
    /// Whether another manager has the tasks.
    over: bool,
}

/// Works until nobody can ask any more.
pub async fn run(address: Address, epoch: Epoch, commands: mpsc::UnboundedReceiver<Command>) {
    let queue = Queue {
        address,
        epoch,
        link: None,
        waiting: VecDeque::new(),
        doubt: None,
        over: false,
    };
    backlog::work(queue, commands).await;
}

impl Backlog<Command> for Queue {
    fn push(&mut self, one: Command) {
        self.waiting.push_back(one);
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    async fn attempt(&mut self) -> Result<(), Fault> {
        if self.link.as_ref().is_none_or(Link::is_closed) {
            match open(&self.address).await {
                Ok(open) => self.link = Some(open),
                Err(Fault::Refused(error)) => {
                    // Nothing can be done as things are: a wrong password, another release's tables.
                    return self.finish(self.waiting.len(), &Err(error));
                }
                Err(fault) => return Err(fault),
            }
        }
        let Some(link) = &self.link else { return Ok(()) };
        let kind = |command: &Command| command.kind;
        match self.waiting.front().map(kind) {
            None => Ok(()),
            Some(Kind::Write) if self.over => self.finish(1, &Err(StoreError::Moved)),
            Some(Kind::Write) => {
                let more = self.waiting.iter().take(GROUP);
                let count = more.take_while(|command| command.kind == Kind::Write).count();
                // What is in doubt is looked at as it was.
                let count = self.doubt.map_or(count, |(_, count)| count);
                self.write(count).await
            }
            Some(kind) => {
                let Some(first) = self.waiting.front_mut() else {
                    return Ok(());
                };
                let done = match kind {
                    Kind::Load => load(link, first.job.run(link)).await,
                    _ => in_time(link, first.job.run(link)).await,
                };
                self.settle(1, done)
            }
        }
    }

    fn lose(&mut self, why: &str) {
        tracing::warn!(why, "the connection to the tasks in the database is lost");
        self.link = None;
    }

    fn give_up_late(&mut self, fault: &Fault) {
        let now = Instant::now();
        while let Some(first) = self.waiting.front() {
            let patience = match first.kind {
                Kind::Load => LOAD_DEADLINE,
                _ => WRITE_DEADLINE,
            };
            if now.duration_since(first.since) + LAST_WAIT <= patience {
                return;
            }
            // It may stand; whoever sends it again hears that it is known.
            self.doubt = None;
            if let Some(late) = self.waiting.pop_front() {
                late.job.finish(Err(fault.told()));
            }
        }
    }
}

impl Queue {
    /// Writes so many of the first that wait.
    async fn write(&mut self, count: usize) -> Result<(), Fault> {
        let doubt = self.doubt.take();
        // Under the number of what is in doubt: it stands if either of them does.
        let number = doubt.map_or_else(|| i64::from_ne_bytes(random()), |(number, _)| number);
        let Some(link) = &self.link else { return Ok(()) };
        let group = self.waiting.iter_mut().take(count);
        let written = in_time(link, transaction(link, self.epoch, doubt, group, number)).await;
        match written {
            Ok(Written::Kept) => self.finish(count, &Ok(())),
            Ok(Written::Stale) => {
                self.over = true;
                self.finish(count, &Err(StoreError::Moved))
            }
            // One of them is at fault; the others need not suffer for it.
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

    /// Tells whoever waits, unless it is to be tried again.
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

/// Plans outlive the size that tables had when they were made: what is looked up in an empty one by reading all of it would be so
/// for ever. There is an index for whatever is asked often.
const PLANS: &str = "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off";

async fn open(address: &Address) -> Result<Link, Fault> {
    let link = Link::open(address, None).await?;
    link.batch(PLANS).await?;
    Ok(link)
}

enum Written {
    Kept,
    Stale,
}

/// One transaction. What was in doubt is found to stand, or written.
async fn transaction(
    link: &Link,
    epoch: Epoch,
    doubt: Option<(i64, usize)>,
    group: impl Iterator<Item = &mut Command>,
    number: i64,
) -> Result<Written, Fault> {
    if let Some((earlier, _)) = doubt {
        // Waits for it, if it is being committed just now.
        link.batch("BEGIN").await?;
        let found = link.query("SELECT written FROM tasks_owner FOR UPDATE", &[]).await?;
        let stands = found.first().map(|row| row.try_get::<_, i64>(0)).transpose()? == Some(earlier);
        link.batch("ROLLBACK").await?;
        if stands {
            return Ok(Written::Kept);
        }
    }
    const OWN: &str = "UPDATE tasks_owner SET written = $1 WHERE manager = $2 AND epoch = $3";
    let begin = async { link.batch("BEGIN").await.map_err(Fault::from) };
    let (manager, under) = (epoch.me.0.as_slice(), signed(epoch.number));
    let own = async {
        let changed = link.execute(OWN, &[&number, &manager, &under]).await;
        changed.map_err(Fault::from)
    };
    let jobs = async {
        for command in group {
            command.job.run(link).await?;
        }
        Ok(())
    };
    // Sent one after the other, without waiting for the answers of those before.
    let ((), owned, ()) = try_join3(begin, own, jobs).await?;
    if owned == 0 {
        link.batch("ROLLBACK").await?;
        return Ok(Written::Stale);
    }
    link.batch("COMMIT").await?;
    Ok(Written::Kept)
}

/// Reads what may be much.
async fn load(link: &Link, job: impl Future<Output = Result<(), Fault>>) -> Result<(), Fault> {
    let reading = async {
        link.batch("BEGIN READ ONLY; SET LOCAL statement_timeout = '60s'")
            .await?;
        job.await?;
        Ok(link.batch("COMMIT").await?)
    };
    let done = tokio::time::timeout(LOAD_DEADLINE, reading).await;
    let done = done.unwrap_or_else(|_| Err(Fault::Lost("it does not answer".into())));
    if let Err(Fault::Again(_) | Fault::Refused(_)) = &done {
        link.batch("ROLLBACK").await?;
    }
    done
}

impl Epoch {
    /// Whether the tasks are this manager's no more, from now on.
    pub async fn give_up(link: &Link, epoch: &Self) -> Result<(), Fault> {
        let sql = "UPDATE tasks_owner SET manager = NULL WHERE manager = $1 AND epoch = $2";
        link.execute(sql, &[&epoch.me.0.as_slice(), &signed(epoch.number)])
            .await?;
        Ok(())
    }
}
