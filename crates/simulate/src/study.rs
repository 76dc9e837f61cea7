//! A policy beside the one that harvests nothing, on the same trace.

use dayfly_harvest::{FunctionId, Sample};

use crate::call::Call;
use crate::cluster::{Options, Outcome, SimulateError, simulate};
use crate::policy::Policy;
use crate::record::Record;
use crate::report::Report;

/// A trace with what was learned before, and its run without harvesting.
#[derive(Debug)]
pub struct Study<'a> {
    calls: &'a [Call],
    history: &'a [(FunctionId, Sample)],
    options: Options,
    without: Vec<Record>,
}

impl<'a> Study<'a> {
    /// Runs the trace without harvesting.
    ///
    /// # Errors
    ///
    /// [`SimulateError`] for options and calls that cannot be simulated.
    pub fn new(
        calls: &'a [Call],
        history: &'a [(FunctionId, Sample)],
        options: Options,
    ) -> Result<Self, SimulateError> {
        let default = Options {
            policy: Policy::Default,
            logs: false,
            timeline_us: 0,
            ..options.clone()
        };
        let without = simulate(calls, &[], &default, &mut || 0)?.records;
        Ok(Self {
            calls,
            history,
            options,
            without,
        })
    }

    /// What became of each call without harvesting.
    pub fn without(&self) -> &[Record] {
        &self.without
    }

    /// Runs the trace under a policy. `clock_ns` measures decisions.
    ///
    /// # Errors
    ///
    /// [`SimulateError`] for options and calls that cannot be simulated.
    pub fn run(&self, policy: Policy, clock_ns: &mut dyn FnMut() -> u64) -> Result<(Report, Outcome), SimulateError> {
        let options = Options {
            policy,
            ..self.options.clone()
        };
        let outcome = simulate(self.calls, self.history, &options, clock_ns)?;
        let report = Report::new(&options, &outcome, Some(&self.without));
        Ok((report, outcome))
    }
}
