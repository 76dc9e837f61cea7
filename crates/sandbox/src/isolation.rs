//! Levels `isolated` and `container`: a process that sees a machine with nothing on it but what it needs. What that is made of,
//! the host's own programs or an image, is all that tells the two apart.
//!
//! What the new process does to itself is laid out here beforehand as a list of steps, because the process, which still
//! shares the node's memory, may only make system calls. In order: it joins its control groups; it gets its user
//! identifiers; it builds a root directory of its own in memory, with what is shown bound into it read-only; it makes that
//! its root; it gives up every privilege; it restricts itself by Landlock and a system call filter; it runs its program.

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

/// Where a sandbox finds the code of its lease.
pub const CODE_DIR: &str = "/dayfly/code";
/// User and group of sandboxed processes, as they see themselves, when the node is root; else they keep the node's.
const INNER_USER: u32 = 1000;
/// First of the 65,536 host users, unused by anything else, that sandboxes of a node which is root run as.
const FIRST_OUTER_USER: u32 = 0x4d59_0000;

/// The host user, beside those of sandboxes, as whom processes work for sandboxes without being in them, when the node is root.
pub const HELPER_USER: u32 = FIRST_OUTER_USER + 0x1_0000;

/// What a sandbox's root directory is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Base {
    /// Programs and libraries of the host.
    Host {
        /// Host directory that it finds at `/etc`; see [`make_settings`].
        settings: PathBuf,
    },
    /// An image, unpacked in this directory: somebody else's work, of which no link is followed. Its program is looked for within,
    /// and must be there or among what is shown.
    Image(PathBuf),
}

/// A host path that a sandbox shows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Shown {
    /// Where the sandbox sees it; absolute.
    pub path: PathBuf,
    /// What it is, without a symbolic link in it: whoever may write to a directory above could have the node follow one
    /// that was not there when it looked.
    pub from: PathBuf,
    /// Whether it may be changed, as far as the host's own permissions let the sandbox's user.
    pub writable: bool,
}

/// What an isolated process gets.
#[derive(Debug)]
pub struct Isolation {
    /// An empty directory over which its root is made.
    pub stage: PathBuf,
    /// Host directory that it finds at [`CODE_DIR`].
    pub code: PathBuf,
    /// What it finds beside that.
    pub base: Base,
    /// What else it sees. Nothing below a path that is shown already need be named.
    pub shown: Vec<Shown>,
    /// Whether it shares the host's network instead of having none.
    pub network: bool,
    /// Most bytes that its temporary files take.
    pub scratch_bytes: u64,
    /// Most processes and threads of its user, for where no control group counts them; 0 for no limit.
    pub most_tasks: u32,
    /// Number of the sandbox, which decides whom it runs as when the node is root.
    pub number: u32,
    /// Limits on it as a whole.
    pub group: Option<std::sync::Arc<Group>>,
}

impl Base {
    /// The image, if there is one.
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
    /// A second fence around files, beside the mounts.
    Landlock = 1,
    /// That refused system calls are told to the node.
    Record = 2,
    /// A process list of its own; without it there is none.
    Proc = 4,
}

impl Precaution {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Landlock, Self::Record, Self::Proc];

    /// For people.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Landlock => "Landlock (files are fenced by mounts alone)",
            Self::Record => "records of refused system calls (they are refused all the same)",
            Self::Proc => "/proc within sandboxes",
        }
    }
}

/// Who a process becomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// For `/proc/PID/uid_map` and `gid_map`, written by the node.
    pub users: String,
    pub groups: String,
    /// Whether the sandbox's groups must stay as they are, which the kernel asks of whoever is not root.
    pub keeps_groups: bool,
    /// What it changes to within, if at all.
    become_user: Option<u32>,
}

impl Identity {
    fn of(number: u32) -> Self {
        if is_root() {
            let outer = FIRST_OUTER_USER + number % 0x1_0000;
            // Root within exists only until the root directory is made; nothing can become it afterwards.
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
    /// Namespaces of its own.
    pub(crate) fn namespaces(&self) -> c_int {
        let network = if self.network { 0 } else { libc::CLONE_NEWNET };
        libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | network
    }

    /// Lays out everything. `filters` must outlive the plan. `desk` is the process's end of the socket on which it asks for its
    /// identity, and the node's, which it inherits.
    pub(crate) fn plan(&self, program: &Path, filters: &Filters, desk: [RawFd; 2]) -> Result<Plan, SandboxError> {
        let doors = match &self.group {
            Some(group) => group.doors()?,
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
            desk,
            stage_reached: AtomicU32::new(0),
            skipped: AtomicU32::new(0),
        })
    }
}
