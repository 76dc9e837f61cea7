//! Functions of MPICH beside the standard that programs ask for accelerators with. Messages lie in the memory of the host.

use std::ffi::c_int;

use crate::face::{mpi, mpi_value};
use crate::pointer::Out;

mpi_value! {
    fn MPIX_Query_cuda_support() -> c_int {
        0
    }

    fn MPIX_Query_hip_support() -> c_int {
        0
    }

    fn MPIX_Query_ze_support() -> c_int {
        0
    }
}

mpi! {
    fn MPIX_GPU_query_support (_kind: c_int, is_supported: Out<c_int>) [()] {
        is_supported.check()?.set(0);
        Ok(())
    }
}
