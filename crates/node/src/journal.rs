//! The journal: state that must survive the node's process. It contains spent tokens, and usage that is not booked yet.
//!
//! It is one append-only file of lines: a checksum, a space, JSON. A truncated line after a crash ends the file;
//! everything before it is valid. At every start the file is rewritten with what still matters.

mod contents;
mod file;

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dayfly_protocol::api::{LeaseState, Metered};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::LeaseId;
use dayfly_protocol::node_api::DirectStart;

pub use self::contents::{Ended, UsageEntry};
use self::contents::{JournalContents, Record};
use self::file::{line, read, rewrite};

/// Growth in bytes after which the file is rewritten.
const MAX_GROWTH_BYTES: u64 = 16 << 20;

#[derive(Debug)]
struct JournalState {
    file: File,
    grown_bytes: u64,
    /// Whether the last line may be incomplete.
    is_torn: bool,
    contents: JournalContents,
}

/// The journal of one node.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    state: Mutex<JournalState>,
}

impl Journal {
    /// Reads the records of an earlier process, and rewrites the file. Leases that were open then are lost.
    pub fn open(path: &Path, now_ms: u64) -> std::io::Result<Self> {
        let mut contents = JournalContents::default();
        for record in read(path)? {
            contents.apply(&record);
        }
        let lost: Vec<_> = contents
            .open
            .iter()
            .map(|(lease, (until_ms, managed))| (*lease, *until_ms, *managed))
            .collect();
        for (lease, until_ms, managed) in lost {
            contents.apply(&Record::End {
                lease,
                state: LeaseState::Lost,
                until_ms,
                managed,
            });
        }
        contents
            .ended
            .retain(|lease, ended| ended.until_ms > now_ms || contents.unreported.contains_key(lease));
        let file = rewrite(path, &contents)?;
        Ok(Self {
            path: path.into(),
            state: Mutex::new(JournalState {
                file,
                grown_bytes: 0,
                is_torn: false,
                contents,
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, JournalState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn append(&self, record: &Record) -> std::io::Result<()> {
        let mut state = self.state();
        // The state in memory stays valid even if the disk refuses the record.
        state.contents.apply(record);
        if state.is_torn || state.grown_bytes > MAX_GROWTH_BYTES {
            state.file = rewrite(&self.path, &state.contents)?;
            state.grown_bytes = 0;
            state.is_torn = false;
            return Ok(());
        }
        let line = line(record)?;
        state.grown_bytes += line.len() as u64;
        let written = state.file.write_all(&line);
        state.is_torn = written.is_err();
        written
    }

    /// As [`Journal::append`], for events that have happened already; an error is only logged.
    fn append_or_log(&self, record: &Record) {
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
            let contents = &mut self.state().contents;
            contents.open.remove(&lease);
            contents.direct.remove(&lease);
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
            self.append_or_log(&Record::Usage {
                usage: vec![(lease, usage)],
            });
        }
        self.append_or_log(&Record::End {
            lease,
            state: ended.state,
            until_ms: ended.until_ms,
            managed,
        });
    }

    /// Records new totals of leases.
    pub fn usage(&self, usage: Vec<(LeaseId, Metered)>) {
        if !usage.is_empty() {
            self.append_or_log(&Record::Usage { usage });
        }
    }

    /// Ended leases of this process and earlier ones.
    pub fn ended(&self) -> HashMap<LeaseId, Ended> {
        self.state().contents.ended.clone()
    }

    /// Forgets leases whose tokens have expired.
    pub fn forget(&self, now_ms: u64) {
        let mut state = self.state();
        let JournalContents { ended, unreported, .. } = &mut state.contents;
        ended.retain(|lease, ended| ended.until_ms > now_ms || unreported.contains_key(lease));
    }

    /// Ends that the manager was not informed of.
    pub fn unreported_ends(&self) -> Vec<(LeaseId, LeaseState)> {
        let state = self.state();
        state
            .contents
            .unreported
            .iter()
            .map(|(lease, state)| (*lease, *state))
            .collect()
    }

    /// Records that the manager was informed of an end.
    pub fn end_reported(&self, lease: LeaseId) {
        self.append_or_log(&Record::Told { lease });
    }

    /// Leases that the manager must be informed of.
    pub fn unreported_starts(&self) -> Vec<(LeaseId, DirectStart)> {
        let state = self.state();
        let direct = state.contents.direct.iter();
        direct.map(|(lease, start)| (*lease, start.clone())).collect()
    }

    /// Records that the manager knows this lease.
    pub fn adopted(&self, lease: LeaseId) {
        self.append_or_log(&Record::Adopted { lease });
    }

    /// The entry to be booked; a new one, if there is usage and none waits. Usage of leases that the manager does not
    /// know yet is left out.
    pub fn next_entry(&self) -> Option<UsageEntry> {
        let next = {
            let state = self.state();
            if state.contents.sent.is_some() {
                return state.contents.sent.clone();
            }
            let JournalContents { unsent, direct, .. } = &state.contents;
            let known = unsent.iter().filter(|(lease, _)| !direct.contains_key(lease));
            let usage: Vec<_> = known.map(|(lease, usage)| (*lease, usage.clone())).collect();
            if usage.is_empty() {
                return None;
            }
            Record::Sent {
                sequence: state.contents.sequence + 1,
                usage,
            }
        };
        self.append_or_log(&next);
        self.state().contents.sent.clone()
    }

    /// Records that the manager has booked all entries up to this number.
    pub fn booked(&self, sequence: u64) {
        self.append_or_log(&Record::Booked { sequence });
    }
}

#[cfg(test)]
mod tests {
    use dayfly_protocol::api::{LoanUsage, Usage};

    use super::*;

    const NOW: u64 = 1_000;

    fn used(calls: u64) -> Metered {
        let usage = Usage {
            calls,
            ..Usage::default()
        };
        let loans = LoanUsage {
            borrowed_core_us: calls,
            ..LoanUsage::default()
        };
        Metered { loans, ..usage.into() }
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
        assert_eq!(journal.unreported_ends(), [(open, LeaseState::Lost)]);
        journal.end_reported(open);
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
        assert_eq!(journal.next_entry(), Some((1, vec![(lease, used(5))])));
        journal.usage(vec![(lease, used(7))]);
        drop(journal);
        let journal = Journal::open(&path, NOW).unwrap();
        assert_eq!(journal.next_entry(), Some((1, vec![(lease, used(5))])));
        journal.booked(1);
        assert_eq!(journal.next_entry(), Some((2, vec![(lease, used(7))])));
        journal.booked(2);
        assert_eq!(journal.next_entry(), None);
        drop(journal);
        let journal = Journal::open(&path, NOW).unwrap();
        assert_eq!(journal.next_entry(), None);
        journal.usage(vec![(lease, used(8))]);
        assert_eq!(journal.next_entry(), Some((3, vec![(lease, used(8))])));
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
        journal.state().file = File::options().write(true).open("/dev/full").unwrap();
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
