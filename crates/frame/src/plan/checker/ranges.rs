//! Sorts by ranges: partitions that are read one after the other must have ranges in order.

use super::{Above, Check, Plan, nodes, wrong};
use crate::ranges::{InOrderExec, order_of};
use crate::write::WriteExec;

/// Checks a node that relies on the order of its partitions.
pub fn check(node: &Plan, above: Above) -> Check<()> {
    let is_one_stream = node.is::<InOrderExec>();
    let writes_ranges = node.downcast_ref::<WriteExec>().is_some_and(WriteExec::writes_ranges);
    if !is_one_stream && !writes_ranges {
        return Ok(());
    }
    if is_one_stream && above.tasks > 1 {
        return wrong(node, nodes::NEEDS_ALL);
    }
    let children = node.children();
    match children.first().and_then(|input| order_of(input)) {
        Some(_) => Ok(()),
        None => wrong(node, "needs partitions with ranges in order, and its input has none"),
    }
}

#[cfg(test)]
mod tests;
