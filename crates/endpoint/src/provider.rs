//! What a site gets nodes from.

mod local;
mod program;

use std::collections::HashMap;

use dayfly_protocol::tasks::BlockState;
pub use local::Local;
pub use program::Program;

/// A job to submit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// For people.
    pub name: String,
    /// What the shell runs once on each node, with the node's number from 0 on in `DAYFLY_RANK`.
    pub command: String,
    /// Nodes of it.
    pub nodes: u32,
    /// Seconds that it may take; 0 for no limit.
    pub walltime_s: u64,
}

/// Why there is no job, or nothing is known of one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// The batch system does not want it, in its own words.
    #[error("{0}")]
    Refused(String),
    /// It cannot be asked.
    #[error("the batch system cannot be asked: {0}")]
    Unreachable(String),
}

/// How a job does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobState {
    /// It waits, or is on its nodes; and what the batch system says of it.
    Live(BlockState, String),
    /// There is nothing of it any more.
    Ended(String),
}

/// Something that runs jobs: a batch system, or this machine.
pub trait Provider: Send {
    /// Submits a job, and answers what the batch system calls it.
    fn submit(&mut self, job: &Job) -> Result<String, Trouble>;

    /// How jobs do, also those that an earlier process submitted.
    fn status(&mut self, jobs: &[String]) -> Result<HashMap<String, JobState>, Trouble>;

    /// Ends jobs: their commands are told by SIGTERM.
    fn cancel(&mut self, jobs: &[String]) -> Result<(), Trouble>;
}
