//! The [mark](crate::commit_mark) of a SQLite file: the database counts its durable commits, and a file beside it
//! contains the last count.

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OptionalExtension, Transaction, params};

use super::rows::{signed, unsigned};
use super::writer::failed;
use crate::StoreError;
use crate::commit_mark::{CommitCount, CommitMark, ExpectedMark};
use crate::system::now_ms;
use crate::system::random;

/// Time limit of the check after an unclean end. Enough for some gigabytes.
const CHECK_LIMIT: Duration = Duration::from_secs(10);
/// Most faults that a check reports.
const MAX_COMPLAINTS: u32 = 20;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS mark (
    one INTEGER PRIMARY KEY CHECK (one = 1), store BLOB NOT NULL, commits INTEGER NOT NULL, at_ms INTEGER NOT NULL
)";

/// Reads the mark of a database.
pub fn read(database: &Path, accept_loss: bool) -> Result<ExpectedMark, StoreError> {
    let name = database.display().to_string();
    ExpectedMark::read(name, database.with_extension("mark"), accept_loss)
}

/// Checks a database before anything is created in it: refuses an empty one that had data, and checks the integrity of
/// one that was not closed, within the time limit.
pub fn check(expected: &ExpectedMark, connection: &Connection, is_empty: bool) -> Result<(), StoreError> {
    let database = expected.name();
    if is_empty {
        return expected.refuse_empty();
    }
    if expected.content.as_ref().is_none_or(|content| content.is_closed) {
        return Ok(());
    }
    tracing::warn!(
        database,
        limit_s = CHECK_LIMIT.as_secs(),
        "the store was not closed: it is checked before the manager goes on"
    );
    let begun = Instant::now();
    let quick = complaints(connection, "quick_check")?;
    let took_ms = begun.elapsed().as_millis();
    let Some(quick) = quick else {
        tracing::warn!(
            database,
            took_ms,
            "the store was not closed; its check took too long and was ended"
        );
        return Ok(());
    };
    if quick.is_empty() {
        tracing::info!(
            database,
            took_ms,
            "the store was not closed; it was checked, and is whole"
        );
        return Ok(());
    }
    let all = complaints(connection, "integrity_check")?.unwrap_or(quick);
    for complaint in &all {
        tracing::error!(database, complaint, "the store is damaged");
    }
    let first = all.first().map_or("", String::as_str);
    expected.lost(format!("the store {database} is damaged: {first}"))
}

/// Compares the mark with the count in the database, which begins in a new one, and opens the mark.
pub fn compare(expected: ExpectedMark, connection: &Connection, is_new: bool) -> Result<CommitMark, StoreError> {
    let broken = |error: rusqlite::Error| failed(&error);
    connection.execute_batch(TABLE).map_err(broken)?;
    let found = connection
        .query_row("SELECT store, commits, at_ms FROM mark", [], |row| {
            Ok(CommitCount {
                store: hex::encode(row.get::<_, Vec<u8>>(0)?),
                commits: unsigned(row, 1)?,
                at_ms: unsigned(row, 2)?,
            })
        })
        .optional()
        .map_err(broken)?;
    if !is_new {
        expected.compare(found.as_ref())?;
    }
    let count = match found {
        Some(found) => found,
        None => {
            let (store, at_ms) = (random::<16>(), now_ms());
            let sql = "INSERT INTO mark (one, store, commits, at_ms) VALUES (1, ?1, 0, ?2)";
            connection.execute(sql, params![store, signed(at_ms)]).map_err(broken)?;
            CommitCount {
                store: hex::encode(store),
                commits: 0,
                at_ms,
            }
        }
    };
    // The mark is synced when it is opened, so everything that it counts must be on the disk before: tables, upgrades,
    // and the log of a killed manager are not synced by their commits.
    connection
        .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        .map_err(broken)?;
    Ok(expected.open(count))
}

/// Counts a durable commit within its transaction. The count is valid once the transaction is committed.
pub fn count(transaction: &Transaction<'_>, commits: u64, at_ms: u64) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("UPDATE mark SET commits = ?1, at_ms = ?2")?
        .execute(params![signed(commits), signed(at_ms)])?;
    Ok(())
}

/// Returns SQLite's complaints, or `None` if the check takes too long.
fn complaints(connection: &Connection, check: &str) -> Result<Option<Vec<String>>, StoreError> {
    let interrupt = connection.get_interrupt_handle();
    let (done, is_done) = channel::<()>();
    let found = std::thread::scope(|scope| {
        scope.spawn(move || {
            if is_done.recv_timeout(CHECK_LIMIT) == Err(RecvTimeoutError::Timeout) {
                interrupt.interrupt();
            }
        });
        let found = connection
            .prepare(&format!("PRAGMA {check}({MAX_COMPLAINTS})"))
            .and_then(|mut check| {
                let lines = check.query_map([], |row| row.get::<_, String>(0))?;
                lines.collect::<rusqlite::Result<Vec<_>>>()
            });
        drop(done);
        found
    });
    match found {
        Ok(lines) => Ok(Some(lines.into_iter().filter(|line| line != "ok").collect())),
        Err(error) => match error.sqlite_error_code() {
            Some(ErrorCode::OperationInterrupted) => Ok(None),
            Some(ErrorCode::DatabaseCorrupt) => Ok(Some(vec![error.to_string()])),
            _ => Err(failed(&error)),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::unix::fs::FileExt;

    use super::super::writer::{Schema, Writer};
    use super::*;

    const SCHEMA: Schema = Schema {
        tables: &["CREATE TABLE things (name TEXT NOT NULL)"],
        upgrades: &[],
    };

    fn open(directory: &Path, accept_loss: bool) -> Result<Writer, StoreError> {
        Writer::open(&directory.join("things.db"), &SCHEMA, None, accept_loss)
    }

    async fn add(writer: &Writer, name: &'static str) {
        let add = move |transaction: &Transaction<'_>| transaction.execute("INSERT INTO things VALUES (?1)", [name]);
        writer.write(true, 1, add).wait().await.unwrap();
    }

    async fn names(writer: &Writer) -> Vec<String> {
        let all = |connection: &Connection| {
            let mut statement = connection.prepare("SELECT name FROM things")?;
            let names = statement.query_map([], |row| row.get(0))?;
            names.collect()
        };
        writer.read(all).wait().await.unwrap()
    }

    fn lost(opened: Result<Writer, StoreError>) -> String {
        match opened {
            Err(StoreError::Lost(what)) => what,
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("it opened"),
        }
    }

    fn copy(from: &Path, to: &Path, files: &[&str]) {
        for file in files {
            std::fs::copy(from.join(file), to.join(file)).unwrap();
        }
    }

    #[tokio::test]
    async fn closed_store_opens_without_a_check() {
        let directory = tempfile::tempdir().unwrap();
        add(&open(directory.path(), false).unwrap(), "a").await;
        let content = read(&directory.path().join("things.db"), false)
            .unwrap()
            .content
            .unwrap();
        assert!(content.is_closed);
        assert_eq!(content.count.commits, 1);
        assert_eq!(names(&open(directory.path(), false).unwrap()).await, ["a"]);
    }

    #[tokio::test]
    async fn emptied_store_opens_only_with_accepted_loss() {
        let directory = tempfile::tempdir().unwrap();
        add(&open(directory.path(), false).unwrap(), "a").await;
        std::fs::write(directory.path().join("things.db"), "").unwrap();
        let what = lost(open(directory.path(), false));
        assert!(what.contains("is empty") && what.contains("until 20"), "{what}");
        std::fs::remove_file(directory.path().join("things.db")).unwrap();
        lost(open(directory.path(), false));
        assert!(names(&open(directory.path(), true).unwrap()).await.is_empty());
        // The loss was accepted permanently.
        open(directory.path(), false).unwrap();
    }

    #[tokio::test]
    async fn older_copy_of_a_store_is_refused() {
        let (directory, backup) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        add(&open(directory.path(), false).unwrap(), "a").await;
        copy(directory.path(), backup.path(), &["things.db"]);
        add(&open(directory.path(), false).unwrap(), "b").await;
        copy(backup.path(), directory.path(), &["things.db"]);
        let what = lost(open(directory.path(), false));
        assert!(what.contains("ends at commit 1 of 2"), "{what}");
        assert_eq!(names(&open(directory.path(), true).unwrap()).await, ["a"]);
        open(directory.path(), false).unwrap();
    }

    #[tokio::test]
    async fn another_store_is_refused() {
        let (directory, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        add(&open(directory.path(), false).unwrap(), "a").await;
        add(&open(other.path(), false).unwrap(), "b").await;
        copy(other.path(), directory.path(), &["things.db"]);
        let what = lost(open(directory.path(), false));
        assert!(what.contains("another one"), "{what}");
    }

    /// Copies the files of a killed process: nothing is moved from the log into the file.
    async fn copy_of_killed(files: &[&str]) -> tempfile::TempDir {
        let (directory, copied) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let writer = open(directory.path(), false).unwrap();
        let (release, held) = std::sync::mpsc::channel::<()>();
        add(&writer, "a").await;
        // Keep the writer thread busy meanwhile.
        let reading = writer.read(move |_| Ok(held.recv().ok()));
        copy(directory.path(), copied.path(), files);
        drop(release);
        reading.wait().await.unwrap();
        copied
    }

    #[tokio::test]
    async fn killed_store_opens_and_has_everything() {
        let left = copy_of_killed(&["things.db", "things.db-wal", "things.mark"]).await;
        let content = read(&left.path().join("things.db"), false).unwrap().content.unwrap();
        assert!(!content.is_closed);
        assert_eq!(names(&open(left.path(), false).unwrap()).await, ["a"]);
    }

    #[tokio::test]
    async fn truncated_log_is_refused() {
        let left = copy_of_killed(&["things.db", "things.db-wal", "things.mark"]).await;
        let log = OpenOptions::new()
            .write(true)
            .open(left.path().join("things.db-wal"))
            .unwrap();
        let length = log.metadata().unwrap().len();
        assert!(length > 100);
        log.set_len(length - 100).unwrap();
        let what = lost(open(left.path(), false));
        assert!(what.contains("lacks what was written"), "{what}");
        log.set_len(0).unwrap();
        lost(open(left.path(), false));
    }

    #[tokio::test]
    async fn damaged_store_is_found_after_an_unclean_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("things.db");
        let writer = open(directory.path(), false).unwrap();
        let long: &'static str = Box::leak("x".repeat(100_000).into_boxed_str());
        add(&writer, long).await;
        add(&writer, "b").await;
        drop(writer);
        let mark = path.with_extension("mark");
        let text = std::fs::read_to_string(&mark).unwrap();
        std::fs::write(&mark, text.replace("\"is_closed\":true", "\"is_closed\":false")).unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let length = file.metadata().unwrap().len();
        // Overwrite a page in the middle of the long text, so that its chain of pages is broken.
        let page = length / 2 / 4096 * 4096;
        file.write_all_at(&[0xff; 4096], page).unwrap();
        let what = lost(open(directory.path(), false));
        assert!(what.contains("is damaged"), "{what}");
        open(directory.path(), true).unwrap();
    }
}
