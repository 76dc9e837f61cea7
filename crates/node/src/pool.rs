//! Executors that are started in advance.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dayfly_protocol::error::{Code, Failure};
use dayfly_sandbox::{Program, Spawner};
use tracing::Instrument;

use crate::executor_sandbox::{ExecutorSandbox, SandboxFactory};
use crate::executors::{Executor, ExecutorKind, Language, READY_DEADLINE};
use crate::policy::EXECUTOR;
use crate::spill::{SpillDir, SpillFactory};
use crate::{Options, Output};

/// Time after which parked executors of an unused kind are ended.
const MAX_PARKED_TIME: Duration = Duration::from_secs(300);
/// Pause before a parked executor is replaced: starting a process would slow the cold start that took it, which lasts
/// some milliseconds.
const REFILL_PAUSE: Duration = Duration::from_millis(100);
/// Most parked executors in total.
const MAX_PARKED: usize = 32;

#[derive(Debug)]
struct ParkedExecutors {
    parked: Vec<Executor>,
    starting: usize,
    used: Instant,
    /// Kinds in the options are always kept warm.
    permanent: bool,
}

/// Executors, some of them parked.
#[derive(Debug)]
pub struct Pool {
    spawner: Arc<Spawner>,
    sandboxes: SandboxFactory,
    spills: Option<SpillFactory>,
    native: PathBuf,
    warm_native: usize,
    warm_python: usize,
    output: Output,
    parked_by_kind: Mutex<HashMap<ExecutorKind, ParkedExecutors>>,
    closed: std::sync::atomic::AtomicBool,
}

impl Pool {
    /// An empty pool; [`Pool::keep_warm`] fills it.
    pub fn new(
        spawner: Spawner,
        sandboxes: SandboxFactory,
        spills: Option<SpillFactory>,
        options: &Options,
    ) -> Arc<Self> {
        Arc::new(Self {
            spawner: Arc::new(spawner),
            sandboxes,
            spills,
            native: options.executor_path(),
            warm_native: options.warm_native,
            warm_python: options.warm_python,
            output: options.output,
            parked_by_kind: Mutex::default(),
            closed: false.into(),
        })
    }

    /// Makes sandboxes, in the node's control groups.
    pub fn sandboxes(&self) -> &SandboxFactory {
        &self.sandboxes
    }

    /// The spawner, whose processes end with the node.
    pub fn spawner(&self) -> &Arc<Spawner> {
        &self.spawner
    }

    fn parked_by_kind(&self) -> std::sync::MutexGuard<'_, HashMap<ExecutorKind, ParkedExecutors>> {
        self.parked_by_kind.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn start(&self, kind: &ExecutorKind) -> Result<Executor, Failure> {
        let (program, sandbox, spill) = self.program(kind).map_err(|error| {
            Failure::new(
                Code::ExecutorFailed,
                format!(
                    "no place for an executor can be made: {error}; has the node room in its state directory, and in that of \
                     --spill?"
                ),
            )
        })?;
        let step = dayfly_telemetry::span!("start an executor", "dayfly.sandbox" = kind.sandbox().name());
        let starting = Executor::start(self.spawner.clone(), program, sandbox, spill, self.output);
        starting.instrument(step).await
    }

    fn program(&self, kind: &ExecutorKind) -> std::io::Result<(Program, Option<ExecutorSandbox>, Option<SpillDir>)> {
        let (sandbox, mut isolation) = match &kind.host_access {
            Some(host_access) => {
                let (sandbox, isolation) = self.sandboxes.make(host_access)?;
                (Some(sandbox), Some(isolation))
            }
            None => (None, None),
        };
        // Measured once here, and not at every cold start.
        let rate = (
            OsString::from(dayfly_fabric::clock::RATE_VARIABLE),
            Some(dayfly_fabric::clock::ticks_per_us().to_string().into()),
        );
        let image = kind
            .host_access
            .as_ref()
            .and_then(|host_access| host_access.image.as_ref());
        let variables = image.map(|image| image.environment.as_slice()).unwrap_or_default();
        let mut environment: Vec<(OsString, Option<OsString>)> = variables
            .iter()
            .filter(|(name, _)| name != "PYTHONPATH")
            .map(|(name, value)| (name.into(), Some(value.into())))
            .collect();
        environment.push(rate);
        let spill = match &self.spills {
            Some(spills) => Some(spills.make(isolation.as_mut(), &mut environment)?),
            None => None,
        };
        let program = match &kind.language {
            Language::Native => Program {
                program: image.map_or_else(|| self.native.clone(), |_| EXECUTOR.into()),
                otherwise: None,
                arguments: Vec::new(),
                environment,
                isolation,
            },
            Language::Python { executable, path, .. } => {
                // Isolated workers do not see the module path of the node's user.
                let inherited = match image {
                    Some(_) => variables
                        .iter()
                        .find(|(name, _)| name == "PYTHONPATH")
                        .map(|(_, path)| path.into()),
                    None => std::env::var_os("PYTHONPATH").filter(|_| isolation.is_none()),
                };
                let inherited = inherited.filter(|path| !path.is_empty());
                let joined = std::env::join_paths(
                    path.iter()
                        .map(PathBuf::from)
                        .chain(inherited.iter().flat_map(std::env::split_paths)),
                )
                .ok()
                .filter(|joined| !joined.is_empty());
                environment.push((OsString::from("PYTHONPATH"), joined));
                Program {
                    program: executable.clone(),
                    otherwise: image.map(|_| "python3".into()),
                    arguments: vec!["-m".into(), "dayfly.executor".into()],
                    environment,
                    isolation,
                }
            }
        };
        Ok((program, sandbox, spill))
    }

    /// Takes a parked executor, if one is ready. It is replaced a little later.
    pub fn take_parked(self: &Arc<Self>, kind: &ExecutorKind) -> Option<Executor> {
        let parked = {
            let mut parked_by_kind = self.parked_by_kind();
            let entry = parked_by_kind.entry(kind.clone()).or_insert_with(|| ParkedExecutors {
                parked: Vec::new(),
                starting: 0,
                used: Instant::now(),
                permanent: false,
            });
            entry.used = Instant::now();
            std::iter::from_fn(|| entry.parked.pop()).find(Executor::is_alive)
        };
        self.refill(kind, REFILL_PAUSE);
        parked
    }

    /// Takes a parked executor, or starts a new one.
    pub async fn take(self: &Arc<Self>, kind: &ExecutorKind) -> Result<Executor, Failure> {
        match self.take_parked(kind) {
            Some(executor) => Ok(executor),
            None => self.start(kind).await,
        }
    }

    /// Keeps executors of this kind parked from now on.
    pub fn keep_warm(self: &Arc<Self>, kind: ExecutorKind) {
        self.parked_by_kind()
            .entry(kind.clone())
            .or_insert_with(|| ParkedExecutors {
                parked: Vec::new(),
                starting: 0,
                used: Instant::now(),
                permanent: true,
            })
            .permanent = true;
        self.refill(&kind, Duration::ZERO);
    }

    /// Starts the missing executors of a kind in the background, after a pause.
    fn refill(self: &Arc<Self>, kind: &ExecutorKind, pause: Duration) {
        let wanted = match kind.language {
            Language::Native => self.warm_native,
            Language::Python { .. } => self.warm_python,
        };
        let mut parked_by_kind = self.parked_by_kind();
        let total: usize = parked_by_kind
            .values()
            .map(|entry| entry.parked.len() + entry.starting)
            .sum();
        let Some(entry) = parked_by_kind.get_mut(kind) else {
            return;
        };
        let missing = wanted
            .saturating_sub(entry.parked.len() + entry.starting)
            .min(MAX_PARKED.saturating_sub(total));
        entry.starting += missing;
        drop(parked_by_kind);
        for _ in 0..missing {
            let (pool, kind) = (self.clone(), kind.clone());
            tokio::spawn(async move {
                tokio::time::sleep(pause).await;
                let started = match pool.closed.load(std::sync::atomic::Ordering::Acquire) {
                    false => Some(pool.start(&kind).await),
                    true => None,
                };
                let mut parked_by_kind = pool.parked_by_kind();
                let Some(entry) = parked_by_kind.get_mut(&kind) else {
                    return;
                };
                entry.starting -= 1;
                match started {
                    None => {}
                    // Park it even while the pool closes: closing ends parked executors until nothing is starting.
                    Some(Ok(executor)) => entry.parked.push(executor),
                    // The next lease of this kind gets the error.
                    Some(Err(error)) => tracing::debug!(%error, "no executor could be parked"),
                }
            });
        }
    }

    /// Ends parked executors of unused kinds, and forgets dead ones. Call it about once a minute.
    pub fn tidy(&self) {
        let mut ended = Vec::new();
        let mut parked_by_kind = self.parked_by_kind();
        parked_by_kind.retain(|_, entry| {
            entry.parked.retain(Executor::is_alive);
            let stale = !entry.permanent && entry.used.elapsed() > MAX_PARKED_TIME && entry.starting == 0;
            if stale {
                ended.append(&mut entry.parked);
            }
            !stale
        });
        drop(parked_by_kind);
    }

    /// Number of parked executors.
    pub fn parked(&self) -> usize {
        self.parked_by_kind().values().map(|entry| entry.parked.len()).sum()
    }

    /// Parks executors again, first of the kinds that are always kept warm.
    pub fn open(self: &Arc<Self>) {
        self.closed.store(false, std::sync::atomic::Ordering::Release);
        let kinds: Vec<ExecutorKind> = self.parked_by_kind().keys().cloned().collect();
        for kind in kinds {
            self.refill(&kind, Duration::ZERO);
        }
    }

    /// Ends every parked executor, and parks no more until [`Pool::open`].
    pub async fn close(&self) {
        self.closed.store(true, std::sync::atomic::Ordering::Release);
        let deadline = Instant::now() + READY_DEADLINE;
        loop {
            let (parked, starting): (Vec<_>, usize) = {
                let mut parked_by_kind = self.parked_by_kind();
                let starting = parked_by_kind.values().map(|entry| entry.starting).sum();
                (
                    parked_by_kind
                        .values_mut()
                        .flat_map(|entry| entry.parked.drain(..))
                        .collect(),
                    starting,
                )
            };
            for mut executor in parked {
                executor.end().await;
            }
            if starting == 0 || Instant::now() > deadline {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
