//! Which leases end when a node offers less.
//!
//! Leases without a running call end first, the one that has been idle longest before the others: they lose no work.
//! Then leases with running calls end, with grace, the youngest first. No lease ends whose end is not needed.

use dayfly_protocol::ids::LeaseId;

use crate::ledger::{Reservation, Shortfall};

/// A lease that could end.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// The lease.
    pub id: LeaseId,
    /// What it holds.
    pub held: Reservation,
    /// How long it has had no running call, in milliseconds; `None` while it has one.
    pub idle_ms: Option<u64>,
    /// Milliseconds since it was granted.
    pub age_ms: u64,
    /// Whether it ends already.
    pub is_ending: bool,
}

/// Returns the leases to end so that the others fit into the offer, in this order.
pub fn to_end(shortfall: Shortfall, candidates: &[Candidate]) -> Vec<LeaseId> {
    let ending = candidates.iter().filter(|candidate| candidate.is_ending);
    let lacking = ending.fold(shortfall, |lacking, candidate| lacking.without(&candidate.held));
    let mut order: Vec<&Candidate> = candidates.iter().filter(|candidate| !candidate.is_ending).collect();
    order.sort_by_key(|candidate| match candidate.idle_ms {
        Some(idle_ms) => (0, u64::MAX - idle_ms, candidate.id),
        None => (1, candidate.age_ms, candidate.id),
    });
    let mut left = lacking;
    let mut chosen: Vec<&Candidate> = Vec::new();
    for candidate in order {
        if left.is_helped_by(&candidate.held) {
            left = left.without(&candidate.held);
            chosen.push(candidate);
        }
    }
    // A later and larger lease may have made an earlier one unnecessary. Spare those whose end costs most.
    let mut at = chosen.len();
    while at > 0 {
        at -= 1;
        let others = chosen.iter().enumerate().filter(|(other, _)| *other != at);
        let without = others.fold(lacking, |left, (_, candidate)| left.without(&candidate.held));
        if without == left {
            chosen.remove(at);
        }
    }
    chosen.into_iter().map(|candidate| candidate.id).collect()
}

#[cfg(test)]
#[path = "shrink_tests.rs"]
mod tests;
