//! A tenant's own limits: tokens and requests a minute. What is counted is work that reached an upstream: cache hits,
//! refusals and failures cost nothing.
//!
//! The estimate is taken before a call and replaced by what was billed after it, so that parallel requests cannot slip
//! under the limit, and a failed one gives everything back.

use std::collections::HashMap;

use super::admission::Allowance;
use super::time::Mono;
use super::token_bucket::{Shares, Tier, TokenBucket, When};
use crate::ids::HoldId;

/// A tenant's limits are its own: no class of it has a reserve against another.
const TIER: Tier = Tier::Interactive;

/// Estimates are taken as they are: nobody else counts against a tenant's own limit.
const HEADROOM_PERCENT: u64 = 100;

/// Which limit is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// `tpm`.
    Tokens,
    /// `rpm`.
    Requests,
}

/// A limit is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exceeded {
    /// Which.
    pub axis: Axis,
    /// When the same request would pass; `None`: never, it is larger than the limit.
    pub retry_at: Option<Mono>,
}

/// What clients are told: limit, rest and reset of tokens and of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowances {
    /// Tokens a minute.
    pub tokens: Allowance,
    /// Requests a minute.
    pub requests: Allowance,
}

#[derive(Debug, Clone, Copy)]
struct Taken {
    tokens: u64,
    at: Mono,
}

/// Two buckets and what is taken from them by work under way.
#[derive(Debug, Clone)]
pub struct TenantLimits {
    tokens: TokenBucket,
    requests: TokenBucket,
    open: HashMap<HoldId, Taken>,
}

impl TenantLimits {
    /// Full buckets; `None`: no limit.
    pub fn new(tpm: Option<u64>, rpm: Option<u64>) -> TenantLimits {
        TenantLimits {
            tokens: TokenBucket::new(tpm, Shares::NONE, HEADROOM_PERCENT),
            requests: TokenBucket::new(rpm, Shares::NONE, HEADROOM_PERCENT),
            open: HashMap::new(),
        }
    }

    /// Takes over new limits; what was taken stays taken.
    pub fn reconfigure(&mut self, tpm: Option<u64>, rpm: Option<u64>) {
        self.tokens.reconfigure(tpm, Shares::NONE);
        self.requests.reconfigure(rpm, Shares::NONE);
    }

    /// Takes one request of `tokens` (at least 1). The same id again takes nothing more.
    ///
    /// # Errors
    /// The limit that is used up; nothing was taken then.
    pub fn take(&mut self, id: HoldId, tokens: u64, now: Mono) -> Result<(), Exceeded> {
        if self.open.contains_key(&id) {
            return Ok(());
        }
        let tokens = tokens.max(1);
        for (axis, bucket, n) in [(Axis::Requests, &mut self.requests, 1), (Axis::Tokens, &mut self.tokens, tokens)] {
            match bucket.when(n, TIER, now) {
                When::At(at) if at <= now => {}
                When::At(at) => return Err(Exceeded { axis, retry_at: Some(at) }),
                When::Never => return Err(Exceeded { axis, retry_at: None }),
            }
        }
        self.requests.take(1, TIER, now);
        self.tokens.take(tokens, TIER, now);
        self.open.insert(id, Taken { tokens, at: now });
        Ok(())
    }

    /// The work ended: `billed` tokens, or nothing if it never cost anything. Idempotent by id.
    pub fn settle(&mut self, id: HoldId, billed: Option<u64>, now: Mono) {
        let Some(taken) = self.open.remove(&id) else { return };
        match billed {
            Some(billed) => self.tokens.correct(taken.tokens, billed, TIER, taken.at, now),
            None => {
                self.tokens.give_back(taken.tokens, TIER, taken.at);
                self.requests.give_back(1, TIER, taken.at);
            }
        }
    }

    /// Whether nothing is counted now, so that new limits would be the same.
    pub fn is_untouched(&mut self, now: Mono) -> bool {
        self.open.is_empty() && self.tokens.full_at(now) <= now && self.requests.full_at(now) <= now
    }

    /// What is left, for the tenant's own eyes.
    pub fn allowances(&mut self, now: Mono) -> Allowances {
        let of = |bucket: &mut TokenBucket| Allowance {
            limit: bucket.limit(now),
            remaining: Some(bucket.available(TIER, now)).filter(|units| *units != u64::MAX),
            reset: bucket.full_at(now).since(now),
        };
        Allowances { tokens: of(&mut self.tokens), requests: of(&mut self.requests) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Mono {
        Mono::from_millis(1_000_000 + ms)
    }

    #[test]
    fn parallel_requests_cannot_slip_under_the_limit() {
        let mut limits = TenantLimits::new(Some(100), None);
        assert!(limits.take(HoldId(1), 40, at(0)).is_ok());
        assert!(limits.take(HoldId(2), 40, at(0)).is_ok());
        let third = limits.take(HoldId(3), 40, at(0)).expect_err("over the limit");
        assert_eq!(third.axis, Axis::Tokens);
        assert!(third.retry_at.is_some_and(|retry| retry > at(0)));
    }

    #[test]
    fn a_failure_gives_everything_back_and_a_bill_replaces_the_estimate() {
        let mut limits = TenantLimits::new(Some(100), Some(2));
        limits.take(HoldId(1), 90, at(0)).expect("fits");
        limits.settle(HoldId(1), None, at(5));
        limits.take(HoldId(2), 90, at(10)).expect("nothing was used");
        limits.settle(HoldId(2), Some(10), at(15));
        limits.settle(HoldId(2), Some(90), at(16));
        assert_eq!(limits.allowances(at(20)).tokens.remaining, Some(90), "settled once, to the bill");
        limits.take(HoldId(3), 90, at(20)).expect("fits exactly");
        let refused = limits.take(HoldId(4), 1, at(20)).expect_err("two requests a minute");
        assert_eq!(refused.axis, Axis::Requests);
        assert_eq!(limits.allowances(at(20)).requests.remaining, Some(0));
    }

    #[test]
    fn what_was_taken_counts_for_a_minute() {
        let mut limits = TenantLimits::new(Some(100), Some(10));
        assert!(limits.is_untouched(at(0)));
        limits.take(HoldId(1), 40, at(0)).expect("fits");
        assert!(!limits.is_untouched(at(120_000)), "the call is under way");
        limits.settle(HoldId(1), Some(30), at(1_000));
        assert!(!limits.is_untouched(at(59_000)));
        assert!(limits.is_untouched(at(61_500)));
    }

    #[test]
    fn a_refusal_leaves_every_limit_unchanged() {
        let mut limits = TenantLimits::new(Some(100), Some(10));
        let never = limits.take(HoldId(1), 101, at(0)).expect_err("larger than the limit");
        assert_eq!(never, Exceeded { axis: Axis::Tokens, retry_at: None });
        let left = limits.allowances(at(0));
        assert_eq!((left.tokens.remaining, left.requests.remaining), (Some(100), Some(10)));
    }
}
