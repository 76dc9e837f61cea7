//! What another tenant may have made, until somebody says how far it is trusted.

use dayfly_client::{CallError, Status};
use dayfly_protocol::blob::Blob;
use dayfly_protocol::error::Failure;
use dayfly_protocol::tasks::TaskOutcome;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::codec::Codec;
use crate::errors::{from_call, unreadable};

/// A result or an exception, unread.
#[pyclass(frozen, module = "dayfly._native")]
pub struct Foreign {
    /// Who may have made it; an empty name for somebody who is not known any more.
    #[pyo3(get)]
    owners: Vec<String>,
    payload: Blob,
    failure: Option<Failure>,
}

impl Foreign {
    /// What a task ended with: its result, or what its function raised.
    pub fn of(outcome: TaskOutcome) -> Self {
        Self {
            owners: outcome.foreign,
            payload: outcome.answer,
            failure: outcome.error,
        }
    }

    /// A result that is given to another function.
    pub fn answer(owners: Vec<String>, payload: &[u8]) -> Self {
        Self {
            owners,
            payload: payload.to_vec().into(),
            failure: None,
        }
    }
}

#[pymethods]
impl Foreign {
    /// The result; raises what was raised. Where it is not trusted, nothing but data comes of it: `Refused` for what is more.
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

/// What a function raised that nobody trusts.
pub fn raised(py: Python<'_>, packed: &[u8]) -> PyErr {
    let made = py
        .import("dayfly._trust")
        .and_then(|module| module.call_method1("unpack_exception", (PyBytes::new(py, packed),)));
    made.map_or_else(|error| error, PyErr::from_value)
}

/// Why the result of a call was not read.
pub fn untrusted(py: Python<'_>, error: PyErr, owners: &[String]) -> PyErr {
    let made = py
        .import("dayfly._trust")
        .and_then(|module| module.call_method1("untrusted", (error.value(py), owners.to_vec())));
    made.map_or_else(|error| error, PyErr::from_value)
}
