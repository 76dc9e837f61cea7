//! Refused system calls: received from the kernel, refused and recorded.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::MAX_RECORDS;

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
pub enum PendingCall {
    /// One waits.
    Waits,
    /// None waits.
    None,
    /// No process under the filter is left. The descriptor then stays readable.
    Closed,
}

/// Receives the refused calls of one sandbox from the kernel.
#[derive(Debug)]
pub struct Watch {
    listener: OwnedFd,
    /// Calls that may still be recorded.
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
    pub fn pending(&self) -> PendingCall {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut waiting = [PollFd::new(&self.listener, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let polled = poll(&mut waiting, Some(&now));
        let events = waiting[0].revents();
        match polled {
            Ok(1..) if events.contains(PollFlags::IN) => PendingCall::Waits,
            // The last process under the filter has ended.
            Ok(1..) if events.intersects(PollFlags::HUP | PollFlags::ERR) => PendingCall::Closed,
            _ => PendingCall::None,
        }
    }

    /// Receives one refused call and lets it fail, when the descriptor is readable. Returns `None` when nothing more
    /// will be recorded. Then drop the watch; the kernel alone refuses from then on.
    pub fn refuse_next(&mut self) -> Option<Refusal> {
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
                    call: "an abandoned call".into(),
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
pub(super) const HOSTILE: &[(i64, &str)] = &[
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
