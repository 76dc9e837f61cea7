//! Images of leases: the permitted ones, and their directories.
//!
//! Images that the node's owner names are unpacked when the node starts, once for each version, and checked every
//! minute. A name in a lease is only compared with the permitted ones, unless the owner permits any.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dayfly_protocol::error::{Code, Failure};
pub use dayfly_sandbox::image::Reference;
use dayfly_sandbox::image::{self, ImageError, Limits};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;

use crate::executors::{ExternalProgram, end_unknown_children};

/// Longest wait of a lease for an image that is being unpacked.
const TIMEOUT: Duration = Duration::from_secs(2);

/// An image that executors can be started in.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Image {
    /// Its root directory on this host.
    pub root: PathBuf,
    /// Exact identity, as leases show it.
    pub described: String,
    /// Variables for its programs.
    pub environment: Vec<(String, String)>,
}

/// The images of a node.
#[derive(Debug)]
pub struct Images {
    dir: PathBuf,
    /// The node's unique name on this host.
    owner: String,
    /// Permitted names, exactly as written; the first is the default.
    named: Vec<String>,
    /// Whether unknown children of this process are ended.
    own_process: bool,
    /// Whether the node is closing.
    closed: AtomicBool,
    slots: Mutex<HashMap<String, Arc<OnceCell<ReadyImage>>>>,
    /// Directories in `dir` that are in use.
    kept: Mutex<HashSet<PathBuf>>,
    /// Unpacked images that their names do not refer to any more.
    retired: Mutex<Vec<Arc<Image>>>,
    /// Held during unpacking: disks are fastest with one at a time.
    unpacking: tokio::sync::Mutex<()>,
}

#[derive(Debug, Clone)]
struct ReadyImage {
    mark: String,
    image: Arc<Image>,
}

impl Images {
    /// `dir` keeps unpacked images, also for the node's next process.
    pub fn new(dir: PathBuf, owner: String, named: Vec<String>, own_process: bool) -> Arc<Self> {
        Arc::new(Self {
            dir,
            owner,
            named,
            own_process,
            closed: false.into(),
            slots: Mutex::default(),
            kept: Mutex::default(),
            retired: Mutex::default(),
            unpacking: tokio::sync::Mutex::default(),
        })
    }

    /// Prepares all images that the owner named, and removes unused ones of an earlier process.
    pub async fn prepare(self: &Arc<Self>) {
        for name in &self.named {
            if let Err(error) = self.ready(name).await {
                tracing::warn!(name, %error, "an image is not available");
            }
        }
        let mine = self.clone();
        let _ = tokio::task::spawn_blocking(move || mine.remove_unused()).await;
    }

    /// Ends an unpacking, and waits until it has ended.
    pub async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        drop(self.unpacking.lock().await);
    }

    /// The image of a lease that requests `asked`. With `any`, it may be one that the operator did not name.
    pub async fn get(self: &Arc<Self>, asked: Option<&str>, any: bool) -> Result<Arc<Image>, Failure> {
        let (name, pinned) = self.allowed_name(asked, any)?;
        let (mine, known) = (self.clone(), name.clone());
        // The task goes on without its requester, so that the next request finds the image.
        let ready = tokio::spawn(async move { mine.ready(&known).await });
        let ready = match tokio::time::timeout(TIMEOUT, ready).await {
            Ok(Ok(ready)) => ready.map_err(|error| failure(&error))?,
            Ok(Err(error)) => return Err(Failure::new(Code::Internal, error.to_string())),
            Err(_) => {
                let text = format!(
                    "the node is still unpacking the image `{name}`; try again in a moment, or wait for a place"
                );
                return Err(Failure::new(Code::NoCapacity, text));
            }
        };
        match pinned {
            Some(asked) if !ready.image.described.ends_with(&asked) => {
                let text = format!(
                    "the lease asks for `{name}` as {asked} and the node has {}; ask for that",
                    ready.image.described
                );
                Err(Failure::new(Code::InvalidRequest, text))
            }
            _ => Ok(ready.image),
        }
    }

    /// The name to look up, and the digest that the lease requires, if any.
    fn allowed_name(&self, asked: Option<&str>, any: bool) -> Result<(String, Option<String>), Failure> {
        let refused = |text: String| Err(Failure::new(Code::InvalidRequest, text));
        let names = &self.named;
        if let (true, Some(asked)) = (any, asked) {
            let checked = Reference::parse(asked).map_err(|error| failure(&error))?;
            return match (checked, asked.split_once('@')) {
                // The node compares the digest of a file; the container runtime looks up that of a name.
                (Reference::Path(_), Some((path, digest))) if !Path::new(asked).exists() => {
                    Ok((path.into(), Some(digest.into())))
                }
                _ => Ok((asked.into(), None)),
            };
        }
        if any && names.is_empty() {
            return refused("the lease asks for a container and names no image; name one".into());
        }
        let Some(first) = names.first() else {
            return refused(
                "this node allows no image; lease with sandbox `isolated`, or have the node's operator start it with --image".into(),
            );
        };
        let Some(asked) = asked else {
            return Ok((first.clone(), None));
        };
        if names.iter().any(|name| name == asked) {
            return Ok((asked.into(), None));
        }
        match asked.rsplit_once('@') {
            Some((name, digest)) if names.iter().any(|allowed| allowed == name) => {
                Ok((name.into(), Some(digest.into())))
            }
            _ => refused(format!(
                "the lease asks for the image `{}`, and this node allows `{}` only; ask for that, or the node's operator to \
                 allow it (see `dayfly node --help`)",
                asked.chars().take(100).collect::<String>(),
                names.join("` or `"),
            )),
        }
    }

    async fn ready(self: &Arc<Self>, name: &str) -> Result<ReadyImage, ImageError> {
        let slot = lock(&self.slots).entry(name.into()).or_default().clone();
        let ready = slot.get_or_try_init(|| self.fetch(name)).await.cloned();
        if ready.is_err() {
            // The image may appear later.
            let mut slots = lock(&self.slots);
            if slots
                .get(name)
                .is_some_and(|known| Arc::ptr_eq(known, &slot) && !known.initialized())
            {
                slots.remove(name);
            }
        }
        ready
    }

    async fn fetch(self: &Arc<Self>, name: &str) -> Result<ReadyImage, ImageError> {
        let _one = self.unpacking.lock().await;
        let (mine, name) = (self.clone(), name.to_string());
        let done = tokio::task::spawn_blocking(move || {
            let external = ExternalProgram::begin();
            let fetched = mine.unpack(&name);
            drop(external);
            if mine.own_process {
                // Processes that a container runtime left.
                end_unknown_children();
            }
            fetched
        });
        done.await
            .unwrap_or_else(|error| Err(std::io::Error::other(error).into()))
    }

    /// Unpacks an image unless it exists. Blocks until then.
    fn unpack(&self, name: &str) -> Result<ReadyImage, ImageError> {
        let found = image::find(&Reference::parse(name)?)?;
        let ready = |image| ReadyImage {
            mark: found.mark.clone(),
            image: Arc::new(image),
        };
        if found.is_in_place() {
            return Ok(ready(of(found.unpack(
                Path::new(""),
                &Limits::default(),
                &self.owner,
                &self.closed,
            )?)));
        }
        std::fs::create_dir_all(&self.dir)?;
        let key: String = hex::encode(Sha256::digest(format!("{name} {}", found.mark)))
            .chars()
            .take(32)
            .collect();
        // The note is written beside an image when it is complete.
        let (kept, note) = (self.dir.join(&key), self.dir.join(format!("{key}.json")));
        if let Ok(text) = std::fs::read(&note)
            && let Ok(image) = serde_json::from_slice::<Image>(&text)
            && image.root.is_dir()
        {
            // The image may have been retired, when its name referred to another one for a while.
            lock(&self.retired).retain(|retired| retired.root != image.root);
            lock(&self.kept).insert(image.root.clone());
            return Ok(ready(image));
        }
        remove(&kept)?;
        tracing::info!(name, "unpacking an image");
        let unpacked = found.unpack(&kept, &Limits::default(), &self.owner, &self.closed);
        let image = match unpacked {
            Ok(unpacked) => of(unpacked),
            Err(error) => {
                remove(&kept)?;
                return Err(error);
            }
        };
        let text = serde_json::to_vec(&image).map_err(std::io::Error::other)?;
        std::fs::write(&note, text)?;
        lock(&self.kept).insert(image.root.clone());
        tracing::info!(name, image = image.described, "an image is ready");
        Ok(ready(image))
    }

    /// Checks which images the names refer to. Call it about once a minute.
    pub async fn refresh(self: &Arc<Self>) {
        let known: Vec<(String, Arc<OnceCell<ReadyImage>>)> = {
            let slots = lock(&self.slots);
            slots.iter().map(|(name, slot)| (name.clone(), slot.clone())).collect()
        };
        for (name, slot) in known {
            let Some(was) = slot.get() else { continue };
            let wanted = name.clone();
            let found = tokio::task::spawn_blocking(move || {
                let _external = ExternalProgram::begin();
                Reference::parse(&wanted).and_then(|reference| image::find(&reference))
            });
            let Ok(found) = found.await else { continue };
            match found {
                Ok(found) if found.mark == was.mark => continue,
                // Leases use the old image meanwhile.
                Ok(_) => match self.fetch(&name).await {
                    Ok(now) => drop(lock(&self.slots).insert(name, Arc::new(OnceCell::new_with(Some(now))))),
                    Err(error) => {
                        tracing::warn!(name, %error, "an image has changed and cannot be unpacked");
                        continue;
                    }
                },
                Err(ImageError::NotThere { .. }) => drop(lock(&self.slots).remove(&name)),
                Err(error) => {
                    tracing::warn!(name, %error, "an image cannot be checked");
                    continue;
                }
            }
            lock(&self.retired).push(was.image.clone());
        }
        let mine = self.clone();
        let _ = tokio::task::spawn_blocking(move || mine.remove_retired()).await;
    }

    /// Removes images that no lease or parked executor uses any more.
    fn remove_retired(&self) {
        let _none_unpacks = self.unpacking.blocking_lock();
        let gone: Vec<_> = {
            let mut retired = lock(&self.retired);
            retired.extract_if(.., |image| Arc::strong_count(image) == 1).collect()
        };
        if gone.is_empty() {
            return;
        }
        lock(&self.kept).retain(|root| gone.iter().all(|image| image.root != *root));
        self.remove_stale();
    }

    /// Removes images of an earlier process that this one does not use.
    fn remove_unused(&self) {
        if !self.dir.is_dir() {
            return;
        }
        let _none_unpacks = self.unpacking.blocking_lock();
        let _external = ExternalProgram::begin();
        if let Err(error) = image::remove_containers(&self.owner) {
            tracing::debug!(%error, "unused images of the container runtime cannot be removed");
        }
        self.remove_stale();
    }

    /// Removes unpacked images that are not kept.
    fn remove_stale(&self) {
        let kept = lock(&self.kept);
        let names: Vec<_> = kept.iter().filter_map(|root| root.file_stem()).collect();
        for entry in std::fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if !path.file_stem().is_some_and(|stem| names.contains(&stem))
                && let Err(error) = remove(&path)
            {
                tracing::warn!(path = %path.display(), %error, "an image cannot be removed");
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn of(unpacked: image::UnpackedImage) -> Image {
    Image {
        root: unpacked.root,
        described: unpacked.described,
        environment: unpacked.environment,
    }
}

/// Removes a file or a directory, if it exists.
fn remove(path: &Path) -> std::io::Result<()> {
    let removed = match path.is_dir() {
        true => std::fs::remove_dir_all(path),
        false => std::fs::remove_file(path),
    };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn failure(error: &ImageError) -> Failure {
    let code = match error {
        ImageError::Reference(..) => Code::InvalidRequest,
        ImageError::TooLarge(_) => Code::TooLarge,
        ImageError::System(_) => Code::ExecutorFailed,
        // This node does not have such an image.
        _ => Code::NotFound,
    };
    Failure::new(code, error.to_string())
}

#[cfg(test)]
#[path = "images_tests.rs"]
mod tests;
