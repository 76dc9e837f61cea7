//! Long arguments and answers, which go to a manager's content store and come from there by themselves.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dayfly_protocol::contents::Content;
use dayfly_protocol::ids::{ContentHash, TaskId};

use crate::Error;
use crate::manager::ManagerClient;

/// A manager keeps what nobody has for an hour; for a part of it, what was stored is not sent again.
const REMEMBERED: Duration = Duration::from_secs(600);
/// So many of them at most.
const MOST_REMEMBERED: usize = 10_000;

/// Says what bytes are called.
fn name_of(bytes: &[u8]) -> Content {
    Content {
        hash: ContentHash(*blake3::hash(bytes).as_bytes()),
        bytes: bytes.len() as u64,
    }
}

/// The content store of a manager, as a client sees it.
pub(crate) struct Contents {
    manager: Arc<ManagerClient>,
    stored: Mutex<HashMap<ContentHash, Instant>>,
}

impl Contents {
    pub fn new(manager: Arc<ManagerClient>) -> Self {
        Self {
            manager,
            stored: Mutex::default(),
        }
    }

    /// Has bytes stored, unless they were a moment ago.
    pub fn store(&self, bytes: &[u8]) -> Result<Content, Error> {
        let content = name_of(bytes);
        let now = Instant::now();
        {
            let mut stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner);
            if stored.get(&content.hash).is_some_and(|at| now - *at < REMEMBERED) {
                return Ok(content);
            }
            if stored.len() >= MOST_REMEMBERED {
                stored.clear();
            }
        }
        let kept: Content = self
            .manager
            .put_bytes(&format!("/v1/contents/{}", content.hash), bytes)?;
        let mut stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner);
        stored.insert(kept.hash, now);
        Ok(kept)
    }

    /// What was stored before may be gone.
    pub fn forget(&self) {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The bytes of a content.
    pub fn read(&self, content: Content) -> Result<Vec<u8>, Error> {
        let path = format!("/v1/contents/{}", content.hash);
        self.manager.get_bytes(&path, content.bytes)
    }
}

/// Contents of the tasks that an endpoint has, as its dispatcher sees them.
pub struct HeldContents(Arc<ManagerClient>);

impl HeldContents {
    pub(crate) fn new(manager: Arc<ManagerClient>) -> Self {
        Self(manager)
    }

    fn path(task: TaskId, content: Content) -> String {
        format!("/v1/endpoints/tasks/{task}/contents/{}", content.hash)
    }

    /// The arguments of a task.
    pub fn read(&self, task: TaskId, content: Content) -> Result<Vec<u8>, Error> {
        self.0.get_bytes(&Self::path(task, content), content.bytes)
    }

    /// Has the answer of a task stored.
    pub fn store(&self, task: TaskId, bytes: &[u8]) -> Result<Content, Error> {
        self.0.put_bytes(&Self::path(task, name_of(bytes)), bytes)
    }
}
