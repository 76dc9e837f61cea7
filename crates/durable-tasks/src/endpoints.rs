//! Endpoints: the sites where tasks run, their owners, and who may use them.
//!
//! `endpoint` has what the manager knows of one endpoint. This file has all of them, and their registration, removal
//! and status. Adds to `State` the status, which needs the counts of live tasks.

mod endpoint;

use std::collections::HashMap;
use std::sync::Arc;

use dayfly_protocol::dispatch::ToDispatcher;
use dayfly_protocol::endpoints::{EndpointRegistration, EndpointSpec, EndpointStatus};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{EndpointId, TenantId};
use dayfly_protocol::tasks::{MAX_NAME_BYTES, TaskCounts};
use dayfly_store::system::random;
use dayfly_store::tasks::{AccountOf, EndpointRecord};

use crate::connection::Connection;
use crate::state::State;
use crate::submission::{Submitter, check_name};
use crate::{Tasks, Tenants};

pub use endpoint::Endpoint;

/// The endpoint of the manager's own process. Tasks that name no endpoint go to it.
pub const LOCAL: &str = "local";

/// Owner of the manager's own endpoint.
pub(super) const NOBODY: TenantId = TenantId([0; 16]);

/// The record of the endpoint of the manager's own process.
pub(super) fn own(name: &str) -> EndpointRecord {
    EndpointRecord {
        id: EndpointId(random()),
        name: name.into(),
        tenant: NOBODY,
        spec: EndpointSpec {
            description: "the manager's own".into(),
            provider: LOCAL.into(),
            shared_with: vec!["*".into()],
            accounts: false,
        },
        of: None,
    }
}

/// The endpoints of one manager.
#[derive(Default)]
pub struct Endpoints {
    all: HashMap<EndpointId, Endpoint>,
}

impl Endpoints {
    /// The endpoints that the store has, each with the process that last reported which tasks it has.
    pub fn restored(records: Vec<EndpointRecord>, instances: Vec<(EndpointId, u64)>) -> Self {
        let all = records.into_iter().map(|record| (record.id, Endpoint::new(record)));
        let mut endpoints = Self { all: all.collect() };
        for (id, instance) in instances {
            if let Some(endpoint) = endpoints.get_mut(id) {
                endpoint.restore_instance(instance);
            }
        }
        endpoints
    }

    pub fn get(&self, id: EndpointId) -> Option<&Endpoint> {
        self.all.get(&id)
    }

    pub fn get_mut(&mut self, id: EndpointId) -> Option<&mut Endpoint> {
        self.all.get_mut(&id)
    }

    pub fn contains(&self, id: EndpointId) -> bool {
        self.all.contains_key(&id)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Endpoint> {
        self.all.values()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Endpoint> {
        self.all.values_mut()
    }

    pub fn connection(&self, id: EndpointId) -> Option<&Connection> {
        self.get(id)?.connection()
    }

    pub fn connection_mut(&mut self, id: EndpointId) -> Option<&mut Connection> {
        self.get_mut(id)?.connection_mut()
    }

    /// The endpoint of a record; adds it if there is none.
    pub fn get_or_insert(&mut self, record: EndpointRecord) -> &mut Endpoint {
        self.all.entry(record.id).or_insert_with(|| Endpoint::new(record))
    }

    /// Changes an endpoint's record, or adds it.
    pub fn set_record(&mut self, record: EndpointRecord) {
        match self.all.get_mut(&record.id) {
            Some(known) => known.set_record(record),
            None => drop(self.all.insert(record.id, Endpoint::new(record))),
        }
    }

    pub fn insert(&mut self, endpoint: Endpoint) {
        self.all.insert(endpoint.id(), endpoint);
    }

    pub fn remove(&mut self, id: EndpointId) -> Option<Endpoint> {
        self.all.remove(&id)
    }

    /// An endpoint and the account endpoints below it.
    pub fn with_accounts(&self, id: EndpointId) -> impl Iterator<Item = EndpointId> {
        let records = self.all.values().map(Endpoint::record);
        let its = move |record: &&EndpointRecord| record.id == id || record.of.is_some_and(|of| of.endpoint == id);
        records.filter(its).map(|record| record.id)
    }

    /// The endpoint of a tenant's account at another endpoint.
    pub fn account(&self, above: EndpointId, tenant: TenantId) -> Option<EndpointId> {
        let of = Some(AccountOf {
            endpoint: above,
            tenant,
        });
        let found = self.all.values().find(|endpoint| endpoint.record().of == of);
        found.map(Endpoint::id)
    }

    pub fn is_up(&self, id: EndpointId) -> bool {
        self.get(id).is_some_and(Endpoint::is_connected)
    }

    /// Sends a message if the dispatcher is connected. Otherwise the dispatcher asks when it reconnects.
    pub fn send(&self, id: EndpointId, message: ToDispatcher) {
        if let Some(endpoint) = self.get(id) {
            endpoint.send(message);
        }
    }

    /// The name of an endpoint, or its id if it was removed.
    pub fn name(&self, id: EndpointId) -> String {
        self.get(id)
            .map_or_else(|| id.to_string(), |endpoint| endpoint.name().to_owned())
    }

    /// The endpoint with this name or id.
    pub fn find(&self, wanted: &str) -> Option<&Endpoint> {
        let mut all = self.all.values();
        all.find(|one| one.name() == wanted || one.id().to_string() == wanted)
    }

    /// Whether the tenant owns an endpoint, or the one above it.
    pub fn is_owner(&self, record: &EndpointRecord, tenant: TenantId) -> bool {
        let above = record.of.and_then(|of| self.get(of.endpoint));
        record.tenant == tenant || above.is_some_and(|above| above.record().tenant == tenant)
    }

    /// The tenant that runs an endpoint's nodes, as `tenant` sees it: the owner of the endpoint above that of an
    /// account. Every tenant trusts the manager's own endpoint as if it were its own.
    pub fn operator(&self, id: EndpointId, tenant: TenantId) -> Option<TenantId> {
        let record = self.get(id)?.record();
        let owner = match record.of {
            Some(of) => self.get(of.endpoint)?.record().tenant,
            None => record.tenant,
        };
        Some(if owner == NOBODY { tenant } else { owner })
    }

    /// The endpoint of a submission: the wanted one, else the local one, else the only one that the submitter may use.
    ///
    /// # Errors
    /// `NotFound` if there is none that the submitter may use, `InvalidRequest` if it must name one of several.
    pub fn find_for(&self, by: &Submitter, wanted: Option<&str>) -> Result<EndpointId, Failure> {
        let usable = |endpoint: &&Endpoint| {
            let above = endpoint.record().of.map(|of| self.get(of.endpoint));
            may_use(endpoint.record(), by)
                // A tenant that may not use the endpoint above may not use its account there either.
                && above.is_none_or(|above| above.is_some_and(|above| may_use(above.record(), by)))
        };
        if let Some(wanted) = wanted {
            let found = self.find(wanted).filter(usable);
            return found.map(Endpoint::id).ok_or_else(|| {
                let text = format!(
                    "there is no endpoint `{wanted:.80}` that you may use; `dayfly endpoint list` shows the others"
                );
                Failure::new(Code::NotFound, text)
            });
        }
        if let Some(local) = self.find(LOCAL).filter(usable) {
            return Ok(local.id());
        }
        let mut all = self.all.values().filter(usable).filter(|one| one.record().of.is_none());
        match (all.next(), all.next()) {
            (Some(only), None) => Ok(only.id()),
            (None, _) => Err(Failure::new(
                Code::NotFound,
                "this manager has no endpoint that you may run tasks at; set one up by `dayfly endpoint setup`",
            )),
            _ => Err(Failure::new(
                Code::InvalidRequest,
                "this manager has several endpoints: name one of those that `dayfly endpoint list` shows",
            )),
        }
    }
}

impl Tasks {
    /// Registers an endpoint of a tenant, or changes the one of this name.
    ///
    /// # Errors
    /// `Forbidden` for a name that is reserved or another tenant's, `NotFound` for an unknown team.
    pub async fn register_endpoint(
        &self,
        tenant: TenantId,
        given: EndpointRegistration,
    ) -> Result<EndpointStatus, Failure> {
        check_endpoint_name(&given.name)?;
        self.check_shared(&given.spec.shared_with)?;
        let record = EndpointRecord {
            id: EndpointId(random()),
            name: given.name,
            tenant,
            spec: given.spec,
            of: None,
        };
        {
            let state = self.state();
            let known = state.endpoints.find(&record.name);
            if known.is_some_and(|known| known.record().of.is_some()) {
                let text = format!("`{}` is the endpoint of an account; choose another name", record.name);
                return Err(Failure::new(Code::Forbidden, text));
            }
        }
        let kept = self.store.endpoint(record).wait().await?;
        if kept.tenant != tenant {
            let text = format!(
                "the endpoint `{}` exists already and belongs to another tenant; choose another name",
                kept.name
            );
            return Err(Failure::new(Code::Forbidden, text));
        }
        let id = kept.id;
        let mut state = self.state();
        state.endpoints.set_record(kept);
        let removed = || Failure::new(Code::NotFound, "the endpoint was removed meanwhile");
        state.endpoint_status(id, &*self.tenants).ok_or_else(removed)
    }

    /// An endpoint reports the configuration that its daemon was started with.
    pub(super) fn on_spec(self: &Arc<Self>, state: &mut State, id: EndpointId, spec: EndpointSpec) {
        let unknown = match spec.check_texts() {
            Ok(()) => state.teams.find_unknown(&spec.shared_with),
            Err(failure) => Some(failure),
        };
        let Some(endpoint) = state.endpoints.get_mut(id) else {
            return;
        };
        // The endpoint above configures that of an account.
        if endpoint.record().of.is_some() || endpoint.record().spec == spec {
            return;
        }
        if let Some(failure) = unknown {
            endpoint.set_trouble(format!("its configuration was not changed: {}", failure.message));
            return;
        }
        tracing::info!(endpoint = endpoint.name(), "its owner has changed its configuration");
        endpoint.set_spec(spec);
        let (tasks, record) = (Arc::clone(self), endpoint.record().clone());
        tokio::spawn(async move {
            // The endpoint reports its configuration again on its next connection.
            if let Err(error) = tasks.store.endpoint(record).wait().await {
                tracing::error!(%error, "the configuration of an endpoint could not be written");
            }
        });
    }

    /// Removes an endpoint and the account endpoints below it, and disconnects their dispatchers. Returns their
    /// records.
    ///
    /// # Errors
    /// `InvalidRequest` if tasks there have not ended, `Forbidden` for the endpoint of an account.
    pub async fn remove_endpoint(&self, id: EndpointId) -> Result<Vec<EndpointRecord>, Failure> {
        // Removed from memory first, so that no task is accepted for it meanwhile.
        let removed = {
            let mut state = self.state();
            let above = state.endpoints.get(id).and_then(|endpoint| endpoint.record().of);
            if let Some(of) = above {
                let name = state.endpoints.name(of.endpoint);
                let text = format!("the endpoint belongs to an account at `{name}`; remove `{name}` to remove both");
                return Err(Failure::new(Code::Forbidden, text));
            }
            let all: Vec<EndpointId> = state.endpoints.with_accounts(id).collect();
            let waiting = state
                .tasks
                .values()
                .filter(|live| all.contains(&live.endpoint()))
                .count();
            if waiting > 0 {
                let text = format!(
                    "{waiting} tasks at the endpoint have not ended; cancel them, by `dayfly task cancel --endpoint \
                     NAME --everybody`, or wait"
                );
                return Err(Failure::new(Code::InvalidRequest, text));
            }
            all.iter()
                .filter_map(|id| state.endpoints.remove(*id))
                .collect::<Vec<_>>()
        };
        let mut gone = Vec::new();
        let mut removed = removed.into_iter();
        while let Some(endpoint) = removed.next() {
            if let Err(error) = self.store.remove_endpoint(endpoint.id()).wait().await {
                let mut state = self.state();
                for left in std::iter::once(endpoint).chain(removed) {
                    state.endpoints.insert(left);
                }
                return Err(error.into());
            }
            // The sender of its tasks ends too.
            endpoint.wake();
            gone.push(endpoint.record().clone());
        }
        Ok(gone)
    }

    /// The endpoint with this name or id.
    pub fn endpoint(&self, wanted: &str) -> Option<EndpointRecord> {
        let state = self.state();
        state.endpoints.find(wanted).map(|endpoint| endpoint.record().clone())
    }

    /// The endpoints that a submitter may run tasks at, or all, as it sees them. Sorted by name.
    pub fn endpoints(&self, by: &Submitter, all: bool) -> Vec<EndpointStatus> {
        let is_shown = |endpoint: &Endpoint| all || may_use(endpoint.record(), by);
        let mut statuses = self.state().endpoint_statuses(is_shown, &*self.tenants);
        for status in &mut statuses {
            status.foreign = !status.owner.is_empty() && status.owner != by.name;
        }
        statuses
    }

    /// The status of one endpoint.
    pub fn endpoint_status(&self, id: EndpointId) -> Option<EndpointStatus> {
        self.state().endpoint_status(id, &*self.tenants)
    }
}

impl State {
    pub fn endpoint_status(&self, id: EndpointId, tenants: &dyn Tenants) -> Option<EndpointStatus> {
        let is_it = |endpoint: &Endpoint| endpoint.id() == id;
        self.endpoint_statuses(is_it, tenants).pop()
    }

    fn endpoint_statuses(&self, is_shown: impl Fn(&Endpoint) -> bool, tenants: &dyn Tenants) -> Vec<EndpointStatus> {
        let mut counts: HashMap<EndpointId, TaskCounts> = HashMap::new();
        for live in self.tasks.values() {
            counts.entry(live.endpoint()).or_default().count(live.state());
        }
        let mut endpoints: Vec<_> = self.endpoints.iter().filter(|endpoint| is_shown(endpoint)).collect();
        endpoints.sort_by(|a, b| a.name().cmp(b.name()));
        let status = |endpoint: &Endpoint| {
            let owner = match endpoint.record().tenant {
                NOBODY => String::new(),
                tenant => tenants.name(tenant),
            };
            endpoint.status(owner, counts.remove(&endpoint.id()).unwrap_or_default())
        };
        endpoints.into_iter().map(status).collect()
    }
}

/// Whether a submitter may run tasks at an endpoint.
fn may_use(endpoint: &EndpointRecord, by: &Submitter) -> bool {
    endpoint.tenant == by.tenant || by.is_among(&endpoint.spec.shared_with)
}

/// Whether an endpoint is another tenant's. The manager's own belongs to no tenant, and its site's grants hold for all.
pub(super) fn is_guest(endpoint: &EndpointRecord, tenant: TenantId) -> bool {
    ![tenant, NOBODY].contains(&endpoint.tenant)
}

/// Refuses a name that cannot be a part of paths, addresses and host names.
fn check_endpoint_name(name: &str) -> Result<(), Failure> {
    if [LOCAL, "connect", "accounts"].contains(&name) {
        let text = format!("`{name}` is reserved; choose another name");
        return Err(Failure::new(Code::Forbidden, text));
    }
    check_name("an endpoint", name, MAX_NAME_BYTES)
}
