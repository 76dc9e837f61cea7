//! The node that keeps rows.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{RecordBatch, UInt32Array, UInt64Array};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result as QueryResult, exec_datafusion_err};
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, LexOrdering, OrderingRequirements, Partitioning, PhysicalExpr};
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, ExecutionPlanProperties, InputDistributionRequirements,
    PlanProperties,
};
use dayfly_protocol::error::{Code, Failure};
use futures_util::TryStreamExt;

use super::{FrameId, Store};
use crate::exchange::compact;
use crate::memory::CANNOT_KEEP;
use crate::operation::{Operation, only_input};

/// The columns that ranks report: those of a [`Part`](super::Part) without copies.
fn reported() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("rank", DataType::UInt32, false),
        Field::new("number", DataType::UInt32, false),
        Field::new("rows", DataType::UInt64, false),
        Field::new("bytes", DataType::UInt64, false),
    ]))
}

/// Keeps the rows of a frame.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub struct Keep(pub FrameId);

impl Operation for Keep {
    const NAME: &str = "Keep";

    fn schema(&self) -> Option<SchemaRef> {
        Some(reported())
    }

    fn detail(&self) -> &str {
        "in memory"
    }

    fn exec(&self, input: Arc<dyn ExecutionPlan>) -> QueryResult<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(KeepExec::new(input, self.0)))
    }
}

/// The error of a rank that has no room for rows that it should keep.
pub fn does_not_fit(rank: u32) -> DataFusionError {
    let message = format!(
        "the memory of rank {rank} {CANNOT_KEEP}: lease more memory or more ranks, keep fewer rows or columns, or drop \
         other kept frames"
    );
    DataFusionError::External(Box::new(Failure::new(Code::OutOfMemory, message)))
}

/// Keeps the rows of its input on the rank, and returns where they are.
#[derive(Debug)]
pub struct KeepExec {
    input: Arc<dyn ExecutionPlan>,
    id: FrameId,
    /// The order in which it keeps the rows, all of them in one part; `None` for any.
    order: Option<LexOrdering>,
    properties: Arc<PlanProperties>,
}

impl KeepExec {
    /// Keeps the rows of this input. If that has all rows in one place and an order, they stay in one place and in order.
    pub fn new(input: Arc<dyn ExecutionPlan>, id: FrameId) -> Self {
        let is_together = input.output_partitioning().partition_count() == 1;
        let order = input.output_ordering().filter(|_| is_together).cloned();
        Self::with_order(input, id, order)
    }

    fn with_order(input: Arc<dyn ExecutionPlan>, id: FrameId, order: Option<LexOrdering>) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(reported()),
            Partitioning::UnknownPartitioning(input.output_partitioning().partition_count()),
            EmissionType::Final,
            input.boundedness(),
        );
        Self {
            input,
            id,
            order,
            properties: Arc::new(properties),
        }
    }

    pub fn id(&self) -> FrameId {
        self.id
    }
}

impl DisplayAs for KeepExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("KeepExec")
    }
}

impl ExecutionPlan for KeepExec {
    fn name(&self) -> &str {
        "KeepExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        InputDistributionRequirements::new(vec![match self.order {
            Some(_) => Distribution::SinglePartition,
            None => Distribution::UnspecifiedDistribution,
        }])
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        vec![self.order.clone().map(OrderingRequirements::from)]
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
        let input = only_input(children)?;
        Ok(Arc::new(Self::with_order(input, self.id, self.order.clone())))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> QueryResult<SendableRecordBatchStream> {
        let store = context.session_config().get_extension::<Store>();
        let store = store.ok_or_else(|| exec_datafusion_err!("frames are kept by ranks, not by this process"))?;
        let memory = MemoryConsumer::new("kept frame").register(context.memory_pool());
        let mut rows = self.input.execute(partition, context)?;
        let id = self.id;
        let kept = async move {
            let (mut batches, mut count, mut bytes) = (Vec::new(), 0, 0);
            while let Some(batch) = rows.try_next().await? {
                // A part of a larger batch would keep all of that.
                let (batch, size) = compact(&batch)?;
                memory.try_grow(size).map_err(|_| does_not_fit(store.rank()))?;
                count += batch.num_rows() as u64;
                bytes += size as u64;
                batches.push(batch);
            }
            let number = store.put(id, batches, memory);
            let row = RecordBatch::try_new(
                reported(),
                vec![
                    Arc::new(UInt32Array::from(vec![store.rank()])),
                    Arc::new(UInt32Array::from(vec![number])),
                    Arc::new(UInt64Array::from(vec![count])),
                    Arc::new(UInt64Array::from(vec![bytes])),
                ],
            );
            Ok(row?)
        };
        let stream = futures_util::stream::once(kept);
        Ok(Box::pin(RecordBatchStreamAdapter::new(reported(), stream)))
    }
}
