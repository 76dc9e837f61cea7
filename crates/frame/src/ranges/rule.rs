//! The rule that has ranks sort ranges, instead of merging on one rank what all have sorted.

use std::sync::Arc;

use datafusion::arrow::row::{RowConverter, SortField};
use datafusion::common::Result as QueryResult;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, Partitioning, PhysicalExpr};
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, ExecutionPlan, ExecutionPlanProperties, ReplaceChildrenOptions,
};
use uuid::Uuid;

use super::node::{Key, RangesExec, Spec};
use super::tasks::order_of;
use crate::skew::known_rows;
use crate::write::WriteExec;

type Plan = Arc<dyn ExecutionPlan>;

/// Whether some node of a query sorts all of its rows.
pub fn sorts_all(query: &LogicalPlan) -> bool {
    let sorts = query.exists(|node| Ok(matches!(node, LogicalPlan::Sort(sort) if sort.fetch.is_none())));
    sorts.unwrap_or(false)
}

/// Replaces merges of sorted partitions, and has writes of sorted rows write ranges.
#[derive(Debug)]
pub struct SortRule {
    /// Fewest rows that are cut into ranges, if their number is known.
    pub min_rows: usize,
}

impl PhysicalOptimizerRule for SortRule {
    fn optimize(&self, plan: Plan, _config: &ConfigOptions) -> QueryResult<Plan> {
        let changed = plan.transform_up(|node| {
            if let Some(merge) = merge_of_all(&node) {
                let Some(input) = self.by_ranges(merge.input())? else {
                    return Ok(Transformed::no(node));
                };
                let merge = SortPreservingMergeExec::new(merge.expr().clone(), input);
                return Ok(Transformed::yes(Arc::new(merge) as Plan));
            }
            Ok(match node.downcast_ref::<WriteExec>().and_then(written_by_ranges) {
                Some(write) => Transformed::yes(write),
                None => Transformed::no(node),
            })
        })?;
        Ok(changed.data)
    }

    fn name(&self) -> &str {
        "sort_by_ranges"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

fn merge_of_all(node: &Plan) -> Option<&SortPreservingMergeExec> {
    let merge = node.downcast_ref::<SortPreservingMergeExec>();
    merge.filter(|merge| merge.fetch().is_none())
}

/// A write whose ranges need not be put together.
fn written_by_ranges(write: &WriteExec) -> Option<Plan> {
    let merge = merge_of_all(write.input())?;
    order_of(merge.input())?;
    Some(Arc::new(write.by_ranges(Arc::clone(merge.input()))))
}

impl SortRule {
    /// A plan whose partitions are sorted, with a range in each; `None` if the plan does not sort, or should not so.
    fn by_ranges(&self, plan: &Plan) -> QueryResult<Option<Plan>> {
        if let Some(sort) = plan.downcast_ref::<SortExec>() {
            return match sort.fetch().is_none() && sort.preserve_partitioning() {
                true => self.sorted(sort),
                false => Ok(None),
            };
        }
        let passes_rows = plan.is::<ProjectionExec>() || plan.is::<FilterExec>() || plan.is::<CooperativeExec>();
        let [input] = plan.children()[..] else { return Ok(None) };
        if !passes_rows || plan.fetch().is_some() {
            return Ok(None);
        }
        let Some(input) = self.by_ranges(input)? else {
            return Ok(None);
        };
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        Arc::clone(plan).replace_children(vec![input], options).map(Some)
    }

    fn sorted(&self, sort: &SortExec) -> QueryResult<Option<Plan>> {
        let input = sort.input();
        let known = known_rows(input).ok().flatten();
        let has_few_rows = known.is_some_and(|rows| rows < self.min_rows);
        if has_few_rows || !can_be_cut(sort.expr(), input)? {
            return Ok(None);
        }
        let (keyed, keys) = with_keys(sort.expr(), input)?;
        let spec = Spec {
            id: Uuid::new_v4().into_bytes(),
            keys,
            // Known once the tasks of the stages are.
            ranges: 0,
            rank: 0,
        };
        let ranges = RangesExec::try_new(keyed, spec)?;
        let column = ranges.range_column();
        let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(ranges.schema().field(column).name(), column));
        let partitions = input.output_partitioning().partition_count();
        let exchange = RepartitionExec::try_new(Arc::new(ranges), Partitioning::Hash(vec![column], partitions))?;
        let columns = first_columns(input);
        let rows = ProjectionExec::try_new(columns, Arc::new(exchange))?;
        let sorted = SortExec::new(sort.expr().clone(), Arc::new(rows)).with_preserve_partitioning(true);
        Ok(Some(Arc::new(sorted)))
    }
}

/// Whether keys have bytes in their order.
fn can_be_cut(ordering: &LexOrdering, input: &Plan) -> QueryResult<bool> {
    let schema = input.schema();
    let fields = ordering.iter().map(|key| {
        let kind = key.expr.data_type(&schema)?;
        Ok(SortField::new_with_options(kind, key.options))
    });
    let fields = fields.collect::<QueryResult<Vec<_>>>()?;
    let are_stable = !ordering.iter().any(|key| is_volatile(&key.expr));
    Ok(are_stable && RowConverter::supports_fields(&fields))
}

/// All columns of a plan.
fn first_columns(plan: &Plan) -> Vec<ProjectionExpr> {
    let schema = plan.schema();
    let columns = schema.fields().iter().enumerate();
    let columns = columns.map(|(place, field)| ProjectionExpr {
        expr: Arc::new(Column::new(field.name(), place)),
        alias: field.name().clone(),
    });
    columns.collect()
}

/// A plan whose columns have the keys: those that are computed come after its own.
fn with_keys(ordering: &LexOrdering, input: &Plan) -> QueryResult<(Plan, Vec<Key>)> {
    let mut columns = first_columns(input);
    let (own, mut keys) = (columns.len(), Vec::new());
    for key in ordering {
        let column = match key.expr.downcast_ref::<Column>() {
            Some(column) => column.index(),
            None => {
                columns.push(ProjectionExpr {
                    expr: Arc::clone(&key.expr),
                    alias: format!("__key{}", columns.len() - own),
                });
                columns.len() - 1
            }
        };
        keys.push(Key {
            column,
            descending: key.options.descending,
            nulls_first: key.options.nulls_first,
        });
    }
    let keyed: Plan = match columns.len() == own {
        true => Arc::clone(input),
        false => Arc::new(ProjectionExec::try_new(columns, Arc::clone(input))?),
    };
    Ok((keyed, keys))
}
