//! Invitations: a tenant leases from an endpoint's nodes directly, without tasks.
//!
//! The endpoint issues the invitation: a token of its site's manager, whose address and permissions it alone knows.
//! Adds to `State` the request and its answer, which need the endpoint and its connection.

use std::time::Duration;

use dayfly_protocol::api::Connection;
use dayfly_protocol::dispatch::ToDispatcher;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::EndpointId;
use tokio::sync::oneshot;

use crate::Tasks;
use crate::endpoints::is_guest;
use crate::state::State;
use crate::submission::Submitter;

/// Longest wait for an endpoint's reply.
const TIMEOUT: Duration = Duration::from_secs(5);

/// An endpoint's reply: how to connect to its site, or why not.
pub type Invitation = Result<Connection, Failure>;

impl Tasks {
    /// Returns how to lease from the nodes of an endpoint.
    ///
    /// # Errors
    /// Those of the endpoint. `Unreachable` if it is not connected, `TimedOut` if it does not respond within 5 s, and
    /// the refusals of a submission.
    pub async fn invite(&self, by: &Submitter, wanted: &str) -> Invitation {
        // The site charges for these leases, and this manager does not record them.
        self.tenants.may_spend(by.tenant)?;
        // Where tenants have accounts, the nodes belong to the tenant's own endpoint.
        let account = self.account_endpoint_for(by, Some(wanted.to_owned())).await?;
        let answer = self
            .state()
            .request_invitation(by, account.as_deref().unwrap_or(wanted))?;
        let silent = || {
            let text = format!("the endpoint `{wanted:.80}` did not respond within 5 s; try again");
            Failure::new(Code::TimedOut, text)
        };
        let answer = tokio::time::timeout(TIMEOUT, answer).await.map_err(|_| silent())?;
        answer.map_err(|_| away(wanted))?
    }
}

fn away(endpoint: &str) -> Failure {
    let text = format!("the endpoint `{endpoint:.80}` is not connected; start it, or submit tasks, which wait for it");
    Failure::new(Code::Unreachable, text)
}

impl State {
    fn request_invitation(&mut self, by: &Submitter, wanted: &str) -> Result<oneshot::Receiver<Invitation>, Failure> {
        let id = self.endpoints.find_for(by, Some(wanted))?;
        let endpoint = self.endpoints.get_mut(id).ok_or_else(|| away(wanted))?;
        let guest = is_guest(endpoint.record(), by.tenant);
        let connection = endpoint.connection_mut().ok_or_else(|| away(wanted))?;
        Ok(connection.request_invitation(|number| ToDispatcher::Invite {
            number,
            tenant: by.tenant,
            name: by.name.clone(),
            guest,
        }))
    }

    /// Handles an endpoint's reply to a request for an invitation.
    pub fn on_invitation(&mut self, id: EndpointId, number: u64, invitation: Invitation) {
        if let Some(connection) = self.endpoints.connection_mut(id) {
            connection.answer_invitation(number, invitation);
        }
    }
}
