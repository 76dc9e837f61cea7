//! The offer of a lease to one node, and the grant that follows (`impl Control`).

use std::time::Duration;

use dayfly_lease::quota::Held;
use dayfly_lease::state::DEFAULT_GRACE_MS;
use dayfly_lease::token::Claims;
use dayfly_protocol::api::{
    Grant, LeaseRequest, LeaseState, LoanUsage, NodeAddress, Runtime, Sandbox, Usage, worker_bound,
};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::hello::{TOKEN_BYTES, Token};
use dayfly_protocol::ids::{LeaseId, NodeId, time_first};
use dayfly_protocol::node_messages::ManagerMessage;
use dayfly_store::system::{now_ms, random};
use dayfly_store::{Change, LeaseRecord, OwnedChange};
use dayfly_telemetry::traceparent;

use super::no_such_lease;
use crate::cluster::{end_message, millis};
use crate::control::Control;
use crate::principal::Principal;

impl Control {
    /// Offers a lease to one node.
    pub async fn offer(&self, node: NodeId, principal: Principal, request: &LeaseRequest) -> Result<Grant, Failure> {
        let tenant = principal.tenant;
        let granted_at_ms = now_ms();
        let lease = LeaseId(time_first(granted_at_ms, random()));
        let start_by_ms = millis(self.options().start_by);
        let wanted = Held::by_one(request.workers, request.cores_per_worker, request.memory_bytes);
        let prices = self.cluster().tenants_mut().reserve(lease, tenant, wanted)?;
        let default_sandbox = self.options().sandboxes.first().copied();
        let mut record = LeaseRecord {
            lease,
            tenant,
            node,
            holder: request.holder,
            state: LeaseState::Granted,
            workers: request.workers,
            cores_per_worker: request.cores_per_worker,
            gpus_per_worker: request.gpus_per_worker,
            mode: request.mode,
            // The node decides both when it accepts.
            sandbox: request.sandbox.or(default_sandbox).unwrap_or(Sandbox::Isolated),
            image: None,
            memory_bytes: request.memory_bytes,
            duration_ms: request.duration_ms,
            granted_at_ms,
            expires_at_ms: granted_at_ms
                .saturating_add(start_by_ms)
                .saturating_add(request.duration_ms),
            ended_at_ms: 0,
            usage: Usage::default(),
            functions: Vec::new(),
            loans: LoanUsage::default(),
            prices,
            bearer: principal.bearer,
        };
        let offer = |number, epoch| ManagerMessage::Offer {
            request: number,
            lease,
            tenant,
            spec: request.clone(),
            default_sandbox,
            epoch,
            start_by_ms,
            traceparent: traceparent(),
        };
        // Write while the node decides: neither waits for the other.
        let written = {
            let cluster = self.cluster();
            record.bearer = cluster.tokens().current(record.bearer);
            let epoch = cluster.nodes().epoch(node);
            let change = Change::Offered(Box::new(record.clone()));
            self.journal().write(OwnedChange { node, epoch, change })
        };
        let (response, written) = tokio::join!(self.request(node, Some(record), offer), written);
        if let Err(failure) = response {
            let mut cluster = self.cluster();
            cluster.tenants_mut().release_reservation(lease);
            if matches!(failure.code, Code::TimedOut | Code::Unreachable) {
                let end = |request| end_message(request, lease, LeaseState::Revoked, Duration::ZERO);
                cluster.nodes_mut().mark_uncertain(node, lease, end);
            }
            drop(cluster);
            if is_node_fault(&failure, request, default_sandbox) {
                self.on_node_failed(node, &failure.message);
            }
            // Also after a failed write: a slow one may still succeed.
            self.note(node, Change::Refused { lease });
            return Err(written.err().map_or(failure, Failure::from));
        }
        // The lease was added when the response arrived.
        let record = self.lease(lease).ok_or_else(|| no_such_lease(lease))?;
        if !record.state.is_live() {
            return Err(dayfly_lease::state::LeaseError::Ended(record.state).into());
        }
        if let Err(error) = written {
            // The node must not hold a lease that is not stored.
            self.on_lease_ended(lease, LeaseState::Revoked);
            let end = |request, _| end_message(request, lease, LeaseState::Revoked, Duration::ZERO);
            let _ = self.request(node, None, end).await;
            return Err(error.into());
        }
        if let Err(failure) = self.may_spend(tenant) {
            // The budget was spent, or the tenant was suspended, while the node decided.
            self.end(lease, LeaseState::Revoked).await?;
            return Err(failure);
        }
        self.publish_lease(lease, node, LeaseState::Granted);
        self.grant_of(&record, Vec::new())
    }

    /// Returns the grant of a lease for its holder, with a token that is valid from now on.
    pub(super) fn grant_of(&self, record: &LeaseRecord, numbers: Vec<u16>) -> Result<Grant, Failure> {
        let (address, epoch, until_ms) = {
            let cluster = self.cluster();
            let bearer = record.bearer.and_then(|hash| cluster.tokens().get(&hash));
            let until_ms = match (record.bearer, bearer) {
                (None, _) => u64::MAX,
                (_, Some(bearer)) => bearer.expires_at_ms,
                // The token was revoked a moment ago.
                _ => now_ms(),
            };
            let node = cluster.nodes().get(&record.node);
            let node = node.ok_or_else(|| no_such_lease(record.lease))?;
            (node.address().clone(), node.session_epoch().unwrap_or(0), until_ms)
        };
        let claims = Claims {
            workers: worker_bound(&numbers, record.workers),
            cores: record.cores_per_worker,
            memory_bytes: record.memory_bytes,
            sandbox: record.sandbox,
            lease: Some(record.lease),
            tenant: record.tenant,
            node: record.node,
            holder: record.holder,
            epoch,
            not_before_ms: now_ms(),
            // The node may not learn that the client's token ended.
            expires_at_ms: record.expires_at_ms.saturating_add(DEFAULT_GRACE_MS).min(until_ms),
            duration_ms: record.duration_ms,
        };
        Ok(Grant {
            numbers,
            ..grant(record, address, &claims.sign(self.signing()))
        })
    }
}

/// Whether a node refused an offer by its own fault. A tenant must not be able to get nodes suspended with an
/// interpreter or image that does not start, or with functions that kill their executor.
fn is_node_fault(failure: &Failure, request: &LeaseRequest, default_sandbox: Option<Sandbox>) -> bool {
    match failure.code {
        Code::TimedOut | Code::Internal | Code::StoreFailed => true,
        Code::ExecutorFailed => {
            request.runtime == Runtime::Native && request.sandbox.or(default_sandbox) != Some(Sandbox::Container)
        }
        _ => false,
    }
}

fn grant(record: &LeaseRecord, node: NodeAddress, token: &Token) -> Grant {
    let mut bytes = Vec::with_capacity(TOKEN_BYTES);
    bytes.extend_from_slice(token.signed_bytes());
    bytes.extend_from_slice(&token.signature);
    Grant {
        lease: record.lease,
        token: hex::encode(bytes),
        node,
        workers: record.workers,
        numbers: Vec::new(),
        mode: record.mode,
        sandbox: record.sandbox,
        image: record.image.clone(),
        memory_bytes: record.memory_bytes,
        duration_ms: record.duration_ms,
        expires_at_ms: token.expires_at_ms.get(),
        notice: None,
    }
}
