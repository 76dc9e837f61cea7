//! The node of a write, in logical and in physical plans, and its form between ranks.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::{RecordBatch, StringArray, UInt64Array};
use datafusion::arrow::compute::SortOptions;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::Session;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DFSchema, DFSchemaRef, DataFusionError, Result as QueryResult, internal_err};
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNode, UserDefinedLogicalNodeCore};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{
    EquivalenceProperties, LexRequirement, OrderingRequirements, PhysicalExpr, PhysicalSortRequirement,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use datafusion::physical_planner::{ExtensionPlanner, PhysicalPlanner};
use datafusion_distributed::DistributedTaskContext;
use futures_util::TryStreamExt;

use super::Target;
use super::files::{Files, prefix_of};

/// The columns that ranks report: files below the directory, their rows, and their bytes.
fn reported() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("path", DataType::Utf8, false),
        Field::new("rows", DataType::UInt64, false),
        Field::new("bytes", DataType::UInt64, false),
    ]))
}

/// A write in a logical plan.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WriteNode {
    input: LogicalPlan,
    target: Target,
    schema: DFSchemaRef,
}

impl WriteNode {
    pub fn new(input: LogicalPlan, target: Target) -> QueryResult<Self> {
        let schema = DFSchema::try_from(reported())?;
        Ok(Self {
            input,
            target,
            schema: Arc::new(schema),
        })
    }
}

impl PartialOrd for WriteNode {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        self.target.partial_cmp(&other.target)
    }
}

impl UserDefinedLogicalNodeCore for WriteNode {
    fn name(&self) -> &str {
        "Write"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Write: {}", self.target.directory)
    }

    fn with_exprs_and_inputs(&self, _: Vec<Expr>, inputs: Vec<LogicalPlan>) -> QueryResult<Self> {
        let [input] = <[LogicalPlan; 1]>::try_from(inputs)
            .map_err(|inputs| DataFusionError::Internal(format!("a write has one input, not {}", inputs.len())))?;
        Self::new(input, self.target.clone())
    }
}

/// Plans writes.
#[derive(Debug)]
pub struct WritePlanner;

#[async_trait]
impl ExtensionPlanner for WritePlanner {
    async fn plan_extension(
        &self,
        _: &dyn PhysicalPlanner,
        node: &dyn UserDefinedLogicalNode,
        _: &[&LogicalPlan],
        inputs: &[Arc<dyn ExecutionPlan>],
        _: &dyn Session,
        _: &PhysicalPlanningContext,
    ) -> QueryResult<Option<Arc<dyn ExecutionPlan>>> {
        let Some(node) = node.as_any().downcast_ref::<WriteNode>() else {
            return Ok(None);
        };
        let [input] = inputs else {
            return internal_err!("a write has one input");
        };
        Ok(Some(Arc::new(WriteExec::new(Arc::clone(input), node.target.clone()))))
    }
}

/// Writes the rows of its input, each partition into files of its own, and returns these files.
#[derive(Debug)]
pub struct WriteExec {
    input: Arc<dyn ExecutionPlan>,
    target: Target,
    properties: Arc<PlanProperties>,
}

impl WriteExec {
    pub fn new(input: Arc<dyn ExecutionPlan>, target: Target) -> Self {
        let own = PlanProperties::new(
            EquivalenceProperties::new(reported()),
            datafusion::physical_plan::Partitioning::UnknownPartitioning(input.output_partitioning().partition_count()),
            datafusion::physical_plan::execution_plan::EmissionType::Final,
            input.boundedness(),
        );
        Self {
            input,
            target,
            properties: Arc::new(own),
        }
    }

    pub fn target(&self) -> &Target {
        &self.target
    }

    fn places(&self) -> QueryResult<Vec<usize>> {
        let schema = self.input.schema();
        let place = |name: &String| Ok(schema.index_of(name)?);
        self.target.partition_by.iter().map(place).collect()
    }
}

impl DisplayAs for WriteExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "WriteExec: {}", self.target.directory)?;
        if !self.target.partition_by.is_empty() {
            write!(f, ", partition_by={}", self.target.partition_by.join(", "))?;
        }
        Ok(())
    }
}

impl ExecutionPlan for WriteExec {
    fn name(&self) -> &str {
        "WriteExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        // One file is open at a time, so equal values come together.
        let places = self.places().unwrap_or_default();
        let schema = self.input.schema();
        let sorted = places.into_iter().map(|place| {
            let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(schema.field(place).name(), place));
            PhysicalSortRequirement::new(column, Some(SortOptions::default()))
        });
        vec![LexRequirement::new(sorted).map(OrderingRequirements::new)]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
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
        let [input] = <[Arc<dyn ExecutionPlan>; 1]>::try_from(children)
            .map_err(|children| DataFusionError::Internal(format!("a write has one input, not {}", children.len())))?;
        Ok(Arc::new(Self::new(input, self.target.clone())))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> QueryResult<SendableRecordBatchStream> {
        let task = DistributedTaskContext::from_ctx(&context).task_index;
        let url = ListingTableUrl::parse(&self.target.directory)?;
        let store = context.runtime_env().object_store(url.object_store())?;
        let name = format!("{}{task}-{partition}-", prefix_of(&self.target.run));
        let memory = MemoryConsumer::new("WriteExec").register(context.memory_pool());
        let schema = self.input.schema();
        let mut files = Files::new(store, url.prefix().clone(), name, &schema, self.places()?, memory)?;
        let mut rows = self.input.execute(partition, context)?;
        let written = async move {
            while let Some(batch) = rows.try_next().await? {
                files.write(&batch).await?;
            }
            let files = files.finish().await?;
            let paths = StringArray::from_iter_values(files.iter().map(|file| &file.path));
            let rows = UInt64Array::from_iter_values(files.iter().map(|file| file.rows));
            let bytes = UInt64Array::from_iter_values(files.iter().map(|file| file.bytes));
            let batch = RecordBatch::try_new(reported(), vec![Arc::new(paths), Arc::new(rows), Arc::new(bytes)])?;
            Ok(batch)
        };
        let stream = futures_util::stream::once(written);
        Ok(Box::pin(RecordBatchStreamAdapter::new(reported(), stream)))
    }
}
