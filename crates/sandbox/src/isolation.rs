//! Level `isolated`: a process that sees a machine with nothing on it but what it needs.
//!
//! What the new process does to itself is laid out here beforehand as a list of steps, because the process, which still
//! shares the node's memory, may only make system calls. In order: it joins its control groups; it gets its user
//! identifiers; it builds a root directory of its own in memory, with what is shown bound into it read-only; it makes that
//! its root; it gives up every privilege; it restricts itself by Landlock and a system call filter; it runs its program.

use std::ffi::{CStr, CString, OsString, c_int, c_ulong};
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::SandboxError;
use crate::cgroup::Group;
use crate::filter::Filters;

/// Where a sandbox finds the code of its lease.
pub const CODE_DIR: &str = "/mayfly/code";
/// User and group of sandboxed processes, as they see themselves, when the node is root; else they keep the node's.
const INNER_USER: u32 = 1000;
/// First of the 65,536 host users, unused by anything else, that sandboxes of a node which is root run as.
const FIRST_OUTER_USER: u32 = 0x4d59_0000;
/// Directories of the host without which no program runs.
const SYSTEM: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
/// What programs read of the host's settings, below `/etc`: nothing that says who works here.
const SETTINGS: [&str; 16] = [
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "alternatives",
    "localtime",
    "timezone",
    "nsswitch.conf",
    "host.conf",
    "hosts",
    "protocols",
    "services",
    "mime.types",
    "ssl/certs",
    "pki/tls/certs",
    "pki/ca-trust/extracted",
    "fonts",
];
/// What the machine is made of, which numerical libraries ask.
const MACHINE: &str = "/sys/devices/system";
const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

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
    /// Host directory that it finds at `/etc`; see [`make_settings`].
    pub settings: PathBuf,
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

/// Makes a directory that sandboxes have as their `/etc`: copies, for one mount is made much faster than a dozen.
pub fn make_settings(dir: &Path) -> std::io::Result<()> {
    std::fs::create_dir(dir)?;
    for name in SETTINGS {
        let (from, to) = (Path::new("/etc").join(name), dir.join(name));
        if !from.exists() {
            continue;
        }
        if let Some(parent) = to.parent() {
            std::fs::create_dir_all(parent)?;
        }
        // The file behind a link, such as the one to the local time; links within a directory stay links.
        copy(&from.canonicalize()?, &to)?;
    }
    let (user, group) = inner_ids();
    let passwd = format!("root:x:0:0:root:/:/bin/false\nworker:x:{user}:{group}:Mayfly worker:/tmp:/bin/sh\n");
    std::fs::write(dir.join("passwd"), passwd)?;
    std::fs::write(dir.join("group"), format!("root:x:0:\nworker:x:{group}:\n"))?;
    open_to_all(dir)
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let metadata = std::fs::symlink_metadata(from)?;
    let kind = metadata.file_type();
    if kind.is_symlink() {
        return std::os::unix::fs::symlink(std::fs::read_link(from)?, to);
    }
    // What not everybody on the host may read is not for sandboxes either.
    if metadata.permissions().mode() & 0o004 == 0 || !(kind.is_dir() || kind.is_file()) {
        return Ok(());
    }
    if kind.is_dir() {
        std::fs::create_dir(to)?;
        for entry in std::fs::read_dir(from)? {
            let entry = entry?;
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    std::fs::copy(from, to).map(drop)
}

/// Whatever the node's file creation mask is: sandboxes run as somebody else.
fn open_to_all(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let kind = std::fs::symlink_metadata(path)?.file_type();
    if kind.is_dir() {
        for entry in std::fs::read_dir(path)? {
            open_to_all(&entry?.path())?;
        }
    }
    match kind.is_symlink() {
        true => Ok(()),
        false => std::fs::set_permissions(
            path,
            std::fs::Permissions::from_mode(if kind.is_dir() { 0o755 } else { 0o644 }),
        ),
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

/// One thing to do to the new root directory. Paths are absolute on the host, beneath the stage where they are made.
#[derive(Debug)]
enum Step {
    Directory(CString),
    File(CString),
    Link {
        to: CString,
        at: CString,
    },
    Memory {
        at: CString,
        options: CString,
    },
    Bind {
        from: CString,
        at: CString,
        protect: c_ulong,
    },
    Processes {
        at: CString,
    },
}

/// Everything an isolated process does before it runs its program, and how far it came.
#[derive(Debug)]
pub(crate) struct Plan {
    doors: Vec<File>,
    pub identity: Identity,
    steps: Vec<Step>,
    stage: CString,
    network: bool,
    most_tasks: u32,
    landlock: Vec<(CString, u64)>,
    /// Length of the filters, and the filters.
    watched: libc::sock_fprog,
    silent: libc::sock_fprog,
    /// Written to when the process waits for its identity, and read from when it has it.
    pub ask: RawFd,
    pub told: RawFd,
    /// Which steps it has begun; names what failed.
    pub stage_reached: AtomicU32,
    /// Union of [`Precaution`] that it had to do without.
    pub skipped: AtomicU32,
}

/// Parts of the way, before and after the numbered steps.
const JOINING: u32 = 1;
const IDENTITY: u32 = 2;
const PRIVATE: u32 = 3;
const PIVOT: u32 = 4;
const PRIVILEGES: u32 = 5;
const FILTER: u32 = 6;
const HAND_OVER: u32 = 7;
const FIRST_STEP: u32 = 16;

impl Isolation {
    /// Namespaces of its own.
    pub(crate) fn namespaces(&self) -> c_int {
        let network = if self.network { 0 } else { libc::CLONE_NEWNET };
        libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | network
    }

    /// Lays out everything. `filters` must outlive the plan.
    pub(crate) fn plan(
        &self,
        program: &Path,
        filters: &Filters,
        ask: RawFd,
        told: RawFd,
    ) -> Result<Plan, SandboxError> {
        let doors = match &self.group {
            Some(group) => group.doors()?,
            None => Vec::new(),
        };
        let mut root = Root {
            stage: self.stage.clone(),
            steps: Vec::new(),
            shown: Vec::new(),
            writable: Vec::new(),
        };
        root.fill(self, program)?;
        let text = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(|_| zero_byte(path));
        let mut landlock = vec![
            (text(Path::new("/"))?, LANDLOCK_READ),
            (text(Path::new("/dev"))?, LANDLOCK_READ | LANDLOCK_WRITE_FILE),
            (text(Path::new("/tmp"))?, u64::MAX),
            (text(Path::new("/dev/shm"))?, u64::MAX),
        ];
        for path in &root.writable {
            landlock.push((text(path)?, u64::MAX));
        }
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
            watched: program(&filters.watched),
            silent: program(&filters.silent),
            ask,
            told,
            stage_reached: AtomicU32::new(0),
            skipped: AtomicU32::new(0),
        })
    }
}

fn zero_byte(path: &Path) -> SandboxError {
    SandboxError::ZeroByte(path.to_path_buf())
}

/// A root directory in the making.
struct Root {
    stage: PathBuf,
    steps: Vec<Step>,
    shown: Vec<PathBuf>,
    writable: Vec<PathBuf>,
}

const READ_ONLY: c_ulong = libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV;

impl Root {
    fn fill(&mut self, isolation: &Isolation, program: &Path) -> Result<(), SandboxError> {
        let memory = |at: &str, bytes: u64, inodes: u64| (PathBuf::from(at), bytes, inodes);
        // The root holds directories and links only; what a function writes goes to the two others.
        for (at, bytes, inodes) in [
            memory("/", 1 << 20, 4096),
            memory("/tmp", isolation.scratch_bytes, isolation.scratch_bytes >> 12),
            memory("/dev/shm", isolation.scratch_bytes, isolation.scratch_bytes >> 12),
        ] {
            self.parents(&at)?;
            if at != Path::new("/") {
                let directory = self.inside(&at)?;
                self.steps.push(Step::Directory(directory));
            }
            let mode = if at == Path::new("/") { "0755" } else { "1777" };
            let options = format!("mode={mode},size={bytes},nr_inodes={}", inodes.max(64));
            let options = CString::new(options).map_err(|_| zero_byte(&at))?;
            let at = self.inside(&at)?;
            self.steps.push(Step::Memory { at, options });
        }
        for path in SYSTEM.iter().map(Path::new) {
            match std::fs::read_link(path) {
                Ok(to) => self.link(&to, path)?,
                Err(_) if path.is_dir() => self.bind(path, path, READ_ONLY)?,
                Err(_) => {}
            }
        }
        self.bind(&isolation.settings, Path::new("/etc"), READ_ONLY)?;
        let machine = Path::new(MACHINE);
        if machine.is_dir() {
            self.bind(machine, machine, READ_ONLY)?;
        }
        for path in DEVICES.iter().map(Path::new) {
            // As they are on the host: they do what they do, and no more.
            self.bind(path, path, 0)?;
        }
        for (to, at) in [
            ("/proc/self/fd", "/dev/fd"),
            ("/proc/self/fd/0", "/dev/stdin"),
            ("/proc/self/fd/1", "/dev/stdout"),
            ("/proc/self/fd/2", "/dev/stderr"),
        ] {
            self.link(Path::new(to), Path::new(at))?;
        }
        self.bind(&isolation.code, Path::new(CODE_DIR), READ_ONLY)?;
        self.parents(Path::new("/proc/self"))?;
        let at = self.inside(Path::new("/proc"))?;
        self.steps.push(Step::Processes { at });
        let mut shown: Vec<&Shown> = isolation.shown.iter().collect();
        // Outer before inner, so that the inner ones which are no exception can be left out.
        shown.sort_by_key(|shown| (shown.path.components().count(), &shown.path));
        for shown in shown {
            self.show(&shown.path, &shown.from, shown.writable)?;
        }
        // Links lead to where it is, for whoever started the node.
        self.show(program, &program.canonicalize()?, false)
    }

    fn show(&mut self, path: &Path, from: &Path, writable: bool) -> Result<(), SandboxError> {
        let is_plain = path.is_absolute()
            && path.parent().is_some()
            && path
                .components()
                .all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        if !is_plain {
            return Err(SandboxError::NotShown(
                path.to_path_buf(),
                "give an absolute path without `..`, and not the root directory itself",
            ));
        }
        let is_kernels = |kept: &&str| path.starts_with(kept) || from.starts_with(kept);
        if ["/proc", "/sys", "/dev"].iter().any(is_kernels) {
            return Err(SandboxError::NotShown(
                path.to_path_buf(),
                "the kernel's own files are not shown",
            ));
        }
        if !from.exists() {
            return Err(SandboxError::NotShown(
                path.to_path_buf(),
                "there is no such file or directory",
            ));
        }
        let inside = |outer: &PathBuf| path.starts_with(outer);
        if self.writable.iter().any(inside) || (!writable && self.shown.iter().any(inside)) {
            return Ok(());
        }
        if writable {
            if self.shown.iter().any(inside) {
                // Its place is there already, with the directory that it lies in.
                let (from, at) = (text(from)?, self.inside(path)?);
                let protect = libc::MS_NOSUID | libc::MS_NODEV;
                self.steps.push(Step::Bind { from, at, protect });
            } else {
                self.bind_exactly(from, path, libc::MS_NOSUID | libc::MS_NODEV)?;
            }
            self.writable.push(path.to_path_buf());
            return Ok(());
        }
        self.bind_exactly(from, path, READ_ONLY)
    }

    fn inside(&self, path: &Path) -> Result<CString, SandboxError> {
        let mut whole = self.stage.as_os_str().as_bytes().to_vec();
        if path != Path::new("/") {
            whole.extend(path.as_os_str().as_bytes());
        }
        text(Path::new(&OsString::from_vec(whole)))
    }

    /// Makes the directories above a path.
    fn parents(&mut self, path: &Path) -> Result<(), SandboxError> {
        let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
        above.reverse();
        for directory in above.into_iter().filter(|directory| *directory != Path::new("/")) {
            let directory = self.inside(directory)?;
            self.steps.push(Step::Directory(directory));
        }
        Ok(())
    }

    /// Shows what the node itself names, wherever links lead.
    fn bind(&mut self, from: &Path, at: &Path, protect: c_ulong) -> Result<(), SandboxError> {
        self.bind_exactly(&from.canonicalize()?, at, protect)
    }

    fn bind_exactly(&mut self, from: &Path, at: &Path, protect: c_ulong) -> Result<(), SandboxError> {
        self.parents(at)?;
        let is_dir = from.is_dir();
        self.shown.push(at.to_path_buf());
        let (from, at) = (text(from)?, self.inside(at)?);
        self.steps.push(match is_dir {
            true => Step::Directory(at.clone()),
            false => Step::File(at.clone()),
        });
        self.steps.push(Step::Bind { from, at, protect });
        Ok(())
    }

    fn link(&mut self, to: &Path, at: &Path) -> Result<(), SandboxError> {
        self.parents(at)?;
        let (to, at) = (text(to)?, self.inside(at)?);
        self.steps.push(Step::Link { to, at });
        Ok(())
    }
}

fn text(path: &Path) -> Result<CString, SandboxError> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| zero_byte(path))
}

const LANDLOCK_WRITE_FILE: u64 = 1 << 1;
/// Execute, read files, list directories.
const LANDLOCK_READ: u64 = 1 | 1 << 2 | 1 << 3;
/// Rights over files that each version of Landlock knows, from the first.
const LANDLOCK_RIGHTS: [u64; 5] = [
    (1 << 13) - 1,
    (1 << 14) - 1,
    (1 << 15) - 1,
    (1 << 15) - 1,
    (1 << 16) - 1,
];
/// The version that can also fence off signals and abstract sockets.
const LANDLOCK_SCOPES: usize = 6;

#[repr(C)]
struct LandlockRuleset {
    files: u64,
    network: u64,
    scopes: u64,
}

#[repr(C, packed)]
struct LandlockRule {
    rights: u64,
    beneath: c_int,
}

impl Plan {
    /// What the process was at when it failed.
    pub fn describe(&self) -> String {
        let reached = self.stage_reached.load(Ordering::Acquire);
        let step = reached
            .checked_sub(FIRST_STEP)
            .and_then(|index| self.steps.get(index as usize));
        let show = |path: &CStr| path.to_string_lossy().into_owned();
        match (step, reached) {
            (Some(Step::Directory(at) | Step::File(at)), _) => format!("making {}", show(at)),
            (Some(Step::Link { at, .. }), _) => format!("making the link {}", show(at)),
            (Some(Step::Memory { at, .. }), _) => format!("mounting memory at {}", show(at)),
            (Some(Step::Bind { from, .. }), _) => format!("showing {}", show(from)),
            (Some(Step::Processes { at }), _) => format!("mounting {}", show(at)),
            (None, JOINING) => "joining its control groups".into(),
            (None, IDENTITY) => "getting its user and group".into(),
            (None, PRIVATE) => "making its mounts private".into(),
            (None, PIVOT) => "entering its root directory".into(),
            (None, PRIVILEGES) => "giving up its privileges".into(),
            (None, FILTER) => "installing its system call filter".into(),
            (None, HAND_OVER) => "handing its record to the node".into(),
            (None, _) => "running its program".into(),
        }
    }

    /// Runs in the new process, up to its limits. System calls only. False, with `errno` set, when something failed.
    ///
    /// # Safety
    ///
    /// The process must be single-threaded, in namespaces of its own, and about to run a program or exit.
    pub unsafe fn enter(&self) -> bool {
        let at = |stage| self.stage_reached.store(stage, Ordering::Release);
        // SAFETY: plain system calls on values laid out before. The raw ones are raw because the C library's wrappers would
        // reach for the threads of the node, whose memory this still is.
        unsafe {
            at(JOINING);
            for door in &self.doors {
                if libc::write(door.as_raw_fd(), c"0".as_ptr().cast(), 1) != 1 {
                    return false;
                }
            }
            at(IDENTITY);
            if !self.get_identity() {
                return false;
            }
            at(PRIVATE);
            let none = std::ptr::null();
            if libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, none.cast()) != 0 {
                return false;
            }
            for (index, step) in self.steps.iter().enumerate() {
                at(FIRST_STEP + index as u32);
                if !self.take(step) {
                    return false;
                }
            }
            at(PIVOT);
            let dot = c".".as_ptr();
            let protect = libc::MS_BIND | libc::MS_REMOUNT | READ_ONLY;
            // Twice the same directory: the old root ends up over the new one, and is taken off.
            if libc::chdir(self.stage.as_ptr()) != 0
                || libc::syscall(libc::SYS_pivot_root, dot, dot) != 0
                || libc::umount2(dot, libc::MNT_DETACH) != 0
                || libc::chdir(c"/".as_ptr()) != 0
                || libc::mount(none, c"/".as_ptr(), none, protect, none.cast()) != 0
            {
                return false;
            }
            let name = c"mayfly";
            libc::sethostname(name.as_ptr(), name.count_bytes());
            if !self.network {
                loopback_up();
            }
            libc::chdir(c"/tmp".as_ptr());
            true
        }
    }

    /// Asks the node to write down who this is, and waits for it.
    unsafe fn get_identity(&self) -> bool {
        // SAFETY: as in `enter`.
        unsafe {
            // Its own process id here is 1; the host's list, still mounted, has the one that the node knows it by.
            let mut name = [0u8; 16];
            let length = libc::readlink(c"/proc/self".as_ptr(), name.as_mut_ptr().cast(), name.len());
            let Ok(length) = usize::try_from(length) else {
                return false;
            };
            let digits = name[..length].iter().map(|digit| i32::from(digit - b'0'));
            let pid = digits
                .fold(0i32, |pid, digit| pid.wrapping_mul(10).wrapping_add(digit))
                .to_ne_bytes();
            let mut answer = 0u8;
            if libc::write(self.ask, pid.as_ptr().cast(), pid.len()) != pid.len() as isize
                || libc::read(self.told, std::ptr::from_mut(&mut answer).cast(), 1) != 1
            {
                return false;
            }
            *libc::__errno_location() = libc::EPERM;
            answer == 1
        }
    }

    unsafe fn take(&self, step: &Step) -> bool {
        // SAFETY: as in `enter`.
        unsafe {
            let none: *const libc::c_char = std::ptr::null();
            let exists = || *libc::__errno_location() == libc::EEXIST;
            match step {
                Step::Directory(at) => libc::mkdir(at.as_ptr(), 0o755) == 0 || exists(),
                Step::File(at) => {
                    let file = libc::open(at.as_ptr(), libc::O_CREAT | libc::O_RDONLY | libc::O_CLOEXEC, 0o444);
                    file >= 0 && libc::close(file) == 0
                }
                Step::Link { to, at } => libc::symlink(to.as_ptr(), at.as_ptr()) == 0 || exists(),
                Step::Memory { at, options } => {
                    let kind = c"tmpfs".as_ptr();
                    let flags = libc::MS_NOSUID | libc::MS_NODEV;
                    libc::mount(kind, at.as_ptr(), kind, flags, options.as_ptr().cast()) == 0
                }
                Step::Bind { from, at, protect } => bind_mount(from, at) && protect_mount(at, *protect),
                Step::Processes { at } => {
                    let kind = c"proc".as_ptr();
                    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
                    let made = libc::mkdir(at.as_ptr(), 0o755) == 0 || exists();
                    if made && libc::mount(kind, at.as_ptr(), kind, flags, none.cast()) != 0 {
                        // Within a container whose own list is masked, the kernel shows none to those below.
                        self.skip(Precaution::Proc);
                    }
                    made
                }
            }
        }
    }

    fn skip(&self, precaution: Precaution) {
        self.skipped.fetch_or(precaution as u32, Ordering::AcqRel);
    }

    /// Runs in the new process, last: nothing privileged can be done after this. The filter's listener goes to the node over
    /// `control`. False, with `errno` set, when something failed.
    ///
    /// # Safety
    ///
    /// As for [`Plan::enter`].
    pub unsafe fn confine(&self, control: RawFd) -> bool {
        let at = |stage| self.stage_reached.store(stage, Ordering::Release);
        // SAFETY: as in `enter`.
        unsafe {
            at(PRIVILEGES);
            if let Some(user) = self.identity.become_user {
                let user = user as libc::c_long;
                let none: *const libc::gid_t = std::ptr::null();
                if libc::syscall(libc::SYS_setgroups, 0, none) != 0
                    || libc::syscall(libc::SYS_setresgid, user, user, user) != 0
                    || libc::syscall(libc::SYS_setresuid, user, user, user) != 0
                {
                    return false;
                }
            }
            // Changing who one is takes the death signal away; for that reason it is set here.
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0
                || libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            {
                return false;
            }
            let no_core = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            libc::setrlimit(libc::RLIMIT_CORE, &no_core);
            if self.most_tasks > 0 {
                let most = libc::rlimit {
                    rlim_cur: self.most_tasks.into(),
                    rlim_max: self.most_tasks.into(),
                };
                libc::setrlimit(libc::RLIMIT_NPROC, &most);
            }
            libc::umask(0o022);
            if !self.fence_files() {
                self.skip(Precaution::Landlock);
            }
            at(FILTER);
            let set = |flags: c_ulong, filter: &libc::sock_fprog| {
                let filter = std::ptr::from_ref(filter);
                libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, filter)
            };
            // Without the second flag old kernels slow down every program under a filter, against an attack that is for
            // programs which run several parties' code in one address space.
            let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
            let listener = set(flags as c_ulong, &self.watched);
            if listener >= 0 {
                at(HAND_OVER);
                return hand_over(control, listener as RawFd);
            }
            self.skip(Precaution::Record);
            set(libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW as c_ulong, &self.silent) == 0 || set(0, &self.silent) == 0
        }
    }

    /// Whether the kernel has Landlock and took the rules.
    unsafe fn fence_files(&self) -> bool {
        // SAFETY: as in `enter`; the structures are the kernel's.
        unsafe {
            let create = libc::SYS_landlock_create_ruleset;
            let version = libc::syscall(create, std::ptr::null::<u8>(), 0usize, 1u32);
            if version < 1 {
                return false;
            }
            let version = version as usize;
            let known = LANDLOCK_RIGHTS[version.min(LANDLOCK_RIGHTS.len()) - 1];
            let scoped = version >= LANDLOCK_SCOPES;
            let attributes = LandlockRuleset {
                files: known,
                network: 0,
                scopes: if scoped { 0b11 } else { 0 },
            };
            // Old kernels know only the first field.
            let length = if scoped { size_of::<LandlockRuleset>() } else { 8 };
            let rules = libc::syscall(create, std::ptr::from_ref(&attributes), length, 0u32);
            if rules < 0 {
                return false;
            }
            let rules = rules as c_int;
            let mut complete = true;
            for (path, rights) in &self.landlock {
                let beneath = libc::open(path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC);
                let mut status: libc::stat = std::mem::zeroed();
                libc::fstat(beneath, &mut status);
                let is_dir = status.st_mode & libc::S_IFMT == libc::S_IFDIR;
                // What only directories can grant is refused for files: all but execute, write, read, truncate and ioctl.
                let possible = if is_dir { u64::MAX } else { 0b111 | 1 << 14 | 1 << 15 };
                let rule = LandlockRule {
                    rights: rights & known & possible,
                    beneath,
                };
                let added = libc::syscall(
                    libc::SYS_landlock_add_rule,
                    rules,
                    1u32,
                    std::ptr::from_ref(&rule).cast::<libc::c_void>(),
                    0u32,
                );
                complete &= beneath >= 0 && added == 0;
                libc::close(beneath);
            }
            let restricted = complete && libc::syscall(libc::SYS_landlock_restrict_self, rules, 0u32) == 0;
            libc::close(rules);
            restricted
        }
    }
}

#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

const RESOLVE_NO_SYMLINKS: u64 = 4;

/// Binds a path, which has no symbolic link in it, with what is mounted below, on which the kernel insists for mounts of a
/// more privileged owner. Where the kernel can (5.6), a link that somebody puts there meanwhile is refused.
unsafe fn bind_mount(from: &CStr, at: &CStr) -> bool {
    // SAFETY: plain system calls on values of this frame.
    unsafe {
        let how = OpenHow {
            flags: (libc::O_PATH | libc::O_CLOEXEC) as u64,
            mode: 0,
            resolve: RESOLVE_NO_SYMLINKS,
        };
        let none: *const libc::c_char = std::ptr::null();
        let flags = libc::MS_BIND | libc::MS_REC;
        let how = std::ptr::from_ref(&how);
        let opened = libc::syscall(
            libc::SYS_openat2,
            libc::AT_FDCWD,
            from.as_ptr(),
            how,
            size_of::<OpenHow>(),
        );
        if opened < 0 {
            return *libc::__errno_location() == libc::ENOSYS
                && libc::mount(from.as_ptr(), at.as_ptr(), none, flags, none.cast()) == 0;
        }
        // "/proc/self/fd/" and the number, written by hand: nothing may be allocated here.
        let mut name = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0\0";
        let prefix = "/proc/self/fd/".len();
        let mut left = opened as u32;
        let width = std::iter::successors(Some(left), |left| (*left >= 10).then_some(left / 10)).count();
        for place in name[prefix..prefix + width].iter_mut().rev() {
            *place = b'0' + (left % 10) as u8;
            left /= 10;
        }
        let bound = libc::mount(name.as_ptr().cast(), at.as_ptr(), none, flags, none.cast()) == 0;
        libc::close(opened as c_int);
        bound
    }
}

#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// Adds restrictions to a mount and those below it; where the kernel cannot do that at once (before 5.12), to the mount alone.
unsafe fn protect_mount(at: &CStr, protect: c_ulong) -> bool {
    if protect == 0 {
        return true;
    }
    // SAFETY: plain system calls on values of this frame.
    unsafe {
        // The first four mount flags have the same bits in both interfaces.
        let attributes = MountAttributes {
            set: protect & (libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC),
            clear: 0,
            propagation: 0,
            user_namespace: 0,
        };
        let done = libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            at.as_ptr(),
            libc::AT_RECURSIVE,
            std::ptr::from_ref(&attributes),
            size_of::<MountAttributes>(),
        );
        if done == 0 || *libc::__errno_location() != libc::ENOSYS {
            return done == 0;
        }
        // Restrictions that the host put on a mount cannot be taken off, and must be named again.
        let mut status: libc::statvfs = std::mem::zeroed();
        if libc::statvfs(at.as_ptr(), &mut status) != 0 {
            return false;
        }
        let same_bits = libc::MS_RDONLY
            | libc::MS_NOSUID
            | libc::MS_NODEV
            | libc::MS_NOEXEC
            | libc::MS_NOATIME
            | libc::MS_NODIRATIME;
        let relative = if status.f_flag & libc::ST_RELATIME != 0 {
            libc::MS_RELATIME
        } else {
            0
        };
        let kept = status.f_flag & same_bits | relative;
        let flags = libc::MS_BIND | libc::MS_REMOUNT | protect | kept;
        let none: *const libc::c_char = std::ptr::null();
        libc::mount(none, at.as_ptr(), none, flags, none.cast()) == 0
    }
}

/// Programs that talk to themselves over the loopback find it, also where there is no other network.
unsafe fn loopback_up() {
    // SAFETY: plain system calls on values of this frame. What fails here is not missed by most.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if socket < 0 {
            return;
        }
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        libc::ioctl(socket, libc::SIOCSIFFLAGS, std::ptr::from_mut(&mut request));
        libc::close(socket);
    }
}

/// Sends a descriptor with one byte, and closes it.
unsafe fn hand_over(control: RawFd, listener: RawFd) -> bool {
    // SAFETY: the message points to values of this frame, which outlives the call; CMSG macros stay within `room`.
    unsafe {
        let mut byte = [0u8];
        let mut part = libc::iovec {
            iov_base: byte.as_mut_ptr().cast(),
            iov_len: 1,
        };
        let mut room = [0u64; 4];
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = room.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as _;
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
        libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(listener);
        let sent = libc::sendmsg(control, &message, libc::MSG_NOSIGNAL) == 1;
        libc::close(listener);
        sent
    }
}
