//! Service level objectives: how fast an error budget is being spent, and the history that a chart shows.
//!
//! Owns counts per time slot. Does not know what makes a request good or bad, nor percentiles: both are handed in.

use std::collections::VecDeque;
use std::time::Duration;

use super::time::Mono;

/// Burn rate over 1 h (confirmed over 5 m) that deserves an immediate look: at this pace 2 % of a 30-day budget is gone
/// in an hour. The figure is the one of the multi-window alerting literature.
pub const FAST_BURN: f64 = 14.4;

/// Burn rate over 6 h (confirmed over 30 m) that deserves a look today: 5 % of a 30-day budget in six hours.
pub const SLOW_BURN: f64 = 6.0;

/// The windows over which burn rates are shown, shortest first: each pair of limits has its long and its short one.
pub const WINDOWS: [Duration; 4] =
    [Duration::from_secs(300), Duration::from_secs(1_800), Duration::from_secs(3_600), Duration::from_secs(21_600)];

/// Length of one slot of [`Budget`], which divides every window; a window's edge is exact to one slot.
const SLOT: Duration = Duration::from_secs(10);

/// How urgent the burn is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Burn {
    /// Within the budget, or too short to matter.
    Calm,
    /// The slow pair of windows is over its limit.
    Slow,
    /// The fast pair of windows is over its limit.
    Fast,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    /// Which multiple of [`SLOT`] since the start the counts belong to.
    at: u64,
    good: u32,
    bad: u32,
}

/// What the newest slots add up to.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    slots: usize,
    good: u64,
    bad: u64,
}

impl Sum {
    fn bad_share(self) -> f64 {
        let asked = self.good + self.bad;
        if asked == 0 { 0.0 } else { self.bad as f64 / asked as f64 }
    }
}

/// Good and bad requests of the last six hours, measured against one objective.
///
/// Only slots in which something was asked are kept, and each window's sum follows them, so that a hundred models' budgets
/// cost nothing while they are idle, and asking for their burn rates once a second is a few additions.
#[derive(Debug, Clone)]
pub struct Budget {
    allowed_bad: f64,
    /// Oldest first.
    slots: VecDeque<Slot>,
    /// In the order of [`WINDOWS`]; the last one is of every slot that is kept.
    sums: [Sum; WINDOWS.len()],
}

impl Budget {
    /// An untouched budget; `allowed_bad` is the share of requests that may be bad, above 0 and at most 1.
    pub fn new(allowed_bad: f64) -> Budget {
        let usable = allowed_bad.is_finite() && allowed_bad > 0.0;
        Budget {
            allowed_bad: if usable { allowed_bad.min(1.0) } else { 1.0 },
            slots: VecDeque::new(),
            sums: [Sum::default(); WINDOWS.len()],
        }
    }

    /// Adds what happened at about `now`; what is older than the newest counts with the newest.
    pub fn record(&mut self, now: Mono, good: u32, bad: u32) {
        self.advance(now);
        let at = slot_of(now);
        if self.slots.back().is_none_or(|newest| newest.at < at) {
            self.slots.push_back(Slot { at, good: 0, bad: 0 });
            self.sums.iter_mut().for_each(|sum| sum.slots += 1);
        }
        let Some(slot) = self.slots.back_mut() else { return };
        // Four billion requests in ten seconds are not to be expected, but a sum must never lose what a slot did not add.
        let (good, bad) = (good.min(u32::MAX - slot.good), bad.min(u32::MAX - slot.bad));
        slot.good += good;
        slot.bad += bad;
        for sum in &mut self.sums {
            sum.good += u64::from(good);
            sum.bad += u64::from(bad);
        }
    }

    fn advance(&mut self, now: Mono) {
        let newest = slot_of(now);
        for (sum, window) in self.sums.iter_mut().zip(WINDOWS) {
            let oldest = (newest + 1).saturating_sub(window.as_secs() / SLOT.as_secs());
            while sum.slots > 0
                && let Some(slot) = self.slots.get(self.slots.len() - sum.slots).filter(|slot| slot.at < oldest)
            {
                sum.slots -= 1;
                sum.good -= u64::from(slot.good);
                sum.bad -= u64::from(slot.bad);
            }
        }
        let kept = self.sums[WINDOWS.len() - 1].slots;
        self.slots.drain(..self.slots.len() - kept);
    }

    /// The shares of bad requests over the last [`WINDOWS`], the slot under way included, each divided by the allowed
    /// share: 1 spends the budget exactly, 0 when nothing was asked.
    pub fn burn_rates(&mut self, now: Mono) -> [f64; WINDOWS.len()] {
        self.advance(now);
        self.sums.map(|sum| sum.bad_share() / self.allowed_bad)
    }

    /// Share of the last six hours' budget that is left: 1 untouched, 0 spent, below 0 overspent.
    pub fn remaining(&mut self, now: Mono) -> f64 {
        let [.., longest] = self.burn_rates(now);
        1.0 - longest
    }

    /// How urgent the burn is: each limit must be passed over its long window and, so that an alarm ends soon after
    /// its cause, over its short one; and `least_bad` requests of the long window must have been bad.
    pub fn burn(&mut self, now: Mono, least_bad: u64) -> Burn {
        let [m5, m30, h1, h6] = self.burn_rates(now);
        let [.., enough_1h, enough_6h] = self.sums.map(|sum| sum.bad >= least_bad);
        if enough_1h && h1 > FAST_BURN && m5 > FAST_BURN {
            Burn::Fast
        } else if enough_6h && h6 > SLOW_BURN && m30 > SLOW_BURN {
            Burn::Slow
        } else {
            Burn::Calm
        }
    }
}

fn slot_of(now: Mono) -> u64 {
    now.since(Mono::ZERO).as_secs() / SLOT.as_secs()
}

/// One class's percentiles and counts over one interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// The interval's end.
    pub at: Mono,
    /// Median latency.
    pub p50: Duration,
    /// 95th percentile.
    pub p95: Duration,
    /// 99th percentile.
    pub p99: Duration,
    /// Requests that ended in the interval.
    pub count: u64,
    /// Of those, the ones that the service failed.
    pub errors: u64,
}

impl Point {
    /// Both intervals as one. Percentiles cannot be averaged, so each is the worse of the two: a spike stays visible.
    /// An interval without requests has no percentiles and adds none.
    fn merge(self, other: Point) -> Point {
        Point {
            at: self.at.max(other.at),
            p50: self.p50.max(other.p50),
            p95: self.p95.max(other.p95),
            p99: self.p99.max(other.p99),
            count: self.count.saturating_add(other.count),
            errors: self.errors.saturating_add(other.errors),
        }
    }
}

/// Interval of the coarse points.
const COARSE: Duration = Duration::from_secs(60);

/// How many whole minutes of fine points are kept. Whole ones, so that the first fine point begins a minute and the
/// coarse point before it tells the rest.
const FINE_MINUTES: u64 = 60;

/// How many coarse points are kept: six hours and some, so that a chart of six is full.
const COARSE_MINUTES: u64 = 370;

/// The last hour by tens of seconds and the six hours before by minutes.
#[derive(Debug, Clone, Default)]
pub struct History {
    fine: VecDeque<Point>,
    coarse: VecDeque<Point>,
}

impl History {
    /// Adds the interval that just ended (expected every 10 s). A point that is not newer than the last is left out.
    pub fn push(&mut self, point: Point) {
        if self.fine.back().is_some_and(|last| last.at >= point.at) {
            return;
        }
        self.fine.push_back(point);
        match self.coarse.back_mut() {
            Some(last) if minute_of(last.at) == minute_of(point.at) => *last = last.merge(point),
            _ => self.coarse.push_back(point),
        }
        trim(&mut self.fine, point.at, FINE_MINUTES);
        trim(&mut self.coarse, point.at, COARSE_MINUTES);
    }

    /// All points, oldest first: minutes up to where the fine points begin, then those.
    pub fn points(&self) -> impl Iterator<Item = &Point> {
        let seam = self.fine.front().map_or(Mono(u64::MAX), |first| first.at);
        self.coarse.iter().take_while(move |point| point.at < seam).chain(&self.fine)
    }
}

fn minute_of(at: Mono) -> u64 {
    at.since(Mono::ZERO).as_secs() / COARSE.as_secs()
}

fn trim(ring: &mut VecDeque<Point>, now: Mono, minutes: u64) {
    while ring.front().is_some_and(|oldest| minute_of(oldest.at) + minutes < minute_of(now)) {
        ring.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MINUTE: u64 = 60_000;

    fn at(ms: u64) -> Mono {
        Mono::from_millis(ms)
    }

    #[track_caller]
    fn check_burn(events: &[(u64, u32, u32)], now_ms: u64, expected: Burn) {
        let mut budget = Budget::new(0.01);
        for (ms, good, bad) in events {
            budget.record(at(*ms), *good, *bad);
        }
        assert_eq!(budget.burn(at(now_ms), 1), expected);
    }

    #[test]
    fn a_burn_needs_both_of_its_windows() {
        check_burn(&[], 0, Burn::Calm);
        check_burn(&[(0, 850, 150)], MINUTE, Burn::Fast);
        check_burn(&[(0, 860, 140)], MINUTE, Burn::Slow);
        check_burn(&[(0, 850, 150), (10 * MINUTE, 1, 0)], 10 * MINUTE, Burn::Slow);
        check_burn(&[(0, 850, 150)], 40 * MINUTE, Burn::Calm);
        check_burn(&[(0, 99_000, 1_000)], MINUTE, Burn::Calm);
        check_burn(&[(0, 100_000, 0), (58 * MINUTE, 50, 50)], 59 * MINUTE, Burn::Calm);
    }

    #[test]
    fn the_budget_is_exact_at_its_edges() {
        let mut budget = Budget::new(0.05);
        assert_eq!(budget.remaining(at(0)), 1.0);
        budget.record(at(0), 95, 5);
        assert!((budget.remaining(at(0))).abs() < 1e-12);
        budget.record(at(0), 0, 100);
        assert!(budget.remaining(at(0)) < 0.0);
        let after = WINDOWS[3].as_millis() as u64;
        assert!(budget.remaining(at(after - 10_000)) < 0.0);
        assert_eq!(budget.remaining(at(after)), 1.0);
    }

    #[test]
    fn a_straggler_counts_with_the_newest() {
        let mut budget = Budget::new(0.5);
        budget.record(at(50 * MINUTE), 3, 0);
        budget.record(at(0), 0, 1);
        assert_eq!(budget.burn_rates(at(50 * MINUTE)), [0.5; 4]);
    }

    #[test]
    fn few_bad_requests_are_no_trend_where_some_are_asked_for() {
        let mut budget = Budget::new(0.01);
        budget.record(at(0), 0, 9);
        assert_eq!((budget.burn(at(1), 10), budget.burn(at(1), 9)), (Burn::Calm, Burn::Fast));
    }

    #[test]
    fn what_is_over_is_not_kept() {
        let mut budget = Budget::new(0.05);
        for minute in 0..10_000 {
            budget.record(at(minute * MINUTE), 1, 0);
            assert!(budget.slots.len() <= 361, "{}", budget.slots.len());
        }
        budget.remaining(at(20_000 * MINUTE));
        assert!(budget.slots.is_empty());
    }

    proptest! {
        #[test]
        fn windows_count_what_a_list_would(
            events in proptest::collection::vec((0_u64..30_000, 0_u32..5, 0_u32..5), 0..60),
            later_s in 0_u64..30_000,
        ) {
            let mut events = events;
            events.sort();
            let mut budget = Budget::new(0.5);
            for (second, good, bad) in &events {
                budget.record(at(second * 1_000), *good, *bad);
            }
            let now = events.last().map_or(0, |(second, ..)| *second) + later_s;
            let rates = budget.burn_rates(at(now * 1_000));
            for (rate, window) in rates.into_iter().zip(WINDOWS) {
                let oldest = (now / 10 + 1).saturating_sub(window.as_secs() / 10);
                let (good, bad) = events
                    .iter()
                    .filter(|(second, ..)| second / 10 >= oldest)
                    .fold((0, 0), |(good, bad), event| (good + event.1, bad + event.2));
                let expected = if good + bad == 0 { 0.0 } else { f64::from(bad) / f64::from(good + bad) / 0.5 };
                prop_assert_eq!(rate, expected);
            }
        }

        #[test]
        fn history_keeps_six_hours_in_order_and_no_spike_is_lost(
            spike in 0_u64..2_200,
            total in 1_u64..4_000,
        ) {
            let mut history = History::default();
            let ms = |value: u64| Duration::from_millis(value);
            for step in 0..total {
                let p99 = if step == spike { ms(900) } else { ms(9) };
                history.push(Point { at: at(step * 10_000), p50: ms(1), p95: ms(5), p99, count: 10, errors: 1 });
            }
            let points: Vec<Point> = history.points().copied().collect();
            prop_assert!(points.windows(2).all(|pair| pair[0].at < pair[1].at));
            prop_assert!(points.len() <= 366 + 371);
            let newest = (total - 1) * 10_000;
            let reach = newest.saturating_sub(6 * 3_600_000);
            prop_assert!(points[0].at <= at(reach + 60_000));
            let visible = spike < total && spike * 10_000 >= reach;
            if visible {
                prop_assert!(points.iter().any(|point| point.p99 == ms(900)));
            }
        }
    }

    #[test]
    fn a_minute_adds_counts_and_keeps_the_worst() {
        let mut history = History::default();
        let ms = Duration::from_millis;
        for step in 0..500 {
            let p50 = ms(step % 6);
            history.push(Point { at: at(step * 10_000), p50, p95: ms(5), p99: ms(9), count: 10, errors: 1 });
        }
        let oldest = history.points().next().copied().expect("points");
        assert_eq!((oldest.count, oldest.errors, oldest.p50), (60, 6, ms(5)));
        let repeated = Point { count: 999, ..oldest };
        history.push(repeated);
        assert!(history.points().all(|point| point.count != 999), "an old point is left out");
    }
}
