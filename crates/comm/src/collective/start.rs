//! Checks a collective's arguments on this rank and builds its plan. Blocking and non-blocking operations both run
//! plans.

use std::future::Future;
use std::ops::Range;

use dayfly_protocol::error::{Code, Failure};

use super::{Call, Kind, Reduction, Run, block, hierarchy};
use crate::datatype::Datatype;
use crate::group::Communicator;
use crate::operation::Operation;

/// A collective that has not begun: its call, its name and its algorithm.
pub struct Plan<F> {
    pub call: Call,
    pub what: &'static str,
    pub run: F,
}

impl<F> Plan<F> {
    pub fn new<'a, R>(call: Call, what: &'static str, run: F) -> Result<Self, Failure>
    where
        F: FnOnce(Run<'a>) -> R,
        R: Future<Output = Result<(), Failure>> + Send + 'a,
    {
        Ok(Self { call, what, run })
    }
}

fn invalid(reason: String) -> Failure {
    Failure::new(Code::InvalidRequest, reason)
}

/// Returns an error unless a buffer has the required length.
fn expect(what: &str, found: usize, due: usize) -> Result<(), Failure> {
    match found == due {
        true => Ok(()),
        false => Err(invalid(format!("the {what} has {found} bytes where {due} are due"))),
    }
}

/// The algorithm of a plan.
pub trait Algorithm<'a>: FnOnce(Run<'a>) -> Self::Future {
    type Future: Future<Output = Result<(), Failure>> + Send + 'a;
}

impl<'a, F, R> Algorithm<'a> for F
where
    F: FnOnce(Run<'a>) -> R,
    R: Future<Output = Result<(), Failure>> + Send + 'a,
{
    type Future = R;
}

impl Communicator {
    fn check_root(&self, root: u32) -> Result<usize, Failure> {
        match root < self.size() {
            true => Ok(root as usize),
            false => Err(invalid(format!(
                "there is no root {root} in a communicator of {} ranks",
                self.size()
            ))),
        }
    }

    fn check_blocks(&self, blocks: &[Range<usize>]) -> Result<(), Failure> {
        match blocks.len() == self.size() as usize {
            true => Ok(()),
            false => Err(invalid(format!(
                "{} blocks are given for {} ranks; give one for each",
                blocks.len(),
                self.size()
            ))),
        }
    }

    fn reduction<'a>(
        &self,
        bytes: usize,
        datatype: Datatype,
        operation: &'a Operation,
    ) -> Result<Reduction<'a>, Failure> {
        operation.check(datatype)?;
        let element = operation.element_bytes(datatype);
        if !bytes.is_multiple_of(element) {
            return Err(invalid(format!(
                "{bytes} bytes are no whole number of {}, which have {element} each",
                datatype.name(),
            )));
        }
        Ok(Reduction {
            operation,
            datatype,
            piece: self.table.reduce_piece,
        })
    }

    pub(crate) fn plan_barrier<'a>(&'a self) -> Result<Plan<impl Algorithm<'a>>, Failure> {
        let hosts = self.hosts.as_deref();
        Plan::new(Call::new(Kind::Barrier), "barrier", move |run| async move {
            match hosts {
                None => super::barrier(run).await,
                // Boxed here and below: the future is large, and a poller of the small one must not carry its size.
                Some(hosts) => Box::pin(hierarchy::barrier(run, hosts)).await,
            }
        })
    }

    pub(crate) fn plan_bcast<'a>(
        &'a self,
        buffer: &'a mut [u8],
        root: u32,
    ) -> Result<Plan<impl Algorithm<'a>>, Failure> {
        let (at, table, hosts) = (self.check_root(root)?, self.table, self.hosts.as_deref());
        Plan::new(
            Call::new(Kind::Bcast).of(buffer.len()).rooted(root),
            "bcast",
            move |run| async move {
                match hosts {
                    None => super::bcast(run, buffer, at, table).await,
                    Some(hosts) => Box::pin(hierarchy::bcast(run, hosts, buffer, at, table)).await,
                }
            },
        )
    }

    pub(crate) fn plan_gather<'a>(
        &'a self,
        own: &'a [u8],
        into: &'a mut [u8],
        root: u32,
    ) -> Result<Plan<impl Algorithm<'a>>, Failure> {
        let at = self.check_root(root)?;
        let length = own.len();
        if root == self.rank {
            expect("root's buffer of a gather", into.len(), length * self.members.len())?;
        }
        Plan::new(Call::new(Kind::Gather).of(length).rooted(root), "gather", move |run| {
            super::gather(run, own, into, move |rank| block(rank, length), at)
        })
    }

    pub(crate) fn plan_gatherv<'a>(
        &'a self,
        own: &'a [u8],
        into: &'a mut [u8],
        blocks: &'a [Range<usize>],
        root: u32,
    ) -> Result<Plan<impl Algorithm<'a>>, Failure> {
        let at = self.check_root(root)?;
        if root == self.rank {
            self.check_blocks(blocks)?;
        }
        Plan::new(Call::new(Kind::Gatherv).rooted(root), "gatherv", move |run| {
            super::gather(run, own, into, |rank| blocks[rank].clone(), at)
        })
    }

    pub(crate) fn plan_scatter<'a>(
        &'a self,
        all: &'a [u8],
        into: &'a mut [u8],
        root: u32,
    ) -> Result<Plan<impl Algorithm<'a>>, Failure> {
        let at = self.check_root(root)?;
        let length = into.len();
        if root == self.rank {
            expect("root's buffer of a scatter", all.len(), length * self.members.len())?;
        }
        Plan::new(
            Call::new(Kind::Scatter).of(length).rooted(root),
            "scatter",
            move |run| super::scatter(run, all, into, move |rank| block(rank, length), at),
        )
    }

    pub(crate) fn plan_scatterv<'a>(
        &'a self,
        all: &'a [u8],
        blocks: &'a [Range<usize>],
        into: &'a mut [u8],
        root: u32,
    ) -> Result<Plan<impl Algorithm<'a>>, Failure> {
        let at = self.check_root(root)?;
        if root == self.rank {
            self.check_blocks(blocks)?;
        }
        Plan::new(Call::new(Kind::Scatterv).rooted(root), "scatterv", move |run| {
            super::scatter(run, all, into, |rank| blocks[rank].clone(), at)
        })
    }

    pub(crate) fn plan_allgather<'a>(
        &'a self,
        own: &'a [u8],
        into: &'a mut [u8],
    ) -> Result<Plan<impl Algorithm<'a>>, Failure> {
        expect("buffer of an allgather", into.len(), own.len() * self.members.len())?;
        let table = self.table;
        Plan::new(Call::new(Kind::Allgather).of(own.len()), "allgather", move |run| {
            super::allgather(run, own, into, table)
        })
    }

    pub(crate) fn plan_allgatherv<'a>(
        &'a self,
        own: &'a [u8],
        into: &'a mut [u8],
        blocks: &'a [Range<usize>],
    ) -> Result<Plan<impl Algorithm<'a>>, Failure> {
        self.check_blocks(blocks)?;
        Plan::new(Call::new(Kind::Allgatherv), "allgatherv", move |run| {
            super::allgatherv(run, own, into, |rank| blocks[rank].clone())
        })
    }

    pub(crate) fn plan_alltoall<'a>(
        &'a self,
        from: &'a [u8],
        into: &'a mut [u8],
    ) -> Result<Plan<impl Algorithm<'a>>, Failure> {
        expect("buffer of an alltoall", into.len(), from.len())?;
        if !from.len().is_multiple_of(self.members.len()) {
            return Err(invalid(format!(
                "{} bytes are no {} blocks of the same length",
                from.len(),
                self.members.len()
            )));
        }
        let table = self.table;
        Plan::new(Call::new(Kind::Alltoall).of(from.len()), "alltoall", move |run| {
            super::alltoall(run, from, into, table)
        })
    }

    pub(crate) fn plan_alltoallv<'a>(
        &'a self,
        from: &'a [u8],
        sent: &'a [Range<usize>],
        into: &'a mut [u8],
        received: &'a [Range<usize>],
    ) -> Result<Plan<impl Algorithm<'a>>, Failure> {
        self.check_blocks(sent)?;
        self.check_blocks(received)?;
        Plan::new(Call::new(Kind::Alltoallv), "alltoallv", move |run| {
            super::alltoallv(
                run,
                from,
                into,
                |rank| sent[rank].clone(),
                |rank| received[rank].clone(),
            )
        })
    }

    /// A reduction of `own` into the root's `buffer`, or without `own` of the buffers themselves.
    pub(crate) fn plan_reduce<'a>(
        &'a self,
        own: Option<&'a [u8]>,
        buffer: &'a mut [u8],
        datatype: Datatype,
        operation: &'a Operation,
        root: u32,
    ) -> Result<Plan<impl Algorithm<'a>>, Failure> {
        let at = self.check_root(root)?;
        let length = own.map_or(buffer.len(), <[u8]>::len);
        if root == self.rank {
            expect("root's buffer of a reduce", buffer.len(), length)?;
        }
        let by = self.reduction(length, datatype, operation)?;
        let hosts = self.hosts.as_deref().filter(|hosts| hosts.allow(&by));
        Plan::new(
            Call::new(Kind::Reduce)
                .of(length)
                .rooted(root)
                .reducing(operation, datatype),
            "reduce",
            move |run| async move {
                match (hosts, own) {
                    (None, _) => super::reduce(run, own, buffer, at, by).await,
                    (Some(hosts), None) => Box::pin(hierarchy::reduce(run, hosts, buffer, at, by)).await,
                    (Some(hosts), Some(own)) if run.rank == at => {
                        crate::copy::copy(own, buffer);
                        Box::pin(hierarchy::reduce(run, hosts, buffer, at, by)).await
                    }
                    (Some(hosts), Some(own)) => {
                        let mut copy = own.to_vec();
                        Box::pin(hierarchy::reduce(run, hosts, &mut copy, at, by)).await
                    }
                }
            },
        )
    }

    pub(crate) fn plan_allreduce<'a>(
        &'a self,
        own: &'a [u8],
        into: &'a mut [u8],
        datatype: Datatype,
        operation: &'a Operation,
    ) -> Result<Plan<impl Algorithm<'a>>, Failure> {
        expect("buffer of an allreduce", into.len(), own.len())?;
        let by = self.reduction(own.len(), datatype, operation)?;
        let table = self.table;
        let hosts = self.hosts.as_deref().filter(|hosts| hosts.allow(&by));
        Plan::new(
            Call::new(Kind::Allreduce).of(own.len()).reducing(operation, datatype),
            "allreduce",
            move |run| async move {
                match hosts {
                    None => super::allreduce(run, own, into, by, table).await,
                    Some(hosts) => Box::pin(hierarchy::allreduce(run, hosts, own, into, by, table)).await,
                }
            },
        )
    }

    pub(crate) fn plan_reduce_scatter<'a>(
        &'a self,
        from: &'a [u8],
        into: &'a mut [u8],
        counts: &'a [usize],
        datatype: Datatype,
        operation: &'a Operation,
    ) -> Result<Plan<impl Algorithm<'a>>, Failure> {
        if counts.len() != self.members.len() {
            return Err(invalid(format!(
                "{} lengths are given for {} ranks; give one for each",
                counts.len(),
                self.members.len()
            )));
        }
        let by = self.reduction(into.len(), datatype, operation)?;
        self.reduction(from.len(), datatype, operation)?;
        expect("buffer of a reduce_scatter", from.len(), counts.iter().sum())?;
        expect("result of a reduce_scatter", into.len(), counts[self.rank as usize])?;
        let start = |rank: usize| counts[..rank].iter().sum::<usize>();
        Plan::new(
            Call::new(Kind::ReduceScatter)
                .of(from.len())
                .reducing(operation, datatype),
            "reduce_scatter",
            move |run| super::reduce_scatter(run, from, into, move |rank| start(rank)..start(rank) + counts[rank], by),
        )
    }

    pub(crate) fn plan_scan<'a>(
        &'a self,
        buffer: &'a mut [u8],
        datatype: Datatype,
        operation: &'a Operation,
    ) -> Result<Plan<impl Algorithm<'a>>, Failure> {
        let by = self.reduction(buffer.len(), datatype, operation)?;
        Plan::new(
            Call::new(Kind::Scan).of(buffer.len()).reducing(operation, datatype),
            "scan",
            move |run| super::scan(run, buffer, by),
        )
    }

    pub(crate) fn plan_exscan<'a>(
        &'a self,
        own: &'a [u8],
        into: &'a mut [u8],
        datatype: Datatype,
        operation: &'a Operation,
    ) -> Result<Plan<impl Algorithm<'a>>, Failure> {
        expect("buffer of an exscan", into.len(), own.len())?;
        let by = self.reduction(own.len(), datatype, operation)?;
        Plan::new(
            Call::new(Kind::Exscan).of(own.len()).reducing(operation, datatype),
            "exscan",
            move |run| super::exscan(run, own, into, by),
        )
    }
}
