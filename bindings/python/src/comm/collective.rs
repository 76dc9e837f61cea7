//! Collective operations with their memory, and reduction operations.

use std::ops::Range;

use dayfly_comm::{Communicator, Datatype, Operation, Scope};
use dayfly_protocol::error::{Code, Failure};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::raise;
use crate::memory::Memory;

/// A reduction operation.
#[pyclass(frozen, module = "dayfly._native")]
pub struct Op {
    pub operation: Operation,
}

#[pymethods]
impl Op {
    /// Returns the built-in operation of this name.
    #[staticmethod]
    fn named(name: &str) -> PyResult<Self> {
        let operation = match name {
            "sum" => Operation::Sum,
            "prod" => Operation::Product,
            "min" => Operation::Min,
            "max" => Operation::Max,
            "band" => Operation::BitAnd,
            "bor" => Operation::BitOr,
            "bxor" => Operation::BitXor,
            other => return Err(PyValueError::new_err(format!("there is no operation `{other}`"))),
        };
        Ok(Self { operation })
    }
}

/// Which collective operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Barrier,
    Bcast,
    Gather,
    Scatter,
    Allgather,
    Alltoall,
    Reduce,
    Allreduce,
    ReduceScatter,
}

impl Kind {
    pub fn of(name: &str) -> PyResult<Self> {
        Ok(match name {
            "barrier" => Self::Barrier,
            "bcast" => Self::Bcast,
            "gather" => Self::Gather,
            "scatter" => Self::Scatter,
            "allgather" => Self::Allgather,
            "alltoall" => Self::Alltoall,
            "reduce" => Self::Reduce,
            "allreduce" => Self::Allreduce,
            "reduce_scatter" => Self::ReduceScatter,
            other => return Err(PyValueError::new_err(format!("there is no collective `{other}`"))),
        })
    }
}

/// A collective operation with its memory.
pub struct Job {
    pub kind: Kind,
    pub own: Option<Memory>,
    pub into: Option<Memory>,
    /// Byte range of each rank's block of the input, if the blocks differ in length. `None` for equal blocks.
    pub sent: Option<Vec<Range<usize>>>,
    pub received: Option<Vec<Range<usize>>>,
    /// Length in bytes of each rank's part of a `reduce_scatter`.
    pub counts: Vec<usize>,
    pub root: u32,
    pub datatype: Datatype,
    pub operation: Operation,
}

impl Job {
    fn parts(&mut self) -> (&[u8], &mut [u8]) {
        let own = self.own.as_ref().map_or(&[][..], Memory::bytes);
        let into = self.into.as_mut().map_or(&mut [][..], Memory::bytes_mut);
        (own, into)
    }

    pub fn run(&mut self, comm: &Communicator) -> Result<(), Failure> {
        let (root, datatype) = (self.root, self.datatype);
        let (sent, received) = (self.sent.take(), self.received.take());
        let counts = std::mem::take(&mut self.counts);
        let operation = self.operation.clone();
        let kind = self.kind;
        let (own, into) = self.parts();
        match (kind, &sent, &received) {
            (Kind::Barrier, ..) => comm.barrier(),
            (Kind::Bcast, ..) => comm.bcast(into, root),
            (Kind::Gather, _, None) => comm.gather(own, into, root),
            (Kind::Gather, _, Some(blocks)) => comm.gatherv(own, into, blocks, root),
            (Kind::Scatter, None, _) => comm.scatter(own, into, root),
            (Kind::Scatter, Some(blocks), _) => comm.scatterv(own, blocks, into, root),
            (Kind::Allgather, _, None) => comm.allgather(own, into),
            (Kind::Allgather, _, Some(blocks)) => comm.allgatherv(own, into, blocks),
            (Kind::Alltoall, Some(sent), Some(received)) => comm.alltoallv(own, sent, into, received),
            (Kind::Alltoall, ..) => comm.alltoall(own, into),
            (Kind::Reduce, ..) => comm.reduce(into, datatype, &operation, root),
            (Kind::Allreduce, ..) => comm.allreduce(own, into, datatype, &operation),
            (Kind::ReduceScatter, ..) => comm.reduce_scatter(own, into, &counts, datatype, &operation),
        }
    }

    /// Starts the operation in the background.
    pub fn start<'env>(&'env mut self, scope: &Scope<'env>) -> Result<dayfly_comm::Request, Failure> {
        let Self {
            kind,
            own,
            into,
            sent,
            received,
            counts,
            root,
            datatype,
            operation,
        } = self;
        let own = own.as_ref().map_or(&[][..], Memory::bytes);
        let into = into.as_mut().map_or(&mut [][..], Memory::bytes_mut);
        let (root, datatype) = (*root, *datatype);
        match (*kind, sent, received) {
            (Kind::Barrier, ..) => scope.ibarrier(),
            (Kind::Bcast, ..) => scope.ibcast(into, root),
            (Kind::Gather, _, None) => scope.igather(own, into, root),
            (Kind::Gather, _, Some(blocks)) => scope.igatherv(own, into, blocks, root),
            (Kind::Scatter, None, _) => scope.iscatter(own, into, root),
            (Kind::Scatter, Some(blocks), _) => scope.iscatterv(own, blocks, into, root),
            (Kind::Allgather, _, None) => scope.iallgather(own, into),
            (Kind::Allgather, _, Some(blocks)) => scope.iallgatherv(own, into, blocks),
            (Kind::Alltoall, Some(sent), Some(received)) => scope.ialltoallv(own, sent, into, received),
            (Kind::Alltoall, ..) => scope.ialltoall(own, into),
            (Kind::Reduce, ..) => scope.ireduce(into, datatype, operation, root),
            (Kind::Allreduce, ..) => scope.iallreduce(own, into, datatype, operation),
            (Kind::ReduceScatter, ..) => scope.ireduce_scatter(own, into, counts, datatype, operation),
        }
    }
}

/// Returns the datatype of two buffers without an explicit datatype. If the elements are reduced, both types must be
/// equal.
pub fn own_type(py: Python<'_>, own: Option<&Memory>, into: Option<&Memory>, combined: bool) -> PyResult<Datatype> {
    let of = |memory: Option<&Memory>| memory.and_then(Memory::element);
    if let (true, Some(sent), Some(received)) = (combined, of(own), of(into))
        && sent != received
    {
        let message = format!(
            "elements of type {} are combined into {}; both must be the same",
            sent.name(),
            received.name()
        );
        return Err(raise(py, Code::InvalidRequest, &message));
    }
    Ok(of(into).or(of(own)).unwrap_or(Datatype::Bytes))
}
