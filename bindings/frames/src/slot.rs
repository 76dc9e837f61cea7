//! A place for an object of Python that a session calls.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;

/// An object, if there is one. Clones share it.
#[derive(Clone, Default)]
pub struct Slot(Arc<Mutex<Option<Py<PyAny>>>>);

impl Slot {
    pub fn set(&self, object: Py<PyAny>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(object);
    }

    /// The object. The lock is not held while Python runs: another thread would wait for it with the interpreter's lock.
    pub fn get(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        let object = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        object.as_ref().map(|object| object.clone_ref(py))
    }

    pub fn take(&self) -> Option<Py<PyAny>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
