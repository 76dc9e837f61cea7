//! Who asks for a lease, and with which token: a lease ends with the token that it was granted or last renewed with.

use std::sync::Arc;

use futures_util::future::join_all;
use mayfly_lease::State;
use mayfly_protocol::api::Grant;
use mayfly_protocol::error::{Code, Failure};
use mayfly_protocol::ids::{LeaseId, TenantId};

use crate::control::{Control, now_ms};
use crate::http::validity::ENDED;
use crate::store::{As, Bearer, LeaseRecord};
use crate::world::World;

/// Who asks for a lease.
#[derive(Debug, Clone, Copy)]
pub struct Lessee {
    /// Who pays.
    pub tenant: TenantId,
    /// The token that the lease ends with; none for dispatchers beside the manager and for guests, whose tokens no store has.
    pub bearer: Option<[u8; 32]>,
    /// When the token expires.
    pub until_ms: u64,
}

impl Lessee {
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

impl World {
    /// Keeps a bearer. Leases and allowances of one that it replaces become its own.
    pub fn keep(&mut self, bearer: Bearer) {
        let (hash, speaks) = (bearer.hash, bearer.speaks);
        let replaced = self.bearers.keep(bearer);
        if matches!(speaks, As::Client(_)) {
            replaced.into_iter().for_each(|old| self.rebind(old, Some(hash)));
        }
    }

    /// Leases and allowances that end with one bearer end with another one, or with none.
    pub fn rebind(&mut self, from: [u8; 32], to: Option<[u8; 32]>) {
        let its = |record: &&mut LeaseRecord| record.bearer == Some(from);
        self.leases
            .values_mut()
            .filter(its)
            .for_each(|record| record.bearer = to);
        self.allowances.rebind(from, to);
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
    /// A bearer is good no longer. Ends its connections at once, and then its leases and allowances; returns how many leases that
    /// were.
    pub async fn on_revoked(self: &Arc<Self>, hash: [u8; 32]) -> usize {
        self.world().bearers.remove(&hash);
        self.end_what_is_over().await
    }

    /// Ends leases and allowances whose bearer was revoked or has expired; returns how many leases.
    pub async fn end_what_is_over(self: &Arc<Self>) -> usize {
        self.disallow_over();
        let over = self.world().leases_over();
        if !over.is_empty() {
            tracing::info!(
                leases = over.len(),
                "revoking leases: the token that they were granted with is good no longer"
            );
        }
        let ends = over.iter().map(|lease| self.end(*lease, State::Revoked));
        // One that ended meanwhile is as good.
        join_all(ends).await.iter().filter(|ended| ended.is_ok()).count()
    }
}
