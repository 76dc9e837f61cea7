//! Results as the text or bytes of a file.

use std::sync::{Mutex, PoisonError};

use dayfly_frame::datafusion::common::DataFusionError;
use dayfly_frame::datafusion::error::Result as QueryResult;
use dayfly_frame::{Encoder as Inner, Format};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::ForPython;
use crate::frame::Frame;
use crate::table::Table;

/// The format of a name, which is Python's.
pub fn format_of(name: &str) -> PyResult<Format> {
    Format::of(name).ok_or_else(|| PyValueError::new_err(format!("{name:?} is no format of files")))
}

/// Encodes the rows of a frame, batch by batch.
#[pyclass(frozen, module = "dayfly_frames._frames")]
pub struct Encoder(Mutex<Option<Inner>>);

impl Encoder {
    fn with<'py>(
        &self,
        py: Python<'py>,
        encode: impl FnOnce(&mut Option<Inner>) -> QueryResult<Vec<u8>> + Send,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = py.detach(|| encode(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner)));
        Ok(PyBytes::new(py, &bytes.for_python(py)?))
    }
}

fn ended() -> DataFusionError {
    DataFusionError::Execution("this encoder has ended: make another one".into())
}

#[pymethods]
impl Encoder {
    #[new]
    fn new(py: Python<'_>, format: &str, frame: &Frame) -> PyResult<Self> {
        let encoder = Inner::new(format_of(format)?, frame.plan().schema().inner()).for_python(py)?;
        Ok(Self(Mutex::new(Some(encoder))))
    }

    /// Adds rows. Returns the bytes that are ready.
    fn encode<'py>(&self, py: Python<'py>, table: &Table) -> PyResult<Bound<'py, PyBytes>> {
        self.with(py, |encoder| {
            let encoder = encoder.as_mut().ok_or_else(ended)?;
            let mut bytes = Vec::new();
            for batch in table.batches() {
                bytes.append(&mut encoder.encode(batch)?);
            }
            Ok(bytes)
        })
    }

    /// Returns the last bytes. No rows can follow.
    fn finish<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.with(py, |encoder| encoder.take().ok_or_else(ended)?.finish())
    }
}
