//! Gangs (`impl Control`): leases on several nodes at once, all of them or none.

use std::collections::HashSet;
use std::sync::Arc;

use dayfly_lease::gang::{Part, divide};
use dayfly_lease::placement::{PlacementError, View};
use dayfly_protocol::api::{GangRequest, Grant, LeaseRequest, LeaseState, Placement};
use dayfly_protocol::error::Failure;
use dayfly_store::system::random;
use futures_util::future::join_all;

use crate::control::Control;
use crate::forwarding::ClientAuthorization;
use crate::leases::{CapacityWait, is_final, run_to_completion, with_share};
use crate::principal::{Principal, with_notice};

/// Attempts to divide a gang among nodes, each without the nodes that refused before.
const MAX_ROUNDS: usize = 6;

impl Control {
    /// Grants all leases of a gang, in the order of its ranks. Continues if the caller disconnects, so that no node
    /// holds a lease that is not recorded.
    pub async fn grant_gang(
        self: &Arc<Self>,
        principal: Principal,
        request: GangRequest,
        client: Option<ClientAuthorization>,
    ) -> Result<Vec<Grant>, Failure> {
        let control = Arc::clone(self);
        run_to_completion(async move {
            let mut wait = control.capacity_wait(&request.lease);
            let once = GangRequest {
                lease: request.lease.without_wait(),
                placement: request.placement,
                among: request.among.clone(),
            };
            loop {
                let placed = control.place_gang(principal, &request, &mut wait).await;
                let placed = control
                    .or_at_peers(placed, client.as_ref(), "/v1/gangs", &once, &request.lease)
                    .await;
                match placed {
                    Err(failure) if wait.may_retry(&failure).await => {}
                    placed => {
                        let asked_ms = request.lease.duration_ms;
                        let noted = |grant| with_notice(grant, asked_ms);
                        return placed.map(|grants| grants.into_iter().map(noted).collect());
                    }
                }
            }
        })
        .await
    }

    async fn place_gang(
        &self,
        principal: Principal,
        request: &GangRequest,
        wait: &mut CapacityWait,
    ) -> Result<Vec<Grant>, Failure> {
        let mut lease = request.lease.clone();
        self.complete(&principal, &mut lease)?;
        let mut refusing = HashSet::new();
        let mut refusal = None;
        for _ in 0..MAX_ROUNDS {
            let views: Vec<View> = self
                .cluster()
                .nodes()
                .views(lease.node, None)
                .into_iter()
                .filter(|view| request.among.is_empty() || request.among.contains(&view.node))
                .filter(|view| !refusing.contains(&view.node))
                .collect();
            let fabrics = match request.placement {
                Placement::Fabric => self.cluster().nodes().fabrics(),
                _ => Vec::new(),
            };
            let spin = u64::from_le_bytes(random());
            let parts = match divide(&lease, request.placement, &views, &fabrics, spin) {
                Ok(parts) => parts,
                Err(error) => return Err(refusal.unwrap_or_else(|| error.into())),
            };
            let offers = parts
                .iter()
                .map(|part| self.offer_part(principal, &lease, part, &views));
            let (mut grants, mut failure) = (Vec::with_capacity(parts.len()), None);
            for (part, answer) in parts.iter().zip(join_all(offers).await) {
                match answer {
                    Ok(grant) => grants.push(grant),
                    Err(refused) => {
                        tracing::debug!(node = %part.node, failure = %refused, "a node refused its part of a gang");
                        refusing.insert(part.node);
                        // Prefer a failure that no other node would avoid.
                        if failure.as_ref().is_none_or(|failure| !is_final(failure)) {
                            failure = Some(refused);
                        }
                    }
                }
            }
            let Some(failure) = failure else {
                return Ok(grants);
            };
            wait.ignore(grants.iter().map(|grant| grant.lease));
            join_all(grants.iter().map(|grant| self.end(grant.lease, LeaseState::Released))).await;
            if is_final(&failure) {
                return Err(failure);
            }
            refusal = Some(failure);
        }
        Err(refusal.unwrap_or_else(|| PlacementError::NoNodes.into()))
    }

    async fn offer_part(
        &self,
        principal: Principal,
        lease: &LeaseRequest,
        part: &Part,
        views: &[View],
    ) -> Result<Grant, Failure> {
        let request = LeaseRequest {
            workers: part.workers,
            mode: part.mode,
            memory_bytes: part.memory_bytes,
            node: Some(part.node),
            is_gang: true,
            ..lease.clone()
        };
        self.offer(part.node, principal, &with_share(request, part.node, views))
            .await
    }
}
