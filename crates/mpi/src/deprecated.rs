//! Names that the standard has replaced. Old programs use them.

#[cfg(face = "mpich")]
mod removed;

use std::ffi::c_int;

use crate::attribute::{self, CopyFunction, DeleteFunction};
use crate::face::mpi;
use crate::handle::{Comm, Keyval};
use crate::pointer::{Buffer, Out};

mpi! {
    fn MPI_Attr_put (comm: Comm, key: Keyval, value: Buffer) [comm] {
        attribute::set_of_comm(comm, key, value)
    }

    fn MPI_Attr_get (comm: Comm, key: Keyval, value: Out<usize>, flag: Out<c_int>) [comm] {
        attribute::get_of_comm(comm, key, value, flag)
    }

    fn MPI_Attr_delete (comm: Comm, key: Keyval) [comm] {
        attribute::delete_of_comm(comm, key)
    }

    fn MPI_Keyval_create (
        copy: Option<CopyFunction>, delete: Option<DeleteFunction>, key: Out<Keyval>, state: Buffer
    ) [()] {
        attribute::create(copy, delete, key, state)
    }

    fn MPI_Keyval_free (key: Out<Keyval>) [()] {
        attribute::free(key)
    }
}
