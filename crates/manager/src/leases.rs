//! Granting, renewing and ending leases.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dayfly_lease::ledger;
use dayfly_lease::placement::{PlacementError, View, choose};
use dayfly_lease::quota::Held;
use dayfly_lease::state::DEFAULT_GRACE_MS;
use dayfly_lease::token::Claims;
use dayfly_protocol::api::{
    Event, Grant, LeaseRequest, LeaseState, MAX_WAIT_MS, Mode, NodeAddress, Runtime, Sandbox, Usage,
};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{LeaseId, NodeId, TenantId, time_first};
use dayfly_protocol::node_messages::ManagerMessage;
use dayfly_store::system::{now_ms, random};
use dayfly_store::{Change, LeaseRecord, OwnedChange};
use dayfly_telemetry::traceparent;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tracing::Instrument;

use crate::cluster::{Account, millis};
use crate::control::{Control, SiteEvent};
use crate::extractors::Caller;
use crate::forwarding::ClientAuthorization;
use crate::principal::{Principal, with_notice};

/// Nodes that one request is offered to: those that refuse were thought to have room, and news of what they really
/// have travels with their heartbeats.
const OFFERS: usize = 6;

/// A lease that waits for its image is offered again this often.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

impl Control {
    /// Grants a lease on the best node that takes it. Goes on when the caller goes away, so that no node is left with
    /// a lease that no book knows.
    pub async fn grant(
        self: &Arc<Self>,
        principal: Principal,
        request: LeaseRequest,
        asker: Option<ClientAuthorization>,
    ) -> Result<Grant, Failure> {
        let control = Arc::clone(self);
        to_its_end(async move {
            let mut room = control.room_for(&request);
            loop {
                let placed = control.place(principal, request.clone()).await;
                let placed = control
                    .or_elsewhere(placed, asker.as_ref(), "/v1/leases", &request.without_wait(), &request)
                    .await;
                match placed {
                    Err(failure) if room.may_come(&failure).await => {}
                    placed => return placed.map(|grant| with_notice(grant, request.duration_ms)),
                }
            }
        })
        .await
    }

    /// What a request that found no room waits for.
    pub fn room_for(&self, request: &LeaseRequest) -> Room {
        Room {
            events: self.events.subscribe(),
            until: tokio::time::Instant::now() + Duration::from_millis(request.wait_ms.min(MAX_WAIT_MS)),
            has_image: request.image.is_some(),
            own: HashSet::new(),
            wanted: u64::from(request.workers) * u64::from(request.cores_per_worker.max(1)),
            waiting: Arc::clone(&self.waiting),
        }
    }

    /// Workers that there are leases of, and workers of one core for which requests wait in vain.
    pub fn asked_for(&self) -> u64 {
        let live = |lease: &LeaseRecord| lease.state.is_live();
        let held: u64 = self
            .cluster()
            .leases
            .values()
            .filter(|lease| live(lease))
            .map(|lease| u64::from(lease.workers))
            .sum();
        held + self.waiting.load(Ordering::Relaxed)
    }

    /// What was placed here, or by another manager where that may do better; `once` is the request as that is asked it.
    pub async fn or_elsewhere<T: DeserializeOwned>(
        &self,
        placed: Result<T, Failure>,
        asker: Option<&ClientAuthorization>,
        path: &str,
        once: &impl Serialize,
        request: &LeaseRequest,
    ) -> Result<T, Failure> {
        let failure = match placed {
            Err(failure) => failure,
            placed => return placed,
        };
        if self.peers.are_possible() {
            // What was offered here in vain counts for the tenant's quota until the store has heard of that.
            self.journal.drained().await;
        }
        match asker {
            Some(asker) if another_may(&failure) => self.place_elsewhere(asker, path, once, request, failure).await,
            _ => Err(failure),
        }
    }

    /// Checks what this manager grants, and fills in what the request leaves to it.
    pub fn complete(&self, principal: &Principal, request: &mut LeaseRequest) -> Result<(), Failure> {
        let longest_ms = millis(self.options.longest_lease);
        if request.duration_ms > longest_ms {
            return Err(Failure::new(
                Code::TooLarge,
                format!(
                    "a lease of {} ms is longer than this manager grants ({longest_ms} ms); ask for less and renew",
                    request.duration_ms
                ),
            ));
        }
        request.duration_ms = principal.at_most(request.duration_ms)?;
        // What names no level goes to its node as it is: the level there depends on whose the node is.
        let level = self.sandbox_for(request.wanted_sandbox())?;
        request.sandbox = request.wanted_sandbox().map(|_| level);
        Ok(())
    }

    async fn place(&self, principal: Principal, mut request: LeaseRequest) -> Result<Grant, Failure> {
        self.complete(&principal, &mut request)?;
        let spin = u64::from_le_bytes(random());
        if let Some(views) = self.few(&request, spin)
            && let Ok(candidates) = choose(&hot_if_it_can(&request), &views, spin)
        {
            match self.offer_in_turn(principal, &request, &candidates, &views).await {
                Err(failure) if !is_final(&failure) => {}
                done => return done,
            }
        }
        let views = self.cluster().views(request.node);
        // What is free is hearsay: a lease may have ended on its node a moment ago. So nodes that would have room if they
        // were empty are asked too, after those that are thought to have it.
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
            (Err(PlacementError::NoNodes), _) if self.cluster().nodes.values().any(|node| node.session.is_some()) => {
                return Err(Failure::new(
                    Code::NoCapacity,
                    "every node of this manager was taken back by its owner, or is suspended since it kept failing; wait until \
                     one is there again, or start another (`dayfly status` tells why)",
                ));
            }
            (Err(error), _) | (_, Err(error)) => return Err(error.into()),
        };
        let mut asked = HashSet::new();
        candidates.retain(|node| asked.insert(*node));
        self.offer_in_turn(principal, &request, &candidates, &views).await
    }

    /// Of many nodes, a few that have room will do; only when these have none are all looked at.
    fn few(&self, request: &LeaseRequest, spin: u64) -> Option<Vec<View>> {
        match request.node {
            None => self.cluster().sample(spin),
            Some(_) => None,
        }
    }

    /// Offers a lease to one node after the other, until one takes it.
    async fn offer_in_turn(
        &self,
        principal: Principal,
        request: &LeaseRequest,
        candidates: &[NodeId],
        views: &[View],
    ) -> Result<Grant, Failure> {
        let mut refusal = None;
        for node in candidates.iter().take(OFFERS) {
            match self
                .offer(*node, principal, &with_share(request.clone(), *node, views))
                .await
            {
                Err(failure) if !is_final(&failure) => {
                    tracing::debug!(%node, %failure, "an offer was refused");
                    // Waiting helps where a node was only full, so that is what the tenant is told.
                    if failure.code != Code::IsolationUnavailable || refusal.is_none() {
                        refusal = Some(failure);
                    }
                }
                done => return done,
            }
        }
        Err(refusal.unwrap_or_else(|| PlacementError::NoNodes.into()))
    }

    /// The level that a lease gets which asks for this one.
    pub fn sandbox_for(&self, asked: Option<Sandbox>) -> Result<Sandbox, Failure> {
        let allowed = &self.options.sandboxes;
        match asked.or_else(|| allowed.first().copied()) {
            Some(sandbox) if allowed.contains(&sandbox) => Ok(sandbox),
            _ => Err(Failure::new(
                Code::InvalidRequest,
                format!(
                    "the lease asks for sandbox `{}` and this manager grants `{}` only; ask for that",
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

    /// Offers a lease to one node.
    pub async fn offer(&self, node: NodeId, principal: Principal, request: &LeaseRequest) -> Result<Grant, Failure> {
        let tenant = principal.tenant;
        let granted_at_ms = now_ms();
        let lease = LeaseId(time_first(granted_at_ms, random()));
        let start_by_ms = millis(self.options.start_by);
        let wanted = Held::by_one(request.workers, request.cores_per_worker, request.memory_bytes);
        let prices = self.cluster().ask_for(lease, tenant, wanted)?;
        let default_sandbox = self.options.sandboxes.first().copied();
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
            // Both as its node says when it takes it.
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
        // Written while the node makes up its mind: neither waits for the other.
        let written = {
            let cluster = self.cluster();
            record.bearer = cluster.current(record.bearer);
            let (epoch, change) = (cluster.epoch(node), Change::Offered(Box::new(record.clone())));
            self.journal.ask(OwnedChange { node, epoch, change })
        };
        let (answer, written) = tokio::join!(self.ask(node, Some(record), offer), written);
        if let Err(failure) = answer {
            self.cluster().asked_for(lease);
            if matches!(failure.code, Code::TimedOut | Code::Unreachable) {
                self.doubt(node, lease);
            }
            if is_nodes_own(&failure, request, default_sandbox) {
                self.on_failed(node, &failure.message);
            }
            // Also when the write failed: one that was only slow may yet succeed.
            self.note(node, Change::Refused { lease });
            return Err(written.err().map_or(failure, Failure::from));
        }
        // The books have it since the answer arrived.
        let record = self.lease(lease).ok_or_else(|| no_such_lease(lease))?;
        if !record.state.is_live() {
            return Err(dayfly_lease::state::LeaseError::Ended(record.state).into());
        }
        if let Err(error) = written {
            // The node must not hold what no book will remember.
            self.on_lease_ended(lease, LeaseState::Revoked);
            let _ = self
                .ask(node, None, |request, _| {
                    end_message(request, lease, LeaseState::Revoked, Duration::ZERO)
                })
                .await;
            return Err(error.into());
        }
        if let Err(failure) = self.may_spend(tenant) {
            // Its money ran out, or it was suspended, while its node made up its mind.
            self.end(lease, LeaseState::Revoked).await?;
            return Err(failure);
        }
        self.tell(Event::Lease {
            lease,
            node,
            state: LeaseState::Granted,
        });
        self.grant_of(&record)
    }

    /// The node may or may not hold this lease; it is told to let go now, and again when it comes back.
    fn doubt(&self, node: NodeId, lease: LeaseId) {
        let mut cluster = self.cluster();
        let request = cluster.next_request();
        if let Some(node) = cluster.nodes.get_mut(&node) {
            node.doubtful.insert(lease);
            if let Some(session) = &node.session {
                // If this does not get through, the node's own start-by time will do.
                let _ = session
                    .outgoing
                    .try_send(end_message(request, lease, LeaseState::Revoked, Duration::ZERO));
            }
        }
    }

    /// A lease as its holder gets it, with a token that is good from now on.
    fn grant_of(&self, record: &LeaseRecord) -> Result<Grant, Failure> {
        let (address, epoch, until_ms) = {
            let cluster = self.cluster();
            let bearer = record.bearer.and_then(|hash| cluster.bearers.get(&hash));
            let until_ms = match (record.bearer, bearer) {
                (None, _) => u64::MAX,
                (_, Some(bearer)) => bearer.expires_at_ms,
                // It was revoked a moment ago.
                _ => now_ms(),
            };
            let node = cluster
                .nodes
                .get(&record.node)
                .ok_or_else(|| no_such_lease(record.lease))?;
            let epoch = node.session.as_ref().map_or(0, |session| session.epoch);
            (node.address.clone(), epoch, until_ms)
        };
        let claims = Claims {
            workers: record.workers,
            cores: record.cores_per_worker,
            memory_bytes: record.memory_bytes,
            sandbox: record.sandbox,
            lease: Some(record.lease),
            tenant: record.tenant,
            node: record.node,
            holder: record.holder,
            epoch,
            not_before_ms: now_ms(),
            // Should its node not hear of the token's end.
            expires_at_ms: record.expires_at_ms.saturating_add(DEFAULT_GRACE_MS).min(until_ms),
            duration_ms: record.duration_ms,
        };
        Ok(grant(record, address, &claims.sign(&self.signing)))
    }

    /// A lease that this caller may see.
    pub fn lease_seen(&self, caller: &Caller, lease: LeaseId) -> Result<LeaseRecord, Failure> {
        // Somebody else's lease looks exactly like none.
        self.lease(lease)
            .filter(|record| caller.sees(record.tenant))
            .ok_or_else(|| no_such_lease(lease))
    }

    fn lease(&self, lease: LeaseId) -> Option<LeaseRecord> {
        self.cluster().leases.get(&lease).cloned()
    }

    /// Counts a lease's length anew from now. Goes on when the caller goes away: its node may have renewed it already.
    pub async fn renew(
        self: &Arc<Self>,
        principal: Principal,
        lease: LeaseId,
        asked_ms: u64,
    ) -> Result<Grant, Failure> {
        let control = Arc::clone(self);
        to_its_end(async move { control.renew_at_node(principal, lease, asked_ms).await }).await
    }

    async fn renew_at_node(&self, principal: Principal, lease: LeaseId, asked_ms: u64) -> Result<Grant, Failure> {
        let (tenant, duration_ms) = (principal.tenant, asked_ms);
        let longest_ms = millis(self.options.longest_lease);
        if duration_ms == 0 || duration_ms > longest_ms {
            return Err(Failure::new(
                Code::InvalidRequest,
                format!("a renewal for {duration_ms} ms; ask for 1 to {longest_ms} ms"),
            ));
        }
        let duration_ms = principal.at_most(duration_ms)?;
        let record = self
            .lease(lease)
            .filter(|record| record.tenant == tenant)
            .ok_or_else(|| no_such_lease(lease))?;
        if !record.state.is_live() {
            return Err(dayfly_lease::state::LeaseError::Ended(record.state).into());
        }
        self.may_spend(tenant)?;
        self.ask(record.node, None, |request, _| ManagerMessage::Renew {
            request,
            lease,
            duration_ms,
            traceparent: traceparent(),
        })
        .await?;
        let unused_ms = if record.state == LeaseState::Granted {
            millis(self.options.start_by)
        } else {
            0
        };
        let expires_at_ms = now_ms().saturating_add(unused_ms).saturating_add(duration_ms);
        let record = {
            let mut cluster = self.cluster();
            // The token may have been replaced while the node was asked.
            let bearer = cluster.current(principal.bearer);
            let record = cluster.leases.get_mut(&lease).ok_or_else(|| no_such_lease(lease))?;
            record.duration_ms = duration_ms;
            record.expires_at_ms = expires_at_ms;
            record.bearer = bearer;
            let record = record.clone();
            // It has happened on the node, which alone counts: a store that cannot write now hears of it later. ChangeResult in the order
            // in which the cluster changes.
            self.journal.note_all(cluster.renewal(lease).into_iter().collect());
            record
        };
        Ok(with_notice(self.grant_of(&record)?, asked_ms))
    }

    /// Ends a lease as `released` or `revoked`, at once. An unreachable node is told when it comes back.
    pub async fn end(&self, lease: LeaseId, state: LeaseState) -> Result<LeaseRecord, Failure> {
        self.end_within(lease, state, Duration::ZERO).await
    }

    /// Takes a lease away: nothing new begins on it, and running calls may go on for the grace. Answers when it has ended and its
    /// last bill is booked. Goes on when the caller goes away.
    pub async fn revoke(self: &Arc<Self>, lease: LeaseId, grace: Duration) -> Result<LeaseRecord, Failure> {
        let control = Arc::clone(self);
        let revoked =
            tokio::spawn(async move { control.end_within(lease, LeaseState::Revoked, grace).await }.in_current_span());
        revoked.await.unwrap_or_else(|error| {
            let text = format!("revoking the lease failed: {error}; report this");
            Err(Failure::new(Code::Internal, text))
        })
    }

    async fn end_within(&self, lease: LeaseId, state: LeaseState, grace: Duration) -> Result<LeaseRecord, Failure> {
        let record = self.lease(lease).ok_or_else(|| no_such_lease(lease))?;
        if record.state.is_live() {
            let message = |request, _| end_message(request, lease, state, grace);
            let answer = self.ask_patiently(record.node, grace, message).await;
            if let Err(failure) = answer
                && !matches!(failure.code, Code::NotFound | Code::LeaseEnded | Code::LeaseExpired)
            {
                tracing::warn!(%lease, %failure, "its node has not confirmed the end");
            }
            self.on_lease_ended(lease, state);
            if self.peers.are_possible() {
                // What it held is free for whoever asks next, at whichever manager.
                self.journal.drained().await;
            }
        }
        Ok(self.lease(lease).unwrap_or(record))
    }

    /// Refuses a tenant that is suspended, or has spent its budget.
    pub fn may_spend(&self, tenant: TenantId) -> Result<(), Failure> {
        let cluster = self.cluster();
        Ok(cluster.tenants.get(&tenant).map_or(Ok(()), Account::may_spend)?)
    }
}

/// A request for one node that names how much memory it wants: the node's usual share if it left that open.
pub fn with_share(mut request: LeaseRequest, node: NodeId, views: &[View]) -> LeaseRequest {
    if let (0, Some(view)) = (request.memory_bytes, views.iter().find(|view| view.node == node)) {
        request.memory_bytes = ledger::share_of(&request, &view.capacity, &view.free);
    }
    request
}

/// Does something that must not be left half done, whether or not its caller waits for it.
pub async fn to_its_end<T: Send + 'static>(
    granting: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Failure> {
    tokio::spawn(granting.in_current_span()).await.unwrap_or_else(|error| {
        Err(Failure::new(
            Code::Internal,
            format!("granting failed: {error}; report this"),
        ))
    })
}

/// What a request that found no room waits for.
pub struct Room {
    /// Subscribed before each try, so that no room is missed that comes after it.
    events: Receiver<SiteEvent>,
    until: tokio::time::Instant,
    has_image: bool,
    /// Leases that this request itself took and gave back: they make no room that it did not have.
    own: HashSet<LeaseId>,
    /// What it asks for, and what all ask for that wait.
    wanted: u64,
    waiting: Arc<AtomicU64>,
}

/// A request is waiting.
struct Waits<'a>(&'a AtomicU64, u64);

impl<'a> Waits<'a> {
    fn begin(all: &'a AtomicU64, wanted: u64) -> Self {
        all.fetch_add(wanted, Ordering::Relaxed);
        Self(all, wanted)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

impl Room {
    /// The request took these leases in vain, and gives them back.
    pub fn given_back(&mut self, leases: impl IntoIterator<Item = LeaseId>) {
        self.own.extend(leases);
    }

    /// Waits until there may be room, if there was none and the request may wait. Whether to try again.
    pub async fn may_come(&mut self, failure: &Failure) -> bool {
        let comes = matches!(failure.code, Code::NoCapacity | Code::EnvironmentBuilding);
        if !comes || tokio::time::Instant::now() >= self.until {
            return false;
        }
        let _waits = Waits::begin(&self.waiting, self.wanted);
        let room = async {
            loop {
                match self.events.recv().await.map(|told| told.event) {
                    Ok(Event::NodeUp { .. }) | Err(RecvError::Lagged(_)) => return true,
                    Ok(Event::Lease { lease, state, .. }) if !state.is_live() && !self.own.remove(&lease) => {
                        return true;
                    }
                    Ok(_) => {}
                    Err(RecvError::Closed) => return false,
                }
            }
        };
        // Nobody tells when an image is unpacked, or an environment built.
        let soon = tokio::time::Instant::now() + LOOK_AGAIN;
        let look = if self.has_image || failure.code == Code::EnvironmentBuilding {
            soon.min(self.until)
        } else {
            self.until
        };
        match tokio::time::timeout_at(look, room).await {
            Ok(may_come) => may_come,
            Err(_) => look < self.until,
        }
    }
}

/// Whether a node that answers an offer so has failed by no fault of the tenant's: nobody shall be able to have nodes suspended
/// with an interpreter or image that does not start, or with functions that kill their executor.
fn is_nodes_own(failure: &Failure, request: &LeaseRequest, default_sandbox: Option<Sandbox>) -> bool {
    match failure.code {
        Code::TimedOut | Code::Internal | Code::StoreFailed => true,
        Code::ExecutorFailed => {
            request.runtime == Runtime::Native && request.sandbox.or(default_sandbox) != Some(Sandbox::Container)
        }
        _ => false,
    }
}

/// Whether no other node would answer better.
pub fn is_final(failure: &Failure) -> bool {
    matches!(
        failure.code,
        Code::StoreFailed | Code::QuotaExceeded | Code::EnvironmentBuilding | Code::EnvironmentFailed
    )
}

/// Whether another manager may have nodes that do better.
fn another_may(failure: &Failure) -> bool {
    matches!(
        failure.code,
        Code::NoCapacity | Code::TooLarge | Code::NotFound | Code::StaleEpoch | Code::Unreachable | Code::TimedOut
    )
}

/// The same request where it may not be warm: a free core on a node that was not looked at is better than none.
fn hot_if_it_can(request: &LeaseRequest) -> LeaseRequest {
    let mode = match request.mode {
        Mode::Auto => Mode::Hot,
        mode => mode,
    };
    LeaseRequest {
        mode,
        ..request.clone()
    }
}

fn grant(record: &LeaseRecord, node: NodeAddress, token: &dayfly_protocol::hello::Token) -> Grant {
    let mut bytes = Vec::with_capacity(dayfly_protocol::hello::TOKEN_BYTES);
    bytes.extend_from_slice(token.signed_bytes());
    bytes.extend_from_slice(&token.signature);
    Grant {
        lease: record.lease,
        token: hex::encode(bytes),
        node,
        workers: record.workers,
        mode: record.mode,
        sandbox: record.sandbox,
        image: record.image.clone(),
        memory_bytes: record.memory_bytes,
        duration_ms: record.duration_ms,
        expires_at_ms: token.expires_at_ms.get(),
        notice: None,
    }
}

/// The message that ends a lease on its node.
pub fn end_message(request: u64, lease: LeaseId, state: LeaseState, grace: Duration) -> ManagerMessage {
    ManagerMessage::End {
        request,
        lease,
        state,
        grace_ms: millis(grace),
        traceparent: traceparent(),
    }
}

fn no_such_lease(lease: LeaseId) -> Failure {
    Failure::new(
        Code::NotFound,
        format!("there is no lease {lease} of yours; `dayfly status` lists those there are"),
    )
}
