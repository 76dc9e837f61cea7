//! Handles the messages of the manager.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_protocol::api::LeaseState;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::LeaseId;
use dayfly_protocol::node_messages::{ManagerMessage, NodeMessage};
use dayfly_telemetry as telemetry;
use tokio::sync::mpsc;
use tracing::Instrument;

use crate::leases::Origin;
use crate::node::{Node, RequestedLease};

/// The manager waits 5 s for a response; a lease whose executor takes longer is granted without it.
const OFFER_TIMEOUT: Duration = Duration::from_secs(3);
const END_TIMEOUT: Duration = Duration::from_secs(4);
/// How long a reclaimed node waits until its last usage is booked before it reports that it is empty.
const BOOKED_TIMEOUT: Duration = Duration::from_secs(5);

/// What the node offers now.
pub fn capacity(node: &Node) -> NodeMessage {
    NodeMessage::Capacity {
        capacity: node.leases.capacity(),
        free: node.leases.free(),
        most: node.leases.full_capacity(),
    }
}

/// Handles a message of the manager in this epoch. Responses go to `responses`, now or later.
pub fn on_message(node: &Arc<Node>, epoch: u64, message: ManagerMessage, responses: &mpsc::Sender<NodeMessage>) {
    let answer = |request, refused: Option<Failure>, mode| NodeMessage::Answer {
        request,
        refused,
        mode,
        image: None,
        sandbox: None,
        terms: None,
    };
    let responses = responses.clone();
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
            node.clone().tasks.spawn(async move {
                let taken = async {
                    check_epoch(epoch, theirs)?;
                    let (origin, start_by) = (Origin::Manager(epoch), Duration::from_millis(start_by_ms));
                    let wanted = RequestedLease {
                        request: spec,
                        default_sandbox,
                    };
                    node.take_lease(lease, tenant, origin, wanted, start_by, OFFER_TIMEOUT)
                        .await
                };
                let taken = taken.instrument(step.clone()).await;
                telemetry::ended(&step, &taken);
                drop(step);
                let said = match taken {
                    Ok(lease) => NodeMessage::Answer {
                        request,
                        refused: None,
                        mode: Some(lease.terms().mode),
                        image: lease.image(),
                        sandbox: Some(lease.sandbox()),
                        terms: None,
                    },
                    Err(failure) => answer(request, Some(failure), None),
                };
                // After a broken connection, the manager asks again which leases are held.
                let _ = responses.send(said).await;
            });
        }
        ManagerMessage::Renew {
            request,
            lease,
            duration_ms,
            change,
            traceparent,
        } => {
            let step = telemetry::span!("renew a lease", "otel.kind" = "server", "dayfly.lease.id" = %lease,
                "dayfly.node.id" = %node.address.id);
            telemetry::follow(&step, traceparent.as_deref());
            let renew = || {
                node.held_lease(lease)
                    .and_then(|lease| node.renew(&lease, duration_ms, &change))
            };
            let renewed = step.in_scope(renew);
            telemetry::ended(&step, &renewed);
            let (terms, refused) = match renewed {
                Ok(terms) => (Some(Box::new(terms)), None),
                Err(failure) => (None, Some(failure)),
            };
            let said = NodeMessage::Answer {
                request,
                refused,
                mode: None,
                image: None,
                sandbox: None,
                terms,
            };
            let _ = responses.try_send(said);
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
            node.clone().tasks.spawn(async move {
                let ended = end(&node, lease, state, Duration::from_millis(grace_ms));
                let ended = ended.instrument(step.clone()).await;
                telemetry::ended(&step, &ended);
                let _ = responses.send(answer(request, ended.err(), None)).await;
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
                tracing::info!(leases, empty_us, "reclaimed");
                wait_until_booked(&taken).await;
                let reclaimed = NodeMessage::Reclaimed {
                    request,
                    leases,
                    empty_us,
                };
                let _ = responses.send(reclaimed).await;
            };
            node.tasks.spawn(reclaim.instrument(step));
        }
        ManagerMessage::Resize {
            request,
            change,
            grace_ms,
            traceparent,
        } => {
            let step = telemetry::span!("resize", "otel.kind" = "server", "dayfly.node.id" = %node.address.id);
            telemetry::follow(&step, traceparent.as_deref());
            let changed = node.clone();
            let resize = async move {
                let resized = async {
                    let offer = changed.change_offer(change)?;
                    // No lease is granted for what the node no longer offers.
                    let _ = responses.send(capacity(&changed)).await;
                    changed.end_excess(&offer, Duration::from_millis(grace_ms)).await
                };
                let resized = resized.await;
                let _ = responses.send(capacity(&changed)).await;
                let _ = responses.send(answer(request, resized.err(), None)).await;
            };
            node.tasks.spawn(resize.instrument(step));
        }
        ManagerMessage::Resume { request } => {
            node.resume();
            let _ = responses.try_send(answer(request, None, None));
        }
        ManagerMessage::Harvest { request, mode } => {
            let node = node.clone();
            node.clone().tasks.spawn(async move {
                let switched = tokio::task::spawn_blocking(move || node.harvest.switch(mode)).await;
                let refused = match switched {
                    Ok(Ok(())) => None,
                    Ok(Err(error)) => Some(Failure::new(
                        Code::Internal,
                        format!("harvesting cannot be switched: {error}"),
                    )),
                    Err(error) => Some(Failure::new(Code::Internal, error.to_string())),
                };
                let _ = responses.send(answer(request, refused, None)).await;
            });
        }
        ManagerMessage::Profiles {
            request,
            tenant,
            function,
        } => {
            let node = node.clone();
            node.clone().tasks.spawn(async move {
                let learnt = tokio::task::spawn_blocking(move || node.harvest.profiles(tenant, &function)).await;
                let profiles = learnt.unwrap_or_default();
                let _ = responses.send(NodeMessage::Profiles { request, profiles }).await;
            });
        }
        ManagerMessage::Samples {
            tenant,
            function,
            samples,
        } => node.harvest.take_samples(tenant, function, samples),
        ManagerMessage::Booked { sequence } => node.journal.booked(sequence),
        ManagerMessage::Adopted { lease } => {
            node.journal.adopted(lease);
            // Its usage can be sent now.
            node.report_due.notify_one();
        }
        ManagerMessage::Exhausted { allowance, for_ms } => node.leases.set_exhausted(allowance, for_ms),
        ManagerMessage::Refused(failure) => tracing::warn!(%failure, "the manager refused a message"),
        // Handled with the list of managers.
        ManagerMessage::Managers { .. } => {}
        ManagerMessage::Registered { .. } => tracing::warn!("the manager registered this node twice"),
    }
}

/// Ends a lease, and waits until nothing of it is left.
async fn end(node: &Node, lease: LeaseId, state: LeaseState, grace: Duration) -> Result<(), Failure> {
    let lease = node.held_lease(lease)?;
    let state = if state.is_live() { LeaseState::Revoked } else { state };
    match state {
        LeaseState::Revoked => lease.recall(grace),
        state => lease.end(state),
    }
    lease.wait_until_over(grace + END_TIMEOUT).await;
    if state == LeaseState::Revoked {
        wait_until_booked(node).await;
    }
    Ok(())
}

/// Waits until the manager has booked the usage of ended leases, so that the requester of a reclaim sees all of it.
async fn wait_until_booked(node: &Node) {
    node.report_due.notify_one();
    let begun = Instant::now();
    while begun.elapsed() < BOOKED_TIMEOUT
        && (node.journal.next_entry().is_some() || !node.journal.unreported_ends().is_empty())
    {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Returns an error for a message of another epoch.
fn check_epoch(epoch: u64, theirs: u64) -> Result<(), Failure> {
    if theirs == epoch {
        return Ok(());
    }
    Err(Failure::new(
        Code::StaleEpoch,
        format!("the offer is of epoch {theirs} and this node is in epoch {epoch}; ask its present manager"),
    ))
}
