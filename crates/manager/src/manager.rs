//! Starting a manager, and the handle to one that runs.

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
use dayfly_protocol::ids::{PublicKey, TenantId};
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

use crate::cluster::Cluster;
use crate::control::{Control, SHOWN_MS, SiteEvent, fresh_bearer, keep_time, stopped};
use crate::error::Error;
use crate::identity::{self, Identity};
use crate::journal::Journal;
use crate::options::{Options, StoreKind};
use crate::task_owner::{self, Common};
use crate::tenants::{self, OWN_TENANT, OWN_TOKEN};
use crate::{http, peers, server};

/// Beside `connection.json` where people log in: the same without a token, to be given to them.
const LOGIN_FILE: &str = "login.json";

/// Where durable tasks are.
enum TaskKind {
    /// In a store of this manager's own.
    Own(Arc<dyn TaskStore>),
    /// In the database that managers share.
    Common(Box<SharedTasks>),
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
    /// `connection.json` for clients of the same user. Returns once it answers.
    pub async fn start(options: Options) -> Result<Handle, Error> {
        let room = server::Room::take();
        // The port first: a second manager on the same machine should hear of that, and touch no files.
        let taken = server::take(options.listen)?;
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
                TaskKind::Common(Box::new(SharedTasks::new(url, identity.signing.public())?))
            }
        };
        Self::start_over(options, (taken, room), identity, store, tasks).await
    }

    async fn start_over(
        options: Options,
        (taken, room): (server::Taken, server::Room),
        identity: Identity,
        store: Arc<dyn Store>,
        task_store: TaskKind,
    ) -> Result<Handle, Error> {
        let listening = |source| Error::Listen {
            address: options.listen,
            source,
        };
        let address = taken.local_addr().map_err(listening)?;
        let url = url_of(address, &options.names);
        // Beside the API, on a port of its own: what is spoken there is not HTTP, and no token is shown.
        let meeting = BoundServer::new(ServeOptions {
            listen: vec![SocketAddr::new(address.ip(), 0)],
            max_connections: room.rendezvous,
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
            .load(now_ms().saturating_sub(SHOWN_MS))
            .within(LOAD_DEADLINE)
            .await?;
        let connection_path = options.state_dir.join("connection.json");
        let me = identity.signing.public();
        // Managers that share a store each have a token of their own.
        let name = match options.store {
            StoreKind::Postgres { .. } => format!("{OWN_TOKEN}@{}", hex::encode(&me.0[..4])),
            _ => OWN_TOKEN.to_owned(),
        };
        let (connection, snapshot) = own_token(
            &connection_path,
            &name,
            &url,
            &identity.ca_pem,
            store.as_ref(),
            snapshot,
        )
        .await?;
        let mut snapshot = snapshot;
        for node in &mut snapshot.nodes {
            node.manager = node.manager.filter(|manager| *manager != me);
        }
        let news = store.peer_updates();
        let cluster = Cluster::remembered(snapshot, Instant::now());
        let journal = Journal::start(Arc::clone(&store) as Arc<dyn LeaseWriter>);
        let Identity { signing, ca_pem, tls } = identity;
        let control = Arc::new(Control::new(
            options,
            (url, rendezvous),
            ca_pem,
            signing,
            store,
            journal,
            cluster,
        ));
        let contents = content_options(&control.options)?;
        let common = match task_store {
            TaskKind::Own(store) => {
                let tasks = dayfly_durable_tasks::Tasks::start(store, &contents, control.accounts()).await?;
                control.task_owner.keep(tasks);
                None
            }
            TaskKind::Common(shared) => Some(Common {
                shared: *shared,
                contents,
            }),
        };
        let mut for_clients = vec![connection_path.clone()];
        if control.oidc.is_some() {
            let path = control.options.state_dir.join(LOGIN_FILE);
            let without = Connection {
                token: String::new(),
                ..connection.clone()
            };
            write(&path, &without)?;
            for_clients.push(path);
        }
        // Nodes are told of all managers' keys when they register.
        let shared = control.say_present().await?;
        if shared {
            control.store.publish(vec![PeerUpdate::Manager]);
            tokio::spawn(peers::keep_present(Arc::clone(&control), for_clients));
        }
        tokio::spawn(task_owner::keep_charging(Arc::clone(&control)));
        tokio::spawn(tenants::keep_audit_trimmed(Arc::clone(&control)));
        if let Some(common) = common {
            // The first of all managers has them when it answers for the first time.
            control.look_after_tasks(&common).await;
            tokio::spawn(task_owner::keep(Arc::clone(&control), common));
        }
        if let Some(news) = news {
            tokio::spawn(peers::hear(Arc::clone(&control), news));
        }
        let router = http::router(Arc::clone(&control));
        // Not before there is somebody to answer: a store may be checked and read for a long time.
        let listeners = server::Listeners::new(taken.listen()?, tls, &control.ca_pem);
        let tasks = Tasks {
            server: tokio::spawn(server::serve(listeners, room, router, control.stopping.subscribe())),
            clock: tokio::spawn(keep_time(Arc::clone(&control))),
            rendezvous: tokio::spawn({
                let mut stopping = control.stopping.subscribe();
                meeting.run(async move { stopped(&mut stopping).await })
            }),
        };
        tracing::info!(url = control.url, "listening");
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

/// Where contents are: as chosen, or in a directory beside the store.
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
                    let text = format!("{} cannot be made: {error}; check the disk", directory.display());
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

/// Finds the token in `connection.json`, or makes one for an administrator; writes the file as it should be.
async fn own_token(
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
    // While this manager starts, clients reach the others that it knew.
    let (token, others) = match kept.filter(known) {
        Some(kept) => (kept.token, kept.others),
        None => {
            // The tenant stays when only the token is new: its leases are still its own.
            let earlier = snapshot.bearers.iter().find(|bearer| bearer.name == name);
            let named = snapshot.tenants.iter().find(|tenant| tenant.name == OWN_TENANT);
            let tenant = earlier
                .map(|bearer| bearer.tenant)
                .or(named.map(|tenant| tenant.id))
                .unwrap_or_else(|| TenantId(random()));
            let a_century = Duration::from_secs(100 * 365 * 24 * 3600);
            let (token, bearer) = fresh_bearer(BearerKind::Client(Role::Administrator), tenant, None, a_century);
            let bearer = Bearer {
                name: name.into(),
                ..bearer
            };
            store.keep(bearer.clone()).wait().await?;
            let (replaced, left): (Vec<_>, Vec<_>) = snapshot.bearers.into_iter().partition(|known| known.name == name);
            snapshot.bearers = left;
            // The store has done the same.
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
    write(path, &connection)?;
    Ok((connection, snapshot))
}

/// Writes a file for clients.
fn write(path: &Path, connection: &Connection) -> Result<(), Error> {
    let json = serde_json::to_vec_pretty(connection).map_err(|error| Error::Damaged {
        path: path.to_path_buf(),
        why: error.to_string(),
    })?;
    identity::write_private(path, &json)
}

/// The URL to hand out: the first configured name, else the address, with the loopback standing for "everywhere".
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

impl Control {
    /// A token with which one node may join.
    pub(crate) async fn join_token(&self, valid_for: Duration, owner: Option<TenantId>) -> Result<JoinToken, Failure> {
        // The manager keeps nothing of the owner: the node does, which decides what its owner's leases may have.
        let (token, bearer) = fresh_bearer(BearerKind::Join, TenantId([0; 16]), None, valid_for);
        self.store.keep(bearer.clone()).wait().await?;
        self.keep_bearer(bearer.clone());
        Ok(JoinToken {
            token,
            manager: self.url.clone(),
            ca_pem: self.ca_pem.clone(),
            expires_at_ms: bearer.expires_at_ms,
            owner,
            others: self.peers.others(),
        })
    }
}

impl Handle {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// `https://...`, as clients and nodes should use it.
    pub fn url(&self) -> &str {
        &self.0.control.url
    }

    /// The certificate authority that they should trust, PEM.
    pub fn ca_pem(&self) -> &str {
        &self.0.control.ca_pem
    }

    /// All that a client needs, with the operator's token.
    pub fn connection(&self) -> &Connection {
        &self.0.connection
    }

    /// The file that holds the same.
    pub fn connection_path(&self) -> &Path {
        &self.0.connection_path
    }

    /// The key that its tokens are signed with.
    pub fn signing_key(&self) -> PublicKey {
        SigningKey::public(&self.0.control.signing)
    }

    /// Makes a token with which one node may join, which then is nobody's own.
    pub async fn join_token(&self, valid_for: Duration) -> Result<JoinToken, Failure> {
        self.0.control.join_token(valid_for, None).await
    }

    /// The tenant of the administrator who has this manager's connection file.
    pub fn owner(&self) -> Option<TenantId> {
        let bearer = self.0.control.authenticate(&self.0.connection.token)?;
        Some(bearer.tenant)
    }

    /// Every node that ever registered.
    pub fn nodes(&self) -> Vec<NodeStatus> {
        self.0.control.cluster().node_statuses(Instant::now())
    }

    /// A dispatcher in this process runs the tasks of the manager's own endpoint with this name from now on.
    pub async fn attach(&self, endpoint: &str) -> Result<Conversation, Failure> {
        self.0.control.tasks()?.attach(endpoint).await
    }

    /// Long arguments and answers of tasks.
    pub fn contents(&self) -> Result<Arc<Contents>, Failure> {
        Ok(Arc::clone(&self.0.control.tasks()?.contents))
    }

    /// What a dispatcher beside this manager leases with on a tenant's behalf, who is made known here if need be.
    pub async fn for_tenant(&self, tenant: TenantId, name: &str) -> Result<Connection, Failure> {
        let token = self.0.control.token_for_dispatcher(tenant, name).await?;
        Ok(Connection {
            token,
            ..self.0.connection.clone()
        })
    }

    /// What a tenant of the manager that tasks come from leases with here itself.
    pub async fn for_guest(&self, tenant: TenantId, name: &str) -> Result<Connection, Failure> {
        let token = self.0.control.token_for_guest(tenant, name).await?;
        Ok(Connection {
            token,
            ..self.0.connection.clone()
        })
    }

    /// Workers of one core that there are leases of, and that are waited for in vain.
    pub fn asked_for(&self) -> u64 {
        self.0.control.asked_for()
    }

    /// What happens from now on.
    pub fn events(&self) -> broadcast::Receiver<SiteEvent> {
        self.0.control.events.subscribe()
    }

    /// Stops: no new requests, the running ones answered, everything written. Leases and nodes go on without it.
    pub async fn shutdown(&self) {
        self.0.control.stopping.send_replace(true);
        let tasks = self.0.tasks.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(tasks) = tasks {
            let _ = tasks.server.await;
            let _ = tasks.clock.await;
            let _ = tasks.rendezvous.await;
        }
        self.0.control.give_up_tasks().await;
        self.0.control.journal.drained().await;
    }
}

#[cfg(test)]
mod tests {
    use dayfly_protocol::api::ManagerAddress;
    use dayfly_store::LeaseRecord;
    use dayfly_store::conformance::store as conformance;

    use super::*;

    #[tokio::test]
    async fn leases_follow_the_token_of_a_lost_connection_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("connection.json");
        let store = MemoryStore::default();
        let own = async |snapshot| {
            own_token(&path, OWN_TOKEN, "https://m", "-", &store, snapshot)
                .await
                .unwrap()
        };
        let (first, mut snapshot) = own(Snapshot::default()).await;
        snapshot.leases.push(LeaseRecord {
            bearer: Some(hash(&first.token)),
            ..conformance::record()
        });
        std::fs::remove_file(&path).unwrap();
        let (second, snapshot) = own(snapshot).await;
        assert_ne!(first.token, second.token);
        assert_eq!(snapshot.leases[0].bearer, Some(hash(&second.token)));
    }

    #[tokio::test]
    async fn restarted_manager_keeps_the_others_in_its_connection_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("connection.json");
        let store = MemoryStore::default();
        let (mut kept, snapshot) = own_token(&path, OWN_TOKEN, "https://m", "-", &store, Snapshot::default())
            .await
            .unwrap();
        kept.others.push(ManagerAddress {
            manager: "https://other".into(),
            ca_pem: "-".into(),
        });
        write(&path, &kept).unwrap();
        let (again, _) = own_token(&path, OWN_TOKEN, "https://m", "-", &store, snapshot)
            .await
            .unwrap();
        assert_eq!(again.others, kept.others);
    }
}
