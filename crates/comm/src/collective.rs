//! Collective operations.
//!
//! Each algorithm is written once, as an asynchronous function over sends and receives that the engine drives. A
//! blocking operation polls it to its end in place. A non-blocking operation is polled whenever its rank waits for
//! anything.
//!
//! All messages of a collective carry its number on the communicator and the call ([`Call`]). See [`crate::engine`] for
//! what happens when ranks disagree.
//!
//! Sources that the modules name: \[TRG\] Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication
//! Operations in MPICH", 2005; \[B\] Bruck et al., "Efficient Algorithms for All-to-All Communications in Multiport
//! Message-Passing Systems", 1997; \[HFM\] Hensgen, Finkel, Manber, "Two Algorithms for Barrier Synchronization", 1988.

mod allgather;
mod alltoall;
mod blocking;
mod broadcast;
mod call;
mod gather;
mod hierarchy;
mod op;
mod reduce;
mod reduce_scatter;
mod scan;
mod start;

use std::ops::Range;

use dayfly_protocol::error::{Code, Failure};

pub use call::{Call, Kind};
pub use op::{Op, Run};

pub use allgather::{allgather, allgatherv};
pub use alltoall::{alltoall, alltoallv};
pub use broadcast::{barrier, bcast};
pub use gather::{gather, scatter};
pub use hierarchy::Hosts;
pub use reduce::{Reduction, allreduce, reduce};
pub use reduce_scatter::reduce_scatter;
pub use scan::{exscan, scan};
pub use start::{Algorithm, Plan};

/// Byte range of a rank's block, for blocks of equal length.
fn block(rank: usize, length: usize) -> Range<usize> {
    rank * length..(rank + 1) * length
}

/// Two disjoint parts of a buffer. Returns an error if they overlap.
fn apart(buffer: &mut [u8], one: Range<usize>, other: Range<usize>) -> Result<(&mut [u8], &mut [u8]), Failure> {
    match buffer.get_disjoint_mut([one, other]) {
        Ok([one, other]) => Ok((one, other)),
        Err(error) => Err(Failure::new(
            Code::InvalidRequest,
            format!("the blocks of a buffer overlap, or lie outside of it: {error}"),
        )),
    }
}

/// Byte range of block `number` when `bytes` bytes are split as evenly as possible, at multiples of `element` bytes.
fn share(number: usize, blocks: usize, bytes: usize, element: usize) -> Range<usize> {
    let elements = bytes / element;
    let start = |number: usize| (elements as u128 * number as u128 / blocks as u128) as usize * element;
    start(number)..start(number + 1)
}
