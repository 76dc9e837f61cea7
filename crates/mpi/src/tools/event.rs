//! Events: there are none, and no sources of them. So every index, name and handle of one is invalid.

use std::ffi::c_int;

use super::{place, tool};
use crate::error::class;
use crate::handle::Count;
use crate::pointer::{Out, Text};

/// Functions whose first argument cannot be valid. Nothing reads the others.
macro_rules! invalid {
    ($($name:ident $argument:ty, $code:ident)*) => { tool! { $(
        fn $name(_of: $argument) {
            Err(class::$code)
        }
    )* } };
}

invalid! {
    MPI_T_event_get_info c_int, T_INVALID_INDEX
    MPI_T_event_handle_alloc c_int, T_INVALID_INDEX
    MPI_T_source_get_info c_int, T_INVALID_INDEX
    MPI_T_event_callback_get_info usize, T_INVALID_HANDLE
    MPI_T_event_callback_set_info usize, T_INVALID_HANDLE
    MPI_T_event_copy usize, T_INVALID_HANDLE
    MPI_T_event_get_source usize, T_INVALID_HANDLE
    MPI_T_event_get_timestamp usize, T_INVALID_HANDLE
    MPI_T_event_handle_free usize, T_INVALID_HANDLE
    MPI_T_event_handle_get_info usize, T_INVALID_HANDLE
    MPI_T_event_handle_set_info usize, T_INVALID_HANDLE
    MPI_T_event_read usize, T_INVALID_HANDLE
    MPI_T_event_register_callback usize, T_INVALID_HANDLE
    MPI_T_event_set_dropped_handler usize, T_INVALID_HANDLE
}

tool! {
    fn MPI_T_event_get_num(count: Out<c_int>) {
        place(count)?.set(0);
        Ok(())
    }

    fn MPI_T_event_get_index(name: Text, _index: Out<c_int>) {
        Err(if name.optional().is_some() { class::T_INVALID_NAME } else { class::T_INVALID })
    }

    fn MPI_T_source_get_num(count: Out<c_int>) {
        place(count)?.set(0);
        Ok(())
    }

    fn MPI_T_source_get_timestamp(_source: c_int, _timestamp: Out<Count>) {
        Err(class::T_INVALID_INDEX)
    }
}
