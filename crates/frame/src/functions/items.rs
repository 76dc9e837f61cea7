//! Items of which functions make rows: a leaf whose items are divided among the ranks.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::{ArrayRef, BinaryArray, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result as QueryResult, internal_err};
use datafusion::datasource::provider_as_source;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, TableType};
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use datafusion_distributed::{
    DesiredTaskCountEvent, DesiredTaskCountEventResponse, DistributedLeafExec, ScaleUpLeafNodeEvent,
    ScaleUpLeafNodeEventResponse,
};

/// Name of the column that has the items.
const COLUMN: &str = "item";

/// An item: bytes that only a function reads.
pub type Item = Arc<[u8]>;

/// A plan with a row for each item, in any order, on the ranks: each in a batch of its own.
///
/// # Errors
/// Of DataFusion.
pub fn items(items: Vec<Item>) -> QueryResult<LogicalPlan> {
    let table = provider_as_source(table_of(items));
    LogicalPlanBuilder::scan("items", table, None)?.build()
}

/// The table of such a plan.
pub fn table_of(items: Vec<Item>) -> Arc<dyn TableProvider> {
    Arc::new(Items(items))
}

/// How many ranks have items.
pub fn desired_tasks(event: DesiredTaskCountEvent<'_>) -> Option<QueryResult<DesiredTaskCountEventResponse>> {
    let leaf = event.plan.downcast_ref::<ItemsExec>()?;
    Some(Ok(DesiredTaskCountEventResponse::desired(leaf.items.len().max(1))))
}

/// Divides the items among so many ranks.
pub fn divided(event: ScaleUpLeafNodeEvent<'_>) -> Option<QueryResult<ScaleUpLeafNodeEventResponse>> {
    let leaf = event.plan.downcast_ref::<ItemsExec>()?;
    let (tasks, partitions) = (event.task_count, leaf.partitions());
    // As many on each rank: all parts of a leaf have that in common.
    let partitions = partitions.min(leaf.items.len().div_ceil(tasks));
    let parts = (0..tasks).map(|task| {
        let own = leaf.items.iter().skip(task).step_by(tasks).cloned().collect();
        Arc::new(ItemsExec::new(own, partitions)) as Arc<dyn ExecutionPlan>
    });
    let leaf = DistributedLeafExec::try_new(Arc::clone(event.plan), parts);
    Some(leaf.map(|leaf| ScaleUpLeafNodeEventResponse::new(Arc::new(leaf))))
}

/// A table of items.
pub struct Items(pub Vec<Item>);

impl fmt::Debug for Items {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} items", self.0.len())
    }
}

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new(COLUMN, DataType::Binary, false)]))
}

#[async_trait]
impl TableProvider for Items {
    fn schema(&self) -> SchemaRef {
        schema()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        _: Option<usize>,
    ) -> QueryResult<Arc<dyn ExecutionPlan>> {
        if projection.is_some_and(|columns| *columns != [0]) {
            return internal_err!("items have one column, which a function reads");
        }
        let partitions = session.config().target_partitions();
        Ok(Arc::new(ItemsExec::new(self.0.clone(), partitions)))
    }
}

/// A row for each item. Partitions have them in turns.
pub struct ItemsExec {
    items: Vec<Item>,
    properties: Arc<PlanProperties>,
}

impl ItemsExec {
    pub fn new(items: Vec<Item>, partitions: usize) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema()),
            Partitioning::UnknownPartitioning(partitions.max(1)),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Self {
            items,
            properties: Arc::new(properties),
        }
    }

    pub fn partitions(&self) -> usize {
        self.properties.output_partitioning().partition_count()
    }

    pub fn items(&self) -> &[Item] {
        &self.items
    }
}

impl fmt::Debug for ItemsExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_as(DisplayFormatType::Default, f)
    }
}

impl DisplayAs for ItemsExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "ItemsExec: {} items", self.items.len())
    }
}

impl ExecutionPlan for ItemsExec {
    fn name(&self) -> &str {
        "ItemsExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
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
        if !children.is_empty() {
            return internal_err!("items have no input");
        }
        Ok(self)
    }

    fn execute(&self, partition: usize, _: Arc<TaskContext>) -> QueryResult<SendableRecordBatchStream> {
        let partitions = self.partitions();
        let own: Vec<_> = self.items.iter().skip(partition).step_by(partitions).cloned().collect();
        let batches = own.into_iter().map(|item| {
            let column: ArrayRef = Arc::new(BinaryArray::from_vec(vec![&item]));
            Ok(RecordBatch::try_new(schema(), vec![column])?)
        });
        let rows = futures_util::stream::iter(batches);
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema(), rows)))
    }
}
