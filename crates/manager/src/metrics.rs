//! Metrics for Prometheus: `GET /v1/metrics`.
//!
//! Counters and latencies are recorded when events happen; gauges are read from the cluster at each request. There are
//! no metrics of single nodes or leases, which may be thousands: nodes have their own metrics, and leases have bills.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use dayfly_protocol::api::Usage;
use dayfly_protocol::durations::histogram;
use dayfly_protocol::error::Failure;
use dayfly_protocol::tasks::{TaskCounts, TaskState};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::cluster::{CapacityTotal, Cluster, Summary};

/// Content type of the response.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    method: String,
    path: String,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ended {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TenantLabel {
    tenant: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TenantTime {
    tenant: String,
    what: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InState {
    state: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Part {
    part: &'static str,
}

type Seconds = Counter<f64, AtomicU64>;

/// All counters.
pub struct Metrics {
    registry: Registry,
    grants: Family<Outcome, Counter>,
    grant_seconds: Histogram,
    started_directly: Counter,
    requests: Family<Request, Counter>,
    ended: Family<Ended, Counter>,
    suspensions: Counter,
    incidents: Counter,
    calls: Family<TenantLabel, Counter>,
    failures: Family<TenantLabel, Counter>,
    time: Family<TenantTime, Seconds>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("dayfly");
        let grants = Family::default();
        registry.register("grants", "Requests for leases, by how they ended", grants.clone());
        // From a quarter of a millisecond to eight seconds.
        let grant_seconds = Histogram::new(exponential_buckets(0.000_25, 2.0, 16));
        registry.register_with_unit(
            "grant",
            "From a request for a lease until it was granted",
            Unit::Seconds,
            grant_seconds.clone(),
        );
        let started_directly = Counter::default();
        registry.register(
            "leases_started_directly",
            "Leases that nodes granted under allowances",
            started_directly.clone(),
        );
        let requests = Family::default();
        registry.register("http_requests", "Requests answered", requests.clone());
        let ended = Family::default();
        registry.register("leases_ended", "Leases that ended, by how", ended.clone());
        let suspensions = Counter::default();
        registry.register(
            "node_suspensions",
            "Nodes that were suspended because they kept failing",
            suspensions.clone(),
        );
        let incidents = Counter::default();
        registry.register(
            "incidents",
            "Things that workers asked for and no honest function does",
            incidents.clone(),
        );
        let calls = Family::default();
        registry.register("calls", "Calls that were booked, by tenant", calls.clone());
        let failures = Family::default();
        registry.register("failed_calls", "Of them, those that failed", failures.clone());
        let time = Family::default();
        registry.register_with_unit(
            "usage",
            "Booked time of workers, by tenant: allocated, computing, polling",
            Unit::Seconds,
            time.clone(),
        );
        Self {
            registry,
            grants,
            grant_seconds,
            started_directly,
            requests,
            ended,
            suspensions,
            incidents,
            calls,
            failures,
            time,
        }
    }
}

impl Metrics {
    /// Counts a lease that a node granted under an allowance.
    pub fn started_directly(&self) {
        self.started_directly.inc();
    }

    /// Counts a request for leases that arrived at `since`.
    pub fn granted<T>(&self, since: Instant, result: &Result<T, Failure>) {
        let outcome = match result {
            Ok(_) => "granted",
            Err(failure) => failure.code.name(),
        };
        self.grants.get_or_create(&Outcome { outcome }).inc();
        if result.is_ok() {
            self.grant_seconds.observe(since.elapsed().as_secs_f64());
        }
    }

    /// Counts an HTTP request. `path` is the route, not the path itself, so that there are few labels.
    pub fn requested(&self, method: &str, path: &str, status: u16) {
        let labels = Request {
            method: method.into(),
            path: path.into(),
            status,
        };
        self.requests.get_or_create(&labels).inc();
    }

    /// Counts the end of a lease.
    pub fn ended(&self, state: &'static str) {
        self.ended.get_or_create(&Ended { state }).inc();
    }

    /// Counts the suspension of a node.
    pub fn suspended(&self) {
        self.suspensions.inc();
    }

    /// Counts a hostile request of a worker, or a false report of a node.
    pub fn incident(&self) {
        self.incidents.inc();
    }

    /// Adds booked usage of a tenant.
    pub fn used(&self, tenant: &str, more: Usage) {
        let of = TenantLabel { tenant: tenant.into() };
        self.calls.get_or_create(&of).inc_by(more.calls);
        self.failures.get_or_create(&of).inc_by(more.failures);
        for (what, us) in [
            ("allocated", more.allocated_us),
            ("computing", more.computing_us),
            ("polling", more.polling_us),
        ] {
            let of = TenantTime {
                tenant: tenant.into(),
                what,
            };
            self.time
                .get_or_create(&of)
                .inc_by(Duration::from_micros(us).as_secs_f64());
        }
    }

    /// Returns all metrics in the OpenMetrics format. `tasks` are the counts of durable tasks, if this manager owns
    /// them.
    pub fn text(
        &self,
        cluster: &Cluster,
        store_writes: bool,
        tasks: Option<&TaskCounts>,
    ) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode_registry(&mut text, &self.registry)?;
        encode_registry(&mut text, &cluster_registry(cluster, store_writes))?;
        if let Some(tasks) = tasks {
            encode_registry(&mut text, &task_registry(tasks))?;
        }
        histogram(
            &mut text,
            "dayfly_call",
            "Time in calls, on all nodes",
            cluster.durations(),
        )?;
        encode_eof(&mut text)?;
        Ok(text)
    }
}

fn task_registry(counts: &TaskCounts) -> Registry {
    let mut registry = Registry::with_prefix("dayfly");
    let states = TaskState::ALL.map(TaskState::name);
    let current = [counts.queued, counts.waiting, counts.environment, counts.running];
    let tasks = Family::<InState, Gauge>::default();
    for (state, count) in states.iter().zip(current) {
        let state = (*state).into();
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        tasks.get_or_create(&InState { state }).set(count);
    }
    registry.register("tasks", "Durable tasks that have not ended, by state", tasks);
    let ended = Family::<Outcome, Counter>::default();
    for (outcome, count) in [("well", counts.done - counts.failed), ("badly", counts.failed)] {
        ended.get_or_create(&Outcome { outcome }).inc_by(count);
    }
    registry.register("tasks_ended", "Durable tasks that ended, by how", ended);
    let times = counts.times;
    let spent = [
        times.queued_ms,
        times.waiting_ms,
        times.environment_ms,
        times.running_ms,
    ];
    let time = Family::<InState, Seconds>::default();
    for (state, ms) in states.iter().zip(spent) {
        let state = (*state).into();
        time.get_or_create(&InState { state })
            .inc_by(Duration::from_millis(ms).as_secs_f64());
    }
    registry.register_with_unit(
        "tasks_time",
        "How long durable tasks that ended were in each state",
        Unit::Seconds,
        time,
    );
    registry
}

fn cluster_registry(cluster: &Cluster, store_writes: bool) -> Registry {
    let mut registry = Registry::with_prefix("dayfly");
    let gauge = |value: u64| {
        let gauge: Gauge = Gauge::default();
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        gauge
    };
    let summary = Summary::of(cluster);
    let nodes = Family::<InState, Gauge>::default();
    for (state, count) in &summary.nodes {
        let state = (*state).into();
        nodes.get_or_create(&InState { state }).set(i64::from(*count));
    }
    registry.register("nodes", "Nodes, by state", nodes);
    let leases = Family::<InState, Gauge>::default();
    for (state, count) in &summary.leases {
        let state = (*state).into();
        leases.get_or_create(&InState { state }).set(i64::from(*count));
    }
    registry.register("leases", "Leases that live, by state", leases);
    let places = Family::<Part, Gauge<f64, AtomicU64>>::default();
    for (part, of) in [("all", &summary.capacity), ("free", &summary.free)] {
        places.get_or_create(&Part { part }).set(of.workers.as_f64());
    }
    registry.register("warm_workers", "Warm workers of one core on nodes that are up", places);
    type Amount = fn(&CapacityTotal) -> u64;
    let amounts: [(&str, &str, Amount); 2] = [
        ("cores", "Cores for hot workers on nodes that are up", |sum| sum.cores),
        ("memory_bytes", "Memory on nodes that are up", |sum| sum.memory_bytes),
    ];
    for (name, help, amount) in amounts {
        let family = Family::<Part, Gauge>::default();
        for (part, of) in [("all", &summary.capacity), ("free", &summary.free)] {
            let sum = i64::try_from(amount(of)).unwrap_or(i64::MAX);
            family.get_or_create(&Part { part }).set(sum);
        }
        registry.register(name, help, family);
    }
    let spent = Family::<TenantLabel, Gauge<f64, AtomicU64>>::default();
    for account in cluster.tenants().values() {
        let tenant = account.record().name.clone();
        spent
            .get_or_create(&TenantLabel { tenant })
            .set(account.record().spent as f64 * 1e-9);
    }
    registry.register("spent", "What tenants have spent, in the site's unit", spent);
    registry.register(
        "store_writes",
        "Whether the store can write: 1, or 0 while it cannot",
        gauge(store_writes.into()),
    );
    let version = Family::<Vec<(&str, &str)>, Gauge>::default();
    version
        .get_or_create(&vec![("version", env!("CARGO_PKG_VERSION"))])
        .set(1);
    registry.register("build", "Release of this manager", version);
    registry
}
