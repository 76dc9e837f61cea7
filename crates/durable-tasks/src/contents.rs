//! Contents: arguments and answers that are too long for the store of tasks, in a directory or a bucket, each once for a tenant.
//!
//! A content is known from when all of it is stored under its hash. It goes when no task has it and nobody has used it for a
//! while; what a crash leaves of that goes after the next start.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use dayfly_protocol::blob::Blob;
use dayfly_protocol::contents::{Content, ContentUsage};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{ContentHash, TenantId};
use dayfly_storage::{Objects, Place, Reading, Writing};
use dayfly_store::system::{cautious_ms, now_ms};
use dayfly_store::tasks::TaskStore;
use futures_util::{Stream, StreamExt, TryStreamExt};
use tokio::sync::RwLock;

use crate::Tasks;

/// A content that no task has is kept for so long after its last use: until the task comes that it was stored for.
const UNUSED: Duration = Duration::from_secs(3600);
/// Between two looks for what is not needed any more.
const SWEEP: Duration = Duration::from_secs(30);
/// Contents that are kept in memory, too; longer ones are not among them.
const RECENT_BYTES: usize = 64 << 20;
const RECENT_EACH: usize = 4 << 20;
/// Deletions at the same time.
const DELETIONS: usize = 8;
/// Bytes that are copied at once; whole for what is kept in memory afterwards.
const PIECE: usize = RECENT_EACH;

/// Where a manager keeps contents, and how long.
#[derive(Debug, Clone)]
pub struct ContentOptions {
    /// Where it is.
    pub place: Place,
    /// How many bytes each tenant may have there.
    pub most_bytes: u64,
    /// How long what tasks answered is kept after their end.
    pub kept: Duration,
}

/// The content store of one manager.
pub struct Contents {
    objects: Objects,
    store: Arc<dyn TaskStore>,
    /// What each tenant has, with what is on its way.
    used: Mutex<HashMap<TenantId, u64>>,
    most_bytes: u64,
    /// How long answers are kept.
    kept: Duration,
    /// The last ones, for those who ask for them soon: mostly a dispatcher beside, and a client that waits for its answer.
    recent: Mutex<Recent>,
    /// Held by whoever makes one known, and, alone, by whoever deletes some: else one might be known whose bytes just went.
    known: RwLock<()>,
}

/// Contents that were stored just now.
#[derive(Default)]
struct Recent {
    contents: HashMap<(TenantId, ContentHash), Bytes>,
    order: VecDeque<(TenantId, ContentHash)>,
    bytes: usize,
}

impl Recent {
    fn add(&mut self, key: (TenantId, ContentHash), bytes: Bytes) {
        self.bytes += bytes.len();
        self.order.push_back(key);
        let before = self.contents.insert(key, bytes);
        self.bytes -= before.map_or(0, |before| before.len());
        while self.bytes > RECENT_BYTES
            && let Some(oldest) = self.order.pop_front()
        {
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, key: &(TenantId, ContentHash)) {
        let gone = self.contents.remove(key);
        self.bytes -= gone.map_or(0, |gone| gone.len());
    }
}

/// Bytes that are in the store of tasks, and count as a tenant's contents do until this is dropped.
pub struct Inline {
    contents: Arc<Contents>,
    tenant: TenantId,
    bytes: u64,
}

impl Inline {
    /// Some of them, which count for themselves from now on.
    pub fn split(&mut self, bytes: usize) -> Option<Self> {
        let bytes = self.bytes.min(bytes as u64);
        self.bytes -= bytes;
        (bytes > 0).then(|| Self {
            contents: Arc::clone(&self.contents),
            tenant: self.tenant,
            bytes,
        })
    }
}

impl Drop for Inline {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.contents.release(self.tenant, self.bytes);
        }
    }
}

/// Bytes that count as a tenant's, unless they are kept in the end.
struct Reserved<'a> {
    contents: &'a Contents,
    tenant: TenantId,
    bytes: u64,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.contents.release(self.tenant, self.bytes);
    }
}

impl Contents {
    /// Over what is there already.
    pub(super) fn open(
        options: &ContentOptions,
        store: Arc<dyn TaskStore>,
        used: HashMap<TenantId, u64>,
    ) -> Result<Self, Failure> {
        Ok(Self {
            objects: Objects::open(&options.place)?,
            store,
            used: Mutex::new(used),
            most_bytes: options.most_bytes,
            kept: options.kept,
            recent: Mutex::default(),
            known: RwLock::default(),
        })
    }

    fn used(&self) -> MutexGuard<'_, HashMap<TenantId, u64>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a tenant has.
    pub fn usage(&self, tenant: TenantId) -> ContentUsage {
        ContentUsage {
            bytes: self.used().get(&tenant).copied().unwrap_or_default(),
            most_bytes: self.most_bytes,
        }
    }

    /// Counts bytes that a tenant is about to have in the store of tasks.
    pub(super) fn hold(self: &Arc<Self>, tenant: TenantId, bytes: usize) -> Result<Inline, Failure> {
        self.take(tenant, bytes)?;
        Ok(self.held(tenant, bytes as u64))
    }

    /// Counts bytes that a tenant has in the store of tasks already.
    pub(super) fn held(self: &Arc<Self>, tenant: TenantId, bytes: u64) -> Inline {
        Inline {
            contents: Arc::clone(self),
            tenant,
            bytes,
        }
    }

    /// Counts more bytes as a tenant's, if it may have them.
    fn take(&self, tenant: TenantId, bytes: usize) -> Result<(), Failure> {
        let most = self.most_bytes;
        let mut used = self.used();
        let used = used.entry(tenant).or_default();
        let more = used.saturating_add(bytes as u64);
        if more > most {
            let text = format!(
                "the content store holds {most} bytes for a tenant, and yours has {used}; forget results that you have fetched, \
                 by `dayfly task forget`: else they are kept for {} after their tasks' ends. Contents go once no task has them, \
                 an hour after their last use, and arguments when their tasks end",
                told(self.kept)
            );
            return Err(Failure::new(Code::QuotaExceeded, text));
        }
        *used = more;
        Ok(())
    }

    /// Counts bytes that a tenant has in the store of tasks for as long as a task is not forgotten, or has no more.
    pub(super) fn count(&self, changes: impl IntoIterator<Item = (TenantId, i64)>) {
        let mut used = self.used();
        for (tenant, more) in changes {
            let used = used.entry(tenant).or_default();
            *used = used.saturating_add_signed(more);
        }
    }

    /// Tenants that have all that they may.
    pub(super) fn full(&self) -> Vec<TenantId> {
        let used = self.used();
        let full = used.iter().filter(|(_, used)| **used >= self.most_bytes);
        full.map(|(tenant, _)| *tenant).collect()
    }

    fn release(&self, tenant: TenantId, bytes: u64) {
        if let Some(used) = self.used().get_mut(&tenant) {
            *used = used.saturating_sub(bytes);
        }
    }

    /// Keeps bytes as they come, under the hash that they must have. What is there already is not stored again.
    pub async fn put<E: std::fmt::Display>(
        &self,
        tenant: TenantId,
        hash: ContentHash,
        mut bytes: impl Stream<Item = Result<Bytes, E>> + Unpin,
    ) -> Result<Content, Failure> {
        // Whether it is known already turns out while it comes.
        let known = self.store.use_contents(tenant, vec![hash], now_ms());
        let mut reserved = Reserved {
            contents: self,
            tenant,
            bytes: 0,
        };
        let mut writing = self.objects.write(&name(tenant, hash));
        let come = receive(&mut bytes, hash, &mut reserved, &mut writing).await;
        if let Some(known) = known.wait().await?.into_iter().next().flatten() {
            writing.abort().await;
            // Read to its end, so that the connection can be used again.
            while let Some(Ok(_)) = bytes.next().await {}
            return Ok(known);
        }
        if let Err(failure) = come {
            writing.abort().await;
            return Err(failure);
        }
        let content = Content {
            hash,
            bytes: reserved.bytes,
        };
        let known = self.known.read().await;
        let held = writing.finish().await?;
        let new = self.store.keep_content(tenant, content, now_ms()).wait().await?;
        drop(known);
        if new {
            // It counts from now on.
            reserved.bytes = 0;
        }
        if let Some(bytes) = held.filter(|bytes| bytes.len() <= RECENT_EACH) {
            self.recent().add((tenant, hash), bytes);
        }
        Ok(content)
    }

    /// Keeps bytes that are here.
    pub async fn put_bytes(&self, tenant: TenantId, bytes: Bytes) -> Result<Content, Failure> {
        let hash = ContentHash(*blake3::hash(&bytes).as_bytes());
        let bytes = futures_util::stream::iter([Ok::<_, Failure>(bytes)]);
        self.put(tenant, hash, bytes).await
    }

    /// Keeps a copy of bytes that are another's, made a piece at a time: it need not be in memory twice as a whole.
    pub async fn put_copy(&self, tenant: TenantId, bytes: &[u8]) -> Result<Content, Failure> {
        let hash = ContentHash(*blake3::hash(bytes).as_bytes());
        let pieces = bytes.chunks(PIECE);
        let pieces = pieces.map(|piece| Ok::<_, Failure>(Bytes::copy_from_slice(piece)));
        self.put(tenant, hash, futures_util::stream::iter(pieces)).await
    }

    async fn known(&self, tenant: TenantId, hash: ContentHash) -> Result<Option<Content>, Failure> {
        let found = self.store.use_contents(tenant, vec![hash], now_ms()).wait().await?;
        Ok(found.into_iter().next().flatten())
    }

    /// Contents that tasks are to have must be there.
    pub(super) async fn check(&self, tenant: TenantId, wanted: &[Content]) -> Result<(), Failure> {
        let hashes = wanted.iter().map(|content| content.hash).collect();
        let found = self.store.use_contents(tenant, hashes, now_ms()).wait().await?;
        let wrong = wanted
            .iter()
            .zip(found)
            .find(|(wanted, found)| found.as_ref() != Some(wanted));
        let Some((wanted, found)) = wrong else { return Ok(()) };
        Err(match found {
            None => missing(wanted.hash),
            Some(found) => {
                let text = format!(
                    "the content {} has {} bytes, not {}",
                    wanted.hash, found.bytes, wanted.bytes
                );
                Failure::new(Code::InvalidRequest, text)
            }
        })
    }

    /// How long a content is, and its bytes as they come.
    pub async fn read(&self, tenant: TenantId, hash: ContentHash) -> Result<(u64, Reading), Failure> {
        let recent = self.recent().contents.get(&(tenant, hash)).cloned();
        if let Some(bytes) = recent {
            return Ok((bytes.len() as u64, futures_util::stream::iter([Ok(bytes)]).boxed()));
        }
        if let Some(found) = self.objects.read(&name(tenant, hash)).await? {
            return Ok(found);
        }
        if self.known(tenant, hash).await?.is_none() {
            return Err(missing(hash));
        }
        let text = format!(
            "the content {hash} is gone from {}; store it again",
            self.objects.place()
        );
        Err(Failure::new(Code::NotFound, text))
    }

    /// All bytes of a content.
    pub async fn read_whole(&self, tenant: TenantId, content: Content) -> Result<Blob, Failure> {
        let (length, mut pieces) = self.read(tenant, content.hash).await?;
        let first = pieces.try_next().await?.unwrap_or_default();
        if first.len() as u64 == length {
            return Ok(Blob(first));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
        bytes.extend_from_slice(&first);
        while let Some(piece) = pieces.try_next().await? {
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes.into())
    }

    /// Deletes what nobody needs. Whether there may be more.
    async fn sweep(&self, unused: Duration) -> Result<bool, Failure> {
        let before = cautious_ms().saturating_sub(u64::try_from(unused.as_millis()).unwrap_or(u64::MAX));
        let _alone = self.known.write().await;
        let going = self.store.unused_contents(before).wait().await?;
        if going.is_empty() {
            return Ok(false);
        }
        for some in going.chunks(DELETIONS) {
            let some = some.iter().map(|(tenant, content)| name(*tenant, content.hash));
            let deletions = some.map(|name| async move { self.objects.delete(&name).await });
            futures_util::future::try_join_all(deletions).await?;
        }
        self.store.drop_contents(going.clone()).wait().await?;
        for (tenant, content) in going {
            self.recent().remove(&(tenant, content.hash));
            self.release(tenant, content.bytes);
        }
        Ok(true)
    }
}

impl Reserved<'_> {
    fn grow(&mut self, bytes: usize) -> Result<(), Failure> {
        self.contents.take(self.tenant, bytes)?;
        self.bytes += bytes as u64;
        Ok(())
    }
}

/// Takes what comes, which must have this hash.
async fn receive<E: std::fmt::Display>(
    bytes: &mut (impl Stream<Item = Result<Bytes, E>> + Unpin),
    hash: ContentHash,
    reserved: &mut Reserved<'_>,
    writing: &mut Writing,
) -> Result<(), Failure> {
    let mut hasher = blake3::Hasher::new();
    while let Some(piece) = bytes.next().await {
        let piece = piece.map_err(cut_short)?;
        reserved.grow(piece.len())?;
        hasher.update(&piece);
        writing.write(piece).await?;
    }
    let found = ContentHash(*hasher.finalize().as_bytes());
    if found != hash {
        let text = format!("the bytes have the hash {found}, not {hash}; name what they have, as `b3sum` tells it");
        return Err(Failure::new(Code::HashMismatch, text));
    }
    Ok(())
}

fn name(tenant: TenantId, hash: ContentHash) -> String {
    format!("{tenant}/{hash}")
}

fn missing(hash: ContentHash) -> Failure {
    let text = format!("you have no content {hash}, or it was not used for an hour; store it, then submit what has it");
    Failure::new(Code::NotFound, text)
}

fn cut_short(error: impl std::fmt::Display) -> Failure {
    Failure::new(Code::InvalidRequest, format!("the content was cut short: {error}"))
}

/// Deletes what nobody needs, for as long as there are tasks.
pub(super) async fn keep_swept(tasks: Weak<Tasks>) {
    let mut sweep = tokio::time::interval(SWEEP);
    loop {
        sweep.tick().await;
        loop {
            let Some(tasks) = tasks.upgrade() else { return };
            match tasks.contents.sweep(UNUSED).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::warn!(%error, "contents that nobody needs cannot be deleted; the next look tries again");
                    break;
                }
            }
        }
    }
}

/// A length of time, for people.
pub(super) fn told(length: Duration) -> String {
    match length.as_secs() {
        seconds if seconds >= 2 * 24 * 3600 => format!("{} days", seconds / (24 * 3600)),
        seconds if seconds >= 2 * 3600 => format!("{} hours", seconds / 3600),
        seconds => format!("{seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use dayfly_store::SqliteTasks;

    use super::*;

    const TENANT: TenantId = TenantId([1; 16]);
    const OTHER: TenantId = TenantId([2; 16]);

    fn contents(most_bytes: u64) -> (tempfile::TempDir, Contents) {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::parse(&format!("file://{}", directory.path().display())).unwrap();
        let store = Arc::new(SqliteTasks::open(None, None, false).unwrap());
        let options = ContentOptions {
            place,
            most_bytes,
            kept: Duration::from_secs(7 * 24 * 3600),
        };
        let contents = Contents::open(&options, store, HashMap::new()).unwrap();
        (directory, contents)
    }

    fn pieces(text: &'static str) -> impl Stream<Item = Result<Bytes, String>> + Unpin {
        futures_util::stream::iter(
            text.split_inclusive(' ')
                .map(|piece| Ok(Bytes::from_static(piece.as_bytes()))),
        )
    }

    fn hash(text: &str) -> ContentHash {
        ContentHash(*blake3::hash(text.as_bytes()).as_bytes())
    }

    async fn read(contents: &Contents, tenant: TenantId, hash: ContentHash) -> Result<Vec<u8>, Code> {
        let (length, bytes) = contents.read(tenant, hash).await.map_err(|failure| failure.code)?;
        let bytes: Vec<Bytes> = bytes.try_collect().await.map_err(|failure| failure.code)?;
        assert_eq!(bytes.iter().map(|piece| piece.len() as u64).sum::<u64>(), length);
        Ok(bytes.concat())
    }

    #[tokio::test]
    async fn a_content_is_its_tenants_alone_and_counts_once() {
        let (_directory, contents) = contents(1000);
        let text = "some bytes that come in pieces";
        let known = contents.put(TENANT, hash(text), pieces(text)).await.unwrap();
        assert_eq!(known, contents.put_bytes(TENANT, text.as_bytes().into()).await.unwrap());
        assert_eq!(contents.usage(TENANT).bytes, text.len() as u64);
        assert_eq!(read(&contents, TENANT, known.hash).await, Ok(text.into()));
        assert_eq!(read(&contents, OTHER, known.hash).await, Err(Code::NotFound));
        assert_eq!(contents.check(TENANT, &[known]).await, Ok(()));
        let wrong = Content { bytes: 7, ..known };
        assert_eq!(
            contents.check(TENANT, &[known, wrong]).await.unwrap_err().code,
            Code::InvalidRequest
        );
        assert_eq!(contents.check(OTHER, &[known]).await.unwrap_err().code, Code::NotFound);
    }

    #[tokio::test]
    async fn what_is_not_what_it_says_or_too_much_leaves_nothing_and_costs_nothing() {
        let (directory, contents) = contents(10);
        let wrong = contents.put(TENANT, hash("other"), pieces("short")).await;
        assert_eq!(wrong.unwrap_err().code, Code::HashMismatch);
        let much = contents
            .put(TENANT, hash("much too long"), pieces("much too long"))
            .await;
        assert_eq!(much.unwrap_err().code, Code::QuotaExceeded);
        let broken = futures_util::stream::iter([Ok(Bytes::from_static(b"half")), Err("the client went away")]);
        let broken = contents.put(TENANT, hash("half of it"), broken).await;
        assert_eq!(broken.unwrap_err().code, Code::InvalidRequest);
        assert_eq!(contents.usage(TENANT).bytes, 0);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        // Another's quota is its own.
        contents.put_bytes(TENANT, "10 bytes..".into()).await.unwrap();
        contents.put_bytes(OTHER, "10 bytes..".into()).await.unwrap();
    }

    #[tokio::test]
    async fn what_nobody_uses_goes_and_can_come_again() {
        let (directory, contents) = contents(1000);
        let kept = contents.put_bytes(TENANT, "a".into()).await.unwrap();
        assert_eq!(contents.sweep(Duration::from_secs(60)).await, Ok(false));
        assert_eq!(read(&contents, TENANT, kept.hash).await, Ok("a".into()));
        tokio::time::sleep(Duration::from_millis(2)).await;
        assert_eq!(contents.sweep(Duration::ZERO).await, Ok(true));
        assert_eq!(contents.usage(TENANT).bytes, 0);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        assert_eq!(read(&contents, TENANT, kept.hash).await, Err(Code::NotFound));
        assert_eq!(contents.put_bytes(TENANT, "a".into()).await, Ok(kept));
    }
}
