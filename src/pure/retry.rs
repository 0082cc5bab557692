//! Owns when a failed call may be tried again: back-off, the client's deadline, and a budget that keeps an outage from
//! being amplified. Refuses to know what failed and where the next try goes.

use std::time::Duration;

use super::rate_window::RateWindow;
use super::time::Mono;

/// Span over which retries are compared with requests.
const SPAN: Duration = Duration::from_secs(10);
/// Retries that are allowed whatever the traffic: below some hundred requests a share of them rounds to nothing.
const MIN_RETRIES: u64 = 10;
/// The balance counts in thousandths of a retry.
const RETRY: u64 = 1_000;

/// How calls are repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// Calls for one request part, the first included.
    pub max_attempts: u32,
    /// Longest wait before the first repetition; doubles with each.
    pub base: Duration,
    /// Longest wait before any.
    pub cap: Duration,
}

impl Backoff {
    /// When to try again after `attempts` calls failed (at least 1), or `None` if no more: attempts are used up, or the next
    /// could not begin before `deadline`. `floor` is the upstream's Retry-After; `roll` is a fresh random number in 0..1.
    ///
    /// Full jitter: callers that failed together come back spread over the whole span, not in step.
    pub fn next_try(
        &self,
        attempts: u32,
        floor: Option<Duration>,
        roll: f64,
        now: Mono,
        deadline: Mono,
    ) -> Option<Mono> {
        if attempts >= self.max_attempts {
            return None;
        }
        let at = now.plus(self.wait(attempts, roll).max(floor.unwrap_or_default()));
        (at < deadline).then_some(at)
    }

    fn wait(&self, attempts: u32, roll: f64) -> Duration {
        let doublings = attempts.saturating_sub(1).min(31);
        let longest = self.base.saturating_mul(1 << doublings).min(self.cap);
        longest.mul_f64(if roll.is_finite() { roll.clamp(0.0, 1.0) } else { 1.0 })
    }
}

/// How long a call may take while another upstream could do the same work: an interactive one twice as long as an answer
/// may before it counts as failed, and any at most half of the time that its client will still wait, so that the other
/// has the rest. `None`: as long as its upstream's own limit allows. Where no other could, only that limit counts.
pub fn patience_with_alternative(interactive: bool, slow: Duration, left: Option<Duration>) -> Option<Duration> {
    let by_slowness = interactive.then(|| slow.saturating_mul(2));
    let by_client = left.map(|left| left / 2);
    match (by_slowness, by_client) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// A budget for retries, failovers and hedges.
///
/// Two rules at once. Over the last 10 s at most the configured share of requests, or 10. And over any time at all no
/// more than that share of all requests plus 10: the second keeps "10 each 10 s" from doubling a trickle of traffic all
/// through a long outage. A success earns one retry back, since the outage is then not total.
#[derive(Debug, Clone)]
pub struct RetryBudget {
    ratio: f64,
    window: RateWindow,
    balance: u64,
}

impl RetryBudget {
    /// A full budget of `ratio` retries a request, 0 to 1.
    pub fn new(ratio: f64) -> RetryBudget {
        RetryBudget { ratio: ratio.clamp(0.0, 1.0), window: RateWindow::new(SPAN), balance: MIN_RETRIES * RETRY }
    }

    /// Takes over a new ratio.
    pub fn set_ratio(&mut self, ratio: f64) {
        self.ratio = ratio.clamp(0.0, 1.0);
    }

    /// Counts a request (not its retries).
    pub fn request(&mut self, now: Mono) {
        self.window.record(true, now);
        self.earn((self.ratio * RETRY as f64) as u64, now);
    }

    /// Counts a retry that succeeded, or that was allowed and then not made.
    pub fn succeeded(&mut self, now: Mono) {
        self.earn(RETRY, now);
    }

    /// Spends one retry if the budget allows it.
    pub fn try_spend(&mut self, now: Mono) -> bool {
        if self.balance < RETRY || self.window.totals(now).bad >= self.most(now) {
            return false;
        }
        self.balance -= RETRY;
        self.window.record(false, now);
        true
    }

    /// Retries allowed within the span.
    fn most(&mut self, now: Mono) -> u64 {
        let share = (self.ratio * self.window.totals(now).good as f64) as u64;
        share.max(MIN_RETRIES)
    }

    fn earn(&mut self, thousandths: u64, now: Mono) {
        self.balance = (self.balance + thousandths).min(self.most(now) * RETRY);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(ms: u64) -> Mono {
        Mono::from_millis(ms)
    }

    #[test]
    fn a_silent_upstream_is_left_in_time_for_another() {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        assert_eq!(patience_with_alternative(true, ms(2_000), None), Some(s(4)));
        assert_eq!(patience_with_alternative(true, ms(2_000), Some(s(600))), Some(s(4)));
        assert_eq!(patience_with_alternative(true, ms(2_000), Some(s(3))), Some(ms(1_500)));
        assert_eq!(patience_with_alternative(false, ms(2_000), Some(s(60))), Some(s(30)));
        assert_eq!(patience_with_alternative(false, ms(2_000), None), None, "a big batch may take its time");
    }

    const BACKOFF: Backoff =
        Backoff { max_attempts: 4, base: Duration::from_millis(50), cap: Duration::from_millis(120) };

    #[track_caller]
    fn check(attempts: u32, floor_ms: Option<u64>, roll: f64, deadline_ms: u64, expected_ms: Option<u64>) {
        let floor = floor_ms.map(Duration::from_millis);
        let next = BACKOFF.next_try(attempts, floor, roll, at(1_000), at(deadline_ms));
        assert_eq!(next, expected_ms.map(at), "after {attempts}");
    }

    #[test]
    fn waits_double_up_to_the_cap_and_never_undercut_retry_after() {
        check(1, None, 1.0, 9_000, Some(1_050));
        check(1, None, 0.5, 9_000, Some(1_025));
        check(1, None, 0.0, 9_000, Some(1_000));
        check(2, None, 1.0, 9_000, Some(1_100));
        check(3, None, 1.0, 9_000, Some(1_120));
        check(4, None, 1.0, 9_000, None);
        check(1, Some(3_000), 1.0, 9_000, Some(4_000));
        check(1, Some(10), 1.0, 9_000, Some(1_050));
        check(1, Some(8_000), 1.0, 9_000, None);
        check(1, None, 1.0, 1_050, None);
        check(1, None, f64::NAN, 9_000, Some(1_050));
    }

    #[test]
    fn a_trickle_may_retry_ten_times_and_then_only_its_share() {
        let mut budget = RetryBudget::new(0.1);
        let retries = |budget: &mut RetryBudget, from: u64, requests: u64| {
            (0..requests)
                .filter(|n| {
                    budget.request(at(from + n * 1_000));
                    budget.try_spend(at(from + n * 1_000))
                })
                .count()
        };
        assert_eq!(retries(&mut budget, 0, 100), 19, "10 and a tenth of 100, the last tenth not yet whole");
        budget.succeeded(at(200_000));
        assert!(budget.try_spend(at(200_000)));
    }

    proptest! {
        #[test]
        fn an_outage_is_never_amplified(gaps in prop::collection::vec(0_u64..200, 1..2_000), ratio in 0.0_f64..0.5) {
            let mut budget = RetryBudget::new(ratio);
            let (mut now, mut requests, mut retries) = (0, 0_u64, 0_u64);
            for gap in gaps {
                now += gap;
                requests += 1;
                budget.request(at(now));
                while budget.try_spend(at(now)) {
                    retries += 1;
                }
                prop_assert!(retries as f64 <= ratio * requests as f64 + 10.0);
            }
        }
    }
}
