//! Functions and tasks in PostgreSQL, owned by one of several managers at a time.
//!
//! There is one owner because the queue, idempotency and the order of execution are decided in memory. A separate row
//! names the owner, with an epoch that grows with each change. Every write of tasks also updates that row, so that a
//! manager that was stopped or cut off writes nothing after another one has taken over.

mod contents;
mod flows;
mod loans;
mod operations;
mod queries;
mod queue;
mod retention;
pub(super) mod schema;
mod task_rows;
mod task_store;
mod teams;
mod triggers;

use std::time::Duration;

use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::PublicKey;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_postgres::Row;

use self::queue::{Command, Epoch, Kind};
use super::connect::{Address, Session};
use super::faults::Fault;
use super::reader::Reader;
use super::rows::{self, signed};
use super::writer::{Job, send_result};
use crate::{Pending, StoreError};

/// The owner of the tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TasksOwner {
    /// The manager; `None` between two owners.
    pub manager: Option<PublicKey>,
    /// Grows whenever a manager takes over.
    pub epoch: u64,
    /// Id of the content store with their long payloads, once an owner has set it.
    pub contents: Option<[u8; 16]>,
}

/// A manager's access to the shared tasks, whether it owns them or not.
pub struct SharedTasks {
    me: PublicKey,
    address: Address,
    reader: Reader,
}

impl SharedTasks {
    /// Returns the access of the manager with this key.
    pub fn new(url: &str, me: PublicKey) -> Result<Self, StoreError> {
        let address = Address::parse(url)?;
        Ok(Self {
            me,
            reader: Reader::new(address.clone()),
            address,
        })
    }

    /// Returns the current owner.
    pub fn owner(&self) -> Pending<TasksOwner> {
        let owner = |session: std::sync::Arc<Session>| async move {
            let found = session
                .query("SELECT manager, epoch, contents FROM tasks_owner", &[])
                .await?;
            let row = found.first().ok_or_else(missing)?;
            Ok(TasksOwner {
                manager: optional(row, 0)?.map(PublicKey),
                epoch: rows::unsigned(row, 1)?,
                contents: optional(row, 2)?,
            })
        };
        self.reader.read(move |session| owner(session).boxed())
    }

    /// Takes over the tasks for this manager. Returns `None` if another owner was active within `silent`, or if the
    /// tasks' content store is not the one of this manager.
    pub async fn take(
        &self,
        contents: Option<[u8; 16]>,
        silent: Duration,
    ) -> Result<Option<PostgresTasks>, StoreError> {
        const TAKE: &str = "UPDATE tasks_owner SET manager = $1, epoch = epoch + 1
            WHERE (contents IS NULL OR contents = $2) AND (manager IS NULL OR manager = $1 OR NOT EXISTS
            (SELECT FROM managers WHERE key = tasks_owner.manager AND seen > now() - $3::BIGINT * INTERVAL '1 millisecond'))
            RETURNING epoch";
        let me = self.me;
        let silent_ms = signed(u64::try_from(silent.as_millis()).unwrap_or(u64::MAX));
        // A repetition after a lost connection takes over again. The returned epoch is the valid one.
        let taken = self.reader.read(move |session| {
            async move {
                let contents = contents.as_ref().map(|name| name.as_slice());
                let taken = session.query(TAKE, &[&me.0.as_slice(), &contents, &silent_ms]).await?;
                taken.first().map(|row| rows::unsigned(row, 0)).transpose()
            }
            .boxed()
        });
        let number = taken.wait().await?;
        Ok(number.map(|number| {
            let (commands, queue) = mpsc::unbounded_channel();
            let epoch = Epoch { me, number };
            tokio::spawn(queue::run(self.address.clone(), epoch, queue));
            PostgresTasks { epoch, commands }
        }))
    }
}

/// Functions and tasks while this manager owns them. Dropping it writes what is queued and closes the connection.
pub struct PostgresTasks {
    epoch: Epoch,
    commands: mpsc::UnboundedSender<Command>,
}

/// Work with an input over a connection.
type Work<I, T> = for<'a> fn(&'a Session, &'a I) -> BoxFuture<'a, Result<T, Fault>>;

struct InputJob<I, T> {
    input: I,
    work: Work<I, T>,
    outcome: Option<T>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<I: Send + Sync, T: Send> Job for InputJob<I, T> {
    fn run<'a>(&'a mut self, session: &'a Session) -> BoxFuture<'a, Result<(), Fault>> {
        async {
            self.outcome = Some((self.work)(session, &self.input).await?);
            Ok(())
        }
        .boxed()
    }

    fn finish(self: Box<Self>, result: Result<(), StoreError>) {
        let Self { outcome, reply, .. } = *self;
        send_result(reply, result, outcome);
    }
}

impl PostgresTasks {
    /// Epoch of this manager's ownership.
    pub fn epoch(&self) -> u64 {
        self.epoch.number
    }

    /// Sets the content store of the tasks' long payloads.
    pub fn set_contents(&self, name: [u8; 16]) -> Pending<()> {
        self.write(name, |session, name| {
            async {
                session
                    .execute("UPDATE tasks_owner SET contents = $1", &[&name.as_slice()])
                    .await?;
                Ok(())
            }
            .boxed()
        })
    }

    fn push<I: Send + Sync + 'static, T: Send + 'static>(&self, kind: Kind, input: I, work: Work<I, T>) -> Pending<T> {
        let (reply, receiver) = oneshot::channel();
        let job = InputJob {
            input,
            work,
            outcome: None,
            reply,
        };
        // If the writer has ended, the reply is dropped with the job, and the caller gets an error.
        let _ = self.commands.send(Command {
            since: Instant::now(),
            kind,
            job: Box::new(job),
        });
        Pending(receiver)
    }

    /// Queues a write, which shares a transaction with others.
    fn write<I: Send + Sync + 'static, T: Send + 'static>(&self, input: I, work: Work<I, T>) -> Pending<T> {
        self.push(Kind::Write, input, work)
    }

    /// Queues a read. It sees all earlier writes.
    fn read<I: Send + Sync + 'static, T: Send + 'static>(&self, input: I, work: Work<I, T>) -> Pending<T> {
        self.push(Kind::Read, input, work)
    }
}

fn missing() -> Fault {
    Fault::Refused(StoreError::Broken("a row of the database is missing".into()))
}

/// Decodes an optional id or hash.
fn optional<const N: usize>(row: &Row, column: usize) -> Result<Option<[u8; N]>, Fault> {
    match row.try_get::<_, Option<&[u8]>>(column)? {
        Some(_) => rows::bytes(row, column).map(Some),
        None => Ok(None),
    }
}

/// Decodes a tenant's text, which may contain bytes that PostgreSQL's texts cannot.
fn text(row: &Row, column: usize) -> Result<String, Fault> {
    let bytes: Option<&[u8]> = row.try_get(column)?;
    Ok(String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned())
}

/// Decodes an error code and a message from two columns.
fn failure(row: &Row, column: usize) -> Result<Option<Failure>, Fault> {
    let Some(code) = row.try_get::<_, Option<i64>>(column)? else {
        return Ok(None);
    };
    // A later release may have written an unknown code.
    let code = u16::try_from(code).ok().and_then(Code::from_wire);
    Ok(Some(Failure::new(
        code.unwrap_or(Code::Internal),
        text(row, column + 1)?,
    )))
}

/// Decodes an optional failure as JSON.
fn json_failure(row: &Row, column: usize) -> Result<Option<Failure>, Fault> {
    match row.try_get::<_, Option<&str>>(column)? {
        Some(_) => rows::parsed(row, column).map(Some),
        None => Ok(None),
    }
}
