//! The node: its state, start and end.

mod allocation;
mod allowance_leases;
mod core_slots;
mod grants;
mod incidents;
mod lease_table;
mod manager_leases;
mod renewal;
mod resizing;
mod state_dir;
mod task_group;
mod trusted_keys;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dayfly_executor::cores::CoreSlots;
use dayfly_harvest::Amount;
use dayfly_lease::token::Claims;
use dayfly_lease::{Lease, ReplayWindow, SigningKey, Terms};
use dayfly_protocol::api::{
    Capacity, Grant, HarvestMode, HarvestStatus, LearntProfile, LeaseRequest, LeaseState, NodeAddress, Sandbox,
};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::hello::{Hello, Token};
use dayfly_protocol::ids::{LeaseId, NodeId, PublicKey, TenantId};
use dayfly_protocol::node_api::HeldLease;
use dayfly_sandbox::{Spawner, descriptors, private_file};
use tokio::sync::{Notify, mpsc, watch};
use zerocopy::IntoBytes;

pub(crate) use self::allocation::RequestedLease;
use self::incidents::Incidents;
pub(crate) use self::lease_table::LeaseTable;
use self::state_dir::{id_of, load_key, make_private};
use self::task_group::TaskGroup;
use self::trusted_keys::TrustedKeys;
use crate::disconnects::DisconnectWatch;
use crate::environments::Environments;
use crate::executor_sandbox::SandboxFactory;
use crate::executors::{Executor, Language};
use crate::harvest::{self, Harvest};
use crate::images::Images;
use crate::journal::{self, Journal};
use crate::leases::{GrantedTerms, LeaseView, NodeLease, Origin, PresentedAllowance};
use crate::metrics;
use crate::package::Packages;
use crate::pool::Pool;
use crate::spill::SpillFactory;
use crate::{
    NodeError, Options, affinity, clock, listener, manager_link, policy, runtimes, sandbox_socket, supervisor,
};

/// Limit for everything to end at shutdown.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(15);

/// A running node.
#[derive(Debug)]
pub struct Node {
    pub(crate) options: Options,
    pub(crate) address: NodeAddress,
    pub(crate) key: SigningKey,
    pub(crate) trusted: TrustedKeys,
    /// Hellos that were accepted a short time ago.
    window: Mutex<ReplayWindow>,
    pub(crate) leases: LeaseTable,
    pub(crate) tasks: TaskGroup,
    pub(crate) pool: Arc<Pool>,
    pub(crate) images: Arc<Images>,
    pub(crate) packages: Arc<Packages>,
    pub(crate) environments: Arc<Environments>,
    pub(crate) disconnects: Arc<DisconnectWatch>,
    /// The cores that warm workers share.
    pub(crate) core_slots: CoreSlots,
    pub(crate) journal: Journal,
    /// Notified when there is something to send to the manager.
    pub(crate) report_due: Notify,
    /// State of the connection to the manager.
    pub(crate) connection: watch::Sender<LinkState>,
    /// Refused system calls that no honest function makes, and that the manager was not informed of.
    pub(crate) incidents: Incidents,
    /// Measures long calls, and lends what they do not use.
    pub(crate) harvest: Harvest,
}

/// The connection to the manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LinkState {
    /// Not tried yet.
    Connecting,
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
    /// Harvesting.
    pub harvest: HarvestStatus,
}

/// A started node. Dropping it leaves the node running; [`Handle::shutdown`] ends it.
#[derive(Debug)]
pub struct Handle {
    node: Arc<Node>,
    all_ended: mpsc::Receiver<()>,
}

impl Node {
    /// Starts a node within the current tokio runtime.
    pub async fn start(options: Options) -> Result<Handle, NodeError> {
        if options.own_process {
            descriptors::raise_limit();
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
        let address = NodeAddress {
            id: id_of(&key),
            name: options.name.clone(),
            host: std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
                .unwrap_or_default()
                .trim()
                .into(),
            unix: Some(options.unix_path().display().to_string()),
            tcp: sockets.tcp_address().map(|at| match &options.advertised_tcp {
                Some(advertised) => match advertised.strip_suffix(":0") {
                    Some(host) => format!("{host}:{}", at.port()),
                    None => advertised.clone(),
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
        let sandboxes = SandboxFactory::new(path.clone(), name.clone(), options.scratch_bytes)
            .map_err(|error| NodeError::State { path, error })?;
        let spills = match &options.spill {
            Some(parent) => {
                let made = SpillFactory::new(parent, &name, options.spill_bytes);
                Some(made.map_err(|error| NodeError::State {
                    path: parent.clone(),
                    error,
                })?)
            }
            None => None,
        };
        let pool = Pool::new(Spawner::new()?, sandboxes, spills, &options);
        let shared = resources.cores.len();
        let harvest = start_harvest(&options, &pool, harvest::shared(shared, resources.memory_bytes)).await?;
        if options.own_process {
            let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        }
        let (tasks, all_ended) = TaskGroup::new();
        let tolerance_ms = options.skew_tolerance.as_millis() as u64;
        let node = Arc::new(Self {
            trusted: TrustedKeys::new(key.public()),
            window: Mutex::new(ReplayWindow::new(tolerance_ms, options.max_hellos)),
            disconnects: Arc::new(DisconnectWatch::new()?),
            core_slots: CoreSlots::new()?,
            leases: LeaseTable::new(resources, journal.ended()),
            tasks,
            report_due: Notify::new(),
            connection: watch::channel(LinkState::Connecting).0,
            incidents: Incidents::default(),
            harvest,
            journal,
            pool,
            images,
            packages,
            environments,
            key,
            address,
            options,
        });
        node.restore_offer();
        node.set_core_slots();
        if node.options.manager.is_none() {
            node.write_allowance()?;
        }
        if node.options.warm_native > 0 {
            node.warm_up(Language::Native);
        }
        for executable in &node.options.pythons {
            let language = Language::Python {
                executable: executable.clone(),
                path: Vec::new(),
                environment: None,
            };
            node.warm_up(language);
        }
        let images = node.images.clone();
        node.tasks.spawn_until_closing(async move { images.prepare().await });
        let disconnects = node.disconnects.clone();
        node.tasks.spawn_until_closing(async move { disconnects.serve().await });
        let guard = node.clone();
        node.tasks
            .spawn_until_closing(async move { guard.guard_core_slots().await });
        let housekeeper = node.clone();
        node.tasks
            .spawn_until_closing(async move { housekeeper.run_housekeeping().await });
        if let Some(link) = node.options.manager.clone() {
            node.tasks.spawn(manager_link::serve(node.clone(), link));
        }
        if let Some(listener) = metrics_socket {
            let mine = node.clone();
            node.tasks
                .spawn_until_closing(async move { metrics::serve(mine, listener).await });
        }
        sockets.serve(&node);
        Ok(Handle { node, all_ended })
    }

    fn warm_up(self: &Arc<Self>, language: Language) {
        let Some(mut kind) = policy::default_kind(language, &self.options) else {
            return;
        };
        let mine = Arc::clone(self);
        self.tasks.spawn_until_closing(async move {
            mine.show_packages(&mut kind).await;
            mine.pool.keep_warm(kind);
        });
    }

    async fn run_housekeeping(&self) {
        loop {
            tokio::time::sleep(Duration::from_secs(60)).await;
            self.pool.tidy();
            self.images.refresh().await;
            self.environments.release_unused();
            let now_ms = clock::wall_ms();
            self.journal.forget(now_ms);
            self.leases.forget(now_ms);
        }
    }

    /// Whether it has GPUs, also if it does not offer them now. Workers without GPUs then see none.
    pub(crate) fn has_gpus(&self) -> bool {
        self.leases.has_gpus()
    }

    /// Records a verified hello. Returns an error if it was accepted before, or its lease has sent too many.
    pub(crate) fn accept_hello(&self, hello: &Hello, now_ms: u64) -> Result<(), Failure> {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(window.accept(hello, now_ms)?)
    }

    /// Ends orphans of dead executors. Only if every child of this process belongs to the node.
    pub(crate) fn end_orphans(&self) {
        if !self.options.own_process {
            return;
        }
        crate::executors::end_unknown_children();
    }

    fn status(&self) -> Status {
        Status {
            address: self.address.clone(),
            capacity: self.leases.capacity(),
            free: self.leases.free(),
            leases: self.leases.live().iter().map(|lease| lease.view()).collect(),
            parked_executors: self.pool.parked(),
            manager_connected: *self.connection.borrow() == LinkState::Up,
            harvest: self.harvest.status(),
        }
    }
}

/// Harvests as the options want it.
async fn start_harvest(options: &Options, pool: &Arc<Pool>, shared: Amount) -> Result<Harvest, NodeError> {
    let setup = harvest::Setup {
        rules: dayfly_harvest::Rules {
            stays_within_tenant: options.harvest_within_tenant,
            ..Default::default()
        },
        borrow: options.harvest_borrow,
        recording: (options.harvest_log_bytes > 0).then(|| harvest::RecordingFile {
            path: options.state_dir.join(harvest::RECORDING),
            max_bytes: options.harvest_log_bytes,
        }),
    };
    let (harvest, mode) = (Harvest::new(setup, pool, shared), options.harvest);
    tokio::task::spawn_blocking(move || harvest.switch(mode).map(|()| harvest))
        .await
        .map_err(std::io::Error::other)?
        .map_err(NodeError::System)
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
    pub async fn wait_until_joined(&self, limit: Duration) -> Result<(), String> {
        let mut connection = self.node.connection.subscribe();
        let settled = connection.wait_for(|now| !matches!(now, LinkState::Connecting));
        match tokio::time::timeout(limit, settled)
            .await
            .map(|now| now.map(|now| now.clone()))
        {
            Ok(Ok(LinkState::Up)) => Ok(()),
            Ok(Ok(LinkState::Down(why))) => Err(why),
            _ => Err("it does not respond".into()),
        }
    }

    /// Returns when the manager has been disconnected for `limit`.
    pub async fn wait_until_alone(&self, limit: Duration) {
        let mut connection = self.node.connection.subscribe();
        let is_up = |now: &LinkState| matches!(now, LinkState::Up);
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

    /// Switches what becomes of resources that calls own and do not use. Blocks for a moment.
    pub fn switch_harvest(&self, mode: HarvestMode) -> std::io::Result<()> {
        self.node.harvest.switch(mode)
    }

    /// What was learnt about the functions of a tenant that a text names, as a manager would ask for it. Blocks for some
    /// milliseconds.
    pub fn profiles(&self, tenant: TenantId, function: &str) -> Vec<LearntProfile> {
        self.node.harvest.profiles(tenant, function)
    }

    /// Revokes one lease or all, as an operator would. Returns their number.
    pub async fn revoke(&self, lease: Option<LeaseId>) -> usize {
        let mut leases = self.node.leases.live();
        leases.retain(|live| lease.is_none_or(|wanted| wanted == live.id()));
        for lease in &leases {
            lease.end(LeaseState::Revoked);
        }
        for lease in &leases {
            lease.wait_until_over(SHUTDOWN_DEADLINE).await;
        }
        leases.len()
    }

    /// Ends the node and everything that it started, and informs the manager.
    pub async fn shutdown(mut self) {
        self.node.tasks.begin_closing();
        self.revoke(None).await;
        self.node.pool.close().await;
        self.node.images.close().await;
        self.node.environments.close().await;
        self.node.harvest.stop();
        self.node.tasks.close();
        if tokio::time::timeout(SHUTDOWN_DEADLINE, self.all_ended.recv())
            .await
            .is_err()
        {
            tracing::error!("some tasks of the node did not end in time");
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
