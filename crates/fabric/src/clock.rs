//! The time-stamp counter, which is the same for all processes of a host, and its rate.

use std::sync::OnceLock;
use std::time::Instant;

/// Ticks since a fixed moment. Monotonic across the cores of a host.
#[inline(always)]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: rdtsc exists on every x86-64 processor and has no precondition.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }
}

/// Environment variable in which a node passes the measured rate to its executors, so that a cold start does not repeat
/// the measurement.
pub const RATE_VARIABLE: &str = "DAYFLY_TICKS_PER_US";

/// Ticks per microsecond: the node's value, or measured once against the monotonic clock for 2 ms.
pub fn ticks_per_us() -> f64 {
    static RATE: OnceLock<f64> = OnceLock::new();
    *RATE.get_or_init(|| {
        if !cfg!(target_arch = "x86_64") {
            return 1000.0;
        }
        let told = std::env::var(RATE_VARIABLE)
            .ok()
            .and_then(|text| text.parse::<f64>().ok());
        if let Some(rate) = told.filter(|rate| rate.is_finite() && *rate > 1.0) {
            return rate;
        }
        let (from, since) = (ticks(), Instant::now());
        while since.elapsed().as_micros() < 2000 {
            std::hint::spin_loop();
        }
        let elapsed = since.elapsed().as_nanos() as f64;
        (ticks() - from) as f64 * 1000.0 / elapsed
    })
}

/// Converts milliseconds to ticks.
pub fn ticks_of_ms(ms: u64) -> u64 {
    ticks_of_us(ms.saturating_mul(1000))
}

/// Converts microseconds to ticks.
pub fn ticks_of_us(us: u64) -> u64 {
    (us as f64 * ticks_per_us()) as u64
}

/// Converts ticks to microseconds.
pub fn us_of_ticks(ticks: u64) -> u64 {
    (ticks as f64 / ticks_per_us()) as u64
}
