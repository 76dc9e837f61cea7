//! Reads long arguments before a worker gets them, and stores long results before the manager receives the outcome.

use std::sync::Arc;
use std::time::Duration;

use dayfly_client::{HeldContents, Output};
use dayfly_protocol::blob::Blob;
use dayfly_protocol::contents::{Content, Payload};
use dayfly_protocol::dispatch::{Assigned, Ended};
use dayfly_protocol::encoding::{CALL_WITH_RESULTS, join};
use dayfly_protocol::error::{Code, Failure, Retry};
use dayfly_protocol::ids::{TaskId, TenantId};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bound in KiB on read arguments that are not executed yet, and on results that are not stored yet. A single one may
/// exceed it.
const ROOM_KIB: u32 = 256 << 10;
/// First and longest pause while a content store is unavailable or full; each further attempt doubles it.
const FIRST_RETRY: Duration = Duration::from_millis(500);
const LAST_RETRY: Duration = Duration::from_secs(10);

/// The store of long arguments and results. Calls block.
pub trait Contents: Send + Sync {
    /// Reads the arguments of a task of this tenant.
    fn read(&self, tenant: TenantId, task: TaskId, content: Content) -> Result<Blob, Failure>;

    /// Stores the result of a task.
    fn store(&self, tenant: TenantId, task: TaskId, bytes: &[u8]) -> Result<Content, Failure>;
}

/// The content store of the manager that the tasks come from.
impl Contents for HeldContents {
    fn read(&self, _: TenantId, task: TaskId, content: Content) -> Result<Blob, Failure> {
        let read = HeldContents::read(self, task, content);
        read.map(Blob::from).map_err(|error| error.0)
    }

    fn store(&self, _: TenantId, task: TaskId, bytes: &[u8]) -> Result<Content, Failure> {
        HeldContents::store(self, task, bytes).map_err(|error| error.0)
    }
}

/// A task's inputs: its arguments, and the results of earlier tasks.
fn parts(task: &Assigned) -> impl Iterator<Item = &Payload> {
    std::iter::once(&task.arguments).chain(&task.answers)
}

/// Joins the inputs for a worker.
fn join_inputs(parts: &[Blob]) -> Blob {
    match parts {
        [arguments] => arguments.clone(),
        parts => {
            let parts: Vec<&[u8]> = parts.iter().map(|part| &part[..]).collect();
            join(&parts, CALL_WITH_RESULTS).into()
        }
    }
}

/// The joined inputs, if all of them are present; `None` otherwise.
pub fn inline_inputs(task: &Assigned) -> Option<Blob> {
    let inline = |part: &Payload| match part {
        Payload::Inline(bytes) => Some(bytes.clone()),
        Payload::Stored(_) => None,
    };
    let parts: Vec<Blob> = parts(task).map(inline).collect::<Option<_>>()?;
    Some(join_inputs(&parts))
}

/// Whether any input has to be read first.
pub fn needs_fetch(task: &Assigned) -> bool {
    parts(task).any(|part| part.content().is_some())
}

/// Arguments that were read. They count against the bound until this is dropped.
pub struct Fetched {
    pub bytes: Blob,
    pub room: OwnedSemaphorePermit,
}

/// Reads and stores contents in the background, within bounds.
pub struct ContentTransfer {
    contents: Arc<dyn Contents>,
    runtime: Handle,
    to_run: Arc<Semaphore>,
    to_store: Arc<Semaphore>,
}

fn kib(bytes: u64) -> u32 {
    u32::try_from(bytes >> 10).unwrap_or(u32::MAX).clamp(1, ROOM_KIB)
}

/// The error of a task that had not begun when the endpoint stopped.
pub fn endpoint_stopped() -> Failure {
    Failure::new(Code::NotExecuted, "the endpoint stopped before the task began")
}

impl ContentTransfer {
    pub fn new(contents: Arc<dyn Contents>, runtime: Handle) -> Self {
        let room = || Arc::new(Semaphore::new(ROOM_KIB as usize));
        Self {
            contents,
            runtime,
            to_run: room(),
            to_store: room(),
        }
    }

    /// Ends all waits for room.
    pub fn close(&self) {
        self.to_run.close();
        self.to_store.close();
    }

    /// Reads a task's inputs when there is room, joins them, and passes the result to `done`.
    pub fn fetch(&self, task: &Assigned, done: impl FnOnce(Result<Fetched, Failure>) + Send + 'static) {
        let parts: Vec<Payload> = parts(task).cloned().collect();
        let bytes = |part: &Payload| {
            part.content()
                .map_or(part.inline_bytes() as u64, |content| content.bytes)
        };
        let room = Arc::clone(&self.to_run).acquire_many_owned(kib(parts.iter().map(bytes).sum()));
        let contents = Arc::clone(&self.contents);
        let (tenant, task) = (task.tenant, task.attempt.task);
        self.runtime.spawn(async move {
            let Ok(room) = room.await else {
                return done(Err(endpoint_stopped()));
            };
            let read = with_retries(move || {
                let read = |part: &Payload| match part {
                    Payload::Inline(bytes) => Ok(bytes.clone()),
                    Payload::Stored(content) => contents.read(tenant, task, *content),
                };
                let parts: Vec<Blob> = parts.iter().map(read).collect::<Result<_, _>>()?;
                Ok(join_inputs(&parts))
            });
            let read = read.await;
            // Another execution would find the same.
            let gone = |failure: Failure| {
                let text = format!("the task's arguments cannot be read: {}", failure.message);
                Failure::new(Code::LoadFailed, text)
            };
            done(read.map(|bytes| Fetched { bytes, room }).map_err(gone));
        });
    }

    /// Stores a result, then passes the outcome to `done`. Blocks while too much is being stored.
    pub fn store(&self, tenant: TenantId, mut ended: Ended, output: Output, done: impl FnOnce(Ended) + Send + 'static) {
        let room = Arc::clone(&self.to_store).acquire_many_owned(kib(output.as_slice().len() as u64));
        let Ok(room) = self.runtime.block_on(room) else { return };
        let (contents, task, output) = (Arc::clone(&self.contents), ended.attempt.task, Arc::new(output));
        self.runtime.spawn(async move {
            match with_retries(move || contents.store(tenant, task, output.as_slice())).await {
                Ok(content) => ended.answer = Payload::Stored(content),
                Err(failure) => {
                    let text = format!(
                        "the function returned, and its result cannot be stored: {}",
                        failure.message
                    );
                    ended.error = Some(Failure::new(failure.code, text));
                    ended.raised = false;
                }
            }
            drop(room);
            done(ended);
        });
    }
}

/// Repeats a request until it succeeds or fails permanently.
async fn with_retries<T: Send + 'static>(
    ask: impl Fn() -> Result<T, Failure> + Send + Sync + 'static,
) -> Result<T, Failure> {
    let ask = Arc::new(ask);
    let mut rest = FIRST_RETRY;
    loop {
        let asked = tokio::task::spawn_blocking({
            let ask = Arc::clone(&ask);
            move || ask()
        });
        match asked.await {
            Ok(Err(failure)) if failure.code.retry() == Retry::Later && failure.code != Code::QuotaExceeded => {
                tracing::warn!(%failure, "a content cannot be transferred now; it will be retried");
                tokio::time::sleep(rest).await;
                rest = (2 * rest).min(LAST_RETRY);
            }
            Ok(answer) => return answer,
            Err(error) => {
                return Err(Failure::new(
                    Code::Internal,
                    format!("transferring a content failed: {error}"),
                ));
            }
        }
    }
}
