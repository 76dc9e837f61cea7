//! Collectives among neighbours of a topology.

use std::ffi::c_int;

use crate::collective::blocks::Number;
use crate::collective::exchange::{Pieces, exchange_pieces, sides};
use crate::collective::{Mode, Side, collectives, plan};
use crate::communicator;
use crate::error::Result;
use crate::handle::{Aint, Comm, Count, Datatype, PROC_NULL};
use crate::pointer::{Buffer, In};
use crate::request::Active;
use crate::topology::{Topology, neighbours};

/// Numbers of neighbours: those that a rank receives from, and those that it sends to.
fn degrees(comm: Comm) -> Result<(usize, usize)> {
    let (sources, targets) = neighbours(&*communicator::get_intra(comm)?)?;
    Ok((sources.len(), targets.len()))
}

/// Exchanges one piece with each neighbour. Several edges between two ranks keep their order; those of a grid are in the
/// order in which the receiver has them.
fn exchange(mut sent: Vec<Side>, received: Vec<Side>, comm: Comm, mode: Mode) -> Result<Active> {
    let object = communicator::get_intra(comm)?;
    let (sources, mut targets) = neighbours(&object)?;
    if let Some(Topology::Grid(_)) = object.topology.get() {
        // What leaves in the negative direction arrives from the positive one. In a dimension of one or two ranks that
        // wraps, both neighbours are the same rank.
        sent.as_chunks_mut::<2>().0.iter_mut().for_each(|pair| pair.swap(0, 1));
        targets
            .as_chunks_mut::<2>()
            .0
            .iter_mut()
            .for_each(|pair| pair.swap(0, 1));
    }
    let pieces = |sides: Vec<Side>, ranks: Vec<c_int>| {
        let real = sides.into_iter().zip(ranks).filter(|(_, rank)| *rank != PROC_NULL);
        let (all, ranks) = real.map(|(side, rank)| (side, rank as usize)).unzip();
        Pieces { all, ranks }
    };
    exchange_pieces(Some(pieces(sent, targets)), pieces(received, sources), comm, mode)
}

/// Equal pieces in a row.
fn row(buffer: Buffer, count: Count, datatype: Datatype, number: usize) -> Result<Vec<Side>> {
    let side = Side::new(buffer, count, datatype)?;
    Ok((0..number as isize).map(|at| side.from(at * count as isize)).collect())
}

/// Pieces of one datatype at displacements in elements.
fn scattered<N: Number, D: Number>(
    buffer: Buffer,
    counts: In<N>,
    places: In<D>,
    datatype: Datatype,
    number: usize,
) -> Result<Vec<Side>> {
    let (counts, places) = (counts.slice(number)?, places.slice(number)?);
    let base = Side::new(buffer, 0, datatype)?;
    let side = |at: usize| {
        let count = crate::datatype::count_of(counts[at].wide())?;
        Ok(base.from(places[at].wide() as isize).of_count(count))
    };
    (0..number).map(side).collect()
}

collectives! {
    fn MPI_Neighbor_allgather MPI_Neighbor_allgather_c MPI_Ineighbor_allgather MPI_Ineighbor_allgather_c
        MPI_Neighbor_allgather_init MPI_Neighbor_allgather_init_c (
        buffer: Buffer, count: N, datatype: Datatype, into: Buffer, room: N, of: Datatype, comm: Comm
    ) [comm] {
        let (ins, outs) = degrees(comm)?;
        let own = Side::new(buffer, count as Count, datatype)?;
        let (sent, received) = (vec![own; outs], row(into, room as Count, of, ins)?);
        plan(move |mode| exchange(sent.clone(), received.clone(), comm, mode))
    }

    fn MPI_Neighbor_allgatherv MPI_Neighbor_allgatherv_c MPI_Ineighbor_allgatherv MPI_Ineighbor_allgatherv_c
        MPI_Neighbor_allgatherv_init MPI_Neighbor_allgatherv_init_c (
        buffer: Buffer, count: N, datatype: Datatype, into: Buffer, counts: In<N>, places: In<D>, of: Datatype,
        comm: Comm
    ) [comm] {
        let (ins, outs) = degrees(comm)?;
        let own = Side::new(buffer, count as Count, datatype)?;
        let (sent, received) = (vec![own; outs], scattered(into, counts, places, of, ins)?);
        plan(move |mode| exchange(sent.clone(), received.clone(), comm, mode))
    }

    fn MPI_Neighbor_alltoall MPI_Neighbor_alltoall_c MPI_Ineighbor_alltoall MPI_Ineighbor_alltoall_c
        MPI_Neighbor_alltoall_init MPI_Neighbor_alltoall_init_c (
        buffer: Buffer, count: N, datatype: Datatype, into: Buffer, room: N, of: Datatype, comm: Comm
    ) [comm] {
        let (ins, outs) = degrees(comm)?;
        let (sent, received) = (row(buffer, count as Count, datatype, outs)?, row(into, room as Count, of, ins)?);
        plan(move |mode| exchange(sent.clone(), received.clone(), comm, mode))
    }

    fn MPI_Neighbor_alltoallv MPI_Neighbor_alltoallv_c MPI_Ineighbor_alltoallv MPI_Ineighbor_alltoallv_c
        MPI_Neighbor_alltoallv_init MPI_Neighbor_alltoallv_init_c (
        buffer: Buffer, counts: In<N>, places: In<D>, datatype: Datatype,
        into: Buffer, rooms: In<N>, into_places: In<D>, of: Datatype, comm: Comm
    ) [comm] {
        let (ins, outs) = degrees(comm)?;
        let sent = scattered(buffer, counts, places, datatype, outs)?;
        let (sent, received) = (sent, scattered(into, rooms, into_places, of, ins)?);
        plan(move |mode| exchange(sent.clone(), received.clone(), comm, mode))
    }

    fn MPI_Neighbor_alltoallw MPI_Neighbor_alltoallw_c MPI_Ineighbor_alltoallw MPI_Ineighbor_alltoallw_c
        MPI_Neighbor_alltoallw_init MPI_Neighbor_alltoallw_init_c (
        buffer: Buffer, counts: In<N>, places: In<Aint>, types: In<Datatype>,
        into: Buffer, rooms: In<N>, into_places: In<Aint>, of: In<Datatype>, comm: Comm
    ) [comm] {
        let (ins, outs) = degrees(comm)?;
        let (sent, received) = (sides(outs, buffer, counts, places, types)?, sides(ins, into, rooms, into_places, of)?);
        plan(move |mode| exchange(sent.clone(), received.clone(), comm, mode))
    }
}
