//! Whoever can reach an endpoint's nodes leases from them itself, without tasks: with a token of the site's own manager, which the
//! endpoint makes, as it alone knows where that is and whom it lets in.

use std::time::Duration;

use dayfly_protocol::api::Connection;
use dayfly_protocol::dispatch::ToDispatcher;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::EndpointId;
use tokio::sync::oneshot;

use crate::Tasks;
use crate::endpoints::is_guest;
use crate::open_requests::OpenRequests;
use crate::state::State;
use crate::submission::Submitter;

/// Whoever asks waits no longer for an endpoint's answer.
const PATIENCE: Duration = Duration::from_secs(5);

type Answer = Result<Connection, Failure>;

/// Who waits for the answer of an endpoint.
pub type Invitations = OpenRequests<Answer>;

impl Tasks {
    /// With what somebody leases from the nodes of an endpoint.
    pub async fn invite(&self, by: &Submitter, wanted: &str) -> Answer {
        // As who submits tasks. What leases there cost is the site's affair, and not in this manager's books.
        self.tenants.may_spend(by.tenant)?;
        // Where each tenant has an account, its nodes are its own.
        let below = self.below(by, Some(wanted.to_owned())).await?;
        let answer = self.state().ask_for_invite(by, below.as_deref().unwrap_or(wanted))?;
        let silent = || {
            let text = format!("the endpoint `{wanted:.80}` did not answer in time; try again");
            Failure::new(Code::TimedOut, text)
        };
        let answer = tokio::time::timeout(PATIENCE, answer).await.map_err(|_| silent())?;
        answer.map_err(|_| away(wanted))?
    }
}

fn away(endpoint: &str) -> Failure {
    let text =
        format!("the endpoint `{endpoint:.80}` is not connected now; start it, or submit tasks, which wait for it");
    Failure::new(Code::Unreachable, text)
}

impl State {
    fn ask_for_invite(&mut self, by: &Submitter, wanted: &str) -> Result<oneshot::Receiver<Answer>, Failure> {
        let id = self.endpoint_for(by, Some(wanted))?;
        let endpoint = self.endpoints.get_mut(&id).ok_or_else(|| away(wanted))?;
        let guest = is_guest(&endpoint.record, by.tenant);
        let link = endpoint.link.as_mut().ok_or_else(|| away(wanted))?;
        let (number, answer) = link.invites.ask();
        // One that is gone answers nothing, and its end drops who waits.
        let _ = link.outgoing.send(ToDispatcher::Invite {
            number,
            tenant: by.tenant,
            name: by.name.clone(),
            guest,
        });
        Ok(answer)
    }

    /// The endpoint answers.
    pub(super) fn on_invited(&mut self, id: EndpointId, number: u64, answer: Answer) {
        let link = self.endpoints.get_mut(&id).and_then(|endpoint| endpoint.link.as_mut());
        if let Some(link) = link {
            link.invites.answer(number, answer);
        }
    }
}
