//! Triggers are made, changed and shown.

use std::sync::Arc;

use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{EndpointId, TenantId, TriggerId};
use dayfly_protocol::tasks::{MAX_NAME_BYTES, TaskState};
use dayfly_protocol::triggers::{
    EventSource, EventStatus, MAX_SPEC_BYTES, MAX_TRIGGERS, TriggerRegistration, TriggerSpec, TriggerState,
    TriggerStatus,
};
use dayfly_scheduling::Timer;
use dayfly_store::hash;
use dayfly_store::system::{now_ms, random};
use dayfly_store::triggers::TriggerRecord;
use serde_json::Value;

use super::submission::argument;
use super::{Trigger, files, flow_of, gone, task_of, to_its_end};

use crate::Tasks;
use crate::endpoints::NOBODY;
use crate::state::State;
use crate::submission::{Submitter, plainly_named};

/// Who makes a trigger.
#[derive(Debug, Clone)]
pub struct TriggerAuthor {
    /// For whom its tasks are.
    pub by: Submitter,
    /// Whether it may look at what the manager's own site sees.
    pub operates: bool,
    /// When what it made this with expires, which no trigger outlives.
    pub expires_at_ms: u64,
}

impl Trigger {
    pub(super) fn state(&self) -> TriggerState {
        match (self.record.expires_at_ms <= now_ms(), self.record.spec.paused) {
            (true, _) => TriggerState::Expired,
            (_, true) => TriggerState::Paused,
            _ => TriggerState::Active,
        }
    }

    fn status(&self, owner: String, watched_at: Option<String>, away: Option<Failure>) -> TriggerStatus {
        let record = &self.record;
        let is_due = self.is_active(now_ms());
        TriggerStatus {
            id: record.id,
            name: record.name.clone(),
            owner,
            spec: record.spec.clone(),
            watched_at,
            state: self.state(),
            trouble: away.or_else(|| self.unseen.clone()).or_else(|| self.unstarted.clone()),
            created_at_ms: record.created_at_ms,
            expires_at_ms: record.expires_at_ms,
            next_at_ms: if is_due { self.next_at_ms } else { 0 },
            waiting: self.waiting,
            started: self.started,
            refused: self.refused,
        }
    }
}

fn check_source(source: &EventSource, now_ms: u64) -> Result<(), Failure> {
    match source {
        EventSource::Timer { cron, zone, .. } => Timer::parse(cron, zone, now_ms).map(drop),
        EventSource::Webhook {} => Ok(()),
        EventSource::Files { .. } => files::check(source),
    }
}

impl State {
    /// The endpoint that looks for files: one that sees what its owner's account sees, and is the maker's own.
    fn watched_at(&self, maker: &TriggerAuthor, spec: &TriggerSpec) -> Result<Option<EndpointId>, Failure> {
        let EventSource::Files { endpoint, .. } = &spec.source else {
            return Ok(None);
        };
        let wanted = endpoint.as_ref().or(spec.endpoint.as_ref());
        let id = self.endpoint_for(&maker.by, wanted.map(String::as_str))?;
        let owner = self.endpoints.get(&id).map(|endpoint| endpoint.record.tenant);
        let may = owner == Some(maker.by.tenant) || (owner == Some(NOBODY) && maker.operates);
        match may {
            true => Ok(Some(id)),
            false => Err(Failure::new(
                Code::Forbidden,
                format!(
                    "the endpoint `{}` sees files with its owner's rights, and is not yours; look for them at one of your own, by \
                     the source's `endpoint`",
                    self.endpoint_name(id)
                ),
            )),
        }
    }

    fn trigger_status(&self, trigger: &Trigger, owner: String) -> TriggerStatus {
        let watcher = trigger.record.watched_at.filter(|_| trigger.is_active(now_ms()));
        let away = watcher.filter(|endpoint| !self.is_up(*endpoint)).map(|endpoint| {
            let name = self.endpoint_name(endpoint);
            let text = format!("the endpoint `{name}`, which looks for its files, is not connected; start it");
            Failure::new(Code::Unreachable, text)
        });
        let watched_at = trigger.record.watched_at.map(|endpoint| self.endpoint_name(endpoint));
        trigger.status(owner, watched_at, away)
    }
}

/// Checks how long the name and the description of a trigger are.
///
/// # Errors
/// `InvalidRequest` or `PayloadTooLarge`.
pub fn check_trigger_lengths(given: &TriggerRegistration) -> Result<(), Failure> {
    plainly_named("a trigger", &given.name, MAX_NAME_BYTES)?;
    let bytes = serde_json::to_vec(&given.spec).map_or(usize::MAX, |json| json.len());
    if bytes > MAX_SPEC_BYTES {
        let text = format!(
            "a trigger of {bytes} bytes; {MAX_SPEC_BYTES} are allowed: name large arguments, and have the function read them"
        );
        return Err(Failure::new(Code::PayloadTooLarge, text));
    }
    Ok(())
}

impl Tasks {
    /// Makes a trigger, or changes one; answers its token, too.
    pub async fn set_trigger(
        self: &Arc<Self>,
        maker: TriggerAuthor,
        given: TriggerRegistration,
    ) -> Result<(String, TriggerStatus), Failure> {
        let now_ms = now_ms();
        check_trigger_lengths(&given)?;
        let left_ms = maker.expires_at_ms.saturating_sub(now_ms);
        if given.valid_for_ms > left_ms {
            let text = format!(
                "a trigger cannot outlive the token that it is made with, which has {} s left; ask for less, or use another token",
                left_ms / 1000
            );
            return Err(Failure::new(Code::Forbidden, text));
        }
        let (watched_at, done_until_ms) = {
            let state = self.state();
            state.function_for(&maker.by, given.spec.function)?;
            state.endpoint_for(&maker.by, given.spec.endpoint.as_deref())?;
            for step in &given.spec.then {
                state.function_for(&maker.by, step.function)?;
                state.endpoint_for(&maker.by, step.endpoint.as_deref())?;
            }
            check_source(&given.spec.source, now_ms)?;
            given.spec.flow(Value::Null).arguments()?;
            let all = state.triggers.all.values();
            let others = all.filter(|one| one.record.tenant == maker.by.tenant && one.record.name != given.name);
            if others.count() >= MAX_TRIGGERS {
                let text = format!("you have {MAX_TRIGGERS} triggers already; remove some");
                return Err(Failure::new(Code::QuotaExceeded, text));
            }
            // Those of another place are counted from now on.
            let same = state.triggers.find(maker.by.tenant, &given.name);
            let same = same.filter(|same| given.spec.source.is_files() && same.record.spec.source == given.spec.source);
            let done_until_ms = same.map_or(now_ms, |same| same.record.done_until_ms);
            (state.watched_at(&maker, &given.spec)?, done_until_ms)
        };
        self.suits(&maker.by, given.spec.function, given.spec.endpoint.as_deref())
            .await?;
        let token = hex::encode(random::<32>());
        let record = TriggerRecord {
            id: TriggerId(random()),
            tenant: maker.by.tenant,
            name: given.name,
            spec: given.spec,
            watched_at,
            token: hash(&token),
            created_at_ms: now_ms,
            expires_at_ms: match given.valid_for_ms {
                0 => maker.expires_at_ms,
                length => now_ms + length,
            },
            done_until_ms,
            started: 0,
            refused: 0,
        };
        let status = self.keep_trigger(record).await?;
        Ok((token, status))
    }

    async fn keep_trigger(self: &Arc<Self>, record: TriggerRecord) -> Result<TriggerStatus, Failure> {
        let tasks = Arc::clone(self);
        to_its_end(async move {
            let changing = Arc::clone(&tasks.state().triggers.changing);
            let _changing = changing.lock().await;
            tasks.keep_this(record).await
        })
        .await
    }

    /// The same, where nobody else changes triggers.
    async fn keep_this(&self, record: TriggerRecord) -> Result<TriggerStatus, Failure> {
        let kept = self.store.trigger(record).wait().await?;
        let owner = self.tenants.name(kept.tenant);
        let mut state = self.state();
        let new = Trigger::new(kept, 0);
        let (id, now) = (new.record.id, new.record.watched_at);
        let mut before = None;
        match state.triggers.all.get_mut(&id) {
            None => drop(state.triggers.all.insert(id, new)),
            Some(known) => {
                before = known.record.watched_at.filter(|before| Some(*before) != now);
                known.record = new.record;
                (known.timer, known.next_at_ms) = (new.timer, new.next_at_ms);
                (known.unseen, known.unstarted) = (new.unseen, None);
            }
        }
        for endpoint in [before, now].into_iter().flatten() {
            state.tell_watches(endpoint);
        }
        state.triggers.wake.notify_one();
        let trigger = state.triggers.all.get(&id).ok_or_else(gone)?;
        Ok(state.trigger_status(trigger, owner))
    }

    /// Triggers of a tenant's, by name.
    pub fn triggers(&self, tenant: TenantId) -> Vec<TriggerStatus> {
        let owner = self.tenants.name(tenant);
        let state = self.state();
        let own = state.triggers.all.values().filter(|one| one.record.tenant == tenant);
        let mut shown: Vec<_> = own.map(|one| state.trigger_status(one, owner.clone())).collect();
        shown.sort_by(|a, b| a.name.cmp(&b.name));
        shown
    }

    /// One of them, by its name or its id.
    pub fn trigger(&self, tenant: TenantId, wanted: &str) -> Result<TriggerStatus, Failure> {
        let owner = self.tenants.name(tenant);
        let state = self.state();
        let found = state.triggers.find(tenant, wanted);
        found.map(|found| state.trigger_status(found, owner)).ok_or_else(|| {
            let text = format!("you have no trigger `{wanted:.80}`; `dayfly trigger list` shows those there are");
            Failure::new(Code::NotFound, text)
        })
    }

    /// The trigger whose token this is.
    pub fn trigger_of(&self, token: &str) -> Option<TriggerId> {
        let hash = hash(token);
        let state = self.state();
        let found = state.triggers.all.values().find(|trigger| trigger.record.token == hash);
        found.map(|trigger| trigger.record.id)
    }

    /// Stops one for a while, or has it go on: times that pass meanwhile do not count, files that arrive do.
    pub async fn pause_trigger(self: &Arc<Self>, id: TriggerId, paused: bool) -> Result<TriggerStatus, Failure> {
        let tasks = Arc::clone(self);
        to_its_end(async move {
            let changing = Arc::clone(&tasks.state().triggers.changing);
            let _changing = changing.lock().await;
            let record = tasks
                .state()
                .triggers
                .all
                .get(&id)
                .map(|trigger| trigger.record.clone());
            let mut record = record.ok_or_else(gone)?;
            record.spec.paused = paused;
            if matches!(record.spec.source, EventSource::Timer { .. }) {
                record.done_until_ms = now_ms();
            }
            tasks.keep_this(record).await
        })
        .await
    }

    /// Forgets one, and its history. What it started goes on.
    pub async fn remove_trigger(self: &Arc<Self>, id: TriggerId) -> Result<(), Failure> {
        let tasks = Arc::clone(self);
        to_its_end(async move {
            let changing = Arc::clone(&tasks.state().triggers.changing);
            let _changing = changing.lock().await;
            tasks.store.remove_trigger(id).wait().await?;
            let mut state = tasks.state();
            let removed = state.triggers.all.remove(&id);
            if let Some(endpoint) = removed.and_then(|trigger| trigger.record.watched_at) {
                state.tell_watches(endpoint);
            }
            Ok(())
        })
        .await
    }

    /// Its history, the latest first, from before this number.
    pub async fn history(&self, id: TriggerId, before: u64, limit: u32) -> Result<Vec<EventStatus>, Failure> {
        let record = self.state().triggers.all.get(&id).map(|trigger| trigger.record.clone());
        let record = record.ok_or_else(gone)?;
        let events = self.store.events(id, before, limit).wait().await?;
        let mut shown = Vec::with_capacity(events.len());
        for event in events {
            // What was changed since may have made one of the other kind.
            let task = task_of(id, event.number, event.event.at_ms);
            let flow = flow_of(id, event.number, event.event.at_ms);
            let status = self.status(task).await?.map(|(_, status)| (status.state, status.error));
            let flowing = match status.is_none() && !record.spec.then.is_empty() {
                true => self.store.flow(flow).wait().await?.map(|flow| (flow.state, flow.error)),
                false => None,
            };
            let is_flow = flowing.is_some();
            let (task_state, error) = match (status, flowing) {
                (Some((state, error)), _) => (Some(state), error),
                (None, Some((state, error))) if state.is_over() => (Some(TaskState::Done), error),
                (None, Some((_, error))) => (Some(TaskState::Running), error),
                (None, None) => (None, None),
            };
            shown.push(EventStatus {
                number: event.number,
                event: argument(&record, &event),
                key: event.event.key,
                at_ms: event.event.at_ms,
                state: event.state,
                task: (!is_flow).then_some(task),
                flow: is_flow.then_some(flow),
                task_state,
                error: event.error.or(error),
            });
        }
        Ok(shown)
    }
}
