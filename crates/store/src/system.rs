//! Time and random bytes from the operating system.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the wall clock, in milliseconds since the Unix epoch.
pub fn now_ms() -> u64 {
    // Treats a clock before 1970 as 1970. Token checks then report that the clocks differ.
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
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
