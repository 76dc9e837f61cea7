//! The order of rows: an exchange that mixes the batches of several tasks loses it, whatever it declares.

use datafusion::physical_plan::ExecutionPlanProperties;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion_distributed::{DistributedLeafExec, NetworkBoundaryExt, NetworkCoalesceExec, Stage};

use super::{Check, Plan, wrong};

/// Checks that inputs whose order a node uses have one.
pub fn check(node: &Plan) -> Check<()> {
    let required = node.required_input_ordering();
    for (child, required) in node.children().into_iter().zip(required) {
        if (required.is_some() || uses_order(node, child)) && !is_ordered(child) {
            return wrong(
                node,
                "needs rows in an order, which the exchange below it does not keep",
            );
        }
    }
    Ok(())
}

/// A sort requires no order, but stops early if there is one.
fn uses_order(node: &Plan, child: &Plan) -> bool {
    let Some(sort) = node.downcast_ref::<SortExec>() else {
        return false;
    };
    let declared = child.output_ordering().map(|ordering| ordering.first());
    sort.fetch().is_some() && declared.is_some_and(|declared| declared == sort.expr().first())
}

/// Whether the order that a node declares is that of its rows.
fn is_ordered(node: &Plan) -> bool {
    if node.is::<SortExec>() || node.is::<SortPreservingMergeExec>() {
        return true;
    }
    if let Some(leaf) = node.downcast_ref::<DistributedLeafExec>() {
        let Some(ordering) = leaf.original().output_ordering() else {
            return true;
        };
        return leaf.variants().iter().all(|variant| {
            let properties = variant.equivalence_properties();
            properties.ordering_satisfy(ordering.iter().cloned()).unwrap_or(false)
        });
    }
    if let Some(boundary) = node.as_network_boundary() {
        let Stage::Local(stage) = boundary.input_stage() else {
            return false;
        };
        let is_one_stream = node.is::<NetworkCoalesceExec>() || stage.tasks == 1;
        return is_one_stream && is_ordered(&stage.plan);
    }
    let kept = node.maintains_input_order();
    let children = node.children().into_iter().zip(kept);
    let mut children = children.filter_map(|(child, is_kept)| is_kept.then_some(child));
    children.all(is_ordered)
}
