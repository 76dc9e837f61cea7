//! Limits on what a tenant may hold and spend.

use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::tenancy::TenantSpec;

use crate::quantity::Quantity;

/// Resources that leases hold together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
    /// Number of leases.
    pub leases: u32,
    /// Number of workers.
    pub workers: u32,
    /// Cores of all workers, both exclusive and shared.
    pub cores: MilliCores,
    /// Memory in bytes.
    pub memory_bytes: u64,
}

impl Held {
    /// Returns the resources of one lease.
    pub fn by_one(workers: u16, cores_per_worker: MilliCores, memory_bytes: u64) -> Self {
        Self {
            leases: 1,
            workers: workers.into(),
            cores: cores_per_worker * workers.into(),
            memory_bytes,
        }
    }

    /// Returns the sum. Saturates.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            leases: self.leases.saturating_add(other.leases),
            workers: self.workers.saturating_add(other.workers),
            cores: self.cores.plus(other.cores),
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
        }
    }

    /// Returns the difference. Saturates at 0.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self {
            leases: self.leases.saturating_sub(other.leases),
            workers: self.workers.saturating_sub(other.workers),
            cores: self.cores.minus(other.cores),
            memory_bytes: self.memory_bytes.saturating_sub(other.memory_bytes),
        }
    }
}

/// Why a tenant gets no further resources.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuotaError {
    /// An administrator suspended the tenant.
    #[error("the tenant `{0}` is suspended; ask an administrator of this site")]
    Suspended(String),
    /// The budget is spent.
    #[error(
        "the tenant `{tenant}` has spent {spent} of its budget of {budget} (billionths of the site's unit of account); \
         ask an administrator of this site for more"
    )]
    Spent {
        /// Name of the tenant.
        tenant: String,
        /// Amount spent, in billionths.
        spent: u64,
        /// Budget, in billionths.
        budget: u64,
    },
    /// A quota would be exceeded.
    #[error(
        "the tenant `{tenant}` holds {held} {what} and wants {wanted} more, of at most {most}; release a lease, or ask \
         for less"
    )]
    Holds {
        /// Name of the tenant.
        tenant: String,
        /// Name of the resource.
        what: &'static str,
        /// Amount held now.
        held: Quantity,
        /// Additional amount requested.
        wanted: Quantity,
        /// The quota.
        most: Quantity,
    },
}

impl From<QuotaError> for Failure {
    fn from(error: QuotaError) -> Self {
        Failure::new(Code::QuotaExceeded, error.to_string())
    }
}

/// Checks that a tenant that has spent `spent` billionths is neither suspended nor over budget.
pub fn may_spend(tenant: &str, spec: &TenantSpec, spent: u64) -> Result<(), QuotaError> {
    if spec.suspended {
        return Err(QuotaError::Suspended(tenant.to_owned()));
    }
    match spec.budget {
        Some(budget) if spent >= budget => Err(QuotaError::Spent {
            tenant: tenant.to_owned(),
            spent,
            budget,
        }),
        _ => Ok(()),
    }
}

/// Checks that a tenant that holds `held` may hold `wanted` more.
pub fn may_hold(tenant: &str, spec: &TenantSpec, held: Held, wanted: Held) -> Result<(), QuotaError> {
    let quota = &spec.quota;
    let bounds: [(&str, Quantity, Quantity, Option<Quantity>); 4] = [
        (
            "leases",
            held.leases.into(),
            wanted.leases.into(),
            quota.leases.map(Quantity::from),
        ),
        (
            "workers",
            held.workers.into(),
            wanted.workers.into(),
            quota.workers.map(Quantity::from),
        ),
        (
            "cores",
            held.cores.into(),
            wanted.cores.into(),
            quota.cores.map(|cores| MilliCores::from(cores).into()),
        ),
        (
            "bytes of memory",
            held.memory_bytes.into(),
            wanted.memory_bytes.into(),
            quota.memory_bytes.map(Quantity::from),
        ),
    ];
    for (what, held, wanted, most) in bounds {
        if let Some(most) = most
            && held.plus(wanted) > most
        {
            return Err(QuotaError::Holds {
                tenant: tenant.to_owned(),
                what,
                held,
                wanted,
                most,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use dayfly_protocol::tenancy::Quota;
    use proptest::prelude::*;

    use super::*;

    fn spec(change: impl FnOnce(&mut TenantSpec)) -> TenantSpec {
        let mut spec = TenantSpec::default();
        change(&mut spec);
        spec
    }

    #[test]
    fn tenant_without_limits_may_hold_everything() {
        let all = Held::by_one(u16::MAX, MilliCores::from(u16::MAX), u64::MAX);
        assert_eq!(may_hold("t", &TenantSpec::default(), all, all), Ok(()));
        assert_eq!(may_spend("t", &TenantSpec::default(), u64::MAX), Ok(()));
    }

    #[test]
    fn error_names_the_limit_with_held_and_wanted() {
        let quota = Quota {
            leases: Some(2),
            workers: Some(4),
            cores: Some(8),
            memory_bytes: Some(100),
        };
        let spec = spec(|spec| spec.quota = quota);
        let by_one = |workers, cores: u16, bytes| Held::by_one(workers, cores.into(), bytes);
        let held = by_one(2, 2, 50);
        assert_eq!(may_hold("t", &spec, held, by_one(2, 2, 50)), Ok(()));
        for (wanted, word) in [
            (
                Held {
                    leases: 2,
                    ..Held::default()
                },
                "leases",
            ),
            (by_one(3, 1, 0), "workers"),
            (by_one(1, 5, 0), "cores"),
            (by_one(1, 1, 51), "bytes of memory"),
        ] {
            let text = may_hold("t", &spec, held, wanted).unwrap_err().to_string();
            assert!(text.contains(word), "{text}");
        }
    }

    #[test]
    fn quota_of_cores_counts_thousandths() {
        let spec = spec(|spec| spec.quota.cores = Some(1));
        let one = |cores| Held::by_one(1, MilliCores::new(cores), 0);
        assert_eq!(may_hold("t", &spec, one(500), one(500)), Ok(()));
        let text = may_hold("t", &spec, one(500), one(501)).unwrap_err().to_string();
        assert!(
            text.contains("holds 0.5 cores and wants 0.501 more, of at most 1"),
            "{text}"
        );
    }

    #[test]
    fn tenant_over_budget_or_suspended_is_refused() {
        let poor = spec(|spec| spec.budget = Some(10));
        assert_eq!(may_spend("t", &poor, 9), Ok(()));
        assert!(matches!(may_spend("t", &poor, 10), Err(QuotaError::Spent { .. })));
        let suspended = spec(|spec| spec.suspended = true);
        assert!(matches!(may_spend("t", &suspended, 0), Err(QuotaError::Suspended(_))));
    }

    proptest! {
        #[test]
        fn held_resources_never_exceed_the_quota(
            most in 0..50u32,
            steps in proptest::collection::vec((any::<bool>(), 1..20u16), 1..50),
        ) {
            let spec = spec(|spec| spec.quota.workers = Some(most));
            let mut leases: Vec<Held> = Vec::new();
            let mut held = Held::default();
            for (gets, workers) in steps {
                let wanted = Held::by_one(workers, MilliCores::ONE, 0);
                if gets && may_hold("t", &spec, held, wanted).is_ok() {
                    held = held.plus(wanted);
                    leases.push(wanted);
                } else if let Some(lease) = leases.pop() {
                    held = held.minus(lease);
                }
                prop_assert!(held.workers <= most);
                prop_assert_eq!(held, leases.iter().fold(Held::default(), |sum, lease| sum.plus(*lease)));
            }
        }
    }
}
