//! Named objects in a bucket or a directory.

mod bucket;
mod writer;

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use dayfly_protocol::error::{Code, Failure};
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, WriteMultipart};

use self::bucket::{MISSING_BUCKET, bucket, causes, full_text, is_network_error};
use self::writer::feed;
use crate::TIMEOUT;
use crate::store_url::{Kind, StoreUrl};

pub use self::bucket::open_bucket;
pub use self::writer::ObjectWriter;

/// Objects of more bytes are stored in parts concurrently. S3 accepts at most 5 GiB in one request.
const PART_BYTES: usize = 32 << 20;
/// Bytes of a piece of a large object that is read, and, in the next constant, the pieces requested ahead.
const PIECE_BYTES: usize = 8 << 20;
const PIECES: usize = 2;
/// Most concurrent deletions.
const DELETIONS: usize = 16;

/// An object in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    pub name: String,
    /// Length in bytes.
    pub bytes: u64,
    /// Time of storing by the store's clock, often in whole seconds. Milliseconds since the Unix epoch.
    pub modified_at_ms: u64,
    /// Distinguishes this state of the object from others.
    pub version: String,
}

/// A bucket or a directory, with a prefix in it.
#[derive(Debug, Clone)]
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    place: StoreUrl,
    directory: Option<PathBuf>,
}

impl Objects {
    /// Opens a store. Sends no request to a bucket yet. Endpoint, region and credentials of S3 come from the `AWS_*`
    /// environment variables.
    ///
    /// # Errors
    /// `NotFound` for a missing directory, `InvalidRequest` for an unsuitable place or contradictory environment
    /// variables.
    pub fn open(place: &StoreUrl) -> Result<Self, Failure> {
        let wrong = |error: &dyn std::fmt::Display| {
            Failure::new(
                Code::InvalidRequest,
                format!("the store {place} cannot be opened: {error}"),
            )
        };
        let (store, prefix, directory): (Arc<dyn ObjectStore>, _, _) = match (place.kind(), place.directory()) {
            (Kind::File, Some(directory)) => {
                // Empty directories are removed, too.
                let store = LocalFileSystem::new_with_prefix(&directory)
                    .map_err(|error| {
                        let text = format!("the store {place} cannot be opened: {error}; make the directory first");
                        Failure::new(Code::NotFound, text)
                    })?
                    .with_automatic_cleanup(true);
                (Arc::new(store), Path::default(), Some(directory))
            }
            (Kind::S3, _) => {
                let prefix = Path::from_url_path(place.parsed().path()).map_err(|error| wrong(&error))?;
                (Arc::new(bucket(place)?), prefix, None)
            }
            _ => {
                return Err(wrong(
                    &"it has no objects; name a bucket (s3://) or a directory (file://)",
                ));
            }
        };
        Ok(Self {
            store,
            prefix,
            place: place.clone(),
            directory,
        })
    }

    /// Location of the store.
    pub fn place(&self) -> &StoreUrl {
        &self.place
    }

    fn path(&self, name: &str) -> Path {
        // Escape characters that have a special meaning for the store.
        let parts = name.split('/').filter(|part| !part.is_empty());
        parts.fold(self.prefix.clone(), |path, part| path.join(part))
    }

    /// Stores an object atomically.
    pub async fn put(&self, name: &str, bytes: Bytes) -> Result<(), Failure> {
        let path = self.path(name);
        let until = Instant::now() + TIMEOUT;
        loop {
            let bytes = bytes.clone();
            let stored = match bytes.len() <= PART_BYTES {
                true => self.store.put(&path, bytes.into()).await.map(drop),
                false => self.put_parts(&path, bytes).await,
            };
            match stored {
                Err(error) if self.is_swept(&error) && Instant::now() < until => tokio::task::yield_now().await,
                stored => return stored.map_err(|error| self.failed("storing", name, error)),
            }
        }
    }

    /// Whether an empty directory was removed between its creation and its first file. Deleting the last file of a
    /// directory also deletes the directory.
    fn is_swept(&self, error: &Error) -> bool {
        // The directory may also vanish while another process creates it.
        let absent = |error: &std::io::Error| matches!(error.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists);
        self.directory.as_ref().is_some_and(|store| store.is_dir())
            && causes(error).any(|cause| cause.downcast_ref().is_some_and(absent))
    }

    async fn put_parts(&self, path: &Path, bytes: Bytes) -> Result<(), Error> {
        let upload = self.store.put_multipart(path).await?;
        let writing = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
        let parts = (0..bytes.len()).step_by(PART_BYTES);
        let parts = parts.map(|at| bytes.slice(at..bytes.len().min(at + PART_BYTES)));
        feed(writing, parts.collect()).await?.finish().await.map(drop)
    }

    /// Begins an object that is written in pieces. It becomes visible at [`ObjectWriter::finish`].
    pub fn write(&self, name: &str) -> ObjectWriter {
        ObjectWriter::new(self.clone(), name.to_owned())
    }

    /// Waits until a stored object is on the disk. A bucket confirms that itself.
    async fn sync(&self, name: &str) -> Result<(), Failure> {
        let Some(directory) = &self.directory else {
            return Ok(());
        };
        let path = directory.join(self.path(name).as_ref());
        let synced = tokio::task::spawn_blocking({
            let path = path.clone();
            move || {
                let file = std::fs::File::open(&path)?;
                file.sync_data()?;
                // Soon after, readers get the object from our own memory. If it stayed in the kernel's cache, each
                // object would take unused pages, which a virtual machine must first get from its host. That costs more
                // than the disk.
                let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
                // The directory entry must reach the disk, too.
                path.parent()
                    .map_or(Ok(()), |parent| std::fs::File::open(parent)?.sync_all())
            }
        });
        let synced = synced.await.map_err(std::io::Error::other).and_then(|synced| synced);
        synced.map_err(|error| {
            let text = format!("writing {} to the disk failed: {error}", path.display());
            Failure::new(Code::StoreFailed, text)
        })
    }

    /// Returns an object's length and its bytes as a stream, or `None` if it does not exist.
    pub async fn read(&self, name: &str) -> Result<Option<(u64, ObjectBytes)>, Failure> {
        let path = self.path(name);
        let found = match self.store.get(&path).await {
            Ok(found) => found,
            Err(Error::NotFound { source, .. }) if !source.to_string().contains(MISSING_BUCKET) => return Ok(None),
            Err(error) => return Err(self.failed("reading", name, error)),
        };
        let length = found.meta.size;
        let (objects, name) = (self.clone(), name.to_owned());
        if length <= PART_BYTES as u64 {
            let bytes = found
                .bytes()
                .await
                .map_err(|error| self.failed("reading", &name, error));
            return Ok(Some((length, futures_util::stream::iter([bytes]).boxed())));
        }
        let ranges = (0..length)
            .step_by(PIECE_BYTES)
            .map(move |at| at..length.min(at + PIECE_BYTES as u64));
        let pieces = futures_util::stream::iter(ranges).map(move |range| {
            let (objects, path, name) = (objects.clone(), path.clone(), name.clone());
            async move {
                let piece = objects.store.get_range(&path, range).await;
                piece.map_err(|error| objects.failed("reading", &name, error))
            }
        });
        Ok(Some((length, pieces.buffered(PIECES).boxed())))
    }

    /// Returns an object, or `None` if it does not exist.
    pub async fn get(&self, name: &str) -> Result<Option<Bytes>, Failure> {
        let got = match self.store.get(&self.path(name)).await {
            Ok(found) => found.bytes().await,
            Err(error) => Err(error),
        };
        match got {
            Ok(bytes) => Ok(Some(bytes)),
            Err(Error::NotFound { source, .. }) if !source.to_string().contains(MISSING_BUCKET) => Ok(None),
            Err(error) => Err(self.failed("reading", name, error)),
        }
    }

    /// Deletes an object. Idempotent.
    pub async fn delete(&self, name: &str) -> Result<(), Failure> {
        match self.store.delete(&self.path(name)).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed("deleting", name, error)),
        }
    }

    /// Returns the names of all objects below `under` in order, relative to it.
    pub async fn list(&self, under: &str) -> Result<Vec<String>, Failure> {
        let listed = self.list_info(under, usize::MAX).await?;
        Ok(listed.into_iter().map(|one| one.name).collect())
    }

    /// Returns all objects below `under`, ordered by name. Names are relative to `under`.
    ///
    /// # Errors
    /// Fails if there are more than `most` objects.
    pub async fn list_info(&self, under: &str, most: usize) -> Result<Vec<ObjectInfo>, Failure> {
        let root = self.path(under);
        let found = self.store.list(Some(&root)).take(most.saturating_add(1));
        let found: Vec<_> = found
            .try_collect()
            .await
            .map_err(|error| self.failed("listing", under, error))?;
        if found.len() > most {
            let text = format!(
                "there are more than {most} objects below `{under}` in {}; name a longer prefix, or delete some",
                self.place
            );
            return Err(Failure::new(Code::TooLarge, text));
        }
        let below = |path: &Path| {
            let parts: Vec<String> = path.prefix_match(&root)?.map(|part| part.as_ref().to_owned()).collect();
            (!parts.is_empty()).then(|| parts.join("/"))
        };
        let listed = found.into_iter().filter_map(|found| {
            let modified_at_ms = u64::try_from(found.last_modified.timestamp_millis()).unwrap_or_default();
            // Storing the same bytes again counts as another state.
            let tag = found.e_tag.map(|tag| tag.trim_matches('"').to_owned());
            let tag = tag.unwrap_or_else(|| found.size.to_string());
            Some(ObjectInfo {
                name: below(&found.location)?,
                bytes: found.size,
                modified_at_ms,
                version: format!("{modified_at_ms}-{tag}"),
            })
        });
        let mut listed: Vec<_> = listed.collect();
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(listed)
    }

    /// Deletes all objects below `under`, including incompletely stored ones.
    pub async fn clear(&self, under: &str) -> Result<(), Failure> {
        if let Some(directory) = &self.directory {
            // A listing omits incompletely stored objects.
            let directory = directory.join(self.path(under).as_ref());
            return match tokio::fs::remove_dir_all(&directory).await {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    let text = format!("deleting {} failed: {error}", directory.display());
                    Err(Failure::new(Code::StoreFailed, text))
                }
                _ => Ok(()),
            };
        }
        let names = self
            .list(under)
            .await?
            .into_iter()
            .map(|name| format!("{under}/{name}"));
        futures_util::stream::iter(names)
            .map(Ok)
            .try_for_each_concurrent(DELETIONS, async |name| self.delete(&name).await)
            .await
    }

    fn failed(&self, doing: &str, name: &str, error: Error) -> Failure {
        let place = &self.place;
        let text = full_text(&error);
        // The cause of a failed listing appears only in the error's text.
        let absent = matches!(error, Error::NotFound { .. }) || text.contains(MISSING_BUCKET);
        let refused = matches!(error, Error::PermissionDenied { .. } | Error::Unauthenticated { .. })
            || text.contains("403 Forbidden")
            || text.contains("401 Unauthorized");
        let (code, advice) = match &error {
            _ if absent => (Code::NotFound, "there is no such bucket; make it, or name another"),
            _ if refused => (
                Code::Forbidden,
                "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and what they may do: put, get, list and delete objects there",
            ),
            _ if is_network_error(&error) => (
                Code::Unreachable,
                "check the address (AWS_ENDPOINT_URL) and the network",
            ),
            _ => (Code::StoreFailed, "see the store's message"),
        };
        Failure::new(code, format!("{doing} `{name}` in {place} failed: {advice} ({text})"))
    }
}

/// The bytes of an object, as a stream.
pub type ObjectBytes = BoxStream<'static, Result<Bytes, Failure>>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BlockingObjects;

    fn here() -> (tempfile::TempDir, BlockingObjects) {
        let directory = tempfile::tempdir().unwrap();
        let place = StoreUrl::parse(&format!("file://{}", directory.path().display())).unwrap();
        let objects = BlockingObjects::open(&place).unwrap();
        (directory, objects)
    }

    #[test]
    fn cleared_prefix_leaves_no_objects_and_no_directory() {
        let (directory, objects) = here();
        objects.put("run/b/2", Bytes::from_static(b"two")).unwrap();
        objects.put("run/a", Bytes::from_static(b"one")).unwrap();
        objects.put("other", Bytes::from_static(b"mine")).unwrap();
        assert_eq!(objects.list("run").unwrap(), ["a", "b/2"]);
        assert_eq!(objects.get("run/b/2").unwrap().unwrap(), "two");
        assert_eq!(objects.get("run/c").unwrap(), None);
        objects.clear("run").unwrap();
        assert_eq!(objects.list("").unwrap(), ["other"]);
        assert!(!directory.path().join("run").exists());
        objects.clear("run").unwrap();
    }

    #[test]
    fn listing_has_lengths_and_versions_within_its_limit() {
        let (_directory, objects) = here();
        let listed = |most| objects.runtime.block_on(objects.objects.list_info("run", most));
        objects.put("run/b/2", Bytes::from_static(b"two")).unwrap();
        objects.put("run/a", Bytes::from_static(b"o")).unwrap();
        let before = listed(2).unwrap();
        let seen: Vec<_> = before.iter().map(|one| (one.name.as_str(), one.bytes)).collect();
        assert_eq!(seen, [("a", 1), ("b/2", 3)]);
        assert!(before.iter().all(|one| one.modified_at_ms > 1_500_000_000_000));
        objects.put("run/a", Bytes::from_static(b"one")).unwrap();
        let after = listed(2).unwrap();
        assert_ne!(after[0].version, before[0].version);
        assert_eq!(after[1], before[1]);
        assert_eq!(listed(1).unwrap_err().code, Code::TooLarge);
    }

    #[test]
    fn object_is_stored_while_its_directory_is_deleted() {
        let (directory, _) = here();
        let place = StoreUrl::parse(&format!("file://{}", directory.path().display())).unwrap();
        let churn = |name: &str| {
            let objects = BlockingObjects::open(&place).unwrap();
            let name = format!("run/lane/{name}");
            for _ in 0..3000 {
                objects.put(&name, Bytes::from_static(b"x")).unwrap();
                objects.runtime.block_on(objects.objects.delete(&name)).unwrap();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| churn("a"));
            scope.spawn(|| churn("b"));
        });
    }

    #[test]
    fn object_written_in_pieces_appears_when_finished() {
        let (directory, objects) = here();
        let piece = Bytes::from(vec![7; 5 << 20]);
        for pieces in [0, 1, 9] {
            objects.runtime.block_on(async {
                let mut writing = objects.objects.write("run/whole");
                let mut given_up = objects.objects.write("run/given-up");
                for _ in 0..pieces {
                    writing.write(piece.clone()).await.unwrap();
                    given_up.write(piece.clone()).await.unwrap();
                }
                given_up.abort().await;
                writing.finish().await.unwrap();
                let (length, mut bytes) = objects.objects.read("run/whole").await.unwrap().unwrap();
                let mut read = 0;
                while let Some(bytes) = bytes.try_next().await.unwrap() {
                    assert!(bytes.iter().all(|byte| *byte == 7));
                    read += bytes.len() as u64;
                }
                assert_eq!((length, read), (pieces * piece.len() as u64, length));
                assert!(objects.objects.read("run/given-up").await.unwrap().is_none());
            });
            assert_eq!(std::fs::read_dir(directory.path().join("run")).unwrap().count(), 1);
        }
    }

    #[test]
    fn object_name_cannot_leave_the_store() {
        let (directory, objects) = here();
        objects.put("../../escaped", Bytes::from_static(b"x")).unwrap();
        assert_eq!(objects.list("").unwrap().len(), 1);
        assert!(!directory.path().parent().unwrap().join("escaped").exists());
        assert_eq!(objects.get("../../escaped").unwrap().unwrap(), "x");
    }

    #[test]
    fn missing_directory_is_named() {
        let place = StoreUrl::parse("file:///nonexistent/store").unwrap();
        let failure = BlockingObjects::open(&place).unwrap_err();
        assert_eq!(failure.code, Code::NotFound);
        assert!(failure.message.contains("file:///nonexistent/store"), "{failure}");
    }
}
