//! Plans: which part of a query runs on ranks.

mod broadcast;
mod checker;
mod exchanges;
mod one_rank;
mod text;
mod windows;

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Result as QueryResult;
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};
use datafusion_distributed::{DistributedExec, DistributedExt};

pub use self::broadcast::{Costs, with_broadcasts};
use self::checker::Refusal;
pub use self::one_rank::on_one_rank;
use self::one_rank::with_last_stage_on_a_rank;
use crate::exchange::Exchange;
use crate::functions::MapCall;
use crate::kept::Keep;
use crate::operation::planner;
use crate::ranges::{self, SortRule};
use crate::repartition::Repartition;
use crate::skew;
use crate::sorted_join::SortedJoin;
use crate::source::files_of;
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
///
/// A plan that exchanges rows by the keys of a join is made again if a key has too many of them (see [`skew`]).
#[derive(Debug)]
pub struct RankPlanner {
    /// The distributed planner.
    pub distributed: Arc<dyn QueryPlanner + Send + Sync>,
    /// The exchange of its ranks.
    pub exchange: Arc<Exchange>,
    /// Fewest rows that ranks sort by ranges.
    pub min_sorted_rows: usize,
    /// The rank that cuts ranges.
    pub cutter: Cutter,
}

/// Which rank cuts the ranges of sorts.
#[derive(Debug, Clone, Copy)]
pub enum Cutter {
    /// The session's, which takes requests of ranks and is not lost.
    Session,
    /// The first one that executes tasks.
    FirstWorker,
}

impl RankPlanner {
    fn ranks(&self) -> u32 {
        self.exchange.left().len() as u32
    }

    /// A plan that the checker has found nothing wrong with: one that sorts by ranges, if there is such a one.
    async fn distributed(&self, query: &LogicalPlan, session: &dyn Session) -> Result<Arc<dyn ExecutionPlan>, Refusal> {
        match self.by_ranges(query, session).await {
            Ok(Some(plan)) => return Ok(plan),
            Ok(None) => {}
            Err(refusal) => tracing::warn!(%refusal, "the query does not sort by ranges"),
        }
        let plan = self.distributed.create_physical_plan(query, session).await;
        let plan = plan.map_err(|error| Refusal::failed(&error))?;
        checker::check(&plan).map(|()| plan)
    }

    /// A plan whose sorts are by ranges where that is better; `None` if the query sorts nothing, or not in several tasks.
    async fn by_ranges(
        &self,
        query: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>, Refusal> {
        let left = self.exchange.left();
        let Some(state) = session.as_any().downcast_ref::<SessionState>() else {
            return Ok(None);
        };
        if left.len() < 2 || !ranges::sorts_all(query) {
            return Ok(None);
        }
        let rule = Arc::new(SortRule {
            min_rows: self.min_sorted_rows,
        });
        let state = SessionStateBuilder::new_from_existing(state.clone());
        let state = state.with_physical_optimizer_rule(rule).build();
        let plan = self.distributed.create_physical_plan(query, &state).await;
        let plan = plan.map_err(|error| Refusal::failed(&error))?;
        if !ranges::has_ranges(&plan) {
            return checker::check(&plan).map(|()| Some(plan));
        }
        let rank = match self.cutter {
            Cutter::Session => self.exchange.rank(),
            Cutter::FirstWorker => left[0],
        };
        let placed = ranges::placed(&plan, rank).map_err(|error| Refusal::failed(&error))?;
        placed.map(|plan| checker::check(&plan).map(|()| plan)).transpose()
    }

    /// The plan of a query whose joins have heavy keys; `None` if there are none, or no plan that is better. It replaces
    /// one that was made before rows were read for it.
    async fn spread(
        &self,
        query: &LogicalPlan,
        session: &dyn Session,
        before: &Arc<dyn ExecutionPlan>,
    ) -> QueryResult<Option<Arc<dyn ExecutionPlan>>> {
        let Some(query) = skew::spread(query, session, self.ranks()).await? else {
            return Ok(None);
        };
        let Some(state) = session.as_any().downcast_ref::<SessionState>() else {
            return Ok(None);
        };
        // All ranks have a part of both joins.
        let mut state = state.clone();
        state.set_distributed_children_isolator_unions(false)?;
        let plan = self.distributed(&query, &state).await.ok();
        // The rows of a file that has changed meanwhile would mix with those that were read.
        Ok(plan.filter(|plan| files_of(plan) == files_of(before)))
    }
}

#[async_trait]
impl QueryPlanner for RankPlanner {
    async fn create_physical_plan(
        &self,
        query: &LogicalPlan,
        session: &dyn Session,
    ) -> QueryResult<Arc<dyn ExecutionPlan>> {
        let mut planned = self.distributed(query, session).await;
        if let Ok(plan) = &mut planned
            && self.ranks() > 1
            && skew::has_exchanged_join(plan)
            && let Some(spread) = self.spread(query, session, plan).await?
        {
            *plan = spread;
        }
        match planned {
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
