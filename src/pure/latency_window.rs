//! Owns latency quantiles over the last N seconds. Refuses to know whose latency it is.
//!
//! An HDR histogram never forgets, so a ring of them covers the window and the oldest is emptied as time moves on. Two
//! significant digits: a quantile is right within 1 %, and a slot costs some 20 KB instead of 150. A coarse window is
//! right within 7 % for a fraction of that.

use std::time::Duration;

use hdrhistogram::{Counter, Histogram};

use super::time::Mono;

pub(super) const LOWEST_NS: u64 = 1_000;
const COARSE_LOWEST_NS: u64 = 10_000;
pub(super) const HIGHEST_NS: u64 = 3_600_000_000_000;
const DIGITS: u8 = 2;

/// An empty histogram of the kind used here, from 1 µs to an hour in nanoseconds; for merging windows into.
pub fn histogram() -> Histogram<u64> {
    histogram_of()
}

/// The same with counts of any width.
pub(super) fn histogram_of<C: Counter>() -> Histogram<C> {
    Histogram::new_with_bounds(LOWEST_NS, HIGHEST_NS, DIGITS).expect("constants that the library accepts")
}

/// The same with one significant digit, from 10 µs to an hour.
pub(super) fn coarse_histogram<C: Counter>() -> Histogram<C> {
    Histogram::new_with_bounds(COARSE_LOWEST_NS, HIGHEST_NS, 1).expect("constants that the library accepts")
}

/// Length of each of `steps` steps (at least 1) over `span`, nanoseconds (at least 1).
pub(super) fn step_of(span: Duration, steps: usize) -> u64 {
    let span_ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    (span_ns / steps.max(1) as u64).max(1)
}

/// Latencies of the last N seconds.
#[derive(Debug, Clone)]
pub struct LatencyWindow {
    slot_ns: u64,
    slots: Vec<Histogram<u64>>,
    newest: u64,
}

impl LatencyWindow {
    /// An empty window over `span`, which is forgotten in `slots` steps (each at least 1 ns; at least 1 step): a latency
    /// counts for the whole span and at most one step longer.
    pub fn new(span: Duration, slots: usize) -> LatencyWindow {
        LatencyWindow::of(&histogram(), span, slots)
    }

    /// An empty window for many owners: a twentieth of the memory, quantiles right within 7 %.
    pub fn coarse(span: Duration, slots: usize) -> LatencyWindow {
        LatencyWindow::of(&coarse_histogram(), span, slots)
    }

    fn of(empty: &Histogram<u64>, span: Duration, slots: usize) -> LatencyWindow {
        LatencyWindow { slot_ns: step_of(span, slots), slots: vec![empty.clone(); slots.max(1) + 1], newest: 0 }
    }

    /// Counts one latency at `now`; below 1 µs counts as 1 µs, above an hour as an hour.
    pub fn record(&mut self, latency: Duration, now: Mono) {
        self.advance(now);
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(HIGHEST_NS);
        let position = (self.newest % self.slots.len() as u64) as usize;
        if let Some(slot) = self.slots.get_mut(position) {
            slot.saturating_record(ns.clamp(LOWEST_NS, HIGHEST_NS));
        }
    }

    /// How many latencies the window holds.
    pub fn count(&mut self, now: Mono) -> u64 {
        self.advance(now);
        self.slots.iter().map(Histogram::len).sum()
    }

    /// The latency that a share `q` (0 to 1) of the window's calls did not exceed; `None` for an empty window.
    pub fn quantile(&mut self, q: f64, now: Mono) -> Option<Duration> {
        let [latency] = self.quantiles([q], now)?;
        Some(latency)
    }

    /// Several quantiles of one moment, at the cost of one.
    pub fn quantiles<const N: usize>(&mut self, qs: [f64; N], now: Mono) -> Option<[Duration; N]> {
        let mut all = self.slots.first().map_or_else(histogram, Histogram::new_from);
        self.merge_into(&mut all, now);
        (!all.is_empty()).then(|| qs.map(|q| Duration::from_nanos(all.value_at_quantile(q))))
    }

    /// Adds what the window holds to `all`, which should come from [`histogram`].
    pub fn merge_into(&mut self, all: &mut Histogram<u64>, now: Mono) {
        self.advance(now);
        for slot in self.slots.iter().filter(|slot| !slot.is_empty()) {
            // Cannot fail between histograms of one layout, and one of another layout has room for what fits.
            let _ = all.add(slot);
        }
    }

    fn advance(&mut self, now: Mono) {
        let index = now.0 / self.slot_ns;
        let len = self.slots.len() as u64;
        let steps = index.saturating_sub(self.newest).min(len);
        for step in 0..steps {
            let position = ((index - step) % len) as usize;
            if let Some(slot) = self.slots.get_mut(position) {
                slot.reset();
            }
        }
        self.newest = self.newest.max(index);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(ms: u64) -> Mono {
        Mono::from_millis(ms)
    }

    fn window() -> LatencyWindow {
        LatencyWindow::new(Duration::from_secs(300), 10)
    }

    #[track_caller]
    fn check(window: &mut LatencyWindow, q: f64, now: Mono, expected_ms: f64) {
        let got = window.quantile(q, now).expect("not empty").as_secs_f64() * 1e3;
        assert!((got - expected_ms).abs() <= expected_ms * 0.01, "p{q}: {got} ms, expected {expected_ms}");
    }

    #[test]
    fn quantiles_of_a_known_distribution() {
        let mut window = window();
        for ms in 1..=1_000 {
            window.record(Duration::from_millis(ms), at(ms));
        }
        check(&mut window, 0.5, at(1_000), 500.0);
        check(&mut window, 0.95, at(1_000), 950.0);
        check(&mut window, 0.99, at(1_000), 990.0);
        assert_eq!(window.count(at(1_000)), 1_000);
        let [p50, p99] = window.quantiles([0.5, 0.99], at(1_000)).expect("not empty");
        assert!(p50 < p99);
    }

    #[test]
    fn old_latencies_are_forgotten_within_a_slot_of_the_window() {
        let mut window = window();
        window.record(Duration::from_secs(2), at(10_000));
        window.record(Duration::from_millis(5), at(200_000));
        check(&mut window, 1.0, at(310_000), 2_000.0);
        check(&mut window, 1.0, at(330_000), 5.0);
        assert_eq!(window.quantile(0.5, at(10_000_000)), None);
        assert_eq!(window.count(at(10_000_000)), 0);
    }

    #[test]
    fn extremes_are_counted_at_the_ends() {
        let mut window = window();
        window.record(Duration::ZERO, at(1));
        window.record(Duration::MAX, at(1));
        assert_eq!(window.count(at(1)), 2);
        check(&mut window, 1.0, at(1), 3_600_000.0);
    }

    #[test]
    fn a_coarse_window_is_right_within_its_digit() {
        let mut window = LatencyWindow::coarse(Duration::from_secs(60), 5);
        for ms in 1..=1_000 {
            window.record(Duration::from_millis(ms), at(ms));
        }
        let p95 = window.quantile(0.95, at(1_000)).expect("not empty").as_secs_f64();
        assert!((p95 / 0.95 - 1.0).abs() < 0.07, "{p95}");
    }

    #[test]
    fn windows_merge() {
        let (mut one, mut other, mut all) = (window(), window(), histogram());
        one.record(Duration::from_millis(1), at(1));
        other.record(Duration::from_millis(9), at(1));
        one.merge_into(&mut all, at(2));
        other.merge_into(&mut all, at(2));
        assert_eq!(all.len(), 2);
    }

    proptest! {
        #[test]
        fn the_count_is_exact(gaps in prop::collection::vec(0_u64..60_000, 1..100)) {
            let mut window = window();
            let mut times: Vec<u64> = Vec::new();
            let mut now = 0;
            for gap in gaps {
                now += gap;
                window.record(Duration::from_millis(1), at(now));
                times.push(now);
                let held = times.iter().filter(|ms| **ms / 30_000 + 10 >= now / 30_000).count();
                prop_assert_eq!(window.count(at(now)), held as u64);
            }
        }
    }
}
