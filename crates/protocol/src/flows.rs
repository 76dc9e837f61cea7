//! Flows: functions that are called with each other's results, as in the manager's HTTP API.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::error::{Code, Failure};
use crate::ids::{FlowId, FunctionId};
use crate::named::named_enum;
use crate::tasks::{MAX_NAME_BYTES, TaskOptions};

/// Most steps of a flow.
pub const MAX_STEPS: usize = 100;
/// Names the flow's input in [`FlowStep::from`].
pub const INPUT: &str = "input";
/// Most unfinished flows of a tenant.
pub const MAX_FLOWS: usize = 10_000;
/// Most bytes of a flow's input and the results of all its steps together.
pub const MAX_RESULT_BYTES: usize = 64 << 20;

/// A function that a flow calls once, or once for each element of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlowStep {
    /// Name of the step, unique in its flow.
    #[schema(pattern = "^[A-Za-z][A-Za-z0-9._-]{0,127}$")]
    pub name: String,
    /// The function to call. It takes and returns JSON.
    pub function: FunctionId,
    /// Earlier steps whose results are the function's arguments, in this order; `input` is the flow's input. If absent,
    /// the preceding step, or the input for the first step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 100)]
    pub from: Option<Vec<String>>,
    /// Whether to call the function for each element of its first argument, which must be a list. The step's result is
    /// the list of their results.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub map: bool,
    /// Endpoint by name or id, as for a task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Options of the step's tasks.
    #[serde(default)]
    pub options: TaskOptions,
    /// Keyword arguments.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub keywords: Map<String, Value>,
}

/// A flow to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlowRequest {
    /// Id chosen by the client. Makes the request idempotent: a second request with the same id starts nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<FlowId>,
    /// Display name.
    #[serde(default)]
    #[schema(max_length = 128)]
    pub name: String,
    /// Steps in topological order: each follows the steps whose results it takes.
    #[schema(min_items = 1, max_items = 100)]
    pub steps: Vec<FlowStep>,
    /// Input of the flow.
    #[serde(default)]
    pub input: Value,
}

named_enum! {
    /// State of a flow or of one of its steps.
    FlowState, "a flow state" {
        /// Waits for other steps.
        Waiting = "waiting",
        /// Its tasks are queued or run.
        Running = "running",
        /// Ended successfully.
        Done = "done",
        /// The step or one that it depends on failed.
        Failed = "failed",
    }
}

impl FlowState {
    /// Whether the state is final.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Failed)
    }
}

/// Progress of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StepStatus {
    /// Name of the step.
    pub name: String,
    /// State of the step.
    pub state: FlowState,
    /// Number of its tasks; 0 until the number is known.
    pub tasks: u64,
    /// Tasks that ended successfully.
    pub done: u64,
    /// The function that it calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<FunctionId>,
    /// Steps whose results are its arguments, as in [`FlowStep::from`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Vec<String>>,
    /// Whether it calls the function for each element of a list.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub map: bool,
}

/// Progress of a flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FlowStatus {
    /// Id of the flow.
    pub id: FlowId,
    /// Display name.
    pub name: String,
    /// State of the flow.
    pub state: FlowState,
    /// Why it failed.
    pub error: Option<Failure>,
    /// Tag of its tasks.
    pub tag: String,
    /// Steps in order; empty in lists of flows.
    pub steps: Vec<StepStatus>,
    /// Result of the last step, if the flow is done. Absent in lists of flows.
    pub result: Option<Value>,
    /// Start, in milliseconds since the Unix epoch.
    pub started_at_ms: u64,
    /// End, in milliseconds since the Unix epoch; 0 while it is unfinished.
    pub ended_at_ms: u64,
}

impl FlowRequest {
    /// For each step, returns the indices of the earlier steps that give its arguments; `None` is the flow's input.
    ///
    /// # Errors
    /// `InvalidRequest` when a step refers to a step that does not precede it, when two steps share a name, or when the
    /// number of steps is out of bounds.
    pub fn arguments(&self) -> Result<Vec<Vec<Option<usize>>>, Failure> {
        if self.steps.is_empty() || self.steps.len() > MAX_STEPS {
            let text = format!("the flow has {} steps; give 1 to {MAX_STEPS}", self.steps.len());
            return Err(Failure::new(Code::InvalidRequest, text));
        }
        if self.name.len() > MAX_NAME_BYTES {
            let text = format!(
                "the flow's name has {} bytes; {MAX_NAME_BYTES} are allowed",
                self.name.len()
            );
            return Err(Failure::new(Code::InvalidRequest, text));
        }
        let of = |(at, step): (usize, &FlowStep)| self.arguments_of(at, step);
        self.steps.iter().enumerate().map(of).collect()
    }

    fn arguments_of(&self, at: usize, step: &FlowStep) -> Result<Vec<Option<usize>>, Failure> {
        let wrong = |text: String| Failure::new(Code::InvalidRequest, text);
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let begins = step.name.starts_with(|first: char| first.is_ascii_alphabetic());
        if !begins || step.name.len() > 128 || !step.name.chars().all(fits) || step.name == INPUT {
            return Err(wrong(format!(
                "`{:.80}` is not a step name: use letters, digits, `-`, `_` and `.`, beginning with a letter; `{INPUT}` is reserved for the flow's input",
                step.name
            )));
        }
        let before = &self.steps[..at];
        if before.iter().any(|other| other.name == step.name) {
            let text = format!("two steps have the name `{}`; use different names", step.name);
            return Err(wrong(text));
        }
        let Some(from) = &step.from else {
            return Ok(vec![at.checked_sub(1)]);
        };
        if step.map && from.is_empty() {
            let text = format!("the step `{}` maps over no list; name the list in `from`", step.name);
            return Err(wrong(text));
        }
        let find = |name: &String| {
            let place = before.iter().position(|other| other.name == *name);
            match place {
                Some(_) => Ok(place),
                None if name == INPUT => Ok(None),
                None => Err(wrong(format!(
                    "the step `{}` takes the result of `{name:.80}`, which is not an earlier step",
                    step.name
                ))),
            }
        };
        from.iter().map(find).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &str, from: Option<&[&str]>) -> FlowStep {
        FlowStep {
            name: name.into(),
            function: FunctionId([1; 16]),
            from: from.map(|names| names.iter().map(|name| (*name).to_owned()).collect()),
            map: false,
            endpoint: None,
            options: TaskOptions::default(),
            keywords: Map::new(),
        }
    }

    fn flow(steps: Vec<FlowStep>) -> FlowRequest {
        FlowRequest {
            id: None,
            name: "f".into(),
            steps,
            input: Value::Null,
        }
    }

    #[test]
    fn step_arguments_are_previous_or_named_steps() {
        let given = flow(vec![
            step("a", None),
            step("b", None),
            step("c", Some(&["a", "input", "b"])),
            step("d", Some(&[])),
        ]);
        let arguments = given.arguments().unwrap();
        assert_eq!(
            arguments,
            [vec![None], vec![Some(0)], vec![Some(0), None, Some(1)], vec![]]
        );
    }

    #[test]
    fn invalid_flow_is_refused() {
        let map_without_list = FlowStep {
            map: true,
            ..step("b", Some(&[]))
        };
        for (steps, word) in [
            (vec![], "0 steps"),
            (vec![step("a", None), step("a", None)], "two steps"),
            (vec![step("a", Some(&["b"])), step("b", None)], "earlier step"),
            (vec![step("a", Some(&["a"]))], "earlier step"),
            (vec![step("input", None)], "not a step name"),
            (vec![step("", None)], "not a step name"),
            (vec![step("a", None), map_without_list], "maps over no list"),
        ] {
            let failure = flow(steps).arguments().unwrap_err();
            assert!(failure.message.contains(word), "{}", failure.message);
        }
    }
}
