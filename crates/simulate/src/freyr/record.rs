//! What is remembered of a function's calls: the features of its next call, and what its safeguard allows.

use dayfly_harvest::Amount;

use super::grid::Grid;
use super::policy::{Allowed, STEPS};

/// A peak of this share of an amount counts as all of it.
const NEARLY_ALL: f64 = 0.9;

/// One function's calls until now. Takes constant memory, however many there were.
#[derive(Debug, Clone, Default)]
pub(super) struct Record {
    calls: u64,
    first_at_us: u64,
    last_at_us: u64,
    /// Intervals above 0 between calls.
    intervals: u64,
    succeeded: u64,
    cpu_peaks: f64,
    memory_peaks: f64,
    durations_us: f64,
    /// Duration that relative durations are relative to; `None` until a call ran with the configured allocation.
    baseline_us: Option<u64>,
    /// Duration of the last call that ran with the configured allocation.
    calibration_us: Option<u64>,
    /// Highest use since that call.
    recent_peak: Amount,
    last: Option<Ended>,
}

/// The call among those that ended that began last.
#[derive(Debug, Clone, Copy)]
struct Ended {
    number: u64,
    allocation: Amount,
    peak: Amount,
    succeeded: bool,
}

/// A call that runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Running {
    number: u64,
    pub(super) owned: Amount,
    pub(super) allocation: Amount,
    /// `None` for a call that calibrates: it ran as configured because of the safeguard.
    pub(super) baseline_us: Option<u64>,
}

/// What the safeguard decides for the next call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Guarded {
    pub(super) allowed: Allowed,
    /// The call runs as configured in at least one resource, and its duration becomes the baseline.
    pub(super) calibrates: bool,
}

impl Record {
    /// Decides by the last ended call. A call that used nearly all of less than it owns gives the *next* call what is
    /// configured; nothing happens to those that run.
    pub(super) fn guard(&self, grid: &Grid, owned: Amount) -> Guarded {
        let configured = grid.steps(owned);
        let Some(last) = self.last.filter(|last| last.succeeded) else {
            return Guarded {
                allowed: Allowed {
                    cpu: configured.cpu..=configured.cpu,
                    memory: configured.memory..=configured.memory,
                },
                calibrates: true,
            };
        };
        let (cpu, cpu_spikes) = range(
            configured.cpu,
            [owned, last.allocation, last.peak, self.recent_peak].map(|amount| grid.cpu_units(amount)),
        );
        let (memory, memory_spikes) = range(
            configured.memory,
            [owned, last.allocation, last.peak, self.recent_peak].map(|amount| grid.memory_units(amount)),
        );
        Guarded {
            allowed: Allowed { cpu, memory },
            calibrates: cpu_spikes || memory_spikes,
        }
    }

    /// A call begins.
    pub(super) fn begin(&mut self, now_us: u64, owned: Amount, allocation: Amount, calibrates: bool) -> Running {
        if self.calls == 0 {
            self.first_at_us = now_us;
        } else if now_us > self.last_at_us {
            self.intervals += 1;
        }
        self.last_at_us = self.last_at_us.max(now_us);
        self.calls += 1;
        self.baseline_us = if calibrates {
            None
        } else {
            self.baseline_us.or(self.calibration_us)
        };
        Running {
            number: self.calls,
            owned,
            allocation,
            baseline_us: self.baseline_us,
        }
    }

    /// A call ended.
    pub(super) fn end(&mut self, running: &Running, peak: Amount, duration_us: u64, succeeded: bool) {
        if succeeded {
            self.succeeded += 1;
            self.cpu_peaks += peak.milli_cores as f64;
            self.memory_peaks += peak.memory_bytes as f64;
            self.durations_us += duration_us as f64;
            if running.baseline_us.is_none() {
                self.calibration_us = Some(duration_us);
                self.recent_peak = peak;
            } else {
                self.recent_peak = self.recent_peak.max(peak);
            }
        }
        if self.last.is_none_or(|last| last.number < running.number) {
            self.last = Some(Ended {
                number: running.number,
                allocation: running.allocation,
                peak,
                succeeded,
            });
        }
    }

    /// Mean seconds between calls.
    pub(super) fn interval_s(&self) -> f64 {
        mean(self.last_at_us.saturating_sub(self.first_at_us) as f64, self.intervals) / 1e6
    }

    /// Calls a second since the start of the clock.
    pub(super) fn calls_per_s(&self, now_us: u64) -> f64 {
        if now_us == 0 {
            0.0
        } else {
            self.calls as f64 / (now_us as f64 / 1e6)
        }
    }

    /// Mean peak of use.
    pub(super) fn peak(&self) -> Amount {
        Amount::new(
            mean(self.cpu_peaks, self.succeeded) as u64,
            mean(self.memory_peaks, self.succeeded) as u64,
        )
    }

    pub(super) fn duration_s(&self) -> f64 {
        mean(self.durations_us, self.succeeded) / 1e6
    }

    pub(super) fn baseline_s(&self) -> f64 {
        self.baseline_us.unwrap_or(0) as f64 / 1e6
    }
}

fn mean(sum: f64, count: u64) -> f64 {
    if count == 0 { 0.0 } else { sum / count as f64 }
}

/// Allowed steps of one resource, and whether the last call's use spiked. Amounts are in steps.
fn range(configured: u8, [owned, allocation, peak, recent]: [f64; 4]) -> (std::ops::RangeInclusive<u8>, bool) {
    let above_recent = |most: u8| (recent as u64).saturating_add(1).min(u64::from(most)) as u8;
    if peak > NEARLY_ALL * owned {
        return (above_recent(STEPS)..=STEPS, false);
    }
    if peak >= NEARLY_ALL * allocation {
        return (configured..=configured, true);
    }
    (above_recent(configured)..=configured, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const OWNED: Amount = Amount::new(4_000, 512 * MIB);

    fn ran(record: &mut Record, allocation: Amount, peak: Amount, calibrates: bool, succeeded: bool) {
        let running = record.begin(1_000_000, OWNED, allocation, calibrates);
        record.end(&running, peak, 2_000_000, succeeded);
    }

    #[test]
    fn first_call_runs_as_configured() {
        let guarded = Record::default().guard(&Grid::PAPER, OWNED);
        assert!(guarded.calibrates);
        assert_eq!(
            guarded.allowed,
            Allowed {
                cpu: 4..=4,
                memory: 4..=4
            }
        );
    }

    #[test]
    fn idle_function_is_harvested_down_to_its_peak() {
        let mut record = Record::default();
        ran(&mut record, OWNED, Amount::new(1_500, 100 * MIB), true, true);
        let guarded = record.guard(&Grid::PAPER, OWNED);
        assert!(!guarded.calibrates);
        assert_eq!(
            guarded.allowed,
            Allowed {
                cpu: 2..=4,
                memory: 1..=4
            }
        );
    }

    #[test]
    fn busy_function_is_accelerated_up_to_the_cap() {
        let mut record = Record::default();
        ran(&mut record, OWNED, Amount::new(3_900, 100 * MIB), true, true);
        assert_eq!(
            record.guard(&Grid::PAPER, OWNED).allowed,
            Allowed {
                cpu: 4..=8,
                memory: 1..=4
            }
        );
    }

    #[test]
    fn spike_after_harvest_gives_next_call_its_own() {
        let mut record = Record::default();
        ran(&mut record, OWNED, Amount::new(1_500, 100 * MIB), true, true);
        ran(
            &mut record,
            Amount::new(2_000, 512 * MIB),
            Amount::new(1_900, 100 * MIB),
            false,
            true,
        );
        let guarded = record.guard(&Grid::PAPER, OWNED);
        assert!(guarded.calibrates);
        assert_eq!(
            guarded.allowed,
            Allowed {
                cpu: 4..=4,
                memory: 1..=4
            }
        );
        ran(&mut record, OWNED, Amount::new(2_900, 100 * MIB), true, true);
        assert_eq!(record.guard(&Grid::PAPER, OWNED).allowed.cpu, 3..=4);
    }

    #[test]
    fn failed_call_gives_next_call_its_own() {
        let mut record = Record::default();
        ran(&mut record, OWNED, Amount::new(1_500, 100 * MIB), true, true);
        ran(&mut record, OWNED, Amount::new(1_500, 100 * MIB), false, false);
        assert!(record.guard(&Grid::PAPER, OWNED).calibrates);
    }

    #[test]
    fn baseline_is_the_last_calibration() {
        let mut record = Record::default();
        ran(&mut record, OWNED, Amount::new(1_500, 100 * MIB), true, true);
        let running = record.begin(3_000_000, OWNED, OWNED, false);
        assert_eq!(running.baseline_us, Some(2_000_000));
        assert_eq!(record.begin(4_000_000, OWNED, OWNED, true).baseline_us, None);
    }

    #[test]
    fn late_end_of_older_call_leaves_last_call() {
        let mut record = Record::default();
        let older = record.begin(0, OWNED, OWNED, true);
        let newer = record.begin(0, OWNED, OWNED, true);
        record.end(&newer, Amount::new(1_500, 100 * MIB), 1, true);
        record.end(&older, Amount::ZERO, 1, false);
        assert!(!record.guard(&Grid::PAPER, OWNED).calibrates);
    }
}
