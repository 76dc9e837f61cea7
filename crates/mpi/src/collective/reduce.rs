//! Reductions.

use std::ffi::c_int;
use std::sync::Arc;

use dayfly_comm::{Datatype as Element, Operation};

use crate::collective::exchange::in_place;
use crate::collective::inter::{self, Part, Values};
use crate::collective::{Kept, Mode, Side, collectives, is_root, plan, run};
use crate::communicator::{self, CommObject};
use crate::datatype::count_of;
use crate::error::{Error, Result, class};
use crate::handle::{Comm, Count, Datatype, Op, PROC_NULL, ROOT};
use crate::op::reduction;
use crate::pointer::{Buffer, In};
use crate::request::Active;

/// The arguments that all reductions share, checked.
#[derive(Clone)]
struct Terms {
    /// The elements to combine.
    from: Side,
    into: Buffer,
    in_place: bool,
    element: Element,
    /// Bytes of one element for the engine, and whether the program's memory serves.
    bytes: usize,
    is_direct: bool,
}

impl Terms {
    /// `count` elements from `from`, or from `into` in place.
    fn new(from: Buffer, into: Buffer, count: Count, datatype: Datatype, op: Op) -> Result<(Self, Operation)> {
        let in_place = from.is_in_place();
        let from = Side::new(if in_place { into } else { from }, count, datatype)?;
        let by = reduction(op, datatype, &from.of)?;
        let terms = Self {
            from,
            into,
            in_place,
            element: by.element,
            bytes: by.bytes,
            is_direct: by.is_direct,
        };
        Ok((terms, by.operation))
    }

    fn length(&self) -> Result<usize> {
        let length = self.bytes.checked_mul(self.from.count);
        length.ok_or_else(|| Error::new(class::COUNT, "the arrays are longer than memory"))
    }

    /// A copy of the elements, as the engine combines them.
    fn copy(&self) -> Result<Vec<u8>> {
        match self.is_direct {
            true => Ok(self.from.buffer.bytes(self.length()?).to_vec()),
            false => self.from.packed(),
        }
    }

    /// What is kept for a reduction whose result has `room` bytes. The engine works in the program's memory, if it may.
    fn keep(&self, by: Operation, room: usize) -> Result<Kept> {
        Ok(Kept {
            send: if self.reads_own() { Vec::new() } else { self.copy()? },
            receive: if self.is_direct { Vec::new() } else { vec![0; room] },
            operation: Some(by),
            ..Kept::default()
        })
    }

    /// Whether the engine reads the program's elements where they are.
    fn reads_own(&self) -> bool {
        self.is_direct && !self.in_place
    }

    /// The elements to combine.
    fn source(&self, kept: &'static [u8], length: usize) -> &'static [u8] {
        match self.reads_own() {
            true => self.from.buffer.bytes(length),
            false => kept,
        }
    }

    /// Where the result arrives.
    fn target(&self, kept: &'static mut [u8], length: usize) -> &'static mut [u8] {
        match self.is_direct {
            true => self.into.bytes_mut(length),
            false => kept,
        }
    }

    /// Writes a result of `count` elements that has not arrived in the program's memory.
    fn finish(&self, kept: &[u8], count: usize) {
        if !self.is_direct {
            self.put(kept, count);
        }
    }

    /// Writes `count` combined elements to the result.
    fn put(&self, combined: &[u8], count: usize) {
        if self.is_direct {
            self.into.bytes_mut(combined.len()).copy_from_slice(combined);
        } else {
            self.from.of.unpack(combined, self.into, count);
        }
    }
}

/// The operation that is kept for a reduction.
fn operation(kept: &'static Option<Operation>) -> &'static Operation {
    kept.as_ref().unwrap_or(&Operation::Sum)
}

/// Reduces to a root.
fn reduce((terms, by): (Terms, Operation), root: c_int, comm: Arc<CommObject>, mode: Mode) -> Result<Active> {
    let is_root = is_root(&comm, root)?;
    let (length, element) = (terms.length()?, terms.element);
    let kept = terms.keep(by, if is_root { length } else { 0 })?;
    let at_end = terms.clone();
    run(
        mode,
        comm,
        kept,
        move |scope, kept| {
            let own = terms.source(&kept.send, length);
            let result = match is_root {
                true => terms.target(&mut kept.receive, length),
                false => &mut [],
            };
            scope.ireduce_from(own, result, element, operation(&kept.operation), root as u32)
        },
        move |kept| {
            if is_root {
                at_end.finish(&kept.receive, at_end.from.count);
            }
            Ok(())
        },
    )
}

fn scan((terms, by): (Terms, Operation), comm: Comm, mode: Mode) -> Result<Active> {
    let comm = communicator::get_intra(comm)?;
    let kept = Kept {
        receive: terms.copy()?,
        operation: Some(by),
        ..Kept::default()
    };
    let element = terms.element;
    run(
        mode,
        comm,
        kept,
        move |scope, kept| scope.iscan(&mut kept.receive, element, operation(&kept.operation)),
        move |kept| {
            terms.put(&kept.receive, terms.from.count);
            Ok(())
        },
    )
}

/// The values of a reduction between two groups.
fn values(terms: &Terms, operation: Operation) -> Result<Values> {
    if terms.in_place {
        return Err(in_place());
    }
    Ok(Values {
        bytes: terms.copy()?,
        operation,
        element: terms.element,
    })
}

/// Reduces the values of the other group at every rank of this one.
fn allreduce_between((terms, by): (Terms, Operation), comm: Arc<CommObject>) -> Result<Active> {
    let values = values(&terms, by)?;
    let (others, length) = (comm.remote()?.size() as usize, terms.length()?);
    let sent: Vec<_> = (0..others).map(|rank| (rank, 0..length)).collect();
    inter::reduce(comm, values, &sent, 0..others, length, move |combined| {
        terms.put(combined, terms.from.count)
    })
}

fn reduce_between((terms, by): (Terms, Operation), comm: Arc<CommObject>, root: c_int) -> Result<Active> {
    let others = comm.remote()?.size() as usize;
    let length = terms.length()?;
    match inter::part(&comm, root)? {
        Part::Root => {
            let nothing = Values {
                bytes: Vec::new(),
                operation: by,
                element: terms.element,
            };
            inter::reduce(comm, nothing, &[], 0..others, length, move |combined| {
                terms.put(combined, terms.from.count)
            })
        }
        Part::None => inter::exchange(comm, [], []),
        Part::Of(root) => inter::reduce(comm, values(&terms, by)?, &[(root, 0..length)], 0..0, length, |_| ()),
    }
}

/// Each rank sends all blocks to all ranks of the other group, whose blocks are a split of the same values.
fn reduce_scatter_between((terms, by): (Terms, Operation), counts: &[usize], comm: Arc<CommObject>) -> Result<Active> {
    let own = counts[comm.rank() as usize];
    let others = comm.remote()?.size() as usize;
    // The other group's counts are known to it alone: every rank gets all values, and keeps its block.
    let length = terms.length()?;
    let start: usize = counts[..comm.rank() as usize].iter().sum::<usize>() * terms.bytes;
    let sent: Vec<_> = (0..others).map(|rank| (rank, 0..length)).collect();
    let values = values(&terms, by)?;
    inter::reduce(comm, values, &sent, 0..others, length, move |combined| {
        terms.put(&combined[start..start + own * terms.bytes], own);
    })
}

fn allreduce((terms, by): (Terms, Operation), comm: Comm, mode: Mode) -> Result<Active> {
    let comm = communicator::get(comm)?;
    if comm.is_inter() {
        return allreduce_between((terms, by), comm);
    }
    let (length, element) = (terms.length()?, terms.element);
    let kept = terms.keep(by, length)?;
    let at_end = terms.clone();
    run(
        mode,
        comm,
        kept,
        move |scope, kept| {
            let own = terms.source(&kept.send, length);
            let result = terms.target(&mut kept.receive, length);
            scope.iallreduce(own, result, element, operation(&kept.operation))
        },
        move |kept| {
            at_end.finish(&kept.receive, at_end.from.count);
            Ok(())
        },
    )
}

fn exscan((terms, by): (Terms, Operation), comm: Comm, mode: Mode) -> Result<Active> {
    let comm = communicator::get_intra(comm)?;
    let kept = Kept {
        send: terms.copy()?,
        receive: vec![0; terms.length()?],
        operation: Some(by),
        ..Kept::default()
    };
    // The first rank has no result.
    let (has_result, element) = (comm.rank() > 0, terms.element);
    run(
        mode,
        comm,
        kept,
        move |scope, kept| scope.iexscan(&kept.send, &mut kept.receive, element, operation(&kept.operation)),
        move |kept| {
            if has_result {
                terms.put(&kept.receive, terms.from.count);
            }
            Ok(())
        },
    )
}

fn reduce_scatter((terms, by): (Terms, Operation), counts: &[usize], comm: Comm, mode: Mode) -> Result<Active> {
    let object = communicator::get(comm)?;
    let own = counts[object.rank() as usize];
    if object.is_inter() {
        return reduce_scatter_between((terms, by), counts, object);
    }
    let (all, length, element) = (terms.length()?, own * terms.bytes, terms.element);
    let kept = Kept {
        counts: counts.iter().map(|count| count * terms.bytes).collect(),
        ..terms.keep(by, length)?
    };
    let at_end = terms.clone();
    run(
        mode,
        object,
        kept,
        move |scope, kept| {
            let values = terms.source(&kept.send, all);
            let result = terms.target(&mut kept.receive, length);
            scope.ireduce_scatter(values, result, &kept.counts, element, operation(&kept.operation))
        },
        move |kept| {
            at_end.finish(&kept.receive, own);
            Ok(())
        },
    )
}

fn size(comm: Comm) -> Result<usize> {
    Ok(communicator::get(comm)?.size() as usize)
}

collectives! {
    fn MPI_Allreduce MPI_Allreduce_c MPI_Iallreduce MPI_Iallreduce_c MPI_Allreduce_init MPI_Allreduce_init_c (
        from: Buffer, into: Buffer, count: N, datatype: Datatype, op: Op, comm: Comm
    ) [comm] {
        let terms = Terms::new(from, into, count as Count, datatype, op)?;
        plan(move |mode| allreduce(terms.clone(), comm, mode))
    }

    fn MPI_Reduce MPI_Reduce_c MPI_Ireduce MPI_Ireduce_c MPI_Reduce_init MPI_Reduce_init_c (
        from: Buffer, into: Buffer, count: N, datatype: Datatype, op: Op, root: c_int, comm: Comm
    ) [comm] {
        let object = communicator::get(comm)?;
        // Where a rank has no part, its arguments mean nothing.
        let has_part = !object.is_inter() || root != PROC_NULL;
        let from = if object.is_inter() && root == ROOT { into } else { from };
        let terms = match has_part {
            true => Some(Terms::new(from, into, count as Count, datatype, op)?),
            false => None,
        };
        if !object.is_inter() {
            is_root(&object, root)?;
        }
        plan(move |mode| match terms.clone() {
            None => inter::exchange(object.clone(), [], []),
            Some(terms) if object.is_inter() => reduce_between(terms, object.clone(), root),
            Some(terms) => reduce(terms, root, object.clone(), mode),
        })
    }

    fn MPI_Scan MPI_Scan_c MPI_Iscan MPI_Iscan_c MPI_Scan_init MPI_Scan_init_c (
        from: Buffer, into: Buffer, count: N, datatype: Datatype, op: Op, comm: Comm
    ) [comm] {
        let terms = Terms::new(from, into, count as Count, datatype, op)?;
        plan(move |mode| scan(terms.clone(), comm, mode))
    }

    fn MPI_Exscan MPI_Exscan_c MPI_Iexscan MPI_Iexscan_c MPI_Exscan_init MPI_Exscan_init_c (
        from: Buffer, into: Buffer, count: N, datatype: Datatype, op: Op, comm: Comm
    ) [comm] {
        let terms = Terms::new(from, into, count as Count, datatype, op)?;
        plan(move |mode| exscan(terms.clone(), comm, mode))
    }

    fn MPI_Reduce_scatter MPI_Reduce_scatter_c MPI_Ireduce_scatter MPI_Ireduce_scatter_c
        MPI_Reduce_scatter_init MPI_Reduce_scatter_init_c (
        from: Buffer, into: Buffer, counts: In<N>, datatype: Datatype, op: Op, comm: Comm
    ) [comm] {
        let counts: Result<Vec<usize>> =
            counts.slice(size(comm)?)?.iter().map(|count| count_of(*count as Count)).collect();
        let counts = counts?;
        let terms = Terms::new(from, into, counts.iter().sum::<usize>() as Count, datatype, op)?;
        plan(move |mode| reduce_scatter(terms.clone(), &counts, comm, mode))
    }

    fn MPI_Reduce_scatter_block MPI_Reduce_scatter_block_c MPI_Ireduce_scatter_block MPI_Ireduce_scatter_block_c
        MPI_Reduce_scatter_block_init MPI_Reduce_scatter_block_init_c (
        from: Buffer, into: Buffer, count: N, datatype: Datatype, op: Op, comm: Comm
    ) [comm] {
        let counts = vec![count_of(count as Count)?; size(comm)?];
        let terms = Terms::new(from, into, counts.iter().sum::<usize>() as Count, datatype, op)?;
        plan(move |mode| reduce_scatter(terms.clone(), &counts, comm, mode))
    }
}
