//! Gangs: leases on several nodes at once, all of them or none.

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
use crate::leases::{Room, is_final, to_its_end, with_share};
use crate::principal::{Principal, with_notice};

/// How often a gang is divided anew without the nodes that refused their parts.
const ROUNDS: usize = 6;

impl Control {
    /// Grants all leases of a gang, in the order of its ranks. Goes on when the caller goes away, so that no node is left with a
    /// lease that no book knows.
    pub async fn grant_gang(
        self: &Arc<Self>,
        principal: Principal,
        request: GangRequest,
        asker: Option<ClientAuthorization>,
    ) -> Result<Vec<Grant>, Failure> {
        let control = Arc::clone(self);
        to_its_end(async move {
            let mut room = control.room_for(&request.lease);
            let once = GangRequest {
                lease: request.lease.without_wait(),
                placement: request.placement,
                among: request.among.clone(),
            };
            loop {
                let placed = control.place_gang(principal, &request, &mut room).await;
                let placed = control
                    .or_elsewhere(placed, asker.as_ref(), "/v1/gangs", &once, &request.lease)
                    .await;
                match placed {
                    Err(failure) if room.may_come(&failure).await => {}
                    placed => {
                        let asked_ms = request.lease.duration_ms;
                        let noticed = |grant| with_notice(grant, asked_ms);
                        return placed.map(|grants| grants.into_iter().map(noticed).collect());
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
        room: &mut Room,
    ) -> Result<Vec<Grant>, Failure> {
        let mut lease = request.lease.clone();
        self.complete(&principal, &mut lease)?;
        let mut refusing = HashSet::new();
        let mut refusal = None;
        for _ in 0..ROUNDS {
            let views: Vec<View> = self
                .cluster()
                .views(lease.node)
                .into_iter()
                .filter(|view| request.among.is_empty() || request.among.contains(&view.node))
                .filter(|view| !refusing.contains(&view.node))
                .collect();
            let fabrics = match request.placement {
                Placement::Fabric => self.cluster().fabrics(),
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
                        tracing::debug!(node = %part.node, failure = %refused, "a part of a gang was refused");
                        refusing.insert(part.node);
                        // One that no other node would mend is what the caller hears.
                        if failure.as_ref().is_none_or(|failure| !is_final(failure)) {
                            failure = Some(refused);
                        }
                    }
                }
            }
            let Some(failure) = failure else {
                return Ok(grants);
            };
            room.given_back(grants.iter().map(|grant| grant.lease));
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
            ..lease.clone()
        };
        self.offer(part.node, principal, &with_share(request, part.node, views))
            .await
    }
}
