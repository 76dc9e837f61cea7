//! Leases (`impl Control`): grants, renewals and ends.

mod capacity_wait;
mod offer;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_lease::ledger;
use dayfly_lease::placement::{PlacementError, View, choose};
use dayfly_lease::quota::Held;
use dayfly_protocol::api::{Grant, LeaseChange, LeaseRequest, LeaseState, MAX_WORKERS, Mode, RenewRequest, Sandbox};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{LeaseId, NodeId};
use dayfly_protocol::node_messages::ManagerMessage;
use dayfly_store::LeaseRecord;
use dayfly_store::system::{now_ms, random};
use dayfly_telemetry::traceparent;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::Instrument;

pub use self::capacity_wait::{CapacityWait, WaitingWorkers};
use crate::cluster::{LeaseDemand, Renewal, end_message, millis};
use crate::control::Control;
use crate::extractors::Caller;
use crate::forwarding::ClientAuthorization;
use crate::principal::{Principal, with_notice};

/// Nodes that one request is offered to. More refusals mean that the known free resources are outdated; heartbeats
/// update them.
const MAX_OFFERS: usize = 6;

impl Control {
    /// Grants a lease on the best node that accepts it. Continues if the caller disconnects, so that no node holds a
    /// lease that is not recorded.
    pub async fn grant(
        self: &Arc<Self>,
        principal: Principal,
        request: LeaseRequest,
        client: Option<ClientAuthorization>,
    ) -> Result<Grant, Failure> {
        let control = Arc::clone(self);
        run_to_completion(async move {
            let mut wait = control.capacity_wait(&request);
            loop {
                let placed = control.place(principal, request.clone()).await;
                let placed = control
                    .or_at_peers(placed, client.as_ref(), "/v1/leases", &request.without_wait(), &request)
                    .await;
                match placed {
                    Err(failure) if wait.may_retry(&failure).await => {}
                    placed => return placed.map(|grant| with_notice(grant, request.duration_ms)),
                }
            }
        })
        .await
    }

    /// Begins the wait of a request for free resources.
    pub fn capacity_wait(&self, request: &LeaseRequest) -> CapacityWait {
        CapacityWait::new(request, self.events(), self.waiting())
    }

    /// Returns the number of leased workers plus the number of workers that waiting requests ask for, in workers with
    /// one core.
    pub fn demanded_workers(&self) -> u64 {
        let cluster = self.cluster();
        let held: u64 = cluster.leases().live().map(|lease| u64::from(lease.workers)).sum();
        held + self.waiting().count()
    }

    /// Returns the grant, or requests one from the other managers if they may have resources. `once` is the request to
    /// them, without a wait.
    pub async fn or_at_peers<T: DeserializeOwned>(
        &self,
        placed: Result<T, Failure>,
        client: Option<&ClientAuthorization>,
        path: &str,
        once: &impl Serialize,
        request: &LeaseRequest,
    ) -> Result<T, Failure> {
        let failure = match placed {
            Err(failure) => failure,
            placed => return placed,
        };
        if self.peers().are_possible() {
            // A refused offer counts for the tenant's quota until its refusal is stored.
            self.journal().drained().await;
        }
        match client {
            Some(client) if may_succeed_at_peers(&failure) => {
                self.place_at_peers(client, path, once, request, failure).await
            }
            _ => Err(failure),
        }
    }

    /// Checks a request against this manager's limits, and fills in what it leaves open.
    pub fn complete(&self, principal: &Principal, request: &mut LeaseRequest) -> Result<(), Failure> {
        let longest_ms = millis(self.options().longest_lease);
        if request.duration_ms > longest_ms {
            return Err(Failure::new(
                Code::TooLarge,
                format!(
                    "a lease of {} ms exceeds the maximum of this manager ({longest_ms} ms); ask for less and renew",
                    request.duration_ms
                ),
            ));
        }
        request.duration_ms = principal.bounded_ms(request.duration_ms)?;
        // A request without a level stays without one: the level then depends on the node's owner.
        let level = self.sandbox_for(request.wanted_sandbox())?;
        request.sandbox = request.wanted_sandbox().map(|_| level);
        Ok(())
    }

    async fn place(&self, principal: Principal, mut request: LeaseRequest) -> Result<Grant, Failure> {
        self.complete(&principal, &mut request)?;
        let spin = u64::from_le_bytes(random());
        let demand = LeaseDemand::of(&request, Instant::now());
        if let Some(views) = self.sample(&request, spin, demand.as_ref())
            && let Ok(candidates) = choose(&prefer_hot(&request), &views, spin)
        {
            match self.offer_in_turn(principal, &request, &candidates, &views).await {
                Err(failure) if !is_final(&failure) => {}
                done => return done,
            }
        }
        let views = self.cluster().nodes().views(request.node, demand.as_ref());
        // The free resources may be outdated: a lease may have ended a moment ago. So nodes that would have room if
        // they were empty are asked too, after those that seem to have room.
        let empty: Vec<View> = views
            .iter()
            .map(|view| View {
                free: view.capacity,
                ..*view
            })
            .collect();
        let mut candidates = match (choose(&request, &views, spin), choose(&request, &empty, spin)) {
            (Ok(free), Ok(perhaps)) => [free, perhaps].concat(),
            (Err(PlacementError::NoCapacity { .. }), Ok(perhaps)) => perhaps,
            (Err(PlacementError::NoNodes), _) if self.cluster().nodes().connected() > 0 => {
                return Err(Failure::new(
                    Code::NoCapacity,
                    "every node of this manager is reclaimed by its owner, or suspended after failures; wait until one is \
                     available again, or start another (`dayfly status` shows the reasons)",
                ));
            }
            (Err(error @ PlacementError::TooLarge { .. }), _) | (_, Err(error @ PlacementError::TooLarge { .. }))
                if choose(&request, &self.cluster().nodes().full_views(request.node), spin).is_ok() =>
            {
                return Err(Failure::new(
                    Code::NoCapacity,
                    format!("{error}, as long as their owners use the rest"),
                ));
            }
            (Err(error), _) | (_, Err(error)) => return Err(error.into()),
        };
        let mut asked = HashSet::new();
        candidates.retain(|node| asked.insert(*node));
        self.offer_in_turn(principal, &request, &candidates, &views).await
    }

    /// Returns a sample of many nodes. All nodes are considered only if none of the sample has room.
    fn sample(&self, request: &LeaseRequest, spin: u64, demand: Option<&LeaseDemand>) -> Option<Vec<View>> {
        match request.node {
            None => self.cluster().nodes().sample(spin, demand),
            Some(_) => None,
        }
    }

    /// Offers a lease to one node after the other, until one accepts it.
    async fn offer_in_turn(
        &self,
        principal: Principal,
        request: &LeaseRequest,
        candidates: &[NodeId],
        views: &[View],
    ) -> Result<Grant, Failure> {
        let mut refusal = None;
        for node in candidates.iter().take(MAX_OFFERS) {
            match self
                .offer(*node, principal, &with_share(request.clone(), *node, views))
                .await
            {
                Err(failure) if !is_final(&failure) => {
                    tracing::debug!(%node, %failure, "a node refused an offer");
                    // Prefer the refusal of a full node, since the tenant can wait for that node.
                    if failure.code != Code::IsolationUnavailable || refusal.is_none() {
                        refusal = Some(failure);
                    }
                }
                done => return done,
            }
        }
        Err(refusal.unwrap_or_else(|| PlacementError::NoNodes.into()))
    }

    /// Returns the level of isolation of a lease that asks for this one, or for none.
    pub fn sandbox_for(&self, asked: Option<Sandbox>) -> Result<Sandbox, Failure> {
        let allowed = &self.options().sandboxes;
        match asked.or_else(|| allowed.first().copied()) {
            Some(sandbox) if allowed.contains(&sandbox) => Ok(sandbox),
            _ => Err(Failure::new(
                Code::InvalidRequest,
                format!(
                    "the lease asks for sandbox `{}`, and this manager grants only `{}`; ask for that",
                    asked.map_or("none", Sandbox::name),
                    allowed
                        .iter()
                        .map(|sandbox| sandbox.name())
                        .collect::<Vec<_>>()
                        .join("` or `"),
                ),
            )),
        }
    }

    /// Returns a lease that this caller may see. The error for another tenant's lease is that for an unknown one.
    pub fn lease_seen(&self, caller: &Caller, lease: LeaseId) -> Result<LeaseRecord, Failure> {
        self.lease(lease)
            .filter(|record| caller.sees(record.tenant))
            .ok_or_else(|| no_such_lease(lease))
    }

    fn lease(&self, lease: LeaseId) -> Option<LeaseRecord> {
        self.cluster().leases().get(&lease).cloned()
    }

    /// Renews a lease for a length from now, and changes its terms. Continues if the caller disconnects: the node may
    /// have renewed it already.
    pub async fn renew(
        self: &Arc<Self>,
        principal: Principal,
        lease: LeaseId,
        asked: RenewRequest,
    ) -> Result<Grant, Failure> {
        let control = Arc::clone(self);
        run_to_completion(async move { control.renew_within_quota(principal, lease, asked).await }).await
    }

    /// Renews a lease. What it is to hold in addition is reserved of its tenant's quota meanwhile.
    async fn renew_within_quota(
        &self,
        principal: Principal,
        lease: LeaseId,
        asked: RenewRequest,
    ) -> Result<Grant, Failure> {
        ledger::validate_change(&asked.change)?;
        // A key of its own, since the lease may be renewed twice at once.
        let key = LeaseId(random());
        let workers = self.reserve_growth(key, &principal, lease, &asked.change)?;
        let change = LeaseChange {
            workers,
            min_workers: asked.change.min_workers.filter(|_| workers.is_some()),
            ..asked.change
        };
        let renewed = self
            .renew_at_node(principal, lease, RenewRequest { change, ..asked })
            .await;
        self.cluster().tenants_mut().release_reservation(key);
        renewed
    }

    /// Reserves what a lease is to hold in addition, under this key. Returns the number of workers to ask the node for:
    /// as many as the tenant's quota permits, if fewer than asked for are accepted.
    fn reserve_growth(
        &self,
        key: LeaseId,
        principal: &Principal,
        lease: LeaseId,
        change: &LeaseChange,
    ) -> Result<Option<u16>, Failure> {
        let Some(most) = change.workers else { return Ok(None) };
        let mut cluster = self.cluster();
        let record = cluster.leases().get(&lease).cloned();
        let Some(record) = record.filter(|record| record.tenant == principal.tenant) else {
            return Ok(Some(most));
        };
        let fewest = change.min_workers.unwrap_or(most);
        let mut refusal = None;
        for workers in (fewest..=most.min(MAX_WORKERS)).rev() {
            let Some(more) = additional(&record, workers) else {
                return Ok(Some(workers));
            };
            match cluster.tenants_mut().reserve(key, principal.tenant, more) {
                Ok(_) => return Ok(Some(workers)),
                // The refusal of the most workers is the one to report.
                Err(failure) => {
                    refusal.get_or_insert(failure);
                }
            }
        }
        // More than a lease can have is refused by the node.
        refusal.map_or(Ok(Some(most)), Err)
    }

    async fn renew_at_node(&self, principal: Principal, lease: LeaseId, asked: RenewRequest) -> Result<Grant, Failure> {
        let (tenant, duration_ms) = (principal.tenant, asked.duration_ms);
        let longest_ms = millis(self.options().longest_lease);
        if duration_ms == 0 || duration_ms > longest_ms {
            return Err(Failure::new(
                Code::InvalidRequest,
                format!("a lease cannot be renewed for {duration_ms} ms; ask for 1 to {longest_ms} ms"),
            ));
        }
        let duration_ms = principal.bounded_ms(duration_ms)?;
        let record = self
            .lease(lease)
            .filter(|record| record.tenant == tenant)
            .ok_or_else(|| no_such_lease(lease))?;
        if !record.state.is_live() {
            return Err(dayfly_lease::state::LeaseError::Ended(record.state).into());
        }
        self.may_spend(tenant)?;
        let change = asked.change;
        let renew = |request, _| ManagerMessage::Renew {
            request,
            lease,
            duration_ms,
            change,
            traceparent: traceparent(),
        };
        // The record has the terms already: see `on_terms`.
        let terms = self.request(record.node, None, renew).await?;
        let unused_ms = if record.state == LeaseState::Granted {
            millis(self.options().start_by)
        } else {
            0
        };
        let expires_at_ms = now_ms().saturating_add(unused_ms).saturating_add(duration_ms);
        let record = {
            let mut cluster = self.cluster();
            let renewal = Renewal {
                duration_ms,
                expires_at_ms,
                bearer: principal.bearer,
            };
            let renewed = cluster.renew_lease(lease, &renewal);
            let (record, note) = renewed.ok_or_else(|| no_such_lease(lease))?;
            // A note and not a write, because the renewal has taken effect on the node. Under the lock, so that the
            // notes are in the order of the changes.
            self.journal().note(note);
            record
        };
        let Some(terms) = terms.filter(|terms| terms.lease == lease) else {
            if change.is_none() {
                return Ok(with_notice(self.grant_of(&record, Vec::new())?, asked.duration_ms));
            }
            let text = format!(
                "node {} is of an earlier release, which renewed the lease and changed nothing else; update it",
                record.node
            );
            return Err(Failure::new(Code::VersionMismatch, text));
        };
        // Another renewal may have changed the record since.
        let granted = LeaseRecord {
            workers: terms.workers,
            mode: terms.mode,
            memory_bytes: terms.memory_bytes,
            ..record
        };
        Ok(with_notice(self.grant_of(&granted, terms.numbers)?, asked.duration_ms))
    }

    /// Ends a lease as `released` or `revoked`, at once. An unreachable node ends it when it reconnects.
    pub async fn end(&self, lease: LeaseId, state: LeaseState) -> Result<LeaseRecord, Failure> {
        self.end_within(lease, state, Duration::ZERO).await
    }

    /// Revokes a lease: no call begins on it any more, and running calls may continue for the grace. Returns when the
    /// lease has ended and its last usage is booked. Continues if the caller disconnects.
    pub async fn revoke(self: &Arc<Self>, lease: LeaseId, grace: Duration) -> Result<LeaseRecord, Failure> {
        let control = Arc::clone(self);
        let revoked =
            tokio::spawn(async move { control.end_within(lease, LeaseState::Revoked, grace).await }.in_current_span());
        revoked.await.unwrap_or_else(|error| {
            let text = format!("the revocation failed: {error}; report this");
            Err(Failure::new(Code::Internal, text))
        })
    }

    async fn end_within(&self, lease: LeaseId, state: LeaseState, grace: Duration) -> Result<LeaseRecord, Failure> {
        let record = self.lease(lease).ok_or_else(|| no_such_lease(lease))?;
        if record.state.is_live() {
            let message = |request, _| end_message(request, lease, state, grace);
            let response = self.long_request(record.node, grace, message).await;
            if let Err(failure) = response
                && !matches!(failure.code, Code::NotFound | Code::LeaseEnded | Code::LeaseExpired)
            {
                tracing::warn!(%lease, %failure, "the node has not confirmed the end of the lease");
            }
            self.on_lease_ended(lease, state);
            if self.peers().are_possible() {
                // Its resources must be free for the next request, at any manager.
                self.journal().drained().await;
            }
        }
        Ok(self.lease(lease).unwrap_or(record))
    }
}

/// Returns what a lease would hold in addition with this many workers, or `None` if it would not grow.
fn additional(record: &LeaseRecord, workers: u16) -> Option<Held> {
    let added = workers.checked_sub(record.workers).filter(|added| *added > 0)?;
    let memory_bytes = record.memory_bytes.div_ceil(record.workers.max(1).into());
    Some(Held {
        leases: 0,
        ..Held::by_one(
            added,
            record.cores_per_worker,
            memory_bytes.saturating_mul(added.into()),
        )
    })
}

/// Returns the request with the memory filled in, if it left that open: the node's usual share.
pub fn with_share(mut request: LeaseRequest, node: NodeId, views: &[View]) -> LeaseRequest {
    if let (0, Some(view)) = (request.memory_bytes, views.iter().find(|view| view.node == node)) {
        request.memory_bytes = ledger::share_of(&request, &view.capacity, &view.free);
    }
    request
}

/// Runs an operation that must not be abandoned halfway, even if its caller stops waiting.
pub async fn run_to_completion<T: Send + 'static>(
    operation: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Failure> {
    tokio::spawn(operation.in_current_span()).await.unwrap_or_else(|error| {
        Err(Failure::new(
            Code::Internal,
            format!("the operation failed: {error}; report this"),
        ))
    })
}

/// Whether no other node would accept the lease either.
pub fn is_final(failure: &Failure) -> bool {
    matches!(
        failure.code,
        Code::StoreFailed | Code::QuotaExceeded | Code::EnvironmentBuilding | Code::EnvironmentFailed
    )
}

/// Whether another manager may grant what this one refused.
fn may_succeed_at_peers(failure: &Failure) -> bool {
    matches!(
        failure.code,
        Code::NoCapacity | Code::TooLarge | Code::NotFound | Code::StaleEpoch | Code::Unreachable | Code::TimedOut
    )
}

/// Returns the request with `hot` in place of `auto`: a free core on a node outside the sample is better than none.
fn prefer_hot(request: &LeaseRequest) -> LeaseRequest {
    let mode = match request.mode {
        Mode::Auto => Mode::Hot,
        mode => mode,
    };
    LeaseRequest {
        mode,
        ..request.clone()
    }
}

fn no_such_lease(lease: LeaseId) -> Failure {
    Failure::new(
        Code::NotFound,
        format!("you have no lease {lease}; `dayfly status` lists your leases"),
    )
}
