//! Errors as `dayfly.Error` and its subclasses.

use dayfly_comm::Invitation;
use dayfly_frame::datafusion::common::DataFusionError;
use dayfly_frame::failure_of;
use dayfly_protocol::error::Failure;
use pyo3::prelude::*;

/// Returns the exception for a failure.
pub fn raise(py: Python<'_>, failure: &Failure) -> PyErr {
    let made = py
        .import("dayfly._failures")
        .and_then(|module| module.call_method1("error_for", (failure.code.name(), &failure.message)));
    made.map_or_else(|error| error, PyErr::from_value)
}

/// Returns the exception for a query that failed.
pub fn from_query(py: Python<'_>, error: &DataFusionError) -> PyErr {
    raise(py, &failure_of(error))
}

/// Reads an invitation.
pub fn invitation(py: Python<'_>, text: &str) -> PyResult<Invitation> {
    Invitation::from_json(text).map_err(|failure| raise(py, &failure))
}
