//! Collective operations.
//!
//! Each algorithm is written once, as an asynchronous function over sends and receives that the engine moves; a blocking
//! operation polls it to its end where it is called, a non-blocking one is polled whenever its rank waits for anything.
//!
//! All messages of a collective carry its number on the communicator and what was called ([`Call`]); see
//! [`crate::engine`] for what happens when that does not fit together.
//!
//! Sources, where a module names them: \[TRG\] Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations
//! in MPICH", 2005; \[B\] Bruck et al., "Efficient Algorithms for All-to-All Communications in Multiport Message-Passing
//! Systems", 1997; \[HFM\] Hensgen, Finkel, Manber, "Two Algorithms for Barrier Synchronization", 1988.

mod allgather;
mod alltoall;
mod blocking;
mod broadcast;
mod call;
mod gather;
mod levels;
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
pub use levels::Hosts;
pub use reduce::{Reduction, allreduce, reduce};
pub use reduce_scatter::reduce_scatter;
pub use scan::{exscan, scan};
pub use start::{Algorithm, Plan};

/// The part of a buffer that belongs to one rank, of blocks of equal length.
fn block(rank: usize, length: usize) -> Range<usize> {
    rank * length..(rank + 1) * length
}

/// Two parts of a buffer that have nothing in common; the first to read, the second to write.
fn apart(buffer: &mut [u8], read: Range<usize>, write: Range<usize>) -> Result<(&[u8], &mut [u8]), Failure> {
    match buffer.get_disjoint_mut([read, write]) {
        Ok([read, write]) => Ok((read, write)),
        Err(error) => Err(Failure::new(
            Code::InvalidRequest,
            format!("the blocks of a buffer overlap, or lie outside of it: {error}"),
        )),
    }
}

/// Splits `bytes` of elements of `element` bytes into as many blocks as evenly as can be; the block of one of them.
fn share(number: usize, blocks: usize, bytes: usize, element: usize) -> Range<usize> {
    let elements = bytes / element;
    let start = |number: usize| (elements as u128 * number as u128 / blocks as u128) as usize * element;
    start(number)..start(number + 1)
}
