//! Values that belong to the process that made them. A fork copies them, and the child must neither use nor drop the
//! copy: dropping the copy of a lease would release the parent's lease.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use dayfly_client::Code;
use pyo3::prelude::*;

use crate::errors::raise;

/// Number of forks between the first process and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

extern "C" fn forked() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Registers a handler that counts every later fork in the child.
pub fn watch_forks() {
    static ONCE: Once = Once::new();
    // SAFETY: the handler only increments an atomic.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(forked));
    });
}

/// A value that only the process that made it uses and drops.
pub struct Guarded<T> {
    value: ManuallyDrop<T>,
    generation: u32,
}

impl<T> Guarded<T> {
    pub fn new(value: T) -> Self {
        Self {
            value: ManuallyDrop::new(value),
            generation: GENERATION.load(Ordering::Relaxed),
        }
    }

    /// Returns whether this process made the value.
    pub fn is_own(&self) -> bool {
        self.generation == GENERATION.load(Ordering::Relaxed)
    }

    /// Returns the value. Errors in a forked child.
    #[inline]
    pub fn get(&self, py: Python<'_>) -> PyResult<&T> {
        if self.is_own() {
            return Ok(&self.value);
        }
        Err(raise(
            py,
            Code::Forked,
            "this client was inherited through a fork and belongs to the parent process; call dayfly.connect() in the child",
        ))
    }

    /// Returns the value also in a forked child. Use it only to read plain data.
    pub fn peek(&self) -> &T {
        &self.value
    }
}

impl<T> Deref for Guarded<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        if self.is_own() {
            // SAFETY: dropped once, here, and never used again.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}
