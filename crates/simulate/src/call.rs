//! One call of a trace: what is known about it, and what it will turn out to need.

use std::ops::Deref;

use dayfly_harvest::{Amount, Features, FunctionId, TenantId};
use serde::{Deserialize, Serialize};

/// Phases of one call at most.
pub const MAX_PHASES: usize = 4;
/// Microseconds of one core that a phase works at most: eleven days.
pub const MAX_CORE_US: u64 = 1_000_000_000_000;
/// Thousandths of a core that a phase can use at most.
pub const MAX_MILLI_CORES: u64 = 1_000_000;
/// Bytes of memory that a phase needs at most: a tebibyte.
pub const MAX_MEMORY_BYTES: u64 = 1 << 40;

/// A part of a call in which its demand does not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Phase {
    /// Work: microseconds of one core.
    pub core_us: u64,
    /// Thousandths of a core that it can use at most. Below 1000 it mostly waits for something else.
    pub milli_cores: u64,
    /// The most memory that it needs, in bytes.
    pub memory_bytes: u64,
}

impl Phase {
    /// Microseconds that it takes with an allocation of thousandths of a core; `u64::MAX` with none.
    pub fn duration_us(&self, allocated_milli_cores: u64) -> u64 {
        let rate = self.milli_cores.min(allocated_milli_cores);
        match (self.core_us, rate) {
            (0, _) => 0,
            (_, 0) => u64::MAX,
            (work, rate) => u64::try_from((u128::from(work) * 1000).div_ceil(u128::from(rate))).unwrap_or(u64::MAX),
        }
    }
}

/// The phases of a call in their order: at least one, at most [`MAX_PHASES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Phase>", into = "Vec<Phase>")]
pub struct Phases {
    list: [Phase; MAX_PHASES],
    count: u8,
}

impl Phases {
    /// Phases in their order. `None` if there are none, too many, one that exceeds a bound of this module, or one that
    /// has work and can use no core.
    pub fn new(phases: &[Phase]) -> Option<Self> {
        let are_bounded = phases.iter().all(|phase| {
            phase.core_us <= MAX_CORE_US
                && phase.milli_cores <= MAX_MILLI_CORES
                && phase.memory_bytes <= MAX_MEMORY_BYTES
                && (phase.core_us == 0 || phase.milli_cores > 0)
        });
        if phases.is_empty() || phases.len() > MAX_PHASES || !are_bounded {
            return None;
        }
        let mut list = [Phase::default(); MAX_PHASES];
        list[..phases.len()].copy_from_slice(phases);
        Some(Self {
            list,
            count: phases.len() as u8,
        })
    }
}

impl Deref for Phases {
    type Target = [Phase];

    fn deref(&self) -> &[Phase] {
        &self.list[..usize::from(self.count)]
    }
}

impl From<Phases> for Vec<Phase> {
    fn from(phases: Phases) -> Self {
        phases.to_vec()
    }
}

impl TryFrom<Vec<Phase>> for Phases {
    type Error = &'static str;

    fn try_from(phases: Vec<Phase>) -> Result<Self, Self::Error> {
        Self::new(&phases).ok_or("a call has one to four phases, each within its bounds")
    }
}

/// One call of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// When it arrives: microseconds since the trace's begin.
    pub arrival_us: u64,
    /// Its function, which belongs to its tenant.
    pub function: FunctionId,
    /// Its tenant.
    pub tenant: TenantId,
    /// What is known before it runs.
    pub features: Features,
    /// What its function is configured to get.
    pub owned: Amount,
    /// What it will turn out to need. No policy but the oracle may look at it.
    pub phases: Phases,
    /// Whether it lends what it does not use.
    pub lend: bool,
    /// Whether it borrows processor time.
    pub borrow_cpu: bool,
    /// Whether it borrows memory.
    pub borrow_memory: bool,
}

impl Call {
    /// Its work: microseconds of one core.
    pub fn core_us(&self) -> u64 {
        self.phases.iter().map(|phase| phase.core_us).sum()
    }

    /// The most that it can use at a time.
    pub fn peak(&self) -> Amount {
        self.phases.iter().fold(Amount::ZERO, |peak, phase| {
            peak.max(Amount::new(phase.milli_cores, phase.memory_bytes))
        })
    }

    /// The most memory that it needs, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.peak().memory_bytes
    }

    /// Microseconds that it takes with an allocation of thousandths of a core from begin to end.
    pub fn duration_us(&self, allocated_milli_cores: u64) -> u64 {
        self.phases.iter().fold(0, |sum: u64, phase| {
            sum.saturating_add(phase.duration_us(allocated_milli_cores))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(core_us: u64, milli_cores: u64) -> Phase {
        Phase {
            core_us,
            milli_cores,
            memory_bytes: 1,
        }
    }

    #[test]
    fn phase_takes_its_work_over_usable_cores() {
        assert_eq!(phase(1_000, 4_000).duration_us(8_000), 250);
        assert_eq!(phase(1_000, 4_000).duration_us(2_000), 500);
        assert_eq!(phase(1_000, 100).duration_us(8_000), 10_000);
        assert_eq!(phase(1, 1).duration_us(0), u64::MAX);
        assert_eq!(phase(0, 0).duration_us(0), 0);
    }

    #[test]
    fn phases_beyond_their_bounds_are_refused() {
        assert!(Phases::new(&[]).is_none());
        assert!(Phases::new(&[phase(1, 1); MAX_PHASES + 1]).is_none());
        assert!(Phases::new(&[phase(1, 0)]).is_none());
        assert!(Phases::new(&[phase(u64::MAX, 1)]).is_none());
        assert_eq!(Phases::new(&[phase(1, 1); 2]).unwrap().len(), 2);
    }
}
