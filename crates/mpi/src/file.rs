//! Files: POSIX files that the ranks of a communicator share, seen through views.

mod data;
mod manage;
mod shared;

use std::ffi::c_int;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dayfly_comm::{Datatype as Element, Operation};

use crate::communicator::CommObject;
use crate::datatype::TypeObject;
use crate::error::{Error, Result, class};
use crate::handle::{File, Offset, Table};
use crate::interface::{AtomicNumber, Number};
use crate::status::Completion;

pub static FILES: Table<FileObject> = Table::new(4);

/// An open file.
pub struct FileObject {
    file: std::fs::File,
    /// A communicator of the file's own.
    comm: Arc<CommObject>,
    mode: i32,
    name: String,
    info: Mutex<Vec<(String, String)>>,
    view: Mutex<View>,
    /// In elements of the view.
    position: Mutex<Offset>,
    shared: shared::SharedPointer,
    is_atomic: AtomicBool,
    /// Held by a transfer in atomic mode.
    transfer: Mutex<()>,
    pub handler: AtomicNumber,
    /// What a split collective has done, until it ends.
    begun: Mutex<Option<Completion>>,
}

/// Which bytes of the file a rank sees.
#[derive(Clone)]
pub struct View {
    start: Offset,
    element: Arc<TypeObject>,
    pattern: Arc<TypeObject>,
    representation: String,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of a file in its table.
fn number_of(file: File) -> Number {
    file.0 as u32 as Number
}

pub fn get(file: File) -> Result<Arc<FileObject>> {
    FILES
        .get(number_of(file))
        .ok_or_else(|| Error::new(class::FILE, "the handle is no open file"))
}

/// Agrees with the other ranks of a collective on its outcome: if it fails on any rank, it fails on all of them, with the
/// greatest class of their errors. No rank continues before all of them have called it.
fn agreed<T>(comm: &CommObject, outcome: Result<T>) -> Result<T> {
    let own = outcome.as_ref().err().map_or(0, |error| error.code as u32);
    let mut greatest = [0; 4];
    comm.local()?
        .allreduce(&own.to_ne_bytes(), &mut greatest, Element::U32, &Operation::Max)?;
    match u32::from_ne_bytes(greatest) {
        greatest if greatest == own => outcome,
        greatest => Err(Error::new(greatest as c_int, "the collective failed on another rank")),
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        let code = match error.raw_os_error() {
            Some(libc::ENOENT) => class::NO_SUCH_FILE,
            Some(libc::EEXIST) => class::FILE_EXISTS,
            Some(libc::EACCES | libc::EPERM) => class::ACCESS,
            Some(libc::EROFS) => class::READ_ONLY,
            Some(libc::ENOSPC) => class::NO_SPACE,
            Some(libc::EDQUOT) => class::QUOTA,
            Some(libc::ENAMETOOLONG | libc::ENOTDIR | libc::EISDIR) => class::BAD_FILE,
            _ => class::IO,
        };
        Self::new(code, error.to_string())
    }
}

impl View {
    /// All bytes.
    fn bytes(of: Arc<TypeObject>) -> Self {
        Self {
            start: 0,
            element: of.clone(),
            pattern: of,
            representation: "native".into(),
        }
    }

    /// Calls a function with the ranges of the file that hold `length` bytes of the view from byte `first` of it: where
    /// each begins, and its length. Ends when the function returns false.
    fn visit(&self, first: u64, length: usize, mut see: impl FnMut(u64, usize) -> Result<bool>) -> Result<()> {
        let pattern = &self.pattern;
        if pattern.dense {
            see((self.start + pattern.true_lower as Offset) as u64 + first, length)?;
            return Ok(());
        }
        if pattern.size == 0 {
            return Ok(());
        }
        let (mut tile, mut skip) = (first / pattern.size as u64, (first % pattern.size as u64) as usize);
        let mut left = length;
        let mut outcome = Ok(());
        while left > 0 {
            let base = self.start + tile as Offset * pattern.extent as Offset;
            let goes_on = pattern.visit_runs(|offset, run| {
                let skipped = skip.min(run);
                skip -= skipped;
                let wanted = (run - skipped).min(left);
                if wanted == 0 {
                    return left > 0;
                }
                left -= wanted;
                match see((base + (offset + skipped as isize) as Offset) as u64, wanted) {
                    Ok(goes_on) => goes_on && left > 0,
                    Err(error) => {
                        outcome = Err(error);
                        false
                    }
                }
            });
            if !goes_on {
                break;
            }
            tile += 1;
        }
        outcome
    }

    /// The place in the file of a byte of the view.
    fn place(&self, byte: u64) -> Result<u64> {
        let mut found = self.start as u64;
        self.visit(byte, 1, |start, _| {
            found = start;
            Ok(false)
        })?;
        Ok(found)
    }

    /// Bytes of the view within a file of this size.
    fn bytes_within(&self, size: u64) -> u64 {
        let pattern = &self.pattern;
        let Some(seen) = size.checked_sub(self.start as u64) else {
            return 0;
        };
        if pattern.dense || pattern.extent <= 0 {
            return seen;
        }
        let (tiles, rest) = (seen / pattern.extent as u64, (seen % pattern.extent as u64) as isize);
        let mut bytes = tiles * pattern.size as u64;
        pattern.visit_runs(|offset, run| {
            bytes += (rest - offset).clamp(0, run as isize) as u64;
            true
        });
        bytes
    }
}

/// A lock of a range of a file, against other processes and other opens of the file. Its end releases it, and so does
/// the end of the process.
struct RangeLock<'a>(&'a std::fs::File, libc::flock);

impl<'a> RangeLock<'a> {
    /// Waits for the lock of a range; one to read excludes writers only.
    fn new(file: &'a std::fs::File, range: Range<u64>, writes: bool) -> Result<Self> {
        // SAFETY: plain numbers, for which zero is a value.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = (if writes { libc::F_WRLCK } else { libc::F_RDLCK }) as _;
        lock.l_whence = libc::SEEK_SET as _;
        lock.l_start = range.start as _;
        lock.l_len = (range.end - range.start) as _;
        // SAFETY: the descriptor is open, and the lock outlives the call.
        while unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLKW, &raw const lock) } != 0 {
            let error = std::io::Error::last_os_error();
            if error.kind() != std::io::ErrorKind::Interrupted {
                return Err(error.into());
            }
        }
        Ok(Self(file, lock))
    }
}

impl Drop for RangeLock<'_> {
    fn drop(&mut self) {
        self.1.l_type = libc::F_UNLCK as _;
        // SAFETY: as for the lock.
        unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_OFD_SETLK, &raw const self.1) };
    }
}

/// What excludes conflicting transfers of this process, and of others.
type Exclusion<'a> = (RangeLock<'a>, MutexGuard<'a, ()>);

impl FileObject {
    /// In atomic mode, excludes other transfers from the range between the first byte of a transfer and the last one.
    fn exclude_others(&self, view: &View, first: u64, length: usize, writes: bool) -> Result<Option<Exclusion<'_>>> {
        if !self.is_atomic.load(Ordering::Acquire) || length == 0 {
            return Ok(None);
        }
        // The threads of a process share the locks of a descriptor.
        let of_process = lock(&self.transfer);
        let mut range: Option<Range<u64>> = None;
        view.visit(first, length, |start, length| {
            let end = start + length as u64;
            range = Some(match &range {
                Some(range) => range.start.min(start)..range.end.max(end),
                None => start..end,
            });
            Ok(true)
        })?;
        match range {
            None => Ok(None),
            Some(range) => Ok(Some((RangeLock::new(&self.file, range, writes)?, of_process))),
        }
    }

    fn view(&self) -> View {
        lock(&self.view).clone()
    }

    /// Reads bytes of the view. Returns how many there are before the end of the file.
    fn read(&self, view: &View, first: u64, into: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        view.visit(first, into.len(), |start, length| {
            let mut got = 0;
            while got < length {
                match self
                    .file
                    .read_at(&mut into[done..done + length - got], start + got as u64)?
                {
                    0 => return Ok(false),
                    count => {
                        got += count;
                        done += count;
                    }
                }
            }
            Ok(true)
        })?;
        Ok(done)
    }

    fn write(&self, view: &View, first: u64, from: &[u8]) -> Result<()> {
        let mut done = 0;
        view.visit(first, from.len(), |start, length| {
            self.file.write_all_at(&from[done..done + length], start)?;
            done += length;
            Ok(true)
        })
    }
}
