//! The connection to the manager. The node opens it, and reconnects without end. Leases go on without it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use dayfly_link::{self as link, Patience, Socket};
use dayfly_protocol::WIRE_VERSION;
use dayfly_protocol::api::LeaseState;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{LeaseId, PublicKey};
use dayfly_protocol::node_api::HeldLease;
use dayfly_protocol::node_messages::{ManagerMessage, NodeMessage};
use dayfly_sandbox::private;
use dayfly_telemetry as telemetry;
use futures_util::{SinkExt, StreamExt};
use tokio::sync::{mpsc, watch};
use tokio_tungstenite::tungstenite::{self, Message};
use tracing::Instrument;

use crate::leases::{Durations, Origin};
use crate::managers::Managers;
use crate::node::{Connection, Node, Wanted};
use crate::{ManagerLink, clock, trust};

/// Limit for connecting and registering.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// A manager that reads nothing for this long is stuck.
const SEND_DEADLINE: Duration = Duration::from_secs(5);
/// Path at which a manager accepts nodes.
const PATH: &str = "/v1/nodes/connect";
/// The manager waits 5 s for a response; a lease whose executor takes longer is granted without it.
const OFFER_PATIENCE: Duration = Duration::from_secs(3);
const END_PATIENCE: Duration = Duration::from_secs(4);
/// How long a reclaimed node waits until its last usage is booked before it reports that it is empty.
const BOOKED_PATIENCE: Duration = Duration::from_secs(5);
/// Longest message of a manager, in bytes.
const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// Interval at which the usage of running leases is journaled and sent.
const METERS_EVERY: Duration = Duration::from_secs(2);
/// Shortest interval between entries of ended leases. Each entry costs the manager a sync of its disk, which a burst of
/// short leases would otherwise make all others wait for.
const ENTRIES_APART: Duration = Duration::from_millis(50);
/// How long a closing node waits until its leases have ended and their usage is booked; its journal keeps the rest.
const LEAVE_DEADLINE: Duration = Duration::from_secs(8);
/// Responses in the outgoing queue.
const ANSWERS: usize = 256;

/// Why a connection to the manager ended or failed.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error("{0}")]
    Connecting(link::Error),
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
    #[error("the manager did not answer in time")]
    TimedOut,
    #[error("this node is stopping")]
    Leaving,
}

/// Stays connected until the node closes and the manager knows how its leases ended.
pub async fn serve(node: Arc<Node>, link: ManagerLink) {
    let mut closing = node.closing.subscribe();
    let mut patience = Patience::default();
    let mut managers = Managers::of(&link, &node.options.state_dir);
    loop {
        let mut registered = false;
        let lost = match session(&node, &link, &mut managers, &mut registered).await {
            Ok(never) => match never {},
            Err(lost) => lost,
        };
        node.connection.send_replace(Connection::Down(lost.to_string()));
        if *closing.borrow() {
            return;
        }
        if registered {
            patience.renew();
        }
        let manager = managers.now().manager.clone();
        if !managers.next() {
            tracing::warn!(manager, %lost, next = managers.now().manager, "not connected to the manager");
            continue;
        }
        let wait = patience.wait();
        tracing::warn!(manager, %lost, retry_ms = wait.as_millis() as u64, "not connected to the manager");
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = closed(&mut closing) => return,
        }
    }
}

async fn closed(closing: &mut watch::Receiver<bool>) {
    // An error means that the node itself is gone.
    let _ = closing.wait_for(|closing| *closing).await;
}

async fn send(socket: &mut Socket, message: &NodeMessage) -> Result<(), Lost> {
    let text = serde_json::to_string(message).map_err(|error| Lost::Violation(error.to_string()))?;
    tokio::time::timeout(SEND_DEADLINE, socket.send(Message::text(text)))
        .await
        .map_err(|_| Lost::TimedOut)?
        .map_err(Lost::from)
}

async fn receive(socket: &mut Socket) -> Result<ManagerMessage, Lost> {
    loop {
        match socket.next().await {
            Some(Ok(Message::Text(text))) => {
                return serde_json::from_str(&text).map_err(|error| Lost::Violation(error.to_string()));
            }
            Some(Ok(Message::Close(_))) | None => return Err(Lost::Closed),
            // The library responds to pings.
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error.into()),
        }
    }
}

/// Credentials to try: the stored one from an earlier join, then the join token.
fn bearers(node: &Node, link: &ManagerLink) -> Vec<String> {
    let kept = std::fs::read_to_string(node.credential_path()).ok();
    kept.map(|text| text.trim().to_string())
        .into_iter()
        .chain(link.join_token.clone())
        .filter(|bearer| !bearer.is_empty())
        .collect()
}

async fn register(
    node: &Arc<Node>,
    link: &ManagerLink,
    managers: &mut Managers,
) -> Result<(Socket, u64, Duration), Lost> {
    let mut lost = Lost::NoCredential;
    for bearer in bearers(node, link) {
        let mut socket = match link::connect(managers.now(), PATH, &bearer, MAX_MESSAGE_BYTES).await {
            Ok(socket) => socket,
            Err(link::Error::Unauthorized) => {
                lost = Lost::Unauthorized;
                continue;
            }
            Err(error) => return Err(Lost::Connecting(error)),
        };
        let mut held = node.held();
        // Unreported ends would look like losses; they are reported next.
        let untold = node.journal.untold().into_iter();
        held.extend(untold.map(|(lease, _)| HeldLease { lease, remaining_ms: 0 }));
        let hello = NodeMessage::Register {
            version: WIRE_VERSION,
            address: node.address.clone(),
            capacity: node.capacity(),
            free: node.free(),
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
                managers: told,
            } => {
                if let Some(credential) = credential {
                    private::write(&node.credential_path(), credential.as_bytes())?;
                }
                trust(node, signing_keys);
                managers.learn(told);
                return Ok((socket, epoch, Duration::from_millis(heartbeat_ms.clamp(10, 60_000))));
            }
            ManagerMessage::Refused(failure) if failure.code == Code::Unauthorized => lost = Lost::Refused(failure),
            ManagerMessage::Refused(failure) => return Err(Lost::Refused(failure)),
            other => return Err(Lost::Violation(format!("{other:?} where `registered` was due"))),
        }
    }
    Err(lost)
}

/// Replaces the manager's keys; the node's own key is always trusted.
fn trust(node: &Node, mut keys: Vec<PublicKey>) {
    keys.push(node.key.public());
    *node.trusted.write().unwrap_or_else(PoisonError::into_inner) = keys;
}

async fn session(
    node: &Arc<Node>,
    link: &ManagerLink,
    managers: &mut Managers,
    registered: &mut bool,
) -> Result<std::convert::Infallible, Lost> {
    let mut closing = node.closing.subscribe();
    let (mut socket, epoch, heartbeat) = tokio::select! {
        registered = tokio::time::timeout(CONNECT_DEADLINE, register(node, link, managers)) => {
            registered.map_err(|_| Lost::TimedOut)??
        }
        () = closed(&mut closing) => return Err(Lost::Leaving),
    };
    *registered = true;
    node.connection.send_replace(Connection::Up);
    tracing::info!(manager = managers.now().manager, epoch, "registered");
    let (answers, mut to_answer) = mpsc::channel(ANSWERS);
    let mut beats = tokio::time::interval(heartbeat);
    beats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut meters = tokio::time::interval(METERS_EVERY);
    let mut told = Told::default();
    let mut leave_by = None;
    loop {
        tokio::select! {
            message = receive(&mut socket) => match message? {
                ManagerMessage::Managers { managers: told } => managers.learn(told),
                message => on_message(node, epoch, message, &answers),
            },
            Some(answer) = to_answer.recv() => send(&mut socket, &answer).await?,
            _ = beats.tick() => {
                let beat = NodeMessage::Heartbeat { free: node.free(), clock_ms: clock::wall_ms() };
                send(&mut socket, &beat).await?;
            }
            _ = meters.tick() => {
                node.journal_usage();
                let calls = node.durations();
                if std::mem::replace(&mut told.durations, calls) != calls {
                    send(&mut socket, &NodeMessage::Durations { calls }).await?;
                }
            }
            () = node.news.notified() => {}
            () = tokio::time::sleep_until(told.next_entry), if told.entry_waits => {}
            () = closed(&mut closing), if leave_by.is_none() => {
                leave_by = Some(tokio::time::Instant::now() + LEAVE_DEADLINE);
            }
            () = tokio::time::sleep_until(leave_by.unwrap_or_else(tokio::time::Instant::now)), if leave_by.is_some() => {
                return Err(Lost::Leaving);
            }
        }
        report(node, &mut socket, &mut told).await?;
        if leave_by.is_some() && node.held().is_empty() && node.journal.entry().is_none() {
            send(&mut socket, &NodeMessage::Leaving).await?;
            let _ = tokio::time::timeout(SEND_DEADLINE, socket.close(None)).await;
            return Err(Lost::Leaving);
        }
    }
}

/// What the manager knows from this connection.
struct Told {
    started: HashSet<LeaseId>,
    active: HashSet<LeaseId>,
    /// Number of the last journal entry.
    entry: u64,
    next_entry: tokio::time::Instant,
    entry_waits: bool,
    durations: Durations,
}

impl Default for Told {
    fn default() -> Self {
        Self {
            started: HashSet::new(),
            active: HashSet::new(),
            entry: 0,
            next_entry: tokio::time::Instant::now(),
            entry_waits: false,
            durations: Durations::default(),
        }
    }
}

/// Sends what the manager does not know from this connection.
async fn report(node: &Node, socket: &mut Socket, told: &mut Told) -> Result<(), Lost> {
    report_starts(node, socket, told).await?;
    for lease in node.active_leases() {
        if told.active.insert(lease) {
            send(socket, &NodeMessage::LeaseActive { lease }).await?;
        }
    }
    let now = tokio::time::Instant::now();
    told.entry_waits = now < told.next_entry;
    if !told.entry_waits
        && let Some((sequence, usage)) = node.journal.entry()
        && sequence > told.entry
    {
        send(socket, &NodeMessage::Meters { sequence, usage }).await?;
        told.entry = sequence;
        told.next_entry = now + ENTRIES_APART;
    }
    let incidents = std::mem::take(&mut *node.incidents.lock().unwrap_or_else(PoisonError::into_inner));
    for (lease, what) in incidents {
        send(socket, &NodeMessage::Incident { lease, what }).await?;
    }
    for (lease, state) in node.journal.untold() {
        report_end(node, socket, told, lease, state).await?;
    }
    Ok(())
}

/// Reports leases that were granted under allowances. Ended ones come first, each with its end, so that consecutive
/// leases do not appear as concurrent.
async fn report_starts(node: &Node, socket: &mut Socket, told: &mut Told) -> Result<(), Lost> {
    let mut starts = node.journal.direct();
    if starts.is_empty() {
        told.started.clear();
        return Ok(());
    }
    told.started
        .retain(|told| starts.iter().any(|(lease, _)| lease == told));
    let ends: HashMap<LeaseId, LeaseState> = node.journal.untold().into_iter().collect();
    starts.sort_by_key(|(lease, start)| (!ends.contains_key(lease), start.started_at_ms));
    for (lease, start) in starts {
        if told.started.insert(lease) {
            let start = Box::new(start);
            send(socket, &NodeMessage::Started { lease, start }).await?;
            if let Some(state) = ends.get(&lease) {
                report_end(node, socket, told, lease, *state).await?;
            }
        }
    }
    Ok(())
}

async fn report_end(
    node: &Node,
    socket: &mut Socket,
    told: &mut Told,
    lease: LeaseId,
    state: LeaseState,
) -> Result<(), Lost> {
    send(socket, &NodeMessage::LeaseEnded { lease, state }).await?;
    node.journal.told(lease);
    told.active.remove(&lease);
    Ok(())
}

fn on_message(node: &Arc<Node>, epoch: u64, message: ManagerMessage, answers: &mpsc::Sender<NodeMessage>) {
    let answer = |request, refused: Option<Failure>, mode| NodeMessage::Answer {
        request,
        refused,
        mode,
        image: None,
        sandbox: None,
    };
    let answers = answers.clone();
    match message {
        ManagerMessage::Offer {
            request,
            lease,
            tenant,
            spec,
            default_sandbox,
            epoch: theirs,
            start_by_ms,
            traceparent,
        } => {
            let node = node.clone();
            let step = telemetry::span!("take a lease", "otel.kind" = "server", "dayfly.lease.id" = %lease,
                "dayfly.lease.workers" = i64::from(spec.workers), "dayfly.node.id" = %node.address.id);
            telemetry::follow(&step, traceparent.as_deref());
            node.clone().task(async move {
                let taken = async {
                    is_present(epoch, theirs)?;
                    let (origin, start_by) = (Origin::Manager(epoch), Duration::from_millis(start_by_ms));
                    let wanted = Wanted {
                        request: spec,
                        default_sandbox,
                    };
                    node.take_lease(lease, tenant, origin, wanted, start_by, OFFER_PATIENCE)
                        .await
                };
                let taken = taken.instrument(step.clone()).await;
                telemetry::ended(&step, &taken);
                drop(step);
                let said = match taken {
                    Ok(run) => NodeMessage::Answer {
                        request,
                        refused: None,
                        mode: Some(run.granted.reservation.mode),
                        image: run.image(),
                        sandbox: Some(run.sandbox()),
                    },
                    Err(failure) => answer(request, Some(failure), None),
                };
                // After a broken connection, the manager asks again which leases are held.
                let _ = answers.send(said).await;
            });
        }
        ManagerMessage::Renew {
            request,
            lease,
            duration_ms,
            traceparent,
        } => {
            let step = telemetry::span!("renew a lease", "otel.kind" = "server", "dayfly.lease.id" = %lease,
                "dayfly.node.id" = %node.address.id);
            telemetry::follow(&step, traceparent.as_deref());
            let renewed = step.in_scope(|| node.held_lease(lease).and_then(|run| run.renew(duration_ms)));
            telemetry::ended(&step, &renewed);
            let _ = answers.try_send(answer(request, renewed.err(), None));
        }
        ManagerMessage::End {
            request,
            lease,
            state,
            grace_ms,
            traceparent,
        } => {
            let step = telemetry::span!("end a lease", "otel.kind" = "server", "dayfly.lease.id" = %lease,
                "dayfly.node.id" = %node.address.id);
            telemetry::follow(&step, traceparent.as_deref());
            let node = node.clone();
            node.clone().task(async move {
                let ended = end(&node, lease, state, Duration::from_millis(grace_ms));
                let ended = ended.instrument(step.clone()).await;
                telemetry::ended(&step, &ended);
                let _ = answers.send(answer(request, ended.err(), None)).await;
            });
        }
        ManagerMessage::Reclaim {
            request,
            grace_ms,
            traceparent,
        } => {
            let step = telemetry::span!("reclaim", "otel.kind" = "server", "dayfly.node.id" = %node.address.id);
            telemetry::follow(&step, traceparent.as_deref());
            let taken = node.clone();
            let reclaim = async move {
                let begun = Instant::now();
                let leases = taken.reclaim(Duration::from_millis(grace_ms)).await as u32;
                let empty_us = begun.elapsed().as_micros() as u64;
                tracing::info!(leases, empty_us, "taken back");
                told_last_bill(&taken).await;
                let reclaimed = NodeMessage::Reclaimed {
                    request,
                    leases,
                    empty_us,
                };
                let _ = answers.send(reclaimed).await;
            };
            node.task(reclaim.instrument(step));
        }
        ManagerMessage::Resume { request } => {
            node.resume();
            let _ = answers.try_send(answer(request, None, None));
        }
        ManagerMessage::Booked { sequence } => node.journal.booked(sequence),
        ManagerMessage::Adopted { lease } => {
            node.journal.adopted(lease);
            // Its usage can be sent now.
            node.news.notify_one();
        }
        ManagerMessage::Exhausted { allowance, for_ms } => node.exhausted(allowance, for_ms),
        ManagerMessage::Refused(failure) => tracing::warn!(%failure, "the manager refused something"),
        // Handled with the list of managers.
        ManagerMessage::Managers { .. } => {}
        ManagerMessage::Registered { .. } => tracing::warn!("the manager registered this node twice"),
    }
}

/// Ends a lease, and waits until nothing of it is left.
async fn end(node: &Node, lease: LeaseId, state: LeaseState, grace: Duration) -> Result<(), Failure> {
    let run = node.held_lease(lease)?;
    let state = if state.is_live() { LeaseState::Revoked } else { state };
    match state {
        LeaseState::Revoked => run.recall(grace),
        state => run.end(state),
    }
    run.gone(grace + END_PATIENCE).await;
    if state == LeaseState::Revoked {
        told_last_bill(node).await;
    }
    Ok(())
}

/// Waits until the manager has booked the usage of ended leases, so that the requester of a reclaim sees all of it.
async fn told_last_bill(node: &Node) {
    node.news.notify_one();
    let begun = Instant::now();
    while begun.elapsed() < BOOKED_PATIENCE && (node.journal.entry().is_some() || !node.journal.untold().is_empty()) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Returns an error for a message of another epoch.
fn is_present(epoch: u64, theirs: u64) -> Result<(), Failure> {
    if theirs == epoch {
        return Ok(());
    }
    Err(Failure::new(
        Code::StaleEpoch,
        format!("the offer is of epoch {theirs} and this node is in epoch {epoch}; ask its present manager"),
    ))
}
