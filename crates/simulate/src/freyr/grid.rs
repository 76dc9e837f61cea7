//! The allocations that Freyr chooses from: eight steps of processor time by eight steps of memory.

use dayfly_harvest::Amount;
use serde::{Deserialize, Serialize};

use super::policy::{Action, STEPS};

/// Size of one step of each resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grid {
    milli_cores: u64,
    memory_bytes: u64,
}

impl Grid {
    /// Steps of a core and of 128 MiB: the most a function may have is then 8 cores and 1,024 MiB, as in LIBRA's
    /// evaluation of Freyr. The public repository has steps of 64 MiB.
    pub const PAPER: Self = Self {
        milli_cores: 1_000,
        memory_bytes: 128 << 20,
    };

    /// The coarser grid, if any, whose most in each resource reaches `most`.
    #[must_use]
    pub fn reaching(self, most: Amount) -> Self {
        let steps = u64::from(STEPS);
        Self {
            milli_cores: self.milli_cores.max(most.milli_cores.div_ceil(steps)),
            memory_bytes: self.memory_bytes.max(most.memory_bytes.div_ceil(steps)),
        }
    }

    /// Whether both steps are above 0.
    pub(super) fn is_valid(&self) -> bool {
        self.milli_cores > 0 && self.memory_bytes > 0
    }

    /// Steps that hold an amount: at least one, at most all.
    pub(super) fn steps(&self, amount: Amount) -> Action {
        let steps = |units: u64, step: u64| units.div_ceil(step).clamp(1, u64::from(STEPS)) as u8;
        Action {
            cpu: steps(amount.milli_cores, self.milli_cores),
            memory: steps(amount.memory_bytes, self.memory_bytes),
        }
    }

    /// The allocation of an action: in each resource exactly what is owned at the step of what is owned.
    pub(super) fn allocation(&self, action: Action, owned: Amount) -> Amount {
        let configured = self.steps(owned);
        let units = |chosen: u8, configured: u8, step: u64, owned: u64| {
            if chosen == configured {
                owned
            } else {
                step.saturating_mul(u64::from(chosen))
            }
        };
        Amount::new(
            units(action.cpu, configured.cpu, self.milli_cores, owned.milli_cores),
            units(action.memory, configured.memory, self.memory_bytes, owned.memory_bytes),
        )
    }

    pub(super) fn cpu_units(&self, amount: Amount) -> f64 {
        amount.milli_cores as f64 / self.milli_cores as f64
    }

    pub(super) fn memory_units(&self, amount: Amount) -> f64 {
        amount.memory_bytes as f64 / self.memory_bytes as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_of_what_is_owned_is_exactly_that() {
        for owned in [
            Amount::new(1_500, 200 << 20),
            Amount::new(0, 0),
            Amount::new(u64::MAX, u64::MAX),
        ] {
            assert_eq!(Grid::PAPER.allocation(Grid::PAPER.steps(owned), owned), owned);
        }
    }

    #[test]
    fn other_steps_differ_from_what_is_owned() {
        let owned = Amount::new(1_500, 200 << 20);
        let one = Grid::PAPER.allocation(Action { cpu: 1, memory: 1 }, owned);
        assert_eq!(one, Amount::new(1_000, 128 << 20));
        let three = Grid::PAPER.allocation(Action { cpu: 3, memory: 3 }, owned);
        assert_eq!(three, Amount::new(3_000, 384 << 20));
    }

    #[test]
    fn grid_reaches_the_largest_function() {
        let grid = Grid::PAPER.reaching(Amount::new(2_000, 4 << 30));
        assert_eq!(
            grid,
            Grid {
                milli_cores: 1_000,
                memory_bytes: 512 << 20
            }
        );
    }
}
