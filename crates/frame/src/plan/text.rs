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

use crate::recover::Recovery;
use crate::usage::{begin, choose_recovery, measured};

/// The plan of the ranks for a query: its stages, their tasks, and what each exchanges.
///
/// # Errors
/// If the query cannot be planned.
pub async fn explain(context: &SessionContext, plan: LogicalPlan) -> QueryResult<String> {
    let mut state = context.state();
    let plan = DataFrame::new(state.clone(), plan).create_physical_plan().await?;
    let recovery = choose_recovery(&mut state, &plan)?;
    let text = display_plan_ascii(with_visible_stages(&plan)?.as_ref(), false);
    Ok(with_recovery(recovery, text))
}

/// Executes a query, and returns the plan of the ranks with what each node measured, summed over tasks and partitions:
/// rows, time, bytes and spills.
///
/// # Errors
/// Of the query.
pub async fn analyze(context: &SessionContext, plan: LogicalPlan) -> QueryResult<String> {
    let start = Instant::now();
    let (plan, rows, recovery) = begin(context, plan).await?;
    let counted = rows.try_fold(0, |rows, batch| async move { Ok(rows + batch.num_rows()) });
    let rows = counted.await?;
    let seconds = start.elapsed().as_secs_f64();
    let measured = measured(plan).await?;
    let nodes = display_plan_ascii(with_visible_stages(&measured)?.as_ref(), true);
    Ok(with_recovery(
        recovery,
        format!("{rows} rows in {seconds:.3} s\n{nodes}"),
    ))
}

/// The text of a plan, and what happens when ranks are lost, unless the query runs again as a whole.
fn with_recovery(recovery: Recovery, text: String) -> String {
    match recovery {
        Recovery::Tasks => format!("{}\nrecovery: tasks of lost ranks run again\n", text.trim_end()),
        _ => text,
    }
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
