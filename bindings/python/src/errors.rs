//! Errors as `dayfly.Error` and its subclasses.

use dayfly_client::{CallError, Code, Error, Status};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Returns the exception for a code and a message.
pub fn raise(py: Python<'_>, code: Code, message: &str) -> PyErr {
    let made = py
        .import("dayfly._failures")
        .and_then(|module| module.call_method1("error_for", (code.name(), message)));
    match made {
        Ok(error) => PyErr::from_value(error),
        Err(error) => error,
    }
}

pub fn from_error(py: Python<'_>, error: &Error) -> PyErr {
    raise(py, error.code(), &error.0.message)
}

/// Returns the exception for a call that succeeded but whose result cannot be unpickled here.
pub fn unreadable(py: Python<'_>, error: PyErr) -> PyErr {
    let made = py
        .import("dayfly._failures")
        .and_then(|module| module.call_method1("unreadable_error", (error.value(py),)));
    made.map_or(error, PyErr::from_value)
}

/// Returns the exception for a failed call: the function's own, or Dayfly's.
pub fn from_call(py: Python<'_>, error: &CallError) -> PyErr {
    if error.status == Some(Status::PythonException) {
        let unpacked = py
            .import("dayfly._failures")
            .and_then(|module| module.call_method1("unpack_exception", (PyBytes::new(py, &error.payload),)));
        return match unpacked {
            Ok(error) => PyErr::from_value(error),
            Err(error) => error,
        };
    }
    match &error.failure.exception {
        Some(exception) => {
            let text = format!("{}\n\n{}", error.failure.message, exception.traceback.trim_end());
            raise(py, error.code(), &text)
        }
        None => raise(py, error.code(), &error.failure.message),
    }
}
