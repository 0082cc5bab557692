//! Owns exact counts of good and bad events over the last N seconds. Refuses to know what is counted or what follows
//! from a ratio.
//!
//! A ring of slots and not a decaying average: "5 % of at least 20 requests" must mean those requests, and a decaying
//! average neither has a count nor ever forgets an outage completely.

use std::time::Duration;

use super::time::Mono;

/// Slots of a window: an event is forgotten after the window plus at most one slot.
const SLOTS: u64 = 60;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Slot {
    good: u64,
    bad: u64,
}

/// What happened within a window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Events that went well.
    pub good: u64,
    /// Events that did not.
    pub bad: u64,
}

impl Totals {
    /// All events.
    pub const fn all(self) -> u64 {
        self.good + self.bad
    }

    /// Share of bad events, 0 to 1; 0 when there were none at all.
    pub fn bad_ratio(self) -> f64 {
        if self.all() == 0 { 0.0 } else { self.bad as f64 / self.all() as f64 }
    }
}

/// Counts over a rolling window, with a granularity of a sixtieth of it.
#[derive(Debug, Clone)]
pub struct RateWindow {
    slot_ns: u64,
    slots: Vec<Slot>,
    newest: u64,
    totals: Totals,
}

impl RateWindow {
    /// An empty window of `span` (at least 60 ns).
    pub fn new(span: Duration) -> RateWindow {
        let span_ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        RateWindow {
            slot_ns: (span_ns / SLOTS).max(1),
            // One slot more than the window has, so that an event lives for the whole window and not a slot less.
            slots: vec![Slot::default(); SLOTS as usize + 1],
            newest: 0,
            totals: Totals::default(),
        }
    }

    /// Counts one event at `now`. An event older than the newest one counts in the newest slot.
    pub fn record(&mut self, good: bool, now: Mono) {
        self.advance(now);
        let position = (self.newest % self.slots.len() as u64) as usize;
        if let Some(slot) = self.slots.get_mut(position) {
            let (counter, total) =
                if good { (&mut slot.good, &mut self.totals.good) } else { (&mut slot.bad, &mut self.totals.bad) };
            *counter += 1;
            *total += 1;
        }
    }

    /// What the window holds at `now`.
    pub fn totals(&mut self, now: Mono) -> Totals {
        self.advance(now);
        self.totals
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.slots.fill(Slot::default());
        self.totals = Totals::default();
    }

    fn advance(&mut self, now: Mono) {
        let index = now.0 / self.slot_ns;
        let steps = index.saturating_sub(self.newest);
        let len = self.slots.len() as u64;
        if steps >= len {
            self.clear();
        } else {
            for step in 1..=steps {
                let position = ((self.newest + step) % len) as usize;
                if let Some(slot) = self.slots.get_mut(position) {
                    self.totals.good -= slot.good;
                    self.totals.bad -= slot.bad;
                    *slot = Slot::default();
                }
            }
        }
        self.newest = self.newest.max(index);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SPAN: Duration = Duration::from_secs(30);

    #[test]
    fn an_event_lives_for_the_window_and_at_most_one_slot_more() {
        let mut window = RateWindow::new(SPAN);
        window.record(false, Mono::from_millis(1_000));
        assert_eq!(window.totals(Mono::from_millis(31_000)).bad, 1);
        assert_eq!(window.totals(Mono::from_millis(31_501)).bad, 0);
    }

    #[test]
    fn a_late_event_is_counted_and_moves_nothing_back() {
        let mut window = RateWindow::new(SPAN);
        window.record(true, Mono::from_millis(20_000));
        window.record(false, Mono::from_millis(1_000));
        assert_eq!(window.totals(Mono::from_millis(20_000)), Totals { good: 1, bad: 1 });
        assert_eq!(window.totals(Mono::from_millis(20_000)).bad_ratio(), 0.5);
    }

    proptest! {
        #[test]
        fn counts_agree_with_a_list_of_events(gaps in prop::collection::vec((0_u64..5_000, any::<bool>()), 1..200)) {
            let mut window = RateWindow::new(SPAN);
            let mut at = 0;
            let mut events = Vec::new();
            for (gap, good) in gaps {
                at += gap;
                window.record(good, Mono::from_millis(at));
                events.push((at, good));
                let first_slot = (at / 500).saturating_sub(60);
                let expected = |want: bool| {
                    events.iter().filter(|(ms, good)| ms / 500 >= first_slot && *good == want).count() as u64
                };
                let totals = window.totals(Mono::from_millis(at));
                prop_assert_eq!((totals.good, totals.bad), (expected(true), expected(false)));
            }
        }
    }
}
