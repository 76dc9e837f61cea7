//! Registration of a node that has just connected: its version, its identity, and the leases that it holds.

use std::collections::HashMap;
use std::time::Duration;

use axum::extract::ws::WebSocket;
use dayfly_protocol::WIRE_VERSION;
use dayfly_protocol::api::{Event, HeldTerms, LeaseState, MAX_FABRIC_NAME, MAX_FABRICS, MAX_NODE_OWNERS, NodeAddress};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{LeaseId, NodeId};
use dayfly_protocol::node_messages::{ManagerMessage, NodeMessage};
use dayfly_protocol::version::RELEASE;
use dayfly_store::system::now_ms;
use dayfly_store::{Bearer, BearerKind, NodeRegistration};
use tokio::sync::mpsc;

use super::{CloseReason, receive};
use crate::cluster::{Registration, millis};
use crate::control::{Control, ENDED_LEASES_KEPT_MS};
use crate::http::validity::ENDED;
use crate::token_registry::{TokenHash, Validity};
use crate::tokens::generate_token;

/// A node must register within this time after it has connected.
const REGISTER_LIMIT: Duration = Duration::from_secs(10);
/// Messages that may wait for a node: a burst of offers, with room.
const MAX_OUTGOING: usize = 1_024;
/// Life of a node's credential.
const A_CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// A registered node's connection.
pub(super) struct Accepted {
    pub node: NodeId,
    pub epoch: u64,
    /// Messages to the node.
    pub outgoing: mpsc::Receiver<ManagerMessage>,
    /// Ends with the node's credential.
    pub validity: Validity,
}

/// Waits for the registration and applies it.
pub(super) async fn register(
    control: &Control,
    bearer: &Bearer,
    socket: &mut WebSocket,
) -> Result<Accepted, CloseReason> {
    let first = tokio::time::timeout(REGISTER_LIMIT, receive(socket))
        .await
        .map_err(|_| CloseReason::Gone)??;
    let NodeMessage::Register {
        version,
        address,
        capacity,
        free,
        leases,
        sandboxes,
    } = first
    else {
        return Err(CloseReason::Violation("the first message must be `register`".into()));
    };
    if version != WIRE_VERSION {
        let text = format!(
            "the node has wire version {version} and this manager {WIRE_VERSION} (Dayfly {RELEASE}); install the same release on both"
        );
        return Err(CloseReason::Refused(Failure::new(Code::VersionMismatch, text)));
    }
    let id = address.id;
    let Admitted { credential, hash } = admit(control, bearer, &address).await.map_err(CloseReason::Refused)?;
    let ended = || CloseReason::Refused(Failure::new(Code::Unauthorized, ENDED));
    let validity = control.validity(&hash).ok_or_else(ended)?;
    let ended_after_ms = now_ms().saturating_sub(ENDED_LEASES_KEPT_MS);
    let registered = control
        .store()
        .register(address.clone(), capacity, ended_after_ms)
        .wait()
        .await
        .map_err(|error| CloseReason::Refused(error.into()))?;
    let NodeRegistration {
        epoch,
        booked,
        reclaimed,
        leases: inherited,
    } = registered.ok_or_else(|| CloseReason::Refused(different_key(id)))?;
    let (outgoing, receiver) = mpsc::channel(MAX_OUTGOING);
    // The first message in the queue, before any offer.
    let _ = outgoing.try_send(ManagerMessage::Registered {
        epoch,
        signing_keys: control.signing_keys(),
        heartbeat_ms: millis(control.options().heartbeat),
        credential,
        managers: control.managers(),
        keeps_samples: true,
    });
    let terms: Vec<HeldTerms> = leases
        .iter()
        .filter_map(|held| held.terms.as_deref().cloned())
        .collect();
    if !terms.iter().all(HeldTerms::are_possible) {
        return Err(CloseReason::Violation(
            "no lease can have the terms that it reports".into(),
        ));
    }
    let held = leases.iter().map(|held| (held.lease, held.remaining_ms)).collect();
    let registration = Registration {
        address,
        capacity,
        free,
        sandboxes: sandboxes.filter(|sandboxes| sandboxes.owners.len() <= MAX_NODE_OWNERS),
        epoch,
        is_reclaimed: reclaimed,
        booked,
        outgoing,
    };
    apply(control, registration, &held, &terms, inherited);
    Ok(Accepted {
        node: id,
        epoch,
        outgoing: receiver,
        validity,
    })
}

fn apply(
    control: &Control,
    registration: Registration,
    held: &HashMap<LeaseId, u64>,
    terms: &[HeldTerms],
    inherited: Option<Vec<dayfly_store::LeaseRecord>>,
) {
    let (id, epoch, free) = (registration.address.id, registration.epoch, registration.free);
    let missing = {
        let mut cluster = control.cluster();
        let missing = cluster.register_node(registration, held, inherited, now_ms());
        // Responses to renewals may have been lost with the last connection, or with the last manager.
        let notes = terms.iter().filter_map(|terms| cluster.change_lease(id, terms));
        control.journal().note_all(notes.collect());
        missing
    };
    tracing::info!(node = %id, epoch, held = held.len(), "registered the node");
    control.publish(Event::NodeUp { node: id });
    for lease in missing {
        control.on_lease_ended(lease, LeaseState::Lost);
    }
    // The node's own figure already includes what the missing leases gave back.
    if let Some(node) = control.cluster().nodes_mut().get_mut(&id) {
        node.set_free(free);
    }
}

fn different_key(id: NodeId) -> Failure {
    let text = format!("node {id} is registered with another key; start this node with a new state directory");
    Failure::new(Code::Unauthorized, text)
}

/// The credential of an admitted node.
struct Admitted {
    /// The new credential of a node that came with a join token.
    credential: Option<String>,
    /// Hash of the credential. The connection ends with it.
    hash: TokenHash,
}

/// Checks that a token permits to connect as this node. Exchanges a join token for a credential.
async fn admit(control: &Control, bearer: &Bearer, address: &NodeAddress) -> Result<Admitted, Failure> {
    let id = address.id;
    let refused = |text: String| Err(Failure::new(Code::Unauthorized, text));
    if address.fabrics.len() > MAX_FABRICS || address.fabrics.iter().any(|name| name.len() > MAX_FABRIC_NAME) {
        let text = format!("a node has at most {MAX_FABRICS} fabrics, with names of at most {MAX_FABRIC_NAME} bytes");
        return Err(Failure::new(Code::InvalidRequest, text));
    }
    if let Some(known) = control.cluster().nodes().get(&id) {
        if known.address().key != address.key {
            return Err(different_key(id));
        }
        if bearer.kind == BearerKind::Join && known.is_connected() {
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
            let (token, credential) = generate_token(BearerKind::Node, bearer.tenant, Some(id), A_CENTURY);
            let admitted = control.store().admit(bearer.hash, credential.clone(), now_ms());
            if !admitted.wait().await? {
                return refused("the join token has expired or another node used it; make a new one".into());
            }
            let hash = credential.hash;
            control.keep_bearer(credential);
            Ok(Admitted {
                credential: Some(token),
                hash,
            })
        }
        _ => refused(format!(
            "this token is not the credential of node {id}; join with a join token"
        )),
    }
}
