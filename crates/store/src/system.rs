//! Time and random bytes from the operating system.

use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the wall clock, in milliseconds since the Unix epoch.
pub fn now_ms() -> u64 {
    // Treats a clock before 1970 as 1970. Token checks then report that the clocks differ.
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Returns the milliseconds since this machine was booted, including suspended time. Setting the clock does not change
/// it.
pub fn since_boot_ms() -> u64 {
    let since = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(since.tv_sec * 1_000 + since.tv_nsec / 1_000_000).unwrap_or_default()
}

/// Returns when this machine was booted, in milliseconds by the present wall clock.
pub fn booted_at_ms() -> u64 {
    now_ms().saturating_sub(since_boot_ms())
}

/// Returns the wall clock, in milliseconds since the Unix epoch, but never later than it would be had it not been set
/// since the first call. Retention uses it: setting the clock ahead must not delete anything too soon.
pub fn cautious_ms() -> u64 {
    static BOOTED_AT_MS: LazyLock<u64> = LazyLock::new(booted_at_ms);
    now_ms().min(*BOOTED_AT_MS + since_boot_ms())
}

/// Returns random bytes from the operating system.
///
/// # Panics
///
/// Panics if the operating system returns none.
pub fn random<const BYTES: usize>() -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    if let Err(error) = getrandom::fill(&mut bytes) {
        // Linux's getrandom fails only where the call is forbidden. Without randomness no key or token may be made.
        panic!("the operating system gives no random bytes: {error}");
    }
    bytes
}
