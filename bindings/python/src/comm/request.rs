//! Operations in the background.

use std::sync::{Arc, Mutex, PoisonError};

use dayfly_comm::Scope;
use dayfly_protocol::error::{Code, Failure};
use pyo3::prelude::*;

use super::collective::Job;
use super::{Communicator, Found, failed, found};
use crate::guard::Guarded;
use crate::memory::Memory;

/// Error for a request whose work is of another kind, which cannot happen.
pub fn unreachable_work() -> Result<dayfly_comm::Request, Failure> {
    Err(Failure::new(
        Code::Internal,
        "a request was made for other work than it is for; report this",
    ))
}

/// Memory of an operation in the background.
pub enum Work {
    Out(Memory),
    In(Memory),
    Collective(Box<Job>),
}

/// An operation in progress, with its memory.
struct UnderWay {
    // Drop order: the scope ends before its memory, and both before the communicator.
    scope: Scope<'static>,
    request: dayfly_comm::Request,
    _work: Kept,
    _comm: Arc<dayfly_comm::Communicator>,
}

/// Work at a fixed address, freed when this is dropped. A scope may borrow it until then.
struct Kept(*mut Work);

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw`, freed once, and the scope that borrowed it has ended.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

// SAFETY: it is behind a mutex, and any thread may use a communicator.
unsafe impl Send for UnderWay {}

/// An operation in the background.
#[pyclass(frozen, module = "dayfly._native")]
pub struct Request {
    under_way: Guarded<Mutex<Option<UnderWay>>>,
}

impl Request {
    pub fn start(
        of: &Bound<'_, Communicator>,
        work: Work,
        start: impl for<'env> FnOnce(&Scope<'env>, &'env mut Work) -> Result<dayfly_comm::Request, Failure> + Send,
    ) -> PyResult<Self> {
        let py = of.py();
        let comm = Arc::clone(of.get().inner.get(py)?);
        let work = Kept(Box::into_raw(Box::new(work)));
        // SAFETY: both have fixed addresses, and are dropped after the scope.
        let (lasting, memory) = unsafe { (&*Arc::as_ptr(&comm), &mut *work.0) };
        // SAFETY: the scope is dropped with its owner. A Python object that is never freed ends with the process.
        let scope = unsafe { lasting.detached_scope() };
        let started = start(&scope, memory);
        let request = started.map_err(|failure| failed(py, &failure))?;
        Ok(Self {
            under_way: Guarded::new(Mutex::new(Some(UnderWay {
                scope,
                request,
                _work: work,
                _comm: comm,
            }))),
        })
    }

    fn ask<T: Send>(
        &self,
        py: Python<'_>,
        ask: impl FnOnce(&UnderWay) -> Result<Option<T>, Failure> + Send,
    ) -> PyResult<Option<Option<T>>> {
        let under_way = self.under_way.get(py)?;
        py.detach(|| {
            let mut kept = under_way.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(going) = kept.as_ref() else { return Ok(None) };
            let asked = ask(going);
            if !matches!(asked, Ok(None)) {
                *kept = None;
            }
            asked.map(Some)
        })
        .map_err(|failure| failed(py, &failure))
    }
}

#[pymethods]
impl Request {
    /// Waits for the operation, and returns the envelope of a receive. Returns `None` if it was already waited for.
    fn wait(&self, py: Python<'_>) -> PyResult<Option<Found>> {
        let waited = self.ask(py, |going| {
            going.scope.wait(going.request).map(|status| Some(found(status)))
        })?;
        Ok(waited.flatten())
    }

    /// Returns whether the operation has completed, and the envelope of a receive. Does not wait.
    fn test(&self, py: Python<'_>) -> PyResult<(bool, Option<Found>)> {
        let tested = self.ask(py, |going| Ok(going.scope.test(going.request)?.map(found)))?;
        Ok(match tested {
            None => (true, None),
            Some(None) => (false, None),
            Some(status) => (true, status),
        })
    }
}
