//! Error handlers: what happens when a function fails.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::communicator::{self, COMMUNICATORS};
use crate::error::{Error, Result, class, text_of};
use crate::face::mpi;
use crate::handle::{Comm, Errhandler, File, Session, Table, Win};
use crate::interface::{AtomicNumber, Number};
use crate::pointer::Out;
use crate::state;

/// A program's handler. C declares it with further arguments, which callers never pass.
pub type Function = extern "C" fn(*mut Number, *mut c_int);
/// A program's handler for files, whose handles are pointers always.
pub type FileFunction = extern "C" fn(*mut usize, *mut c_int);

/// A program's error handler.
pub enum Handler {
    Comm(Function),
    Win(Function),
    File(FileFunction),
    Session(Function),
}

pub static HANDLERS: Table<Handler> = Table::new(5);
/// Handler of files that are not open, as MPI has it.
pub static FILE_HANDLER: AtomicNumber = AtomicNumber::new(Errhandler::RETURN.0);

/// The object whose error handler is called.
#[derive(Debug, Clone, Copy)]
pub enum Place {
    Comm(Comm),
    Win(Win),
    File(File),
    Session(Session),
}

impl From<()> for Place {
    fn from((): ()) -> Self {
        Self::Comm(Comm::SELF)
    }
}

impl From<Comm> for Place {
    fn from(comm: Comm) -> Self {
        Self::Comm(comm)
    }
}

impl From<Win> for Place {
    fn from(win: Win) -> Self {
        Self::Win(win)
    }
}

impl From<Session> for Place {
    fn from(session: Session) -> Self {
        Self::Session(session)
    }
}

impl From<File> for Place {
    fn from(file: File) -> Self {
        Self::File(file)
    }
}

/// Writes a line to the standard error output.
pub fn print(line: &str) {
    eprintln!("{line}");
}

impl Place {
    fn handler(&self) -> Errhandler {
        let [of_world, of_self] = state::handlers();
        match self {
            Self::Comm(Comm::WORLD) => of_world,
            Self::Comm(comm) => COMMUNICATORS.get(comm.0).map_or(of_self, |comm| comm.handler()),
            Self::Win(window) => match crate::window::get(*window) {
                Ok(window) => Errhandler(window.handler.load(Ordering::Acquire)),
                Err(_) => of_self,
            },
            Self::Session(session) => crate::session::handler(*session).unwrap_or(Errhandler::FATAL),
            Self::File(file) => match crate::file::get(*file) {
                Ok(file) => Errhandler(file.handler.load(Ordering::Acquire)),
                Err(_) => Errhandler(FILE_HANDLER.load(Ordering::Acquire)),
            },
        }
    }
}

/// Passes an error to the handler of its object. Returns the code that the function returns, if the handler returns.
pub fn raise(name: &str, place: Place, error: Error) -> c_int {
    let place = error.place.unwrap_or(place);
    let mut code = error.to_code();
    match place.handler() {
        Errhandler::RETURN => {}
        handler @ (Errhandler::FATAL | Errhandler::ABORT | Errhandler::NULL) => {
            let rank = state::own_rank().map_or_else(|| "a process".into(), |rank| format!("rank {rank}"));
            let text = text_of(code).unwrap_or_default();
            print(&format!("{name} failed on {rank}: {text}"));
            let _ = handler;
            state::abort(class_status(code))
        }
        handler => {
            if let Some(handler) = HANDLERS.get(handler.0) {
                match (&*handler, place) {
                    (Handler::Comm(function), Place::Comm(mut comm)) => function(&raw mut comm.0, &raw mut code),
                    (Handler::Win(function), Place::Win(mut win)) => function(&raw mut win.0, &raw mut code),
                    (Handler::Session(function), Place::Session(mut session)) => {
                        function(&raw mut session.0, &raw mut code)
                    }
                    (Handler::File(function), Place::File(mut file)) => function(&raw mut file.0, &raw mut code),
                    _ => {}
                }
            }
        }
    }
    code
}

/// The exit status of a process that an error ends.
fn class_status(code: c_int) -> c_int {
    match code & 0xff {
        0 => 1,
        class => class,
    }
}

/// Checks that a handle names an error handler.
pub fn check(handler: Errhandler) -> Result<Errhandler> {
    match handler {
        Errhandler::FATAL | Errhandler::RETURN | Errhandler::ABORT => Ok(handler),
        other if HANDLERS.get(other.0).is_some() => Ok(other),
        _ => Err(Error::new(class::ERRHANDLER, "the handle is no error handler")),
    }
}

/// Makes a handler of sessions.
pub fn create_for_session(function: Option<Function>, handle: Out<Errhandler>) -> Result<()> {
    let function = function.ok_or_else(|| Error::new(class::ARG, "the handler's function is NULL"))?;
    create(Handler::Session(function), handle)
}

/// Makes a handler of communicators.
pub fn create_for_comm(function: Option<Function>, handle: Out<Errhandler>) -> Result<()> {
    let function = function.ok_or_else(|| Error::new(class::ARG, "the handler's function is NULL"))?;
    create(Handler::Comm(function), handle)
}

fn create(handler: Handler, handle: Out<Errhandler>) -> Result<()> {
    handle.check()?.set(Errhandler(HANDLERS.insert(Arc::new(handler))));
    Ok(())
}

mpi! {
    fn MPI_Comm_create_errhandler(function: Option<Function>, handle: Out<Errhandler>) [()] {
        create_for_comm(function, handle)
    }

    fn MPI_Win_create_errhandler(function: Option<Function>, handle: Out<Errhandler>) [()] {
        let function = function.ok_or_else(|| Error::new(class::ARG, "the handler's function is NULL"))?;
        create(Handler::Win(function), handle)
    }

    fn MPI_File_create_errhandler(function: Option<FileFunction>, handle: Out<Errhandler>) [()] {
        let function = function.ok_or_else(|| Error::new(class::ARG, "the handler's function is NULL"))?;
        create(Handler::File(function), handle)
    }

    fn MPI_Errhandler_free(handle: Out<Errhandler>) [()] {
        // An object that has the handler keeps using it: handlers are small, and stay.
        check(handle.get()?)?;
        handle.set(Errhandler::NULL);
        Ok(())
    }

    fn MPI_Comm_set_errhandler(comm: Comm, handler: Errhandler) [comm] {
        communicator::get(comm)?.set_handler(check(handler)?);
        Ok(())
    }

    fn MPI_Comm_get_errhandler(comm: Comm, handler: Out<Errhandler>) [comm] {
        handler.check()?.set(communicator::get(comm)?.handler());
        Ok(())
    }

    fn MPI_Comm_call_errhandler(comm: Comm, code: c_int) [comm] {
        communicator::get(comm)?;
        raise("MPI_Comm_call_errhandler", comm.into(), Error::new(code, ""));
        Ok(())
    }
}

/// For signatures that the face does not use.
pub type Opaque = *mut c_void;
