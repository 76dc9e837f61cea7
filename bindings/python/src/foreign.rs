//! Results that another tenant may have produced, kept unread until the program states whether it trusts the tenant.

use dayfly_client::{CallError, Status};
use dayfly_protocol::blob::Blob;
use dayfly_protocol::error::Failure;
use dayfly_protocol::tasks::TaskOutcome;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::codec::Codec;
use crate::errors::{from_call, unreadable};

/// A result or an exception that was not decoded yet.
#[pyclass(frozen, module = "dayfly._native")]
pub struct Foreign {
    /// Tenants that may have produced it. An empty name stands for a tenant that is no longer known.
    #[pyo3(get)]
    owners: Vec<String>,
    payload: Blob,
    failure: Option<Failure>,
}

impl Foreign {
    /// Wraps the outcome of a task: its result, or the exception of its function.
    pub fn of(outcome: TaskOutcome) -> Self {
        Self {
            owners: outcome.foreign,
            payload: outcome.answer,
            failure: outcome.error,
        }
    }

    /// Wraps a result that is passed to another function.
    pub fn of_dependency(owners: Vec<String>, payload: &[u8]) -> Self {
        Self {
            owners,
            payload: payload.to_vec().into(),
            failure: None,
        }
    }
}

#[pymethods]
impl Foreign {
    /// Returns the result, or raises the exception. If `trusted` is false, it only decodes data, and raises `Refused`
    /// for anything else.
    fn open<'py>(&self, py: Python<'py>, trusted: bool) -> PyResult<Bound<'py, PyAny>> {
        match (&self.failure, trusted) {
            (None, true) => {
                let decoded = Codec::new(py)?.decode_small(py, &self.payload);
                decoded.map_err(|error| unreadable(py, error))
            }
            (None, false) => Codec::restricted(py)?.decode_small(py, &self.payload),
            (Some(failure), true) => Err(from_call(
                py,
                &CallError {
                    failure: failure.clone(),
                    status: Some(Status::PythonException),
                    payload: self.payload.to_vec(),
                },
            )),
            (Some(_), false) => Err(raised(py, &self.payload)),
        }
    }
}

/// Returns an error that describes the exception of an untrusted function.
pub fn raised(py: Python<'_>, packed: &[u8]) -> PyErr {
    let made = py
        .import("dayfly._codec.trust")
        .and_then(|module| module.call_method1("unpack_exception", (PyBytes::new(py, packed),)));
    made.map_or_else(|error| error, PyErr::from_value)
}

/// Returns the error for a result of a call that was not decoded.
pub fn untrusted(py: Python<'_>, error: PyErr, owners: &[String]) -> PyErr {
    let made = py
        .import("dayfly._codec.trust")
        .and_then(|module| module.call_method1("untrusted_error", (error.value(py), owners.to_vec())));
    made.map_or_else(|error| error, PyErr::from_value)
}
