//! The node: its state, start and end.

mod books;
mod direct;
mod managed;
mod places;
mod rights;
pub(crate) mod state_dir;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use dayfly_executor::cores::Places;
use dayfly_lease::token::Claims;
use dayfly_lease::{Lease, Ledger, ReplayWindow, SigningKey, Terms, billing};
use dayfly_protocol::api::{Capacity, Grant, LeaseRequest, LeaseState, Mode, NodeAddress, Sandbox, Usage};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::hello::Token;
use dayfly_protocol::ids::{AllowanceId, LeaseId, NodeId, PublicKey, TenantId};
use dayfly_protocol::node_api::HeldLease;
use dayfly_sandbox::{Spawner, descriptors, private};
use tokio::sync::{Notify, mpsc, watch};
use zerocopy::IntoBytes;

pub(crate) use self::books::Wanted;
use crate::enclosures::Enclosures;
use crate::environments::Environments;
use crate::executors::{Executor, Language};
use crate::hangup::Hangups;
use crate::images::Images;
use crate::journal::{self, Journal};
use crate::leases::{Direct, Granted, LeaseView, Origin, Run};
use crate::leases::{Durations, add_durations};
use crate::metrics;
use crate::node::state_dir::{id_of, load_key, make_private};
use crate::package::Packages;
use crate::pool::Pool;
use crate::{NodeError, Options, affinity, clock, door, listener, manager_link, policy, runtimes, supervisor};

/// Limit for everything to end at shutdown.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(15);

/// A running node.
#[derive(Debug)]
pub struct Node {
    pub(crate) options: Options,
    pub(crate) address: NodeAddress,
    pub(crate) key: SigningKey,
    pub(crate) trusted: RwLock<Vec<PublicKey>>,
    pub(crate) window: Mutex<ReplayWindow>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) images: Arc<Images>,
    pub(crate) packages: Arc<Packages>,
    pub(crate) environments: Arc<Environments>,
    pub(crate) hangups: Arc<Hangups>,
    /// The cores that warm workers share.
    pub(crate) places: Places,
    pub(crate) closing: watch::Sender<bool>,
    pub(crate) journal: Journal,
    /// Notified when there is something to send to the manager.
    pub(crate) news: Notify,
    /// State of the connection to the manager.
    pub(crate) connection: watch::Sender<Connection>,
    /// Refused system calls that no honest function makes, and that the manager was not informed of.
    pub(crate) incidents: Mutex<VecDeque<(LeaseId, String)>>,
    books: Mutex<Books>,
    /// Held by every task of the node; when the last one drops it, everything has ended.
    alive: Mutex<Option<mpsc::Sender<()>>>,
}

#[derive(Debug)]
struct Books {
    ledger: Ledger,
    leases: BTreeMap<LeaseId, Arc<Run>>,
    ended: HashMap<LeaseId, Ended>,
    /// Usage of ended leases, and the durations of their calls.
    past: Usage,
    past_durations: Durations,
    /// The cores that processes without own cores were pinned to last.
    shared_cores: Vec<u16>,
    /// Allowances under which nothing more may start for now, and until when.
    exhausted: HashMap<AllowanceId, u64>,
    /// Whether the node is reclaimed: it holds no leases and takes none until it is resumed.
    reclaimed: bool,
}

/// An ended lease. It is remembered so that its token is refused and, for a while, the fates of its calls are known.
#[derive(Debug, Clone)]
struct Ended {
    state: LeaseState,
    until_ms: u64,
    run: Option<(Arc<Run>, u64)>,
}

/// The connection to the manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Connection {
    /// Not tried yet.
    Never,
    Up,
    /// Why it is down.
    Down(String),
}

/// The output of `dayfly status` and `dayfly top` for a node.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Status {
    /// Address of the node.
    pub address: NodeAddress,
    /// Total resources.
    pub capacity: Capacity,
    /// Free resources.
    pub free: Capacity,
    /// Its leases.
    pub leases: Vec<LeaseView>,
    /// Number of executors that wait for a lease.
    pub parked_executors: usize,
    /// Whether the manager is connected; always false without one.
    pub manager_connected: bool,
}

/// A started node. Dropping it leaves the node running; [`Handle::shutdown`] ends it.
#[derive(Debug)]
pub struct Handle {
    node: Arc<Node>,
    all_gone: mpsc::Receiver<()>,
}

impl Node {
    /// Starts a node within the current tokio runtime.
    pub async fn start(options: Options) -> Result<Handle, NodeError> {
        if options.own_process {
            descriptors::raise();
        }
        make_private(&options.state_dir)?;
        make_private(&options.code_dir())?;
        let key = load_key(&options.state_dir.join("node.key"))?;
        let resources = options.resources();
        let sockets = listener::bind(&options).await?;
        let metrics_socket = match options.metrics {
            Some(address) => Some(metrics::listen(address).await?),
            None => None,
        };
        let path = options.state_dir.join("journal");
        let journal = Journal::open(&path, clock::wall_ms()).map_err(|error| NodeError::State { path, error })?;
        let ended = journal.ended().into_iter().map(|(lease, ended)| {
            let ended = Ended {
                state: ended.state,
                until_ms: ended.until_ms,
                run: None,
            };
            (lease, ended)
        });
        let address = NodeAddress {
            id: id_of(&key),
            name: options.name.clone(),
            host: std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
                .unwrap_or_default()
                .trim()
                .into(),
            unix: Some(options.unix_path().display().to_string()),
            tcp: sockets.tcp_address().map(|at| match &options.advertised_tcp {
                Some(told) => match told.strip_suffix(":0") {
                    Some(host) => format!("{host}:{}", at.port()),
                    None => told.clone(),
                },
                None => at.to_string(),
            }),
            key: key.public(),
            fabrics: match options.on_fabrics.is_empty() {
                true => options.fabrics.iter().map(|choice| choice.provider()).collect(),
                false => options.on_fabrics.clone(),
            },
        };
        let path = options.state_dir.join("sandboxes");
        let name: String = id_of(&key).to_string().chars().take(12).collect();
        let images = Images::new(
            options.state_dir.join("images"),
            name.clone(),
            options.images.clone(),
            options.own_process,
        );
        let packages = Arc::<Packages>::default();
        let environments = Environments::new(
            options.environments_dir(),
            options.building.clone(),
            packages.clone(),
            options.own_process,
        );
        let enclosures = Enclosures::new(path.clone(), name, options.scratch_bytes)
            .map_err(|error| NodeError::State { path, error })?;
        let pool = Pool::new(Spawner::new()?, enclosures, &options);
        if options.own_process {
            let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        }
        let (alive, all_gone) = mpsc::channel(1);
        let tolerance_ms = options.skew_tolerance.as_millis() as u64;
        let node = Arc::new(Self {
            trusted: RwLock::new(vec![key.public()]),
            window: Mutex::new(ReplayWindow::new(tolerance_ms, options.most_hellos)),
            hangups: Arc::new(Hangups::new()?),
            places: Places::new()?,
            closing: watch::channel(false).0,
            books: Mutex::new(Books {
                ledger: Ledger::new(resources),
                leases: BTreeMap::new(),
                ended: ended.collect(),
                past: Usage::default(),
                past_durations: Durations::default(),
                shared_cores: Vec::new(),
                exhausted: HashMap::new(),
                reclaimed: false,
            }),
            alive: Mutex::new(Some(alive)),
            news: Notify::new(),
            connection: watch::channel(Connection::Never).0,
            incidents: Mutex::default(),
            journal,
            pool,
            images,
            packages,
            environments,
            key,
            address,
            options,
        });
        node.share(node.shared_cores().len());
        if node.options.manager.is_none() {
            node.write_allowance()?;
        }
        if node.options.warm_native > 0 {
            node.keep_usual_warm(Language::Native);
        }
        for executable in &node.options.pythons {
            let language = Language::Python {
                executable: executable.clone(),
                path: Vec::new(),
                environment: None,
            };
            node.keep_usual_warm(language);
        }
        let images = node.images.clone();
        node.background(async move { images.prepare().await });
        let hangups = node.hangups.clone();
        node.background(async move { hangups.serve().await });
        let guard = node.clone();
        node.background(async move { guard.guard_places().await });
        let housekeeper = node.clone();
        node.background(async move { housekeeper.keep_house().await });
        if let Some(link) = node.options.manager.clone() {
            node.task(manager_link::serve(node.clone(), link));
        }
        if let Some(listener) = metrics_socket {
            let mine = node.clone();
            node.background(async move { metrics::serve(mine, listener).await });
        }
        sockets.serve(&node);
        Ok(Handle { node, all_gone })
    }

    /// Runs a task until it ends or the node closes.
    pub(crate) fn background(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let mut closing = self.closing.subscribe();
        self.task(async move {
            tokio::select! {
                () = task => {}
                _ = closing.wait_for(|closing| *closing) => {}
            }
        });
    }

    /// Runs a task to its end, which shutdown waits for.
    pub(crate) fn task(&self, task: impl Future<Output = ()> + Send + 'static) {
        let alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // After the node has closed, nothing starts any more.
        let Some(alive) = alive else { return };
        tokio::spawn(async move {
            task.await;
            drop(alive);
        });
    }

    fn keep_usual_warm(self: &Arc<Self>, language: Language) {
        let Some(mut kind) = policy::usual(language, &self.options) else {
            return;
        };
        let mine = Arc::clone(self);
        self.background(async move {
            mine.show_packages(&mut kind).await;
            mine.pool.keep_warm(kind);
        });
    }

    async fn keep_house(&self) {
        loop {
            tokio::time::sleep(Duration::from_secs(60)).await;
            self.pool.tidy();
            self.images.look_again().await;
            self.environments.let_go();
            let now_ms = clock::wall_ms();
            self.journal.forget(now_ms);
            let mut books = self.books();
            books.exhausted.retain(|_, until_ms| *until_ms > now_ms);
            books.ended.retain(|_, ended| {
                ended.run.take_if(|(_, until_ms)| *until_ms <= now_ms);
                ended.until_ms > now_ms
            });
        }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // Each change is a single call into the ledger or a map, so none is ever half done.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn shared_cores(&self) -> Vec<u16> {
        self.books().ledger.shared_cores()
    }

    /// Whether it has GPUs to lease. Workers without GPUs then see none.
    pub(crate) fn counts_gpus(&self) -> bool {
        self.capacity().gpus > 0
    }

    pub(crate) fn free(&self) -> Capacity {
        self.books().ledger.free()
    }

    /// Ends orphans of dead executors. Only if every child of this process belongs to the node.
    pub(crate) fn end_orphans(&self) {
        if !self.options.own_process {
            return;
        }
        crate::executors::end_unknown_children();
    }

    fn status(&self) -> Status {
        let books = self.books();
        Status {
            address: self.address.clone(),
            capacity: books.ledger.capacity(),
            free: books.ledger.free(),
            leases: books.leases.values().map(|run| run.view()).collect(),
            parked_executors: self.pool.parked(),
            manager_connected: *self.connection.borrow() == Connection::Up,
        }
    }
}

impl Handle {
    /// The node's address and identity.
    pub fn address(&self) -> &NodeAddress {
        &self.node.address
    }

    /// Signs the right to lease from this node without a manager, for the holder of this key.
    pub fn allowance(&self, holder: PublicKey) -> Token {
        self.node.allowance(holder)
    }

    /// Waits until the manager has registered this node, at most `limit`. Returns the reason otherwise.
    pub async fn joined(&self, limit: Duration) -> Result<(), String> {
        let mut connection = self.node.connection.subscribe();
        let settled = connection.wait_for(|now| !matches!(now, Connection::Never));
        match tokio::time::timeout(limit, settled)
            .await
            .map(|now| now.map(|now| now.clone()))
        {
            Ok(Ok(Connection::Up)) => Ok(()),
            Ok(Ok(Connection::Down(why))) => Err(why),
            _ => Err("it does not answer".into()),
        }
    }

    /// Returns when the manager has been disconnected for `limit`.
    pub async fn alone_for(&self, limit: Duration) {
        let mut connection = self.node.connection.subscribe();
        let is_up = |now: &Connection| matches!(now, Connection::Up);
        loop {
            match tokio::time::timeout(limit, connection.wait_for(is_up)).await {
                Ok(Ok(_)) => {}
                // An error means that the node itself is gone.
                Ok(Err(_)) | Err(_) => return,
            }
            if connection.wait_for(|now| !is_up(now)).await.is_err() {
                return;
            }
        }
    }

    /// The current state.
    pub fn status(&self) -> Status {
        self.node.status()
    }

    /// Revokes one lease or all, as an operator would. Returns their number.
    pub async fn revoke(&self, lease: Option<LeaseId>) -> usize {
        let runs: Vec<_> = {
            let books = self.node.books();
            let wanted = |id: &LeaseId| lease.is_none_or(|lease| lease == *id);
            books
                .leases
                .iter()
                .filter(|(id, _)| wanted(id))
                .map(|(_, run)| run.clone())
                .collect()
        };
        for run in &runs {
            run.end(LeaseState::Revoked);
        }
        for run in &runs {
            run.gone(SHUTDOWN_DEADLINE).await;
        }
        runs.len()
    }

    /// Ends the node and everything that it started, and informs the manager.
    pub async fn shutdown(mut self) {
        self.node.closing.send_replace(true);
        self.revoke(None).await;
        self.node.pool.close().await;
        self.node.images.close().await;
        self.node.environments.close().await;
        drop(self.node.alive.lock().unwrap_or_else(PoisonError::into_inner).take());
        if tokio::time::timeout(SHUTDOWN_DEADLINE, self.all_gone.recv())
            .await
            .is_err()
        {
            tracing::error!("some of the node's work did not end in time");
        }
        self.node.end_orphans();
        let _ = std::fs::remove_file(self.node.options.unix_path());
        let _ = std::fs::remove_file(self.node.options.state_dir.join("allowance.json"));
    }
}

/// Random bytes.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::new(Code::Internal, format!("the system gives no random bytes: {error}")))?;
    Ok(bytes)
}
