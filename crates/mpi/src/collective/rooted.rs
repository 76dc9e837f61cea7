//! Barrier, broadcast, gather and scatter.

use std::ffi::c_int;
use std::sync::Arc;

use crate::collective::blocks::Blocks;
use crate::collective::exchange::in_place;
use crate::collective::{Kept, Mode, Side, collectives, inter, is_root, nothing, plan, run};
use crate::communicator::{self, CommObject};
use crate::error::Result;
use crate::face::mpi;
use crate::handle::{Comm, Count, Datatype, Info, PROC_NULL, ROOT, Request};
use crate::info;
use crate::pointer::{Buffer, In, Out};
use crate::request::{self, Active};

/// Runs or starts a barrier.
pub fn barrier(mode: Mode, comm: Arc<CommObject>) -> Result<Active> {
    run(mode, comm, Kept::default(), |scope, _| scope.ibarrier(), nothing)
}

fn bcast(side: Side, root: c_int, comm: Comm, mode: Mode) -> Result<Active> {
    let comm = communicator::get(comm)?;
    if comm.is_inter() {
        return inter::bcast(comm, side, root);
    }
    let sends = is_root(&comm, root)?;
    let kept = Kept {
        receive: side.source_copy()?,
        ..Kept::default()
    };
    let target = side.clone();
    run(
        mode,
        comm,
        kept,
        move |scope, kept| scope.ibcast(target.target(&mut kept.receive), root as u32),
        move |kept| {
            if !sends {
                side.unpack(&kept.receive);
            }
            Ok(())
        },
    )
}

/// Whether all blocks of a collective have one length.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lengths {
    Equal,
    Any,
}

/// Gathers to a root; `all` is used there only. `own` is `None` in place.
fn gather(
    lengths: Lengths,
    own: Option<Side>,
    all: Option<Blocks>,
    root: c_int,
    comm: Comm,
    mode: Mode,
) -> Result<Active> {
    let comm = communicator::get(comm)?;
    if comm.is_inter() {
        return inter::gather(comm, own, all, root);
    }
    let mut kept = Kept::default();
    match (&own, &all) {
        (Some(own), _) => kept.send = own.source_copy()?,
        // In place, the root's block is in the result already.
        (None, Some(all)) => kept.send = all.block(comm.rank() as usize).packed()?,
        (None, None) => {}
    }
    if let Some(all) = &all {
        (kept.received, kept.receive) = all.to_receive();
    }
    let target = all.clone();
    run(
        mode,
        comm,
        kept,
        move |scope, kept| {
            let source = match &own {
                Some(own) => own.source(&kept.send),
                None => &kept.send[..],
            };
            let into = match &target {
                Some(all) => all.target(&mut kept.receive),
                None => &mut [],
            };
            match lengths {
                Lengths::Equal => scope.igather(source, into, root as u32),
                Lengths::Any => scope.igatherv(source, into, &kept.received, root as u32),
            }
        },
        move |kept| {
            if let Some(all) = all {
                all.unpack(&kept.receive);
            }
            Ok(())
        },
    )
}

/// Scatters from a root; `all` is used there only. `own` is `None` in place.
fn scatter(
    lengths: Lengths,
    all: Option<Blocks>,
    own: Option<Side>,
    root: c_int,
    comm: Comm,
    mode: Mode,
) -> Result<Active> {
    let comm = communicator::get(comm)?;
    if comm.is_inter() {
        return inter::scatter(comm, all, own, root);
    }
    let mut kept = Kept::default();
    if let Some(all) = &all {
        (kept.sent, kept.send) = all.to_send();
    }
    match (&own, &all) {
        (Some(own), _) => kept.receive = own.target_room()?,
        // In place, the root's block stays where it is; a copy of it is received.
        (None, Some(all)) => kept.receive = vec![0; all.block(comm.rank() as usize).bytes()?],
        (None, None) => {}
    }
    let target = own.clone();
    run(
        mode,
        comm,
        kept,
        move |scope, kept| {
            let source = match &all {
                Some(all) => all.source(&kept.send),
                None => &[],
            };
            let into = match &target {
                Some(own) => own.target(&mut kept.receive),
                None => &mut kept.receive[..],
            };
            match lengths {
                Lengths::Equal => scope.iscatter(source, into, root as u32),
                Lengths::Any => scope.iscatterv(source, &kept.sent, into, root as u32),
            }
        },
        move |kept| {
            if let Some(own) = own {
                own.unpack(&kept.receive);
            }
            Ok(())
        },
    )
}

/// Gathers to all ranks. `own` is `None` in place.
fn allgather(lengths: Lengths, own: Option<Side>, all: Blocks, comm: Comm, mode: Mode) -> Result<Active> {
    let comm = communicator::get(comm)?;
    if comm.is_inter() {
        return inter::allgather(comm, own.ok_or_else(in_place)?, all);
    }
    let send = match &own {
        Some(own) => own.source_copy()?,
        None => all.block(comm.rank() as usize).packed()?,
    };
    let (received, receive) = all.to_receive();
    let kept = Kept {
        send,
        receive,
        received,
        ..Kept::default()
    };
    let target = all.clone();
    run(
        mode,
        comm,
        kept,
        move |scope, kept| {
            let source = match &own {
                Some(own) => own.source(&kept.send),
                None => &kept.send[..],
            };
            let into = target.target(&mut kept.receive);
            match lengths {
                Lengths::Equal => scope.iallgather(source, into),
                Lengths::Any => scope.iallgatherv(source, into, &kept.received),
            }
        },
        move |kept| {
            all.unpack(&kept.receive);
            Ok(())
        },
    )
}

/// A side, unless it is `MPI_IN_PLACE`.
fn side(buffer: Buffer, count: Count, datatype: Datatype) -> Result<Option<Side>> {
    match buffer.is_in_place() {
        true => Ok(None),
        false => Side::new(buffer, count, datatype).map(Some),
    }
}

/// As [`side`], of what a rank beside the root has: in the root's group of an intercommunicator, it means nothing.
fn beside_root(root: c_int, comm: Comm, buffer: Buffer, count: Count, datatype: Datatype) -> Result<Option<Side>> {
    match communicator::get(comm)?.is_inter() && matches!(root, ROOT | PROC_NULL) {
        true => Ok(None),
        false => side(buffer, count, datatype),
    }
}

/// The blocks that the root alone has.
fn at_root(root: c_int, comm: Comm, blocks: impl FnOnce(&CommObject) -> Result<Blocks>) -> Result<Option<Blocks>> {
    let object = communicator::get(comm)?;
    let is_root = match object.is_inter() {
        true => root == ROOT,
        false => is_root(&object, root)?,
    };
    match is_root {
        true => blocks(&object).map(Some),
        false => Ok(None),
    }
}

collectives! {
    fn MPI_Bcast MPI_Bcast_c MPI_Ibcast MPI_Ibcast_c MPI_Bcast_init MPI_Bcast_init_c (
        buffer: Buffer, count: N, datatype: Datatype, root: c_int, comm: Comm
    ) [comm] {
        let object = communicator::get(comm)?;
        // Where a rank has no part, its arguments mean nothing.
        let side = match object.is_inter() && root == PROC_NULL {
            true => None,
            false => Some(Side::new(buffer, count as Count, datatype)?),
        };
        plan(move |mode| match side.clone() {
            Some(side) => bcast(side, root, comm, mode),
            None => inter::exchange(object.clone(), [], []),
        })
    }

    fn MPI_Gather MPI_Gather_c MPI_Igather MPI_Igather_c MPI_Gather_init MPI_Gather_init_c (
        buffer: Buffer, count: N, datatype: Datatype, into: Buffer, room: N, of: Datatype, root: c_int, comm: Comm
    ) [comm] {
        let all = at_root(root, comm, |object| Blocks::equal(object, into, room as Count, of))?;
        let own = beside_root(root, comm, buffer, count as Count, datatype)?;
        plan(move |mode| gather(Lengths::Equal, own.clone(), all.clone(), root, comm, mode))
    }

    fn MPI_Gatherv MPI_Gatherv_c MPI_Igatherv MPI_Igatherv_c MPI_Gatherv_init MPI_Gatherv_init_c (
        buffer: Buffer, count: N, datatype: Datatype, into: Buffer, counts: In<N>, places: In<D>, of: Datatype,
        root: c_int, comm: Comm
    ) [comm] {
        let all = at_root(root, comm, |object| Blocks::of(object, into, counts, places, of))?;
        let own = beside_root(root, comm, buffer, count as Count, datatype)?;
        plan(move |mode| gather(Lengths::Any, own.clone(), all.clone(), root, comm, mode))
    }

    fn MPI_Scatter MPI_Scatter_c MPI_Iscatter MPI_Iscatter_c MPI_Scatter_init MPI_Scatter_init_c (
        buffer: Buffer, count: N, datatype: Datatype, into: Buffer, room: N, of: Datatype, root: c_int, comm: Comm
    ) [comm] {
        let all = at_root(root, comm, |object| Blocks::equal(object, buffer, count as Count, datatype))?;
        let own = beside_root(root, comm, into, room as Count, of)?;
        plan(move |mode| scatter(Lengths::Equal, all.clone(), own.clone(), root, comm, mode))
    }

    fn MPI_Scatterv MPI_Scatterv_c MPI_Iscatterv MPI_Iscatterv_c MPI_Scatterv_init MPI_Scatterv_init_c (
        buffer: Buffer, counts: In<N>, places: In<D>, datatype: Datatype, into: Buffer, room: N, of: Datatype,
        root: c_int, comm: Comm
    ) [comm] {
        let all = at_root(root, comm, |object| Blocks::of(object, buffer, counts, places, datatype))?;
        let own = beside_root(root, comm, into, room as Count, of)?;
        plan(move |mode| scatter(Lengths::Any, all.clone(), own.clone(), root, comm, mode))
    }

    fn MPI_Allgather MPI_Allgather_c MPI_Iallgather MPI_Iallgather_c MPI_Allgather_init MPI_Allgather_init_c (
        buffer: Buffer, count: N, datatype: Datatype, into: Buffer, room: N, of: Datatype, comm: Comm
    ) [comm] {
        let all = Blocks::equal(&*communicator::get(comm)?, into, room as Count, of)?;
        let own = side(buffer, count as Count, datatype)?;
        plan(move |mode| allgather(Lengths::Equal, own.clone(), all.clone(), comm, mode))
    }

    fn MPI_Allgatherv MPI_Allgatherv_c MPI_Iallgatherv MPI_Iallgatherv_c MPI_Allgatherv_init MPI_Allgatherv_init_c (
        buffer: Buffer, count: N, datatype: Datatype, into: Buffer, counts: In<N>, places: In<D>, of: Datatype,
        comm: Comm
    ) [comm] {
        let all = Blocks::of(&*communicator::get(comm)?, into, counts, places, of)?;
        let own = side(buffer, count as Count, datatype)?;
        plan(move |mode| allgather(Lengths::Any, own.clone(), all.clone(), comm, mode))
    }
}

mpi! {
    fn MPI_Barrier (comm: Comm) [comm] {
        request::finish(barrier(Mode::Waits, communicator::get(comm)?)?, "MPI_Barrier").map(|_| ())
    }

    fn MPI_Ibarrier (comm: Comm, request: Out<Request>) [comm] {
        request.check()?.set(request::make(barrier(Mode::GoesOn, communicator::get(comm)?)?));
        Ok(())
    }

    fn MPI_Barrier_init (comm: Comm, info: Info, request: Out<Request>) [comm] {
        info::optional(info)?;
        communicator::get(comm)?;
        request.check()?.set(request::make_persistent(Box::new(move || barrier(Mode::GoesOn, communicator::get(comm)?))));
        Ok(())
    }
}
