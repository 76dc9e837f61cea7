//! `dayfly connector`: joins groups for the isolated ranks of a lease. A node starts it.

use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use clap::Args;
use dayfly_comm::connector::process;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::executor::CONTROL_FD;

/// Join groups for the isolated ranks of a lease.
#[derive(Debug, Args)]
#[command(
    after_help = "A node starts this command when an isolated rank first joins a group, and stops it with the lease.\nStarted by hand, it does nothing."
)]
pub struct Arguments {}

pub fn run() -> Result<(), Failure> {
    // SAFETY: borrowed to check whether it is open, before this process opens a descriptor.
    let control = unsafe { BorrowedFd::borrow_raw(CONTROL_FD) };
    if rustix::io::fcntl_getfd(control).is_err() {
        let text = "a connector is started by its node, not by hand";
        return Err(Failure::new(Code::InvalidRequest, text));
    }
    // SAFETY: the descriptor is open and owned by this process, which has not opened any other yet.
    process::run(unsafe { OwnedFd::from_raw_fd(CONTROL_FD) })
}
