//! Plans as text.

use std::sync::Arc;

use dayfly_frame::datafusion::error::Result as QueryResult;
use dayfly_frame::datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use dayfly_frame::datafusion::physical_plan::{ChildrenPropertiesMode, ExecutionPlan, ReplaceChildrenOptions};

/// Returns a plan of the ranks: its stages, and what they exchange.
pub fn plan_text(plan: &Arc<dyn ExecutionPlan>) -> QueryResult<String> {
    let shown = with_visible_stages(plan)?;
    Ok(dayfly_frame::display_plan_ascii(shown.as_ref(), false))
}

/// A plan whose first node is no exchange: the library's text has the stages below the first node only.
fn with_visible_stages(plan: &Arc<dyn ExecutionPlan>) -> QueryResult<Arc<dyn ExecutionPlan>> {
    match plan.children()[..] {
        [head] if plan.name() == "DistributedExec" && head.name().starts_with("Network") => {
            let passed: Arc<dyn ExecutionPlan> = Arc::new(CoalescePartitionsExec::new(Arc::clone(head)));
            let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
            Arc::clone(plan).replace_children(vec![passed], options)
        }
        _ => Ok(Arc::clone(plan)),
    }
}
