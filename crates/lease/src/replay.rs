//! Remembers used hellos, so that each opens at most one connection.
//!
//! Hellos are counted by tenant, and within a tenant by lease. When the memory is full, a hello of another lease
//! replaces the oldest hello of the lease with the most. From then on, hellos of that lease which are as old or older
//! are refused. A flood is therefore at the expense of the lease that sends it: shares are max-min fair, as in the
//! longest-queue drop of Suter et al., "Design considerations for supporting TCP with per-flow queueing" (INFOCOM
//! 1998).

use std::collections::{BTreeMap, BTreeSet, HashSet};

use dayfly_protocol::hello::Hello;
use dayfly_protocol::ids::{ChannelId, LeaseId, TenantId};

use crate::token::TokenError;

/// Most hellos remembered, for all tenants together. At about 80 bytes each they take at most 10 MiB. They allow 1,000
/// connections per second at a tolerance of 60 s in each direction.
pub const DEFAULT_CAPACITY: usize = 120_000;
/// Expired hellos are removed at this fraction of the tolerance, so at most that part of the memory is stale.
const LOOKS: u64 = 64;

/// Channel ids of recent hellos. An older hello is refused because of its age, so its id can be forgotten.
#[derive(Debug)]
pub struct ReplayWindow {
    tolerance_ms: u64,
    capacity: usize,
    tenants: Shares<TenantId, Shares<LeaseId, Seen>>,
    /// Ids of hellos sent before this time were forgotten. Such hellos stay refused even if the wall clock is set back.
    forgotten_before_ms: u64,
    looked_at_ms: u64,
}

/// Used hellos of one lease.
#[derive(Debug, Default)]
struct Seen {
    channels: HashSet<ChannelId>,
    by_age: BTreeSet<(u64, ChannelId)>,
    /// As the window's, for this lease only: other leases' hellos replaced its older ones.
    forgotten_before_ms: u64,
}

/// A share that can be counted.
trait Count {
    fn count(&self) -> usize;
}

/// Shares by key, ordered by size.
#[derive(Debug)]
struct Shares<K, V> {
    of: BTreeMap<K, V>,
    by_count: BTreeSet<(usize, K)>,
    total: usize,
}

impl<K, V> Default for Shares<K, V> {
    fn default() -> Self {
        Self {
            of: BTreeMap::new(),
            by_count: BTreeSet::new(),
            total: 0,
        }
    }
}

impl<K, V> Count for Shares<K, V> {
    fn count(&self) -> usize {
        self.total
    }
}

impl Count for Seen {
    fn count(&self) -> usize {
        self.by_age.len()
    }
}

impl<K: Ord + Copy, V: Count + Default> Shares<K, V> {
    /// Changes a share and updates its count.
    fn change<T>(&mut self, key: K, change: impl FnOnce(&mut V) -> T) -> T {
        let share = self.of.entry(key).or_default();
        let before = share.count();
        let changed = change(share);
        let after = share.count();
        if before != after {
            self.by_count.remove(&(before, key));
        }
        self.by_count.insert((after, key));
        self.total = self.total + after - before;
        changed
    }

    /// Returns the size and the key of the largest share.
    fn largest(&self) -> Option<(usize, K)> {
        self.by_count.last().copied()
    }

    /// Changes all shares, updates their counts and drops those for which `keep` returns false.
    fn retain(&mut self, mut keep: impl FnMut(&mut V) -> bool) {
        self.of.retain(|_, share| keep(share));
        self.by_count = self.of.iter().map(|(key, share)| (share.count(), *key)).collect();
        self.total = self.of.values().map(Count::count).sum();
    }
}

impl Seen {
    /// Forgets hellos sent before `oldest_ms`. Returns the time of the last one forgotten.
    fn forget(&mut self, oldest_ms: u64) -> Option<u64> {
        let mut last = None;
        while let Some(&(sent_at_ms, channel)) = self.by_age.first() {
            if sent_at_ms >= oldest_ms {
                break;
            }
            self.by_age.pop_first();
            self.channels.remove(&channel);
            last = Some(sent_at_ms);
        }
        last
    }

    /// Forgets the oldest hello, to make room for another lease's.
    fn give_up_oldest(&mut self) {
        if let Some((sent_at_ms, channel)) = self.by_age.pop_first() {
            self.channels.remove(&channel);
            self.forgotten_before_ms = self.forgotten_before_ms.max(sent_at_ms.saturating_add(1));
        }
    }
}

impl ReplayWindow {
    /// Returns a window that accepts hellos whose timestamp is at most `tolerance_ms` from the node's clock, and that
    /// remembers `capacity` of them.
    pub fn new(tolerance_ms: u64, capacity: usize) -> Self {
        Self {
            tolerance_ms,
            capacity,
            tenants: Shares::default(),
            forgotten_before_ms: 0,
            looked_at_ms: 0,
        }
    }

    /// Number of hellos remembered.
    pub fn len(&self) -> usize {
        self.tenants.total
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Accepts a hello once. Call it last, after the signatures are verified, so that a forger cannot use up a tenant's
    /// share.
    pub fn accept(&mut self, hello: &Hello, now_ms: u64) -> Result<(), TokenError> {
        let (tenant, lease) = (hello.token.tenant, hello.token.lease);
        self.accept_of(tenant, lease, hello.channel, hello.sent_at_ms.get(), now_ms)
    }

    fn accept_of(
        &mut self,
        tenant: TenantId,
        lease: LeaseId,
        channel: ChannelId,
        sent_at_ms: u64,
        now_ms: u64,
    ) -> Result<(), TokenError> {
        self.forget(now_ms);
        let seen = self.tenants.of.get(&tenant).and_then(|leases| leases.of.get(&lease));
        let forgotten_before_ms = seen.map_or(0, |seen| seen.forgotten_before_ms);
        check_age(sent_at_ms, now_ms, self.tolerance_ms)?;
        if sent_at_ms < self.forgotten_before_ms {
            return Err(too_far(sent_at_ms, now_ms, self.tolerance_ms));
        }
        if sent_at_ms < forgotten_before_ms {
            return Err(self.too_many());
        }
        if seen.is_some_and(|seen| seen.channels.contains(&channel)) {
            return Err(TokenError::Replayed);
        }
        if self.len() >= self.capacity {
            self.make_room(tenant, lease)?;
        }
        self.tenants.change(tenant, |leases| {
            leases.change(lease, |seen| {
                seen.channels.insert(channel);
                seen.by_age.insert((sent_at_ms, channel));
            });
        });
        Ok(())
    }

    /// Forgets the oldest hello of the lease with the most, unless that is this lease or would be.
    fn make_room(&mut self, tenant: TenantId, lease: LeaseId) -> Result<(), TokenError> {
        let refused = || self.too_many();
        let own = |shares: Option<usize>| shares.unwrap_or(0);
        let leases = self.tenants.of.get(&tenant);
        let (most, largest) = self.tenants.largest().ok_or_else(refused)?;
        // Tenants with equal shares take nothing from each other, only from their own leases.
        let victim = if own(leases.map(|leases| leases.total)) + 1 < most {
            largest
        } else {
            tenant
        };
        let within = self.tenants.of.get(&victim).and_then(Shares::largest);
        let (most, largest) = within.ok_or_else(refused)?;
        if victim == tenant {
            let mine = leases.and_then(|leases| leases.of.get(&lease)).map(Count::count);
            if own(mine) + 1 >= most {
                return Err(refused());
            }
        }
        self.tenants
            .change(victim, |leases| leases.change(largest, Seen::give_up_oldest));
        Ok(())
    }

    fn too_many(&self) -> TokenError {
        TokenError::TooManyHellos {
            capacity: self.capacity,
        }
    }

    fn forget(&mut self, now_ms: u64) {
        if now_ms.abs_diff(self.looked_at_ms) < (self.tolerance_ms / LOOKS).max(1) {
            return;
        }
        self.looked_at_ms = now_ms;
        let oldest_ms = now_ms.saturating_sub(self.tolerance_ms);
        let mut forgotten_before_ms = self.forgotten_before_ms;
        self.tenants.retain(|leases| {
            leases.retain(|seen| {
                if let Some(sent_at_ms) = seen.forget(oldest_ms) {
                    forgotten_before_ms = forgotten_before_ms.max(sent_at_ms.saturating_add(1));
                }
                let is_over = seen.by_age.is_empty() && seen.forgotten_before_ms <= oldest_ms;
                if is_over {
                    forgotten_before_ms = forgotten_before_ms.max(seen.forgotten_before_ms);
                }
                !is_over
            });
            !leases.of.is_empty()
        });
        self.forgotten_before_ms = forgotten_before_ms;
    }
}

/// Checks that a hello's timestamp is within the tolerance.
pub fn check_age(sent_at_ms: u64, now_ms: u64, tolerance_ms: u64) -> Result<(), TokenError> {
    if sent_at_ms.abs_diff(now_ms) > tolerance_ms {
        return Err(too_far(sent_at_ms, now_ms, tolerance_ms));
    }
    Ok(())
}

fn too_far(sent_at_ms: u64, now_ms: u64, tolerance_ms: u64) -> TokenError {
    TokenError::ClockTooFar {
        sent_at_ms,
        now_ms,
        tolerance_ms,
    }
}

#[cfg(test)]
#[path = "replay_tests.rs"]
mod tests;
