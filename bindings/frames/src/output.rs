//! Results as the text or bytes of a file: CSV, JSON, Parquet.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use dayfly_frame::datafusion::arrow::array::RecordBatch;
use dayfly_frame::datafusion::arrow::datatypes::{DataType, SchemaRef};
use dayfly_frame::datafusion::arrow::{csv, json};
use dayfly_frame::datafusion::common::DataFusionError;
use dayfly_frame::datafusion::error::Result as QueryResult;
use dayfly_frame::datafusion::parquet::arrow::ArrowWriter;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::{ForPython, invalid};
use crate::frame::Frame;
use crate::table::Table;

/// Bytes that a writer has made and nobody has taken.
#[derive(Clone, Default)]
struct Made(Arc<Mutex<Vec<u8>>>);

impl Made {
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Write for Made {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

enum Writer {
    Csv(Box<csv::Writer<Made>>),
    Lines(json::LineDelimitedWriter<Made>),
    Array(json::ArrayWriter<Made>),
    Parquet(Box<ArrowWriter<Made>>),
}

impl Writer {
    fn of(format: &str, schema: &SchemaRef, made: Made) -> QueryResult<Option<Self>> {
        let objects = || json::WriterBuilder::new().with_explicit_nulls(true);
        Ok(Some(match format {
            "csv" => {
                let mut writer = csv::Writer::new(made);
                // An empty result has its header, too.
                writer.write(&RecordBatch::new_empty(Arc::clone(schema)))?;
                Self::Csv(Box::new(writer))
            }
            "ndjson" => Self::Lines(objects().build(made)),
            "json" => Self::Array(objects().build(made)),
            "parquet" => {
                let properties = dayfly_frame::parquet_properties();
                let writer = ArrowWriter::try_new(made, Arc::clone(schema), Some(properties))?;
                Self::Parquet(Box::new(writer))
            }
            _ => return Ok(None),
        }))
    }

    fn write(&mut self, batch: &RecordBatch) -> QueryResult<()> {
        match self {
            Self::Csv(writer) => writer.write(batch)?,
            Self::Lines(writer) => writer.write(batch)?,
            Self::Array(writer) => writer.write(batch)?,
            Self::Parquet(writer) => writer.write(batch)?,
        }
        Ok(())
    }

    fn finish(self) -> QueryResult<()> {
        match self {
            Self::Csv(_) => {}
            Self::Lines(mut writer) => writer.finish()?,
            Self::Array(mut writer) => writer.finish()?,
            Self::Parquet(writer) => drop(writer.close()?),
        }
        Ok(())
    }
}

/// Returns why rows of this schema cannot have a format.
fn refused(format: &str, schema: &SchemaRef) -> Option<String> {
    let fields = schema.fields();
    if format == "csv" {
        let nested = fields.iter().find(|field| field.data_type().is_nested())?;
        return Some(format!(
            "column {:?} has lists or structs, which CSV cannot hold: write JSON or Parquet",
            nested.name()
        ));
    }
    let names = fields.iter().enumerate();
    let mut twice = names.filter(|(place, field)| fields[..*place].iter().any(|other| other.name() == field.name()));
    if let Some((_, field)) = twice.next() {
        return Some(format!(
            "two columns are named {:?}: give one of them another name with AS",
            field.name()
        ));
    }
    let interval = fields
        .iter()
        .find(|field| matches!(field.data_type(), DataType::Interval(_)))?;
    (format == "parquet").then(|| {
        format!(
            "column {:?} has intervals, which Parquet cannot hold: cast it to a duration or a string",
            interval.name()
        )
    })
}

/// Encodes the rows of a frame, batch by batch: as `csv`, `ndjson`, `json` (an array) or `parquet`.
#[pyclass(frozen, module = "dayfly_frames._frames")]
pub struct Encoder {
    writer: Mutex<Option<Writer>>,
    made: Made,
}

impl Encoder {
    fn with<'py>(
        &self,
        py: Python<'py>,
        write: impl FnOnce(&mut Option<Writer>) -> QueryResult<()> + Send,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let written = py.detach(|| write(&mut self.writer.lock().unwrap_or_else(PoisonError::into_inner)));
        written.for_python(py)?;
        Ok(PyBytes::new(py, &self.made.take()))
    }
}

fn ended() -> DataFusionError {
    DataFusionError::Execution("this encoder has ended: make another one".into())
}

#[pymethods]
impl Encoder {
    #[new]
    fn new(py: Python<'_>, format: &str, frame: &Frame) -> PyResult<Self> {
        let schema = Arc::clone(frame.plan().schema().inner());
        if let Some(why) = refused(format, &schema) {
            return Err(invalid(py, why));
        }
        let made = Made::default();
        let writer = Writer::of(format, &schema, made.clone()).for_python(py)?;
        let writer = writer.ok_or_else(|| PyValueError::new_err(format!("{format:?} is no format of an encoder")))?;
        Ok(Self {
            writer: Mutex::new(Some(writer)),
            made,
        })
    }

    /// Adds rows. Returns the bytes that are ready.
    fn encode<'py>(&self, py: Python<'py>, table: &Table) -> PyResult<Bound<'py, PyBytes>> {
        self.with(py, |writer| {
            let writer = writer.as_mut().ok_or_else(ended)?;
            table.batches().iter().try_for_each(|batch| writer.write(batch))
        })
    }

    /// Returns the last bytes. No rows can follow.
    fn finish<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.with(py, |writer| writer.take().ok_or_else(ended)?.finish())
    }
}
