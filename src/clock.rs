//! The only place that reads a clock. Shells take their `now` from here; pure code never does.
#![expect(clippy::disallowed_methods, reason = "this module is where the ban on reading clocks ends")]

use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::pure::time::{Mono, Wall};

fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

/// Monotonic time since the first call in this process.
pub fn mono() -> Mono {
    Mono(u64::try_from(start().elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// The process's first instant ([`Mono::ZERO`]) as the wall clock has it now, in nanoseconds since 1970.
pub fn origin() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX).saturating_sub(mono().0)
}

/// Wall-clock time, UTC. A clock set before 1970 reads as the epoch.
pub fn wall() -> Wall {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Wall(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
