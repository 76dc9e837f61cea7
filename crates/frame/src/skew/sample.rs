//! Some rows of a side of a join, from several places of its files.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::catalog::Session;
use datafusion::common::Result as QueryResult;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig};
use datafusion::datasource::source::DataSourceExec;
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder};
use datafusion::physical_plan::{ExecutionPlan, collect};

use crate::plan::on_one_rank;
use crate::source::scan_of;

/// Rows of a sample.
const SAMPLE_ROWS: usize = 16_384;
/// Places of files from which a sample has rows: a heavy key need not be everywhere.
const PLACES: usize = 8;

/// Some rows of a plan, or all if it has few. `local` is the plan for one process.
pub async fn sample(
    plan: LogicalPlan,
    local: Arc<dyn ExecutionPlan>,
    session: &dyn Session,
) -> QueryResult<Vec<RecordBatch>> {
    let local = local.transform_up(|node| {
        Ok(match scan_of(&node).and_then(places_of) {
            Some(scan) => Transformed::yes(DataSourceExec::from_data_source(scan) as Arc<dyn ExecutionPlan>),
            None => Transformed::no(node),
        })
    })?;
    let sampled = match local.transformed {
        true => on_one_rank(local.data, None, session)?,
        false => {
            let plan = LogicalPlanBuilder::from(plan).limit(0, Some(SAMPLE_ROWS))?;
            session.create_physical_plan(&plan.build()?).await?
        }
    };
    collect(sampled, session.task_ctx()).await
}

/// A scan of the first rows at some places of its files.
fn places_of(scan: &FileScanConfig) -> Option<FileScanConfig> {
    let mut seen = HashSet::new();
    let files = scan.file_groups.iter().flat_map(FileGroup::files);
    let files: Vec<_> = files.filter(|file| seen.insert(&file.object_meta.location)).collect();
    let count = files.len().min(PLACES);
    let parts = match scan.file_source().supports_repartitioning() {
        true => (PLACES / count.max(1)) as u64,
        false => 1,
    };
    let chosen = (0..count).map(|at| files[at * files.len() / count]);
    let places = chosen.flat_map(|file| (0..parts).map(|part| FileGroup::new(vec![place(file, part, parts)])));
    let mut sampled = scan.clone();
    sampled.file_groups = places.collect();
    sampled.limit = Some(SAMPLE_ROWS / sampled.file_groups.len().max(1));
    (count > 0).then_some(sampled)
}

/// One of equal parts of a file.
fn place(file: &PartitionedFile, part: u64, parts: u64) -> PartitionedFile {
    let size = file.object_meta.size;
    let border = |part: u64| i64::try_from(size / parts * part).unwrap_or(i64::MAX);
    let end = match part + 1 == parts {
        true => i64::try_from(size).unwrap_or(i64::MAX),
        false => border(part + 1),
    };
    let mut place = file.clone();
    place.range = None;
    match parts {
        1 => place,
        _ => place.with_range(border(part), end),
    }
}
