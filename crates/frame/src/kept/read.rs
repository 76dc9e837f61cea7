//! Reading kept frames: a leaf whose tasks run on the ranks that have the rows.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result as QueryResult, Statistics, exec_datafusion_err, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use datafusion_distributed::{
    DesiredTaskCountEvent, DesiredTaskCountEventResponse, DistributedLeafExec, NetworkBoundaryExt, RouteTasksEvent,
    RouteTasksEventResponse, ScaleUpLeafNodeEvent, ScaleUpLeafNodeEventResponse,
};
use dayfly_protocol::error::{Code, Failure};
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};

use super::{FrameId, Kept, Location, Part, Store};
use crate::error::failure_of;
use crate::exchange::{Recovering, address_of, kept_rows};

/// As many tasks as ranks that have rows.
pub fn desired_tasks(event: DesiredTaskCountEvent<'_>) -> Option<QueryResult<DesiredTaskCountEventResponse>> {
    let leaf = event.plan.downcast_ref::<KeptExec>()?;
    Some(Ok(DesiredTaskCountEventResponse::desired(
        leaf.rows.ranks().len().max(1),
    )))
}

/// Has each task read what one rank keeps; or several, if there are fewer tasks.
pub fn divided(event: ScaleUpLeafNodeEvent<'_>) -> Option<QueryResult<ScaleUpLeafNodeEventResponse>> {
    let leaf = event.plan.downcast_ref::<KeptExec>()?;
    let (ranks, tasks) = (leaf.rows.ranks(), event.task_count);
    let of_task = |task: usize| {
        let own = ranks.iter().skip(task).step_by(tasks);
        let own: Vec<_> = own.collect();
        let parts = leaf.rows.parts.iter().filter(|part| own.contains(&&part.location.rank));
        parts.cloned().collect::<Vec<_>>()
    };
    let shares: Vec<_> = (0..tasks).map(of_task).collect();
    // As many partitions in each task: all parts of a leaf have that in common.
    let most = shares.iter().map(Vec::len).max().unwrap_or(1);
    let variants = shares.into_iter().map(|parts| {
        let rows = Rows {
            parts,
            partitions: leaf.rows.partitions.min(most).max(1),
            ..leaf.rows.clone()
        };
        let part = KeptExec::new(rows, leaf.kept.clone())?;
        Ok(Arc::new(part) as Arc<dyn ExecutionPlan>)
    });
    let leaf = variants
        .collect::<QueryResult<Vec<_>>>()
        .and_then(|variants| DistributedLeafExec::try_new(Arc::clone(event.plan), variants));
    Some(leaf.map(|leaf| ScaleUpLeafNodeEventResponse::new(Arc::new(leaf))))
}

/// Sends each task that reads kept rows to the rank that has them.
pub fn routed(event: RouteTasksEvent<'_>) -> Option<QueryResult<RouteTasksEventResponse>> {
    let tasks = first_reads(event.plan)?;
    // A task without rows may run anywhere; there are as many ranks as tasks.
    let urls = (0u32..).zip(&tasks).map(|(task, read)| {
        let rank = read.rows.parts.first().map_or(task, |part| part.location.rank);
        address_of(rank)
    });
    (tasks.len() == event.task_count).then(|| Ok(RouteTasksEventResponse::new(urls.collect())))
}

/// What each task of a stage reads at the first leaf with kept rows.
fn first_reads(plan: &Arc<dyn ExecutionPlan>) -> Option<Vec<&KeptExec>> {
    if plan.is_network_boundary() {
        return None;
    }
    if let Some(leaf) = plan.downcast_ref::<DistributedLeafExec>() {
        return leaf.variants().iter().map(|variant| variant.downcast_ref()).collect();
    }
    match plan.downcast_ref::<KeptExec>() {
        Some(read) => Some(vec![read]),
        None => plan.children().into_iter().find_map(first_reads),
    }
}

/// Which rows a plan reads.
#[derive(Debug, Clone)]
pub struct Rows {
    pub id: FrameId,
    pub parts: Vec<Part>,
    /// All columns.
    pub schema: SchemaRef,
    /// Those that are read.
    pub projection: Option<Vec<usize>>,
    pub partitions: usize,
}

impl Rows {
    /// The ranks that have them, each once.
    fn ranks(&self) -> Vec<u32> {
        let mut ranks: Vec<_> = self.parts.iter().map(|part| part.location.rank).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// The columns that are read.
    fn read(&self) -> QueryResult<SchemaRef> {
        Ok(match &self.projection {
            Some(columns) => Arc::new(self.schema.project(columns)?),
            None => Arc::clone(&self.schema),
        })
    }
}

/// Reads kept rows. Partitions have the parts in turns.
#[derive(Debug)]
pub struct KeptExec {
    rows: Rows,
    /// In the session: so that ranks keep what is still to be read.
    kept: Option<Arc<Kept>>,
    properties: Arc<PlanProperties>,
    measures: ExecutionPlanMetricsSet,
}

impl KeptExec {
    pub fn new(rows: Rows, kept: Option<Arc<Kept>>) -> QueryResult<Self> {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(rows.read()?),
            Partitioning::UnknownPartitioning(rows.partitions.max(1)),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Ok(Self {
            rows,
            kept,
            properties: Arc::new(properties),
            measures: ExecutionPlanMetricsSet::new(),
        })
    }

    pub fn rows(&self) -> &Rows {
        &self.rows
    }
}

impl DisplayAs for KeptExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let rows: u64 = self.rows.parts.iter().map(|part| part.rows).sum();
        write!(f, "KeptExec: {rows} rows")?;
        match self.rows.ranks()[..] {
            [] => Ok(()),
            [rank] => write!(f, " of rank {rank}"),
            [..] => write!(f, " of {} ranks", self.rows.ranks().len()),
        }
    }
}

impl ExecutionPlan for KeptExec {
    fn name(&self) -> &str {
        "KeptExec"
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
            return internal_err!("kept rows have no input");
        }
        Ok(self)
    }

    fn statistics_from_inputs(&self, _: &[Arc<Statistics>], args: &StatisticsArgs) -> QueryResult<Arc<Statistics>> {
        let mut known = Statistics::new_unknown(self.schema().as_ref());
        if args.partition().is_none() {
            let sum = |of: fn(&Part) -> u64| self.rows.parts.iter().map(of).sum::<u64>();
            known.num_rows = Precision::Exact(usize::try_from(sum(|part| part.rows)).unwrap_or(usize::MAX));
            let bytes = usize::try_from(sum(|part| part.bytes)).unwrap_or(usize::MAX);
            known.total_byte_size = Precision::Inexact(bytes);
        }
        Ok(Arc::new(known))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.measures.clone_inner())
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> QueryResult<SendableRecordBatchStream> {
        let store = context.session_config().get_extension::<Store>();
        let store = store.ok_or_else(|| exec_datafusion_err!("frames are kept by ranks, not by this process"))?;
        // Nothing brings kept rows of a lost rank back, so their tasks must not run again for them.
        let is_recovering = context.session_config().get_extension::<Recovering>().is_some();
        let partitions = self.rows.partitions.max(1);
        let own: Vec<_> = self
            .rows
            .parts
            .iter()
            .skip(partition)
            .step_by(partitions)
            .cloned()
            .collect();
        let id = self.rows.id;
        let batches = stream::iter(own).map(move |part| {
            let reading = Reading::new(Arc::clone(&store), id, &part, is_recovering);
            stream::unfold(reading, Reading::next)
        });
        let projection = self.rows.projection.clone();
        let sent = MetricBuilder::new(&self.measures).output_rows(partition);
        let rows = batches.flatten().and_then(move |batch| {
            sent.add(batch.num_rows());
            let read = match &projection {
                Some(columns) => batch.project(columns).map_err(DataFusionError::from),
                None => Ok(batch),
            };
            std::future::ready(read)
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}

/// The rows of a part, of the first rank that has them. If it is lost, the next one goes on.
struct Reading {
    store: Arc<Store>,
    id: FrameId,
    is_recovering: bool,
    current: Location,
    next: VecDeque<Location>,
    /// Those of the current rank; `None` after the last batch.
    rows: Option<BoxStream<'static, QueryResult<RecordBatch>>>,
    /// Batches that were returned.
    returned: usize,
    /// Batches of the current rank that were returned before.
    repeated: usize,
}

impl Reading {
    fn new(store: Arc<Store>, id: FrameId, part: &Part, is_recovering: bool) -> Self {
        let all = std::iter::once(&part.location).chain(&part.copies).copied();
        let (own, others): (Vec<_>, Vec<_>) = all.partition(|location| location.rank == store.rank());
        let mut next: VecDeque<_> = own.into_iter().chain(others).collect();
        let current = next.pop_front().unwrap_or(part.location);
        Self {
            rows: Some(rows_at(&store, id, current)),
            store,
            id,
            is_recovering,
            current,
            next,
            returned: 0,
            repeated: 0,
        }
    }

    async fn next(mut self) -> Option<(QueryResult<RecordBatch>, Self)> {
        loop {
            match self.rows.as_mut()?.next().await? {
                Ok(_) if self.repeated > 0 => self.repeated -= 1,
                Ok(batch) => {
                    self.returned += 1;
                    return Some((Ok(batch), self));
                }
                Err(error) => {
                    let are_lost = matches!(failure_of(&error).code, Code::RankLost | Code::StateLost);
                    let Some(next) = self.next.pop_front().filter(|_| are_lost) else {
                        self.rows = None;
                        let rank = self.current.rank;
                        let error = if self.is_recovering { lost(error, rank) } else { error };
                        return Some((Err(error), self));
                    };
                    tracing::warn!(
                        lost = self.current.rank,
                        rank = next.rank,
                        "kept rows are read from a copy"
                    );
                    self.current = next;
                    self.rows = Some(rows_at(&self.store, self.id, next));
                    self.repeated = self.returned;
                }
            }
        }
    }
}

fn rows_at(store: &Store, id: FrameId, location: Location) -> BoxStream<'static, QueryResult<RecordBatch>> {
    if location.rank != store.rank() {
        return kept_rows(store.exchange(), location.rank, id, location.number);
    }
    match store.get(id, location.number) {
        Ok(batches) => stream::iter(batches).map(Ok).boxed(),
        Err(failure) => stream::once(async { Err(DataFusionError::External(failure.into())) }).boxed(),
    }
}

/// The loss of kept rows with their rank.
fn lost(error: DataFusionError, rank: u32) -> DataFusionError {
    match failure_of(&error) {
        failure if failure.code == Code::RankLost => {
            let message = format!("rank {rank} had rows of a kept frame, and is lost; persist the frame again");
            DataFusionError::External(Failure::new(Code::StateLost, message).into())
        }
        _ => error,
    }
}
