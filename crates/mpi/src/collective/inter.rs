//! Collectives of intercommunicators: bytes of one group go to the other.
//!
//! Each is one exchange among the ranks of both groups, in which a rank names what it sends and what it receives. So a
//! rank without a part need not know who the root is.

use std::ffi::c_int;
use std::ops::Range;
use std::sync::Arc;

use dayfly_comm::{Datatype as Element, Operation};

use crate::collective::blocks::Blocks;
use crate::collective::exchange::{Pieces, exchange_among};
use crate::collective::{Kept, Mode, Side, launch};
use crate::communicator::CommObject;
use crate::error::{Error, Result, class};
use crate::handle::{PROC_NULL, ROOT};
use crate::request::Active;

/// The part of a rank in a collective with a root.
pub enum Part {
    Root,
    /// In the root's group.
    None,
    /// In the other group; the root's rank there.
    Of(usize),
}

/// Checks the root.
pub fn part(comm: &CommObject, root: c_int) -> Result<Part> {
    match root {
        ROOT => Ok(Part::Root),
        PROC_NULL => Ok(Part::None),
        root if (0..comm.remote()?.size() as c_int).contains(&root) => Ok(Part::Of(root as usize)),
        root => Err(Error::new(class::ROOT, format!("the other group has no root {root}"))),
    }
}

fn pieces(comm: &CommObject, sides: impl IntoIterator<Item = (usize, Side)>) -> Result<Pieces> {
    let (mut all, mut ranks) = (Vec::new(), Vec::new());
    for (rank, side) in sides {
        all.push(side);
        ranks.push(comm.merged_rank(rank)?);
    }
    Ok(Pieces { all, ranks })
}

fn remote_size(comm: &CommObject) -> Result<usize> {
    Ok(comm.remote()?.size() as usize)
}

/// Exchanges sides with ranks of the other group.
pub fn exchange(
    comm: Arc<CommObject>,
    sent: impl IntoIterator<Item = (usize, Side)>,
    received: impl IntoIterator<Item = (usize, Side)>,
) -> Result<Active> {
    let (sent, received) = (pieces(&comm, sent)?, pieces(&comm, received)?);
    exchange_among(comm, Some(sent), received, Mode::GoesOn)
}

pub fn bcast(comm: Arc<CommObject>, side: Side, root: c_int) -> Result<Active> {
    match part(&comm, root)? {
        Part::Root => {
            let sent: Vec<_> = (0..remote_size(&comm)?).map(|rank| (rank, side.clone())).collect();
            exchange(comm, sent, [])
        }
        Part::None => exchange(comm, [], []),
        Part::Of(root) => exchange(comm, [], [(root, side)]),
    }
}

/// All blocks with their ranks.
fn ranked(blocks: Blocks) -> impl Iterator<Item = (usize, Side)> {
    blocks.all().into_iter().enumerate()
}

pub fn gather(comm: Arc<CommObject>, own: Option<Side>, all: Option<Blocks>, root: c_int) -> Result<Active> {
    match (part(&comm, root)?, own, all) {
        (Part::Root, _, Some(all)) => exchange(comm, [], ranked(all)),
        (Part::Of(root), Some(own), _) => exchange(comm, [(root, own)], []),
        _ => exchange(comm, [], []),
    }
}

pub fn scatter(comm: Arc<CommObject>, all: Option<Blocks>, own: Option<Side>, root: c_int) -> Result<Active> {
    match (part(&comm, root)?, own, all) {
        (Part::Root, _, Some(all)) => exchange(comm, ranked(all), []),
        (Part::Of(root), Some(own), _) => exchange(comm, [], [(root, own)]),
        _ => exchange(comm, [], []),
    }
}

pub fn allgather(comm: Arc<CommObject>, own: Side, all: Blocks) -> Result<Active> {
    let sent: Vec<_> = (0..remote_size(&comm)?).map(|rank| (rank, own.clone())).collect();
    exchange(comm, sent, ranked(all))
}

/// Values of a reduction, as the engine combines them.
pub struct Values {
    pub bytes: Vec<u8>,
    pub operation: Operation,
    pub element: Element,
}

/// Sends a range of the values to each of some ranks, receives as many from each of others, and passes what these have
/// combined in the order of the ranks to a function.
pub fn reduce(
    comm: Arc<CommObject>,
    values: Values,
    sent: &[(usize, Range<usize>)],
    from: Range<usize>,
    length: usize,
    put: impl FnOnce(&[u8]) + Send + 'static,
) -> Result<Active> {
    let size = comm.merged()?.size() as usize;
    let (mut to, mut received) = (vec![0..0; size], vec![0..0; size]);
    for (rank, range) in sent {
        to[comm.merged_rank(*rank)?] = range.clone();
    }
    let count = from.len();
    for (at, rank) in from.enumerate() {
        received[comm.merged_rank(rank)?] = at * length..(at + 1) * length;
    }
    let kept = Kept {
        send: values.bytes,
        receive: vec![0; count * length],
        sent: to,
        received,
        ..Kept::default()
    };
    let (operation, element) = (values.operation, values.element);
    launch(
        comm,
        kept,
        |scope, kept| scope.ialltoallv(&kept.send, &kept.sent, &mut kept.receive, &kept.received),
        move |kept| {
            if length == 0 || count == 0 {
                return Ok(());
            }
            let mut all: Vec<Vec<u8>> = kept.receive.chunks(length).map(<[u8]>::to_vec).collect();
            while let [.., left, right] = &mut all[..] {
                operation.combine(left, right, element);
                let combined = std::mem::take(right);
                all.pop();
                if let Some(last) = all.last_mut() {
                    *last = combined;
                }
            }
            put(&all[0]);
            Ok(())
        },
    )
}
