//! Descriptors that the runtime watches for reading.

use std::os::fd::{AsRawFd, OwnedFd};

use dayfly_sandbox::Watch;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Owns the descriptor that it returns for its whole lifetime.
pub trait DescriptorOwner: AsRawFd {}
impl DescriptorOwner for OwnedFd {}
impl DescriptorOwner for Watch {}

/// Watches a descriptor for reading.
pub fn watch<Fd: DescriptorOwner>(fd: Fd) -> std::io::Result<AsyncFd<Fd>> {
    // SAFETY: the owner names the same open descriptor for its whole lifetime, and the watch owns the owner.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(std::io::Error::from)
}
