//! The other managers over the same store (`impl Control`): heartbeats, changes that they made, and the nodes of dead
//! ones.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dayfly_protocol::api::{Connection, ManagerAddress, ManagerState, ManagerStatus};
use dayfly_protocol::ids::PublicKey;
use dayfly_protocol::node_messages::ManagerMessage;
use dayfly_store::system::now_ms;
use dayfly_store::{AdoptedNodes, Peer, PeerUpdate, Presence};
use sha2::{Digest, Sha256};
use tokio::sync::{Notify, mpsc};

use crate::control::{Control, ENDED_LEASES_KEPT_MS};
use crate::forwarding::ConnectionPool;
use crate::identity;
use crate::shutdown::stopped;

/// Period of a manager's heartbeats.
const PRESENCE_PERIOD: Duration = Duration::from_secs(1);
/// A manager that has been silent for this long gets no requests.
pub const SILENT: Duration = Duration::from_secs(3);
const SILENT_MS: u64 = 3_000;
/// Checks in a row at which a manager must be silent before its nodes are adopted. After a pause of the database, all
/// managers seem silent once.
const SILENT_CHECKS: u32 = 3;
/// A manager that cannot write its heartbeat for this long disconnects its nodes, which go to other managers.
const ISOLATION_LIMIT: Duration = Duration::from_secs(20);
/// A manager that has been silent for longer is not listed any more.
const LISTED_MS: u64 = 7 * 24 * 3_600_000;

/// The other managers, as known.
pub struct Peers {
    /// Key of this manager.
    own_key: PublicKey,
    connections: ConnectionPool,
    state: Mutex<PeerState>,
    /// Notified when another manager has started.
    started: Notify,
}

#[derive(Default)]
struct PeerState {
    /// Whether the store permits other managers.
    is_shared: bool,
    peers: Vec<Peer>,
    /// Number of checks in a row at which a manager was silent.
    silent_checks: HashMap<PublicKey, u32>,
    /// Hash of the list of addresses.
    version: String,
}

impl Peers {
    /// Returns the peers of the manager with this key; none are known yet.
    pub fn new(own_key: PublicKey) -> Self {
        Self {
            own_key,
            connections: ConnectionPool::default(),
            state: Mutex::default(),
            started: Notify::new(),
        }
    }

    /// Open connections to the other managers.
    pub fn connections(&self) -> &ConnectionPool {
        &self.connections
    }

    fn state(&self) -> MutexGuard<'_, PeerState> {
        // Each change is one assignment, so a poisoned lock guards a consistent state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Key of this manager.
    pub fn own_key(&self) -> PublicKey {
        self.own_key
    }

    /// Whether the manager with this key was silent at several checks in a row.
    pub fn is_dead(&self, key: PublicKey) -> bool {
        let state = self.state();
        let checks = state.silent_checks.get(&key);
        checks.is_some_and(|checks| *checks >= SILENT_CHECKS)
    }

    /// Replaces the list of peers.
    fn set_peers(&self, peers: Vec<Peer>) {
        let mut state = self.state();
        state.is_shared = true;
        state.peers = peers;
    }

    /// Sets the version of the list of addresses. Returns whether it changed.
    fn set_version(&self, version: String) -> bool {
        let mut state = self.state();
        let has_changed = state.version != version;
        state.version = version;
        has_changed
    }

    /// Counts the managers that are silent at this check. Returns those that are dead.
    fn check_silence(&self) -> Vec<PublicKey> {
        let mut state = self.state();
        let PeerState {
            peers, silent_checks, ..
        } = &mut *state;
        silent_checks.retain(|key, _| peers.iter().any(|peer| peer.key == *key));
        let mut dead = Vec::new();
        for peer in peers {
            let checks = silent_checks.entry(peer.key).or_default();
            *checks = if peer.silent_ms < SILENT_MS { 0 } else { *checks + 1 };
            if *checks >= SILENT_CHECKS {
                dead.push(peer.key);
            }
        }
        dead
    }

    /// Whether the store permits other managers.
    pub fn are_possible(&self) -> bool {
        self.state().is_shared
    }

    /// Version of the list of managers, which every HTTP response names.
    pub fn version(&self) -> Option<String> {
        let state = self.state();
        (state.is_shared && !state.version.is_empty()).then(|| state.version.clone())
    }

    /// Returns the manager with this key, if it is alive.
    pub fn alive(&self, key: PublicKey) -> Option<Peer> {
        self.all_alive().into_iter().find(|peer| peer.key == key)
    }

    /// Returns the managers that are alive.
    pub fn all_alive(&self) -> Vec<Peer> {
        let alive = |peer: &&Peer| peer.silent_ms < SILENT_MS;
        self.state().peers.iter().filter(alive).cloned().collect()
    }

    /// Keys of all managers that ever were. Tokens that they signed may be in use.
    pub fn keys(&self) -> Vec<PublicKey> {
        self.state().peers.iter().map(|peer| peer.key).collect()
    }

    /// Addresses of the other managers.
    pub fn others(&self) -> Vec<ManagerAddress> {
        let state = self.state();
        let listed = state.peers.iter().filter(|peer| peer.silent_ms < LISTED_MS);
        listed.map(|peer| address_of(&peer.presence)).collect()
    }
}

fn address_of(presence: &Presence) -> ManagerAddress {
    ManagerAddress {
        manager: presence.url.clone(),
        ca_pem: presence.ca_pem.clone(),
    }
}

impl Control {
    /// Addresses of all managers, this one first. Empty if there is only this one.
    pub fn managers(&self) -> Vec<ManagerAddress> {
        let others = self.peers().others();
        if others.is_empty() {
            return Vec::new();
        }
        std::iter::once(self.own_address()).chain(others).collect()
    }

    fn own_address(&self) -> ManagerAddress {
        ManagerAddress {
            manager: self.url().into(),
            ca_pem: self.ca_pem().into(),
        }
    }

    /// Statuses of all managers, this one first.
    pub fn manager_statuses(&self) -> Vec<ManagerStatus> {
        let own = ManagerStatus {
            address: self.own_address(),
            key: self.peers().own_key,
            state: ManagerState::Up,
            silent_ms: 0,
        };
        let state = self.peers().state();
        let other = |peer: &Peer| ManagerStatus {
            address: address_of(&peer.presence),
            key: peer.key,
            state: if peer.silent_ms < SILENT_MS {
                ManagerState::Up
            } else {
                ManagerState::Silent
            },
            silent_ms: peer.silent_ms,
        };
        std::iter::once(own).chain(state.peers.iter().map(other)).collect()
    }

    fn presence(&self) -> Presence {
        Presence {
            url: self.url().to_owned(),
            ca_pem: self.ca_pem().to_owned(),
            free: self.cluster().nodes().free_in_service(),
        }
    }

    /// Writes this manager's heartbeat and reads those of the others. Returns false if the store permits no others.
    pub async fn update_presence(&self) -> Result<bool, dayfly_store::StoreError> {
        let Some(present) = self.store().present(self.presence()) else {
            return Ok(false);
        };
        self.peers().set_peers(present.wait().await?);
        let managers = self.managers();
        if self.peers().set_version(version_of(&managers)) {
            let message = ManagerMessage::Managers { managers };
            self.cluster().nodes().send_to_all(&message);
        }
        Ok(true)
    }

    /// Returns the dead managers that own nodes.
    fn dead_owners(&self) -> Vec<PublicKey> {
        let mut dead = self.peers().check_silence();
        let cluster = self.cluster();
        dead.retain(|key| cluster.nodes().values().any(|node| node.owner() == Some(*key)));
        dead
    }

    /// Adopts the nodes of a dead manager, so that the leases of nodes that died with it end. Nodes that are alive
    /// connect to another manager by themselves.
    async fn adopt_nodes(&self, dead: PublicKey) {
        let since_ms = now_ms().saturating_sub(ENDED_LEASES_KEPT_MS);
        let adopted = self.store().adopt(dead, SILENT, since_ms);
        match adopted.wait().await {
            Ok(AdoptedNodes { nodes, leases }) => {
                if !nodes.is_empty() {
                    tracing::warn!(manager = %dead, nodes = nodes.len(), "adopted the nodes of a silent manager");
                }
                let mut cluster = self.cluster();
                for record in nodes {
                    let id = record.address.id;
                    let its = leases.iter().filter(|lease| lease.node == id).cloned();
                    cluster.adopt_node(record, its.collect(), Instant::now());
                }
            }
            Err(error) => tracing::warn!(manager = %dead, %error, "cannot adopt the nodes of a silent manager yet"),
        }
    }

    /// Disconnects all nodes, so that they connect to managers that reach the database.
    fn disconnect_nodes(&self) {
        let nodes = self.cluster().nodes_mut().disconnect_all();
        if nodes > 0 {
            tracing::warn!(nodes, "disconnected the nodes: the database cannot be reached");
        }
    }

    fn on_change(self: &Arc<Self>, news: PeerUpdate) {
        match news {
            PeerUpdate::Manager => self.peers().started.notify_one(),
            PeerUpdate::Tenant(record) => self.on_tenant(record),
            PeerUpdate::Spent(tenant, spent) => self.on_charged(&[(tenant, spent)]),
            PeerUpdate::Prices(prices) => self.cluster().tenants_mut().set_default_prices(prices),
            PeerUpdate::Bearer(bearer) => self.keep_bearer(bearer),
            PeerUpdate::LeasesKept(hash) => self.rebind(hash, None),
            PeerUpdate::Revoked(hash) => {
                let control = Arc::clone(self);
                // Its connections end now, and its leases once their nodes have ended them.
                self.cluster().tokens_mut().remove(&hash);
                tokio::spawn(async move { control.end_without_token().await });
            }
            PeerUpdate::Node(record) => self.cluster().apply_node(self.peers().own_key, record),
            PeerUpdate::Event(event, tenant) => self.events().publish(event, tenant),
            PeerUpdate::Everything(all) => {
                let tenants = self.cluster().apply_snapshot(self.peers().own_key, *all);
                tenants.into_iter().for_each(|record| self.on_tenant(record));
            }
        }
    }
}

/// Returns a hash of a list of addresses, or an empty text for an empty list.
fn version_of(managers: &[ManagerAddress]) -> String {
    if managers.is_empty() {
        return String::new();
    }
    let mut digest = Sha256::new();
    for one in managers {
        digest.update(format!("{}\n{}\n", one.manager, one.ca_pem));
    }
    hex::encode(&digest.finalize()[..8])
}

/// Writes heartbeats and adopts the nodes of dead managers, until this manager stops. Keeps the addresses of the other
/// managers in these connection files.
pub async fn run_presence(control: Arc<Control>, connection_files: Vec<PathBuf>) {
    let mut stopping = control.shutdown().subscribe();
    let mut ticks = tokio::time::interval(PRESENCE_PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut last = Instant::now();
    // The files may name other managers than there are now.
    let mut version = None;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = control.peers().started.notified() => {}
            () = stopped(&mut stopping) => return,
        }
        match control.update_presence().await {
            Ok(true) => last = Instant::now(),
            Ok(false) => return,
            Err(error) => {
                tracing::warn!(%error, "cannot write the heartbeat of this manager");
                if last.elapsed() > ISOLATION_LIMIT && !control.peers().keys().is_empty() {
                    control.disconnect_nodes();
                }
                continue;
            }
        }
        for dead in control.dead_owners() {
            control.adopt_nodes(dead).await;
        }
        let now = control.peers().version();
        if std::mem::replace(&mut version, now.clone()) != now {
            connection_files
                .iter()
                .for_each(|path| update_connection_file(&control, path));
        }
    }
}

/// Writes the addresses of the other managers into a connection file.
fn update_connection_file(control: &Control, path: &std::path::Path) {
    let kept = identity::read(path).ok().flatten();
    let Some(kept) = kept.and_then(|json| serde_json::from_slice::<Connection>(&json).ok()) else {
        return;
    };
    let connection = Connection {
        others: control.peers().others(),
        ..kept
    };
    let written = serde_json::to_vec_pretty(&connection).map_err(|error| error.to_string());
    let written = written.and_then(|json| identity::write_private(path, &json).map_err(|error| error.to_string()));
    if let Err(error) = written {
        tracing::warn!(
            error,
            "cannot write the addresses of the other managers into the connection file yet"
        );
    }
}

/// Applies the changes of the other managers, until this one stops.
pub async fn apply_changes(control: Arc<Control>, mut news: mpsc::Receiver<PeerUpdate>) {
    let mut stopping = control.shutdown().subscribe();
    loop {
        tokio::select! {
            one = news.recv() => match one {
                Some(one) => control.on_change(one),
                None => return,
            },
            () = stopped(&mut stopping) => return,
        }
    }
}
