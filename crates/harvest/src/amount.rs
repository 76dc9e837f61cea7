//! Amounts of processor time and memory.

use std::ops::{Add, AddAssign, Sub, SubAssign};

use serde::{Deserialize, Serialize};

/// What is harvested: each is harvested by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// Processor time.
    Cpu,
    /// Memory.
    Memory,
}

impl Resource {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::Cpu, Self::Memory];
}

/// An amount of each resource. Arithmetic saturates: an amount is never negative and never wraps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Amount {
    /// Thousandths of a core.
    pub milli_cores: u64,
    /// Bytes of memory.
    pub memory_bytes: u64,
}

impl Amount {
    /// Nothing.
    pub const ZERO: Self = Self::new(0, 0);

    /// An amount of both.
    pub const fn new(milli_cores: u64, memory_bytes: u64) -> Self {
        Self {
            milli_cores,
            memory_bytes,
        }
    }

    /// Units of one resource: thousandths of a core, or bytes.
    pub fn get(&self, resource: Resource) -> u64 {
        match resource {
            Resource::Cpu => self.milli_cores,
            Resource::Memory => self.memory_bytes,
        }
    }

    /// Changes the units of one resource.
    pub fn get_mut(&mut self, resource: Resource) -> &mut u64 {
        match resource {
            Resource::Cpu => &mut self.milli_cores,
            Resource::Memory => &mut self.memory_bytes,
        }
    }

    /// The larger of the two, resource by resource.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self::new(
            self.milli_cores.max(other.milli_cores),
            self.memory_bytes.max(other.memory_bytes),
        )
    }

    /// The smaller of the two, resource by resource.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self::new(
            self.milli_cores.min(other.milli_cores),
            self.memory_bytes.min(other.memory_bytes),
        )
    }

    /// Whether it holds at least as much of each resource.
    pub fn covers(&self, other: &Self) -> bool {
        self.milli_cores >= other.milli_cores && self.memory_bytes >= other.memory_bytes
    }
}

impl Add for Amount {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self::new(
            self.milli_cores.saturating_add(other.milli_cores),
            self.memory_bytes.saturating_add(other.memory_bytes),
        )
    }
}

impl Sub for Amount {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self::new(
            self.milli_cores.saturating_sub(other.milli_cores),
            self.memory_bytes.saturating_sub(other.memory_bytes),
        )
    }
}

impl AddAssign for Amount {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl SubAssign for Amount {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}
