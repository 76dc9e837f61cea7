//! Outcomes under one tag, as they come, and who waits for them.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dayfly_protocol::error::Failure;
use dayfly_protocol::ids::{TaskId, TenantId};
use dayfly_protocol::tasks::{Outcomes, TaskOutcome};
use dayfly_store::tasks::PAGE_BYTES;
use tokio::sync::Notify;

use crate::Tasks;

/// Outcomes of one tag that are kept in memory, for those who ask soon: so many bytes, and so many of them.
const RECENT_BYTES: usize = 8 << 20;
const RECENT: usize = 16_384;
/// A tag that nobody has asked for so long is forgotten.
const FRESH: Duration = Duration::from_secs(60);
/// What one outcome takes beside its answer, roughly.
const EACH_BYTES: usize = 128;

/// Outcomes under one tag of one tenant.
pub struct Tag {
    name: Arc<str>,
    recent: Mutex<Recent>,
    changed: Notify,
}

struct Recent {
    outcomes: VecDeque<TaskOutcome>,
    bytes: usize,
    /// All outcomes of the tag with greater numbers are in `outcomes`.
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

    pub fn is_fresh(&self) -> bool {
        self.recent().used.elapsed() < FRESH
    }

    /// An outcome that is written down.
    pub fn add(&self, outcome: TaskOutcome) {
        let mut recent = self.recent();
        recent.bytes += outcome.answer.len() + EACH_BYTES;
        recent.outcomes.push_back(outcome);
        while recent.bytes > RECENT_BYTES || recent.outcomes.len() > RECENT {
            let Some(oldest) = recent.outcomes.pop_front() else {
                break;
            };
            recent.bytes -= oldest.answer.len() + EACH_BYTES;
            recent.complete_after = oldest.number;
        }
    }

    /// Some that are not in the books any more.
    pub fn forget(&self, tasks: &HashSet<TaskId>) {
        let mut recent = self.recent();
        let Recent { outcomes, bytes, .. } = &mut *recent;
        outcomes.retain(|outcome| {
            let stays = !tasks.contains(&outcome.id);
            *bytes -= if stays { 0 } else { outcome.answer.len() + EACH_BYTES };
            stays
        });
    }

    /// Wakes those who wait, once all that is to be added was.
    pub fn tell(&self) {
        self.changed.notify_waiters();
    }
}

/// What a look at the recent outcomes gives.
enum Look {
    Found(Vec<TaskOutcome>),
    /// Older ones may be in the store, up to this number.
    Older(u64),
}

impl Recent {
    fn look(&mut self, after: u64, limit: usize) -> Look {
        self.used = Instant::now();
        if after < self.complete_after {
            return Look::Older(self.complete_after);
        }
        let from = self.outcomes.partition_point(|outcome| outcome.number <= after);
        let mut bytes = 0;
        let fits = |outcome: &&TaskOutcome| {
            let first = bytes == 0;
            bytes += outcome.answer.len() + EACH_BYTES;
            first || bytes <= PAGE_BYTES
        };
        Look::Found(
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
    /// Outcomes of a tag with numbers above `after`: as soon as there are some, or none when the wait is over.
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
            // Before the look, so that nothing that comes after it is missed.
            let changed = tag.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            let look = tag.recent().look(after, limit as usize);
            let found = match look {
                Look::Found(found) => found,
                Look::Older(up_to) => {
                    let found = self.store.outcomes(tenant, tag.name().into(), after, limit);
                    let found = found.wait().await?;
                    // What the store has and is not told yet may have a gap before it.
                    let published = self.state().published;
                    let found: Vec<_> = found
                        .into_iter()
                        .filter(|outcome| outcome.number <= published)
                        .map(|outcome| self.with_makers(outcome))
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

    /// The outcome of one task, as soon as it has one; none when the wait is over, or there is no such task of this tenant's.
    pub async fn outcome(&self, id: TaskId, wait: Duration) -> Result<Option<TaskOutcome>, Failure> {
        let until = tokio::time::Instant::now() + wait;
        loop {
            let tag = self.state().live.get(&id).map(|live| Arc::clone(&live.tag));
            let Some(tag) = tag else {
                let found = self.store.outcome(id).wait().await?;
                return Ok(found.map(|outcome| self.with_makers(outcome)));
            };
            let changed = tag.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            if !self.state().live.contains_key(&id) {
                continue;
            }
            if tokio::time::timeout_at(until, changed).await.is_err() {
                return Ok(None);
            }
        }
    }
}
