//! Owns everything that decides whether an upstream may be called now: breaker, token and request buckets, pace, queues,
//! concurrency, pauses, and an operator's word. Refuses to know how calls are made and what they carry.
//!
//! The shell reads the clock, hands in one event, and then calls [`UpstreamState::poll`], which is where answers to
//! waiting requests, effects and the next wake-up come out. So a grant can only come from here, and each exactly once.
//!
//! # Order of service
//! Interactive requests wait, for a moment, in a line of their own that goes first. Batch waits in the fair queue. While
//! somebody interactive waits, batch may only use what it is guaranteed (tokens, requests and slots alike): its floor is
//! what keeps it from starving, and no more is what keeps it from hurting.
//!
//! # What a failed call keeps
//! Refused, rejected and never-sent calls give everything back. Where it is not known whether the provider did the work
//! (time-out, broken connection, client gone, never reported), the estimate stays taken until it ages out of the window:
//! the provider may have counted it.

mod events;
mod loan;
mod policy;
mod shared;
mod words;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

pub use loan::{CallLoan, Ending, Look};
pub use policy::{CountBy, Policy};
pub use shared::{LimitAsk, LimitGrant, QuotaAsk, QuotaGrant};
pub use words::{
    Allowance, Ask, Counters, Decision, Effect, Grant, LastError, Outcome, OutcomeKind, ParkReason, Poll, Refusal,
    UpstreamSnapshot, Why,
};

use super::aimd::Aimd;
use super::breaker::{Admit, Breaker, Phase, State, Ticket};
use super::class::TrafficClass;
use super::fair_queue::{FairQueue, PushError, Waiting};
use super::leaky_bucket::LeakyBucket;
use super::time::Mono;
use super::token_bucket::{SLOT, Tier, TokenBucket, When};
use crate::ids::{AttemptId, WaiterId};

/// Most interactive requests waiting: they wait for a fraction of a second, so more than this is an overload.
const INTERACTIVE_QUEUE: usize = 1_024;
/// How long after its time-out a call may still be reported before it counts as lost.
const REPORT_GRACE: Duration = Duration::from_secs(5);

/// What a waiting request needs to be granted.
#[derive(Debug, Clone, Copy)]
struct Held {
    attempt: AttemptId,
    class: TrafficClass,
    roll: f64,
    begun: bool,
}

/// One call in flight.
#[derive(Debug, Clone, Copy)]
struct Attempt {
    tier: Tier,
    tokens: u64,
    units: usize,
    begun: Mono,
    expires: Mono,
    ticket: Ticket,
    /// Its answer has begun, and the breaker knows.
    heard: bool,
}

/// Why a call cannot go now, and when it could if that is known.
#[derive(Debug, Clone, Copy)]
struct Block {
    why: Why,
    at: Option<Mono>,
}

/// What a loan has of the concurrency.
#[derive(Debug, Clone, Copy, Default)]
struct Lent {
    units: usize,
    calls: usize,
}

/// A call's demand on the limits.
#[derive(Debug, Clone, Copy)]
struct Need {
    tier: Tier,
    tokens: u64,
    units: usize,
}

/// The admission state of one upstream.
#[derive(Debug)]
pub struct UpstreamState {
    policy: Policy,
    breaker: Breaker,
    tokens: TokenBucket,
    requests: TokenBucket,
    token_pace: LeakyBucket,
    request_pace: LeakyBucket,
    interactive: VecDeque<Waiting<Held>>,
    batch: FairQueue<Held>,
    attempts: HashMap<AttemptId, Attempt>,
    expiries: BTreeSet<(Mono, AttemptId)>,
    /// Concurrency in use by tier.
    in_use: [usize; 2],
    /// The part of `in_use` that a loan has, and the calls under way within it as of the last look.
    lent: Lent,
    aimd: Aimd,
    cool_until: Mono,
    refused_in_a_row: u32,
    last_refused: Mono,
    parked: Option<ParkReason>,
    quarantined: bool,
    /// The breaker is open because another replica's is, so the others need not be told.
    told_open: bool,
    vectors: Vectors,
    /// Whether there is anything to compare its vectors with.
    compared: bool,
    draining: bool,
    shutting_down: bool,
    /// Those who wait have not been told yet that the gateway shuts down.
    turn_away: bool,
    last_error: Option<(&'static str, Mono)>,
    counters: Counters,
    effects: Vec<Effect>,
}

/// What is known of the vectors that the upstream makes now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Vectors {
    /// They are those of its space.
    Trusted,
    /// They have to be looked at before it is used.
    Unverified,
    /// They were asked for and did not come: it is down.
    Missing,
}

impl UpstreamState {
    /// A healthy upstream with full buckets and empty queues.
    pub fn new(policy: Policy) -> UpstreamState {
        UpstreamState {
            breaker: Breaker::new(policy.breaker.clone(), policy.call_timeout),
            tokens: TokenBucket::new(policy.tpm, policy.shares, 110),
            requests: TokenBucket::new(policy.rpm, policy.shares, 100),
            token_pace: LeakyBucket::new(None),
            request_pace: LeakyBucket::new(None),
            interactive: VecDeque::new(),
            batch: FairQueue::new(policy.batch_queue_max_items),
            attempts: HashMap::new(),
            expiries: BTreeSet::new(),
            in_use: [0; 2],
            lent: Lent::default(),
            aimd: Aimd::new(policy.max_concurrency),
            cool_until: Mono::ZERO,
            refused_in_a_row: 0,
            last_refused: Mono::ZERO,
            parked: None,
            quarantined: false,
            told_open: false,
            vectors: Vectors::Trusted,
            compared: false,
            draining: false,
            shutting_down: false,
            turn_away: false,
            last_error: None,
            counters: Counters::default(),
            effects: Vec::new(),
            policy,
        }
    }

    /// Takes over new settings; breaker, buckets, queues and calls in flight stay.
    pub fn reconfigure(&mut self, policy: Policy) {
        self.breaker.reconfigure(policy.breaker.clone(), policy.call_timeout);
        self.tokens.reconfigure(policy.tpm, policy.shares);
        self.requests.reconfigure(policy.rpm, policy.shares);
        self.aimd.set_max(policy.max_concurrency);
        self.batch.set_max_items(policy.batch_queue_max_items);
        self.policy = policy;
    }

    /// Asks for one call. `Queued` is answered by a later [`UpstreamState::poll`]; asking again for a call in flight
    /// repeats its grant and takes nothing twice.
    pub fn ask(&mut self, ask: Ask, now: Mono) -> Decision {
        self.settle(now);
        if let Some(attempt) = self.attempts.get(&ask.attempt) {
            return Decision::Grant(Grant {
                attempt: ask.attempt,
                probe: attempt.ticket.probe,
                waited: Duration::ZERO,
            });
        }
        let need = Need {
            tier: Tier::of(ask.class),
            tokens: ask.tokens.max(1),
            units: match self.policy.count {
                CountBy::Calls => 1,
                CountBy::Texts => ask.items.max(1),
            },
        };
        if let Some(refusal) = self.refusal(&ask, need, now) {
            return self.refuse(refusal);
        }
        let nobody_ahead = match need.tier {
            Tier::Interactive => self.interactive.is_empty(),
            Tier::Batch => self.batch.is_empty(),
        };
        let block = self.block(need, now);
        if block.is_none() && nobody_ahead {
            if need.tier == Tier::Batch {
                self.batch.charge(&ask.tenant, ask.weight, need.tokens);
            }
            let held = Held { attempt: ask.attempt, class: ask.class, roll: ask.roll, begun: ask.begun };
            return Decision::Grant(self.grant(held, need, Duration::ZERO, now));
        }
        match self.enqueue(ask, block, now) {
            Ok(()) => Decision::Queued,
            Err(refusal) => self.refuse(refusal),
        }
    }

    /// Lets time pass and hands out what has become possible. To be called after every other event and at `wake`.
    pub fn poll(&mut self, now: Mono) -> Poll {
        self.settle(now);
        let mut answers = Vec::new();
        if let Some(refusal) = self.shut(now) {
            self.flush(refusal, now, &mut answers);
        } else {
            if std::mem::take(&mut self.turn_away) {
                self.turn_away_batch(now, &mut answers);
            }
            self.expire_waiting(now, &mut answers);
            self.grant_waiting(now, &mut answers);
        }
        let wake = self.next_wake(now);
        Poll { answers, effects: std::mem::take(&mut self.effects), wake }
    }

    /// A waiting request's client has left. Returns whether it was waiting.
    pub fn abandon(&mut self, waiter: WaiterId) -> bool {
        let before = self.interactive.len();
        self.interactive.retain(|waiting| waiting.waiter != waiter);
        self.interactive.len() < before || self.batch.remove(waiter).is_some()
    }

    /// Reasons that end a request at once, before any queue.
    fn refusal(&mut self, ask: &Ask, need: Need, now: Mono) -> Option<Refusal> {
        if let Some(why) = self.closed() {
            return Some(Refusal { why, retry_at: None });
        }
        if now >= ask.deadline {
            return Some(Refusal { why: Why::Late, retry_at: None });
        }
        if let Some(at) = self.breaker.refusal(ask.class, ask.roll, now) {
            return Some(circuit_open(at));
        }
        let never = self.tokens.when(need.tokens, need.tier, now) == When::Never
            || self.requests.when(1, need.tier, now) == When::Never;
        never.then_some(Refusal { why: Why::TooLarge, retry_at: None })
    }

    /// An operator's or a key's reason to send nothing at all.
    fn closed(&self) -> Option<Why> {
        if self.draining {
            Some(Why::Draining)
        } else if self.quarantined {
            Some(Why::Quarantined)
        } else {
            let parked = self.parked.map(|reason| match reason {
                ParkReason::KeyRejected => Why::Parked,
                ParkReason::OutOfQuota => Why::OutOfCredit,
            });
            parked.or((self.vectors != Vectors::Trusted).then_some(Why::Unverified))
        }
    }

    /// Why nobody can wait here now. While probing nobody waits either: whether the upstream is back will be known only
    /// after several probes, and elsewhere may be room.
    fn shut(&self, now: Mono) -> Option<Refusal> {
        if let Some(why) = self.closed() {
            return Some(Refusal { why, retry_at: None });
        }
        match self.breaker.state() {
            State::Closed => None,
            State::Open { until, .. } => Some(circuit_open(until)),
            State::HalfOpen { .. } => {
                let at = self.breaker.refusal(TrafficClass::BatchIngestion, 1.0, now).unwrap_or(now);
                Some(circuit_open(at))
            }
        }
    }

    /// What keeps a call from going now, apart from the breaker and others in line.
    fn block(&mut self, need: Need, now: Mono) -> Option<Block> {
        let paced = self.block_but_slots(need, now);
        if paced.is_some() || self.has_slot(need, now) {
            return paced;
        }
        Some(Block { why: Why::Concurrency, at: None })
    }

    fn block_but_slots(&mut self, need: Need, now: Mono) -> Option<Block> {
        let mut at = self.cool_until;
        let contested = need.tier == Tier::Batch && !self.interactive.is_empty();
        for (bucket, n) in [(&mut self.tokens, need.tokens), (&mut self.requests, 1)] {
            match bucket.when(n, need.tier, now) {
                When::At(then) => at = at.max(then),
                When::Never => at = Mono(u64::MAX),
            }
            if contested && bucket.available_floor(now) < n {
                // The floor comes back slot by slot; who waits ahead may also leave at any time, which polls anew.
                at = at.max(now.plus(SLOT));
            }
        }
        if need.tier == Tier::Batch {
            self.token_pace.set_rate(self.tokens.cap(Tier::Batch, now));
            self.request_pace.set_rate(self.requests.cap(Tier::Batch, now));
            at = at.max(self.token_pace.ready_at(need.tokens)).max(self.request_pace.ready_at(1));
        }
        (at > now).then_some(Block { why: Why::RateLimited, at: Some(at) })
    }

    /// Whether concurrency leaves room. A call of more units than its tier may ever use counts as that many, so it goes
    /// when its tier has nothing else in flight, and only the excess is overshoot.
    fn has_slot(&mut self, need: Need, now: Mono) -> bool {
        let limit = self.concurrency_limit();
        let [interactive, batch] = self.in_use;
        match need.tier {
            Tier::Interactive => {
                let room = limit.saturating_sub(self.slots_owed_to_batch(limit, now));
                interactive + batch + need.units.min(room.max(1)) <= room
            }
            Tier::Batch => {
                let contested = !self.interactive.is_empty();
                let room = if contested { self.batch_floor_slots(limit) } else { self.batch_slots(limit) };
                let units = need.units.min(room);
                room > 0 && batch + units <= room && interactive + batch + units <= limit
            }
        }
    }

    /// Slots that interactive leaves free because batch is due and has less than its floor in flight. Only while batch
    /// could really go: a slot kept for a call that waits for tokens would help nobody.
    fn slots_owed_to_batch(&mut self, limit: usize, now: Mono) -> usize {
        let owed = self.batch_floor_slots(limit).saturating_sub(self.in_use[1]);
        if owed == 0 || self.batch.is_empty() {
            return 0;
        }
        let Some(need) = self.batch_head_need() else { return 0 };
        if self.block_but_slots(need, now).is_some() { 0 } else { owed }
    }

    /// Batch's guaranteed slots: its share, but one at least where there are two.
    fn batch_floor_slots(&self, limit: usize) -> usize {
        let share = self.policy.shares.guaranteed(Tier::Batch, limit as u64) as usize;
        if self.policy.shares.batch_floor > 0.0 && limit >= 2 { share.max(1) } else { share }
    }

    /// The most slots that batch may ever use.
    fn batch_slots(&self, limit: usize) -> usize {
        limit - self.policy.shares.guaranteed(Tier::Interactive, limit as u64) as usize
    }

    fn concurrency_limit(&self) -> usize {
        if self.policy.adaptive { self.aimd.limit() } else { self.policy.max_concurrency.max(1) }
    }

    fn need_of(&self, waiting: &Waiting<Held>) -> Need {
        need_of(self.policy.count, waiting)
    }

    fn batch_head_need(&mut self) -> Option<Need> {
        let count = self.policy.count;
        self.batch.head().map(|waiting| need_of(count, waiting))
    }

    /// Takes what the call needs. The caller has checked that it is there.
    fn grant(&mut self, held: Held, need: Need, waited: Duration, now: Mono) -> Grant {
        if let Some(attempt) = self.attempts.get(&held.attempt) {
            let grant = Grant { attempt: held.attempt, probe: attempt.ticket.probe, waited };
            self.effects.push(Effect::Impossible("two requests waited for one call"));
            return grant;
        }
        if !(self.tokens.take(need.tokens, need.tier, now) && self.requests.take(1, need.tier, now)) {
            self.effects.push(Effect::Impossible("a grant was checked but its tokens were not there"));
        }
        if need.tier == Tier::Batch {
            self.token_pace.pour(need.tokens, self.tokens.left_share(now), now);
            self.request_pace.pour(1, self.requests.left_share(now), now);
        }
        let (admit, transition) = self.breaker.admit(held.class, held.roll, now);
        self.turned(transition);
        let ticket = match admit {
            Admit::Pass(ticket) | Admit::Probe(ticket) => ticket,
            Admit::Refuse { .. } => {
                self.effects.push(Effect::Impossible("a grant was checked but the breaker refused"));
                Ticket::VOID
            }
        };
        let expires = now.plus(self.policy.call_timeout).plus(REPORT_GRACE);
        let Need { tier, tokens, units } = need;
        self.attempts.insert(held.attempt, Attempt { tier, tokens, units, begun: now, expires, ticket, heard: false });
        self.expiries.insert((expires, held.attempt));
        self.in_use[slot_of(tier)] += units;
        self.counters.granted += 1;
        Grant { attempt: held.attempt, probe: ticket.probe, waited }
    }

    fn enqueue(&mut self, ask: Ask, block: Option<Block>, now: Mono) -> Result<(), Refusal> {
        let block = block.unwrap_or(Block { why: Why::QueueFull, at: None });
        let refusal = Refusal { why: block.why, retry_at: block.at.filter(|at| at.0 != u64::MAX) };
        let tier = Tier::of(ask.class);
        let longest = match tier {
            Tier::Interactive => self.policy.interactive_max_wait,
            Tier::Batch => self.policy.batch_max_dwell,
        };
        let expires = ask.deadline.min(ask.waits_until).min(now.plus(longest));
        let hopeless = block.at.is_some_and(|at| at >= expires);
        if !ask.may_queue || hopeless || self.breaker.phase() != Phase::Closed {
            return Err(refusal);
        }
        let waiting = Waiting {
            waiter: ask.waiter,
            tenant: ask.tenant,
            weight: ask.weight,
            tokens: ask.tokens.max(1),
            items: ask.items.max(1),
            enqueued: now,
            expires,
            payload: Held { attempt: ask.attempt, class: ask.class, roll: ask.roll, begun: ask.begun },
        };
        if self.shutting_down && turned_away(&waiting.payload) {
            return Err(Refusal { why: Why::ShuttingDown, retry_at: None });
        }
        let full = Refusal { why: Why::QueueFull, retry_at: block.at };
        match tier {
            Tier::Interactive => {
                let twice = self.interactive.iter().any(|other| other.waiter == waiting.waiter);
                if twice || self.interactive.len() >= INTERACTIVE_QUEUE {
                    return Err(full);
                }
                self.interactive.push_back(waiting);
                Ok(())
            }
            Tier::Batch => self.batch.push(waiting).map_err(|error| match error {
                PushError::Full | PushError::Duplicate => full,
            }),
        }
    }

    fn refuse(&mut self, refusal: Refusal) -> Decision {
        self.counters.refused += 1;
        Decision::Refuse(refusal)
    }

    fn answer_refusal(&mut self, waiting: &Waiting<Held>, refusal: Refusal, now: Mono, out: &mut Answers) {
        self.counters.refused += 1;
        let waited = now.since(waiting.enqueued);
        self.effects.push(Effect::Dwell { class: waiting.payload.class, waited });
        out.push((waiting.waiter, Err(refusal)));
    }

    fn flush(&mut self, refusal: Refusal, now: Mono, out: &mut Answers) {
        let interactive = std::mem::take(&mut self.interactive);
        for waiting in interactive.into_iter().chain(self.batch.drain()) {
            self.answer_refusal(&waiting, refusal, now, out);
        }
    }

    /// Answers the batch work that has only waited so far; the rest keeps its order.
    fn turn_away_batch(&mut self, now: Mono, out: &mut Answers) {
        let (away, stays): (Vec<_>, Vec<_>) =
            self.batch.drain().into_iter().partition(|waiting| turned_away(&waiting.payload));
        for waiting in away {
            self.answer_refusal(&waiting, Refusal { why: Why::ShuttingDown, retry_at: None }, now, out);
        }
        for waiting in stays {
            let waiter = waiting.waiter;
            if self.batch.push(waiting).is_err() {
                self.effects.push(Effect::Impossible("a waiter found no place in the queue that it had left"));
                out.push((waiter, Err(Refusal { why: Why::ShuttingDown, retry_at: None })));
            }
        }
    }

    fn expire_waiting(&mut self, now: Mono, out: &mut Answers) {
        let mut expired = self.batch.expire(now);
        if self.interactive.iter().any(|waiting| waiting.expires <= now) {
            let (late, rest): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.interactive).into_iter().partition(|waiting| waiting.expires <= now);
            self.interactive = rest.into();
            expired.extend(late);
        }
        for waiting in expired {
            let need = self.need_of(&waiting);
            let retry_at = self.block(need, now).and_then(|block| block.at).filter(|at| at.0 != u64::MAX);
            self.answer_refusal(&waiting, Refusal { why: Why::QueueTimeout, retry_at }, now, out);
        }
    }

    fn grant_waiting(&mut self, now: Mono, out: &mut Answers) {
        while let Some(need) = self.interactive.front().map(|waiting| self.need_of(waiting)) {
            if self.block(need, now).is_some() {
                break;
            }
            let Some(waiting) = self.interactive.pop_front() else { break };
            self.answer_grant(&waiting, need, now, out);
        }
        while let Some(need) = self.batch_head_need() {
            if self.block(need, now).is_some() {
                break;
            }
            let Some(waiting) = self.batch.pop() else { break };
            self.answer_grant(&waiting, need, now, out);
        }
    }

    fn answer_grant(&mut self, waiting: &Waiting<Held>, need: Need, now: Mono, out: &mut Answers) {
        let waited = now.since(waiting.enqueued);
        self.effects.push(Effect::Dwell { class: waiting.payload.class, waited });
        let grant = self.grant(waiting.payload, need, waited, now);
        out.push((waiting.waiter, Ok(grant)));
    }

    fn next_wake(&mut self, now: Mono) -> Option<Mono> {
        let interactive = self.interactive.front().map(|waiting| self.need_of(waiting));
        let interactive = interactive.and_then(|need| self.block(need, now)?.at);
        let batch = self.batch_head_need().and_then(|need| self.block(need, now)?.at);
        // Nobody may be waiting, yet whether calls would be let through is published for those who choose.
        let cooled = Some(self.cool_until).filter(|at| *at > now);
        let probing = match self.breaker.state() {
            State::Open { until, .. } => Some(until).filter(|at| at.0 != u64::MAX),
            State::Closed | State::HalfOpen { .. } => None,
        };
        let times = [
            cooled,
            probing,
            self.expiries.first().map(|(expires, _)| *expires),
            self.interactive.iter().map(|waiting| waiting.expires).min(),
            self.batch.next_expiry(),
            interactive,
            batch,
        ];
        times.into_iter().flatten().min()
    }
}

type Answers = Vec<(WaiterId, Result<Grant, Refusal>)>;

/// Whether somebody may not wait while the gateway shuts down: batch work without a call so far can go elsewhere.
fn turned_away(held: &Held) -> bool {
    Tier::of(held.class) == Tier::Batch && !held.begun
}

fn slot_of(tier: Tier) -> usize {
    match tier {
        Tier::Interactive => 0,
        Tier::Batch => 1,
    }
}

fn need_of(count: CountBy, waiting: &Waiting<Held>) -> Need {
    Need {
        tier: Tier::of(waiting.payload.class),
        tokens: waiting.tokens,
        units: match count {
            CountBy::Calls => 1,
            CountBy::Texts => waiting.items,
        },
    }
}

fn circuit_open(at: Mono) -> Refusal {
    Refusal { why: Why::CircuitOpen, retry_at: Some(at).filter(|at| at.0 != u64::MAX) }
}

#[cfg(test)]
mod tests;
