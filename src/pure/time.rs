//! Points in time as plain numbers. Nothing here can read a clock: the shells do that and hand the value in.

use std::time::Duration;

/// A monotonic instant in nanoseconds since the process started.
///
/// Differences saturate at zero: a late message that carries an older instant never yields a negative span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mono(pub u64);

impl Mono {
    /// The process's first instant.
    pub const ZERO: Mono = Mono(0);

    /// The instant `ms` milliseconds after the start; for tests and tables.
    pub const fn from_millis(ms: u64) -> Mono {
        Mono(ms * 1_000_000)
    }

    /// Time from `earlier` to `self`, zero if `earlier` is later.
    pub const fn since(self, earlier: Mono) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The instant `span` later, saturating at the end of time (584 years).
    pub const fn plus(self, span: Duration) -> Mono {
        let nanos = span.as_nanos();
        if nanos > u64::MAX as u128 { Mono(u64::MAX) } else { Mono(self.0.saturating_add(nanos as u64)) }
    }
}

/// A wall-clock instant in milliseconds since the Unix epoch, UTC.
///
/// Only for what people and other processes read (records, budget periods, HTTP dates); never for measuring spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Wall(pub i64);
