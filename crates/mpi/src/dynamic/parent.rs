//! The processes that have started this one.

use std::ffi::c_int;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dayfly_comm::Invitation;

use super::bridge::bridge;
use crate::communicator;
use crate::error::{Error, Result, class};
use crate::handle::{Comm, Errhandler};
use crate::interface::AtomicNumber;
use crate::state;

/// Variable with the number of a socket to the root that has started this process, the number of the processes on the
/// root's side, and the number of the program among those that were started.
pub const VARIABLE: &str = "DAYFLY_MPI_PARENT";
/// The word of a process that has initialised.
pub const READY: u8 = b'R';
/// Longest invitation.
const MAX_INVITATION: usize = 1 << 20;

static HANDLE: AtomicNumber = AtomicNumber::new(Comm::NULL.0);
static HAS_MET: AtomicBool = AtomicBool::new(false);

struct Call {
    socket: RawFd,
    parents: u32,
    appnum: c_int,
}

impl Call {
    fn from_environment() -> Option<Self> {
        let text = std::env::var(VARIABLE).ok()?;
        let mut words = text.split_whitespace();
        Some(Self {
            socket: words.next()?.parse().ok()?,
            parents: words.next()?.parse().ok()?,
            appnum: words.next()?.parse().ok()?,
        })
    }

    /// The socket, unless this process has inherited the variable from one that had the socket.
    fn socket(&self) -> Option<UnixStream> {
        let (mut domain, mut length) = (0, size_of::<c_int>() as libc::socklen_t);
        // SAFETY: writes one number, for which there is room.
        let found = unsafe {
            libc::getsockopt(
                self.socket,
                libc::SOL_SOCKET,
                libc::SO_DOMAIN,
                (&raw mut domain).cast(),
                &raw mut length,
            )
        };
        if found != 0 || domain != libc::AF_UNIX {
            return None;
        }
        // SAFETY: the root left the descriptor open for this function, which runs once.
        let socket = unsafe { OwnedFd::from_raw_fd(self.socket) };
        // SAFETY: changes a flag of that descriptor.
        unsafe { libc::fcntl(self.socket, libc::F_SETFD, libc::FD_CLOEXEC) };
        Some(socket.into())
    }
}

/// Whether another process of MPI has started this one.
pub fn is_spawned() -> bool {
    HAS_MET.load(Ordering::Acquire)
}

/// `MPI_APPNUM`.
pub fn appnum() -> c_int {
    Call::from_environment().map_or(0, |call| call.appnum)
}

/// `MPI_Comm_get_parent`.
pub fn handle() -> Comm {
    Comm(HANDLE.load(Ordering::Acquire))
}

/// Connects to the processes that have started this one, if there are any.
pub fn meet() -> Result<()> {
    let Some(call) = Call::from_environment() else {
        return Ok(());
    };
    if HAS_MET.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    let (Some(socket), Some(own)) = (call.socket(), state::instance()?.invitation.clone()) else {
        return Ok(());
    };
    // The root waits for all processes that it starts, which may have been as patient with each other.
    let limit = Duration::from_secs(own.patience_s.saturating_mul(2).max(1));
    let invitation = invitation_from(socket, limit).map_err(|error| {
        let text = format!("the process that has started this one has ended or given up: {error}");
        Error::new(class::SPAWN, text)
    })?;
    let invitation = Invitation::from_json(&invitation)?;
    let (parents, all) = (call.parents, invitation.size);
    let object = bridge(invitation, parents..all, 0..parents, Errhandler::FATAL)?;
    *object.name() = "MPI_COMM_PARENT".into();
    HANDLE.store(communicator::make(object).0, Ordering::Release);
    Ok(())
}

fn invitation_from(mut socket: UnixStream, limit: Duration) -> std::io::Result<String> {
    socket.set_read_timeout(Some(limit))?;
    socket.set_write_timeout(Some(limit))?;
    socket.write_all(&[READY])?;
    let mut length = [0; 4];
    socket.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_INVITATION {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    let mut text = vec![0; length];
    socket.read_exact(&mut text)?;
    String::from_utf8(text).map_err(|_| std::io::ErrorKind::InvalidData.into())
}

/// Notes that a communicator is gone.
pub fn forget(comm: Comm) {
    let parent = HANDLE.compare_exchange(comm.0, Comm::NULL.0, Ordering::AcqRel, Ordering::Acquire);
    if parent.is_ok() {
        outlive();
    }
}

/// Lets this process live on when the one that has started it ends.
pub fn outlive() {
    if HAS_MET.load(Ordering::Acquire) {
        // SAFETY: changes a property of the process, and reads no memory.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, 0, 0, 0, 0) };
    }
}
