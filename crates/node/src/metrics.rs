//! Prometheus metrics: `GET /metrics`, in clear, at the operator's address. They name no tenant and no lease.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use axum::Router;
use axum::extract::State as Shared;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use dayfly_protocol::api::Capacity;
use dayfly_protocol::durations::histogram;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use tokio::net::TcpListener;

use crate::NodeError;
use crate::node::{LinkState, Node};

const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Part {
    part: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TimeKind {
    what: &'static str,
}

/// Binds the address.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, NodeError> {
    TcpListener::bind(address).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => NodeError::AddressInUse(address.to_string()),
        _ => NodeError::Listen {
            address: address.to_string(),
            error,
        },
    })
}

/// Serves until the node closes.
pub async fn serve(node: Arc<Node>, listener: TcpListener) {
    if let Ok(address) = listener.local_addr() {
        tracing::info!(url = format!("http://{address}/metrics"), "metrics");
    }
    let router = Router::new().route("/metrics", get(respond)).with_state(node);
    if let Err(error) = axum::serve(listener, router).await {
        tracing::warn!(%error, "metrics are no longer served");
    }
}

async fn respond(Shared(node): Shared<Arc<Node>>) -> Response {
    match text(&node) {
        Ok(text) => ([(CONTENT_TYPE, FORMAT)], text).into_response(),
        Err(fmt::Error) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn text(node: &Node) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("dayfly_node");
    let mut gauge = |name: &str, help: &str, value: u64| {
        let gauge: Gauge = Gauge::default();
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        registry.register(name, help, gauge);
    };
    let (capacity, free) = (node.leases.capacity(), node.leases.free());
    let connected = *node.connection.borrow() == LinkState::Up;
    gauge("leases", "Leases that live", node.leases.count() as u64);
    gauge(
        "parked_executors",
        "Executors that wait for a lease",
        node.pool.parked() as u64,
    );
    gauge(
        "manager_connected",
        "Whether the manager is connected: 1 or 0",
        connected.into(),
    );
    gauge(
        "core_slots",
        "Calls of warm workers that may run at once",
        node.core_slots.count().into(),
    );
    gauge(
        "core_slots_held",
        "Calls of warm workers that run now",
        node.core_slots.holders().len() as u64,
    );
    let harvest = node.harvest.status();
    gauge(
        "harvest_calls",
        "Long calls whose use is measured now",
        harvest.calls.into(),
    );
    gauge(
        "harvest_functions",
        "Functions with a profile of their use",
        harvest.functions.into(),
    );
    let places = Family::<Part, Gauge<f64, AtomicU64>>::default();
    for (part, of) in [("all", &capacity), ("free", &free)] {
        places.get_or_create(&Part { part }).set(of.workers.as_f64());
    }
    registry.register("warm_workers", "Warm workers of one core", places);
    type Amount = fn(&Capacity) -> u64;
    let amounts: [(&str, &str, Amount); 3] = [
        ("cores", "Cores for hot workers", |c| c.cores.into()),
        ("memory_bytes", "Memory for leases", |c| c.memory_bytes),
        ("gpus", "GPUs", |c| c.gpus.into()),
    ];
    for (name, help, amount) in amounts {
        let family = Family::<Part, Gauge>::default();
        for (part, of) in [("all", &capacity), ("free", &free)] {
            let amount = i64::try_from(amount(of)).unwrap_or(i64::MAX);
            family.get_or_create(&Part { part }).set(amount);
        }
        registry.register(name, help, family);
    }
    let used = node.leases.usage();
    for (name, help, value) in [
        ("calls", "Calls since the node started", used.calls),
        ("failed_calls", "Of them, those that failed", used.failures),
        (
            "harvest_samples",
            "Calls that profiles have learnt from",
            harvest.samples,
        ),
        (
            "harvest_late_windows",
            "Measurements of calls that came too late",
            harvest.late_windows,
        ),
    ] {
        let counter: Counter = Counter::default();
        counter.inc_by(value);
        registry.register(name, help, counter);
    }
    for (name, help, unit, totals) in [
        (
            "harvest_cpu",
            "Processor time of measured calls, in seconds of one core",
            Unit::Seconds,
            harvest.core_ms,
        ),
        (
            "harvest_memory",
            "Memory of measured calls, in MiB times seconds",
            Unit::Other("mebibyte_seconds".into()),
            harvest.mib_s,
        ),
    ] {
        let scale = match unit {
            Unit::Seconds => 1e-3,
            _ => 1.0,
        };
        let family = Family::<TimeKind, Counter<f64, AtomicU64>>::default();
        for (what, amount) in [
            ("owned", totals.owned),
            ("used", totals.used),
            ("lent", totals.lent),
            ("borrowed", totals.borrowed),
        ] {
            family.get_or_create(&TimeKind { what }).inc_by(amount as f64 * scale);
        }
        registry.register_with_unit(name, help, unit, family);
    }
    let time = Family::<TimeKind, Counter<f64, AtomicU64>>::default();
    for (what, us) in [
        ("allocated", used.allocated_us),
        ("computing", used.computing_us),
        ("polling", used.polling_us),
    ] {
        time.get_or_create(&TimeKind { what }).inc_by(us as f64 * 1e-6);
    }
    registry.register_with_unit("usage", "Time of workers since the node started", Unit::Seconds, time);
    let mut text = String::new();
    encode_registry(&mut text, &registry)?;
    histogram(&mut text, "dayfly_node_call", "Time in calls", &node.leases.durations())?;
    encode_eof(&mut text)?;
    Ok(text)
}
