//! Management: registration, changes, removal and status of triggers.
//!
//! Adds to `State` the checks and the status that need triggers and endpoints.

use std::sync::Arc;

use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{EndpointId, TenantId, TriggerId};
use dayfly_protocol::tasks::{MAX_NAME_BYTES, TaskState};
use dayfly_protocol::triggers::{
    EventSource, EventStatus, MAX_SPEC_BYTES, MAX_TRIGGERS, TriggerRegistration, TriggerSpec, TriggerStatus,
};
use dayfly_scheduling::Timer;
use dayfly_store::hash;
use dayfly_store::system::{now_ms, random};
use dayfly_store::triggers::TriggerRecord;
use serde_json::Value;

use super::submission::argument;
use super::trigger::Trigger;
use super::{files, flow_of, task_of, trigger_is_gone};

use crate::Tasks;
use crate::detached::run_detached;
use crate::endpoints::NOBODY;
use crate::state::State;
use crate::submission::{Submitter, check_name};

/// The caller that registers a trigger.
#[derive(Debug, Clone)]
pub struct TriggerAuthor {
    /// Owner of the trigger's tasks.
    pub by: Submitter,
    /// Whether it may watch files of the manager's own site.
    pub is_operator: bool,
    /// Expiry of the caller's token, which the trigger cannot outlive. Milliseconds since the Unix epoch.
    pub expires_at_ms: u64,
}

fn check_source(source: &EventSource, now_ms: u64) -> Result<(), Failure> {
    match source {
        EventSource::Timer { cron, zone, .. } => Timer::parse(cron, zone, now_ms).map(drop),
        EventSource::Webhook {} => Ok(()),
        EventSource::Files { .. } => files::check(source),
    }
}

impl State {
    /// The endpoint that watches for a trigger's files. It sees all that its owner's account sees, so it must be the
    /// author's own.
    fn watched_at(&self, author: &TriggerAuthor, spec: &TriggerSpec) -> Result<Option<EndpointId>, Failure> {
        let EventSource::Files { endpoint, .. } = &spec.source else {
            return Ok(None);
        };
        let wanted = endpoint.as_ref().or(spec.endpoint.as_ref());
        let id = self.endpoints.find_for(&author.by, wanted.map(String::as_str))?;
        let owner = self.endpoints.get(id).map(|endpoint| endpoint.record().tenant);
        let may = owner == Some(author.by.tenant) || (owner == Some(NOBODY) && author.is_operator);
        match may {
            true => Ok(Some(id)),
            false => Err(Failure::new(
                Code::Forbidden,
                format!(
                    "the endpoint `{}` is not yours, and watches files with its owner's rights; name one of your own \
                     in the source's `endpoint`",
                    self.endpoints.name(id)
                ),
            )),
        }
    }

    fn trigger_status(&self, trigger: &Trigger, owner: String) -> TriggerStatus {
        let watcher = trigger.record().watched_at.filter(|_| trigger.is_active(now_ms()));
        let away = watcher
            .filter(|endpoint| !self.endpoints.is_up(*endpoint))
            .map(|endpoint| {
                let name = self.endpoints.name(endpoint);
                let text = format!("the endpoint `{name}`, which watches for its files, is not connected; start it");
                Failure::new(Code::Unreachable, text)
            });
        let watched_at = trigger
            .record()
            .watched_at
            .map(|endpoint| self.endpoints.name(endpoint));
        trigger.status(owner, watched_at, away)
    }
}

/// Checks how long the name and the description of a trigger are.
///
/// # Errors
/// `InvalidRequest` or `PayloadTooLarge`.
pub fn check_trigger_lengths(given: &TriggerRegistration) -> Result<(), Failure> {
    check_name("a trigger", &given.name, MAX_NAME_BYTES)?;
    let bytes = serde_json::to_vec(&given.spec).map_or(usize::MAX, |json| json.len());
    if bytes > MAX_SPEC_BYTES {
        let text = format!(
            "a trigger of {bytes} bytes; {MAX_SPEC_BYTES} are allowed: name large arguments, and have the function \
             read them"
        );
        return Err(Failure::new(Code::PayloadTooLarge, text));
    }
    Ok(())
}

impl Tasks {
    /// Registers a trigger, or changes the tenant's trigger of this name. Returns its new token and its status.
    ///
    /// # Errors
    /// `InvalidRequest`, `NotFound` for a function or endpoint, `Forbidden`, `QuotaExceeded`, and those of the store.
    pub async fn set_trigger(
        self: &Arc<Self>,
        author: TriggerAuthor,
        given: TriggerRegistration,
    ) -> Result<(String, TriggerStatus), Failure> {
        let now_ms = now_ms();
        check_trigger_lengths(&given)?;
        let left_ms = author.expires_at_ms.saturating_sub(now_ms);
        if given.valid_for_ms > left_ms {
            let text = format!(
                "a trigger cannot outlive the token that registers it, which expires in {} s; ask for less, or use \
                 another token",
                left_ms / 1000
            );
            return Err(Failure::new(Code::Forbidden, text));
        }
        let (watched_at, done_until_ms) = {
            let state = self.state();
            state.functions.find_for(&author.by, given.spec.function)?;
            state.endpoints.find_for(&author.by, given.spec.endpoint.as_deref())?;
            for step in &given.spec.then {
                state.functions.find_for(&author.by, step.function)?;
                state.endpoints.find_for(&author.by, step.endpoint.as_deref())?;
            }
            check_source(&given.spec.source, now_ms)?;
            given.spec.flow(Value::Null).arguments()?;
            let own = state.triggers.of(author.by.tenant);
            if own.filter(|one| one.record().name != given.name).count() >= MAX_TRIGGERS {
                let text = format!("you have {MAX_TRIGGERS} triggers already; remove some");
                return Err(Failure::new(Code::QuotaExceeded, text));
            }
            // Files of another place count from now on.
            let same = state.triggers.find(author.by.tenant, &given.name);
            let same =
                same.filter(|same| given.spec.source.is_files() && same.record().spec.source == given.spec.source);
            let done_until_ms = same.map_or(now_ms, |same| same.record().done_until_ms);
            (state.watched_at(&author, &given.spec)?, done_until_ms)
        };
        self.check_compatibility(&author.by, given.spec.function, given.spec.endpoint.as_deref())
            .await?;
        let token = hex::encode(random::<32>());
        let record = TriggerRecord {
            id: TriggerId(random()),
            tenant: author.by.tenant,
            name: given.name,
            spec: given.spec,
            watched_at,
            token: hash(&token),
            created_at_ms: now_ms,
            expires_at_ms: match given.valid_for_ms {
                0 => author.expires_at_ms,
                length => now_ms + length,
            },
            done_until_ms,
            started: 0,
            refused: 0,
        };
        let status = self.write_trigger(record).await?;
        Ok((token, status))
    }

    async fn write_trigger(self: &Arc<Self>, record: TriggerRecord) -> Result<TriggerStatus, Failure> {
        let tasks = Arc::clone(self);
        run_detached(async move {
            let changing = tasks.state().triggers.change_lock();
            let _changing = changing.lock().await;
            tasks.write_locked(record).await
        })
        .await
    }

    /// Writes a trigger. The caller holds the lock for changes.
    async fn write_locked(&self, record: TriggerRecord) -> Result<TriggerStatus, Failure> {
        let kept = self.store.trigger(record).wait().await?;
        let owner = self.tenants.name(kept.tenant);
        let mut state = self.state();
        let (id, now) = (kept.id, kept.watched_at);
        let before = state.triggers.set_record(kept);
        let before = before.filter(|before| Some(*before) != now);
        for endpoint in [before, now].into_iter().flatten() {
            state.send_watches(endpoint);
        }
        state.triggers.wake();
        let trigger = state.triggers.get(id).ok_or_else(trigger_is_gone)?;
        Ok(state.trigger_status(trigger, owner))
    }

    /// A tenant's triggers, sorted by name.
    pub fn triggers(&self, tenant: TenantId) -> Vec<TriggerStatus> {
        let owner = self.tenants.name(tenant);
        let state = self.state();
        let own = state.triggers.of(tenant);
        let mut shown: Vec<_> = own.map(|one| state.trigger_status(one, owner.clone())).collect();
        shown.sort_by(|a, b| a.name.cmp(&b.name));
        shown
    }

    /// A tenant's trigger with this name or id.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn trigger(&self, tenant: TenantId, wanted: &str) -> Result<TriggerStatus, Failure> {
        let owner = self.tenants.name(tenant);
        let state = self.state();
        let found = state.triggers.find(tenant, wanted);
        found.map(|found| state.trigger_status(found, owner)).ok_or_else(|| {
            let text = format!("you have no trigger `{wanted:.80}`; `dayfly trigger list` shows the others");
            Failure::new(Code::NotFound, text)
        })
    }

    /// The trigger with this token.
    pub fn trigger_with_token(&self, token: &str) -> Option<TriggerId> {
        let hash = hash(token);
        let state = self.state();
        let found = state.triggers.values().find(|trigger| trigger.record().token == hash);
        found.map(|trigger| trigger.record().id)
    }

    /// Pauses or resumes a trigger. Files that arrive in a pause count, times that pass do not.
    ///
    /// # Errors
    /// `NotFound`, and those of the store.
    pub async fn pause_trigger(self: &Arc<Self>, id: TriggerId, paused: bool) -> Result<TriggerStatus, Failure> {
        let tasks = Arc::clone(self);
        run_detached(async move {
            let changing = tasks.state().triggers.change_lock();
            let _changing = changing.lock().await;
            let mut record = tasks.trigger_record(id)?;
            record.spec.paused = paused;
            if matches!(record.spec.source, EventSource::Timer { .. }) {
                record.done_until_ms = now_ms();
            }
            tasks.write_locked(record).await
        })
        .await
    }

    /// Removes a trigger and its history. Its tasks and flows continue.
    pub async fn remove_trigger(self: &Arc<Self>, id: TriggerId) -> Result<(), Failure> {
        let tasks = Arc::clone(self);
        run_detached(async move {
            let changing = tasks.state().triggers.change_lock();
            let _changing = changing.lock().await;
            tasks.store.remove_trigger(id).wait().await?;
            let mut state = tasks.state();
            let removed = state.triggers.remove(id);
            if let Some(endpoint) = removed.and_then(|trigger| trigger.record().watched_at) {
                state.send_watches(endpoint);
            }
            Ok(())
        })
        .await
    }

    /// A trigger's events with numbers below `before`, the latest first.
    ///
    /// # Errors
    /// `NotFound`, and those of the store.
    pub async fn trigger_history(&self, id: TriggerId, before: u64, limit: u32) -> Result<Vec<EventStatus>, Failure> {
        let record = self.trigger_record(id)?;
        let events = self.store.events(id, before, limit).wait().await?;
        let mut shown = Vec::with_capacity(events.len());
        for event in events {
            // Before a change of the trigger, the event may have become a task instead of a flow, or the reverse.
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
