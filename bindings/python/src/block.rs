//! Received memory, exported to Python through the buffer protocol.

use std::ffi::{c_int, c_void};

use dayfly_client::Received;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::guard::Guarded;

/// Storage of a block.
pub enum Memory {
    /// Memory shared with the peer, or received in place. Dropping it returns the memory.
    Landed(Received),
    /// Copied out of a slot.
    Copied(Vec<u8>),
}

impl Memory {
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Landed(received) => received.as_slice(),
            Self::Copied(bytes) => bytes,
        }
    }
}

/// A payload that exports the buffer protocol. Each view holds a reference to it, so the memory is returned when the
/// last view is dropped.
#[pyclass(frozen, module = "dayfly._native")]
pub struct Block {
    memory: Guarded<Memory>,
}

impl Block {
    pub fn new(memory: Memory) -> Self {
        Self {
            memory: Guarded::new(memory),
        }
    }

    pub fn bytes(&self) -> &[u8] {
        self.memory.peek().as_slice()
    }
}

#[pymethods]
impl Block {
    fn __len__(&self) -> usize {
        self.bytes().len()
    }

    /// The memory is writable: this side owns it until it is returned, and functions may modify it in place.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("the interpreter passed no view to fill in"));
        }
        let bytes = slf.get().bytes();
        let (start, length) = (bytes.as_ptr().cast_mut().cast::<c_void>(), bytes.len() as isize);
        // SAFETY: the interpreter supplies `view`. The memory lives as long as the block, and the view holds a
        // reference to it.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, length, 0, flags) };
        if filled != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        Ok(())
    }
}
