//! Objects by name, in a bucket or a directory.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use mayfly_protocol::error::{Code, Failure};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::client::HttpError;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientConfigKey, ClientOptions, Error, ObjectStore, RetryConfig, WriteMultipart};

use crate::place::{Kind, Place};
use crate::{CONNECT, PATIENCE};

/// One request, with all of an object.
const REQUEST: Duration = Duration::from_secs(60);
/// Requests that are repeated within [`PATIENCE`].
const RETRIES: usize = 8;
/// Objects of more bytes are stored in parts, at the same time: S3 takes no more than 5 GiB in one request.
const PART_BYTES: usize = 32 << 20;
/// Parts at the same time.
const PARTS: usize = 4;
/// Deletions at the same time.
const DELETIONS: usize = 16;

/// A bucket or a directory, and a prefix in it.
#[derive(Debug, Clone)]
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    place: Place,
    directory: Option<PathBuf>,
}

impl Objects {
    /// Opens what is there. A bucket is not asked yet. Endpoint, region and credentials of S3 come from the environment's `AWS_*`.
    ///
    /// # Errors
    /// When it is no such place, or the environment contradicts itself.
    pub fn open(place: &Place) -> Result<Self, Failure> {
        let wrong = |error: &dyn std::fmt::Display| {
            Failure::new(
                Code::InvalidRequest,
                format!("the store {place} cannot be opened: {error}"),
            )
        };
        let (store, prefix, directory): (Arc<dyn ObjectStore>, _, _) = match (place.kind(), place.directory()) {
            (Kind::File, Some(directory)) => {
                // Directories that are empty go, too.
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

    /// Where they are.
    pub fn place(&self) -> &Place {
        &self.place
    }

    fn path(&self, name: &str) -> Path {
        // Each part is escaped where the store would read something else in it.
        let parts = name.split('/').filter(|part| !part.is_empty());
        parts.fold(self.prefix.clone(), |path, part| path.child(part))
    }

    /// Stores an object, whole or not at all.
    pub async fn put(&self, name: &str, bytes: Bytes) -> Result<(), Failure> {
        let path = self.path(name);
        let until = Instant::now() + PATIENCE;
        loop {
            let bytes = bytes.clone();
            let stored = if bytes.len() <= PART_BYTES {
                self.store.put(&path, bytes.into()).await.map(drop)
            } else {
                self.put_parts(&path, bytes).await
            };
            match stored {
                Err(error) if self.is_swept(&error) && Instant::now() < until => tokio::task::yield_now().await,
                stored => return stored.map_err(|error| self.failed("storing", name, error)),
            }
        }
    }

    /// Whether a directory went, being empty, between its making and its first file: who deletes the last file deletes it, too.
    fn is_swept(&self, error: &Error) -> bool {
        // Or between another's making and a look at what the other made.
        let absent = |error: &std::io::Error| matches!(error.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists);
        self.directory.as_ref().is_some_and(|store| store.is_dir())
            && causes(error).any(|cause| cause.downcast_ref().is_some_and(absent))
    }

    async fn put_parts(&self, path: &Path, bytes: Bytes) -> Result<(), Error> {
        let upload = self.store.put_multipart(path).await?;
        let mut writing = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
        for at in (0..bytes.len()).step_by(PART_BYTES) {
            if let Err(error) = writing.wait_for_capacity(PARTS).await {
                // Parts of what is never complete would be kept, and cost.
                let _ = writing.abort().await;
                return Err(error);
            }
            writing.put(bytes.slice(at..bytes.len().min(at + PART_BYTES)));
        }
        writing.finish().await.map(drop)
    }

    /// An object, if there is one of this name.
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

    /// Deletes an object; that there is none is fine.
    pub async fn delete(&self, name: &str) -> Result<(), Failure> {
        match self.store.delete(&self.path(name)).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed("deleting", name, error)),
        }
    }

    /// The names of all objects below this one, in order, without it.
    pub async fn list(&self, under: &str) -> Result<Vec<String>, Failure> {
        let root = self.path(under);
        let listed = self.store.list(Some(&root));
        let listed: Vec<_> = listed
            .try_collect()
            .await
            .map_err(|error| self.failed("listing", under, error))?;
        let below = |path: &Path| {
            let parts: Vec<String> = path.prefix_match(&root)?.map(|part| part.as_ref().to_owned()).collect();
            (!parts.is_empty()).then(|| parts.join("/"))
        };
        let mut names: Vec<String> = listed.iter().filter_map(|found| below(&found.location)).collect();
        names.sort();
        Ok(names)
    }

    /// Deletes all objects below this one, and what was cut short in being stored there.
    pub async fn clear(&self, under: &str) -> Result<(), Failure> {
        if let Some(directory) = &self.directory {
            // A half-stored object is not listed.
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
        // What a listing failed of stands in its text alone.
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

/// How S3 says that there is none.
const NO_BUCKET: &str = "NoSuchBucket";

/// An error, what it comes of, what that comes of, and so on.
fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

/// An error and what it comes of, in one line.
fn all_of(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    for cause in causes(error).skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether no answer came.
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
    let builder = builder
        .with_bucket_name(name)
        .with_client_options(options)
        .with_retry(retry);
    builder.build().map_err(|error| wrong(all_of(&error)))
}

/// [`Objects`] for a program without a runtime: every call blocks until it is done.
#[derive(Debug)]
pub struct Blocking {
    runtime: tokio::runtime::Runtime,
    objects: Objects,
}

impl Blocking {
    /// As [`Objects::open`].
    pub fn open(place: &Place) -> Result<Self, Failure> {
        let runtime = crate::runtime(place)?;
        let objects = runtime.block_on(async { Objects::open(place) })?;
        Ok(Self { runtime, objects })
    }

    /// As [`Objects::put`].
    pub fn put(&self, name: &str, bytes: Bytes) -> Result<(), Failure> {
        self.runtime.block_on(self.objects.put(name, bytes))
    }

    /// As [`Objects::get`].
    pub fn get(&self, name: &str) -> Result<Option<Bytes>, Failure> {
        self.runtime.block_on(self.objects.get(name))
    }

    /// As [`Objects::list`].
    pub fn list(&self, under: &str) -> Result<Vec<String>, Failure> {
        self.runtime.block_on(self.objects.list(under))
    }

    /// As [`Objects::clear`].
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
