//! The steps of an isolated process before it runs its program. It still shares the node's memory, so it only makes
//! system calls.

use std::ffi::{CStr, CString, c_ulong};
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use super::kernel;
use super::root::{READ_ONLY, Step};
use super::{Identity, Precaution};

/// All steps of an isolated process before it runs its program, and its progress.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(super) doors: Vec<File>,
    pub identity: Identity,
    pub(super) steps: Vec<Step>,
    pub(super) stage: CString,
    pub(super) network: bool,
    pub(super) most_tasks: u32,
    pub(super) landlock: Vec<(CString, u64)>,
    /// The filters, with their lengths.
    pub(super) watched: libc::sock_fprog,
    pub(super) silent: libc::sock_fprog,
    /// The process's end of the socket on which it requests its identity, and the node's end.
    pub(super) identity_socket: [RawFd; 2],
    /// The last step that it began; names a failure.
    pub stage_reached: AtomicU32,
    /// Union of each [`Precaution`] that is unavailable.
    pub skipped: AtomicU32,
}

/// Stages before and after the numbered steps.
const JOINING: u32 = 1;
const IDENTITY: u32 = 2;
const PRIVATE: u32 = 3;
const PIVOT: u32 = 4;
const PRIVILEGES: u32 = 5;
const FILTER: u32 = 6;
const HAND_OVER: u32 = 7;
const RUNNING: u32 = 8;
const FIRST_STEP: u32 = 16;

impl Plan {
    /// The step that failed.
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

    /// Whether only running the program was left.
    pub fn was_ready(&self) -> bool {
        self.stage_reached.load(Ordering::Acquire) == RUNNING
    }

    /// Runs in the new process, up to its limits. Makes only system calls. Returns false, with `errno` set, on failure.
    ///
    /// # Safety
    ///
    /// The process must be single-threaded, in namespaces of its own, and about to run a program or exit.
    pub unsafe fn enter(&self) -> bool {
        let at = |stage| self.stage_reached.store(stage, Ordering::Release);
        // SAFETY: plain system calls on prepared values. They are raw, because the C library's wrappers would access
        // the threads of the node, whose memory this still is.
        unsafe {
            // Valid until the change of user, which resets the signal.
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return false;
            }
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
            // The same directory twice: the old root is stacked on the new one, and then detached.
            if libc::chdir(self.stage.as_ptr()) != 0
                || libc::syscall(libc::SYS_pivot_root, dot, dot) != 0
                || libc::umount2(dot, libc::MNT_DETACH) != 0
                || libc::chdir(c"/".as_ptr()) != 0
                || libc::mount(none, c"/".as_ptr(), none, protect, none.cast()) != 0
            {
                return false;
            }
            let name = c"dayfly";
            libc::sethostname(name.as_ptr(), name.count_bytes());
            if !self.network {
                kernel::loopback_up();
            }
            libc::chdir(c"/tmp".as_ptr());
            true
        }
    }

    /// Requests that the node writes the identity, and waits for it.
    unsafe fn get_identity(&self) -> bool {
        // SAFETY: as in `enter`.
        unsafe {
            // Its own process id is 1 here; the host's list, still mounted, has the id that the node knows.
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
            // Close the node's end here: then the death of a node before the signal was set shows as the end of the
            // socket.
            let [identity_socket, nodes] = self.identity_socket;
            libc::close(nodes);
            if libc::write(identity_socket, pid.as_ptr().cast(), pid.len()) != pid.len() as isize
                || libc::read(identity_socket, std::ptr::from_mut(&mut answer).cast(), 1) != 1
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
                Step::Bind { from, at, protect } => kernel::bind_mount(from, at) && kernel::protect_mount(at, *protect),
                Step::Processes { at } => {
                    let kind = c"proc".as_ptr();
                    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
                    let made = libc::mkdir(at.as_ptr(), 0o755) == 0 || exists();
                    if made && libc::mount(kind, at.as_ptr(), kind, flags, none.cast()) != 0 {
                        // In a container whose own process list is masked, the kernel permits none below.
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

    /// Runs in the new process, last: no privileged operation is possible afterwards. Sends the filter's listener to
    /// the node over `control`. Returns false, with `errno` set, on failure.
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
            // The change of user reset the death signal; set it again.
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
            if !kernel::fence_files(&self.landlock) {
                self.skip(Precaution::Landlock);
            }
            at(FILTER);
            let set = |flags: c_ulong, filter: &libc::sock_fprog| {
                let filter = std::ptr::from_ref(filter);
                libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, filter)
            };
            // Without the second flag, old kernels slow every filtered program down, against an attack on programs that
            // run code of several parties in one address space.
            let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
            let listener = set(flags as c_ulong, &self.watched);
            if listener >= 0 {
                at(HAND_OVER);
                if !kernel::hand_over(control, listener as RawFd) {
                    return false;
                }
            } else {
                self.skip(Precaution::Record);
                if set(libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW as c_ulong, &self.silent) != 0 && set(0, &self.silent) != 0
                {
                    return false;
                }
            }
            at(RUNNING);
            true
        }
    }
}
