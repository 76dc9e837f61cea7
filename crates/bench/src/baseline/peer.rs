//! The peer process of a baseline, and the memory shared with it.

use std::ops::Deref;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::proc;

/// The two cores of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cores {
    /// The core of the calling thread: the last but one that this process may use.
    pub client: usize,
    /// The core of the peer: the last one, which is also the first that a node gives to a hot worker.
    pub peer: usize,
}

impl Cores {
    /// Returns the cores to measure on. The first call chooses them, before anything is pinned.
    pub fn pick() -> Result<Self, Error> {
        static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();
        match ALLOWED.get_or_init(allowed).as_slice() {
            [.., client, peer] => Ok(Cores {
                client: *client,
                peer: *peer,
            }),
            _ => Err(Error::Os {
                what: "measure with fewer than two cores",
                source: std::io::Error::other("both sides would wait for each other's time slice"),
            }),
        }
    }
}

fn allowed() -> Vec<usize> {
    // SAFETY: an all-zero cpu_set_t is an empty set; the kernel writes at most the size given.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set);
        set
    };
    // SAFETY: the index is below CPU_SETSIZE.
    (0..libc::CPU_SETSIZE as usize)
        .filter(|core| unsafe { libc::CPU_ISSET(*core, &set) })
        .collect()
}

/// Pins the calling thread to one core.
pub fn pin(core: usize) -> Result<(), Error> {
    if core >= libc::CPU_SETSIZE as usize {
        return Err(Error::Os {
            what: "pin to a core",
            source: std::io::Error::other(format!("no core {core}")),
        });
    }
    // SAFETY: an all-zero cpu_set_t is an empty set, and the core was checked against its size.
    let done = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    if done == 0 {
        Ok(())
    } else {
        Err(Error::last_os("pin a thread to its core"))
    }
}

/// Shared memory with all pages present.
pub(super) struct Mapping {
    start: *mut u8,
    len: usize,
}

impl Mapping {
    pub(super) fn new(len: usize) -> Result<Self, Error> {
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags | libc::MAP_POPULATE, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(Error::last_os("map shared memory"));
        }
        // SAFETY: the mapping is writable and `len` bytes long. Writing makes pages of its own, not the zero page's.
        unsafe { std::ptr::write_bytes(start.cast::<u8>(), 0, len) };
        Ok(Mapping {
            start: start.cast(),
            len,
        })
    }

    pub(super) fn start(&self) -> *mut u8 {
        self.start
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` mapped the range, and every borrow of it borrows `self`.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

/// One value in shared memory. All of its fields must be valid when their bytes are zero, and
/// shared between processes only through atomics or the order that atomics give.
pub(super) struct Shared<T> {
    mapping: Mapping,
    value: std::marker::PhantomData<T>,
}

impl<T> Shared<T> {
    /// # Safety
    /// `T` must be valid when all its bytes are zero, and need no drop.
    pub(super) unsafe fn zeroed() -> Result<Self, Error> {
        Ok(Shared {
            mapping: Mapping::new(size_of::<T>())?,
            value: std::marker::PhantomData,
        })
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the mapping is page-aligned, as long as T, zeroed (which `zeroed` demands to be valid) and lives.
        unsafe { &*self.mapping.start.cast::<T>() }
    }
}

/// Tells a polling peer to sleep between blocks.
#[repr(C, align(128))]
pub(super) struct Control {
    asleep: AtomicU32,
}

impl Control {
    /// For the peer's polling loops: sleeps while the client asks for it.
    #[inline(always)]
    pub(super) fn rest(&self) {
        if self.asleep.load(Ordering::Relaxed) != 0 {
            futex_wait(&self.asleep, 1, None);
        }
    }
}

/// Waits while the word holds `value`, for at most the given time. May return early.
pub(super) fn futex_wait(word: &AtomicU32, value: u32, limit: Option<Duration>) {
    let time = limit.map(|l| libc::timespec {
        tv_sec: l.as_secs() as libc::time_t,
        tv_nsec: l.subsec_nanos() as libc::c_long,
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: word and time live through the call, which only reads them. Not the private form: the word is shared.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, time) };
}

/// Wakes one waiter on the word.
pub(super) fn futex_wake(word: &AtomicU32) {
    // SAFETY: the call takes the word's address as a name only.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
}

/// A forked process on the other core. It ends with this value, and with the thread that made it.
pub(super) struct Peer {
    pid: libc::pid_t,
    name: String,
    control: Shared<Control>,
}

/// Longest silence of a peer.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

impl Peer {
    /// Forks a process, pins it to the peer's core and runs `serve` in it.
    pub(super) fn fork(name: &str, serve: impl FnOnce(&Control)) -> Result<Self, Error> {
        let core = Cores::pick()?.peer;
        // SAFETY: all fields of Control are atomics.
        let control = unsafe { Shared::<Control>::zeroed()? };
        let parent = std::process::id();
        // SAFETY: fork has no preconditions. The child runs `serve` and leaves with _exit: it never
        // returns into this process's stack, nor runs its destructors. It takes no lock that another thread may have
        // held at the fork except the allocator's, which the C library keeps usable in the child.
        let pid = unsafe { libc::fork() };
        if pid < 0 {
            return Err(Error::last_os("fork the peer of a baseline"));
        }
        if pid == 0 {
            proc::die_with(parent);
            let served = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                if pin(core).is_ok() {
                    serve(&control);
                }
            }));
            // SAFETY: ends the child without the parent's exit handlers.
            unsafe { libc::_exit(i32::from(served.is_err())) };
        }
        Ok(Peer {
            pid,
            name: name.into(),
            control,
        })
    }

    /// Spins until `done` returns a value. Checks from time to time that the peer lives.
    #[inline(always)]
    pub(super) fn spin<R>(&self, mut done: impl FnMut() -> Option<R>) -> Result<R, Error> {
        const POLLS: u32 = 1 << 20;
        let mut started = None;
        loop {
            for _ in 0..POLLS {
                if let Some(result) = done() {
                    return Ok(result);
                }
            }
            self.check(*started.get_or_insert_with(Instant::now))?;
        }
    }

    /// Fails if the peer is dead, or silent for too long since the given time.
    #[cold]
    pub(super) fn check(&self, since: Instant) -> Result<(), Error> {
        // SAFETY: a null status pointer is allowed. WNOWAIT leaves a dead child to be reaped by the drop.
        let dead = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            libc::waitid(libc::P_PID, self.pid as libc::id_t, &mut info, flags) != 0 || info.si_pid() == self.pid
        };
        let what = match (dead, since.elapsed() > TIMEOUT) {
            (true, _) => "has ended",
            (false, true) => "did not respond for 10 seconds",
            (false, false) => return Ok(()),
        };
        Err(Error::Peer {
            baseline: self.name.clone(),
            what,
        })
    }

    /// Returns the error of a broken connection to the peer.
    pub(super) fn broke(&self) -> Error {
        Error::Peer {
            baseline: self.name.clone(),
            what: "closed its connection",
        }
    }

    /// Lets the peer poll again.
    pub(super) fn resume(&self) {
        self.control.asleep.store(0, Ordering::Release);
        futex_wake(&self.control.asleep);
    }

    /// Makes a polling peer sleep.
    pub(super) fn pause(&self) {
        self.control.asleep.store(1, Ordering::Release);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // SAFETY: the child was forked here and is reaped only here, so the id is still its own.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn side_that_spins_notices_ended_peer() {
        let peer = Peer::fork("short-lived", |_| ()).unwrap();
        let error = peer.spin(|| None::<()>).unwrap_err();
        assert!(error.to_string().contains("`short-lived` has ended"), "{error}");
    }

    #[test]
    fn dropped_peer_leaves_no_process() {
        let peer = Peer::fork("sleeper", |control| {
            loop {
                futex_wait(&control.asleep, 0, None);
            }
        })
        .unwrap();
        let pid = peer.pid;
        drop(peer);
        // SAFETY: signal 0 only asks whether the process exists.
        assert_eq!(unsafe { libc::kill(pid, 0) }, -1);
    }
}
