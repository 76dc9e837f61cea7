//! What C programs see of Fortran: statuses in its forms, and datatypes by their precision and range.

use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::datatype::{self, TypeObject};
use crate::error::{Error, Result, class};
use crate::face::mpi;
use crate::handle::{Datatype, UNDEFINED};
use crate::interface::combiner;
use crate::pointer::Out;
#[cfg(face = "mpich")]
use crate::status::Status;

/// Decimal digits and decimal exponent of the real datatypes, their names, and those of complex numbers of them.
const REALS: [(c_int, c_int, &str, &str); 3] = [
    (6, 37, "MPI_REAL4", "MPI_COMPLEX8"),
    (15, 307, "MPI_REAL8", "MPI_COMPLEX16"),
    (33, 4931, "MPI_REAL16", "MPI_COMPLEX32"),
];

/// Decimal digits of the integers, and their names.
const INTEGERS: [(c_int, &str); 5] = [
    (2, "MPI_INTEGER1"),
    (4, "MPI_INTEGER2"),
    (9, "MPI_INTEGER4"),
    (18, "MPI_INTEGER8"),
    (38, "MPI_INTEGER16"),
];

/// A datatype that was asked for: its combiner and the arguments.
struct Asked {
    combiner: c_int,
    arguments: Vec<c_int>,
    handle: Datatype,
    object: Arc<TypeObject>,
}

/// All of them: the same arguments give the same datatype.
static ALL: Mutex<Vec<Asked>> = Mutex::new(Vec::new());

fn all() -> MutexGuard<'static, Vec<Asked>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The handle of one of these datatypes.
pub fn handle_of(object: &Arc<TypeObject>) -> Option<Datatype> {
    let all = all();
    let found = all.iter().find(|asked| Arc::ptr_eq(&asked.object, object));
    found.map(|asked| asked.handle)
}

/// The datatype for these arguments, which consists of one element of `of`.
fn provide(combiner: c_int, arguments: Vec<c_int>, of: Datatype) -> Result<Datatype> {
    let mut all = all();
    let known = all
        .iter()
        .find(|asked| asked.combiner == combiner && asked.arguments == arguments);
    if let Some(asked) = known {
        return Ok(asked.handle);
    }
    let of = datatype::get(of)?;
    let object = Arc::new(datatype::construct::of_fortran(&of, combiner, arguments.clone()));
    let handle = datatype::insert(object.clone());
    all.push(Asked {
        combiner,
        arguments,
        handle,
        object,
    });
    Ok(handle)
}

/// The first real datatype with this precision and range; `MPI_UNDEFINED` asks for any.
fn real(precision: c_int, range: c_int) -> Result<(c_int, c_int, &'static str, &'static str)> {
    let any = |asked: c_int| if asked == UNDEFINED { 0 } else { asked };
    let found = REALS
        .into_iter()
        .find(|(digits, exponent, ..)| any(precision) <= *digits && any(range) <= *exponent);
    match found {
        Some(found) if precision != UNDEFINED || range != UNDEFINED => Ok(found),
        _ => Err(Error::new(
            class::ARG,
            format!("there is no real datatype with precision {precision} and range {range}"),
        )),
    }
}

/// Conversions of statuses, which the standard has for Fortran alone: all forms have the same words.
#[cfg(face = "mpich")]
macro_rules! statuses {
    ($($name:ident)*) => { mpi! { $(
        fn $name (from: Out<Status>, to: Out<Status>) [()] {
            to.check()?.set(from.get()?);
            Ok(())
        }
    )* } };
}

#[cfg(face = "mpich")]
statuses! {
    MPI_Status_c2f08
    MPI_Status_f082c
    MPI_Status_f2f08
    MPI_Status_f082f
}

mpi! {
    fn MPI_Type_create_f90_real (precision: c_int, range: c_int, new: Out<Datatype>) [()] {
        let (.., of, _) = real(precision, range)?;
        new.check()?.set(provide(combiner::F90_REAL, vec![precision, range], datatype::named(of)?)?);
        Ok(())
    }

    fn MPI_Type_create_f90_complex (precision: c_int, range: c_int, new: Out<Datatype>) [()] {
        let (.., of) = real(precision, range)?;
        new.check()?.set(provide(combiner::F90_COMPLEX, vec![precision, range], datatype::named(of)?)?);
        Ok(())
    }

    fn MPI_Type_create_f90_integer (range: c_int, new: Out<Datatype>) [()] {
        let found = INTEGERS.into_iter().find(|(digits, _)| range <= *digits);
        let (_, of) = found.ok_or_else(|| {
            Error::new(class::ARG, format!("there is no integer datatype with {range} digits"))
        })?;
        new.check()?.set(provide(combiner::F90_INTEGER, vec![range], datatype::named(of)?)?);
        Ok(())
    }

    fn MPI_Type_get_value_index (value: Datatype, index: Datatype, pair: Out<Datatype>) [()] {
        let (of, _) = (datatype::get(value)?, datatype::get(index)?);
        pair.check()?.set(datatype::pair_of(&of, index));
        Ok(())
    }
}
