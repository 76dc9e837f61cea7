//! Unions whose inputs run in some of the tasks of a stage.

use std::fmt::{self, Display};

use datafusion::physical_plan::{DisplayFormatType, ExecutionPlan};

use super::{Above, Check, Plan, Rows, visit, wrong};

/// The name of the distributed planner's union, whose type is not public.
pub const ISOLATOR: &str = "ChildrenIsolatorUnionExec";

/// A part of an input: its number, and how many there are.
type Part = (usize, usize);

/// Checks that each part of each input runs in one task.
pub fn isolated(node: &Plan, above: Above) -> Check<Rows> {
    let children = node.children();
    let Some((tasks, parts)) = assigned(&Described(node.as_ref()).to_string(), children.len()) else {
        return wrong(node, "does not state which task runs which input");
    };
    if tasks != above.tasks {
        return wrong(node, "assigns its inputs to another number of tasks");
    }
    for (child, mut parts) in children.into_iter().zip(parts) {
        parts.sort_unstable();
        let count = parts.len();
        let complete = (0..count).map(|part| (part, count));
        if count == 0 || !parts.into_iter().eq(complete) {
            return wrong(node, "would not read each row of its inputs once");
        }
        let rows = visit(child, Above { tasks: count, ..above })?;
        if count > 1 && rows == Rows::Whole {
            return wrong(node, "gets each row in each task");
        }
    }
    Ok(if above.tasks == 1 { Rows::Whole } else { Rows::Split })
}

struct Described<'a>(&'a dyn ExecutionPlan);

impl Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0.fmt_as(DisplayFormatType::Default, f)
    }
}

/// Reads `DistributedUnionExec: t0:[c0(0/2), c1] t1:[c0(1/2)]`: the number of tasks, and for each input its parts.
fn assigned(text: &str, inputs: usize) -> Option<(usize, Vec<Vec<Part>>)> {
    let mut parts = vec![Vec::new(); inputs];
    let text = text.strip_prefix("DistributedUnionExec:")?;
    let tasks: Vec<_> = text.split_inclusive(']').collect();
    for (number, task) in tasks.iter().enumerate() {
        let task = task
            .trim_start()
            .strip_prefix(&format!("t{number}:["))?
            .strip_suffix(']')?;
        for input in task.split(", ").filter(|input| !input.is_empty()) {
            let input = input.strip_prefix('c')?;
            let (input, part) = match input.strip_suffix(')') {
                Some(input) => {
                    let (input, part) = input.split_once('(')?;
                    let (part, count) = part.split_once('/')?;
                    (input, (part.parse().ok()?, count.parse().ok()?))
                }
                None => (input, (0, 1)),
            };
            parts.get_mut(input.parse::<usize>().ok()?)?.push(part);
        }
    }
    Some((tasks.len(), parts))
}
