//! Python environments of leases: built by `uv` once for each content, and shared by all leases with the same content.
//!
//! An environment's directory is named by its hash ([`Environment::hash`]). Many nodes may share it, also over a
//! network file system: a builder holds its lock exclusively, users hold it shared, and a directory without a lock may
//! be removed. An environment is complete when its note exists beside it. The build runs no code of a tenant: packages
//! are wheels, from the indexes that the node's `uv` is configured with.

mod paths;
mod settings;

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use dayfly_protocol::environment::Environment;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::EnvironmentHash;
use dayfly_sandbox::isolation::BindMount;
use dayfly_sandbox::tool::{Tool, ToolError};
use rustix::fs::FlockOperation;
use tokio::sync::{OnceCell, Semaphore};

use self::paths::{Paths, link_packages, lock_file};
pub use self::settings::Settings;
use crate::builds::Builds;
use crate::executors::{ExternalProgram, end_unknown_children};
use crate::package::Packages;
use crate::runtimes;

/// Longest wait of a lease for an environment that is being built. A repeated request finds the build further along.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Interval of checks whether another node has built it.
const LOCK_INTERVAL: Duration = Duration::from_millis(100);
/// Builds at the same time, so that a slow one does not delay the others.
const MAX_BUILDS: usize = 4;
/// Unused environments that are kept: the most recently used ones, and for how long.
const MAX_UNUSED: usize = 64;
const MAX_UNUSED_TIME: Duration = Duration::from_secs(30 * 24 * 3600);
/// Oldest version that Dayfly's package supports.
const OLDEST_PYTHON: (u32, u32) = (3, 11);

/// The environments of a node.
#[derive(Debug)]
pub struct Environments {
    dir: PathBuf,
    settings: Settings,
    builds: Builds,
    /// Whether unknown children of this process are ended.
    own_process: bool,
    closed: AtomicBool,
    slots: Mutex<HashMap<EnvironmentHash, Arc<OnceCell<Arc<BuiltEnvironment>>>>>,
    versions: Mutex<HashMap<PathBuf, String>>,
    packages: Arc<Packages>,
    building: Semaphore,
}

/// An environment that workers can be started in. It is not removed while this exists.
#[derive(Debug)]
pub struct BuiltEnvironment {
    /// Its interpreter.
    pub python: PathBuf,
    /// Further paths that isolated workers need.
    pub own: Vec<BindMount>,
    /// The shared lock.
    _used: File,
}

impl PartialEq for BuiltEnvironment {
    fn eq(&self, other: &Self) -> bool {
        self.python == other.python
    }
}

impl Eq for BuiltEnvironment {}

impl std::hash::Hash for BuiltEnvironment {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.python.hash(state);
    }
}

/// The interpreters for a build.
struct Interpreters {
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
            building: Semaphore::new(MAX_BUILDS),
        })
    }

    /// Ends all builds, and waits until they have ended.
    pub async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        drop(self.building.acquire_many(MAX_BUILDS as u32).await);
    }

    /// Releases environments that no lease or parked executor uses. Call it about once a minute.
    pub fn release_unused(&self) {
        let in_use =
            |slot: &Arc<OnceCell<Arc<BuiltEnvironment>>>| slot.get().is_none_or(|built| Arc::strong_count(built) > 1);
        lock(&self.slots).retain(|_, slot| in_use(slot));
        self.builds.forget();
    }

    /// The environment of a lease. `version` is that of the client's Python; `pythons` are interpreters with the dayfly
    /// module.
    pub async fn get(
        self: &Arc<Self>,
        environment: &Environment,
        version: &str,
        pythons: Vec<PathBuf>,
    ) -> Result<Arc<BuiltEnvironment>, Failure> {
        environment.check()?;
        let (mine, environment, version) = (Arc::clone(self), environment.clone(), version.to_owned());
        let hash = Arc::<OnceLock<EnvironmentHash>>::default();
        let found = Arc::clone(&hash);
        // The task goes on without its requester, so that the next request finds the environment.
        let ready = tokio::spawn(async move { mine.ready(environment, &version, pythons, &found).await });
        match tokio::time::timeout(TIMEOUT, ready).await {
            Ok(Ok(ready)) => ready,
            Ok(Err(error)) => Err(Failure::new(Code::Internal, error.to_string())),
            Err(_) => Err(self.builds.pending(hash.get().copied())),
        }
    }

    async fn ready(
        self: Arc<Self>,
        environment: Environment,
        version: &str,
        pythons: Vec<PathBuf>,
        found: &OnceLock<EnvironmentHash>,
    ) -> Result<Arc<BuiltEnvironment>, Failure> {
        let wanted = runtimes::python_of(&environment, version).to_owned();
        let mine = Arc::clone(&self);
        let interpreters = blocking(move || mine.interpreters(&wanted, &pythons)).await?;
        let hash = environment.hash(&interpreters.minor);
        let _ = found.set(hash);
        let slot = Arc::clone(lock(&self.slots).entry(hash).or_default());
        let made = slot
            .get_or_try_init(|| self.build(hash, environment, interpreters))
            .await;
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
    fn interpreters(&self, wanted: &str, pythons: &[PathBuf]) -> Result<Interpreters, Failure> {
        let Some(first) = pythons.first() else {
            let text = "this node has no Python to build an environment with; start it with --python PATH of an interpreter that \
                        has the dayfly module";
            return Err(Failure::new(Code::EnvironmentFailed, text));
        };
        let _external = ExternalProgram::begin();
        for python in pythons {
            let minor = self.version(python)?;
            if wanted.is_empty() || wanted == minor {
                return Ok(Interpreters {
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
        Ok(Interpreters {
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
        interpreters: Interpreters,
    ) -> Result<Arc<BuiltEnvironment>, Failure> {
        self.builds.queue(hash)?;
        let _turn = self.building.acquire().await;
        let mine = Arc::clone(self);
        blocking(move || {
            let external = ExternalProgram::begin();
            let built = mine.build_blocking(hash, &environment, &interpreters);
            // A temporary failure is remembered with its cause.
            if !built
                .as_ref()
                .is_err_and(|failure| failure.code == Code::EnvironmentBuilding)
            {
                mine.builds.end(hash);
            }
            drop(external);
            if mine.own_process {
                // Processes that an interrupted `uv` left.
                end_unknown_children();
            }
            built.map(Arc::new)
        })
        .await
    }

    /// Builds the environment unless it exists. Blocks until then.
    fn build_blocking(
        &self,
        hash: EnvironmentHash,
        environment: &Environment,
        interpreters: &Interpreters,
    ) -> Result<BuiltEnvironment, Failure> {
        let packages = self.packages.of(&interpreters.packages)?;
        let paths = Paths::new(&self.dir, hash);
        let made = std::fs::create_dir_all(&self.dir).and_then(|()| File::create(&paths.lock));
        let used = made.map_err(|error| unusable_directory(&self.dir, &error))?;
        let locked = |how| lock_file(&used, how).map_err(|error| unusable_directory(&paths.lock, &error));
        loop {
            if locked(FlockOperation::NonBlockingLockExclusive)? && !paths.is_complete() {
                self.make(&paths, hash, environment, interpreters)?;
            }
            // Another node may have removed it between the two locks.
            if locked(FlockOperation::NonBlockingLockShared)? && paths.is_complete() {
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
            std::thread::sleep(LOCK_INTERVAL);
        }
        paths.touch();
        link_packages(&paths.root, &interpreters.minor, &packages)
            .map_err(|error| unusable_directory(&paths.root, &error))?;
        let own = packages.into_iter().map(|shown| BindMount {
            path: shown.from.clone(),
            ..shown
        });
        Ok(BuiltEnvironment {
            python: paths.root.join("bin/python"),
            own: own.collect(),
            _used: used,
        })
    }

    /// Builds the environment. The caller holds the lock exclusively.
    fn make(
        &self,
        paths: &Paths,
        hash: EnvironmentHash,
        environment: &Environment,
        interpreters: &Interpreters,
    ) -> Result<(), Failure> {
        let begin = Instant::now();
        paths.remove();
        self.tidy();
        let uv = self.uv(&interpreters.packages);
        let tool = Tool {
            name: uv.as_os_str(),
            limit: self.settings.limit,
            stop: &self.closed,
        };
        let output = self
            .builds
            .run(hash)
            .map_err(|error| unusable_directory(&paths.root, &error))?;
        let variables = self.settings.variables();
        let uv = |arguments: &[&str]| tool.output_into(arguments, &variables, output.try_clone()?);
        let root = paths.root.display().to_string();
        let python = paths.root.join("bin/python").display().to_string();
        let list = paths.root.join("requirements.txt");
        let made = || {
            uv(&[
                "venv",
                "--quiet",
                "--no-project",
                "--python",
                &interpreters.python,
                &root,
            ])?;
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
                &paths.note,
                serde_json::to_vec(environment).map_err(std::io::Error::other)?,
            )?;
            Ok::<(), ToolError>(())
        };
        match made() {
            Ok(()) => {
                let took_ms = begin.elapsed().as_millis();
                tracing::info!(environment = %paths.root.display(), took_ms, "an environment is built");
                Ok(())
            }
            Err(error) => {
                paths.remove();
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
            let is_old = when.elapsed().is_ok_and(|age| age > MAX_UNUSED_TIME);
            if at < MAX_UNUSED && !is_old {
                continue;
            }
            let paths = Paths::new(&self.dir, hash);
            let Ok(file) = File::open(&paths.lock) else { continue };
            if lock_file(&file, FlockOperation::NonBlockingLockExclusive).is_ok_and(|alone| alone) {
                tracing::info!(environment = %paths.root.display(), "an unused environment is being removed");
                // Keep the lock file: another node may wait for it.
                paths.remove();
            }
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Failure> + Send + 'static) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(Failure::new(Code::Internal, error.to_string())))
}

fn unusable_directory(path: &Path, error: &std::io::Error) -> Failure {
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
