//! What a site, or a published system, decides differently from others.

use serde::{Deserialize, Serialize};

use crate::amount::{Amount, Resource};
use crate::demand::{Demand, Prediction};

const MIB: u64 = 1 << 20;

/// Rules of one node.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rules {
    /// A lender keeps its predicted use divided by this. It equals the safeguard's threshold in our rules, so that a
    /// prediction that is right does not set off the safeguard.
    pub headroom: f64,
    /// Share of what it kept at which a lender gets everything back.
    pub safeguard: Option<f64>,
    /// Share of its time, in millionths, that a lender may wait for a processor before it gets everything back.
    pub max_waiting_ppm: u32,
    /// A lender's limit falls to what it kept, as in LIBRA and Freyr. Ours never lowers it: the borrower has less weight.
    pub lowers_lenders: bool,
    /// Units that become free go to running calls that want more, not only to calls that begin.
    pub regrants: bool,
    /// Capacity that no running call owns is lent as well, until a call begins that needs it.
    pub lends_unreserved: bool,
    /// A borrower returns units that it did not use for two windows.
    pub returns_unused: bool,
    /// Lends between calls of one tenant only.
    pub stays_within_tenant: bool,
    /// The most that a call of a function without a profile may have.
    pub profiling: Amount,
    /// The least that a lender keeps.
    pub floor: Amount,
    /// Less than this is not worth a change of limits.
    pub min_loan: Amount,
    /// Calls that are expected to be shorter are left alone, in microseconds.
    pub min_duration_us: u64,
    /// Length of the windows in which use is measured, in microseconds.
    pub window_us: u64,
    /// Time in which a borrower gives memory back before it is ended, in microseconds.
    pub reclaim_us: u64,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            headroom: 0.8,
            safeguard: Some(0.8),
            max_waiting_ppm: 20_000,
            lowers_lenders: false,
            regrants: true,
            lends_unreserved: true,
            returns_unused: true,
            stays_within_tenant: false,
            profiling: Amount::new(8_000, 1_024 * MIB),
            floor: Amount::new(100, 64 * MIB),
            // The kernel's shortest quota is 1 ms of a period of 100 ms, a hundredth of a core: five of them.
            min_loan: Amount::new(50, 16 * MIB),
            min_duration_us: 20_000,
            window_us: 100_000,
            reclaim_us: 100_000,
        }
    }
}

impl Rules {
    /// LIBRA as published (section 5): the lender keeps what was predicted and is held to it, the safeguard recalls at
    /// 80 % of that, and a call borrows when it begins.
    pub fn libra() -> Self {
        Self {
            headroom: 1.0,
            lowers_lenders: true,
            regrants: false,
            lends_unreserved: false,
            returns_unused: false,
            max_waiting_ppm: u32::MAX,
            min_duration_us: 0,
            ..Self::default()
        }
    }

    /// What a lender keeps of `owned`, if it is expected to use up to `high` and uses `now`.
    pub fn kept(&self, resource: Resource, owned: u64, high: u64, now: u64) -> u64 {
        let floor = self.floor.get(resource).min(owned);
        with_headroom(high.max(now), self.headroom).clamp(floor, owned)
    }

    /// Whether a call is expected to be so short that it is left alone.
    pub fn leaves_alone(&self, prediction: &Prediction) -> bool {
        prediction.median_us < self.min_duration_us
    }

    /// What a call of this demand wants above what it owns.
    pub fn wanted(&self, demand: &Demand, owned: Amount) -> Amount {
        match demand {
            Demand::Unknown => Amount::ZERO,
            Demand::Profiling => self.profiling - owned,
            Demand::Known(prediction) if self.leaves_alone(prediction) => Amount::ZERO,
            Demand::Known(prediction) => prediction.median - owned,
        }
    }

    /// Whether a lender that kept `kept` and uses `now` needs the rest.
    pub fn exceeds(&self, kept: u64, now: u64) -> bool {
        self.safeguard.is_some_and(|share| now as f64 > share * kept as f64)
    }
}

/// The amount of which `units` are the share `headroom`, rounded up. A headroom outside of 0 to 1 counts as 1.
pub(crate) fn with_headroom(units: u64, headroom: f64) -> u64 {
    let headroom = if headroom > 0.0 { headroom.min(1.0) } else { 1.0 };
    // Casts from f64 saturate.
    (units as f64 / headroom).ceil() as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn right_prediction_never_exceeds_what_was_kept(owned in 0..1u64 << 40, high: u64, share in 0.0..=1.0f64) {
            let rules = Rules::default();
            let kept = rules.kept(Resource::Memory, owned, high, 0);
            prop_assert!(kept <= owned);
            let used = (high.min(owned) as f64 * share) as u64;
            prop_assert!(kept == owned || !rules.exceeds(kept, used), "{kept} {used}");
        }
    }
}
