//! Which algorithm for which operation, by size and number of ranks.
//!
//! The families and where they cross are those of Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication
//! Operations in MPICH" (2005).

/// Sizes in bytes at which one algorithm gives way to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// Broadcast: a binomial tree below, scatter and allgather from here on, for more than two ranks.
    pub bcast_scatter: usize,
    /// Allgather: Bruck's algorithm below (bytes of the whole result), a ring from here on.
    pub allgather_ring: usize,
    /// Alltoall: Bruck's algorithm below (bytes for each rank), pairwise exchange from here on.
    pub alltoall_pairwise: usize,
    /// Allreduce: recursive doubling below, reduce-scatter and allgather (Rabenseifner) from here on.
    pub allreduce_halving: usize,
    /// Reduce: a binomial tree below, reduce-scatter and gather from here on.
    pub reduce_scatter: usize,
    /// Bytes that are received and combined at a time in large reductions, so that they are still in the cache.
    pub reduce_piece: usize,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            bcast_scatter: 256 << 10,
            allgather_ring: 64 << 10,
            alltoall_pairwise: 256,
            allreduce_halving: 16 << 10,
            reduce_scatter: 128 << 10,
            reduce_piece: 256 << 10,
        }
    }
}

/// What passes a store in the time that one message takes at least: some 20 ms at 100 MB/s, for object storage.
const STORED_HALF_BYTES: usize = 2 << 20;

impl Table {
    /// For ranks that exchange through storage, where a message costs as much time as many bytes, and a price of its own: the algorithms
    /// of fewer messages serve up to where a message takes twice as long as an empty one.
    pub fn stored() -> Self {
        Self {
            bcast_scatter: STORED_HALF_BYTES,
            allgather_ring: STORED_HALF_BYTES,
            alltoall_pairwise: STORED_HALF_BYTES / 16,
            allreduce_halving: STORED_HALF_BYTES,
            reduce_scatter: STORED_HALF_BYTES,
            reduce_piece: STORED_HALF_BYTES,
        }
    }
}
