//! Plans, and last stages of plans, that run on one rank.

use std::sync::Arc;

use datafusion::catalog::Session;
use datafusion::common::{Result as QueryResult, internal_err};
use datafusion::physical_plan::analyze::AnalyzeExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, ExecutionPlan, ExecutionPlanProperties, ReplaceChildrenOptions,
};
use datafusion_distributed::{
    DistributedCodec, DistributedConfig, DistributedExec, NetworkBoundary, NetworkBoundaryExt, NetworkCoalesceExec,
    Stage,
};
use datafusion_proto::bytes::physical_plan_to_bytes_with_proto_converter;
use datafusion_proto::physical_plan::DeduplicatingProtoConverter;
use uuid::Uuid;

use super::checker::{self, Refusal};
use super::windows;
use crate::functions::MapExec;
use crate::kept::{KeepExec, KeptExec};
use crate::operation::only_input;
use crate::passing::{Passage, PassingExec};
use crate::source::scan_of;
use crate::write::WriteExec;

/// Moves a whole plan to one of the ranks, which have its files and functions. Other plans stay in this process, which is
/// a rank too. The plan states the reason, if there is one.
pub fn on_one_rank(
    plan: Arc<dyn ExecutionPlan>,
    refusal: Option<&Refusal>,
    session: &dyn Session,
) -> QueryResult<Arc<dyn ExecutionPlan>> {
    let stated = |plan| match refusal {
        Some(refusal) => Arc::new(PassingExec::new(plan, Stated(refusal.to_string()))),
        None => plan,
    };
    let is_for_rank = needs_ranks(&plan) && (checker::knows(&plan).is_ok() || can_be_sent(&plan, session));
    if plan.is::<AnalyzeExec>() || !is_for_rank {
        return Ok(stated(plan));
    }
    let head = stage_of(plan, Uuid::new_v4(), 1)?;
    executed(stated(head), session)
}

/// Moves the last stage of a distributed plan from this process to one of the ranks, if only these can execute it. It
/// has what comes after all rows are together: a function over sorted rows, for example.
pub fn with_last_stage_on_a_rank(
    plan: Arc<dyn ExecutionPlan>,
    session: &dyn Session,
) -> QueryResult<Arc<dyn ExecutionPlan>> {
    if !plan.is::<DistributedExec>() {
        let children = plan.children().into_iter().cloned();
        let children = children.map(|child| with_last_stage_on_a_rank(child, session));
        let children = children.collect::<QueryResult<Vec<_>>>()?;
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        return plan.replace_children(children, options);
    }
    let head = only_input(plan.children())?;
    if !needs_ranks(head) {
        return Ok(plan);
    }
    let (query, below) = last_stage_below(head).unwrap_or_else(|| (Uuid::new_v4(), 0));
    let head = stage_of(Arc::clone(head), query, below + 1)?;
    executed(head, session)
}

/// A plan whose stages are sent to ranks when it is executed.
fn executed(head: Arc<dyn ExecutionPlan>, session: &dyn Session) -> QueryResult<Arc<dyn ExecutionPlan>> {
    let is_measured = DistributedConfig::from_config_options(session.config_options())?.collect_metrics;
    Ok(Arc::new(
        DistributedExec::new(head).with_metrics_collection(is_measured),
    ))
}

/// Makes a plan a stage of one task, which some rank executes, and returns what reads its rows.
fn stage_of(plan: Arc<dyn ExecutionPlan>, query: Uuid, number: usize) -> QueryResult<Arc<dyn ExecutionPlan>> {
    let boundary = NetworkCoalesceExec::try_new(plan, 1, 1)?;
    let Stage::Local(stage) = boundary.input_stage() else {
        return internal_err!("a new stage is not local");
    };
    let mut stage = stage.clone();
    // The distributed planner, which would number it, leaves out exchanges between single tasks.
    (stage.query_id, stage.num) = (query, number);
    let head: Arc<dyn ExecutionPlan> = boundary.with_input_stage(Stage::Local(stage))?;
    Ok(match head.output_partitioning().partition_count() {
        1 => head,
        _ => Arc::new(CoalescePartitionsExec::new(head)),
    })
}

/// The query of the stages in a plan, and the highest number among them.
fn last_stage_below(plan: &Arc<dyn ExecutionPlan>) -> Option<(Uuid, usize)> {
    let own = plan.as_network_boundary().map(|boundary| boundary.input_stage());
    let own = own.map(|stage| (stage.query_id(), stage.num()));
    let below = plan.children().into_iter().filter_map(last_stage_below);
    below.chain(own).max_by_key(|(_, number)| *number)
}

/// Whether only ranks can execute some node of a stage: they have the files, the interpreter and the kept rows.
fn needs_ranks(plan: &Arc<dyn ExecutionPlan>) -> bool {
    if plan.is_network_boundary() {
        return false;
    }
    let is_own = plan.is::<MapExec>() || plan.is::<KeepExec>() || plan.is::<KeptExec>() || plan.is::<WriteExec>();
    is_own || scan_of(plan).is_some() || plan.children().into_iter().any(needs_ranks)
}

/// Whether all nodes have a form that crosses between ranks. Those of other libraries may have none.
fn can_be_sent(plan: &Arc<dyn ExecutionPlan>, session: &dyn Session) -> bool {
    if windows::has_lossy(plan) {
        return false;
    }
    let codec = DistributedCodec::new_combined_with_user(session.config());
    let converter = DeduplicatingProtoConverter::default();
    physical_plan_to_bytes_with_proto_converter(Arc::clone(plan), &codec, &converter).is_ok()
}

/// States in a plan why it runs on one rank.
#[derive(Debug, Clone)]
struct Stated(String);

impl Passage for Stated {
    const NAME: &str = "OneRankExec";

    fn detail(&self, _: &Arc<dyn ExecutionPlan>) -> Option<String> {
        Some(format!("runs on one rank: {}", self.0))
    }
}
