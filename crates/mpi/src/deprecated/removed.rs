//! Names that the standard has removed. MPICH still has them, and old programs use them.

use std::ffi::c_int;
use std::sync::Arc;

use crate::communicator;
use crate::datatype::{self, construct};
use crate::errhandler::{self, Function};
use crate::face::mpi;
use crate::handle::{Aint, Comm, Count, Datatype, Errhandler};
use crate::pointer::{Buffer, In, Out};

mpi! {
    fn MPI_Address (location: Buffer, address: Out<Aint>) [()] {
        address.check()?.set(location.address() as Aint);
        Ok(())
    }

    fn MPI_Errhandler_create (function: Option<Function>, handle: Out<Errhandler>) [()] {
        errhandler::create_for_comm(function, handle)
    }

    fn MPI_Errhandler_set (comm: Comm, handler: Errhandler) [comm] {
        communicator::get(comm)?.set_handler(errhandler::check(handler)?);
        Ok(())
    }

    fn MPI_Errhandler_get (comm: Comm, handler: Out<Errhandler>) [comm] {
        handler.check()?.set(communicator::get(comm)?.handler());
        Ok(())
    }

    fn MPI_Type_extent (datatype: Datatype, extent: Out<Aint>) [()] {
        extent.check()?.set(datatype::get(datatype)?.extent);
        Ok(())
    }

    fn MPI_Type_lb (datatype: Datatype, lower: Out<Aint>) [()] {
        lower.check()?.set(datatype::get(datatype)?.lower);
        Ok(())
    }

    fn MPI_Type_ub (datatype: Datatype, upper: Out<Aint>) [()] {
        let object: Arc<_> = datatype::get(datatype)?;
        upper.check()?.set(object.lower + object.extent);
        Ok(())
    }

    fn MPI_Type_hvector (count: c_int, length: c_int, stride: Aint, old: Datatype, new: Out<Datatype>) [()] {
        construct::hvector([count, length], stride, old, new)
    }

    fn MPI_Type_hindexed (
        count: c_int, lengths: In<c_int>, displacements: In<Aint>, old: Datatype, new: Out<Datatype>
    ) [()] {
        construct::small_hindexed(count, lengths, displacements, old, new)
    }

    fn MPI_Type_struct (
        count: c_int, lengths: In<c_int>, displacements: In<Aint>, types: In<Datatype>, new: Out<Datatype>
    ) [()] {
        let number = datatype::count_of(Count::from(count))?;
        construct::small_structure(count, lengths, displacements, types.slice(number)?, new)
    }
}
