//! What a task's last execution owned, used, lent and borrowed, as it is stored.

use dayfly_protocol::api::LoanSeries;
use dayfly_protocol::dispatch::Attempt;
use dayfly_protocol::ids::EndpointId;

/// What an execution lent and borrowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredLoans {
    /// The execution.
    pub attempt: Attempt,
    /// The endpoint that reports it.
    pub endpoint: EndpointId,
    /// What it had over time.
    pub series: LoanSeries,
}

impl StoredLoans {
    /// Returns the series encoded for one column.
    pub(crate) fn packed(&self) -> Vec<u8> {
        // MessagePack can encode any numbers.
        rmp_serde::to_vec(&self.series).unwrap_or_default()
    }

    /// Decodes [`StoredLoans::packed`]. Returns `None` if it is malformed.
    pub(crate) fn unpacked(column: &[u8]) -> Option<LoanSeries> {
        rmp_serde::from_slice::<LoanSeries>(column)
            .ok()
            .and_then(LoanSeries::within_bounds)
    }
}

#[cfg(test)]
mod tests {
    use dayfly_protocol::api::{CallResources, LoanPoint, MAX_LOAN_POINTS};
    use dayfly_protocol::ids::TaskId;

    use super::*;

    #[test]
    fn largest_series_is_small_and_survives() {
        let most = CallResources {
            milli_cores: 1_000_000_000,
            memory_bytes: 1 << 60,
        };
        let point = LoanPoint {
            us: 40_000_000_000_000,
            owned: most,
            used: most,
            lent: most,
            borrowed: most,
        };
        let loans = StoredLoans {
            attempt: Attempt {
                task: TaskId([1; 16]),
                number: 1,
            },
            endpoint: EndpointId([2; 16]),
            series: LoanSeries::checked(vec![point; MAX_LOAN_POINTS]).unwrap(),
        };
        let packed = loans.packed();
        assert!(packed.len() < 5 << 10, "{}", packed.len());
        assert_eq!(StoredLoans::unpacked(&packed), Some(loans.series.clone()));
        for end in 0..packed.len() {
            assert_eq!(StoredLoans::unpacked(&packed[..end]), None, "{end}");
        }
    }
}
