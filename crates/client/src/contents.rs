//! Long arguments and results, which travel through the manager's content store.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dayfly_protocol::contents::Content;
use dayfly_protocol::ids::{ContentHash, TaskId};

use crate::Error;
use crate::manager::ManagerClient;

/// How long a stored content is not sent again. A manager keeps unreferenced contents for an hour.
const REMEMBERED: Duration = Duration::from_secs(600);
/// Most contents that are remembered.
const MAX_REMEMBERED: usize = 10_000;

/// Hash and length of the bytes.
fn name_of(bytes: &[u8]) -> Content {
    Content {
        hash: ContentHash(*blake3::hash(bytes).as_bytes()),
        bytes: bytes.len() as u64,
    }
}

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

    /// Stores bytes and returns their content reference. Sends nothing if the same bytes were stored in the last 10
    /// minutes.
    pub fn store(&self, bytes: &[u8]) -> Result<Content, Error> {
        let content = name_of(bytes);
        let now = Instant::now();
        {
            let mut stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner);
            if stored.get(&content.hash).is_some_and(|at| now - *at < REMEMBERED) {
                return Ok(content);
            }
            if stored.len() >= MAX_REMEMBERED {
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

    /// Forgets which contents are stored, so that the next [`Contents::store`] sends them.
    pub fn forget(&self) {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub fn read(&self, content: Content) -> Result<Vec<u8>, Error> {
        let path = format!("/v1/contents/{}", content.hash);
        self.manager.get_bytes(&path, content.bytes)
    }
}

/// Contents of the tasks of an endpoint, for its dispatcher.
pub struct HeldContents(Arc<ManagerClient>);

impl HeldContents {
    pub(crate) fn new(manager: Arc<ManagerClient>) -> Self {
        Self(manager)
    }

    fn path(task: TaskId, content: Content) -> String {
        format!("/v1/endpoints/tasks/{task}/contents/{}", content.hash)
    }

    /// Reads the arguments of a task.
    pub fn read(&self, task: TaskId, content: Content) -> Result<Vec<u8>, Error> {
        self.0.get_bytes(&Self::path(task, content), content.bytes)
    }

    /// Stores the result of a task and returns its content reference.
    pub fn store(&self, task: TaskId, bytes: &[u8]) -> Result<Content, Error> {
        self.0.put_bytes(&Self::path(task, name_of(bytes)), bytes)
    }
}
