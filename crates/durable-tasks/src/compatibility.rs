//! Whether an endpoint elsewhere can run a function: asked before the first of its tasks is accepted, where the endpoint is there.

use std::time::Duration;

use dayfly_protocol::dispatch::ToDispatcher;
use dayfly_protocol::error::Failure;
use dayfly_protocol::executor::Form;
use dayfly_protocol::ids::{EndpointId, FunctionId};
use tokio::sync::oneshot;

use crate::Tasks;
use crate::state::State;
use crate::submission::Submitter;

/// Whoever submits waits no longer for an endpoint's answer: the task is accepted, and hears of it later.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is known of a function at an endpoint, while it is connected.
pub enum Compatibility {
    /// It was asked, and these wait for the answer.
    Asked(Vec<oneshot::Sender<Option<Failure>>>),
    /// Why it cannot run there, if it cannot.
    Known(Option<Failure>),
}

/// What to do about one.
enum Step {
    Go(Option<Failure>),
    Wait(oneshot::Receiver<Option<Failure>>),
}

impl Tasks {
    /// Refuses what the endpoint says that it cannot run.
    pub(super) async fn suits(
        &self,
        by: &Submitter,
        function: FunctionId,
        endpoint: Option<&str>,
    ) -> Result<(), Failure> {
        let step = self.state().ask_whether_it_suits(by, function, endpoint)?;
        let refusal = match step {
            Step::Go(refusal) => refusal,
            Step::Wait(answer) => match tokio::time::timeout(PATIENCE, answer).await {
                Ok(Ok(refusal)) => refusal,
                // It has gone, or is slow.
                Ok(Err(_)) | Err(_) => None,
            },
        };
        refusal.map_or(Ok(()), Err)
    }
}

impl State {
    fn ask_whether_it_suits(
        &mut self,
        by: &Submitter,
        function: FunctionId,
        endpoint: Option<&str>,
    ) -> Result<Step, Failure> {
        let function = self.function_for(by, function)?;
        let endpoint = self.endpoint_for(by, endpoint)?;
        let spec = &function.spec;
        let is_pickled = matches!(spec.form, Form::Python { .. });
        if !is_pickled || spec.image.is_some() || spec.runtime.environment().is_some() {
            return Ok(Step::Go(None));
        }
        let link = self
            .endpoints
            .get_mut(&endpoint)
            .and_then(|endpoint| endpoint.link.as_mut());
        let Some(link) = link.filter(|link| link.keeps) else {
            return Ok(Step::Go(None));
        };
        let suit = link.suits.entry(function.id).or_insert_with(|| {
            // One that has gone answers nothing, and is noticed elsewhere.
            let _ = link.outgoing.send(ToDispatcher::CheckCompatibility {
                function: function.id,
                runtime: spec.runtime.clone(),
            });
            Compatibility::Asked(Vec::new())
        });
        Ok(match suit {
            Compatibility::Known(refusal) => Step::Go(refusal.clone()),
            Compatibility::Asked(waiting) => {
                let (told, answer) = oneshot::channel();
                waiting.push(told);
                Step::Wait(answer)
            }
        })
    }

    /// The endpoint says it.
    pub(super) fn on_suits(&mut self, id: EndpointId, function: FunctionId, refusal: Option<Failure>) {
        let link = self.endpoints.get_mut(&id).and_then(|endpoint| endpoint.link.as_mut());
        // What was not asked is not kept.
        let Some(suit) = link.and_then(|link| link.suits.get_mut(&function)) else {
            return;
        };
        if let Compatibility::Asked(waiting) = std::mem::replace(suit, Compatibility::Known(refusal.clone())) {
            for told in waiting {
                let _ = told.send(refusal.clone());
            }
        }
    }
}
