//! Handles as integers, for Fortran and for other languages. They have no more than 32 bits, whatever their type.

use std::ffi::c_int;

use crate::face::{mpi, mpi_value};
use crate::handle::{Comm, Datatype, Errhandler, File, Group, Info, Message, Op, Request, Session, Win};
use crate::pointer::Out;
use crate::status::Status;

macro_rules! integers {
    ($($type:ident $to:ident $from:ident $c2f:ident $f2c:ident)*) => { mpi_value! { $(
        fn $to(handle: $type) -> c_int {
            handle.0 as c_int
        }

        fn $from(number: c_int) -> $type {
            $type(number as _)
        }

        fn $c2f(handle: $type) -> c_int {
            handle.0 as c_int
        }

        fn $f2c(number: c_int) -> $type {
            $type(number as _)
        }
    )* } };
}

integers! {
    Comm MPI_Comm_toint MPI_Comm_fromint MPI_Comm_c2f MPI_Comm_f2c
    Group MPI_Group_toint MPI_Group_fromint MPI_Group_c2f MPI_Group_f2c
    Datatype MPI_Type_toint MPI_Type_fromint MPI_Type_c2f MPI_Type_f2c
    Op MPI_Op_toint MPI_Op_fromint MPI_Op_c2f MPI_Op_f2c
    Info MPI_Info_toint MPI_Info_fromint MPI_Info_c2f MPI_Info_f2c
    Win MPI_Win_toint MPI_Win_fromint MPI_Win_c2f MPI_Win_f2c
    Request MPI_Request_toint MPI_Request_fromint MPI_Request_c2f MPI_Request_f2c
    Errhandler MPI_Errhandler_toint MPI_Errhandler_fromint MPI_Errhandler_c2f MPI_Errhandler_f2c
    Message MPI_Message_toint MPI_Message_fromint MPI_Message_c2f MPI_Message_f2c
    Session MPI_Session_toint MPI_Session_fromint MPI_Session_c2f MPI_Session_f2c
}

mpi_value! {
    fn MPI_File_toint(handle: File) -> c_int {
        handle.0 as c_int
    }

    fn MPI_File_fromint(number: c_int) -> File {
        File(number as u32 as usize)
    }

    fn MPI_File_c2f(handle: File) -> c_int {
        handle.0 as c_int
    }

    fn MPI_File_f2c(number: c_int) -> File {
        File(number as u32 as usize)
    }
}

mpi! {
    fn MPI_Status_c2f (from: Out<Status>, to: Out<Status>) [()] {
        to.check()?.set(from.get()?);
        Ok(())
    }

    fn MPI_Status_f2c (from: Out<Status>, to: Out<Status>) [()] {
        to.check()?.set(from.get()?);
        Ok(())
    }
}
