//! The one task that writes: what waits is written together, and again where a connection was lost before it was certain.
//!
//! Every write may be repeated without harm, so that a lost connection costs nobody anything but time: whoever waits is told no
//! only when the deadline has passed.

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

/// Most entries in one transaction: bounds how long the first of them waits.
const GROUP: usize = 256;

/// Something that is written in a transaction that somebody else opened.
pub trait Alone: Send {
    /// Runs it; it may be run again.
    fn run<'a>(&'a mut self, link: &'a Link) -> BoxFuture<'a, Result<(), Fault>>;
    /// Tells whoever waits.
    fn finish(self: Box<Self>, result: Result<(), StoreError>);
}

/// An action with somebody who waits for its outcome.
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

/// Tells whoever waits for an outcome.
pub fn answer<T>(reply: oneshot::Sender<Result<T, StoreError>>, result: Result<(), StoreError>, outcome: Option<T>) {
    let missing = || StoreError::Broken("a write was not run".into());
    // Whoever asked may have stopped waiting; the write stands all the same.
    let _ = reply.send(result.and_then(|()| outcome.ok_or_else(missing)));
}

/// What is to be written.
pub enum What {
    /// With others, in one transaction.
    Together(Entry, oneshot::Sender<Result<Done, StoreError>>),
    /// By itself.
    Alone(Box<dyn Alone>),
}

/// A write that waits.
pub struct Write {
    /// Since when.
    pub since: Instant,
    /// For what.
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

/// Writes until nobody can ask any more.
pub async fn write(address: Address, me: PublicKey, asked: mpsc::UnboundedReceiver<Write>) {
    let writes = Writes {
        address,
        me,
        link: None,
        waiting: VecDeque::new(),
    };
    backlog::work(writes, asked).await;
}

/// What is to be written, and over which connection.
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
                    // Nothing can be written as things are: a wrong password, another release's tables.
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

/// Who waits, and since when.
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
        // One of them is at fault; the others need not suffer for it.
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

/// Runs a transaction within the deadline of one; what is left of one that failed is undone.
pub async fn in_time<T>(link: &Link, work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let done = tokio::time::timeout(STATEMENT_DEADLINE, work).await;
    let result = done.unwrap_or_else(|_| Err(Fault::Lost("it does not answer".into())));
    if let Err(Fault::Again(_) | Fault::Refused(_)) = &result {
        link.batch("ROLLBACK").await?;
    }
    result
}
