//! What tasks there are, and how many.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::id_pattern::{IdPattern, MAX_CANDIDATES, MIN_DIGITS};
use dayfly_protocol::ids::{EndpointId, TaskId, TenantId};
use dayfly_protocol::tasks::{TaskCounts, TaskState, TaskStatus, TaskTimes};
use dayfly_store::system::since_boot_ms;
use dayfly_store::tasks::{LOOK, Like, TaskQuery, TaskRecord};

use crate::function_names::name_of;
use crate::live_task::{LiveTask, Stage};
use crate::state::State;
use crate::{Tasks, Tenants};

/// Stored tasks that are looked at for the end of an id, the latest first; there is no index of ends.
const MAX_LOOKED_AT: u32 = 20 * LOOK;
/// Bytes of [`MIN_DIGITS`].
const END_BYTES: usize = MIN_DIGITS / 2;

impl Tasks {
    /// Whose task it is, wherever it is in its life.
    pub async fn status(&self, id: TaskId) -> Result<Option<(TenantId, TaskStatus)>, Failure> {
        if let Some(found) = self.state().shown_live(id, &*self.tenants) {
            return Ok(Some(found));
        }
        let record = self.store.task(id).wait().await?;
        Ok(record.map(|record| (record.spec.tenant, self.state().shown(&record, &*self.tenants))))
    }

    /// Whose task it is that an endpoint has: it may read what is long of it, and keep the answer. It knows no hashes but those
    /// that it was sent, and of what it has itself.
    pub fn held(&self, endpoint: EndpointId, id: TaskId) -> Result<TenantId, Failure> {
        let state = self.state();
        let held = state
            .live
            .get(&id)
            .filter(|live| live.endpoint == endpoint && live.is_out());
        held.map(|live| live.tenant).ok_or_else(|| {
            let text = format!("this endpoint does not have the task {id}, or not any more");
            Failure::new(Code::NotFound, text)
        })
    }

    /// The id that is given whole or by its beginning or end: of this tenant's tasks, or of everybody's. A beginning is found by the
    /// index of ids; an end among those that have not ended and the latest `MAX_LOOKED_AT` others.
    pub async fn resolve(&self, given: &IdPattern, tenant: Option<TenantId>) -> Result<TaskId, Failure> {
        if let Some(whole) = given.full_id() {
            return Ok(whole);
        }
        // The store finds beginnings of these, too.
        let mut found = self.state().live_ending(given, tenant);
        let (low, high) = given.range();
        // Those that begin so come first.
        for (is_beginning, from, before) in [(true, low, high), (false, [0; 16], [0xff; 16])] {
            let mut like = Like {
                tenant,
                digits: given.digits().into(),
                from: TaskId(from),
                before: TaskId(before),
            };
            let mut next = None;
            for _ in 0..MAX_LOOKED_AT / LOOK {
                let more;
                (more, next) = self.store.like(like.clone()).wait().await?;
                found.extend(more);
                match next.filter(|_| found.len() <= MAX_CANDIDATES) {
                    Some(next) => like.before = next,
                    None => break,
                }
            }
            if is_beginning && next.is_some() && found.len() <= MAX_CANDIDATES {
                let text = format!("more than {MAX_LOOKED_AT} tasks begin with {given}; give more digits");
                return Err(Failure::new(Code::Ambiguous, text));
            }
        }
        given.resolve(found, "task")
    }

    /// Tasks, the latest first; where a state is given in which tasks have not ended, those that are in it.
    pub async fn list(&self, query: TaskQuery, live: Option<TaskState>) -> Result<Vec<TaskStatus>, Failure> {
        if let Some(wanted) = live {
            let state = self.state();
            let found = state.latest(&query, wanted);
            return Ok(found
                .into_iter()
                .filter_map(|id| Some(state.shown_live(id, &*self.tenants)?.1))
                .collect());
        }
        let (mut query, mut found) = (query, Vec::new());
        loop {
            let page = self.store.tasks(query.clone()).wait().await?;
            query.limit -= u32::try_from(page.tasks.len()).unwrap_or(query.limit).min(query.limit);
            let state = self.state();
            found.extend(page.tasks.iter().map(|record| state.shown(record, &*self.tenants)));
            match page.next {
                Some(next) => query.before = Some(next),
                None => return Ok(found),
            }
        }
    }

    /// How many tasks of a tenant are where.
    pub fn counts(&self, tenant: TenantId) -> TaskCounts {
        let state = self.state();
        let mut counts = state.ended.get(&tenant).cloned().unwrap_or_default();
        for live in state.live.values().filter(|live| tenant == live.tenant) {
            counts.count(live.state());
        }
        counts
    }

    /// How many tasks of a tenant's tag are where, and for how long they have been in each state.
    pub async fn counts_of(&self, tenant: TenantId, tag: &str) -> Result<TaskCounts, Failure> {
        // All with greater numbers are live still.
        let (mut counts, up_to) = {
            let state = self.state();
            let since_boot_ms = since_boot_ms();
            let mut counts = TaskCounts::default();
            let of_tag = |live: &&LiveTask| live.tenant == tenant && live.tag.name() == tag;
            for live in state.live.values().filter(of_tag) {
                counts.count(live.state());
                counts.times.add(live.times(live.time_ms(since_boot_ms)));
            }
            (counts, state.published)
        };
        let mut after = 0;
        loop {
            let (ended, next) = self.store.tally(tenant, tag.into(), after, up_to).wait().await?;
            counts.done += ended.done;
            counts.failed += ended.failed;
            counts.times.add(ended.times);
            match next {
                Some(next) => after = next,
                None => return Ok(counts),
            }
        }
    }

    /// How many tasks of all tenants are where.
    pub fn counts_of_all(&self) -> TaskCounts {
        let state = self.state();
        let mut counts = TaskCounts::default();
        for ended in state.ended.values() {
            counts.done += ended.done;
            counts.failed += ended.failed;
            counts.times.add(ended.times);
        }
        for live in state.live.values() {
            counts.count(live.state());
        }
        counts
    }
}

/// The digits by which an id's end is found: no fewer are given.
pub fn end_of(id: TaskId) -> [u8; END_BYTES] {
    let mut end = [0; END_BYTES];
    end.copy_from_slice(&id.0[id.0.len() - END_BYTES..]);
    end
}

impl State {
    pub(super) fn shown_live(&self, id: TaskId, tenants: &dyn Tenants) -> Option<(TenantId, TaskStatus)> {
        let live = self.live.get(&id)?;
        let status = TaskStatus {
            id,
            owner: tenants.name(live.tenant),
            function: live.function.id,
            name: name_of(&live.function),
            endpoint: self.endpoint_name(live.endpoint),
            tag: live.tag.name().into(),
            state: live.state(),
            error: None,
            building: match live.place {
                Stage::Building => live.building.as_deref().map(Into::into),
                _ => None,
            },
            attempts: live.tries.attempts,
            priority: live.priority,
            submitted_at_ms: live.submitted_at_ms,
            waiting_at_ms: live.waiting_at_ms,
            environment_at_ms: live.environment_at_ms,
            started_at_ms: live.started_at_ms,
            ended_at_ms: 0,
            raw: !live.function.spec.form.speaks_json(),
        };
        Some((live.tenant, status))
    }

    pub(super) fn shown(&self, record: &TaskRecord, tenants: &dyn Tenants) -> TaskStatus {
        if let (None, Some((_, status))) = (&record.ended, self.shown_live(record.spec.id, tenants)) {
            return status;
        }
        TaskStatus {
            id: record.spec.id,
            owner: tenants.name(record.spec.tenant),
            function: record.spec.function,
            name: self.function_name(record.spec.function),
            endpoint: self.endpoint_name(record.spec.endpoint),
            tag: record.spec.tag.clone(),
            state: if record.ended.is_some() {
                TaskState::Done
            } else {
                TaskState::Queued
            },
            error: record.ended.as_ref().and_then(|(_, error)| error.clone()),
            building: None,
            attempts: record.tries.attempts,
            priority: record.spec.priority,
            submitted_at_ms: record.spec.submitted_at_ms,
            waiting_at_ms: record.waiting_at_ms,
            environment_at_ms: record.environment_at_ms,
            started_at_ms: record.started_at_ms,
            ended_at_ms: record.ended_at_ms,
            raw: self
                .functions
                .get(&record.spec.function)
                .is_some_and(|function| !function.spec.form.speaks_json()),
        }
    }

    /// Tasks that have not ended and whose ids end so: of this tenant, or of everybody.
    fn live_ending(&self, given: &IdPattern, tenant: Option<TenantId>) -> Vec<TaskId> {
        let digits = given.digits();
        let last = &digits[digits.len().saturating_sub(MIN_DIGITS)..];
        let Ok(end) = hex::decode(last).map(<[u8; END_BYTES]>::try_from) else {
            return Vec::new();
        };
        let Ok(end) = end else { return Vec::new() };
        let alike = self.live_ends.range((end, TaskId([0; 16]))..=(end, TaskId([0xff; 16])));
        let is_visible = |id: &TaskId| match tenant {
            Some(tenant) => self.live.get(id).is_some_and(|live| live.tenant == tenant),
            None => true,
        };
        alike
            .map(|(_, id)| *id)
            .filter(|id| given.matches(&id.0) && is_visible(id))
            .collect()
    }

    /// The latest tasks that are in a state in which tasks have not ended.
    fn latest(&self, query: &TaskQuery, wanted: TaskState) -> Vec<TaskId> {
        let fits = |id: &TaskId, live: &LiveTask| {
            live.state() == wanted
                && live.place != Stage::Accepting
                && query.tenant.is_none_or(|tenant| live.tenant == tenant)
                && query.before.is_none_or(|before| *id < before)
                && query.endpoint.is_none_or(|endpoint| live.endpoint == endpoint)
                && query.tag.as_deref().is_none_or(|tag| live.tag.name() == tag)
                && query
                    .functions
                    .as_ref()
                    .is_none_or(|functions| functions.contains(&live.function.id))
        };
        let mut latest = BinaryHeap::new();
        for (id, _) in self.live.iter().filter(|(id, live)| fits(id, live)) {
            if latest.len() < query.limit as usize {
                latest.push(Reverse(*id));
            } else if let Some(mut earliest) = latest.peek_mut()
                && earliest.0 < *id
            {
                *earliest = Reverse(*id);
            }
        }
        latest.into_sorted_vec().into_iter().map(|Reverse(id)| id).collect()
    }
}

impl LiveTask {
    /// How long it was in each state, if that is what time it is.
    fn times(&self, now_ms: u64) -> TaskTimes {
        let marks = [
            self.submitted_at_ms,
            self.waiting_at_ms,
            self.environment_at_ms,
            self.started_at_ms,
        ];
        TaskTimes::between(marks, now_ms)
    }
}
