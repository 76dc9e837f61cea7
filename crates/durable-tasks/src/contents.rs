//! Contents: arguments and results that are too long for the store of tasks. They are in a directory or a bucket, once
//! per tenant, by their hash.
//!
//! A content is known when all of it is stored. It is deleted when no task refers to it and it was not used for an
//! hour. An interrupted deletion is completed after the next start.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use dayfly_protocol::blob::Blob;
use dayfly_protocol::contents::{Content, ContentUsage};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{ContentHash, TenantId};
use dayfly_storage::{ObjectBytes, ObjectWriter, Objects, StoreUrl};
use dayfly_store::system::{cautious_ms, now_ms};
use dayfly_store::tasks::{ListedContent, TaskStore};
use futures_util::{Stream, StreamExt, TryStreamExt};
use tokio::sync::RwLock;

use crate::Tasks;

/// A content that no task refers to is kept for this time after its last use, for the task that it was stored for.
const UNUSED: Duration = Duration::from_secs(3600);
/// Interval between deletions.
const SWEEP: Duration = Duration::from_secs(30);
/// Bytes of contents that are kept in memory too, and the longest of them.
const MAX_RECENT_BYTES: usize = 64 << 20;
const MAX_RECENT_EACH: usize = 4 << 20;
/// Number of concurrent deletions.
const CONCURRENT_DELETIONS: usize = 8;
/// Bytes that are copied at once. A content that is kept in memory is copied whole.
const PIECE_BYTES: usize = MAX_RECENT_EACH;

/// Location, quota and retention of contents.
#[derive(Debug, Clone)]
pub struct ContentOptions {
    /// The directory or bucket.
    pub place: StoreUrl,
    /// Quota of each tenant in bytes.
    pub most_bytes: u64,
    /// Retention of results after the ends of their tasks.
    pub retention: Duration,
}

/// The content store of one manager.
pub struct Contents {
    objects: Objects,
    store: Arc<dyn TaskStore>,
    /// Bytes of each tenant, with those that are being received.
    used: Mutex<HashMap<TenantId, u64>>,
    most_bytes: u64,
    /// Retention of results.
    retention: Duration,
    /// Recently stored contents. Dispatchers on this host and waiting clients read them soon.
    recent: Mutex<Recent>,
    /// Read-locked while a content becomes known, and write-locked while contents are deleted. So no content becomes
    /// known while its bytes are deleted.
    deleting: RwLock<()>,
}

/// A bounded cache of recently stored contents.
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
        while self.bytes > MAX_RECENT_BYTES
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

/// Bytes in the store of tasks. They count in the tenant's quota until this is dropped.
pub struct Inline {
    contents: Arc<Contents>,
    tenant: TenantId,
    bytes: u64,
}

impl Inline {
    /// The number of bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Lets the bytes count until somebody subtracts them with [`Contents::count`].
    pub fn keep(mut self) {
        self.bytes = 0;
    }

    /// Splits off some of the bytes. Returns `None` for none.
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

/// Received bytes of a content. They leave the tenant's quota when this is dropped.
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
    /// Opens the place for contents. `used`: bytes that each tenant has already.
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
            retention: options.retention,
            recent: Mutex::default(),
            deleting: RwLock::default(),
        })
    }

    fn used(&self) -> MutexGuard<'_, HashMap<TenantId, u64>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A tenant's use of its quota.
    pub fn usage(&self, tenant: TenantId) -> ContentUsage {
        ContentUsage {
            bytes: self.used().get(&tenant).copied().unwrap_or_default(),
            most_bytes: self.most_bytes,
        }
    }

    /// Whether arguments of a tenant's failed tasks are kept: as long as they leave half of the quota to what the tenant
    /// submits and computes.
    pub(super) fn has_room(&self, tenant: TenantId) -> bool {
        self.usage(tenant).bytes <= self.most_bytes / 2
    }

    /// Lists a tenant's contents with hashes after this one, in the order of their hashes.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn list(
        &self,
        tenant: TenantId,
        after: Option<ContentHash>,
        limit: u32,
    ) -> Result<Vec<ListedContent>, Failure> {
        Ok(self.store.list_contents(tenant, after, limit).wait().await?)
    }

    /// Counts bytes that are about to be written to the store of tasks.
    ///
    /// # Errors
    /// `QuotaExceeded`.
    pub(super) fn hold(self: &Arc<Self>, tenant: TenantId, bytes: usize) -> Result<Inline, Failure> {
        self.take(tenant, bytes)?;
        Ok(self.held(tenant, bytes as u64))
    }

    /// Represents bytes in the store of tasks that are counted already.
    pub(super) fn held(self: &Arc<Self>, tenant: TenantId, bytes: u64) -> Inline {
        Inline {
            contents: Arc::clone(self),
            tenant,
            bytes,
        }
    }

    /// Adds bytes to a tenant's use.
    ///
    /// # Errors
    /// `QuotaExceeded`.
    fn take(&self, tenant: TenantId, bytes: usize) -> Result<(), Failure> {
        let max = self.most_bytes;
        let mut used = self.used();
        let used = used.entry(tenant).or_default();
        let more = used.saturating_add(bytes as u64);
        if more > max {
            let text = format!(
                "the content store holds {max} bytes for a tenant, and yours has {used}; delete results that you have \
                 fetched, by `dayfly task forget`. Results and arguments of failed tasks are kept for {} after the end \
                 of their task, other arguments until its end, and contents without a task for an hour after their \
                 last use",
                duration_text(self.retention)
            );
            return Err(Failure::new(Code::QuotaExceeded, text));
        }
        *used = more;
        Ok(())
    }

    /// Adds or subtracts bytes in the store of tasks, without a check of the quota.
    pub(super) fn count(&self, changes: impl IntoIterator<Item = (TenantId, i64)>) {
        let mut used = self.used();
        for (tenant, more) in changes {
            let used = used.entry(tenant).or_default();
            *used = used.saturating_add_signed(more);
        }
    }

    /// Tenants whose quota is full.
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

    /// Stores bytes as they arrive, under the hash that they must have. Idempotent.
    ///
    /// # Errors
    /// `HashMismatch`, `QuotaExceeded`, `InvalidRequest` for an interrupted stream, and those of the stores.
    pub async fn put<E: std::fmt::Display>(
        &self,
        tenant: TenantId,
        hash: ContentHash,
        mut bytes: impl Stream<Item = Result<Bytes, E>> + Unpin,
    ) -> Result<Content, Failure> {
        // The search runs while the bytes arrive.
        let known = self.store.use_contents(tenant, vec![hash], now_ms());
        let mut reserved = Reserved {
            contents: self,
            tenant,
            bytes: 0,
        };
        let mut writing = self.objects.write(&name(tenant, hash));
        let received = receive(&mut bytes, hash, &mut reserved, &mut writing).await;
        if let Some(known) = known.wait().await?.into_iter().next().flatten() {
            writing.abort().await;
            // Read to the end, so that the connection can be reused.
            while let Some(Ok(_)) = bytes.next().await {}
            return Ok(known);
        }
        if let Err(failure) = received {
            writing.abort().await;
            return Err(failure);
        }
        let content = Content {
            hash,
            bytes: reserved.bytes,
        };
        let storing = self.deleting.read().await;
        let held = writing.finish().await?;
        let new = self.store.keep_content(tenant, content, now_ms()).wait().await?;
        drop(storing);
        if new {
            // The bytes stay counted.
            reserved.bytes = 0;
        }
        if let Some(bytes) = held.filter(|bytes| bytes.len() <= MAX_RECENT_EACH) {
            self.recent().add((tenant, hash), bytes);
        }
        Ok(content)
    }

    /// Stores bytes in memory.
    pub async fn put_bytes(&self, tenant: TenantId, bytes: Bytes) -> Result<Content, Failure> {
        let hash = ContentHash(*blake3::hash(&bytes).as_bytes());
        let bytes = futures_util::stream::iter([Ok::<_, Failure>(bytes)]);
        self.put(tenant, hash, bytes).await
    }

    /// Stores a copy of borrowed bytes, made piece by piece, so that memory never has a whole second copy.
    pub async fn put_copy(&self, tenant: TenantId, bytes: &[u8]) -> Result<Content, Failure> {
        let hash = ContentHash(*blake3::hash(bytes).as_bytes());
        let pieces = bytes.chunks(PIECE_BYTES);
        let pieces = pieces.map(|piece| Ok::<_, Failure>(Bytes::copy_from_slice(piece)));
        self.put(tenant, hash, futures_util::stream::iter(pieces)).await
    }

    async fn known(&self, tenant: TenantId, hash: ContentHash) -> Result<Option<Content>, Failure> {
        let found = self.store.use_contents(tenant, vec![hash], now_ms()).wait().await?;
        Ok(found.into_iter().next().flatten())
    }

    /// Checks that contents exist, with these lengths.
    ///
    /// # Errors
    /// `NotFound`, `InvalidRequest` for another length.
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

    /// Returns the length of a content, and its bytes as a stream.
    ///
    /// # Errors
    /// `NotFound`, and those of the stores.
    pub async fn read(&self, tenant: TenantId, hash: ContentHash) -> Result<(u64, ObjectBytes), Failure> {
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
            "the content {hash} is missing in {}; store it again",
            self.objects.place()
        );
        Err(Failure::new(Code::NotFound, text))
    }

    /// Returns all bytes of a content.
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

    /// Deletes contents that no task refers to and that were not used for `unused`. Returns whether there may be more.
    async fn sweep(&self, unused: Duration) -> Result<bool, Failure> {
        let before = cautious_ms().saturating_sub(u64::try_from(unused.as_millis()).unwrap_or(u64::MAX));
        let _alone = self.deleting.write().await;
        let going = self.store.unused_contents(before).wait().await?;
        if going.is_empty() {
            return Ok(false);
        }
        for some in going.chunks(CONCURRENT_DELETIONS) {
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

/// Writes a stream, which must have this hash.
async fn receive<E: std::fmt::Display>(
    bytes: &mut (impl Stream<Item = Result<Bytes, E>> + Unpin),
    hash: ContentHash,
    reserved: &mut Reserved<'_>,
    writing: &mut ObjectWriter,
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
        let text = format!("the bytes have the hash {found}, not {hash}; send the hash that `b3sum` prints");
        return Err(Failure::new(Code::HashMismatch, text));
    }
    Ok(())
}

fn name(tenant: TenantId, hash: ContentHash) -> String {
    format!("{tenant}/{hash}")
}

fn missing(hash: ContentHash) -> Failure {
    let text = format!(
        "you have no content {hash}; it may have been deleted after an hour without use. Store it, then submit the \
         task"
    );
    Failure::new(Code::NotFound, text)
}

fn cut_short(error: impl std::fmt::Display) -> Failure {
    Failure::new(Code::InvalidRequest, format!("the content was cut short: {error}"))
}

/// Deletes unused contents, until the manager stops.
pub(super) async fn run(tasks: Weak<Tasks>) {
    let mut sweep = tokio::time::interval(SWEEP);
    loop {
        sweep.tick().await;
        loop {
            let Some(tasks) = tasks.upgrade() else { return };
            match tasks.contents.sweep(UNUSED).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::warn!(%error, "unused contents cannot be deleted; retrying");
                    break;
                }
            }
        }
    }
}

/// A duration as text, such as `7 days`.
pub(super) fn duration_text(length: Duration) -> String {
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
        let place = StoreUrl::parse(&format!("file://{}", directory.path().display())).unwrap();
        let store = Arc::new(SqliteTasks::open(None, None, false).unwrap());
        let options = ContentOptions {
            place,
            most_bytes,
            retention: Duration::from_secs(7 * 24 * 3600),
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
    async fn content_belongs_to_one_tenant_and_counts_once() {
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
    async fn refused_content_leaves_no_file_and_no_use() {
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
        // Each tenant has its own quota.
        contents.put_bytes(TENANT, "10 bytes..".into()).await.unwrap();
        contents.put_bytes(OTHER, "10 bytes..".into()).await.unwrap();
    }

    #[tokio::test]
    async fn unused_content_is_deleted_and_storable_again() {
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
