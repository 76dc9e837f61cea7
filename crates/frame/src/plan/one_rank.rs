//! Plans that run on one rank, and why.

use std::fmt;
use std::sync::Arc;

use datafusion::catalog::Session;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result as QueryResult, internal_err};
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::analyze::AnalyzeExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use datafusion_distributed::{DistributedCodec, DistributedExec, NetworkBoundary, NetworkCoalesceExec, Stage};
use datafusion_proto::bytes::physical_plan_to_bytes_with_proto_converter;
use datafusion_proto::physical_plan::DeduplicatingProtoConverter;
use uuid::Uuid;

use super::checker::{self, Refusal};
use crate::functions::MapExec;
use crate::kept::{KeepExec, KeptExec};

/// Moves a whole plan to one of the ranks, which have its files and functions. Other plans stay in this process, which is
/// a rank too. The plan states the reason, if there is one.
pub fn on_one_rank(
    plan: Arc<dyn ExecutionPlan>,
    refusal: Option<&Refusal>,
    session: &dyn Session,
) -> QueryResult<Arc<dyn ExecutionPlan>> {
    let stated = |plan| match refusal {
        Some(refusal) => Arc::new(OneRankExec::new(plan, refusal)),
        None => plan,
    };
    let has_work = match refusal {
        Some(_) => reads_files(&plan),
        None => reads_files_only(&plan),
    };
    let has_work = has_work || needs_ranks(&plan);
    let is_for_rank = has_work && (checker::knows(&plan).is_ok() || can_be_sent(&plan, session));
    if plan.is::<AnalyzeExec>() || !is_for_rank {
        return Ok(stated(plan));
    }
    let boundary = NetworkCoalesceExec::try_new(plan, 1, 1)?;
    let Stage::Local(stage) = boundary.input_stage() else {
        return internal_err!("a new stage is not local");
    };
    let mut stage = stage.clone();
    // The distributed planner, which would number it, leaves out exchanges between single tasks.
    (stage.query_id, stage.num) = (Uuid::new_v4(), 1);
    let mut head: Arc<dyn ExecutionPlan> = boundary.with_input_stage(Stage::Local(stage))?;
    if head.output_partitioning().partition_count() > 1 {
        head = Arc::new(CoalescePartitionsExec::new(head));
    }
    Ok(Arc::new(
        DistributedExec::new(stated(head)).with_metrics_collection(false),
    ))
}

fn reads_files_only(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let children = plan.children();
    match children.is_empty() {
        true => is_of_files(plan),
        false => children.into_iter().all(reads_files_only),
    }
}

fn reads_files(plan: &Arc<dyn ExecutionPlan>) -> bool {
    is_of_files(plan) || plan.children().into_iter().any(reads_files)
}

/// Whether only ranks can execute some node.
fn needs_ranks(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let needs = plan.is::<MapExec>() || plan.is::<KeepExec>() || plan.is::<KeptExec>();
    needs || plan.children().into_iter().any(needs_ranks)
}

fn is_of_files(leaf: &Arc<dyn ExecutionPlan>) -> bool {
    let source = leaf.downcast_ref::<DataSourceExec>();
    source.is_some_and(|source| source.data_source().downcast_ref::<FileScanConfig>().is_some())
}

/// Whether all nodes have a form that crosses between ranks. Those of other libraries may have none.
fn can_be_sent(plan: &Arc<dyn ExecutionPlan>, session: &dyn Session) -> bool {
    let codec = DistributedCodec::new_combined_with_user(session.config());
    let converter = DeduplicatingProtoConverter::default();
    physical_plan_to_bytes_with_proto_converter(Arc::clone(plan), &codec, &converter).is_ok()
}

/// States in a plan why it runs on one rank. Returns the rows of its input.
#[derive(Debug)]
struct OneRankExec {
    input: Arc<dyn ExecutionPlan>,
    reason: String,
}

impl OneRankExec {
    fn new(input: Arc<dyn ExecutionPlan>, refusal: &Refusal) -> Self {
        let reason = refusal.to_string();
        Self { input, reason }
    }
}

impl DisplayAs for OneRankExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "OneRankExec: runs on one rank: {}", self.reason)
    }
}

impl ExecutionPlan for OneRankExec {
    fn name(&self) -> &str {
        "OneRankExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
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
            .map_err(|children| DataFusionError::Internal(format!("one input is expected, not {}", children.len())))?;
        let reason = self.reason.clone();
        Ok(Arc::new(Self { input, reason }))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> QueryResult<SendableRecordBatchStream> {
        self.input.execute(partition, context)
    }
}
