//! Tenants, tokens, prices, bills, and the record of who changed them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dayfly_lease::quota;
use dayfly_protocol::api::LeaseState;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{LeaseId, TenantId};
use dayfly_protocol::tenancy::{
    AuditEntry, BillLine, BillPage, NewToken, Prices, RevokedToken, Role, Tenant, TenantSpec, TokenRequest, TokenStatus,
};
use dayfly_protocol::text;
use dayfly_store::system::{now_ms, random};
use dayfly_store::{
    AUDIT_STEP, AuditPage, AuditTrim, Bearer, BearerKind, BillQuery, LeaseRecord, RevokedLeases, TenantRecord,
    TrimResult,
};

use crate::cluster::{Account, Cluster, millis};
use crate::control::{Control, fresh_bearer, stopped};
use crate::extractors::Caller;
use crate::leases::to_its_end;
use crate::logins::LOGIN;

/// Name of the token in `connection.json`, which the manager makes by itself.
pub const OWN_TOKEN: &str = "connection.json";
/// Name of the tenant of whoever started the manager.
pub const OWN_TENANT: &str = "default";
/// Characters of a tenant's or token's name.
const MAX_NAME: usize = 64;
/// A price above it is a mistake: nine units of account for a millisecond.
const MAX_PRICE: u64 = i64::MAX as u64 / 1_000_000;
/// Lines of one page of a bill, and entries of one page of the audit log.
pub const MAX_LINES: u32 = 1_000;
/// Most of an audit entry's subject, and of its details, that is written down.
const MAX_SUBJECT_BYTES: usize = 256;
const MAX_DETAILS_BYTES: usize = 4 << 10;
/// Between two looks for entries of the audit log that go.
const TRIM_PERIOD: Duration = Duration::from_secs(3600);
/// After so many new entries the next look comes at once: they take some 40 MiB at most.
const TRIM_AFTER_ENTRIES: u64 = 10_000;
/// The longest life of a token that somebody asks for.
const LONGEST_TOKEN: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

fn refused<T>(code: Code, text: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::new(code, text))
}

/// A name is for people to read and type, and stands in paths of the API.
fn check_name(what: &str, name: &str) -> Result<(), Failure> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(allowed) {
        return refused(
            Code::InvalidRequest,
            format!(
                "`{name:.80}` is no name for a {what}; use 1 to {MAX_NAME} of a-z, A-Z, 0-9, `-`, `_`, `.` and `@`"
            ),
        );
    }
    Ok(())
}

/// What is said of an action in the audit log: whole, or its beginning and its end where it is long.
fn audit_details(details: &impl serde::Serialize) -> String {
    let whole = serde_json::to_string(details).unwrap_or_default();
    if whole.len() <= MAX_DETAILS_BYTES {
        return whole;
    }
    // Quotes are escaped once more.
    let part = text::bounded(&whole, MAX_DETAILS_BYTES / 4);
    serde_json::json!({ "bytes": whole.len(), "cut": part }).to_string()
}

/// Trims the audit log for as long as the manager runs.
pub async fn keep_audit_trimmed(control: Arc<Control>) {
    let mut stopping = control.stopping.subscribe();
    let mut ticks = tokio::time::interval(TRIM_PERIOD);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = control.audit_is_long.notified() => {}
            _ = stopped(&mut stopping) => return,
        }
        match control.trim_audit().await {
            Ok(0) => {}
            Ok(entries) => tracing::info!(entries, "old entries of the audit log are gone"),
            Err(error) => tracing::warn!(%error, "the audit log cannot be trimmed; the next look tries again"),
        }
    }
}

fn check_prices(prices: &Prices) -> Result<(), Failure> {
    let all = [
        prices.allocation_per_gib_s,
        prices.computing_per_s,
        prices.polling_per_s,
    ];
    if all.iter().any(|price| *price > MAX_PRICE) {
        return refused(
            Code::InvalidRequest,
            format!("a price of more than {MAX_PRICE} billionths a second; give less"),
        );
    }
    Ok(())
}

/// With which a token is shown and revoked: a part of its hash, which says nothing about the token.
pub fn token_id(bearer: &Bearer) -> String {
    hex::encode(&bearer.hash[..8])
}

impl Control {
    /// Writes down who does what, before it is done.
    pub async fn audit(
        &self,
        caller: &Caller,
        action: &str,
        subject: impl ToString,
        details: &impl serde::Serialize,
    ) -> Result<(), Failure> {
        let by = (caller.bearer.tenant, token_id(&caller.bearer));
        self.audit_of(by, action, subject, details).await
    }

    /// The same of what another than a client does: for a tenant, with a token or what stands for one.
    pub async fn audit_of(
        &self,
        (tenant, token): (TenantId, String),
        action: &str,
        subject: impl ToString,
        details: &impl serde::Serialize,
    ) -> Result<(), Failure> {
        let entry = AuditEntry {
            number: 0,
            at_ms: now_ms(),
            tenant,
            token,
            action: action.into(),
            subject: text::bounded(&subject.to_string(), MAX_SUBJECT_BYTES),
            details: audit_details(details),
        };
        self.store.audit(entry).wait().await?;
        if (self.audit_entries.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(TRIM_AFTER_ENTRIES) {
            self.audit_is_long.notify_one();
        }
        Ok(())
    }

    /// A page of the audit log.
    pub async fn audited(&self, page: AuditPage) -> Result<Vec<AuditEntry>, Failure> {
        let limit = page.limit.clamp(1, MAX_LINES);
        Ok(self.store.audited(AuditPage { limit, ..page }).wait().await?)
    }

    /// Forgets what is old in the audit log, or more than is to be kept.
    pub async fn trim_audit(&self) -> Result<u64, Failure> {
        let before_ms = now_ms().saturating_sub(millis(self.options.keep_audit));
        let mut trim = AuditTrim {
            above: 0,
            step: AUDIT_STEP,
            up_to: self.store.audit_surplus(self.options.most_audit_bytes).wait().await?,
            before_ms,
        };
        let mut gone = 0;
        loop {
            let TrimResult { entries, next } = self.store.trim_audit(trim).wait().await?;
            gone += entries;
            match next {
                Some(next) => trim.above = next,
                None => return Ok(gone),
            }
        }
    }

    /// Makes a tenant, or changes one.
    pub async fn set_tenant(
        self: &Arc<Self>,
        caller: &Caller,
        name: String,
        spec: TenantSpec,
    ) -> Result<Tenant, Failure> {
        check_name("tenant", &name)?;
        if let Some(prices) = &spec.prices {
            check_prices(prices)?;
        }
        self.audit(caller, "tenant.set", &name, &spec).await?;
        let record = self.store.tenant(TenantId(random()), name.clone(), spec).wait().await?;
        let id = record.id;
        self.on_tenant(record);
        let shown = self.cluster().tenants.get(&id).map(Account::shown);
        shown.ok_or_else(|| Failure::new(Code::NotFound, no_such_tenant(&name)))
    }

    /// Tenants that the caller may see.
    pub async fn tenants(&self, caller: &Caller) -> Result<Vec<Tenant>, Failure> {
        let held: Vec<(TenantId, quota::Held)> = match self.store.held() {
            Some(everywhere) => everywhere.wait().await?,
            None => Vec::new(),
        };
        let cluster = self.cluster();
        let seen = |account: &&Account| caller.sees(account.record.id);
        let mut tenants: Vec<Tenant> = cluster.tenants.values().filter(seen).map(Account::shown).collect();
        drop(cluster);
        for (id, held) in held {
            if let Some(tenant) = tenants.iter_mut().find(|tenant| tenant.id == id) {
                (tenant.leases, tenant.workers) = (held.leases, held.workers);
            }
        }
        tenants.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(tenants)
    }

    /// Prices for those who have none of their own.
    pub async fn set_prices(&self, caller: &Caller, prices: Prices) -> Result<Prices, Failure> {
        check_prices(&prices)?;
        self.audit(caller, "prices.set", "site", &prices).await?;
        self.store.prices(prices).wait().await?;
        self.cluster().prices = prices;
        Ok(prices)
    }

    /// Makes a token that allows no more than the caller's own.
    pub async fn create_token(&self, caller: &Caller, request: TokenRequest) -> Result<NewToken, Failure> {
        check_name("token", &request.name)?;
        if request.name.starts_with(OWN_TOKEN) {
            return refused(
                Code::Forbidden,
                format!("the token `{OWN_TOKEN}` is the manager's own; choose another name"),
            );
        }
        if request.name.starts_with(LOGIN) {
            return refused(
                Code::Forbidden,
                format!("names that begin with `{LOGIN}` are given at logins; choose another name"),
            );
        }
        let valid_for = Duration::from_millis(request.valid_for_ms);
        if valid_for.is_zero() || valid_for > LONGEST_TOKEN {
            return refused(
                Code::InvalidRequest,
                format!(
                    "a token for {} ms; ask for 1 ms to {} days",
                    request.valid_for_ms,
                    LONGEST_TOKEN.as_secs() / 86_400
                ),
            );
        }
        // Who is let in for a day shall not let in others for a year.
        let left_ms = caller.bearer.expires_at_ms.saturating_sub(now_ms());
        if request.valid_for_ms > left_ms {
            return refused(
                Code::Forbidden,
                format!(
                    "a token cannot outlive the one that it is made with, which has {} s left; ask for less, or use another",
                    left_ms / 1000
                ),
            );
        }
        if request.role > caller.role {
            return refused(
                Code::Forbidden,
                format!(
                    "a token of the role {} is more than your own, which is {}",
                    request.role, caller.role
                ),
            );
        }
        let tenant = match &request.tenant {
            None => caller.bearer.tenant,
            Some(name) => {
                let found = self.cluster().tenant_named(name).map(|account| account.record.id);
                match found.filter(|tenant| caller.governs(*tenant)) {
                    Some(tenant) => tenant,
                    None => return refused(Code::NotFound, no_such_tenant(name)),
                }
            }
        };
        self.audit(caller, "token.create", &request.name, &request).await?;
        let (token, bearer) = fresh_bearer(BearerKind::Client(request.role), tenant, None, valid_for);
        let bearer = Bearer {
            name: request.name,
            read_only: request.read_only,
            ..bearer
        };
        self.store.keep(bearer.clone()).wait().await?;
        self.keep_bearer(bearer.clone());
        self.new_token(&self.cluster(), token, &bearer)
    }

    /// What is said of a new token, this once with its secret.
    pub(crate) fn new_token(&self, cluster: &Cluster, token: String, bearer: &Bearer) -> Result<NewToken, Failure> {
        Ok(NewToken {
            token,
            manager: self.url.clone(),
            ca_pem: self.ca_pem.clone(),
            others: self.peers.others(),
            status: cluster
                .token_status(bearer)
                .ok_or_else(|| Failure::new(Code::NotFound, "the tenant is gone"))?,
        })
    }

    /// Tokens that the caller may see, by tenant and name.
    pub fn tokens(&self, caller: &Caller) -> Vec<TokenStatus> {
        let cluster = self.cluster();
        let seen = cluster.bearers.values().filter(|bearer| caller.governs(bearer.tenant));
        let mut tokens: Vec<TokenStatus> = seen.filter_map(|bearer| cluster.token_status(bearer)).collect();
        tokens.sort_by(|a, b| (&a.tenant, &a.name).cmp(&(&b.tenant, &b.name)));
        tokens
    }

    /// Makes a token worthless: its connections end at once, and so do its leases unless they are kept. Goes on when the caller goes
    /// away.
    pub async fn revoke_token(
        self: &Arc<Self>,
        caller: &Caller,
        id: &str,
        leases: RevokedLeases,
    ) -> Result<RevokedToken, Failure> {
        let found = {
            let cluster = self.cluster();
            let mut own = cluster.bearers.values().filter(|bearer| caller.governs(bearer.tenant));
            own.find(|bearer| token_id(bearer) == id)
                .and_then(|bearer| Some((bearer.hash, cluster.token_status(bearer)?)))
        };
        let Some((hash, status)) = found else {
            return refused(
                Code::NotFound,
                format!("there is no token `{id:.80}` of yours; `dayfly token list` shows those there are"),
            );
        };
        if status.role > caller.role {
            return refused(
                Code::Forbidden,
                format!(
                    "its role is {} and yours is {}; ask an administrator",
                    status.role, caller.role
                ),
            );
        }
        self.audit(caller, "token.revoke", id, &status).await?;
        let control = Arc::clone(self);
        to_its_end(async move {
            // What was granted a moment ago may be on its way to the store.
            control.journal.drained().await;
            let its = |record: &&LeaseRecord| record.state.is_live() && record.bearer == Some(hash);
            let elsewhere = control.leases_elsewhere().await?.iter().filter(its).count();
            let here = control.cluster().leases.values().filter(its).count();
            control.store.revoke(hash, leases).wait().await?;
            if leases == RevokedLeases::Keep {
                control.rebind(hash, None);
            }
            let ended = control.on_revoked(hash).await;
            let (leases_ended, leases_kept) = match leases {
                RevokedLeases::End => (here.min(ended) + elsewhere, 0),
                RevokedLeases::Keep => (0, here + elsewhere),
            };
            Ok(RevokedToken {
                token: status,
                leases_ended: leases_ended as u32,
                leases_kept: leases_kept as u32,
            })
        })
        .await
    }

    /// A page of the bill of whoever the caller may see.
    pub async fn bill(&self, caller: &Caller, tenant: Option<String>, query: BillQuery) -> Result<BillPage, Failure> {
        let tenant = match tenant {
            None if caller.role < Role::Operator => Some(caller.bearer.tenant),
            None => None,
            Some(name) => {
                let found = self.cluster().tenant_named(&name).map(|account| account.record.id);
                match found.filter(|tenant| caller.sees(*tenant)) {
                    Some(tenant) => Some(tenant),
                    None => return refused(Code::NotFound, no_such_tenant(&name)),
                }
            }
        };
        let query = BillQuery { tenant, ..query };
        // What was granted a moment ago may be on its way to the store.
        self.journal.drained().await;
        let records = self.store.bill(query).wait().await?;
        let last = records.last().filter(|_| records.len() == query.limit as usize);
        let next = last.map(|record| format!("{}-{}", record.granted_at_ms, record.lease));
        let cluster = self.cluster();
        let lines = records.iter().map(|record| cluster.bill_line(record)).collect();
        Ok(BillPage { lines, next })
    }

    /// Bookings were charged: whoever has spent all of a budget loses what they hold.
    pub fn on_charged(self: &Arc<Self>, spent: &[(TenantId, u64)]) {
        for (tenant, spent) in spent {
            if let Some(account) = self.cluster().tenants.get_mut(tenant) {
                // Two nodes' bookings may be heard of in another order than the store's.
                account.record.spent = account.record.spent.max(*spent);
            }
            self.enforce(*tenant);
        }
    }

    /// A tenant has other limits, or has spent more.
    pub fn on_tenant(self: &Arc<Self>, record: TenantRecord) {
        let id = record.id;
        self.cluster().set_tenant(record);
        self.enforce(id);
        if let Some(tasks) = self.task_owner.mine() {
            tasks.resume_tenant(id);
        }
    }

    /// Revokes every lease of a tenant that may not go on.
    pub fn enforce(self: &Arc<Self>, tenant: TenantId) {
        let (reason, leases) = {
            let cluster = self.cluster();
            let Some(account) = cluster.tenants.get(&tenant) else {
                return;
            };
            let Err(reason) = account.may_spend() else { return };
            let own = cluster.leases.values().filter(|record| record.tenant == tenant);
            let live: Vec<LeaseId> = own
                .filter(|record| record.state.is_live())
                .map(|record| record.lease)
                .collect();
            (reason, live)
        };
        self.disallow_all(tenant);
        if leases.is_empty() {
            return;
        }
        tracing::warn!(%tenant, leases = leases.len(), %reason, "revoking leases");
        let control = Arc::clone(self);
        tokio::spawn(async move {
            for lease in leases {
                // One that ended meanwhile is as good.
                let _ = control.end(lease, LeaseState::Revoked).await;
            }
        });
    }
}

impl Account {
    /// Whether its tenant gets anything at all.
    pub fn may_spend(&self) -> Result<(), quota::QuotaError> {
        quota::may_spend(&self.record.name, &self.record.spec, self.record.spent)
    }

    /// Whether its quota limits memory.
    pub fn limits_memory(&self) -> bool {
        self.record.spec.quota.memory_bytes.is_some()
    }

    /// For people.
    pub fn shown(&self) -> Tenant {
        Tenant {
            id: self.record.id,
            name: self.record.name.clone(),
            spec: self.record.spec,
            spent: self.record.spent,
            spent_on_tasks: self.record.spent_on_tasks,
            leases: self.held.leases,
            workers: self.held.workers,
        }
    }
}

impl Cluster {
    /// A tenant is new, or has other limits.
    pub fn set_tenant(&mut self, record: TenantRecord) -> &Account {
        let id = record.id;
        let account = self.tenants.entry(id).or_insert_with(|| Account::of(record.clone()));
        account.record.spec = record.spec;
        // Bookings may have been heard of in another order than the store's.
        account.record.spent = account.record.spent.max(record.spent);
        account.record.spent_on_tasks = account.record.spent_on_tasks.max(record.spent_on_tasks);
        account
    }

    /// What a tenant pays.
    pub fn prices_of(&self, tenant: TenantId) -> Prices {
        let own = self.tenants.get(&tenant).and_then(|account| account.record.spec.prices);
        own.unwrap_or(self.prices)
    }

    /// The tenant of this name.
    pub fn tenant_named(&self, name: &str) -> Option<&Account> {
        self.tenants.values().find(|account| account.record.name == name)
    }

    fn token_status(&self, bearer: &Bearer) -> Option<TokenStatus> {
        let BearerKind::Client(role) = bearer.kind else {
            return None;
        };
        Some(TokenStatus {
            id: token_id(bearer),
            tenant: self.tenants.get(&bearer.tenant)?.record.name.clone(),
            name: bearer.name.clone(),
            role,
            read_only: bearer.read_only,
            expires_at_ms: bearer.expires_at_ms,
        })
    }

    fn bill_line(&self, record: &LeaseRecord) -> BillLine {
        let cost = record.cost();
        let tenant = self.tenants.get(&record.tenant);
        BillLine {
            lease: record.lease,
            tenant: record.tenant,
            tenant_name: tenant.map_or_else(String::new, |account| account.record.name.clone()),
            node: record.node,
            state: record.state,
            granted_at_ms: record.granted_at_ms,
            ended_at_ms: record.ended_at_ms,
            workers: record.workers,
            memory_bytes: record.memory_bytes,
            mode: record.mode,
            usage: record.usage,
            functions: record.functions.clone(),
            prices: record.prices,
            allocation: cost.allocation,
            computing: cost.computing,
            polling: cost.polling,
            total: cost.total(),
        }
    }
}

fn no_such_tenant(name: &str) -> String {
    format!("there is no tenant `{name:.80}` that you may see; `dayfly tenant list` shows those there are")
}
