//! Owns latency quantiles over the last N seconds for one of many owners. Refuses to know whose latency it is.
//!
//! As exact as [`LatencyWindow`](super::latency_window::LatencyWindow), and forgets in the same steps, but made to be
//! kept a hundred times: what a finished step held is a short list of the latencies that occurred, one histogram of
//! the whole window is kept up to date as they come and go, and an owner that nobody asks for holds nothing.

use std::collections::VecDeque;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::latency_window::{HIGHEST_NS, LOWEST_NS, coarse_histogram, histogram_of, step_of};
use super::time::Mono;

/// One step's latencies, and how often each occurred.
#[derive(Debug)]
struct Step {
    at: u64,
    seen: Vec<(u64, u32)>,
}

/// What is kept while there is anything to keep.
#[derive(Debug)]
struct Held {
    /// The whole window.
    all: Histogram<u32>,
    /// The step under way.
    current: Histogram<u32>,
    /// Finished steps, oldest first.
    finished: VecDeque<Step>,
}

/// Latencies of the last N seconds.
#[derive(Debug)]
pub struct SparseWindow {
    step_ns: u64,
    steps: u64,
    newest: u64,
    is_coarse: bool,
    held: Option<Box<Held>>,
}

impl SparseWindow {
    /// An empty window over `span`, which is forgotten in `steps` steps (each at least 1 ns; at least 1 step).
    pub fn new(span: Duration, steps: usize) -> SparseWindow {
        let steps = steps.max(1);
        SparseWindow { step_ns: step_of(span, steps), steps: steps as u64, newest: 0, is_coarse: false, held: None }
    }

    /// An empty window of a tenth of the memory, quantiles right within 7 %.
    pub fn coarse(span: Duration, steps: usize) -> SparseWindow {
        SparseWindow { is_coarse: true, ..SparseWindow::new(span, steps) }
    }

    /// Counts one latency at `now`; below 1 µs counts as 1 µs, above an hour as an hour. What is older than the newest
    /// counts with the newest.
    pub fn record(&mut self, latency: Duration, now: Mono) {
        self.advance(now);
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(HIGHEST_NS).clamp(LOWEST_NS, HIGHEST_NS);
        let held = self.held.get_or_insert_with(|| {
            let empty = || if self.is_coarse { coarse_histogram() } else { histogram_of() };
            Box::new(Held { all: empty(), current: empty(), finished: VecDeque::new() })
        });
        held.all.saturating_record(ns);
        held.current.saturating_record(ns);
    }

    /// How many latencies the window holds.
    pub fn count(&self) -> u64 {
        self.held.as_ref().map_or(0, |held| held.all.len())
    }

    /// The latencies that shares `qs` (0 to 1) of the window's calls did not exceed; `None` for an empty window.
    pub fn quantiles<const N: usize>(&self, qs: [f64; N]) -> Option<[Duration; N]> {
        let held = self.held.as_ref().filter(|held| !held.all.is_empty())?;
        Some(qs.map(|q| Duration::from_nanos(held.all.value_at_quantile(q))))
    }

    /// Forgets what has left the window by `now`; whether anything did.
    pub fn advance(&mut self, now: Mono) -> bool {
        let at = now.0 / self.step_ns;
        if at <= self.newest {
            return false;
        }
        let finished_at = std::mem::replace(&mut self.newest, at);
        let Some(held) = &mut self.held else { return false };
        if !held.current.is_empty() {
            let seen = held.current.iter_recorded().map(|each| (each.value_iterated_to(), each.count_at_value()));
            held.finished.push_back(Step { at: finished_at, seen: seen.collect() });
            held.current.reset();
        }
        let left = held.finished.partition_point(|step| step.at + self.steps < at);
        for step in held.finished.drain(..left) {
            for (value, count) in step.seen {
                held.current.saturating_record_n(value, count);
            }
        }
        if held.finished.is_empty() {
            self.held = None;
        } else if left > 0 {
            // Cannot fail: what leaves has been counted in a histogram of the same layout.
            let _ = held.all.subtract(&held.current);
            held.current.reset();
        }
        left > 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pure::latency_window::LatencyWindow;

    const SPAN: Duration = Duration::from_secs(300);

    fn at(ms: u64) -> Mono {
        Mono::from_millis(ms)
    }

    #[test]
    fn an_idle_window_holds_nothing() {
        let mut window = SparseWindow::new(SPAN, 20);
        assert_eq!((window.count(), window.quantiles([0.5])), (0, None));
        window.record(Duration::from_millis(5), at(1));
        assert!(window.held.is_some());
        assert!(!window.advance(at(314_999)), "a latency counts for the whole span and at most one step longer");
        assert_eq!(window.count(), 1);
        assert!(window.advance(at(315_000)));
        assert!(window.held.is_none());
        assert_eq!(window.count(), 0);
    }

    #[test]
    fn a_finished_step_is_small() {
        let mut window = SparseWindow::new(SPAN, 20);
        for number in 0..100_000_u64 {
            window.record(Duration::from_micros(20_000 + number % 60_000), at(number / 10));
        }
        window.advance(at(15_000));
        let held = window.held.as_ref().expect("latencies");
        assert_eq!(held.finished.len(), 1);
        assert!(held.finished[0].seen.len() < 300, "{}", held.finished[0].seen.len());
    }

    #[test]
    fn a_coarse_window_is_right_within_its_digit() {
        let mut window = SparseWindow::coarse(Duration::from_secs(60), 6);
        for ms in 1..=1_000 {
            window.record(Duration::from_millis(ms), at(ms * 30));
        }
        let [p95] = window.quantiles([0.95]).expect("not empty");
        assert!((p95.as_secs_f64() / 0.95 - 1.0).abs() < 0.07, "{p95:?}");
        assert!(window.advance(at(100_000)) && window.count() < 1_000 && window.held.is_none());
    }

    proptest! {
        // Each step merges whole windows, which takes its time.
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn it_says_what_a_window_of_whole_histograms_says(
            calls in prop::collection::vec((0_u64..40_000, 0_u64..5_000_000_000), 1..80),
            later in 0_u64..700_000,
        ) {
            let (mut sparse, mut whole) = (SparseWindow::new(SPAN, 20), LatencyWindow::new(SPAN, 20));
            let mut now = 0;
            for (gap, ns) in calls {
                now += gap;
                sparse.record(Duration::from_nanos(ns), at(now));
                whole.record(Duration::from_nanos(ns), at(now));
                prop_assert_eq!(sparse.count(), whole.count(at(now)));
                prop_assert_eq!(sparse.quantiles([0.5, 0.95, 0.99, 1.0]), whole.quantiles([0.5, 0.95, 0.99, 1.0], at(now)));
            }
            now += later;
            sparse.advance(at(now));
            prop_assert_eq!(sparse.count(), whole.count(at(now)));
            prop_assert_eq!(sparse.quantiles([0.5, 1.0]), whole.quantiles([0.5, 1.0], at(now)));
        }
    }
}
