//! The file pointer that ranks share: eight bytes in a file beside the file, under a lock.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::error::{Error, Result, class};
use crate::handle::Offset;

/// Where the shared pointer of an open file is kept. Its file is made when it is first used.
pub struct SharedPointer {
    path: PathBuf,
}

impl SharedPointer {
    /// `key` is the same on all ranks, and differs between open files.
    pub fn new(name: &str, key: u64) -> Self {
        let path = PathBuf::from(name);
        let file = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        Self {
            path: path.with_file_name(format!(".{file}.{key:016x}.pointer")),
        }
    }

    /// Changes the pointer. Returns what it was.
    pub fn change(&self, change: impl FnOnce(Offset) -> Offset) -> Result<Offset> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&self.path)
            .map_err(|error| Error::new(class::UNSUPPORTED_OPERATION, format!("no shared file pointer: {error}")))?;
        // SAFETY: the descriptor is open; closing it releases the lock.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } != 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        let mut word = [0; 8];
        // An empty file is a pointer to the start.
        let old = match file.read_exact_at(&mut word, 0) {
            Ok(()) => Offset::from_ne_bytes(word),
            Err(_) => 0,
        };
        file.write_all_at(&change(old).to_ne_bytes(), 0)?;
        Ok(old)
    }

    pub fn remove(&self) {
        // It is there only if it was used.
        let _ = std::fs::remove_file(&self.path);
    }
}
