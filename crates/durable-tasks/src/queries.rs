//! Queries: the status of tasks, lists of them, and counts.
//!
//! Adds to `State` the status of a task, which needs the names of its function and its endpoint.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::id_pattern::{IdPattern, MAX_CANDIDATES};
use dayfly_protocol::ids::{EndpointId, TaskId, TenantId};
use dayfly_protocol::tasks::{TaskCounts, TaskState, TaskStatus};
use dayfly_store::system::since_boot_ms;
use dayfly_store::tasks::{IdQuery, LIST_STEP, TaskQuery, TaskRecord};

use crate::function_names::name_of;
use crate::live_tasks::{LiveTask, Stage};
use crate::state::State;
use crate::{Tasks, Tenants};

/// Number of stored tasks that are searched for the end of an id, the latest first. The store has no index of ends.
const MAX_SEARCHED: u32 = 20 * LIST_STEP;

impl Tasks {
    /// The owner and the status of a task.
    pub async fn status(&self, id: TaskId) -> Result<Option<(TenantId, TaskStatus)>, Failure> {
        if let Some(found) = self.state().live_status(id, &*self.tenants) {
            return Ok(Some(found));
        }
        let record = self.store.task(id).wait().await?;
        Ok(record.map(|record| (record.spec.tenant, self.state().status(&record, &*self.tenants))))
    }

    /// The owner of a task that an endpoint has. The endpoint may read the contents of its arguments, and store its
    /// result.
    ///
    /// # Errors
    /// `NotFound` if the endpoint does not have the task.
    pub fn owner_of_sent(&self, endpoint: EndpointId, id: TaskId) -> Result<TenantId, Failure> {
        let state = self.state();
        let sent = state
            .tasks
            .get(id)
            .filter(|live| live.endpoint() == endpoint && live.is_out());
        sent.map(|live| live.tenant()).ok_or_else(|| {
            let text = format!("this endpoint does not have the task {id}, or not any more");
            Failure::new(Code::NotFound, text)
        })
    }

    /// The id that is given whole, or by its beginning or end: among the tasks of a tenant, or of all. A beginning is
    /// found by the index of ids; an end among the unfinished tasks and the latest `MAX_SEARCHED` others.
    ///
    /// # Errors
    /// `NotFound`, or `Ambiguous` with the candidates.
    pub async fn resolve(&self, given: &IdPattern, tenant: Option<TenantId>) -> Result<TaskId, Failure> {
        if let Some(whole) = given.full_id() {
            return Ok(whole);
        }
        let is_visible = |live: &LiveTask| tenant.is_none_or(|tenant| live.tenant() == tenant);
        // The store finds the beginnings of these too.
        let mut found = self.state().tasks.ending_like(given, is_visible);
        let (low, high) = given.range();
        // Beginnings first, then ends.
        for (is_beginning, from, before) in [(true, low, high), (false, [0; 16], [0xff; 16])] {
            let mut like = IdQuery {
                tenant,
                digits: given.digits().into(),
                from: TaskId(from),
                before: TaskId(before),
            };
            let mut next = None;
            for _ in 0..MAX_SEARCHED / LIST_STEP {
                let more;
                (more, next) = self.store.find_ids(like.clone()).wait().await?;
                found.extend(more);
                match next.filter(|_| found.len() <= MAX_CANDIDATES) {
                    Some(next) => like.before = next,
                    None => break,
                }
            }
            if is_beginning && next.is_some() && found.len() <= MAX_CANDIDATES {
                let text = format!("more than {MAX_SEARCHED} tasks begin with {given}; give more digits");
                return Err(Failure::new(Code::Ambiguous, text));
            }
        }
        given.resolve(found, "task")
    }

    /// Tasks, the latest first: those in `live`, a state of unfinished tasks, or all. With `text`, only those that it
    /// fits.
    pub async fn list(
        &self,
        query: TaskQuery,
        live: Option<TaskState>,
        text: Option<&TextFilter>,
    ) -> Result<Vec<TaskStatus>, Failure> {
        let fits = |status: &TaskStatus| text.is_none_or(|text| text.fits(status));
        let most = query.limit as usize;
        let (mut query, mut found) = (query, Vec::new());
        if let Some(wanted) = live {
            if text.is_some() {
                query.limit = u32::MAX;
            }
            let latest = self.state().latest_live(&query, wanted);
            for step in latest.chunks(LIST_STEP as usize) {
                // Not for all at once: everything else waits for the lock.
                let state = self.state();
                let statuses = step
                    .iter()
                    .filter_map(|id| Some(state.live_status(*id, &*self.tenants)?.1));
                found.extend(statuses.filter(|status| status.state == wanted && fits(status)));
                if found.len() >= most {
                    break;
                }
            }
            found.truncate(most);
            return Ok(found);
        }
        loop {
            if text.is_some() {
                query.limit = LIST_STEP;
            }
            let page = self.store.tasks(query.clone()).wait().await?;
            let listed = u32::try_from(page.tasks.len()).unwrap_or(query.limit);
            // A full page does not name the next one.
            let last = page.tasks.last().map(|record| record.spec.id);
            let next = page.next.or(last.filter(|_| text.is_some() && listed >= query.limit));
            query.limit = query.limit.saturating_sub(listed);
            let state = self.state();
            let statuses = page.tasks.iter().map(|record| state.status(record, &*self.tenants));
            found.extend(statuses.filter(fits));
            match next.filter(|_| found.len() < most) {
                Some(next) => query.before = Some(next),
                None => {
                    found.truncate(most);
                    return Ok(found);
                }
            }
        }
    }

    /// Number of a tenant's tasks by state. Counts ended tasks since the manager started.
    pub fn counts(&self, tenant: TenantId) -> TaskCounts {
        let state = self.state();
        let mut counts = state.outcomes.counts(tenant);
        for live in state.tasks.values().filter(|live| tenant == live.tenant()) {
            counts.count(live.state());
        }
        counts
    }

    /// Number of a tag's tasks by state, and how long they were in each state.
    pub async fn tag_counts(&self, tenant: TenantId, tag: &str) -> Result<TaskCounts, Failure> {
        // Tasks with greater numbers are still live.
        let (mut counts, up_to) = {
            let state = self.state();
            let since_boot_ms = since_boot_ms();
            let mut counts = TaskCounts::default();
            let of_tag = |live: &&LiveTask| live.tenant() == tenant && live.tag().name() == tag;
            for live in state.tasks.values().filter(of_tag) {
                counts.count(live.state());
                counts.times.add(live.times(live.time_ms(since_boot_ms)));
            }
            (counts, state.outcomes.published())
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

    /// Number of all tenants' tasks by state. Counts ended tasks since the manager started.
    pub fn total_counts(&self) -> TaskCounts {
        let state = self.state();
        let mut counts = state.outcomes.total();
        for live in state.tasks.values() {
            counts.count(live.state());
        }
        counts
    }
}

/// Selects tasks by a text in what a list shows of them.
pub struct TextFilter {
    /// In lower case.
    text: String,
    messages_of: Option<String>,
}

impl TextFilter {
    /// Returns a filter for tasks whose id, function, tag, endpoint or failure contains a text, in either case of
    /// letters. With `messages_of`, failures of other owners' tasks are not searched: the list does not show them.
    pub fn new(text: &str, messages_of: Option<String>) -> Self {
        Self {
            text: text.to_lowercase(),
            messages_of,
        }
    }

    fn fits(&self, status: &TaskStatus) -> bool {
        let is_in = |shown: &str| shown.to_lowercase().contains(&self.text);
        let is_shown = self.messages_of.as_ref().is_none_or(|owner| *owner == status.owner);
        let failure = status.error.as_ref();
        is_in(&status.name)
            || is_in(&status.tag)
            || is_in(&status.endpoint)
            || is_in(&status.id.to_string())
            || failure.is_some_and(|failure| is_in(failure.code.name()) || is_shown && is_in(&failure.message))
    }
}

impl State {
    fn live_status(&self, id: TaskId, tenants: &dyn Tenants) -> Option<(TenantId, TaskStatus)> {
        let live = self.tasks.get(id)?;
        let status = TaskStatus {
            id,
            owner: tenants.name(live.tenant()),
            function: live.function().id,
            name: name_of(live.function()),
            endpoint: self.endpoints.name(live.endpoint()),
            tag: live.tag().name().into(),
            state: live.state(),
            error: None,
            building: live.build_progress().map(Into::into),
            attempts: live.tries().attempts,
            priority: live.priority(),
            submitted_at_ms: live.submitted_at_ms(),
            waiting_at_ms: live.waiting_at_ms(),
            environment_at_ms: live.environment_at_ms(),
            started_at_ms: live.started_at_ms(),
            ended_at_ms: 0,
            raw: !live.function().spec.form.speaks_json(),
            argument_bytes: live.argument_bytes(),
        };
        Some((live.tenant(), status))
    }

    fn status(&self, record: &TaskRecord, tenants: &dyn Tenants) -> TaskStatus {
        if let (None, Some((_, status))) = (&record.ended, self.live_status(record.spec.id, tenants)) {
            return TaskStatus {
                argument_bytes: status.argument_bytes.or(record.argument_bytes),
                ..status
            };
        }
        TaskStatus {
            id: record.spec.id,
            owner: tenants.name(record.spec.tenant),
            function: record.spec.function,
            name: self.functions.name(record.spec.function),
            endpoint: self.endpoints.name(record.spec.endpoint),
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
                .get(record.spec.function)
                .is_some_and(|function| !function.spec.form.speaks_json()),
            argument_bytes: record.argument_bytes,
        }
    }

    /// The latest unfinished tasks in a state, the latest first.
    fn latest_live(&self, query: &TaskQuery, wanted: TaskState) -> Vec<TaskId> {
        let fits = |id: TaskId, live: &LiveTask| {
            live.state() == wanted
                && live.stage() != Stage::Accepting
                && query.tenant.is_none_or(|tenant| live.tenant() == tenant)
                && query.before.is_none_or(|before| id < before)
                && query.endpoint.is_none_or(|endpoint| live.endpoint() == endpoint)
                && query.tag.as_deref().is_none_or(|tag| live.tag().name() == tag)
                && query
                    .functions
                    .as_ref()
                    .is_none_or(|functions| functions.contains(&live.function().id))
        };
        let mut latest = BinaryHeap::new();
        for (id, _) in self.tasks.iter().filter(|(id, live)| fits(*id, live)) {
            if latest.len() < query.limit as usize {
                latest.push(Reverse(id));
            } else if let Some(mut earliest) = latest.peek_mut()
                && earliest.0 < id
            {
                *earliest = Reverse(id);
            }
        }
        latest.into_sorted_vec().into_iter().map(|Reverse(id)| id).collect()
    }
}
