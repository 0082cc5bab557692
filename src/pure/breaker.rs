//! Owns the decision whether an upstream is well enough to be called. Refuses to know quota, queues and tenants.
//!
//! Every call that may go gets a [`Ticket`]; its result is only believed if no transition happened since. Without it the
//! last failures of an outage, arriving seconds later, would re-open a breaker that probes have just closed.

use std::time::Duration;

use serde::Serialize;

use super::class::TrafficClass;
use super::rate_window::{RateWindow, Totals};
use super::time::Mono;
use crate::config::plan;

/// Why a breaker is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OpenReason {
    /// Too large a share of recent calls failed.
    Ratio,
    /// A probe failed, or its answer never came.
    Probe,
    /// Another replica's is.
    Told,
    /// An operator said so; it stays open until one closes it.
    Forced,
}

/// One probe in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    serial: u64,
    deadline: Mono,
}

/// Where a breaker stands. Closed means that traffic flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Traffic flows.
    Closed,
    /// Nothing is sent.
    Open {
        /// When probing starts; the end of time if an operator opened it.
        until: Mono,
        /// Why.
        reason: OpenReason,
    },
    /// Single queries are let through to see.
    HalfOpen {
        /// The one in flight.
        probe: Option<Probe>,
        /// When the last one left, or when half-open began.
        last_probe: Mono,
        /// Successful probes in a row so far.
        streak: u32,
    },
}

/// The three states without their details, as reports name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Traffic flows.
    Closed,
    /// Probing.
    HalfOpen,
    /// Nothing is sent.
    Open,
}

impl Phase {
    /// The number in `vectorgate_breaker_state`: 0 closed, 1 half-open, 2 open.
    pub const fn as_gauge(self) -> i64 {
        match self {
            Phase::Closed => 0,
            Phase::HalfOpen => 1,
            Phase::Open => 2,
        }
    }
}

/// A change of phase, for logs and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transition {
    /// Before.
    pub from: Phase,
    /// After.
    pub to: Phase,
    /// Why, if it opened.
    pub reason: Option<OpenReason>,
}

/// Names one admitted call to the breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    serial: u64,
    /// Whether the call is a probe.
    pub probe: bool,
}

impl Ticket {
    /// Names no call: its result is never believed.
    pub const VOID: Ticket = Ticket { serial: u64::MAX, probe: false };
}

/// The answer to a caller who would like to call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admit {
    /// Go.
    Pass(Ticket),
    /// Go, and much depends on it.
    Probe(Ticket),
    /// Do not call.
    Refuse {
        /// When asking again makes sense; the end of time if only an operator can help.
        retry_at: Mono,
    },
}

/// How a call failed, for the breaker's purposes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// 5xx.
    Server,
    /// 429 for want of rate.
    RateLimited,
    /// No answer in time.
    Timeout,
    /// No connection, or one that broke.
    Connection,
    /// An answer, but slower than allowed.
    Slow,
}

/// How a call ended, for the breaker's purposes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A good answer; one slower than the limit counts as [`Failure::Slow`].
    Success {
        /// From sending to the answer's head.
        latency: Duration,
    },
    /// It failed.
    Failure(Failure),
    /// It says nothing about the upstream's health: an error about the request itself, or a permit never used.
    Neutral,
    /// Nobody waited for the answer. Neutral for a normal call; a probe counts as failed, because a host that hangs until
    /// clients leave would otherwise be probed for ever.
    Abandoned,
}

/// A circuit breaker with a rolling window, and probes after a cool-down.
#[derive(Debug, Clone)]
pub struct Breaker {
    config: plan::Breaker,
    probe_timeout: Duration,
    state: State,
    window: RateWindow,
    serial: u64,
}

impl Breaker {
    /// A closed breaker. A probe whose answer has not come after `probe_timeout` counts as failed.
    pub fn new(config: plan::Breaker, probe_timeout: Duration) -> Breaker {
        let window = RateWindow::new(config.window);
        Breaker { config, probe_timeout, state: State::Closed, window, serial: 0 }
    }

    /// Takes over new settings and keeps the state; counts start afresh if the window's length changed.
    pub fn reconfigure(&mut self, config: plan::Breaker, probe_timeout: Duration) {
        if config.window != self.config.window {
            self.window = RateWindow::new(config.window);
        }
        self.config = config;
        self.probe_timeout = probe_timeout;
    }

    /// The state as of the last event.
    pub fn state(&self) -> State {
        self.state
    }

    /// The state's name as of the last event.
    pub fn phase(&self) -> Phase {
        match self.state {
            State::Closed => Phase::Closed,
            State::Open { .. } => Phase::Open,
            State::HalfOpen { .. } => Phase::HalfOpen,
        }
    }

    /// Counts over the window at `now`.
    pub fn totals(&mut self, now: Mono) -> Totals {
        self.window.totals(now)
    }

    /// Lets time pass: an open breaker whose cool-down is over becomes half-open, a probe past its deadline has failed.
    pub fn advance(&mut self, now: Mono) -> Option<Transition> {
        match self.state {
            State::Open { until, reason } if reason != OpenReason::Forced && now >= until => {
                // Counted from the end of the cool-down and not from `now`: at low traffic the first query is a probe.
                self.enter(State::HalfOpen { probe: None, last_probe: until, streak: 0 })
            }
            State::HalfOpen { probe: Some(probe), .. } if now >= probe.deadline => self.open(OpenReason::Probe, now),
            State::Closed | State::Open { .. } | State::HalfOpen { .. } => None,
        }
    }

    /// What [`Breaker::admit`] would answer, without taking a probe's slot: `None` if the call may go. Call
    /// [`Breaker::advance`] first.
    pub fn refusal(&self, class: TrafficClass, roll: f64, now: Mono) -> Option<Mono> {
        match self.state {
            State::Closed => None,
            State::Open { until, .. } => Some(until),
            State::HalfOpen { probe: Some(probe), .. } => Some(probe.deadline),
            State::HalfOpen { probe: None, last_probe, .. } => {
                let due = last_probe.plus(self.config.probe_interval);
                let chosen = roll < self.config.probe_ratio || now >= due;
                if class.is_interactive() && chosen { None } else { Some(due.max(now)) }
            }
        }
    }

    /// Asks for one call of `class` at `now`; `roll` is a fresh random number in 0..1.
    pub fn admit(&mut self, class: TrafficClass, roll: f64, now: Mono) -> (Admit, Option<Transition>) {
        let transition = self.advance(now);
        if let Some(retry_at) = self.refusal(class, roll, now) {
            return (Admit::Refuse { retry_at }, transition);
        }
        match &mut self.state {
            State::HalfOpen { probe, last_probe, .. } => {
                self.serial += 1;
                *probe = Some(Probe { serial: self.serial, deadline: now.plus(self.probe_timeout) });
                *last_probe = now;
                (Admit::Probe(Ticket { serial: self.serial, probe: true }), transition)
            }
            State::Closed | State::Open { .. } => {
                (Admit::Pass(Ticket { serial: self.serial, probe: false }), transition)
            }
        }
    }

    /// Learns how the call of `ticket` ended. A result from before the last transition changes nothing.
    pub fn record(&mut self, ticket: Ticket, event: Event, now: Mono) -> Option<Transition> {
        // Time first: a probe that answers after its deadline has failed already.
        let passed = self.advance(now);
        self.learn(ticket, event, now).or(passed)
    }

    /// The ticket under which a call goes on whose beginning was counted as `ticket`'s result: a failure later on counts
    /// like any other, and is no probe's.
    pub fn follow_up(&self, ticket: Ticket) -> Ticket {
        if ticket == Ticket::VOID { ticket } else { Ticket { serial: self.serial, probe: false } }
    }

    fn learn(&mut self, ticket: Ticket, event: Event, now: Mono) -> Option<Transition> {
        let grade = self.grade(event);
        match (&mut self.state, grade) {
            (State::Closed, grade) if !ticket.probe && ticket.serial == self.serial => {
                self.window.record(grade.good()?, now);
                let totals = self.window.totals(now);
                let many = totals.all() >= self.config.min_requests.max(1);
                let bad = totals.bad_ratio() > self.config.failure_ratio;
                if many && bad { self.open(OpenReason::Ratio, now) } else { None }
            }
            (State::HalfOpen { probe: slot @ Some(_), streak, .. }, grade)
                if slot.is_some_and(|probe| ticket.probe && probe.serial == ticket.serial) =>
            {
                *slot = None;
                match grade {
                    Grade::Neutral => None,
                    Grade::Bad | Grade::Abandoned => self.open(OpenReason::Probe, now),
                    Grade::Good => {
                        *streak += 1;
                        if *streak >= self.config.probe_successes { self.close() } else { None }
                    }
                }
            }
            (State::Closed | State::Open { .. } | State::HalfOpen { .. }, _) => None,
        }
    }

    fn grade(&self, event: Event) -> Grade {
        match event {
            Event::Success { latency } if latency > self.config.slow => Grade::Bad,
            Event::Success { .. } => Grade::Good,
            Event::Failure(_) => Grade::Bad,
            Event::Neutral => Grade::Neutral,
            Event::Abandoned => Grade::Abandoned,
        }
    }

    /// A call that was not made, because it is known that it would have failed: counted like one that did, so that an
    /// upstream which is kept out of the traffic during an outage is seen as open all the same.
    pub fn missed(&mut self, now: Mono) -> Option<Transition> {
        let ticket = Ticket { serial: self.serial, probe: false };
        self.record(ticket, Event::Failure(Failure::Connection), now)
    }

    /// The gateway's own look at the upstream got no answer: while half-open that is a probe which failed.
    pub fn look_failed(&mut self, now: Mono) -> Option<Transition> {
        match self.state {
            State::HalfOpen { .. } => self.open(OpenReason::Probe, now),
            State::Closed | State::Open { .. } => None,
        }
    }

    /// An operator opens it; it stays open until an operator closes it.
    pub fn force_open(&mut self) -> Option<Transition> {
        self.enter(State::Open { until: Mono(u64::MAX), reason: OpenReason::Forced })
    }

    /// Another replica's is open until then. Only a closed one listens: any other knows better.
    pub fn told_open(&mut self, until: Mono) -> Option<Transition> {
        match self.state {
            State::Closed => self.enter(State::Open { until, reason: OpenReason::Told }),
            State::Open { .. } | State::HalfOpen { .. } => None,
        }
    }

    /// An operator closes it; counts start afresh.
    pub fn force_close(&mut self) -> Option<Transition> {
        self.close()
    }

    /// Puts it right after its owner was restarted: the state stays, a probe whose result may have been lost frees its
    /// slot without a verdict.
    pub fn heal(&mut self) {
        if let State::HalfOpen { probe, .. } = &mut self.state {
            *probe = None;
        }
    }

    fn open(&mut self, reason: OpenReason, now: Mono) -> Option<Transition> {
        self.enter(State::Open { until: now.plus(self.config.cooldown), reason })
    }

    fn close(&mut self) -> Option<Transition> {
        self.window.clear();
        self.enter(State::Closed)
    }

    fn enter(&mut self, state: State) -> Option<Transition> {
        let from = self.phase();
        self.state = state;
        self.serial += 1;
        let reason = match state {
            State::Open { reason, .. } => Some(reason),
            State::Closed | State::HalfOpen { .. } => None,
        };
        let to = self.phase();
        (from != to).then_some(Transition { from, to, reason })
    }
}

/// An event weighed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grade {
    Good,
    Bad,
    Neutral,
    Abandoned,
}

impl Grade {
    fn good(self) -> Option<bool> {
        match self {
            Grade::Good => Some(true),
            Grade::Bad => Some(false),
            Grade::Neutral | Grade::Abandoned => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: Event = Event::Success { latency: Duration::from_millis(10) };
    const SLOW: Event = Event::Success { latency: Duration::from_millis(2_001) };
    const FAIL: Event = Event::Failure(Failure::Server);
    const SEARCH: TrafficClass = TrafficClass::InteractiveSearch;

    fn config() -> plan::Breaker {
        plan::Breaker {
            window: Duration::from_secs(30),
            failure_ratio: 0.05,
            min_requests: 20,
            slow: Duration::from_secs(2),
            cooldown: Duration::from_secs(60),
            probe_ratio: 0.01,
            probe_interval: Duration::from_secs(5),
            probe_successes: 3,
        }
    }

    fn breaker(config: plan::Breaker) -> Breaker {
        Breaker::new(config, Duration::from_secs(30))
    }

    fn at(s: u64) -> Mono {
        Mono::from_millis(s * 1_000)
    }

    fn pass(breaker: &mut Breaker, now: Mono) -> Ticket {
        match breaker.admit(SEARCH, 0.0, now).0 {
            Admit::Pass(ticket) | Admit::Probe(ticket) => ticket,
            Admit::Refuse { .. } => panic!("refused"),
        }
    }

    fn opened(now: Mono) -> Breaker {
        let mut breaker = breaker(config());
        for _ in 0..20 {
            let ticket = pass(&mut breaker, now);
            breaker.record(ticket, FAIL, now);
        }
        assert_eq!(breaker.phase(), Phase::Open);
        breaker
    }

    #[track_caller]
    fn check(name: Phase, event: Event, own_ticket: bool, expected: Phase) {
        let now = at(100);
        let mut breaker = match name {
            Phase::Closed => breaker(plan::Breaker { min_requests: 1, ..config() }),
            Phase::Open => opened(now),
            Phase::HalfOpen => opened(at(10)),
        };
        breaker.config.probe_successes = 1;
        let ticket = match breaker.admit(SEARCH, 0.0, now).0 {
            Admit::Pass(ticket) | Admit::Probe(ticket) if own_ticket => ticket,
            Admit::Pass(_) | Admit::Probe(_) | Admit::Refuse { .. } => Ticket { serial: u64::MAX, probe: !own_ticket },
        };
        breaker.record(ticket, event, now);
        assert_eq!(breaker.phase(), expected, "{name:?} {event:?} own ticket: {own_ticket}");
    }

    #[test]
    fn transitions() {
        use Phase::{Closed, HalfOpen, Open};
        check(Closed, FAST, true, Closed);
        check(Closed, FAIL, true, Open);
        check(Closed, SLOW, true, Open);
        check(Closed, Event::Neutral, true, Closed);
        check(Closed, Event::Abandoned, true, Closed);
        check(Closed, FAIL, false, Closed);
        for event in [FAST, FAIL, SLOW, Event::Neutral, Event::Abandoned] {
            check(Open, event, true, Open);
            check(Open, event, false, Open);
            check(HalfOpen, event, false, HalfOpen);
        }
        check(HalfOpen, FAST, true, Closed);
        check(HalfOpen, FAIL, true, Open);
        check(HalfOpen, SLOW, true, Open);
        check(HalfOpen, Event::Neutral, true, HalfOpen);
        check(HalfOpen, Event::Abandoned, true, Open);
    }

    #[track_caller]
    fn check_volume(min_requests: u64, failures: u64, requests: u64, expected: Phase) {
        let mut breaker = breaker(plan::Breaker { min_requests, ..config() });
        for n in 0..requests {
            let Admit::Pass(ticket) = breaker.admit(SEARCH, 0.9, at(1)).0 else { break };
            // Failures spread evenly, so that a low share stays low from the start.
            let fails = n * failures / requests != (n + 1) * failures / requests;
            breaker.record(ticket, if fails { FAIL } else { FAST }, at(1));
        }
        assert_eq!(breaker.phase(), expected, "{failures} of {requests}");
    }

    #[test]
    fn it_takes_both_a_share_and_a_volume_to_open() {
        check_volume(20, 1, 1, Phase::Closed);
        check_volume(20, 20, 2_000, Phase::Closed);
        check_volume(10, 8, 10, Phase::Open);
        check_volume(20, 19, 19, Phase::Closed);
        check_volume(20, 1, 20, Phase::Closed);
        check_volume(20, 2, 20, Phase::Open);
    }

    #[test]
    fn failures_older_than_the_window_do_not_open_it() {
        let mut breaker = breaker(config());
        for n in 0..40 {
            let ticket = pass(&mut breaker, at(n * 2));
            breaker.record(ticket, FAIL, at(n * 2));
        }
        assert_eq!(breaker.phase(), Phase::Closed);
    }

    #[test]
    fn while_half_open_one_query_at_a_time_probes_and_batch_never() {
        let mut breaker = opened(at(0));
        assert_eq!(breaker.admit(SEARCH, 0.0, at(59)).0, Admit::Refuse { retry_at: at(60) });
        assert_eq!(breaker.admit(TrafficClass::BatchIngestion, 0.0, at(70)).0, Admit::Refuse { retry_at: at(70) });
        let (admit, transition) = breaker.admit(TrafficClass::Rerank, 0.5, at(70));
        let Admit::Probe(ticket) = admit else { panic!("expected a probe, got {admit:?}") };
        assert_eq!(transition, None, "the transition was told at the first ask");
        assert_eq!(breaker.admit(SEARCH, 0.0, at(71)).0, Admit::Refuse { retry_at: at(100) });
        breaker.record(ticket, FAST, at(71));
        assert_eq!(breaker.admit(SEARCH, 0.5, at(72)).0, Admit::Refuse { retry_at: at(75) }, "not due, not drawn");
        assert!(matches!(breaker.admit(SEARCH, 0.009, at(72)).0, Admit::Probe(_)), "drawn");
    }

    #[test]
    fn three_good_probes_close_it_and_old_failures_are_forgotten() {
        let mut breaker = opened(at(0));
        for n in 0..3 {
            let ticket = pass(&mut breaker, at(70 + n * 5));
            let transition = breaker.record(ticket, FAST, at(70 + n * 5));
            let closed = Transition { from: Phase::HalfOpen, to: Phase::Closed, reason: None };
            assert_eq!(transition, (n == 2).then_some(closed));
        }
        let ticket = pass(&mut breaker, at(90));
        breaker.record(ticket, FAIL, at(90));
        assert_eq!(breaker.phase(), Phase::Closed);
        assert_eq!(breaker.totals(at(90)), Totals { good: 0, bad: 1 });
    }

    #[test]
    fn a_result_from_before_a_transition_disturbs_nothing() {
        let mut breaker = breaker(config());
        let early: Vec<Ticket> = (0..60).map(|_| pass(&mut breaker, at(0))).collect();
        for ticket in &early[..20] {
            breaker.record(*ticket, FAIL, at(1));
        }
        assert_eq!(breaker.phase(), Phase::Open);
        let probe = pass(&mut breaker, at(70));
        breaker.record(early[20], FAIL, at(70));
        assert_eq!(breaker.phase(), Phase::HalfOpen);
        breaker.force_close();
        for ticket in &early[21..] {
            breaker.record(*ticket, FAIL, at(71));
        }
        breaker.record(probe, FAIL, at(71));
        assert_eq!(breaker.phase(), Phase::Closed);
        assert_eq!(breaker.totals(at(71)).all(), 0);
    }

    #[test]
    fn a_probe_that_never_answers_reopens_it_and_its_late_answer_is_ignored() {
        let mut breaker = opened(at(0));
        let probe = pass(&mut breaker, at(70));
        assert_eq!(breaker.advance(at(99)), None);
        let reopened = Transition { from: Phase::HalfOpen, to: Phase::Open, reason: Some(OpenReason::Probe) };
        assert_eq!(breaker.advance(at(100)), Some(reopened));
        assert_eq!(breaker.state(), State::Open { until: at(160), reason: OpenReason::Probe });
        let next = pass(&mut breaker, at(170));
        breaker.record(probe, FAIL, at(171));
        assert_eq!(breaker.phase(), Phase::HalfOpen);
        assert_eq!(breaker.record(next, FAST, at(172)), None);
    }

    #[test]
    fn an_operator_has_the_last_word_and_a_restart_keeps_the_state() {
        let mut breaker = breaker(config());
        assert!(breaker.force_open().is_some());
        assert_eq!(breaker.admit(SEARCH, 0.0, at(1_000_000)).0, Admit::Refuse { retry_at: Mono(u64::MAX) });
        breaker.heal();
        assert_eq!(breaker.phase(), Phase::Open);
        assert!(breaker.force_close().is_some());
        let mut half = opened(at(0));
        let lost = pass(&mut half, at(70));
        half.heal();
        assert_eq!(half.phase(), Phase::HalfOpen);
        assert!(matches!(half.admit(SEARCH, 0.0, at(71)).0, Admit::Probe(_)));
        assert_eq!(half.record(lost, FAIL, at(72)), None, "the lost probe has no say any more");
    }
}
