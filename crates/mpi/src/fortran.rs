//! What C programs see of Fortran: statuses in its forms, and datatypes by their precision and range.

use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::datatype::{self, TypeObject};
use crate::error::{Error, Result, class};
use crate::face::mpi;
use crate::handle::{Datatype, UNDEFINED};
use crate::pointer::Out;
use crate::status::Status;
use crate::topology::Marker;

/// Combiners of these datatypes.
const REAL: c_int = 15;
const COMPLEX: c_int = 16;
const INTEGER: c_int = 17;

/// Decimal digits and decimal exponent of the real datatypes, their handles, and those of complex numbers of them.
const REALS: [(c_int, c_int, u32, u32); 3] = [
    (6, 37, 0x4c00_0427, 0x4c00_0828),
    (15, 307, 0x4c00_0829, 0x4c00_102a),
    (33, 4931, 0x4c00_102b, 0x4c00_202c),
];

/// Decimal digits of the integers, and their handles.
const INTEGERS: [(c_int, u32); 5] = [
    (2, 0x4c00_012d),
    (4, 0x4c00_022f),
    (9, 0x4c00_0430),
    (18, 0x4c00_0831),
    (38, 0x4c00_1032),
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
fn provide(combiner: c_int, arguments: Vec<c_int>, of: u32) -> Result<Datatype> {
    let mut all = all();
    let known = all
        .iter()
        .find(|asked| asked.combiner == combiner && asked.arguments == arguments);
    if let Some(asked) = known {
        return Ok(asked.handle);
    }
    let of = datatype::get(Datatype(of as c_int))?;
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
fn real(precision: c_int, range: c_int) -> Result<(c_int, c_int, u32, u32)> {
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

/// `MPI_F_STATUS_IGNORE` and the like: pointers that programs compare with.
macro_rules! ignored {
    ($($name:literal $marker:ident $place:ident)*) => { $(
        static $place: c_int = 0;
        #[unsafe(export_name = $name)]
        pub static $marker: Marker = Marker::to(&$place);
    )* };
}

ignored! {
    "MPI_F_STATUS_IGNORE" STATUS_MARKER STATUS
    "MPI_F_STATUSES_IGNORE" STATUSES_MARKER STATUSES
    "MPI_F08_STATUS_IGNORE" STATUS_08_MARKER STATUS_08
    "MPI_F08_STATUSES_IGNORE" STATUSES_08_MARKER STATUSES_08
}

/// Conversions of statuses: all forms have the same words.
macro_rules! statuses {
    ($($name:ident)*) => { mpi! { $(
        fn $name (from: Out<Status>, to: Out<Status>) [()] {
            to.check()?.set(from.get()?);
            Ok(())
        }
    )* } };
}

statuses! {
    MPI_Status_c2f08
    MPI_Status_f082c
    MPI_Status_f2f08
    MPI_Status_f082f
}

mpi! {
    fn MPI_Type_create_f90_real (precision: c_int, range: c_int, new: Out<Datatype>) [()] {
        let (.., of, _) = real(precision, range)?;
        new.check()?.set(provide(REAL, vec![precision, range], of)?);
        Ok(())
    }

    fn MPI_Type_create_f90_complex (precision: c_int, range: c_int, new: Out<Datatype>) [()] {
        let (.., of) = real(precision, range)?;
        new.check()?.set(provide(COMPLEX, vec![precision, range], of)?);
        Ok(())
    }

    fn MPI_Type_create_f90_integer (range: c_int, new: Out<Datatype>) [()] {
        let found = INTEGERS.into_iter().find(|(digits, _)| range <= *digits);
        let (_, of) = found.ok_or_else(|| {
            Error::new(class::ARG, format!("there is no integer datatype with {range} digits"))
        })?;
        new.check()?.set(provide(INTEGER, vec![range], of)?);
        Ok(())
    }

    fn MPI_Type_get_value_index (value: Datatype, index: Datatype, pair: Out<Datatype>) [()] {
        let (of, _) = (datatype::get(value)?, datatype::get(index)?);
        pair.check()?.set(datatype::pair_of(&of, index));
        Ok(())
    }
}
