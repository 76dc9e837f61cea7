//! Cores that warm workers share: more of them may be awake than there are cores, but only as many run calls at once.
//!
//! A worker that wakes up claims one of a number of slots, and releases it before it sleeps again. A slot is a byte
//! of a memory file that every warm worker of a node has, and a claim is a lock on that byte. So no tenant can write
//! memory that another one reads, the kernel releases a dead worker's slot, and the node can ask the kernel for the
//! holders. The file contains the number of slots, which only the node can change.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use dayfly_fabric::memory::Mapping;
use rustix::fs::{MemfdFlags, SealFlags};

/// Slots that a worker tries before it considers the node full. Each try is a system call.
const MAX_TRIES: u32 = 32;
const FILE_BYTES: usize = 4096;
/// The first byte that is a slot. The bytes before it contain the number of slots.
const FIRST: u32 = 64;
/// Upper bound of the number of slots.
pub const MAX_CORE_SLOTS: u32 = FILE_BYTES as u32 - FIRST;

/// The node's side: the number of slots, and their holders.
#[derive(Debug)]
pub struct CoreSlots {
    file: OwnedFd,
    memory: Mapping,
}

impl CoreSlots {
    /// A file without slots.
    pub fn new() -> std::io::Result<Self> {
        let file = rustix::fs::memfd_create("dayfly-cores", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, FILE_BYTES as u64)?;
        let memory = Mapping::of(&file, FILE_BYTES)?;
        // Holders of the file can read it and lock bytes. The mapping from before the seal stays writable.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        Ok(Self { file, memory })
    }

    /// The file to pass to workers.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Sets the number of slots.
    pub fn set(&self, slots: u32) {
        self.memory.word(0).store(slots.min(MAX_CORE_SLOTS), Ordering::Relaxed);
    }

    /// The number of slots.
    pub fn count(&self) -> u32 {
        self.memory.word(0).load(Ordering::Relaxed)
    }

    /// Process ids of the holders, in this process's namespace; once for each slot that a process holds.
    pub fn holders(&self) -> Vec<u32> {
        let holder = |slot| {
            let mut wanted = lock_on(slot, libc::F_WRLCK as i16);
            // SAFETY: the request reads and writes the one struct that is passed to it.
            let asked = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_GETLK, &mut wanted) };
            (asked == 0 && wanted.l_type != libc::F_UNLCK as i16).then_some(wanted.l_pid.max(0) as u32)
        };
        (0..MAX_CORE_SLOTS)
            .take(self.count() as usize)
            .filter_map(holder)
            .collect()
    }
}

/// A worker's side.
#[derive(Debug)]
pub struct CoreSlot {
    file: OwnedFd,
    held: Option<u32>,
    /// Where the search begins: workers that begin at different slots collide less often.
    first: u32,
}

impl CoreSlot {
    /// Holds no slot yet. `number` should differ between workers.
    pub fn new(file: OwnedFd, number: u32) -> Self {
        Self {
            file,
            held: None,
            first: number,
        }
    }

    /// Claims a slot unless it has one. Returns false if none is free.
    pub fn claim(&mut self) -> bool {
        if self.held.is_some() {
            return true;
        }
        let mut count = [0; 4];
        let count = match rustix::io::pread(&self.file, &mut count, 0) {
            Ok(4) => u32::from_ne_bytes(count),
            _ => return false,
        };
        self.held = (0..count.min(MAX_TRIES))
            .map(|offset| (self.first.wrapping_add(offset)) % count)
            .find(|slot| set_lock(&self.file, *slot, libc::F_WRLCK as i16));
        // The last slot that was free is the most likely one to be free again.
        self.first = self.held.unwrap_or(self.first.wrapping_add(MAX_TRIES));
        self.held.is_some()
    }

    /// Releases the slot, if there is one.
    pub fn release(&mut self) {
        if let Some(slot) = self.held.take() {
            set_lock(&self.file, slot, libc::F_UNLCK as i16);
        }
    }
}

fn lock_on(slot: u32, kind: i16) -> libc::flock {
    // SAFETY: all zero is a valid value of this plain struct.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind;
    lock.l_whence = libc::SEEK_SET as i16;
    lock.l_start = i64::from(FIRST + slot);
    lock.l_len = 1;
    lock
}

/// Locks or unlocks a slot for this process, without blocking. Returns whether it succeeded.
fn set_lock(file: impl AsFd, slot: u32, kind: i16) -> bool {
    let lock = lock_on(slot, kind);
    // SAFETY: the request reads the one struct that is passed to it.
    unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_SETLK, &lock) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs in a child process, since a process never conflicts with its own locks. Returns its exit status.
    fn in_child(run: impl FnOnce() -> i32) -> i32 {
        // SAFETY: the child only makes system calls, and ends without unwinding or exit handlers.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let status = run();
            // SAFETY: ends only this child.
            unsafe { libc::_exit(status) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        libc::WEXITSTATUS(status)
    }

    fn slot(slots: &CoreSlots) -> CoreSlot {
        CoreSlot::new(slots.file().try_clone().unwrap(), 0)
    }

    #[test]
    fn dead_holder_releases_its_core_slot() {
        let slots = CoreSlots::new().unwrap();
        let mut own = slot(&slots);
        assert!(!own.claim(), "there is none yet");
        slots.set(1);
        let mut other = slot(&slots);
        assert_eq!(in_child(|| i32::from(other.claim())), 1, "and the child dies with it");
        assert!(own.claim());
        assert_eq!(in_child(|| i32::from(other.claim())), 0);
        slots.set(2);
        assert_eq!(in_child(|| i32::from(other.claim())), 1);
        own.release();
        slots.set(1);
        assert_eq!(in_child(|| i32::from(other.claim())), 1);
    }

    #[test]
    fn only_the_node_sets_number_of_core_slots() {
        let slots = CoreSlots::new().unwrap();
        slots.set(3);
        let file = slots.file().try_clone().unwrap();
        let mut own = CoreSlot::new(file.try_clone().unwrap(), 1);
        assert!(own.claim());
        let me = std::process::id();
        // Only locks of other processes are visible.
        let seen = in_child(|| i32::from(slots.holders() == [me]));
        assert_eq!(seen, 1);
        assert!(rustix::io::pwrite(&file, &[9], 0).is_err());
        assert!(Mapping::of(&file, FILE_BYTES).is_err(), "nor map it for writing");
        assert_eq!(slots.count(), 3);
    }
}
