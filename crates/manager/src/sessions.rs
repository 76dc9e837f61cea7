//! The connections of nodes (`impl Control` for their messages): heartbeats, responses, ends of leases, and meters.

mod registration;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::ws::{Message, WebSocket};
use dayfly_protocol::api::{Event, HeldTerms, LeaseState, Metered, Mode};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{LeaseId, NodeId};
use dayfly_protocol::node_messages::{ManagerMessage, NodeMessage};
use dayfly_store::system::now_ms;
use dayfly_store::{Bearer, Change, LeaseRecord, OwnedChange};
use tokio::sync::mpsc;

use self::registration::{Accepted, register};
use crate::cluster::{Cluster, LendingReport, ReclaimReport};
use crate::control::Control;
use crate::http::validity::ENDED;
use crate::shutdown::stopped;

/// Characters of an incident's description that are passed on. A worker may have chosen them.
const MAX_INCIDENT_CHARACTERS: usize = 100;
/// A node that does not read for this long is stuck.
const SEND_LIMIT: Duration = Duration::from_secs(5);
/// Meter entries that may wait for the store. A node that sends more is disconnected, and repeats them when it is back.
const MAX_METERS: usize = 64;
/// Pause between two attempts to book an entry.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Bytes of a node's description of an image.
pub const MAX_IMAGE_BYTES: usize = 2048;

/// Why a node's connection ends.
#[derive(Debug, thiserror::Error)]
enum CloseReason {
    #[error("the connection broke")]
    Gone,
    #[error("the node was stopped")]
    Left,
    #[error("the node was refused: {0}")]
    Refused(Failure),
    #[error("the node violated the protocol: {0}")]
    Violation(String),
    #[error("the node does not read its messages")]
    Stuck,
    #[error("a new connection replaced it, or heartbeats were missing")]
    Replaced,
    #[error("the manager is stopping")]
    Stopping,
}

/// Serves a node's connection until it ends.
pub async fn serve(control: Arc<Control>, bearer: Bearer, mut socket: WebSocket) {
    let reason = match register(&control, &bearer, &mut socket).await {
        Ok(Accepted {
            node,
            epoch,
            outgoing,
            mut validity,
        }) => {
            let reason = tokio::select! {
                reason = converse(&control, node, epoch, outgoing, &mut socket) => reason,
                () = validity.ended() => CloseReason::Refused(Failure::new(Code::Unauthorized, ENDED)),
            };
            control.on_disconnected(node, epoch, matches!(reason, CloseReason::Left));
            reason
        }
        Err(reason) => reason,
    };
    if let CloseReason::Refused(failure) = &reason {
        let _ = send(&mut socket, &ManagerMessage::Refused(failure.clone())).await;
    }
    tracing::info!(%reason, "a node's connection ended");
    let _ = tokio::time::timeout(SEND_LIMIT, socket.send(Message::Close(None))).await;
}

/// A node's response to a request.
struct Response {
    request: u64,
    refused: Option<Failure>,
    mode: Option<Mode>,
    image: Option<String>,
    sandbox: Option<dayfly_protocol::api::Sandbox>,
    terms: Option<Box<HeldTerms>>,
}

impl Control {
    /// Processes a message of a node on the connection with this epoch.
    fn on_message(
        self: &Arc<Self>,
        id: NodeId,
        epoch: u64,
        message: NodeMessage,
        meters: &MeterQueue,
    ) -> Result<(), CloseReason> {
        let mut cluster = self.cluster();
        let node = cluster.nodes_mut().on_message(id, epoch, Instant::now());
        let node = node.ok_or(CloseReason::Replaced)?;
        match message {
            NodeMessage::Register { .. } => return Err(CloseReason::Violation("a second `register`".into())),
            NodeMessage::Heartbeat {
                free,
                clock_ms,
                harvest,
                pools,
            } => {
                node.on_harvest(harvest);
                let report = pools.map(|pools| LendingReport::new(Instant::now(), *pools, &node.capacity()));
                // A wrong report costs the node new leases at most: they prefer nodes that could lend.
                node.pools_mut().report(report.transpose().unwrap_or_else(|error| {
                    tracing::debug!(node = %id, %error, "what the node could lend is ignored");
                    None
                }));
                let skew_ms = clock_ms as i64 - now_ms() as i64;
                if node.on_heartbeat(free, skew_ms) {
                    tracing::warn!(node = %id, skew_ms, "the node's clock differs from the manager's; synchronise them");
                }
            }
            NodeMessage::Capacity { capacity, free, most } => {
                node.on_capacity(capacity, free, most);
                drop(cluster);
                self.publish(Event::NodeResized { node: id, capacity });
            }
            NodeMessage::Durations { calls } => cluster.on_durations(id, calls),
            NodeMessage::Answer {
                request,
                refused,
                mode,
                image,
                sandbox,
                terms,
            } => {
                if let Some(terms) = &terms {
                    self.on_terms(&mut cluster, id, terms)?;
                }
                let response = Response {
                    request,
                    refused,
                    mode,
                    image,
                    sandbox,
                    terms,
                };
                self.on_response(&mut cluster, (id, epoch), response);
            }
            NodeMessage::LeaseEnded { lease, state } => {
                if state.is_live() {
                    return Err(CloseReason::Violation(format!("`{state}` is not the end of a lease")));
                }
                let is_own = cluster.leases().get(&lease).is_some_and(|record| record.node == id);
                drop(cluster);
                if is_own {
                    self.on_lease_ended(lease, state);
                }
            }
            NodeMessage::Started { lease, start } => {
                drop(cluster);
                self.on_started(id, lease, &start);
            }
            NodeMessage::LeaseActive { lease } => {
                let Some(expires_at_ms) = cluster.activate_lease(lease, id, now_ms()) else {
                    return Ok(());
                };
                drop(cluster);
                let change = Change::Active { lease, expires_at_ms };
                self.journal().note(OwnedChange {
                    node: id,
                    epoch,
                    change,
                });
                self.publish_lease(lease, id, LeaseState::Active);
            }
            NodeMessage::Incident { lease, what } => {
                let Some(record) = cluster.leases().get(&lease).filter(|record| record.node == id) else {
                    return Ok(());
                };
                let what: String = what.chars().take(MAX_INCIDENT_CHARACTERS).collect();
                tracing::warn!(node = %id, %lease, tenant = %record.tenant, what, "a worker was refused something hostile");
                drop(cluster);
                self.metrics().incident();
                self.publish(Event::Incident { lease, node: id, what });
            }
            NodeMessage::Reclaimed {
                request,
                leases,
                empty_us,
            } => {
                let report = ReclaimReport {
                    leases,
                    duration: Duration::from_micros(empty_us),
                };
                node.end_reclaim(request, Some(report));
                drop(cluster);
                self.publish(Event::NodeReclaimed { node: id });
            }
            NodeMessage::Profiles { request, profiles } => node.on_profiles(request, profiles),
            NodeMessage::Samples {
                lease,
                function,
                samples,
            } => {
                drop(cluster);
                self.keep_samples(id, lease, function, &samples);
            }
            NodeMessage::SamplesWanted { lease, function } => {
                drop(cluster);
                self.send_samples(id, lease, function);
            }
            NodeMessage::Leaving => return Err(CloseReason::Left),
            NodeMessage::Meters { sequence, usage } => {
                drop(cluster);
                meters.0.try_send((sequence, usage)).map_err(|_| CloseReason::Stuck)?;
            }
        }
        Ok(())
    }

    /// Records what a lease holds now. In the order of the node's messages, and also if nothing waits for the response
    /// any more, so that the record is what the node last reported.
    fn on_terms(&self, cluster: &mut Cluster, node: NodeId, terms: &HeldTerms) -> Result<(), CloseReason> {
        if !terms.are_possible() {
            let text = format!("no lease can have the terms that it reports for {}", terms.lease);
            return Err(CloseReason::Violation(text));
        }
        self.journal()
            .note_all(cluster.change_lease(node, terms).into_iter().collect());
        Ok(())
    }

    /// Passes a node's response to the request that waits for it. Adds the lease of an accepted offer first.
    fn on_response(&self, cluster: &mut Cluster, (id, epoch): (NodeId, u64), response: Response) {
        let node = cluster.nodes_mut().get_mut(&id);
        let Some(pending) = node.and_then(|node| node.take_request(response.request)) else {
            return;
        };
        if let (Some(record), None) = (pending.offer, &response.refused) {
            let mode = if response.mode.unwrap_or(record.mode) == Mode::Hot {
                Mode::Hot
            } else {
                Mode::Warm
            };
            let image = response.image.filter(|image| image.len() <= MAX_IMAGE_BYTES);
            let sandbox = response.sandbox.unwrap_or(record.sandbox);
            let is_as_offered = (mode == Mode::Hot) == (record.mode == Mode::Hot);
            if !is_as_offered || image.is_some() || sandbox != record.sandbox {
                let change = Change::Taken {
                    lease: record.lease,
                    mode,
                    image: image.clone(),
                    sandbox,
                };
                self.journal().note(OwnedChange {
                    node: id,
                    epoch,
                    change,
                });
            }
            let lease = record.lease;
            let bearer = cluster.tokens().current(record.bearer);
            let is_rebound = bearer != record.bearer;
            cluster.insert_lease(LeaseRecord {
                mode,
                image,
                sandbox,
                bearer,
                ..record
            });
            if is_rebound {
                self.journal().note_all(cluster.renewal(lease).into_iter().collect());
            }
        }
        // The request may have been given up.
        let _ = pending.reply.send(response.refused.map_or(Ok(response.terms), Err));
    }
}

/// Queue to the task that books meters.
struct MeterQueue(mpsc::Sender<(u64, Vec<(LeaseId, Metered)>)>);

/// Books a node's meter entries in order. Repeats an entry that the store cannot take before it books the next one, so
/// that no later number makes it look booked.
async fn book(
    control: Arc<Control>,
    id: NodeId,
    mut queue: mpsc::Receiver<(u64, Vec<(LeaseId, Metered)>)>,
    booked: mpsc::Sender<ManagerMessage>,
) {
    while let Some((sequence, usage)) = queue.recv().await {
        let done = loop {
            match control.store().book(id, sequence, usage.clone()).wait().await {
                Ok(booked) => break booked,
                Err(error) => tracing::warn!(node = %id, %error, "cannot book usage yet; trying again"),
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        };
        let increases = control.cluster().on_booked(id, sequence, &usage);
        control.count_usage(&increases);
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
) -> CloseReason {
    let (queue, entries) = mpsc::channel(MAX_METERS);
    let (booked, mut acknowledgements) = mpsc::channel(MAX_METERS);
    let booking = tokio::spawn(book(Arc::clone(control), id, entries, booked));
    let meters = MeterQueue(queue);
    let mut stopping = control.shutdown().subscribe();
    let reason = loop {
        let result = tokio::select! {
            message = outgoing.recv() => match message {
                Some(message) => send(socket, &message).await,
                None => Err(CloseReason::Replaced),
            },
            Some(message) = acknowledgements.recv() => send(socket, &message).await,
            message = receive(socket) => message.and_then(|message| control.on_message(id, epoch, message, &meters)),
            _ = stopped(&mut stopping) => Err(CloseReason::Stopping),
        };
        if let Err(reason) = result {
            break reason;
        }
    };
    booking.abort();
    reason
}

/// Returns the next message. The WebSocket responds to pings itself. Cancel safe.
async fn receive(socket: &mut WebSocket) -> Result<NodeMessage, CloseReason> {
    loop {
        match socket.recv().await {
            Some(Ok(Message::Text(text))) => {
                return serde_json::from_str(&text).map_err(|error| CloseReason::Violation(error.to_string()));
            }
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            Some(Ok(Message::Binary(_))) => return Err(CloseReason::Violation("a binary message".into())),
            Some(Ok(Message::Close(_)) | Err(_)) | None => return Err(CloseReason::Gone),
        }
    }
}

async fn send(socket: &mut WebSocket, message: &ManagerMessage) -> Result<(), CloseReason> {
    let text = serde_json::to_string(message).map_err(|error| CloseReason::Violation(error.to_string()))?;
    match tokio::time::timeout(SEND_LIMIT, socket.send(Message::text(text))).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(CloseReason::Gone),
        Err(_) => Err(CloseReason::Stuck),
    }
}
