//! Nodes of physical plans that pass the rows of their input on.

use std::fmt::{self, Debug};
use std::sync::Arc;

use datafusion::common::Result as QueryResult;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, InputDistributionRequirements, PlanProperties,
};

use crate::operation::only_input;

/// Why rows pass a node.
pub trait Passage: Debug + Clone + Send + Sync + 'static {
    /// Name of the node.
    const NAME: &str;

    /// What plans show of it beside its name.
    fn detail(&self, _input: &Arc<dyn ExecutionPlan>) -> Option<String> {
        None
    }

    /// Where it needs the rows of its input.
    fn distribution(&self, _input: &Arc<dyn ExecutionPlan>) -> Distribution {
        Distribution::UnspecifiedDistribution
    }

    /// What it measures.
    fn metrics(&self) -> Option<MetricsSet> {
        None
    }

    /// The rows of a partition, in the order of the input.
    ///
    /// # Errors
    /// Of the input.
    fn execute(
        &self,
        input: &Arc<dyn ExecutionPlan>,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> QueryResult<SendableRecordBatchStream> {
        input.execute(partition, context)
    }
}

/// Passes the rows of its input on.
#[derive(Debug)]
pub struct PassingExec<P> {
    input: Arc<dyn ExecutionPlan>,
    passage: P,
}

impl<P: Passage> PassingExec<P> {
    pub fn new(input: Arc<dyn ExecutionPlan>, passage: P) -> Self {
        Self { input, passage }
    }

    pub fn passage(&self) -> &P {
        &self.passage
    }
}

impl<P: Passage> DisplayAs for PassingExec<P> {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        match self.passage.detail(&self.input) {
            Some(detail) => write!(f, "{}: {detail}", P::NAME),
            None => f.write_str(P::NAME),
        }
    }
}

impl<P: Passage> ExecutionPlan for PassingExec<P> {
    fn name(&self) -> &str {
        P::NAME
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        InputDistributionRequirements::new(vec![self.passage.distribution(&self.input)])
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        let distribution = self.passage.distribution(&self.input);
        vec![!matches!(distribution, Distribution::UnspecifiedDistribution)]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> QueryResult<TreeNodeRecursion>,
    ) -> QueryResult<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        self.passage.metrics()
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> QueryResult<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self::new(only_input(children)?, self.passage.clone())))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> QueryResult<SendableRecordBatchStream> {
        self.passage.execute(&self.input, partition, context)
    }
}
