//! Memory that arrived, as Python objects may look at it.

use std::ffi::{c_int, c_void};

use dayfly_client::Received;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::guard::Guarded;

/// Where the bytes are.
pub enum Memory {
    /// In memory shared with the other side, or received straight into place. Given back when dropped.
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

/// A payload that exports the buffer protocol. Views hold a reference to it, so the memory is given back exactly when the
/// last view is gone.
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

    /// Writable: the memory is this side's alone until it is given back, and functions may work in place.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no place for a view"));
        }
        let bytes = slf.get().bytes();
        let (start, length) = (bytes.as_ptr().cast_mut().cast::<c_void>(), bytes.len() as isize);
        // SAFETY: `view` is the interpreter's; the memory lives as long as the block, of which the view takes a reference.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, length, 0, flags) };
        if filled != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        Ok(())
    }
}
