//! The records of a journal, and their meaning.

use std::collections::{BTreeMap, HashMap};

use dayfly_protocol::api::{LeaseState, Metered};
use dayfly_protocol::ids::LeaseId;
use dayfly_protocol::node_api::DirectStart;
use serde::{Deserialize, Serialize};

/// One line of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
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
pub type UsageEntry = (u64, Vec<(LeaseId, Metered)>);

/// What all records together mean.
#[derive(Debug, Default)]
pub struct JournalContents {
    pub open: HashMap<LeaseId, (u64, bool)>,
    pub ended: HashMap<LeaseId, Ended>,
    pub unreported: BTreeMap<LeaseId, LeaseState>,
    /// Leases that the manager must be informed of before anything else about them.
    pub direct: BTreeMap<LeaseId, DirectStart>,
    /// Totals that no booked or sent entry contains.
    pub unsent: BTreeMap<LeaseId, Metered>,
    pub sent: Option<UsageEntry>,
    pub sequence: u64,
}

impl JournalContents {
    /// Applies a record.
    pub fn apply(&mut self, record: &Record) {
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
                    self.unreported.insert(*lease, *state);
                }
            }
            Record::Told { lease } => {
                self.unreported.remove(lease);
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
    pub fn records(&self) -> Vec<Record> {
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
            managed: self.unreported.contains_key(lease),
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
