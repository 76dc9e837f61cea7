//! A clock that costs nanoseconds: the time stamp counter, calibrated against the monotonic clock.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Converts ticks of [`Tsc::now`] to nanoseconds.
///
/// Without a time stamp counter, ticks are nanoseconds of the monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tsc {
    ns_per_tick: f64,
}

/// Long enough that the two clock reads at either end (some 50 ns) shift the rate by less than 1 in 100,000.
const CALIBRATION: Duration = Duration::from_millis(20);

impl Tsc {
    /// Returns the calibrated clock of this machine. The first call takes 20 ms.
    pub fn get() -> Self {
        static TSC: OnceLock<Tsc> = OnceLock::new();
        *TSC.get_or_init(Self::calibrate)
    }

    /// Returns the current ticks. Not serialising: some nanoseconds of the work around it may move past it, on both
    /// sides of a comparison alike. Use [`Tsc::now_ordered`] for single events.
    #[inline(always)]
    pub fn now() -> u64 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86_64 processor has RDTSC; it touches no memory.
        unsafe {
            core::arch::x86_64::_rdtsc()
        }
        #[cfg(not(target_arch = "x86_64"))]
        monotonic_ns()
    }

    /// Returns the current ticks, after all earlier instructions and before all later ones.
    #[inline(always)]
    pub fn now_ordered() -> u64 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: LFENCE is part of SSE2, which x86_64 always has; neither instruction touches memory.
        unsafe {
            core::arch::x86_64::_mm_lfence();
            let ticks = core::arch::x86_64::_rdtsc();
            core::arch::x86_64::_mm_lfence();
            ticks
        }
        #[cfg(not(target_arch = "x86_64"))]
        monotonic_ns()
    }

    /// Converts ticks to nanoseconds.
    #[inline]
    pub fn ns(self, ticks: u64) -> f64 {
        ticks as f64 * self.ns_per_tick
    }

    /// Converts a duration to ticks.
    pub fn ticks(self, time: Duration) -> u64 {
        (time.as_nanos() as f64 / self.ns_per_tick) as u64
    }

    /// Ticks per second, in millions.
    pub fn mhz(self) -> f64 {
        1000.0 / self.ns_per_tick
    }

    /// The smallest visible step of the counter in nanoseconds. Some processors and hypervisors advance it by
    /// many ticks at once, which limits the precision of a single latency.
    pub fn step_ns() -> f64 {
        let mut last = Self::now();
        let mut step = u64::MAX;
        for _ in 0..10_000 {
            let now = Self::now();
            if now > last {
                step = step.min(now - last);
            }
            last = now;
        }
        if step == u64::MAX { 0.0 } else { Self::get().ns(step) }
    }

    fn calibrate() -> Self {
        if cfg!(not(target_arch = "x86_64")) {
            return Tsc { ns_per_tick: 1.0 };
        }
        let (wall, ticks) = (Instant::now(), Self::now_ordered());
        while wall.elapsed() < CALIBRATION {
            std::hint::spin_loop();
        }
        let (wall, ticks) = (wall.elapsed(), Self::now_ordered().wrapping_sub(ticks));
        Tsc {
            ns_per_tick: wall.as_nanos() as f64 / ticks.max(1) as f64,
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn monotonic_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calibrated_counter_matches_monotonic_clock() {
        let tsc = Tsc::get();
        let (wall, ticks) = (Instant::now(), Tsc::now_ordered());
        while wall.elapsed() < Duration::from_millis(5) {
            std::hint::spin_loop();
        }
        let (ticks, wall) = (Tsc::now_ordered() - ticks, wall.elapsed().as_nanos() as f64);
        assert!(
            (tsc.ns(ticks) / wall - 1.0).abs() < 0.02,
            "{} ns against {wall} ns",
            tsc.ns(ticks)
        );
    }

    #[test]
    fn duration_survives_conversion_to_ticks() {
        let tsc = Tsc::get();
        let ns = tsc.ns(tsc.ticks(Duration::from_millis(3)));
        assert!((ns - 3_000_000.0).abs() < 10.0, "{ns}");
    }
}
