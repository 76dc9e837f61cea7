//! The task that writes. Waiting writes are written together, and repeated if a connection is lost before the result is
//! certain.
//!
//! Every write is idempotent, so a lost connection costs only time. A caller gets an error only after the time limit.

use std::collections::VecDeque;

use dayfly_protocol::ids::PublicKey;
use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::connect::{Address, Session};
use super::faults::Fault;
use super::lease_batch::{self, Entry, EntryResult};
use super::retry_queue::{self, RetryQueue};
use super::{LAST_WAIT, STATEMENT_DEADLINE};
use crate::{StoreError, WRITE_DEADLINE};

/// Most entries in one transaction. Limits how long the first of them waits.
const GROUP: usize = 256;

/// A write that runs in a transaction opened by the caller.
pub trait Job: Send {
    /// Runs the write. May be called again.
    fn run<'a>(&'a mut self, session: &'a Session) -> BoxFuture<'a, Result<(), Fault>>;
    /// Sends the result to the caller.
    fn finish(self: Box<Self>, result: Result<(), StoreError>);
}

/// A closure and the receiver of its result.
pub struct Action<T, F> {
    pub action: F,
    pub outcome: Option<T>,
    pub reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, F> Job for Action<T, F>
where
    T: Send,
    F: for<'a> Fn(&'a Session) -> BoxFuture<'a, Result<T, Fault>> + Send,
{
    fn run<'a>(&'a mut self, session: &'a Session) -> BoxFuture<'a, Result<(), Fault>> {
        let running = (self.action)(session);
        Box::pin(async {
            self.outcome = Some(running.await?);
            Ok(())
        })
    }

    fn finish(self: Box<Self>, result: Result<(), StoreError>) {
        let Self { outcome, reply, .. } = *self;
        send_result(reply, result, outcome);
    }
}

/// Sends the result to the caller.
pub fn send_result<T>(
    reply: oneshot::Sender<Result<T, StoreError>>,
    result: Result<(), StoreError>,
    outcome: Option<T>,
) {
    let missing = || StoreError::Broken("a write was not run".into());
    // The caller may have stopped waiting. The write is valid all the same.
    let _ = reply.send(result.and_then(|()| outcome.ok_or_else(missing)));
}

/// The content of a write.
pub enum WriteKind {
    /// An entry of a common transaction.
    Batched(Entry, oneshot::Sender<Result<EntryResult, StoreError>>),
    /// A write in a separate transaction.
    Separate(Box<dyn Job>),
}

/// A queued write.
pub struct Write {
    /// When it was queued.
    pub since: Instant,
    pub what: WriteKind,
}

impl WriteKind {
    fn fail(self, error: StoreError) {
        match self {
            Self::Batched(_, reply) => drop(reply.send(Err(error))),
            Self::Separate(alone) => alone.finish(Err(error)),
        }
    }
}

/// Writes until no more writes can be queued.
pub async fn write(address: Address, me: PublicKey, asked: mpsc::UnboundedReceiver<Write>) {
    let writes = Writes {
        address,
        me,
        session: None,
        waiting: VecDeque::new(),
    };
    retry_queue::run(writes, asked).await;
}

/// Queued writes and their connection.
struct Writes {
    address: Address,
    me: PublicKey,
    session: Option<Session>,
    waiting: VecDeque<Write>,
}

impl RetryQueue<Write> for Writes {
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
            session,
            waiting,
        } = self;
        let session = match session {
            Some(open) if !open.is_closed() => open,
            other => match Session::open(address, None).await {
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
                WriteKind::Separate(mut alone) => {
                    let result = within_deadline(session, async {
                        session.batch("BEGIN").await?;
                        alone.run(session).await?;
                        Ok(session.batch("COMMIT").await?)
                    });
                    let result = result.await;
                    match result {
                        Ok(()) => alone.finish(Ok(())),
                        Err(Fault::Refused(error)) => alone.finish(Err(error)),
                        Err(fault) => {
                            waiting.push_front(Write {
                                since,
                                what: WriteKind::Separate(alone),
                            });
                            return Err(fault);
                        }
                    }
                }
                WriteKind::Batched(entry, reply) => {
                    let mut group = vec![entry];
                    let mut replies = vec![(since, reply)];
                    while group.len() < GROUP
                        && let Some(next) = waiting.pop_front()
                    {
                        match next.what {
                            WriteKind::Batched(entry, reply) => {
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
                    write_group(session, *me, group, replies, waiting).await?;
                }
            }
        }
        Ok(())
    }

    fn on_lost(&mut self, why: &str) {
        tracing::warn!(
            database = self.address.describe(),
            why,
            "the connection to the database is lost"
        );
        self.session = None;
    }

    fn fail_late(&mut self, fault: &Fault) {
        let now = Instant::now();
        let is_late = |write: &Write| now.duration_since(write.since) + LAST_WAIT > WRITE_DEADLINE;
        while self.waiting.front().is_some_and(is_late) {
            if let Some(write) = self.waiting.pop_front() {
                write.what.fail(fault.to_error());
            }
        }
    }
}

/// When an entry was queued, and where its result goes.
type Waiting = (Instant, oneshot::Sender<Result<EntryResult, StoreError>>);

async fn write_group(
    session: &Session,
    me: PublicKey,
    group: Vec<Entry>,
    replies: Vec<Waiting>,
    waiting: &mut VecDeque<Write>,
) -> Result<(), Fault> {
    match within_deadline(session, lease_batch::write(session, me, &group)).await {
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
                match within_deadline(session, lease_batch::write(session, me, one)).await {
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
            what: WriteKind::Batched(entry, reply),
        });
    }
}

/// Runs a transaction within its time limit. Rolls back a failed one.
pub async fn within_deadline<T>(session: &Session, work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let done = tokio::time::timeout(STATEMENT_DEADLINE, work).await;
    let result = done.unwrap_or_else(|_| Err(Fault::Lost("it does not respond".into())));
    if let Err(Fault::Again(_) | Fault::Refused(_)) = &result {
        session.batch("ROLLBACK").await?;
    }
    result
}
