//! The node that holds rows until their ranges are known, and numbers them.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch, UInt32Array};
use datafusion::arrow::compute::SortOptions;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::arrow::row::{RowConverter, Rows, SortField};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result as QueryResult, exec_datafusion_err, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{CardinalityEffect, EmissionType};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet, SpillMetrics};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use datafusion_distributed::DistributedTaskContext;
use futures_util::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};

use super::SortId;
use super::cut::{Dealer, Sample};
use super::sample::Sampler;
use super::values::values_of;
use crate::exchange::{Exchange, Holder, Part, compact, cuts_of};
use crate::kept::Store;
use crate::operation::only_input;

/// Name of the column that it adds.
const RANGE: &str = "__range";

/// A column of the keys of a sort.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// Its place in the rows.
    pub column: usize,
    /// Whether larger values come first.
    pub descending: bool,
    /// Whether nulls come first.
    pub nulls_first: bool,
}

impl Key {
    fn options(self) -> SortOptions {
        SortOptions::new(self.descending, self.nulls_first)
    }
}

/// A sort by ranges, without its rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    pub id: SortId,
    pub keys: Vec<Key>,
    /// Number of ranges: partitions of all tasks that sort.
    pub ranges: usize,
    /// The rank that cuts them.
    pub rank: u32,
}

/// Returns the rows of its input with a column by whose hash they go to the partition of their range.
#[derive(Debug)]
pub struct RangesExec {
    input: Arc<dyn ExecutionPlan>,
    spec: Spec,
    properties: Arc<PlanProperties>,
    measures: ExecutionPlanMetricsSet,
}

impl RangesExec {
    /// # Errors
    /// Of keys that the input does not have.
    pub fn try_new(input: Arc<dyn ExecutionPlan>, spec: Spec) -> QueryResult<Self> {
        let schema = input.schema();
        let mut fields: Vec<_> = schema.fields().iter().cloned().collect();
        if spec.keys.is_empty() || spec.keys.iter().any(|key| key.column >= fields.len()) {
            return internal_err!("rows are cut into ranges by a column that they do not have");
        }
        fields.push(Arc::new(Field::new(RANGE, DataType::UInt32, false)));
        let schema = Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()));
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(input.output_partitioning().partition_count()),
            EmissionType::Final,
            input.boundedness(),
        );
        Ok(Self {
            input,
            spec,
            properties: Arc::new(properties),
            measures: ExecutionPlanMetricsSet::new(),
        })
    }

    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The place of the column that it adds.
    pub fn range_column(&self) -> usize {
        self.input.schema().fields().len()
    }
}

impl DisplayAs for RangesExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let schema = self.input.schema();
        let keys = self.spec.keys.iter().map(|key| {
            let options = key.options();
            format!("{} {options}", schema.field(key.column).name())
        });
        let keys: Vec<_> = keys.collect();
        write!(f, "RangesExec: keys=[{}], ranges={}", keys.join(", "), self.spec.ranges)
    }
}

impl ExecutionPlan for RangesExec {
    fn name(&self) -> &str {
        "RangesExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
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
        Ok(Arc::new(Self::try_new(only_input(children)?, self.spec.clone())?))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.measures.clone_inner())
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> QueryResult<SendableRecordBatchStream> {
        let store = context.session_config().get_extension::<Store>();
        let store = store.ok_or_else(|| exec_datafusion_err!("sorts by ranges run on ranks, not in this process"))?;
        let task = DistributedTaskContext::from_ctx(&context);
        let partitions = self.properties.output_partitioning().partition_count();
        let number = task.task_index * partitions + partition;
        let holder = Holder::measured(
            &context.runtime_env(),
            self.input.schema(),
            "rows before their ranges",
            SpillMetrics::new(&self.measures, partition),
        );
        let part = PartOfSort {
            number,
            count: task.task_count * partitions,
            keys: Keys::new(&self.spec.keys, &self.input.schema())?,
            schema: self.schema(),
            exchange: Arc::clone(store.exchange()),
            spec: self.spec.clone(),
            measures: BaselineMetrics::new(&self.measures, partition),
        };
        let rows = self.input.execute(partition, context)?;
        let numbered = futures_util::stream::once(part.run(rows, holder)).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), numbered)))
    }
}

/// The keys of rows, as bytes in the order of the sort.
struct Keys {
    columns: Vec<usize>,
    converter: RowConverter,
}

impl Keys {
    fn new(keys: &[Key], schema: &SchemaRef) -> QueryResult<Self> {
        let fields = keys.iter().map(|key| {
            let kind = schema.field(key.column).data_type().clone();
            SortField::new_with_options(kind, key.options())
        });
        Ok(Self {
            columns: keys.iter().map(|key| key.column).collect(),
            converter: RowConverter::new(fields.collect())?,
        })
    }

    fn of(&self, batch: &RecordBatch) -> QueryResult<Rows> {
        let columns = self.columns.iter().map(|column| Arc::clone(batch.column(*column)));
        let columns: Vec<ArrayRef> = columns.collect();
        Ok(self.converter.convert_columns(&columns)?)
    }

    fn of_row(&self, batch: &RecordBatch, row: usize) -> QueryResult<Vec<u8>> {
        let rows = self.of(&batch.slice(row, 1))?;
        Ok(rows.row(0).data().to_vec())
    }
}

/// What one partition of a task does.
struct PartOfSort {
    number: usize,
    count: usize,
    keys: Keys,
    schema: SchemaRef,
    exchange: Arc<Exchange>,
    spec: Spec,
    measures: BaselineMetrics,
}

impl PartOfSort {
    /// Holds and samples all rows, waits for the cuts, and returns the rows with the numbers of their ranges.
    async fn run(
        self,
        mut rows: SendableRecordBatchStream,
        mut holder: Holder,
    ) -> QueryResult<impl futures_util::Stream<Item = QueryResult<RecordBatch>>> {
        let mut sampler = Sampler::new(self.number as u64);
        while let Some(batch) = rows.try_next().await? {
            let _timer = self.measures.elapsed_compute().timer();
            // A part of a larger batch would keep all of that.
            let (batch, bytes) = compact(&batch)?;
            sampler.add(batch.num_rows(), |row| self.keys.of_row(&batch, row))?;
            holder.push(batch, bytes)?;
        }
        drop(rows);
        let held = holder.finish()?;
        let mut numbers = self.numbers(sampler.finish()).await?;
        let numbered = held.into_rows()?.map(move |batch| {
            let _timer = self.measures.elapsed_compute().timer();
            let numbered = numbers.add_to(&batch?, &self.keys, &self.schema)?;
            self.measures.record_output(numbered.num_rows());
            Ok(numbered)
        });
        Ok(numbered)
    }

    async fn numbers(&self, sample: Sample) -> QueryResult<Numbers> {
        let part = Part {
            sort: self.spec.id,
            number: self.number as u64,
            count: self.count as u64,
            ranges: self.spec.ranges as u64,
            sample,
        };
        let cuts = cuts_of(&self.exchange, self.spec.rank, part).await?;
        Ok(Numbers {
            values: values_of(self.spec.ranges)?,
            dealer: Dealer::new(cuts, self.number),
        })
    }
}

/// The numbers of ranges.
struct Numbers {
    dealer: Dealer,
    /// Of each range, as in the added column.
    values: Vec<u32>,
}

impl Numbers {
    fn add_to(&mut self, batch: &RecordBatch, keys: &Keys, schema: &SchemaRef) -> QueryResult<RecordBatch> {
        let rows = keys.of(batch)?;
        let last = self.values.len() - 1;
        let ranges = rows.iter().map(|row| self.dealer.range_of(row.data()).min(last));
        let ranges = UInt32Array::from_iter_values(ranges.map(|range| self.values[range]).collect::<Vec<_>>());
        let mut columns = batch.columns().to_vec();
        columns.push(Arc::new(ranges));
        Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
    }
}
