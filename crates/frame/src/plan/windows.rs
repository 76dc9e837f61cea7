//! Window functions that do not cross between ranks as they are.

use std::sync::Arc;

use datafusion::physical_expr::window::StandardWindowExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec, WindowUDFExpr};

pub const LOST_IN_TRANSIT: &str =
    "has a window function that ignores nulls or is reversed, which no other rank would know";

/// How DataFusion shows a function that does neither. Both are private.
const PLAIN: &str = "is_reversed: false, ignore_nulls: false }";

/// Whether the encoded node lacks a part: DataFusion encodes window functions without `IGNORE NULLS`, and without
/// whether its optimizer has reversed them.
pub fn is_lossy(node: &Arc<dyn ExecutionPlan>) -> bool {
    let window = node.downcast_ref::<WindowAggExec>().map(WindowAggExec::window_expr);
    let bounded = || {
        node.downcast_ref::<BoundedWindowAggExec>()
            .map(BoundedWindowAggExec::window_expr)
    };
    let Some(exprs) = window.or_else(bounded) else {
        return false;
    };
    let standard = exprs
        .iter()
        .filter_map(|expr| expr.as_any().downcast_ref::<StandardWindowExpr>());
    let mut functions = standard.filter_map(|expr| {
        let function = expr.get_standard_func_expr().as_any();
        function.downcast_ref::<WindowUDFExpr>()
    });
    functions.any(|function| !format!("{function:?}").ends_with(PLAIN))
}

/// Whether some node of a plan is lossy.
pub fn has_lossy(plan: &Arc<dyn ExecutionPlan>) -> bool {
    is_lossy(plan) || plan.children().into_iter().any(has_lossy)
}
