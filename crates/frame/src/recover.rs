//! Recovery by tasks: which tasks run again when a rank is lost, where, and when to give up. Decisions only, without I/O.
//!
//! Every task keeps its output until its query ends, so a lost rank takes the outputs of its own tasks along, and nothing
//! else. A task that reads a lost output asks where it is now. The first one to ask has the lost task run again, on a
//! rank that is left; the new run reads its own inputs in the same way. So a task that nobody needs any more does not run
//! again, and neither does one whose output is still there.
//!
//! A run may give other rows than the one before: `LIMIT` takes any of them. Readers of both runs would have a mixture.
//! So such a task runs again alone only if one task reads it, which takes all of a run or nothing. Otherwise it takes its
//! readers along, with theirs: all of them run again. If the session has read one of these, the whole query runs again.

mod repeat;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use dayfly_protocol::error::{Code, Failure};
use serde::{Deserialize, Serialize};

pub use repeat::{Stages, along};

use crate::cost::Size;

/// Runs of one task, or of a whole query, whose ranks are lost.
pub const MAX_ATTEMPTS: u32 = 3;

/// Fewest bytes of input of a query whose tasks keep their outputs by themselves: to run it again takes longer than to
/// keep them.
const MIN_KEPT_INPUT_BYTES: u64 = 4 << 30;

/// What happens to a query whose ranks are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recovery {
    /// The query fails with [`Code::RankLost`].
    None,
    /// The query fails with [`Code::RankLost`], and its caller runs it again on other ranks.
    #[default]
    Query,
    /// Tasks keep their outputs, and only lost ones run again.
    Tasks,
    /// As [`Recovery::Tasks`] for queries whose scans read 4 GiB or more, by estimate. Others run again as a whole on the
    /// ranks that are left, unless they have returned rows.
    Auto,
}

impl Recovery {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Query => "query",
            Self::Tasks => "tasks",
            Self::Auto => "auto",
        }
    }

    /// Whether a session goes on with the ranks that are left.
    pub fn goes_on(self) -> bool {
        matches!(self, Self::Tasks | Self::Auto)
    }

    /// The recovery of a query whose scans read so many bytes.
    pub fn for_input(self, bytes: u64) -> Choice {
        let recovery = match self {
            Self::Auto if bytes >= MIN_KEPT_INPUT_BYTES => Self::Tasks,
            Self::Auto => Self::Query,
            chosen => return Choice::fixed(chosen),
        };
        Choice {
            recovery,
            input_bytes: Some(bytes),
        }
    }
}

/// The recovery of one query, and why. Its text says both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// Never [`Recovery::Auto`].
    pub recovery: Recovery,
    /// Bytes that the query's scans read, if these decided.
    input_bytes: Option<u64>,
}

impl Choice {
    /// The recovery of all queries of a session.
    pub fn fixed(recovery: Recovery) -> Self {
        Self {
            recovery,
            input_bytes: None,
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let least = Size(MIN_KEPT_INPUT_BYTES);
        f.write_str(match (self.recovery, self.input_bytes) {
            (Recovery::Tasks, _) => "tasks of lost ranks run again",
            (Recovery::None, _) => "the query fails",
            (_, Some(_)) => "the query runs again on the ranks that are left",
            (_, None) => "the query runs again on other ranks",
        })?;
        match self.input_bytes {
            Some(bytes) if self.recovery == Recovery::Tasks => {
                write!(f, ": its scans read about {}, which is {least} or more", Size(bytes))
            }
            Some(bytes) => write!(f, ": its scans read about {}, which is less than {least}", Size(bytes)),
            None => write!(f, ": the session asks for recovery {:?}", self.recovery.name()),
        }
    }
}

/// A task of a query: the number of its stage, and its own within that.
pub type TaskId = (usize, usize);

/// Where a task runs, or has run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The rank.
    pub rank: u32,
    /// The number of the run, from 0.
    pub attempt: u32,
}

/// Where a reader finds a task's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// A run that another reader has asked for.
    There(Place),
    /// A run that begins now.
    Again {
        place: Place,
        /// Tasks that run again on their own ranks, since they may have read the lost run.
        along: Vec<(TaskId, Place)>,
    },
}

/// Why a task does not run again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GivenUp {
    /// The query has not sent the task yet, or has ended.
    Unknown,
    /// It was lost as often as it may be.
    Attempts,
    /// No rank is left.
    NobodyLeft,
    /// It may give other rows, and the session has read what depends on the lost ones.
    MayDiffer,
}

impl GivenUp {
    /// The failure of the query, which names the lost rank and the cause.
    pub fn to_failure(&self, (stage, task): TaskId, lost: u32, cause: &str) -> Failure {
        let task = format!("task {task} of stage {stage}");
        let message = match self {
            Self::Unknown => format!("{task} is not known to the session; rank {lost} is lost: {cause}"),
            Self::Attempts => {
                format!("{task} was lost in {MAX_ATTEMPTS} attempts, the last one with rank {lost}: {cause}")
            }
            Self::NobodyLeft => format!("no rank is left to run {task} again; rank {lost} is lost: {cause}"),
            Self::MayDiffer => format!(
                "{task} may give other rows in another run, and the session has read some; rank {lost} is lost: {cause}"
            ),
        };
        let code = if *self == Self::Unknown {
            Code::NotFound
        } else {
            Code::RankLost
        };
        Failure::new(code, message)
    }
}

/// Where the tasks of one query are.
#[derive(Debug, Default)]
pub struct Lineage {
    tasks: BTreeMap<TaskId, Progress>,
    /// Tasks whose outputs the session has read.
    read: BTreeSet<TaskId>,
}

#[derive(Debug, Clone, Copy)]
struct Progress {
    place: Place,
    /// Runs that were lost with their ranks.
    losses: u32,
}

impl Lineage {
    /// A task is sent to a rank for the first time.
    pub fn begin(&mut self, task: TaskId, rank: u32) {
        let place = Place { rank, attempt: 0 };
        self.tasks.insert(task, Progress { place, losses: 0 });
    }

    /// Where the latest run of a task is.
    pub fn place(&self, task: TaskId) -> Option<Place> {
        self.tasks.get(&task).map(|progress| progress.place)
    }

    /// The session has read a run. Returns whether it may keep it: no later one has begun meanwhile.
    pub fn keep(&mut self, task: TaskId, place: Place) -> bool {
        let is_latest = self.place(task).is_none_or(|latest| latest == place);
        if is_latest {
            self.read.insert(task);
        }
        is_latest
    }

    /// Decides where a reader finds the output of a task whose run `seen` is lost. `left` are the ranks that are not
    /// known to be lost; `along` are the stages whose tasks may have read the run, and run again with it.
    ///
    /// # Errors
    /// If the task does not run again.
    pub fn moved(
        &mut self,
        task: TaskId,
        seen: u32,
        left: &BTreeSet<u32>,
        along: &BTreeSet<usize>,
    ) -> Result<Decision, GivenUp> {
        let current = self.tasks.get(&task).copied().ok_or(GivenUp::Unknown)?;
        if current.place.attempt > seen {
            return Ok(Decision::There(current.place));
        }
        if current.losses + 1 >= MAX_ATTEMPTS {
            return Err(GivenUp::Attempts);
        }
        if !along.is_empty() && self.read.iter().any(|(stage, _)| along.contains(stage)) {
            return Err(GivenUp::MayDiffer);
        }
        // The reader knows of a loss that the session may not have noticed yet.
        let candidates = || left.iter().copied().filter(|rank| *rank != current.place.rank);
        let place = self.next(current.place, candidates()).ok_or(GivenUp::NobodyLeft)?;
        let losses = current.losses + 1;
        self.tasks.insert(task, Progress { place, losses });
        let readers = self.tasks.keys().copied().filter(|(stage, _)| along.contains(stage));
        let readers: Vec<TaskId> = readers.filter(|reader| *reader != task).collect();
        let mut again = Vec::with_capacity(readers.len());
        for reader in readers {
            let before = self.tasks[&reader];
            let own = Place {
                attempt: before.place.attempt + 1,
                ..before.place
            };
            let is_left = left.contains(&own.rank) && own.rank != current.place.rank;
            let place = match is_left {
                true => own,
                false => self.next(before.place, candidates()).ok_or(GivenUp::NobodyLeft)?,
            };
            self.tasks.insert(reader, Progress { place, ..before });
            again.push((reader, place));
        }
        Ok(Decision::Again { place, along: again })
    }

    /// The next run of a task, on the rank with the fewest tasks.
    fn next(&self, before: Place, candidates: impl Iterator<Item = u32>) -> Option<Place> {
        let load = |rank: u32| {
            self.tasks
                .values()
                .filter(|progress| progress.place.rank == rank)
                .count()
        };
        let rank = candidates.min_by_key(|rank| (load(*rank), *rank))?;
        Some(Place {
            rank,
            attempt: before.attempt + 1,
        })
    }
}

#[cfg(test)]
mod tests;
