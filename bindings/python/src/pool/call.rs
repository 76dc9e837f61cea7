//! Submitted calls and their outcomes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dayfly_client::{CallId, Code, Outcome, Output};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::helper::Shared;
use super::{Pool, SLICE, deadline};
use crate::block::{Block, Memory};
use crate::errors::from_error;
use crate::guard::Guarded;

/// A submitted call.
#[pyclass(frozen, module = "dayfly._native")]
pub struct Call {
    shared: Guarded<Arc<Shared>>,
    id: CallId,
    taken: AtomicBool,
}

/// A failed call: holds the exception in place of a result.
#[pyclass(frozen, module = "dayfly._native")]
pub struct Failure {
    #[pyo3(get)]
    pub error: Py<PyAny>,
}

const TAKEN: &str = "this call's outcome was taken already";

impl Call {
    pub fn new(shared: &Arc<Shared>, id: CallId) -> Self {
        Self {
            shared: Guarded::new(Arc::clone(shared)),
            id,
            taken: AtomicBool::new(false),
        }
    }

    /// Waits for the outcome and takes it. Returns `None` at the limit.
    pub fn outcome(&self, py: Python<'_>, until: Option<Instant>, wait: bool) -> PyResult<Option<Outcome>> {
        let shared = self.shared.get(py)?;
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let slice = if wait {
                left.unwrap_or(SLICE).min(SLICE)
            } else {
                Duration::ZERO
            };
            let outcome = if slice.is_zero() {
                shared.pool.poll();
                shared.pool.wait(self.id, Some(slice))
            } else {
                py.detach(|| shared.pool.wait(self.id, Some(slice)))
            };
            match outcome {
                Err(error) if error.code() == Code::TimedOut && error.status.is_none() => {
                    py.check_signals()?;
                    if !wait || left.is_some_and(|left| left <= slice) {
                        return Ok(None);
                    }
                }
                outcome => {
                    self.taken.store(true, Ordering::Relaxed);
                    return Ok(Some(outcome));
                }
            }
        }
    }

    fn to_python<'py>(
        &self,
        py: Python<'py>,
        outcome: Option<Outcome>,
        raw: bool,
        pool: &Pool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let result = match outcome {
            None => return Ok(py.NotImplemented().into_bound(py)),
            Some(Err(error)) if error.code() == Code::NotFound && error.failure.message == TAKEN => {
                return Ok(py.Ellipsis().into_bound(py));
            }
            Some(Ok(output)) if raw => raw_output(py, output),
            Some(outcome) => pool.result(py, outcome),
        };
        match result {
            Ok(value) => Ok(value),
            Err(error) => {
                let error = error.into_value(py).into_any();
                Ok(Bound::new(py, Failure { error })?.into_any())
            }
        }
    }
}

/// Returns the output of a C function: bytes if it is small, else a view of the received memory.
fn raw_output(py: Python<'_>, output: Output) -> PyResult<Bound<'_, PyAny>> {
    match output {
        Output::Small(ref bytes) => Ok(PyBytes::new(py, bytes).into_any()),
        Output::Large(received) => Ok(Bound::new(py, Block::new(Memory::Landed(received)))?.into_any()),
        Output::InPlace(..) => Ok(PyBytes::new(py, output.as_slice()).into_any()),
    }
}

#[pymethods]
impl Call {
    /// Returns its number in its pool.
    #[getter]
    fn id(&self) -> u64 {
        self.id.0
    }

    /// Waits up to `limit` seconds. Returns the result, a `Failure`, `NotImplemented` at the limit, or `Ellipsis` if
    /// another thread took the outcome.
    #[pyo3(signature = (pool, limit = None, raw = false))]
    fn wait<'py>(&self, py: Python<'py>, pool: &Pool, limit: Option<f64>, raw: bool) -> PyResult<Bound<'py, PyAny>> {
        let outcome = self.outcome(py, deadline(limit)?, true)?;
        self.to_python(py, outcome, raw, pool)
    }

    /// As `wait`, without waiting.
    #[pyo3(signature = (pool, raw = false))]
    fn take<'py>(&self, py: Python<'py>, pool: &Pool, raw: bool) -> PyResult<Bound<'py, PyAny>> {
        let outcome = self.outcome(py, None, false)?;
        self.to_python(py, outcome, raw, pool)
    }

    /// Returns whether the call has ended.
    fn is_done(&self, py: Python<'_>) -> PyResult<bool> {
        let shared = self.shared.get(py)?;
        Ok(shared.pool.is_done(self.id) || (shared.pool.poll() && shared.pool.is_done(self.id)))
    }

    /// Returns whether the call was sent to a worker and has not ended.
    fn is_sent(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.shared.get(py)?.pool.is_sent(self.id))
    }

    /// Requests a notification through the helper when the call ends.
    fn notify(&self, py: Python<'_>) -> PyResult<()> {
        let shared = self.shared.get(py)?;
        shared.pool.notify(self.id);
        shared.call_helper(true);
        Ok(())
    }

    /// Cancels the call if it was not sent. Returns whether it was cancelled.
    fn cancel(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.shared.get(py)?.pool.cancel(self.id))
    }

    /// Ends the call even if it runs, by stopping its worker. Returns whether it had not ended yet.
    fn kill(&self, py: Python<'_>) -> PyResult<bool> {
        let shared = self.shared.get(py)?;
        match py.detach(|| shared.pool.kill(self.id)) {
            Ok(()) => Ok(true),
            Err(error) if error.code() == Code::NotFound => Ok(false),
            Err(error) => Err(from_error(py, &error)),
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.shared.is_own() && !*self.taken.get_mut() {
            self.shared.peek().pool.discard(self.id);
        }
    }
}
