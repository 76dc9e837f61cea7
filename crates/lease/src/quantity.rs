//! Amounts in messages about limits.

use std::fmt;

use dayfly_protocol::cores::MilliCores;

/// An amount of a resource. Only amounts of the same kind are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quantity {
    /// A number of workers, bytes or other whole things.
    Count(u64),
    /// Cores.
    Cores(MilliCores),
}

impl Quantity {
    /// Returns the sum. Saturates.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        match (self, other) {
            (Self::Count(one), Self::Count(other)) => Self::Count(one.saturating_add(other)),
            (Self::Cores(one), Self::Cores(other)) => Self::Cores(one.plus(other)),
            // Nobody adds workers to cores.
            (one, _) => one,
        }
    }
}

impl From<u64> for Quantity {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<u32> for Quantity {
    fn from(count: u32) -> Self {
        Self::Count(count.into())
    }
}

impl From<u16> for Quantity {
    fn from(count: u16) -> Self {
        Self::Count(count.into())
    }
}

impl From<MilliCores> for Quantity {
    fn from(cores: MilliCores) -> Self {
        Self::Cores(cores)
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => count.fmt(f),
            Self::Cores(cores) => cores.fmt(f),
        }
    }
}
