//! The journal: state that must survive the node's process. It contains spent tokens, and usage that is not booked yet.
//!
//! It is one append-only file of lines: a checksum, a space, JSON. A truncated line after a crash ends the file;
//! everything before it is valid. At every start the file is rewritten with what still matters.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dayfly_protocol::api::{LeaseState, Metered};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::LeaseId;
use dayfly_protocol::node_api::DirectStart;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Growth in bytes after which the file is rewritten.
const MAX_GROWTH: u64 = 16 << 20;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Record {
    /// A lease was taken; it cannot be used after `until_ms` (wall clock).
    Start {
        lease: LeaseId,
        until_ms: u64,
        managed: bool,
    },
    /// A lease is about to be taken under an allowance of the manager, which does not know the lease yet.
    Direct { lease: LeaseId, start: Box<DirectStart> },
    /// The manager knows it now.
    Adopted { lease: LeaseId },
    /// It ended.
    End {
        lease: LeaseId,
        state: LeaseState,
        until_ms: u64,
        managed: bool,
    },
    /// The manager was informed of the end.
    Told { lease: LeaseId },
    /// Total usage of leases so far.
    Usage { usage: Vec<(LeaseId, Metered)> },
    /// This usage is in flight to the manager.
    Sent {
        sequence: u64,
        usage: Vec<(LeaseId, Metered)>,
    },
    /// The manager booked it.
    Booked { sequence: u64 },
}

/// How a lease ended, and until when its token must be refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    pub state: LeaseState,
    pub until_ms: u64,
}

/// Usage with its sequence number.
pub type Entry = (u64, Vec<(LeaseId, Metered)>);

#[derive(Debug, Default)]
struct Books {
    open: HashMap<LeaseId, (u64, bool)>,
    ended: HashMap<LeaseId, Ended>,
    untold: BTreeMap<LeaseId, LeaseState>,
    /// Leases that the manager must be informed of before anything else about them.
    direct: BTreeMap<LeaseId, DirectStart>,
    /// Totals that no booked or sent entry contains.
    unsent: BTreeMap<LeaseId, Metered>,
    sent: Option<Entry>,
    sequence: u64,
}

impl Books {
    fn apply(&mut self, record: &Record) {
        match record {
            Record::Start {
                lease,
                until_ms,
                managed,
            } => {
                self.open.insert(*lease, (*until_ms, *managed));
            }
            Record::Direct { lease, start } => {
                self.direct.insert(*lease, DirectStart::clone(start));
            }
            Record::Adopted { lease } => {
                self.direct.remove(lease);
            }
            Record::End {
                lease,
                state,
                until_ms,
                managed,
            } => {
                self.open.remove(lease);
                self.ended.insert(
                    *lease,
                    Ended {
                        state: *state,
                        until_ms: *until_ms,
                    },
                );
                if *managed {
                    self.untold.insert(*lease, *state);
                }
            }
            Record::Told { lease } => {
                self.untold.remove(lease);
            }
            Record::Usage { usage } => self.unsent.extend(usage.iter().cloned()),
            Record::Sent { sequence, usage } => {
                self.sequence = self.sequence.max(*sequence);
                for (lease, used) in usage {
                    if self.unsent.get(lease) == Some(used) {
                        self.unsent.remove(lease);
                    }
                }
                self.sent = Some((*sequence, usage.clone()));
            }
            Record::Booked { sequence } => {
                self.sequence = self.sequence.max(*sequence);
                self.sent.take_if(|(sent, _)| *sent <= *sequence);
            }
        }
    }

    /// The smallest set of records with the same meaning.
    fn records(&self) -> Vec<Record> {
        let mut records = vec![Record::Booked {
            sequence: self.sequence.saturating_sub(self.sent.is_some().into()),
        }];
        records.extend(self.direct.iter().map(|(lease, start)| Record::Direct {
            lease: *lease,
            start: Box::new(start.clone()),
        }));
        records.extend(self.open.iter().map(|(lease, (until_ms, managed))| Record::Start {
            lease: *lease,
            until_ms: *until_ms,
            managed: *managed,
        }));
        records.extend(self.ended.iter().map(|(lease, ended)| Record::End {
            lease: *lease,
            state: ended.state,
            until_ms: ended.until_ms,
            managed: self.untold.contains_key(lease),
        }));
        let unsent: Vec<_> = self
            .unsent
            .iter()
            .map(|(lease, usage)| (*lease, usage.clone()))
            .collect();
        if let Some((sequence, usage)) = self.sent.clone() {
            records.push(Record::Sent { sequence, usage });
        }
        if !unsent.is_empty() {
            records.push(Record::Usage { usage: unsent });
        }
        records
    }
}

#[derive(Debug)]
struct Inner {
    file: File,
    grown: u64,
    /// Whether the last line may be incomplete.
    torn: bool,
    books: Books,
}

/// The journal of one node.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    inner: Mutex<Inner>,
}

impl Journal {
    /// Reads the records of an earlier process, and rewrites the file. Leases that were open then are lost.
    pub fn open(path: &Path, now_ms: u64) -> std::io::Result<Self> {
        let mut books = Books::default();
        for record in read(path)? {
            books.apply(&record);
        }
        let lost: Vec<_> = books
            .open
            .iter()
            .map(|(lease, (until_ms, managed))| (*lease, *until_ms, *managed))
            .collect();
        for (lease, until_ms, managed) in lost {
            books.apply(&Record::End {
                lease,
                state: LeaseState::Lost,
                until_ms,
                managed,
            });
        }
        books
            .ended
            .retain(|lease, ended| ended.until_ms > now_ms || books.untold.contains_key(lease));
        let file = rewrite(path, &books)?;
        Ok(Self {
            path: path.into(),
            inner: Mutex::new(Inner {
                file,
                grown: 0,
                torn: false,
                books,
            }),
        })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn append(&self, record: &Record) -> std::io::Result<()> {
        let mut inner = self.inner();
        // The state in memory stays valid even if the disk refuses the record.
        inner.books.apply(record);
        if inner.torn || inner.grown > MAX_GROWTH {
            inner.file = rewrite(&self.path, &inner.books)?;
            inner.grown = 0;
            inner.torn = false;
            return Ok(());
        }
        let line = line(record)?;
        inner.grown += line.len() as u64;
        let written = inner.file.write_all(&line);
        inner.torn = written.is_err();
        written
    }

    /// As [`Journal::append`], for events that have happened already; an error is only logged.
    fn note(&self, record: &Record) {
        if let Err(error) = self.append(record) {
            tracing::error!(path = %self.path.display(), %error, "the journal cannot be written; make room on its disk");
        }
    }

    /// Records that a lease is about to be taken. The lease must not be taken after an error.
    pub fn start(
        &self,
        lease: LeaseId,
        until_ms: u64,
        managed: bool,
        direct: Option<DirectStart>,
    ) -> Result<(), Failure> {
        let direct = direct.map(Box::new).map(|start| Record::Direct { lease, start });
        let start = Record::Start {
            lease,
            until_ms,
            managed,
        };
        let mut records = direct.iter().chain([&start]);
        records.try_for_each(|record| self.append(record)).map_err(|error| {
            let books = &mut self.inner().books;
            books.open.remove(&lease);
            books.direct.remove(&lease);
            Failure::new(
                Code::StoreFailed,
                format!(
                    "the node cannot write its journal `{}`: {error}; make room on that disk",
                    self.path.display()
                ),
            )
        })
    }

    /// Records the end of a lease, and its usage.
    pub fn end(&self, lease: LeaseId, ended: Ended, usage: Metered, managed: bool) {
        if managed {
            self.note(&Record::Usage {
                usage: vec![(lease, usage)],
            });
        }
        self.note(&Record::End {
            lease,
            state: ended.state,
            until_ms: ended.until_ms,
            managed,
        });
    }

    /// Records new totals of leases.
    pub fn usage(&self, usage: Vec<(LeaseId, Metered)>) {
        if !usage.is_empty() {
            self.note(&Record::Usage { usage });
        }
    }

    /// Ended leases of this process and earlier ones.
    pub fn ended(&self) -> HashMap<LeaseId, Ended> {
        self.inner().books.ended.clone()
    }

    /// Forgets leases whose tokens have expired.
    pub fn forget(&self, now_ms: u64) {
        let mut inner = self.inner();
        let Books { ended, untold, .. } = &mut inner.books;
        ended.retain(|lease, ended| ended.until_ms > now_ms || untold.contains_key(lease));
    }

    /// Ends that the manager was not informed of.
    pub fn untold(&self) -> Vec<(LeaseId, LeaseState)> {
        let inner = self.inner();
        inner
            .books
            .untold
            .iter()
            .map(|(lease, state)| (*lease, *state))
            .collect()
    }

    /// Records that the manager was informed of an end.
    pub fn told(&self, lease: LeaseId) {
        self.note(&Record::Told { lease });
    }

    /// Leases that the manager must be informed of.
    pub fn direct(&self) -> Vec<(LeaseId, DirectStart)> {
        let inner = self.inner();
        let direct = inner.books.direct.iter();
        direct.map(|(lease, start)| (*lease, start.clone())).collect()
    }

    /// Records that the manager knows this lease.
    pub fn adopted(&self, lease: LeaseId) {
        self.note(&Record::Adopted { lease });
    }

    /// The entry to be booked; a new one, if there is usage and none waits. Usage of leases that the manager does not
    /// know yet is left out.
    pub fn entry(&self) -> Option<Entry> {
        let next = {
            let inner = self.inner();
            if inner.books.sent.is_some() {
                return inner.books.sent.clone();
            }
            let Books { unsent, direct, .. } = &inner.books;
            let known = unsent.iter().filter(|(lease, _)| !direct.contains_key(lease));
            let usage: Vec<_> = known.map(|(lease, usage)| (*lease, usage.clone())).collect();
            if usage.is_empty() {
                return None;
            }
            Record::Sent {
                sequence: inner.books.sequence + 1,
                usage,
            }
        };
        self.note(&next);
        self.inner().books.sent.clone()
    }

    /// Records that the manager has booked all entries up to this number.
    pub fn booked(&self, sequence: u64) {
        self.note(&Record::Booked { sequence });
    }
}

fn line(record: &Record) -> std::io::Result<Vec<u8>> {
    let body = serde_json::to_vec(record)?;
    let mut line = check(&body).into_bytes();
    line.push(b' ');
    line.extend(body);
    line.push(b'\n');
    Ok(line)
}

fn check(body: &[u8]) -> String {
    hex::encode(&Sha256::digest(body)[..4])
}

/// Every valid line before the first invalid one.
fn read(path: &Path) -> std::io::Result<Vec<Record>> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let parse = |line: &[u8]| {
        let (sum, body) = line.split_at_checked(9)?;
        let whole = sum[..8] == *check(body).as_bytes();
        whole.then(|| serde_json::from_slice(body).ok()).flatten()
    };
    let mut records = Vec::new();
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        match line.strip_suffix(b"\n").and_then(parse) {
            Some(record) => records.push(record),
            None => {
                tracing::warn!(path = %path.display(), "the journal ends in the middle of a line; what came before it counts");
                break;
            }
        }
    }
    Ok(records)
}

fn rewrite(path: &Path, books: &Books) -> std::io::Result<File> {
    let part = path.with_extension("part");
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(&part)?;
    let mut bytes = Vec::new();
    for record in books.records() {
        bytes.extend(line(&record)?);
    }
    file.write_all(&bytes)?;
    file.sync_data()?;
    std::fs::rename(&part, path)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use dayfly_protocol::api::Usage;

    use super::*;

    const NOW: u64 = 1_000;

    fn used(calls: u64) -> Metered {
        let usage = Usage {
            calls,
            ..Usage::default()
        };
        usage.into()
    }

    fn ended(state: LeaseState) -> Ended {
        Ended {
            state,
            until_ms: NOW + 10,
        }
    }

    #[test]
    fn restart_keeps_released_leases_and_loses_open_ones() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (released, open) = (LeaseId([1; 16]), LeaseId([2; 16]));
        let journal = Journal::open(&path, NOW).unwrap();
        journal.start(released, NOW + 10, false, None).unwrap();
        journal.start(open, NOW + 10, true, None).unwrap();
        journal.end(released, ended(LeaseState::Released), used(1), false);
        drop(journal);
        let journal = Journal::open(&path, NOW).unwrap();
        assert_eq!(journal.ended()[&released], ended(LeaseState::Released));
        assert_eq!(journal.ended()[&open], ended(LeaseState::Lost));
        assert_eq!(journal.untold(), [(open, LeaseState::Lost)]);
        journal.told(open);
        journal.forget(NOW + 11);
        assert!(journal.ended().is_empty());
    }

    #[test]
    fn usage_entry_keeps_its_number_until_booked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let lease = LeaseId([1; 16]);
        let journal = Journal::open(&path, NOW).unwrap();
        journal.usage(vec![(lease, used(5))]);
        assert_eq!(journal.entry(), Some((1, vec![(lease, used(5))])));
        journal.usage(vec![(lease, used(7))]);
        drop(journal);
        let journal = Journal::open(&path, NOW).unwrap();
        assert_eq!(journal.entry(), Some((1, vec![(lease, used(5))])));
        journal.booked(1);
        assert_eq!(journal.entry(), Some((2, vec![(lease, used(7))])));
        journal.booked(2);
        assert_eq!(journal.entry(), None);
        drop(journal);
        let journal = Journal::open(&path, NOW).unwrap();
        assert_eq!(journal.entry(), None);
        journal.usage(vec![(lease, used(8))]);
        assert_eq!(journal.entry(), Some((3, vec![(lease, used(8))])));
    }

    #[test]
    fn truncated_journal_is_read_to_last_complete_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let journal = Journal::open(&path, NOW).unwrap();
        for n in 1..=5 {
            journal.start(LeaseId([n; 16]), NOW + 10, false, None).unwrap();
        }
        let whole = std::fs::read(&path).unwrap();
        let mut found = 0;
        for length in 0..=whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            let lost = Journal::open(&path, NOW).unwrap().ended().len();
            assert!(lost == found || lost == found + 1);
            found = lost;
        }
        assert_eq!(found, 5);
    }

    #[test]
    fn full_disk_refuses_lease_and_loses_no_record() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let journal = Journal::open(&path, NOW).unwrap();
        journal.start(LeaseId([1; 16]), NOW + 10, false, None).unwrap();
        journal.inner().file = File::options().write(true).open("/dev/full").unwrap();
        let failure = journal.start(LeaseId([2; 16]), NOW + 10, false, None).unwrap_err();
        assert_eq!(failure.code, Code::StoreFailed);
        // There is room again.
        journal.start(LeaseId([3; 16]), NOW + 10, false, None).unwrap();
        drop(journal);
        let journal = Journal::open(&path, NOW).unwrap();
        let mut lost: Vec<_> = journal.ended().into_keys().collect();
        lost.sort();
        assert_eq!(lost, [LeaseId([1; 16]), LeaseId([3; 16])]);
    }
}
