//! The connection to the manager. The node opens it, and reconnects without end. Leases go on without it.

mod messages;
mod report;

use std::sync::Arc;
use std::time::Duration;

use dayfly_manager_connection::{self as manager_connection, Backoff, Socket};
use dayfly_protocol::WIRE_VERSION;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::node_api::HeldLease;
use dayfly_protocol::node_messages::{ManagerMessage, NodeMessage};
use dayfly_sandbox::private_file;
use futures_util::{SinkExt, StreamExt};
use tokio::sync::{mpsc, watch};
use tokio_tungstenite::tungstenite::{self, Message};

use self::messages::on_message;
use self::report::{Reported, report};
use crate::managers::Managers;
use crate::node::{LinkState, Node};
use crate::{ManagerLink, clock, trust};

/// Limit for connecting and registering.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// A manager that reads nothing for this long is stuck.
const SEND_DEADLINE: Duration = Duration::from_secs(5);
/// Path at which a manager accepts nodes.
const PATH: &str = "/v1/nodes/connect";
/// Longest message of a manager, in bytes.
const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// Interval at which the usage of running leases is journaled and sent.
const METER_INTERVAL: Duration = Duration::from_secs(2);
/// How long a closing node waits until its leases have ended and their usage is booked; its journal keeps the rest.
const LEAVE_DEADLINE: Duration = Duration::from_secs(8);
/// Responses in the outgoing queue.
const MAX_RESPONSES: usize = 256;

/// Why a connection to the manager ended or failed.
#[derive(Debug, thiserror::Error)]
enum Disconnect {
    #[error("{0}")]
    Connecting(manager_connection::Error),
    #[error("this node has neither a credential nor a join token; make one with `dayfly manager join-token`")]
    NoCredential,
    #[error("the manager does not accept this node's credential or join token; give it a fresh join token")]
    Unauthorized,
    #[error("the manager refused this node: {0}")]
    Refused(Failure),
    #[error("the node's state cannot be written: {0}")]
    State(#[from] std::io::Error),
    #[error("the connection broke: {0}")]
    Broken(#[from] tungstenite::Error),
    #[error("the manager broke the protocol: {0}")]
    Violation(String),
    #[error("the manager closed the connection")]
    Closed,
    #[error("the manager did not respond in time")]
    TimedOut,
    #[error("this node is stopping")]
    Leaving,
}

/// Stays connected until the node closes and the manager knows how its leases ended.
pub async fn serve(node: Arc<Node>, link: ManagerLink) {
    let mut closing = node.tasks.closing();
    let mut backoff = Backoff::default();
    let mut managers = Managers::of(&link, &node.options.state_dir);
    loop {
        let mut registered = false;
        let reason = match session(&node, &link, &mut managers, &mut registered).await {
            Ok(never) => match never {},
            Err(reason) => reason,
        };
        node.connection.send_replace(LinkState::Down(reason.to_string()));
        if *closing.borrow() {
            return;
        }
        if registered {
            backoff.reset();
        }
        let manager = managers.current().manager.clone();
        if !managers.next() {
            tracing::warn!(manager, %reason, next = managers.current().manager, "not connected to the manager");
            continue;
        }
        let wait = backoff.next_wait();
        tracing::warn!(manager, %reason, retry_ms = wait.as_millis() as u64, "not connected to the manager");
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = wait_until_closing(&mut closing) => return,
        }
    }
}

async fn wait_until_closing(closing: &mut watch::Receiver<bool>) {
    // An error means that the node itself is gone.
    let _ = closing.wait_for(|closing| *closing).await;
}

async fn send(socket: &mut Socket, message: &NodeMessage) -> Result<(), Disconnect> {
    let text = serde_json::to_string(message).map_err(|error| Disconnect::Violation(error.to_string()))?;
    tokio::time::timeout(SEND_DEADLINE, socket.send(Message::text(text)))
        .await
        .map_err(|_| Disconnect::TimedOut)?
        .map_err(Disconnect::from)
}

async fn receive(socket: &mut Socket) -> Result<ManagerMessage, Disconnect> {
    loop {
        match socket.next().await {
            Some(Ok(Message::Text(text))) => {
                return serde_json::from_str(&text).map_err(|error| Disconnect::Violation(error.to_string()));
            }
            Some(Ok(Message::Close(_))) | None => return Err(Disconnect::Closed),
            // The library responds to pings.
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error.into()),
        }
    }
}

/// Credentials to try: the stored one from an earlier join, then the join token.
fn credentials(node: &Node, link: &ManagerLink) -> Vec<String> {
    let kept = std::fs::read_to_string(node.credential_path()).ok();
    kept.map(|text| text.trim().to_string())
        .into_iter()
        .chain(link.join_token.clone())
        .filter(|bearer| !bearer.is_empty())
        .collect()
}

/// A connection on which the node is registered.
struct Registered {
    socket: Socket,
    epoch: u64,
    /// Interval between heartbeats.
    heartbeat: Duration,
    /// Whether the manager keeps samples of calls.
    keeps_samples: bool,
}

async fn register(node: &Arc<Node>, link: &ManagerLink, managers: &mut Managers) -> Result<Registered, Disconnect> {
    let mut reason = Disconnect::NoCredential;
    for bearer in credentials(node, link) {
        let mut socket = match manager_connection::connect(managers.current(), PATH, &bearer, MAX_MESSAGE_BYTES).await {
            Ok(socket) => socket,
            Err(manager_connection::Error::Unauthorized) => {
                reason = Disconnect::Unauthorized;
                continue;
            }
            Err(error) => return Err(Disconnect::Connecting(error)),
        };
        let mut held = node.held();
        // Unreported ends would look like losses; they are reported next.
        let unreported = node.journal.unreported_ends().into_iter();
        held.extend(unreported.map(|(lease, _)| HeldLease {
            lease,
            remaining_ms: 0,
            terms: None,
        }));
        let hello = NodeMessage::Register {
            version: WIRE_VERSION,
            address: node.address.clone(),
            capacity: node.leases.capacity(),
            free: node.leases.free(),
            leases: held,
            sandboxes: Some(trust::sandboxes(&node.options)),
        };
        send(&mut socket, &hello).await?;
        match receive(&mut socket).await? {
            ManagerMessage::Registered {
                epoch,
                signing_keys,
                heartbeat_ms,
                credential,
                managers: reported,
                keeps_samples,
            } => {
                if let Some(credential) = credential {
                    private_file::write(&node.credential_path(), credential.as_bytes())?;
                }
                node.trusted.set_manager_keys(signing_keys);
                managers.update(reported);
                return Ok(Registered {
                    socket,
                    epoch,
                    heartbeat: Duration::from_millis(heartbeat_ms.clamp(10, 60_000)),
                    keeps_samples,
                });
            }
            ManagerMessage::Refused(failure) if failure.code == Code::Unauthorized => {
                reason = Disconnect::Refused(failure)
            }
            ManagerMessage::Refused(failure) => return Err(Disconnect::Refused(failure)),
            other => return Err(Disconnect::Violation(format!("{other:?} where `registered` was due"))),
        }
    }
    Err(reason)
}

async fn session(
    node: &Arc<Node>,
    link: &ManagerLink,
    managers: &mut Managers,
    registered: &mut bool,
) -> Result<std::convert::Infallible, Disconnect> {
    let mut closing = node.tasks.closing();
    let Registered {
        mut socket,
        epoch,
        heartbeat,
        keeps_samples,
    } = tokio::select! {
        registered = tokio::time::timeout(CONNECT_DEADLINE, register(node, link, managers)) => {
            registered.map_err(|_| Disconnect::TimedOut)??
        }
        () = wait_until_closing(&mut closing) => return Err(Disconnect::Leaving),
    };
    *registered = true;
    node.connection.send_replace(LinkState::Up);
    tracing::info!(manager = managers.current().manager, epoch, "registered");
    if node.leases.capacity() != node.leases.full_capacity() {
        send(&mut socket, &messages::capacity(node)).await?;
    }
    let (responses, mut to_send) = mpsc::channel(MAX_RESPONSES);
    let mut heartbeats = tokio::time::interval(heartbeat);
    heartbeats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut meters = tokio::time::interval(METER_INTERVAL);
    let mut reported = Reported::default();
    let mut leave_by = None;
    loop {
        tokio::select! {
            message = receive(&mut socket) => match message? {
                ManagerMessage::Managers { managers: reported } => managers.update(reported),
                message => on_message(node, epoch, message, &responses),
            },
            Some(answer) = to_send.recv() => send(&mut socket, &answer).await?,
            _ = heartbeats.tick() => {
                let beat = NodeMessage::Heartbeat {
                    free: node.leases.free(),
                    clock_ms: clock::wall_ms(),
                    harvest: node.harvest.status_unless_off().map(Box::new),
                    pools: node.harvest.pools().map(Box::new),
                };
                send(&mut socket, &beat).await?;
                if keeps_samples {
                    for message in node.harvest.sample_messages() {
                        send(&mut socket, &message).await?;
                    }
                }
            }
            _ = meters.tick() => {
                node.journal_usage();
                let calls = node.leases.durations();
                if std::mem::replace(&mut reported.durations, calls) != calls {
                    send(&mut socket, &NodeMessage::Durations { calls }).await?;
                }
            }
            () = node.report_due.notified() => {}
            () = tokio::time::sleep_until(reported.next_entry), if reported.entry_waits => {}
            () = wait_until_closing(&mut closing), if leave_by.is_none() => {
                leave_by = Some(tokio::time::Instant::now() + LEAVE_DEADLINE);
            }
            () = tokio::time::sleep_until(leave_by.unwrap_or_else(tokio::time::Instant::now)), if leave_by.is_some() => {
                return Err(Disconnect::Leaving);
            }
        }
        report(node, &mut socket, &mut reported).await?;
        if leave_by.is_some() && node.held().is_empty() && node.journal.next_entry().is_none() {
            send(&mut socket, &NodeMessage::Leaving).await?;
            let _ = tokio::time::timeout(SEND_DEADLINE, socket.close(None)).await;
            return Err(Disconnect::Leaving);
        }
    }
}
