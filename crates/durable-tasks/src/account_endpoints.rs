//! Endpoints where the tasks of each tenant run as an account of its own.
//!
//! Such an endpoint runs no tasks itself. Each tenant that submits to it has an endpoint below it, which is the tenant's, and is there
//! while there is something to do: the manager tells the one above who wants to run tasks, and that one starts the daemon of the
//! other as the account that the tenant is there.

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

/// Longest parts of a name that are the tenant's, and those of the endpoint above: all of it is the name of a directory.
const MAX_TENANT: usize = 32;
const MAX_ABOVE: usize = 64;

impl Tasks {
    /// Where the tasks of a tenant run that name this endpoint: its own one below it, if each has one there.
    pub(super) async fn below(&self, by: &Submitter, wanted: Option<String>) -> Result<Option<String>, Failure> {
        let (above, names) = {
            let state = self.state();
            let id = state.endpoint_for(by, wanted.as_deref())?;
            let Some(endpoint) = state
                .endpoints
                .get(&id)
                .filter(|endpoint| endpoint.record.spec.accounts)
            else {
                return Ok(wanted);
            };
            if let Some(below) = state.below(id, by.tenant) {
                return Ok(Some(below.to_string()));
            }
            (endpoint.record.clone(), names(&endpoint.record.name, by))
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
            if self.state().endpoint_named(&record.name).is_some() {
                continue;
            }
            let kept = self.store.endpoint(record).wait().await?;
            if kept.of == Some(of) {
                let id = kept.id;
                self.state().endpoints.entry(id).or_insert_with(|| Endpoint::new(kept));
                return Ok(Some(id.to_string()));
            }
        }
        let text = format!(
            "no name is free for your endpoint at `{}`; ask its operator",
            above.name
        );
        Err(Failure::new(Code::Internal, text))
    }

    /// A tenant's endpoint below another one.
    pub fn account(&self, above: EndpointId, tenant: TenantId) -> Result<EndpointStatus, Failure> {
        let state = self.state();
        let below = state.below(above, tenant);
        let status = below.and_then(|id| state.endpoint_status(id, &*self.tenants));
        let text = "this tenant has submitted nothing to this endpoint, or it has no accounts of its own";
        status.ok_or_else(|| Failure::new(Code::NotFound, text))
    }

    /// Nobody can be this tenant at the endpoint above: what it wants to run there ends so.
    pub(super) fn on_unmapped(&self, state: &mut State, above: EndpointId, tenant: TenantId, failure: &Failure) {
        let Some(below) = state.below(above, tenant) else {
            return;
        };
        let waiting = state
            .live
            .iter()
            .filter(|(_, live)| live.endpoint == below && live.place.is_unsent());
        let ended = waiting.map(|(task, _)| (*task, Some(failure.clone()))).collect();
        if let Some(endpoint) = state.endpoints.get_mut(&below) {
            endpoint.trouble = Some(failure.message.clone());
        }
        self.end_unexecuted(state, ended);
    }
}

impl State {
    /// A tenant's endpoint below this one.
    fn below(&self, above: EndpointId, tenant: TenantId) -> Option<EndpointId> {
        let of = Some(AccountOf {
            endpoint: above,
            tenant,
        });
        let mut all = self.endpoints.values();
        all.find(|endpoint| endpoint.record.of == of)
            .map(|endpoint| endpoint.record.id)
    }

    /// Tells whoever starts it that an endpoint has tasks, unless it is there.
    pub(super) fn want(&self, id: EndpointId, tenants: &dyn Tenants) {
        let Some(endpoint) = self.endpoints.get(&id).filter(|endpoint| endpoint.link.is_none()) else {
            return;
        };
        if let Some(of) = endpoint.record.of {
            let wanted = ToDispatcher::StartEndpoint {
                tenant: of.tenant,
                name: tenants.name(of.tenant),
                endpoint: endpoint.record.name.clone(),
            };
            self.tell(of.endpoint, wanted);
        }
    }

    /// The same for all that have tasks: below one endpoint, or below any.
    pub(super) fn want_all(&self, above: Option<EndpointId>, tenants: &dyn Tenants) {
        let of = |endpoint: &&Endpoint| {
            endpoint
                .record
                .of
                .filter(|of| above.is_none_or(|above| of.endpoint == above))
        };
        let below = self.endpoints.values().filter(|endpoint| of(endpoint).is_some());
        let away: HashSet<EndpointId> = below
            .filter(|endpoint| endpoint.link.is_none())
            .map(|endpoint| endpoint.record.id)
            .collect();
        if away.is_empty() {
            return;
        }
        let wanted: HashSet<EndpointId> = self
            .live
            .values()
            .map(|live| live.endpoint)
            .filter(|id| away.contains(id))
            .collect();
        wanted.into_iter().for_each(|id| self.want(id, tenants));
    }
}

/// Names of a tenant's endpoint, the first of which is free mostly.
fn names(above: &str, by: &Submitter) -> [String; 2] {
    let plain = |c: char| match c {
        c if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') => c,
        _ => '-',
    };
    let tenant: String = by.name.chars().take(MAX_TENANT).map(plain).collect();
    let above: String = above.chars().take(MAX_ABOVE).collect();
    let id = by.tenant.to_string();
    [
        format!("{above}.{tenant}"),
        format!("{above}.{tenant}-{}", &id[..16.min(id.len())]),
    ]
}
