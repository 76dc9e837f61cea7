//! Results: tables in memory, and batches that arrive.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use dayfly_frame::datafusion::arrow::array::RecordBatch;
use dayfly_frame::datafusion::arrow::compute::cast;
use dayfly_frame::datafusion::arrow::datatypes::SchemaRef;
use dayfly_frame::datafusion::arrow::error::ArrowError;
use dayfly_frame::datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use dayfly_frame::datafusion::common::DataFusionError;
use dayfly_frame::datafusion::physical_plan::SendableRecordBatchStream;
use dayfly_frame::{PendingUsage, Rows};
use dayfly_protocol::text::line;
use futures_util::StreamExt;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use tokio::runtime::Handle;

use crate::arrow::{export_schema, export_stream, import_schema};
use crate::errors::ForPython;
use crate::session::Shared;
use crate::tasks::{Took, task_of};
use crate::types::type_name;
use crate::wait::wait;

/// Longest text of a value in a printed table, in characters.
const MAX_CELL_CHARS: usize = 60;

/// Rows in memory, in Arrow's format.
#[pyclass(frozen, module = "dayfly_frames._frames")]
pub struct Table {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
    usage: Option<(PendingUsage, Handle)>,
}

impl Table {
    pub fn new(schema: SchemaRef, batches: Vec<RecordBatch>) -> Self {
        Self {
            schema,
            batches,
            usage: None,
        }
    }

    /// The rows of a query, and the runtime on which its ranks report what it took.
    pub fn with_usage(rows: Rows, runtime: Handle) -> Self {
        Self {
            schema: rows.schema,
            batches: rows.batches,
            usage: Some((rows.usage, runtime)),
        }
    }

    pub fn batches(&self) -> &[RecordBatch] {
        &self.batches
    }

    /// The first rows.
    fn head(&self, rows: usize) -> Vec<RecordBatch> {
        let mut left = rows;
        let mut head = Vec::new();
        for batch in &self.batches {
            let part = batch.slice(0, batch.num_rows().min(left));
            left -= part.num_rows();
            head.push(part);
        }
        head
    }

    /// Texts of the first rows' values, with long ones cut.
    fn cells(&self, rows: usize) -> Result<Vec<Vec<String>>, ArrowError> {
        let options = FormatOptions::default().with_null("null").with_display_error(true);
        let mut lines = Vec::new();
        for batch in self.head(rows) {
            let columns = batch
                .columns()
                .iter()
                .map(|column| ArrayFormatter::try_new(column.as_ref(), &options));
            let columns = columns.collect::<Result<Vec<_>, _>>()?;
            for row in 0..batch.num_rows() {
                lines.push(
                    columns
                        .iter()
                        .map(|column| shortened(&column.value(row).to_string()))
                        .collect(),
                );
            }
        }
        Ok(lines)
    }
}

/// A text of at most [`MAX_CELL_CHARS`] characters, in one line.
fn shortened(text: &str) -> String {
    let shown: String = text.chars().take(MAX_CELL_CHARS).collect();
    let mut shown = line(&shown, usize::MAX);
    if text.chars().nth(MAX_CELL_CHARS).is_some() {
        shown.push('…');
    }
    shown
}

#[pymethods]
impl Table {
    /// The rows of several tables, which have the same columns.
    #[staticmethod]
    fn concat(first: &Self, others: Vec<PyRef<'_, Self>>) -> Self {
        let batches = others.iter().flat_map(|other| other.batches.clone());
        let batches = first.batches.iter().cloned().chain(batches).collect();
        Self::new(Arc::clone(&first.schema), batches)
    }

    fn num_rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    /// What the query took.
    fn usage(&self, py: Python<'_>) -> PyResult<Option<Took>> {
        let Some((usage, runtime)) = &self.usage else {
            return Ok(None);
        };
        let usage = wait(py, runtime, usage.clone().get())?;
        Ok(usage.map(|usage| {
            (
                usage.elapsed.as_secs_f64(),
                usage.tasks.iter().map(task_of).collect(),
                usage.computing.as_secs_f64(),
                usage.exchanged_bytes,
                usage.spilled_bytes,
                usage.recovery.name(),
                usage.tasks.iter().map(|task| task.attempts.saturating_sub(1)).sum(),
            )
        }))
    }

    fn columns(&self) -> Vec<String> {
        self.schema.fields().iter().map(|field| field.name().clone()).collect()
    }

    fn types(&self) -> Vec<String> {
        self.schema
            .fields()
            .iter()
            .map(|field| type_name(field.data_type()))
            .collect()
    }

    /// The first rows as a picture of a table.
    fn text(&self, py: Python<'_>, rows: usize) -> PyResult<String> {
        let lines = self.cells(rows).map_err(DataFusionError::from).for_python(py)?;
        Ok(drawn(&self.columns(), &self.types(), &lines))
    }

    /// The texts of the first rows' values.
    #[pyo3(name = "cells")]
    fn cell_texts(&self, py: Python<'_>, rows: usize) -> PyResult<Vec<Vec<String>>> {
        self.cells(rows).map_err(DataFusionError::from).for_python(py)
    }

    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let wanted = requested_schema
            .map(|capsule| import_schema(py, &capsule))
            .transpose()?;
        // A request that this data cannot have is ignored: the consumer compares the schemas.
        let casted = wanted.and_then(|wanted| {
            let wanted: SchemaRef = Arc::new(wanted);
            let batches = self
                .batches
                .iter()
                .map(|batch| casted(batch, &wanted))
                .collect::<Option<Vec<_>>>()?;
            Some((wanted, batches))
        });
        let (schema, batches) = casted.unwrap_or_else(|| (Arc::clone(&self.schema), self.batches.clone()));
        export_stream(py, schema, batches)
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        export_schema(py, &self.schema)
    }
}

/// A batch with the types of another schema, or `None` if it cannot have them.
fn casted(batch: &RecordBatch, wanted: &SchemaRef) -> Option<RecordBatch> {
    if wanted.fields().len() != batch.num_columns() {
        return None;
    }
    let columns = batch.columns().iter().zip(wanted.fields());
    let columns = columns.map(|(column, field)| cast(column, field.data_type()).ok());
    RecordBatch::try_new(Arc::clone(wanted), columns.collect::<Option<Vec<_>>>()?).ok()
}

/// Draws a table: names, types, rows.
fn drawn(names: &[String], types: &[String], rows: &[Vec<String>]) -> String {
    let names: Vec<String> = names.iter().map(|name| shortened(name)).collect();
    let length = |text: &String| text.chars().count();
    let widths: Vec<usize> = (0..names.len())
        .map(|column| {
            let cells = rows.iter().map(|row| length(&row[column])).max().unwrap_or(0);
            cells.max(length(&names[column])).max(length(&types[column]))
        })
        .collect();
    let mut text = String::new();
    let rule = |text: &mut String, [left, middle, right]: [&str; 3]| {
        let dashes: Vec<String> = widths.iter().map(|width| "─".repeat(width + 2)).collect();
        let _ = writeln!(text, "{left}{}{right}", dashes.join(middle));
    };
    let row_of = |text: &mut String, cells: &[String]| {
        let padded = cells
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!(" {cell:<width$} "));
        let _ = writeln!(text, "│{}│", padded.collect::<Vec<_>>().join("│"));
    };
    rule(&mut text, ["┌", "┬", "┐"]);
    row_of(&mut text, &names);
    row_of(&mut text, types);
    rule(&mut text, ["├", "┼", "┤"]);
    for row in rows {
        row_of(&mut text, row);
    }
    rule(&mut text, ["└", "┴", "┘"]);
    text
}

/// The batches of a query, as they arrive.
#[pyclass(frozen, module = "dayfly_frames._frames")]
pub struct Batches {
    shared: Shared,
    runtime: Handle,
    schema: SchemaRef,
    stream: Mutex<Option<SendableRecordBatchStream>>,
}

impl Batches {
    pub fn new(shared: Shared, runtime: Handle, stream: SendableRecordBatchStream) -> Self {
        Self {
            shared,
            runtime,
            schema: stream.schema(),
            stream: Mutex::new(Some(stream)),
        }
    }

    fn take(&self) -> Option<SendableRecordBatchStream> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[pymethods]
impl Batches {
    /// The next batch, or None at the end. After an error there are no more.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Table>> {
        // Fails if the session is closed.
        self.shared.get(py)?;
        let Some(mut stream) = self.take() else {
            return Ok(None);
        };
        let (stream, found) = wait(py, &self.runtime, async move {
            let found = stream.next().await;
            (stream, found)
        })?;
        let Some(batch) = found.transpose().for_python(py)? else {
            return Ok(None);
        };
        *self.stream.lock().unwrap_or_else(PoisonError::into_inner) = Some(stream);
        Ok(Some(Table::new(Arc::clone(&self.schema), vec![batch])))
    }

    /// Ends the query.
    fn close(&self, py: Python<'_>) {
        let stream = self.take();
        py.detach(|| {
            let _entered = self.runtime.enter();
            drop(stream);
        });
    }
}
