//! Executors that are started in advance.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dayfly_protocol::error::{Code, Failure};
use dayfly_sandbox::{Program, Spawner};
use tracing::Instrument;

use crate::enclosures::{Enclosure, Enclosures};
use crate::executors::{Executor, Kind, Language, READY_DEADLINE};
use crate::policy::EXECUTOR;
use crate::{Options, Output};

/// Time after which parked executors of an unused kind are ended.
const SHELF_LIFE: Duration = Duration::from_secs(300);
/// Pause before a parked executor is replaced: starting a process would slow the cold start that took it, which lasts
/// some milliseconds.
const REFILL_PAUSE: Duration = Duration::from_millis(100);
/// Most parked executors in total.
const MAX_PARKED: usize = 32;

#[derive(Debug)]
struct Shelf {
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
    enclosures: Enclosures,
    native: PathBuf,
    warm_native: usize,
    warm_python: usize,
    output: Output,
    shelves: Mutex<HashMap<Kind, Shelf>>,
    closed: std::sync::atomic::AtomicBool,
}

impl Pool {
    /// An empty pool; [`Pool::keep_warm`] fills it.
    pub fn new(spawner: Spawner, enclosures: Enclosures, options: &Options) -> Arc<Self> {
        Arc::new(Self {
            spawner: Arc::new(spawner),
            enclosures,
            native: options.executor_path(),
            warm_native: options.warm_native,
            warm_python: options.warm_python,
            output: options.output,
            shelves: Mutex::default(),
            closed: false.into(),
        })
    }

    /// The spawner, whose processes end with the node.
    pub fn spawner(&self) -> &Arc<Spawner> {
        &self.spawner
    }

    fn shelves(&self) -> std::sync::MutexGuard<'_, HashMap<Kind, Shelf>> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn start(&self, kind: &Kind) -> Result<Executor, Failure> {
        let (program, enclosure) = self.program(kind).map_err(|error| {
            Failure::new(
                Code::ExecutorFailed,
                format!(
                    "no place for an isolated executor can be made: {error}; has the node room in its state directory?"
                ),
            )
        })?;
        let step = dayfly_telemetry::span!("start an executor", "dayfly.sandbox" = kind.sandbox().name());
        let starting = Executor::start(self.spawner.clone(), program, enclosure, self.output);
        starting.instrument(step).await
    }

    fn program(&self, kind: &Kind) -> std::io::Result<(Program, Option<Enclosure>)> {
        let (enclosure, isolation) = match &kind.opening {
            Some(opening) => {
                let (enclosure, isolation) = self.enclosures.make(opening)?;
                (Some(enclosure), Some(isolation))
            }
            None => (None, None),
        };
        // Measured once here, and not at every cold start.
        let rate = (
            OsString::from(dayfly_fabric::clock::RATE_VARIABLE),
            Some(dayfly_fabric::clock::ticks_per_us().to_string().into()),
        );
        let image = kind.opening.as_ref().and_then(|opening| opening.image.as_ref());
        let variables = image.map(|image| image.environment.as_slice()).unwrap_or_default();
        let mut environment: Vec<(OsString, Option<OsString>)> = variables
            .iter()
            .filter(|(name, _)| name != "PYTHONPATH")
            .map(|(name, value)| (name.into(), Some(value.into())))
            .collect();
        environment.push(rate);
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
        Ok((program, enclosure))
    }

    /// Takes a parked executor, if one is ready. It is replaced a little later.
    pub fn take_parked(self: &Arc<Self>, kind: &Kind) -> Option<Executor> {
        let parked = {
            let mut shelves = self.shelves();
            let shelf = shelves.entry(kind.clone()).or_insert_with(|| Shelf {
                parked: Vec::new(),
                starting: 0,
                used: Instant::now(),
                permanent: false,
            });
            shelf.used = Instant::now();
            std::iter::from_fn(|| shelf.parked.pop()).find(Executor::is_alive)
        };
        self.refill(kind, REFILL_PAUSE);
        parked
    }

    /// Takes a parked executor, or starts a new one.
    pub async fn take(self: &Arc<Self>, kind: &Kind) -> Result<Executor, Failure> {
        match self.take_parked(kind) {
            Some(executor) => Ok(executor),
            None => self.start(kind).await,
        }
    }

    /// Keeps executors of this kind parked from now on.
    pub fn keep_warm(self: &Arc<Self>, kind: Kind) {
        self.shelves()
            .entry(kind.clone())
            .or_insert_with(|| Shelf {
                parked: Vec::new(),
                starting: 0,
                used: Instant::now(),
                permanent: true,
            })
            .permanent = true;
        self.refill(&kind, Duration::ZERO);
    }

    /// Starts the missing executors of a kind in the background, after a pause.
    fn refill(self: &Arc<Self>, kind: &Kind, pause: Duration) {
        let wanted = match kind.language {
            Language::Native => self.warm_native,
            Language::Python { .. } => self.warm_python,
        };
        let mut shelves = self.shelves();
        let total: usize = shelves.values().map(|shelf| shelf.parked.len() + shelf.starting).sum();
        let Some(shelf) = shelves.get_mut(kind) else { return };
        let missing = wanted
            .saturating_sub(shelf.parked.len() + shelf.starting)
            .min(MAX_PARKED.saturating_sub(total));
        shelf.starting += missing;
        drop(shelves);
        for _ in 0..missing {
            let (pool, kind) = (self.clone(), kind.clone());
            tokio::spawn(async move {
                tokio::time::sleep(pause).await;
                let started = match pool.closed.load(std::sync::atomic::Ordering::Acquire) {
                    false => Some(pool.start(&kind).await),
                    true => None,
                };
                let mut shelves = pool.shelves();
                let Some(shelf) = shelves.get_mut(&kind) else { return };
                shelf.starting -= 1;
                match started {
                    None => {}
                    // Park it even while the pool closes: closing ends parked executors until nothing is starting.
                    Some(Ok(executor)) => shelf.parked.push(executor),
                    // The next lease of this kind gets the error.
                    Some(Err(error)) => tracing::debug!(%error, "no executor could be parked"),
                }
            });
        }
    }

    /// Ends parked executors of unused kinds, and forgets dead ones. Call it about once a minute.
    pub fn tidy(&self) {
        let mut ended = Vec::new();
        let mut shelves = self.shelves();
        shelves.retain(|_, shelf| {
            shelf.parked.retain(Executor::is_alive);
            let stale = !shelf.permanent && shelf.used.elapsed() > SHELF_LIFE && shelf.starting == 0;
            if stale {
                ended.append(&mut shelf.parked);
            }
            !stale
        });
        drop(shelves);
    }

    /// Number of parked executors.
    pub fn parked(&self) -> usize {
        self.shelves().values().map(|shelf| shelf.parked.len()).sum()
    }

    /// Parks executors again, first of the kinds that are always kept warm.
    pub fn open(self: &Arc<Self>) {
        self.closed.store(false, std::sync::atomic::Ordering::Release);
        let kinds: Vec<Kind> = self.shelves().keys().cloned().collect();
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
                let mut shelves = self.shelves();
                let starting = shelves.values().map(|shelf| shelf.starting).sum();
                (
                    shelves.values_mut().flat_map(|shelf| shelf.parked.drain(..)).collect(),
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
