//! When a budget is refilled: at the start of a UTC day or month, or never. Knows no balance and no clock.

use serde::{Deserialize, Serialize};

use super::time::Wall;
use super::utc::{self, DAY_MS};

/// How often a budget is refilled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BudgetPeriod {
    /// Never.
    #[default]
    None,
    /// At 00:00 UTC.
    Day,
    /// At 00:00 UTC on the first.
    Month,
}

impl BudgetPeriod {
    /// The name in configuration and answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            BudgetPeriod::None => "none",
            BudgetPeriod::Day => "day",
            BudgetPeriod::Month => "month",
        }
    }

    /// The start of the period that holds `wall`; the first instant belongs to the new period. `None` without periods.
    pub fn start_of(self, wall: Wall) -> Option<Wall> {
        match self {
            BudgetPeriod::None => None,
            BudgetPeriod::Day => Some(utc::start_of_day(wall)),
            BudgetPeriod::Month => Some(utc::start_of_month(wall)),
        }
    }

    /// The start of the period after the one that holds `wall`. `None` without periods.
    pub fn next_start(self, wall: Wall) -> Option<Wall> {
        match self {
            BudgetPeriod::None => None,
            BudgetPeriod::Day => Some(Wall(utc::start_of_day(wall).0.saturating_add(DAY_MS))),
            BudgetPeriod::Month => Some(utc::start_of_next_month(wall)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(period: BudgetPeriod, at: &str, start: Option<&str>, next: Option<&str>) {
        let at = utc::parse_stamp(at).expect("stamp");
        let text = |wall: Option<Wall>| wall.map(|wall| utc::Day(wall).to_string());
        assert_eq!(text(period.start_of(at)).as_deref(), start);
        assert_eq!(text(period.next_start(at)).as_deref(), next);
    }

    #[test]
    fn the_first_instant_belongs_to_the_new_period() {
        check(BudgetPeriod::Day, "2026-11-30T23:59:59.999Z", Some("2026-11-30"), Some("2026-12-01"));
        check(BudgetPeriod::Day, "2026-12-01T00:00:00.000Z", Some("2026-12-01"), Some("2026-12-02"));
        check(BudgetPeriod::Month, "2026-12-31T23:59:59.999Z", Some("2026-12-01"), Some("2027-01-01"));
        check(BudgetPeriod::Month, "2027-01-01T00:00:00.000Z", Some("2027-01-01"), Some("2027-02-01"));
        check(BudgetPeriod::None, "2027-01-01T00:00:00.000Z", None, None);
    }

    proptest! {
        #[test]
        fn periods_tile_time(ms in 0..4_102_444_800_000_i64, monthly: bool) {
            let period = if monthly { BudgetPeriod::Month } else { BudgetPeriod::Day };
            let wall = Wall(ms);
            let (start, next) = (period.start_of(wall).expect("start"), period.next_start(wall).expect("next"));
            prop_assert!(start <= wall && wall < next);
            prop_assert_eq!(period.start_of(next), Some(next));
            prop_assert_eq!(period.start_of(Wall(next.0 - 1)), Some(start));
        }
    }
}
