//! `Control`: the parts of one manager, and the changes that concern several of them.
//!
//! It only composes: each part alone changes its own state. The operations on it are in the modules of their subjects
//! (`leases`, `gangs`, `allowances`, `tenants`, `tokens`, `peers` and others).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dayfly_lease::SigningKey;
use dayfly_protocol::api::{Event, LeaseState, RendezvousAddress, Usage};
use dayfly_protocol::ids::{LeaseId, NodeId, PublicKey, TenantId};
use dayfly_rendezvous::server::GroupList;
use dayfly_store::system::now_ms;
use dayfly_store::{Change, OwnedChange, PeerUpdate, Store};
use tokio::time;

use crate::allowances::ListVersion;
use crate::audit::AuditLog;
use crate::cluster::{Cluster, clock_ms};
use crate::events::Events;
use crate::group_prefixes::GroupPrefixes;
use crate::history::{self, History};
use crate::journal::Journal;
use crate::leases::WaitingWorkers;
use crate::metrics::Metrics;
use crate::oidc::Provider;
use crate::options::Options;
use crate::peers::Peers;
use crate::queries::KnownQueries;
use crate::samples::KnownSamples;
use crate::shutdown::{Shutdown, stopped};
use crate::task_owner::TaskOwner;
use crate::tickets::Tickets;

/// Heartbeats in a row that may be missing before a node counts as lost.
pub const MAX_MISSED_HEARTBEATS: u32 = 3;
/// How long ended leases are listed, in milliseconds.
pub const ENDED_LEASES_KEPT_MS: u64 = 3_600_000;
/// Period of the check for nodes with free resources, for clients that lease under allowances.
const ROOM_PERIOD: Duration = Duration::from_millis(50);
/// Period of the check of all leases.
const SWEEP_PERIOD: Duration = Duration::from_secs(1);

/// The parts of one manager.
pub struct Control {
    options: Options,
    url: String,
    ca_pem: String,
    signing: SigningKey,
    rendezvous: RendezvousAddress,
    groups: GroupList,
    group_prefixes: GroupPrefixes,
    store: Arc<dyn Store>,
    journal: Journal,
    audit: AuditLog,
    metrics: Metrics,
    history: History,
    events: Events,
    list_version: ListVersion,
    oidc: Option<Provider>,
    tickets: Tickets,
    peers: Peers,
    task_owner: TaskOwner,
    waiting: WaitingWorkers,
    samples: KnownSamples,
    queries: KnownQueries,
    shutdown: Shutdown,
    /// Whether a task is ending leases without a valid token.
    is_ending_leases: AtomicBool,
    cluster: Mutex<Cluster>,
}

impl Control {
    /// Returns a manager over a store and the cluster that was read from it. `url` and `rendezvous` are its addresses
    /// for other programs, and `groups` those that meet there.
    pub fn new(
        options: Options,
        (url, rendezvous, groups): (String, RendezvousAddress, GroupList),
        ca_pem: String,
        signing: SigningKey,
        store: Arc<dyn Store>,
        journal: Journal,
        cluster: Cluster,
    ) -> Self {
        Self {
            oidc: options.oidc.clone().map(Provider::new),
            tickets: Tickets::default(),
            audit: AuditLog::new(Arc::clone(&store), &options),
            options,
            url,
            ca_pem,
            peers: Peers::new(signing.public()),
            group_prefixes: GroupPrefixes::of(&signing),
            signing,
            rendezvous,
            groups,
            store,
            journal,
            metrics: Metrics::default(),
            history: History::default(),
            events: Events::default(),
            list_version: ListVersion::default(),
            task_owner: TaskOwner::default(),
            waiting: WaitingWorkers::default(),
            samples: KnownSamples::default(),
            queries: KnownQueries::default(),
            shutdown: Shutdown::default(),
            is_ending_leases: AtomicBool::new(false),
            cluster: Mutex::new(cluster),
        }
    }

    /// The options that it was started with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Its URL for clients and nodes, `https://...`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its certificate authority.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// The key that signs tokens of leases.
    pub fn signing(&self) -> &SigningKey {
        &self.signing
    }

    /// Where the ranks of groups meet.
    pub fn rendezvous(&self) -> &RendezvousAddress {
        &self.rendezvous
    }

    /// The groups that meet here.
    pub fn groups(&self) -> &GroupList {
        &self.groups
    }

    /// Prefixes of the names of tenants' groups.
    pub fn group_prefixes(&self) -> &GroupPrefixes {
        &self.group_prefixes
    }

    /// Samples of calls that nodes reported.
    pub fn samples(&self) -> &KnownSamples {
        &self.samples
    }

    /// Queries of data frames that clients reported.
    pub fn queries(&self) -> &KnownQueries {
        &self.queries
    }

    /// The durable state.
    pub fn store(&self) -> &dyn Store {
        self.store.as_ref()
    }

    /// Writes changes of leases to the store, in order.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// The audit log.
    pub fn audit(&self) -> &AuditLog {
        &self.audit
    }

    /// Counters for Prometheus.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Samples of the last hour.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Events in this process.
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// Version of the list of nodes with free resources.
    pub fn list_version(&self) -> &ListVersion {
        &self.list_version
    }

    /// The identity provider, if the site has one.
    pub fn oidc(&self) -> Option<&Provider> {
        self.oidc.as_ref()
    }

    /// Tickets that open sessions of browsers.
    pub fn tickets(&self) -> &Tickets {
        &self.tickets
    }

    /// The other managers over the same store.
    pub fn peers(&self) -> &Peers {
        &self.peers
    }

    /// The manager that owns the durable tasks.
    pub fn task_owner(&self) -> &TaskOwner {
        &self.task_owner
    }

    /// Workers that waiting requests ask for.
    pub fn waiting(&self) -> &WaitingWorkers {
        &self.waiting
    }

    /// The signal that this manager stops.
    pub fn shutdown(&self) -> &Shutdown {
        &self.shutdown
    }

    /// Locks the cluster. Do not hold the guard over an await.
    pub fn cluster(&self) -> MutexGuard<'_, Cluster> {
        // No code panics between two changes that belong together, so a poisoned lock guards a consistent cluster.
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the keys with which the managers over this store sign.
    pub fn signing_keys(&self) -> Vec<PublicKey> {
        std::iter::once(self.signing.public())
            .chain(self.peers.keys())
            .collect()
    }

    /// Publishes an event at this manager and at the others.
    pub fn publish(&self, event: Event) {
        let tenant = match &event {
            Event::Lease { lease, .. } | Event::Incident { lease, .. } => {
                self.cluster().leases().get(lease).map(|record| record.tenant)
            }
            _ => None,
        };
        if self.peers.are_possible() {
            self.store.publish(vec![PeerUpdate::Event(event.clone(), tenant)]);
        }
        self.events.publish(event, tenant);
    }

    /// Publishes the state of a lease.
    pub fn publish_lease(&self, lease: LeaseId, node: NodeId, state: LeaseState) {
        self.publish(Event::Lease { lease, node, state });
    }

    /// Queues a change of a lease on this node for the store.
    pub fn note(&self, node: NodeId, change: Change) {
        let epoch = self.cluster().nodes().epoch(node);
        self.journal.note(OwnedChange { node, epoch, change });
    }

    /// Records the end of a lease in the cluster, the store and the events. Has no effect if it had ended before.
    pub fn on_lease_ended(&self, lease: LeaseId, state: LeaseState) {
        let at_ms = now_ms();
        let Some(node) = self.cluster().end_lease(lease, state, at_ms) else {
            return;
        };
        self.metrics.ended(state.name());
        self.note(node, Change::Ended { lease, state, at_ms });
        self.publish_lease(lease, node, state);
    }

    /// Counts booked usage by tenant.
    pub fn count_usage(&self, increases: &[(TenantId, Usage)]) {
        let cluster = self.cluster();
        for (tenant, increase) in increases {
            let account = cluster.tenants().get(tenant);
            let name = account.map_or("unknown", |account| &account.record().name);
            self.metrics.used(name, *increase);
        }
    }

    /// Records that a node failed by its own fault. Suspends it if it fails repeatedly.
    pub fn on_node_failed(&self, id: NodeId, why: &str) {
        let now_ms = clock_ms(Instant::now());
        let mut cluster = self.cluster();
        let node = cluster.nodes_mut().get_mut(&id);
        let Some(suspension) = node.and_then(|node| node.record_failure(now_ms, why)) else {
            return;
        };
        drop(cluster);
        let for_ms = suspension.until_ms.saturating_sub(now_ms);
        tracing::warn!(node = %id, for_ms, why, "suspended the node: it fails repeatedly");
        self.metrics.suspended();
        self.publish(Event::NodeSuspended {
            node: id,
            for_ms,
            why: suspension.why,
        });
    }

    /// Disconnects nodes whose heartbeats are missing.
    pub fn check_heartbeats(&self, now: Instant) {
        let limit = self.options.heartbeat * MAX_MISSED_HEARTBEATS;
        let lost = self.cluster().nodes_mut().disconnect_silent(now, limit);
        for node in lost {
            tracing::warn!(%node, "lost the node: {MAX_MISSED_HEARTBEATS} heartbeats are missing");
            self.publish(Event::NodeLost { node });
            self.on_node_failed(node, "its heartbeats were missing");
        }
    }

    /// Records that the connection with this epoch ended. `has_left` is whether the node announced it.
    pub fn on_disconnected(&self, id: NodeId, epoch: u64, has_left: bool) {
        let mut cluster = self.cluster();
        let node = cluster.nodes_mut().get_mut(&id);
        if !node.is_some_and(|node| node.on_disconnected(epoch, has_left)) {
            return;
        }
        drop(cluster);
        if has_left {
            tracing::info!(node = %id, "the node left");
            self.publish(Event::NodeLeft { node: id });
        } else {
            tracing::warn!(node = %id, "lost the node: its connection broke");
            self.publish(Event::NodeLost { node: id });
            self.on_node_failed(id, "its connection broke");
        }
    }

    /// Ends what is over by the clock: leases of lost nodes, suspensions, tokens and allowances. Reads every lease, so
    /// it runs less often than [`Control::check_heartbeats`].
    pub fn sweep(self: &Arc<Self>, now: Instant, wall_ms: u64) {
        let (overdue, resumed) = {
            let mut cluster = self.cluster();
            let resumed = cluster.nodes_mut().tick(clock_ms(now));
            let overdue = cluster.overdue_leases(now, wall_ms, self.options.lease_lost_after);
            cluster.forget_expired(wall_ms, wall_ms.saturating_sub(ENDED_LEASES_KEPT_MS));
            (overdue, resumed)
        };
        for (lease, state) in overdue {
            self.on_lease_ended(lease, state);
        }
        let control = Arc::clone(self);
        // One task at a time, so that a node that does not respond is not asked again every second.
        if !control.is_ending_leases.swap(true, Ordering::AcqRel) {
            tokio::spawn(async move {
                control.end_without_token().await;
                control.is_ending_leases.store(false, Ordering::Release);
            });
        }
        for node in resumed {
            tracing::info!(%node, "the suspension ended; the node gets leases again");
            self.publish(Event::NodeUp { node });
        }
    }
}

/// Runs the periodic checks until the manager stops. Heartbeats are checked four times in their period.
pub async fn run_clock(control: Arc<Control>) {
    let mut stopping = control.shutdown.subscribe();
    let every = |period: Duration| {
        let mut ticks = time::interval(period.max(Duration::from_millis(10)));
        // A machine that was suspended has nothing to catch up with.
        ticks.set_missed_tick_behavior(time::MissedTickBehavior::Skip);
        ticks
    };
    let mut heartbeats = every(control.options.heartbeat / 4);
    let mut rooms = every(ROOM_PERIOD);
    let mut samples = every(history::SAMPLE_PERIOD);
    let mut sweeps = every(SWEEP_PERIOD.min(control.options.lease_lost_after / 4));
    loop {
        tokio::select! {
            _ = heartbeats.tick() => control.check_heartbeats(Instant::now()),
            _ = sweeps.tick() => control.sweep(Instant::now(), now_ms()),
            _ = rooms.tick() => control.update_list_version(),
            _ = samples.tick() => control.history.sample(now_ms(), &control.cluster()),
            _ = stopped(&mut stopping) => return,
        }
    }
}
