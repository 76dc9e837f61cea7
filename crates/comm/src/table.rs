//! Chooses algorithms by size and number of ranks.
//!
//! Families and crossover points are those of Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication
//! Operations in MPICH" (2005). The exact points depend on the machine: `dayfly bench comm --tune` measures them.

use std::collections::BTreeMap;

use dayfly_protocol::error::{Code, Failure};
use serde::{Deserialize, Serialize};

/// Sizes in bytes from which the next algorithm is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Table {
    /// Broadcast, for more than two ranks: a binomial tree below, scatter and allgather from here on.
    pub bcast_scatter: usize,
    /// Allgather, for more than two ranks: Bruck's algorithm below (bytes of the whole result), a ring from here on.
    pub allgather_ring: usize,
    /// Alltoall, for [`BRUCK_RANKS`] or more ranks: Bruck's algorithm below (bytes for each rank), pairwise exchange
    /// from here on.
    pub alltoall_pairwise: usize,
    /// Allreduce: recursive doubling below, reduce-scatter and allgather (Rabenseifner) from here on.
    pub allreduce_halving: usize,
    /// Bytes to receive and combine at a time in large reductions, so that they stay in the cache.
    pub reduce_piece: usize,
}

/// Ranks from which on Bruck's algorithm saves an alltoall more rounds than it costs copies.
pub const BRUCK_RANKS: usize = 8;

impl Default for Table {
    fn default() -> Self {
        Self {
            bcast_scatter: 256 << 10,
            allgather_ring: 64 << 10,
            alltoall_pairwise: 256,
            allreduce_halving: 16 << 10,
            reduce_piece: 256 << 10,
        }
    }
}

/// Bytes that pass a store in the minimum time of a message: about 20 ms at 100 MB/s for object storage.
const STORED_HALF_BYTES: usize = 2 << 20;

impl Table {
    /// For ranks that exchange through storage. There a message costs as much time as many bytes, and has a price. So
    /// the algorithms with fewer messages are used until a message takes twice as long as an empty one.
    pub fn stored() -> Self {
        Self {
            bcast_scatter: STORED_HALF_BYTES,
            allgather_ring: STORED_HALF_BYTES,
            alltoall_pairwise: STORED_HALF_BYTES / 16,
            allreduce_halving: STORED_HALF_BYTES,
            reduce_piece: STORED_HALF_BYTES,
        }
    }
}

/// Tables by the number of ranks that they were measured with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tables(pub BTreeMap<u32, Table>);

impl Tables {
    /// Parses the output of `dayfly bench comm --tune`.
    ///
    /// # Errors
    /// [`Code::InvalidRequest`] for any other input.
    pub fn from_json(text: &str) -> Result<Self, Failure> {
        serde_json::from_str(text).map_err(|error| {
            let advice = "take a file that `dayfly bench comm --tune --output FILE` wrote";
            Failure::new(
                Code::InvalidRequest,
                format!("these are no tables of algorithms: {error}; {advice}"),
            )
        })
    }

    /// The table with the most ranks not above `ranks`, else the one with the fewest; the default table if there is
    /// none.
    pub fn for_ranks(&self, ranks: u32) -> Table {
        let below = self.0.range(..=ranks).next_back();
        below
            .or(self.0.first_key_value())
            .map_or_else(Table::default, |(_, table)| *table)
    }

    /// A digest of the tables: 64 bits of SHA-256.
    pub fn digest(&self) -> u64 {
        digest(&serde_json::to_vec(self).unwrap_or_default())
    }
}

/// The first 64 bits of the SHA-256 of these bytes.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    let first = digest.as_ref().iter().take(8);
    first.fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_with_most_ranks_not_above_is_used() {
        let table = |allreduce_halving| Table {
            allreduce_halving,
            ..Table::default()
        };
        let tables = Tables(BTreeMap::from([(4, table(1)), (16, table(2))]));
        let chosen = [2, 4, 15, 16, 900].map(|ranks| tables.for_ranks(ranks).allreduce_halving);
        assert_eq!(chosen, [1, 1, 1, 2, 2]);
        assert_eq!(Tables::default().for_ranks(4), Table::default());
    }

    #[test]
    fn tables_round_trip_and_reject_other_input() {
        let tables = Tables(BTreeMap::from([(
            4,
            Table {
                bcast_scatter: 1,
                ..Table::default()
            },
        )]));
        let text = serde_json::to_string(&tables).unwrap();
        let read = Tables::from_json(&text).unwrap();
        assert_eq!((read.digest(), &read), (tables.digest(), &tables));
        assert_ne!(read.digest(), Tables::default().digest());
        assert_eq!(
            Tables::from_json(r#"{"4": {"bcast_scater": 1}}"#).unwrap_err().code,
            Code::InvalidRequest
        );
        assert_eq!(Tables::from_json("[]").unwrap_err().code, Code::InvalidRequest);
    }
}
