//! Plans: which part of a query runs on ranks.

mod checker;
mod one_rank;
mod text;
mod windows;

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Result as QueryResult;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};
use datafusion_distributed::DistributedExec;

use self::checker::Refusal;
use self::one_rank::{on_one_rank, with_last_stage_on_a_rank};
use crate::functions::MapCall;
use crate::kept::Keep;
use crate::operation::planner;
use crate::repartition::Repartition;
use crate::sorted_join::SortedJoin;
use crate::write::Target;
pub use text::{analyze, explain};

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
            planner::<Target>(),
            planner::<MapCall>(),
            planner::<Keep>(),
            planner::<Repartition>(),
            planner::<SortedJoin>(),
        ]);
        planner.create_physical_plan(query, session).await
    }
}

/// Plans as the distributed planner, if the [checker] finds nothing wrong. Other plans run on one rank: so do those that
/// the distributed planner leaves in this process, and last stages, if they read files or call functions. Only the ranks
/// have to see these, and they have the memory and the cores for them.
#[derive(Debug)]
pub struct RankPlanner(pub Arc<dyn QueryPlanner + Send + Sync>);

#[async_trait]
impl QueryPlanner for RankPlanner {
    async fn create_physical_plan(
        &self,
        query: &LogicalPlan,
        session: &dyn Session,
    ) -> QueryResult<Arc<dyn ExecutionPlan>> {
        let distributed = self.0.create_physical_plan(query, session).await;
        let checked = distributed
            .map_err(|error| Refusal::failed(&error))
            .and_then(|plan| checker::check(&plan).map(|()| plan));
        match checked {
            Ok(plan) if is_for_ranks(&plan) => with_last_stage_on_a_rank(plan, session),
            Ok(plan) => on_one_rank(plan, None, session),
            Err(refusal) => {
                let plan = LocalPlanner.create_physical_plan(query, session).await?;
                log(&refusal);
                on_one_rank(plan, Some(&refusal), session)
            }
        }
    }
}

fn is_for_ranks(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.is::<DistributedExec>() || plan.children().into_iter().any(|child| child.is::<DistributedExec>())
}

fn log(refusal: &Refusal) {
    match refusal {
        Refusal::Unknown(_) => tracing::info!(%refusal, "the query runs on one rank"),
        _ => tracing::warn!(%refusal, "the query runs on one rank: its plan for several is refused"),
    }
}
