//! The task that writes. Waiting writes are written together, and repeated if a connection is lost before the result is
//! certain.
//!
//! Every write is idempotent, so a lost connection costs only time. A caller gets an error only after the time limit.

use std::collections::VecDeque;

use dayfly_protocol::ids::PublicKey;
use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::backlog::{self, Backlog};
use super::books::{self, Done, Entry};
use super::connect::{Address, Link};
use super::faults::Fault;
use super::{LAST_WAIT, STATEMENT_DEADLINE};
use crate::{StoreError, WRITE_DEADLINE};

/// Most entries in one transaction. Limits how long the first of them waits.
const GROUP: usize = 256;

/// A write that runs in a transaction opened by the caller.
pub trait Alone: Send {
    /// Runs the write. May be called again.
    fn run<'a>(&'a mut self, link: &'a Link) -> BoxFuture<'a, Result<(), Fault>>;
    /// Sends the result to the caller.
    fn finish(self: Box<Self>, result: Result<(), StoreError>);
}

/// A closure and the receiver of its result.
pub struct Action<T, F> {
    pub action: F,
    pub outcome: Option<T>,
    pub reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, F> Alone for Action<T, F>
where
    T: Send,
    F: for<'a> Fn(&'a Link) -> BoxFuture<'a, Result<T, Fault>> + Send,
{
    fn run<'a>(&'a mut self, link: &'a Link) -> BoxFuture<'a, Result<(), Fault>> {
        let running = (self.action)(link);
        Box::pin(async {
            self.outcome = Some(running.await?);
            Ok(())
        })
    }

    fn finish(self: Box<Self>, result: Result<(), StoreError>) {
        let Self { outcome, reply, .. } = *self;
        answer(reply, result, outcome);
    }
}

/// Sends the result to the caller.
pub fn answer<T>(reply: oneshot::Sender<Result<T, StoreError>>, result: Result<(), StoreError>, outcome: Option<T>) {
    let missing = || StoreError::Broken("a write was not run".into());
    // The caller may have stopped waiting. The write is valid all the same.
    let _ = reply.send(result.and_then(|()| outcome.ok_or_else(missing)));
}

/// The content of a write.
pub enum What {
    /// An entry of a common transaction.
    Together(Entry, oneshot::Sender<Result<Done, StoreError>>),
    /// A write in a separate transaction.
    Alone(Box<dyn Alone>),
}

/// A queued write.
pub struct Write {
    /// When it was queued.
    pub since: Instant,
    pub what: What,
}

impl What {
    fn fail(self, error: StoreError) {
        match self {
            Self::Together(_, reply) => drop(reply.send(Err(error))),
            Self::Alone(alone) => alone.finish(Err(error)),
        }
    }
}

/// Writes until no more writes can be queued.
pub async fn write(address: Address, me: PublicKey, asked: mpsc::UnboundedReceiver<Write>) {
    let writes = Writes {
        address,
        me,
        link: None,
        waiting: VecDeque::new(),
    };
    backlog::work(writes, asked).await;
}

/// Queued writes and their connection.
struct Writes {
    address: Address,
    me: PublicKey,
    link: Option<Link>,
    waiting: VecDeque<Write>,
}

impl Backlog<Write> for Writes {
    fn push(&mut self, one: Write) {
        self.waiting.push_back(one);
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    async fn attempt(&mut self) -> Result<(), Fault> {
        let Self {
            address,
            me,
            link,
            waiting,
        } = self;
        let link = match link {
            Some(open) if !open.is_closed() => open,
            other => match Link::open(address, None).await {
                Ok(open) => other.insert(open),
                Err(Fault::Refused(error)) => {
                    // Retrying cannot help: the password is wrong, or the tables are of another release.
                    for write in waiting.drain(..) {
                        write.what.fail(error.clone());
                    }
                    return Ok(());
                }
                Err(fault) => return Err(fault),
            },
        };
        while let Some(first) = waiting.pop_front() {
            let Write { since, what } = first;
            match what {
                What::Alone(mut alone) => {
                    let result = in_time(link, async {
                        link.batch("BEGIN").await?;
                        alone.run(link).await?;
                        Ok(link.batch("COMMIT").await?)
                    });
                    let result = result.await;
                    match result {
                        Ok(()) => alone.finish(Ok(())),
                        Err(Fault::Refused(error)) => alone.finish(Err(error)),
                        Err(fault) => {
                            waiting.push_front(Write {
                                since,
                                what: What::Alone(alone),
                            });
                            return Err(fault);
                        }
                    }
                }
                What::Together(entry, reply) => {
                    let mut group = vec![entry];
                    let mut replies = vec![(since, reply)];
                    while group.len() < GROUP
                        && let Some(next) = waiting.pop_front()
                    {
                        match next.what {
                            What::Together(entry, reply) => {
                                group.push(entry);
                                replies.push((next.since, reply));
                            }
                            what => {
                                waiting.push_front(Write {
                                    since: next.since,
                                    what,
                                });
                                break;
                            }
                        }
                    }
                    together(link, *me, group, replies, waiting).await?;
                }
            }
        }
        Ok(())
    }

    fn lose(&mut self, why: &str) {
        tracing::warn!(
            database = self.address.describe(),
            why,
            "the connection to the database is lost"
        );
        self.link = None;
    }

    fn give_up_late(&mut self, fault: &Fault) {
        let now = Instant::now();
        let is_late = |write: &Write| now.duration_since(write.since) + LAST_WAIT > WRITE_DEADLINE;
        while self.waiting.front().is_some_and(is_late) {
            if let Some(write) = self.waiting.pop_front() {
                write.what.fail(fault.told());
            }
        }
    }
}

/// When an entry was queued, and where its result goes.
type Waiting = (Instant, oneshot::Sender<Result<Done, StoreError>>);

async fn together(
    link: &Link,
    me: PublicKey,
    group: Vec<Entry>,
    replies: Vec<Waiting>,
    waiting: &mut VecDeque<Write>,
) -> Result<(), Fault> {
    match in_time(link, books::write(link, me, &group)).await {
        Ok(done) => {
            for (done, (_, reply)) in done.into_iter().zip(replies) {
                let _ = reply.send(Ok(done));
            }
            Ok(())
        }
        // One of them is at fault. Run each alone, so that the others succeed.
        Err(Fault::Refused(_)) if group.len() > 1 => {
            let mut rest: VecDeque<_> = group.into_iter().zip(replies).collect();
            while let Some((entry, reply)) = rest.pop_front() {
                let (since, reply) = reply;
                let one = std::slice::from_ref(&entry);
                match in_time(link, books::write(link, me, one)).await {
                    Ok(done) => drop(
                        reply.send(
                            done.into_iter()
                                .next()
                                .ok_or_else(|| StoreError::Broken("a write was not run".into())),
                        ),
                    ),
                    Err(Fault::Refused(error)) => drop(reply.send(Err(error))),
                    Err(fault) => {
                        rest.push_front((entry, (since, reply)));
                        put_back(waiting, rest);
                        return Err(fault);
                    }
                }
            }
            Ok(())
        }
        Err(Fault::Refused(error)) => {
            for (_, reply) in replies {
                let _ = reply.send(Err(error.clone()));
            }
            Ok(())
        }
        Err(fault) => {
            put_back(waiting, group.into_iter().zip(replies).collect());
            Err(fault)
        }
    }
}

fn put_back(waiting: &mut VecDeque<Write>, mut rest: VecDeque<(Entry, Waiting)>) {
    while let Some((entry, (since, reply))) = rest.pop_back() {
        waiting.push_front(Write {
            since,
            what: What::Together(entry, reply),
        });
    }
}

/// Runs a transaction within its time limit. Rolls back a failed one.
pub async fn in_time<T>(link: &Link, work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let done = tokio::time::timeout(STATEMENT_DEADLINE, work).await;
    let result = done.unwrap_or_else(|_| Err(Fault::Lost("it does not answer".into())));
    if let Err(Fault::Again(_) | Fault::Refused(_)) = &result {
        link.batch("ROLLBACK").await?;
    }
    result
}
