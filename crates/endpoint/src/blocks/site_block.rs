//! One block: its record, and what this process knows about it.

use std::time::{Duration, Instant};

use dayfly_protocol::endpoints::{BlockState, BlockStatus};
use dayfly_scheduling::Block;

use super::job_file::BlockRecord;

/// How long a node of a complete block may be away before it counts as gone.
const NODE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before a job that has not ended is cancelled again.
const CANCEL_INTERVAL: Duration = Duration::from_secs(30);

/// A block of the site.
pub struct SiteBlock {
    record: BlockRecord,
    /// The last message of the batch system about it.
    message: String,
    joined: u32,
    /// Since when it has had fewer nodes than it should.
    incomplete_since: Option<Instant>,
    /// Whether any of its nodes, and whether all of them, were ever present.
    had_nodes: bool,
    was_complete: bool,
    idle_since_ms: Option<u64>,
    cancelled_at: Option<Instant>,
}

impl SiteBlock {
    /// A block from its record.
    pub fn of(record: BlockRecord) -> Self {
        Self {
            had_nodes: record.started_at_ms > 0,
            record,
            message: String::new(),
            joined: 0,
            incomplete_since: None,
            was_complete: false,
            idle_since_ms: None,
            cancelled_at: None,
        }
    }

    /// The part that the next process needs.
    pub fn record(&self) -> &BlockRecord {
        &self.record
    }

    /// Number of its nodes that are present.
    pub fn joined(&self) -> u32 {
        self.joined
    }

    /// Whether any of its nodes was ever present.
    pub fn had_nodes(&self) -> bool {
        self.had_nodes
    }

    /// The last message of the batch system about it.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Records the id of its job.
    pub fn set_job(&mut self, job: String) {
        self.record.job = job;
    }

    /// Records a message of the batch system.
    pub fn set_message(&mut self, message: String) {
        self.message = message;
    }

    /// Records that its job runs. Returns whether that is new.
    pub fn set_started(&mut self, now_ms: u64) -> bool {
        let is_new = self.record.started_at_ms == 0;
        if is_new {
            self.record.started_at_ms = now_ms;
        }
        is_new
    }

    /// Records its present nodes and their leases. Returns whether its job has started since the last call.
    pub fn set_nodes(&mut self, joined: u32, leases: u32, now_ms: u64) -> bool {
        self.joined = joined;
        let is_new = joined > 0 && self.set_started(now_ms);
        self.had_nodes |= joined > 0;
        self.was_complete |= joined >= self.record.nodes;
        self.incomplete_since = match self.record.started_at_ms > 0 && joined < self.record.nodes {
            true => self.incomplete_since.or_else(|| Some(Instant::now())),
            false => None,
        };
        self.idle_since_ms = match (self.record.started_at_ms, leases) {
            (1.., 0) => self.idle_since_ms.or(Some(now_ms)),
            _ => None,
        };
        is_new
    }

    /// Records that its job is being cancelled.
    pub fn set_cancelled(&mut self) {
        self.cancelled_at = Some(Instant::now());
    }

    /// Whether its job was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled_at.is_some()
    }

    /// Whether its job was cancelled a while ago and has not ended.
    pub fn is_overdue(&self) -> bool {
        self.cancelled_at.is_some_and(|at| at.elapsed() > CANCEL_INTERVAL)
    }

    /// End of its job in milliseconds since the Unix epoch; 0 for never, or unknown.
    pub fn ends_at_ms(&self, walltime: Duration) -> u64 {
        let length = u64::try_from(walltime.as_millis()).unwrap_or(u64::MAX);
        match (self.record.started_at_ms, length) {
            (0, _) | (_, 0) => 0,
            (started_at_ms, length) => started_at_ms.saturating_add(length),
        }
    }

    /// Number of nodes to count. A node that is not present after `late` counts as missing.
    pub fn nodes(&self, late: Duration) -> u32 {
        let patience = if self.was_complete { NODE_TIMEOUT } else { late };
        match self.incomplete_since {
            Some(since) if since.elapsed() >= patience => self.joined,
            _ => self.record.nodes,
        }
    }

    /// The block for scheduling. `workers` is the number of workers of one node.
    pub fn plan_view(&self, workers: u32, late: Duration, walltime: Duration, now_ms: u64) -> Block {
        match (self.cancelled_at, self.record.started_at_ms) {
            (Some(_), _) => Block::Running {
                workers: 0,
                idle_since_ms: None,
                ends_at_ms: now_ms,
            },
            (None, 0) => Block::Pending,
            (None, _) => Block::Running {
                workers: workers * self.nodes(late),
                idle_since_ms: self.idle_since_ms,
                ends_at_ms: self.ends_at_ms(walltime),
            },
        }
    }

    /// The block for reports.
    pub fn status(&self, walltime: Duration) -> BlockStatus {
        BlockStatus {
            name: self.record.name.clone(),
            job: self.record.job.clone(),
            state: match self.record.started_at_ms {
                0 => BlockState::Pending,
                _ => BlockState::Running,
            },
            nodes: self.record.nodes,
            joined: self.joined,
            submitted_at_ms: self.record.submitted_at_ms,
            ends_at_ms: self.ends_at_ms(walltime),
            words: self.message.clone(),
        }
    }
}
