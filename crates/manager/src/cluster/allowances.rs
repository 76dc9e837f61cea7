//! The allowances that are valid or were recently, and which leases started under them.

use std::collections::HashMap;
use std::time::Duration;

use dayfly_lease::allowance::{AllowanceLedger, Availability, cap_of, within_cap};
use dayfly_lease::quota::Held;
use dayfly_lease::token::{Claims, DEFAULT_SKEW_TOLERANCE_MS};
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::error::Failure;
use dayfly_protocol::hello::Token;
use dayfly_protocol::ids::{AllowanceId, LeaseId, TenantId};
use dayfly_protocol::node_messages::ManagerMessage;
use dayfly_store::LeaseRecord;

use super::millis;

/// An allowance expires unless its holder asks about it within this time.
pub const ALLOWANCE_LIFETIME: Duration = Duration::from_secs(60);
/// A start that a node reports later than this after its allowance expired is refused.
pub const MAX_REPORT_DELAY: Duration = Duration::from_secs(24 * 3600);

/// Limit for an allowance that another run of this manager signed. Its total is no longer known, only its cap for each
/// node.
const UNKNOWN_TOTAL: Held = Held {
    leases: u32::MAX,
    workers: u32::MAX,
    cores: MilliCores::new(u64::MAX),
    memory_bytes: 0,
};

/// A new allowance.
pub struct NewAllowance {
    /// Who pays.
    pub tenant: TenantId,
    /// Hash of the token that it was requested with. It ends with that token.
    pub bearer: Option<[u8; 32]>,
    /// When that token expires.
    pub until_ms: u64,
    /// Contents of its tokens, except for their times.
    pub claims: Claims,
    /// Resources that all leases under it may hold together.
    pub total: Held,
}

/// One allowance.
struct Allowance {
    tenant: TenantId,
    bearer: Option<[u8; 32]>,
    until_ms: u64,
    /// `None` once it has ended, and for one that another run of this manager signed.
    claims: Option<Claims>,
    total: Held,
    ledger: AllowanceLedger,
    /// By the wall clock.
    expires_at_ms: u64,
}

impl Allowance {
    fn is_valid(&self, now_ms: u64) -> bool {
        self.claims.is_some() && self.expires_at_ms > now_ms
    }

    /// Returns the message that tells nodes whether leases may start.
    fn message(&self, allowance: AllowanceId, availability: Availability, now_ms: u64) -> ManagerMessage {
        let lasts_ms = self.expires_at_ms.saturating_sub(now_ms) + 2 * DEFAULT_SKEW_TOLERANCE_MS;
        ManagerMessage::Exhausted {
            allowance,
            for_ms: match availability {
                Availability::Exhausted => lasts_ms,
                Availability::Room => 0,
            },
        }
    }
}

/// Returns when an allowance expires that is extended now, with a token that expires at `until_ms`.
fn extended_ms(now_ms: u64, until_ms: u64) -> u64 {
    now_ms.saturating_add(millis(ALLOWANCE_LIFETIME)).min(until_ms)
}

/// All allowances.
#[derive(Default)]
pub struct Allowances {
    by_id: HashMap<AllowanceId, Allowance>,
    /// The allowance under which a lease started.
    by_lease: HashMap<LeaseId, AllowanceId>,
    /// Hash of the nodes in the list that holders read last.
    listed: u64,
}

impl Allowances {
    pub(super) fn insert(&mut self, id: AllowanceId, new: NewAllowance, now_ms: u64) {
        let NewAllowance {
            tenant,
            bearer,
            until_ms,
            claims,
            total,
        } = new;
        let allowance = Allowance {
            tenant,
            bearer,
            until_ms,
            claims: Some(claims),
            total,
            ledger: AllowanceLedger::new(total),
            expires_at_ms: extended_ms(now_ms, until_ms),
        };
        self.by_id.insert(id, allowance);
    }

    /// Extends a valid allowance of this tenant. Returns the claims of its next token and the number of workers that
    /// may still be leased.
    pub fn extend(&mut self, id: AllowanceId, tenant: TenantId, now_ms: u64) -> Option<(Claims, u32)> {
        let allowance = self.by_id.get_mut(&id)?;
        if allowance.tenant != tenant || !allowance.is_valid(now_ms) {
            return None;
        }
        allowance.expires_at_ms = extended_ms(now_ms, allowance.until_ms);
        let claims = Claims {
            not_before_ms: now_ms,
            expires_at_ms: allowance.expires_at_ms,
            ..allowance.claims?
        };
        Some((claims, allowance.ledger.left().workers))
    }

    /// Ends an allowance of this tenant. Returns the message for nodes, which accept its tokens until those expire, or
    /// `None` if it had ended before.
    pub(super) fn end(&mut self, id: AllowanceId, tenant: TenantId, now_ms: u64) -> Option<ManagerMessage> {
        let allowance = self.by_id.get_mut(&id).filter(|allowance| allowance.tenant == tenant)?;
        allowance.claims.take()?;
        Some(allowance.message(id, Availability::Exhausted, now_ms))
    }

    /// Iterates over the allowances that have not ended, with their tenants and the tokens that they end with.
    pub fn current(&self) -> impl Iterator<Item = (AllowanceId, TenantId, Option<[u8; 32]>)> {
        let current = self.by_id.iter().filter(|(_, allowance)| allowance.claims.is_some());
        current.map(|(id, allowance)| (*id, allowance.tenant, allowance.bearer))
    }

    /// The token that an allowance ends with.
    pub fn bearer_of(&self, id: AllowanceId) -> Option<[u8; 32]> {
        self.by_id.get(&id)?.bearer
    }

    /// Binds the allowances of one token to another one, or to none.
    pub(super) fn rebind(&mut self, from: [u8; 32], to: Option<[u8; 32]>) {
        for allowance in self
            .by_id
            .values_mut()
            .filter(|allowance| allowance.bearer == Some(from))
        {
            allowance.bearer = to;
        }
    }

    /// Returns the messages about exhausted allowances, for a node that connects.
    pub(super) fn exhausted(&self, now_ms: u64) -> Vec<ManagerMessage> {
        let exhausted = self
            .by_id
            .iter()
            .filter(|(_, allowance)| allowance.ledger.is_exhausted());
        exhausted
            .map(|(id, allowance)| allowance.message(*id, Availability::Exhausted, now_ms))
            .collect()
    }

    /// Records a lease that a node granted under the allowance in this token. Returns the message for nodes if the
    /// allowance is exhausted now.
    ///
    /// # Errors
    /// `TooLarge` or `NoCapacity` if the node exceeded the cap for one node.
    pub(super) fn start(
        &mut self,
        id: AllowanceId,
        token: &Token,
        record: &LeaseRecord,
        now_ms: u64,
    ) -> Result<Option<ManagerMessage>, Failure> {
        let allowance = self.by_id.entry(id).or_insert_with(|| Allowance {
            tenant: token.tenant,
            bearer: None,
            until_ms: 0,
            claims: None,
            total: Held::default(),
            ledger: AllowanceLedger::new(UNKNOWN_TOTAL),
            expires_at_ms: token.expires_at_ms.get(),
        });
        let held = allowance.ledger.held_on(&record.node);
        within_cap(&cap_of(token), &held, &record.held())?;
        let change = allowance.ledger.start(record.lease, record.node, record.held());
        self.by_lease.insert(record.lease, id);
        Ok(change.map(|change| allowance.message(id, change, now_ms)))
    }

    /// Records the end of a lease. Returns its allowance, if it started under one, and the message for nodes if leases
    /// may start again.
    pub(super) fn on_lease_ended(
        &mut self,
        lease: LeaseId,
        now_ms: u64,
    ) -> Option<(AllowanceId, Option<ManagerMessage>)> {
        let id = self.by_lease.remove(&lease)?;
        let allowance = self.by_id.get_mut(&id);
        let message = allowance.and_then(|allowance| {
            let change = allowance.ledger.end(&lease)?;
            let is_current = allowance.claims.is_some();
            is_current.then(|| allowance.message(id, change, now_ms))
        });
        Some((id, message))
    }

    /// Returns the tenant of an allowance that has not ended, and the part of it that no lease holds.
    pub(super) fn unused(&self, id: AllowanceId) -> Option<(TenantId, Held)> {
        let allowance = self.by_id.get(&id).filter(|allowance| allowance.claims.is_some())?;
        Some((allowance.tenant, allowance.total.minus(allowance.ledger.held())))
    }

    /// Ends allowances that have expired, and returns them. Removes those that expired longer ago than
    /// [`MAX_REPORT_DELAY`].
    pub(super) fn expire(&mut self, now_ms: u64) -> Vec<AllowanceId> {
        let mut expired = Vec::new();
        for (id, allowance) in &mut self.by_id {
            if allowance.claims.is_some() && allowance.expires_at_ms <= now_ms {
                allowance.claims = None;
                expired.push(*id);
            }
        }
        let Self { by_id, by_lease, .. } = self;
        by_id.retain(|_, allowance| allowance.expires_at_ms.saturating_add(millis(MAX_REPORT_DELAY)) > now_ms);
        by_lease.retain(|_, id| by_id.contains_key(id));
        expired
    }

    /// Records the hash of the nodes with free resources. Returns whether it changed.
    pub fn set_listed(&mut self, hash: u64) -> bool {
        std::mem::replace(&mut self.listed, hash) != hash
    }
}
