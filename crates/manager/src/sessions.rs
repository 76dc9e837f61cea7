//! The connection that each node holds open: registration, heartbeats, answers, ends, meters.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::ws::{Message, WebSocket};
use dayfly_protocol::WIRE_VERSION;
use dayfly_protocol::api::{
    Capacity, Event, LeaseState, MAX_FABRIC_NAME, MAX_FABRICS, MAX_NODE_OWNERS, Metered, Mode, NodeAddress,
    NodeSandboxes,
};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{LeaseId, NodeId};
use dayfly_protocol::node_api::HeldLease;
use dayfly_protocol::node_messages::{ManagerMessage, NodeMessage};
use dayfly_protocol::version::RELEASE;
use dayfly_store::system::now_ms;
use dayfly_store::{Bearer, BearerKind, Change, LeaseRecord, NodeRegistration, OwnedChange};
use tokio::sync::mpsc;

use crate::cluster::{Empty, Node, Session, Waiting, millis};
use crate::control::{Control, SHOWN_MS, fresh_bearer, stopped};
use crate::http::validity::ENDED;
use crate::leases::end_message;
use crate::token_registry::Validity;

/// Of what a node says that a worker asked for, so much is passed on.
const MAX_INCIDENT_CHARACTERS: usize = 100;
/// A node has this long to say who it is.
const REGISTER_DEADLINE: Duration = Duration::from_secs(10);
/// A node that does not read for this long is stuck.
const SEND_DEADLINE: Duration = Duration::from_secs(5);
/// Messages that may wait for a node: a burst of offers, with room.
const OUTGOING: usize = 1_024;
/// Meter entries that may wait for the store. A node that has more is cut off, and repeats them when it comes back.
const METERS: usize = 64;
/// Between two attempts to book.
const RETRY: Duration = Duration::from_millis(500);
/// No node says more of an image.
pub const MAX_IMAGE_BYTES: usize = 2048;
/// From here on, clocks are worth a word in the log: a tenth of what tokens tolerate.
const NOTABLE_SKEW_MS: i64 = 6_000;

/// Why a node's connection ends.
#[derive(Debug, thiserror::Error)]
enum Over {
    #[error("it went away")]
    Gone,
    #[error("it was stopped")]
    Left,
    #[error("it was refused: {0}")]
    Refused(Failure),
    #[error("it broke the protocol: {0}")]
    Violation(String),
    #[error("it does not read what it is sent")]
    Stuck,
    #[error("its place was taken by a new connection, or its heartbeats stopped")]
    Replaced,
    #[error("the manager is stopping")]
    Stopping,
}

struct Registration {
    address: NodeAddress,
    capacity: Capacity,
    free: Capacity,
    leases: Vec<HeldLease>,
    sandboxes: Option<NodeSandboxes>,
}

/// Serves one node's connection to its end.
pub async fn serve(control: Arc<Control>, bearer: Bearer, mut socket: WebSocket) {
    let over = match register(&control, &bearer, &mut socket).await {
        Ok((node, epoch, outgoing, mut validity)) => {
            let over = tokio::select! {
                over = converse(&control, node, epoch, outgoing, &mut socket) => over,
                () = validity.ended() => Over::Refused(Failure::new(Code::Unauthorized, ENDED)),
            };
            control.on_disconnected(node, epoch, matches!(over, Over::Left));
            over
        }
        Err(over) => over,
    };
    if let Over::Refused(failure) = &over {
        let _ = send(&mut socket, &ManagerMessage::Refused(failure.clone())).await;
    }
    tracing::info!(%over, "a node's connection ended");
    let _ = tokio::time::timeout(SEND_DEADLINE, socket.send(Message::Close(None))).await;
}

async fn register(
    control: &Arc<Control>,
    bearer: &Bearer,
    socket: &mut WebSocket,
) -> Result<(NodeId, u64, mpsc::Receiver<ManagerMessage>, Validity), Over> {
    let first = tokio::time::timeout(REGISTER_DEADLINE, receive(socket))
        .await
        .map_err(|_| Over::Gone)??;
    let NodeMessage::Register {
        version,
        address,
        capacity,
        free,
        leases,
        sandboxes,
    } = first
    else {
        return Err(Over::Violation("the first message must be `register`".into()));
    };
    if version != WIRE_VERSION {
        let text = format!(
            "the node speaks wire version {version} and this manager {WIRE_VERSION} (Dayfly {RELEASE}); install the same release on both"
        );
        return Err(Over::Refused(Failure::new(Code::VersionMismatch, text)));
    }
    let id = address.id;
    let Admitted { credential, hash } = admit(control, bearer, &address).await.map_err(Over::Refused)?;
    let ended = || Over::Refused(Failure::new(Code::Unauthorized, ENDED));
    let validity = control.validity(&hash).ok_or_else(ended)?;
    let shown_after_ms = now_ms().saturating_sub(SHOWN_MS);
    let registered = control
        .store
        .register(address.clone(), capacity, shown_after_ms)
        .wait()
        .await
        .map_err(|error| Over::Refused(error.into()))?;
    let registered = registered.ok_or_else(|| Over::Refused(other_key(id)))?;
    let epoch = registered.epoch;
    let (outgoing, receiver) = mpsc::channel(OUTGOING);
    // First in the queue, before any offer can be.
    let _ = outgoing.try_send(ManagerMessage::Registered {
        epoch,
        signing_keys: control.signing_keys(),
        heartbeat_ms: millis(control.options.heartbeat),
        credential,
        managers: control.managers(),
    });
    control.on_registered(
        Registration {
            address,
            capacity,
            free,
            leases,
            sandboxes: sandboxes.filter(|sandboxes| sandboxes.owners.len() <= MAX_NODE_OWNERS),
        },
        registered,
        outgoing,
    );
    Ok((id, epoch, receiver, validity))
}

fn other_key(id: NodeId) -> Failure {
    let text = format!("node {id} is known with another key; start this one with a fresh state directory");
    Failure::new(Code::Unauthorized, text)
}

/// A bearer that may be a node.
struct Admitted {
    /// The node's new credential, if it came with a join token.
    credential: Option<String>,
    /// SHA-256 of the credential, new or not: the node's connection ends with it.
    hash: [u8; 32],
}

/// Whether this bearer may be this node; a join token is exchanged for a credential.
async fn admit(control: &Control, bearer: &Bearer, address: &NodeAddress) -> Result<Admitted, Failure> {
    let id = address.id;
    let refused = |text: String| Err(Failure::new(Code::Unauthorized, text));
    if address.fabrics.len() > MAX_FABRICS || address.fabrics.iter().any(|name| name.len() > MAX_FABRIC_NAME) {
        let text = format!("a node is on at most {MAX_FABRICS} fabrics, with names of at most {MAX_FABRIC_NAME} bytes");
        return Err(Failure::new(Code::InvalidRequest, text));
    }
    if let Some(known) = control.cluster().nodes.get(&id) {
        if known.address.key != address.key {
            return Err(other_key(id));
        }
        if bearer.kind == BearerKind::Join && known.session.is_some() {
            return refused(format!(
                "node {id} is connected already; stop the other one, or use its credential"
            ));
        }
    }
    match bearer.kind {
        BearerKind::Node if bearer.node == Some(id) => Ok(Admitted {
            credential: None,
            hash: bearer.hash,
        }),
        BearerKind::Join => {
            let a_century = Duration::from_secs(100 * 365 * 24 * 3600);
            let (token, credential) = fresh_bearer(BearerKind::Node, bearer.tenant, Some(id), a_century);
            if !control
                .store
                .admit(bearer.hash, credential.clone(), now_ms())
                .wait()
                .await?
            {
                return refused("the join token has expired or was used by another node; make a new one".into());
            }
            let hash = credential.hash;
            control.keep_bearer(credential);
            Ok(Admitted {
                credential: Some(token),
                hash,
            })
        }
        _ => refused(format!("this credential is not node {id}'s; join with a join token")),
    }
}

impl Control {
    fn on_registered(
        &self,
        registration: Registration,
        registered: NodeRegistration,
        outgoing: mpsc::Sender<ManagerMessage>,
    ) {
        let Registration {
            address,
            capacity,
            free,
            leases,
            sandboxes,
        } = registration;
        let id = address.id;
        let NodeRegistration {
            epoch,
            booked,
            reclaimed,
            leases: inherited,
        } = registered;
        let held: HashMap<LeaseId, u64> = leases.iter().map(|held| (held.lease, held.remaining_ms)).collect();
        let mut missing = Vec::new();
        {
            let mut guard = self.cluster();
            let cluster = &mut *guard;
            let mut known_booked = None;
            match inherited {
                Some(inherited) => cluster.inherit(id, inherited),
                // What the leases here show may lag behind the store.
                None => known_booked = cluster.nodes.get(&id).map(|node| node.booked),
            }
            let booked = known_booked.unwrap_or(booked);
            let allowances = &cluster.allowances;
            let known = cluster.nodes.get_mut(&id);
            if reclaimed {
                // It may have been away when it was told, or have started anew since.
                let again = ManagerMessage::Reclaim {
                    request: 0,
                    grace_ms: 0,
                    traceparent: None,
                };
                let _ = outgoing.try_send(again);
            }
            for message in allowances.exhausted(now_ms()) {
                let _ = outgoing.try_send(message);
            }
            let durations = known.as_ref().map(|node| node.durations).unwrap_or_default();
            let (doubtful, health) = known
                .map(|node| (std::mem::take(&mut node.doubtful), std::mem::take(&mut node.health)))
                .unwrap_or_default();
            for (lease, remaining_ms) in &held {
                match cluster.leases.get_mut(lease) {
                    Some(record) if record.node == id && record.state.is_live() => {
                        record.expires_at_ms = now_ms().saturating_add(*remaining_ms);
                    }
                    // It ended while the node was away, or its answer never came: the node is to let go.
                    Some(record) if record.node == id => {
                        let _ = outgoing.try_send(end_message(0, *lease, record.state, Duration::ZERO));
                    }
                    _ if doubtful.contains(lease) => {
                        let _ = outgoing.try_send(end_message(0, *lease, LeaseState::Revoked, Duration::ZERO));
                    }
                    // A lease that the node granted by itself is its own affair.
                    _ => {}
                }
            }
            for record in cluster.leases.values() {
                if record.node == id && record.state.is_live() && !held.contains_key(&record.lease) {
                    missing.push(record.lease);
                }
            }
            let session = Session {
                epoch,
                outgoing,
                waiting: HashMap::new(),
            };
            cluster.put(
                id,
                Node {
                    address,
                    capacity,
                    epoch,
                    manager: None,
                    free,
                    session: Some(session),
                    left: false,
                    reclaimed,
                    health,
                    durations,
                    reclaims: HashMap::new(),
                    heard: Instant::now(),
                    booked,
                    skew_ms: 0,
                    doubtful: HashSet::new(),
                    sandboxes,
                },
            );
        }
        tracing::info!(node = %id, epoch, held = held.len(), "registered");
        self.tell(Event::NodeUp { node: id });
        for lease in missing {
            self.on_lease_ended(lease, LeaseState::Lost);
        }
        // What the node says is free already counts what it no longer holds.
        if let Some(node) = self.cluster().nodes.get_mut(&id) {
            node.free = free;
        }
    }

    /// One message of a registered node. An answer is whatever must be told to it.
    fn on_message(self: &Arc<Self>, id: NodeId, epoch: u64, message: NodeMessage, meters: &Meters) -> Result<(), Over> {
        let mut cluster = self.cluster();
        let node = cluster.nodes.get_mut(&id).ok_or(Over::Replaced)?;
        let session = node
            .session
            .as_mut()
            .filter(|session| session.epoch == epoch)
            .ok_or(Over::Replaced)?;
        node.heard = Instant::now();
        match message {
            NodeMessage::Register { .. } => return Err(Over::Violation("a second `register`".into())),
            NodeMessage::Heartbeat { free, clock_ms } => {
                node.free = free;
                let skew_ms = clock_ms as i64 - now_ms() as i64;
                if skew_ms.abs() > NOTABLE_SKEW_MS && node.skew_ms.abs() <= NOTABLE_SKEW_MS {
                    tracing::warn!(node = %id, skew_ms, "its clock differs from the manager's; set them alike");
                }
                node.skew_ms = skew_ms;
            }
            NodeMessage::Durations { calls } => {
                // One that started anew counts from nothing again.
                let anew = calls.iter().zip(&node.durations).any(|(now, before)| now < before);
                let before = if anew { Default::default() } else { node.durations };
                node.durations = calls;
                for (sum, (now, before)) in cluster.durations.iter_mut().zip(calls.iter().zip(before)) {
                    *sum = sum.saturating_add(now - before);
                }
            }
            NodeMessage::Answer {
                request,
                refused,
                mode,
                image,
                sandbox,
            } => {
                let Some(Waiting { offer, reply }) = session.waiting.remove(&request) else {
                    return Ok(());
                };
                if let (Some(record), None) = (offer, &refused) {
                    let mode = if mode.unwrap_or(record.mode) == Mode::Hot {
                        Mode::Hot
                    } else {
                        Mode::Warm
                    };
                    let image = image.filter(|image| image.len() <= MAX_IMAGE_BYTES);
                    let sandbox = sandbox.unwrap_or(record.sandbox);
                    let is_hot_as_asked = (mode == Mode::Hot) == (record.mode == Mode::Hot);
                    if !is_hot_as_asked || image.is_some() || sandbox != record.sandbox {
                        let change = Change::Taken {
                            lease: record.lease,
                            mode,
                            image: image.clone(),
                            sandbox,
                        };
                        self.journal.note(OwnedChange {
                            node: id,
                            epoch,
                            change,
                        });
                    }
                    let lease = record.lease;
                    let bearer = cluster.current(record.bearer);
                    let is_rebound = bearer != record.bearer;
                    cluster.insert(LeaseRecord {
                        mode,
                        image,
                        sandbox,
                        bearer,
                        ..record
                    });
                    if is_rebound {
                        self.journal.note_all(cluster.renewal(lease).into_iter().collect());
                    }
                }
                // Whoever asked may have stopped waiting.
                let _ = reply.send(refused.map_or(Ok(()), Err));
            }
            NodeMessage::LeaseEnded { lease, state } => {
                if state.is_live() {
                    return Err(Over::Violation(format!("no lease ends as `{state}`")));
                }
                let own = cluster.leases.get(&lease).is_some_and(|record| record.node == id);
                drop(cluster);
                if own {
                    self.on_lease_ended(lease, state);
                }
            }
            NodeMessage::Started { lease, start } => {
                drop(cluster);
                self.on_started(id, lease, &start);
            }
            NodeMessage::LeaseActive { lease } => {
                let record = cluster.leases.get_mut(&lease).filter(|record| record.node == id);
                let Some(record) = record.filter(|record| record.state == LeaseState::Granted) else {
                    return Ok(());
                };
                record.state = LeaseState::Active;
                record.expires_at_ms = now_ms().saturating_add(record.duration_ms);
                let expires_at_ms = record.expires_at_ms;
                drop(cluster);
                let change = Change::Active { lease, expires_at_ms };
                self.journal.note(OwnedChange {
                    node: id,
                    epoch,
                    change,
                });
                self.tell(Event::Lease {
                    lease,
                    node: id,
                    state: LeaseState::Active,
                });
            }
            NodeMessage::Incident { lease, what } => {
                let Some(record) = cluster.leases.get(&lease).filter(|record| record.node == id) else {
                    return Ok(());
                };
                let what: String = what.chars().take(MAX_INCIDENT_CHARACTERS).collect();
                tracing::warn!(node = %id, %lease, tenant = %record.tenant, what, "a worker was refused something hostile");
                drop(cluster);
                self.metrics.incident();
                self.tell(Event::Incident { lease, node: id, what });
            }
            NodeMessage::Reclaimed {
                request,
                leases,
                empty_us,
            } => {
                let empty = Empty {
                    leases,
                    after: Duration::from_micros(empty_us),
                };
                if let Some(reply) = node.reclaims.remove(&request) {
                    // Whoever asked may have stopped waiting.
                    let _ = reply.send(empty);
                }
                drop(cluster);
                self.tell(Event::NodeReclaimed { node: id });
            }
            NodeMessage::Leaving => return Err(Over::Left),
            NodeMessage::Meters { sequence, usage } => {
                drop(cluster);
                meters.queue.try_send((sequence, usage)).map_err(|_| Over::Stuck)?;
            }
        }
        Ok(())
    }
}

/// The way to the task that books.
struct Meters {
    queue: mpsc::Sender<(u64, Vec<(LeaseId, Metered)>)>,
}

/// Books a node's entries one after another. An entry that the store cannot take is tried again before the next, so
/// that no later number can make it look as if it had been booked.
async fn book(
    control: Arc<Control>,
    id: NodeId,
    mut queue: mpsc::Receiver<(u64, Vec<(LeaseId, Metered)>)>,
    booked: mpsc::Sender<ManagerMessage>,
) {
    while let Some((sequence, usage)) = queue.recv().await {
        let done = loop {
            match control.store.book(id, sequence, usage.clone()).wait().await {
                Ok(booked) => break booked,
                Err(error) => tracing::warn!(node = %id, %error, "usage is not booked yet"),
            }
            tokio::time::sleep(RETRY).await;
        };
        let more = control.cluster().on_booked(id, sequence, &usage);
        control.on_used(&more);
        control.on_charged(&done.spent);
        let last = done.sequence;
        if booked.send(ManagerMessage::Booked { sequence: last }).await.is_err() {
            return;
        }
    }
}

async fn converse(
    control: &Arc<Control>,
    id: NodeId,
    epoch: u64,
    mut outgoing: mpsc::Receiver<ManagerMessage>,
    socket: &mut WebSocket,
) -> Over {
    let (queue, entries) = mpsc::channel(METERS);
    let (booked, mut acknowledgements) = mpsc::channel(METERS);
    let booking = tokio::spawn(book(Arc::clone(control), id, entries, booked));
    let meters = Meters { queue };
    let mut stopping = control.stopping.subscribe();
    let over = loop {
        let result = tokio::select! {
            message = outgoing.recv() => match message {
                Some(message) => send(socket, &message).await,
                None => Err(Over::Replaced),
            },
            Some(message) = acknowledgements.recv() => send(socket, &message).await,
            message = receive(socket) => message.and_then(|message| control.on_message(id, epoch, message, &meters)),
            _ = stopped(&mut stopping) => Err(Over::Stopping),
        };
        if let Err(over) = result {
            break over;
        }
    };
    booking.abort();
    over
}

/// The next message; pings are answered underneath. Safe to give up and call again.
async fn receive(socket: &mut WebSocket) -> Result<NodeMessage, Over> {
    loop {
        match socket.recv().await {
            Some(Ok(Message::Text(text))) => {
                return serde_json::from_str(&text).map_err(|error| Over::Violation(error.to_string()));
            }
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            Some(Ok(Message::Binary(_))) => return Err(Over::Violation("a binary message".into())),
            Some(Ok(Message::Close(_)) | Err(_)) | None => return Err(Over::Gone),
        }
    }
}

async fn send(socket: &mut WebSocket, message: &ManagerMessage) -> Result<(), Over> {
    let text = serde_json::to_string(message).map_err(|error| Over::Violation(error.to_string()))?;
    match tokio::time::timeout(SEND_DEADLINE, socket.send(Message::text(text))).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(Over::Gone),
        Err(_) => Err(Over::Stuck),
    }
}
