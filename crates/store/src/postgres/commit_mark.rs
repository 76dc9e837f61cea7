//! The [mark](crate::commit_mark) of a database that managers share. Each manager counts in the database when it starts
//! and once a minute, and keeps the last count that it saw in its state directory.

use std::path::Path;

use futures_util::FutureExt;
use tokio_postgres::Row;

use super::connect::Session;
use super::faults::Fault;
use super::reader::Reader;
use super::rows;
use crate::StoreError;
use crate::commit_mark::{CommitCount, CommitMark, ExpectedMark, SYNC_PERIOD};

/// The table, which has one row.
macro_rules! mark_table {
    () => {
        "
CREATE TABLE dayfly.mark (
    one BOOLEAN PRIMARY KEY DEFAULT true CHECK (one), store BYTEA NOT NULL, commits BIGINT NOT NULL DEFAULT 0,
    at TIMESTAMPTZ NOT NULL DEFAULT now()
);
INSERT INTO dayfly.mark (store) VALUES (decode(md5(random()::TEXT || clock_timestamp()::TEXT), 'hex'));
"
    };
}
pub(super) use mark_table;

/// Name of the file in a manager's state directory.
const FILE: &str = "database.mark";

const FOUND: &str = "SELECT store, commits, (1000 * extract(epoch FROM at))::BIGINT FROM mark";
const COUNT: &str = "UPDATE mark SET commits = commits + 1, at = now()
    RETURNING store, commits, (1000 * extract(epoch FROM at))::BIGINT";

/// Compares the database with the mark of this manager, and counts in it.
pub async fn compare(
    reader: &Reader,
    name: String,
    state_dir: &Path,
    accept_loss: bool,
) -> Result<CommitMark, StoreError> {
    let expected = ExpectedMark::read(name, state_dir.join(FILE), accept_loss)?;
    let found = ask(reader, FOUND).await?;
    expected.compare(Some(&found))?;
    let count = ask(reader, COUNT).await?;
    Ok(expected.open(count))
}

/// Counts periodically, as long as the manager runs.
pub async fn keep(reader: Reader, mut mark: CommitMark) {
    loop {
        tokio::time::sleep(SYNC_PERIOD).await;
        match ask(&reader, COUNT).await {
            Ok(count) => mark.reached(count.commits, count.at_ms),
            Err(error) => tracing::debug!(%error, "the database's mark cannot be counted on"),
        }
    }
}

async fn ask(reader: &Reader, sql: &'static str) -> Result<CommitCount, StoreError> {
    let found = reader.read(move |session| async move { count(&session, sql).await }.boxed());
    found.wait().await
}

async fn count(session: &Session, sql: &'static str) -> Result<CommitCount, Fault> {
    let found = session.query(sql, &[]).await?;
    let missing = || Fault::Refused(StoreError::Broken("its mark is missing".into()));
    let row: &Row = found.first().ok_or_else(missing)?;
    Ok(CommitCount {
        store: hex::encode(rows::bytes::<16>(row, 0)?),
        commits: rows::unsigned(row, 1)?,
        at_ms: rows::unsigned(row, 2)?,
    })
}
