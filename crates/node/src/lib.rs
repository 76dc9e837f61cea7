//! The agent on one host: verifies leases, starts and supervises executors, and meters them.
//!
//! `dayfly-lease` has the policy; this crate connects it to sockets, processes and clocks.
//!
//! - `options`: configuration;
//! - `listener`: accepts connections, reads and verifies their hello, and passes them on;
//! - `control`: framed requests; `channel`: opens a channel to a worker;
//! - `node`: the state of the node. `node/lease_table.rs` has the leases, `node/allocation.rs` starts and ends them;
//! - `leases`: one lease with its workers, channels and meters; `supervisor`: follows it through its life;
//! - `trust`: which tenants' code may run as the node's user; `policy`: what the node's owner permits leases;
//!   `runtimes`: which language runtime suits a request;
//! - `executors`: processes; `executor_sandbox`: directories and control groups of isolated ones; `pool`: executors
//!   that wait for a lease; `images`, `environments` and `builds`: what they start in;
//! - `harvest`: measures long calls in control groups of their own, and applies the policy of `dayfly-harvest`;
//! - `sandbox_socket`, `connector`: what isolated workers can reach of the node, and what joins groups for them;
//! - `disconnects`: notices clients that disconnect;
//! - `journal`: state that survives the node; `manager_link`: the connection to the manager.

mod affinity;
mod builds;
mod channel;
mod clock;
mod connector;
mod control;
mod descriptor_watch;
mod disconnects;
mod ended_loans;
mod environments;
mod executor_sandbox;
mod executors;
mod harvest;
pub mod images;
mod journal;
mod leases;
mod listener;
mod loan_sums;
mod manager_link;
mod managers;
mod metrics;
mod node;
pub mod options;
mod output;
mod package;
mod policy;
mod pool;
pub mod runtimes;
mod sandbox_socket;
mod spill;
mod supervisor;
mod trust;

use std::path::PathBuf;

pub use environments::Settings as EnvironmentSettings;
pub use leases::LeaseView;
pub use node::{Handle, Node, Status};
pub use options::{ManagerLink, Options, Output};
pub use trust::Trust;

use dayfly_protocol::error::{Code, Failure};

/// The reason why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The state directory cannot be used.
    #[error("the state directory `{path}` cannot be used: {error}; give another with --state-dir or make room")]
    State {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// The key file does not contain a key.
    #[error("`{0}` is not a node's key; restore it, or remove it to become a new node")]
    Key(PathBuf),
    /// Another process listens on the address.
    #[error("{0} is in use by another process; stop it, or choose another address")]
    AddressInUse(String),
    /// Listening on the address failed.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: String,
        /// The system's error.
        error: std::io::Error,
    },
    /// The path of the state directory is too long for a Unix socket in it.
    #[error(
        "the socket `{path}` would have a path of {bytes} bytes and the system allows 107; choose a shorter --state-dir"
    )]
    LongPath {
        /// Path of the socket.
        path: PathBuf,
        /// Its length in bytes.
        bytes: usize,
    },
    /// Processes cannot be started.
    #[error(transparent)]
    Sandbox(#[from] dayfly_sandbox::SandboxError),
    /// A system call failed.
    #[error("the node cannot start: {0}")]
    System(#[from] std::io::Error),
}

impl NodeError {
    /// The stable code of this error.
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
