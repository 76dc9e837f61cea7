//! Functions and tasks in PostgreSQL, owned by one of several managers at a time.
//!
//! There is one owner because the queue, idempotency and the order of execution are decided in memory. A separate row
//! names the owner, with an epoch that grows with each change. Every write of tasks also updates that row, so that a
//! manager that was stopped or cut off writes nothing after another one has taken over.

mod books;
mod contents;
mod flows;
mod forgetting;
mod looking;
mod queue;
mod sharing;
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
use super::connect::{Address, Link};
use super::faults::Fault;
use super::reader::Reader;
use super::rows::{self, signed};
use super::writer::{Alone, answer};
use crate::{Pending, StoreError};

/// The tables of tasks, created after all others.
macro_rules! tables {
    () => {
        "
CREATE TABLE dayfly.tasks_owner (
    one BOOLEAN PRIMARY KEY DEFAULT true CHECK (one), manager BYTEA, epoch BIGINT NOT NULL DEFAULT 0,
    written BIGINT NOT NULL DEFAULT 0, contents BYTEA
) WITH (fillfactor = 20);
INSERT INTO dayfly.tasks_owner DEFAULT VALUES;
CREATE TABLE dayfly.functions (
    id BYTEA PRIMARY KEY, tenant BYTEA NOT NULL, name BYTEA, version BIGINT NOT NULL, hash BYTEA NOT NULL, spec TEXT NOT NULL,
    registered_at_ms BIGINT NOT NULL, code BYTEA NOT NULL
);
CREATE UNIQUE INDEX functions_by_name ON dayfly.functions (tenant, name, version) WHERE name IS NOT NULL;
CREATE TABLE dayfly.endpoints (id BYTEA PRIMARY KEY, name TEXT NOT NULL UNIQUE, tenant BYTEA NOT NULL, spec TEXT NOT NULL,
    instance BYTEA);
CREATE TABLE dayfly.tasks (
    id BYTEA PRIMARY KEY, tenant BYTEA NOT NULL, function BYTEA NOT NULL, endpoint BYTEA NOT NULL, tag BYTEA NOT NULL,
    priority BIGINT NOT NULL, walltime_ms BIGINT NOT NULL, repeatable BOOLEAN NOT NULL, deadline_at_ms BIGINT NOT NULL,
    submitted_at_ms BIGINT NOT NULL, attempts BIGINT NOT NULL, retries_left BIGINT NOT NULL, faults BIGINT NOT NULL,
    number BIGINT, started_at_ms BIGINT NOT NULL DEFAULT 0, ended_at_ms BIGINT NOT NULL DEFAULT 0,
    code BIGINT, message BYTEA, raised BOOLEAN NOT NULL DEFAULT false, arguments BYTEA, answer BYTEA,
    arguments_content BYTEA, answer_content BYTEA, after BYTEA, with_answers BOOLEAN NOT NULL DEFAULT false
);
ALTER TABLE dayfly.tasks ALTER COLUMN arguments SET STORAGE EXTERNAL, ALTER COLUMN answer SET STORAGE EXTERNAL;
CREATE UNIQUE INDEX tasks_by_end ON dayfly.tasks (tenant, tag, number) WHERE number IS NOT NULL;
CREATE INDEX tasks_by_arguments ON dayfly.tasks (tenant, arguments_content) WHERE arguments_content IS NOT NULL;
CREATE INDEX tasks_by_answer ON dayfly.tasks (tenant, answer_content) WHERE answer_content IS NOT NULL;
CREATE TABLE dayfly.contents (
    tenant BYTEA NOT NULL, content BYTEA NOT NULL, bytes BIGINT NOT NULL, used_at_ms BIGINT NOT NULL,
    going BOOLEAN NOT NULL DEFAULT false, PRIMARY KEY (tenant, content)
);
CREATE INDEX contents_by_use ON dayfly.contents (used_at_ms);
CREATE TABLE dayfly.triggers (
    id BYTEA PRIMARY KEY, tenant BYTEA NOT NULL, name TEXT NOT NULL, spec TEXT NOT NULL, watched_at BYTEA, token BYTEA NOT NULL,
    created_at_ms BIGINT NOT NULL, expires_at_ms BIGINT NOT NULL, done_until_ms BIGINT NOT NULL,
    events BIGINT NOT NULL DEFAULT 0, started BIGINT NOT NULL DEFAULT 0, refused BIGINT NOT NULL DEFAULT 0,
    UNIQUE (tenant, name)
);
CREATE TABLE dayfly.events (
    trigger_id BYTEA NOT NULL, number BIGINT NOT NULL, key BYTEA NOT NULL, at_ms BIGINT NOT NULL, event TEXT NOT NULL,
    state BIGINT NOT NULL DEFAULT 0, error TEXT, PRIMARY KEY (trigger_id, number), UNIQUE (trigger_id, key)
);
CREATE INDEX events_waiting ON dayfly.events (trigger_id, number) WHERE state = 0;
CREATE TABLE dayfly.flows (
    id BYTEA PRIMARY KEY, tenant BYTEA NOT NULL, name BYTEA NOT NULL, request TEXT NOT NULL, error TEXT,
    steps TEXT NOT NULL DEFAULT '[]', started_at_ms BIGINT NOT NULL, ended_at_ms BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX flows_by_tenant ON dayfly.flows (tenant, started_at_ms);
CREATE INDEX flows_by_end ON dayfly.flows (ended_at_ms);
CREATE TABLE dayfly.teams (name TEXT PRIMARY KEY, owner BYTEA NOT NULL, spec TEXT NOT NULL, removed BOOLEAN NOT NULL);
CREATE TABLE dayfly.usage (
    day BIGINT NOT NULL, tenant BYTEA NOT NULL, function BYTEA NOT NULL, endpoint BYTEA NOT NULL, tasks BIGINT NOT NULL,
    failed BIGINT NOT NULL, took_us BIGINT NOT NULL, PRIMARY KEY (day, tenant, function, endpoint)
);
"
    };
}
pub(super) use tables;

/// Upgrade: adds the cost of tasks.
macro_rules! costs {
    () => {
        "
ALTER TABLE dayfly.usage ADD COLUMN cost BIGINT NOT NULL DEFAULT 0;
CREATE TABLE dayfly.costs (tenant BYTEA PRIMARY KEY, total BIGINT NOT NULL);
"
    };
}
pub(super) use costs;

/// Upgrade: adds the times at which tasks entered their states.
macro_rules! times {
    () => {
        "
ALTER TABLE dayfly.tasks ADD COLUMN waiting_at_ms BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN environment_at_ms BIGINT NOT NULL DEFAULT 0;
"
    };
}
pub(super) use times;

/// Upgrade: adds the delay between a task's executions.
macro_rules! waits {
    () => {
        "ALTER TABLE dayfly.tasks ADD COLUMN retry_wait_ms BIGINT NOT NULL DEFAULT 0;"
    };
}
pub(super) use waits;

/// Upgrade: adds the hash of memoized tasks.
macro_rules! memos {
    () => {
        "
ALTER TABLE dayfly.tasks ADD COLUMN memo BYTEA;
CREATE INDEX tasks_by_memo ON dayfly.tasks (number) WHERE memo IS NOT NULL AND number IS NOT NULL;
"
    };
}
pub(super) use memos;

/// Upgrade: adds an index of failed tasks.
macro_rules! failed {
    () => {
        "CREATE INDEX tasks_failed ON dayfly.tasks (id) WHERE code IS NOT NULL;"
    };
}
pub(super) use failed;

/// Upgrade: adds functions' exceptions as text.
macro_rules! exceptions {
    () => {
        "ALTER TABLE dayfly.tasks ADD COLUMN exception TEXT;"
    };
}
pub(super) use exceptions;

/// Upgrade: adds the output of tasks.
macro_rules! printed {
    () => {
        "CREATE TABLE dayfly.printed (task BYTEA PRIMARY KEY, first BIGINT NOT NULL, pieces BYTEA NOT NULL);"
    };
}
pub(super) use printed;

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
        let owner = |link: std::sync::Arc<Link>| async move {
            let found = link
                .query("SELECT manager, epoch, contents FROM tasks_owner", &[])
                .await?;
            let row = found.first().ok_or_else(missing)?;
            Ok(TasksOwner {
                manager: optional(row, 0)?.map(PublicKey),
                epoch: rows::unsigned(row, 1)?,
                contents: optional(row, 2)?,
            })
        };
        self.reader.read(move |link| owner(link).boxed())
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
        let taken = self.reader.read(move |link| {
            async move {
                let contents = contents.as_ref().map(|name| name.as_slice());
                let taken = link.query(TAKE, &[&me.0.as_slice(), &contents, &silent_ms]).await?;
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
type Work<I, T> = for<'a> fn(&'a Link, &'a I) -> BoxFuture<'a, Result<T, Fault>>;

struct Job<I, T> {
    input: I,
    work: Work<I, T>,
    outcome: Option<T>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<I: Send + Sync, T: Send> Alone for Job<I, T> {
    fn run<'a>(&'a mut self, link: &'a Link) -> BoxFuture<'a, Result<(), Fault>> {
        async {
            self.outcome = Some((self.work)(link, &self.input).await?);
            Ok(())
        }
        .boxed()
    }

    fn finish(self: Box<Self>, result: Result<(), StoreError>) {
        let Self { outcome, reply, .. } = *self;
        answer(reply, result, outcome);
    }
}

impl PostgresTasks {
    /// Epoch of this manager's ownership.
    pub fn epoch(&self) -> u64 {
        self.epoch.number
    }

    /// Sets the content store of the tasks' long payloads.
    pub fn contents_are(&self, name: [u8; 16]) -> Pending<()> {
        self.write(name, |link, name| {
            async {
                link.execute("UPDATE tasks_owner SET contents = $1", &[&name.as_slice()])
                    .await?;
                Ok(())
            }
            .boxed()
        })
    }

    fn push<I: Send + Sync + 'static, T: Send + 'static>(&self, kind: Kind, input: I, work: Work<I, T>) -> Pending<T> {
        let (reply, receiver) = oneshot::channel();
        let job = Job {
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
fn told(row: &Row, column: usize) -> Result<Option<Failure>, Fault> {
    match row.try_get::<_, Option<&str>>(column)? {
        Some(_) => rows::parsed(row, column).map(Some),
        None => Ok(None),
    }
}
