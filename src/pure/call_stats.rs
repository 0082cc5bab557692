//! One upstream's calls over the last minute, for people to look at. Decides nothing: breakers and limits count for
//! themselves.

use std::time::Duration;

use super::rate_window::RateWindow;
use super::sparse_window::SparseWindow;
use super::time::Mono;

/// What is shown is of this long.
pub const WINDOW: Duration = Duration::from_secs(60);

/// Steps in which a latency is forgotten.
const SLOTS: usize = 6;

/// Counts and latencies of the last minute.
#[derive(Debug)]
pub struct CallStats {
    latency: SparseWindow,
    dwell: SparseWindow,
    outcomes: RateWindow,
}

/// What they come to.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CallView {
    /// Calls that ended with a verdict on the upstream.
    pub calls: u64,
    /// Share of them that failed.
    pub failure_ratio: f64,
    /// 95th percentile of those that were answered, right within 7 %; `None` without any.
    pub p95: Option<Duration>,
    /// 95th percentile of the time that work spent in its queue; `None` if nothing left it.
    pub dwell_p95: Option<Duration>,
}

impl Default for CallStats {
    fn default() -> CallStats {
        CallStats {
            latency: SparseWindow::coarse(WINDOW, SLOTS),
            dwell: SparseWindow::coarse(WINDOW, SLOTS),
            outcomes: RateWindow::new(WINDOW),
        }
    }
}

impl CallStats {
    /// A call was answered.
    pub fn answered(&mut self, latency: Duration, now: Mono) {
        self.outcomes.record(true, now);
        self.latency.record(latency, now);
    }

    /// A call failed by the upstream's fault.
    pub fn failed(&mut self, now: Mono) {
        self.outcomes.record(false, now);
    }

    /// Work left the queue.
    pub fn waited(&mut self, dwell: Duration, now: Mono) {
        self.dwell.record(dwell, now);
    }

    /// What the last minute comes to.
    pub fn view(&mut self, now: Mono) -> CallView {
        let totals = self.outcomes.totals(now);
        self.latency.advance(now);
        self.dwell.advance(now);
        let p95 = |window: &SparseWindow| window.quantiles([0.95]).map(|[p95]| p95);
        CallView {
            calls: totals.all(),
            failure_ratio: totals.bad_ratio(),
            p95: p95(&self.latency),
            dwell_p95: p95(&self.dwell),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_is_shown_and_then_forgotten() {
        let mut stats = CallStats::default();
        let at = Mono::from_millis;
        assert_eq!(stats.view(at(0)), CallView::default());
        stats.answered(Duration::from_millis(40), at(1_000));
        stats.failed(at(1_000));
        stats.waited(Duration::from_millis(900), at(1_000));
        let view = stats.view(at(2_000));
        assert_eq!((view.calls, view.failure_ratio), (2, 0.5));
        let near = |span: Option<Duration>, ms: f64| (span.expect("some").as_secs_f64() * 1e3 / ms - 1.0).abs() < 0.07;
        assert!(near(view.p95, 40.0) && near(view.dwell_p95, 900.0), "{view:?}");
        assert_eq!(stats.view(at(72_000)), CallView::default());
    }
}
