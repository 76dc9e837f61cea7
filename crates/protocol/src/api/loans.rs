//! Terms of loans: whether calls lend what they do not use, and what they may borrow.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::named::named_enum;

named_enum! {
    /// What calls may borrow while others do not use it.
    #[derive(Default)]
    Borrow, "what calls may borrow" {
        /// Nothing.
        None = "none",
        /// Processor time.
        #[default]
        Cpu = "cpu",
        /// Processor time and memory. A call that cannot return borrowed memory in time is ended.
        CpuAndMemory = "cpu,memory",
    }
}

impl Borrow {
    /// Whether processor time may be borrowed.
    pub fn has_cpu(self) -> bool {
        self != Self::None
    }

    /// Whether memory may be borrowed.
    pub fn has_memory(self) -> bool {
        self == Self::CpuAndMemory
    }
}

/// What the calls of a lease lend and borrow, where the node harvests and its site allows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct LoanTerms {
    /// Whether calls lend what they own and do not use. They get it back when they need it.
    #[serde(skip_serializing_if = "is_true")]
    pub lend: bool,
    /// What calls may borrow.
    #[serde(skip_serializing_if = "super::is_default")]
    pub borrow: Borrow,
}

impl Default for LoanTerms {
    fn default() -> Self {
        Self {
            lend: true,
            borrow: Borrow::default(),
        }
    }
}

/// What the calls of a lease lent and borrowed. All quantities are totals that never decrease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct LoanUsage {
    /// Processor time that others had of its calls, in microseconds of one core.
    pub lent_core_us: u64,
    /// Processor time that its calls had of others, in microseconds of one core.
    pub borrowed_core_us: u64,
    /// Memory that others had of its calls, in MiB times seconds.
    pub lent_mib_s: u64,
    /// Memory that its calls had of others, in MiB times seconds.
    pub borrowed_mib_s: u64,
    /// Time that its calls waited for processor time that they own, while they lent, in microseconds. It is no part of
    /// `computing_us`.
    pub waited_us: u64,
}

impl LoanUsage {
    /// Returns the larger value of each quantity. Totals therefore never decrease, in whatever order they arrive.
    #[must_use]
    pub fn merged(self, other: Self) -> Self {
        Self {
            lent_core_us: self.lent_core_us.max(other.lent_core_us),
            borrowed_core_us: self.borrowed_core_us.max(other.borrowed_core_us),
            lent_mib_s: self.lent_mib_s.max(other.lent_mib_s),
            borrowed_mib_s: self.borrowed_mib_s.max(other.borrowed_mib_s),
            waited_us: self.waited_us.max(other.waited_us),
        }
    }
}

fn is_true(value: &bool) -> bool {
    *value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_terms_are_absent_in_json() {
        assert_eq!(serde_json::to_string(&LoanTerms::default()).unwrap(), "{}");
        assert_eq!(serde_json::from_str::<LoanTerms>("{}").unwrap(), LoanTerms::default());
    }

    #[test]
    fn terms_survive_json() {
        for borrow in Borrow::ALL {
            for lend in [true, false] {
                let terms = LoanTerms { lend, borrow };
                let text = serde_json::to_string(&terms).unwrap();
                assert_eq!(serde_json::from_str::<LoanTerms>(&text).unwrap(), terms, "{text}");
            }
        }
        assert!(serde_json::from_str::<LoanTerms>(r#"{"borrow":"gpu"}"#).is_err());
    }

    #[test]
    fn memory_is_borrowed_only_with_cpu() {
        assert!(Borrow::CpuAndMemory.has_cpu() && Borrow::CpuAndMemory.has_memory());
        assert!(Borrow::Cpu.has_cpu() && !Borrow::Cpu.has_memory());
        assert!(!Borrow::None.has_cpu() && !Borrow::None.has_memory());
        assert!(Borrow::None < Borrow::Cpu && Borrow::Cpu < Borrow::CpuAndMemory);
    }
}
