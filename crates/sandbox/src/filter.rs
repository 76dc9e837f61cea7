//! The system call filter of sandboxed processes.
//!
//! It is an allow-list. It contains what ordinary programs, language runtimes and numerical libraries need, and nothing
//! that changes the machine, inspects other processes or reaches the parts of the kernel with the most vulnerabilities.
//! All other calls return "not implemented", which the C library and language runtimes can handle.
//!
//! On kernels from 5.0 on, a refused call waits until the node has been notified, so the attempt is recorded with its
//! name. [`Watch`] bounds that: after [`MAX_RECORDS`] records the node stops listening, and the kernel alone refuses
//! from then on.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

/// Most recorded calls of one sandbox.
pub const MAX_RECORDS: u32 = 64;

/// Placeholder in a compiled filter for the action that notifies the node, which the compiler does not know.
const PLACEHOLDER: u16 = 0x4d46;

/// As in `linux/netlink.h`.
const NETLINK_RDMA: i32 = 20;

/// The filters of both kinds of process.
#[derive(Debug)]
pub(crate) struct Filters {
    /// For a process with only its own loopback.
    pub alone: Filter,
    /// For a process with the host's network.
    pub networked: Filter,
}

/// A filter in two forms.
#[derive(Debug)]
pub(crate) struct Filter {
    /// Refuses, and notifies the node.
    pub watched: Vec<libc::sock_filter>,
    /// Refuses, if notification is impossible.
    pub silent: Vec<libc::sock_filter>,
}

/// Compiles the filters. Fails on a processor that the compiler does not know.
pub(crate) fn compile() -> Result<Filters, String> {
    Ok(Filters {
        alone: compile_for(false)?,
        networked: compile_for(true)?,
    })
}

fn compile_for(network: bool) -> Result<Filter, String> {
    let program = |mismatch| -> Result<Vec<libc::sock_filter>, String> {
        let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| error.to_string())?;
        let filter =
            SeccompFilter::new(rules(network)?, mismatch, SeccompAction::Allow, arch).map_err(|e| e.to_string())?;
        let program = BpfProgram::try_from(filter).map_err(|error| error.to_string())?;
        Ok(program.iter().map(patched).collect())
    };
    Ok(Filter {
        watched: program(SeccompAction::Trace(u32::from(PLACEHOLDER)))?,
        silent: program(SeccompAction::Errno(libc::ENOSYS as u32))?,
    })
}

fn patched(step: &seccompiler::sock_filter) -> libc::sock_filter {
    let is_placeholder = u32::from(step.code) == libc::BPF_RET | libc::BPF_K
        && step.k == libc::SECCOMP_RET_TRACE | u32::from(PLACEHOLDER);
    libc::sock_filter {
        code: step.code,
        jt: step.jt,
        jf: step.jf,
        k: if is_placeholder {
            libc::SECCOMP_RET_USER_NOTIF
        } else {
            step.k
        },
    }
}

/// New namespaces would give a process privileges within them, which expose much of the kernel.
const NEW_NAMESPACES: u64 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWCGROUP) as u64;

fn rules(network: bool) -> Result<BTreeMap<i64, Vec<SeccompRule>>, String> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    #[cfg(target_arch = "x86_64")]
    rules.extend(ALLOWED_ON_X86.iter().map(|call| (*call, Vec::new())));
    // Compare 32-bit values if the kernel takes the argument as 32 bits. Otherwise bits in the upper half would pass
    // the filter, and the kernel would ignore them.
    let when = |argument, length, operator, value| -> Result<SeccompRule, String> {
        let condition = SeccompCondition::new(argument, length, operator, value);
        SeccompRule::new(vec![condition.map_err(|error| error.to_string())?]).map_err(|error| error.to_string())
    };
    rules.insert(
        libc::SYS_clone,
        vec![when(
            0,
            SeccompCmpArgLen::Qword,
            SeccompCmpOp::MaskedEq(NEW_NAMESPACES),
            0,
        )?],
    );
    // Functions get no packet sockets, no raw sockets and no rare families. Of netlink they get the part that lists
    // network interfaces, which MPI libraries and many others use.
    let mut sockets = Vec::new();
    let mut allow = |family, argument, operator, value| -> Result<(), String> {
        let conditions: Result<Vec<_>, _> = [
            SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, family as u64),
            SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value as u64),
        ]
        .into_iter()
        .collect();
        sockets.push(
            conditions
                .and_then(SeccompRule::new)
                .map_err(|error| error.to_string())?,
        );
        Ok(())
    };
    for family in [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6] {
        for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET] {
            allow(family, 1, SeccompCmpOp::MaskedEq(0xf), kind)?;
        }
    }
    allow(libc::AF_NETLINK, 2, SeccompCmpOp::Eq, libc::NETLINK_ROUTE)?;
    if network {
        // The part that lists RDMA devices, for libfabric; changing them requires privileges over the host's network.
        allow(libc::AF_NETLINK, 2, SeccompCmpOp::Eq, NETLINK_RDMA)?;
    }
    rules.insert(libc::SYS_socket, sockets);
    // TIOCSTI types into another user's terminal.
    rules.insert(
        libc::SYS_ioctl,
        vec![when(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, libc::TIOCSTI)?],
    );
    // Personalities other than the usual ones weaken address space randomization.
    rules.insert(
        libc::SYS_personality,
        vec![
            when(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, 0)?,
            when(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, 0xffff_ffff)?,
        ],
    );
    // A process may read and lower its own limits, not those of others.
    rules.insert(
        libc::SYS_prlimit64,
        vec![when(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, 0)?],
    );
    Ok(rules)
}

/// Calls without conditions. The most frequent ones of warm workers come first for the reader; the order has no effect.
const ALLOWED: &[i64] = &[
    // Waiting and waking.
    libc::SYS_futex,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_signalfd4,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_sched_yield,
    libc::SYS_restart_syscall,
    libc::SYS_futex_waitv,
    libc::SYS_membarrier,
    libc::SYS_rseq,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    // Bytes.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_tee,
    libc::SYS_copy_file_range,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_pipe2,
    libc::SYS_lseek,
    // Memory.
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_msync,
    libc::SYS_mincore,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_munlock,
    libc::SYS_memfd_create,
    libc::SYS_pkey_mprotect,
    libc::SYS_pkey_alloc,
    libc::SYS_pkey_free,
    libc::SYS_get_mempolicy,
    // Files.
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_statx,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_chdir,
    libc::SYS_fchdir,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_truncate,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_flock,
    libc::SYS_umask,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_fgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_flistxattr,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_rm_watch,
    // Processes and threads of its own. `clone3` hides its flags from a filter and stays out; the C library falls back.
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_tgkill,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    // Ranks of one sandbox copy long messages once with these. They reach no further than /proc/PID/mem, which is
    // available too: processes of the sandbox that permit it.
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_set_tid_address,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getpgid,
    libc::SYS_setpgid,
    libc::SYS_getsid,
    libc::SYS_setsid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getresuid,
    libc::SYS_getresgid,
    libc::SYS_getgroups,
    libc::SYS_prctl,
    libc::SYS_capget,
    libc::SYS_getrlimit,
    libc::SYS_setrlimit,
    libc::SYS_getrusage,
    libc::SYS_getpriority,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_getattr,
    libc::SYS_sched_get_priority_max,
    libc::SYS_sched_get_priority_min,
    libc::SYS_sched_rr_get_interval,
    libc::SYS_ioprio_get,
    // Signals.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_sigaltstack,
    // Time and the machine.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_times,
    libc::SYS_timer_create,
    libc::SYS_timer_settime,
    libc::SYS_timer_gettime,
    libc::SYS_timer_getoverrun,
    libc::SYS_timer_delete,
    libc::SYS_setitimer,
    libc::SYS_getitimer,
    libc::SYS_getrandom,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_getcpu,
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_restrict_self,
    // Sockets; conditions on `socket` are above.
    libc::SYS_socketpair,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    // Memory and semaphores shared within the sandbox, which has its own IPC namespace.
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmdt,
    libc::SYS_shmctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
    libc::SYS_mq_timedsend,
    libc::SYS_mq_timedreceive,
    libc::SYS_mq_notify,
    libc::SYS_mq_getsetattr,
];

/// Older calls of this processor, for programs and libraries that still make them.
#[cfg(target_arch = "x86_64")]
const ALLOWED_ON_X86: &[i64] = &[
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd,
    libc::SYS_signalfd,
    libc::SYS_pause,
    libc::SYS_alarm,
    libc::SYS_time,
    libc::SYS_dup2,
    libc::SYS_pipe,
    libc::SYS_open,
    libc::SYS_creat,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_link,
    libc::SYS_symlink,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
    libc::SYS_getdents,
    libc::SYS_inotify_init,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_getpgrp,
    libc::SYS_arch_prctl,
];

/// A refused system call of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Its name, or its number.
    pub call: String,
    /// Process id of the caller, in the host's namespace.
    pub pid: u32,
    /// Whether no honest program makes this call, so that the audit log records it.
    pub is_hostile: bool,
}

/// Whether a refused call waits for notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asking {
    /// One waits.
    Now,
    /// None waits.
    NotNow,
    /// No process under the filter is left. The descriptor then stays readable.
    Never,
}

/// Receives the refused calls of one sandbox from the kernel.
#[derive(Debug)]
pub struct Watch {
    listener: OwnedFd,
    left: u32,
}

/// `SECCOMP_IOCTL_NOTIF_RECV` and `_SEND`, as the kernel's macros compute them for these structures.
const RECEIVE: u64 = 0xc000_2100 | ((size_of::<libc::seccomp_notif>() as u64) << 16);
const SEND: u64 = 0xc000_2101 | ((size_of::<libc::seccomp_notif_resp>() as u64) << 16);

impl Watch {
    pub(crate) fn new(listener: OwnedFd) -> Self {
        Self {
            listener,
            left: MAX_RECORDS,
        }
    }

    /// Whether a refused call waits now.
    pub fn asking(&self) -> Asking {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut waiting = [PollFd::new(&self.listener, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let polled = poll(&mut waiting, Some(&now));
        let events = waiting[0].revents();
        match polled {
            Ok(1..) if events.contains(PollFlags::IN) => Asking::Now,
            // The last process under the filter has ended.
            Ok(1..) if events.intersects(PollFlags::HUP | PollFlags::ERR) => Asking::Never,
            _ => Asking::NotNow,
        }
    }

    /// Receives one refused call and lets it fail, when the descriptor is readable. Returns `None` when nothing more
    /// will be recorded. Then drop the watch; the kernel alone refuses from then on.
    pub fn answer(&mut self) -> Option<Refusal> {
        self.left = self.left.checked_sub(1)?;
        // SAFETY: the kernel requires a zeroed structure and fills it; both structures are plain data of the kernel's
        // size.
        let (asked, answered) = unsafe {
            let mut notice: libc::seccomp_notif = std::mem::zeroed();
            let asked = libc::ioctl(self.listener.as_raw_fd(), RECEIVE as _, std::ptr::from_mut(&mut notice));
            if asked < 0 {
                // The caller has died meanwhile; others may still call.
                let gone = std::io::Error::last_os_error().raw_os_error() != Some(libc::ENOENT);
                return (!gone).then(|| Refusal {
                    call: "a call that was given up".into(),
                    pid: 0,
                    is_hostile: false,
                });
            }
            let mut answer: libc::seccomp_notif_resp = std::mem::zeroed();
            answer.id = notice.id;
            answer.error = -libc::ENOSYS;
            let answered = libc::ioctl(self.listener.as_raw_fd(), SEND as _, std::ptr::from_mut(&mut answer));
            (notice, answered)
        };
        // The caller may have died since; that needs no action.
        let _ = answered;
        let number = i64::from(asked.data.nr);
        let named = HOSTILE.iter().find(|(call, _)| *call == number);
        Some(Refusal {
            call: named.map_or_else(|| format!("system call {number}"), |(_, name)| (*name).to_string()),
            pid: asked.pid,
            is_hostile: named.is_some(),
        })
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl AsRawFd for Watch {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.listener.as_raw_fd()
    }
}

/// Calls that a function has no honest use for. A refused `clone` or `socket` has forbidden arguments.
const HOSTILE: &[(i64, &str)] = &[
    (libc::SYS_ptrace, "ptrace"),
    (libc::SYS_pidfd_getfd, "pidfd_getfd"),
    (libc::SYS_kcmp, "kcmp"),
    (libc::SYS_keyctl, "keyctl"),
    (libc::SYS_add_key, "add_key"),
    (libc::SYS_request_key, "request_key"),
    (libc::SYS_bpf, "bpf"),
    (libc::SYS_perf_event_open, "perf_event_open"),
    (libc::SYS_userfaultfd, "userfaultfd"),
    (libc::SYS_io_uring_setup, "io_uring_setup"),
    (libc::SYS_unshare, "unshare"),
    (libc::SYS_setns, "setns"),
    (libc::SYS_clone, "clone of a namespace"),
    (libc::SYS_socket, "socket of a forbidden kind"),
    (libc::SYS_ioctl, "ioctl TIOCSTI"),
    (libc::SYS_mount, "mount"),
    (libc::SYS_umount2, "umount2"),
    (libc::SYS_pivot_root, "pivot_root"),
    (libc::SYS_chroot, "chroot"),
    (libc::SYS_open_tree, "open_tree"),
    (libc::SYS_move_mount, "move_mount"),
    (libc::SYS_fsopen, "fsopen"),
    (libc::SYS_open_by_handle_at, "open_by_handle_at"),
    (libc::SYS_name_to_handle_at, "name_to_handle_at"),
    (libc::SYS_init_module, "init_module"),
    (libc::SYS_finit_module, "finit_module"),
    (libc::SYS_delete_module, "delete_module"),
    (libc::SYS_kexec_load, "kexec_load"),
    (libc::SYS_reboot, "reboot"),
    (libc::SYS_swapon, "swapon"),
    (libc::SYS_settimeofday, "settimeofday"),
    (libc::SYS_clock_settime, "clock_settime"),
    (libc::SYS_sethostname, "sethostname"),
    (libc::SYS_syslog, "syslog"),
    (libc::SYS_quotactl, "quotactl"),
    (libc::SYS_acct, "acct"),
    (libc::SYS_mknodat, "mknodat"),
    (libc::SYS_setuid, "setuid"),
    (libc::SYS_setgid, "setgid"),
    (libc::SYS_setresuid, "setresuid"),
    (libc::SYS_setresgid, "setresgid"),
    (libc::SYS_setgroups, "setgroups"),
    (libc::SYS_capset, "capset"),
    (libc::SYS_prlimit64, "prlimit64 of another process"),
    (libc::SYS_seccomp, "seccomp"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mknod, "mknod"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_iopl, "iopl"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_ioperm, "ioperm"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_modify_ldt, "modify_ldt"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_compiles_and_asks_the_node_in_exactly_its_watched_form() {
        let Filters { alone, networked } = compile().unwrap();
        for filter in [alone, networked] {
            let asks =
                |program: &[libc::sock_filter]| program.iter().any(|step| step.k == libc::SECCOMP_RET_USER_NOTIF);
            assert!(asks(&filter.watched));
            assert!(!asks(&filter.silent));
            let left = |step: &libc::sock_filter| step.k == libc::SECCOMP_RET_TRACE | u32::from(PLACEHOLDER);
            assert!(!filter.watched.iter().any(left), "a placeholder was left behind");
        }
    }

    #[test]
    fn what_is_hostile_is_not_allowed() {
        let conditional = [libc::SYS_clone, libc::SYS_socket, libc::SYS_ioctl, libc::SYS_prlimit64];
        for (call, name) in HOSTILE {
            let listed = ALLOWED.contains(call) || rules(true).unwrap().get(call).is_some_and(Vec::is_empty);
            assert!(!listed, "{name} is on both lists");
            assert!(
                rules(true).unwrap().contains_key(call) == conditional.contains(call),
                "{name}"
            );
        }
    }
}
