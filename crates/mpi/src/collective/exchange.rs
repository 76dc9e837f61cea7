//! All-to-all exchanges.

use std::ops::Range;
use std::sync::Arc;

use crate::collective::blocks::{Blocks, Number};
use crate::collective::{Kept, Mode, Side, collectives, inter, plan, run};
use crate::communicator::{self, CommObject};
use crate::error::{Error, Result, class};
use crate::handle::{Comm, Count, Datatype};
use crate::pointer::{Buffer, In};
use crate::request::Active;

type Ranges = Vec<Range<usize>>;

/// Pieces that are packed into one block for each rank; a rank may have any number of them.
pub struct Pieces {
    pub all: Vec<Side>,
    /// The rank of each piece.
    pub ranks: Vec<usize>,
}

impl Pieces {
    /// One piece for each rank.
    fn each(all: Vec<Side>) -> Self {
        Self {
            ranks: (0..all.len()).collect(),
            all,
        }
    }

    /// Pieces with their places in the packed bytes, and the ranges of the ranks.
    fn layout(&self, size: usize) -> Result<(Ranges, Ranges)> {
        let mut lengths = vec![0; size];
        for (piece, rank) in self.all.iter().zip(&self.ranks) {
            lengths[*rank] += piece.bytes()?;
        }
        let mut end = 0;
        let blocks: Vec<Range<usize>> = lengths
            .iter()
            .map(|length| {
                end += length;
                end - length..end
            })
            .collect();
        let mut next: Vec<usize> = blocks.iter().map(|block| block.start).collect();
        let mut places = Vec::with_capacity(self.all.len());
        for (piece, rank) in self.all.iter().zip(&self.ranks) {
            let start = next[*rank];
            next[*rank] += piece.bytes()?;
            places.push(start..next[*rank]);
        }
        Ok((places, blocks))
    }
}

/// Exchanges pieces, which are packed before and unpacked after. `sent` is `None` in place.
pub fn exchange_pieces(sent: Option<Pieces>, received: Pieces, comm: Comm, mode: Mode) -> Result<Active> {
    exchange_among(communicator::get_intra(comm)?, sent, received, mode)
}

/// As [`exchange_pieces`]; the ranks are those of [`CommObject::merged`].
pub fn exchange_among(comm: Arc<CommObject>, sent: Option<Pieces>, received: Pieces, mode: Mode) -> Result<Active> {
    let size = comm.merged()?.size() as usize;
    let from = sent.as_ref().unwrap_or(&received);
    let (places, sent) = from.layout(size)?;
    let mut packed = vec![0; sent.last().map_or(0, |block| block.end)];
    for (piece, place) in from.all.iter().zip(places) {
        piece.of.pack(piece.buffer, piece.count, &mut packed[place]);
    }
    let (places, blocks) = received.layout(size)?;
    let kept = Kept {
        send: packed,
        receive: vec![0; blocks.last().map_or(0, |block| block.end)],
        sent,
        received: blocks,
        ..Kept::default()
    };
    run(
        mode,
        comm,
        kept,
        |scope, kept| scope.ialltoallv(&kept.send, &kept.sent, &mut kept.receive, &kept.received),
        move |kept| {
            for (piece, place) in received.all.iter().zip(places) {
                piece.of.unpack(&kept.receive[place], piece.buffer, piece.count);
            }
            Ok(())
        },
    )
}

/// `is_equal` says whether all blocks of all ranks have one length.
fn exchange(is_equal: bool, sent: Option<Blocks>, received: Blocks, comm: Comm, mode: Mode) -> Result<Active> {
    let object = communicator::get(comm)?;
    if object.is_inter() {
        let ranked = |blocks: Blocks| blocks.all().into_iter().enumerate();
        let sent = sent.ok_or_else(in_place)?;
        return inter::exchange(object, ranked(sent), ranked(received));
    }
    let Some(sent) = sent else {
        return exchange_pieces(None, Pieces::each(received.all()), comm, mode);
    };
    let mut kept = Kept::default();
    (kept.sent, kept.send) = sent.to_send();
    (kept.received, kept.receive) = received.to_receive();
    let target = received.clone();
    run(
        mode,
        object,
        kept,
        move |scope, kept| {
            let (from, into) = (sent.source(&kept.send), target.target(&mut kept.receive));
            match is_equal {
                true => scope.ialltoall(from, into),
                false => scope.ialltoallv(from, &kept.sent, into, &kept.received),
            }
        },
        move |kept| {
            received.unpack(&kept.receive);
            Ok(())
        },
    )
}

/// The error of a collective in place between two groups.
pub fn in_place() -> Error {
    Error::new(class::ARG, "a collective of an intercommunicator cannot be in place")
}

/// Blocks with displacements in bytes and datatypes of their own.
pub fn sides<N: Number, D: Number>(
    number: usize,
    buffer: Buffer,
    counts: In<N>,
    places: In<D>,
    types: In<Datatype>,
) -> Result<Vec<Side>> {
    let (counts, places, types) = (counts.slice(number)?, places.slice(number)?, types.slice(number)?);
    let side = |at: usize| Side::new(buffer.offset(places[at].wide() as isize), counts[at].wide(), types[at]);
    (0..number).map(side).collect()
}

collectives! {
    fn MPI_Alltoall MPI_Alltoall_c MPI_Ialltoall MPI_Ialltoall_c MPI_Alltoall_init MPI_Alltoall_init_c (
        buffer: Buffer, count: N, datatype: Datatype, into: Buffer, room: N, of: Datatype, comm: Comm
    ) [comm] {
        let object = communicator::get(comm)?;
        let received = Blocks::equal(&object, into, room as Count, of)?;
        let sent = match buffer.is_in_place() {
            true => None,
            false => Some(Blocks::equal(&object, buffer, count as Count, datatype)?),
        };
        plan(move |mode| exchange(true, sent.clone(), received.clone(), comm, mode))
    }

    fn MPI_Alltoallv MPI_Alltoallv_c MPI_Ialltoallv MPI_Ialltoallv_c MPI_Alltoallv_init MPI_Alltoallv_init_c (
        buffer: Buffer, counts: In<N>, places: In<D>, datatype: Datatype,
        into: Buffer, rooms: In<N>, into_places: In<D>, of: Datatype, comm: Comm
    ) [comm] {
        let object = communicator::get(comm)?;
        let received = Blocks::of(&object, into, rooms, into_places, of)?;
        let sent = match buffer.is_in_place() {
            true => None,
            false => Some(Blocks::of(&object, buffer, counts, places, datatype)?),
        };
        plan(move |mode| exchange(false, sent.clone(), received.clone(), comm, mode))
    }

    fn MPI_Alltoallw MPI_Alltoallw_c MPI_Ialltoallw MPI_Ialltoallw_c MPI_Alltoallw_init MPI_Alltoallw_init_c (
        buffer: Buffer, counts: In<N>, places: In<D>, types: In<Datatype>,
        into: Buffer, rooms: In<N>, into_places: In<D>, of: In<Datatype>, comm: Comm
    ) [comm] {
        let object = communicator::get(comm)?;
        let size = object.peers()?.size() as usize;
        let received = sides(size, into, rooms, into_places, of)?;
        let sent = match buffer.is_in_place() {
            true => None,
            false => Some(sides(size, buffer, counts, places, types)?),
        };
        if object.is_inter() && sent.is_none() {
            return Err(in_place());
        }
        plan(move |mode| match &sent {
            Some(sent) if object.is_inter() => {
                let ranked = |sides: &[Side]| sides.iter().cloned().enumerate().collect::<Vec<_>>();
                inter::exchange(object.clone(), ranked(sent), ranked(&received))
            }
            sent => exchange_pieces(sent.clone().map(Pieces::each), Pieces::each(received.clone()), comm, mode),
        })
    }
}
