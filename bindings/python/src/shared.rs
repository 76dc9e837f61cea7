//! Memory for arguments that are sent without a copy.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use dayfly_client::Buffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::guard::Guarded;

/// Space behind the caller's bytes for the pickle that refers to them, in bytes.
pub const SLACK: usize = 4096;

/// All shared memory of this process, by address.
static KNOWN: Mutex<BTreeMap<usize, (Weak<Buffer>, usize)>> = Mutex::new(BTreeMap::new());

fn known() -> MutexGuard<'static, BTreeMap<usize, (Weak<Buffer>, usize)>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writable memory shared with a worker.
#[pyclass(frozen, module = "dayfly._native")]
pub struct SharedMemory {
    buffer: Guarded<Arc<Buffer>>,
    length: usize,
}

impl SharedMemory {
    pub fn new(buffer: Buffer, length: usize) -> Self {
        let buffer = Arc::new(buffer);
        known().insert(buffer.as_ptr() as usize, (Arc::downgrade(&buffer), length));
        Self {
            buffer: Guarded::new(buffer),
            length,
        }
    }

    /// Returns the shared memory that starts with these bytes, unless a call is using it.
    pub fn holding(bytes: &[u8]) -> Option<(Arc<Buffer>, usize)> {
        // Copying a few bytes is faster than the lookup.
        if bytes.len() < SLACK {
            return None;
        }
        let known = known();
        let (buffer, length) = known.get(&(bytes.as_ptr() as usize))?;
        let buffer = buffer.upgrade()?;
        // One reference is held here, and one by the object. A third belongs to a call in progress.
        (bytes.len() <= *length && Arc::strong_count(&buffer) == 2).then_some((buffer, bytes.len()))
    }
}

#[pymethods]
impl SharedMemory {
    fn __len__(&self) -> usize {
        self.length
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("the interpreter passed no view to fill in"));
        }
        let own = slf.get();
        let start = own.buffer.peek().as_ptr().cast::<c_void>();
        // SAFETY: the interpreter supplies `view`. The memory lives as long as this object, and the view holds a
        // reference to it.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, own.length as isize, 0, flags) };
        if filled != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        Ok(())
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        if self.buffer.is_own() {
            known().remove(&(self.buffer.peek().as_ptr() as usize));
        }
    }
}
