//! Plans as text, and what their nodes measured.

use std::sync::Arc;

use datafusion::common::Result as QueryResult;
use datafusion::execution::context::SessionContext;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::{ChildrenPropertiesMode, ExecutionPlan, ReplaceChildrenOptions};
use datafusion::prelude::DataFrame;
use datafusion_distributed::{DistributedExec, display_plan_ascii};
use futures_util::TryStreamExt;
use tokio::time::Instant;

use super::broadcast::Costs;
use super::exchanges::exchanges;
use crate::recover::Choice;
use crate::usage::{begin, choose_recovery, measured};

/// The plan of the ranks for a query: its stages, their tasks, what each exchanges by which estimate, and what happens when
/// ranks are lost.
///
/// # Errors
/// If the query cannot be planned.
pub async fn explain(context: &SessionContext, plan: LogicalPlan) -> QueryResult<String> {
    let mut state = context.state();
    let plan = DataFrame::new(state.clone(), plan).create_physical_plan().await?;
    let choice = choose_recovery(&mut state, &plan)?;
    let nodes = display_plan_ascii(with_visible_stages(&plan)?.as_ref(), false);
    Ok(explained(context, &nodes, &plan, None, choice))
}

/// Executes a query, and returns the plan of the ranks with what each node measured, summed over tasks and partitions:
/// rows, time, bytes and spills, beside the estimates of what crosses between stages.
///
/// # Errors
/// Of the query.
pub async fn analyze(context: &SessionContext, plan: LogicalPlan) -> QueryResult<String> {
    let start = Instant::now();
    let (plan, rows, choice) = begin(context, plan).await?;
    let counted = rows.try_fold(0, |rows, batch| async move { Ok(rows + batch.num_rows()) });
    let rows = counted.await?;
    let seconds = start.elapsed().as_secs_f64();
    let measured = measured(Arc::clone(&plan)).await?;
    let nodes = display_plan_ascii(with_visible_stages(&measured)?.as_ref(), true);
    let nodes = format!("{rows} rows in {seconds:.3} s\n{nodes}");
    Ok(explained(context, &nodes, &plan, Some(&measured), choice))
}

/// The nodes of a plan, its exchanges, and its recovery.
fn explained(
    context: &SessionContext,
    nodes: &str,
    plan: &Arc<dyn ExecutionPlan>,
    measured: Option<&Arc<dyn ExecutionPlan>>,
    choice: Choice,
) -> String {
    let costs = context.copied_config().get_extension::<Costs>();
    let exchanges = costs.map(|costs| exchanges(plan, measured, costs.ranks()));
    let exchanges = exchanges.unwrap_or_default();
    format!("{}\n{exchanges}recovery: {choice}\n", nodes.trim_end())
}

/// A plan whose first node is no exchange: the library's text has the stages below the first node only.
fn with_visible_stages(plan: &Arc<dyn ExecutionPlan>) -> QueryResult<Arc<dyn ExecutionPlan>> {
    match plan.children()[..] {
        [head] if plan.is::<DistributedExec>() && head.name().starts_with("Network") => {
            let passed: Arc<dyn ExecutionPlan> = Arc::new(CoalescePartitionsExec::new(Arc::clone(head)));
            let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
            Arc::clone(plan).replace_children(vec![passed], options)
        }
        _ => Ok(Arc::clone(plan)),
    }
}
