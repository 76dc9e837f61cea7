//! Account endpoints: below an endpoint with accounts, each tenant has an endpoint that runs its tasks under an
//! operating system account of its own.
//!
//! The endpoint above runs no tasks itself. It starts the daemon of a tenant's endpoint, under the tenant's account,
//! when the manager reports that the tenant has tasks.
//!
//! Adds to `State` the requests for daemons, which need the endpoints and the live tasks.

use std::collections::HashSet;

use dayfly_protocol::dispatch::ToDispatcher;
use dayfly_protocol::endpoints::{EndpointSpec, EndpointStatus};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{EndpointId, TenantId};
use dayfly_store::system::random;
use dayfly_store::tasks::{AccountOf, EndpointRecord};

use crate::endpoints::Endpoint;
use crate::state::State;
use crate::submission::Submitter;
use crate::{Tasks, Tenants};

/// Longest parts of a name that come from the tenant and from the endpoint above. The whole is the name of a directory.
const MAX_TENANT_CHARS: usize = 32;
const MAX_ABOVE_CHARS: usize = 64;

impl Tasks {
    /// Returns the id of the submitter's account endpoint below the wanted endpoint, and creates it if necessary.
    /// Returns the wanted endpoint itself if that has no accounts.
    pub(super) async fn account_endpoint_for(
        &self,
        by: &Submitter,
        wanted: Option<String>,
    ) -> Result<Option<String>, Failure> {
        let (above, names) = {
            let state = self.state();
            let id = state.endpoints.find_for(by, wanted.as_deref())?;
            let Some(endpoint) = state
                .endpoints
                .get(id)
                .filter(|endpoint| endpoint.record().spec.accounts)
            else {
                return Ok(wanted);
            };
            if let Some(account) = state.endpoints.account(id, by.tenant) {
                return Ok(Some(account.to_string()));
            }
            (endpoint.record().clone(), names(endpoint.name(), by))
        };
        for name in names {
            let of = AccountOf {
                endpoint: above.id,
                tenant: by.tenant,
            };
            let record = EndpointRecord {
                id: EndpointId(random()),
                name,
                tenant: by.tenant,
                spec: EndpointSpec {
                    description: format!("{} at {}", by.name, above.name),
                    provider: above.spec.provider.clone(),
                    ..EndpointSpec::default()
                },
                of: Some(of),
            };
            if self.state().endpoints.find(&record.name).is_some() {
                continue;
            }
            let kept = self.store.endpoint(record).wait().await?;
            if kept.of == Some(of) {
                let id = kept.id;
                self.state().endpoints.get_or_insert(kept);
                return Ok(Some(id.to_string()));
            }
        }
        let text = format!(
            "no name is free for your endpoint at `{}`; ask its operator",
            above.name
        );
        Err(Failure::new(Code::Internal, text))
    }

    /// The status of a tenant's account endpoint.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    pub fn account_endpoint(&self, above: EndpointId, tenant: TenantId) -> Result<EndpointStatus, Failure> {
        let state = self.state();
        let account = state.endpoints.account(above, tenant);
        let status = account.and_then(|id| state.endpoint_status(id, &*self.tenants));
        let text = "this tenant has submitted no task to this endpoint, or the endpoint has no accounts";
        status.ok_or_else(|| Failure::new(Code::NotFound, text))
    }

    /// An endpoint reports that a tenant has no account there: ends the tenant's tasks that were not sent.
    pub(super) fn on_unmapped(&self, state: &mut State, above: EndpointId, tenant: TenantId, failure: &Failure) {
        let Some(account) = state.endpoints.account(above, tenant) else {
            return;
        };
        let waiting = state
            .tasks
            .iter()
            .filter(|(_, live)| live.endpoint() == account && live.stage().is_unsent());
        let ended = waiting.map(|(task, _)| (task, Some(failure.clone()))).collect();
        if let Some(endpoint) = state.endpoints.get_mut(account) {
            endpoint.set_trouble(failure.message.clone());
        }
        self.end_unexecuted(state, ended);
    }
}

impl State {
    /// Asks the endpoint above to start the daemon of an account endpoint that has tasks, unless that is connected.
    pub fn request_daemon(&self, id: EndpointId, tenants: &dyn Tenants) {
        let Some(endpoint) = self.endpoints.get(id).filter(|endpoint| !endpoint.is_connected()) else {
            return;
        };
        if let Some(of) = endpoint.record().of {
            let wanted = ToDispatcher::StartEndpoint {
                tenant: of.tenant,
                name: tenants.name(of.tenant),
                endpoint: endpoint.name().to_owned(),
            };
            self.endpoints.send(of.endpoint, wanted);
        }
    }

    /// Asks for the daemons of all account endpoints that have tasks: of those below `above`, or of all.
    pub fn request_daemons(&self, above: Option<EndpointId>, tenants: &dyn Tenants) {
        let is_below = |endpoint: &&Endpoint| {
            let of = endpoint.record().of;
            of.is_some_and(|of| above.is_none_or(|above| of.endpoint == above))
        };
        let below = self.endpoints.iter().filter(is_below);
        let away: HashSet<EndpointId> = below
            .filter(|endpoint| !endpoint.is_connected())
            .map(Endpoint::id)
            .collect();
        if away.is_empty() {
            return;
        }
        let wanted: HashSet<EndpointId> = self
            .tasks
            .values()
            .map(|live| live.endpoint())
            .filter(|id| away.contains(id))
            .collect();
        wanted.into_iter().for_each(|id| self.request_daemon(id, tenants));
    }
}

/// Names for a tenant's endpoint. The first is free in most cases.
fn names(above: &str, by: &Submitter) -> [String; 2] {
    let plain = |c: char| match c {
        c if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') => c,
        _ => '-',
    };
    let tenant: String = by.name.chars().take(MAX_TENANT_CHARS).map(plain).collect();
    let above: String = above.chars().take(MAX_ABOVE_CHARS).collect();
    let id = by.tenant.to_string();
    [
        format!("{above}.{tenant}"),
        format!("{above}.{tenant}-{}", &id[..16.min(id.len())]),
    ]
}
