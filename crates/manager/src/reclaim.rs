//! Nodes given back to their owners, and given again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_protocol::api::{Event, NodeStatus, Reclaimed};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::NodeId;
use dayfly_protocol::node_messages::ManagerMessage;
use dayfly_telemetry::traceparent;
use tokio::sync::oneshot;
use tracing::Instrument;

use crate::cluster::millis;
use crate::control::Control;

/// A node that was told has this long, beyond the grace for running calls, to say that it is empty.
const EMPTY_DEADLINE: Duration = Duration::from_secs(20);

impl Control {
    /// Takes a node back for its owner. From here on it gets no lease; the answer comes when it is empty. A node that cannot
    /// be told now is told when it comes back.
    pub async fn reclaim(self: &Arc<Self>, node: NodeId, grace: Duration) -> Result<Reclaimed, Failure> {
        let control = Arc::clone(self);
        // Goes on when the caller goes away: half a reclaim helps nobody.
        let taken = tokio::spawn(async move { control.take_back(node, grace).await }.in_current_span()).await;
        taken.unwrap_or_else(|error| {
            let text = format!("taking the node back failed: {error}; report this");
            Err(Failure::new(Code::Internal, text))
        })
    }

    async fn take_back(&self, id: NodeId, grace: Duration) -> Result<Reclaimed, Failure> {
        let told = {
            let mut cluster = self.cluster();
            let request = cluster.next_request();
            let node = cluster.nodes.get_mut(&id).ok_or_else(|| no_such_node(id))?;
            node.reclaimed = true;
            let grace_ms = millis(grace);
            let sent = node.session.as_ref().is_some_and(|session| {
                let message = ManagerMessage::Reclaim {
                    request,
                    grace_ms,
                    traceparent: traceparent(),
                };
                session.outgoing.try_send(message).is_ok()
            });
            sent.then(|| {
                let (reply, empty) = oneshot::channel();
                node.reclaims.insert(request, reply);
                (request, empty)
            })
        };
        let kept = self.store.reclaim(id, true).wait().await;
        let Some((request, empty)) = told else {
            kept?;
            let text = format!("node {id} is not connected; it is taken back when it comes");
            return Err(Failure::new(Code::Unreachable, text));
        };
        let empty = tokio::time::timeout(grace + EMPTY_DEADLINE, empty).await;
        let mut cluster = self.cluster();
        let node = cluster.nodes.get_mut(&id).ok_or_else(|| no_such_node(id))?;
        node.reclaims.remove(&request);
        let node = cluster.nodes.get(&id).ok_or_else(|| no_such_node(id))?;
        let status = cluster.node_status(&id, node, Instant::now());
        drop(cluster);
        kept?;
        match empty {
            Ok(Ok(empty)) => Ok(Reclaimed {
                node: status,
                leases: empty.leases,
                empty_ms: empty.after.as_secs_f64() * 1e3,
            }),
            Ok(Err(_)) => Err(Failure::new(
                Code::Unreachable,
                format!("the connection of node {id} broke before it was empty; look at it with `dayfly status`"),
            )),
            Err(_) => Err(Failure::new(
                Code::TimedOut,
                format!("node {id} has not said that it is empty; look at its log"),
            )),
        }
    }

    /// Gives a node that was taken back, or is suspended, to leases again.
    pub async fn resume(&self, id: NodeId) -> Result<NodeStatus, Failure> {
        let (was_reclaimed, was_suspended) = {
            let mut cluster = self.cluster();
            let node = cluster.nodes.get_mut(&id).ok_or_else(|| no_such_node(id))?;
            let was_suspended = node.health.suspension().is_some();
            node.health.forgive();
            (node.reclaimed, was_suspended)
        };
        if was_reclaimed {
            self.store.reclaim(id, false).wait().await?;
            let told = self
                .ask(id, None, |request, _| ManagerMessage::Resume { request })
                .await;
            if let Err(failure) = told
                && failure.code != Code::Unreachable
            {
                return Err(failure);
            }
            if let Some(node) = self.cluster().nodes.get_mut(&id) {
                node.reclaimed = false;
                node.free = node.capacity;
            }
        }
        if was_reclaimed || was_suspended {
            self.tell(Event::NodeUp { node: id });
        }
        let cluster = self.cluster();
        let node = cluster.nodes.get(&id).ok_or_else(|| no_such_node(id))?;
        Ok(cluster.node_status(&id, node, Instant::now()))
    }
}

fn no_such_node(id: NodeId) -> Failure {
    let text = format!("there is no node {id}; `dayfly status` lists those there are");
    Failure::new(Code::NotFound, text)
}
