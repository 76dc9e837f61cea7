//! Ranks whose programs call the operations of frames together.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use dayfly_comm::Invitation;
use dayfly_frame::{FrameId, KeptFrame, Member as Inner, SessionOptions};
use dayfly_protocol::error::{Code, Failure};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::arrow::import_stream;
use crate::errors::{ForPython, inherited, invalid, raise};
use crate::frame::Frame;
use crate::rank_options;
use crate::session::{Session, within};
use crate::table::Table;
use crate::wait::wait;

/// A rank of a group whose ranks all plan, execute tasks and have rows of their own.
#[pyclass(frozen, module = "dayfly_frames._frames")]
pub struct Member {
    inner: Mutex<Option<Arc<Inner>>>,
    session: Py<Session>,
    /// The process that joined the group.
    process: u32,
}

impl Member {
    fn get(&self, py: Python<'_>) -> PyResult<Arc<Inner>> {
        if self.process != std::process::id() {
            return Err(inherited(py));
        }
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner).clone();
        inner.ok_or_else(|| {
            let message = "this session has ended; open another one with Session.of() on all ranks";
            raise(py, &Failure::new(Code::LeaseEnded, message))
        })
    }

    fn take(&self) -> Option<Arc<Inner>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // A child has none of the threads that the member would wait for.
        if self.process != std::process::id() {
            std::mem::forget(self.take());
        }
    }
}

fn id_of(py: Python<'_>, bytes: &[u8]) -> PyResult<FrameId> {
    let id = bytes.try_into();
    id.map_err(|_| invalid(py, "the name of a kept frame has 16 bytes"))
}

fn described(py: Python<'_>, description: &[u8]) -> PyResult<KeptFrame> {
    KeptFrame::from_bytes(description).map_err(|failure| raise(py, &failure))
}

#[pymethods]
impl Member {
    /// Joins the group of an invitation. Returns when all ranks are connected.
    #[staticmethod]
    #[expect(clippy::too_many_arguments, reason = "they are those of a rank and of a session")]
    fn join(
        py: Python<'_>,
        invitation: &str,
        threads: usize,
        memory: Option<u64>,
        spill: Option<PathBuf>,
        spill_bytes: Option<u64>,
        partitions: usize,
        partition_bytes: usize,
        stores: BTreeMap<String, String>,
    ) -> PyResult<Self> {
        let rank = rank_options(py, threads, memory, spill.map(|spill| (spill, spill_bytes)), stores)?;
        let options = SessionOptions {
            partitions,
            partition_bytes,
            stores: rank.stores.clone(),
            ..SessionOptions::default()
        };
        let joined = py.detach(|| Inner::join(&Invitation::from_json(invitation)?, &rank, &options));
        let inner = joined.map_err(|failure| raise(py, &failure))?;
        let session = Session::of_member(Arc::clone(inner.session()), options, inner.deadline());
        Ok(Self {
            inner: Mutex::new(Some(Arc::new(inner))),
            session: Py::new(py, session)?,
            process: std::process::id(),
        })
    }

    /// The session, in which this rank makes its plans.
    fn session(&self, py: Python<'_>) -> Py<Session> {
        self.session.clone_ref(py)
    }

    /// Exchanges bytes with all ranks, in their order.
    fn allgather<'py>(&self, py: Python<'py>, own: &[u8]) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let inner = self.get(py)?;
        let all = py.detach(|| inner.allgather(own));
        let all = all.map_err(|failure| raise(py, &failure))?;
        Ok(all.iter().map(|bytes| PyBytes::new(py, bytes)).collect())
    }

    /// Keeps the rows of an object that exports an Arrow stream, as this rank's part of a frame. Returns its
    /// description.
    fn keep<'py>(&self, py: Python<'py>, id: &[u8], table: &Bound<'_, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        let (inner, id) = (self.get(py)?, id_of(py, id)?);
        let (schema, batches) = import_stream(py, table)?;
        let kept = py.detach(|| inner.keep(id, &schema, batches)?.to_bytes());
        let kept = kept.map_err(|failure| raise(py, &failure))?;
        Ok(PyBytes::new(py, &kept))
    }

    /// Forgets this rank's part of a frame.
    fn forget(&self, py: Python<'_>, id: &[u8]) -> PyResult<()> {
        let (inner, id) = (self.get(py)?, id_of(py, id)?);
        py.detach(|| inner.forget(id));
        Ok(())
    }

    /// A frame of the rows that each rank has described.
    fn frame(&self, py: Python<'_>, of_ranks: Vec<Vec<u8>>) -> PyResult<Frame> {
        let inner = self.get(py)?;
        let of_ranks = of_ranks.iter().map(|bytes| described(py, bytes));
        let of_ranks = of_ranks.collect::<PyResult<Vec<_>>>()?;
        let plan = KeptFrame::joined(of_ranks).and_then(|frame| inner.plan(&frame));
        let plan = plan.map_err(|failure| raise(py, &failure))?;
        Ok(self.session.get().shared().frame(plan))
    }

    /// The description of a frame that the ranks keep.
    fn description<'py>(&self, py: Python<'py>, frame: &Frame) -> PyResult<Bound<'py, PyBytes>> {
        let kept = KeptFrame::of(frame.plan()).ok_or_else(|| invalid(py, "the ranks do not keep this frame"))?;
        let bytes = kept.to_bytes().map_err(|failure| raise(py, &failure))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// A text that is equal on all ranks, if these called the same operations.
    fn fingerprint(&self, py: Python<'_>, frame: &Frame) -> PyResult<String> {
        let text = self.get(py)?.fingerprint(frame.plan());
        text.map_err(|failure| raise(py, &failure))
    }

    /// This rank's rows of a kept frame.
    fn own_rows(&self, py: Python<'_>, description: &[u8]) -> PyResult<Table> {
        let (inner, kept) = (self.get(py)?, described(py, description)?);
        let rows = inner.own_rows(&kept).map_err(|failure| raise(py, &failure))?;
        Ok(Table::new(Arc::clone(kept.schema()), rows))
    }

    /// All ranks' rows of a kept frame.
    fn all_rows(&self, py: Python<'_>, description: &[u8]) -> PyResult<Table> {
        let (inner, kept) = (self.get(py)?, described(py, description)?);
        let schema = Arc::clone(kept.schema());
        let rows = within(Some(inner.deadline()), inner.all_rows(kept));
        let rows = wait(py, inner.session().runtime().handle(), rows)?;
        Ok(Table::new(schema, rows.for_python(py)?))
    }

    /// Leaves the group. Queries under way fail on all ranks.
    fn close(&self, py: Python<'_>) {
        if self.process == std::process::id() {
            let inner = self.take();
            py.detach(|| drop(inner));
        }
    }
}
