//! Compatibility: asks the endpoint whether it can run a function, before the first task of that function is accepted
//! for it.
//!
//! Adds to `State` the question and its answer, which need the function, the endpoint and its connection.

use std::time::Duration;

use dayfly_protocol::dispatch::ToDispatcher;
use dayfly_protocol::error::Failure;
use dayfly_protocol::executor::Form;
use dayfly_protocol::ids::{EndpointId, FunctionId};
use tokio::sync::oneshot;

use crate::Tasks;
use crate::state::State;
use crate::submission::Submitter;

/// Longest wait for an endpoint's reply. Without a reply the task is accepted, and fails later if it must.
const TIMEOUT: Duration = Duration::from_secs(2);

/// What one connected endpoint has answered about one function.
pub enum Compatibility {
    /// The endpoint was asked. The submissions that wait for its answer.
    Asked(Vec<oneshot::Sender<Option<Failure>>>),
    /// Why it cannot run the function, or `None` if it can.
    Known(Option<Failure>),
}

impl Default for Compatibility {
    fn default() -> Self {
        Self::Asked(Vec::new())
    }
}

impl Compatibility {
    /// Keeps the endpoint's reply and passes it to all waiters.
    pub fn answer(&mut self, refusal: Option<Failure>) {
        if let Self::Asked(waiting) = std::mem::replace(self, Self::Known(refusal.clone())) {
            for waiting in waiting {
                let _ = waiting.send(refusal.clone());
            }
        }
    }

    fn check(&mut self) -> Check {
        match self {
            Self::Known(refusal) => Check::Done(refusal.clone()),
            Self::Asked(waiting) => {
                let (sender, answer) = oneshot::channel();
                waiting.push(sender);
                Check::Waits(answer)
            }
        }
    }
}

enum Check {
    Done(Option<Failure>),
    Waits(oneshot::Receiver<Option<Failure>>),
}

impl Tasks {
    /// Refuses a function that the endpoint reports that it cannot run.
    pub(super) async fn check_compatibility(
        &self,
        by: &Submitter,
        function: FunctionId,
        endpoint: Option<&str>,
    ) -> Result<(), Failure> {
        let check = self.state().check_compatibility(by, function, endpoint)?;
        let refusal = match check {
            Check::Done(refusal) => refusal,
            Check::Waits(answer) => match tokio::time::timeout(TIMEOUT, answer).await {
                Ok(Ok(refusal)) => refusal,
                // The endpoint has disconnected, or is slow.
                Ok(Err(_)) | Err(_) => None,
            },
        };
        refusal.map_or(Ok(()), Err)
    }
}

impl State {
    fn check_compatibility(
        &mut self,
        by: &Submitter,
        function: FunctionId,
        endpoint: Option<&str>,
    ) -> Result<Check, Failure> {
        let function = self.functions.find_for(by, function)?;
        let endpoint = self.endpoints.find_for(by, endpoint)?;
        let spec = &function.spec;
        let is_pickled = matches!(spec.form, Form::Python { .. });
        if !is_pickled || spec.image.is_some() || spec.runtime.environment().is_some() {
            return Ok(Check::Done(None));
        }
        let connection = self.endpoints.connection_mut(endpoint);
        let Some(connection) = connection.filter(|connection| connection.keeps_outcomes()) else {
            return Ok(Check::Done(None));
        };
        let question = || ToDispatcher::CheckCompatibility {
            function: function.id,
            runtime: spec.runtime.clone(),
        };
        Ok(connection.compatibility(function.id, question).check())
    }

    /// Handles an endpoint's reply whether it can run a function.
    pub fn on_compatibility(&mut self, id: EndpointId, function: FunctionId, refusal: Option<Failure>) {
        if let Some(connection) = self.endpoints.connection_mut(id) {
            connection.set_compatibility(function, refusal);
        }
    }
}
