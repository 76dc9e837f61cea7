//! Window functions that do not cross between ranks as they are.

use std::sync::Arc;

use datafusion::physical_expr::window::{PlainAggregateWindowExpr, SlidingAggregateWindowExpr, StandardWindowExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec, WindowUDFExpr};

pub const LOST_IN_TRANSIT: &str =
    "has a window function that ignores nulls or is reversed, which no other rank would know";

/// How DataFusion shows a function that does neither. Both are private.
const PLAIN: &str = "is_reversed: false, ignore_nulls: false }";

/// Whether the encoded node lacks a part: DataFusion encodes window functions without `IGNORE NULLS`, and without
/// whether its optimizer has reversed them. It encodes whether an aggregate ignores nulls.
pub fn is_lossy(node: &Arc<dyn ExecutionPlan>) -> bool {
    let window = node.downcast_ref::<WindowAggExec>().map(WindowAggExec::window_expr);
    let bounded = || {
        node.downcast_ref::<BoundedWindowAggExec>()
            .map(BoundedWindowAggExec::window_expr)
    };
    let Some(exprs) = window.or_else(bounded) else {
        return false;
    };
    exprs.iter().any(|expr| {
        let expr = expr.as_any();
        if let Some(plain) = expr.downcast_ref::<PlainAggregateWindowExpr>() {
            plain.get_aggregate_expr().is_reversed()
        } else if let Some(sliding) = expr.downcast_ref::<SlidingAggregateWindowExpr>() {
            sliding.get_aggregate_expr().is_reversed()
        } else if let Some(standard) = expr.downcast_ref::<StandardWindowExpr>() {
            is_lossy_function(standard)
        } else {
            true
        }
    })
}

fn is_lossy_function(expr: &StandardWindowExpr) -> bool {
    let function = expr.get_standard_func_expr().as_any();
    match function.downcast_ref::<WindowUDFExpr>() {
        Some(function) => !format!("{function:?}").ends_with(PLAIN),
        None => true,
    }
}

/// Whether some node of a plan is lossy.
pub fn has_lossy(plan: &Arc<dyn ExecutionPlan>) -> bool {
    is_lossy(plan) || plan.children().into_iter().any(has_lossy)
}
