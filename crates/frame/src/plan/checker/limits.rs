//! Limits: a task that stops early must not be the one that decides which rows there are.

use datafusion::physical_plan::ExecutionPlanProperties;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion_distributed::DistributedLeafExec;

use super::{Above, Check, Plan, Rows, nodes, wrong};

/// Rows of a node's inputs that are enough for what is above.
pub fn enough_below(node: &Plan, above: Above) -> Option<usize> {
    let passes = nodes::is_merge(node)
        || node.is::<GlobalLimitExec>()
        || node.is::<LocalLimitExec>()
        || node.is::<ProjectionExec>()
        || node.is::<CooperativeExec>()
        || node.is::<UnionExec>();
    if !passes {
        return None;
    }
    // Only a limit in one task is one of the query.
    let own = fetch_of(node).filter(|_| above.tasks == 1);
    match (own, above.enough) {
        (Some(own), Some(enough)) => Some(own.min(enough)),
        (own, enough) => own.or(enough),
    }
}

/// Checks a node of a stage of several tasks.
pub fn check(node: &Plan, rows: &[Rows], above: Above) -> Check<()> {
    let Some(fetch) = fetch_of(node) else {
        return Ok(());
    };
    if rows.contains(&Rows::Whole) && rows.len() == 1 {
        return wrong(node, "has a limit, and each task may take other rows");
    }
    check_fetch(node, node, fetch, above)
}

/// Checks a limit that a leaf has.
pub fn check_leaf(node: &Plan, leaf: &DistributedLeafExec, above: Above) -> Check<()> {
    match leaf.original().fetch() {
        Some(fetch) => check_fetch(node, leaf.original(), fetch, above),
        None => Ok(()),
    }
}

/// DataFusion has one partition, or a limit above these partitions. If there is one partition, its limit may be that of
/// the query: then several tasks return several times as many rows.
fn check_fetch(node: &Plan, limited: &Plan, fetch: usize, above: Above) -> Check<()> {
    let is_last = limited.output_partitioning().partition_count() == 1;
    if is_last && above.enough.is_none_or(|enough| enough > fetch) {
        return wrong(node, "has a limit, which each task would apply");
    }
    Ok(())
}

fn fetch_of(node: &Plan) -> Option<usize> {
    match node.downcast_ref::<GlobalLimitExec>() {
        Some(limit) => limit.fetch()?.checked_add(limit.skip()),
        None => node.fetch(),
    }
}
