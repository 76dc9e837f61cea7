//! Requests to nodes over their connections (`impl Control`): send one, and wait for its response within a limit.

use std::time::Duration;

use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::NodeId;
use dayfly_protocol::node_messages::ManagerMessage;
use dayfly_store::LeaseRecord;
use dayfly_telemetry as telemetry;
use tokio::sync::oneshot;
use tracing::Instrument;

use crate::cluster::Reply;
use crate::control::Control;

/// A node decides from memory. One that takes longer is stuck, and the next node is asked.
const RESPONSE_LIMIT: Duration = Duration::from_secs(5);

impl Control {
    /// Sends a node a request, made from its number and the connection's epoch, and waits for the response. An offer
    /// comes with the lease that it becomes.
    pub async fn request(
        &self,
        node: NodeId,
        offer: Option<LeaseRecord>,
        message: impl FnOnce(u64, u64) -> ManagerMessage,
    ) -> Reply {
        self.request_within(RESPONSE_LIMIT, node, offer, message).await
    }

    /// Sends a request whose execution may take `extra` longer.
    pub async fn long_request(
        &self,
        node: NodeId,
        extra: Duration,
        message: impl FnOnce(u64, u64) -> ManagerMessage,
    ) -> Reply {
        self.request_within(RESPONSE_LIMIT + extra, node, None, message).await
    }

    async fn request_within(
        &self,
        limit: Duration,
        node: NodeId,
        offer: Option<LeaseRecord>,
        message: impl FnOnce(u64, u64) -> ManagerMessage,
    ) -> Reply {
        let step = telemetry::span!("ask a node", "otel.kind" = "client", "dayfly.node.id" = %node);
        let response = async {
            let sent = self.cluster().nodes_mut().request(node, offer, message);
            let sent = sent.ok_or_else(|| {
                let text = format!("node {node} is not connected; try again when it is back");
                Failure::new(Code::Unreachable, text)
            })?;
            self.wait_for(node, sent, limit).await
        };
        let response = response.instrument(step.clone()).await;
        telemetry::ended(&step, &response);
        response
    }

    async fn wait_for(
        &self,
        node: NodeId,
        (number, response): (u64, oneshot::Receiver<Reply>),
        limit: Duration,
    ) -> Reply {
        match tokio::time::timeout(limit, response).await {
            Ok(Ok(response)) => response,
            Ok(Err(_)) => Err(Failure::new(
                Code::Unreachable,
                format!("the connection of node {node} broke before it responded; try again"),
            )),
            Err(_) => {
                if let Some(node) = self.cluster().nodes_mut().get_mut(&node) {
                    node.take_request(number);
                }
                let text = format!(
                    "node {node} did not respond within {} s; look at its log",
                    limit.as_secs()
                );
                Err(Failure::new(Code::TimedOut, text))
            }
        }
    }
}
