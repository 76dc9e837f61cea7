//! System calls without a wrapper, or without one that a process in shared memory may use.

use std::ffi::{CStr, CString, c_int, c_ulong};
use std::os::fd::RawFd;

pub const LANDLOCK_WRITE_FILE: u64 = 1 << 1;
/// Execute, read files, list directories.
pub const LANDLOCK_READ: u64 = 1 | 1 << 2 | 1 << 3;
/// File rights that each version of Landlock knows, from version 1.
const LANDLOCK_RIGHTS: [u64; 5] = [
    (1 << 13) - 1,
    (1 << 14) - 1,
    (1 << 15) - 1,
    (1 << 15) - 1,
    (1 << 16) - 1,
];
/// First version that can also restrict signals and abstract sockets.
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

/// Restricts file access by Landlock. Returns whether the kernel has Landlock and accepted the rules.
pub unsafe fn fence_files(allowed: &[(CString, u64)]) -> bool {
    // SAFETY: plain system calls; the structures are the kernel's.
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
        for (path, rights) in allowed {
            let beneath = libc::open(path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC);
            let mut status: libc::stat = std::mem::zeroed();
            libc::fstat(beneath, &mut status);
            let is_dir = status.st_mode & libc::S_IFMT == libc::S_IFDIR;
            // For files, the kernel accepts only execute, write, read, truncate and ioctl.
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

#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

const RESOLVE_NO_SYMLINKS: u64 = 4;

/// Binds a path without symbolic links, with everything mounted below it, as the kernel requires for mounts of a more
/// privileged owner. From Linux 5.6 on, a link that was inserted meanwhile is refused.
pub unsafe fn bind_mount(from: &CStr, at: &CStr) -> bool {
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
        // "/proc/self/fd/" and the number, formatted by hand: nothing may be allocated here.
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

/// Adds restrictions to a mount and those below it; before Linux 5.12, to the mount only.
pub unsafe fn protect_mount(at: &CStr, protect: c_ulong) -> bool {
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
        // The host's restrictions on a mount cannot be removed, and must be named again.
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

/// Brings the loopback interface up, for programs that connect to themselves.
pub unsafe fn loopback_up() {
    // SAFETY: plain system calls on values of this frame. Most programs do without the loopback if this fails.
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
pub unsafe fn hand_over(control: RawFd, listener: RawFd) -> bool {
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
