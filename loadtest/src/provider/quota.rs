//! Tokens and requests per minute, as a provider enforces them.
//!
//! Owns the two counters. Time is handed in; headers are made in [`super::quota_headers`].

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Nanoseconds in the minute that every limit here refers to.
const MINUTE_NS: u64 = 60_000_000_000;

/// A quota.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quota {
    /// Tokens per minute; 0: unlimited.
    pub tpm: u64,
    /// Requests per minute; 0: unlimited.
    pub rpm: u64,
    /// How the minute is counted.
    pub window: Window,
    /// Largest burst of a bucket as a share of its limit, for providers that enforce sub-windows. 0: the whole limit.
    pub burst: f64,
    /// Notation of the rate-limit headers.
    pub headers: Notation,
    /// Headers on refusals only.
    pub headers_only_on_429: bool,
    /// The wait told with a refusal.
    pub retry_after: RetryAfter,
}

/// How the minute of a quota is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Window {
    /// A bucket that fills steadily.
    #[default]
    Bucket,
    /// What was taken in the last 60 s.
    Sliding,
}

/// Whose rate-limit headers are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Notation {
    /// `x-ratelimit-…` with durations.
    #[default]
    Openai,
    /// The same names with whole seconds, and `x-ratelimit-renewalperiod-…`.
    Azure,
    /// `anthropic-ratelimit-…` with RFC 3339 times.
    Anthropic,
    /// `x-ratelimit-…-req-minute` and `-tokens-minute`, no resets.
    Mistral,
    /// OpenAI's names with decimal durations.
    Groq,
    /// No headers.
    None,
}

/// The wait told with a refusal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetryAfter {
    /// `retry-after` in whole seconds, rounded up.
    #[default]
    Seconds,
    /// `retry-after-ms`.
    Millis,
    /// Both.
    Both,
    /// Neither.
    None,
}

impl Quota {
    /// A bucket of so many tokens per minute.
    pub fn tpm(tpm: u64) -> Self {
        Self { tpm, ..Self::default() }
    }

    /// A bucket of so many requests per minute.
    pub fn rpm(rpm: u64) -> Self {
        Self { rpm, ..Self::default() }
    }

    /// Counts the last 60 s instead of filling a bucket.
    pub fn sliding(mut self) -> Self {
        self.window = Window::Sliding;
        self
    }

    /// Sets the notation of the headers.
    pub fn headers(mut self, notation: Notation) -> Self {
        self.headers = notation;
        self
    }
}

/// Which of the two limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Axis {
    Requests,
    Tokens,
}

/// A refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exhausted {
    pub axis: Axis,
    /// Time until the call would fit; `u64::MAX` if it never will.
    pub wait_ns: u64,
    pub requested: u64,
}

/// One limit as headers tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Level {
    pub limit: u64,
    pub remaining: u64,
    /// Time until all of it is free again.
    pub reset_ns: u64,
}

/// Both limits as headers tell them; an unlimited one is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Levels {
    pub requests: Option<Level>,
    pub tokens: Option<Level>,
}

/// The counters of a quota.
#[derive(Debug)]
pub(super) struct Counters {
    requests: Counter,
    tokens: Counter,
}

impl Counters {
    pub fn new(quota: &Quota) -> Self {
        Self { requests: Counter::new(quota.rpm, quota), tokens: Counter::new(quota.tpm, quota) }
    }

    /// Takes a call's share of both limits, or of neither.
    pub fn take(&mut self, tokens: u64, now_ns: u64) -> Result<(), Exhausted> {
        let refusal = |axis, requested, wait_ns| Exhausted { axis, wait_ns, requested };
        self.requests.wait(1, now_ns).map_or(Ok(()), |wait| Err(refusal(Axis::Requests, 1, wait)))?;
        self.tokens.wait(tokens, now_ns).map_or(Ok(()), |wait| Err(refusal(Axis::Tokens, tokens, wait)))?;
        self.requests.take(1, now_ns);
        self.tokens.take(tokens, now_ns);
        Ok(())
    }

    pub fn levels(&mut self, now_ns: u64) -> Levels {
        Levels { requests: self.requests.level(now_ns), tokens: self.tokens.level(now_ns) }
    }
}

#[derive(Debug)]
enum Counter {
    Unlimited,
    /// `level` is in units × nanoseconds of a minute, so that `limit` units refill per minute without rounding.
    Bucket {
        limit: u64,
        capacity: u128,
        level: u128,
        at_ns: u64,
    },
    Sliding {
        limit: u64,
        taken: VecDeque<(u64, u64)>,
        sum: u64,
    },
}

impl Counter {
    fn new(limit: u64, quota: &Quota) -> Self {
        match (limit, quota.window) {
            (0, _) => Self::Unlimited,
            (_, Window::Sliding) => Self::Sliding { limit, taken: VecDeque::new(), sum: 0 },
            (_, Window::Bucket) => {
                let share = if quota.burst > 0.0 { quota.burst.min(1.0) } else { 1.0 };
                let units = ((limit as f64 * share) as u64).max(1);
                let capacity = u128::from(units) * u128::from(MINUTE_NS);
                Self::Bucket { limit, capacity, level: capacity, at_ns: 0 }
            }
        }
    }

    fn advance(&mut self, now_ns: u64) {
        match self {
            Self::Unlimited => {}
            Self::Bucket { limit, capacity, level, at_ns } => {
                let gained = u128::from(now_ns.saturating_sub(*at_ns)) * u128::from(*limit);
                *level = (*level + gained).min(*capacity);
                *at_ns = now_ns.max(*at_ns);
            }
            Self::Sliding { taken, sum, .. } => {
                while let Some((at_ns, amount)) = taken.front().copied() {
                    if at_ns + MINUTE_NS > now_ns {
                        break;
                    }
                    *sum -= amount;
                    taken.pop_front();
                }
            }
        }
    }

    /// How long until `amount` fits; `None`: it fits now.
    fn wait(&mut self, amount: u64, now_ns: u64) -> Option<u64> {
        self.advance(now_ns);
        match self {
            Self::Unlimited => None,
            Self::Bucket { limit, capacity, level, .. } => {
                let needed = u128::from(amount) * u128::from(MINUTE_NS);
                if needed <= *level {
                    return None;
                }
                if needed > *capacity {
                    return Some(u64::MAX);
                }
                Some(u64::try_from((needed - *level).div_ceil(u128::from(*limit))).unwrap_or(u64::MAX))
            }
            Self::Sliding { limit, taken, sum } => {
                let mut over = sum.saturating_add(amount).checked_sub(*limit).filter(|over| *over > 0)?;
                for (at_ns, amount) in taken.iter() {
                    over = over.saturating_sub(*amount);
                    if over == 0 {
                        return Some((at_ns + MINUTE_NS).saturating_sub(now_ns));
                    }
                }
                Some(u64::MAX)
            }
        }
    }

    fn take(&mut self, amount: u64, now_ns: u64) {
        match self {
            Self::Unlimited => {}
            Self::Bucket { level, .. } => {
                *level = level.saturating_sub(u128::from(amount) * u128::from(MINUTE_NS));
            }
            Self::Sliding { taken, sum, .. } => {
                taken.push_back((now_ns, amount));
                *sum = sum.saturating_add(amount);
            }
        }
    }

    fn level(&mut self, now_ns: u64) -> Option<Level> {
        self.advance(now_ns);
        match self {
            Self::Unlimited => None,
            Self::Bucket { limit, capacity, level, .. } => Some(Level {
                limit: *limit,
                remaining: u64::try_from(*level / u128::from(MINUTE_NS)).unwrap_or(u64::MAX),
                reset_ns: u64::try_from((*capacity - *level).div_ceil(u128::from(*limit))).unwrap_or(u64::MAX),
            }),
            Self::Sliding { limit, taken, sum } => Some(Level {
                limit: *limit,
                remaining: limit.saturating_sub(*sum),
                reset_ns: taken.back().map_or(0, |(at_ns, _)| (at_ns + MINUTE_NS).saturating_sub(now_ns)),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    #[track_caller]
    fn check(quota: &Quota, calls: &[(u64, u64)], expected: &[Result<(), (Axis, u64)>]) {
        let mut counters = Counters::new(quota);
        let seen: Vec<Result<(), (Axis, u64)>> = calls
            .iter()
            .map(|(at_s, tokens)| {
                counters.take(*tokens, at_s * SECOND).map_err(|refusal| (refusal.axis, refusal.wait_ns / SECOND))
            })
            .collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_bucket_starts_full_and_fills_steadily() {
        let quota = Quota::tpm(600);
        check(
            &quota,
            &[(0, 600), (0, 10), (1, 10), (1, 1)],
            &[Ok(()), Err((Axis::Tokens, 1)), Ok(()), Err((Axis::Tokens, 0))],
        );
        check(&quota, &[(0, 601)], &[Err((Axis::Tokens, u64::MAX / SECOND))]);
    }

    #[test]
    fn a_sliding_minute_frees_what_was_taken_a_minute_ago() {
        let quota = Quota::tpm(600).sliding();
        check(
            &quota,
            &[(0, 400), (30, 200), (59, 1), (60, 400), (60, 1)],
            &[Ok(()), Ok(()), Err((Axis::Tokens, 1)), Ok(()), Err((Axis::Tokens, 30))],
        );
    }

    #[test]
    fn a_refusal_by_one_limit_takes_nothing_of_the_other() {
        let quota = Quota { tpm: 100, rpm: 2, ..Quota::default() };
        let mut counters = Counters::new(&quota);
        counters.take(60, 0).expect("fits");
        assert_eq!(counters.take(60, 0).expect_err("too many tokens").axis, Axis::Tokens);
        counters.take(40, 0).expect("the refused call took no request");
        assert_eq!(counters.take(0, 0).expect_err("too many requests").axis, Axis::Requests);
        let levels = counters.levels(0);
        assert_eq!(levels.tokens, Some(Level { limit: 100, remaining: 0, reset_ns: MINUTE_NS }));
    }

    proptest! {
        #[test]
        fn a_sliding_minute_never_holds_more_than_the_limit(
            calls in proptest::collection::vec((0_u64..20, 1_u64..200), 1..60)
        ) {
            let mut counters = Counters::new(&Quota::tpm(300).sliding());
            let mut now = 0;
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (gap_s, tokens) in calls {
                now += gap_s * SECOND;
                if counters.take(tokens, now).is_ok() {
                    taken.push((now, tokens));
                }
                let recent: u64 = taken.iter().filter(|(at, _)| at + MINUTE_NS > now).map(|(_, n)| n).sum();
                prop_assert!(recent <= 300);
            }
        }

        #[test]
        fn a_call_fits_after_the_wait_it_was_told(first in 1_u64..600, second in 1_u64..600, sliding: bool) {
            let quota = if sliding { Quota::tpm(600).sliding() } else { Quota::tpm(600) };
            let mut counters = Counters::new(&quota);
            counters.take(first, 0).expect("an unused quota");
            if let Err(refusal) = counters.take(second, 0) {
                prop_assert!(counters.take(second, refusal.wait_ns - 1).is_err());
                prop_assert!(counters.take(second, refusal.wait_ns).is_ok());
            }
        }
    }
}
