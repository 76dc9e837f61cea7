//! Blocking on a word in memory that processes share.

use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use rustix::thread::futex;

/// Blocks while `word` is `expected`, for at most `limit`. May return early without a reason.
pub fn wait(word: &AtomicU32, expected: u32, limit: Duration) {
    let limit = futex::Timespec {
        tv_sec: limit.as_secs() as i64,
        tv_nsec: limit.subsec_nanos() as i64,
    };
    // All errors (value changed, time-out, interrupted) mean the same to the caller: check again.
    let _ = futex::wait(word, futex::Flags::empty(), expected, Some(&limit));
}

/// Wakes all threads that block on `word`.
pub fn wake(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}

/// Blocks while every word is 1, for at most `limit`. Kernels before 5.16 lack the system call; there it blocks on the
/// first word for at most a millisecond, so that the others are checked soon.
pub fn wait_any(words: &[&AtomicU32], limit: Duration) {
    match words {
        [] => std::thread::sleep(limit),
        [word] => wait(word, 1, limit),
        _ => {
            let waiters: Vec<libc_waitv::Waiter> = words
                .iter()
                .take(libc_waitv::MAX_WAITERS)
                .map(|word| libc_waitv::Waiter {
                    value: 1,
                    address: word.as_ptr() as u64,
                    flags: 2,
                    reserved: 0,
                })
                .collect();
            if !libc_waitv::wait(&waiters, Instant::now() + limit) {
                wait(words[0], 1, limit.min(Duration::from_millis(1)));
            }
        }
    }
}

mod libc_waitv {
    use std::time::{Duration, Instant};

    /// The kernel's limit for one call.
    pub const MAX_WAITERS: usize = 128;

    /// `struct futex_waitv`.
    #[repr(C)]
    pub struct Waiter {
        pub value: u64,
        pub address: u64,
        pub flags: u32,
        pub reserved: u32,
    }

    /// Returns false if the kernel does not support the call.
    pub fn wait(waiters: &[Waiter], until: Instant) -> bool {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let left = until.saturating_duration_since(Instant::now());
        let end = Duration::new(now.tv_sec as u64, now.tv_nsec as u32) + left;
        let limit = libc::timespec {
            tv_sec: end.as_secs() as i64,
            tv_nsec: end.subsec_nanos() as i64,
        };
        // SAFETY: the waiters and the time limit outlive the call, and the words they name are mapped by the caller's
        // borrows of them.
        let result = unsafe {
            libc::syscall(
                libc::SYS_futex_waitv,
                waiters.as_ptr(),
                waiters.len() as libc::c_uint,
                0,
                &limit as *const libc::timespec,
                libc::CLOCK_MONOTONIC,
            )
        };
        result >= 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ENOSYS)
    }
}
