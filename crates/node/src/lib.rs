//! The agent on one host: verifies leases, starts and supervises executors, meters them.
//!
//! Policy lives in `dayfly-lease`; this crate connects it to sockets, processes and clocks.
//!
//! - [`options`]: what can be chosen;
//! - `listener`: accepts connections, reads and judges their hello, and passes them on;
//! - `control`: framed requests; `channel`: opens a channel to a worker;
//! - `leases`: one lease with its workers, channels and meters; `supervisor` follows it through its life;
//! - `trust`: whose code may run as the node's user; `policy`: what the node's owner lets leases have; `runtimes`: which language runtime will do for a request;
//! - `executors`: processes; `enclosures`: what stands around isolated ones; `pool`: those that wait for a lease;
//! - `door`, `connector`: what isolated workers reach of the node, and what joins groups for them;
//! - `hangup`: notices clients that go away;
//! - `journal`: what must survive the node; `manager_link`: whom it tells.

mod affinity;
mod builds;
mod channel;
mod clock;
mod connector;
mod control;
mod door;
mod enclosures;
mod environments;
mod executors;
mod hangup;
pub mod images;
mod journal;
mod leases;
mod listener;
mod manager_link;
mod managers;
mod metrics;
mod node;
pub mod options;
mod output;
mod package;
mod policy;
mod pool;
mod readable;
pub mod runtimes;
mod supervisor;
mod trust;

use std::path::PathBuf;

pub use environments::Settings as EnvironmentSettings;
pub use leases::LeaseView;
pub use node::{Handle, Node, Status};
pub use options::{ManagerLink, Options, Output};
pub use trust::Trust;

use dayfly_protocol::error::{Code, Failure};

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// State directory.
    #[error("the state directory `{path}` cannot be used: {error}; give another with --state-dir or make room")]
    State {
        /// Which file or directory.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The key file is not a key.
    #[error("`{0}` is not a node's key; restore it, or remove it to become a new node")]
    Key(PathBuf),
    /// Another process listens there.
    #[error("{0} is in use already; stop what listens there or choose another")]
    AddressInUse(String),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// Where.
        address: String,
        /// Why.
        error: std::io::Error,
    },
    /// The state directory lies too deep for a Unix socket in it.
    #[error(
        "the socket `{path}` would have a path of {bytes} bytes and the system allows 107; choose a shorter --state-dir"
    )]
    LongPath {
        /// Of the socket.
        path: PathBuf,
        /// Its length.
        bytes: usize,
    },
    /// Process machinery.
    #[error(transparent)]
    Sandbox(#[from] dayfly_sandbox::SandboxError),
    /// The system refused something else.
    #[error("the node cannot start: {0}")]
    System(#[from] std::io::Error),
}

impl NodeError {
    /// The code under which a user hears of it.
    pub fn code(&self) -> Code {
        match self {
            Self::State { .. } => Code::StoreFailed,
            Self::AddressInUse(_) => Code::AddressInUse,
            Self::LongPath { .. } => Code::InvalidRequest,
            Self::Sandbox(_) => Code::ExecutorFailed,
            Self::Key(_) | Self::Listen { .. } | Self::System(_) => Code::Internal,
        }
    }
}

impl From<NodeError> for Failure {
    fn from(error: NodeError) -> Self {
        Failure::new(error.code(), error.to_string())
    }
}
