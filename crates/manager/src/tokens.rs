//! Tokens (`impl Control`): creation, listing, revocation, and the end of leases and allowances whose token is gone.

use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use dayfly_protocol::api::{JoinToken, LeaseState};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{NodeId, TenantId};
use dayfly_protocol::tenancy::{NewToken, RevokedToken, Role, TenantSpec, TokenRequest, TokenStatus};
use dayfly_store::system::{now_ms, random};
use dayfly_store::{Bearer, BearerKind, LeaseRecord, RevokedLeases, hash};
use futures_util::future::join_all;

use crate::audit::token_id;
use crate::cluster::{Cluster, millis};
use crate::control::Control;
use crate::extractors::{Caller, bearer_token};
use crate::http::session::session_cookie;
use crate::leases::run_to_completion;
use crate::logins::LOGIN;
use crate::tenants::{check_name, no_such_tenant};
use crate::token_registry::{GUEST, TokenHash, Validity};

/// Name of the token in `connection.json`, which the manager makes itself.
pub const OWN_TOKEN: &str = "connection.json";
/// Prefix of the names of the tokens of `dayfly page`.
const PAGE: &str = "page-";
/// Longest life of a token that a client requests.
const MAX_TOKEN_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Life of a guest's token.
const HALF_A_DAY: Duration = Duration::from_secs(12 * 3600);
/// Life of a dispatcher's token. It ends with this process, long before.
const A_YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Returns a new random token and the record with its hash.
pub fn generate_token(
    kind: BearerKind,
    tenant: TenantId,
    node: Option<NodeId>,
    valid_for: Duration,
) -> (String, Bearer) {
    let token = hex::encode(random::<32>());
    let expires_at_ms = now_ms().saturating_add(millis(valid_for));
    let bearer = Bearer {
        hash: hash(&token),
        kind,
        tenant,
        name: String::new(),
        read_only: false,
        node,
        expires_at_ms,
    };
    (token, bearer)
}

fn status_of(cluster: &Cluster, bearer: &Bearer) -> Option<TokenStatus> {
    let BearerKind::Client(role) = bearer.kind else {
        return None;
    };
    Some(TokenStatus {
        id: token_id(bearer),
        tenant: cluster.tenants().get(&bearer.tenant)?.record().name.clone(),
        name: bearer.name.clone(),
        role,
        read_only: bearer.read_only,
        expires_at_ms: bearer.expires_at_ms,
    })
}

impl Control {
    /// Returns the record of this token, or `None` if it is not valid.
    pub fn authenticate(&self, token: &str) -> Option<Bearer> {
        // Look up the hash: the time that this takes reveals nothing about valid tokens.
        let bearer = self.cluster().tokens().get(&hash(token)).cloned()?;
        (bearer.expires_at_ms > now_ms()).then_some(bearer)
    }

    /// Returns the properties of a client's token.
    ///
    /// # Errors
    /// `NotFound` if its tenant was removed.
    pub fn status_of_token(&self, bearer: &Bearer) -> Result<TokenStatus, Failure> {
        status_of(&self.cluster(), bearer).ok_or_else(|| Failure::new(Code::NotFound, "the tenant was removed"))
    }

    /// Returns the properties of this token, or `None` if it is not a client's or not valid.
    pub fn client_token(&self, token: &str) -> Option<TokenStatus> {
        self.status_of_token(&self.authenticate(token)?).ok()
    }

    /// Revokes the caller's token if it was made for a session in a browser. Its leases continue.
    pub async fn end_session(self: &Arc<Self>, caller: &Caller) -> Result<(), Failure> {
        let name = &caller.bearer.name;
        if !(name.starts_with(LOGIN) || name.starts_with(PAGE)) {
            return Ok(());
        }
        let id = token_id(&caller.bearer);
        self.revoke_token(caller, &id, RevokedLeases::Keep).await.map(drop)
    }

    /// Returns a signal for the end of the token in these headers, and of the session that it comes from, if any.
    /// Returns `None` if they have no valid token.
    pub fn validity_of_request(&self, headers: &HeaderMap) -> Option<Validity> {
        let validity = self.validity(&hash(bearer_token(headers)?))?;
        match session_cookie(headers).and_then(|cookie| self.validity_of_session(cookie)) {
            Some(session) => Some(validity.within(session)),
            None => Some(validity),
        }
    }

    /// Returns a signal for the end of this token, or `None` if it is not valid.
    pub fn validity(&self, bearer: &TokenHash) -> Option<Validity> {
        self.cluster().tokens().validity(bearer)
    }

    /// Adds a token. Leases and allowances of one that it replaces become its own.
    pub fn keep_bearer(&self, bearer: Bearer) {
        let mut cluster = self.cluster();
        // Under the lock, so that the notes are in the order of the changes.
        self.journal().note_all(cluster.add_token(bearer));
    }

    /// Binds the leases and allowances of one token to another one, or to none.
    pub fn rebind(&self, from: TokenHash, to: Option<TokenHash>) {
        let mut cluster = self.cluster();
        self.journal().note_all(cluster.rebind(from, to));
    }

    /// Removes a token, which ends its connections, and then ends its leases and allowances. Returns how many leases
    /// ended.
    async fn on_revoked(self: &Arc<Self>, hash: TokenHash) -> usize {
        self.cluster().tokens_mut().remove(&hash);
        self.end_without_token().await
    }

    /// Ends leases and allowances whose token was revoked or has expired. Returns how many leases ended.
    pub async fn end_without_token(self: &Arc<Self>) -> usize {
        self.end_allowances_without_token();
        let leases = self.cluster().leases_without_token();
        if !leases.is_empty() {
            tracing::info!(
                leases = leases.len(),
                "revoking leases: their token was revoked or has expired"
            );
        }
        let ends = leases.iter().map(|lease| self.end(*lease, LeaseState::Revoked));
        // An error means that the lease ended meanwhile.
        join_all(ends).await.iter().filter(|ended| ended.is_ok()).count()
    }

    /// Returns a token with which a dispatcher in this process leases for a tenant. It ends with this process.
    pub async fn token_for_dispatcher(&self, tenant: TenantId, name: &str) -> Result<String, Failure> {
        self.ensure_tenant(tenant, name).await?;
        let (token, bearer) = generate_token(BearerKind::Client(Role::User), tenant, None, A_YEAR);
        self.keep_bearer(bearer);
        Ok(token)
    }

    /// Returns a token with which a tenant of another manager leases here. It ends with this process.
    pub async fn token_for_guest(&self, tenant: TenantId, name: &str) -> Result<String, Failure> {
        self.ensure_tenant(tenant, name).await?;
        let (token, bearer) = generate_token(BearerKind::Client(Role::User), tenant, None, HALF_A_DAY);
        let now_ms = now_ms();
        let is_kept = |other: &Bearer| other.expires_at_ms > now_ms || !other.name.starts_with(GUEST);
        self.cluster().tokens_mut().retain(is_kept);
        // A random name, because a token of the same name would replace one that is in use.
        self.keep_bearer(Bearer {
            name: format!("{GUEST}{}", hex::encode(random::<16>())),
            ..bearer
        });
        Ok(token)
    }

    /// Adds a tenant of another manager, whose tasks or leases come here.
    async fn ensure_tenant(&self, tenant: TenantId, name: &str) -> Result<(), Failure> {
        if self.cluster().tenants().get(&tenant).is_some() {
            return Ok(());
        }
        // A tenant of this manager may have the same name.
        let name = match self.cluster().tenants().named(name) {
            None => name.to_owned(),
            Some(_) => format!("{name}@{tenant}"),
        };
        let kept = self.store().tenant(tenant, name, TenantSpec::default()).wait().await?;
        self.cluster().tenants_mut().set(kept);
        Ok(())
    }

    /// Makes a token with which one node may join, for its owner if there is one.
    pub async fn join_token(&self, valid_for: Duration, owner: Option<TenantId>) -> Result<JoinToken, Failure> {
        // The owner is not stored here: the node keeps it, and decides what its owner's leases may use.
        let (token, bearer) = generate_token(BearerKind::Join, TenantId([0; 16]), None, valid_for);
        self.store().keep(bearer.clone()).wait().await?;
        self.keep_bearer(bearer.clone());
        Ok(JoinToken {
            token,
            manager: self.url().into(),
            ca_pem: self.ca_pem().into(),
            expires_at_ms: bearer.expires_at_ms,
            owner,
            others: self.peers().others(),
        })
    }

    /// Makes a token that permits no more than the caller's own.
    pub async fn create_token(&self, caller: &Caller, request: TokenRequest) -> Result<NewToken, Failure> {
        check_request(caller, &request)?;
        let tenant = match &request.tenant {
            None => caller.bearer.tenant,
            Some(name) => {
                let found = self.cluster().tenants().named(name).map(|account| account.record().id);
                let found = found.filter(|tenant| caller.governs(*tenant));
                found.ok_or_else(|| no_such_tenant(name))?
            }
        };
        self.audit()
            .record(caller, "token.create", &request.name, &request)
            .await?;
        let valid_for = Duration::from_millis(request.valid_for_ms);
        let (token, bearer) = generate_token(BearerKind::Client(request.role), tenant, None, valid_for);
        let bearer = Bearer {
            name: request.name,
            read_only: request.read_only,
            ..bearer
        };
        self.store().keep(bearer.clone()).wait().await?;
        self.keep_bearer(bearer.clone());
        self.new_token(token, &bearer)
    }

    /// Returns a new token with its secret, which is shown only once.
    pub fn new_token(&self, token: String, bearer: &Bearer) -> Result<NewToken, Failure> {
        Ok(NewToken {
            token,
            manager: self.url().into(),
            ca_pem: self.ca_pem().into(),
            others: self.peers().others(),
            status: self.status_of_token(bearer)?,
        })
    }

    /// Lists the tokens that the caller may see, by tenant and name.
    pub fn tokens(&self, caller: &Caller) -> Vec<TokenStatus> {
        let cluster = self.cluster();
        let seen = cluster.tokens().values().filter(|bearer| caller.governs(bearer.tenant));
        let mut tokens: Vec<TokenStatus> = seen.filter_map(|bearer| status_of(&cluster, bearer)).collect();
        tokens.sort_by(|a, b| (&a.tenant, &a.name).cmp(&(&b.tenant, &b.name)));
        tokens
    }

    /// Revokes a token: its connections end at once, and its leases too unless they are kept. Continues if the caller
    /// disconnects.
    pub async fn revoke_token(
        self: &Arc<Self>,
        caller: &Caller,
        id: &str,
        leases: RevokedLeases,
    ) -> Result<RevokedToken, Failure> {
        let found = {
            let cluster = self.cluster();
            let own = cluster.tokens().values().filter(|bearer| caller.governs(bearer.tenant));
            let mut own = own.filter(|bearer| token_id(bearer) == id);
            own.next()
                .and_then(|bearer| Some((bearer.hash, status_of(&cluster, bearer)?)))
        };
        let Some((hash, status)) = found else {
            return Err(Failure::new(
                Code::NotFound,
                format!("you have no token `{id:.80}`; `dayfly token list` lists your tokens"),
            ));
        };
        if status.role > caller.role {
            return Err(Failure::new(
                Code::Forbidden,
                format!(
                    "its role is {} and yours is {}; ask an administrator",
                    status.role, caller.role
                ),
            ));
        }
        self.audit().record(caller, "token.revoke", id, &status).await?;
        let control = Arc::clone(self);
        run_to_completion(async move {
            // Recent grants may be on their way to the store.
            control.journal().drained().await;
            let is_its = |record: &&LeaseRecord| record.state.is_live() && record.bearer == Some(hash);
            let at_peers = control.leases_at_peers().await?.iter().filter(is_its).count();
            let own = control.cluster().leases().values().filter(is_its).count();
            control.store().revoke(hash, leases).wait().await?;
            if leases == RevokedLeases::Keep {
                control.rebind(hash, None);
            }
            let ended = control.on_revoked(hash).await;
            let (leases_ended, leases_kept) = match leases {
                RevokedLeases::End => (own.min(ended) + at_peers, 0),
                RevokedLeases::Keep => (0, own + at_peers),
            };
            Ok(RevokedToken {
                token: status,
                leases_ended: leases_ended as u32,
                leases_kept: leases_kept as u32,
            })
        })
        .await
    }
}

/// Checks that a requested token has a free name and permits no more than the caller's own.
fn check_request(caller: &Caller, request: &TokenRequest) -> Result<(), Failure> {
    check_name("token", &request.name)?;
    let refused = |code, text: String| Err(Failure::new(code, text));
    if request.name.starts_with(OWN_TOKEN) {
        let text = format!("the name `{OWN_TOKEN}` is reserved for the manager's own token; choose another name");
        return refused(Code::Forbidden, text);
    }
    if request.name.starts_with(LOGIN) {
        let text = format!("names that begin with `{LOGIN}` are reserved for logins; choose another name");
        return refused(Code::Forbidden, text);
    }
    let valid_for = Duration::from_millis(request.valid_for_ms);
    if valid_for.is_zero() || valid_for > MAX_TOKEN_LIFE {
        return refused(
            Code::InvalidRequest,
            format!(
                "a token cannot be valid for {} ms; ask for 1 ms to {} days",
                request.valid_for_ms,
                MAX_TOKEN_LIFE.as_secs() / 86_400
            ),
        );
    }
    let left_ms = caller.bearer.expires_at_ms.saturating_sub(now_ms());
    if request.valid_for_ms > left_ms {
        return refused(
            Code::Forbidden,
            format!(
                "a token cannot outlive the one that requests it, which expires in {} s; ask for less, or use another token",
                left_ms / 1000
            ),
        );
    }
    if request.role > caller.role {
        return refused(
            Code::Forbidden,
            format!(
                "the role {} permits more than your own, {}; ask for your own or a lesser one",
                request.role, caller.role
            ),
        );
    }
    Ok(())
}
