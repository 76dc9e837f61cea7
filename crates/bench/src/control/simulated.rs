//! Simulated nodes. Each connects to a real manager over its own TLS WebSocket, accepts every lease, and runs nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dayfly_protocol::WIRE_VERSION;
use dayfly_protocol::api::{Capacity, Mode, NodeAddress};
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::ids::{NodeId, PublicKey};
use dayfly_protocol::node_messages::{ManagerMessage, NodeMessage};
use futures_util::{SinkExt, StreamExt};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

use super::https::{Site, Tls};
use crate::error::Error;

/// Resources of each node: enough for every request of a measurement.
const CAPACITY: Capacity = Capacity {
    cores: 16,
    memory_bytes: 64 << 30,
    workers: MilliCores::new(1_024_000),
    gpus: 0,
};
/// Small buffers, because there are thousands of sockets.
const SOCKET_BUFFER_BYTES: usize = 4 << 10;
/// Longest silence of a manager that still knows the node.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Counters of all simulated nodes.
#[derive(Debug, Default)]
pub struct Counts {
    /// Heartbeats sent.
    pub heartbeats: AtomicU64,
    /// Leases accepted.
    pub leases: AtomicU64,
    /// Connections that broke.
    pub broken: AtomicU64,
}

fn broken(what: &str, error: impl std::fmt::Display) -> Error {
    Error::Subject(format!("a simulated node cannot {what}: {error}"))
}

/// Registers node `number`. From then on it responds and sends heartbeats by itself.
pub async fn join(site: Arc<Site>, number: u32, token: String, counts: Arc<Counts>) -> Result<(), Error> {
    let mut request = format!("wss://{}/v1/nodes/connect", site.authority())
        .into_client_request()
        .map_err(|error| broken("name the manager", error))?;
    let bearer = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|error| broken("show its token", error))?;
    request.headers_mut().insert("authorization", bearer);
    let stream = site.connect().await?;
    let small = WebSocketConfig::default()
        .read_buffer_size(SOCKET_BUFFER_BYTES)
        .write_buffer_size(0);
    let (mut socket, _) = tokio_tungstenite::client_async_with_config(request, stream, Some(small))
        .await
        .map_err(|error| broken("connect", error))?;
    let mut id = [0; 16];
    id[..4].copy_from_slice(&number.to_be_bytes());
    let mut key = [0; 32];
    key[..4].copy_from_slice(&number.to_be_bytes());
    let registration = NodeMessage::Register {
        version: WIRE_VERSION,
        address: NodeAddress {
            id: NodeId(id),
            name: format!("simulated-{number}"),
            host: "simulated".into(),
            unix: None,
            tcp: Some("127.0.0.1:1".into()),
            key: PublicKey(key),
            fabrics: Vec::new(),
        },
        capacity: CAPACITY,
        free: CAPACITY,
        leases: Vec::new(),
        sandboxes: None,
    };
    say(&mut socket, &registration).await?;
    let pace = loop {
        match hear(&mut socket).await? {
            ManagerMessage::Registered { heartbeat_ms, .. } => break Duration::from_millis(heartbeat_ms),
            ManagerMessage::Refused(failure) => return Err(broken("register", failure)),
            _ => {}
        }
    };
    tokio::spawn(async move {
        if live(&mut socket, pace, number, &counts).await.is_err() {
            counts.broken.fetch_add(1, Ordering::Relaxed);
        }
    });
    Ok(())
}

async fn live(socket: &mut WebSocketStream<Tls>, pace: Duration, number: u32, counts: &Counts) -> Result<(), Error> {
    // Spread over a heartbeat interval, like nodes that started at different times.
    let phase = pace.mul_f64(f64::from(number % 1_000) / 1_000.0);
    let mut beats = tokio::time::interval_at(tokio::time::Instant::now() + phase, pace);
    let heartbeat = NodeMessage::Heartbeat {
        free: CAPACITY,
        clock_ms: 0,
        harvest: None,
        pools: None,
    };
    loop {
        let message = tokio::select! {
            message = hear(socket) => message?,
            _ = beats.tick() => {
                say(socket, &with_clock(&heartbeat)).await?;
                counts.heartbeats.fetch_add(1, Ordering::Relaxed);
                continue;
            }
        };
        let (request, mode) = match message {
            ManagerMessage::Offer { request, .. } => {
                counts.leases.fetch_add(1, Ordering::Relaxed);
                (request, Some(Mode::Warm))
            }
            ManagerMessage::Renew { request, .. } | ManagerMessage::End { request, .. } => (request, None),
            _ => continue,
        };
        let answer = NodeMessage::Answer {
            request,
            refused: None,
            mode,
            image: None,
            sandbox: None,
            terms: None,
        };
        say(socket, &answer).await?;
    }
}

fn with_clock(message: &NodeMessage) -> NodeMessage {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    match message {
        NodeMessage::Heartbeat { free, .. } => NodeMessage::Heartbeat {
            free: *free,
            clock_ms: now.map_or(0, |since| since.as_millis() as u64),
            harvest: None,
            pools: None,
        },
        other => other.clone(),
    }
}

async fn say(socket: &mut WebSocketStream<Tls>, message: &NodeMessage) -> Result<(), Error> {
    let text = serde_json::to_string(message).map_err(|error| broken("write a message", error))?;
    let sent = socket.send(Message::text(text)).await;
    sent.map_err(|error| broken("speak", error))
}

async fn hear(socket: &mut WebSocketStream<Tls>) -> Result<ManagerMessage, Error> {
    loop {
        let message = tokio::time::timeout(TIMEOUT, socket.next()).await;
        match message.map_err(|error| broken("hear anything", error))? {
            Some(Ok(Message::Text(text))) => {
                return serde_json::from_str(&text).map_err(|error| broken("understand", error));
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(broken("read", error)),
            None => return Err(broken("read", "the manager closed the connection")),
        }
    }
}
