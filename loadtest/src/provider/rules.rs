//! Exceptions: which calls are treated differently, and how.
//!
//! Owns the choice of the effect for a call. Time and chance are handed in; it performs nothing.

use serde::{Deserialize, Serialize};

use super::delay::{Delay, Pace};
use super::script::{Chat, Framing, Labels};
use super::usage::UsageShape;

/// An exception.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rule {
    /// Which calls it concerns.
    pub when: When,
    /// What happens to each of them, unless there is a `sequence`.
    pub then: Effect,
    /// What happens to them in turn, one effect a call; after the last the rule is spent.
    pub sequence: Vec<Effect>,
}

/// Which calls a rule concerns: those that fulfil every condition named.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct When {
    /// Part of the path.
    pub path: Option<String>,
    /// Part of the raw body. Faults that strike before the body was read never see it.
    pub body: Option<String>,
    /// This many fitting calls are let pass first.
    pub skip: u64,
    /// Then this many are concerned; absent: all.
    pub times: Option<u64>,
    /// Of those that fit only every n-th; 0 and 1: each.
    pub every: u64,
    /// Of those only this share, drawn at random; absent: all.
    pub probability: Option<f64>,
    /// Not before this many seconds since the script was set.
    pub at_s: Option<f64>,
    /// For this many seconds from then.
    pub for_s: Option<f64>,
}

impl When {
    /// Calls whose body contains `text`.
    pub fn body(text: &str) -> Self {
        Self { body: Some(text.to_owned()), ..Self::default() }
    }

    /// Calls whose path contains `path`.
    pub fn path(path: &str) -> Self {
        Self { path: Some(path.to_owned()), ..Self::default() }
    }

    /// Calls from `at_s` seconds after the script was set, for `for_s` seconds.
    pub fn phase(at_s: f64, for_s: f64) -> Self {
        Self { at_s: Some(at_s), for_s: Some(for_s), ..Self::default() }
    }

    /// A share of all calls, 0 to 1.
    pub fn chance(probability: f64) -> Self {
        Self { probability: Some(probability), ..Self::default() }
    }

    /// Only the first `calls` that fit.
    pub fn times(mut self, calls: u64) -> Self {
        self.times = Some(calls);
        self
    }

    /// Not the first `calls` that fit.
    pub fn skip(mut self, calls: u64) -> Self {
        self.skip = calls;
        self
    }

    /// The span of time in seconds since the script was set.
    fn covers(&self, elapsed_s: f64) -> bool {
        let start = self.at_s.unwrap_or(0.0);
        elapsed_s >= start && self.for_s.is_none_or(|length| elapsed_s < start + length)
    }
}

/// What happens to a call. What is not named stays as the script has it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Effect {
    /// Answer with this status, in the dialect's error shape unless there is a body.
    pub status: Option<u16>,
    /// Headers added to the answer.
    pub headers: Vec<(String, String)>,
    /// Answer with this body, byte for byte; the status is then 200 unless named.
    pub body: Option<String>,
    /// Its content type; absent: `application/json`.
    pub content_type: Option<String>,
    /// Tokens billed for a forced answer.
    pub bill: Option<u64>,
    /// Break the connection or the protocol.
    pub fault: Option<Fault>,
    /// Spoil a good answer.
    pub defect: Option<Defect>,
    /// Other wait.
    pub delay: Option<Delay>,
    /// Other spread over time.
    pub pace: Option<Pace>,
    /// Other usage.
    pub usage: Option<UsageShape>,
    /// Other order and labels.
    pub labels: Option<Labels>,
    /// Other framing.
    pub framing: Option<Framing>,
    /// Other vector space: a mirror that serves different weights.
    pub space: Option<String>,
    /// Other turning aside of vectors.
    pub noise: Option<f32>,
    /// Other shape of chat answers.
    pub chat: Option<Chat>,
}

impl Effect {
    /// Answers with a status in the dialect's error shape.
    pub fn status(status: u16) -> Self {
        Self { status: Some(status), ..Self::default() }
    }

    /// Answers with this status and body.
    pub fn answer(status: u16, body: &str) -> Self {
        Self { status: Some(status), body: Some(body.to_owned()), ..Self::default() }
    }

    /// Breaks the connection or the protocol.
    pub fn fault(fault: Fault) -> Self {
        Self { fault: Some(fault), ..Self::default() }
    }

    /// Spoils a good answer.
    pub fn defect(defect: Defect) -> Self {
        Self { defect: Some(defect), ..Self::default() }
    }

    /// Waits `ms` milliseconds instead of the script's delay.
    pub fn delay_ms(ms: f64) -> Self {
        Self { delay: Some(Delay::FixedMs(ms)), ..Self::default() }
    }

    /// Spreads the answer over time.
    pub fn pace(pace: Pace) -> Self {
        Self { pace: Some(pace), ..Self::default() }
    }

    /// Tells usage differently.
    pub fn usage(usage: UsageShape) -> Self {
        Self { usage: Some(usage), ..Self::default() }
    }

    /// Labels items differently.
    pub fn labels(labels: Labels) -> Self {
        Self { labels: Some(labels), ..Self::default() }
    }

    /// Shapes chat answers differently.
    pub fn chat(chat: Chat) -> Self {
        Self { chat: Some(chat), ..Self::default() }
    }

    /// Leaves the call as the script has it: a place in a sequence.
    pub fn pass() -> Self {
        Self::default()
    }

    /// Adds a header.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the content type of a forced body.
    pub fn content_type(mut self, content_type: &str) -> Self {
        self.content_type = Some(content_type.to_owned());
        self
    }

    /// Waits `ms` milliseconds first.
    pub fn after_ms(mut self, ms: f64) -> Self {
        self.delay = Some(Delay::FixedMs(ms));
        self
    }

    /// When in a call's life this effect strikes.
    fn moment(&self) -> Moment {
        self.fault.as_ref().map_or(Moment::Body, Fault::moment)
    }
}

/// A break of the connection or of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The listener is closed and every connection dropped while the rule's time lasts; only `at_s` and `for_s` count.
    Refuse,
    /// The connection is accepted and closed. Conditions on path and body do not count.
    AcceptAndClose,
    /// The connection is accepted and reset. Conditions on path and body do not count.
    ResetOnAccept,
    /// Closed once the head was read.
    CloseAfterHead,
    /// Reset once the head was read.
    ResetAfterHead,
    /// The head is read, the body never, and nothing is answered until the client leaves.
    NeverRead,
    /// Closed once the body was read.
    CloseAfterBody,
    /// Reset once the body was read.
    ResetAfterBody,
    /// The sending side is closed without an answer, the receiving side stays open.
    HalfClose,
    /// Nothing is answered until the client leaves.
    NeverAnswer,
    /// Bytes that are not HTTP, then the connection is closed.
    Garbage,
    /// A head that never ends: header after header until the client leaves.
    EndlessHeader,
    /// A `content-length` that is off by this many bytes; the connection is closed after the body.
    WrongLength {
        /// Added to the true length.
        by: i64,
    },
    /// Closed after this many bytes of the body.
    Truncate {
        /// Bytes of the body that are sent; 0: only the head is.
        after_bytes: usize,
    },
    /// Reset after this many bytes of the body.
    ResetMidAnswer {
        /// Bytes of the body that are sent; 0: only the head is.
        after_bytes: usize,
    },
    /// The answer is right, then the connection is closed although it was kept alive.
    CloseAfterAnswer,
}

impl Fault {
    fn moment(&self) -> Moment {
        match self {
            Self::Refuse => Moment::Listen,
            Self::AcceptAndClose | Self::ResetOnAccept => Moment::Accept,
            Self::CloseAfterHead | Self::ResetAfterHead | Self::NeverRead => Moment::Head,
            _ => Moment::Body,
        }
    }
}

/// Something wrong inside a well-formed 200.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Defect {
    /// One item too few.
    MissingItem,
    /// One item too many.
    ExtraItem,
    /// An empty list.
    NoItems,
    /// The last vector is one number short.
    ShortVector,
    /// The last vector holds a `null`.
    NullNumber,
    /// The last vector is all zeros.
    ZeroVector,
    /// An error object instead of the answer.
    ErrorObject,
    /// No `object`, no `model`, and items without `object`.
    BareObject,
    /// Not JSON.
    NotJson,
}

/// A moment in the life of a call at which a rule may strike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// Before there is a connection.
    Listen,
    /// A connection was accepted.
    Accept,
    /// The head was read.
    Head,
    /// The body was read.
    Body,
}

/// What is known of a call when rules are asked.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Facts<'a> {
    /// Path and query.
    pub target: &'a str,
    /// Body, as far as read.
    pub body: &'a [u8],
}

/// A script's rules and how often each has applied.
#[derive(Debug, Default)]
pub(super) struct RuleBook {
    rules: Vec<Rule>,
    fitted: Vec<u64>,
    applied: Vec<u64>,
}

impl RuleBook {
    pub fn new(rules: Vec<Rule>) -> Self {
        let counters = vec![0; rules.len()];
        Self { rules, fitted: counters.clone(), applied: counters }
    }

    /// The effect for a call at this moment, or `None` where no rule fits. `roll` gives numbers in [0, 1).
    ///
    /// A rule is asked only at the moment at which its next effect strikes, so no call counts twice.
    pub fn choose(
        &mut self,
        moment: Moment,
        facts: Facts<'_>,
        elapsed_s: f64,
        mut roll: impl FnMut() -> f64,
    ) -> Option<Effect> {
        let Self { rules, fitted, applied } = self;
        for ((rule, fitted), applied) in rules.iter().zip(fitted).zip(applied) {
            let place = usize::try_from(*applied).unwrap_or(usize::MAX);
            let effect = if rule.sequence.is_empty() { Some(&rule.then) } else { rule.sequence.get(place) };
            let Some(effect) = effect.filter(|effect| effect.moment() == moment) else { continue };
            let spent = rule.when.times.is_some_and(|times| *applied >= times);
            if spent || !rule.when.covers(elapsed_s) || !fits(&rule.when, moment, facts) {
                continue;
            }
            *fitted += 1;
            let beyond = fitted.saturating_sub(rule.when.skip);
            if beyond == 0 || (rule.when.every > 1 && beyond % rule.when.every != 0) {
                continue;
            }
            if rule.when.probability.is_some_and(|share| roll() >= share) {
                continue;
            }
            *applied += 1;
            return Some(effect.clone());
        }
        None
    }

    /// Whether the listener is closed now, and when that may change, in seconds since the script was set.
    pub fn refusing(&self, elapsed_s: f64) -> (bool, Option<f64>) {
        let mut refusing = false;
        let mut next: Option<f64> = None;
        for rule in self.rules.iter().filter(|rule| rule.then.moment() == Moment::Listen && rule.sequence.is_empty()) {
            refusing |= rule.when.covers(elapsed_s);
            let start = rule.when.at_s.unwrap_or(0.0);
            for edge in [Some(start), rule.when.for_s.map(|length| start + length)].into_iter().flatten() {
                if edge > elapsed_s {
                    next = Some(next.map_or(edge, |soonest| soonest.min(edge)));
                }
            }
        }
        (refusing, next)
    }

    /// Whether no rule exists.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }
}

fn fits(when: &When, moment: Moment, facts: Facts<'_>) -> bool {
    if moment == Moment::Accept {
        return true;
    }
    when.path.as_ref().is_none_or(|part| facts.target.contains(part.as_str()))
        && when.body.as_ref().is_none_or(|part| memchr::memmem::find(facts.body, part.as_bytes()).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book(rules: &[(When, Effect)]) -> RuleBook {
        RuleBook::new(
            rules
                .iter()
                .map(|(when, then)| Rule { when: when.clone(), then: then.clone(), sequence: Vec::new() })
                .collect(),
        )
    }

    fn at(book: &mut RuleBook, elapsed_s: f64, body: &str) -> Option<u16> {
        let facts = Facts { target: "/v1/embeddings", body: body.as_bytes() };
        book.choose(Moment::Body, facts, elapsed_s, || 0.5).and_then(|effect| effect.status)
    }

    #[track_caller]
    fn check(when: When, calls: &[(f64, &str)], expected: &[bool]) {
        let mut book = book(&[(when, Effect::status(500))]);
        let seen: Vec<bool> = calls.iter().map(|(at_s, body)| at(&mut book, *at_s, body).is_some()).collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn conditions_narrow_what_a_rule_concerns() {
        let calls = [(0.0, "a"), (5.0, "b"), (9.0, "a"), (12.0, "a")];
        check(When::default(), &calls, &[true, true, true, true]);
        check(When::body("a"), &calls, &[true, false, true, true]);
        check(When::path("/rerank"), &calls, &[false; 4]);
        check(When::default().times(2), &calls, &[true, true, false, false]);
        check(When::default().skip(1).times(1), &calls, &[false, true, false, false]);
        check(When { every: 2, ..When::default() }, &calls, &[false, true, false, true]);
        check(When::phase(5.0, 5.0), &calls, &[false, true, true, false]);
        check(When::chance(0.4), &calls, &[false; 4]);
        check(When::chance(0.6), &calls, &[true; 4]);
    }

    #[test]
    fn a_sequence_is_used_up_in_order_and_then_spent() {
        let effects = vec![Effect::status(429), Effect::pass(), Effect::status(503)];
        let mut book = RuleBook::new(vec![Rule { when: When::default(), then: Effect::default(), sequence: effects }]);
        let seen: Vec<Option<u16>> = (0..4).map(|_| at(&mut book, 0.0, "")).collect();
        assert_eq!(seen, [Some(429), None, Some(503), None]);
    }

    #[test]
    fn the_first_rule_that_fits_wins() {
        let mut book = book(&[(When::body("x"), Effect::status(400)), (When::default(), Effect::status(500))]);
        assert_eq!(at(&mut book, 0.0, "x"), Some(400));
        assert_eq!(at(&mut book, 0.0, "y"), Some(500));
    }

    #[test]
    fn a_fault_strikes_only_at_its_moment() {
        let mut book = book(&[(When::default(), Effect::fault(Fault::ResetAfterHead))]);
        assert!(book.choose(Moment::Body, Facts::default(), 0.0, || 0.0).is_none());
        assert!(book.choose(Moment::Accept, Facts::default(), 0.0, || 0.0).is_none());
        assert!(book.choose(Moment::Head, Facts::default(), 0.0, || 0.0).is_some());
    }

    #[test]
    fn the_listener_closes_and_opens_by_the_clock() {
        let book = book(&[(When::phase(10.0, 30.0), Effect::fault(Fault::Refuse))]);
        assert_eq!(book.refusing(0.0), (false, Some(10.0)));
        assert_eq!(book.refusing(10.0), (true, Some(40.0)));
        assert_eq!(book.refusing(40.0), (false, None));
    }
}
