//! Descriptors of ours that the runtime watches.

use std::os::fd::{AsRawFd, OwnedFd};

use dayfly_sandbox::Watch;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Owns the descriptor that it answers for as long as it lives.
pub trait Owner: AsRawFd {}
impl Owner for OwnedFd {}
impl Owner for Watch {}

/// Watches a descriptor for something to read.
pub fn watch<Fd: Owner>(fd: Fd) -> std::io::Result<AsyncFd<Fd>> {
    // SAFETY: its owner names the same open descriptor for as long as it lives, and the watch owns the owner.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(std::io::Error::from)
}
