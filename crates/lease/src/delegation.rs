//! Delegation of parts of a lease.
//!
//! A part is some of a lease's workers, for a limited time, for another holder key. The holder of a part may delegate a
//! part of it further. Revoking a part also revokes everything delegated from it.

use std::collections::BTreeMap;
use std::ops::Range;

use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::PublicKey;

/// Most delegated parts of a lease. Each costs its node about a hundred bytes.
pub const MAX_PARTS: usize = 256;

/// The workers that one holder may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Indices of the workers in the lease.
    pub workers: Range<u16>,
    /// End by the node's monotonic clock in milliseconds; `None` for the end of the lease.
    pub until_ms: Option<u64>,
    /// Key that delegated the part; `None` for the lease's own holder.
    pub by: Option<PublicKey>,
}

/// Why a delegation or a revocation is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DelegationError {
    /// The delegator does not have these workers.
    #[error(
        "the delegation asks for workers {first} to {last} of {workers}; workers count from 0, and there must be one at least"
    )]
    Workers {
        /// First requested worker.
        first: u16,
        /// Last requested worker.
        last: u32,
        /// Number of workers that the delegator has.
        workers: u16,
    },
    /// The key already has a part of the lease.
    #[error("this key has a part of the lease already; draw a new key for every delegation")]
    KeyInUse,
    /// The lease has [`MAX_PARTS`] delegated parts.
    #[error("{MAX_PARTS} parts of this lease are delegated; take some back first")]
    TooMany,
    /// The caller's own part was revoked or has expired.
    #[error(
        "the part of the lease that was delegated to this key was taken back, or its time is over; ask for another one"
    )]
    TakenBack,
    /// The caller did not delegate anything to that key.
    #[error("no part of this lease is delegated to that key by this one")]
    NotYours,
}

impl DelegationError {
    /// The error code that a peer receives.
    pub fn code(&self) -> Code {
        match self {
            Self::Workers { .. } | Self::KeyInUse => Code::InvalidRequest,
            Self::TooMany => Code::NoCapacity,
            Self::TakenBack => Code::LeaseEnded,
            Self::NotYours => Code::NotFound,
        }
    }
}

impl From<DelegationError> for Failure {
    fn from(error: DelegationError) -> Self {
        Failure::new(error.code(), error.to_string())
    }
}

/// The delegated parts of one lease.
#[derive(Debug, Clone)]
pub struct Delegations {
    holder: PublicKey,
    workers: u16,
    parts: BTreeMap<PublicKey, Part>,
}

impl Delegations {
    /// Returns the state of a lease of `workers` workers without delegations.
    pub fn new(holder: PublicKey, workers: u16) -> Self {
        Self {
            holder,
            workers,
            parts: BTreeMap::new(),
        }
    }

    /// Sets the number of workers, after a change of the lease. Delegated ones must stay.
    pub fn set_workers(&mut self, workers: u16) {
        self.workers = workers;
    }

    /// Whether this worker is delegated, as far as known: expired parts count until [`Delegations::expire`].
    pub fn is_delegated(&self, worker: u16) -> bool {
        self.parts.values().any(|part| part.workers.contains(&worker))
    }

    /// Returns the part that a key may use now. For the lease's holder this is the whole lease.
    ///
    /// # Errors
    /// [`DelegationError::TakenBack`] if the key has no part, or its time is over.
    pub fn part_of(&self, key: &PublicKey, now_ms: u64) -> Result<Part, DelegationError> {
        if *key == self.holder {
            return Ok(Part {
                workers: 0..self.workers,
                until_ms: None,
                by: None,
            });
        }
        let part = self.parts.get(key).filter(|part| !part.is_over(now_ms));
        part.cloned().ok_or(DelegationError::TakenBack)
    }

    /// Delegates `workers` workers to the key `to` for at most `duration_ms`. `first` is an index in the part of `by`.
    /// The delegated part ends no later than that part.
    pub fn delegate(
        &mut self,
        by: &PublicKey,
        to: PublicKey,
        first: u16,
        workers: u16,
        duration_ms: u64,
        now_ms: u64,
    ) -> Result<Part, DelegationError> {
        let own = self.part_of(by, now_ms)?;
        let has = own.workers.end - own.workers.start;
        if workers == 0 || u32::from(first) + u32::from(workers) > u32::from(has) {
            return Err(DelegationError::Workers {
                first,
                last: (u32::from(first) + u32::from(workers)).saturating_sub(1),
                workers: has,
            });
        }
        if to == self.holder || self.parts.contains_key(&to) {
            return Err(DelegationError::KeyInUse);
        }
        if self.parts.len() >= MAX_PARTS {
            return Err(DelegationError::TooMany);
        }
        let start = own.workers.start + first;
        let until_ms = now_ms.saturating_add(duration_ms);
        let part = Part {
            workers: start..start + workers,
            until_ms: Some(own.until_ms.map_or(until_ms, |own| own.min(until_ms))),
            by: Some(*by),
        };
        self.parts.insert(to, part.clone());
        Ok(part)
    }

    /// Revokes the part that `by` delegated to `from`. Returns all keys that lost their part.
    ///
    /// # Errors
    /// [`DelegationError::NotYours`] if `by` did not delegate to `from`.
    pub fn take_back(&mut self, by: &PublicKey, from: &PublicKey) -> Result<Vec<PublicKey>, DelegationError> {
        match self.parts.get(from) {
            Some(part) if part.by.as_ref() == Some(by) => Ok(self.remove(*from)),
            _ => Err(DelegationError::NotYours),
        }
    }

    /// Removes the expired parts. Returns the keys that lost their part.
    pub fn expire(&mut self, now_ms: u64) -> Vec<PublicKey> {
        // A part never outlasts the part that it was delegated from, so dependents expire with it.
        let over: Vec<_> = self.parts.iter().filter(|(_, part)| part.is_over(now_ms)).collect();
        let over: Vec<_> = over.into_iter().map(|(key, _)| *key).collect();
        for key in &over {
            self.parts.remove(key);
        }
        over
    }

    /// Returns when the next part expires, in milliseconds by the node's monotonic clock.
    pub fn next_at(&self) -> Option<u64> {
        self.parts.values().filter_map(|part| part.until_ms).min()
    }

    fn remove(&mut self, key: PublicKey) -> Vec<PublicKey> {
        let mut removed = vec![key];
        let mut next = 0;
        while let Some(gone) = removed.get(next).copied() {
            self.parts.remove(&gone);
            let of_it = self.parts.iter().filter(|(_, part)| part.by == Some(gone));
            removed.extend(of_it.map(|(key, _)| *key));
            next += 1;
        }
        removed
    }
}

impl Part {
    fn is_over(&self, now_ms: u64) -> bool {
        self.until_ms.is_some_and(|until| until <= now_ms)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(number: u8) -> PublicKey {
        PublicKey([number; 32])
    }

    fn lease_of_four() -> Delegations {
        Delegations::new(key(0), 4)
    }

    #[test]
    fn holder_has_all_workers_and_others_none() {
        let parts = lease_of_four();
        assert_eq!(parts.part_of(&key(0), 0).unwrap().workers, 0..4);
        assert_eq!(parts.part_of(&key(1), 0), Err(DelegationError::TakenBack));
    }

    #[test]
    fn nested_part_counts_from_its_first_worker() {
        let mut parts = lease_of_four();
        assert_eq!(parts.delegate(&key(0), key(1), 1, 3, 1000, 0).unwrap().workers, 1..4);
        assert_eq!(parts.delegate(&key(1), key(2), 1, 2, 1000, 0).unwrap().workers, 2..4);
        assert!(parts.delegate(&key(2), key(3), 1, 2, 1000, 0).is_err());
    }

    #[test]
    fn nested_part_does_not_outlive_its_parent() {
        let mut parts = lease_of_four();
        parts.delegate(&key(0), key(1), 0, 2, 100, 0).unwrap();
        let part = parts.delegate(&key(1), key(2), 0, 1, 1000, 50).unwrap();
        assert_eq!(part.until_ms, Some(100));
        assert_eq!(parts.part_of(&key(2), 100), Err(DelegationError::TakenBack));
        assert_eq!(parts.expire(100), [key(1), key(2)]);
    }

    #[test]
    fn revoked_part_revokes_its_nested_parts() {
        let mut parts = lease_of_four();
        parts.delegate(&key(0), key(1), 0, 4, 1000, 0).unwrap();
        parts.delegate(&key(1), key(2), 0, 3, 1000, 0).unwrap();
        parts.delegate(&key(2), key(3), 0, 1, 1000, 0).unwrap();
        parts.delegate(&key(0), key(4), 0, 1, 1000, 0).unwrap();
        assert_eq!(parts.take_back(&key(0), &key(2)), Err(DelegationError::NotYours));
        assert_eq!(parts.take_back(&key(0), &key(1)), Ok(vec![key(1), key(2), key(3)]));
        assert!(parts.part_of(&key(4), 0).is_ok());
    }

    #[test]
    fn second_part_and_missing_worker_are_refused() {
        let mut parts = lease_of_four();
        parts.delegate(&key(0), key(1), 0, 1, 1000, 0).unwrap();
        assert_eq!(
            parts.delegate(&key(0), key(1), 1, 1, 1000, 0),
            Err(DelegationError::KeyInUse)
        );
        assert_eq!(
            parts.delegate(&key(0), key(0), 1, 1, 1000, 0),
            Err(DelegationError::KeyInUse)
        );
        for (first, workers) in [(0, 0), (4, 1), (3, 2), (u16::MAX, u16::MAX)] {
            assert!(parts.delegate(&key(0), key(2), first, workers, 1000, 0).is_err());
        }
    }

    #[test]
    fn number_of_parts_is_bounded() {
        let mut parts = lease_of_four();
        for number in 0..MAX_PARTS {
            let mut to = [1; 32];
            to[..8].copy_from_slice(&(number as u64).to_le_bytes());
            parts.delegate(&key(0), PublicKey(to), 0, 1, 1000, 0).unwrap();
        }
        assert_eq!(
            parts.delegate(&key(0), key(9), 0, 1, 1000, 0),
            Err(DelegationError::TooMany)
        );
    }

    #[derive(Debug, Clone)]
    enum Step {
        Delegate(u8, u8, u16, u16, u64),
        TakeBack(u8, u8),
        Wait(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..6u8, 0..6u8, 0..5u16, 0..5u16, 0..50u64).prop_map(|(a, b, c, d, e)| Step::Delegate(a, b, c, d, e)),
            (0..6u8, 0..6u8).prop_map(|(a, b)| Step::TakeBack(a, b)),
            (0..20u64).prop_map(Step::Wait),
        ]
    }

    proptest! {
        /// Attenuation: a part never has more workers or time than the part that it was delegated from.
        #[test]
        fn every_part_lies_within_its_parent(steps in prop::collection::vec(step(), 0..60)) {
            let (mut parts, mut now) = (lease_of_four(), 0);
            for step in steps {
                match step {
                    Step::Delegate(by, to, first, workers, duration) => {
                        let _ = parts.delegate(&key(by), key(to), first, workers, duration, now);
                    }
                    Step::TakeBack(by, from) => {
                        let _ = parts.take_back(&key(by), &key(from));
                    }
                    Step::Wait(length) => {
                        now += length;
                        parts.expire(now);
                    }
                }
                for number in 1..6 {
                    let Ok(part) = parts.part_of(&key(number), now) else { continue };
                    let source = parts.part_of(&part.by.unwrap(), now);
                    let source = source.expect("what it came of is still there");
                    prop_assert!(source.workers.start <= part.workers.start && part.workers.end <= source.workers.end);
                    prop_assert!(source.until_ms.is_none_or(|until| part.until_ms.unwrap() <= until));
                }
            }
        }
    }
}
