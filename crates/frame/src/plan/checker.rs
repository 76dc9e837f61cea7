//! Checks that a distributed plan gives the answer of one process.
//!
//! datafusion-distributed cuts a plan into stages of several tasks. Each task executes the same nodes on its part of the
//! rows. So a node that needs rows by key, or all of them, must have an exchange below it; and an exchange must send each
//! row once. The walk starts at the last stage, and visits the nodes of a stage with its number of tasks.
//!
//! The checker trusts DataFusion's plan for one process, and what its nodes declare: which columns rows are hashed by,
//! and which order a node keeps.

mod leaf;
mod limits;
mod nodes;
mod order;
mod ranges;
mod union;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use datafusion::common::DataFusionError;
use datafusion::physical_expr::{Partitioning, PhysicalExpr};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{Distribution, ExecutionPlan, ExecutionPlanProperties};
use datafusion_distributed::{
    BroadcastExec, DistributedExec, NetworkBoundaryExt, NetworkBroadcastExec, NetworkShuffleExec, Stage,
};

use super::windows;

/// Why a query must not run on several ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The checker has no rule for a node of this name.
    Unknown(String),
    /// A node of this name would give a wrong answer.
    Wrong { node: String, cause: &'static str },
    /// There is no plan for several ranks.
    Failed(String),
}

impl Refusal {
    /// Of an error of the distributed planner.
    pub fn failed(error: &DataFusionError) -> Self {
        Self::Failed(error.message().lines().next().unwrap_or_default().to_owned())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Unknown(node) => write!(f, "{node} is not known to be right on several"),
            Self::Wrong { node, cause } => write!(f, "{node} {cause}"),
            Self::Failed(error) => write!(f, "there is no plan for several: {error}"),
        }
    }
}

type Check<T> = Result<T, Refusal>;
type Plan = Arc<dyn ExecutionPlan>;

fn wrong<T>(node: &Plan, cause: &'static str) -> Check<T> {
    let node = node.name().to_owned();
    Err(Refusal::Wrong { node, cause })
}

/// Where the rows of a node are, within its stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rows {
    /// Each task has all of them. So has the only task of a stage.
    Whole,
    /// Each row is in one task.
    Split,
    /// Each row is in the task and the partition to which the hash sends it that the node declares.
    ByKey,
}

/// What the walk knows above a node.
#[derive(Debug, Clone, Copy)]
struct Above {
    /// Tasks of the stage.
    tasks: usize,
    /// The stage is the last one, which runs where the query is planned.
    is_head: bool,
    /// Rows that are enough for what is above, if there is a limit.
    enough: Option<usize>,
}

/// Returns the first reason against running a plan as it is.
///
/// # Errors
/// That reason.
pub fn check(plan: &Plan) -> Check<()> {
    if !plan.is::<DistributedExec>() {
        return plan.children().into_iter().try_for_each(check);
    }
    let above = Above {
        tasks: 1,
        is_head: true,
        enough: None,
    };
    plan.children()
        .into_iter()
        .try_for_each(|head| visit(head, above).map(drop))
}

/// Returns whether the checker has rules for all nodes of a plan.
pub fn knows(plan: &Plan) -> Check<()> {
    if !nodes::is_known(plan) {
        return Err(Refusal::Unknown(plan.name().to_owned()));
    }
    if windows::is_lossy(plan) {
        return wrong(plan, windows::LOST_IN_TRANSIT);
    }
    plan.children().into_iter().try_for_each(knows)
}

fn visit(node: &Plan, above: Above) -> Check<Rows> {
    if node.is_network_boundary() {
        return boundary(node, above);
    }
    if node.name() == union::ISOLATOR {
        return union::isolated(node, above);
    }
    if !nodes::is_known(node) {
        return Err(Refusal::Unknown(node.name().to_owned()));
    }
    if !above.is_head && windows::is_lossy(node) {
        return wrong(node, windows::LOST_IN_TRANSIT);
    }
    let broadcast = node.downcast_ref::<BroadcastExec>();
    if broadcast.is_some_and(|broadcast| broadcast.consumer_task_count() != 1) {
        return wrong(node, "repeats rows, and is not what an exchange reads");
    }
    let below = Above {
        enough: limits::enough_below(node, above),
        ..above
    };
    let children = node.children();
    let rows = children.iter().map(|child| visit(child, below));
    let rows = rows.collect::<Check<Vec<_>>>()?;
    order::check(node)?;
    ranges::check(node, above)?;
    if children.is_empty() {
        return leaf::check(node, above);
    }
    if above.tasks == 1 {
        return Ok(Rows::Whole);
    }
    limits::check(node, &rows, above)?;
    nodes::check(node, &rows)
}

/// Checks an exchange and the stage below it. Returns where rows are in the stage above it.
fn boundary(node: &Plan, above: Above) -> Check<Rows> {
    let exchange = node.as_network_boundary().map(|boundary| boundary.input_stage());
    let Some(Stage::Local(stage)) = exchange else {
        return wrong(node, "has no plan below it");
    };
    if stage.tasks == 0 {
        return wrong(node, "has no task below it");
    }
    let is_broadcast = node.is::<NetworkBroadcastExec>();
    let is_shuffle = node.is::<NetworkShuffleExec>();
    let mut top = &stage.plan;
    if is_broadcast {
        let Some(broadcast) = top.downcast_ref::<BroadcastExec>() else {
            return wrong(node, "has no BroadcastExec below it");
        };
        if broadcast.consumer_task_count() != above.tasks {
            return wrong(node, "has a BroadcastExec for another number of tasks");
        }
        top = broadcast.input();
    }
    let is_gathered = !is_broadcast && !is_shuffle;
    let rows = visit(
        top,
        Above {
            tasks: stage.tasks,
            is_head: false,
            enough: above.enough.filter(|_| is_gathered),
        },
    )?;
    let (own, below) = (node.output_partitioning(), stage.plan.output_partitioning());
    let expected = match (is_broadcast, is_shuffle) {
        (true, _) | (_, true) => below.partition_count() == own.partition_count() * above.tasks,
        _ => own.partition_count() == below.partition_count() * stage.tasks.div_ceil(above.tasks).max(1),
    };
    if !expected {
        return wrong(node, "reads other partitions than the stage below it has");
    }
    if is_shuffle && !is_same_hash(own, below) {
        return wrong(node, "declares another hash than the stage below it computes");
    }
    if rows == Rows::Whole && stage.tasks > 1 {
        return wrong(node, "gets each row once from each task");
    }
    Ok(match (above.tasks, is_broadcast, is_shuffle) {
        (1, _, _) | (_, true, _) => Rows::Whole,
        (_, _, true) => Rows::ByKey,
        _ => Rows::Split,
    })
}

fn is_same_hash(declared: &Partitioning, computed: &Partitioning) -> bool {
    match (declared, computed) {
        (Partitioning::Hash(declared, _), Partitioning::Hash(computed, _)) => declared == computed,
        _ => false,
    }
}

/// For each expression by which a child's rows are hashed, the required keys that it is equal to.
fn hashed_keys(child: &Plan, required: &[Arc<dyn PhysicalExpr>]) -> Option<Vec<Vec<usize>>> {
    let Partitioning::Hash(hashed, _) = child.output_partitioning() else {
        return None;
    };
    let equal = child.equivalence_properties().eq_group();
    let required: Vec<_> = required
        .iter()
        .map(|key| equal.normalize_expr(Arc::clone(key)))
        .collect();
    let keys = hashed.iter().map(|expr| {
        let expr = equal.normalize_expr(Arc::clone(expr));
        let keys = (0..required.len()).filter(|&key| required[key].eq(&expr));
        keys.collect::<Vec<_>>()
    });
    let keys: Vec<_> = keys.collect();
    (!keys.is_empty() && keys.iter().all(|keys| !keys.is_empty())).then_some(keys)
}

/// Checks that all children whose rows a node needs by key have them so, in the same places.
fn check_keys(node: &Plan, required: &[Distribution], rows: &[Rows]) -> Check<()> {
    let mut first: Option<(Vec<Vec<usize>>, usize, Vec<_>)> = None;
    for ((child, required), rows) in node.children().into_iter().zip(required).zip(rows) {
        let Distribution::KeyPartitioned(required) = required else {
            continue;
        };
        if required.is_empty() {
            return wrong(node, nodes::NEEDS_ALL);
        }
        let keys = hashed_keys(child, required).filter(|_| *rows == Rows::ByKey);
        let Some(keys) = keys else {
            return wrong(node, "needs rows by key, and no exchange below it sends them so");
        };
        let count = child.output_partitioning().partition_count();
        let types = required.iter().map(|key| key.data_type(&child.schema()).ok());
        let types: Vec<_> = types.collect();
        let Some((other, other_count, other_types)) = &first else {
            first = Some((keys, count, types));
            continue;
        };
        let shared = |(a, b): (&Vec<usize>, &Vec<usize>)| {
            let both = a.iter().find(|key| b.contains(key));
            both.is_some_and(|&key| types[key].is_some() && types[key] == other_types[key])
        };
        if count != *other_count || keys.len() != other.len() || !keys.iter().zip(other).all(shared) {
            return wrong(
                node,
                "needs rows of equal keys together, and its inputs are hashed differently",
            );
        }
    }
    Ok(())
}

/// An exchange by hash within one task sends rows to partitions, but not to tasks.
fn is_repartition(node: &Plan) -> bool {
    node.is::<RepartitionExec>()
}
