//! Endpoints: sites where tasks run, whose they are, and how they do.

use std::collections::HashMap;
use std::sync::Arc;

use dayfly_protocol::endpoints::{BlockStatus, EndpointRegistration, EndpointSpec, EndpointState, EndpointStatus};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{EndpointId, TaskId, TenantId};
use dayfly_protocol::tasks::{MAX_NAME_BYTES, TaskCounts, TaskTimes};
use dayfly_scheduling::Queue;
use dayfly_store::system::random;
use dayfly_store::tasks::EndpointRecord;
use tokio::sync::Notify;

use crate::connection::Connection;
use crate::live_task::TaskScope;
use crate::state::State;
use crate::submission::{Submitter, plainly_named};
use crate::{Tasks, Tenants, output};

/// The endpoint beside the manager, which tasks go to that name none.
pub const LOCAL: &str = "local";

/// The site that a manager has in its own process.
pub fn own(name: &str) -> EndpointRecord {
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

/// Whose an endpoint is that is the manager's own.
pub(super) const NOBODY: TenantId = TenantId([0; 16]);

/// An endpoint and its dispatcher.
pub(super) struct Endpoint {
    pub(super) record: EndpointRecord,
    pub(super) link: Option<Connection>,
    /// Connections that its dispatcher has made.
    pub(super) links: u64,
    /// The process that said last what it has.
    pub(super) instance: Option<u64>,
    pub(super) queue: Queue<TaskId>,
    /// How many tasks the dispatcher wants at a time, and how many it has.
    pub(super) room: u32,
    pub(super) held: u32,
    pub(super) workers: u32,
    pub(super) blocks: Vec<BlockStatus>,
    /// Why it has not got more nodes, and why not more workers.
    pub(super) block_trouble: Option<String>,
    pub(super) trouble: Option<String>,
    pub(super) done: u64,
    pub(super) failed: u64,
    pub(super) times: TaskTimes,
    pub(super) outputs: output::Outputs,
    /// Wakes whoever sends.
    pub(super) wake: Arc<Notify>,
}

impl Endpoint {
    pub(super) fn new(record: EndpointRecord) -> Self {
        Self {
            record,
            link: None,
            links: 0,
            instance: None,
            queue: Queue::default(),
            room: 0,
            held: 0,
            workers: 0,
            blocks: Vec::new(),
            block_trouble: None,
            trouble: None,
            done: 0,
            failed: 0,
            times: TaskTimes::default(),
            outputs: output::Outputs::default(),
            wake: Arc::default(),
        }
    }

    pub(super) fn state(&self) -> EndpointState {
        match self.link {
            Some(_) => EndpointState::Up,
            None => EndpointState::Down,
        }
    }
}

impl Tasks {
    /// Keeps an endpoint of a tenant's; one that is there changes.
    pub async fn register_endpoint(
        &self,
        tenant: TenantId,
        given: EndpointRegistration,
    ) -> Result<EndpointStatus, Failure> {
        check_name(&given.name)?;
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
            let known = state.endpoint_named(&record.name);
            if known.is_some_and(|known| known.record.of.is_some()) {
                let text = format!("`{}` is the endpoint of an account; choose another name", record.name);
                return Err(Failure::new(Code::Forbidden, text));
            }
        }
        let kept = self.store.endpoint(record).wait().await?;
        if kept.tenant != tenant {
            let text = format!(
                "there is an endpoint `{}` already, and it is another tenant's; choose another name",
                kept.name
            );
            return Err(Failure::new(Code::Forbidden, text));
        }
        let id = kept.id;
        let mut state = self.state();
        match state.endpoints.get_mut(&id) {
            Some(known) => known.record = kept,
            None => drop(state.endpoints.insert(id, Endpoint::new(kept))),
        }
        let gone = || Failure::new(Code::NotFound, "the endpoint was removed meanwhile");
        state.endpoint_status(id, &*self.tenants).ok_or_else(gone)
    }

    /// Its owner says what an endpoint is, by the configuration that its daemon began with.
    pub(super) fn on_spec(self: &Arc<Self>, state: &mut State, id: EndpointId, spec: EndpointSpec) {
        let unknown = match spec.check_texts() {
            Ok(()) => state.unknown_team(&spec.shared_with),
            Err(failure) => Some(failure),
        };
        let Some(endpoint) = state.endpoints.get_mut(&id) else {
            return;
        };
        // The endpoint of an account is as the one above it says.
        if endpoint.record.of.is_some() || endpoint.record.spec == spec {
            return;
        }
        if let Some(failure) = unknown {
            endpoint.trouble = Some(format!("it is as before: {}", failure.message));
            return;
        }
        tracing::info!(endpoint = endpoint.record.name, "its owner has changed what it is");
        endpoint.record.spec = spec;
        let (tasks, record) = (Arc::clone(self), endpoint.record.clone());
        tokio::spawn(async move {
            // It says so again on its next connection.
            if let Err(error) = tasks.store.endpoint(record).wait().await {
                tracing::error!(%error, "what an endpoint is could not be written down");
            }
        });
    }

    /// Forgets an endpoint, and those below it, if no task is to be run there any more. Their dispatchers are cut off. Answers
    /// which they were.
    pub async fn remove_endpoint(&self, id: EndpointId) -> Result<Vec<EndpointRecord>, Failure> {
        // First of all from memory, so that nothing is accepted for it meanwhile.
        let removed = {
            let mut state = self.state();
            let above = state.endpoints.get(&id).and_then(|endpoint| endpoint.record.of);
            if let Some(of) = above {
                let name = state.endpoint_name(of.endpoint);
                let text = format!("the endpoint is that of an account at `{name}`, and goes with it");
                return Err(Failure::new(Code::Forbidden, text));
            }
            let its = |record: &EndpointRecord| record.id == id || record.of.is_some_and(|of| of.endpoint == id);
            let all = state.endpoints.values().map(|endpoint| &endpoint.record);
            let all: Vec<EndpointId> = all.filter(|record| its(record)).map(|record| record.id).collect();
            let waiting = state.live.values().filter(|live| all.contains(&live.endpoint)).count();
            if waiting > 0 {
                let text = format!(
                    "{waiting} tasks at the endpoint have not ended; cancel them, by `dayfly task cancel --endpoint NAME \
                     --everybody`, or wait"
                );
                return Err(Failure::new(Code::InvalidRequest, text));
            }
            all.iter()
                .filter_map(|id| state.endpoints.remove(id))
                .collect::<Vec<_>>()
        };
        let mut gone = Vec::new();
        let mut removed = removed.into_iter();
        while let Some(endpoint) = removed.next() {
            if let Err(error) = self.store.remove_endpoint(endpoint.record.id).wait().await {
                let mut state = self.state();
                for left in std::iter::once(endpoint).chain(removed) {
                    state.endpoints.insert(left.record.id, left);
                }
                return Err(error.into());
            }
            // Whoever sends to it ends, too.
            endpoint.wake.notify_one();
            gone.push(endpoint.record);
        }
        Ok(gone)
    }

    /// The endpoint of this name, or with this id.
    pub fn endpoint(&self, wanted: &str) -> Option<EndpointRecord> {
        let state = self.state();
        state.endpoint_named(wanted).map(|endpoint| endpoint.record.clone())
    }

    /// The tasks that somebody may end: those at an endpoint, with those below it, or anywhere, one's own or everybody's. Everybody's
    /// may be ended by operators, and by whoever has the endpoint.
    pub fn whose(
        &self,
        tenant: TenantId,
        is_operator: bool,
        everybody: bool,
        endpoint: Option<&str>,
    ) -> Result<TaskScope, Failure> {
        let state = self.state();
        let found = endpoint.map(|wanted| {
            state.endpoint_named(wanted).ok_or_else(|| {
                let text = format!("there is no endpoint `{wanted:.80}`; `dayfly endpoint list` shows those there are");
                Failure::new(Code::NotFound, text)
            })
        });
        let found = found.transpose()?.map(|endpoint| &endpoint.record);
        if everybody && !is_operator && !found.is_some_and(|record| state.is_owner(record, tenant)) {
            let text = "that takes an operator, or, for the tasks at an endpoint, its owner; name an endpoint of yours";
            return Err(Failure::new(Code::Forbidden, text));
        }
        let at = found.map(|at| {
            let its = |one: &&Endpoint| one.record.id == at.id || one.record.of.is_some_and(|of| of.endpoint == at.id);
            let all = state.endpoints.values().filter(its);
            all.map(|one| one.record.id).collect()
        });
        Ok(TaskScope {
            tenant: (!everybody).then_some(tenant),
            at,
        })
    }

    /// Endpoints that somebody may run tasks at, or all, as they see them.
    pub fn endpoints(&self, by: &Submitter, all: bool) -> Vec<EndpointStatus> {
        let shown = |endpoint: &Endpoint| all || may_use(&endpoint.record, by);
        let mut statuses = self.state().endpoint_statuses(shown, &*self.tenants);
        for status in &mut statuses {
            status.foreign = !status.owner.is_empty() && status.owner != by.name;
        }
        statuses
    }

    /// How one of them does.
    pub fn endpoint_status(&self, id: EndpointId) -> Option<EndpointStatus> {
        self.state().endpoint_status(id, &*self.tenants)
    }
}

impl State {
    pub(super) fn endpoint_status(&self, id: EndpointId, tenants: &dyn Tenants) -> Option<EndpointStatus> {
        let is_it = |endpoint: &Endpoint| endpoint.record.id == id;
        self.endpoint_statuses(is_it, tenants).pop()
    }

    fn endpoint_statuses(&self, shown: impl Fn(&Endpoint) -> bool, tenants: &dyn Tenants) -> Vec<EndpointStatus> {
        let mut counts: HashMap<EndpointId, TaskCounts> = HashMap::new();
        for live in self.live.values() {
            counts.entry(live.endpoint).or_default().count(live.state());
        }
        let mut endpoints: Vec<_> = self.endpoints.values().filter(|endpoint| shown(endpoint)).collect();
        endpoints.sort_by(|a, b| a.record.name.cmp(&b.record.name));
        let status = |endpoint: &Endpoint| EndpointStatus {
            id: endpoint.record.id,
            name: endpoint.record.name.clone(),
            owner: match endpoint.record.tenant {
                NOBODY => String::new(),
                tenant => tenants.name(tenant),
            },
            foreign: false,
            spec: endpoint.record.spec.clone(),
            state: endpoint.state().into(),
            workers: endpoint.workers,
            blocks: endpoint.blocks.clone(),
            trouble: endpoint.block_trouble.clone().or(endpoint.trouble.clone()),
            tasks: TaskCounts {
                done: endpoint.done,
                failed: endpoint.failed,
                times: endpoint.times,
                ..counts.remove(&endpoint.record.id).unwrap_or_default()
            },
        };
        endpoints.into_iter().map(status).collect()
    }

    /// Whether an endpoint is somebody's, or below one that is.
    fn is_owner(&self, record: &EndpointRecord, tenant: TenantId) -> bool {
        let above = record.of.and_then(|of| self.endpoints.get(&of.endpoint));
        record.tenant == tenant || above.is_some_and(|above| above.record.tenant == tenant)
    }

    pub(super) fn endpoint_named(&self, wanted: &str) -> Option<&Endpoint> {
        let mut all = self.endpoints.values();
        all.find(|one| one.record.name == wanted || one.record.id.to_string() == wanted)
    }

    /// Where a submission goes.
    pub(super) fn endpoint_for(&self, by: &Submitter, wanted: Option<&str>) -> Result<EndpointId, Failure> {
        let usable = |endpoint: &&Endpoint| {
            let above = endpoint.record.of.map(|of| self.endpoints.get(&of.endpoint));
            may_use(&endpoint.record, by)
                // Whoever may not run tasks there any more has no account there.
                && above.is_none_or(|above| above.is_some_and(|above| may_use(&above.record, by)))
        };
        if let Some(wanted) = wanted {
            let found = self.endpoint_named(wanted).filter(usable);
            return found.map(|endpoint| endpoint.record.id).ok_or_else(|| {
                let text = format!(
                    "there is no endpoint `{wanted:.80}` that you may use; `dayfly endpoint list` shows those there are"
                );
                Failure::new(Code::NotFound, text)
            });
        }
        if let Some(local) = self.endpoint_named(LOCAL).filter(usable) {
            return Ok(local.record.id);
        }
        let mut all = self
            .endpoints
            .values()
            .filter(usable)
            .filter(|one| one.record.of.is_none());
        match (all.next(), all.next()) {
            (Some(only), None) => Ok(only.record.id),
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

/// Whether somebody may run tasks at an endpoint.
fn may_use(endpoint: &EndpointRecord, by: &Submitter) -> bool {
    endpoint.tenant == by.tenant || by.is_among(&endpoint.spec.shared_with)
}

/// Whether an endpoint is another tenant's. The manager's own is nobody's, and what its site grants holds for all.
pub(super) fn is_guest(endpoint: &EndpointRecord, tenant: TenantId) -> bool {
    ![tenant, NOBODY].contains(&endpoint.tenant)
}

/// A name is part of paths, of addresses and of host names.
fn check_name(name: &str) -> Result<(), Failure> {
    if [LOCAL, "connect", "accounts"].contains(&name) {
        let text = format!("`{name}` is taken by the manager itself; choose another name");
        return Err(Failure::new(Code::Forbidden, text));
    }
    plainly_named("an endpoint", name, MAX_NAME_BYTES)
}
