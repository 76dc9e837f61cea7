//! The node that writes rows.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{RecordBatch, StringArray, UInt64Array};
use datafusion::arrow::compute::SortOptions;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::Result as QueryResult;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{
    EquivalenceProperties, LexOrdering, LexRequirement, OrderingRequirements, PhysicalExpr, PhysicalSortRequirement,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, ExecutionPlanProperties, InputDistributionRequirements,
    PlanProperties,
};
use datafusion_distributed::DistributedTaskContext;
use futures_util::TryStreamExt;

use super::Target;
use super::files::{Files, Place, prefix_of};
use crate::exchange::Recovering;
use crate::operation::{Operation, only_input};

/// The columns that ranks report: files below the directory, their rows, and their bytes.
fn reported() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("path", DataType::Utf8, false),
        Field::new("rows", DataType::UInt64, false),
        Field::new("bytes", DataType::UInt64, false),
    ]))
}

impl Operation for Target {
    const NAME: &str = "Write";

    fn schema(&self) -> Option<SchemaRef> {
        Some(reported())
    }

    fn detail(&self) -> &str {
        &self.output.directory
    }

    fn exec(&self, input: Arc<dyn ExecutionPlan>) -> QueryResult<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(WriteExec::new(input, self.clone())))
    }
}

/// Which order the files of a write have together.
#[derive(Debug, Clone)]
enum Order {
    /// None.
    Any,
    /// That of the input, whose rows are in one partition.
    Together(LexOrdering),
    /// That of the input, whose partitions have ranges in order.
    Ranges(LexOrdering),
}

/// Writes the rows of its input, each partition into files of its own, and returns these files.
#[derive(Debug)]
pub struct WriteExec {
    input: Arc<dyn ExecutionPlan>,
    target: Target,
    order: Order,
    properties: Arc<PlanProperties>,
}

impl WriteExec {
    /// Writes the rows of this input. If they are sorted, which the target states, and in one place, they stay in order.
    pub fn new(input: Arc<dyn ExecutionPlan>, target: Target) -> Self {
        let is_together = input.output_partitioning().partition_count() == 1;
        let order = input.output_ordering().filter(|_| is_together && target.is_sorted);
        let order = order.cloned().map_or(Order::Any, Order::Together);
        Self::with_order(input, target, order)
    }

    /// The same write of an input whose partitions have ranges in order.
    pub fn by_ranges(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        let order = match &self.order {
            Order::Together(order) | Order::Ranges(order) => Order::Ranges(order.clone()),
            Order::Any => Order::Any,
        };
        Self::with_order(input, self.target.clone(), order)
    }

    fn with_order(input: Arc<dyn ExecutionPlan>, target: Target, order: Order) -> Self {
        let own = PlanProperties::new(
            EquivalenceProperties::new(reported()),
            datafusion::physical_plan::Partitioning::UnknownPartitioning(input.output_partitioning().partition_count()),
            datafusion::physical_plan::execution_plan::EmissionType::Final,
            input.boundedness(),
        );
        Self {
            input,
            target,
            order,
            properties: Arc::new(own),
        }
    }

    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// Whether its files are in order only if the partitions of its input are.
    pub fn writes_ranges(&self) -> bool {
        matches!(self.order, Order::Ranges(_))
    }

    /// The order of the rows of all files, one after the other by their names.
    pub fn file_order(&self) -> Option<&LexOrdering> {
        match &self.order {
            Order::Any => None,
            Order::Together(order) | Order::Ranges(order) => Some(order),
        }
    }

    pub fn target(&self) -> &Target {
        &self.target
    }

    fn places(&self) -> QueryResult<Vec<usize>> {
        let schema = self.input.schema();
        let place = |name: &String| Ok(schema.index_of(name)?);
        self.target.output.partition_by.iter().map(place).collect()
    }
}

impl DisplayAs for WriteExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "WriteExec: {}", self.target.output.directory)?;
        if !self.target.output.partition_by.is_empty() {
            write!(f, ", partition_by={}", self.target.output.partition_by.join(", "))?;
        }
        if let Some(order) = self.file_order() {
            write!(f, ", in the order of [{order}]")?;
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

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        InputDistributionRequirements::new(vec![match self.order {
            Order::Together(_) => Distribution::SinglePartition,
            Order::Any | Order::Ranges(_) => Distribution::UnspecifiedDistribution,
        }])
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        if let Some(order) = self.file_order() {
            return vec![Some(OrderingRequirements::from(order.clone()))];
        }
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
        let input = only_input(children)?;
        Ok(Arc::new(Self::with_order(
            input,
            self.target.clone(),
            self.order.clone(),
        )))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> QueryResult<SendableRecordBatchStream> {
        let task = DistributedTaskContext::from_ctx(&context).task_index;
        let url = ListingTableUrl::parse(&self.target.output.directory)?;
        let store = context.runtime_env().object_store(url.object_store())?;
        let recovering = context.session_config().get_extension::<Recovering>();
        // A rank that only seems to be lost may go on writing.
        let attempt = recovering.map_or(0, |recovering| recovering.attempt);
        // The names are in the order of tasks, partitions and files.
        let prefix = prefix_of(&self.target.run);
        let name = format!("{prefix}{task:05}-{partition:05}-{attempt}-");
        let memory = MemoryConsumer::new("WriteExec").register(context.memory_pool());
        let schema = self.input.schema();
        let place = Place {
            store,
            format: self.target.output.format,
            directory: url.prefix().clone(),
            name,
        };
        let mut files = Files::new(place, &schema, self.places()?, memory)?;
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
