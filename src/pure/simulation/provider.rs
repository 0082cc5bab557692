//! Owns how a provider enforces its limit, in the two ways that providers do it. Refuses to know the gateway.

use std::collections::VecDeque;
use std::time::Duration;

use crate::pure::rate_headers::RateHeaders;
use crate::pure::time::Mono;

/// A provider's rule.
#[derive(Debug, Clone)]
pub(super) enum Rule {
    /// At most the limit within any 60 s.
    Sliding {
        /// What was accepted within the last minute.
        log: VecDeque<(Mono, u64)>,
        /// Its sum.
        used: u64,
    },
    /// A bucket of the limit's size that refills by the limit each minute.
    Bucket {
        /// Tokens in it at `at`.
        level: f64,
        /// When it was last looked at.
        at: Mono,
    },
}

/// A provider with a limit in tokens per minute.
#[derive(Debug, Clone)]
pub(super) struct Provider {
    pub(super) limit: u64,
    rule: Rule,
}

impl Provider {
    pub(super) fn sliding(limit: u64) -> Provider {
        Provider { limit, rule: Rule::Sliding { log: VecDeque::new(), used: 0 } }
    }

    pub(super) fn bucket(limit: u64) -> Provider {
        Provider { limit, rule: Rule::Bucket { level: limit as f64, at: Mono::ZERO } }
    }

    /// Accepts or refuses a call that arrives at `now`, and says what is left as OpenAI does: the reset is the time until
    /// everything is there again.
    pub(super) fn call(&mut self, tokens: u64, now: Mono) -> (bool, RateHeaders) {
        let limit = self.limit;
        let (accepted, left, reset) = match &mut self.rule {
            Rule::Sliding { log, used } => {
                let aged = |(at, _): &&(Mono, u64)| now.since(*at) >= Duration::from_secs(60);
                while let Some((_, old)) = log.front().filter(aged).copied() {
                    *used -= old;
                    log.pop_front();
                }
                let accepted = *used + tokens <= limit;
                if accepted {
                    log.push_back((now, tokens));
                    *used += tokens;
                }
                let reset = log.back().map_or(Duration::ZERO, |(at, _)| at.plus(Duration::from_secs(60)).since(now));
                (accepted, limit - *used, reset)
            }
            Rule::Bucket { level, at } => {
                let rate = limit as f64 / 60.0;
                *level = (*level + now.since(*at).as_secs_f64() * rate).min(limit as f64);
                *at = now;
                let accepted = *level >= tokens as f64;
                if accepted {
                    *level -= tokens as f64;
                }
                (accepted, *level as u64, Duration::from_secs_f64((limit as f64 - *level) / rate))
            }
        };
        let headers = RateHeaders {
            remaining_tokens: Some(left),
            limit_tokens: Some(limit),
            reset_tokens: Some(reset),
            ..RateHeaders::default()
        };
        (accepted, headers)
    }
}
