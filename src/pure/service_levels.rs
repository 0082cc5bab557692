//! How well each class is served: percentiles over a rolling window with their history, and the error budgets of the
//! objectives.
//!
//! Owns the windows and counts, fed with one [`Fact`] a request. Does not know what makes a request fail, nor the
//! objectives' names: both are handed in.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::class::TrafficClass;
use super::latency_window::{LatencyWindow, histogram};
use super::rate_window::RateWindow;
use super::slo::{Budget, Burn, History, Point, WINDOWS};
use super::time::Mono;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fact {
    /// Its class.
    pub class: TrafficClass,
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
    /// The time.
    pub line: Duration,
    /// The share that may miss it, above 0 and at most 1.
    pub allowed_bad: f64,
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
    pub fn of(budget: &Budget, now: Mono) -> TargetLevel {
        TargetLevel {
            remaining: budget.remaining(now),
            burn: WINDOWS.map(|window| budget.burn_rate(now, window)),
            urgency: budget.burn(now),
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

/// The levels of all classes.
#[derive(Debug)]
pub struct ServiceLevels {
    window: Duration,
    classes: [Class; TrafficClass::ALL.len()],
    targets: Vec<(Target, Budget)>,
    histories: Histories,
    next_point: Mono,
}

impl ServiceLevels {
    /// Nothing served yet; percentiles over `window`.
    pub fn new(window: Duration, targets: &[Target]) -> ServiceLevels {
        ServiceLevels {
            window,
            classes: std::array::from_fn(|_| Class::new(window)),
            targets: targets.iter().map(|target| (*target, Budget::new(target.allowed_bad))).collect(),
            histories: Histories::default(),
            next_point: Mono::ZERO.plus(POINT_EVERY),
        }
    }

    /// Takes over a new window and new lines. What was counted stays as it was judged; another window starts empty.
    pub fn reconfigure(&mut self, window: Duration, targets: &[Target]) {
        if window != self.window {
            self.window = window;
            self.classes = std::array::from_fn(|_| Class::new(window));
        }
        let mut earlier = std::mem::take(&mut self.targets).into_iter();
        self.targets = targets
            .iter()
            .map(|target| match earlier.next() {
                Some((old, budget)) if old.class == target.class && old.allowed_bad == target.allowed_bad => {
                    (*target, budget)
                }
                _ => (*target, Budget::new(target.allowed_bad)),
            })
            .collect();
    }

    /// Counts one request that ended at about `now`.
    pub fn record(&mut self, fact: &Fact, now: Mono) {
        self.classes[fact.class as usize].record(fact, now);
        for (target, budget) in self.targets.iter_mut().filter(|(target, _)| target.class == fact.class) {
            match fact.verdict {
                Verdict::Answered if fact.total <= target.line => budget.record(now, 1, 0),
                Verdict::Answered | Verdict::Failed => budget.record(now, 0, 1),
                Verdict::Limited | Verdict::NotOurs => {}
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

    /// Everything at `now`.
    pub fn snapshot(&mut self, now: Mono) -> Snapshot {
        let mut classes = [ClassLevel::default(); TrafficClass::ALL.len()];
        for (level, class) in classes.iter_mut().zip(&mut self.classes) {
            *level = class.level(now);
        }
        let targets = self.targets.iter().map(|(_, budget)| TargetLevel::of(budget, now));
        Snapshot { at: now, classes, targets: targets.collect() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SEARCH: Target =
        Target { class: TrafficClass::InteractiveSearch, line: Duration::from_millis(70), allowed_bad: 0.05 };

    fn at(ms: u64) -> Mono {
        Mono::from_millis(ms)
    }

    fn levels() -> ServiceLevels {
        ServiceLevels::new(Duration::from_secs(300), &[SEARCH])
    }

    fn fact(verdict: Verdict, total_ms: u64) -> Fact {
        let ms = Duration::from_millis;
        let (upstream, queued) = (ms(total_ms / 2), ms(total_ms / 4));
        Fact { class: TrafficClass::InteractiveSearch, verdict, total: ms(total_ms), upstream, queued }
    }

    #[track_caller]
    fn check(facts: &[(Verdict, u64)], count: u64, failed: u64, limited: u64, remaining: f64) {
        let mut levels = levels();
        for (verdict, ms) in facts {
            levels.record(&fact(*verdict, *ms), at(1));
        }
        let shown = levels.snapshot(at(2));
        let class = shown.classes[TrafficClass::InteractiveSearch as usize];
        assert_eq!((class.count, class.failed, class.limited), (count, failed, limited));
        assert!((shown.targets[0].remaining - remaining).abs() < 1e-9, "{:?}", shown.targets);
        assert_eq!(shown.classes[TrafficClass::Rerank as usize], ClassLevel::default());
    }

    #[test]
    fn each_verdict_counts_where_it_should() {
        check(&[], 0, 0, 0, 1.0);
        check(&[(Verdict::Answered, 70)], 1, 0, 0, 1.0);
        check(&[(Verdict::Answered, 71)], 1, 0, 0, 1.0 - 20.0);
        check(&[(Verdict::Failed, 1)], 1, 1, 0, 1.0 - 20.0);
        check(&[(Verdict::Limited, 1), (Verdict::NotOurs, 900)], 0, 0, 1, 1.0);
        let mut facts = vec![(Verdict::Answered, 9); 95];
        facts.extend([(Verdict::Failed, 1); 5]);
        check(&facts, 100, 5, 0, 0.0);
    }

    #[test]
    fn percentiles_are_of_answers_and_their_parts() {
        let mut levels = levels();
        for ms in 1..=1_000 {
            levels.record(&fact(Verdict::Answered, ms * 4), at(5));
            levels.record(&fact(Verdict::Failed, 1), at(5));
        }
        let class = levels.snapshot(at(6)).classes[0];
        let [p50, p95, p99] = class.total.expect("requests").map(|span| span.as_secs_f64());
        assert!((p50 / 2.0 - 1.0).abs() < 0.011 && (p95 / 3.8 - 1.0).abs() < 0.011 && (p99 / 3.96 - 1.0).abs() < 0.011);
        let near = |span: Option<Duration>, s: f64| (span.expect("requests").as_secs_f64() / s - 1.0).abs() < 0.07;
        assert!(
            near(class.upstream_p95, 1.9) && near(class.queued_p95, 0.95) && near(class.own_p95, 0.95),
            "{class:?}"
        );
        assert_eq!(levels.snapshot(at(700_000)).classes[0], ClassLevel::default());
    }

    /// The same numbers on each run, evenly spread over 0 to 1 (exclusive of 0).
    fn even(state: &mut u64) -> f64 {
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) >> 11).saturating_add(1) as f64 / (1_u64 << 53) as f64
    }

    #[test]
    fn percentiles_agree_with_the_clients_own_record_within_one_percent() {
        const REQUESTS: usize = 100_000;
        const SLOT_MS: u64 = 300_000 / SLOTS as u64;
        let (mut levels, mut seed) = (levels(), 20_261_130);
        // What the clients wrote down: when, and how long it took.
        let mut record: Vec<(u64, Duration)> = Vec::with_capacity(REQUESTS);
        let mut compared = 0;
        for number in 0..REQUESTS {
            // Twenty minutes, four windows long; it grows slower by a half each minute, so that a window that forgot too
            // little or too much would be far off.
            let now = number as u64 * 1_200_000 / REQUESTS as u64;
            let spread = (-2.0 * even(&mut seed).ln()).sqrt() * (std::f64::consts::TAU * even(&mut seed)).cos();
            let slower = 1.5_f64.powf(now as f64 / 60_000.0);
            let total = Duration::from_secs_f64((0.012 * slower * (0.8 * spread).exp()).min(3_000.0));
            let fact = Fact { total, ..fact(Verdict::Answered, 1) };
            levels.record(&fact, at(now));
            record.push((now, total));
            if number % 997 != 0 && number + 1 != REQUESTS {
                continue;
            }
            let held = |(when, _): &&(u64, Duration)| when / SLOT_MS + SLOTS as u64 >= now / SLOT_MS;
            let mut exact: Vec<Duration> = record.iter().filter(held).map(|(_, took)| *took).collect();
            exact.sort_unstable();
            let level = levels.snapshot(at(now)).classes[TrafficClass::InteractiveSearch as usize];
            assert_eq!(level.count, exact.len() as u64, "at {now} ms");
            for (q, shown) in [0.5, 0.95, 0.99].into_iter().zip(level.total.expect("requests")) {
                let rank = ((q * exact.len() as f64).ceil() as usize).clamp(1, exact.len());
                let off = shown.as_secs_f64() / exact[rank - 1].as_secs_f64() - 1.0;
                assert!(off.abs() <= 0.01, "p{q} at {now} ms: {shown:?} is off by {off}");
                compared += 1;
            }
        }
        assert_eq!(compared, 3 * (REQUESTS.div_ceil(997) + 1));
        assert!(record.len() as u64 > 2 * levels.snapshot(at(1_199_999)).classes[0].count, "most had left the window");
    }

    #[test]
    fn new_lines_keep_what_was_counted() {
        let mut levels = levels();
        levels.record(&fact(Verdict::Failed, 1), at(1));
        levels.reconfigure(Duration::from_secs(300), &[Target { line: Duration::from_millis(10), ..SEARCH }]);
        levels.record(&fact(Verdict::Answered, 60), at(2));
        let shown = levels.snapshot(at(3));
        assert_eq!((shown.classes[0].count, shown.targets[0].burn[0].round()), (2, 20.0));
        levels.reconfigure(Duration::from_secs(60), &[SEARCH]);
        assert_eq!(levels.snapshot(at(4)).classes[0].count, 0);
    }

    proptest! {
        #[test]
        fn the_history_tells_each_request_once(gaps in prop::collection::vec(0_u64..15_000, 1..200)) {
            let mut levels = levels();
            let mut now = 0;
            let mut failed = 0;
            for (step, gap) in gaps.iter().enumerate() {
                now += gap;
                let verdict = if step % 3 == 0 { Verdict::Failed } else { Verdict::Answered };
                failed += u64::from(verdict == Verdict::Failed);
                levels.record(&fact(verdict, 5), at(now));
                levels.advance(at(now));
            }
            let histories = levels.advance(at(now + 60_000)).expect("the interval is over").clone();
            let sum = |of: fn(&Point) -> u64| histories[0].points().map(of).sum::<u64>();
            prop_assert_eq!(sum(|point| point.count), gaps.len() as u64);
            prop_assert_eq!(sum(|point| point.errors), failed);
        }
    }
}
