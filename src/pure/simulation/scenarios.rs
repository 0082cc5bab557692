//! Minutes of traffic in virtual time: one upstream's admission between clients and a provider that enforces its limit.

use std::collections::BTreeMap;
use std::time::Duration;

use super::provider::Provider;
use super::{Rolls, policy};
use crate::ids::{AttemptId, TenantId, WaiterId};
use crate::pure::admission::{Ask, Decision, Grant, Outcome, OutcomeKind, Policy, UpstreamState};
use crate::pure::class::TrafficClass;
use crate::pure::time::Mono;

const LIMIT: u64 = 1_000_000;

/// A source of traffic.
#[derive(Debug, Clone)]
struct Source {
    name: &'static str,
    class: TrafficClass,
    weight: u32,
    tokens: u64,
    start: Duration,
    /// Calls a second; `None`: a bulk job that keeps `lines` requests waiting or in flight.
    per_s: Option<u64>,
    lines: usize,
    calls: usize,
}

fn bulk(name: &'static str, weight: u32, tokens: u64) -> Source {
    let (class, start) = (TrafficClass::BatchIngestion, Duration::ZERO);
    Source { name, class, weight, tokens, start, per_s: None, lines: 40, calls: usize::MAX }
}

fn queries(per_s: u64, tokens: u64) -> Source {
    let class = TrafficClass::InteractiveSearch;
    Source {
        name: "queries",
        class,
        weight: 1,
        tokens,
        start: Duration::ZERO,
        per_s: Some(per_s),
        lines: 0,
        calls: usize::MAX,
    }
}

/// What became of a source's calls.
#[derive(Debug, Clone, Default)]
struct Tally {
    asked: usize,
    tokens: u64,
    served: usize,
    refused: usize,
    longest_wait: Duration,
    provider_refused: usize,
}

#[derive(Debug)]
enum Event {
    Ask(usize),
    Arrive { id: u64, source: usize },
    Answer { id: u64, source: usize, outcome: Outcome },
    Wake,
}

struct World {
    state: UpstreamState,
    provider: Provider,
    sources: Vec<Source>,
    tallies: Vec<Tally>,
    events: BTreeMap<(Mono, u64), Event>,
    waiting: BTreeMap<u64, usize>,
    next: u64,
    rolls: Rolls,
    /// When the next wake-up is due.
    alarm: Mono,
}

fn wide() -> Policy {
    Policy { tpm: Some(LIMIT), rpm: None, max_concurrency: 64, batch_max_dwell: Duration::from_secs(300), ..policy() }
}

impl World {
    /// Runs the sources for `seconds` and tells what became of them, in their order.
    fn run(policy: Policy, provider: Provider, sources: Vec<Source>, seconds: u64) -> Vec<Tally> {
        let mut world = World {
            state: UpstreamState::new(policy),
            provider,
            tallies: vec![Tally::default(); sources.len()],
            sources,
            events: BTreeMap::new(),
            waiting: BTreeMap::new(),
            next: 0,
            rolls: Rolls::new(7),
            alarm: Mono::ZERO,
        };
        for (source, described) in world.sources.clone().iter().enumerate() {
            for _ in 0..described.lines.max(1) {
                world.schedule(Mono(1).plus(described.start), Event::Ask(source));
            }
        }
        let end = Mono(1).plus(Duration::from_secs(seconds));
        while let Some(((now, _), event)) = world.events.pop_first().filter(|((now, _), _)| *now < end) {
            world.handle(event, now);
            world.poll(now);
        }
        world.tallies
    }

    fn schedule(&mut self, at: Mono, event: Event) {
        self.next += 1;
        self.events.insert((at, self.next), event);
    }

    fn handle(&mut self, event: Event, now: Mono) {
        match event {
            Event::Ask(source) => self.ask(source, now),
            Event::Arrive { id, source } => {
                let (accepted, headers) = self.provider.call(self.sources[source].tokens, now);
                let latency = Duration::from_millis(30 + self.rolls.below(100));
                self.tallies[source].provider_refused += usize::from(!accepted);
                let kind =
                    if accepted { OutcomeKind::Success { latency } } else { OutcomeKind::RateLimited { hint: None } };
                let outcome = Outcome { kind, actual_tokens: accepted.then_some(self.sources[source].tokens), headers };
                self.schedule(now.plus(latency), Event::Answer { id, source, outcome });
            }
            Event::Answer { id, source, outcome } => {
                if matches!(outcome.kind, OutcomeKind::Success { .. }) {
                    self.tallies[source].served += 1;
                    self.tallies[source].tokens += self.sources[source].tokens;
                }
                self.state.finished(AttemptId(id), outcome, now);
                self.again(source, now, Duration::ZERO);
            }
            Event::Wake => {}
        }
    }

    fn ask(&mut self, source: usize, now: Mono) {
        let described = self.sources[source].clone();
        if self.tallies[source].asked >= described.calls {
            return;
        }
        self.tallies[source].asked += 1;
        if let Some(per_s) = described.per_s {
            self.schedule(now.plus(Duration::from_secs(1) / per_s as u32), Event::Ask(source));
        }
        self.next += 1;
        let id = self.next;
        let ask = Ask {
            attempt: AttemptId(id),
            waiter: WaiterId(id),
            tenant: TenantId::from(described.name),
            weight: described.weight,
            class: described.class,
            tokens: described.tokens,
            items: 1,
            may_queue: true,
            begun: false,
            deadline: now.plus(Duration::from_secs(300)),
            waits_until: Mono(u64::MAX),
            roll: self.rolls.unit(),
        };
        match self.state.ask(ask, now) {
            Decision::Grant(grant) => self.send(grant, source, now),
            Decision::Queued => {
                self.waiting.insert(id, source);
            }
            Decision::Refuse(_) => {
                self.tallies[source].refused += 1;
                self.again(source, now, Duration::from_secs(1));
            }
        }
    }

    /// A bulk job sends its next request when one has ended.
    fn again(&mut self, source: usize, now: Mono, pause: Duration) {
        if self.sources[source].per_s.is_none() {
            self.schedule(now.plus(pause), Event::Ask(source));
        }
    }

    /// Calls do not arrive as evenly as they leave: a connection may have to be made first.
    fn send(&mut self, grant: Grant, source: usize, now: Mono) {
        let tally = &mut self.tallies[source];
        tally.longest_wait = tally.longest_wait.max(grant.waited);
        let on_the_way = Duration::from_millis(1 + self.rolls.below(400));
        self.schedule(now.plus(on_the_way), Event::Arrive { id: grant.attempt.0, source });
    }

    fn poll(&mut self, now: Mono) {
        let poll = self.state.poll(now);
        for (waiter, answer) in poll.answers {
            let source = self.waiting.remove(&waiter.0).expect("an answer goes to who waits");
            match answer {
                Ok(grant) => self.send(grant, source, now),
                Err(_) => {
                    self.tallies[source].refused += 1;
                    self.again(source, now, Duration::from_secs(1));
                }
            }
        }
        // As a timer does: a little late, and never early.
        let wake = poll.wake.map(|wake| wake.plus(Duration::from_millis(1)));
        if let Some(wake) = wake.filter(|wake| self.alarm <= now || *wake < self.alarm) {
            self.alarm = wake;
            self.schedule(wake, Event::Wake);
        }
    }
}

#[track_caller]
fn check_noisy_neighbour(provider: Provider, call: u64) {
    let tallies = World::run(wide(), provider, vec![queries(20, 12), bulk("bulk", 1, call)], 120);
    let [queries, bulk] = tallies.as_slice() else { panic!("two sources") };
    assert_eq!((queries.refused, queries.longest_wait), (0, Duration::ZERO), "queries never wait");
    assert_eq!(queries.provider_refused + bulk.provider_refused, 0, "the provider never objects");
    // Batch may use 70 % of the limit, for two minutes; what was sent last has not been answered yet.
    let share = bulk.tokens as f64 / (2.0 * 0.7 * LIMIT as f64);
    assert!((0.95..=1.0).contains(&share), "bulk used {share:.3} of its share in calls of {call}");
}

#[test]
fn a_bulk_job_uses_its_share_and_nobody_notices() {
    for call in [500, 5_000, 25_000, 48_000] {
        check_noisy_neighbour(Provider::sliding(LIMIT), call);
        check_noisy_neighbour(Provider::bucket(LIMIT), call);
    }
}

#[test]
fn two_bulk_jobs_share_by_weight_and_a_small_one_is_served_soon() {
    let small = Source { start: Duration::from_secs(60), lines: 1, calls: 1, ..bulk("small", 1, 5_000) };
    let sources = vec![bulk("light", 1, 25_000), bulk("heavy", 3, 25_000), small];
    let tallies = World::run(wide(), Provider::sliding(LIMIT), sources, 180);
    let share = tallies[0].tokens as f64 / (tallies[0].tokens + tallies[1].tokens) as f64;
    assert!((0.2375..=0.2625).contains(&share), "{share:.4} instead of a quarter");
    assert_eq!(tallies[2].served, 1);
    assert!(tallies[2].longest_wait < Duration::from_millis(1_500), "{:?}", tallies[2].longest_wait);
}

#[test]
fn interactive_overload_leaves_batch_its_floor() {
    // 60 queries a second of 500 tokens want 1.8 times the limit; batch sends what its floor can carry.
    let sources = vec![queries(60, 500), bulk("bulk", 1, 25_000)];
    let tallies = World::run(wide(), Provider::sliding(LIMIT), sources, 600);
    let a_minute = tallies[1].tokens as f64 / 10.0;
    assert!(a_minute >= 0.9 * 0.05 * LIMIT as f64, "{a_minute} tokens a minute");
    assert_eq!(tallies[0].provider_refused + tallies[1].provider_refused, 0);
    let queries = tallies[0].tokens as f64 / 10.0;
    assert!(queries >= 0.85 * LIMIT as f64, "{queries} tokens a minute");
}

#[test]
fn a_limit_shared_with_strangers_is_found_out_from_headers() {
    // The provider grants a third of what is configured.
    let sources = vec![queries(5, 12), bulk("bulk", 1, 10_000)];
    let tallies = World::run(wide(), Provider::sliding(LIMIT / 3), sources, 240);
    assert_eq!(tallies[0].provider_refused + tallies[1].provider_refused, 0);
    assert!(tallies[1].tokens >= 3 * 7 * LIMIT / 30, "{}", tallies[1].tokens);
}

#[test]
fn while_half_open_one_query_in_a_hundred_probes() {
    let mut rolls = Rolls::new(3);
    let mut config = wide();
    config.breaker.probe_ratio = 0.01;
    config.breaker.probe_interval = Duration::from_secs(3_600);
    config.breaker.probe_successes = u32::MAX;
    let mut state = UpstreamState::new(config);
    let mut probes = 0;
    for n in 0..2_020_u64 {
        let now = if n < 20 { Mono(1) } else { Mono::from_millis(61_000 + n * 50) };
        let ask = Ask {
            attempt: AttemptId(n),
            waiter: WaiterId(n),
            tenant: TenantId::from("acme"),
            weight: 1,
            class: TrafficClass::InteractiveSearch,
            tokens: 1,
            items: 1,
            may_queue: false,
            begun: false,
            deadline: Mono(u64::MAX),
            waits_until: Mono(u64::MAX),
            roll: rolls.unit(),
        };
        if let Decision::Grant(grant) = state.ask(ask, now) {
            probes += u32::from(grant.probe);
            let latency = Duration::from_millis(5);
            let kind = if n < 20 { OutcomeKind::ServerError } else { OutcomeKind::Success { latency } };
            state.finished(AttemptId(n), Outcome::bare(kind), now);
        }
    }
    assert!((10..=32).contains(&probes), "{probes} of 2,000");
}
