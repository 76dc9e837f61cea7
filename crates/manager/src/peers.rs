//! The other managers over the same store: who lives, what they changed, and what becomes of the nodes of one that died.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dayfly_protocol::api::{Capacity, Connection, ManagerAddress, ManagerState, ManagerStatus};
use dayfly_protocol::ids::{NodeId, PublicKey};
use dayfly_protocol::node_messages::ManagerMessage;
use dayfly_store::system::now_ms;
use dayfly_store::{AdoptedNodes, NodeRecord, Peer, PeerUpdate, Presence, Snapshot, TenantRecord};
use sha2::{Digest, Sha256};
use tokio::sync::{Notify, mpsc};

use crate::cluster::{Cluster, Node};
use crate::control::{Control, SHOWN_MS, SiteEvent, stopped};
use crate::forwarding::ConnectionPool;
use crate::identity;

/// How often a manager says that it lives.
const EVERY: Duration = Duration::from_secs(1);
/// A manager that has been silent for so long is asked for nothing.
pub const SILENT: Duration = Duration::from_secs(3);
const SILENT_MS: u64 = 3_000;
/// Looks, one after the other, at which it was silent, until its nodes are adopted. A database that was away makes everybody look
/// silent, once.
const STRIKES: u32 = 3;
/// A manager that cannot say that it lives for so long lets its nodes go to others.
const CUT_OFF: Duration = Duration::from_secs(20);
/// One that has been silent for longer will not come back, and nobody is told of it any more.
const GONE_MS: u64 = 7 * 24 * 3_600_000;

/// What is known of the other managers.
pub struct Peers {
    /// Its own key.
    me: PublicKey,
    /// Ways to them.
    pub connections: ConnectionPool,
    known: Mutex<Known>,
    /// Rings when one of them has started.
    new: Notify,
}

#[derive(Default)]
struct Known {
    /// Whether there can be others.
    shared: bool,
    peers: Vec<Peer>,
    strikes: HashMap<PublicKey, u32>,
    /// Tells one list of addresses from another.
    version: String,
}

impl Peers {
    /// Of the manager with this key.
    pub fn of(me: PublicKey) -> Self {
        Self {
            me,
            connections: ConnectionPool::default(),
            known: Mutex::default(),
            new: Notify::new(),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // Each change is one assignment.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its own key.
    pub fn me(&self) -> PublicKey {
        self.me
    }

    /// Whether the manager with this key has been silent at several looks.
    pub fn is_dead(&self, key: PublicKey) -> bool {
        self.known()
            .strikes
            .get(&key)
            .is_some_and(|strikes| *strikes >= STRIKES)
    }

    /// Whether the store may serve other managers too.
    pub fn are_possible(&self) -> bool {
        self.known().shared
    }

    /// What every answer says of the list of managers.
    pub fn version(&self) -> Option<String> {
        let known = self.known();
        (known.shared && !known.version.is_empty()).then(|| known.version.clone())
    }

    /// The manager with this key, if it is alive.
    pub fn alive(&self, key: PublicKey) -> Option<Peer> {
        self.all_alive().into_iter().find(|peer| peer.key == key)
    }

    /// All that are alive.
    pub fn all_alive(&self) -> Vec<Peer> {
        let alive = |peer: &&Peer| peer.silent_ms < SILENT_MS;
        self.known().peers.iter().filter(alive).cloned().collect()
    }

    /// Keys of all that ever were: their tokens are still in use.
    pub fn keys(&self) -> Vec<PublicKey> {
        self.known().peers.iter().map(|peer| peer.key).collect()
    }

    /// Where the others are.
    pub fn others(&self) -> Vec<ManagerAddress> {
        let known = self.known();
        let back_some_day = known.peers.iter().filter(|peer| peer.silent_ms < GONE_MS);
        back_some_day.map(|peer| address_of(&peer.presence)).collect()
    }
}

fn address_of(presence: &Presence) -> ManagerAddress {
    ManagerAddress {
        manager: presence.url.clone(),
        ca_pem: presence.ca_pem.clone(),
    }
}

impl Control {
    /// All managers, this one first; none where there is only this one.
    pub fn managers(&self) -> Vec<ManagerAddress> {
        let others = self.peers.others();
        if others.is_empty() {
            return Vec::new();
        }
        let me = ManagerAddress {
            manager: self.url.clone(),
            ca_pem: self.ca_pem.clone(),
        };
        std::iter::once(me).chain(others).collect()
    }

    /// The same, for people.
    pub fn manager_statuses(&self) -> Vec<ManagerStatus> {
        let me = ManagerStatus {
            address: ManagerAddress {
                manager: self.url.clone(),
                ca_pem: self.ca_pem.clone(),
            },
            key: self.peers.me,
            state: ManagerState::Up,
            silent_ms: 0,
        };
        let known = self.peers.known();
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
        std::iter::once(me).chain(known.peers.iter().map(other)).collect()
    }

    fn presence(&self) -> Presence {
        Presence {
            url: self.url.clone(),
            ca_pem: self.ca_pem.clone(),
            free: self.cluster().free(),
        }
    }

    /// Says that this manager lives, and hears which others do. False where there can be no others.
    pub async fn say_present(&self) -> Result<bool, dayfly_store::StoreError> {
        let Some(answer) = self.store.present(self.presence()) else {
            return Ok(false);
        };
        let peers = answer.wait().await?;
        let changed = {
            let mut known = self.peers.known();
            known.shared = true;
            known.peers = peers;
            drop(known);
            let managers = self.managers();
            let mut digest = Sha256::new();
            for one in &managers {
                digest.update(format!("{}\n{}\n", one.manager, one.ca_pem));
            }
            let version = if managers.is_empty() {
                String::new()
            } else {
                hex::encode(&digest.finalize()[..8])
            };
            let mut known = self.peers.known();
            std::mem::replace(&mut known.version, version.clone()) != version
        };
        if changed {
            self.tell_nodes_of_managers();
        }
        Ok(true)
    }

    fn tell_nodes_of_managers(&self) {
        let managers = self.managers();
        let cluster = self.cluster();
        for session in cluster.nodes.values().filter_map(|node| node.session.as_ref()) {
            let managers = managers.clone();
            // One that is too busy to hear of it hears of it when it registers.
            let _ = session.outgoing.try_send(ManagerMessage::Managers { managers });
        }
    }

    /// Managers that have been silent at several looks, and have nodes.
    fn dead(&self) -> Vec<PublicKey> {
        let mut known = self.peers.known();
        let Known { peers, strikes, .. } = &mut *known;
        strikes.retain(|key, _| peers.iter().any(|peer| peer.key == *key));
        let mut dead = Vec::new();
        for peer in peers {
            let strikes = strikes.entry(peer.key).or_default();
            *strikes = if peer.silent_ms < SILENT_MS { 0 } else { *strikes + 1 };
            if *strikes >= STRIKES {
                dead.push(peer.key);
            }
        }
        drop(known);
        let cluster = self.cluster();
        dead.retain(|key| cluster.nodes.values().any(|node| node.manager == Some(*key)));
        dead
    }

    /// Takes over the nodes of a manager that died, so that somebody ends the leases of those that died with it. Nodes that live
    /// connect to whom they like; that is sooner, and needs nobody's help.
    async fn take_over(&self, dead: PublicKey) {
        let since_ms = now_ms().saturating_sub(SHOWN_MS);
        let adopted = self.store.adopt(dead, SILENT, since_ms);
        match adopted.wait().await {
            Ok(AdoptedNodes { nodes, leases }) => {
                if !nodes.is_empty() {
                    tracing::warn!(manager = %dead, nodes = nodes.len(), "it is silent: its nodes are this one's now");
                }
                let mut cluster = self.cluster();
                for record in nodes {
                    let id = record.address.id;
                    if cluster.adopt(record, Instant::now()) {
                        let mine = leases.iter().filter(|lease| lease.node == id).cloned();
                        cluster.inherit(id, mine.collect());
                    }
                }
            }
            Err(error) => tracing::warn!(manager = %dead, %error, "its nodes cannot be taken over yet"),
        }
    }

    /// Nodes go to managers that can do something for them.
    fn let_nodes_go(&self) {
        let mut cluster = self.cluster();
        let mut gone = 0;
        for node in cluster.nodes.values_mut() {
            gone += u32::from(node.session.take().is_some());
        }
        drop(cluster);
        if gone > 0 {
            tracing::warn!(
                nodes = gone,
                "the database is out of reach: nodes may go to other managers"
            );
        }
    }

    fn on_news(self: &Arc<Self>, news: PeerUpdate) {
        match news {
            PeerUpdate::Manager => self.peers.new.notify_one(),
            PeerUpdate::Tenant(record) => self.on_tenant(record),
            PeerUpdate::Spent(tenant, spent) => self.on_charged(&[(tenant, spent)]),
            PeerUpdate::Prices(prices) => self.cluster().prices = prices,
            PeerUpdate::Bearer(bearer) => self.keep_bearer(bearer),
            PeerUpdate::LeasesKept(hash) => self.rebind(hash, None),
            PeerUpdate::Revoked(hash) => {
                let control = Arc::clone(self);
                // Its connections end now; its leases when their nodes say so.
                self.cluster().bearers.remove(&hash);
                tokio::spawn(async move { control.end_what_is_over().await });
            }
            PeerUpdate::Node(record) => self.cluster().on_node(self.peers.me, record),
            // Nobody may be watching.
            PeerUpdate::Event(event, tenant) => drop(self.events.send(SiteEvent { event, tenant })),
            PeerUpdate::Everything(all) => {
                let tenants = self.cluster().on_everything(self.peers.me, *all);
                tenants.into_iter().for_each(|record| self.on_tenant(record));
            }
        }
    }
}

impl Cluster {
    /// What nodes that take leases have free together.
    fn free(&self) -> Capacity {
        let mut free = Capacity {
            cores: 0,
            memory_bytes: 0,
            workers: 0,
            gpus: 0,
        };
        let takes = |node: &&Node| node.session.is_some() && !node.reclaimed;
        for node in self.nodes.values().filter(takes) {
            free.cores = free.cores.saturating_add(node.free.cores);
            free.memory_bytes = free.memory_bytes.saturating_add(node.free.memory_bytes);
            free.workers = free.workers.saturating_add(node.free.workers);
            free.gpus = free.gpus.saturating_add(node.free.gpus);
        }
        free
    }

    /// Takes over what the store has, all at once. Returns the tenants in it.
    fn on_everything(&mut self, me: PublicKey, all: Snapshot) -> Vec<TenantRecord> {
        let Snapshot {
            nodes,
            leases,
            bearers,
            tenants,
            prices,
        } = all;
        for record in nodes {
            self.on_node(me, record);
        }
        self.bearers.replace_stored(bearers);
        for stored in leases {
            // The store moved the lease to another token when its own was replaced, or was revoked without its leases. A token
            // that is good stays: the change that it came with may be on its way to the store.
            if !self.is_over(stored.bearer)
                && self
                    .leases
                    .get(&stored.lease)
                    .is_some_and(|record| self.is_over(record.bearer))
                && let Some(record) = self.leases.get_mut(&stored.lease)
            {
                record.bearer = stored.bearer;
            }
        }
        self.prices = prices;
        tenants
    }

    /// Somebody changed a node's row. What is older than what is known here says nothing.
    fn on_node(&mut self, me: PublicKey, record: NodeRecord) {
        let id = record.address.id;
        let epoch = self.epoch(id);
        if record.epoch < epoch {
            return;
        }
        let is_mine = record.manager.is_none_or(|manager| manager == me);
        match self.nodes.get_mut(&id) {
            // Its connection and its leases are here, and were told of by themselves.
            Some(node) if is_mine && node.manager.is_none() => node.reclaimed = record.reclaimed,
            // It is about to be ours: registering or adopting it says so, with its leases.
            _ if is_mine => {}
            Some(node) => {
                node.reclaimed = record.reclaimed;
                if record.epoch > epoch {
                    node.epoch = record.epoch;
                    node.address = record.address;
                    node.capacity = record.capacity;
                    node.booked = record.booked;
                    if node.manager.is_none() {
                        tracing::info!(node = %id, epoch = record.epoch, "it went to another manager");
                    }
                    node.manager = record.manager;
                    // Dropping it ends the connection's task and fails what waits for an answer.
                    node.session = None;
                    node.reclaims.clear();
                    node.doubtful.clear();
                    self.let_go(id);
                }
            }
            None => self.put(id, Node::remembered(record, Instant::now())),
        }
    }

    /// The node of a manager that died is ours, connected to nobody. False when it has connected somewhere since.
    fn adopt(&mut self, record: NodeRecord, now: Instant) -> bool {
        let id = record.address.id;
        if record.epoch < self.epoch(id) {
            return false;
        }
        let adopted = NodeRecord {
            manager: None,
            ..record
        };
        self.put(id, Node::remembered(adopted, now));
        true
    }

    /// The manager that owns a node, if it is another one.
    pub fn manager_of(&self, node: NodeId) -> Option<PublicKey> {
        self.nodes.get(&node).and_then(|node| node.manager)
    }
}

/// Says that this manager lives, and looks after what the dead leave, until it stops.
pub async fn keep_present(control: Arc<Control>, for_clients: Vec<PathBuf>) {
    let mut stopping = control.stopping.subscribe();
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut last = Instant::now();
    // The files that were written at the start name nobody else.
    let mut version = None;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = control.peers.new.notified() => {}
            () = stopped(&mut stopping) => return,
        }
        match control.say_present().await {
            Ok(true) => last = Instant::now(),
            Ok(false) => return,
            Err(error) => {
                tracing::warn!(%error, "cannot say that this manager lives");
                if last.elapsed() > CUT_OFF && !control.peers.keys().is_empty() {
                    control.let_nodes_go();
                }
                continue;
            }
        }
        for dead in control.dead() {
            control.take_over(dead).await;
        }
        let now = control.peers.version();
        if std::mem::replace(&mut version, now.clone()) != now {
            for_clients.iter().for_each(|path| rewrite(&control, path));
        }
    }
}

/// Clients find all managers in the file of theirs.
fn rewrite(control: &Control, path: &std::path::Path) {
    let kept = identity::read(path).ok().flatten();
    let Some(kept) = kept.and_then(|json| serde_json::from_slice::<Connection>(&json).ok()) else {
        return;
    };
    let connection = Connection {
        others: control.peers.others(),
        ..kept
    };
    let written = serde_json::to_vec_pretty(&connection).map_err(|error| error.to_string());
    let written = written.and_then(|json| identity::write_private(path, &json).map_err(|error| error.to_string()));
    if let Err(error) = written {
        tracing::warn!(error, "the file for clients does not name the other managers yet");
    }
}

/// Hears what the others change, until this manager stops.
pub async fn hear(control: Arc<Control>, mut news: mpsc::Receiver<PeerUpdate>) {
    let mut stopping = control.stopping.subscribe();
    loop {
        tokio::select! {
            one = news.recv() => match one {
                Some(one) => control.on_news(one),
                None => return,
            },
            () = stopped(&mut stopping) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use dayfly_store::conformance::store::{self as conformance, LEASE, TENANT};
    use dayfly_store::{Bearer, BearerKind, LeaseRecord};

    use super::*;

    const OLD: [u8; 32] = [1; 32];
    const NEW: [u8; 32] = [2; 32];

    fn bearer(hash: [u8; 32]) -> Bearer {
        Bearer {
            hash,
            kind: BearerKind::Client(dayfly_protocol::tenancy::Role::User),
            tenant: TENANT,
            name: "laptop".into(),
            read_only: false,
            node: None,
            expires_at_ms: u64::MAX,
        }
    }

    fn snapshot(bearers: &[[u8; 32]], lease_bearer: Option<[u8; 32]>) -> Snapshot {
        Snapshot {
            bearers: bearers.iter().copied().map(bearer).collect(),
            leases: vec![LeaseRecord {
                bearer: lease_bearer,
                ..conformance::record()
            }],
            ..Snapshot::default()
        }
    }

    /// What a lease of the old token ends with after everything was read again.
    fn bearer_after(read: Snapshot) -> Option<[u8; 32]> {
        let mut cluster = Cluster::remembered(snapshot(&[OLD], Some(OLD)), Instant::now());
        cluster.on_everything(PublicKey([9; 32]), read);
        cluster.leases[&LEASE].bearer
    }

    #[test]
    fn lease_ends_with_the_token_that_replaced_its_own_meanwhile() {
        assert_eq!(bearer_after(snapshot(&[NEW], Some(NEW))), Some(NEW));
        // Revoked without its leases.
        assert_eq!(bearer_after(snapshot(&[], None)), None);
    }

    #[test]
    fn lease_keeps_a_token_that_is_good_or_was_revoked() {
        assert_eq!(bearer_after(snapshot(&[OLD, NEW], Some(NEW))), Some(OLD));
        assert_eq!(bearer_after(snapshot(&[NEW], Some(OLD))), Some(OLD));
    }
}
