//! Levels `isolated` and `container`: a process that sees a machine with only what it needs. The two levels differ only
//! in the root file system: the host's programs, or an image.
//!
//! The new process still shares the node's memory, so it may only make system calls. Therefore its steps are prepared
//! here as a list. In order: it joins its control groups; it gets its user identifiers; it builds a root directory in
//! memory, with the shown paths bound into it read-only; it makes that its root; it drops every privilege; it restricts
//! itself by Landlock and a system call filter; it runs its program.

mod kernel;
mod process;
mod root;
mod settings;

use std::ffi::c_int;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;

use crate::SandboxError;
use crate::cgroup::Group;
use crate::filter::Filters;
use kernel::{LANDLOCK_READ, LANDLOCK_WRITE_FILE};
use root::{Root, text};

pub(crate) use process::Plan;
pub use settings::make_settings;

/// Path of the lease's code inside a sandbox.
pub const CODE_DIR: &str = "/dayfly/code";
/// User and group of sandboxed processes inside, when the node is root; otherwise they keep the node's.
const INNER_USER: u32 = 1000;
/// First of the 65,536 otherwise unused host users that sandboxes run as when the node is root.
const FIRST_OUTER_USER: u32 = 0x4d59_0000;

/// Host user of processes that work for sandboxes from outside, when the node is root. It differs from those of
/// sandboxes.
pub const HELPER_USER: u32 = FIRST_OUTER_USER + 0x1_0000;

/// Contents of a sandbox's root directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Base {
    /// Programs and libraries of the host.
    Host {
        /// Host directory to show at `/etc`; see [`make_settings`].
        settings: PathBuf,
    },
    /// An untrusted image, unpacked in this directory. None of its links is followed. The program must be in the image
    /// or among the shown paths.
    Image(PathBuf),
}

/// A host path that a sandbox shows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BindMount {
    /// Absolute path inside the sandbox.
    pub path: PathBuf,
    /// The host path, without a symbolic link: otherwise a user who may write to a directory above could insert a link
    /// after the node's check.
    pub from: PathBuf,
    /// Whether it is writable, as far as the host's permissions let the sandbox's user.
    pub writable: bool,
}

/// Configuration of an isolated process.
#[derive(Debug)]
pub struct Isolation {
    /// An empty directory over which its root is built.
    pub stage: PathBuf,
    /// Host directory to show at [`CODE_DIR`].
    pub code: PathBuf,
    /// The base of its root directory.
    pub base: Base,
    /// Further paths to show. Paths below a shown path need not be named.
    pub shown: Vec<BindMount>,
    /// Whether it shares the host's network; otherwise it has only its own loopback.
    pub network: bool,
    /// Bound on its temporary files, in bytes.
    pub scratch_bytes: u64,
    /// Most processes and threads of its user, without a control group to count them; 0 for no limit.
    pub most_tasks: u32,
    /// Number of the sandbox, which determines its host user when the node is root.
    pub number: u32,
    /// Limits on the whole sandbox.
    pub group: Option<std::sync::Arc<Group>>,
}

impl Base {
    /// The image's directory, if there is one.
    pub fn image(&self) -> Option<&Path> {
        match self {
            Self::Host { .. } => None,
            Self::Image(image) => Some(image),
        }
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn outer_user(number: u32) -> u32 {
    FIRST_OUTER_USER + number % 0x1_0000
}

fn inner_ids() -> (u32, u32) {
    match is_root() {
        true => (INNER_USER, INNER_USER),
        false => (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
    }
}

/// Precautions that a kernel may lack and a sandbox can do without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Precaution {
    /// A second barrier around files, beside the mounts.
    Landlock = 1,
    /// Records of refused system calls.
    Record = 2,
    /// A process list of its own; without it there is none.
    Proc = 4,
}

impl Precaution {
    pub const ALL: [Self; 3] = [Self::Landlock, Self::Record, Self::Proc];

    /// Description for users.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Landlock => "Landlock (files are fenced by mounts alone)",
            Self::Record => "records of refused system calls (they are refused all the same)",
            Self::Proc => "/proc within sandboxes",
        }
    }
}

/// The identity that a process takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// For `/proc/PID/uid_map` and `gid_map`, which the node writes.
    pub users: String,
    pub groups: String,
    /// Whether the kernel forbids changes to the sandbox's groups, as it does for unprivileged users.
    pub keeps_groups: bool,
    /// The user to switch to inside, if any.
    become_user: Option<u32>,
}

impl Identity {
    fn of(number: u32) -> Self {
        if is_root() {
            let outer = outer_user(number);
            // Root exists inside only until the root directory is made; nothing can become root afterwards.
            let map = format!("0 0 1\n{INNER_USER} {outer} 1\n");
            Self {
                users: map.clone(),
                groups: map,
                keeps_groups: false,
                become_user: Some(INNER_USER),
            }
        } else {
            let (user, group) = inner_ids();
            Self {
                users: format!("{user} {user} 1\n"),
                groups: format!("{group} {group} 1\n"),
                keeps_groups: true,
                become_user: None,
            }
        }
    }
}

impl Isolation {
    /// The host's user and group that its processes run as, if they differ from the node's.
    pub fn host_user(&self) -> Option<u32> {
        is_root().then(|| outer_user(self.number))
    }

    /// Flags of its new namespaces.
    pub(crate) fn namespaces(&self) -> c_int {
        let network = if self.network { 0 } else { libc::CLONE_NEWNET };
        libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | network
    }

    /// Prepares all steps. `filters` must outlive the plan. `identity_socket` is the process's end of the socket on which it
    /// requests its identity, and the node's end, which it inherits.
    pub(crate) fn plan(
        &self,
        program: &Path,
        filters: &Filters,
        identity_socket: [RawFd; 2],
    ) -> Result<Plan, SandboxError> {
        let doors = match &self.group {
            Some(group) => group.procs_files()?,
            None => Vec::new(),
        };
        let root = Root::of(self, program)?;
        let mut landlock = vec![
            (text(Path::new("/"))?, LANDLOCK_READ),
            (text(Path::new("/dev"))?, LANDLOCK_READ | LANDLOCK_WRITE_FILE),
            (text(Path::new("/tmp"))?, u64::MAX),
            (text(Path::new("/dev/shm"))?, u64::MAX),
        ];
        for path in &root.writable {
            landlock.push((text(path)?, u64::MAX));
        }
        let filter = if self.network {
            &filters.networked
        } else {
            &filters.alone
        };
        let program = |steps: &[libc::sock_filter]| libc::sock_fprog {
            len: steps.len() as u16,
            filter: steps.as_ptr().cast_mut(),
        };
        Ok(Plan {
            doors,
            identity: Identity::of(self.number),
            steps: root.steps,
            stage: text(&self.stage)?,
            network: self.network,
            most_tasks: self.most_tasks,
            landlock,
            watched: program(&filter.watched),
            silent: program(&filter.silent),
            identity_socket,
            stage_reached: AtomicU32::new(0),
            skipped: AtomicU32::new(0),
        })
    }
}
