//! Everything about tasks that is in memory, under one lock.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet};
use std::sync::Arc;

use dayfly_protocol::dispatch::ToDispatcher;
use dayfly_protocol::ids::{EndpointId, FunctionId, TaskId, TenantId};
use dayfly_protocol::tasks::TaskCounts;
use dayfly_store::accounts::{Usage, UsageKey};
use dayfly_store::tasks::FunctionRecord;
use tokio::sync::watch;

use crate::endpoints::Endpoint;
use crate::function_names::name_of;
use crate::live_task::LiveTask;
use crate::queries::end_of;
use crate::tag::Tag;
use crate::{code_cache, flows, functions, memo, teams, triggers};

/// Everything in memory about the tasks of one manager.
#[derive(Default)]
pub(super) struct State {
    pub(super) functions: HashMap<FunctionId, Arc<FunctionRecord>>,
    /// Functions' code, as far as it was used lately.
    pub(super) codes: code_cache::CodeCache,
    pub(super) uses: functions::LastUses,
    pub(super) live: HashMap<TaskId, LiveTask>,
    /// The same ones by the ends of their ids.
    pub(super) live_ends: BTreeSet<([u8; 3], TaskId)>,
    /// Who waits for the end of a task.
    pub(super) later: HashMap<TaskId, Vec<TaskId>>,
    pub(super) endpoints: HashMap<EndpointId, Endpoint>,
    pub(super) tags: HashMap<TenantId, HashMap<Arc<str>, Arc<Tag>>>,
    /// When they are, in milliseconds since the machine was booted.
    pub(super) deadlines: BinaryHeap<Reverse<(u64, TaskId)>>,
    /// When tasks that wait for their next execution line up again, likewise.
    pub(super) rests: BinaryHeap<Reverse<(u64, TaskId)>>,
    pub(super) memo: memo::Memo,
    /// How many tasks of each tenant ended since the manager started.
    pub(super) ended: HashMap<TenantId, TaskCounts>,
    pub(super) cached_bytes: usize,
    pub(super) triggers: triggers::Triggers,
    pub(super) flows: flows::Flows,
    pub(super) teams: teams::Teams,
    /// What tasks cost since that was written down last.
    pub(super) usage: HashMap<UsageKey, Usage>,
    /// What tasks of each tenant cost in all, as far as it is written down, in billionths.
    pub(super) costs: HashMap<TenantId, u64>,
    /// When the manager started. Wall clock.
    pub(super) started_at_ms: u64,
    /// Tasks that have ended, and whose output is not in the store as it is in memory.
    pub(super) unkept: HashSet<(EndpointId, TaskId)>,
    /// Those that are being written there now.
    pub(super) keeping: HashSet<(EndpointId, TaskId)>,
    /// Bumped whenever tasks have printed.
    pub(super) printed: watch::Sender<u64>,
    /// The greatest number that was given to an outcome.
    pub(super) last_number: u64,
    /// The greatest one that is told.
    pub(super) published: u64,
}

impl State {
    /// One more that has not ended.
    pub(super) fn live_on(&mut self, id: TaskId, live: LiveTask) {
        if let Some(at_ms) = live.deadline_since_boot_ms() {
            self.deadlines.push(Reverse((at_ms, id)));
        }
        self.live_ends.insert((end_of(id), id));
        self.live.insert(id, live);
    }

    /// A task has ended, or was not kept.
    pub(super) fn live_no_more(&mut self, id: TaskId) -> Option<LiveTask> {
        self.live_ends.remove(&(end_of(id), id));
        self.live.remove(&id)
    }

    pub(super) fn tag(&mut self, tenant: TenantId, name: &str) -> Arc<Tag> {
        let tags = self.tags.entry(tenant).or_default();
        if let Some(tag) = tags.get(name) {
            return Arc::clone(tag);
        }
        let tag = Arc::new(Tag::new(name, self.published));
        tags.insert(name.into(), Arc::clone(&tag));
        tag
    }

    pub(super) fn is_up(&self, endpoint: EndpointId) -> bool {
        let endpoint = self.endpoints.get(&endpoint);
        endpoint.is_some_and(|endpoint| endpoint.link.is_some())
    }

    /// Tells a dispatcher, if it is connected: one that is not will ask.
    pub(super) fn tell(&self, endpoint: EndpointId, message: ToDispatcher) {
        let link = self
            .endpoints
            .get(&endpoint)
            .and_then(|endpoint| endpoint.link.as_ref());
        if let Some(link) = link {
            // Its end is noticed by whoever listens to it.
            let _ = link.outgoing.send(message);
        }
    }

    pub(super) fn endpoint_name(&self, id: EndpointId) -> String {
        self.endpoints
            .get(&id)
            .map_or_else(|| id.to_string(), |endpoint| endpoint.record.name.clone())
    }

    pub(super) fn function_name(&self, id: FunctionId) -> String {
        self.functions
            .get(&id)
            .map_or_else(String::new, |function| name_of(function))
    }
}
