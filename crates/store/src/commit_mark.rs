//! Detects a database that was emptied, truncated, exchanged or restored, by a small file of the manager.
//!
//! The database counts its commits, and the file contains the last count. The file is written after that count is on
//! the database's disk, so it is never ahead of an intact database, even after a power cut. The file is not synced each
//! time, so after a power cut it may be a minute behind.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::StoreError;

/// Bytes of the file. It is overwritten in place and its length never changes, so that it can be written on a full
/// disk.
const LENGTH: usize = 256;
/// Longest time between two syncs of the file while the database is written.
pub const SYNC_PERIOD: Duration = Duration::from_secs(60);

/// The commit count of a database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitCount {
    /// Id of the database, in hexadecimal.
    pub store: String,
    /// Number of commits.
    pub commits: u64,
    /// Time of the last commit, in milliseconds since the Unix epoch.
    pub at_ms: u64,
}

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarkContent {
    #[serde(flatten)]
    pub count: CommitCount,
    /// Whether the database was closed afterwards.
    pub is_closed: bool,
}

/// What is expected of a database before it is opened.
#[derive(Debug)]
pub struct ExpectedMark {
    /// Display name.
    name: String,
    path: PathBuf,
    pub content: Option<MarkContent>,
    /// Whether an administrator accepted the loss of missing data.
    accept_loss: bool,
}

impl ExpectedMark {
    /// Reads the file of the database with this name.
    pub fn read(name: String, path: PathBuf, accept_loss: bool) -> Result<Self, StoreError> {
        let content = match std::fs::read(&path) {
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(content) => Some(content),
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "the store's mark cannot be read; it is made anew");
                    None
                }
            },
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(StoreError::Broken(format!("{}: {error}", path.display()))),
        };
        Ok(Self {
            name,
            path,
            content,
            accept_loss,
        })
    }

    /// Display name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Refuses an empty database if the file shows that it had data.
    pub fn refuse_empty(&self) -> Result<(), StoreError> {
        let Some(content) = &self.content else { return Ok(()) };
        let (name, until) = (&self.name, moment(content.count.at_ms));
        self.lost(format!("the store {name} is empty, and was not until {until}"))
    }

    /// Compares the file with the count in the database, which is `None` if it never had one.
    pub fn compare(&self, found: Option<&CommitCount>) -> Result<(), StoreError> {
        let Some(MarkContent { count: content, .. }) = &self.content else {
            return Ok(());
        };
        let name = &self.name;
        match found.filter(|found| found.store == content.store) {
            None => self.lost(format!(
                "the store {name} is another one than was used here until {}",
                moment(content.at_ms)
            )),
            Some(found) if found.commits < content.commits => self.lost(format!(
                "the store {name} lacks what was written between {} and {}: it ends at commit {} of {}",
                moment(found.at_ms),
                moment(content.at_ms),
                found.commits,
                content.commits
            )),
            Some(_) => Ok(()),
        }
    }

    /// Reports missing data: returns an error, unless the loss was accepted.
    pub fn lost(&self, what: String) -> Result<(), StoreError> {
        if self.accept_loss {
            tracing::warn!("{what}; continuing because of --accept-loss");
            return Ok(());
        }
        Err(StoreError::Lost(what))
    }

    /// Starts a mark with the database's current count.
    pub fn open(self, count: CommitCount) -> CommitMark {
        let mut mark = CommitMark {
            file: None,
            path: self.path,
            content: MarkContent {
                count,
                is_closed: false,
            },
            synced_at: Instant::now(),
            is_failing: false,
        };
        mark.write(true);
        mark
    }
}

/// The file of an open database.
#[derive(Debug)]
pub struct CommitMark {
    path: PathBuf,
    file: Option<File>,
    content: MarkContent,
    synced_at: Instant,
    /// Whether the last write failed.
    is_failing: bool,
}

impl CommitMark {
    /// Last count that is on the database's disk.
    pub fn commits(&self) -> u64 {
        self.content.count.commits
    }

    /// Records that the database has this count on its disk.
    pub fn reached(&mut self, commits: u64, at_ms: u64) {
        self.content.count.commits = commits;
        self.content.count.at_ms = at_ms;
        let is_due = self.synced_at.elapsed() >= SYNC_PERIOD;
        self.write(is_due);
    }

    /// Records that the database is closed.
    pub fn close(mut self) {
        self.content.is_closed = true;
        self.write(true);
    }

    /// Writes the file. A failure stops nothing but is logged once, because a later loss may go unnoticed.
    fn write(&mut self, sync: bool) {
        let written = self.try_write(sync);
        let was_failing = std::mem::replace(&mut self.is_failing, written.is_err());
        let path = self.path.display();
        match written {
            Err(error) if !was_failing => {
                tracing::warn!(%path, %error, "the store's mark cannot be written: until it can, a loss may go unnoticed");
            }
            Ok(()) if was_failing => tracing::info!(%path, "the store's mark can be written again"),
            _ => {}
        }
    }

    fn try_write(&mut self, sync: bool) -> std::io::Result<()> {
        let mut text = serde_json::to_vec(&self.content).map_err(std::io::Error::other)?;
        text.resize(LENGTH - 1, b' ');
        text.push(b'\n');
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(open(&self.path)?),
        };
        file.write_all_at(&text, 0)?;
        if sync {
            file.sync_data()?;
            self.synced_at = Instant::now();
        }
        Ok(())
    }
}

fn open(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Formats a time for display.
fn moment(at_ms: u64) -> String {
    let Ok(at) = OffsetDateTime::from_unix_timestamp((at_ms / 1000) as i64) else {
        return "an unknown time".into();
    };
    let (year, month, day) = (at.year(), u8::from(at.month()), at.day());
    let (hour, minute, second) = at.to_hms();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tracing::span::{Attributes, Id, Record};
    use tracing::{Metadata, Subscriber};

    use super::*;

    /// Counts warnings.
    #[derive(Clone, Default)]
    struct Warnings(Arc<AtomicUsize>);

    impl Subscriber for Warnings {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &tracing::Event<'_>) {
            let is_warning = *event.metadata().level() == tracing::Level::WARN;
            self.0.fetch_add(usize::from(is_warning), Ordering::SeqCst);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn unwritable_mark_warns_once_until_it_is_written() {
        let warnings = Warnings::default();
        let _heard = tracing::subscriber::set_default(warnings.clone());
        let directory = tempfile::tempdir().unwrap();
        let away = directory.path().join("away");
        let path = away.join("things.mark");
        let expected = ExpectedMark::read("things".into(), path.clone(), false).unwrap();
        let count = CommitCount {
            store: "00".into(),
            commits: 1,
            at_ms: 1,
        };
        let mut mark = expected.open(count);
        mark.reached(2, 2);
        assert_eq!(warnings.0.load(Ordering::SeqCst), 1);
        std::fs::create_dir(&away).unwrap();
        mark.reached(3, 3);
        let content = ExpectedMark::read("things".into(), path, false)
            .unwrap()
            .content
            .unwrap();
        assert_eq!(content.count.commits, 3);
        // The next failure is reported again.
        std::fs::remove_dir_all(&away).unwrap();
        mark.file = None;
        mark.reached(4, 4);
        assert_eq!(warnings.0.load(Ordering::SeqCst), 2);
    }
}
