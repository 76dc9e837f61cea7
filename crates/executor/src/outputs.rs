//! Where a worker's output goes, where it is told which call printed what.
//!
//! The node reads each worker's output from pipes of the worker's own, and knows from its meter which call runs. So a call's reply
//! waits until all is read that stands in the pipes: what is read before belongs to this call, what is read after to a later one.
//! A call that printed nothing, or nothing lately, costs two questions to the kernel for each pipe. They tell, too, whether it closed
//! its standard output or put something else there: the next one finds it as it should be.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// Between two looks whether the node has read what was printed.
const LOOK: Duration = Duration::from_micros(20);
/// A node that does not read is not waited for any longer.
const PATIENCE: Duration = Duration::from_secs(1);
const STANDARD: [RawFd; 2] = [libc::STDOUT_FILENO, libc::STDERR_FILENO];

/// Pipes in the place of standard output and error.
#[derive(Debug)]
pub struct Prints {
    pipes: [Pipe; 2],
}

/// One of them, by a descriptor of our own, and by what it is.
#[derive(Debug)]
struct Pipe {
    file: OwnedFd,
    inode: (u64, u64),
    standard: RawFd,
}

impl Prints {
    /// Puts these two in their places, for standard output and error.
    pub fn into(files: Vec<OwnedFd>) -> Option<Self> {
        let files = <[OwnedFd; 2]>::try_from(files).ok()?;
        let mut standard = STANDARD.into_iter();
        let pipes = files.map(|file| Pipe {
            inode: inode(file.as_raw_fd()).unwrap_or_default(),
            file,
            standard: standard.next().unwrap_or(-1),
        });
        let done = pipes.iter().all(Pipe::put);
        done.then_some(Self { pipes })
    }

    /// Puts them back where a call has closed them, or put something else in their places. Whether it had.
    pub fn put_back(&self) -> bool {
        let mut gone = self
            .pipes
            .iter()
            .filter(|pipe| inode(pipe.standard) != Some(pipe.inode))
            .peekable();
        let any = gone.peek().is_some();
        for pipe in gone {
            pipe.put();
        }
        any
    }

    /// Waits until the node has read all that was printed, or has not for too long.
    pub fn wait_until_read(&self) {
        let mut begin = None;
        while self.pipes.iter().any(Pipe::is_unread) {
            if begin.get_or_insert_with(Instant::now).elapsed() >= PATIENCE {
                break;
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl Pipe {
    /// Makes the standard descriptor mean it. Whether that was done.
    fn put(&self) -> bool {
        // SAFETY: `dup2` makes one descriptor mean another one's file; nobody in this process owns the standard ones.
        unsafe { libc::dup2(self.file.as_raw_fd(), self.standard) == self.standard }
    }

    /// Whether something stands in it.
    fn is_unread(&self) -> bool {
        let mut bytes: libc::c_int = 0;
        // SAFETY: FIONREAD writes one int, and nothing on a descriptor that does not know it.
        let asked = unsafe { libc::ioctl(self.file.as_raw_fd(), libc::FIONREAD, &mut bytes) };
        asked == 0 && bytes > 0
    }
}

/// What a descriptor means, if anything.
fn inode(file: RawFd) -> Option<(u64, u64)> {
    // SAFETY: all zeros is a `stat`, and `fstat` writes one, or fails for a descriptor that means nothing.
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
    fn what_stands_in_a_pipe_is_unread() {
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
    fn what_was_closed_or_replaced_is_put_back() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let standard = std::fs::File::open("/dev/null").unwrap();
        let file = OwnedFd::from(writer);
        let pipe = Pipe {
            inode: inode(file.as_raw_fd()).unwrap(),
            file,
            standard: standard.as_raw_fd(),
        };
        assert_ne!(inode(pipe.standard), Some(pipe.inode));
        assert!(pipe.put());
        assert_eq!(inode(pipe.standard), Some(pipe.inode));
        (&standard).write_all(b"x").unwrap();
        reader.read_exact(&mut [0; 1]).unwrap();
        assert_eq!(inode(-1), None);
    }
}
