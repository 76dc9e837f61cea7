//! Starts processes that cannot outlive their node, and that have only the access that they need.
//!
//! Every process has its own session and process group, no descriptor except its control socket at 3 and its output,
//! and a death signal that follows the node. That is all of level `process`, for code that is trusted like its user.
//!
//! Level `isolated`, for other users' code, adds what [`Isolation`] describes: namespaces, a root directory with only
//! the shown paths, no privilege and no way to get one, Landlock, a system call filter ([`filter`]), and limits on the
//! whole sandbox ([`cgroup`]). It needs user namespaces; it neither needs nor uses root.
//!
//! Level `container` is the same with an [`image`] in place of the host's programs. Container runtimes find and unpack
//! images, and run nothing.

pub mod cgroup;
pub mod descriptors;
pub mod filter;
pub mod image;
pub mod isolation;
pub mod private_file;
mod spawn;
pub mod tool;
pub mod umask;

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

pub use filter::Watch;
pub use isolation::{Isolation, Precaution};
pub use spawn::{Spawner, find};

/// A program to start.
#[derive(Debug)]
pub struct Program {
    /// Path of the program; a bare name is looked up in `PATH`, which is the image's if there is one.
    pub program: PathBuf,
    /// Alternative program, for an image without the first one.
    pub otherwise: Option<PathBuf>,
    /// Arguments after the program's name.
    pub arguments: Vec<OsString>,
    /// Variables to set or, with `None`, to remove, in a copy of the node's own environment. An isolated process gets
    /// only language and time zone from that.
    pub environment: Vec<(OsString, Option<OsString>)>,
    /// Its isolation; `None` for level `process`.
    pub isolation: Option<Isolation>,
}

/// A process that was just started.
#[derive(Debug)]
pub struct Child {
    /// Its process id, also the id of its process group.
    pub pid: i32,
    /// Becomes readable when it ends.
    pub pidfd: OwnedFd,
    /// The node's end of the packet socket at the process's descriptor 3. Non-blocking.
    pub control: OwnedFd,
    /// Standard output of the process and its children. Non-blocking.
    pub output: OwnedFd,
    /// Standard error of the process and its children. Non-blocking.
    pub errors: OwnedFd,
    /// Receives refused system calls. Serve it, since each refused call waits. `None` for level `process`, and if the
    /// kernel cannot notify.
    pub watch: Option<Watch>,
    /// Precautions that this machine lacks.
    pub skipped: Vec<Precaution>,
}

/// Why a process was not started.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// There is no such program.
    #[error("program `{0}` not found; install it or give its path")]
    NotFound(PathBuf),
    /// The system refused to run it.
    #[error("`{program}` cannot be started: {error}")]
    Exec {
        /// The program.
        program: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// No process or descriptor is available.
    #[error("no process can be started: {0}; raise the limits of processes and open files (`ulimit -u`, `ulimit -n`)")]
    System(#[from] std::io::Error),
    /// A text contains a zero byte.
    #[error("an argument or variable of `{0}` contains a zero byte; remove it")]
    ZeroByte(PathBuf),
    /// The kernel refuses namespaces.
    #[error(
        "no isolated process can be started: {0}; allow user namespaces (sysctl user.max_user_namespaces, \
         kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns) on this machine, or lease with sandbox \
         `process`, which is for the tenant of the node's owner"
    )]
    Namespaces(std::io::Error),
    /// A step of the isolation failed.
    #[error("`{program}` cannot be isolated: {step} failed: {error}")]
    Isolation {
        /// The program.
        program: PathBuf,
        /// The failed step.
        step: String,
        /// The system's error.
        error: std::io::Error,
    },
    /// The image cannot be read.
    #[error("the image at `{0}` cannot be read: {1}")]
    Image(PathBuf, std::io::Error),
    /// The image lacks the program or its libraries.
    #[error(
        "the image at `{image}` has no `{program}` on its PATH, or lacks the C library that this needs; use an image with glibc \
         and, for Python functions, Python"
    )]
    NotInImage {
        /// Directory of the image.
        image: PathBuf,
        /// The missing program.
        program: PathBuf,
    },
    /// The path cannot be mounted in a sandbox.
    #[error("`{0}` cannot be mounted in a sandbox: {1}")]
    NotShown(PathBuf, &'static str),
    /// The machine has no system call filter.
    #[error("there is no system call filter for this machine: {0}; lease with sandbox `process`")]
    Filter(String),
    /// The thread that starts processes is gone.
    #[error("the thread that starts processes has ended; restart the node")]
    Stopped,
}
