//! Who asks for a lease, and with which token: a lease ends with the token that it was granted or last renewed with.

use std::sync::Arc;

use dayfly_protocol::api::{Grant, LeaseState};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{LeaseId, TenantId};
use dayfly_store::system::now_ms;
use dayfly_store::{Bearer, BearerKind, Change, LeaseRecord, OwnedChange};
use futures_util::future::join_all;

use crate::cluster::Cluster;
use crate::control::Control;
use crate::http::validity::ENDED;

/// Tokens that were replaced lately, for requests that they began. Those take seconds, and each replacement a synced write.
pub const MAX_REBOUND: usize = 4_096;

/// Who asks for a lease.
#[derive(Debug, Clone, Copy)]
pub struct Principal {
    /// Who pays.
    pub tenant: TenantId,
    /// The token that the lease ends with; none for dispatchers beside the manager and for guests, whose tokens no store has.
    pub bearer: Option<[u8; 32]>,
    /// When the token expires.
    pub until_ms: u64,
}

impl Principal {
    /// The longest lease that it may have now, of this length.
    pub fn at_most(&self, duration_ms: u64) -> Result<u64, Failure> {
        match self.until_ms.saturating_sub(now_ms()) {
            0 => Err(Failure::new(Code::Unauthorized, ENDED)),
            left_ms => Ok(duration_ms.min(left_ms)),
        }
    }
}

/// Says in a grant that the lease is shorter than what was asked for.
pub fn with_notice(mut grant: Grant, asked_ms: u64) -> Grant {
    if grant.duration_ms < asked_ms {
        let text = format!(
            "the lease lasts {} s and not {} s: it ends with the token that it was asked for with",
            grant.duration_ms / 1000,
            asked_ms / 1000
        );
        grant.notice.get_or_insert(text);
    }
    grant
}

impl Cluster {
    /// Keeps a bearer. Leases and allowances of one that it replaces become its own. Returns what is to be noted.
    #[must_use]
    pub fn keep(&mut self, bearer: Bearer) -> Vec<OwnedChange> {
        let (hash, kind) = (bearer.hash, bearer.kind);
        let replaced = self.bearers.keep(bearer);
        if !matches!(kind, BearerKind::Client(_)) {
            return Vec::new();
        }
        replaced
            .into_iter()
            .flat_map(|old| self.rebind(old, Some(hash)))
            .collect()
    }

    /// Leases and allowances that end with one bearer end with another one, or with none. Returns what is to be noted: the store
    /// does the same, but a change with the earlier bearer may reach it after that.
    #[must_use]
    pub fn rebind(&mut self, from: [u8; 32], to: Option<[u8; 32]>) -> Vec<OwnedChange> {
        self.allowances.rebind(from, to);
        self.rebound.push_back((from, to));
        if self.rebound.len() > MAX_REBOUND {
            self.rebound.pop_front();
        }
        let mut its = Vec::new();
        for record in self.leases.values_mut().filter(|record| record.bearer == Some(from)) {
            record.bearer = to;
            if record.state.is_live() {
                its.push(record.lease);
            }
        }
        its.iter().filter_map(|lease| self.renewal(*lease)).collect()
    }

    /// What a lease ends with that is granted or renewed now, and was asked for with this bearer: the one that replaced it since,
    /// or none where it was revoked without its leases.
    pub fn current(&self, bearer: Option<[u8; 32]>) -> Option<[u8; 32]> {
        let mut hash = bearer?;
        if self.bearers.get(&hash).is_some() {
            return Some(hash);
        }
        for (from, to) in &self.rebound {
            if *from == hash {
                hash = (*to)?;
            }
        }
        Some(hash)
    }

    /// Tells the store what a lease ends with, and when.
    pub fn renewal(&self, lease: LeaseId) -> Option<OwnedChange> {
        let record = self.leases.get(&lease)?;
        Some(OwnedChange {
            node: record.node,
            epoch: self.epoch(record.node),
            change: Change::Renewed {
                lease,
                duration_ms: record.duration_ms,
                expires_at_ms: record.expires_at_ms,
                bearer: record.bearer,
            },
        })
    }

    /// Whether what was granted with this bearer is over.
    pub fn is_over(&self, bearer: Option<[u8; 32]>) -> bool {
        bearer.is_some_and(|hash| self.bearers.get(&hash).is_none())
    }

    /// Leases that live on this manager's nodes although their bearer is gone.
    fn leases_over(&self) -> Vec<LeaseId> {
        let over = |record: &&LeaseRecord| record.state.is_live() && self.is_over(record.bearer);
        self.leases.values().filter(over).map(|record| record.lease).collect()
    }
}

impl Control {
    /// Knows a bearer from now on. Leases and allowances of one that it replaces become its own.
    pub fn keep_bearer(&self, bearer: Bearer) {
        let mut cluster = self.cluster();
        // In the order in which the cluster changes.
        self.journal.note_all(cluster.keep(bearer));
    }

    /// Leases and allowances that end with one bearer end with another one, or with none.
    pub fn rebind(&self, from: [u8; 32], to: Option<[u8; 32]>) {
        let mut cluster = self.cluster();
        self.journal.note_all(cluster.rebind(from, to));
    }

    /// A bearer is good no longer. Ends its connections at once, and then its leases and allowances; returns how many leases that
    /// were.
    pub async fn on_revoked(self: &Arc<Self>, hash: [u8; 32]) -> usize {
        self.cluster().bearers.remove(&hash);
        self.end_what_is_over().await
    }

    /// Ends leases and allowances whose bearer was revoked or has expired; returns how many leases.
    pub async fn end_what_is_over(self: &Arc<Self>) -> usize {
        self.disallow_over();
        let over = self.cluster().leases_over();
        if !over.is_empty() {
            tracing::info!(
                leases = over.len(),
                "revoking leases: the token that they were granted with is good no longer"
            );
        }
        let ends = over.iter().map(|lease| self.end(*lease, LeaseState::Revoked));
        // One that ended meanwhile is as good.
        join_all(ends).await.iter().filter(|ended| ended.is_ok()).count()
    }
}
