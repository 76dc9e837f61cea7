//! Arrow data to and from other libraries, by the C data interface and without copies.

use std::ffi::CStr;

use dayfly_frame::datafusion::arrow::array::{RecordBatch, RecordBatchIterator, RecordBatchReader};
use dayfly_frame::datafusion::arrow::datatypes::SchemaRef;
use dayfly_frame::datafusion::arrow::error::ArrowError;
use dayfly_frame::datafusion::arrow::ffi::FFI_ArrowSchema;
use dayfly_frame::datafusion::arrow::ffi_stream::{ArrowArrayStreamReader, FFI_ArrowArrayStream};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

const STREAM: &CStr = c"arrow_array_stream";
const SCHEMA: &CStr = c"arrow_schema";

fn failed(error: &ArrowError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Reads an object that has `__arrow_c_stream__`.
pub fn batches_of(value: &Bound<'_, PyAny>) -> PyResult<(SchemaRef, Vec<RecordBatch>)> {
    if !value.hasattr("__arrow_c_stream__")? {
        let kind = value.get_type().name()?;
        return Err(PyTypeError::new_err(format!(
            "a {kind} has no __arrow_c_stream__; pass a table of PyArrow, Polars, pandas or DuckDB"
        )));
    }
    let capsule = value.call_method0("__arrow_c_stream__")?;
    let capsule = capsule.cast::<PyCapsule>()?;
    let stream = capsule.pointer_checked(Some(STREAM))?.cast::<FFI_ArrowArrayStream>();
    // SAFETY: a capsule of this name holds a stream. It is moved out, and what stays is marked as released.
    let reader = unsafe { ArrowArrayStreamReader::from_raw(stream.as_ptr()) }.map_err(|error| failed(&error))?;
    let schema = reader.schema();
    let batches = reader.collect::<Result<_, _>>().map_err(|error| failed(&error))?;
    Ok((schema, batches))
}

/// Returns a capsule with a stream of batches.
pub fn stream<'py>(py: Python<'py>, schema: SchemaRef, batches: Vec<RecordBatch>) -> PyResult<Bound<'py, PyCapsule>> {
    let batches = RecordBatchIterator::new(batches.into_iter().map(Ok), schema);
    PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(Box::new(batches)), STREAM)
}

/// Returns a capsule with a schema.
pub fn schema<'py>(py: Python<'py>, schema: &SchemaRef) -> PyResult<Bound<'py, PyCapsule>> {
    let schema = FFI_ArrowSchema::try_from(schema.as_ref()).map_err(|error| failed(&error))?;
    PyCapsule::new_with_value(py, schema, SCHEMA)
}
