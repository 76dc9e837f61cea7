//! Files: POSIX files that the ranks of a communicator share, seen through views.

mod data;
mod manage;
mod shared;

use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

impl FileObject {
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
