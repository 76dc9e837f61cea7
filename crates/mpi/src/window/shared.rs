//! Windows in memory that all their ranks share: a rank reads and writes the parts of others itself.
//!
//! An access is over when its call returns, whatever the rank that has the memory does meanwhile. Each part has a cell in
//! the shared memory with the locks of that part: one that an accumulation holds while it runs, so that accumulations are
//! atomic with each other, and the one of `MPI_Win_lock`. A rank that waits for a lock spins, then lets others run; it
//! serves the ranks of its engine meanwhile, so it hears when one is lost that holds the lock.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use dayfly_protocol::error::{Code, Failure};

use super::{Owned, WINDOW, WindowObject};
use crate::communicator::CommObject;
use crate::error::{Error, Result, class};
use crate::realm::Wheel;

const PAGE: usize = 4096;
const LINE: usize = 64;
/// Attempts at a lock before a rank lets others run.
const SPINS: u32 = 2000;
/// A rank that waits for longer sleeps between its attempts.
const PATIENCE: Duration = Duration::from_millis(1);
const PAUSE: Duration = Duration::from_micros(50);
/// Of so many synchronisations, one looks after the other ranks.
const PROGRESS_EVERY: u32 = 64;

/// A lock of `MPI_Win_lock` that one rank holds alone. Below it is the number of ranks that share the lock.
const EXCLUSIVE: u32 = 1 << 31;

/// A part of a window: where it lies for this process, its size and its unit.
#[derive(Clone, Copy)]
pub struct Part {
    pub start: usize,
    pub size: usize,
    pub unit: usize,
}

/// The error of an access that the window has not the memory for.
pub fn outside() -> Error {
    Error::new(class::RMA_RANGE, "the access lies outside of the window")
}

impl Part {
    /// The address of an access, if the `length` bytes that begin `low` bytes after it are in the part.
    pub fn place(&self, displacement: i64, low: isize, length: usize) -> Result<usize> {
        let start = displacement.checked_mul(self.unit as i64).ok_or_else(outside)? as isize;
        let first = start.checked_add(low).and_then(|first| usize::try_from(first).ok());
        let end = first.and_then(|first| first.checked_add(length));
        let fits = length == 0 || end.is_some_and(|end| end <= self.size);
        fits.then_some(self.start.wrapping_add_signed(start))
            .ok_or_else(outside)
    }
}

/// The locks of a part. All of it is zero at first.
#[repr(C, align(64))]
struct Cell {
    /// Whether an accumulation runs.
    accumulates: AtomicU32,
    /// Who has the lock of `MPI_Win_lock`: [`EXCLUSIVE`], or a number of ranks.
    lock: AtomicU32,
    /// Ranks that wait to have it alone. No other rank begins to share it meanwhile.
    claims: AtomicU32,
}

/// The shared memory of a window: the cells, then the parts.
pub struct Shared {
    pub parts: Vec<Part>,
    cells: usize,
    synchronisations: AtomicU32,
}

/// How the parts of a window follow each other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Each begins where the one before ends, as MPI promises for `MPI_Win_allocate_shared`.
    Contiguous,
    /// Each begins at a cache line of its own.
    Apart,
}

/// Holds the lock of accumulations on a part.
pub struct Accumulating<'a>(&'a AtomicU32);

impl Drop for Accumulating<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

impl Shared {
    fn cell(&self, rank: usize) -> &Cell {
        debug_assert!(rank < self.parts.len());
        // SAFETY: there is a cell for each part, in a mapping that lives as long as the window, aligned to a line.
        unsafe { &*((self.cells + rank * size_of::<Cell>()) as *const Cell) }
    }
}

/// Maps memory for a window with these parts of all ranks: their sizes and units. `None` if not all ranks can map the same
/// memory. All ranks call it, and it returns the same for all, or an error.
pub fn map(comm: &CommObject, parts: &[(usize, usize)], layout: Layout) -> Result<Option<(Shared, Owned)>> {
    let cells = parts.len() * size_of::<Cell>();
    let follow = |size: usize| match layout {
        Layout::Contiguous => size,
        Layout::Apart => size.next_multiple_of(LINE),
    };
    let total = parts.iter().try_fold(cells, |total, (size, _)| {
        let size = size.checked_next_multiple_of(LINE)?;
        total.checked_add(size)
    });
    let length = total.and_then(|total| total.checked_next_multiple_of(PAGE));
    let length = length.filter(|length| isize::try_from(*length).is_ok());
    let Some((start, owned)) = map_same(comm, length)? else {
        return Ok(None);
    };
    let mut next = start + cells;
    let parts = parts.iter().map(|(size, unit)| {
        let part = Part {
            start: next,
            size: *size,
            unit: *unit,
        };
        next += follow(*size);
        part
    });
    let shared = Shared {
        parts: parts.collect(),
        cells: start,
        synchronisations: AtomicU32::new(0),
    };
    Ok(Some((shared, owned)))
}

/// Maps the same memory on all ranks: a file in the system's memory file system, whose name goes at once.
fn map_same(comm: &CommObject, length: Option<usize>) -> Result<Option<(usize, Owned)>> {
    let local = comm.local()?;
    let mut key = [0; 16];
    if local.rank() == 0 {
        // SAFETY: the room is as long as it is said to be.
        unsafe { libc::getrandom(key.as_mut_ptr().cast(), key.len(), 0) };
    }
    local.bcast(&mut key, 0)?;
    let path = format!("/dev/shm/dayfly-mpi-{:032x}", u128::from_ne_bytes(key));
    let first = (local.rank() == 0).then(|| create(&path, length?));
    local.barrier()?;
    let file = match first {
        Some(file) => file,
        None => OpenOptions::new().read(true).write(true).open(&path).ok(),
    };
    let mapped = file.zip(length).and_then(|(file, length)| map_file(&file, length));
    // Memory that not all ranks have is of no use.
    let mut all = vec![0; local.size() as usize];
    local.allgather(&[mapped.is_some().into()], &mut all)?;
    if local.rank() == 0 {
        // Every rank has opened it, or has told that it cannot.
        let _ = std::fs::remove_file(&path);
    }
    let are_all = all.iter().all(|has: &u8| *has == 1);
    Ok(mapped.filter(|_| are_all))
}

/// Creates the file with its memory: without enough of it, a rank that touches it would be killed later.
fn create(path: &str, length: usize) -> Option<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .ok()?;
    // SAFETY: an open file.
    let refused = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length as libc::off_t) };
    if refused != 0 {
        let _ = std::fs::remove_file(path);
        return None;
    }
    Some(file)
}

fn map_file(file: &File, length: usize) -> Option<(usize, Owned)> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping of an open file.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            access,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    let start = (start != libc::MAP_FAILED).then_some(start as usize)?;
    Some((start, Owned::Mapping { start, length }))
}

impl WindowObject {
    /// Takes the lock of accumulations on the part of a rank.
    pub(super) fn accumulating<'a>(&self, shared: &'a Shared, rank: usize) -> Result<Accumulating<'a>> {
        let lock = &shared.cell(rank).accumulates;
        self.until("an accumulation", || {
            lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        })?;
        Ok(Accumulating(lock))
    }

    /// Locks the part of a rank, as `MPI_Win_lock`.
    pub(super) fn lock_part(&self, shared: &Shared, rank: usize, is_exclusive: bool) -> Result<()> {
        let cell = shared.cell(rank);
        if !is_exclusive {
            return self.until("a window's lock", || {
                let found = cell.lock.load(Ordering::Relaxed);
                found & EXCLUSIVE == 0
                    && cell.claims.load(Ordering::Relaxed) == 0
                    && cell
                        .lock
                        .compare_exchange(found, found + 1, Ordering::Acquire, Ordering::Relaxed)
                        .is_ok()
            });
        }
        cell.claims.fetch_add(1, Ordering::Relaxed);
        let outcome = self.until("a window's lock", || {
            cell.lock
                .compare_exchange(0, EXCLUSIVE, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        });
        cell.claims.fetch_sub(1, Ordering::Relaxed);
        outcome
    }

    /// Releases the lock of the part of a rank, which this rank has.
    pub(super) fn unlock_part(&self, shared: &Shared, rank: usize) {
        let lock = &shared.cell(rank).lock;
        // Nobody else changes an exclusive lock.
        match lock.load(Ordering::Relaxed) {
            EXCLUSIVE => lock.store(0, Ordering::Release),
            _ => {
                lock.fetch_sub(1, Ordering::Release);
            }
        }
    }

    /// Orders this rank's accesses before what follows. Sometimes looks after the other ranks, for a program that waits by
    /// synchronising again and again.
    pub(super) fn synchronise(&self, shared: &Shared) -> Result<()> {
        std::sync::atomic::fence(Ordering::SeqCst);
        let count = shared.synchronisations.fetch_add(1, Ordering::Relaxed);
        match count % PROGRESS_EVERY {
            0 => self.look_after_others(),
            _ => Ok(()),
        }
    }

    /// Repeats an attempt until it succeeds.
    fn until(&self, what: &'static str, mut attempt: impl FnMut() -> bool) -> Result<()> {
        for _ in 0..SPINS {
            if attempt() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        self.contend(what, &mut attempt)
    }

    #[cold]
    fn contend(&self, what: &'static str, attempt: &mut dyn FnMut() -> bool) -> Result<()> {
        let begun = Instant::now();
        let deadline = self.comm.control()?.turn().options().deadline;
        loop {
            self.look_after_others()?;
            if attempt() {
                return Ok(());
            }
            match begun.elapsed() {
                waited if waited > deadline => {
                    let text = format!("{what} did not end within {} s", deadline.as_secs());
                    return Err(Failure::new(Code::TimedOut, text).into());
                }
                waited if waited > PATIENCE => std::thread::sleep(PAUSE),
                _ => std::thread::yield_now(),
            }
        }
    }

    /// Serves the other ranks.
    ///
    /// # Errors
    /// If one of the window is lost.
    #[cold]
    fn look_after_others(&self) -> Result<()> {
        let control = self.comm.control()?;
        let mut wheel = Wheel::new(&control);
        wheel.progress();
        wheel.each(|_| ());
        match self.state().failures.remove(&WINDOW) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}
