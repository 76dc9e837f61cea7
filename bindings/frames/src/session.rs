//! Sessions: where frames come from.

use std::sync::{Arc, Mutex, PoisonError};

use dayfly_frame::datafusion::catalog::{MemTable, MemoryCatalogProviderList};
use dayfly_frame::datafusion::common::{DataFusionError, Result, TableReference};
use dayfly_frame::datafusion::execution::context::{SQLOptions, SessionContext};
use dayfly_frame::datafusion::execution::session_state::SessionStateBuilder;
use dayfly_frame::datafusion::prelude::{CsvReadOptions, DataFrame, JsonReadOptions, ParquetReadOptions};
use dayfly_frame::{Session as Inner, SessionOptions};
use dayfly_protocol::error::{Code, Failure};
use pyo3::prelude::*;

use crate::arrow::batches_of;
use crate::errors::{from_query, invitation, raise};
use crate::frame::Frame;
use crate::wait::wait;

/// Queries over the ranks of a group.
#[pyclass(frozen, module = "dayfly_frames._frames")]
pub struct Session(Mutex<Option<Arc<Inner>>>);

impl Session {
    fn open(&self, py: Python<'_>) -> PyResult<Arc<Inner>> {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        inner.ok_or_else(|| {
            let message = "this session is closed; open another one with client.frames()";
            raise(py, &Failure::new(Code::Cancelled, message))
        })
    }
}

#[pymethods]
impl Session {
    /// Joins the group of an invitation as its last rank.
    #[new]
    #[pyo3(signature = (invitation_text, partitions, memory_bytes=None))]
    fn join(py: Python<'_>, invitation_text: &str, partitions: usize, memory_bytes: Option<u64>) -> PyResult<Self> {
        let invitation = invitation(py, invitation_text)?;
        let options = SessionOptions {
            partitions,
            memory_bytes,
            ..SessionOptions::default()
        };
        let joined = py.detach(|| Inner::join(&invitation, &options));
        let inner = joined.map_err(|failure| raise(py, &failure))?;
        Ok(Self(Mutex::new(Some(Arc::new(inner)))))
    }

    /// Number of ranks that execute queries.
    #[getter]
    fn ranks(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.open(py)?.ranks())
    }

    /// A frame of Parquet files.
    fn scan_parquet(&self, py: Python<'_>, paths: Vec<String>) -> PyResult<Frame> {
        let session = self.open(py)?;
        let read = session.context().read_parquet(paths, ParquetReadOptions::default());
        Frame::of(py, &session, wait(py, &session, read)?)
    }

    /// A frame of CSV files.
    fn scan_csv(&self, py: Python<'_>, paths: Vec<String>, has_header: bool, delimiter: u8) -> PyResult<Frame> {
        let session = self.open(py)?;
        let options = CsvReadOptions::new().has_header(has_header).delimiter(delimiter);
        let read = session.context().read_csv(paths, options);
        Frame::of(py, &session, wait(py, &session, read)?)
    }

    /// A frame of files with one JSON object a line.
    fn scan_json(&self, py: Python<'_>, paths: Vec<String>) -> PyResult<Frame> {
        let session = self.open(py)?;
        let read = session.context().read_json(paths, JsonReadOptions::default());
        Frame::of(py, &session, wait(py, &session, read)?)
    }

    /// A frame of an object that has `__arrow_c_stream__`.
    fn from_arrow(&self, py: Python<'_>, table: &Bound<'_, PyAny>) -> PyResult<Frame> {
        let session = self.open(py)?;
        let (schema, batches) = batches_of(table)?;
        let table = MemTable::try_new(schema, vec![batches]).map_err(|error| from_query(py, &error))?;
        let frame = session.context().read_table(Arc::new(table));
        Frame::of(py, &session, frame.map_err(|error| from_query(py, &error))?)
    }

    /// A frame of an SQL query, which sees these frames as tables, and nothing else.
    fn sql(&self, py: Python<'_>, query: &str, frames: Vec<(String, Py<Frame>)>) -> PyResult<Frame> {
        let session = self.open(py)?;
        let frames = frames.into_iter().map(|(name, frame)| (name, frame.get().plan().clone()));
        let planned = plan(session.context(), query, frames.collect());
        Frame::of(py, &session, wait(py, &session, planned)?)
    }

    /// Ends the session on all ranks. Does nothing the second time.
    fn close(&self, py: Python<'_>) {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| {
            if let Some(inner) = inner {
                inner.close();
            }
        });
    }
}

async fn plan(context: &SessionContext, query: &str, frames: Vec<(String, DataFrame)>) -> Result<DataFrame> {
    // A catalog of its own: names are those of this query only.
    let state = SessionStateBuilder::new_from_existing(context.state())
        .with_catalog_list(Arc::new(MemoryCatalogProviderList::new()))
        .with_create_default_catalog_and_schema(true)
        .build();
    let own = SessionContext::new_with_state(state);
    for (name, frame) in frames {
        own.register_table(TableReference::bare(name), frame.into_view())?;
    }
    let only_queries = SQLOptions::new()
        .with_allow_ddl(false)
        .with_allow_dml(false)
        .with_allow_statements(false);
    let frame = own.sql_with_options(query, only_queries).await?;
    Ok::<_, DataFusionError>(frame)
}
