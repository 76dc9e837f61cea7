//! Bounds of what queries hold in memory.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{FairSpillPool, MemoryPool, TrackConsumersPool, UnboundedMemoryPool};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};

/// Share of a rank's memory for sorts, joins and aggregations. The rest is for batches that cross and for the process.
const QUERY_SHARE: f64 = 0.6;
/// Consumers of memory that an error names.
const NAMED_CONSUMERS: NonZeroUsize = NonZeroUsize::new(3).unwrap();

/// Returns an environment whose queries use at most their share of this memory, and spill into this directory.
/// Without a bound they use what they need; without a directory they never spill.
pub fn environment(memory_bytes: Option<u64>, spill: Option<&Path>) -> Result<Arc<RuntimeEnv>> {
    let pool: Arc<dyn MemoryPool> = match memory_bytes {
        Some(bytes) => {
            let pool = FairSpillPool::new((bytes as f64 * QUERY_SHARE) as usize);
            Arc::new(TrackConsumersPool::new(pool, NAMED_CONSUMERS))
        }
        None => Arc::new(UnboundedMemoryPool::default()),
    };
    let disk = match spill {
        Some(directory) => DiskManagerMode::Directories(vec![directory.to_owned()]),
        None => DiskManagerMode::Disabled,
    };
    RuntimeEnvBuilder::new()
        .with_memory_pool(pool)
        .with_disk_manager_builder(DiskManagerBuilder::default().with_mode(disk))
        .build_arc()
}
