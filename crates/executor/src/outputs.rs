//! Where a worker's output goes, where it is told which call printed what.
//!
//! The node reads each worker's output from pipes of the worker's own, and knows from its meter which call runs. So a call's reply
//! waits until all is read that stands in the pipes: what is read before belongs to this call, what is read after to a later one.
//! A call that printed nothing, or nothing lately, costs two questions to the kernel.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// Between two looks whether the node has read what was printed.
const LOOK: Duration = Duration::from_micros(20);
/// A node that does not read is not waited for any longer.
const PATIENCE: Duration = Duration::from_secs(1);
const STANDARD: [RawFd; 2] = [libc::STDOUT_FILENO, libc::STDERR_FILENO];

/// Puts these in the place of standard output and error. Whether that was done.
pub fn replace(files: &[OwnedFd]) -> bool {
    let [output, errors] = files else { return false };
    [output, errors].iter().zip(STANDARD).all(|(file, standard)| {
        // SAFETY: `dup2` makes one descriptor mean another one's file; nobody in this process owns the standard ones.
        unsafe { libc::dup2(file.as_raw_fd(), standard) == standard }
    })
}

/// Waits until the node has read all that was printed, or has not for too long.
pub fn wait_until_read() {
    if !STANDARD.iter().any(|standard| is_unread(*standard)) {
        return;
    }
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE && STANDARD.iter().any(|standard| is_unread(*standard)) {
        std::thread::sleep(LOOK);
    }
}

/// Whether something stands in the pipe behind this descriptor. What a function has put in its place is not looked at.
fn is_unread(standard: RawFd) -> bool {
    let mut bytes: libc::c_int = 0;
    // SAFETY: FIONREAD writes one int, and nothing on a descriptor that does not know it.
    let asked = unsafe { libc::ioctl(standard, libc::FIONREAD, &mut bytes) };
    asked == 0 && bytes > 0
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;

    #[test]
    fn what_stands_in_a_pipe_is_unread_and_no_file_is() {
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        assert!(!super::is_unread(writer.as_raw_fd()));
        writer.write_all(b"abc").unwrap();
        assert!(super::is_unread(writer.as_raw_fd()));
        reader.read_exact(&mut [0; 3]).unwrap();
        assert!(!super::is_unread(writer.as_raw_fd()));
        assert!(!super::is_unread(-1));
    }
}
