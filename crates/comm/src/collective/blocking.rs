//! Blocking collectives: they return when this rank's part is done.

use std::future::Future;
use std::ops::Range;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use dayfly_protocol::error::Failure;

use super::Run;
use super::start::{Algorithm, Plan};
use crate::datatype::Datatype;
use crate::engine::{EngineGuard, WaitState};
use crate::group::Communicator;
use crate::nonblocking::Serve;
use crate::operation::Operation;

/// Polls a future to its end, and drives the engine meanwhile.
pub fn drive<T>(
    guard: &mut EngineGuard<'_>,
    what: &'static str,
    future: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    // Dropped before the caller releases the engine.
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    let mut wait_state = WaitState::new(what);
    loop {
        if let Poll::Ready(outcome) = future.as_mut().poll(&mut context) {
            return outcome;
        }
        let seen = guard.engine().matching.completions;
        while guard.engine().matching.completions == seen {
            guard.step(&mut wait_state)?;
        }
    }
}

/// All collectives return [`dayfly_protocol::error::Code::Mismatch`] when ranks called different collectives or with
/// arguments that contradict each other, [`dayfly_protocol::error::Code::RankLost`] when a rank of the communicator is
/// lost, [`dayfly_protocol::error::Code::TimedOut`] after [`crate::Options::deadline`], and
/// [`dayfly_protocol::error::Code::InvalidRequest`] when this rank's own arguments are invalid. After an error the
/// contents of buffers are undefined, and further collectives on this communicator may fail.
impl Communicator {
    pub(crate) fn run<'a, A: Algorithm<'a>>(&'a self, plan: Result<Plan<A>, Failure>) -> Result<(), Failure> {
        let Plan { call, what, run } = plan?;
        let mut guard = self.engine.lock();
        let key = guard.engine().begin(self.record, call)?;
        let own = Run::new(&self.engine, &self.members, self.rank as usize, key);
        drive(&mut guard, what, run(own))
    }

    /// As [`Communicator::run`], and serves other ranks meanwhile.
    pub(crate) fn run_and_serve<'a, A: Algorithm<'a>>(
        &'a self,
        plan: Result<Plan<A>, Failure>,
        serve: Serve,
    ) -> Result<(), Failure> {
        let Plan { call, what, run } = plan?;
        let mut turn = self.turn();
        let key = turn.guard().engine().begin(self.record, call)?;
        let own = Run::new(&self.engine, &self.members, self.rank as usize, key);
        // Dropped before the engine is released.
        let mut future = pin!(run(own));
        let mut context = Context::from_waker(Waker::noop());
        let mut wait_state = WaitState::new(what);
        loop {
            if let Poll::Ready(outcome) = future.as_mut().poll(&mut context) {
                return outcome;
            }
            let seen = turn.guard().engine().matching.completions;
            while turn.guard().engine().matching.completions == seen {
                serve(&mut turn);
                turn.guard().step(&mut wait_state)?;
            }
        }
    }

    /// Waits until all ranks have called it.
    pub fn barrier(&self) -> Result<(), Failure> {
        self.run(self.plan_barrier())
    }

    /// Copies the root's `buffer` to all ranks.
    pub fn bcast(&self, buffer: &mut [u8], root: u32) -> Result<(), Failure> {
        self.run(self.plan_bcast(buffer, root))
    }

    /// Gathers blocks of equal length at the root, in the order of the ranks. `into` is used at the root only.
    pub fn gather(&self, own: &[u8], into: &mut [u8], root: u32) -> Result<(), Failure> {
        self.run(self.plan_gather(own, into, root))
    }

    /// As [`Communicator::gather`], for blocks of any length. At the root, `blocks` gives each rank's byte range in
    /// `into`.
    pub fn gatherv(&self, own: &[u8], into: &mut [u8], blocks: &[Range<usize>], root: u32) -> Result<(), Failure> {
        self.run(self.plan_gatherv(own, into, blocks, root))
    }

    /// Scatters blocks of equal length from the root, in the order of the ranks. `all` is used at the root only.
    pub fn scatter(&self, all: &[u8], into: &mut [u8], root: u32) -> Result<(), Failure> {
        self.run(self.plan_scatter(all, into, root))
    }

    /// As [`Communicator::scatter`], for blocks of any length. At the root, `blocks` gives each rank's byte range in
    /// `all`.
    pub fn scatterv(&self, all: &[u8], blocks: &[Range<usize>], into: &mut [u8], root: u32) -> Result<(), Failure> {
        self.run(self.plan_scatterv(all, blocks, into, root))
    }

    /// Gathers blocks of equal length from every rank to all ranks, in the order of the ranks.
    pub fn allgather(&self, own: &[u8], into: &mut [u8]) -> Result<(), Failure> {
        self.run(self.plan_allgather(own, into))
    }

    /// As [`Communicator::allgather`], for blocks of any length. `blocks` gives each rank's byte range in `into`, equal
    /// on all ranks.
    pub fn allgatherv(&self, own: &[u8], into: &mut [u8], blocks: &[Range<usize>]) -> Result<(), Failure> {
        self.run(self.plan_allgatherv(own, into, blocks))
    }

    /// Sends block `k` of `from` to rank `k`, and receives a block from every rank. All blocks have one length.
    pub fn alltoall(&self, from: &[u8], into: &mut [u8]) -> Result<(), Failure> {
        self.run(self.plan_alltoall(from, into))
    }

    /// As [`Communicator::alltoall`], for blocks of any length: the byte range in `from` for each receiver, and in
    /// `into` for each sender.
    pub fn alltoallv(
        &self,
        from: &[u8],
        sent: &[Range<usize>],
        into: &mut [u8],
        received: &[Range<usize>],
    ) -> Result<(), Failure> {
        self.run(self.plan_alltoallv(from, sent, into, received))
    }

    /// Combines the buffers of all ranks, element by element, in the root's buffer. The other buffers are overwritten.
    pub fn reduce(
        &self,
        buffer: &mut [u8],
        datatype: Datatype,
        operation: &Operation,
        root: u32,
    ) -> Result<(), Failure> {
        self.run(self.plan_reduce(None, buffer, datatype, operation, root))
    }

    /// Combines the elements of all ranks, and copies the result to all ranks.
    pub fn allreduce(
        &self,
        own: &[u8],
        into: &mut [u8],
        datatype: Datatype,
        operation: &Operation,
    ) -> Result<(), Failure> {
        self.run(self.plan_allreduce(own, into, datatype, operation))
    }

    /// Combines the elements of all ranks and scatters the result. `counts` gives the bytes for each rank.
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

    /// As [`Communicator::reduce_scatter`], with blocks of `into.len()` bytes for every rank.
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

    /// Combines the buffers of the ranks up to and including this one, in this rank's buffer.
    pub fn scan(&self, buffer: &mut [u8], datatype: Datatype, operation: &Operation) -> Result<(), Failure> {
        self.run(self.plan_scan(buffer, datatype, operation))
    }

    /// Combines the elements of the ranks before this one. Rank 0's `into` stays unchanged.
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
