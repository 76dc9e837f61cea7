//! Flows: functions that are called with each other's results. As the manager's HTTP API shows them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::error::{Code, Failure};
use crate::ids::{FlowId, FunctionId};
use crate::tasks::{MOST_NAME_BYTES, TaskOptions};

/// Most steps of one flow.
pub const MOST_STEPS: usize = 100;
/// What a step calls a flow's input, in [`FlowStep::from`].
pub const INPUT: &str = "input";
/// Most flows of one tenant that have not ended.
pub const MOST_FLOWS: usize = 10_000;
/// Most bytes that a flow's input and the results of all its steps have together.
pub const MOST_RESULT_BYTES: usize = 64 << 20;

/// A function to call, or to call for each of many.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlowStep {
    /// Its name in its flow.
    #[schema(pattern = "^[A-Za-z][A-Za-z0-9._-]{0,127}$")]
    pub name: String,
    /// What it calls: a function that takes JSON and answers it.
    pub function: FunctionId,
    /// Steps that stand before it, whose results are its function's arguments in this order; `input` for the flow's input. None
    /// for the step before it, or, for the first, the input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 100)]
    pub from: Option<Vec<String>>,
    /// Whether it calls its function for each element of its first argument, a list: its result is the list of theirs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub map: bool,
    /// Where, by name or id; as for a task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// How its tasks are treated.
    #[serde(default)]
    pub options: TaskOptions,
    /// Arguments by name.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub keywords: Map<String, Value>,
}

/// A flow to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlowRequest {
    /// Its id, if whoever starts it makes it: what is started again, since no answer came, is started once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<FlowId>,
    /// For people.
    #[serde(default)]
    #[schema(max_length = 128)]
    pub name: String,
    /// In an order in which each stands behind those whose results it takes.
    #[schema(min_items = 1, max_items = 100)]
    pub steps: Vec<FlowStep>,
    /// What it begins with.
    #[serde(default)]
    pub input: Value,
}

/// Where a flow, or one of its steps, is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FlowState {
    /// Others are to end before.
    Waiting,
    /// Its tasks are on their way.
    Running,
    /// It ended well.
    Done,
    /// It did not, or a step before it did not.
    Failed,
}

impl FlowState {
    /// All.
    pub const ALL: [Self; 4] = [Self::Waiting, Self::Running, Self::Done, Self::Failed];

    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }

    /// Whether it has ended.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Failed)
    }
}

/// How a step does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StepStatus {
    /// Its name.
    pub name: String,
    /// Where it is in its life.
    pub state: FlowState,
    /// Its tasks; 0 before it is known how many they are.
    pub tasks: u64,
    /// Those that have ended well.
    pub done: u64,
}

/// How a flow does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FlowStatus {
    /// Which.
    pub id: FlowId,
    /// For people.
    pub name: String,
    /// Where it is in its life.
    pub state: FlowState,
    /// Why it failed.
    pub error: Option<Failure>,
    /// The tag of its tasks.
    pub tag: String,
    /// In their order; none where many flows are listed.
    pub steps: Vec<StepStatus>,
    /// What its last step answered, if it is done and this one alone was asked for.
    pub result: Option<Value>,
    /// Wall clock, milliseconds since the Unix epoch.
    pub started_at_ms: u64,
    /// When it ended; 0 before.
    pub ended_at_ms: u64,
}

impl FlowRequest {
    /// For each step, which of those before it give its arguments: none for the flow's input.
    ///
    /// # Errors
    /// `InvalidRequest` when a step takes what does not stand before it, or two have one name, or there are none, or too many.
    pub fn arguments(&self) -> Result<Vec<Vec<Option<usize>>>, Failure> {
        if self.steps.is_empty() || self.steps.len() > MOST_STEPS {
            let text = format!("a flow of {} steps; give 1 to {MOST_STEPS}", self.steps.len());
            return Err(Failure::new(Code::InvalidRequest, text));
        }
        if self.name.len() > MOST_NAME_BYTES {
            let text = format!(
                "the flow's name has {} bytes; {MOST_NAME_BYTES} are allowed",
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
                "`{:.80}` is no name for a step: take letters, digits, `-`, `_` and `.`, a letter first; `{INPUT}` is the flow's",
                step.name
            )));
        }
        let before = &self.steps[..at];
        if before.iter().any(|other| other.name == step.name) {
            let text = format!("two steps have the name `{}`; give them different ones", step.name);
            return Err(wrong(text));
        }
        let Some(from) = &step.from else {
            return Ok(vec![at.checked_sub(1)]);
        };
        if step.map && from.is_empty() {
            let text = format!(
                "the step `{}` is for each of nothing; say of what, by `from`",
                step.name
            );
            return Err(wrong(text));
        }
        let find = |name: &String| {
            let place = before.iter().position(|other| other.name == *name);
            match place {
                Some(_) => Ok(place),
                None if name == INPUT => Ok(None),
                None => Err(wrong(format!(
                    "the step `{}` takes the result of `{name:.80}`, which does not stand before it",
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
    fn a_step_takes_what_stands_before_it_and_what_it_names() {
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
    fn what_is_no_flow_is_refused() {
        let each_of_nothing = FlowStep {
            map: true,
            ..step("b", Some(&[]))
        };
        for (steps, word) in [
            (vec![], "0 steps"),
            (vec![step("a", None), step("a", None)], "two steps"),
            (vec![step("a", Some(&["b"])), step("b", None)], "before it"),
            (vec![step("a", Some(&["a"]))], "before it"),
            (vec![step("input", None)], "no name"),
            (vec![step("", None)], "no name"),
            (vec![step("a", None), each_of_nothing], "each of nothing"),
        ] {
            let failure = flow(steps).arguments().unwrap_err();
            assert!(failure.message.contains(word), "{}", failure.message);
        }
    }
}
