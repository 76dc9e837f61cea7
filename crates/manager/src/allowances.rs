//! Allowances (`impl Control`): tenants that lease from nodes directly.
//!
//! The manager signs what a tenant may lease, lists nodes with free resources, and counts the leases that nodes report.
//! No lease waits for it: a lease is recorded shortly after its start, and when the allowance is exhausted the nodes
//! are informed. Until then, the allowance's cap for each node bounds the excess.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use dayfly_lease::quota::Held;
use dayfly_lease::token::{Claims, DEFAULT_SKEW_TOLERANCE_MS, check_evidence};
use dayfly_protocol::api::{Allowance, AllowanceRequest, LeaseState, LoanUsage, Mode, Usage};
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::hello::{HELLO_BYTES, Hello};
use dayfly_protocol::ids::{AllowanceId, LeaseId, NodeId, TenantId};
use dayfly_protocol::node_api::DirectStart;
use dayfly_protocol::node_messages::ManagerMessage;
use dayfly_store::system::{now_ms, random};
use dayfly_store::{Change, LeaseRecord, OwnedChange, StoreError};
use tokio::sync::watch;
use zerocopy::{FromBytes, IntoBytes};

use crate::cluster::{ALLOWANCE_LIFETIME, Account, MAX_REPORT_DELAY, NewAllowance, end_message, millis};
use crate::control::Control;
use crate::principal::Principal;
use crate::sessions::MAX_IMAGE_BYTES;
use crate::shutdown::stopped;
use crate::token_registry::TokenHash;

/// Default cap for one node, as a multiple of an even share of the workers.
const DEFAULT_CAP_SHARES: u32 = 2;

/// Version of the list of nodes with free resources, which holders of allowances wait for.
pub struct ListVersion(watch::Sender<u64>);

impl Default for ListVersion {
    fn default() -> Self {
        Self(watch::channel(0).0)
    }
}

impl ListVersion {
    fn current(&self) -> u64 {
        *self.0.borrow()
    }

    fn advance(&self) {
        self.0.send_modify(|version| *version += 1);
    }

    /// Returns when the version differs from this one.
    async fn changed_from(&self, known: u64) {
        // An error is not possible while `self` has the sender.
        let _ = self.0.subscribe().wait_for(|version| *version != known).await;
    }
}

impl Control {
    /// Makes an allowance.
    pub fn create_allowance(&self, principal: Principal, request: &AllowanceRequest) -> Result<Allowance, Failure> {
        let tenant = principal.tenant;
        let longest_ms = millis(self.options().longest_lease);
        if request.workers == 0 || request.duration_ms == 0 || request.duration_ms > longest_ms {
            return Err(Failure::new(
                Code::InvalidRequest,
                format!(
                    "an allowance cannot be for {} workers and leases of {} ms; ask for one worker at least, and for 1 to \
                     {longest_ms} ms",
                    request.workers, request.duration_ms
                ),
            ));
        }
        let sandbox = self.sandbox_for(request.sandbox)?;
        let duration_ms = principal.bounded_ms(request.duration_ms)?;
        let total = Held {
            // Each lease has at least one worker.
            leases: request.workers,
            workers: request.workers,
            cores: match request.cores {
                MilliCores::ZERO => request.workers.into(),
                cores => cores,
            },
            memory_bytes: request.memory_bytes,
        };
        let id = AllowanceId(random());
        let now_ms = now_ms();
        let mut cluster = self.cluster();
        let limits_memory = cluster.tenants().get(&tenant).is_some_and(Account::limits_memory);
        if total.memory_bytes == 0 && limits_memory {
            return Err(Failure::new(
                Code::InvalidRequest,
                "the tenant has a quota of memory; set the memory of the allowance (memory_bytes)",
            ));
        }
        let cap = cap(request, total, cluster.nodes().connected() as u32);
        let claims = Claims {
            workers: cap.workers as u16,
            cores: cap.cores,
            memory_bytes: cap.memory_bytes,
            sandbox,
            lease: None,
            tenant,
            node: NodeId([0; 16]),
            holder: request.holder,
            epoch: 0,
            not_before_ms: now_ms,
            expires_at_ms: 0,
            duration_ms,
        };
        let new = NewAllowance {
            tenant,
            bearer: principal.bearer,
            until_ms: principal.until_ms,
            claims,
            total,
        };
        cluster.add_allowance(id, new, now_ms)?;
        drop(cluster);
        tracing::info!(allowance = %id, %tenant, workers = total.workers, per_node = cap.workers, "made an allowance");
        self.update_list_version();
        self.extend_allowance(tenant, id)
    }

    /// Extends an allowance once the list of nodes has another version than `after`, or the wait is over.
    pub async fn watch_allowance(
        &self,
        tenant: TenantId,
        allowance: AllowanceId,
        after: u64,
        wait: Duration,
    ) -> Result<Allowance, Failure> {
        let mut stopping = self.shutdown().subscribe();
        tokio::select! {
            () = self.list_version().changed_from(after) => {}
            () = tokio::time::sleep(wait.min(ALLOWANCE_LIFETIME / 3)) => {}
            () = stopped(&mut stopping) => {}
        }
        self.extend_allowance(tenant, allowance)
    }

    fn extend_allowance(&self, tenant: TenantId, id: AllowanceId) -> Result<Allowance, Failure> {
        let version = self.list_version().current();
        let mut cluster = self.cluster();
        cluster.tenants().may_spend(&tenant)?;
        let extended = cluster.allowances_mut().extend(id, tenant, now_ms());
        let (claims, workers_left) = extended.ok_or_else(|| no_such_allowance(id))?;
        let token = claims.sign_for_all(id, self.signing());
        Ok(Allowance {
            allowance: id,
            token: hex::encode(token.as_bytes()),
            lasts_ms: millis(ALLOWANCE_LIFETIME),
            version,
            nodes: cluster.nodes().list_with_room(u64::from_le_bytes(random())),
            workers_left,
        })
    }

    /// Ends an allowance. Leases under it continue.
    pub fn end_allowance(&self, tenant: TenantId, allowance: AllowanceId) -> Result<(), Failure> {
        let has_ended = self.cluster().end_allowance(allowance, tenant, now_ms());
        has_ended.then_some(()).ok_or_else(|| no_such_allowance(allowance))
    }

    /// Ends all allowances of a tenant.
    pub fn end_allowances_of(&self, tenant: TenantId) {
        self.end_allowances(|_, of, _| of == tenant);
    }

    /// Ends the allowances whose token was revoked or has expired.
    pub fn end_allowances_without_token(&self) {
        self.end_allowances(|cluster, _, bearer| cluster.tokens().is_invalid(bearer));
    }

    fn end_allowances(&self, must_end: impl Fn(&crate::cluster::Cluster, TenantId, Option<TokenHash>) -> bool) {
        let mut cluster = self.cluster();
        let current = cluster.allowances().current();
        let ending = current.filter(|(_, tenant, bearer)| must_end(&cluster, *tenant, *bearer));
        let ending: Vec<(AllowanceId, TenantId)> = ending.map(|(id, tenant, _)| (id, tenant)).collect();
        for (id, tenant) in ending {
            cluster.end_allowance(id, tenant, now_ms());
        }
    }

    /// Processes a node's report that it granted a lease. Records the lease if the allowance's holder requested it
    /// there, and otherwise has the node end it.
    pub fn on_started(self: &Arc<Self>, node: NodeId, lease: LeaseId, start: &DirectStart) {
        match self.record_start(node, lease, start) {
            Ok(Some(record)) => {
                self.metrics().started_directly();
                self.publish_lease(lease, node, record.state);
                let control = Arc::clone(self);
                tokio::spawn(async move { control.store_start(node, record).await });
            }
            Ok(None) => {}
            Err(failure) => {
                tracing::warn!(%node, %lease, %failure, "refused a lease that the node reported as granted");
                self.metrics().incident();
                self.revoke_start(node, lease);
            }
        }
    }

    /// Tells a node to end a lease that it granted, and not to report it again.
    fn revoke_start(&self, node: NodeId, lease: LeaseId) {
        let cluster = self.cluster();
        let end = end_message(0, lease, LeaseState::Revoked, Duration::ZERO);
        cluster.nodes().send_to(&node, end);
        cluster.nodes().send_to(&node, ManagerMessage::Adopted { lease });
    }

    /// Checks and records a lease that a node granted. Returns `None` if it is recorded already.
    fn record_start(&self, node: NodeId, lease: LeaseId, start: &DirectStart) -> Result<Option<LeaseRecord>, Failure> {
        let hello = read_hello(&start.hello)?;
        let allowance = check_evidence(&hello, DEFAULT_SKEW_TOLERANCE_MS, &node, &self.signing_keys())?;
        let now_ms = now_ms();
        let token = &hello.token;
        let refused = |text: &str| Err(Failure::new(Code::Unauthorized, text));
        if now_ms > token.expires_at_ms.get().saturating_add(millis(MAX_REPORT_DELAY)) {
            return refused("its allowance expired too long ago");
        }
        let started_at_ms = start.started_at_ms.min(now_ms);
        if start.duration_ms > token.duration_ms.get() || start.mode == Mode::Auto {
            return refused("its allowance does not permit such a lease");
        }
        let mut cluster = self.cluster();
        match cluster.leases().get(&lease) {
            Some(known) if known.node == node && known.tenant == token.tenant => {
                cluster.nodes().send_to(&node, ManagerMessage::Adopted { lease });
                return Ok(None);
            }
            Some(_) => return refused("another lease has this id"),
            None => {}
        }
        if cluster.tenants().get(&token.tenant).is_none() {
            return refused("the tenant does not exist (any more)");
        }
        let record = LeaseRecord {
            lease,
            tenant: token.tenant,
            node,
            holder: start.holder,
            state: LeaseState::Granted,
            workers: start.workers,
            cores_per_worker: start.cores_per_worker,
            // Allowances do not cover GPUs.
            gpus_per_worker: 0,
            mode: start.mode,
            sandbox: start.sandbox,
            image: start.image.clone().filter(|image| image.len() <= MAX_IMAGE_BYTES),
            memory_bytes: start.memory_bytes,
            duration_ms: start.duration_ms,
            granted_at_ms: started_at_ms,
            expires_at_ms: started_at_ms
                .saturating_add(millis(self.options().start_by))
                .saturating_add(start.duration_ms),
            ended_at_ms: 0,
            usage: Usage::default(),
            functions: Vec::new(),
            loans: LoanUsage::default(),
            prices: cluster.tenants().prices_of(&token.tenant),
            bearer: cluster.allowances().bearer_of(allowance),
        };
        if cluster.add_direct_lease(allowance, token, record.clone(), now_ms)? {
            tracing::info!(%allowance, "the allowance is exhausted");
        }
        Ok(Some(record))
    }

    async fn store_start(&self, node: NodeId, mut record: LeaseRecord) {
        let lease = record.lease;
        let written = {
            let cluster = self.cluster();
            record.bearer = cluster.tokens().current(record.bearer);
            let epoch = cluster.nodes().epoch(node);
            let change = Change::Offered(Box::new(record));
            self.journal().write(OwnedChange { node, epoch, change })
        };
        match written.await {
            Ok(()) => self.cluster().nodes().send_to(&node, ManagerMessage::Adopted { lease }),
            Err(StoreError::Quota(quota)) => {
                tracing::warn!(%lease, %quota, "revoking a lease that exceeds the tenant's quota over all managers");
                self.on_lease_ended(lease, LeaseState::Revoked);
                self.revoke_start(node, lease);
            }
            // The node reports the lease again when it reconnects, here or at another manager.
            Err(error) => {
                tracing::warn!(%lease, %error, "cannot store a lease that a node granted; the node will report it again")
            }
        }
    }

    /// Advances the version of the list of nodes with free resources if the list has changed.
    pub fn update_list_version(&self) {
        let mut cluster = self.cluster();
        if cluster.allowances().current().next().is_none() {
            return;
        }
        let mut hasher = DefaultHasher::new();
        cluster.nodes().with_room().for_each(|(id, _)| id.hash(&mut hasher));
        if cluster.allowances_mut().set_listed(hasher.finish()) {
            drop(cluster);
            self.list_version().advance();
        }
    }
}

/// Returns the cap of an allowance for one node.
fn cap(request: &AllowanceRequest, total: Held, nodes: u32) -> Held {
    let default = total.workers.saturating_mul(DEFAULT_CAP_SHARES).div_ceil(nodes.max(1));
    let workers = match request.workers_per_node {
        0 => default,
        requested => requested.into(),
    };
    let workers = workers.clamp(1, total.workers.min(u16::MAX.into()));
    let share = |of: u64| (u128::from(of) * u128::from(workers)).div_ceil(u128::from(total.workers)) as u64;
    Held {
        leases: u32::MAX,
        workers,
        cores: MilliCores::new(share(total.cores.get())),
        memory_bytes: share(total.memory_bytes),
    }
}

fn read_hello(text: &str) -> Result<Hello, Failure> {
    let mut bytes = [0; HELLO_BYTES];
    let read = hex::decode_to_slice(text, &mut bytes).ok();
    read.and_then(|()| Hello::read_from_bytes(&bytes).ok())
        .ok_or_else(|| Failure::new(Code::ProtocolViolation, "the node's report has no valid hello"))
}

fn no_such_allowance(allowance: AllowanceId) -> Failure {
    Failure::new(
        Code::NotFound,
        format!("you have no allowance {allowance} (any more); ask for another one"),
    )
}
