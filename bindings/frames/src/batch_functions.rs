//! Calls functions of Python with batches.

use std::sync::Arc;

use dayfly_frame::BatchFunctions;
use dayfly_frame::datafusion::arrow::array::RecordBatch;
use dayfly_frame::datafusion::arrow::compute::{CastOptions, cast_with_options, concat_batches};
use dayfly_frame::datafusion::arrow::datatypes::{Schema, SchemaRef};
use dayfly_frame::datafusion::common::DataFusionError;
use dayfly_protocol::error::{Code, Failure};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::arrow::import_stream;
use crate::errors::ForPython;
use crate::table::Table;

/// The functions of this process's interpreter.
pub struct PythonFunctions;

impl BatchFunctions for PythonFunctions {
    fn call(&self, function: &[u8], batch: RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, Failure> {
        Python::attach(|py| {
            let found = called(py, function, batch)
                .map_err(|error| Failure::new(Code::FunctionError, error.value(py).to_string()))?;
            with_schema(&found, schema).map_err(|message| Failure::new(Code::InvalidRequest, message))
        })
    }
}

fn called(py: Python<'_>, function: &[u8], batch: RecordBatch) -> PyResult<RecordBatch> {
    let table = Table::new(batch.schema(), vec![batch]);
    let module = py.import("dayfly_frames._map")?;
    let found = module.call_method1("call", (PyBytes::new(py, function), table))?;
    let (schema, batches) = import_stream(py, &found)?;
    let joined = concat_batches(&schema, &batches);
    joined.map_err(DataFusionError::from).for_python(py)
}

/// The columns of a schema, by their names, with its types.
fn with_schema(found: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, String> {
    let strict = CastOptions {
        safe: false,
        ..CastOptions::default()
    };
    let mut columns = Vec::new();
    for field in schema.fields() {
        let Some(column) = found.column_by_name(field.name()) else {
            let names: Vec<_> = found
                .schema()
                .fields()
                .iter()
                .map(|field| field.name().clone())
                .collect();
            return Err(format!(
                "the function returned no column {:?}, which its schema states; it returned: {}",
                field.name(),
                names.join(", ")
            ));
        };
        // A value without a form in the stated type is no null.
        let casted = cast_with_options(column, field.data_type(), &strict);
        columns.push(casted.map_err(|error| format!("column {:?} of the function's result: {error}", field.name()))?);
    }
    RecordBatch::try_new(Arc::clone(schema), columns).map_err(|error| error.to_string())
}

/// The schema of columns by the names of their types, or the first name that is none.
pub fn schema_of(columns: Vec<(String, String)>) -> Result<SchemaRef, String> {
    let field = |(name, kind): (String, String)| {
        let found = crate::types::type_of(&kind);
        found
            .map(|found| dayfly_frame::datafusion::arrow::datatypes::Field::new(name, found, true))
            .ok_or(kind)
    };
    let fields = columns.into_iter().map(field).collect::<Result<Vec<_>, _>>()?;
    Ok(Arc::new(Schema::new(fields)))
}
