//! The node that makes one stream of partitions with ranges in order.

use std::fmt;
use std::sync::Arc;

use datafusion::common::Result as QueryResult;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{OrderingRequirements, Partitioning, PhysicalExpr};
use datafusion::physical_plan::execution_plan::CardinalityEffect;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, ExecutionPlanProperties, InputDistributionRequirements,
    PlanProperties,
};
use futures_util::StreamExt;

use crate::operation::only_input;

/// Returns the rows of its partitions, one partition after the other.
#[derive(Debug)]
pub struct InOrderExec {
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl InOrderExec {
    /// Keeps the order that each partition of this input has.
    pub fn new(input: Arc<dyn ExecutionPlan>) -> Self {
        let mut equivalence = input.equivalence_properties().clone();
        equivalence.clear_per_partition_constants();
        let properties = PlanProperties::new(
            equivalence,
            Partitioning::UnknownPartitioning(1),
            input.pipeline_behavior(),
            input.boundedness(),
        );
        Self {
            input,
            properties: Arc::new(properties),
        }
    }
}

impl DisplayAs for InOrderExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("InOrderExec")?;
        match self.input.output_ordering() {
            Some(ordering) => write!(f, ": [{ordering}]"),
            None => Ok(()),
        }
    }
}

impl ExecutionPlan for InOrderExec {
    fn name(&self) -> &str {
        "InOrderExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        InputDistributionRequirements::new(vec![Distribution::UnspecifiedDistribution])
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        let ordering = self.input.output_ordering().cloned();
        vec![ordering.map(OrderingRequirements::from)]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> QueryResult<TreeNodeRecursion>,
    ) -> QueryResult<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> QueryResult<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self::new(only_input(children)?)))
    }

    fn execute(&self, _: usize, context: Arc<TaskContext>) -> QueryResult<SendableRecordBatchStream> {
        // All of them begin now: the ranks sort at the same time.
        let partitions = 0..self.input.output_partitioning().partition_count();
        let streams = partitions.map(|partition| self.input.execute(partition, Arc::clone(&context)));
        let streams = streams.collect::<QueryResult<Vec<_>>>()?;
        let rows = futures_util::stream::iter(streams).flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}
