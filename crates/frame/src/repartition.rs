//! Rows of equal keys on one rank.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result as QueryResult, plan_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, InputDistributionRequirements, PlanProperties,
};

use crate::operation::{Operation, applied, only_input};

/// A plan whose rows of equal keys are in one partition of one rank.
///
/// # Errors
/// If there is no key.
pub fn repartition(input: LogicalPlan, keys: Vec<String>) -> QueryResult<LogicalPlan> {
    if keys.is_empty() {
        return plan_err!("name at least one column by which rows are repartitioned");
    }
    let names = keys.join(", ");
    applied(Repartition { keys, names }, input)
}

/// Sends rows of equal keys to one rank.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub struct Repartition {
    keys: Vec<String>,
    names: String,
}

impl Operation for Repartition {
    const NAME: &str = "Repartition";

    fn schema(&self) -> Option<SchemaRef> {
        None
    }

    fn keys(&self) -> &[String] {
        &self.keys
    }

    fn detail(&self) -> &str {
        &self.names
    }

    fn exec(&self, input: Arc<dyn ExecutionPlan>) -> QueryResult<Arc<dyn ExecutionPlan>> {
        let schema = input.schema();
        let columns = self.keys.iter().map(|key| Ok(schema.index_of(key)?));
        let columns = columns.collect::<QueryResult<Vec<_>>>()?;
        Ok(Arc::new(RepartitionedExec::new(input, columns)))
    }
}

/// Passes rows on that an exchange below it has sent by key.
#[derive(Debug)]
pub struct RepartitionedExec {
    input: Arc<dyn ExecutionPlan>,
    /// Places of the keys in the schema.
    keys: Vec<usize>,
}

impl RepartitionedExec {
    pub fn new(input: Arc<dyn ExecutionPlan>, keys: Vec<usize>) -> Self {
        Self { input, keys }
    }

    pub fn keys(&self) -> &[usize] {
        &self.keys
    }
}

impl DisplayAs for RepartitionedExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let schema = self.input.schema();
        let names: Vec<_> = self.keys.iter().map(|key| schema.field(*key).name().as_str()).collect();
        write!(f, "RepartitionedExec: {}", names.join(", "))
    }
}

impl ExecutionPlan for RepartitionedExec {
    fn name(&self) -> &str {
        "RepartitionedExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        let schema = self.input.schema();
        let keys = self.keys.iter().map(|key| {
            let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(schema.field(*key).name(), *key));
            column
        });
        InputDistributionRequirements::new(vec![Distribution::KeyPartitioned(keys.collect())])
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
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
        Ok(Arc::new(Self::new(only_input(children)?, self.keys.clone())))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> QueryResult<SendableRecordBatchStream> {
        self.input.execute(partition, context)
    }
}
