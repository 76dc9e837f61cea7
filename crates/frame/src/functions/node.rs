//! The node that calls a function with batches.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result as QueryResult, exec_datafusion_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};

use super::Functions;
use crate::codec::schema_field;
use crate::operation::{Operation, only_input};

/// A function over batches, and what it returns.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MapCall {
    /// Name of the function, for people.
    pub name: String,
    /// The function, as [`BatchFunctions`](super::BatchFunctions) takes it.
    pub function: Vec<u8>,
    /// Columns of the batches that it returns.
    #[serde(with = "schema_field")]
    pub schema: SchemaRef,
    /// Rows of the batches that it gets, but for the last one of a partition.
    pub batch_rows: usize,
}

impl PartialOrd for MapCall {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        self.function.partial_cmp(&other.function)
    }
}

impl Operation for MapCall {
    const NAME: &str = "MapBatches";

    fn schema(&self) -> Option<SchemaRef> {
        Some(Arc::clone(&self.schema))
    }

    fn detail(&self) -> &str {
        &self.name
    }

    fn exec(&self, input: Arc<dyn ExecutionPlan>) -> QueryResult<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(MapExec::new(input, self.clone())))
    }
}

/// Calls a function with the batches of its input.
#[derive(Debug)]
pub struct MapExec {
    input: Arc<dyn ExecutionPlan>,
    call: Arc<MapCall>,
    properties: Arc<PlanProperties>,
    measures: ExecutionPlanMetricsSet,
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
            measures: ExecutionPlanMetricsSet::new(),
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

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.measures.clone_inner())
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> QueryResult<Arc<dyn ExecutionPlan>> {
        let input = only_input(children)?;
        Ok(Arc::new(Self::new(input, MapCall::clone(&self.call))))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> QueryResult<SendableRecordBatchStream> {
        let functions = context.session_config().get_extension::<Functions>();
        let functions =
            functions.ok_or_else(|| exec_datafusion_err!("this process has no interpreter for functions"))?;
        let rows = self.input.execute(partition, context)?;
        let call = Arc::clone(&self.call);
        let measures = BaselineMetrics::new(&self.measures, partition);
        let mapped = gathered(rows, call.batch_rows).then(move |batch| {
            let (functions, call) = (Arc::clone(&functions), Arc::clone(&call));
            let (computing, sent) = (measures.elapsed_compute().clone(), measures.output_rows().clone());
            async move {
                let batch = batch?;
                // A function may compute for long; other tasks go on meanwhile.
                let called = tokio::task::spawn_blocking(move || {
                    let _timer = computing.timer();
                    functions.call(&call.function, batch, &call.schema)
                });
                let batch = called.await.map_err(|error| exec_datafusion_err!("{error}"))??;
                sent.add(batch.num_rows());
                Ok(batch)
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
