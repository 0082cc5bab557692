//! Seeded random schedules of events against one upstream's admission, with every invariant checked after each event, and
//! a few long scenarios against providers that enforce their limit. A failure names its seed; the same seed replays it.
//!
//! - I1: over any 60 s at most the limit is taken, by each tier at most its cap; so batch never touches the reserve.
//! - I2: no more in flight than allowed; batch never in the slots reserved for interactive.
//! - I3: a request is answered once, by one grant or one refusal; a permit is neither lost nor doubled.
//! - I4: within a tenant, batch is granted in the order of arrival.
//! - I5: nothing is granted while the breaker is open, and while half-open one interactive probe at a time.
//! - I6: what should be impossible is never reported.

mod provider;
mod scenarios;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::admission::{
    Ask, CallLoan, CountBy, Decision, Effect, Ending, Grant, Look, Outcome, OutcomeKind, Policy, Poll, UpstreamState,
};
use super::breaker::Phase;
use super::class::TrafficClass;
use super::rate_headers::RateHeaders;
use super::time::Mono;
use super::token_bucket::{Shares, Tier};
use crate::config::plan;
use crate::ids::{AttemptId, TenantId, WaiterId};

/// A small generator whose whole state is the seed that a failure prints.
#[derive(Debug, Clone)]
pub(super) struct Rolls(u64);

impl Rolls {
    pub(super) fn new(seed: u64) -> Rolls {
        Rolls(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    pub(super) fn unit(&mut self) -> f64 {
        self.below(1 << 32) as f64 / (1_u64 << 32) as f64
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

pub(super) fn policy() -> Policy {
    Policy {
        tpm: Some(60_000),
        rpm: Some(600),
        max_concurrency: 12,
        count: CountBy::Calls,
        adaptive: false,
        shares: Shares { interactive_reserve: 0.3, batch_floor: 0.05 },
        interactive_max_wait: Duration::from_millis(250),
        batch_max_dwell: Duration::from_secs(30),
        batch_queue_max_items: 400,
        breaker: plan::Breaker {
            window: Duration::from_secs(30),
            failure_ratio: 0.2,
            min_requests: 20,
            slow: Duration::from_secs(2),
            cooldown: Duration::from_secs(3),
            probe_ratio: 0.1,
            probe_interval: Duration::from_secs(1),
            probe_successes: 2,
        },
        call_timeout: Duration::from_secs(5),
    }
}

/// One request as the model knows it.
#[derive(Debug, Clone)]
struct Request {
    tenant: u64,
    class: TrafficClass,
    tokens: u64,
}

#[derive(Debug, Clone, Copy)]
struct Taken {
    at: Mono,
    id: u64,
    tier: Tier,
    tokens: u64,
    /// Whether it still counts as a call.
    call: bool,
}

/// What a run came across: a schedule that never gets there proves nothing.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    at_once: u64,
    on_loan: u64,
    out_of_queue: u64,
    batch: u64,
    probes: u64,
    lost: u64,
    opened: u64,
    closed: u64,
    pauses: u64,
}

/// The state under test beside a plain model of what it must have done.
struct Simulation {
    seed: u64,
    events: u64,
    now: Mono,
    rolls: Rolls,
    policy: Policy,
    state: UpstreamState,
    /// What workers may call without asking; taken back before each event and given anew after it.
    loan: CallLoan<Outcome>,
    next_id: u64,
    waiting: BTreeMap<u64, Request>,
    in_flight: BTreeMap<u64, Request>,
    /// Calls on loan that ended and whose reports the owner has not taken yet.
    ending: BTreeSet<u64>,
    answered: BTreeSet<u64>,
    taken: VecDeque<Taken>,
    minute: [u64; 2],
    minute_calls: u64,
    probes: BTreeSet<u64>,
    seen: Seen,
    /// Calls whose report will never come, as if their worker had died.
    dead: BTreeSet<u64>,
    /// Longest usual time between events.
    gap_ns: u64,
    /// How likely calls fail just now, in percent: outages come and go.
    failing: u64,
}

impl Drop for Simulation {
    /// A panic inside the state under test names the seed too.
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay with VECTORGATE_SEED={}, event {}", self.seed, self.events);
        }
    }
}

impl Simulation {
    fn new(seed: u64) -> Simulation {
        let mut rolls = Rolls::new(seed);
        let mut policy = policy();
        policy.max_concurrency = 1 + rolls.below(20) as usize;
        policy.adaptive = rolls.one_in(3);
        policy.rpm = (!rolls.one_in(4)).then_some(20 + rolls.below(2_000));
        policy.tpm = (!rolls.one_in(6)).then_some(1_000 + rolls.below(100_000));
        let gap_ns = 10_000_000 + rolls.below(600_000_000);
        Simulation {
            seed,
            events: 0,
            now: Mono(1),
            rolls,
            state: UpstreamState::new(policy.clone()),
            loan: CallLoan::default(),
            policy,
            next_id: 1,
            waiting: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            ending: BTreeSet::new(),
            answered: BTreeSet::new(),
            taken: VecDeque::new(),
            minute: [0; 2],
            minute_calls: 0,
            probes: BTreeSet::new(),
            seen: Seen::default(),
            dead: BTreeSet::new(),
            gap_ns,
            failing: 2,
        }
    }

    #[track_caller]
    fn hold(&self, holds: bool, what: &str) {
        assert!(holds, "{what}");
    }

    fn step(&mut self) {
        self.events += 1;
        if !self.rolls.one_in(3) {
            let gap = if self.rolls.one_in(200) { 5_000_000_000 } else { self.gap_ns };
            self.now = self.now.plus(Duration::from_nanos(self.rolls.below(gap)));
        }
        if self.rolls.one_in(2_000) {
            self.failing = if self.failing > 50 { 2 } else { 90 };
        }
        if self.rolls.one_in(3) {
            self.act_on_loan();
            return;
        }
        self.gather();
        // Time first, so that calls lost by now are known to be before anything else happens to them.
        let poll = self.state.poll(self.now);
        self.take(poll);
        match self.rolls.below(100) {
            0..45 => self.ask(),
            45..85 => self.finish(),
            85..88 => self.abandon(),
            88..90 => self.report_nonsense(),
            90..99 => {}
            _ => self.operate(),
        }
        let poll = self.state.poll(self.now);
        self.take(poll);
        self.check();
        self.state.lend(&mut self.loan, self.now);
    }

    /// What workers do without the owner: calls begin and end.
    fn act_on_loan(&mut self) {
        if self.rolls.one_in(3) && self.loan.in_flight() > 0 {
            self.finish();
            return;
        }
        let id = self.next_id;
        let request = Request {
            tenant: self.rolls.below(4),
            class: TrafficClass::InteractiveSearch,
            tokens: 1 + self.rolls.below(600),
        };
        if self.loan.begin(AttemptId(id), request.tokens, 1, self.now) {
            self.next_id += 1;
            self.seen.on_loan += 1;
            self.granted(id, request, Grant { attempt: AttemptId(id), probe: false, waited: Duration::ZERO });
        }
    }

    fn gather(&mut self) {
        for (id, outcome) in self.state.gather(&mut self.loan, self.now) {
            let ended = self.ending.remove(&id.0);
            self.hold(ended, "I3: a report is of a call that ended");
            self.report(id.0, outcome);
        }
    }

    fn ask(&mut self) {
        let id = self.next_id;
        self.next_id += 1;
        let class = match self.rolls.below(10) {
            0..5 => TrafficClass::BatchIngestion,
            5..7 => TrafficClass::Rerank,
            _ => TrafficClass::InteractiveSearch,
        };
        let tokens = if self.rolls.one_in(50) { self.rolls.below(200_000) } else { self.rolls.below(600) };
        let request = Request { tenant: self.rolls.below(4), class, tokens: tokens.max(1) };
        let ask = Ask {
            attempt: AttemptId(id),
            waiter: WaiterId(id),
            tenant: TenantId::from(format!("tenant-{}", request.tenant)),
            weight: 1 + request.tenant as u32,
            class,
            tokens,
            items: 1 + self.rolls.below(20) as usize,
            begun: false,
            may_queue: !self.rolls.one_in(5),
            deadline: Mono(u64::MAX),
            waits_until: self.now.plus(Duration::from_millis(self.rolls.below(20_000))),
            roll: self.rolls.unit(),
        };
        match self.state.ask(ask, self.now) {
            Decision::Grant(grant) => {
                self.seen.at_once += 1;
                self.granted(id, request, grant);
            }
            Decision::Queued => {
                self.waiting.insert(id, request);
            }
            Decision::Refuse(_) => {
                let first = self.answered.insert(id);
                self.hold(first, "I3: refused once");
            }
        }
    }

    fn finish(&mut self) {
        let Some(id) = self.pick_in_flight().filter(|id| !self.ending.contains(id)) else { return };
        if self.rolls.one_in(50) {
            self.dead.insert(id);
        }
        if self.dead.contains(&id) {
            return;
        }
        let fails = self.rolls.below(100) < self.failing;
        let kind = match (fails, self.rolls.below(13)) {
            (false, 12) => OutcomeKind::Outrun { after: Duration::from_millis(300) },
            (false, 0) => OutcomeKind::RequestError,
            (false, 1) => OutcomeKind::ClientGone,
            (false, 2) => OutcomeKind::NotSent,
            (false, n) => OutcomeKind::Success { latency: Duration::from_millis(n * 20) },
            (true, 0) => OutcomeKind::RateLimited { hint: None },
            (true, 1) => OutcomeKind::RateLimited { hint: Some(Duration::from_millis(self.rolls.below(2_000))) },
            (true, 2) => OutcomeKind::Timeout,
            (true, 3) => OutcomeKind::Transport,
            (true, 4) => OutcomeKind::Connect,
            (true, 5) => OutcomeKind::Success { latency: Duration::from_secs(3) },
            (true, _) => OutcomeKind::ServerError,
        };
        let Some(request) = self.in_flight.get(&id).cloned() else { return };
        let actual = self.rolls.one_in(2).then(|| self.rolls.below(request.tokens * 5 / 4));
        let headers = if self.rolls.one_in(20) { self.headers() } else { RateHeaders::default() };
        self.end_call(id, Outcome { kind, actual_tokens: actual, headers });
    }

    /// Ends a call where it was begun.
    fn end_call(&mut self, id: u64, outcome: Outcome) {
        let left = [outcome.headers.remaining_tokens, outcome.headers.remaining_requests];
        let look = if id.is_multiple_of(2) { Look::Soon } else { Look::InTurn };
        match self.loan.end(AttemptId(id), outcome, left, look) {
            Ending::NotHere(outcome) => {
                // Whoever reports to the owner makes it look at the loan first.
                self.gather();
                let poll = self.state.poll(self.now);
                self.take(poll);
                self.report(id, outcome);
            }
            Ending::Noted | Ending::See(_) => {
                self.ending.insert(id);
            }
        }
    }

    fn report(&mut self, id: u64, outcome: Outcome) {
        let (kind, actual) = (outcome.kind, outcome.actual_tokens);
        self.state.finished(AttemptId(id), outcome, self.now);
        let Some(request) = self.in_flight.get(&id).cloned() else { return };
        self.released(id);
        let left = match (kind, actual) {
            (_, Some(actual)) => actual.min(request.tokens),
            (
                OutcomeKind::Success { .. }
                | OutcomeKind::Outrun { .. }
                | OutcomeKind::Timeout
                | OutcomeKind::Transport
                | OutcomeKind::ClientGone,
                None,
            ) => {
                return;
            }
            (_, None) => 0,
        };
        self.corrected(id, left, actual.is_none());
    }

    fn headers(&mut self) -> RateHeaders {
        RateHeaders {
            remaining_tokens: self.rolls.one_in(2).then(|| self.rolls.below(50_000)),
            remaining_requests: self.rolls.one_in(4).then(|| self.rolls.below(100)),
            limit_tokens: self.rolls.one_in(4).then(|| 500 + self.rolls.below(500_000)),
            reset_tokens: self.rolls.one_in(2).then(|| Duration::from_millis(self.rolls.below(20_000))),
            reset_requests: Some(Duration::from_millis(self.rolls.below(3_000))),
            ..RateHeaders::default()
        }
    }

    fn abandon(&mut self) {
        let skip = self.rolls.below(self.waiting.len() as u64) as usize;
        let Some(id) = self.waiting.keys().nth(skip).copied() else { return };
        let left = self.state.abandon(WaiterId(id));
        self.hold(left, "I3: who waits can leave");
        self.waiting.remove(&id);
        let again = self.state.abandon(WaiterId(id));
        self.hold(!again, "I3: once");
        self.answered.insert(id);
    }

    /// Reports about calls never granted, or granted and reported long ago: they must change nothing.
    fn report_nonsense(&mut self) {
        let id = self.rolls.below(self.next_id + 10);
        if !self.in_flight.contains_key(&id) {
            self.state.finished(AttemptId(id), Outcome::bare(OutcomeKind::ServerError), self.now);
        }
    }

    fn operate(&mut self) {
        match self.rolls.below(60) {
            0 => self.state.force_open(),
            1..10 => self.state.force_close(),
            10 => self.state.drain(),
            11..20 => self.state.resume(),
            20 => self.state.quarantine(true),
            21..30 => self.state.quarantine(false),
            30..34 => {
                self.state.heal();
                self.probes.clear();
            }
            34 => {
                let Some(id) = self.pick_in_flight().filter(|id| !self.ending.contains(id)) else { return };
                self.end_call(id, Outcome::bare(OutcomeKind::OutOfQuota));
            }
            35..38 => self.state.reconfigure(self.policy.clone()),
            38 => self.state.unverified(true),
            39..48 => self.state.unverified(false),
            _ => {}
        }
    }

    fn pick_in_flight(&mut self) -> Option<u64> {
        let skip = self.rolls.below(self.in_flight.len() as u64) as usize;
        self.in_flight.keys().nth(skip).copied()
    }

    fn take(&mut self, poll: Poll) {
        for effect in &poll.effects {
            match effect {
                Effect::Impossible(what) => self.hold(false, &format!("I6: {what}")),
                Effect::Lost(id) => {
                    self.hold(self.in_flight.contains_key(&id.0), "I3: only a call in flight can be lost");
                    self.released(id.0);
                    self.seen.lost += 1;
                }
                Effect::Breaker(change) => {
                    self.seen.opened += u64::from(change.to == Phase::Open);
                    self.seen.closed += u64::from(change.to == Phase::Closed);
                    if change.from == Phase::HalfOpen {
                        self.probes.clear();
                    }
                }
                Effect::CoolDown(_) => self.seen.pauses += 1,
                Effect::Parked(_) | Effect::Dwell { .. } => {}
            }
        }
        for (waiter, answer) in poll.answers {
            let request = self.waiting.remove(&waiter.0);
            self.hold(request.is_some(), "I3: an answer goes to who waits");
            let Some(request) = request else { continue };
            match answer {
                Ok(grant) => {
                    let batch = request.class == TrafficClass::BatchIngestion;
                    let earlier = |(id, other): (&u64, &Request)| {
                        *id < waiter.0 && other.tenant == request.tenant && other.class == request.class
                    };
                    self.hold(!batch || !self.waiting.iter().any(earlier), "I4: first come, first served");
                    self.seen.out_of_queue += 1;
                    self.granted(waiter.0, request, grant);
                }
                Err(_) => {
                    let first = self.answered.insert(waiter.0);
                    self.hold(first, "I3: refused once");
                }
            }
        }
        self.hold(
            self.waiting.is_empty() || poll.wake.is_some_and(|wake| wake > self.now),
            "who waits will be looked at",
        );
    }

    fn granted(&mut self, id: u64, request: Request, grant: Grant) {
        self.hold(grant.attempt == AttemptId(id), "I3: the grant is for the call asked for");
        let first = self.answered.insert(id);
        self.hold(first, "I3: granted once");
        let phase = self.state.snapshot(self.now).breaker;
        self.hold(phase != Phase::Open, "I5: nothing passes an open breaker");
        self.hold(grant.probe == (phase == Phase::HalfOpen), "I5: half-open means probe");
        if grant.probe {
            self.hold(request.class.is_interactive(), "I5: batch never probes");
            self.probes.retain(|probe| self.in_flight.contains_key(probe));
            self.hold(self.probes.is_empty(), "I5: one probe at a time");
            self.probes.insert(id);
        }
        self.seen.probes += u64::from(grant.probe);
        self.seen.batch += u64::from(!request.class.is_interactive());
        let tier = Tier::of(request.class);
        self.minute[index(tier)] += request.tokens;
        self.minute_calls += 1;
        self.taken.push_back(Taken { at: self.now, id, tier, tokens: request.tokens, call: true });
        self.in_flight.insert(id, request);
        self.check_minute();
    }

    fn check_minute(&mut self) {
        while let Some(old) =
            self.taken.front().copied().filter(|taken| self.now.since(taken.at) >= Duration::from_secs(60))
        {
            self.minute[index(old.tier)] -= old.tokens;
            self.minute_calls -= u64::from(old.call);
            self.taken.pop_front();
        }
        let [interactive, batch] = self.minute;
        if let Some(limit) = self.policy.tpm {
            let shares = self.policy.shares;
            self.hold(interactive + batch <= limit, "I1: never above the limit in any minute");
            self.hold(batch <= limit - shares.guaranteed(Tier::Interactive, limit), "I1: batch never in the reserve");
            self.hold(
                interactive <= limit - shares.guaranteed(Tier::Batch, limit),
                "I1: interactive never in the floor",
            );
        }
        self.hold(self.policy.rpm.is_none_or(|limit| self.minute_calls <= limit), "I1: never more calls than allowed");
    }

    /// A take was lowered, to 0 if it was returned with its call.
    fn corrected(&mut self, id: u64, left: u64, returned: bool) {
        if let Some(taken) = self.taken.iter_mut().find(|taken| taken.id == id) {
            self.minute[index(taken.tier)] -= taken.tokens - left;
            self.minute_calls -= u64::from(returned && taken.call);
            taken.tokens = left;
            taken.call &= !returned;
        }
    }

    fn released(&mut self, id: u64) {
        self.in_flight.remove(&id);
        self.probes.remove(&id);
    }

    fn check(&mut self) {
        let (calls, batch) = self.in_flight.values().fold((0, 0), |(calls, batch), request| {
            (calls + 1, batch + usize::from(request.class == TrafficClass::BatchIngestion))
        });
        self.hold(self.state.in_flight() == calls, "I3: calls in flight are those granted and not ended");
        let most = self.policy.max_concurrency;
        self.hold(calls <= most, "I2: never more in flight than allowed");
        let reserved = self.policy.shares.guaranteed(Tier::Interactive, most as u64) as usize;
        self.hold(batch <= most - reserved, "I2: batch never in the reserved slots");
    }

    /// Ends everything and checks that nothing is left over.
    fn end(&mut self) {
        self.gather();
        self.state.shutdown();
        let poll = self.state.poll(self.now);
        self.take(poll);
        // A shutdown lets interactive work wait its moment; an operator's order lets nobody.
        self.state.drain();
        let poll = self.state.poll(self.now);
        self.take(poll);
        self.hold(self.waiting.is_empty(), "I3: everybody who waited was answered");
        for id in self.in_flight.keys().copied().collect::<Vec<_>>() {
            self.end_call(id, Outcome::bare(OutcomeKind::ClientGone));
        }
        self.gather();
        self.hold(self.state.in_flight() == 0, "I3: no permit is left");
        self.hold(self.answered.len() as u64 == self.next_id - 1, "I3: every request was answered");
        let counters = self.state.snapshot(self.now).counters;
        self.hold(counters.granted == counters.finished + counters.lost, "I3: each permit ended once");
    }
}

fn index(tier: Tier) -> usize {
    match tier {
        Tier::Interactive => 0,
        Tier::Batch => 1,
    }
}

fn run(seed: u64, events: u64) -> Seen {
    let mut simulation = Simulation::new(seed);
    for _ in 0..events {
        simulation.step();
    }
    simulation.end();
    simulation.seen
}

#[test]
fn a_million_random_events_break_no_invariant() {
    // A fixed set of seeds finds the same things on every machine; VECTORGATE_SEED replays or widens the search.
    let base = std::env::var("VECTORGATE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let runs: Vec<Seen> = (base..base + 40).map(|seed| run(seed, 25_000)).collect();
    let all = |what: fn(&Seen) -> u64| runs.iter().map(what).sum::<u64>();
    assert!(all(|seen| seen.at_once) > 50_000);
    assert!(all(|seen| seen.on_loan) > 10_000);
    assert!(all(|seen| seen.out_of_queue) > 10_000);
    assert!(all(|seen| seen.batch) > 20_000);
    assert!(all(|seen| seen.probes) > 500);
    assert!(all(|seen| seen.lost) > 500);
    assert!(all(|seen| seen.opened) > 500 && all(|seen| seen.closed) > 200);
    assert!(all(|seen| seen.pauses) > 1_000);
}
