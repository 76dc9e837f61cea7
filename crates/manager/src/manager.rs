//! Starting a manager, and the handle to one that runs.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dayfly_durable_tasks::{ContentOptions, Contents, Conversation};
use dayfly_lease::SigningKey;
use dayfly_lease::rendezvous::vouch;
use dayfly_protocol::api::{Connection, JoinToken, NodeStatus, RendezvousAddress};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{NodeId, PublicKey, TenantId};
use dayfly_protocol::tenancy::{Role, TenantSpec};
use dayfly_rendezvous::server::{BoundServer, ServeOptions};
use dayfly_storage::StoreUrl;
use dayfly_store::system::{now_ms, random};
use dayfly_store::tasks::TaskStore;
use dayfly_store::{
    Bearer, BearerKind, LOAD_DEADLINE, LeaseWriter, MemoryStore, PeerUpdate, PostgresStore, SharedTasks, Snapshot,
    SqliteStore, SqliteTasks, Store, hash,
};
use tokio::sync::broadcast;
use tokio::task::JoinHandle;

use crate::cluster::{Cluster, LeaseDemand, LendingReport};
use crate::control::{Control, ENDED_LEASES_KEPT_MS, run_clock};
use crate::error::Error;
use crate::events::SiteEvent;
use crate::identity::{self, Identity};
use crate::journal::Journal;
use crate::options::{Options, StoreKind};
use crate::server::{BoundSocket, ConnectionLimits, Listeners};
use crate::shutdown::stopped;
use crate::task_owner::{self, SharedTaskStore};
use crate::tenants::OWN_TENANT;
use crate::tokens::{OWN_TOKEN, generate_token};
use crate::{audit, http, peers, server};

/// Copy of `connection.json` without the token, for people who log in. Written if the site has an identity provider.
const LOGIN_FILE: &str = "login.json";

/// The store of durable tasks.
enum TaskKind {
    /// This manager's own store.
    Own(Arc<dyn TaskStore>),
    /// A database that managers share.
    Shared(Box<SharedTasks>),
}

/// The control plane of one site.
pub struct Manager;

/// A running manager. Cloning it is cheap; the manager runs until [`Handle::shutdown`] or the end of its runtime.
#[derive(Clone)]
pub struct Handle(Arc<Running>);

struct Running {
    control: Arc<Control>,
    address: SocketAddr,
    connection: Connection,
    connection_path: PathBuf,
    tasks: Mutex<Option<Tasks>>,
}

struct Tasks {
    server: JoinHandle<()>,
    clock: JoinHandle<()>,
    rendezvous: JoinHandle<()>,
}

impl Manager {
    /// Starts a manager on the current tokio runtime: reads or makes its keys, opens its store, listens, and writes
    /// `connection.json` for clients of the same user. Returns once it listens.
    pub async fn start(options: Options) -> Result<Handle, Error> {
        let limits = ConnectionLimits::from_descriptors();
        // Bind first: a second manager on this address must fail before it touches files.
        let bound = server::bind(options.listen)?;
        let identity = identity::load(&options.state_dir, &options.names)?;
        let store: Arc<dyn Store> = match &options.store {
            StoreKind::Sqlite { most_pages } => {
                let path = options.state_dir.join("manager.db");
                Arc::new(SqliteStore::open(&path, *most_pages, options.accept_loss)?)
            }
            StoreKind::Postgres { url } => {
                let mut store = PostgresStore::open(url, identity.signing.public()).await?;
                store.compare(&options.state_dir, options.accept_loss).await?;
                Arc::new(store)
            }
            StoreKind::Memory => Arc::new(MemoryStore::default()),
        };
        let tasks = match &options.store {
            StoreKind::Sqlite { most_pages } => {
                let path = options.state_dir.join("tasks.db");
                TaskKind::Own(Arc::new(SqliteTasks::open(
                    Some(&path),
                    *most_pages,
                    options.accept_loss,
                )?))
            }
            StoreKind::Memory => TaskKind::Own(Arc::new(SqliteTasks::open(None, None, false)?)),
            StoreKind::Postgres { url } => {
                TaskKind::Shared(Box::new(SharedTasks::new(url, identity.signing.public())?))
            }
        };
        Self::start_with(options, (bound, limits), identity, store, tasks).await
    }

    async fn start_with(
        options: Options,
        (bound, limits): (BoundSocket, ConnectionLimits),
        identity: Identity,
        store: Arc<dyn Store>,
        task_store: TaskKind,
    ) -> Result<Handle, Error> {
        let listening = |source| Error::Listen {
            address: options.listen,
            source,
        };
        let address = bound.local_addr().map_err(listening)?;
        let url = url_of(address, &options.names);
        // On a port of its own, because its protocol is not HTTP and uses no tokens.
        let meeting = BoundServer::new(ServeOptions {
            listen: vec![SocketAddr::new(address.ip(), 0)],
            max_connections: limits.rendezvous,
            ..ServeOptions::default()
        });
        let meeting = meeting.await.map_err(|failure| Error::Rendezvous(failure.message))?;
        let place = meeting.addresses().first().copied().unwrap_or(address);
        let place = host_and_port(place, &options.names);
        let rendezvous = RendezvousAddress {
            voucher: vouch(&identity.signing, &place, &meeting.key()),
            address: place,
            key: meeting.key(),
        };
        let snapshot = store
            .load(now_ms().saturating_sub(ENDED_LEASES_KEPT_MS))
            .within(LOAD_DEADLINE)
            .await?;
        let connection_path = options.state_dir.join("connection.json");
        let own_key = identity.signing.public();
        // Each of several managers over one store has its own token.
        let name = match options.store {
            StoreKind::Postgres { .. } => format!("{OWN_TOKEN}@{}", hex::encode(&own_key.0[..4])),
            _ => OWN_TOKEN.to_owned(),
        };
        let (connection, mut snapshot) = own_connection(
            &connection_path,
            &name,
            &url,
            &identity.ca_pem,
            store.as_ref(),
            snapshot,
        )
        .await?;
        for node in &mut snapshot.nodes {
            node.manager = node.manager.filter(|manager| *manager != own_key);
        }
        let news = store.peer_updates();
        let cluster = Cluster::from_snapshot(snapshot, Instant::now());
        let journal = Journal::start(Arc::clone(&store) as Arc<dyn LeaseWriter>);
        let Identity { signing, ca_pem, tls } = identity;
        let control = Arc::new(Control::new(
            options,
            (url, rendezvous, meeting.groups()),
            ca_pem,
            signing,
            store,
            journal,
            cluster,
        ));
        let contents = content_options(control.options())?;
        let shared_tasks = match task_store {
            TaskKind::Own(store) => {
                let tasks = dayfly_durable_tasks::Tasks::start(store, &contents, control.tenant_directory()).await?;
                control.task_owner().set_local(tasks);
                None
            }
            TaskKind::Shared(tasks) => Some(SharedTaskStore {
                tasks: *tasks,
                contents,
            }),
        };
        // Before nodes register: the registration names the keys of all managers.
        let is_shared = control.update_presence().await?;
        if is_shared {
            control.store().publish(vec![PeerUpdate::Manager]);
        }
        if let Some(store) = &shared_tasks {
            // The first manager owns the tasks before its first response.
            control.update_task_owner(store).await;
        }
        // Checking and reading a store may take long, so listen only now.
        let listeners = Listeners::new(bound.listen()?, tls, control.ca_pem());
        // After listening: a client that finds the file can connect.
        let connection_files = write_connection_files(control.options(), &connection_path, &connection)?;
        if is_shared {
            tokio::spawn(peers::run_presence(Arc::clone(&control), connection_files));
        }
        tokio::spawn(task_owner::run_charging(Arc::clone(&control)));
        tokio::spawn(audit::run_trimming(Arc::clone(&control)));
        if let Some(store) = shared_tasks {
            tokio::spawn(task_owner::run(Arc::clone(&control), store));
        }
        if let Some(news) = news {
            tokio::spawn(peers::apply_changes(Arc::clone(&control), news));
        }
        let router = http::router(Arc::clone(&control));
        let stopping = control.shutdown().subscribe();
        let tasks = Tasks {
            server: tokio::spawn(server::serve(listeners, limits, router, stopping)),
            clock: tokio::spawn(run_clock(Arc::clone(&control))),
            rendezvous: tokio::spawn({
                let mut stopping = control.shutdown().subscribe();
                meeting.run(async move { stopped(&mut stopping).await })
            }),
        };
        tracing::info!(url = control.url(), "listening");
        let tasks = Mutex::new(Some(tasks));
        Ok(Handle(Arc::new(Running {
            control,
            address,
            connection,
            connection_path,
            tasks,
        })))
    }
}

/// Returns where contents are: in the chosen place, or in a directory beside the store.
fn content_options(options: &Options) -> Result<ContentOptions, Failure> {
    let place = match &options.contents {
        Some(place) => place.clone(),
        None => {
            let directory = options.state_dir.join("contents");
            let made = std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&directory);
            made.and_then(|()| directory.canonicalize())
                .map_err(|error| {
                    let text = format!(
                        "cannot make the directory {}: {error}; check the disk",
                        directory.display()
                    );
                    Failure::new(Code::StoreFailed, text)
                })
                .and_then(|directory| StoreUrl::of_directory(&directory))?
        }
    };
    Ok(ContentOptions {
        place,
        most_bytes: options.most_content_bytes,
        retention: options.keep_results,
    })
}

/// Returns the contents of `connection.json`: with the token in the file at `path` if that is valid, otherwise with a
/// new one for an administrator. Returns the snapshot with that token.
async fn own_connection(
    path: &Path,
    name: &str,
    url: &str,
    ca_pem: &str,
    store: &dyn Store,
    mut snapshot: Snapshot,
) -> Result<(Connection, Snapshot), Error> {
    let kept = identity::read(path)?.and_then(|json| serde_json::from_slice::<Connection>(&json).ok());
    let known = |kept: &Connection| {
        let hash = hash(&kept.token);
        snapshot
            .bearers
            .iter()
            .any(|bearer| bearer.name == name && bearer.hash == hash)
    };
    // The other managers of the file stay until this one reads the current ones.
    let (token, others) = match kept.filter(known) {
        Some(kept) => (kept.token, kept.others),
        None => {
            // A new token has the earlier token's tenant, which owns its leases.
            let earlier = snapshot.bearers.iter().find(|bearer| bearer.name == name);
            let named = snapshot.tenants.iter().find(|tenant| tenant.name == OWN_TENANT);
            let tenant = earlier
                .map(|bearer| bearer.tenant)
                .or(named.map(|tenant| tenant.id))
                .unwrap_or_else(|| TenantId(random()));
            let a_century = Duration::from_secs(100 * 365 * 24 * 3600);
            let (token, bearer) = generate_token(BearerKind::Client(Role::Administrator), tenant, None, a_century);
            let bearer = Bearer {
                name: name.into(),
                ..bearer
            };
            store.keep(bearer.clone()).wait().await?;
            let (replaced, others): (Vec<_>, Vec<_>) =
                snapshot.bearers.into_iter().partition(|known| known.name == name);
            snapshot.bearers = others;
            // The store has bound the leases to the new token in the same way.
            for lease in &mut snapshot.leases {
                if replaced.iter().any(|old| lease.bearer == Some(old.hash)) {
                    lease.bearer = Some(bearer.hash);
                }
            }
            snapshot.bearers.push(bearer);
            (token, Vec::new())
        }
    };
    let own = snapshot.bearers.iter().find(|bearer| bearer.name == name);
    if let Some(id) = own.map(|bearer| bearer.tenant)
        && snapshot.tenants.iter().all(|tenant| tenant.id != id)
    {
        let spec = TenantSpec::default();
        snapshot
            .tenants
            .push(store.tenant(id, OWN_TENANT.into(), spec).wait().await?);
    }
    let connection = Connection {
        manager: url.into(),
        ca_pem: ca_pem.into(),
        token,
        others,
    };
    Ok((connection, snapshot))
}

/// Writes `connection.json`, and `login.json` if the site has an identity provider. Returns their paths.
fn write_connection_files(
    options: &Options,
    connection_path: &Path,
    connection: &Connection,
) -> Result<Vec<PathBuf>, Error> {
    let mut paths = vec![connection_path.to_path_buf()];
    if options.oidc.is_some() {
        let without_token = Connection {
            token: String::new(),
            ..connection.clone()
        };
        let path = options.state_dir.join(LOGIN_FILE);
        write_connection(&path, &without_token)?;
        paths.push(path);
    }
    write_connection(connection_path, connection)?;
    Ok(paths)
}

fn write_connection(path: &Path, connection: &Connection) -> Result<(), Error> {
    let json = serde_json::to_vec_pretty(connection).map_err(|error| Error::Damaged {
        path: path.to_path_buf(),
        why: error.to_string(),
    })?;
    identity::write_private(path, &json)
}

/// Returns the URL for other programs: with the first configured name, else with the address, or the loopback if it
/// listens on all addresses.
fn url_of(address: SocketAddr, names: &[String]) -> String {
    format!("https://{}", host_and_port(address, names))
}

fn host_and_port(address: SocketAddr, names: &[String]) -> String {
    let port = address.port();
    match (names.first(), address.ip()) {
        (Some(name), _) if name.contains(':') => format!("[{name}]:{port}"),
        (Some(name), _) => format!("{name}:{port}"),
        (None, ip) if ip.is_unspecified() => format!("{}:{port}", Ipv4Addr::LOCALHOST),
        (None, IpAddr::V6(ip)) => format!("[{ip}]:{port}"),
        (None, IpAddr::V4(ip)) => format!("{ip}:{port}"),
    }
}

impl Handle {
    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// Its URL for clients and nodes, `https://...`.
    pub fn url(&self) -> &str {
        self.0.control.url()
    }

    /// Its certificate authority, PEM.
    pub fn ca_pem(&self) -> &str {
        self.0.control.ca_pem()
    }

    /// The contents of its connection file, with an administrator's token.
    pub fn connection(&self) -> &Connection {
        &self.0.connection
    }

    /// Path of its connection file.
    pub fn connection_path(&self) -> &Path {
        &self.0.connection_path
    }

    /// The key that signs tokens of leases.
    pub fn signing_key(&self) -> PublicKey {
        SigningKey::public(self.0.control.signing())
    }

    /// Makes a token with which one node without an owner may join.
    pub async fn join_token(&self, valid_for: Duration) -> Result<JoinToken, Failure> {
        self.0.control.join_token(valid_for, None).await
    }

    /// Returns the tenant of the connection file's token.
    pub fn owner(&self) -> Option<TenantId> {
        let bearer = self.0.control.authenticate(&self.0.connection.token)?;
        Some(bearer.tenant)
    }

    /// Statuses of this manager's nodes.
    pub fn nodes(&self) -> Vec<NodeStatus> {
        self.0.control.cluster().node_statuses(Instant::now())
    }

    /// What each node that lends could lend, as it last reported.
    pub fn lending(&self) -> Vec<(NodeId, LendingReport)> {
        let cluster = self.0.control.cluster();
        let lending = cluster.nodes().lending();
        lending.map(|(id, report)| (id, report.clone())).collect()
    }

    /// How much of what a warm worker with one core may want above it each node that lends could lend, in hundredths.
    pub fn coverages(&self) -> HashMap<NodeId, u8> {
        let demand = LeaseDemand::of_worker(Instant::now());
        self.0.control.cluster().nodes().coverages(&demand)
    }

    /// Attaches a dispatcher in this process, which runs the tasks of the manager's own endpoint with this name.
    pub async fn attach(&self, endpoint: &str) -> Result<Conversation, Failure> {
        self.0.control.tasks()?.attach(endpoint).await
    }

    /// The store of long arguments and results of tasks.
    pub fn contents(&self) -> Result<Arc<Contents>, Failure> {
        Ok(Arc::clone(&self.0.control.tasks()?.contents))
    }

    /// Returns the connection with which a dispatcher in this process leases for a tenant. Adds the tenant if
    /// necessary.
    pub async fn for_tenant(&self, tenant: TenantId, name: &str) -> Result<Connection, Failure> {
        let token = self.0.control.token_for_dispatcher(tenant, name).await?;
        Ok(Connection {
            token,
            ..self.0.connection.clone()
        })
    }

    /// Returns the connection with which a tenant of the tasks' manager leases here.
    pub async fn for_guest(&self, tenant: TenantId, name: &str) -> Result<Connection, Failure> {
        let token = self.0.control.token_for_guest(tenant, name).await?;
        Ok(Connection {
            token,
            ..self.0.connection.clone()
        })
    }

    /// Returns the number of leased workers plus the number of workers that waiting requests ask for, in workers with
    /// one core.
    pub fn demanded_workers(&self) -> u64 {
        self.0.control.demanded_workers()
    }

    /// Subscribes to the events from now on.
    pub fn events(&self) -> broadcast::Receiver<SiteEvent> {
        self.0.control.events().subscribe()
    }

    /// Stops the manager: finishes running requests and writes everything. Leases and nodes continue without it.
    pub async fn shutdown(&self) {
        self.0.control.shutdown().begin();
        let tasks = self.0.tasks.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(tasks) = tasks {
            let _ = tasks.server.await;
            let _ = tasks.clock.await;
            let _ = tasks.rendezvous.await;
        }
        self.0.control.release_tasks().await;
        self.0.control.journal().drained().await;
    }
}

#[cfg(test)]
mod tests {
    use dayfly_protocol::api::ManagerAddress;
    use dayfly_store::LeaseRecord;
    use dayfly_store::conformance::store as conformance;

    use super::*;

    #[tokio::test]
    async fn leases_follow_token_of_lost_connection_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("connection.json");
        let store = MemoryStore::default();
        let own = async |snapshot| {
            own_connection(&path, OWN_TOKEN, "https://m", "-", &store, snapshot)
                .await
                .unwrap()
        };
        let (first, mut snapshot) = own(Snapshot::default()).await;
        snapshot.leases.push(LeaseRecord {
            bearer: Some(hash(&first.token)),
            ..conformance::record()
        });
        // The file was never written, or was lost.
        let (second, snapshot) = own(snapshot).await;
        assert_ne!(first.token, second.token);
        assert_eq!(snapshot.leases[0].bearer, Some(hash(&second.token)));
    }

    #[tokio::test]
    async fn restarted_manager_keeps_peers_in_connection_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("connection.json");
        let store = MemoryStore::default();
        let (mut kept, snapshot) = own_connection(&path, OWN_TOKEN, "https://m", "-", &store, Snapshot::default())
            .await
            .unwrap();
        kept.others.push(ManagerAddress {
            manager: "https://other".into(),
            ca_pem: "-".into(),
        });
        write_connection(&path, &kept).unwrap();
        let (again, _) = own_connection(&path, OWN_TOKEN, "https://m", "-", &store, snapshot)
            .await
            .unwrap();
        assert_eq!(again.others, kept.others);
    }
}
