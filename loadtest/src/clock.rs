//! The only place of the load tools that reads a clock.
#![expect(clippy::disallowed_methods, reason = "this module is where the ban on reading clocks ends")]

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The monotonic clock.
pub fn now() -> Instant {
    Instant::now()
}

/// Milliseconds since 1970, UTC. A clock set before 1970 reads as 0.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
