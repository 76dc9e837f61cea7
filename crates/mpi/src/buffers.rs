//! Buffers for buffered sends: of the process, of a session and of a communicator.
//!
//! The library copies the bytes of a buffered send into memory of its own. So a program's buffer is only remembered, and
//! what remains of it is the promise of its detachment: it waits until the messages that used the buffer have left.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dayfly_comm::detached::Turn;

use crate::communicator;
use crate::error::{Error, Result, class};
use crate::face::mpi;
use crate::handle::{Comm, Count, Request, Session};
use crate::pointer::{Buffer, Out};
use crate::request::{self, Active, RequestObject, make};
use crate::session;

/// `MPI_BUFFER_AUTOMATIC`: the library has the memory. Its size means nothing.
const AUTOMATIC: isize = -2;

/// What a buffer is attached to. A message uses the buffer of its communicator; without one, that of the session or of
/// the process, which count as one buffer here: both wait for the messages of either.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Owner {
    Process,
    Session(c_int),
    Comm(c_int),
}

impl Owner {
    /// Whose buffer a message of a communicator uses.
    pub fn of(comm: Comm) -> Self {
        match attached().contains_key(&Self::Comm(comm.0)) {
            true => Self::Comm(comm.0),
            false => Self::Process,
        }
    }

    /// What the messages of this buffer are kept under.
    fn kept(self) -> Self {
        match self {
            Self::Session(_) => Self::Process,
            other => other,
        }
    }
}

/// Start and size of the attached buffers.
static ATTACHED: Mutex<Option<HashMap<Owner, (usize, Count)>>> = Mutex::new(None);

/// The attached buffers, and the lock of them.
struct Attached(MutexGuard<'static, Option<HashMap<Owner, (usize, Count)>>>);

impl std::ops::Deref for Attached {
    type Target = HashMap<Owner, (usize, Count)>;

    fn deref(&self) -> &Self::Target {
        self.0
            .as_ref()
            .unwrap_or_else(|| unreachable!("`attached` has made it"))
    }
}

impl std::ops::DerefMut for Attached {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.0.get_or_insert_default()
    }
}

fn attached() -> Attached {
    let mut guard = ATTACHED.lock().unwrap_or_else(PoisonError::into_inner);
    guard.get_or_insert_default();
    Attached(guard)
}

/// Detaches the buffer of a communicator or a session that goes.
pub fn forget(owner: Owner) {
    attached().remove(&owner);
}

/// Detaches all buffers.
pub fn clear() {
    attached().clear();
}

fn attach(owner: Owner, buffer: Buffer, size: Count) -> Result<()> {
    if size < 0 {
        return Err(Error::new(class::ARG, "the size of the buffer is negative"));
    }
    let size = if buffer.address() as isize == AUTOMATIC {
        0
    } else {
        size
    };
    let mut attached = attached();
    if attached.contains_key(&owner) {
        return Err(Error::new(class::BUFFER, "a buffer is attached already"));
    }
    attached.insert(owner, (buffer.address(), size));
    Ok(())
}

/// Detaches a buffer when its messages have left. Returns its start and its size; zeros if there is none.
fn detach(owner: Owner) -> Result<(usize, Count)> {
    flush(owner)?;
    Ok(attached().remove(&owner).unwrap_or((0, 0)))
}

/// The departure of the messages that a buffer held at one moment.
pub struct Flush(Vec<Arc<RequestObject>>);

impl Flush {
    fn of(owner: Owner) -> Self {
        Self(request::buffered(owner.kept()))
    }

    /// Whether all have left. The engine is `turn`'s.
    pub fn poll(&mut self, turn: &mut Turn<'_>) -> bool {
        self.0.retain(|message| !message.poll(turn));
        self.0.is_empty()
    }
}

/// Waits until the messages of a buffer have left.
fn flush(owner: Owner) -> Result<()> {
    request::finish(Active::Flush(Flush::of(owner)), "MPI_Buffer_flush").map(|_| ())
}

fn start_flush(owner: Owner, request: Out<Request>) -> Result<()> {
    request.check()?.set(make(Active::Flush(Flush::of(owner))));
    Ok(())
}

fn of_comm(comm: Comm) -> Result<Owner> {
    communicator::get(comm).map(|_| Owner::Comm(comm.0))
}

fn of_session(session: Session) -> Result<Owner> {
    session::check(session).map(|()| Owner::Session(session.0))
}

mpi! {
    fn MPI_Buffer_attach / MPI_Buffer_attach_c (buffer: Buffer, size: N) [()] {
        attach(Owner::Process, buffer, size as Count)
    }

    fn MPI_Buffer_detach / MPI_Buffer_detach_c (buffer: Out<usize>, size: Out<N>) [()] {
        let (start, length) = detach(Owner::Process)?;
        buffer.set(start);
        size.set(length as N);
        Ok(())
    }

    fn MPI_Buffer_flush () [()] {
        flush(Owner::Process)
    }

    fn MPI_Buffer_iflush (request: Out<Request>) [()] {
        start_flush(Owner::Process, request)
    }

    fn MPI_Comm_attach_buffer / MPI_Comm_attach_buffer_c (comm: Comm, buffer: Buffer, size: N) [comm] {
        attach(of_comm(comm)?, buffer, size as Count)
    }

    fn MPI_Comm_detach_buffer / MPI_Comm_detach_buffer_c (comm: Comm, buffer: Out<usize>, size: Out<N>) [comm] {
        let (start, length) = detach(of_comm(comm)?)?;
        buffer.set(start);
        size.set(length as N);
        Ok(())
    }

    fn MPI_Comm_flush_buffer (comm: Comm) [comm] {
        flush(of_comm(comm)?)
    }

    fn MPI_Comm_iflush_buffer (comm: Comm, request: Out<Request>) [comm] {
        start_flush(of_comm(comm)?, request)
    }

    fn MPI_Session_attach_buffer / MPI_Session_attach_buffer_c (session: Session, buffer: Buffer, size: N) [session] {
        attach(of_session(session)?, buffer, size as Count)
    }

    fn MPI_Session_detach_buffer / MPI_Session_detach_buffer_c (
        session: Session, buffer: Out<usize>, size: Out<N>
    ) [session] {
        let (start, length) = detach(of_session(session)?)?;
        buffer.set(start);
        size.set(length as N);
        Ok(())
    }

    fn MPI_Session_flush_buffer (session: Session) [session] {
        flush(of_session(session)?)
    }

    fn MPI_Session_iflush_buffer (session: Session, request: Out<Request>) [session] {
        start_flush(of_session(session)?, request)
    }
}
