//! Nodes that operators reclaim for their owners, resize, and put into service again (`impl Control`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_protocol::api::{Event, HarvestMode, NodeResize, NodeStatus, Reclaimed};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::NodeId;
use dayfly_protocol::node_messages::ManagerMessage;
use dayfly_telemetry::traceparent;

use crate::cluster::millis;
use crate::control::Control;
use crate::leases::run_to_completion;

/// Time for a node to report that it is empty, beyond the grace for running calls.
const EMPTY_LIMIT: Duration = Duration::from_secs(20);

impl Control {
    /// Reclaims a node: it gets no lease from now on. Returns when the node is empty. A node that is not connected is
    /// reclaimed when it reconnects. Continues if the caller disconnects.
    pub async fn reclaim(self: &Arc<Self>, node: NodeId, grace: Duration) -> Result<Reclaimed, Failure> {
        let control = Arc::clone(self);
        run_to_completion(async move { control.reclaim_and_wait(node, grace).await }).await
    }

    async fn reclaim_and_wait(&self, id: NodeId, grace: Duration) -> Result<Reclaimed, Failure> {
        let message = |request| ManagerMessage::Reclaim {
            request,
            grace_ms: millis(grace),
            traceparent: traceparent(),
        };
        let sent = self.cluster().nodes_mut().reclaim(id, message);
        let sent = sent.ok_or_else(|| no_such_node(id))?;
        let stored = self.store().reclaim(id, true).wait().await;
        let Some((request, report)) = sent else {
            stored?;
            let text = format!("node {id} is not connected; it will be reclaimed when it reconnects");
            return Err(Failure::new(Code::Unreachable, text));
        };
        let report = tokio::time::timeout(grace + EMPTY_LIMIT, report).await;
        if let Some(node) = self.cluster().nodes_mut().get_mut(&id) {
            node.end_reclaim(request, None);
        }
        let node = self.node_status(id)?;
        stored?;
        match report {
            Ok(Ok(report)) => Ok(Reclaimed {
                node,
                leases: report.leases,
                empty_ms: report.duration.as_secs_f64() * 1e3,
            }),
            Ok(Err(_)) => Err(Failure::new(
                Code::Unreachable,
                format!("the connection of node {id} broke before it was empty; look at it with `dayfly status`"),
            )),
            Err(_) => Err(Failure::new(
                Code::TimedOut,
                format!("node {id} has not reported that it is empty; look at its log"),
            )),
        }
    }

    /// Puts a reclaimed or suspended node into service again.
    pub async fn resume(&self, id: NodeId) -> Result<NodeStatus, Failure> {
        let forgiven = self.cluster().nodes_mut().get_mut(&id).map(|node| node.forgive());
        let (was_reclaimed, was_suspended) = forgiven.ok_or_else(|| no_such_node(id))?;
        if was_reclaimed {
            self.store().reclaim(id, false).wait().await?;
            let resumed = self
                .request(id, None, |request, _| ManagerMessage::Resume { request })
                .await;
            if let Err(failure) = resumed
                && failure.code != Code::Unreachable
            {
                return Err(failure);
            }
            if let Some(node) = self.cluster().nodes_mut().get_mut(&id) {
                node.resume();
            }
        }
        if was_reclaimed || was_suspended {
            self.publish(Event::NodeUp { node: id });
        }
        self.node_status(id)
    }

    /// Has a node offer more or fewer resources. Returns when no lease holds more than it offers. Continues if the caller
    /// disconnects.
    pub async fn resize(
        self: &Arc<Self>,
        id: NodeId,
        change: NodeResize,
        grace: Duration,
    ) -> Result<NodeStatus, Failure> {
        let status = self.node_status(id)?;
        if change.is_empty() {
            return Ok(status);
        }
        let control = Arc::clone(self);
        run_to_completion(async move {
            let message = |request, _| ManagerMessage::Resize {
                request,
                change,
                grace_ms: millis(grace),
                traceparent: traceparent(),
            };
            control.long_request(id, grace + EMPTY_LIMIT, message).await?;
            control.node_status(id)
        })
        .await
    }

    /// Switches harvesting on a node. Returns when the node has switched; its next heartbeat reports what it can do.
    pub async fn switch_harvest(&self, id: NodeId, mode: HarvestMode) -> Result<NodeStatus, Failure> {
        if self.cluster().nodes_mut().get_mut(&id).is_none() {
            return Err(no_such_node(id));
        }
        self.request(id, None, |request, _| ManagerMessage::Harvest { request, mode })
            .await?;
        self.node_status(id)
    }

    fn node_status(&self, id: NodeId) -> Result<NodeStatus, Failure> {
        let status = self.cluster().node_status(&id, Instant::now());
        status.ok_or_else(|| no_such_node(id))
    }
}

fn no_such_node(id: NodeId) -> Failure {
    let text = format!("there is no node {id}; `dayfly status` lists the nodes");
    Failure::new(Code::NotFound, text)
}
