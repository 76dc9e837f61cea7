//! Capacity of a node that no running call owns. It is lent after what calls offer, since the next call may need it.

use std::collections::BTreeMap;

use crate::demand::CallId;

/// Unowned units of one resource.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unreserved {
    units: u64,
    lent: u64,
    loans: BTreeMap<CallId, u64>,
}

impl Unreserved {
    /// Sets how many units nobody owns, and returns who loses how many: the largest loans shrink first.
    pub fn resize(&mut self, units: u64) -> Vec<(CallId, u64)> {
        self.units = units;
        let mut lost = Vec::new();
        while self.lent > units {
            let largest = self.loans.iter().max_by_key(|(call, loan)| (**loan, **call));
            let Some((call, loan)) = largest.map(|(call, loan)| (*call, *loan)) else {
                break;
            };
            let taken = loan.min(self.lent - units);
            self.give_back(call, taken);
            lost.push((call, taken));
        }
        lost
    }

    /// Lends up to `units`, and returns how many.
    pub fn get(&mut self, borrower: CallId, units: u64) -> u64 {
        let units = units.min(self.idle());
        if units > 0 {
            *self.loans.entry(borrower).or_default() += units;
            self.lent += units;
        }
        units
    }

    /// Takes up to `units` back from a borrower, and returns how many.
    pub fn give_back(&mut self, borrower: CallId, units: u64) -> u64 {
        let Some(loan) = self.loans.get_mut(&borrower) else {
            return 0;
        };
        let units = units.min(*loan);
        *loan -= units;
        self.lent -= units;
        if *loan == 0 {
            self.loans.remove(&borrower);
        }
        units
    }

    /// Units that nobody owns and nobody has.
    pub fn idle(&self) -> u64 {
        self.units.saturating_sub(self.lent)
    }

    /// Who has units, in the order of their ids.
    pub fn borrowers(&self) -> Vec<CallId> {
        self.loans.keys().copied().collect()
    }

    /// Units of a borrower.
    #[cfg(test)]
    pub fn loan(&self, borrower: CallId) -> u64 {
        self.loans.get(&borrower).copied().unwrap_or(0)
    }

    /// Units that are with borrowers.
    pub fn lent(&self) -> u64 {
        self.lent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shrinking_takes_from_the_largest_loan() {
        let mut unreserved = Unreserved::default();
        unreserved.resize(10);
        assert_eq!(unreserved.get(CallId(1), 3), 3);
        assert_eq!(unreserved.get(CallId(2), 9), 7);
        assert_eq!(unreserved.resize(8), [(CallId(2), 2)]);
        assert_eq!((unreserved.lent(), unreserved.idle()), (8, 0));
        assert_eq!(unreserved.resize(0).iter().map(|(_, units)| units).sum::<u64>(), 8);
        assert_eq!(unreserved.lent(), 0);
    }
}
