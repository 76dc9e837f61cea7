//! Plans: which part of a query runs on ranks.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::tree_node::TreeNode;
use datafusion::common::{Result as QueryResult, internal_err};
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::analyze::AnalyzeExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};
use datafusion_distributed::{DistributedExec, NetworkBoundary, NetworkCoalesceExec, Stage};
use uuid::Uuid;

use crate::functions::{MapExec, MapPlanner};
use crate::kept::{KeepExec, KeepPlanner, KeptExec};
use crate::write::WritePlanner;

/// Plans for one process, with the nodes of this crate.
#[derive(Debug)]
pub struct LocalPlanner;

#[async_trait]
impl QueryPlanner for LocalPlanner {
    async fn create_physical_plan(
        &self,
        query: &LogicalPlan,
        session: &dyn Session,
    ) -> QueryResult<Arc<dyn ExecutionPlan>> {
        let planner = DefaultPhysicalPlanner::with_extension_planners(vec![
            Arc::new(WritePlanner),
            Arc::new(MapPlanner),
            Arc::new(KeepPlanner),
        ]);
        planner.create_physical_plan(query, session).await
    }
}

/// Plans as the distributed planner, and moves what that leaves in this process to one rank if it reads files or calls
/// functions: only the ranks have to see these, and they have the memory and the cores for them.
#[derive(Debug)]
pub struct RankPlanner(pub Arc<dyn QueryPlanner + Send + Sync>);

#[async_trait]
impl QueryPlanner for RankPlanner {
    async fn create_physical_plan(
        &self,
        query: &LogicalPlan,
        session: &dyn Session,
    ) -> QueryResult<Arc<dyn ExecutionPlan>> {
        let plan = self.0.create_physical_plan(query, session).await?;
        if plan.is::<DistributedExec>() || plan.is::<AnalyzeExec>() {
            return Ok(plan);
        }
        if reads_files_only(&plan) || plan.exists(|node| Ok(needs_ranks(node)))? {
            return on_one_rank(plan);
        }
        Ok(plan)
    }
}

/// Whether only ranks can execute a node.
fn needs_ranks(node: &Arc<dyn ExecutionPlan>) -> bool {
    node.is::<MapExec>() || node.is::<KeepExec>() || node.is::<KeptExec>()
}

fn reads_files_only(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let children = plan.children();
    if children.is_empty() {
        let source = plan.downcast_ref::<DataSourceExec>();
        return source.is_some_and(|source| source.data_source().downcast_ref::<FileScanConfig>().is_some());
    }
    children.into_iter().all(reads_files_only)
}

/// Makes a stage with one task of a whole plan.
fn on_one_rank(plan: Arc<dyn ExecutionPlan>) -> QueryResult<Arc<dyn ExecutionPlan>> {
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
    Ok(Arc::new(DistributedExec::new(head).with_metrics_collection(false)))
}
