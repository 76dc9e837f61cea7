//! The node of a function over batches, in logical and in physical plans.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::Session;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{
    DFSchema, DFSchemaRef, DataFusionError, Result as QueryResult, exec_datafusion_err, internal_err,
};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNode, UserDefinedLogicalNodeCore};
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use datafusion::physical_planner::{ExtensionPlanner, PhysicalPlanner};
use futures_util::StreamExt;

use super::Functions;

/// A function over batches, and what it returns.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MapCall {
    /// Name of the function, for people.
    pub name: String,
    /// The function, as [`BatchFunctions`](super::BatchFunctions) takes it.
    pub function: Vec<u8>,
    /// Columns of the batches that it returns.
    pub schema: SchemaRef,
    /// Rows of the batches that it gets, but for the last one of a partition.
    pub batch_rows: usize,
}

/// A function over batches in a logical plan.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MapNode {
    input: LogicalPlan,
    call: MapCall,
    schema: DFSchemaRef,
}

impl MapNode {
    pub fn new(input: LogicalPlan, call: MapCall) -> QueryResult<Self> {
        let schema = DFSchema::try_from(Arc::clone(&call.schema))?;
        Ok(Self {
            input,
            call,
            schema: Arc::new(schema),
        })
    }
}

impl PartialOrd for MapNode {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        self.call.function.partial_cmp(&other.call.function)
    }
}

impl UserDefinedLogicalNodeCore for MapNode {
    fn name(&self) -> &str {
        "MapBatches"
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
        write!(f, "MapBatches: {}", self.call.name)
    }

    fn with_exprs_and_inputs(&self, _: Vec<Expr>, inputs: Vec<LogicalPlan>) -> QueryResult<Self> {
        let [input] = <[LogicalPlan; 1]>::try_from(inputs)
            .map_err(|inputs| DataFusionError::Internal(format!("a function has one input, not {}", inputs.len())))?;
        Self::new(input, self.call.clone())
    }
}

/// Plans functions over batches.
#[derive(Debug)]
pub struct MapPlanner;

#[async_trait]
impl ExtensionPlanner for MapPlanner {
    async fn plan_extension(
        &self,
        _: &dyn PhysicalPlanner,
        node: &dyn UserDefinedLogicalNode,
        _: &[&LogicalPlan],
        inputs: &[Arc<dyn ExecutionPlan>],
        _: &dyn Session,
        _: &PhysicalPlanningContext,
    ) -> QueryResult<Option<Arc<dyn ExecutionPlan>>> {
        let Some(node) = node.as_any().downcast_ref::<MapNode>() else {
            return Ok(None);
        };
        let [input] = inputs else {
            return internal_err!("a function has one input");
        };
        Ok(Some(Arc::new(MapExec::new(Arc::clone(input), node.call.clone()))))
    }
}

/// Calls a function with the batches of its input.
#[derive(Debug)]
pub struct MapExec {
    input: Arc<dyn ExecutionPlan>,
    call: Arc<MapCall>,
    properties: Arc<PlanProperties>,
}

impl MapExec {
    pub fn new(input: Arc<dyn ExecutionPlan>, call: MapCall) -> Self {
        let own = PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(&call.schema)),
            Partitioning::UnknownPartitioning(input.output_partitioning().partition_count()),
            EmissionType::Incremental,
            input.boundedness(),
        );
        Self {
            input,
            call: Arc::new(call),
            properties: Arc::new(own),
        }
    }

    pub fn call(&self) -> &MapCall {
        &self.call
    }
}

impl DisplayAs for MapExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "MapExec: {}, batch_rows={}", self.call.name, self.call.batch_rows)
    }
}

impl ExecutionPlan for MapExec {
    fn name(&self) -> &str {
        "MapExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
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
        let [input] = <[Arc<dyn ExecutionPlan>; 1]>::try_from(children).map_err(|children| {
            DataFusionError::Internal(format!("a function has one input, not {}", children.len()))
        })?;
        Ok(Arc::new(Self::new(input, MapCall::clone(&self.call))))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> QueryResult<SendableRecordBatchStream> {
        let functions = context.session_config().get_extension::<Functions>();
        let functions =
            functions.ok_or_else(|| exec_datafusion_err!("this process has no interpreter for functions"))?;
        let rows = self.input.execute(partition, context)?;
        let call = Arc::clone(&self.call);
        let mapped = gathered(rows, call.batch_rows).then(move |batch| {
            let (functions, call) = (Arc::clone(&functions), Arc::clone(&call));
            async move {
                let batch = batch?;
                // A function may compute for long; other tasks go on meanwhile.
                let called = tokio::task::spawn_blocking(move || functions.call(&call.function, batch, &call.schema));
                called.await.map_err(|error| exec_datafusion_err!("{error}"))?
            }
        });
        let schema = Arc::clone(&self.call.schema);
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, mapped)))
    }
}

/// The rows of a stream in batches of at least so many, but for the last one.
fn gathered(
    rows: SendableRecordBatchStream,
    batch_rows: usize,
) -> impl futures_util::Stream<Item = QueryResult<RecordBatch>> {
    let schema = rows.schema();
    futures_util::stream::unfold(Some(rows), move |rows| {
        let schema = Arc::clone(&schema);
        async move {
            let mut rows = rows?;
            let (mut batches, mut count) = (Vec::new(), 0);
            let mut is_last = false;
            while count < batch_rows {
                match rows.next().await {
                    Some(Ok(batch)) => {
                        count += batch.num_rows();
                        batches.push(batch);
                    }
                    Some(Err(error)) => return Some((Err(error), None)),
                    None => {
                        is_last = true;
                        break;
                    }
                }
            }
            if count == 0 {
                return None;
            }
            let batch = concat_batches(&schema, &batches).map_err(DataFusionError::from);
            Some((batch, (!is_last).then_some(rows)))
        }
    })
}
