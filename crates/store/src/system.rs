//! What the operating system gives: the time, and random bytes.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the wall clock, in milliseconds since the Unix epoch.
pub fn now_ms() -> u64 {
    // Before 1970 there was no Dayfly: a clock that says so counts as 1970, and tokens then say that clocks differ.
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Returns random bytes of the operating system.
///
/// # Panics
///
/// Panics if the operating system returns none.
pub fn random<const BYTES: usize>() -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    if let Err(error) = getrandom::fill(&mut bytes) {
        // Linux's getrandom fails only where the call is forbidden; without randomness no key or token may be made.
        panic!("the operating system gives no random bytes: {error}");
    }
    bytes
}
