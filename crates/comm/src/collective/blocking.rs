//! Collectives that return when this rank's part is done.

use std::future::Future;
use std::ops::Range;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use dayfly_protocol::error::Failure;

use super::Run;
use super::start::{Algorithm, Plan};
use crate::datatype::Datatype;
use crate::engine::{Held, Patience};
use crate::group::Communicator;
use crate::operation::Operation;

/// Polls a future to its end, moving the engine meanwhile.
pub fn drive<T>(
    held: &mut Held<'_>,
    what: &'static str,
    future: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    // Dropped before the engine is let go of, by whoever holds it for us.
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    let mut patience = Patience::new(what);
    loop {
        if let Poll::Ready(outcome) = future.as_mut().poll(&mut context) {
            return outcome;
        }
        let seen = held.engine().book.completions;
        while held.engine().book.completions == seen {
            held.step(&mut patience)?;
        }
    }
}

/// All of these return [`dayfly_protocol::error::Code::Mismatch`] when the ranks called different things or with arguments that do
/// not fit together, [`dayfly_protocol::error::Code::RankLost`] when a rank of the communicator is gone,
/// [`dayfly_protocol::error::Code::TimedOut`] when it takes longer than [`crate::Options::deadline`], and
/// [`dayfly_protocol::error::Code::InvalidRequest`] when this rank's own arguments make no sense. After an error buffers hold
/// anything, and further collectives on this communicator may fail.
impl Communicator {
    pub(crate) fn run<'a, A: Algorithm<'a>>(&'a self, plan: Result<Plan<A>, Failure>) -> Result<(), Failure> {
        let Plan { call, what, run } = plan?;
        let mut held = self.core.hold();
        let address = held.engine().begin(self.record, call)?;
        let own = Run::new(&self.core, &self.members, self.rank as usize, address);
        drive(&mut held, what, run(own))
    }

    /// Returns when all ranks have called it.
    pub fn barrier(&self) -> Result<(), Failure> {
        self.run(self.plan_barrier())
    }

    /// Gives everybody the root's bytes.
    pub fn bcast(&self, buffer: &mut [u8], root: u32) -> Result<(), Failure> {
        self.run(self.plan_bcast(buffer, root))
    }

    /// Gives the root everybody's bytes, in the order of the ranks; all give equally many. `into` matters at the root only.
    pub fn gather(&self, own: &[u8], into: &mut [u8], root: u32) -> Result<(), Failure> {
        self.run(self.plan_gather(own, into, root))
    }

    /// As [`Communicator::gather`], of blocks of any length: the root says where in `into` each rank's belongs.
    pub fn gatherv(&self, own: &[u8], into: &mut [u8], blocks: &[Range<usize>], root: u32) -> Result<(), Failure> {
        self.run(self.plan_gatherv(own, into, blocks, root))
    }

    /// Gives everybody its part of the root's bytes; all get equally many. `all` matters at the root only.
    pub fn scatter(&self, all: &[u8], into: &mut [u8], root: u32) -> Result<(), Failure> {
        self.run(self.plan_scatter(all, into, root))
    }

    /// As [`Communicator::scatter`], of blocks of any length: the root says which part of `all` belongs to whom.
    pub fn scatterv(&self, all: &[u8], blocks: &[Range<usize>], into: &mut [u8], root: u32) -> Result<(), Failure> {
        self.run(self.plan_scatterv(all, blocks, into, root))
    }

    /// Gives everybody everybody's bytes, in the order of the ranks; all give equally many.
    pub fn allgather(&self, own: &[u8], into: &mut [u8]) -> Result<(), Failure> {
        self.run(self.plan_allgather(own, into))
    }

    /// As [`Communicator::allgather`], of blocks of any length: where in `into` each rank's belongs, the same on all ranks.
    pub fn allgatherv(&self, own: &[u8], into: &mut [u8], blocks: &[Range<usize>]) -> Result<(), Failure> {
        self.run(self.plan_allgatherv(own, into, blocks))
    }

    /// Sends everybody the block of `from` that has its number, and receives everybody's; all are equally long.
    pub fn alltoall(&self, from: &[u8], into: &mut [u8]) -> Result<(), Failure> {
        self.run(self.plan_alltoall(from, into))
    }

    /// As [`Communicator::alltoall`], of blocks of any length: which part of `from` goes to whom, and where in `into` belongs what
    /// comes from whom.
    pub fn alltoallv(
        &self,
        from: &[u8],
        sent: &[Range<usize>],
        into: &mut [u8],
        received: &[Range<usize>],
    ) -> Result<(), Failure> {
        self.run(self.plan_alltoallv(from, sent, into, received))
    }

    /// Combines everybody's buffers, element by element, in the root's; the others' are spoiled.
    pub fn reduce(
        &self,
        buffer: &mut [u8],
        datatype: Datatype,
        operation: &Operation,
        root: u32,
    ) -> Result<(), Failure> {
        self.run(self.plan_reduce(buffer, datatype, operation, root))
    }

    /// Combines everybody's elements, and gives everybody the result.
    pub fn allreduce(
        &self,
        own: &[u8],
        into: &mut [u8],
        datatype: Datatype,
        operation: &Operation,
    ) -> Result<(), Failure> {
        self.run(self.plan_allreduce(own, into, datatype, operation))
    }

    /// Combines everybody's elements, and gives everybody a block of the result; `counts` says how many bytes each rank gets.
    pub fn reduce_scatter(
        &self,
        from: &[u8],
        into: &mut [u8],
        counts: &[usize],
        datatype: Datatype,
        operation: &Operation,
    ) -> Result<(), Failure> {
        self.run(self.plan_reduce_scatter(from, into, counts, datatype, operation))
    }

    /// As [`Communicator::reduce_scatter`], of blocks that are all as long as `into`.
    pub fn reduce_scatter_block(
        &self,
        from: &[u8],
        into: &mut [u8],
        datatype: Datatype,
        operation: &Operation,
    ) -> Result<(), Failure> {
        let counts = vec![into.len(); self.members.len()];
        self.reduce_scatter(from, into, &counts, datatype, operation)
    }

    /// Combines the buffers of the ranks up to this one, in this one's.
    pub fn scan(&self, buffer: &mut [u8], datatype: Datatype, operation: &Operation) -> Result<(), Failure> {
        self.run(self.plan_scan(buffer, datatype, operation))
    }

    /// Combines the elements of the ranks before this one. Rank 0's `into` is left alone.
    pub fn exscan(
        &self,
        own: &[u8],
        into: &mut [u8],
        datatype: Datatype,
        operation: &Operation,
    ) -> Result<(), Failure> {
        self.run(self.plan_exscan(own, into, datatype, operation))
    }
}
