//! What the manager knows now: nodes, leases and bearers, in memory and behind one lock that is never held over a wait.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use dayfly_lease::allowance::mix;
use dayfly_lease::billing;
use dayfly_lease::health::Health;
use dayfly_lease::placement::View;
use dayfly_lease::quota::{self, Held};
use dayfly_protocol::api::{
    Capacity, LeaseState, LeaseStatus, Metered, Mode, NodeAddress, NodeSandboxes, NodeState, NodeStatus, Usage,
};
use dayfly_protocol::durations::DURATION_BUCKETS;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{LeaseId, NodeId, PublicKey, TenantId};
use dayfly_protocol::node_messages::ManagerMessage;
use dayfly_protocol::tenancy::Prices;
use dayfly_store::{LeaseRecord, NodeRecord, Snapshot, TenantRecord};
use tokio::sync::{mpsc, oneshot};

use crate::allowances::Allowances;
use crate::token_registry::TokenRegistry;

/// Nodes among which a lease is placed when there are many.
const SAMPLE: usize = 32;

/// A node's answer to an offer, a renewal or an end.
pub type Answer = Result<(), Failure>;

/// The connection of a node that is up.
pub struct Session {
    /// Tells this connection of the node from an earlier one.
    pub epoch: u64,
    /// What is to be sent to it.
    pub outgoing: mpsc::Sender<ManagerMessage>,
    /// Questions that it has not answered.
    pub waiting: HashMap<u64, Waiting>,
}

/// What a node says of itself when it was taken back and is empty.
#[derive(Debug, Clone, Copy)]
pub struct Empty {
    /// Leases that were ended for it.
    pub leases: u32,
    /// Until nothing of them was left.
    pub after: Duration,
}

/// A question that a node has not answered.
pub struct Waiting {
    /// For an offer, the lease that it becomes when the node accepts. It enters the books with the answer, in the order
    /// of the node's messages, so that no heartbeat counts it twice and no end comes before it.
    pub offer: Option<LeaseRecord>,
    /// Who asked.
    pub reply: oneshot::Sender<Answer>,
}

/// One node.
pub struct Node {
    /// Where clients reach it.
    pub address: NodeAddress,
    /// What it has.
    pub capacity: Capacity,
    /// Under which its leases are changed.
    pub epoch: u64,
    /// The other manager that owns it, if one does: then neither its connection nor its leases are here.
    pub manager: Option<PublicKey>,
    /// What is free, as last heard and granted since.
    pub free: Capacity,
    /// Its connection, while it is up.
    pub session: Option<Session>,
    /// Whether it said so before its connection ended.
    pub left: bool,
    /// Whether its owner took it back; then it gets no lease until it is given again.
    pub reclaimed: bool,
    /// How it does.
    pub health: Health,
    /// Who waits until it is empty.
    pub reclaims: HashMap<u64, oneshot::Sender<Empty>>,
    /// When it was last heard, or when this manager started.
    pub heard: Instant,
    /// Last number of its journal whose usage the leases here show.
    pub booked: u64,
    /// How many of its calls took how long, as last heard.
    pub durations: [u64; DURATION_BUCKETS],
    /// Its clock minus ours.
    pub skew_ms: i64,
    /// Leases offered to it whose answer never came: it may hold them.
    pub doubtful: HashSet<LeaseId>,
    /// Which levels of isolation it allows, and to whom, as it said when it connected.
    pub sandboxes: Option<NodeSandboxes>,
}

impl Node {
    /// One that a store remembers: nobody is connected to it.
    pub fn remembered(record: NodeRecord, now: Instant) -> Self {
        Self {
            address: record.address,
            capacity: record.capacity,
            epoch: record.epoch,
            manager: record.manager,
            free: Capacity {
                cores: 0,
                memory_bytes: 0,
                workers: 0,
                gpus: 0,
            },
            session: None,
            heard: now,
            booked: record.booked,
            durations: [0; DURATION_BUCKETS],
            skew_ms: 0,
            doubtful: HashSet::new(),
            sandboxes: None,
            left: false,
            reclaimed: record.reclaimed,
            health: Health::default(),
            reclaims: HashMap::new(),
        }
    }

    /// The node's state. `holds` states whether it still holds leases.
    fn state(&self, holds: bool) -> NodeState {
        match (&self.session, self.left) {
            (Some(_), _) if self.reclaimed && holds => NodeState::Leaving,
            (Some(_), _) if self.reclaimed => NodeState::Reclaimed,
            (Some(_), _) if self.health.suspension().is_some() => NodeState::Suspended,
            (Some(_), _) => NodeState::Up,
            (None, true) => NodeState::Left,
            (None, false) => NodeState::Lost,
        }
    }

    fn give(&mut self, record: &LeaseRecord) {
        let (cores, workers) = places(record);
        self.free = Capacity {
            cores: self.free.cores.saturating_add(cores).min(self.capacity.cores),
            memory_bytes: self
                .free
                .memory_bytes
                .saturating_add(record.memory_bytes)
                .min(self.capacity.memory_bytes),
            workers: self.free.workers.saturating_add(workers).min(self.capacity.workers),
            gpus: self.free.gpus.saturating_add(record.gpus()).min(self.capacity.gpus),
        };
    }

    fn take(&mut self, record: &LeaseRecord) {
        let (cores, workers) = places(record);
        self.free = Capacity {
            cores: self.free.cores.saturating_sub(cores),
            memory_bytes: self.free.memory_bytes.saturating_sub(record.memory_bytes),
            workers: self.free.workers.saturating_sub(workers),
            gpus: self.free.gpus.saturating_sub(record.gpus()),
        };
    }
}

/// How many cores of its own a lease has on its node, and how many places of warm workers.
fn places(record: &LeaseRecord) -> (u16, u16) {
    let all = record.workers.saturating_mul(record.cores_per_worker);
    match record.mode {
        Mode::Hot => (all, 0),
        _ => (0, all),
    }
}

/// A tenant, and what it holds.
pub struct Account {
    /// As the store has it.
    pub record: TenantRecord,
    /// What its leases hold.
    pub held: Held,
    /// What is being asked of nodes on its behalf.
    asked: Held,
}

impl Account {
    /// One that holds nothing.
    pub fn of(record: TenantRecord) -> Self {
        Self {
            record,
            held: Held::default(),
            asked: Held::default(),
        }
    }
}

/// What many nodes have together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sum {
    /// Cores for hot workers.
    pub cores: u64,
    /// Warm workers.
    pub workers: u64,
    /// Memory in bytes.
    pub memory_bytes: u64,
}

impl Sum {
    fn add(&mut self, one: &Capacity) {
        self.cores += u64::from(one.cores);
        self.workers += u64::from(one.workers);
        self.memory_bytes = self.memory_bytes.saturating_add(one.memory_bytes);
    }
}

/// The whole in numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Nodes by state.
    pub nodes: BTreeMap<&'static str, u32>,
    /// Leases that live, by state.
    pub leases: BTreeMap<&'static str, u32>,
    /// What nodes that are up have.
    pub capacity: Sum,
    /// What of it is free.
    pub free: Sum,
}

/// Everything.
#[derive(Default)]
pub struct Cluster {
    /// Every node that ever registered.
    pub nodes: HashMap<NodeId, Node>,
    /// All of them in some order, to choose from at random.
    order: Vec<NodeId>,
    /// Leases that live or ended lately.
    pub leases: HashMap<LeaseId, LeaseRecord>,
    /// Who may connect.
    pub bearers: TokenRegistry,
    /// What leases and allowances of these bearers end with instead, in the order of the replacements.
    pub rebound: VecDeque<([u8; 32], Option<[u8; 32]>)>,
    /// Whose leases they are.
    pub tenants: HashMap<TenantId, Account>,
    /// What those pay that have no prices of their own.
    pub prices: Prices,
    /// What was booked since this manager started.
    pub used: Usage,
    /// How many calls took how long, on all nodes since this manager started.
    pub durations: [u64; DURATION_BUCKETS],
    /// What tenants may lease straight from nodes.
    pub allowances: Allowances,
    /// Leases that nodes are being asked to take, and what allowances have left.
    asked: HashMap<LeaseId, (TenantId, Held)>,
    next_request: u64,
}

impl Cluster {
    /// What a store remembers; every node counts as not connected yet.
    pub fn remembered(snapshot: Snapshot, now: Instant) -> Self {
        let mut tenants: HashMap<TenantId, Account> = HashMap::new();
        for record in snapshot.tenants {
            tenants.insert(record.id, Account::of(record));
        }
        for record in snapshot.leases.iter().filter(|record| record.state.is_live()) {
            if let Some(account) = tenants.get_mut(&record.tenant) {
                account.held = account.held.plus(record.held());
            }
        }
        Self {
            tenants,
            prices: snapshot.prices,
            used: Usage::default(),
            durations: [0; DURATION_BUCKETS],
            asked: HashMap::new(),
            allowances: Allowances::default(),
            order: snapshot.nodes.iter().map(|record| record.address.id).collect(),
            nodes: snapshot
                .nodes
                .into_iter()
                .map(|record| (record.address.id, Node::remembered(record, now)))
                .collect(),
            leases: snapshot
                .leases
                .into_iter()
                .map(|record| (record.lease, record))
                .collect(),
            bearers: TokenRegistry::of(snapshot.bearers),
            rebound: VecDeque::new(),
            next_request: 0,
        }
    }

    /// A number for the next question to a node.
    pub fn next_request(&mut self) -> u64 {
        self.next_request += 1;
        self.next_request
    }

    /// Under which this node's leases are changed.
    pub fn epoch(&self, node: NodeId) -> u64 {
        self.nodes.get(&node).map_or(0, |node| node.epoch)
    }

    /// A node that was not known, or is known anew.
    pub fn put(&mut self, id: NodeId, node: Node) {
        if self.nodes.insert(id, node).is_none() {
            self.order.push(id);
        }
    }

    fn view(&self, id: NodeId) -> Option<View> {
        let node = self.nodes.get(&id)?;
        Some(View {
            node: id,
            up: node.session.is_some() && !node.reclaimed && node.health.suspension().is_none(),
            capacity: node.capacity,
            free: node.free,
        })
    }

    /// All nodes as placement sees them, or the only one that is wanted.
    pub fn views(&self, only: Option<NodeId>) -> Vec<View> {
        match only {
            Some(id) => self.view(id).into_iter().collect(),
            None => self.order.iter().filter_map(|id| self.view(*id)).collect(),
        }
    }

    /// The nodes of each fabric that some are on.
    pub fn fabrics(&self) -> Vec<Vec<NodeId>> {
        let mut fabrics: BTreeMap<&str, Vec<NodeId>> = BTreeMap::new();
        for (id, node) in self.in_order() {
            for fabric in &node.address.fabrics {
                fabrics.entry(fabric).or_default().push(*id);
            }
        }
        fabrics.into_values().collect()
    }

    /// Some nodes as placement sees them, chosen by a random number: the best of a few is nearly as good as the best of all
    /// (the power of d choices), and costs the same however many there are. None when looking at all is no more work.
    pub fn sample(&self, random: u64) -> Option<Vec<View>> {
        let all = self.order.len();
        if all <= SAMPLE * 2 {
            return None;
        }
        let mut views = Vec::with_capacity(SAMPLE);
        let mut state = random;
        for _ in 0..SAMPLE {
            state = mix(state);
            let index = (u128::from(state) * all as u128) >> 64;
            views.extend(self.order.get(index as usize).and_then(|id| self.view(*id)));
        }
        views.sort_by_key(|view| view.node);
        views.dedup_by_key(|view| view.node);
        Some(views)
    }

    /// All nodes, always in the same order.
    pub fn in_order(&self) -> impl Iterator<Item = (&NodeId, &Node)> {
        self.order.iter().filter_map(|id| Some((id, self.nodes.get(id)?)))
    }

    /// Nodes that are up.
    pub fn nodes_up(&self) -> usize {
        self.nodes.values().filter(|node| node.session.is_some()).count()
    }

    /// Leases that live.
    pub fn live_leases(&self) -> usize {
        self.leases.values().filter(|record| record.state.is_live()).count()
    }

    /// A node is to be asked for a lease: sets its tenant's share aside, if that may have it, and answers the prices.
    pub fn ask_for(&mut self, lease: LeaseId, tenant: TenantId, wanted: Held) -> Result<Prices, Failure> {
        let prices = self.prices_of(tenant);
        let unknown = || Failure::new(Code::Unauthorized, format!("there is no tenant {tenant} (any more)"));
        let account = self.tenants.get_mut(&tenant).ok_or_else(unknown)?;
        account.may_spend()?;
        let Account { record, held, asked } = account;
        quota::may_hold(&record.name, &record.spec, held.plus(*asked), wanted)?;
        *asked = asked.plus(wanted);
        self.asked.insert(lease, (tenant, wanted));
        Ok(prices)
    }

    /// Sets a tenant's share aside, without asking whether it may have it.
    pub fn keep_asking_for(&mut self, lease: LeaseId, tenant: TenantId, wanted: Held) {
        if let Some(account) = self.tenants.get_mut(&tenant) {
            account.asked = account.asked.plus(wanted);
            self.asked.insert(lease, (tenant, wanted));
        }
    }

    /// The node was asked: what was set aside is held now, or is not.
    pub fn asked_for(&mut self, lease: LeaseId) {
        let Some((tenant, wanted)) = self.asked.remove(&lease) else {
            return;
        };
        if let Some(account) = self.tenants.get_mut(&tenant) {
            account.asked = account.asked.minus(wanted);
        }
    }

    /// A lease was granted.
    pub fn insert(&mut self, record: LeaseRecord) {
        self.asked_for(record.lease);
        if let Some(account) = self.tenants.get_mut(&record.tenant) {
            account.held = account.held.plus(record.held());
        }
        if let Some(node) = self.nodes.get_mut(&record.node) {
            node.take(&record);
        }
        self.leases.insert(record.lease, record);
    }

    /// A lease ended; none when it had ended before, whose cause then stands.
    pub fn end(&mut self, lease: LeaseId, state: LeaseState, at_ms: u64) -> Option<&LeaseRecord> {
        let record = self.leases.get_mut(&lease).filter(|record| record.state.is_live())?;
        record.state = state;
        record.ended_at_ms = at_ms;
        if let Some(node) = self.nodes.get_mut(&record.node) {
            node.give(record);
        }
        if let Some(account) = self.tenants.get_mut(&record.tenant) {
            account.held = account.held.minus(record.held());
        }
        Some(record)
    }

    /// A node comes from another manager with these leases: what was known of its leases here is of an earlier time.
    pub fn inherit(&mut self, node: NodeId, leases: Vec<LeaseRecord>) {
        self.let_go(node);
        for record in leases {
            if let (true, Some(account)) = (record.state.is_live(), self.tenants.get_mut(&record.tenant)) {
                account.held = account.held.plus(record.held());
            }
            self.leases.insert(record.lease, record);
        }
    }

    /// Another manager owns the node, and so its leases.
    pub fn let_go(&mut self, node: NodeId) {
        let Self { leases, tenants, .. } = self;
        leases.retain(|_, record| {
            if record.node != node {
                return true;
            }
            if let (true, Some(account)) = (record.state.is_live(), tenants.get_mut(&record.tenant)) {
                account.held = account.held.minus(record.held());
            }
            false
        });
    }

    /// The store has booked this entry, now or when it was first sent. Answers how much more that is, and whose.
    pub fn on_booked(&mut self, id: NodeId, sequence: u64, totals: &[(LeaseId, Metered)]) -> Vec<(TenantId, Usage)> {
        let mut more = Vec::new();
        let Some(node) = self.nodes.get_mut(&id).filter(|node| sequence > node.booked) else {
            return more;
        };
        node.booked = sequence;
        for (lease, used) in totals {
            if let Some(record) = self.leases.get_mut(lease).filter(|record| record.node == id) {
                let merged = billing::merge(record.usage, used.usage);
                let added = billing::subtract(merged, record.usage);
                record.usage = merged;
                self.used = billing::add(self.used, added);
                more.push((record.tenant, added));
            }
        }
        more
    }

    /// All of it in numbers.
    pub fn summary(&self) -> Summary {
        let mut summary = Summary::default();
        // Also where there is none: a number that is missing looks like a fault to whoever draws it.
        summary.nodes.insert(NodeState::Up.name(), 0);
        for state in [LeaseState::Granted, LeaseState::Active] {
            summary.leases.insert(state.name(), 0);
        }
        for node in self.nodes.values().filter(|node| node.manager.is_none()) {
            *summary.nodes.entry(node.state(false).name()).or_default() += 1;
            if node.session.is_some() {
                summary.capacity.add(&node.capacity);
                summary.free.add(&node.free);
            }
        }
        for record in self.leases.values().filter(|record| record.state.is_live()) {
            *summary.leases.entry(record.state.name()).or_default() += 1;
        }
        summary
    }

    /// Forgets leases that ended before this time; the store keeps them.
    pub fn forget_ended(&mut self, before_ms: u64) {
        self.leases
            .retain(|_, record| record.state.is_live() || record.ended_at_ms >= before_ms);
    }

    /// Other managers' nodes as far as they are known here.
    pub fn foreign_statuses(&self, now: Instant) -> Vec<NodeStatus> {
        let foreign = self.nodes.iter().filter(|(_, node)| node.manager.is_some());
        foreign.map(|(id, node)| self.node_status(id, node, now)).collect()
    }

    /// This manager's nodes, for people.
    pub fn node_statuses(&self, now: Instant) -> Vec<NodeStatus> {
        let mut statuses: Vec<NodeStatus> = self
            .nodes
            .iter()
            .filter(|(_, node)| node.manager.is_none())
            .map(|(id, node)| self.node_status(id, node, now))
            .collect();
        statuses.sort_by(|a, b| {
            a.address
                .name
                .cmp(&b.address.name)
                .then(a.address.id.cmp(&b.address.id))
        });
        statuses
    }

    /// One node, for people.
    pub fn node_status(&self, id: &NodeId, node: &Node, now: Instant) -> NodeStatus {
        let held = self
            .leases
            .values()
            .filter(|record| record.node == *id && record.state.is_live())
            .count();
        let suspension = node.health.suspension();
        let ends_ms = suspension.map_or(0, |suspension| suspension.until_ms);
        NodeStatus {
            suspended_ms: ends_ms.saturating_sub(clock_ms(now)),
            why: suspension.map(|suspension| suspension.why.clone()),
            address: node.address.clone(),
            capacity: node.capacity,
            free: node.free,
            state: node.state(held > 0),
            heartbeat_age_ms: millis(now.saturating_duration_since(node.heard)),
            leases: held as u32,
            sandboxes: node.sandboxes.clone(),
        }
    }
}

/// A lease, for people.
pub fn lease_status(record: &LeaseRecord) -> LeaseStatus {
    LeaseStatus {
        lease: record.lease,
        tenant: record.tenant,
        node: record.node,
        state: record.state,
        workers: record.workers,
        mode: record.mode,
        sandbox: record.sandbox,
        image: record.image.clone(),
        memory_bytes: record.memory_bytes,
        granted_at_ms: record.granted_at_ms,
        expires_at_ms: record.expires_at_ms,
        usage: record.usage,
    }
}

/// A clock that only goes forward, in milliseconds, from some time on before this manager.
pub fn clock_ms(now: Instant) -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    millis(now.saturating_duration_since(*START))
}

/// Whole milliseconds of a duration.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn cluster(nodes: u16) -> Cluster {
        let capacity = Capacity {
            cores: 1,
            memory_bytes: 1,
            workers: 1,
            gpus: 0,
        };
        let record = |n: u16| {
            let mut id = [0; 16];
            id[..2].copy_from_slice(&n.to_be_bytes());
            NodeRecord {
                address: NodeAddress {
                    id: NodeId(id),
                    name: n.to_string(),
                    host: String::new(),
                    unix: None,
                    tcp: None,
                    key: PublicKey([0; 32]),
                    fabrics: Vec::new(),
                },
                capacity,
                epoch: 1,
                booked: 0,
                reclaimed: false,
                manager: None,
            }
        };
        let snapshot = Snapshot {
            nodes: (0..nodes).map(record).collect(),
            ..Snapshot::default()
        };
        Cluster::remembered(snapshot, Instant::now())
    }

    #[test]
    fn a_sample_has_few_nodes_each_once_and_in_the_long_run_every_one() {
        assert!(
            cluster(2 * SAMPLE as u16).sample(7).is_none(),
            "so few are all looked at"
        );
        let cluster = cluster(1_000);
        let mut seen = BTreeSet::new();
        for random in 0..1_000 {
            let sample: Vec<NodeId> = cluster.sample(random).unwrap().iter().map(|view| view.node).collect();
            let distinct: BTreeSet<NodeId> = sample.iter().copied().collect();
            assert_eq!(distinct.len(), sample.len());
            assert!(sample.len() <= SAMPLE && sample.len() > SAMPLE / 2);
            seen.extend(distinct);
        }
        assert_eq!(seen.len(), 1_000);
        assert_eq!(cluster.views(None).len(), 1_000);
    }
}
