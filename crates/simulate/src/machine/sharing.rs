//! How calls share processors.

use super::Running;

/// A call that wants more than it owns, in thousandths of a core.
struct Borrower<'a> {
    rate: &'a mut u64,
    wanted: u64,
    borrowed: u64,
}

/// Sets the rates of calls: those who own come first, borrowers share what is left in proportion to their loans.
pub(super) fn share<'a>(capacity: u64, calls: impl Iterator<Item = &'a mut Running>) {
    let mut left = capacity;
    let mut borrowers = Vec::new();
    for call in calls {
        let allowed = call.parallelism().min(call.limit.milli_cores);
        call.rate = allowed.min(call.owned.milli_cores).min(left);
        left -= call.rate;
        let wanted = allowed.saturating_sub(call.owned.milli_cores);
        if wanted > 0 {
            let borrowed = call.limit.milli_cores - call.owned.milli_cores;
            borrowers.push(Borrower {
                rate: &mut call.rate,
                wanted,
                borrowed,
            });
        }
    }
    fill(left, borrowers);
}

/// Divides what is left by weight. What one does not want goes to the others (progressive filling).
fn fill(mut left: u64, mut borrowers: Vec<Borrower<'_>>) {
    while left > 0 && !borrowers.is_empty() {
        let weights: u128 = borrowers.iter().map(|borrower| u128::from(borrower.borrowed)).sum();
        let available = left;
        let part = |borrower: &Borrower<'_>| (u128::from(available) * u128::from(borrower.borrowed) / weights) as u64;
        let count = borrowers.len();
        let mut unsatisfied = Vec::with_capacity(count);
        for borrower in borrowers {
            if borrower.wanted <= part(&borrower) {
                *borrower.rate += borrower.wanted;
                left -= borrower.wanted;
            } else {
                unsatisfied.push(borrower);
            }
        }
        if unsatisfied.len() == count {
            for borrower in unsatisfied {
                *borrower.rate += part(&borrower);
            }
            return;
        }
        borrowers = unsatisfied;
    }
}
