//! One SQLite file: write-ahead log, one writer thread, group commit.
//!
//! Writes are queued. The thread commits all waiting writes together, so that a disk that takes a millisecond to sync
//! does so once for many writes.

use std::fs::{OpenOptions, Permissions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};
use rustix::io::Errno;
use tokio::sync::oneshot;

use super::commit_mark;
use crate::commit_mark::CommitMark;
use crate::system::now_ms;
use crate::{Pending, StoreError};

/// Most writes in one commit. Limits how long the first of them waits, at about 10 us each.
const GROUP: usize = 1_024;
/// Most prepared statements in the cache.
const STATEMENTS: usize = 64;

/// Path of a database in memory.
pub const MEMORY: &str = ":memory:";

/// The tables of a file.
pub struct Schema {
    /// Statements that create the tables of the latest version.
    pub tables: &'static [&'static str],
    /// Statements that upgrade tables from each version to the next, beginning with the first.
    pub upgrades: &'static [&'static str],
}

impl Schema {
    fn version(&self) -> i64 {
        self.upgrades.len() as i64 + 1
    }
}

/// One write of a group.
trait Job: Send {
    /// Whether it must be on the disk before it is confirmed.
    fn durable(&self) -> bool;
    /// Approximate number of rows.
    fn rows(&self) -> usize;
    fn run(&mut self, transaction: &Transaction<'_>) -> rusqlite::Result<()>;
    fn finish(self: Box<Self>, result: Result<(), StoreError>);
}

struct Write<T, F> {
    durable: bool,
    rows: usize,
    action: F,
    outcome: Option<T>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, F> Job for Write<T, F>
where
    T: Send,
    F: FnMut(&Transaction<'_>) -> rusqlite::Result<T> + Send,
{
    fn durable(&self) -> bool {
        self.durable
    }

    fn rows(&self) -> usize {
        self.rows
    }

    fn run(&mut self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        self.outcome = Some((self.action)(transaction)?);
        Ok(())
    }

    fn finish(self: Box<Self>, result: Result<(), StoreError>) {
        let Self { outcome, reply, .. } = *self;
        let missing = || StoreError::Broken("a write was not run".into());
        // The caller may have stopped waiting. The write is valid all the same.
        let _ = reply.send(result.and_then(|()| outcome.ok_or_else(missing)));
    }
}

type Read = Box<dyn FnOnce(&Connection) + Send>;

enum Command {
    Write(Box<dyn Job>),
    Read(Read),
}

/// A file and the thread that writes it. Dropping it commits waiting writes and closes the file.
pub struct Writer {
    commands: Option<Sender<Command>>,
    writer: Option<JoinHandle<()>>,
}

impl Writer {
    /// Opens or creates the file. `most_pages` of 4 KiB limit its size, if given. A file that lacks data is opened only
    /// with `accept_loss`.
    pub fn open(path: &Path, schema: &Schema, most_pages: Option<u32>, accept_loss: bool) -> Result<Self, StoreError> {
        let known = match path == Path::new(MEMORY) {
            true => None,
            false => {
                keep_private(path)?;
                Some(commit_mark::read(path, accept_loss)?)
            }
        };
        let connection = connect(path, most_pages).map_err(|error| match kind(&error) {
            Kind::Busy => StoreError::InUse(path.display().to_string()),
            _ => failed(&error),
        })?;
        let found: i64 = connection
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .map_err(|e| failed(&e))?;
        if let Some(known) = &known {
            commit_mark::check(known, &connection, found == 0)?;
        }
        let version = schema.version();
        match found {
            0 => run(&connection, &schema.tables.join(";"), version)?,
            found if found == version => {}
            older if (1..version).contains(&older) => {
                for (upgrade, version) in schema.upgrades.iter().zip(2..).skip(older as usize - 1) {
                    run(&connection, upgrade, version)?;
                }
            }
            found => return Err(StoreError::Schema { found, known: version }),
        }
        let mark = known
            .map(|known| commit_mark::compare(known, &connection, found == 0))
            .transpose()?;
        let (commands, queue) = channel();
        let writer = std::thread::Builder::new()
            .name("store".into())
            .spawn(move || write_groups(connection, mark, &queue))
            .map_err(|error| StoreError::Broken(error.to_string()))?;
        Ok(Self {
            commands: Some(commands),
            writer: Some(writer),
        })
    }

    /// Queues a write. A `durable` write is on the disk before it is confirmed; others survive the end of the process
    /// but not a power cut. `rows` is the approximate number of rows.
    pub fn write<T: Send + 'static>(
        &self,
        durable: bool,
        rows: usize,
        action: impl FnMut(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Pending<T> {
        let (reply, receiver) = oneshot::channel();
        self.send(Command::Write(Box::new(Write {
            durable,
            rows,
            action,
            outcome: None,
            reply,
        })));
        Pending(receiver)
    }

    /// Queues a read. It sees all earlier writes.
    pub fn read<T: Send + 'static>(
        &self,
        action: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Pending<T> {
        let (reply, receiver) = oneshot::channel();
        self.send(Command::Read(Box::new(move |connection| {
            // The caller may have stopped waiting.
            let _ = reply.send(action(connection).map_err(|error| failed(&error)));
        })));
        Pending(receiver)
    }

    fn send(&self, command: Command) {
        if let Some(commands) = &self.commands {
            // If the writer has ended, the reply is dropped with the command, and the caller gets an error.
            let _ = commands.send(command);
        }
    }
}

fn run(connection: &Connection, statements: &str, version: i64) -> Result<(), StoreError> {
    connection
        .execute_batch(&format!(
            "BEGIN; {statements}; PRAGMA user_version = {version}; COMMIT;"
        ))
        .map_err(|error| failed(&error))
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

/// Makes the file, and the files beside it, accessible only to this user. SQLite gives its log the file's mode.
fn keep_private(path: &Path) -> Result<(), StoreError> {
    let failed = |error: std::io::Error| match error.raw_os_error() {
        Some(number) if number == Errno::NOSPC.raw_os_error() => StoreError::Full,
        _ => StoreError::Broken(format!("{}: {error}", path.display())),
    };
    let mut options = OpenOptions::new();
    options
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
        .map_err(failed)?;
    for suffix in ["", "-wal", "-shm"] {
        let mut beside = path.as_os_str().to_owned();
        beside.push(suffix);
        // Some file systems do not support modes.
        let is_open = |found: std::fs::Metadata| found.permissions().mode() & 0o077 != 0;
        match std::fs::metadata(&beside).map(is_open) {
            Ok(true) => std::fs::set_permissions(&beside, Permissions::from_mode(0o600)).map_err(failed)?,
            Ok(false) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(())
}

fn connect(path: &Path, most_pages: Option<u32>) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_millis(500))?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    // One manager owns the file. The lock also keeps a second one out.
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    // See `Log`.
    connection.pragma_update_and_check(None, "wal_autocheckpoint", 0, |_| Ok(()))?;
    if let Some(pages) = most_pages {
        connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?;
    }
    // Take the exclusive lock now and not at the first write.
    connection.execute_batch("BEGIN EXCLUSIVE; COMMIT;")?;
    Ok(connection)
}

/// Checkpointing of the write-ahead log. It occupies the disk for some milliseconds, for which every writer waits. It
/// is therefore done while no write waits, and otherwise rarely.
#[derive(Default)]
struct Log {
    writes: usize,
}

impl Log {
    /// Time without a write after which the log is copied.
    const QUIET: Duration = Duration::from_millis(100);
    /// Most writes between two checkpoints: about 32 MiB, at a page per write.
    const MAX_WRITES: usize = 8_192;

    /// Returns the next command. Checkpoints the log when none arrives for a while, and when the log is long.
    fn next(&mut self, connection: &Connection, queue: &Receiver<Command>) -> Option<Command> {
        if self.writes >= Self::MAX_WRITES {
            self.copy(connection);
        }
        if self.writes > 0 {
            match queue.recv_timeout(Self::QUIET) {
                Ok(command) => return Some(command),
                Err(RecvTimeoutError::Timeout) => self.copy(connection),
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
        queue.recv().ok()
    }

    fn copy(&mut self, connection: &Connection) {
        self.writes = 0;
        // A full disk may have space later. Until then the log contains everything.
        if let Err(error) = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())) {
            tracing::warn!(%error, "the store's log cannot be copied into its file yet");
        }
    }
}

fn write_groups(mut connection: Connection, mut mark: Option<CommitMark>, queue: &Receiver<Command>) {
    let mut log = Log::default();
    let mut syncing = false;
    while let Some(first) = log.next(&connection, queue) {
        let mut group = Vec::new();
        let mut read = None;
        let mut next = Some(first);
        let mut rows = 0;
        while let Some(command) = next {
            match command {
                Command::Write(job) => {
                    rows += job.rows();
                    group.push(job);
                }
                Command::Read(action) => {
                    read = Some(action);
                    break;
                }
            }
            next = (rows < GROUP).then(|| queue.try_recv().ok()).flatten();
        }
        if !group.is_empty() {
            let result = commit(&mut connection, &mut mark, &mut group, &mut syncing).map_err(|error| failed(&error));
            log.writes += rows;
            for job in group {
                job.finish(result.clone());
            }
        }
        if let Some(read) = read {
            read(&connection);
        }
    }
    let closed = connection.close();
    if let (Some(mark), Ok(())) = (mark, closed) {
        mark.close();
    }
}

/// Commits a group of writes together. `syncing` is whether the last commit was synced to the disk.
fn commit(
    connection: &mut Connection,
    mark: &mut Option<CommitMark>,
    group: &mut [Box<dyn Job>],
    syncing: &mut bool,
) -> rusqlite::Result<()> {
    let durable = group.iter().any(|job| job.durable());
    if durable != *syncing {
        connection.pragma_update(None, "synchronous", if durable { "FULL" } else { "NORMAL" })?;
        *syncing = durable;
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for job in group {
        job.run(&transaction)?;
    }
    let Some(mark) = mark.as_mut().filter(|_| durable) else {
        return transaction.commit();
    };
    let (commits, at_ms) = (mark.commits() + 1, now_ms());
    commit_mark::count(&transaction, commits, at_ms)?;
    transaction.commit()?;
    mark.reached(commits, at_ms);
    Ok(())
}

enum Kind {
    Full,
    Busy,
    Other,
}

fn kind(error: &rusqlite::Error) -> Kind {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => Kind::Full,
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Kind::Busy,
        _ => Kind::Other,
    }
}

/// Converts an error of SQLite.
pub(super) fn failed(error: &rusqlite::Error) -> StoreError {
    match kind(error) {
        Kind::Full => StoreError::Full,
        _ => StoreError::Broken(error.to_string()),
    }
}
