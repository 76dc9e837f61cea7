//! Communicators for Python, used by `dayfly.groups` and `dayfly.torch`.

mod collective;
mod request;

use std::ops::Range;
use std::sync::Arc;

use dayfly_comm::membership::Membership;
use dayfly_comm::{
    ANY_SOURCE, ANY_TAG, Communicator as Inner, Invitation, LostRanks, Operation, Options, Route, World,
};
use dayfly_protocol::error::Failure;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

pub use collective::Op;
use collective::{Job, Kind, own_type};
pub use request::Request;
use request::{Work, unreachable_work};

use crate::errors::raise;
use crate::guard::Guarded;
use crate::memory::Memory;

fn failed(py: Python<'_>, failure: &Failure) -> PyErr {
    raise(py, failure.code, &failure.message)
}

/// Envelope of a received message: source, tag, length in bytes.
type Found = (u32, u32, u64);

fn found(status: dayfly_comm::Status) -> Found {
    (status.source, status.tag, status.length)
}

/// A rank's view of a group.
#[pyclass(frozen, module = "dayfly._native")]
pub struct Communicator {
    inner: Guarded<Arc<Inner>>,
    /// The membership in the group. The process leaves when the last of its communicators is dropped.
    membership: Option<Arc<Membership>>,
}

impl Communicator {
    fn part(&self, inner: Inner) -> Self {
        Self {
            inner: Guarded::new(Arc::new(inner)),
            membership: self.membership.clone(),
        }
    }

    fn with<T: Send>(&self, py: Python<'_>, run: impl FnOnce(&Inner) -> Result<T, Failure> + Send) -> PyResult<T> {
        let inner = self.inner.get(py)?;
        py.detach(|| run(inner)).map_err(|failure| failed(py, &failure))
    }
}

fn source(rank: i64) -> PyResult<u32> {
    match rank {
        -1 => Ok(ANY_SOURCE),
        rank => number(rank, "rank"),
    }
}

fn tag(tag: i64) -> PyResult<u32> {
    match tag {
        -1 => Ok(ANY_TAG),
        tag => number(tag, "tag"),
    }
}

fn number(value: i64, what: &str) -> PyResult<u32> {
    u32::try_from(value)
        .ok()
        .filter(|value| *value < u32::MAX)
        .ok_or_else(|| PyValueError::new_err(format!("{value} is not a {what}")))
}

fn ranges(blocks: Option<Vec<(usize, usize)>>) -> PyResult<Option<Vec<Range<usize>>>> {
    let range = |(start, length): (usize, usize)| {
        let end = start.checked_add(length);
        end.map(|end| start..end)
            .ok_or_else(|| PyValueError::new_err("a block begins beyond the address space"))
    };
    blocks.map(|blocks| blocks.into_iter().map(range).collect()).transpose()
}

#[pymethods]
impl Communicator {
    /// Joins the group of an invitation.
    #[staticmethod]
    fn join(py: Python<'_>, invitation: &str) -> PyResult<Self> {
        let invitation = Invitation::from_json(invitation).map_err(|failure| failed(py, &failure))?;
        let world = py
            .detach(|| invitation.accept())
            .map_err(|failure| failed(py, &failure))?;
        let World {
            communicator,
            membership,
            ..
        } = world;
        Ok(Self {
            inner: Guarded::new(Arc::new(communicator)),
            membership: Some(Arc::new(membership)),
        })
    }

    /// Returns a group of one rank.
    #[staticmethod]
    fn alone(py: Python<'_>) -> PyResult<Self> {
        let formed = Inner::form(0, 1, vec![None], Arc::new(LostRanks::default()), Options::default());
        Ok(Self {
            inner: Guarded::new(Arc::new(formed.map_err(|failure| failed(py, &failure))?)),
            membership: None,
        })
    }

    /// Returns this rank, counted from 0.
    #[getter]
    fn rank(&self) -> u32 {
        self.inner.peek().rank()
    }

    /// Returns the number of ranks.
    #[getter]
    fn size(&self) -> u32 {
        self.inner.peek().size()
    }

    /// Returns the ranks as ranks of the whole group.
    #[getter]
    fn members(&self) -> Vec<u32> {
        self.inner.peek().members().to_vec()
    }

    /// Returns how bytes travel to each rank: `local`, `direct`, `punched`, `relay`, `stored` or `fabric`. `None` for
    /// this rank and for ranks without a connection.
    #[getter]
    fn ways(&self, py: Python<'_>) -> PyResult<Vec<Option<&'static str>>> {
        self.with(py, |inner| {
            Ok(inner.routes().into_iter().map(|way| way.map(Route::name)).collect())
        })
    }

    /// Sends the bytes of a buffer, and returns when it may be reused.
    fn send(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, dest: i64, tag: i64) -> PyResult<()> {
        let view = Memory::to(buffer, false)?;
        let (to, under) = (number(dest, "rank")?, number(tag, "tag")?);
        self.with(py, |comm| comm.send(view.bytes(), to, under))
    }

    /// Receives into a buffer, and returns the envelope.
    fn recv(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, from: i64, under: i64) -> PyResult<Found> {
        let mut view = Memory::to(buffer, true)?;
        let (from, under) = (source(from)?, tag(under)?);
        self.with(py, |comm| comm.recv(view.bytes_mut(), from, under).map(found))
    }

    /// Waits for a message, without receiving it.
    fn probe(&self, py: Python<'_>, from: i64, under: i64) -> PyResult<Found> {
        let (from, under) = (source(from)?, tag(under)?);
        self.with(py, |comm| comm.probe(from, under).map(found))
    }

    /// Returns the envelope of a message that can be received now, if there is one.
    fn iprobe(&self, py: Python<'_>, from: i64, under: i64) -> PyResult<Option<Found>> {
        let (from, under) = (source(from)?, tag(under)?);
        self.with(py, |comm| Ok(comm.iprobe(from, under)?.map(found)))
    }

    /// Starts to send.
    fn isend(slf: &Bound<'_, Self>, buffer: &Bound<'_, PyAny>, dest: i64, tag: i64) -> PyResult<Request> {
        let view = Memory::to(buffer, false)?;
        let (to, under) = (number(dest, "rank")?, number(tag, "tag")?);
        Request::start(slf, Work::Out(view), |scope, work| match work {
            Work::Out(view) => scope.isend(view.bytes(), to, under),
            Work::In(_) | Work::Collective(_) => unreachable_work(),
        })
    }

    /// Starts to receive.
    fn irecv(slf: &Bound<'_, Self>, buffer: &Bound<'_, PyAny>, from: i64, under: i64) -> PyResult<Request> {
        let view = Memory::to(buffer, true)?;
        let (from, under) = (source(from)?, tag(under)?);
        Request::start(slf, Work::In(view), |scope, work| match work {
            Work::In(view) => scope.irecv(view.bytes_mut(), from, under),
            Work::Out(_) | Work::Collective(_) => unreachable_work(),
        })
    }

    /// Runs a collective operation. Returns a request if it continues in the background.
    #[pyo3(signature = (name, own=None, into=None, *, root=0, op=None, sent=None, received=None, counts=None, background=false))]
    #[allow(clippy::too_many_arguments)]
    fn collective(
        slf: &Bound<'_, Self>,
        name: &str,
        own: Option<&Bound<'_, PyAny>>,
        into: Option<&Bound<'_, PyAny>>,
        root: i64,
        op: Option<&Op>,
        sent: Option<Vec<(usize, usize)>>,
        received: Option<Vec<(usize, usize)>>,
        counts: Option<Vec<usize>>,
        background: bool,
    ) -> PyResult<Option<Request>> {
        let own = own.map(|own| Memory::to(own, false)).transpose()?;
        let into = into.map(|into| Memory::to(into, true)).transpose()?;
        let datatype = own_type(slf.py(), own.as_ref(), into.as_ref(), op.is_some())?;
        let mut job = Job {
            kind: Kind::of(name)?,
            own,
            into,
            sent: ranges(sent)?,
            received: ranges(received)?,
            counts: counts.unwrap_or_default(),
            root: number(root, "rank")?,
            datatype,
            operation: op.map_or(Operation::Sum, |op| op.operation.clone()),
        };
        if background {
            let started = Request::start(slf, Work::Collective(Box::new(job)), |scope, work| match work {
                Work::Collective(job) => job.start(scope),
                Work::In(_) | Work::Out(_) => unreachable_work(),
            });
            return started.map(Some);
        }
        slf.get().with(slf.py(), |comm| job.run(comm)).map(|()| None)
    }

    /// Returns a communicator of the ranks with the same color, ordered by key. Returns `None` on a rank without a
    /// color.
    fn split(&self, py: Python<'_>, color: Option<u32>, key: i64) -> PyResult<Option<Self>> {
        let part = self.with(py, |comm| comm.split(color, key))?;
        Ok(part.map(|part| self.part(part)))
    }

    /// Returns a communicator of the surviving ranks.
    fn shrink(&self, py: Python<'_>) -> PyResult<Self> {
        self.with(py, Inner::shrink).map(|left| self.part(left))
    }
}
