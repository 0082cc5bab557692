//! Owns how many calls (or texts) may be in flight at an upstream that says nothing about its limits. Refuses to know
//! what is in flight.
//!
//! Additive increase, multiplicative decrease, as TCP does it and for the same reason: many senders that cannot see each
//! other converge to a fair share of a capacity that nobody states.

use std::time::Duration;

use super::time::Mono;

/// What is left of the limit after the upstream said that it is overloaded.
const ON_OVERLOAD: f64 = 0.5;
/// What is left of it after answers became much slower: a weaker sign, so a weaker step.
const ON_INFLATION: f64 = 0.9;
/// An answer is inflated if it took this many times the best of late for work of its size …
const INFLATED: u32 = 4;
/// … and at least this much longer: a 1 ms answer that once took 5 is no congestion.
const INFLATED_BY: Duration = Duration::from_millis(50);
/// How long the best latency is remembered, in halves: a host that became slower for good is accepted as it is.
const BASELINE_SPAN: Duration = Duration::from_secs(30);
/// Sizes of work are told apart by their power of two.
const CLASSES: usize = 24;

#[derive(Debug, Clone, Copy)]
struct Baseline {
    current: Duration,
    previous: Duration,
    since: Mono,
}

impl Baseline {
    const UNKNOWN: Baseline = Baseline { current: Duration::MAX, previous: Duration::MAX, since: Mono::ZERO };

    /// Notes `latency` and returns the best seen of late, this one included.
    fn note(&mut self, latency: Duration, now: Mono) -> Duration {
        if now.since(self.since) >= BASELINE_SPAN {
            self.previous = self.current;
            self.current = Duration::MAX;
            self.since = now;
        }
        self.current = self.current.min(latency);
        self.current.min(self.previous)
    }
}

/// A concurrency limit that adapts between 1 and a maximum.
#[derive(Debug, Clone)]
pub struct Aimd {
    max: usize,
    limit: f64,
    last_cut: Mono,
    baselines: [Baseline; CLASSES],
}

impl Aimd {
    /// Starts at `max` (at least 1): the configured concurrency is believed until the upstream objects.
    pub fn new(max: usize) -> Aimd {
        let max = max.max(1);
        Aimd { max, limit: max as f64, last_cut: Mono::ZERO, baselines: [Baseline::UNKNOWN; CLASSES] }
    }

    /// Takes over a new maximum.
    pub fn set_max(&mut self, max: usize) {
        self.max = max.max(1);
        self.limit = self.limit.min(self.max as f64);
    }

    /// The limit now, 1 to the maximum.
    pub fn limit(&self) -> usize {
        (self.limit as usize).clamp(1, self.max)
    }

    /// A call of `units` begun at `begun` succeeded; `work` is its size (tokens), `in_flight` counts it too. The limit grows
    /// by one for each limit's worth of successes, and only while it is being used: an unused limit proves nothing.
    pub fn succeeded(&mut self, units: usize, work: u64, latency: Duration, in_flight: usize, begun: Mono, now: Mono) {
        let class = (u64::BITS - work.leading_zeros()) as usize;
        let Some(baseline) = self.baselines.get_mut(class.min(CLASSES - 1)) else { return };
        let best = baseline.note(latency, now);
        if latency > best.saturating_mul(INFLATED) && latency.saturating_sub(best) > INFLATED_BY {
            self.cut(ON_INFLATION, begun, now);
        } else if in_flight * 2 >= self.limit() {
            self.limit = (self.limit + units as f64 / self.limit).min(self.max as f64);
        }
    }

    /// A call begun at `begun` was refused for overload. Refusals of calls that were already under way when the limit was
    /// last cut are the same overload, and do not cut it again.
    pub fn overloaded(&mut self, begun: Mono, now: Mono) {
        self.cut(ON_OVERLOAD, begun, now);
    }

    fn cut(&mut self, factor: f64, begun: Mono, now: Mono) {
        let first = self.last_cut == Mono::ZERO;
        if first || begun >= self.last_cut {
            self.limit = (self.limit * factor).max(1.0);
            self.last_cut = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(ms: u64) -> Mono {
        Mono::from_millis(ms)
    }

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn overload_halves_it_once_and_successes_win_it_back_one_by_one() {
        let mut aimd = Aimd::new(64);
        for _ in 0..10 {
            aimd.overloaded(at(5), at(20));
        }
        assert_eq!(aimd.limit(), 32, "ten refusals of calls sent together are one overload");
        aimd.overloaded(at(21), at(40));
        assert_eq!(aimd.limit(), 16);
        for _ in 0..17 {
            aimd.succeeded(1, 100, MS, 16, at(50), at(60));
        }
        assert_eq!(aimd.limit(), 17);
    }

    #[test]
    fn an_unused_limit_does_not_grow() {
        let mut aimd = Aimd::new(64);
        aimd.overloaded(at(5), at(20));
        for _ in 0..1_000 {
            aimd.succeeded(1, 100, MS, 3, at(50), at(60));
        }
        assert_eq!(aimd.limit(), 32);
    }

    #[test]
    fn slow_answers_cut_it_unless_the_work_was_bigger() {
        let mut aimd = Aimd::new(10);
        aimd.succeeded(1, 100, 20 * MS, 10, at(1), at(21));
        aimd.succeeded(1, 100_000, 900 * MS, 10, at(30), at(930));
        assert_eq!(aimd.limit(), 10, "a big call may take long");
        aimd.succeeded(1, 100, 300 * MS, 10, at(1_000), at(1_300));
        assert_eq!(aimd.limit(), 9);
        // For good: after a minute that is simply how fast the host is.
        for n in 0..200 {
            aimd.succeeded(1, 100, 300 * MS, 10, at(2_000 + n * 1_000), at(2_300 + n * 1_000));
        }
        assert_eq!(aimd.limit(), 10);
    }

    proptest! {
        #[test]
        fn it_stays_between_one_and_the_maximum(events in prop::collection::vec((any::<bool>(), 1_usize..40, 0_u64..10_000), 1..300), max in 1_usize..100) {
            let mut aimd = Aimd::new(max);
            for (n, (good, units, latency)) in events.into_iter().enumerate() {
                let now = at(n as u64 * 100);
                if good {
                    aimd.succeeded(units, 10, Duration::from_millis(latency), max, now, now);
                } else {
                    aimd.overloaded(now, now);
                }
                prop_assert!((1..=max).contains(&aimd.limit()));
            }
        }
    }
}
