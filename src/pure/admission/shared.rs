//! Owns an upstream's part in limits and opinions that replicas share. Refuses to know how they are exchanged.

use serde::Serialize;

use super::UpstreamState;
use crate::pure::breaker::State;
use crate::pure::quota_lease::LeaseAsk;
use crate::pure::time::Mono;

/// What is asked of one shared limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitAsk {
    /// Units a minute, over all replicas.
    pub limit: u64,
    /// What each tier is guaranteed of it.
    pub guaranteed: [u64; 2],
    /// Units wanted and handed back.
    pub lease: LeaseAsk,
}

/// What this replica asks and tells of one upstream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QuotaAsk {
    /// Of the tokens; `None`: no limit is configured, or nothing is wanted.
    pub tokens: Option<LimitAsk>,
    /// Of the requests.
    pub requests: Option<LimitAsk>,
    /// How long our breaker stays open, milliseconds; `None`: it is not, or by an operator's order here.
    pub open_ms: Option<u64>,
}

/// What one shared limit gave.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct LimitGrant {
    /// Units set aside for each tier.
    pub units: [u64; 2],
    /// Units that each tier could still have.
    pub free: [u64; 2],
}

/// The answer to a [`QuotaAsk`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QuotaGrant {
    /// Of the tokens.
    pub tokens: LimitGrant,
    /// Of the requests.
    pub requests: LimitGrant,
    /// How long another replica's breaker stays open, milliseconds; 0: none is.
    pub open_ms: u64,
    /// Replicas that use this upstream, this one included.
    pub replicas: u64,
}

impl UpstreamState {
    /// Shares the limits with other replicas from now on.
    pub fn share(&mut self) {
        // The whole limit again: what passes is leased.
        self.tokens.reconfigure(self.policy.tpm, self.policy.shares);
        self.requests.reconfigure(self.policy.rpm, self.policy.shares);
        self.tokens.share();
        self.requests.share();
    }

    /// The others cannot be asked: this replica's own part of the limits holds, one of `replicas` equal ones.
    pub fn share_alone(&mut self, replicas: u64) {
        let part = |limit: Option<u64>| limit.map(|limit| (limit / replicas.max(1)).max(1));
        self.tokens.unshare();
        self.requests.unshare();
        self.tokens.reconfigure(part(self.policy.tpm), self.policy.shares);
        self.requests.reconfigure(part(self.policy.rpm), self.policy.shares);
    }

    /// Whether somebody waits for units that other replicas may have.
    pub fn is_short(&mut self) -> bool {
        [&mut self.tokens, &mut self.requests]
            .into_iter()
            .filter_map(|bucket| bucket.lease())
            .any(|lease| lease.is_short())
    }

    /// What to exchange with the other replicas now. Units that are handed back are gone from here.
    pub fn quota_ask(&mut self, now: Mono) -> QuotaAsk {
        let mut asks = [&mut self.tokens, &mut self.requests].into_iter().map(|bucket| {
            let (limit, guaranteed) = bucket.shared_limit()?;
            let lease = bucket.lease()?.ask(now)?;
            Some(LimitAsk { limit, guaranteed, lease })
        });
        let (tokens, requests) = (asks.next().flatten(), asks.next().flatten());
        let open_ms = match self.breaker.state() {
            State::Open { until, .. } if until.0 != u64::MAX && !self.told_open => {
                u64::try_from(until.since(now).as_millis()).ok().filter(|ms| *ms > 0)
            }
            State::Closed | State::Open { .. } | State::HalfOpen { .. } => None,
        };
        QuotaAsk { tokens, requests, open_ms }
    }

    /// Takes over what an exchange brought. A closed breaker opens for as long as another replica's is open: it would learn
    /// the same, only by more failures.
    pub fn quota_granted(&mut self, grant: &QuotaGrant, now: Mono) {
        if let Some(lease) = self.tokens.lease() {
            lease.granted(grant.tokens.units, grant.tokens.free);
        }
        if let Some(lease) = self.requests.lease() {
            lease.granted(grant.requests.units, grant.requests.free);
        }
        if self.breaker.state() == State::Closed {
            self.told_open = false;
            if grant.open_ms > 0 {
                let until = now.plus(std::time::Duration::from_millis(grant.open_ms));
                self.told_open = true;
                let transition = self.breaker.told_open(until);
                self.turned(transition);
            }
        }
    }
}
