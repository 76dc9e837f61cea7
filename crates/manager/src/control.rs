//! The heart: what the HTTP API, the nodes' connections and the clock all act on.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use dayfly_lease::SigningKey;
use dayfly_protocol::api::{Event, LeaseState, RendezvousAddress, Usage};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{LeaseId, NodeId, PublicKey, TenantId};
use dayfly_protocol::node_messages::ManagerMessage;
use dayfly_protocol::tenancy::{Role, TenantSpec};
use dayfly_store::system::{now_ms, random};
use dayfly_store::{Bearer, BearerKind, Change, LeaseRecord, OwnedChange, PeerUpdate, Store, hash};
use dayfly_telemetry as telemetry;
use tokio::sync::{Notify, broadcast, oneshot, watch};
use tokio::time;
use tracing::Instrument;

use crate::cluster::{Answer, Cluster, Waiting, clock_ms, millis};
use crate::extractors::bearer_token;
use crate::history::{self, History};
use crate::journal::Journal;
use crate::metrics::Metrics;
use crate::oidc::Provider;
use crate::options::Options;
use crate::peers::Peers;
use crate::task_owner::TaskOwner;
use crate::token_registry::Validity;

/// A node answers an offer from memory; one that takes longer is stuck, and the next node is asked.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);
/// Heartbeats that may be missed before a node counts as lost.
pub const MISSED: u32 = 3;
/// Ended leases are shown for this long.
pub const SHOWN_MS: u64 = 3_600_000;
/// A node ends its leases itself; the manager does it in its stead only this long after their expiry, when the node's
/// own grace and the heartbeats that tell of it are certainly over.
const OVERDUE_MS: u64 = 60_000;
/// How soon those who lease straight from nodes hear of room.
const ROOM_LOOK: Duration = Duration::from_millis(50);
/// Between two looks at every lease.
const SWEEP: Duration = Duration::from_secs(1);

/// Longer than a dispatcher is connected.
/// What names of tokens begin with that tenants of another manager lease with, which are forgotten when they have expired.
pub const GUEST: &str = "guest ";
const HALF_A_DAY: Duration = Duration::from_secs(12 * 3600);
const A_YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// An event, and whose concern it is.
#[derive(Debug, Clone, PartialEq)]
pub struct SiteEvent {
    /// What happened.
    pub event: Event,
    /// To whose lease, if it is about one.
    pub tenant: Option<TenantId>,
}

/// State and ports of one manager.
pub struct Control {
    /// As started.
    pub options: Options,
    /// `https://...`, for those who are told where it is.
    pub url: String,
    /// Its certificate authority.
    pub ca_pem: String,
    /// Signs tokens.
    pub signing: SigningKey,
    /// What survives.
    pub store: Arc<dyn Store>,
    /// The way into the store for changes of leases.
    pub journal: Journal,
    /// What is counted, for Prometheus.
    pub metrics: Metrics,
    /// How it all was lately.
    pub history: History,
    /// Events, for those who watch.
    pub events: broadcast::Sender<SiteEvent>,
    /// Number of the list of nodes that have room, for those who lease straight from them.
    pub rooms: watch::Sender<u64>,
    /// Where the ranks of groups meet.
    pub rendezvous: RendezvousAddress,
    /// With whom people log in, if the site has somebody.
    pub oidc: Option<Provider>,
    /// The other managers over the same store.
    pub peers: Peers,
    /// Who has the durable tasks.
    pub task_owner: TaskOwner,
    /// Workers of one core that requests for leases wait for.
    pub waiting: Arc<AtomicU64>,
    /// True once it ends.
    pub stopping: watch::Sender<bool>,
    /// Whether leases are being ended whose bearers are over.
    is_ending: AtomicBool,
    /// Entries that this manager has added to the audit log.
    pub audit_entries: AtomicU64,
    /// SiteEvent when those are so many that the log wants trimming.
    pub audit_is_long: Notify,
    cluster: Mutex<Cluster>,
}

impl Control {
    /// All of it, over what the store remembers.
    pub fn new(
        options: Options,
        (url, rendezvous): (String, RendezvousAddress),
        ca_pem: String,
        signing: SigningKey,
        store: Arc<dyn Store>,
        journal: Journal,
        cluster: Cluster,
    ) -> Self {
        Self {
            oidc: options.oidc.clone().map(Provider::new),
            options,
            rendezvous,
            url,
            ca_pem,
            peers: Peers::of(signing.public()),
            signing,
            store,
            journal,
            metrics: Metrics::default(),
            history: History::default(),
            is_ending: AtomicBool::new(false),
            audit_entries: AtomicU64::new(0),
            audit_is_long: Notify::new(),
            // A watcher that falls this far behind is told to connect anew.
            events: broadcast::channel(1_024).0,
            rooms: watch::channel(0).0,
            task_owner: TaskOwner::default(),
            waiting: Arc::default(),
            stopping: watch::channel(false).0,
            cluster: Mutex::new(cluster),
        }
    }

    /// The cluster, for a moment.
    pub fn cluster(&self) -> MutexGuard<'_, Cluster> {
        // Nothing panics between two changes that belong together, so a poisoned lock still guards a consistent cluster.
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A token with which a dispatcher beside the nodes leases on a tenant's behalf; known until this manager ends.
    pub async fn token_for_dispatcher(&self, tenant: TenantId, name: &str) -> Result<String, Failure> {
        self.know(tenant, name).await?;
        let (token, bearer) = fresh_bearer(BearerKind::Client(Role::User), tenant, None, A_YEAR);
        self.keep_bearer(bearer);
        Ok(token)
    }

    /// Makes a tenant known whose tasks, or leases, come here.
    async fn know(&self, tenant: TenantId, name: &str) -> Result<(), Failure> {
        if !self.cluster().tenants.contains_key(&tenant) {
            // It is another manager's, which runs tasks here. Names are for people there; here somebody may have the same.
            let name = match self.cluster().tenant_named(name) {
                None => name.to_owned(),
                Some(_) => format!("{name}@{tenant}"),
            };
            let kept = self.store.tenant(tenant, name, TenantSpec::default()).wait().await?;
            self.cluster().set_tenant(kept);
        }
        Ok(())
    }

    /// A token with which a tenant of another manager leases here itself; known until this manager ends.
    pub async fn token_for_guest(&self, tenant: TenantId, name: &str) -> Result<String, Failure> {
        self.know(tenant, name).await?;
        let (token, bearer) = fresh_bearer(BearerKind::Client(Role::User), tenant, None, HALF_A_DAY);
        let now_ms = now_ms();
        self.cluster()
            .bearers
            .retain(|other| other.expires_at_ms > now_ms || !other.name.starts_with(GUEST));
        // Of its own name: one of the same would take the place of another that is in use.
        self.keep_bearer(Bearer {
            name: format!("{GUEST}{}", hex::encode(random::<16>())),
            ..bearer
        });
        Ok(token)
    }

    /// A tenant's name, for people.
    pub fn tenant_name(&self, tenant: TenantId) -> String {
        let cluster = self.cluster();
        let account = cluster.tenants.get(&tenant);
        account.map_or_else(|| tenant.to_string(), |account| account.record.name.clone())
    }

    /// Tells everybody who watches, at this manager and at the others.
    pub fn tell(&self, event: Event) {
        let tenant = match &event {
            Event::Lease { lease, .. } | Event::Incident { lease, .. } => {
                self.cluster().leases.get(lease).map(|record| record.tenant)
            }
            _ => None,
        };
        if self.peers.are_possible() {
            self.store.publish(vec![PeerUpdate::Event(event.clone(), tenant)]);
        }
        // Nobody may be watching.
        let _ = self.events.send(SiteEvent { event, tenant });
    }

    /// Sends a node a question and waits for its answer. A question that is an offer comes with the lease.
    pub async fn ask(
        &self,
        node: NodeId,
        offer: Option<LeaseRecord>,
        question: impl FnOnce(u64, u64) -> ManagerMessage,
    ) -> Answer {
        self.ask_within(ANSWER_DEADLINE, node, offer, question).await
    }

    /// The same, of something that may take so much longer.
    pub async fn ask_patiently(
        &self,
        node: NodeId,
        longer: Duration,
        question: impl FnOnce(u64, u64) -> ManagerMessage,
    ) -> Answer {
        self.ask_within(ANSWER_DEADLINE + longer, node, None, question).await
    }

    async fn ask_within(
        &self,
        deadline: Duration,
        node: NodeId,
        offer: Option<LeaseRecord>,
        question: impl FnOnce(u64, u64) -> ManagerMessage,
    ) -> Answer {
        let step = telemetry::span!("ask a node", "otel.kind" = "client", "dayfly.node.id" = %node);
        let answer = async {
            let asked = self.send(node, offer, question)?;
            self.wait_for(node, asked, deadline).await
        };
        let answer = answer.instrument(step.clone()).await;
        telemetry::ended(&step, &answer);
        answer
    }

    async fn wait_for(
        &self,
        node: NodeId,
        (request, answer): (u64, oneshot::Receiver<Answer>),
        deadline: Duration,
    ) -> Answer {
        match tokio::time::timeout(deadline, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Failure::new(
                Code::Unreachable,
                format!("the connection of node {node} broke before it answered; try again"),
            )),
            Err(_) => {
                if let Some(session) = self
                    .cluster()
                    .nodes
                    .get_mut(&node)
                    .and_then(|node| node.session.as_mut())
                {
                    session.waiting.remove(&request);
                }
                Err(Failure::new(
                    Code::TimedOut,
                    format!(
                        "node {node} did not answer within {} s; look at its log",
                        deadline.as_secs()
                    ),
                ))
            }
        }
    }

    fn send(
        &self,
        node: NodeId,
        offer: Option<LeaseRecord>,
        question: impl FnOnce(u64, u64) -> ManagerMessage,
    ) -> Result<(u64, oneshot::Receiver<Answer>), Failure> {
        let gone = || {
            Failure::new(
                Code::Unreachable,
                format!("node {node} is not connected; try again when it is back"),
            )
        };
        let mut cluster = self.cluster();
        let request = cluster.next_request();
        let session = cluster
            .nodes
            .get_mut(&node)
            .and_then(|node| node.session.as_mut())
            .ok_or_else(gone)?;
        session
            .outgoing
            .try_send(question(request, session.epoch))
            .map_err(|_| gone())?;
        let (reply, answer) = oneshot::channel();
        session.waiting.insert(request, Waiting { offer, reply });
        Ok((request, answer))
    }

    /// A lease ended: books, journal, watchers. False when it had ended before.
    pub fn on_lease_ended(&self, lease: LeaseId, state: LeaseState) -> bool {
        let at_ms = now_ms();
        let mut cluster = self.cluster();
        let was_active = cluster
            .leases
            .get(&lease)
            .is_some_and(|record| record.state == LeaseState::Active);
        let Some(node) = cluster.end(lease, state, at_ms).map(|record| record.node) else {
            return false;
        };
        if let (true, LeaseState::Released | LeaseState::Expired, Some(node)) =
            (was_active, state, cluster.nodes.get_mut(&node))
        {
            node.health.succeeded();
        }
        cluster.on_lease_over(lease);
        drop(cluster);
        self.metrics.ended(state.name());
        self.note(node, Change::Ended { lease, state, at_ms });
        self.tell(Event::Lease { lease, node, state });
        true
    }

    /// Writes down a change of a lease on this node.
    pub fn note(&self, node: NodeId, change: Change) {
        let epoch = self.cluster().epoch(node);
        self.journal.note(OwnedChange { node, epoch, change });
    }

    /// The keys with which the managers over this store sign.
    pub fn signing_keys(&self) -> Vec<PublicKey> {
        std::iter::once(self.signing.public())
            .chain(self.peers.keys())
            .collect()
    }

    /// Who presents this token, if anybody may.
    pub fn authenticate(&self, token: &str) -> Option<Bearer> {
        // By hash: how long the look-up takes tells nothing about any token.
        let bearer = self.cluster().bearers.get(&hash(token)).cloned()?;
        (bearer.expires_at_ms > now_ms()).then_some(bearer)
    }

    /// A signal that the token which a request shows is good no longer; none if it shows none that is good.
    pub fn validity_of_request(&self, headers: &HeaderMap) -> Option<Validity> {
        self.validity(&hash(bearer_token(headers)?))
    }

    /// A signal that this bearer is good no longer; none if that is so already.
    pub fn validity(&self, bearer: &[u8; 32]) -> Option<Validity> {
        self.cluster().bearers.validity(bearer)
    }

    /// Nodes that have been silent for too long are lost.
    pub fn look_for_lost_nodes(&self, now: Instant) {
        let deadline = self.options.heartbeat * MISSED;
        let mut lost = Vec::new();
        for (id, node) in &mut self.cluster().nodes {
            if node.session.is_some() && now.saturating_duration_since(node.heard) > deadline {
                // Dropping it ends the connection's task and fails what waits for an answer.
                node.session = None;
                node.reclaims.clear();
                lost.push(*id);
            }
        }
        for node in lost {
            tracing::warn!(%node, "lost: {MISSED} heartbeats are missing");
            self.tell(Event::NodeLost { node });
            self.on_failed(node, "its heartbeats were missing");
        }
    }

    /// So much more was booked.
    pub fn on_used(&self, more: &[(TenantId, Usage)]) {
        let cluster = self.cluster();
        for (tenant, more) in more {
            let account = cluster.tenants.get(tenant);
            self.metrics
                .used(account.map_or("unknown", |account| &account.record.name), *more);
        }
    }

    /// A node failed; one that keeps failing gets no leases for a while.
    pub fn on_failed(&self, id: NodeId, why: &str) {
        let now_ms = clock_ms(Instant::now());
        let mut cluster = self.cluster();
        let node = cluster.nodes.get_mut(&id);
        let Some(suspension) = node.and_then(|node| node.health.failed(now_ms, why).cloned()) else {
            return;
        };
        drop(cluster);
        let for_ms = suspension.until_ms.saturating_sub(now_ms);
        tracing::warn!(node = %id, for_ms, why, "suspended: it keeps failing");
        self.metrics.suspended();
        self.tell(Event::NodeSuspended {
            node: id,
            for_ms,
            why: suspension.why,
        });
    }

    /// What the passing of time demands of the books: looks at every lease there is, and so not as often.
    pub fn sweep(self: &Arc<Self>, now: Instant, wall_ms: u64) {
        let mut ended = Vec::new();
        let mut back = Vec::new();
        {
            let mut cluster = self.cluster();
            let clock_ms = clock_ms(now);
            for (id, node) in &mut cluster.nodes {
                if node.health.tick(clock_ms) && node.session.is_some() {
                    back.push(*id);
                }
            }
            for record in cluster.leases.values().filter(|record| record.state.is_live()) {
                let node = cluster.nodes.get(&record.node);
                let up = node.is_some_and(|node| node.session.is_some());
                let silent = node.map_or(Duration::MAX, |node| now.saturating_duration_since(node.heard));
                if wall_ms > record.expires_at_ms.saturating_add(OVERDUE_MS) {
                    ended.push((record.lease, LeaseState::Expired));
                } else if !up && silent > self.options.lease_lost_after {
                    ended.push((record.lease, LeaseState::Lost));
                }
            }
            cluster.forget_ended(wall_ms.saturating_sub(SHOWN_MS));
            cluster.forget_allowances(wall_ms);
            cluster.bearers.retain(|bearer| bearer.expires_at_ms > wall_ms);
        }
        for (lease, state) in ended {
            self.on_lease_ended(lease, state);
        }
        let control = Arc::clone(self);
        // One at a time: a node that does not answer is not asked again every second.
        if !control.is_ending.swap(true, Ordering::AcqRel) {
            tokio::spawn(async move {
                control.end_what_is_over().await;
                control.is_ending.store(false, Ordering::Release);
            });
        }
        for node in back {
            tracing::info!(%node, "gets leases again");
            self.tell(Event::NodeUp { node });
        }
    }

    /// The connection with this epoch is over; the node may have said so before.
    pub fn on_disconnected(&self, id: NodeId, epoch: u64, left: bool) {
        let mut cluster = self.cluster();
        let Some(node) = cluster.nodes.get_mut(&id) else { return };
        if node.session.as_ref().is_none_or(|session| session.epoch != epoch) {
            return;
        }
        node.session = None;
        node.reclaims.clear();
        node.left = left;
        drop(cluster);
        if left {
            tracing::info!(node = %id, "left");
            self.tell(Event::NodeLeft { node: id });
        } else {
            tracing::warn!(node = %id, "lost: its connection broke");
            self.tell(Event::NodeLost { node: id });
            self.on_failed(id, "its connection broke");
        }
    }
}

/// Ticks until the manager stops, often enough that a lost node is noticed within a quarter heartbeat.
pub async fn keep_time(control: Arc<Control>) {
    let mut stopping = control.stopping.subscribe();
    let every = |pace: Duration| {
        let mut ticks = time::interval(pace.max(Duration::from_millis(10)));
        // A machine that was suspended has nothing to catch up with.
        ticks.set_missed_tick_behavior(time::MissedTickBehavior::Skip);
        ticks
    };
    let mut ticks = every(control.options.heartbeat / 4);
    let mut rooms = every(ROOM_LOOK);
    let mut samples = every(history::EVERY);
    let mut sweeps = every(SWEEP.min(control.options.lease_lost_after / 4));
    loop {
        tokio::select! {
            _ = ticks.tick() => control.look_for_lost_nodes(Instant::now()),
            _ = sweeps.tick() => control.sweep(Instant::now(), now_ms()),
            _ = rooms.tick() => control.look_for_room(),
            _ = samples.tick() => control.history.sample(now_ms(), &control.cluster()),
            _ = stopped(&mut stopping) => return,
        }
    }
}

/// A new random token and the record of its hash.
pub fn fresh_bearer(kind: BearerKind, tenant: TenantId, node: Option<NodeId>, valid_for: Duration) -> (String, Bearer) {
    let token = hex::encode(random::<32>());
    let expires_at_ms = now_ms().saturating_add(millis(valid_for));
    let bearer = Bearer {
        hash: hash(&token),
        kind,
        tenant,
        name: String::new(),
        read_only: false,
        node,
        expires_at_ms,
    };
    (token, bearer)
}

/// Waits until the manager is told to stop.
pub async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // An error means that the manager itself is gone, which is as good as told.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}
