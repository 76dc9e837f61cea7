//! Arrow's C data interface, in both directions.

use std::ffi::CStr;

use dayfly_frame::datafusion::arrow::array::{RecordBatch, RecordBatchIterator, RecordBatchReader};
use dayfly_frame::datafusion::arrow::datatypes::{Schema, SchemaRef};
use dayfly_frame::datafusion::arrow::error::ArrowError;
use dayfly_frame::datafusion::arrow::ffi::FFI_ArrowSchema;
use dayfly_frame::datafusion::arrow::ffi_stream::{ArrowArrayStreamReader, FFI_ArrowArrayStream};
use dayfly_frame::datafusion::common::DataFusionError;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::errors::{ForPython, invalid};

const STREAM: &CStr = c"arrow_array_stream";
const SCHEMA: &CStr = c"arrow_schema";

fn for_python<T>(py: Python<'_>, result: Result<T, ArrowError>) -> PyResult<T> {
    result.map_err(DataFusionError::from).for_python(py)
}

/// Reads the batches of an object that exports an Arrow stream. Their memory stays where it is.
pub fn import_stream(py: Python<'_>, object: &Bound<'_, PyAny>) -> PyResult<(SchemaRef, Vec<RecordBatch>)> {
    let Ok(export) = object.getattr("__arrow_c_stream__") else {
        return Err(PyTypeError::new_err(format!(
            "an object of type {} has no __arrow_c_stream__: pass a table of PyArrow, Polars, pandas or DuckDB",
            object.get_type().name()?
        )));
    };
    let capsule = export.call0()?.cast_into::<PyCapsule>()?;
    let pointer = capsule.pointer_checked(Some(STREAM))?;
    // SAFETY: a capsule of this name holds a stream. Moving it leaves a released one, which the capsule may drop.
    let stream = unsafe { FFI_ArrowArrayStream::from_raw(pointer.as_ptr().cast()) };
    let read = py.detach(|| {
        let reader = ArrowArrayStreamReader::try_new(stream)?;
        let schema = reader.schema();
        let batches = reader.collect::<Result<Vec<_>, _>>()?;
        Ok((schema, batches))
    });
    for_python(py, read)
}

/// Exports batches as a stream.
pub fn export_stream<'py>(
    py: Python<'py>,
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
) -> PyResult<Bound<'py, PyCapsule>> {
    let reader = RecordBatchIterator::new(batches.into_iter().map(Ok), schema);
    PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(Box::new(reader)), STREAM)
}

/// Exports a schema.
pub fn export_schema<'py>(py: Python<'py>, schema: &Schema) -> PyResult<Bound<'py, PyCapsule>> {
    let exported = for_python(py, FFI_ArrowSchema::try_from(schema))?;
    PyCapsule::new_with_value(py, exported, SCHEMA)
}

/// Reads a schema that a consumer requests.
pub fn import_schema(py: Python<'_>, capsule: &Bound<'_, PyAny>) -> PyResult<Schema> {
    let capsule = capsule.cast::<PyCapsule>()?;
    let pointer = capsule.pointer_checked(Some(SCHEMA))?;
    // SAFETY: a capsule of this name holds a schema, which lives as long as the capsule.
    let schema = unsafe { pointer.cast::<FFI_ArrowSchema>().as_ref() };
    let read = Schema::try_from(schema);
    read.map_err(|error| invalid(py, format!("the requested schema is not valid: {error}")))
}
