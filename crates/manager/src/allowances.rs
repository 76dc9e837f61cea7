//! Allowances: tenants that lease straight from nodes.
//!
//! The manager signs what a tenant may have, tells where there is room, and counts what nodes say has started. Nothing waits for
//! it: a lease that started is in the books a moment later, and when all is used the nodes are told. What may be overspent until
//! they hear of it is bounded by the allowance's cap for each node.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use dayfly_lease::allowance::{AllowanceLedger, Availability, cap_of, within_cap};
use dayfly_lease::quota::Held;
use dayfly_lease::token::{Claims, DEFAULT_SKEW_TOLERANCE_MS, check_evidence};
use dayfly_protocol::api::{Allowance, AllowanceRequest, Event, FreeNode, LeaseState, Mode, Usage};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::hello::{HELLO_BYTES, Hello};
use dayfly_protocol::ids::{AllowanceId, LeaseId, NodeId, TenantId};
use dayfly_protocol::node_api::DirectStart;
use dayfly_protocol::node_messages::ManagerMessage;
use dayfly_store::system::{now_ms, random};
use dayfly_store::{Change, LeaseRecord, OwnedChange, StoreError};
use zerocopy::{FromBytes, IntoBytes};

use crate::cluster::{Account as TenantAccount, Cluster, millis};
use crate::control::{Control, stopped};
use crate::leases::end_message;
use crate::principal::Principal;
use crate::sessions::MAX_IMAGE_BYTES;

/// An allowance that nobody asks about is worth nothing after this time.
const LIFE: Duration = Duration::from_secs(60);
/// A start that its node could not report for so long is not believed any more.
const LATE: Duration = Duration::from_secs(24 * 3600);
/// Nodes in one list: of more, some at random, so that many clients spread.
const MAX_LISTED: usize = 256;
/// An even share of the workers on each node, times this, is what one node may have of an allowance that names no cap.
const SPREAD: u32 = 2;

/// One allowance.
struct Allowed {
    tenant: TenantId,
    /// The token that it was asked for with; it is over when that is, at the latest when it expires.
    bearer: Option<[u8; 32]>,
    until_ms: u64,
    /// What its tokens say, but for their times; none for one that an earlier life of this manager signed.
    claims: Option<Claims>,
    total: Held,
    ledger: AllowanceLedger,
    /// Wall clock.
    expires_at_ms: u64,
}

/// Every allowance that is good or was lately.
#[derive(Default)]
pub struct Allowances {
    by_id: HashMap<AllowanceId, Allowed>,
    /// Under which a lease started.
    of_lease: HashMap<LeaseId, AllowanceId>,
    /// What was known of the nodes' room when the list of them was numbered last.
    room: u64,
}

impl Allowances {
    /// What ends with one bearer ends with another one, or with none.
    pub fn rebind(&mut self, from: [u8; 32], to: Option<[u8; 32]>) {
        let its = |allowed: &&mut Allowed| allowed.bearer == Some(from);
        self.by_id
            .values_mut()
            .filter(its)
            .for_each(|allowed| allowed.bearer = to);
    }

    /// Those under which nothing may start now, for a node that connects.
    pub fn exhausted(&self, now_ms: u64) -> Vec<ManagerMessage> {
        let exhausted = self.by_id.iter().filter(|(_, allowed)| allowed.ledger.is_exhausted());
        exhausted
            .map(|(id, allowed)| allowed.message(*id, Availability::Exhausted, now_ms))
            .collect()
    }
}

impl Allowed {
    /// The time to which it is good when it is asked about now.
    fn prolonged_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_add(millis(LIFE)).min(self.until_ms)
    }

    fn is_good(&self, now_ms: u64) -> bool {
        self.claims.is_some() && self.expires_at_ms > now_ms
    }

    fn message(&self, allowance: AllowanceId, news: Availability, now_ms: u64) -> ManagerMessage {
        let lasts_ms = self.expires_at_ms.saturating_sub(now_ms) + 2 * DEFAULT_SKEW_TOLERANCE_MS;
        ManagerMessage::Exhausted {
            allowance,
            for_ms: match news {
                Availability::Exhausted => lasts_ms,
                Availability::Room => 0,
            },
        }
    }
}

impl Control {
    /// Allows a tenant to lease straight from nodes.
    pub fn allow(&self, principal: Principal, request: &AllowanceRequest) -> Result<Allowance, Failure> {
        let tenant = principal.tenant;
        let longest_ms = millis(self.options.longest_lease);
        if request.workers == 0 || request.duration_ms == 0 || request.duration_ms > longest_ms {
            return Err(Failure::new(
                Code::InvalidRequest,
                format!(
                    "an allowance of {} workers for leases of {} ms; ask for one worker at least, and for 1 to {longest_ms} ms",
                    request.workers, request.duration_ms
                ),
            ));
        }
        let sandbox = self.sandbox_for(request.sandbox)?;
        let total = Held {
            // Each lease has a worker at least.
            leases: request.workers,
            workers: request.workers,
            cores: if request.cores == 0 {
                request.workers
            } else {
                request.cores
            },
            memory_bytes: request.memory_bytes,
        };
        let allowance = AllowanceId(random());
        let now_ms = now_ms();
        let mut cluster = self.cluster();
        let limits_memory = cluster.tenants.get(&tenant).is_some_and(TenantAccount::limits_memory);
        if total.memory_bytes == 0 && limits_memory {
            return Err(Failure::new(
                Code::InvalidRequest,
                "the tenant has a quota of memory; name the memory of the allowance (memory_bytes)",
            ));
        }
        let cap = cap(request, total, cluster.nodes_up() as u32);
        cluster.ask_for(LeaseId(allowance.0), tenant, total)?;
        let claims = Claims {
            workers: cap.workers as u16,
            cores: cap.cores.min(u16::MAX.into()) as u16,
            memory_bytes: cap.memory_bytes,
            sandbox,
            lease: None,
            tenant,
            node: NodeId([0; 16]),
            holder: request.holder,
            epoch: 0,
            not_before_ms: now_ms,
            expires_at_ms: 0,
            duration_ms: principal.at_most(request.duration_ms)?,
        };
        let allowed = Allowed {
            tenant,
            bearer: cluster.current(principal.bearer),
            until_ms: principal.until_ms,
            claims: Some(claims),
            total,
            ledger: AllowanceLedger::new(total),
            expires_at_ms: now_ms.saturating_add(millis(LIFE)).min(principal.until_ms),
        };
        cluster.allowances.by_id.insert(allowance, allowed);
        drop(cluster);
        tracing::info!(%allowance, %tenant, workers = total.workers, per_node = cap.workers, "allowed to lease from nodes");
        self.look_for_room();
        self.news_of(tenant, allowance)
    }

    /// Waits until the list of nodes that have room is another one than `after`, or for so long, and answers it with a token that
    /// lasts longer.
    pub async fn allowance_news(
        &self,
        tenant: TenantId,
        allowance: AllowanceId,
        after: u64,
        wait: Duration,
    ) -> Result<Allowance, Failure> {
        let (mut rooms, mut stopping) = (self.rooms.subscribe(), self.stopping.subscribe());
        // Whether there was any is seen below.
        tokio::select! {
            _ = rooms.wait_for(|version| *version != after) => {}
            () = tokio::time::sleep(wait.min(LIFE / 3)) => {}
            () = stopped(&mut stopping) => {}
        }
        self.news_of(tenant, allowance)
    }

    fn news_of(&self, tenant: TenantId, allowance: AllowanceId) -> Result<Allowance, Failure> {
        let version = *self.rooms.borrow();
        let now_ms = now_ms();
        let mut cluster = self.cluster();
        cluster.tenants.get(&tenant).map_or(Ok(()), TenantAccount::may_spend)?;
        let found = cluster.allowances.by_id.get_mut(&allowance);
        let allowed = found
            .filter(|allowed| allowed.tenant == tenant && allowed.is_good(now_ms))
            .ok_or_else(|| no_such_allowance(allowance))?;
        allowed.expires_at_ms = allowed.prolonged_ms(now_ms);
        let claims = allowed.claims.ok_or_else(|| no_such_allowance(allowance))?;
        let token = Claims {
            not_before_ms: now_ms,
            expires_at_ms: allowed.expires_at_ms,
            ..claims
        }
        .sign_for_all(allowance, &self.signing);
        let workers_left = allowed.ledger.left().workers;
        Ok(Allowance {
            allowance,
            token: hex::encode(token.as_bytes()),
            lasts_ms: millis(LIFE),
            version,
            nodes: cluster.rooms(u64::from_le_bytes(random())),
            workers_left,
        })
    }

    /// Ends an allowance; leases under it go on.
    pub fn disallow(&self, tenant: TenantId, allowance: AllowanceId) -> Result<(), Failure> {
        let mut cluster = self.cluster();
        let found = cluster.allowances.by_id.get_mut(&allowance);
        let allowed = found
            .filter(|allowed| allowed.tenant == tenant && allowed.claims.is_some())
            .ok_or_else(|| no_such_allowance(allowance))?;
        // Nodes believe its token as long as that lasts.
        allowed.claims = None;
        let message = allowed.message(allowance, Availability::Exhausted, now_ms());
        cluster.asked_for(LeaseId(allowance.0));
        cluster.tell_nodes(&message);
        Ok(())
    }

    /// Ends what a tenant that may not go on was allowed.
    pub fn disallow_all(&self, tenant: TenantId) {
        self.disallow_those(|_, allowed| allowed.tenant == tenant);
    }

    /// Ends what was allowed with tokens that are good no longer.
    pub fn disallow_over(&self) {
        self.disallow_those(|cluster, allowed| cluster.is_over(allowed.bearer));
    }

    fn disallow_those(&self, is_over: impl Fn(&Cluster, &Allowed) -> bool) {
        let over: Vec<(TenantId, AllowanceId)> = {
            let cluster = self.cluster();
            let good = cluster
                .allowances
                .by_id
                .iter()
                .filter(|(_, allowed)| allowed.claims.is_some());
            let over = good.filter(|(_, allowed)| is_over(&cluster, allowed));
            over.map(|(id, allowed)| (allowed.tenant, *id)).collect()
        };
        for (tenant, allowance) in over {
            // One that ended meanwhile is as good.
            let _ = self.disallow(tenant, allowance);
        }
    }

    /// A node says that it granted a lease. It enters the books if the allowance's holder asked for one there.
    pub fn on_started(self: &Arc<Self>, node: NodeId, lease: LeaseId, start: &DirectStart) {
        match self.adopt(node, lease, start) {
            Ok(Some(record)) => {
                self.metrics.started_directly();
                self.tell(Event::Lease {
                    lease,
                    node,
                    state: record.state,
                });
                let control = Arc::clone(self);
                tokio::spawn(async move { control.write_start(node, record).await });
            }
            Ok(None) => {}
            Err(failure) => {
                tracing::warn!(%node, %lease, %failure, "a lease that the node says it granted is not believed");
                self.metrics.incident();
                let cluster = self.cluster();
                cluster.tell_node(&node, end_message(0, lease, LeaseState::Revoked, Duration::ZERO));
                cluster.tell_node(&node, ManagerMessage::Adopted { lease });
            }
        }
    }

    /// None when it is in the books already.
    fn adopt(&self, node: NodeId, lease: LeaseId, start: &DirectStart) -> Result<Option<LeaseRecord>, Failure> {
        let hello = read_hello(&start.hello)?;
        let allowance = check_evidence(&hello, DEFAULT_SKEW_TOLERANCE_MS, &node, &self.signing_keys())?;
        let now_ms = now_ms();
        let token = &hello.token;
        let refused = |text: &str| Err(Failure::new(Code::Unauthorized, text));
        if now_ms > token.expires_at_ms.get().saturating_add(millis(LATE)) {
            return refused("its allowance expired too long ago");
        }
        let started_at_ms = start.started_at_ms.min(now_ms);
        if start.duration_ms > token.duration_ms.get() || start.mode == Mode::Auto {
            return refused("it is not what its allowance is for");
        }
        let mut cluster = self.cluster();
        match cluster.leases.get(&lease) {
            Some(known) if known.node == node && known.tenant == token.tenant => {
                cluster.tell_node(&node, ManagerMessage::Adopted { lease });
                return Ok(None);
            }
            Some(_) => return refused("there is another lease of that id"),
            None => {}
        }
        let Some(account) = cluster.tenants.get(&token.tenant) else {
            return refused("there is no such tenant (any more)");
        };
        let prices = account.record.spec.prices.unwrap_or(cluster.prices);
        let bearer = cluster
            .allowances
            .by_id
            .get(&allowance)
            .and_then(|allowed| allowed.bearer);
        let record = LeaseRecord {
            lease,
            tenant: token.tenant,
            node,
            holder: start.holder,
            state: LeaseState::Granted,
            workers: start.workers,
            cores_per_worker: start.cores_per_worker,
            // Those come from the manager alone.
            gpus_per_worker: 0,
            mode: start.mode,
            sandbox: start.sandbox,
            image: start.image.clone().filter(|image| image.len() <= MAX_IMAGE_BYTES),
            memory_bytes: start.memory_bytes,
            duration_ms: start.duration_ms,
            granted_at_ms: started_at_ms,
            expires_at_ms: started_at_ms
                .saturating_add(millis(self.options.start_by))
                .saturating_add(start.duration_ms),
            ended_at_ms: 0,
            usage: Usage::default(),
            functions: Vec::new(),
            prices,
            bearer,
        };
        let known = cluster.allowances.by_id.entry(allowance);
        // One that an earlier life of this manager signed: how much it was for is not known any more, but for its cap.
        let allowed = known.or_insert_with(|| Allowed {
            tenant: token.tenant,
            bearer: None,
            until_ms: 0,
            claims: None,
            total: Held::default(),
            ledger: AllowanceLedger::new(EVERYTHING),
            expires_at_ms: token.expires_at_ms.get(),
        });
        within_cap(&cap_of(token), &allowed.ledger.held_on(&node), &record.held())?;
        let news = allowed.ledger.start(lease, node, record.held());
        let news = news.map(|news| allowed.message(allowance, news, now_ms));
        cluster.allowances.of_lease.insert(lease, allowance);
        cluster.insert(record.clone());
        cluster.set_aside(allowance);
        if let Some(message) = news {
            tracing::info!(%allowance, "used up");
            cluster.tell_nodes(&message);
        }
        Ok(Some(record))
    }

    async fn write_start(&self, node: NodeId, mut record: LeaseRecord) {
        let lease = record.lease;
        let written = {
            let cluster = self.cluster();
            record.bearer = cluster.current(record.bearer);
            let (epoch, change) = (cluster.epoch(node), Change::Offered(Box::new(record)));
            self.journal.ask(OwnedChange { node, epoch, change })
        };
        match written.await {
            Ok(()) => self.cluster().tell_node(&node, ManagerMessage::Adopted { lease }),
            Err(StoreError::Quota(quota)) => {
                tracing::warn!(%lease, %quota, "a lease that started is more than its tenant may have of all managers; it ends");
                self.on_lease_ended(lease, LeaseState::Revoked);
                let cluster = self.cluster();
                cluster.tell_node(&node, end_message(0, lease, LeaseState::Revoked, Duration::ZERO));
                cluster.tell_node(&node, ManagerMessage::Adopted { lease });
            }
            // The node says it again when it connects anew, here or elsewhere.
            Err(error) => tracing::warn!(%lease, %error, "a lease that started is not in the store yet"),
        }
    }

    /// Numbers the list of nodes that have room anew if it has changed.
    pub fn look_for_room(&self) {
        let mut cluster = self.cluster();
        // What is over is kept for a day; nobody asks for its nodes.
        if cluster
            .allowances
            .by_id
            .values()
            .all(|allowed| allowed.claims.is_none())
        {
            return;
        }
        let mut hasher = DefaultHasher::new();
        cluster.with_room().for_each(|(id, _)| id.hash(&mut hasher));
        let room = hasher.finish();
        if std::mem::replace(&mut cluster.allowances.room, room) != room {
            drop(cluster);
            self.rooms.send_modify(|version| *version += 1);
        }
    }
}

/// More than anybody can use.
const EVERYTHING: Held = Held {
    leases: u32::MAX,
    workers: u32::MAX,
    cores: u32::MAX,
    memory_bytes: 0,
};

impl Cluster {
    /// A lease ended: if it was under an allowance there is room again, which nodes hear if they had heard that there was none.
    pub fn on_lease_over(&mut self, lease: LeaseId) {
        let Some(allowance) = self.allowances.of_lease.remove(&lease) else {
            return;
        };
        let allowed = self.allowances.by_id.get_mut(&allowance);
        let message = allowed.and_then(|allowed| {
            let news = allowed.ledger.end(&lease)?;
            allowed
                .claims
                .is_some()
                .then(|| allowed.message(allowance, news, now_ms()))
        });
        self.set_aside(allowance);
        if let Some(message) = message {
            self.tell_nodes(&message);
        }
    }

    /// Sets aside for an allowance what of it is not held by leases; nothing for one that is over.
    fn set_aside(&mut self, allowance: AllowanceId) {
        let key = LeaseId(allowance.0);
        self.asked_for(key);
        let Some(allowed) = self.allowances.by_id.get(&allowance) else {
            return;
        };
        if allowed.claims.is_some() {
            let (tenant, left) = (allowed.tenant, allowed.total.minus(allowed.ledger.held()));
            self.keep_asking_for(key, tenant, left);
        }
    }

    /// Forgets allowances that nobody asked about for so long that their tokens are worth nothing, and later what started under
    /// them.
    pub fn forget_allowances(&mut self, now_ms: u64) {
        let over: Vec<AllowanceId> = {
            let all = self.allowances.by_id.iter_mut();
            let over = all.filter(|(_, allowed)| allowed.claims.is_some() && allowed.expires_at_ms <= now_ms);
            over.map(|(id, allowed)| {
                allowed.claims = None;
                *id
            })
            .collect()
        };
        for allowance in over {
            self.set_aside(allowance);
        }
        let Allowances { by_id, of_lease, .. } = &mut self.allowances;
        by_id.retain(|_, allowed| allowed.expires_at_ms.saturating_add(millis(LATE)) > now_ms);
        of_lease.retain(|_, allowance| by_id.contains_key(allowance));
    }

    fn with_room(&self) -> impl Iterator<Item = (&NodeId, &crate::cluster::Node)> {
        self.in_order().filter(|(_, node)| {
            let takes = node.session.is_some() && !node.reclaimed && node.health.suspension().is_none();
            takes && node.free.memory_bytes > 0 && (node.free.cores > 0 || node.free.workers > 0)
        })
    }

    /// Nodes that have room, those with most of it first; of many, some, from a random place on.
    fn rooms(&self, random: u64) -> Vec<FreeNode> {
        let all: Vec<_> = self.with_room().collect();
        let start = if all.len() > MAX_LISTED {
            (random % all.len() as u64) as usize
        } else {
            0
        };
        let some = all.iter().cycle().skip(start).take(all.len().min(MAX_LISTED));
        let mut rooms: Vec<FreeNode> = some
            .map(|(_, node)| FreeNode {
                node: node.address.clone(),
                free: node.free,
            })
            .collect();
        rooms.sort_by_key(|room| std::cmp::Reverse((room.free.cores, room.free.workers)));
        rooms
    }

    fn tell_nodes(&self, message: &ManagerMessage) {
        for (id, _) in self.in_order() {
            self.tell_node(id, message.clone());
        }
    }

    /// Tells a node something that it hears again when it connects anew, should this not get through.
    fn tell_node(&self, node: &NodeId, message: ManagerMessage) {
        if let Some(session) = self.nodes.get(node).and_then(|node| node.session.as_ref()) {
            let _ = session.outgoing.try_send(message);
        }
    }
}

/// What one node may have of an allowance.
fn cap(request: &AllowanceRequest, total: Held, nodes: u32) -> Held {
    let even = total.workers.saturating_mul(SPREAD).div_ceil(nodes.max(1));
    let workers = match request.workers_per_node {
        0 => even,
        named => named.into(),
    };
    let workers = workers.clamp(1, total.workers.min(u16::MAX.into()));
    let share = |of: u64| (of * u64::from(workers)).div_ceil(u64::from(total.workers));
    Held {
        leases: u32::MAX,
        workers,
        cores: share(total.cores.into()) as u32,
        memory_bytes: (u128::from(total.memory_bytes) * u128::from(workers)).div_ceil(u128::from(total.workers)) as u64,
    }
}

fn read_hello(text: &str) -> Result<Hello, Failure> {
    let mut bytes = [0; HELLO_BYTES];
    let read = hex::decode_to_slice(text, &mut bytes).ok();
    read.and_then(|()| Hello::read_from_bytes(&bytes).ok())
        .ok_or_else(|| Failure::new(Code::ProtocolViolation, "the node shows no hello"))
}

fn no_such_allowance(allowance: AllowanceId) -> Failure {
    Failure::new(
        Code::NotFound,
        format!("there is no allowance {allowance} of yours (any more); ask for another one"),
    )
}
