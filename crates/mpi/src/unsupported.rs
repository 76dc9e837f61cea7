//! Functions that are refused: they exist, so that programs that name them can be loaded, and return
//! `MPI_ERR_UNSUPPORTED_OPERATION`.

use crate::error::unsupported;

/// Functions whose arguments nobody reads.
macro_rules! refused {
    ($($name:ident)*) => {
        $( crate::face::mpi! {
            fn $name () [()] {
                Err(unsupported(stringify!($name)))
            }
        } )*
    };
}

refused! {
    MPI_Close_port
    MPI_Comm_accept
    MPI_Comm_connect
    MPI_Comm_join
    MPI_Comm_spawn
    MPI_Comm_spawn_multiple
    MPI_Lookup_name
    MPI_Open_port
    MPI_Publish_name
    MPI_Unpublish_name
}
