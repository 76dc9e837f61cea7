//! Attribution of a worker's output to calls.
//!
//! The node reads each worker's output from separate pipes, and knows the running call from the worker's meter. So a
//! call's reply waits until its pipes are empty: output that is read before belongs to this call, later output to a
//! later call. A call without recent output costs two system calls for each pipe. These also reveal whether the call
//! closed or replaced its standard output; it is then restored for the next call.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// Interval of checks whether the node has read the output.
const POLL_INTERVAL: Duration = Duration::from_micros(20);
/// Longest wait for the node to read.
const READ_LIMIT: Duration = Duration::from_secs(1);
const STANDARD: [RawFd; 2] = [libc::STDOUT_FILENO, libc::STDERR_FILENO];

/// Pipes in place of standard output and standard error.
#[derive(Debug)]
pub struct OutputPipes {
    pipes: [Pipe; 2],
}

/// One pipe: our own descriptor for it, and its identity.
#[derive(Debug)]
struct Pipe {
    file: OwnedFd,
    inode: (u64, u64),
    standard: RawFd,
}

impl OutputPipes {
    /// Installs these two as standard output and standard error.
    pub fn install(files: Vec<OwnedFd>) -> Option<Self> {
        let files = <[OwnedFd; 2]>::try_from(files).ok()?;
        let mut standard = STANDARD.into_iter();
        let pipes = files.map(|file| Pipe {
            inode: inode(file.as_raw_fd()).unwrap_or_default(),
            file,
            standard: standard.next().unwrap_or(-1),
        });
        let done = pipes.iter().all(Pipe::redirect);
        done.then_some(Self { pipes })
    }

    /// Restores them if a call has closed or replaced them. Returns whether it had.
    pub fn restore(&self) -> bool {
        let mut gone = self
            .pipes
            .iter()
            .filter(|pipe| inode(pipe.standard) != Some(pipe.inode))
            .peekable();
        let any = gone.peek().is_some();
        for pipe in gone {
            pipe.redirect();
        }
        any
    }

    /// Waits until the node has read all output, at most [`READ_LIMIT`].
    pub fn wait_until_read(&self) {
        let mut begin = None;
        while self.pipes.iter().any(Pipe::is_unread) {
            if begin.get_or_insert_with(Instant::now).elapsed() >= READ_LIMIT {
                break;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Pipe {
    /// Makes the standard descriptor refer to the pipe. Returns whether it succeeded.
    fn redirect(&self) -> bool {
        // SAFETY: `dup2` replaces one descriptor; no value in this process owns the standard ones.
        unsafe { libc::dup2(self.file.as_raw_fd(), self.standard) == self.standard }
    }

    /// Whether it contains unread bytes.
    fn is_unread(&self) -> bool {
        let mut bytes: libc::c_int = 0;
        // SAFETY: FIONREAD writes one int, or nothing for a descriptor that does not support it.
        let asked = unsafe { libc::ioctl(self.file.as_raw_fd(), libc::FIONREAD, &mut bytes) };
        asked == 0 && bytes > 0
    }
}

/// Identity of a descriptor's file; `None` if the descriptor is closed.
fn inode(file: RawFd) -> Option<(u64, u64)> {
    // SAFETY: all zero is a valid `stat`; `fstat` fills it, or fails for a closed descriptor.
    unsafe {
        let mut about: libc::stat = std::mem::zeroed();
        (libc::fstat(file, &mut about) == 0).then_some((about.st_dev, about.st_ino))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::{AsRawFd, OwnedFd};

    use super::*;

    #[test]
    fn pipe_with_bytes_is_unread() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let mut same = writer.try_clone().unwrap();
        let pipe = Pipe {
            file: OwnedFd::from(writer),
            inode: (0, 0),
            standard: -1,
        };
        assert!(!pipe.is_unread());
        same.write_all(b"abc").unwrap();
        assert!(pipe.is_unread());
        reader.read_exact(&mut [0; 3]).unwrap();
        assert!(!pipe.is_unread());
    }

    #[test]
    fn closed_or_replaced_output_is_restored() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let standard = std::fs::File::open("/dev/null").unwrap();
        let file = OwnedFd::from(writer);
        let pipe = Pipe {
            inode: inode(file.as_raw_fd()).unwrap(),
            file,
            standard: standard.as_raw_fd(),
        };
        assert_ne!(inode(pipe.standard), Some(pipe.inode));
        assert!(pipe.redirect());
        assert_eq!(inode(pipe.standard), Some(pipe.inode));
        (&standard).write_all(b"x").unwrap();
        reader.read_exact(&mut [0; 1]).unwrap();
        assert_eq!(inode(-1), None);
    }
}
