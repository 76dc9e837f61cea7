//! Starts processes that cannot outlive their node.
//!
//! Level `process`, the only one so far: a session and process group of its own, no descriptor but its control socket at 3
//! and its output, a death signal that follows the node, and no isolation from other processes of the same user.

mod spawn;

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

pub use spawn::Spawner;

/// What to start.
#[derive(Debug, Clone)]
pub struct Program {
    /// Path of the program; a bare name is looked up in `PATH`.
    pub program: PathBuf,
    /// Arguments after the program's name.
    pub arguments: Vec<OsString>,
    /// Variables to set or, with none, to remove, in a copy of the node's own environment.
    pub environment: Vec<(OsString, Option<OsString>)>,
}

/// A process just started.
#[derive(Debug)]
pub struct Child {
    /// Its process id, also the id of its process group.
    pub pid: i32,
    /// Becomes readable when it ends.
    pub pidfd: OwnedFd,
    /// This side of the packet socket that it finds at descriptor 3. Does not block.
    pub control: OwnedFd,
    /// What it and its children write to their standard output. Does not block.
    pub output: OwnedFd,
    /// What it and its children write to their standard error. Does not block.
    pub errors: OwnedFd,
}

/// Why a process was not started.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// Nothing of that name.
    #[error("there is no program `{0}`; install it or give its path")]
    NotFound(PathBuf),
    /// The system refused to run it.
    #[error("`{program}` cannot be started: {error}")]
    Exec {
        /// What.
        program: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// No process or descriptor to be had.
    #[error("no process can be started: {0}; raise the limits of processes and open files (`ulimit -u`, `ulimit -n`)")]
    System(#[from] std::io::Error),
    /// A text with a zero byte.
    #[error("an argument or variable of `{0}` contains a zero byte; remove it")]
    ZeroByte(PathBuf),
    /// The thread that starts processes is gone.
    #[error("the thread that starts processes has ended; restart the node")]
    Stopped,
}
