//! Results of queries.

use dayfly_frame::datafusion::arrow::array::RecordBatch;
use dayfly_frame::datafusion::arrow::datatypes::SchemaRef;
use dayfly_frame::datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::arrow;

/// Rows in Arrow's memory format.
#[pyclass(frozen, module = "dayfly_frames._frames")]
pub struct Table {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

impl Table {
    /// A table of batches that have this schema.
    pub fn new(schema: SchemaRef, batches: Vec<RecordBatch>) -> Self {
        // Batches may say more exactly than the plan what is null.
        let schema = batches.first().map_or(schema, RecordBatch::schema);
        Self { schema, batches }
    }
}

#[pymethods]
impl Table {
    /// The rows as an Arrow stream, for other libraries. They share the memory.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // A consumer casts what has another type, as the interface allows.
        let _ = requested_schema;
        arrow::stream(py, self.schema.clone(), self.batches.clone())
    }

    /// The schema, for other libraries.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        arrow::schema(py, &self.schema)
    }

    /// Number of rows.
    #[getter]
    fn num_rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    /// Names and types of the columns.
    #[getter]
    fn fields(&self) -> Vec<(String, String)> {
        let fields = self.schema.fields().iter();
        fields
            .map(|field| (field.name().clone(), field.data_type().to_string()))
            .collect()
    }

    /// The first rows as text, a list for each row; nulls are `None`.
    fn head_text(&self, rows: usize) -> PyResult<Vec<Vec<Option<String>>>> {
        let options = FormatOptions::default().with_display_error(true);
        let mut found = Vec::new();
        for batch in &self.batches {
            let columns = batch.columns().iter();
            let formatters = columns.clone().map(|column| ArrayFormatter::try_new(column, &options));
            let formatters = formatters
                .collect::<Result<Vec<_>, _>>()
                .map_err(|error| PyValueError::new_err(error.to_string()))?;
            for row in 0..batch.num_rows() {
                if found.len() == rows {
                    return Ok(found);
                }
                let cells = columns.clone().zip(&formatters);
                found.push(
                    cells
                        .map(|(column, cell)| column.is_valid(row).then(|| cell.value(row).to_string()))
                        .collect(),
                );
            }
        }
        Ok(found)
    }
}
