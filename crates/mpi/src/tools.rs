//! The interface for tools, `MPI_T_...`: settings and numbers of the library by name.
//!
//! Its functions return codes and call no error handler. They work from `MPI_T_init_thread` on, also outside of
//! `MPI_Init` and `MPI_Finalize`: then what belongs to a group is not accessible.

mod category;
mod control;
mod event;
mod performance;

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use dayfly_comm::detached::Turn;

use crate::error::class;
use crate::face::mpi_value;
use crate::handle::Datatype;
use crate::interface::{Number, thread};
use crate::pointer::{Out, TextOut};
use crate::state;

/// Result of the body of a function: its error is the code to return.
type Result<T> = std::result::Result<T, c_int>;

/// `MPI_UNSIGNED_LONG` and `MPI_LONG`, the datatypes of all variables.
const UNSIGNED_LONG: Datatype = in_face(0x4c00_0808, 0x20e);
const LONG: Datatype = in_face(0x4c00_0807, 0x20a);

const fn in_face(mpich: u32, standard: u32) -> Datatype {
    Datatype(if cfg!(face = "mpich") { mpich } else { standard } as Number)
}

/// How often the interface was initialised and not finalized.
static USERS: Mutex<usize> = Mutex::new(0);

fn users() -> std::sync::MutexGuard<'static, usize> {
    USERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the body of a function and returns its code.
fn enter(body: impl FnOnce() -> Result<()>) -> c_int {
    if *users() == 0 {
        return class::T_NOT_INITIALIZED;
    }
    // Locks are released, and their data is valid at any time.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code,
        Err(_) => class::T_INVALID,
    }
}

/// Functions that return their code without an error handler, and only between initialisation and the end.
macro_rules! tool {
    ($( fn $name:ident ( $($argument:ident : $type:ty),* $(,)? ) $body:block )*) => {
        $crate::face::mpi_value! { $(
            fn $name ( $($argument: $type),* ) -> std::ffi::c_int {
                $crate::tools::enter(move || $body)
            }
        )* }
    };
}

use tool;

/// Writes a text, cut to the room that the caller states, and the room that it needs.
fn write_text(text: &str, name: TextOut, room: Out<c_int>) {
    let Ok(given) = room.get() else {
        return;
    };
    // Without room for the text, the caller asks for its length.
    let _ = match given > 0 {
        true => name.set(text, given as usize).map(|_| ()),
        false => Ok(()),
    };
    room.set(text.len() as c_int + 1);
}

/// An entry of a list by its index.
fn entry<T>(all: &[T], index: c_int) -> Result<&T> {
    let found = usize::try_from(index).ok().and_then(|index| all.get(index));
    found.ok_or(class::T_INVALID_INDEX)
}

/// The place for a result.
fn place<T: Copy>(result: Out<T>) -> Result<Out<T>> {
    result.check().map_err(|_| class::T_INVALID)
}

/// Calls a function with the engine of this process.
fn with_engine<T>(act: impl FnOnce(&mut Turn<'_>) -> Result<T>) -> Result<T> {
    let instance = state::current().ok_or(class::T_NOT_ACCESSIBLE)?;
    act(&mut instance.control.turn())
}

mpi_value! {
    fn MPI_T_init_thread(required: c_int, provided: Out<c_int>) -> c_int {
        *users() += 1;
        provided.set(required.clamp(0, thread::MULTIPLE));
        0
    }

    fn MPI_T_finalize() -> c_int {
        let mut users = users();
        match *users {
            0 => return class::T_NOT_INITIALIZED,
            1 => {
                control::clear();
                performance::clear();
            }
            _ => {}
        }
        *users -= 1;
        0
    }
}
