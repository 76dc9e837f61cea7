//! Failures as `dayfly.Error` and its subclasses.

use dayfly_frame::datafusion::common::DataFusionError;
use dayfly_frame::datafusion::error::Result as QueryResult;
use dayfly_frame::failure_of;
use dayfly_protocol::error::{Code, Failure};
use pyo3::prelude::*;

/// Returns the exception for a failure.
pub fn raise(py: Python<'_>, failure: &Failure) -> PyErr {
    let made = py
        .import("dayfly._failures")
        .and_then(|module| module.call_method1("error_for", (failure.code.name(), &failure.message)));
    match made {
        Ok(error) => PyErr::from_value(error),
        Err(error) => error,
    }
}

/// Returns the exception for a request that must change.
pub fn invalid(py: Python<'_>, message: impl Into<String>) -> PyErr {
    raise(py, &Failure::new(Code::InvalidRequest, message.into()))
}

/// Returns the exception for a session in a process that was forked from the one that opened it.
pub fn inherited(py: Python<'_>) -> PyErr {
    let message = "this session was inherited through a fork and belongs to the parent process; open another one";
    raise(py, &Failure::new(Code::Forked, message))
}

/// Results of DataFusion, for Python.
pub trait ForPython<T> {
    /// The value, or the exception with the code of the first cause.
    fn for_python(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> ForPython<T> for QueryResult<T, DataFusionError> {
    fn for_python(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| raise(py, &failure_of(&error)))
    }
}
