//! Owns the pace of batch traffic: when may the next call go, given what the last ones carried. Refuses to know limits
//! and queues; the rate and how much is left are arguments.
//!
//! The token bucket alone would let a bulk job take its whole minute's share in the first second and then stand still
//! for 59: bursts that slow the provider down for everybody, and a small job that comes second waits out the minute.
//! Here every call fills the bucket by its tokens, and it leaks at the rate that batch may use.

use std::time::Duration;

use super::time::Mono;

/// A call may go before the bucket is empty if it fits into what leaks in this time: a small job need not wait until a
/// big one's call has leaked away.
const DEPTH: Duration = Duration::from_secs(2);
/// How long a credit is kept while nothing wants to go: a wake-up that comes late costs no throughput.
const CREDIT: Duration = Duration::from_millis(500);
/// Below this share left of the limit the pace drops in proportion.
const SLOW_BELOW: f64 = 0.02;
/// The slowest pace as a share of the full rate: it never stops by itself.
const SLOWEST: f64 = 0.1;

/// Paces batch calls by tokens.
#[derive(Debug, Clone)]
pub struct LeakyBucket {
    /// When all that was poured in will have leaked out.
    empty_at: Mono,
    tokens_per_s: Option<f64>,
}

impl LeakyBucket {
    /// An empty bucket that leaks `per_minute` tokens a minute; `None` or 0: no pacing.
    pub fn new(per_minute: Option<u64>) -> LeakyBucket {
        let mut bucket = LeakyBucket { empty_at: Mono::ZERO, tokens_per_s: None };
        bucket.set_rate(per_minute);
        bucket
    }

    /// Changes the rate; what is in the bucket keeps its time.
    pub fn set_rate(&mut self, per_minute: Option<u64>) {
        self.tokens_per_s = per_minute.filter(|rate| *rate > 0).map(|rate| rate as f64 / 60.0);
    }

    /// The earliest time at which a call of `tokens` may go; a time in the past means now.
    pub fn ready_at(&self, tokens: u64) -> Mono {
        let Some(rate) = self.tokens_per_s else { return Mono::ZERO };
        let room = DEPTH.saturating_sub(seconds(tokens as f64 / rate));
        Mono(self.empty_at.0.saturating_sub(nanos(room)))
    }

    /// Notes that a call of `tokens` went at `now`. `left` is the share of the limit that is left after it, 0 to 1: as it
    /// approaches nothing, the pace drops.
    pub fn pour(&mut self, tokens: u64, left: f64, now: Mono) {
        let Some(rate) = self.tokens_per_s else { return };
        let pace = (left / SLOW_BELOW).clamp(SLOWEST, 1.0);
        let from = self.empty_at.max(Mono(now.0.saturating_sub(nanos(CREDIT))));
        self.empty_at = from.plus(seconds(tokens as f64 / (rate * pace)));
    }

    /// Replaces the `estimate` of a call by what it really was, or estimates that err on the safe side would cost their
    /// margin in throughput for ever.
    pub fn correct(&mut self, estimate: u64, actual: u64) {
        let Some(rate) = self.tokens_per_s else { return };
        if actual <= estimate {
            self.give_back(estimate - actual);
        } else {
            self.empty_at = self.empty_at.plus(seconds((actual - estimate) as f64 / rate));
        }
    }

    /// Takes back a call of `tokens` that was never sent.
    pub fn give_back(&mut self, tokens: u64) {
        if let Some(rate) = self.tokens_per_s {
            self.empty_at = Mono(self.empty_at.0.saturating_sub(nanos(seconds(tokens as f64 / rate))));
        }
    }
}

/// Longest span that one call can take to leak: beyond it a number is a mistake, and a mistake must not stop batch.
const LONGEST: f64 = 600.0;

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(if seconds.is_finite() { seconds.clamp(0.0, LONGEST) } else { LONGEST })
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(ms: u64) -> Mono {
        Mono::from_millis(ms)
    }

    /// 600,000 a minute: 10 tokens a millisecond.
    fn paced() -> LeakyBucket {
        LeakyBucket::new(Some(600_000))
    }

    #[test]
    fn big_calls_are_spaced_by_their_tokens() {
        let mut bucket = paced();
        bucket.pour(40_000, 1.0, at(10_000));
        assert_eq!(bucket.ready_at(40_000), at(13_500), "4 s, less half a second of credit");
        bucket.pour(40_000, 1.0, at(13_500));
        assert_eq!(bucket.ready_at(40_000), at(17_500));
    }

    #[test]
    fn a_small_call_need_not_wait_for_a_big_one_to_leak() {
        let mut bucket = paced();
        bucket.pour(25_000, 1.0, at(10_000));
        assert!(bucket.ready_at(500) <= at(10_100));
        assert!(bucket.ready_at(25_000) >= at(12_000));
    }

    #[test]
    fn a_wrong_estimate_costs_no_throughput() {
        let (mut wrong, mut right) = (paced(), paced());
        for n in 0..20 {
            wrong.pour(1_200, 1.0, at(n * 1_000));
            wrong.correct(1_200, 1_000);
            right.pour(1_000, 1.0, at(n * 1_000));
        }
        assert_eq!(wrong.ready_at(1_000), right.ready_at(1_000));
        wrong.pour(500, 1.0, at(20_000));
        wrong.correct(500, 1_000);
        right.pour(1_000, 1.0, at(20_000));
        assert_eq!(wrong.ready_at(1_000), right.ready_at(1_000));
    }

    #[test]
    fn the_pace_drops_as_the_limit_approaches() {
        let spacing = |left: f64| {
            let mut bucket = paced();
            bucket.pour(20_000, left, at(10_000));
            bucket.empty_at.since(at(9_500))
        };
        assert_eq!(spacing(0.5), Duration::from_secs(2));
        assert_eq!(spacing(0.01), Duration::from_secs(4));
        assert_eq!(spacing(0.0), Duration::from_secs(20));
    }

    #[test]
    fn without_a_rate_nothing_is_paced_and_a_call_never_sent_costs_nothing() {
        let mut free = LeakyBucket::new(None);
        free.pour(u64::MAX, 0.0, at(5));
        assert_eq!(free.ready_at(u64::MAX), Mono::ZERO);
        let mut bucket = paced();
        bucket.pour(40_000, 1.0, at(10_000));
        bucket.give_back(40_000);
        assert!(bucket.ready_at(40_000) <= at(10_000));
    }

    proptest! {
        #[test]
        fn the_rate_is_kept_but_for_the_depth(calls in prop::collection::vec((1_u64..30_000, 0_u64..3_000), 1..200)) {
            let mut bucket = paced();
            let mut now = at(10_000);
            let mut sent = 0;
            for (tokens, idle_ms) in calls {
                now = now.max(bucket.ready_at(tokens)).plus(Duration::from_millis(idle_ms));
                bucket.pour(tokens, 1.0, now);
                sent += tokens;
                let span_s = now.since(at(10_000)).as_secs_f64();
                let allowed = 10_000.0 * (span_s + DEPTH.as_secs_f64() + CREDIT.as_secs_f64()) + tokens as f64;
                prop_assert!(sent as f64 <= allowed + 1.0, "{} sent, {} allowed", sent, allowed);
            }
        }
    }
}
