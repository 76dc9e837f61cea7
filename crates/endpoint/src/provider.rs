//! Providers: sources of a site's nodes.

mod local;
mod program;

use std::collections::HashMap;

use dayfly_protocol::endpoints::BlockState;
pub use local::Local;
pub use program::Program;

/// A job to submit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Name, for users.
    pub name: String,
    /// Shell command to run once on each node, with the node's number from 0 in `DAYFLY_RANK`.
    pub command: String,
    /// Number of nodes.
    pub nodes: u32,
    /// Longest duration in seconds; 0 for no limit.
    pub walltime_s: u64,
}

/// Why there is no job, or its state is unknown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    /// The batch system refuses the job, with this message.
    #[error("{0}")]
    Refused(String),
    /// The batch system cannot be reached.
    #[error("the batch system cannot be asked: {0}")]
    Unreachable(String),
}

/// State of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobState {
    /// Waiting or running, with the batch system's message.
    Live(BlockState, String),
    /// Ended, with the batch system's message.
    Ended(String),
}

/// Runs jobs: a batch system, or this machine.
pub trait Provider: Send {
    /// Submits a job, and returns the batch system's id for it.
    fn submit(&mut self, job: &Job) -> Result<String, ProviderError>;

    /// States of jobs, including those that an earlier process submitted.
    fn status(&mut self, jobs: &[String]) -> Result<HashMap<String, JobState>, ProviderError>;

    /// Ends jobs: their commands receive SIGTERM.
    fn cancel(&mut self, jobs: &[String]) -> Result<(), ProviderError>;
}
