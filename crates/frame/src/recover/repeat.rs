//! Whether a stage gives each of its readers the same rows when a task of it runs again.
//!
//! A run may differ in three ways: in which rows there are (`LIMIT`), in their values (the sum of floats depends on their
//! order), and in which reader gets a row (by the hash of such a value). The order of rows may always differ. Different
//! values alone are no harm: a reader takes all of a run or nothing, so it has a row from one run only.
//!
//! The walk knows the nodes that this crate's checker knows. What it does not know may differ.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::JoinType;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{Partitioning, PhysicalExpr};
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::utils::JoinOnRef;
use datafusion::physical_plan::joins::{CrossJoinExec, HashJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::{InterleaveExec, UnionExec};
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use datafusion_distributed::{BroadcastExec, NetworkBoundaryExt, NetworkCoalesceExec};

use crate::functions::items::ItemsExec;
use crate::kept::KeptExec;
use crate::ranges::{InOrderExec, RangesExec};
use crate::repartition::RepartitionedExec;

type Plan = Arc<dyn ExecutionPlan>;

/// Which columns of a node have the same values in every run; `None` if there may be other rows.
type Same = Option<Vec<bool>>;

/// The stages of a query, by their numbers: what each of their tasks executes.
#[derive(Debug, Default)]
pub struct Stages(BTreeMap<usize, Vec<Plan>>);

impl Stages {
    /// Adds a task of a stage.
    pub fn insert(&mut self, stage: usize, plan: &Plan) {
        self.0.entry(stage).or_default().push(Arc::clone(plan));
    }

    /// The exchanges of all tasks that read a stage. None for one that the session reads.
    fn reads(&self, stage: usize) -> Vec<&Plan> {
        let plans = self.0.values().flatten();
        plans.flat_map(|plan| boundaries(plan, stage)).collect()
    }

    /// The stages that read a stage.
    fn readers(&self, stage: usize) -> Vec<usize> {
        let reads = |plans: &[Plan]| plans.iter().any(|plan| !boundaries(plan, stage).is_empty());
        let readers = self.0.iter().filter(|(_, plans)| reads(plans));
        readers.map(|(reader, _)| *reader).collect()
    }
}

/// The stages whose tasks run again with a task of this one: none if another run of it leaves no reader with a mixture.
pub fn along(stages: &Stages, stage: usize) -> BTreeSet<usize> {
    let mut along = BTreeSet::new();
    let reads = stages.reads(stage);
    // Each input of an exchange that collects goes to one task; the session is one task, too.
    let have_one_reader = reads.len() <= 1 || reads.iter().all(|read| read.is::<NetworkCoalesceExec>());
    if have_one_reader || sent(stages, stage).is_some() {
        return along;
    }
    let mut pending = vec![stage];
    while let Some(stage) = pending.pop() {
        let readers = stages.readers(stage).into_iter().filter(|reader| along.insert(*reader));
        pending.extend(readers.collect::<Vec<_>>());
    }
    along
}

/// What a stage sends, if each row goes to the same reader in every run.
fn sent(stages: &Stages, stage: usize) -> Same {
    // Tasks of a stage differ in their leaves, and in those of unions that are divided, which are not known here.
    let same = of(stages, stages.0.get(&stage)?.first()?)?;
    let keys_are_same = stages.reads(stage).iter().all(|read| match read.output_partitioning() {
        Partitioning::Hash(keys, _) => keys.iter().all(|key| is_same(key, &same)),
        _ => true,
    });
    keys_are_same.then_some(same)
}

fn boundaries(plan: &Plan, stage: usize) -> Vec<&Plan> {
    if let Some(boundary) = plan.as_network_boundary() {
        return match boundary.input_stage().num() == stage {
            true => vec![plan],
            false => Vec::new(),
        };
    }
    plan.children()
        .into_iter()
        .flat_map(|child| boundaries(child, stage))
        .collect()
}

fn of(stages: &Stages, plan: &Plan) -> Same {
    let width = plan.schema().fields().len();
    if let Some(boundary) = plan.as_network_boundary() {
        return sent(stages, boundary.input_stage().num()).filter(|same| same.len() == width);
    }
    // Any rows will do for a limit, and of rows with equal keys for the first ones in an order.
    if plan.fetch().is_some() {
        return None;
    }
    let inputs = plan.children().into_iter().map(|child| of(stages, child));
    let inputs = inputs.collect::<Option<Vec<_>>>()?;
    let same = of_node(plan, inputs)?;
    (same.len() == width).then_some(same)
}

fn of_node(plan: &Plan, mut inputs: Vec<Vec<bool>>) -> Same {
    let width = plan.schema().fields().len();
    let are_same = inputs.iter().flatten().all(|same| *same);
    if is_leaf(plan) {
        return Some(vec![true; width]);
    }
    if passes(plan) {
        return inputs.pop();
    }
    if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        let input = inputs.pop()?;
        let passed = is_same(filter.predicate(), &input).then_some(input)?;
        return projected(passed, filter.projection().as_deref());
    }
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let input = inputs.pop()?;
        return Some(
            projection
                .expr()
                .iter()
                .map(|column| is_same(&column.expr, &input))
                .collect(),
        );
    }
    if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        let input = inputs.pop()?;
        let keys = aggregate.group_expr();
        let keys_are_same = keys.expr().iter().all(|(key, _)| is_same(key, &input));
        if !keys_are_same || aggregate.limit_options().is_some() {
            return None;
        }
        let mut same = vec![true; keys.output_exprs().len()];
        let values_are_same = are_same && aggregate.aggr_expr().iter().all(|function| is_exact(function));
        same.resize(width, values_are_same);
        return Some(same);
    }
    if plan.is::<WindowAggExec>() || plan.is::<BoundedWindowAggExec>() || plan.is::<RangesExec>() {
        // A row's number among equal ones may differ, and so may the range of a key that is in several.
        let mut same = inputs.pop()?;
        same.resize(width, false);
        return Some(same);
    }
    if plan.is::<UnionExec>() || plan.is::<InterleaveExec>() {
        let is_same = |column: usize| inputs.iter().all(|input| input.get(column) == Some(&true));
        return Some((0..width).map(is_same).collect());
    }
    of_join(plan, &inputs, are_same)
}

fn of_join(plan: &Plan, inputs: &[Vec<bool>], are_same: bool) -> Same {
    let [left, right] = inputs else { return None };
    let width = plan.schema().fields().len();
    if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        let filter = join.filter().map(|filter| filter.expression());
        if !are_joined_alike(join.on(), filter, left, right, are_same) {
            return None;
        }
        let columns = columns_of(*join.join_type(), left, right);
        return projected(columns, join.projection.as_deref());
    }
    if let Some(join) = plan.downcast_ref::<SortMergeJoinExec>() {
        let filter = join.filter().as_ref().map(|filter| filter.expression());
        let is_alike = are_joined_alike(join.on(), filter, left, right, are_same);
        return is_alike.then(|| columns_of(join.join_type(), left, right));
    }
    (plan.is::<CrossJoinExec>() && are_same).then(|| vec![true; width])
}

/// Whether a join finds the same pairs in every run. A filter has columns of its own, so it needs all of them.
fn are_joined_alike(
    keys: JoinOnRef<'_>,
    filter: Option<&Arc<dyn PhysicalExpr>>,
    left: &[bool],
    right: &[bool],
    are_same: bool,
) -> bool {
    let keys_are_same = keys
        .iter()
        .all(|(one, other)| is_same(one, left) && is_same(other, right));
    keys_are_same && filter.is_none_or(|filter| are_same && !is_volatile(filter))
}

fn columns_of(join: JoinType, left: &[bool], right: &[bool]) -> Vec<bool> {
    match join {
        JoinType::LeftSemi | JoinType::LeftAnti => left.to_vec(),
        JoinType::RightSemi | JoinType::RightAnti => right.to_vec(),
        JoinType::LeftMark => [left, &[true]].concat(),
        JoinType::RightMark => [right, &[true]].concat(),
        _ => [left, right].concat(),
    }
}

fn projected(same: Vec<bool>, projection: Option<&[usize]>) -> Same {
    match projection {
        Some(columns) => columns.iter().map(|column| same.get(*column).copied()).collect(),
        None => Some(same),
    }
}

/// Whether an expression over these columns has the same values in every run.
fn is_same(expression: &Arc<dyn PhysicalExpr>, columns: &[bool]) -> bool {
    let are_same = |index: usize| columns.get(index) == Some(&true);
    !is_volatile(expression)
        && collect_columns(expression)
            .iter()
            .all(|column| are_same(column.index()))
}

/// Whether the result of an aggregate function does not depend on the order of rows.
fn is_exact(function: &AggregateFunctionExpr) -> bool {
    let is_volatile = function.expressions().iter().any(is_volatile);
    let kind = function.field().data_type().clone();
    !is_volatile
        && match function.fun().name() {
            "count" | "min" | "max" | "bool_and" | "bool_or" | "bit_and" | "bit_or" | "bit_xor" => true,
            "sum" => kind.is_integer() || matches!(kind, DataType::Decimal128(..) | DataType::Decimal256(..)),
            _ => false,
        }
}

fn is_leaf(plan: &Plan) -> bool {
    plan.is::<DataSourceExec>()
        || plan.is::<KeptExec>()
        || plan.is::<ItemsExec>()
        || plan.is::<EmptyExec>()
        || plan.is::<PlaceholderRowExec>()
}

/// Whether a node has the rows of its input, in whatever order.
fn passes(plan: &Plan) -> bool {
    plan.is::<RepartitionExec>()
        || plan.is::<RepartitionedExec>()
        || plan.is::<CoalescePartitionsExec>()
        || plan.is::<SortPreservingMergeExec>()
        || plan.is::<InOrderExec>()
        || plan.is::<SortExec>()
        || plan.is::<CooperativeExec>()
        || plan.is::<BroadcastExec>()
}

#[cfg(test)]
mod tests;
