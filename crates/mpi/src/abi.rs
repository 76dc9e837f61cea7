//! What programs ask of the binary interface itself: its version, sizes of types, and what a Fortran binding has told it.

use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result, class};
use crate::face::mpi;
use crate::handle::{Aint, Count, Info, Offset};
use crate::info;
use crate::interface::ABI_VERSION;
use crate::pointer::{Buffer, Out};

/// Greatest size of a logical value of Fortran.
const MAX_LOGICAL: usize = 16;

/// What a Fortran binding, which is a library of its own, has set.
struct Fortran {
    info: Option<Vec<(String, String)>>,
    /// The bytes of `.TRUE.` and `.FALSE.`.
    booleans: Option<[Vec<u8>; 2]>,
}

static FORTRAN: Mutex<Fortran> = Mutex::new(Fortran {
    info: None,
    booleans: None,
});

fn fortran() -> MutexGuard<'static, Fortran> {
    FORTRAN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn set_already() -> Error {
    Error::new(class::ABI, "what is known about Fortran is set already")
}

fn logical_size(size: c_int) -> Result<usize> {
    usize::try_from(size)
        .ok()
        .filter(|size| size.is_power_of_two() && *size <= MAX_LOGICAL)
        .ok_or_else(|| {
            Error::new(
                class::ARG,
                format!("a logical value of Fortran cannot have {size} bytes"),
            )
        })
}

mpi! {
    fn MPI_Abi_get_version(major: Out<c_int>, minor: Out<c_int>) [()] {
        major.set(ABI_VERSION[0]);
        minor.set(ABI_VERSION[1]);
        Ok(())
    }

    fn MPI_Abi_get_info(result: Out<Info>) [()] {
        let sizes = [
            ("mpi_aint_size", size_of::<Aint>()),
            ("mpi_count_size", size_of::<Count>()),
            ("mpi_offset_size", size_of::<Offset>()),
        ];
        let pairs = sizes.map(|(key, size)| (key.to_owned(), size.to_string()));
        result.check()?.set(info::make(pairs.into()));
        Ok(())
    }

    fn MPI_Abi_get_fortran_info(result: Out<Info>) [()] {
        let known = fortran().info.clone();
        result.check()?.set(known.map_or(Info::NULL, info::make));
        Ok(())
    }

    fn MPI_Abi_set_fortran_info(given: Info) [()] {
        let pairs = info::get(given)?.pairs().clone();
        let mut known = fortran();
        match known.info {
            Some(_) => Err(set_already()),
            None => {
                known.info = Some(pairs);
                Ok(())
            }
        }
    }

    fn MPI_Abi_get_fortran_booleans(size: c_int, yes: Out<u8>, no: Out<u8>, is_set: Out<c_int>) [()] {
        let size = logical_size(size)?;
        let known = fortran();
        let found = known.booleans.as_ref().filter(|[of, _]| of.len() == size);
        is_set.check()?.set(found.is_some().into());
        if let Some([of_yes, of_no]) = found {
            yes.slice(size)?.copy_from_slice(of_yes);
            no.slice(size)?.copy_from_slice(of_no);
        }
        Ok(())
    }

    fn MPI_Abi_set_fortran_booleans(size: c_int, yes: Buffer, no: Buffer) [()] {
        let size = logical_size(size)?;
        if yes.is_null() || no.is_null() {
            return Err(Error::new(class::ARG, "a pointer to a logical value is NULL"));
        }
        let mut known = fortran();
        match known.booleans {
            Some(_) => Err(set_already()),
            None => {
                known.booleans = Some([yes.bytes(size).to_vec(), no.bytes(size).to_vec()]);
                Ok(())
            }
        }
    }
}
