//! What crosses between the stages of a plan, as text: the estimate, the reason for the exchange, and what was measured.

use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion_distributed::{NetworkBoundaryExt, NetworkBroadcastExec, NetworkShuffleExec};

use super::broadcast::{can_be_broadcast, choice_of, estimate_of};
use crate::cost::{Exchange as Way, Ranks, Size};
use crate::exchange::RECEIVED_BYTES;

type Plan = Arc<dyn ExecutionPlan>;

/// A line for each exchange of a plan, in the order of the stages below them; nothing if it has none. `measured` is the
/// same plan with what its nodes measured.
pub fn exchanges(plan: &Plan, measured: Option<&Plan>, ranks: Ranks) -> String {
    let mut lines = Vec::new();
    let place = Place {
        node: plan,
        measured,
        tasks: 1,
    };
    visit(place, None, ranks, &mut lines);
    lines.sort();
    lines.into_iter().map(|(_, line)| line).collect()
}

#[derive(Clone, Copy)]
struct Place<'a> {
    node: &'a Plan,
    measured: Option<&'a Plan>,
    /// Tasks of the stage with this node.
    tasks: usize,
}

impl<'a> Place<'a> {
    fn inputs(self, tasks: usize) -> impl Iterator<Item = Place<'a>> {
        let measured = self.measured.map(|measured| measured.children());
        let inputs = self.node.children().into_iter().enumerate();
        inputs.map(move |(at, node)| Place {
            node,
            measured: measured.as_ref().and_then(|inputs| inputs.get(at).copied()),
            tasks,
        })
    }
}

/// Adds the exchanges at a node and below it. `reason` is that of the join above the node, if only this side is between.
fn visit(place: Place<'_>, reason: Option<&str>, ranks: Ranks, lines: &mut Vec<(usize, String)>) {
    if let Some(boundary) = place.node.as_network_boundary() {
        let stage = boundary.input_stage();
        lines.push((stage.num(), line_of(place, stage.num(), stage.task_count(), reason)));
        let tasks = stage.task_count();
        return place.inputs(tasks).for_each(|input| visit(input, None, ranks, lines));
    }
    let join = place.node.downcast_ref::<HashJoinExec>();
    let own = join.map(|join| reason_of(join, ranks));
    let passed = reason.filter(|_| place.node.is::<CoalescePartitionsExec>());
    for input in place.inputs(place.tasks) {
        visit(input, own.as_deref().or(passed), ranks, lines);
    }
}

/// Why the sides of a join are exchanged as they are.
fn reason_of(join: &HashJoinExec, ranks: Ranks) -> String {
    let choice = choice_of(join, ranks);
    match (join.mode == PartitionMode::CollectLeft, choice.exchange) {
        (true, Way::Broadcast) => choice.to_string(),
        (true, Way::Shuffle) if can_be_broadcast(join) => "small sides are always broadcast".to_owned(),
        (true, Way::Shuffle) => "the join needs all rows of that side".to_owned(),
        (false, _) if !can_be_broadcast(join) => "several ranks would return rows of a side that all have".to_owned(),
        (false, _) => choice.to_string(),
    }
}

fn line_of(place: Place<'_>, stage: usize, tasks: usize, reason: Option<&str>) -> String {
    let (way, default) = if place.node.is::<NetworkBroadcastExec>() {
        ("broadcast", "the join has no keys, and all tasks need that side")
    } else if place.node.is::<NetworkShuffleExec>() {
        ("shuffle", "rows of equal keys meet")
    } else {
        ("gather", "fewer tasks go on with the rows")
    };
    let (estimate, reason) = (estimate_of(place.node), reason.unwrap_or(default));
    let were = place.measured.map(were).unwrap_or_default();
    let readers = place.tasks;
    format!("stage {stage}: {way} from {tasks} to {readers} tasks, {estimate}; {reason}{were}\n")
}

/// The rows that a stage returned, and the bytes that crossed from it.
fn were(boundary: &Plan) -> String {
    let rows = boundary.children().first().and_then(|top| rows_of(top));
    let metrics = boundary.metrics().unwrap_or_default();
    let bytes = metrics
        .sum_by_name(RECEIVED_BYTES)
        .map(|bytes| Size(bytes.as_usize() as u64));
    match (rows, bytes) {
        (Some(rows), Some(bytes)) => format!("; were {rows} rows, {bytes} received"),
        (Some(rows), None) => format!("; were {rows} rows"),
        _ => String::new(),
    }
}

/// The rows of the first node from the top that counts them.
fn rows_of(plan: &Plan) -> Option<usize> {
    // A broadcast counts each row once for each of its readers.
    let counted = plan.metrics().and_then(|metrics| metrics.output_rows());
    match (counted.filter(|_| plan.name() != "BroadcastExec"), &plan.children()[..]) {
        (Some(rows), _) => Some(rows),
        (None, [input]) if !input.is_network_boundary() => rows_of(input),
        (None, _) => None,
    }
}
