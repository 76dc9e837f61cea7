//! Nodes on demand: jobs of a batch system, each with a block of nodes.
//!
//! One thread compares the demand with the existing blocks, follows [`dayfly_scheduling::plan`], and records its jobs
//! in a file, so that the next process continues with them.

mod backoff;
mod job_file;
mod manager;
mod site_block;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use dayfly_protocol::endpoints::BlockStatus;
use dayfly_protocol::error::{Code, Failure};
use dayfly_scheduling::{BlockTerms, Demand};

use self::manager::BlockManager;
use crate::provider::Provider;

/// Interval of the comparison.
const UPDATE_INTERVAL: Duration = Duration::from_millis(100);

/// Options of the blocks.
#[derive(Debug, Clone)]
pub struct Options {
    /// Name of the endpoint and of the jobs.
    pub name: String,
    /// Bounds.
    pub terms: BlockTerms,
    /// Nodes of one block.
    pub nodes: u32,
    /// Longest duration of a job; zero for no limit.
    pub walltime: Duration,
    /// Interval at which the batch system is asked.
    pub poll: Duration,
    /// A node that has not joined this long after its block began counts as missing.
    pub late: Duration,
    /// Directory of the record.
    pub directory: PathBuf,
}

/// A node that is present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SiteNode {
    /// Its name: the block's name, a dot, and its number.
    pub name: String,
    /// Number of its leases.
    pub leases: u32,
}

/// The site that the blocks serve.
pub trait Site: Send {
    /// Prepares for a block, and returns the command of each of its nodes.
    fn prepare(&mut self, block: &str, nodes: u32) -> Result<String, Failure>;

    /// Nodes that are present.
    fn nodes(&self) -> Vec<SiteNode>;

    /// Work to do.
    fn demand(&self) -> Demand;

    /// Starts nothing more on a block's nodes; returns when nothing runs there, or after a while.
    fn drain(&mut self, block: &str);

    /// Reports the blocks, and why there are not more if more are wanted.
    fn report(&mut self, blocks: &[BlockStatus], trouble: Option<&str>);

    /// Cleans up after a block has ended.
    fn clean_up(&mut self, block: &str);
}

enum Command {
    Stop { cancel: bool },
}

/// The thread that manages the blocks.
pub struct Handle {
    commands: Sender<Command>,
    thread: JoinHandle<()>,
}

impl Handle {
    /// Stops the thread. `cancel` ends all jobs; otherwise they go on.
    pub fn stop(self, cancel: bool) {
        // The thread may have ended by a panic, which was printed to standard error.
        let _ = self.commands.send(Command::Stop { cancel });
        let _ = self.thread.join();
    }
}

/// Starts to manage blocks, beginning with those that an earlier process recorded.
pub fn start(options: Options, provider: Box<dyn Provider>, site: Box<dyn Site>) -> Result<Handle, Failure> {
    let (commands, received) = channel();
    let mut manager = BlockManager::new(options, provider, site)?;
    let run = move || {
        loop {
            manager.update();
            match received.recv_timeout(UPDATE_INTERVAL) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Command::Stop { cancel }) => return manager.stop(cancel),
                Err(RecvTimeoutError::Disconnected) => return manager.stop(false),
            }
        }
    };
    let thread = std::thread::Builder::new().name("dayfly-blocks".into()).spawn(run);
    let impossible = |error| Failure::new(Code::Internal, format!("no thread for blocks: {error}"));
    Ok(Handle {
        commands,
        thread: thread.map_err(impossible)?,
    })
}
