//! Named objects in a bucket or a directory.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dayfly_protocol::error::{Code, Failure};
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::client::HttpError;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientConfigKey, ClientOptions, Error, ObjectStore, ObjectStoreExt, RetryConfig, WriteMultipart,
};

use crate::place::{Kind, Place};
use crate::{CONNECT, PATIENCE};

/// Time limit of one request, including the transfer of its object.
const REQUEST: Duration = Duration::from_secs(60);
/// Most repetitions of a request within [`PATIENCE`].
const RETRIES: usize = 8;
/// Objects of more bytes are stored in parts concurrently. S3 accepts at most 5 GiB in one request.
const PART_BYTES: usize = 32 << 20;
/// Most parts in flight.
const PARTS: usize = 4;
/// Bytes of a piece of a large object that is read, and, in the next constant, the pieces requested ahead.
const PIECE_BYTES: usize = 8 << 20;
const PIECES: usize = 2;
/// Most concurrent deletions.
const DELETIONS: usize = 16;

/// An object in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
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
    place: Place,
    directory: Option<PathBuf>,
}

impl Objects {
    /// Opens a store. Sends no request to a bucket yet. Endpoint, region and credentials of S3 come from the `AWS_*`
    /// environment variables.
    ///
    /// # Errors
    /// `NotFound` for a missing directory, `InvalidRequest` for an unsuitable place or contradictory environment
    /// variables.
    pub fn open(place: &Place) -> Result<Self, Failure> {
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
    pub fn place(&self) -> &Place {
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
        let until = Instant::now() + PATIENCE;
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

    /// Begins an object that is written in pieces. It becomes visible at [`Writing::finish`].
    pub fn write(&self, name: &str) -> Writing {
        Writing {
            objects: self.clone(),
            name: name.to_owned(),
            begun: None,
            held: Vec::new(),
            held_bytes: 0,
        }
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
    pub async fn read(&self, name: &str) -> Result<Option<(u64, Reading)>, Failure> {
        let path = self.path(name);
        let found = match self.store.get(&path).await {
            Ok(found) => found,
            Err(Error::NotFound { source, .. }) if !source.to_string().contains(NO_BUCKET) => return Ok(None),
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
            Err(Error::NotFound { source, .. }) if !source.to_string().contains(NO_BUCKET) => Ok(None),
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
        let listed = self.listed(under, usize::MAX).await?;
        Ok(listed.into_iter().map(|one| one.name).collect())
    }

    /// Returns all objects below `under`, ordered by name. Names are relative to `under`.
    ///
    /// # Errors
    /// Fails if there are more than `most` objects.
    pub async fn listed(&self, under: &str, most: usize) -> Result<Vec<Listed>, Failure> {
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
            Some(Listed {
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
        let text = all_of(&error);
        // The cause of a failed listing appears only in the error's text.
        let absent = matches!(error, Error::NotFound { .. }) || text.contains(NO_BUCKET);
        let refused = matches!(error, Error::PermissionDenied { .. } | Error::Unauthenticated { .. })
            || text.contains("403 Forbidden")
            || text.contains("401 Unauthorized");
        let (code, advice) = match &error {
            _ if absent => (Code::NotFound, "there is no such bucket; make it, or name another"),
            _ if refused => (
                Code::Forbidden,
                "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and what they may do: put, get, list and delete objects there",
            ),
            _ if is_of_the_network(&error) => (
                Code::Unreachable,
                "check the address (AWS_ENDPOINT_URL) and the network",
            ),
            _ => (Code::StoreFailed, "see what the store says"),
        };
        Failure::new(code, format!("{doing} `{name}` in {place} failed: {advice} ({text})"))
    }
}

/// The bytes of an object, as a stream.
pub type Reading = BoxStream<'static, Result<Bytes, Failure>>;

/// An object that is being written. Dropping it before its end discards it, but only [`Writing::abort`] deletes the
/// parts that a bucket already has.
pub struct Writing {
    objects: Objects,
    name: String,
    /// The upload, once the object is too long to be held in memory.
    begun: Option<WriteMultipart>,
    held: Vec<Bytes>,
    held_bytes: usize,
}

impl Writing {
    /// Appends bytes.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), Failure> {
        if self.begun.is_none() && self.held_bytes + bytes.len() <= PART_BYTES {
            self.held_bytes += bytes.len();
            self.held.push(bytes);
            return Ok(());
        }
        let objects = self.objects.clone();
        let failed = |error| objects.failed("storing", &self.name, error);
        let writing = match self.begun.take() {
            Some(writing) => writing,
            None => {
                let path = objects.path(&self.name);
                let upload = objects.store.put_multipart(&path).await.map_err(failed)?;
                WriteMultipart::new_with_chunk_size(upload, PART_BYTES)
            }
        };
        let pieces = self.held.drain(..).chain([bytes]).collect();
        self.begun = Some(feed(writing, pieces).await.map_err(failed)?);
        Ok(())
    }

    /// Completes the object: it is now visible and durable. Returns its bytes if they were held in memory.
    pub async fn finish(self) -> Result<Option<Bytes>, Failure> {
        let held = match self.begun {
            Some(writing) => {
                let finished = writing.finish().await;
                finished.map_err(|error| self.objects.failed("storing", &self.name, error))?;
                None
            }
            None => {
                let whole: Bytes = match &self.held[..] {
                    [whole] => whole.clone(),
                    pieces => pieces.concat().into(),
                };
                self.objects.put(&self.name, whole.clone()).await?;
                Some(whole)
            }
        };
        self.objects.sync(&self.name).await?;
        Ok(held)
    }

    /// Discards the object.
    pub async fn abort(self) {
        if let Some(writing) = self.begun {
            // A bucket would keep the parts of an incomplete object, and bill them.
            let _ = writing.abort().await;
        }
    }
}

/// Adds pieces to an upload, as fast as its parts are sent.
async fn feed(mut writing: WriteMultipart, pieces: Vec<Bytes>) -> Result<WriteMultipart, Error> {
    for piece in pieces {
        if let Err(error) = writing.wait_for_capacity(PARTS).await {
            // A bucket would keep the parts of an incomplete object, and bill them.
            let _ = writing.abort().await;
            return Err(error);
        }
        writing.put(piece);
    }
    Ok(writing)
}

/// The error code of S3 for a missing bucket.
const NO_BUCKET: &str = "NoSuchBucket";

/// Returns an error and its chain of causes.
fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

/// Returns an error and its chain of causes in one line.
fn all_of(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    for cause in causes(error).skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether the request got no response.
fn is_of_the_network(error: &(dyn std::error::Error + 'static)) -> bool {
    causes(error).any(|cause| cause.is::<HttpError>())
}

fn bucket(place: &Place) -> Result<object_store::aws::AmazonS3, Failure> {
    let wrong = |text: String| {
        Failure::new(
            Code::InvalidRequest,
            format!("the store {place} cannot be opened: {text}"),
        )
    };
    let builder = AmazonS3Builder::from_env();
    let endpoint = builder
        .get_config_value(&AmazonS3ConfigKey::Endpoint)
        .unwrap_or_default();
    let allowed = builder.get_config_value(&AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp));
    let http = allowed.is_some_and(|text| matches!(text.as_str(), "true" | "1" | "yes" | "on"));
    if endpoint.starts_with("http://") && !http {
        return Err(wrong(format!(
            "{endpoint} is not encrypted; set AWS_ALLOW_HTTP=true if that is meant, or name an https:// endpoint"
        )));
    }
    let options = ClientOptions::new()
        .with_allow_http(http)
        // Without encryption there is nothing to check, and a bare container may have no certificates.
        .with_no_system_certificates(endpoint.starts_with("http://"))
        .with_connect_timeout(CONNECT)
        .with_timeout(REQUEST);
    let retry = RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_secs(2),
            base: 2.0,
        },
        max_retries: RETRIES,
        retry_timeout: PATIENCE,
    };
    let name = place.parsed().host_str().unwrap_or_default();
    // reqwest uses the process's default provider and panics if there is none. A program that installed another one
    // keeps it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = builder
        .with_bucket_name(name)
        .with_client_options(options)
        .with_retry(retry);
    builder.build().map_err(|error| wrong(all_of(&error)))
}

/// [`Objects`] for a program without an async runtime. Every call blocks until it completes.
#[derive(Debug)]
pub struct Blocking {
    runtime: tokio::runtime::Runtime,
    objects: Objects,
}

impl Blocking {
    /// Like [`Objects::open`].
    pub fn open(place: &Place) -> Result<Self, Failure> {
        let runtime = crate::runtime(place)?;
        let objects = runtime.block_on(async { Objects::open(place) })?;
        Ok(Self { runtime, objects })
    }

    /// Like [`Objects::put`].
    pub fn put(&self, name: &str, bytes: Bytes) -> Result<(), Failure> {
        self.runtime.block_on(self.objects.put(name, bytes))
    }

    /// Like [`Objects::get`].
    pub fn get(&self, name: &str) -> Result<Option<Bytes>, Failure> {
        self.runtime.block_on(self.objects.get(name))
    }

    /// Like [`Objects::list`].
    pub fn list(&self, under: &str) -> Result<Vec<String>, Failure> {
        self.runtime.block_on(self.objects.list(under))
    }

    /// Like [`Objects::clear`].
    pub fn clear(&self, under: &str) -> Result<(), Failure> {
        self.runtime.block_on(self.objects.clear(under))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> (tempfile::TempDir, Blocking) {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::parse(&format!("file://{}", directory.path().display())).unwrap();
        let objects = Blocking::open(&place).unwrap();
        (directory, objects)
    }

    #[test]
    fn what_is_put_is_listed_and_got_until_it_is_cleared_and_then_nothing_is_left() {
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
    fn what_is_listed_has_its_length_and_a_version_that_changes_with_it_unless_there_is_too_much() {
        let (_directory, objects) = here();
        let listed = |most| objects.runtime.block_on(objects.objects.listed("run", most));
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
    fn what_is_put_where_another_deletes_the_last_object_is_stored_all_the_same() {
        let (directory, _) = here();
        let place = Place::parse(&format!("file://{}", directory.path().display())).unwrap();
        let churn = |name: &str| {
            let objects = Blocking::open(&place).unwrap();
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
    fn what_comes_in_pieces_is_there_as_a_whole_once_it_is_finished_and_not_at_all_where_it_is_not() {
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
    fn a_name_cannot_lead_out_of_the_store() {
        let (directory, objects) = here();
        objects.put("../../escaped", Bytes::from_static(b"x")).unwrap();
        assert_eq!(objects.list("").unwrap().len(), 1);
        assert!(!directory.path().parent().unwrap().join("escaped").exists());
        assert_eq!(objects.get("../../escaped").unwrap().unwrap(), "x");
    }

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let place = Place::parse("file:///nonexistent/store").unwrap();
        let failure = Blocking::open(&place).unwrap_err();
        assert_eq!(failure.code, Code::NotFound);
        assert!(failure.message.contains("file:///nonexistent/store"), "{failure}");
    }
}
