//! Sorts by ranges in plans of several tasks.

use std::sync::Arc;

use datafusion::common::Result as QueryResult;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, Partitioning, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use datafusion_distributed::{
    DesiredTaskCountEvent, DesiredTaskCountEventResponse, NetworkBoundaryExt, NetworkCoalesceExec, NetworkShuffleExec,
    Stage,
};

use super::in_order::InOrderExec;
use super::node::{Key, RangesExec, Spec};

type Plan = Arc<dyn ExecutionPlan>;

/// More tasks than a stage has: the library takes as many as there are ranks.
const ALL_RANKS: usize = u16::MAX as usize;

/// All ranks sort ranges.
pub fn desired_tasks(event: DesiredTaskCountEvent<'_>) -> Option<QueryResult<DesiredTaskCountEventResponse>> {
    let sort = event.plan.downcast_ref::<SortExec>()?;
    let rows = sort.input().downcast_ref::<ProjectionExec>()?;
    ranges_below(rows.input())?;
    Some(Ok(DesiredTaskCountEventResponse::desired(ALL_RANKS)))
}

/// Whether some sort of a plan is by ranges.
pub fn has_ranges(plan: &Plan) -> bool {
    plan.is::<RangesExec>() || plan.children().into_iter().any(has_ranges)
}

/// A distributed plan whose ranges are as many as the partitions of its tasks, and are cut on this rank. `None` if a sort
/// by ranges would run in one task.
///
/// # Errors
/// Of DataFusion, by a defect only.
pub fn placed(plan: &Plan, rank: u32) -> QueryResult<Option<Plan>> {
    if !are_spread(plan, 1, 1) {
        return Ok(None);
    }
    let placed = Arc::clone(plan).transform_up(|node| {
        if let Some(exchange) = node.downcast_ref::<RepartitionExec>()
            && let Some(ranges) = exchange.input().downcast_ref::<RangesExec>()
        {
            let spec = Spec {
                ranges: exchange.partitioning().partition_count(),
                rank,
                ..ranges.spec().clone()
            };
            let ranges = Arc::new(RangesExec::try_new(Arc::clone(ranges.input()), spec)?);
            let exchange = RepartitionExec::try_new(ranges, exchange.partitioning().clone())?;
            return Ok(Transformed::yes(Arc::new(exchange) as Plan));
        }
        if let Some(merge) = node.downcast_ref::<SortPreservingMergeExec>()
            && merge.fetch().is_none()
            && order_of(merge.input()).is_some()
        {
            let merged = InOrderExec::new(Arc::clone(merge.input()));
            return Ok(Transformed::yes(Arc::new(merged) as Plan));
        }
        Ok(Transformed::no(node))
    });
    placed.map(|placed| Some(placed.data))
}

/// Whether each sort by ranges has several tasks, and reads several. `tasks` is the number of tasks of the stage, and
/// `above` that of the stage which reads it.
fn are_spread(plan: &Plan, tasks: usize, above: usize) -> bool {
    if plan.is::<RangesExec>() && (tasks < 2 || above < 2) {
        return false;
    }
    let (tasks, above) = match plan.as_network_boundary().map(|boundary| boundary.input_stage()) {
        Some(stage) => (stage.task_count(), tasks),
        None => (tasks, above),
    };
    plan.children().into_iter().all(|child| are_spread(child, tasks, above))
}

/// The order of the rows of a plan, if its partitions have ranges in order: first those of the first task.
pub fn order_of(plan: &Plan) -> Option<&LexOrdering> {
    if plan.is::<NetworkCoalesceExec>() {
        return order_of(stage_below(plan)?);
    }
    if plan.is::<ProjectionExec>() || plan.is::<FilterExec>() || plan.is::<CooperativeExec>() {
        let [input] = plan.children()[..] else { return None };
        return (plan.fetch().is_none() && order_of(input).is_some()).then(|| plan.output_ordering())?;
    }
    let sort = plan.downcast_ref::<SortExec>()?;
    if sort.fetch().is_some() || !sort.preserve_partitioning() {
        return None;
    }
    let rows = sort.input().downcast_ref::<ProjectionExec>()?;
    let ranges = ranges_below(rows.input())?;
    has_keys(ranges, sort.expr(), rows).then(|| sort.expr())
}

fn stage_below(boundary: &Plan) -> Option<&Plan> {
    match boundary.as_network_boundary()?.input_stage() {
        Stage::Local(_) => boundary.children().into_iter().next(),
        Stage::Remote(_) => None,
    }
}

/// The ranges that an exchange sends to its partitions.
fn ranges_below(exchange: &Plan) -> Option<&RangesExec> {
    let exchange = match exchange.is::<NetworkShuffleExec>() {
        true => stage_below(exchange)?,
        false => exchange,
    };
    let exchange = exchange.downcast_ref::<RepartitionExec>()?;
    let ranges = exchange.input().downcast_ref::<RangesExec>()?;
    let Partitioning::Hash(keys, partitions) = exchange.partitioning() else {
        return None;
    };
    let [key] = &keys[..] else { return None };
    let is_number = key
        .downcast_ref::<Column>()
        .is_some_and(|column| column.index() == ranges.range_column());
    // Zero is the number of ranges in a plan whose stages are not known yet.
    let is_complete = ranges.spec().ranges == 0 || ranges.spec().ranges == *partitions;
    (is_number && is_complete).then_some(ranges)
}

/// Whether ranges are those of the keys of a sort over these rows, which are the first columns of the ranges' input.
fn has_keys(ranges: &RangesExec, ordering: &LexOrdering, rows: &ProjectionExec) -> bool {
    let keys = &ranges.spec().keys;
    let is_same = |(key, sorted): (&Key, &PhysicalSortExpr)| {
        let options = sorted.options;
        let is_column = match sorted.expr.downcast_ref::<Column>() {
            Some(column) => column.index() == key.column,
            None => computed(ranges, key.column).is_some_and(|expr| expr.eq(&sorted.expr)),
        };
        is_column && key.descending == options.descending && key.nulls_first == options.nulls_first
    };
    let passes_first = rows.expr().iter().enumerate().all(|(place, passed)| {
        let column = passed.expr.downcast_ref::<Column>();
        column.is_some_and(|column| column.index() == place)
    });
    passes_first && keys.len() == ordering.len() && keys.iter().zip(ordering.iter()).all(is_same)
}

/// The expression of a key that is computed below the ranges.
fn computed(ranges: &RangesExec, column: usize) -> Option<&Arc<dyn PhysicalExpr>> {
    let keyed = ranges.input().downcast_ref::<ProjectionExec>()?;
    keyed.expr().get(column).map(|computed| &computed.expr)
}
