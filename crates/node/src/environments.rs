//! Python environments of leases: built by `uv` once for each content, and shared by all leases with the same content.
//!
//! An environment's directory is named by its hash ([`Environment::hash`]). Many nodes may share it, also over a
//! network file system: a builder holds its lock exclusively, users hold it shared, and a directory without a lock may
//! be removed. An environment is complete when its note exists beside it. The build runs no code of a tenant: packages
//! are wheels, from the indexes that the node's `uv` is configured with.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use dayfly_protocol::environment::Environment;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::EnvironmentHash;
use dayfly_sandbox::isolation::Shown;
use dayfly_sandbox::tool::{Tool, ToolError};
use rustix::fs::{FlockOperation, flock};
use tokio::sync::{OnceCell, Semaphore};

use crate::builds::Builds;
use crate::executors::{Guests, end_unknown_children};
use crate::package::Packages;
use crate::runtimes;

/// Longest wait of a lease for an environment that is being built. A repeated request finds the build further along.
const PATIENCE: Duration = Duration::from_secs(2);
/// Where systems keep their trusted certificates.
const CERTIFICATE_STORES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Interval of checks whether another node has built it.
const LOCK_TICK: Duration = Duration::from_millis(100);
/// Builds at the same time, so that a slow one does not delay the others.
const AT_ONCE: usize = 4;
/// Unused environments that are kept: the most recently used ones, and for how long.
const KEPT: usize = 64;
const KEPT_FOR: Duration = Duration::from_secs(30 * 24 * 3600);
/// Oldest version that Dayfly's package supports.
const OLDEST_PYTHON: (u32, u32) = (3, 11);

/// Configuration of builds.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Path of `uv`; `None` looks for it.
    pub uv: Option<PathBuf>,
    /// Limit for an index to accept a connection, or to send more bytes.
    pub index_timeout: Duration,
    /// Limit for the build of one environment, including all tries.
    pub limit: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            uv: None,
            index_timeout: Duration::from_secs(15),
            limit: Duration::from_secs(30 * 60),
        }
    }
}

impl Settings {
    /// Environment variables for `uv`, except those that the node's operator has set.
    fn variables(&self) -> Vec<(&'static str, String)> {
        let timeout = self.index_timeout.as_secs().max(1).to_string();
        let mut variables = vec![
            ("UV_HTTP_TIMEOUT", timeout.clone()),
            ("UV_HTTP_CONNECT_TIMEOUT", timeout),
            // The node retries itself, and reports that meanwhile.
            ("UV_HTTP_RETRIES", "1".into()),
        ];
        if CERTIFICATE_STORES.iter().any(|store| Path::new(store).is_file()) {
            // A site's proxy may have a certificate that only this machine trusts. Older versions of `uv` use the
            // second name.
            variables.extend([("UV_SYSTEM_CERTS", "true".into()), ("UV_NATIVE_TLS", "true".into())]);
        }
        variables.retain(|(name, _)| std::env::var_os(name).is_none());
        variables
    }
}

/// The environments of a node.
#[derive(Debug)]
pub struct Environments {
    dir: PathBuf,
    settings: Settings,
    builds: Builds,
    /// Whether unknown children of this process are ended.
    own_process: bool,
    closed: AtomicBool,
    slots: Mutex<HashMap<EnvironmentHash, Arc<OnceCell<Arc<Built>>>>>,
    versions: Mutex<HashMap<PathBuf, String>>,
    packages: Arc<Packages>,
    building: Semaphore,
}

/// An environment that workers can be started in. It is not removed while this exists.
#[derive(Debug)]
pub struct Built {
    /// Its interpreter.
    pub python: PathBuf,
    /// Further paths that isolated workers need.
    pub own: Vec<Shown>,
    /// The shared lock.
    _used: File,
}

impl PartialEq for Built {
    fn eq(&self, other: &Self) -> bool {
        self.python == other.python
    }
}

impl Eq for Built {}

impl std::hash::Hash for Built {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.python.hash(state);
    }
}

/// The interpreters for a build.
struct Base {
    /// For `uv`: a path, or a version.
    python: String,
    minor: String,
    /// The interpreter whose `dayfly` package workers get.
    packages: PathBuf,
}

impl Environments {
    /// `dir` keeps the environments; other nodes may share it.
    pub fn new(dir: PathBuf, settings: Settings, packages: Arc<Packages>, own_process: bool) -> Arc<Self> {
        Arc::new(Self {
            dir,
            builds: Builds::new(settings.limit),
            settings,
            own_process,
            closed: false.into(),
            slots: Mutex::default(),
            versions: Mutex::default(),
            packages,
            building: Semaphore::new(AT_ONCE),
        })
    }

    /// Ends all builds, and waits until they have ended.
    pub async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        drop(self.building.acquire_many(AT_ONCE as u32).await);
    }

    /// Releases environments that no lease or parked executor uses. Call it about once a minute.
    pub fn let_go(&self) {
        let in_use = |slot: &Arc<OnceCell<Arc<Built>>>| slot.get().is_none_or(|built| Arc::strong_count(built) > 1);
        lock(&self.slots).retain(|_, slot| in_use(slot));
        self.builds.forget();
    }

    /// The environment of a lease. `version` is that of the client's Python; `pythons` are interpreters with the dayfly
    /// module.
    pub async fn wanted(
        self: &Arc<Self>,
        environment: &Environment,
        version: &str,
        pythons: Vec<PathBuf>,
    ) -> Result<Arc<Built>, Failure> {
        environment.check()?;
        let (mine, environment, version) = (Arc::clone(self), environment.clone(), version.to_owned());
        let hash = Arc::<OnceLock<EnvironmentHash>>::default();
        let found = Arc::clone(&hash);
        // The task goes on without its requester, so that the next request finds the environment.
        let ready = tokio::spawn(async move { mine.ready(environment, &version, pythons, &found).await });
        match tokio::time::timeout(PATIENCE, ready).await {
            Ok(Ok(ready)) => ready,
            Ok(Err(error)) => Err(Failure::new(Code::Internal, error.to_string())),
            Err(_) => Err(self.builds.told(hash.get().copied())),
        }
    }

    async fn ready(
        self: Arc<Self>,
        environment: Environment,
        version: &str,
        pythons: Vec<PathBuf>,
        found: &OnceLock<EnvironmentHash>,
    ) -> Result<Arc<Built>, Failure> {
        let wanted = runtimes::python_of(&environment, version).to_owned();
        let mine = Arc::clone(&self);
        let base = blocking(move || mine.base(&wanted, &pythons)).await?;
        let hash = environment.hash(&base.minor);
        let _ = found.set(hash);
        let slot = Arc::clone(lock(&self.slots).entry(hash).or_default());
        let made = slot.get_or_try_init(|| self.build(hash, environment, base)).await;
        let made = made.cloned();
        if made.is_err() {
            // Allow another try later.
            let mut slots = lock(&self.slots);
            if slots
                .get(&hash)
                .is_some_and(|known| Arc::ptr_eq(known, &slot) && !known.initialized())
            {
                slots.remove(&hash);
            }
        }
        made
    }

    /// The interpreters for an environment of this Python (`major.minor`, or empty for any).
    fn base(&self, wanted: &str, pythons: &[PathBuf]) -> Result<Base, Failure> {
        let Some(first) = pythons.first() else {
            let text = "this node has no Python to build an environment with; start it with --python PATH of an interpreter that \
                        has the dayfly module";
            return Err(Failure::new(Code::EnvironmentFailed, text));
        };
        let _guests = Guests::arrive();
        for python in pythons {
            let minor = self.version(python)?;
            if wanted.is_empty() || wanted == minor {
                return Ok(Base {
                    python: python.display().to_string(),
                    minor,
                    packages: python.clone(),
                });
            }
        }
        let mut parts = wanted.split('.').map(|part| part.parse::<u32>().unwrap_or_default());
        if (parts.next().unwrap_or_default(), parts.next().unwrap_or_default()) < OLDEST_PYTHON {
            let (major, minor) = OLDEST_PYTHON;
            let text = format!(
                "the environment is to have Python {wanted}, and workers run {major}.{minor} and later; name a newer one, or \
                 none"
            );
            return Err(Failure::new(Code::PythonMismatch, text));
        }
        Ok(Base {
            python: wanted.to_owned(),
            minor: wanted.to_owned(),
            packages: first.clone(),
        })
    }

    /// `major.minor` of an interpreter.
    fn version(&self, python: &Path) -> Result<String, Failure> {
        let mut versions = lock(&self.versions);
        if let Some(known) = versions.get(python) {
            return Ok(known.clone());
        }
        let said = runtimes::version_of(python, &self.closed).map_err(|error| failed(&error))?;
        versions.insert(python.into(), said.clone());
        Ok(said)
    }

    async fn build(
        self: &Arc<Self>,
        hash: EnvironmentHash,
        environment: Environment,
        base: Base,
    ) -> Result<Arc<Built>, Failure> {
        self.builds.queue(hash)?;
        let _turn = self.building.acquire().await;
        let mine = Arc::clone(self);
        blocking(move || {
            let guests = Guests::arrive();
            let built = mine.build_here(hash, &environment, &base);
            // A temporary failure is remembered with its cause.
            if !built
                .as_ref()
                .is_err_and(|failure| failure.code == Code::EnvironmentBuilding)
            {
                mine.builds.end(hash);
            }
            drop(guests);
            if mine.own_process {
                // Processes that an interrupted `uv` left.
                end_unknown_children();
            }
            built.map(Arc::new)
        })
        .await
    }

    /// Builds the environment unless it exists. Blocks until then.
    fn build_here(&self, hash: EnvironmentHash, environment: &Environment, base: &Base) -> Result<Built, Failure> {
        let packages = self.packages.of(&base.packages)?;
        let place = Place::new(&self.dir, hash);
        let made = std::fs::create_dir_all(&self.dir).and_then(|()| File::create(&place.lock));
        let used = made.map_err(|error| no_place(&self.dir, &error))?;
        let locked = |how| lock_file(&used, how).map_err(|error| no_place(&place.lock, &error));
        loop {
            if locked(FlockOperation::NonBlockingLockExclusive)? && !place.is_whole() {
                self.make(&place, hash, environment, base)?;
            }
            // Another node may have removed it between the two locks.
            if locked(FlockOperation::NonBlockingLockShared)? && place.is_whole() {
                break;
            }
            // Another node builds it.
            locked(FlockOperation::Unlock)?;
            if self.closed.load(Ordering::Acquire) {
                return Err(Failure::new(
                    Code::Unreachable,
                    "the node is shutting down; lease elsewhere",
                ));
            }
            std::thread::sleep(LOCK_TICK);
        }
        place.touch();
        link_packages(&place.root, &base.minor, &packages).map_err(|error| no_place(&place.root, &error))?;
        let own = packages.into_iter().map(|shown| Shown {
            path: shown.from.clone(),
            ..shown
        });
        Ok(Built {
            python: place.root.join("bin/python"),
            own: own.collect(),
            _used: used,
        })
    }

    /// Builds the environment. The caller holds the lock exclusively.
    fn make(
        &self,
        place: &Place,
        hash: EnvironmentHash,
        environment: &Environment,
        base: &Base,
    ) -> Result<(), Failure> {
        let begin = Instant::now();
        place.remove();
        self.tidy();
        let uv = self.uv(&base.packages);
        let tool = Tool {
            name: uv.as_os_str(),
            limit: self.settings.limit,
            stop: &self.closed,
        };
        let words = self.builds.run(hash).map_err(|error| no_place(&place.root, &error))?;
        let variables = self.settings.variables();
        let uv = |arguments: &[&str]| tool.words_into(arguments, &variables, words.try_clone()?);
        let root = place.root.display().to_string();
        let python = place.root.join("bin/python").display().to_string();
        let list = place.root.join("requirements.txt");
        let made = || {
            uv(&["venv", "--quiet", "--no-project", "--python", &base.python, &root])?;
            let lines: String = environment
                .requirements
                .iter()
                .map(|line| format!("{}\n", line.trim()))
                .collect();
            std::fs::write(&list, lines)?;
            if !environment.requirements.is_empty() {
                let list = list.display().to_string();
                let install = [
                    "pip",
                    "install",
                    "--no-progress",
                    "--color",
                    "never",
                    "--python",
                    &python,
                ];
                let only = ["--only-binary", ":all:", "--compile-bytecode", "--requirements", &list];
                uv(&[&install[..], &only[..]].concat())?;
            }
            std::fs::write(
                &place.note,
                serde_json::to_vec(environment).map_err(std::io::Error::other)?,
            )?;
            Ok::<(), ToolError>(())
        };
        match made() {
            Ok(()) => {
                let took_ms = begin.elapsed().as_millis();
                tracing::info!(environment = %place.root.display(), took_ms, "an environment is built");
                Ok(())
            }
            Err(error) => {
                place.remove();
                tracing::warn!(%error, "an environment cannot be built");
                Err(match error {
                    ToolError::Missing(_) => Failure::new(
                        Code::EnvironmentFailed,
                        "this node has no `uv` to build environments with; install it there (`pip install uv`), or start the \
                         node with --uv PATH",
                    ),
                    other => self.builds.fail(hash, &other.to_string()),
                })
            }
        }
    }

    /// Path of `uv`: as configured, or beside the interpreter, or from `PATH`.
    fn uv(&self, python: &Path) -> PathBuf {
        let beside = python.with_file_name("uv");
        match &self.settings.uv {
            Some(named) => named.clone(),
            None if beside.is_file() => beside,
            None => "uv".into(),
        }
    }

    /// Removes unused environments that are too many or too old.
    fn tidy(&self) {
        let notes = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let used = notes.filter_map(|entry| {
            let hash = entry.file_name().to_str()?.strip_suffix(".json")?.parse().ok()?;
            Some((entry.metadata().ok()?.modified().ok()?, hash))
        });
        let mut used: Vec<(SystemTime, EnvironmentHash)> = used.collect();
        used.sort_unstable_by(|one, other| other.cmp(one));
        for (at, (when, hash)) in used.into_iter().enumerate() {
            let is_old = when.elapsed().is_ok_and(|age| age > KEPT_FOR);
            if at < KEPT && !is_old {
                continue;
            }
            let place = Place::new(&self.dir, hash);
            let Ok(file) = File::open(&place.lock) else { continue };
            if lock_file(&file, FlockOperation::NonBlockingLockExclusive).is_ok_and(|alone| alone) {
                tracing::info!(environment = %place.root.display(), "an environment that nobody used is removed");
                // Keep the lock file: another node may wait for it.
                place.remove();
            }
        }
    }
}

/// The paths of an environment.
struct Place {
    root: PathBuf,
    lock: PathBuf,
    note: PathBuf,
}

impl Place {
    fn new(dir: &Path, hash: EnvironmentHash) -> Self {
        Self {
            root: dir.join(hash.to_string()),
            lock: dir.join(format!("{hash}.lock")),
            note: dir.join(format!("{hash}.json")),
        }
    }

    fn is_whole(&self) -> bool {
        self.note.is_file() && self.root.is_dir()
    }

    /// Removes the note first: an environment without a note is incomplete.
    fn remove(&self) {
        let _ = std::fs::remove_file(&self.note);
        if let Err(error) = std::fs::remove_dir_all(&self.root)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.root.display(), %error, "an environment cannot be removed");
        }
    }

    /// Records that it is used now.
    fn touch(&self) {
        let touched = File::options()
            .append(true)
            .open(&self.note)
            .and_then(|note| note.set_modified(SystemTime::now()));
        if let Err(error) = touched {
            tracing::debug!(path = %self.note.display(), %error, "an environment's last use cannot be noted");
        }
    }
}

/// Links the packages that every worker needs into an environment, from where the node has them now. Packages of the
/// environment itself stay.
fn link_packages(root: &Path, minor: &str, packages: &[Shown]) -> std::io::Result<()> {
    let modules = root.join(format!("lib/python{minor}/site-packages"));
    for shown in packages {
        let Some(name) = shown.path.file_name() else { continue };
        let link = modules.join(name);
        match std::fs::read_link(&link) {
            Ok(target) if target == shown.from => continue,
            Ok(_) => {}
            Err(_) if link.exists() => continue,
            Err(_) => {}
        }
        // Replace it in one step, since others may import it meanwhile.
        let fresh = modules.join(format!(".{}-{}", name.to_string_lossy(), std::process::id()));
        let _ = std::fs::remove_file(&fresh);
        std::os::unix::fs::symlink(&shown.from, &fresh)?;
        std::fs::rename(&fresh, &link)?;
    }
    Ok(())
}

/// Locks or unlocks a file. Returns false if another process holds the lock.
fn lock_file(file: &File, how: FlockOperation) -> std::io::Result<bool> {
    match rustix::io::retry_on_intr(|| flock(file, how)) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Failure> + Send + 'static) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(Failure::new(Code::Internal, error.to_string())))
}

fn no_place(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(
        Code::EnvironmentFailed,
        format!(
            "there is no place for environments at {}: {error}; start the node with --environments DIR",
            path.display()
        ),
    )
}

fn failed(error: &ToolError) -> Failure {
    Failure::new(
        Code::EnvironmentFailed,
        format!("the environment cannot be built: {error}"),
    )
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
