//! How well each class and each model is served: percentiles over a rolling window, those of classes with their
//! history, and the error budgets of the objectives.
//!
//! Owns the windows and counts, fed with one [`Fact`] a request. Does not know what makes a request fail, nor the
//! objectives' names: both are handed in.

mod models;

use std::time::Duration;

use hdrhistogram::Histogram;

use self::models::Models;
use super::class::TrafficClass;
use super::latency_window::{LatencyWindow, histogram};
use super::rate_window::RateWindow;
use super::slo::{Budget, Burn, History, Point, WINDOWS};
use super::time::Mono;
use crate::ids::ModelName;

pub use self::models::ModelLevel;

/// Slots of the window of whole requests: what is older leaves it a twentieth at a time.
const SLOTS: usize = 20;

/// Slots of the windows of a request's parts, which are shown and not promised.
const PART_SLOTS: usize = 5;

/// Interval of the history's points.
const POINT_EVERY: Duration = Duration::from_secs(10);

/// What came of a request, as the objectives see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Answered as asked; good if it was fast enough.
    Answered,
    /// The service let it down; bad however fast.
    Failed,
    /// A limit of the tenant's own refused it; counts for nothing.
    Limited,
    /// The client's own fault or choice; counts for nothing.
    NotOurs,
}

/// One request's end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// Its class.
    pub class: TrafficClass,
    /// The model that was chosen for it, if it got so far.
    pub model: Option<ModelName>,
    /// What came of it.
    pub verdict: Verdict,
    /// From its first byte to its answer.
    pub total: Duration,
    /// Of that, waiting for upstreams.
    pub upstream: Duration,
    /// Of that, in queues.
    pub queued: Duration,
}

/// One objective: a share of a class's requests answered within a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Target {
    /// Whose requests.
    pub class: TrafficClass,
    /// The time, for models without a line of their own.
    pub line: Duration,
    /// The share that may miss it, above 0 and at most 1.
    pub allowed_bad: f64,
}

/// What is promised.
#[derive(Debug, Clone, PartialEq)]
pub struct Promises {
    /// Over how long percentiles are taken.
    pub window: Duration,
    /// The objectives.
    pub targets: Vec<Target>,
    /// The models, each with the lines that hold for its requests, in the order of the targets.
    pub models: Vec<(ModelName, Vec<Duration>)>,
}

/// One class over the window. Percentiles are of answered requests, so that quick refusals cannot make a bad hour look
/// fast; they are `None` without any.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClassLevel {
    /// Requests that were answered or failed.
    pub count: u64,
    /// Of those, the ones that the service failed.
    pub failed: u64,
    /// Requests that a limit of the tenant's own refused; not in `count`.
    pub limited: u64,
    /// Median, 95th and 99th percentile of the whole time.
    pub total: Option<[Duration; 3]>,
    /// 95th percentile of the time at upstreams.
    pub upstream_p95: Option<Duration>,
    /// 95th percentile of the time in queues.
    pub queued_p95: Option<Duration>,
    /// 95th percentile of the rest: the gateway's own time.
    pub own_p95: Option<Duration>,
}

/// One objective's state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TargetLevel {
    /// Share of the last six hours' error budget that is left; below 0 when overspent.
    pub remaining: f64,
    /// Burn rates over [`WINDOWS`].
    pub burn: [f64; WINDOWS.len()],
    /// How urgent they are.
    pub urgency: Burn,
}

impl TargetLevel {
    /// The state of `budget` at `now`.
    /// It is only urgent if at least `least_bad` requests were bad.
    pub fn of(budget: &mut Budget, now: Mono, least_bad: u64) -> TargetLevel {
        TargetLevel {
            remaining: budget.remaining(now),
            burn: budget.burn_rates(now),
            urgency: budget.burn(now, least_bad),
        }
    }
}

/// Everything at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// When.
    pub at: Mono,
    /// In the order of [`TrafficClass::ALL`].
    pub classes: [ClassLevel; TrafficClass::ALL.len()],
    /// In the order of the targets.
    pub targets: Vec<TargetLevel>,
    /// Every model in each class in which it was asked, in the order of the models and classes.
    pub models: Vec<ModelLevel>,
}

/// One history a class, in the order of [`TrafficClass::ALL`].
pub type Histories = [History; TrafficClass::ALL.len()];

#[derive(Debug)]
struct Class {
    total: LatencyWindow,
    upstream: LatencyWindow,
    queued: LatencyWindow,
    own: LatencyWindow,
    failed: RateWindow,
    limited: RateWindow,
    /// What the next point of the history is made of.
    interval: Histogram<u64>,
    interval_failed: u64,
}

impl Class {
    fn new(window: Duration) -> Class {
        Class {
            total: LatencyWindow::new(window, SLOTS),
            upstream: LatencyWindow::coarse(window, PART_SLOTS),
            queued: LatencyWindow::coarse(window, PART_SLOTS),
            own: LatencyWindow::coarse(window, PART_SLOTS),
            failed: RateWindow::new(window),
            limited: RateWindow::new(window),
            interval: histogram(),
            interval_failed: 0,
        }
    }

    fn record(&mut self, fact: &Fact, now: Mono) {
        match fact.verdict {
            Verdict::Answered => {
                self.total.record(fact.total, now);
                self.upstream.record(fact.upstream, now);
                self.queued.record(fact.queued, now);
                self.own.record(fact.total.saturating_sub(fact.upstream).saturating_sub(fact.queued), now);
                self.interval.saturating_record(u64::try_from(fact.total.as_nanos()).unwrap_or(u64::MAX));
            }
            Verdict::Failed => {
                self.failed.record(false, now);
                self.interval_failed += 1;
            }
            Verdict::Limited => self.limited.record(false, now),
            Verdict::NotOurs => {}
        }
    }

    fn level(&mut self, now: Mono) -> ClassLevel {
        let failed = self.failed.totals(now).bad;
        ClassLevel {
            // Answers are counted by the window that the percentiles are of, so that the two never disagree.
            count: self.total.count(now) + failed,
            failed,
            limited: self.limited.totals(now).bad,
            total: self.total.quantiles([0.5, 0.95, 0.99], now),
            upstream_p95: self.upstream.quantile(0.95, now),
            queued_p95: self.queued.quantile(0.95, now),
            own_p95: self.own.quantile(0.95, now),
        }
    }

    /// The interval that ends now, which begins anew.
    fn point(&mut self, at: Mono) -> Point {
        let of = |q: f64| {
            Duration::from_nanos(if self.interval.is_empty() { 0 } else { self.interval.value_at_quantile(q) })
        };
        let point = Point {
            at,
            p50: of(0.5),
            p95: of(0.95),
            p99: of(0.99),
            count: self.interval.len() + self.interval_failed,
            errors: self.interval_failed,
        };
        self.interval.reset();
        self.interval_failed = 0;
        point
    }
}

/// The levels of all classes and models.
#[derive(Debug)]
pub struct ServiceLevels {
    window: Duration,
    classes: [Class; TrafficClass::ALL.len()],
    targets: Vec<(Target, Budget)>,
    models: Models,
    histories: Histories,
    next_point: Mono,
}

impl ServiceLevels {
    /// Nothing served yet.
    pub fn new(promises: &Promises) -> ServiceLevels {
        let window = promises.window;
        ServiceLevels {
            window,
            classes: std::array::from_fn(|_| Class::new(window)),
            targets: promises.targets.iter().map(|target| (*target, Budget::new(target.allowed_bad))).collect(),
            models: Models::new(promises),
            histories: Histories::default(),
            next_point: Mono::ZERO.plus(POINT_EVERY),
        }
    }

    /// Takes over a new window, new lines and models. What was counted stays as it was judged; another window starts
    /// empty.
    pub fn reconfigure(&mut self, promises: &Promises) {
        if promises.window != self.window {
            self.window = promises.window;
            self.classes = std::array::from_fn(|_| Class::new(promises.window));
        }
        let mut earlier = std::mem::take(&mut self.targets).into_iter();
        self.targets = (promises.targets.iter())
            .map(|target| match earlier.next() {
                Some((old, budget)) if old.class == target.class && old.allowed_bad == target.allowed_bad => {
                    (*target, budget)
                }
                _ => (*target, Budget::new(target.allowed_bad)),
            })
            .collect();
        self.models.reconfigure(promises);
    }

    /// Counts one request that ended at about `now`. It is held against the line of its model, be it the model's own or
    /// its class's, so that a class's budget is the sum of its models'.
    pub fn record(&mut self, fact: &Fact, now: Mono) {
        self.classes[fact.class as usize].record(fact, now);
        let mut model = self.models.of(fact);
        if let Some(model) = &mut model {
            model.record(fact, now);
        }
        for (position, (target, budget)) in self.targets.iter_mut().enumerate() {
            if target.class != fact.class {
                continue;
            }
            let line = model.as_ref().and_then(|model| model.line(position)).unwrap_or(target.line);
            let (good, bad) = match fact.verdict {
                Verdict::Answered if fact.total <= line => (1, 0),
                Verdict::Answered | Verdict::Failed => (0, 1),
                Verdict::Limited | Verdict::NotOurs => continue,
            };
            budget.record(now, good, bad);
            if let Some(model) = &mut model {
                model.judged(position, (good, bad), now);
            }
        }
    }

    /// Ends the history's interval if it is over; returns the histories when they have grown.
    pub fn advance(&mut self, now: Mono) -> Option<&Histories> {
        if now < self.next_point {
            return None;
        }
        self.next_point = now.plus(POINT_EVERY);
        for (class, history) in self.classes.iter_mut().zip(&mut self.histories) {
            history.push(class.point(now));
        }
        Some(&self.histories)
    }

    /// Everything at `now`. With more than some thirty models, their percentiles are brought up to date by turns.
    pub fn snapshot(&mut self, now: Mono) -> Snapshot {
        let mut classes = [ClassLevel::default(); TrafficClass::ALL.len()];
        for (level, class) in classes.iter_mut().zip(&mut self.classes) {
            *level = class.level(now);
        }
        let targets = self.targets.iter_mut().map(|(_, budget)| TargetLevel::of(budget, now, 1)).collect();
        Snapshot { at: now, classes, targets, models: self.models.levels(now) }
    }
}

#[cfg(test)]
mod tests;
