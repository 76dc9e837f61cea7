//! Remembers the hellos that were seen, so that each opens one connection and no second.
//!
//! Hellos are counted by tenant, and within a tenant by lease. When the memory is full, whoever has the most of it pays: a hello
//! of another takes the place of the oldest of theirs, and hellos of that lease which are as old as that are believed no more. So
//! a flood is at the cost of the lease that sends it: shares are max-min fair, as in the longest-queue drop of Suter et al.,
//! "Design considerations for supporting TCP with per-flow queueing" (INFOCOM 1998).

use std::collections::{BTreeMap, BTreeSet, HashSet};

use dayfly_protocol::hello::Hello;
use dayfly_protocol::ids::{ChannelId, LeaseId, TenantId};

use crate::token::TokenError;

/// Most hellos remembered, of all tenants together: at some 80 bytes each 10 MiB at worst, and 1,000 connections a second
/// under a tolerance of 60 s each way.
pub const DEFAULT_CAPACITY: usize = 120_000;
/// Between two looks for hellos that are too old, in parts of the tolerance: so much of the memory may be stale.
const LOOKS: u64 = 64;

/// Channel ids of the hellos that are still fresh enough to be believed. A hello that is older is refused for its
/// age, so its id can be forgotten.
#[derive(Debug)]
pub struct ReplayWindow {
    tolerance_ms: u64,
    capacity: usize,
    tenants: Shares<TenantId, Shares<LeaseId, Seen>>,
    /// Ids of hellos sent before this were forgotten; they stay refused even when the wall clock is set back.
    forgotten_before_ms: u64,
    looked_at_ms: u64,
}

/// Hellos of one lease.
#[derive(Debug, Default)]
struct Seen {
    channels: HashSet<ChannelId>,
    by_age: BTreeSet<(u64, ChannelId)>,
    /// As that of the window, for this lease alone: others took the place of its older hellos.
    forgotten_before_ms: u64,
}

/// Something that is counted.
trait Count {
    fn count(&self) -> usize;
}

/// Who has how many, and who has the most.
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
    /// Changes a share, and counts it anew.
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

    /// Whoever has the most, and how many that is.
    fn largest(&self) -> Option<(usize, K)> {
        self.by_count.last().copied()
    }

    /// Changes every share, counts them anew and drops those that are not to be kept.
    fn retain(&mut self, mut keep: impl FnMut(&mut V) -> bool) {
        self.of.retain(|_, share| keep(share));
        self.by_count = self.of.iter().map(|(key, share)| (share.count(), *key)).collect();
        self.total = self.of.values().map(Count::count).sum();
    }
}

impl Seen {
    /// Forgets hellos that were sent before this.
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

    /// Gives the place of the oldest to somebody else.
    fn give_up_oldest(&mut self) {
        if let Some((sent_at_ms, channel)) = self.by_age.pop_first() {
            self.channels.remove(&channel);
            self.forgotten_before_ms = self.forgotten_before_ms.max(sent_at_ms.saturating_add(1));
        }
    }
}

impl ReplayWindow {
    /// Believes hellos whose clock is at most `tolerance_ms` away from the node's, and remembers `capacity` of them.
    pub fn new(tolerance_ms: u64, capacity: usize) -> Self {
        Self {
            tolerance_ms,
            capacity,
            tenants: Shares::default(),
            forgotten_before_ms: 0,
            looked_at_ms: 0,
        }
    }

    /// Hellos remembered now.
    pub fn len(&self) -> usize {
        self.tenants.total
    }

    /// Whether none is remembered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Accepts a hello once. Call it last, when its signatures are verified, so that a forger can fill nobody's share.
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

    /// Forgets the oldest hello of whoever has the most, unless that is this lease or would be.
    fn make_room(&mut self, tenant: TenantId, lease: LeaseId) -> Result<(), TokenError> {
        let refused = || self.too_many();
        let own = |shares: Option<usize>| shares.unwrap_or(0);
        let leases = self.tenants.of.get(&tenant);
        let (most, largest) = self.tenants.largest().ok_or_else(refused)?;
        // Equals take nothing from each other, but for their own.
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

/// Whether a hello of this age could be believed.
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
