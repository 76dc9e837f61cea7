//! Sessions: the same world without `MPI_COMM_WORLD`. A session has the groups of the world and of this process.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use crate::buffers::{self, Owner};
use crate::comm_create;
use crate::errhandler;
use crate::error::{Error, Result, class};
use crate::face::mpi;
use crate::group;
use crate::handle::{Comm, Errhandler, Group, Info, Session, Table};
use crate::info;
use crate::interface::AtomicNumber;
use crate::pointer::{Out, Text, TextOut};
use crate::state;

struct SessionObject {
    handler: AtomicNumber,
    info: Mutex<Vec<(String, String)>>,
}

static SESSIONS: Table<SessionObject> = Table::new(14);

/// Drops all sessions.
pub fn clear() {
    SESSIONS.clear();
}

/// Names of the sets of processes.
const SETS: [&str; 2] = ["mpi://WORLD", "mpi://SELF"];

/// Index of the set of all processes.
pub const WORLD: usize = 0;

/// Index of the set of processes with this name.
pub fn set_named(set: &str) -> Option<usize> {
    SETS.iter().position(|name| name.eq_ignore_ascii_case(set))
}

fn get(session: Session) -> Result<Arc<SessionObject>> {
    SESSIONS
        .get(session.0)
        .ok_or_else(|| Error::new(class::SESSION, "the handle is no session"))
}

/// Checks that a handle names a session.
pub fn check(session: Session) -> Result<()> {
    get(session).map(|_| ())
}

/// The error handler of a session, if that exists.
pub fn handler(session: Session) -> Option<Errhandler> {
    get(session)
        .ok()
        .map(|session| Errhandler(session.handler.load(Ordering::Acquire)))
}

/// The ranks of a set of processes.
fn members(set: &str) -> Result<group::Members> {
    let instance = state::instance()?;
    let communicators = &instance.communicators;
    let found = match set_named(set) {
        Some(WORLD) => communicators.world.members()?,
        Some(_) => communicators.alone.members()?,
        None => return Err(Error::new(class::ARG, format!("there is no set of processes {set}"))),
    };
    Ok(found.into())
}

mpi! {
    fn MPI_Session_init (given: Info, handler: Errhandler, session: Out<Session>) [()] {
        let pairs = info::optional(given)?.map(|info| info.pairs().clone()).unwrap_or_default();
        let handler = errhandler::check(handler)?;
        state::begin_session()?;
        session.check()?.set(Session(SESSIONS.insert(Arc::new(SessionObject {
            handler: AtomicNumber::new(handler.0),
            info: Mutex::new(pairs),
        }))));
        Ok(())
    }

    fn MPI_Session_finalize (session: Out<Session>) [()] {
        let handle = session.get()?;
        get(handle)?;
        SESSIONS.remove(handle.0);
        buffers::forget(Owner::Session(handle.0));
        session.set(Session::NULL);
        state::end_session()
    }

    fn MPI_Session_get_info (session: Session, result: Out<Info>) [()] {
        let pairs = get(session)?.info.lock().unwrap_or_else(PoisonError::into_inner).clone();
        result.check()?.set(info::make(pairs));
        Ok(())
    }

    fn MPI_Session_get_num_psets (session: Session, given: Info, count: Out<c_int>) [()] {
        get(session)?;
        info::optional(given)?;
        count.check()?.set(SETS.len() as c_int);
        Ok(())
    }

    fn MPI_Session_get_nth_pset (session: Session, given: Info, at: c_int, room: Out<c_int>, name: TextOut) [()] {
        get(session)?;
        info::optional(given)?;
        let set = usize::try_from(at).ok().and_then(|at| SETS.get(at));
        let set = set.ok_or_else(|| Error::new(class::ARG, format!("there is no set of processes {at}")))?;
        let given = room.get()?;
        if given > 0 {
            name.set(set, given as usize)?;
        }
        room.set(set.len() as c_int + 1);
        Ok(())
    }

    fn MPI_Session_get_pset_info (session: Session, name: Text, result: Out<Info>) [()] {
        get(session)?;
        let size = members(&name.get()?)?.len();
        result.check()?.set(info::make(vec![("mpi_size".into(), size.to_string())]));
        Ok(())
    }

    fn MPI_Group_from_session_pset (session: Session, name: Text, result: Out<Group>) [()] {
        get(session)?;
        result.check()?.set(group::make(members(&name.get()?)?));
        Ok(())
    }

    fn MPI_Comm_create_from_group (
        given: Group, tag: Text, pairs: Info, handler: Errhandler, new: Out<Comm>
    ) [()] {
        let pairs = info::optional(pairs)?.map(|info| info.pairs().clone()).unwrap_or_default();
        let made = comm_create::from_group(&group::get(given)?, &tag.get()?, errhandler::check(handler)?)?;
        *crate::communicator::get(made)?.info() = pairs;
        new.check()?.set(made);
        Ok(())
    }

    fn MPI_Session_create_errhandler (function: Option<errhandler::Function>, handler: Out<Errhandler>) [()] {
        errhandler::create_for_session(function, handler)
    }

    fn MPI_Session_call_errhandler (session: Session, code: c_int) [()] {
        get(session)?;
        errhandler::raise("MPI_Session_call_errhandler", session.into(), Error::new(code, ""));
        Ok(())
    }

    fn MPI_Session_set_errhandler (session: Session, handler: Errhandler) [()] {
        let handler = errhandler::check(handler)?;
        get(session)?.handler.store(handler.0, Ordering::Release);
        Ok(())
    }

    fn MPI_Session_get_errhandler (session: Session, handler: Out<Errhandler>) [()] {
        let found = get(session)?.handler.load(Ordering::Acquire);
        handler.check()?.set(Errhandler(found));
        Ok(())
    }
}
