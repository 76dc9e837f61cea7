//! The dispatcher: receives the manager's messages and passes them to worker sets.

use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use dayfly_client::Client;
use dayfly_protocol::api::{Connection, Placement, Runtime};
use dayfly_protocol::cores::{MIN_WORKER_CORES, MilliCores};
use dayfly_protocol::dispatch::{Assigned, Attempt, Ended, FromDispatcher, Program, ToDispatcher};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::functions::Resources;
use dayfly_protocol::ids::{FunctionId, NodeId, TenantId};
use dayfly_scheduling::{Demand, Window};
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;

use crate::contents::Contents;
use crate::dispatcher_state::DispatcherState;
use crate::lending::LendingNodes;
use crate::watch::Watcher;
use crate::worker_set::{Task, WorkerKey, WorkerSet};

/// Returns the connection to lease with on behalf of a tenant, by the tenant's id and name.
pub type TenantConnections = Box<dyn Fn(TenantId, String) -> ConnectionFuture + Send + Sync>;
/// Result of [`TenantConnections`].
pub type ConnectionFuture = Pin<Box<dyn Future<Output = Result<Connection, Failure>> + Send>>;

/// Nodes on demand, and how long they remain.
pub trait ElasticNodes: Send + Sync {
    /// Nodes that remain for at least `needed`, the emptiest first.
    fn nodes_lasting(&self, needed: Duration) -> Vec<NodeId>;

    /// How long a node remains; `None` without end.
    fn remaining(&self, node: NodeId) -> Option<Duration>;

    /// How long a new node would remain; `None` without end.
    fn max_lifetime(&self) -> Option<Duration>;

    /// Cores for workers, whichever tenant holds them.
    fn available_cores(&self) -> MilliCores;

    /// Upper bounds.
    fn limits(&self) -> NodeLimits;
}

/// Upper bounds of nodes, and of each node's resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeLimits {
    /// Most nodes at a time.
    pub nodes: u32,
    /// Single-core workers that fit on each.
    pub cores: u16,
    /// GPUs of each.
    pub gpus: u16,
}

impl NodeLimits {
    /// The part of a node's cores that belongs to this many of its GPUs.
    pub fn cores_beside(&self, gpus: u16) -> MilliCores {
        match self.gpus {
            0 => MilliCores::ZERO,
            all => {
                let cores = u32::from(self.cores) * u32::from(gpus.min(all)) / u32::from(all);
                MilliCores::from(cores)
            }
        }
    }

    /// Number of workers of a function that fit on an empty node.
    fn workers_on_one(&self, needed: &Resources) -> u32 {
        let by_gpus = match needed.gpus {
            0 => u32::MAX,
            gpus => (self.gpus / gpus).into(),
        };
        let by_cores = MilliCores::from(self.cores).holds(needed.cores.max(MIN_WORKER_CORES));
        u32::try_from(by_cores).unwrap_or(u32::MAX).min(by_gpus)
    }
}

/// Returns the connection for leasing from the site itself, by the tenant's id, its name, and whether the endpoint is
/// another's.
pub type Invitations = Box<dyn Fn(TenantId, String, bool) -> ConnectionFuture + Send + Sync>;

/// Returns an error if no node of the site could run this runtime.
pub type RuntimeCheck = Box<dyn Fn(&Runtime) -> Result<(), Failure> + Send + Sync>;

/// Options of a dispatcher.
pub struct Options {
    /// Nodes on demand; `None` for a fixed set of nodes.
    pub elastic_nodes: Option<Arc<dyn ElasticNodes>>,
    /// Connections of tenants.
    pub tenants: TenantConnections,
    /// Connections for leasing from the site itself; `None` if the tasks' manager is the site's.
    pub invitations: Option<Invitations>,
    /// Runtimes that the site can run.
    pub runtime_check: RuntimeCheck,
    /// Store of long arguments and results.
    pub contents: Arc<dyn Contents>,
    /// Nodes that lend what is idle.
    pub lending: LendingNodes,
    /// Most cores for workers of one tenant and runtime.
    pub max_workers: u16,
    /// How long idle workers are kept.
    pub idle: Duration,
}

/// Contents that are moved at the same time.
const MAX_TRANSFERS: usize = 8;
/// How long to wait at the end for contents that are being moved.
const LAST_CONTENTS: Duration = Duration::from_secs(1);

/// Runs tasks.
pub struct Dispatcher;

/// A running dispatcher. It ends when the manager's channel ends, or by [`Handle::stop`].
pub struct Handle {
    shared: Arc<DispatcherState>,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Dispatcher {
    /// Starts a dispatcher on the two channels to a manager.
    pub fn start(
        options: Options,
        incoming: UnboundedReceiver<ToDispatcher>,
        outgoing: UnboundedSender<FromDispatcher>,
    ) -> Result<Handle, Failure> {
        let (stop, stopped) = oneshot::channel();
        let impossible = |error| Failure::new(Code::Internal, format!("no thread for the dispatcher: {error}"));
        let runtime = Builder::new_current_thread()
            .enable_time()
            .max_blocking_threads(MAX_TRANSFERS)
            .build()
            .map_err(impossible)?;
        let shared = Arc::new(DispatcherState::new(options, runtime.handle().clone(), outgoing));
        let thread = std::thread::Builder::new()
            .name("dayfly-dispatch".into())
            .spawn({
                let shared = Arc::clone(&shared);
                move || {
                    runtime.block_on(MessageLoop::new(shared).run(incoming, stopped));
                    runtime.shutdown_timeout(LAST_CONTENTS);
                }
            })
            .map_err(impossible)?;
        Ok(Handle { shared, stop, thread })
    }
}

impl Handle {
    /// Returns a function that computes the current demand.
    pub fn demand(&self) -> impl Fn() -> Demand + Send + use<> {
        let shared = Arc::clone(&self.shared);
        move || shared.demand()
    }

    /// Returns a function that counts the workers leased for tasks.
    pub fn workers(&self) -> impl Fn() -> u32 + Send + use<> {
        let shared = Arc::clone(&self.shared);
        move || shared.workers()
    }

    /// Whether the dispatcher has ended. If it was not stopped, that is a fault, which was printed to standard error.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Stops the dispatcher. Running calls are ended, and reported if the manager's channel is still open.
    pub fn stop(self) {
        // The thread may have ended by a panic, which was printed to standard error.
        let _ = self.stop.send(());
        let _ = self.thread.join();
    }
}

struct MessageLoop {
    shared: Arc<DispatcherState>,
    clients: HashMap<TenantId, Client>,
    /// Tenants that do not own the endpoint.
    guests: HashSet<TenantId>,
    programs: HashMap<FunctionId, Arc<Program>>,
    worker_sets: HashMap<WorkerKey, Arc<WorkerSet>>,
    watcher: Watcher,
}

impl MessageLoop {
    fn new(shared: Arc<DispatcherState>) -> Self {
        // A listing that hangs in a dead file system must not keep the channel open.
        let says = Arc::downgrade(&shared);
        let watcher = Watcher::new(move |message| {
            if let Some(shared) = says.upgrade() {
                shared.send(message);
            }
        });
        Self {
            shared,
            clients: HashMap::new(),
            guests: HashSet::new(),
            programs: HashMap::new(),
            worker_sets: HashMap::new(),
            watcher,
        }
    }

    async fn run(mut self, mut incoming: UnboundedReceiver<ToDispatcher>, mut stopped: oneshot::Receiver<()>) {
        self.shared.send(FromDispatcher::Credit {
            tasks: Window::default().tasks(self.shared.options.max_workers.into()),
        });
        loop {
            let message = tokio::select! {
                message = incoming.recv() => message,
                _ = &mut stopped => None,
            };
            let Some(message) = message else { break };
            match message {
                ToDispatcher::Tenant { tenant, name, guest } => {
                    if guest {
                        self.guests.insert(tenant);
                    }
                    self.on_tenant(tenant, name).await;
                }
                ToDispatcher::Invite {
                    number,
                    tenant,
                    name,
                    guest,
                } => {
                    let answer = match &self.shared.options.invitations {
                        Some(invitations) => invitations(tenant, name, guest).await,
                        None => Err(Failure::new(
                            Code::Forbidden,
                            "this endpoint is the manager's own: lease from the manager itself",
                        )),
                    };
                    self.shared.send(FromDispatcher::Invited { number, answer });
                }
                ToDispatcher::Program(program) => {
                    self.programs.insert(program.id, Arc::new(*program));
                }
                ToDispatcher::CheckCompatibility { function, runtime } => {
                    let refusal = (self.shared.options.runtime_check)(&runtime).err();
                    self.shared.send(FromDispatcher::Compatibility { function, refusal });
                }
                ToDispatcher::Tasks(tasks) => self.on_tasks(tasks),
                ToDispatcher::Cancel(attempts) => self.on_cancel(&attempts),
                ToDispatcher::Withdraw { number, attempts } => {
                    let withdrawn = self
                        .worker_sets
                        .values()
                        .flat_map(|worker_set| worker_set.withdraw(&attempts));
                    let attempts = withdrawn.collect();
                    self.shared.send(FromDispatcher::Withdrawn { number, attempts });
                }
                ToDispatcher::Watch(watches) => self.watcher.watch(watches),
                ToDispatcher::FilesStored { trigger, files } => self.watcher.noted(trigger, files),
                // Handled by the connection.
                ToDispatcher::OutcomesStored(_)
                | ToDispatcher::Site { .. }
                | ToDispatcher::StartEndpoint { .. }
                | ToDispatcher::Refused(_) => {}
            }
        }
        // Tasks that are returned now must not come back.
        self.shared.send(FromDispatcher::Credit { tasks: 0 });
        self.shared.transfer.close();
        for worker_set in self.worker_sets.values() {
            worker_set.close();
        }
    }

    async fn on_tenant(&mut self, tenant: TenantId, name: String) {
        if self.clients.contains_key(&tenant) {
            return;
        }
        let connection = (self.shared.options.tenants)(tenant, name).await;
        let client = connection.and_then(|connection| Client::manager_at(&connection).map_err(|error| error.0));
        match client {
            Ok(client) => drop(self.clients.insert(tenant, client)),
            Err(error) => tracing::error!(%tenant, %error, "no client for a tenant"),
        }
    }

    fn on_tasks(&mut self, tasks: Vec<Assigned>) {
        let mut refused = Vec::new();
        // Group by function first: a worker set's key is long, and most tasks of a batch have the same function.
        let mut by_function: HashMap<(TenantId, FunctionId), Vec<Assigned>> = HashMap::new();
        let longest = self
            .shared
            .options
            .elastic_nodes
            .as_ref()
            .and_then(|elastic_nodes| elastic_nodes.max_lifetime());
        for task in tasks {
            let needed = Duration::from_millis(task.walltime_ms.into());
            if let Some(longest) = longest.filter(|longest| needed > *longest) {
                refused.push(too_long(task.attempt, needed, longest));
                continue;
            }
            by_function.entry((task.tenant, task.function)).or_default().push(task);
        }
        for ((tenant, function), tasks) in by_function {
            let (Some(program), Some(client)) = (self.programs.get(&function), self.clients.get(&tenant)) else {
                refused.extend(tasks.iter().map(|task| unknown(task.attempt)));
                continue;
            };
            if let Some(failure) = self.too_large(&program.resources) {
                refused.extend(
                    tasks
                        .iter()
                        .map(|task| Ended::unexecuted(task.attempt, Some(failure.clone()))),
                );
                continue;
            }
            let key = WorkerKey::of(tenant, self.guests.contains(&tenant), program);
            let worker_set = self.worker_sets.entry(key.clone());
            let worker_set = worker_set.or_insert_with(|| {
                let worker_set = WorkerSet::new(key, client.clone(), Arc::clone(&self.shared));
                self.shared.register(&worker_set);
                worker_set
            });
            worker_set.add(
                tasks
                    .into_iter()
                    .map(|task| Task::new(Arc::clone(program), task))
                    .collect(),
            );
        }
        if !refused.is_empty() {
            self.shared.send(FromDispatcher::Ended(refused));
        }
    }

    /// The error if an execution can never fit on this site's nodes.
    fn too_large(&self, needed: &Resources) -> Option<Failure> {
        let most = self.shared.options.elastic_nodes.as_ref()?.limits();
        let on_one = most.workers_on_one(needed);
        let room = match needed.placement {
            Placement::Together => on_one,
            _ => on_one.saturating_mul(most.nodes),
        };
        let workers = needed.workers();
        if u32::from(workers) <= room {
            return None;
        }
        let with = |cores: MilliCores, gpus: u16| match gpus {
            0 => format!("{cores} cores"),
            gpus => format!("{cores} cores and {gpus} GPUs"),
        };
        let text = format!(
            "the task needs {workers} workers of {}, {}, and this endpoint has {} nodes of {} at most: ask for less, or have the \
             endpoint's owner raise max, nodes, workers_per_node or gpus_per_node of its blocks",
            with(needed.cores, needed.gpus),
            needed.placement.name(),
            most.nodes,
            with(most.cores.into(), most.gpus),
        );
        Some(Failure::new(Code::TooLarge, text))
    }

    fn on_cancel(&self, attempts: &[Attempt]) {
        for worker_set in self.worker_sets.values() {
            worker_set.cancel(attempts);
        }
    }
}

fn too_long(attempt: Attempt, needed: Duration, longest: Duration) -> Ended {
    let text = format!(
        "the task may take {} s and nodes of this endpoint are there for {} s at most; give it a shorter walltime, or have the \
         endpoint's owner raise blocks.walltime",
        needed.as_secs_f64(),
        longest.as_secs()
    );
    Ended::unexecuted(attempt, Some(Failure::new(Code::TooLarge, text)))
}

/// A manager sends functions and tenants before the tasks that need them.
fn unknown(attempt: Attempt) -> Ended {
    let text = "the manager sent a task without its function, or the site knows no client for its tenant: see the endpoint's log";
    Ended::unexecuted(attempt, Some(Failure::new(Code::ProtocolViolation, text)))
}
