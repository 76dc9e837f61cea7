//! The face: what C programs see. `mpi!` makes from each entry of the one table of functions, which the modules hold by
//! subject, the symbol `MPI_...` and its twin `PMPI_...`, and the form with large counts `MPI_..._c` where there is one.
//!
//! Types of arguments are those of [`crate::handle`] and [`crate::pointer`], never plain numbers for handles, ranks of
//! status or pointers with a meaning. A second face, of the standard's own binary interface, translates by those types.
//!
//! Nothing unwinds into the caller, and every error goes to the error handler of the object that the entry names.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::errhandler::{self, Place};
use crate::error::{Error, Result, class};

/// Runs the body of a function; errors go to the error handler of `place`.
pub fn enter(name: &'static str, place: impl Into<Place>, body: impl FnOnce() -> Result<()>) -> c_int {
    // A body leaves no state of this library in between when it panics: locks are released, and their data is valid.
    let checked = || crate::state::check_process(name).and_then(|()| body());
    let outcome = catch_unwind(AssertUnwindSafe(checked)).unwrap_or_else(|_| {
        let text = "the library failed; the message above says where. Report this";
        Err(Error::new(class::INTERN, text))
    });
    match outcome {
        Ok(()) => 0,
        Err(error) => errhandler::raise(name, place.into(), error),
    }
}

/// Entries of the table: `fn MPI_Name / MPI_Name_c (arguments) [object of the error handler] { body }`. In the arguments
/// and the body `N` is the type of counts and `D` that of displacements.
macro_rules! mpi {
    ($( $(#[$meta:meta])* fn $name:ident $(/ $large:ident)? ( $($arguments:tt)* ) $place:tt $body:tt )*) => {
        $( $crate::face::mpi_entry! { $name $($large)? ; ( $($arguments)* ) $place $body } )*
    };
}

macro_rules! mpi_entry {
    ($name:ident ; $arguments:tt $place:tt $body:tt) => {
        $crate::face::mpi_function! { $name std::ffi::c_int, std::ffi::c_int; $arguments $place $body }
    };
    ($name:ident $large:ident ; $arguments:tt $place:tt $body:tt) => {
        $crate::face::mpi_function! { $name std::ffi::c_int, std::ffi::c_int; $arguments $place $body }
        $crate::face::mpi_function! { $large $crate::handle::Count, $crate::handle::Aint; $arguments $place $body }
    };
}

macro_rules! mpi_function {
    ($name:ident $count:ty, $displacement:ty ; ( $($argument:ident : $type:ty),* $(,)? ) [$place:expr] $body:tt) => {
        #[allow(clippy::too_many_arguments, dead_code)]
        const _: () = {
            type N = $count;
            type D = $displacement;

            fn body($($argument: $type),*) -> $crate::error::Result<()> $body

            #[unsafe(export_name = stringify!($name))]
            extern "C" fn function($($argument: $type),*) -> std::ffi::c_int {
                $crate::face::enter(stringify!($name), $place, move || body($($argument),*))
            }

            #[unsafe(export_name = concat!("P", stringify!($name)))]
            extern "C" fn twin($($argument: $type),*) -> std::ffi::c_int {
                $crate::face::enter(stringify!($name), $place, move || body($($argument),*))
            }
        };
    };
}

/// Functions that return a value instead of an error code.
macro_rules! mpi_value {
    ($( $(#[$meta:meta])* fn $name:ident ( $($argument:ident : $type:ty),* $(,)? ) -> $result:ty $body:block )*) => { $(
        #[allow(clippy::too_many_arguments)]
        const _: () = {
            fn body($($argument: $type),*) -> $result $body

            #[unsafe(export_name = stringify!($name))]
            extern "C" fn function($($argument: $type),*) -> $result {
                body($($argument),*)
            }

            #[unsafe(export_name = concat!("P", stringify!($name)))]
            extern "C" fn twin($($argument: $type),*) -> $result {
                body($($argument),*)
            }
        };
    )* };
}

pub(crate) use {mpi, mpi_entry, mpi_function, mpi_value};
