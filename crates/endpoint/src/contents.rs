//! Long arguments are read before a worker gets them, and long answers stored before the manager is told of them.

use std::sync::Arc;
use std::time::Duration;

use dayfly_client::{HeldContents, Output};
use dayfly_protocol::blob::Blob;
use dayfly_protocol::contents::{Content, Payload};
use dayfly_protocol::dispatch::{Assigned, Ended};
use dayfly_protocol::error::{Code, Failure, Retry};
use dayfly_protocol::ids::{TaskId, TenantId};
use dayfly_protocol::tasks::{CALL_WITH_ANSWERS, join};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What is read and not executed yet, and what is answered and not stored yet, have so many KiB each, unless a single one has more.
const ROOM_KIB: u32 = 256 << 10;
/// After the first attempt while a content store does not answer, or is full; twice as long after each further one, up to the second.
const FIRST_RETRY: Duration = Duration::from_millis(500);
const LAST_RETRY: Duration = Duration::from_secs(10);

/// Where long arguments and answers are. Calls block.
pub trait Contents: Send + Sync {
    /// The arguments of a task of this tenant's.
    fn read(&self, tenant: TenantId, task: TaskId, content: Content) -> Result<Blob, Failure>;

    /// Keeps the answer of one.
    fn store(&self, tenant: TenantId, task: TaskId, bytes: &[u8]) -> Result<Content, Failure>;
}

/// At the manager that the tasks come from.
impl Contents for HeldContents {
    fn read(&self, _: TenantId, task: TaskId, content: Content) -> Result<Blob, Failure> {
        let read = HeldContents::read(self, task, content);
        read.map(Blob::from).map_err(|error| error.0)
    }

    fn store(&self, _: TenantId, task: TaskId, bytes: &[u8]) -> Result<Content, Failure> {
        HeldContents::store(self, task, bytes).map_err(|error| error.0)
    }
}

/// What a task is given: its arguments, and the answers that go along.
fn parts(task: &Assigned) -> impl Iterator<Item = &Payload> {
    std::iter::once(&task.arguments).chain(&task.answers)
}

/// What a worker gets of it.
fn whole(parts: &[Blob]) -> Blob {
    match parts {
        [arguments] => arguments.clone(),
        parts => {
            let parts: Vec<&[u8]> = parts.iter().map(|part| &part[..]).collect();
            join(&parts, CALL_WITH_ANSWERS).into()
        }
    }
}

/// What a worker gets, where all of it is here already.
pub fn at_hand(task: &Assigned) -> Option<Blob> {
    let here = |part: &Payload| match part {
        Payload::Here(bytes) => Some(bytes.clone()),
        Payload::Stored(_) => None,
    };
    let parts: Vec<Blob> = parts(task).map(here).collect::<Option<_>>()?;
    Some(whole(&parts))
}

/// Whether some of what a task is given is to be read first.
pub fn is_apart(task: &Assigned) -> bool {
    parts(task).any(|part| part.content().is_some())
}

/// Arguments that were read; they count for as long as this is kept.
pub struct Fetched {
    pub bytes: Blob,
    pub room: OwnedSemaphorePermit,
}

/// Reads and stores beside everything else, within bounds.
pub struct Carrier {
    contents: Arc<dyn Contents>,
    runtime: Handle,
    to_run: Arc<Semaphore>,
    to_store: Arc<Semaphore>,
}

fn kib(bytes: u64) -> u32 {
    u32::try_from(bytes >> 10).unwrap_or(u32::MAX).clamp(1, ROOM_KIB)
}

/// The end of a task that had not begun when the endpoint ended.
pub fn stopping() -> Failure {
    Failure::new(Code::NotExecuted, "the endpoint stopped before the task began")
}

impl Carrier {
    pub fn new(contents: Arc<dyn Contents>, runtime: Handle) -> Self {
        let room = || Arc::new(Semaphore::new(ROOM_KIB as usize));
        Self {
            contents,
            runtime,
            to_run: room(),
            to_store: room(),
        }
    }

    /// Nobody waits any more.
    pub fn close(&self) {
        self.to_run.close();
        self.to_store.close();
    }

    /// Reads what a task is given when there is room, puts it together, and says what came of it.
    pub fn fetch(&self, task: &Assigned, done: impl FnOnce(Result<Fetched, Failure>) + Send + 'static) {
        let parts: Vec<Payload> = parts(task).cloned().collect();
        let bytes = |part: &Payload| part.content().map_or(part.bytes_here() as u64, |content| content.bytes);
        let room = Arc::clone(&self.to_run).acquire_many_owned(kib(parts.iter().map(bytes).sum()));
        let contents = Arc::clone(&self.contents);
        let (tenant, task) = (task.tenant, task.attempt.task);
        self.runtime.spawn(async move {
            let Ok(room) = room.await else {
                return done(Err(stopping()));
            };
            let read = patiently(move || {
                let read = |part: &Payload| match part {
                    Payload::Here(bytes) => Ok(bytes.clone()),
                    Payload::Stored(content) => contents.read(tenant, task, *content),
                };
                let parts: Vec<Blob> = parts.iter().map(read).collect::<Result<_, _>>()?;
                Ok(whole(&parts))
            });
            let read = read.await;
            // Whoever would execute it again would find the same.
            let gone = |failure: Failure| {
                let text = format!("the task's arguments cannot be read: {}", failure.message);
                Failure::new(Code::LoadFailed, text)
            };
            done(read.map(|bytes| Fetched { bytes, room }).map_err(gone));
        });
    }

    /// Stores an answer, and says how the task ended then. Waits while too much is being stored.
    pub fn store(&self, tenant: TenantId, mut ended: Ended, output: Output, done: impl FnOnce(Ended) + Send + 'static) {
        let room = Arc::clone(&self.to_store).acquire_many_owned(kib(output.as_slice().len() as u64));
        let Ok(room) = self.runtime.block_on(room) else { return };
        let (contents, task, output) = (Arc::clone(&self.contents), ended.attempt.task, Arc::new(output));
        self.runtime.spawn(async move {
            match patiently(move || contents.store(tenant, task, output.as_slice())).await {
                Ok(content) => ended.answer = Payload::Stored(content),
                Err(failure) => {
                    let text = format!(
                        "the function answered, and its answer cannot be kept: {}",
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

/// Asks until there is an answer.
async fn patiently<T: Send + 'static>(
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
                tracing::warn!(%failure, "a content cannot be moved just now; it is tried again");
                tokio::time::sleep(rest).await;
                rest = (2 * rest).min(LAST_RETRY);
            }
            Ok(answer) => return answer,
            Err(error) => {
                return Err(Failure::new(
                    Code::Internal,
                    format!("moving a content failed: {error}"),
                ));
            }
        }
    }
}
