//! Owns what an upstream's admission learns from reports about calls and from operators, and how it is looked at. Refuses
//! to grant anything.

use std::time::Duration;

use super::{
    Allowance, Attempt, Effect, LastError, Outcome, OutcomeKind, ParkReason, Policy, REPORT_GRACE, UpstreamSnapshot,
    UpstreamState, Vectors, slot_of,
};
use crate::ids::AttemptId;
use crate::pure::breaker::{self, Failure, Phase, State};
use crate::pure::class::TrafficClass;
use crate::pure::rate_headers::{RateHeaders, pause_for, wait_after_429};
use crate::pure::time::Mono;
use crate::pure::token_bucket::{Tier, TokenBucket, Word};

/// What becomes of the tokens that a call took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The provider did the work: its count, or the estimate.
    Charged,
    /// The provider did nothing.
    Returned,
    /// Not known: they stay taken.
    Kept,
}

impl OutcomeKind {
    fn fate(self) -> Fate {
        match self {
            OutcomeKind::Success { .. } => Fate::Charged,
            OutcomeKind::RateLimited { .. }
            | OutcomeKind::OutOfQuota
            | OutcomeKind::KeyRejected
            | OutcomeKind::ServerError
            | OutcomeKind::Connect
            | OutcomeKind::RequestError
            | OutcomeKind::NotSent => Fate::Returned,
            OutcomeKind::Timeout | OutcomeKind::Transport | OutcomeKind::ClientGone | OutcomeKind::Outrun { .. } => {
                Fate::Kept
            }
        }
    }

    fn breaker_event(self) -> breaker::Event {
        match self {
            OutcomeKind::Success { latency } => breaker::Event::Success { latency },
            OutcomeKind::RateLimited { .. } => breaker::Event::Failure(Failure::RateLimited),
            OutcomeKind::ServerError => breaker::Event::Failure(Failure::Server),
            OutcomeKind::Timeout => breaker::Event::Failure(Failure::Timeout),
            OutcomeKind::Connect | OutcomeKind::Transport => breaker::Event::Failure(Failure::Connection),
            // A key's trouble is not the host's: it parks the key instead.
            OutcomeKind::OutOfQuota | OutcomeKind::KeyRejected => breaker::Event::Neutral,
            OutcomeKind::RequestError | OutcomeKind::NotSent | OutcomeKind::Outrun { .. } => breaker::Event::Neutral,
            OutcomeKind::ClientGone => breaker::Event::Abandoned,
        }
    }

    /// How reports name it; `None` for what is no error of the upstream.
    pub fn error_name(self) -> Option<&'static str> {
        match self {
            OutcomeKind::Success { .. }
            | OutcomeKind::RequestError
            | OutcomeKind::ClientGone
            | OutcomeKind::Outrun { .. }
            | OutcomeKind::NotSent => None,
            OutcomeKind::RateLimited { .. } => Some("rate_limited"),
            OutcomeKind::OutOfQuota => Some("out_of_quota"),
            OutcomeKind::KeyRejected => Some("key_rejected"),
            OutcomeKind::ServerError => Some("server_error"),
            OutcomeKind::Timeout => Some("timeout"),
            OutcomeKind::Connect => Some("connect"),
            OutcomeKind::Transport => Some("transport"),
        }
    }
}

impl UpstreamState {
    /// The answer to a granted call has begun, `latency` after it was sent, and may go on for as long as `longest`. The
    /// breaker learns now what it would otherwise learn at the answer's end, which for a stream is too late.
    pub fn answered(&mut self, id: AttemptId, latency: Duration, longest: Duration, now: Mono) {
        self.settle(now);
        let Some(attempt) = self.attempts.get_mut(&id).filter(|attempt| !attempt.heard) else { return };
        let (before, ticket) = (attempt.expires, attempt.ticket);
        attempt.heard = true;
        attempt.expires = now.plus(longest).plus(REPORT_GRACE);
        let expires = attempt.expires;
        if !self.expiries.remove(&(before, id)) {
            self.effects.push(Effect::Impossible("a call in flight had no expiry"));
        }
        self.expiries.insert((expires, id));
        let transition = self.breaker.record(ticket, breaker::Event::Success { latency }, now);
        self.turned(transition);
        let follow_up = self.breaker.follow_up(ticket);
        if let Some(attempt) = self.attempts.get_mut(&id) {
            attempt.ticket = follow_up;
        }
    }

    /// Learns how a granted call ended. A second report about the same call, or one after it was given up as lost,
    /// changes nothing.
    pub fn finished(&mut self, id: AttemptId, outcome: Outcome, now: Mono) {
        self.settle(now);
        let Some(attempt) = self.release(id) else {
            self.counters.unknown_reports += 1;
            return;
        };
        self.counters.finished += 1;
        self.account(&attempt, &outcome, now);
        self.hear(&outcome.headers, attempt.begun, now);
        self.adapt(&attempt, outcome.kind, now);
        self.pause(&attempt, &outcome, now);
        let event = match outcome.kind.breaker_event() {
            // It was counted when its answer began.
            breaker::Event::Success { .. } if attempt.heard => breaker::Event::Neutral,
            event => event,
        };
        let transition = self.breaker.record(attempt.ticket, event, now);
        self.turned(transition);
        if let Some(name) = outcome.kind.error_name() {
            self.last_error = Some((name, now));
        }
        match outcome.kind {
            OutcomeKind::OutOfQuota => self.park(ParkReason::OutOfQuota),
            OutcomeKind::KeyRejected => self.park(ParkReason::KeyRejected),
            _ => {}
        }
    }

    /// Lets time pass: calls never reported are given up, the breaker's cool-down ends.
    pub(super) fn settle(&mut self, now: Mono) {
        while let Some((_, id)) = self.expiries.first().copied().filter(|(expires, _)| *expires <= now) {
            let Some(attempt) = self.release(id) else { break };
            self.counters.lost += 1;
            self.effects.push(Effect::Lost(id));
            let transition = self.breaker.record(attempt.ticket, breaker::Event::Abandoned, now);
            self.turned(transition);
        }
        let transition = self.breaker.advance(now);
        self.turned(transition);
    }

    /// Takes note of what the breaker did. Half-open it is back from an outage and may be another model, so that no call,
    /// not even a probe, goes before its vectors were looked at: also the one whose asking let the time pass.
    pub(super) fn turned(&mut self, transition: Option<breaker::Transition>) {
        let Some(transition) = transition else { return };
        if transition.to == Phase::HalfOpen && self.compared {
            self.vectors = Vectors::Unverified;
        }
        self.effects.push(Effect::Breaker(transition));
    }

    /// Ends an attempt's hold on concurrency.
    fn release(&mut self, id: AttemptId) -> Option<Attempt> {
        let attempt = self.attempts.remove(&id);
        let expires = attempt.map_or(Mono::ZERO, |attempt| attempt.expires);
        if attempt.is_some() && !self.expiries.remove(&(expires, id)) {
            self.effects.push(Effect::Impossible("a call in flight had no expiry"));
        }
        let attempt = attempt?;
        if let Some(in_use) = self.in_use.get_mut(slot_of(attempt.tier)) {
            *in_use = in_use.saturating_sub(attempt.units);
        }
        Some(attempt)
    }

    fn account(&mut self, attempt: &Attempt, outcome: &Outcome, now: Mono) {
        let Attempt { tier, tokens, begun, .. } = *attempt;
        // A count by the provider is better than any rule, even on an answer that failed.
        match (outcome.kind.fate(), outcome.actual_tokens) {
            (Fate::Charged | Fate::Kept, None) => {}
            (_, Some(actual)) => {
                self.tokens.correct(tokens, actual, tier, begun, now);
                if tier == Tier::Batch {
                    self.token_pace.correct(tokens, actual);
                }
            }
            (Fate::Returned, None) => {
                self.tokens.give_back(tokens, tier, begun);
                self.requests.give_back(1, tier, begun);
            }
        }
        if outcome.kind == OutcomeKind::NotSent && tier == Tier::Batch {
            self.token_pace.give_back(tokens);
            self.request_pace.give_back(1);
        }
    }

    fn hear(&mut self, headers: &RateHeaders, begun: Mono, now: Mono) {
        let (remaining, limit, reset) = (headers.remaining_tokens, headers.limit_tokens, headers.reset_tokens);
        self.tokens.observe(Word { remaining, limit, reset }, begun, now);
        let (remaining, limit, reset) = (headers.remaining_requests, headers.limit_requests, headers.reset_requests);
        self.requests.observe(Word { remaining, limit, reset }, begun, now);
    }

    fn adapt(&mut self, attempt: &Attempt, kind: OutcomeKind, now: Mono) {
        match kind {
            OutcomeKind::Success { latency } => {
                let in_flight = self.in_use.iter().sum::<usize>() + attempt.units;
                self.aimd.succeeded(attempt.units, attempt.tokens, latency, in_flight, attempt.begun, now);
            }
            OutcomeKind::RateLimited { .. } | OutcomeKind::ServerError | OutcomeKind::Timeout => {
                self.aimd.overloaded(attempt.begun, now);
            }
            _ => {}
        }
    }

    fn pause(&mut self, attempt: &Attempt, outcome: &Outcome, now: Mono) {
        let wait = match outcome.kind {
            OutcomeKind::RateLimited { hint } => {
                // Refusals of calls that were under way together are one refusal, or a burst would back off for minutes.
                if self.refused_in_a_row == 0 || attempt.begun >= self.last_refused {
                    self.refused_in_a_row = self.refused_in_a_row.saturating_add(1);
                    self.last_refused = now;
                }
                wait_after_429(&outcome.headers, hint).unwrap_or_else(|| self.backoff())
            }
            // A server that says when it will be back is believed, whatever the status.
            OutcomeKind::ServerError => outcome.headers.retry_after.map(pause_for).unwrap_or_default(),
            OutcomeKind::Success { .. } => {
                self.refused_in_a_row = 0;
                Duration::ZERO
            }
            _ => Duration::ZERO,
        };
        let until = now.plus(wait);
        if !wait.is_zero() && until > self.cool_until {
            self.cool_until = until;
            self.effects.push(Effect::CoolDown(wait));
        }
    }

    /// The pause after a refusal without any hint: longer each time, and short where it is concurrency that is limited,
    /// because there room comes back with the next answer.
    fn backoff(&self) -> Duration {
        let (first, longest) = if self.policy.adaptive { (50, 1_000) } else { (1_000, 30_000) };
        let doublings = self.refused_in_a_row.saturating_sub(1).min(10);
        Duration::from_millis((first << doublings).min(longest))
    }

    fn park(&mut self, reason: ParkReason) {
        if self.parked.is_none() {
            self.effects.push(Effect::Parked(reason));
        }
        self.parked = Some(reason);
    }

    /// The key works again, an operator says.
    pub fn unpark(&mut self) {
        self.parked = None;
    }

    /// An operator takes the upstream out: calls in flight end, no more begin.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// An operator brings it back, its key included.
    pub fn resume(&mut self) {
        self.draining = false;
        self.unpark();
    }

    /// Its vectors do not match those of its space, or do again.
    pub fn quarantine(&mut self, quarantined: bool) {
        self.quarantined = quarantined;
    }

    /// Whether there is anything to compare its vectors with, so that they are looked at after an outage.
    pub fn set_compared(&mut self, compared: bool) {
        self.compared = compared;
    }

    /// Its vectors have to be looked at before it is used (again), or have been.
    pub fn unverified(&mut self, unverified: bool) {
        self.vectors = if unverified { Vectors::Unverified } else { Vectors::Trusted };
    }

    /// It could not be looked at: no answer came.
    pub fn check_failed(&mut self, now: Mono) {
        self.settle(now);
        if self.vectors == Vectors::Unverified {
            self.vectors = Vectors::Missing;
        }
        if self.vectors == Vectors::Missing {
            let transition = self.breaker.look_failed(now);
            self.turned(transition);
        }
    }

    /// Whether it is out of the traffic because it does not answer, while its breaker knows nothing of that yet.
    pub fn is_down(&self) -> bool {
        self.vectors == Vectors::Missing && self.flows()
    }

    /// A request that it could have answered went elsewhere or nowhere, because it is down. For the breaker that is a
    /// failure: one who is kept out of the traffic early would otherwise look healthy throughout an outage.
    pub fn missed(&mut self, now: Mono) {
        self.settle(now);
        if self.is_down() {
            let transition = self.breaker.missed(now);
            self.turned(transition);
        }
    }

    /// Whether the breaker lets everything through.
    pub fn flows(&self) -> bool {
        self.breaker.phase() == Phase::Closed
    }

    /// Whether the breaker lets single queries through.
    pub fn is_probing(&self) -> bool {
        self.breaker.phase() == Phase::HalfOpen
    }

    /// Whether a call in flight is interactive; `None` for one that is not known.
    pub fn is_interactive(&self, id: AttemptId) -> Option<bool> {
        self.attempts.get(&id).map(|attempt| attempt.tier == Tier::Interactive)
    }

    /// Whether the answer to a call in flight has begun, as far as was told.
    pub fn is_answered(&self, id: AttemptId) -> bool {
        self.attempts.get(&id).is_some_and(|attempt| attempt.heard)
    }

    /// The gateway is shutting down; there is no way back. Batch work that has had no call leaves the queue and finds no
    /// place in it any more; all else goes on, so that what was accepted finishes.
    pub fn shutdown(&mut self) {
        self.shutting_down = true;
        self.turn_away = true;
    }

    /// An operator opens the breaker; it stays open until one closes it.
    pub fn force_open(&mut self) {
        let transition = self.breaker.force_open();
        self.turned(transition);
    }

    /// An operator closes the breaker and ends a pause.
    pub fn force_close(&mut self) {
        self.cool_until = Mono::ZERO;
        let transition = self.breaker.force_close();
        self.turned(transition);
    }

    /// Puts things right after the owner was restarted in the middle of an event: what can be derived is derived anew, and
    /// breaker, buckets, queues and calls in flight stay.
    pub fn heal(&mut self) {
        self.breaker.heal();
        self.expiries = self.attempts.iter().map(|(id, attempt)| (attempt.expires, *id)).collect();
        self.in_use = [self.lent.units, 0];
        for attempt in self.attempts.values() {
            if let Some(in_use) = self.in_use.get_mut(slot_of(attempt.tier)) {
                *in_use += attempt.units;
            }
        }
    }

    /// The settings in force.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whether an interactive call would be let through now, quota permitting: for choosing between upstreams. True also
    /// while half-open, or nobody would ever ask and so probe.
    pub fn usable(&self, now: Mono) -> bool {
        self.closed().is_none() && self.breaker.phase() != Phase::Open && now >= self.cool_until
    }

    /// Calls in flight.
    pub fn in_flight(&self) -> usize {
        self.attempts.len() + self.lent.calls
    }

    /// Those of them that are not made on a loan.
    pub fn asked_in_flight(&self) -> usize {
        self.attempts.len()
    }

    /// Tokens left by the provider's own count, for the size of the next batch; `None`: unknown.
    pub fn provider_remaining_tokens(&self, now: Mono) -> Option<u64> {
        self.tokens.provider_remaining(now)
    }

    /// The most tokens that one batch call should carry: with more, it could not go while interactive traffic uses all it
    /// may. `None`: no limit.
    pub fn batch_call_tokens(&self, now: Mono) -> Option<u64> {
        self.tokens.limit(now).map(|limit| {
            let floor = self.policy.shares.guaranteed(Tier::Batch, limit);
            let cap = self.tokens.cap(Tier::Batch, now).unwrap_or(limit);
            // Without a floor nothing is promised, and calls only have to fit.
            (if floor == 0 { cap } else { floor.min(cap) }).max(1)
        })
    }

    /// What a class may still take of tokens and of requests.
    pub fn allowances(&mut self, class: TrafficClass, now: Mono) -> (Allowance, Allowance) {
        let tier = Tier::of(class);
        (allowance(&mut self.tokens, tier, now), allowance(&mut self.requests, tier, now))
    }

    /// Everything worth looking at.
    pub fn snapshot(&mut self, now: Mono) -> UpstreamSnapshot {
        let of = |bucket: &mut TokenBucket, tier| allowance(bucket, tier, now).remaining;
        UpstreamSnapshot {
            breaker: self.breaker.phase(),
            breaker_reason: match self.breaker.state() {
                State::Open { reason, .. } => Some(reason),
                State::Closed | State::HalfOpen { .. } => None,
            },
            usable: self.usable(now),
            limit_tokens: self.tokens.limit(now),
            limit_requests: self.requests.limit(now),
            interactive_tokens: of(&mut self.tokens, Tier::Interactive),
            batch_tokens: of(&mut self.tokens, Tier::Batch),
            interactive_requests: of(&mut self.requests, Tier::Interactive),
            batch_requests: of(&mut self.requests, Tier::Batch),
            provider_remaining_tokens: self.tokens.provider_remaining(now),
            provider_remaining_requests: self.requests.provider_remaining(now),
            interactive_waiting: self.interactive.len(),
            batch_waiting: self.batch.len(),
            batch_waiting_items: self.batch.items(),
            in_flight: self.in_flight(),
            concurrency: self.in_use.iter().sum(),
            concurrency_limit: self.concurrency_limit(),
            cool_down_ms: millis(self.cool_until.since(now)),
            parked: self.parked,
            quarantined: self.quarantined,
            unverified: self.vectors != Vectors::Trusted,
            draining: self.draining,
            last_error: self.last_error.map(|(kind, at)| LastError { kind, ago_ms: millis(now.since(at)) }),
            counters: self.counters,
        }
    }
}

fn allowance(bucket: &mut TokenBucket, tier: Tier, now: Mono) -> Allowance {
    Allowance {
        limit: bucket.cap(tier, now),
        remaining: Some(bucket.reach(tier, now)).filter(|units| *units != u64::MAX),
        reset: bucket.full_at(now).since(now),
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
