//! Tags: the recent outcomes under each tag, and who waits for them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dayfly_protocol::error::Failure;
use dayfly_protocol::ids::{TaskId, TenantId};
use dayfly_protocol::tasks::{Outcomes, TaskOutcome};
use dayfly_store::tasks::PAGE_BYTES;
use tokio::sync::Notify;

use crate::Tasks;

/// Bytes and number of the outcomes of one tag that are kept in memory for clients that ask soon.
const MAX_RECENT_BYTES: usize = 8 << 20;
const MAX_RECENT: usize = 16_384;
/// A tag without a request for this time is dropped from memory.
const IDLE: Duration = Duration::from_secs(60);
/// Approximate size of one outcome without its result.
const OUTCOME_BYTES: usize = 128;

/// The tags of all tenants that are in use.
#[derive(Default)]
pub struct Tags {
    all: HashMap<TenantId, HashMap<Arc<str>, Arc<Tag>>>,
}

impl Tags {
    /// Returns a tenant's tag. Adds it if necessary: then all later outcomes, with numbers above `published`, are in
    /// memory.
    pub fn get_or_insert(&mut self, tenant: TenantId, name: &str, published: u64) -> Arc<Tag> {
        let tags = self.all.entry(tenant).or_default();
        if let Some(tag) = tags.get(name) {
            return Arc::clone(tag);
        }
        let tag = Arc::new(Tag::new(name, published));
        tags.insert(name.into(), Arc::clone(&tag));
        tag
    }

    pub fn get(&self, tenant: TenantId, name: &str) -> Option<&Arc<Tag>> {
        self.all.get(&tenant)?.get(name)
    }

    /// Drops tags that nobody uses.
    pub fn tidy(&mut self) {
        for tags in self.all.values_mut() {
            tags.retain(|_, tag| Arc::strong_count(tag) > 1 || !tag.is_idle());
        }
        self.all.retain(|_, tags| !tags.is_empty());
    }
}

/// The recent outcomes under one tag of one tenant.
pub struct Tag {
    name: Arc<str>,
    recent: Mutex<Recent>,
    changed: Notify,
}

struct Recent {
    outcomes: VecDeque<TaskOutcome>,
    bytes: usize,
    /// `outcomes` has all outcomes of the tag with greater numbers.
    complete_after: u64,
    used: Instant,
}

impl Tag {
    pub fn new(name: &str, complete_after: u64) -> Self {
        Self {
            name: name.into(),
            recent: Mutex::new(Recent {
                outcomes: VecDeque::new(),
                bytes: 0,
                complete_after,
                used: Instant::now(),
            }),
            changed: Notify::new(),
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_idle(&self) -> bool {
        self.recent().used.elapsed() >= IDLE
    }

    /// Adds an outcome that is written.
    pub fn add(&self, outcome: TaskOutcome) {
        let mut recent = self.recent();
        recent.bytes += outcome.answer.len() + OUTCOME_BYTES;
        recent.outcomes.push_back(outcome);
        while recent.bytes > MAX_RECENT_BYTES || recent.outcomes.len() > MAX_RECENT {
            let Some(oldest) = recent.outcomes.pop_front() else {
                break;
            };
            recent.bytes -= oldest.answer.len() + OUTCOME_BYTES;
            recent.complete_after = oldest.number;
        }
    }

    /// Removes the outcomes of deleted tasks.
    pub fn remove(&self, tasks: &HashSet<TaskId>) {
        let mut recent = self.recent();
        let Recent { outcomes, bytes, .. } = &mut *recent;
        outcomes.retain(|outcome| {
            let stays = !tasks.contains(&outcome.id);
            *bytes -= if stays { 0 } else { outcome.answer.len() + OUTCOME_BYTES };
            stays
        });
    }

    /// Wakes all waiters, after a batch of outcomes was added.
    pub fn notify(&self) {
        self.changed.notify_waiters();
    }
}

/// Result of a search in the recent outcomes.
enum Page {
    Found(Vec<TaskOutcome>),
    /// The store may have outcomes up to this number.
    InStore(u64),
}

impl Recent {
    fn page(&mut self, after: u64, limit: usize) -> Page {
        self.used = Instant::now();
        if after < self.complete_after {
            return Page::InStore(self.complete_after);
        }
        let from = self.outcomes.partition_point(|outcome| outcome.number <= after);
        let mut bytes = 0;
        let fits = |outcome: &&TaskOutcome| {
            let first = bytes == 0;
            bytes += outcome.answer.len() + OUTCOME_BYTES;
            first || bytes <= PAGE_BYTES
        };
        Page::Found(
            self.outcomes
                .range(from..)
                .take(limit)
                .take_while(fits)
                .cloned()
                .collect(),
        )
    }
}

impl Tasks {
    /// Returns outcomes of a tag with numbers above `after`: at most `limit`, and none after a wait of `wait`.
    pub async fn outcomes(
        &self,
        tenant: TenantId,
        tag: &str,
        mut after: u64,
        wait: Duration,
        limit: u32,
    ) -> Result<Outcomes, Failure> {
        let until = tokio::time::Instant::now() + wait;
        let tag = self.state().tag(tenant, tag);
        loop {
            // Enabled before the search, so that no later outcome is missed.
            let changed = tag.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            let page = tag.recent().page(after, limit as usize);
            let found = match page {
                Page::Found(found) => found,
                Page::InStore(up_to) => {
                    let found = self.store.outcomes(tenant, tag.name().into(), after, limit);
                    let found = found.wait().await?;
                    // There may be a gap before an outcome that is written and not yet published.
                    let published = self.state().outcomes.published();
                    let found: Vec<_> = found
                        .into_iter()
                        .filter(|outcome| outcome.number <= published)
                        .map(|outcome| self.with_foreign_makers(outcome))
                        .collect();
                    if found.is_empty() {
                        after = up_to;
                        continue;
                    }
                    found
                }
            };
            if let Some(last) = found.last() {
                let next = last.number;
                return Ok(Outcomes { outcomes: found, next });
            }
            if tokio::time::timeout_at(until, changed).await.is_err() {
                let outcomes = Vec::new();
                return Ok(Outcomes { outcomes, next: after });
            }
        }
    }

    /// Waits for the outcome of one task. Returns `None` after a wait of `wait`, and for an unknown task.
    pub async fn outcome(&self, id: TaskId, wait: Duration) -> Result<Option<TaskOutcome>, Failure> {
        let until = tokio::time::Instant::now() + wait;
        loop {
            let tag = self.state().tasks.get(id).map(|live| Arc::clone(live.tag()));
            let Some(tag) = tag else {
                let found = self.store.outcome(id).wait().await?;
                return Ok(found.map(|outcome| self.with_foreign_makers(outcome)));
            };
            let changed = tag.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            if !self.state().tasks.contains(id) {
                continue;
            }
            if tokio::time::timeout_at(until, changed).await.is_err() {
                return Ok(None);
            }
        }
    }
}
