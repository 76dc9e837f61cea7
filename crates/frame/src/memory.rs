//! Bounds of what queries hold in memory, and on disk.

mod pool;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::cache::cache_manager::CacheManagerConfig;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{MemoryPool, TrackConsumersPool, UnboundedMemoryPool};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::prelude::SessionConfig;
use dayfly_protocol::error::{Code, Failure};

use self::pool::SharedPool;
use crate::stores::{StoreOptions, Stores};

/// Share of a rank's memory for sorts, joins and aggregations. The rest is for batches that cross and for the process.
const QUERY_SHARE: f64 = 0.6;
/// Consumers of memory that an error names.
const NAMED_CONSUMERS: NonZeroUsize = NonZeroUsize::new(3).unwrap();
/// Part of a query's memory that each of its sorts keeps for merging what it has spilled.
const MERGE_PART: usize = 16;
/// Least memory for that merge: some batches.
const MIN_MERGE_BYTES: usize = 256 << 10;
/// DataFusion's own choice for that merge, which suits large memories.
const MAX_MERGE_BYTES: usize = 10 << 20;
/// Memory of a query for each row of a batch: a merge has a batch of each file in memory.
const BYTES_FOR_ROW: usize = 8 << 10;
/// Rows of a batch.
const MIN_BATCH_ROWS: usize = 512;
/// DataFusion's own choice.
const MAX_BATCH_ROWS: usize = 8192;
/// The consumer of memory that cannot spill.
const HASH_JOIN: &str = "HashJoinInput";

/// What queries may use in one process.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    /// Bytes of memory of the process; `None` for no bound. Queries use 60 % of them.
    pub bytes: Option<u64>,
    /// Where what does not fit goes; `None` to fail instead.
    pub spill: Option<Spill>,
}

/// A place on disk for what does not fit into memory.
#[derive(Debug, Clone)]
pub struct Spill {
    /// A directory that exists.
    pub directory: PathBuf,
    /// Most bytes in it; `None` for no bound.
    pub bytes: Option<u64>,
}

impl Memory {
    /// Bytes for queries.
    fn query_bytes(&self) -> Option<usize> {
        self.bytes.map(|bytes| (bytes as f64 * QUERY_SHARE) as usize)
    }

    /// An environment whose queries stay within these bounds, and read files of these stores.
    pub fn environment(&self, stores: &StoreOptions) -> Result<Arc<RuntimeEnv>> {
        let pool: Arc<dyn MemoryPool> = match self.query_bytes() {
            Some(bytes) => Arc::new(TrackConsumersPool::new(SharedPool::new(bytes), NAMED_CONSUMERS)),
            None => Arc::new(UnboundedMemoryPool::default()),
        };
        let disk = DiskManagerBuilder::default();
        let disk = match &self.spill {
            Some(spill) => disk
                .with_mode(DiskManagerMode::Directories(vec![spill.directory.clone()]))
                .with_max_temp_directory_size(spill.bytes.unwrap_or(u64::MAX)),
            None => disk.with_mode(DiskManagerMode::Disabled),
        };
        RuntimeEnvBuilder::new()
            .with_memory_pool(pool)
            .with_disk_manager_builder(disk)
            // Otherwise no query would see files that were changed or added after the first one.
            .with_cache_manager(CacheManagerConfig::default().with_list_files_cache_limit(0))
            .with_object_store_registry(Arc::new(Stores::new(stores.clone())))
            .build_arc()
    }

    /// Options of queries that suit these bounds.
    pub fn configure(&self, config: SessionConfig) -> SessionConfig {
        match self.query_bytes() {
            Some(bytes) => {
                let merge = (bytes / MERGE_PART).clamp(MIN_MERGE_BYTES, MAX_MERGE_BYTES);
                let rows = (bytes / BYTES_FOR_ROW).clamp(MIN_BATCH_ROWS, MAX_BATCH_ROWS);
                config.with_sort_spill_reservation_bytes(merge).with_batch_size(rows)
            }
            None => config,
        }
    }

    /// A failure of a query in this process, with what would help.
    pub fn explain(&self, failure: Failure) -> Failure {
        let has_spilled_most = failure.message.contains("exceeded the allowable limit");
        let would_spill = !needs_sorted_joins(&failure) && !failure.message.contains(CANNOT_KEEP);
        let needs_disk = failure.code == Code::OutOfMemory && self.spill.is_none() && would_spill;
        let (code, advice) = if has_spilled_most {
            let advice = "the query has spilled as much as it may: lease more memory or more ranks, or start the node \
                          with a larger --spill-size";
            (Code::SpillFull, advice)
        } else if needs_disk {
            let advice = "the query needs more than the memory of this rank, and there is no directory to spill into: \
                          start the node with --spill DIR, or lease more memory or more ranks";
            (Code::SpillRefused, advice)
        } else {
            return failure;
        };
        Failure::new(code, format!("{advice}. {}", failure.message))
    }
}

/// What the failure of a rank says that has too little memory for a kept frame, which stays in memory.
pub const CANNOT_KEEP: &str = "does not hold the frame that it should keep";

/// Whether a hash join needed more memory than there is. A join that sorts its inputs can spill.
pub fn needs_sorted_joins(failure: &Failure) -> bool {
    failure.code == Code::OutOfMemory && failure.message.contains(HASH_JOIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_says_what_would_help() {
        let full = |message: &str| Failure::new(Code::OutOfMemory, message);
        let without = Memory::default();
        let with = Memory {
            spill: Some(Spill {
                directory: "/spill".into(),
                bytes: None,
            }),
            ..Memory::default()
        };
        let sort = full("allocation failed for ExternalSorter[0]");
        assert_eq!(without.explain(sort.clone()).code, Code::SpillRefused);
        assert_eq!(with.explain(sort).code, Code::OutOfMemory);
        let disk = full("the used disk space has exceeded the allowable limit of 1 MB");
        assert_eq!(with.explain(disk).code, Code::SpillFull);
        assert_eq!(without.explain(full(CANNOT_KEEP)).code, Code::OutOfMemory);
        let join = full("allocation failed for HashJoinInput[0]");
        assert!(needs_sorted_joins(&without.explain(join)));
    }
}
