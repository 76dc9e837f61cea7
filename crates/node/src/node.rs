//! The node as a whole: what it holds, how it starts and how it ends.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use mayfly_lease::token::Claims;
use mayfly_lease::{Lease, Ledger, ReplayWindow, SigningKey, State, Terms, replay};
use mayfly_protocol::api::{Capacity, Grant, LeaseRequest, Mode, NodeAddress};
use mayfly_protocol::error::{Code, Failure};
use mayfly_protocol::hello::Token;
use mayfly_protocol::ids::{LeaseId, NodeId, PublicKey, TenantId};
use mayfly_protocol::node_api::HeldLease;
use mayfly_sandbox::Spawner;
use tokio::sync::{Notify, mpsc, watch};
use zerocopy::IntoBytes;

use crate::executors::{Kind, Pool};
use crate::hangup::Hangups;
use crate::journal::{self, Journal};
use crate::leases::{Granted, LeaseView, Run};
use crate::{NodeError, Options, affinity, clock, listener, manager_link, runtimes, supervisor};

/// An allowance in the state directory is worth something for this long; it is written anew at every start.
const ALLOWANCE_MS: u64 = 366 * 24 * 3_600_000;
/// How long ended leases are remembered beyond their token, and at least.
const REMEMBER_MS: u64 = 60_000;
/// Everything that still runs at shutdown must be gone by then.
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
    pub(crate) hangups: Arc<Hangups>,
    pub(crate) closing: watch::Sender<bool>,
    pub(crate) journal: Journal,
    /// Rings when there is something to tell the manager.
    pub(crate) news: Notify,
    /// Whether the manager is there.
    pub(crate) connected: AtomicBool,
    books: Mutex<Books>,
    /// Held by every task of the node; when the last is gone, so is everything.
    alive: Mutex<Option<mpsc::Sender<()>>>,
}

#[derive(Debug)]
struct Books {
    ledger: Ledger,
    leases: BTreeMap<LeaseId, Arc<Run>>,
    ended: HashMap<LeaseId, Ended>,
}

/// A lease that ended, remembered so that its token opens nothing any more and, for a while, its calls' fates can be told.
#[derive(Debug, Clone)]
struct Ended {
    state: State,
    until_ms: u64,
    run: Option<(Arc<Run>, u64)>,
}

/// Everything that `mayfly status` and `mayfly top` show of a node.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Status {
    /// Where it is.
    pub address: NodeAddress,
    /// What it has.
    pub capacity: Capacity,
    /// What is free.
    pub free: Capacity,
    /// Its leases.
    pub leases: Vec<LeaseView>,
    /// Executors that wait for a lease.
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
        make_private(&options.state_dir)?;
        make_private(&options.code_dir())?;
        let key = load_key(&options.state_dir.join("node.key"))?;
        let resources = options.resources();
        let sockets = listener::bind(&options).await?;
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
            tcp: options
                .advertised_tcp
                .clone()
                .or_else(|| sockets.tcp_address().map(|address| address.to_string())),
            key: key.public(),
        };
        let pool = Pool::new(
            Spawner::new()?,
            options.executor_path(),
            options.warm_native,
            options.warm_python,
        );
        if options.own_process {
            let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        }
        let (alive, all_gone) = mpsc::channel(1);
        let tolerance_ms = options.skew_tolerance.as_millis() as u64;
        let node = Arc::new(Self {
            trusted: RwLock::new(vec![key.public()]),
            window: Mutex::new(ReplayWindow::new(tolerance_ms, replay::DEFAULT_CAPACITY)),
            hangups: Arc::new(Hangups::new()?),
            closing: watch::channel(false).0,
            books: Mutex::new(Books {
                ledger: Ledger::new(resources),
                leases: BTreeMap::new(),
                ended: ended.collect(),
            }),
            alive: Mutex::new(Some(alive)),
            news: Notify::new(),
            connected: AtomicBool::new(false),
            journal,
            pool,
            key,
            address,
            options,
        });
        if node.options.manager.is_none() {
            node.write_allowance()?;
        }
        if node.options.warm_native > 0 {
            node.pool.keep_warm(Kind::Native);
        }
        for executable in &node.options.pythons {
            node.pool.keep_warm(Kind::Python {
                executable: executable.clone(),
                path: Vec::new(),
            });
        }
        let hangups = node.hangups.clone();
        node.background(async move { hangups.serve().await });
        let housekeeper = node.clone();
        node.background(async move { housekeeper.keep_house().await });
        if let Some(link) = node.options.manager.clone() {
            node.background(manager_link::serve(node.clone(), link));
        }
        sockets.serve(&node);
        Ok(Handle { node, all_gone })
    }

    /// Runs until it ends or the node closes.
    pub(crate) fn background(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let mut closing = self.closing.subscribe();
        self.task(async move {
            tokio::select! {
                () = task => {}
                _ = closing.wait_for(|closing| *closing) => {}
            }
        });
    }

    /// Runs to its end, which shutdown waits for.
    pub(crate) fn task(&self, task: impl Future<Output = ()> + Send + 'static) {
        let alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Nothing starts any more once the node has closed.
        let Some(alive) = alive else { return };
        tokio::spawn(async move {
            task.await;
            drop(alive);
        });
    }

    async fn keep_house(&self) {
        loop {
            tokio::time::sleep(Duration::from_secs(60)).await;
            self.pool.tidy();
            let now_ms = clock::wall_ms();
            self.journal.forget(now_ms);
            self.books().ended.retain(|_, ended| {
                ended.run.take_if(|(_, until_ms)| *until_ms <= now_ms);
                ended.until_ms > now_ms
            });
        }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // Changes of the books are single calls into the ledger and the maps; none leaves them half done.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn shared_cores(&self) -> Vec<u16> {
        self.books().ledger.shared_cores()
    }

    pub(crate) fn free(&self) -> Capacity {
        self.books().ledger.free()
    }

    /// The lease that a token names, while it lives.
    pub(crate) fn lease(&self, token: &Token) -> Result<Arc<Run>, Failure> {
        let (found, ended) = {
            let books = self.books();
            (
                books.leases.get(&token.lease).cloned(),
                books.ended.get(&token.lease).map(|ended| ended.state),
            )
        };
        match (found, ended) {
            (Some(run), _) if run.holder() == token.holder => Ok(run),
            (Some(_), _) => Err(Failure::new(
                Code::Unauthorized,
                "the token does not name the holder that the lease was granted to; lease again",
            )),
            (None, Some(state)) => Err(mayfly_lease::state::LeaseError::Ended(state).into()),
            (None, None) => Err(Failure::new(
                Code::NotFound,
                format!(
                    "this node holds no lease {}; it was restarted or never got it, lease again",
                    token.lease
                ),
            )),
        }
    }

    /// The lease that a token names, also shortly after its end.
    pub(crate) fn lease_or_memory(&self, token: &Token) -> Result<Arc<Run>, Failure> {
        self.lease(token).or_else(|failure| {
            let books = self.books();
            let ended = books.ended.get(&token.lease).and_then(|ended| ended.run.clone());
            let run = ended.map(|(run, _)| run);
            run.filter(|run| run.holder() == token.holder).ok_or(failure)
        })
    }

    /// Takes a lease: reserves, starts an executor, and waits until it is there, so that what is wrong with it is said
    /// now. Waits no longer than `patience`, though: then the channels will tell.
    pub(crate) async fn take_lease(
        self: &Arc<Self>,
        id: LeaseId,
        tenant: TenantId,
        epoch: u64,
        request: LeaseRequest,
        start_by: Duration,
        patience: Duration,
    ) -> Result<Arc<Run>, Failure> {
        if *self.closing.borrow() {
            return Err(Failure::new(
                Code::Unreachable,
                "the node is shutting down; lease elsewhere",
            ));
        }
        let kind = runtimes::kind(&request.runtime, &self.options.pythons)?;
        let life = Lease::grant(
            Terms {
                duration_ms: request.duration_ms,
                start_by_ms: start_by.as_millis() as u64,
                idle_release_ms: request.idle_release_ms,
                grace_ms: self.options.grace.as_millis() as u64,
            },
            clock::now_ms(),
        )?;
        let executor_key = SigningKey::from_seed(random()?);
        let run = {
            let mut books = self.books();
            let reservation = books.ledger.reserve(id, &request)?.clone();
            let granted = Granted {
                id,
                tenant,
                epoch,
                request,
                reservation,
                kind,
            };
            match Run::new(granted, life, self.hangups.clone(), executor_key) {
                Ok(run) => {
                    let run = Arc::new(run);
                    books.leases.insert(id, run.clone());
                    run
                }
                Err(error) => {
                    books.ledger.release(&id);
                    return Err(Failure::new(
                        Code::OutOfMemory,
                        format!("there is no memory for the lease's meters: {error}; try later or elsewhere"),
                    ));
                }
            }
        };
        let until_ms = self.token_end_ms(&run, start_by);
        if let Err(failure) = self.journal.start(id, until_ms, epoch != 0) {
            let mut books = self.books();
            books.ledger.release(&id);
            books.leases.remove(&id);
            return Err(failure);
        }
        self.repin();
        self.task(supervisor::supervise(self.clone(), run.clone()));
        match tokio::time::timeout(patience, run.assigned()).await {
            Ok(Err(failure)) => {
                run.gone(SHUTDOWN_DEADLINE).await;
                Err(failure)
            }
            _ => Ok(run),
        }
    }

    /// When a token of this lease surely means nothing any more.
    fn token_end_ms(&self, run: &Run, start_by: Duration) -> u64 {
        let tolerance_ms = self.options.skew_tolerance.as_millis() as u64;
        clock::wall_ms()
            .saturating_add(run.remaining_ms().max(run.granted.request.duration_ms))
            .saturating_add(start_by.as_millis() as u64)
            .saturating_add(2 * tolerance_ms)
            .saturating_add(REMEMBER_MS)
    }

    /// Everything of a lease is gone: its capacity comes back.
    pub(crate) fn lease_over(&self, run: &Arc<Run>) {
        let now_ms = clock::wall_ms();
        let state = run.state();
        // A renewal may have lengthened it since; the longest token counts from the last one.
        let until_ms = self.token_end_ms(run, self.options.start_by).max(run.token_end_ms());
        let ended = journal::Ended { state, until_ms };
        self.journal.end(run.id(), ended, run.usage(), run.granted.epoch != 0);
        let mut books = self.books();
        books.ledger.release(&run.id());
        books.leases.remove(&run.id());
        let ended = Ended {
            state,
            until_ms,
            run: Some((run.clone(), now_ms + REMEMBER_MS)),
        };
        books.ended.insert(run.id(), ended);
        drop(books);
        self.repin();
        self.news.notify_one();
    }

    /// A lease was used for the first time.
    pub(crate) fn lease_active(&self, run: &Run) {
        tracing::debug!(lease = %run.id(), "first use");
        self.news.notify_one();
    }

    /// Keeps whoever owns no core off the cores of hot leases: warm workers, and the node's own threads.
    fn repin(&self) {
        let (shared, warm) = {
            let books = self.books();
            let runs = books
                .leases
                .values()
                .filter(|run| run.granted.reservation.mode != Mode::Hot);
            let warm: Vec<_> = runs.flat_map(|run| run.processes()).collect();
            (books.ledger.shared_cores(), warm)
        };
        for process in warm {
            affinity::pin(process, &shared);
        }
        if self.options.own_process {
            affinity::pin(std::process::id(), &shared);
        }
    }

    // -- for the manager ---------------------------------------------------------------------------------------------

    pub(crate) fn credential_path(&self) -> std::path::PathBuf {
        self.options.state_dir.join("node.credential")
    }

    pub(crate) fn capacity(&self) -> Capacity {
        self.books().ledger.capacity()
    }

    fn managed(&self) -> Vec<Arc<Run>> {
        let books = self.books();
        books
            .leases
            .values()
            .filter(|run| run.granted.epoch != 0)
            .cloned()
            .collect()
    }

    /// Leases of the manager's that live here.
    pub(crate) fn held(&self) -> Vec<HeldLease> {
        let held = |run: &Arc<Run>| HeldLease {
            lease: run.id(),
            remaining_ms: run.remaining_ms(),
        };
        self.managed().iter().map(held).collect()
    }

    /// Those of them that were used.
    pub(crate) fn active_leases(&self) -> Vec<LeaseId> {
        let active = self.managed().into_iter().filter(|run| run.state() == State::Active);
        active.map(|run| run.id()).collect()
    }

    /// One of them.
    pub(crate) fn held_lease(&self, lease: LeaseId) -> Result<Arc<Run>, Failure> {
        let books = self.books();
        match (books.leases.get(&lease), books.ended.get(&lease)) {
            (Some(run), _) => Ok(run.clone()),
            (None, Some(ended)) => Err(mayfly_lease::state::LeaseError::Ended(ended.state).into()),
            (None, None) => Err(Failure::new(
                Code::NotFound,
                format!("this node holds no lease {lease}"),
            )),
        }
    }

    /// Writes down what leases of the manager's used since last time.
    pub(crate) fn journal_usage(&self) {
        let used = self
            .managed()
            .into_iter()
            .filter_map(|run| Some((run.id(), run.new_usage()?)));
        self.journal.usage(used.collect());
    }

    fn start_by_ms(&self) -> u64 {
        self.options.start_by.as_millis() as u64
    }

    /// Ends processes that became ours because their executor died. Only where every child of the process is ours.
    pub(crate) fn end_orphans(&self) {
        if !self.options.own_process {
            return;
        }
        crate::executors::end_unknown_children();
    }

    /// A signed grant of a lease that this node holds.
    pub(crate) fn grant(&self, run: &Run) -> Grant {
        let now_ms = clock::wall_ms();
        let granted = &run.granted;
        let expires_at_ms = now_ms
            .saturating_add(run.remaining_ms())
            .saturating_add(self.start_by_ms());
        run.promised(expires_at_ms.saturating_add(2 * self.options.skew_tolerance.as_millis() as u64));
        let token = Claims {
            workers: granted.reservation.workers,
            cores: granted.request.cores_per_worker,
            memory_bytes: granted.reservation.memory_bytes,
            lease: Some(run.id()),
            tenant: granted.tenant,
            node: self.address.id,
            holder: run.holder(),
            epoch: granted.epoch,
            not_before_ms: now_ms,
            expires_at_ms,
            duration_ms: run.remaining_ms(),
        }
        .sign(&self.key);
        Grant {
            lease: run.id(),
            token: hex::encode(token.as_bytes()),
            node: self.address.clone(),
            workers: granted.reservation.workers,
            mode: granted.reservation.mode,
            memory_bytes: granted.reservation.memory_bytes,
            duration_ms: run.remaining_ms(),
            expires_at_ms,
        }
    }

    fn allowance(&self, holder: PublicKey) -> Token {
        let now_ms = clock::wall_ms();
        let capacity = self.books().ledger.capacity();
        Claims {
            workers: capacity.workers.max(capacity.cores),
            cores: capacity.cores,
            memory_bytes: capacity.memory_bytes,
            lease: None,
            tenant: TenantId([0; 16]),
            node: self.address.id,
            holder,
            epoch: 0,
            not_before_ms: now_ms,
            expires_at_ms: now_ms.saturating_add(ALLOWANCE_MS),
            duration_ms: ALLOWANCE_MS,
        }
        .sign(&self.key)
    }

    /// Leaves the right to lease in the state directory, for clients of the same user.
    fn write_allowance(&self) -> Result<(), NodeError> {
        let path = self.options.state_dir.join("allowance.json");
        let seed: [u8; 32] = random().map_err(|failure| NodeError::System(std::io::Error::other(failure)))?;
        let token = self.allowance(SigningKey::from_seed(seed).public());
        let text = serde_json::json!({
            "token": hex::encode(token.as_bytes()),
            "holder_seed": hex::encode(seed),
            "node": self.address,
        });
        write_private(&path, text.to_string().as_bytes()).map_err(|error| NodeError::State { path, error })
    }

    fn status(&self) -> Status {
        let books = self.books();
        Status {
            address: self.address.clone(),
            capacity: books.ledger.capacity(),
            free: books.ledger.free(),
            leases: books.leases.values().map(|run| run.view()).collect(),
            parked_executors: self.pool.parked(),
            manager_connected: self.connected.load(Ordering::Acquire),
        }
    }
}

impl Handle {
    /// Where it is and how to know it.
    pub fn address(&self) -> &NodeAddress {
        &self.node.address
    }

    /// The right to lease from this node without a manager, for whoever holds this key.
    pub fn allowance(&self, holder: PublicKey) -> Token {
        self.node.allowance(holder)
    }

    /// What it does now.
    pub fn status(&self) -> Status {
        self.node.status()
    }

    /// Ends every lease as an operator would, or one of them. Answers how many there were.
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
            run.end(State::Revoked);
        }
        for run in &runs {
            run.gone(SHUTDOWN_DEADLINE).await;
        }
        runs.len()
    }

    /// Ends the node and everything that it started.
    pub async fn shutdown(mut self) {
        self.node.closing.send_replace(true);
        self.revoke(None).await;
        self.node.pool.close().await;
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

/// A node is known by its key, so that its id needs no file of its own and nobody can take it over.
fn id_of(key: &SigningKey) -> NodeId {
    use sha2::Digest;
    let digest = sha2::Sha256::digest(key.public().0);
    let mut id = [0; 16];
    id.copy_from_slice(&digest[..16]);
    NodeId(id)
}

fn load_key(path: &Path) -> Result<SigningKey, NodeError> {
    let state = |error| NodeError::State {
        path: path.into(),
        error,
    };
    match std::fs::read(path) {
        Ok(bytes) => SigningKey::from_pkcs8(&bytes).map_err(|_| NodeError::Key(path.into())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let seed = random().map_err(|failure| NodeError::System(std::io::Error::other(failure)))?;
            let key = SigningKey::from_seed(seed);
            write_private(path, &key.to_pkcs8()).map_err(state)?;
            Ok(key)
        }
        Err(error) => Err(state(error)),
    }
}

/// Writes a file that only this user can read, whole or not at all.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let part = path.with_extension("part");
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&part)?;
    file.write_all(bytes)?;
    file.sync_data()?;
    std::fs::rename(&part, path)
}

fn make_private(path: &Path) -> Result<(), NodeError> {
    let state = |error| NodeError::State {
        path: path.into(),
        error,
    };
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(state)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).map_err(state)
}
