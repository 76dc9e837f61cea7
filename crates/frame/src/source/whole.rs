//! Files that are read from their beginning: each by one task.
//!
//! The library would divide them by bytes. A line break in a quoted value of CSV may then look like the end of a row.

use std::sync::Arc;

use datafusion::common::Result as QueryResult;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use datafusion_distributed::{DistributedLeafExec, ScaleUpLeafNodeEvent, ScaleUpLeafNodeEventResponse};

use super::scan_of;

/// A scan of files that cannot be divided.
pub fn whole_scan_of(plan: &Arc<dyn ExecutionPlan>) -> Option<&FileScanConfig> {
    let is_whole =
        |scan: &&FileScanConfig| !scan.file_source().supports_repartitioning() && scan.output_partitioning.is_none();
    scan_of(plan).filter(is_whole)
}

/// Divides the files among so many ranks: the largest first, each to the partition with the fewest bytes.
pub fn divided(event: ScaleUpLeafNodeEvent<'_>) -> Option<QueryResult<ScaleUpLeafNodeEventResponse>> {
    let scan = whole_scan_of(event.plan)?;
    let (tasks, partitions) = (event.task_count, event.plan.output_partitioning().partition_count());
    let mut files: Vec<_> = scan.file_groups.iter().flat_map(FileGroup::files).cloned().collect();
    files.sort_by_key(|file| std::cmp::Reverse(file.effective_size()));
    let mut groups = vec![(0, Vec::new()); tasks * partitions];
    for file in files {
        if let Some((bytes, group)) = groups.iter_mut().min_by_key(|(bytes, group)| (*bytes, group.len())) {
            *bytes += file.effective_size();
            group.push(file);
        }
    }
    // The first partition of each rank comes before the second one of any.
    let mut scans = vec![Vec::new(); tasks];
    for (number, (_, group)) in groups.into_iter().enumerate() {
        scans[number % tasks].push(FileGroup::new(group));
    }
    let parts = scans.into_iter().map(|file_groups| {
        let mut part = scan.clone();
        part.file_groups = file_groups;
        DataSourceExec::from_data_source(part) as Arc<dyn ExecutionPlan>
    });
    let leaf = DistributedLeafExec::try_new(Arc::clone(event.plan), parts);
    Some(leaf.map(|leaf| ScaleUpLeafNodeEventResponse::new(Arc::new(leaf))))
}
