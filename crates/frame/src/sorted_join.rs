//! Joins that sort both sides, instead of keeping one side's rows in a hash table.

use std::sync::Arc;

use datafusion::arrow::compute::SortOptions;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result as QueryResult;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::{HashJoinExec, SortMergeJoinExec};

use crate::operation::{Operation, applied};

/// A plan whose topmost join sorts both sides. They can spill, which a hash table cannot.
///
/// # Errors
/// Of DataFusion.
pub fn sorted_join(join: LogicalPlan) -> QueryResult<LogicalPlan> {
    applied(SortedJoin, join)
}

/// Has the join that is its input sort both sides.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub struct SortedJoin;

impl Operation for SortedJoin {
    const NAME: &str = "SortedJoin";

    fn schema(&self) -> Option<SchemaRef> {
        None
    }

    fn detail(&self) -> &str {
        "by its keys"
    }

    fn exec(&self, input: Arc<dyn ExecutionPlan>) -> QueryResult<Arc<dyn ExecutionPlan>> {
        let sorted = input.transform_down(|node| {
            let Some(join) = node.downcast_ref::<HashJoinExec>() else {
                // Another join below is not the one that was meant.
                return Ok(match node.children().len() {
                    1 => Transformed::no(node),
                    _ => Transformed::new(node, false, TreeNodeRecursion::Stop),
                });
            };
            // This one looks into its hash table for nulls.
            if join.null_aware || join.projection.is_some() {
                return Ok(Transformed::new(node, false, TreeNodeRecursion::Stop));
            }
            let sorted = SortMergeJoinExec::try_new(
                Arc::clone(&join.left),
                Arc::clone(&join.right),
                join.on.clone(),
                join.filter.clone(),
                join.join_type,
                vec![SortOptions::default(); join.on.len()],
                join.null_equality,
            )?;
            Ok(Transformed::new(Arc::new(sorted), true, TreeNodeRecursion::Stop))
        });
        Ok(sorted?.data)
    }
}
