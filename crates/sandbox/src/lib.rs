//! Starts processes that cannot outlive their node, and that reach no more than they should.
//!
//! Every process gets a session and process group of its own, no descriptor but its control socket at 3 and its output, and
//! a death signal that follows the node. That is all of level `process`: code that is trusted like its user.
//!
//! Level `isolated`, for other people's code, adds what [`Isolation`] describes: namespaces, a root directory with nothing in
//! it but what is shown, no privilege and no way to get one, Landlock, a system call filter ([`filter`]), and limits on all of
//! it together ([`cgroup`]). It needs user namespaces and nothing else; root is not needed, and not used where it is there.
//!
//! Level `container` is the same with an [`image`] in place of the host's programs: container runtimes find and unpack images,
//! and run nothing.

pub mod cgroup;
pub mod descriptors;
pub mod filter;
pub mod image;
pub mod isolation;
pub mod private;
mod spawn;
pub mod tool;
pub mod umask;

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

pub use filter::Watch;
pub use isolation::{Isolation, Precaution};
pub use spawn::{Spawner, find};

/// What to start.
#[derive(Debug)]
pub struct Program {
    /// Path of the program; a bare name is looked up in `PATH`, which is that of the image where there is one.
    pub program: PathBuf,
    /// What to run instead where an image has no program of that name.
    pub otherwise: Option<PathBuf>,
    /// Arguments after the program's name.
    pub arguments: Vec<OsString>,
    /// Variables to set or, with none, to remove, in a copy of the node's own environment; an isolated process gets none of
    /// that but its language and time zone.
    pub environment: Vec<(OsString, Option<OsString>)>,
    /// How it is kept from everything else; none for level `process`.
    pub isolation: Option<Isolation>,
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
    /// Where refused system calls are told; to be listened to, for whoever makes one waits. None for level `process`, and
    /// where the kernel does not tell.
    pub watch: Option<Watch>,
    /// Precautions that this machine did not let it have.
    pub skipped: Vec<Precaution>,
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
    /// The kernel gives no namespaces.
    #[error(
        "no isolated process can be started: {0}; allow user namespaces (sysctl user.max_user_namespaces, \
         kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns) on this machine, or lease with sandbox \
         `process`, which is for the tenant of the node's owner"
    )]
    Namespaces(std::io::Error),
    /// A step of isolating it failed.
    #[error("`{program}` cannot be isolated: {step} failed: {error}")]
    Isolation {
        /// What.
        program: PathBuf,
        /// At which step.
        step: String,
        /// Why.
        error: std::io::Error,
    },
    /// An image that cannot be read.
    #[error("the image at `{0}` cannot be read: {1}")]
    Image(PathBuf, std::io::Error),
    /// An image without what it takes.
    #[error(
        "the image at `{image}` has no `{program}` on its PATH, or not the C library that this needs; take an image with glibc \
         and, for Python functions, Python"
    )]
    NotInImage {
        /// Where it is unpacked.
        image: PathBuf,
        /// What it lacks.
        program: PathBuf,
    },
    /// A path that a sandbox cannot show.
    #[error("`{0}` cannot be shown in a sandbox: {1}")]
    NotShown(PathBuf, &'static str),
    /// No system call filter.
    #[error("there is no system call filter for this machine: {0}; lease with sandbox `process`")]
    Filter(String),
    /// The thread that starts processes is gone.
    #[error("the thread that starts processes has ended; restart the node")]
    Stopped,
}
