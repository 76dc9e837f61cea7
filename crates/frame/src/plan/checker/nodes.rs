//! What nodes need of their inputs, and where their rows are.

use datafusion::common::JoinType;
use datafusion::datasource::sink::DataSinkExec;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::Distribution;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, NestedLoopJoinExec, PartitionMode, SortMergeJoinExec, SymmetricHashJoinExec,
};
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::{InterleaveExec, UnionExec};
use datafusion::physical_plan::unnest::UnnestExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion_distributed::{BroadcastExec, DistributedLeafExec, NetworkBoundaryExt};

use super::{Check, Plan, Rows, check_keys, is_repartition, union, wrong};
use crate::functions::MapExec;
use crate::functions::items::ItemsExec;
use crate::kept::{KeepExec, KeptExec};
use crate::ranges::{InOrderExec, RangesExec};
use crate::repartition::RepartitionedExec;
use crate::write::WriteExec;

pub const NEEDS_ALL: &str = "needs all rows in one place, and runs in several";

/// Whether the rules hold for a node.
pub fn is_known(node: &Plan) -> bool {
    let is_plain = node.is::<ProjectionExec>()
        || node.is::<FilterExec>()
        || node.is::<CooperativeExec>()
        || node.is::<UnnestExec>()
        || node.is::<WriteExec>()
        || node.is::<MapExec>()
        || node.is::<KeepExec>()
        || node.is::<RepartitionedExec>()
        || node.is::<RangesExec>()
        || node.is::<DataSinkExec>();
    let is_exchange =
        node.is_network_boundary() || is_repartition(node) || node.is::<BroadcastExec>() || is_merge(node);
    let is_leaf = node.is::<DataSourceExec>()
        || node.is::<DistributedLeafExec>()
        || node.is::<KeptExec>()
        || node.is::<ItemsExec>()
        || node.is::<EmptyExec>()
        || node.is::<PlaceholderRowExec>();
    let is_group = node.is::<AggregateExec>() || node.is::<WindowAggExec>() || node.is::<BoundedWindowAggExec>();
    let is_cut = node.is::<SortExec>() || node.is::<GlobalLimitExec>() || node.is::<LocalLimitExec>();
    is_plain || is_exchange || is_leaf || is_group || is_cut || is_join(node) || is_union(node)
}

fn is_join(node: &Plan) -> bool {
    node.is::<HashJoinExec>()
        || node.is::<SortMergeJoinExec>()
        || node.is::<SymmetricHashJoinExec>()
        || node.is::<NestedLoopJoinExec>()
        || node.is::<CrossJoinExec>()
}

fn is_union(node: &Plan) -> bool {
    node.is::<UnionExec>() || node.is::<InterleaveExec>() || node.name() == union::ISOLATOR
}

/// Makes one partition of all partitions of a task.
pub fn is_merge(node: &Plan) -> bool {
    node.is::<CoalescePartitionsExec>() || node.is::<SortPreservingMergeExec>() || node.is::<InOrderExec>()
}

/// Checks a node of a stage of several tasks. `rows` states where those of its inputs are.
pub fn check(node: &Plan, rows: &[Rows]) -> Check<Rows> {
    if let Some((join_type, is_null_aware)) = collected(node) {
        return check_collected(node, rows, join_type, is_null_aware);
    }
    if let Some(join) = node.downcast_ref::<HashJoinExec>()
        && (join.null_aware || join.mode != PartitionMode::Partitioned)
    {
        return wrong(node, NEEDS_ALL);
    }
    let required = node.input_distribution_requirements().into_per_child();
    // A sort keeps all rows, and a limit in it has a rule of its own.
    let needs_all = |required: &Distribution| matches!(required, Distribution::SinglePartition);
    if required.iter().any(needs_all) && !node.is::<SortExec>() {
        return wrong(node, NEEDS_ALL);
    }
    check_keys(node, &required, rows)?;
    if rows.contains(&Rows::Whole) {
        return match passes_whole(node) {
            true => Ok(Rows::Whole),
            false => wrong(node, "gets each row in each task"),
        };
    }
    let is_by_key = !is_repartition(node)
        && !is_merge(node)
        && !node.is::<UnionExec>()
        && rows.iter().all(|rows| *rows == Rows::ByKey);
    Ok(if is_by_key { Rows::ByKey } else { Rows::Split })
}

/// Passes rows that each task has to a join, which collects them.
fn passes_whole(node: &Plan) -> bool {
    node.is::<ProjectionExec>()
        || node.is::<FilterExec>()
        || node.is::<CooperativeExec>()
        || node.is::<CoalescePartitionsExec>()
}

/// The kind of a join that collects all rows of its left input in each task.
fn collected(node: &Plan) -> Option<(JoinType, bool)> {
    if let Some(join) = node.downcast_ref::<HashJoinExec>() {
        return (join.mode == PartitionMode::CollectLeft).then_some((*join.join_type(), join.null_aware));
    }
    if let Some(join) = node.downcast_ref::<NestedLoopJoinExec>() {
        return Some((*join.join_type(), false));
    }
    node.is::<CrossJoinExec>().then_some((JoinType::Inner, false))
}

fn check_collected(node: &Plan, rows: &[Rows], join_type: JoinType, is_null_aware: bool) -> Check<Rows> {
    let &[left, right] = rows else {
        return wrong(node, "has no two inputs");
    };
    if left != Rows::Whole {
        return wrong(node, "collects its left input, which is in several places");
    }
    // Other joins return rows of the left input that have no match, which no task knows alone.
    let is_of_right = matches!(
        join_type,
        JoinType::Inner | JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark
    );
    if !is_of_right || is_null_aware {
        return wrong(node, "returns rows of its left input, which each task has");
    }
    Ok(right)
}
