//! The UTC calendar of [`Wall`]: days, months, and the one text form that records and reports use. Knows no time zone
//! but UTC and nothing of what happens at a day's edge.

use std::fmt;

use time::format_description::well_known::Rfc3339;
use time::{Date, Month, OffsetDateTime, Time};

use super::time::Wall;

/// Milliseconds of a day; UTC days have no other length here.
pub const DAY_MS: i64 = 86_400_000;

/// The last millisecond that the text form can carry: the end of the year 9999.
const LAST_MS: i64 = 253_402_300_799_999;

/// The instant on the calendar; before 1970 and after 9999 it is the nearest instant that can be written.
fn on_calendar(wall: Wall) -> OffsetDateTime {
    let nanos = i128::from(wall.0.clamp(0, LAST_MS)) * 1_000_000;
    OffsetDateTime::from_unix_timestamp_nanos(nanos).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

fn midnight(date: Date) -> Wall {
    Wall(OffsetDateTime::new_utc(date, Time::MIDNIGHT).unix_timestamp().saturating_mul(1000))
}

/// Days since 1970-01-01; negative before.
pub const fn day_number(wall: Wall) -> i64 {
    wall.0.div_euclid(DAY_MS)
}

/// 00:00 of the instant's day.
pub const fn start_of_day(wall: Wall) -> Wall {
    Wall(wall.0.div_euclid(DAY_MS).saturating_mul(DAY_MS))
}

/// 00:00 of the first of the instant's month.
pub fn start_of_month(wall: Wall) -> Wall {
    let date = on_calendar(wall).date();
    date.replace_day(1).map_or(start_of_day(wall), midnight)
}

/// 00:00 of the first of the month that follows.
pub fn start_of_next_month(wall: Wall) -> Wall {
    let date = on_calendar(wall).date();
    let year = if date.month() == Month::December { date.year() + 1 } else { date.year() };
    Date::from_calendar_date(year, date.month().next(), 1).map_or(Wall(LAST_MS), midnight)
}

/// An instant as `2026-11-30T16:30:00.123Z`: RFC 3339, UTC, always with three decimals, so that texts sort as time does.
#[derive(Debug, Clone, Copy)]
pub struct Stamp(pub Wall);

/// The text of a [`Stamp`].
pub struct StampText([u8; 24]);

impl StampText {
    /// The text.
    pub fn as_str(&self) -> &str {
        // Only ASCII was written.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl Stamp {
    /// Its text, as [`fmt::Display`] writes it, for less.
    pub fn text(self) -> StampText {
        let mut text = *b"0000-00-00T00:00:00.000Z";
        write_date(&mut text, self.0);
        let ms = self.0.0.clamp(0, LAST_MS) % DAY_MS;
        write_digits(&mut text[11..13], ms / 3_600_000);
        write_digits(&mut text[14..16], ms / 60_000 % 60);
        write_digits(&mut text[17..19], ms / 1_000 % 60);
        write_digits(&mut text[20..23], ms % 1_000);
        StampText(text)
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text().as_str())
    }
}

/// An instant's day as `2026-11-30`.
#[derive(Debug, Clone, Copy)]
pub struct Day(pub Wall);

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = *b"0000-00-00";
        write_date(&mut text, self.0);
        f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

/// Writes the day's digits over the first ten bytes. By hand, because every record carries a stamp and the formatting
/// machinery took a tenth of the time of writing one.
fn write_date(text: &mut [u8], wall: Wall) {
    let (year, month, day) = on_calendar(wall).to_calendar_date();
    write_digits(&mut text[0..4], i64::from(year));
    write_digits(&mut text[5..7], i64::from(u8::from(month)));
    write_digits(&mut text[8..10], i64::from(day));
}

fn write_digits(text: &mut [u8], mut value: i64) {
    for digit in text.iter_mut().rev() {
        *digit = b'0' + u8::try_from(value % 10).unwrap_or_default();
        value /= 10;
    }
}

/// The instant of an RFC 3339 text with any offset; what is finer than a millisecond is cut off.
pub fn parse_stamp(text: &str) -> Option<Wall> {
    let at = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    i64::try_from(at.unix_timestamp_nanos().div_euclid(1_000_000)).ok().map(Wall)
}

/// 00:00 of a day written `2026-11-30`.
pub fn parse_day(text: &str) -> Option<Wall> {
    let fits = |(i, b): (usize, u8)| if i == 4 || i == 7 { b == b'-' } else { b.is_ascii_digit() };
    let shape = text.len() == 10 && text.bytes().enumerate().all(fits);
    if !shape {
        return None;
    }
    let (year, rest) = text.split_once('-')?;
    let (month, day) = rest.split_once('-')?;
    let month = Month::try_from(month.parse::<u8>().ok()?).ok()?;
    Date::from_calendar_date(year.parse().ok()?, month, day.parse().ok()?).ok().map(midnight)
}

/// `#[serde(with = "…")]` for a [`Wall`] written as a [`Stamp`].
pub mod stamp {
    use std::borrow::Cow;

    use serde::{Deserialize, Deserializer, Serializer};

    use super::{Stamp, Wall, parse_stamp};

    /// Writes the instant as text.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(wall: &Wall, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&Stamp(*wall))
    }

    /// Reads the instant from text.
    ///
    /// # Errors
    /// When the text is not RFC 3339.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Wall, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        parse_stamp(&text).ok_or_else(|| serde::de::Error::custom("expected an RFC 3339 instant"))
    }
}

/// `#[serde(with = "…")]` for an optional [`Wall`] written as a [`Stamp`] or null.
pub mod optional_stamp {
    use serde::{Serialize, Serializer};

    use super::{Stamp, Wall};

    /// Writes the instant as text, or null.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(wall: &Option<Wall>, serializer: S) -> Result<S::Ok, S::Error> {
        wall.map(|wall| Stamp(wall).to_string()).serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check_months(at: &str, first: &str, next: &str) {
        let at = parse_stamp(at).expect("stamp");
        assert_eq!(Day(start_of_month(at)).to_string(), first);
        assert_eq!(Day(start_of_next_month(at)).to_string(), next);
    }

    #[test]
    fn months_start_on_the_first() {
        check_months("2026-11-30T23:59:59.999Z", "2026-11-01", "2026-12-01");
        check_months("2026-12-01T00:00:00.000Z", "2026-12-01", "2027-01-01");
        check_months("2028-02-29T12:00:00Z", "2028-02-01", "2028-03-01");
        check_months("2026-03-01T00:30:00+09:00", "2026-02-01", "2026-03-01");
    }

    #[track_caller]
    fn check_day(text: &str, expected: Option<&str>) {
        assert_eq!(parse_day(text).map(|wall| Stamp(wall).to_string()).as_deref(), expected, "{text}");
    }

    #[test]
    fn only_real_days_in_one_notation_are_read() {
        check_day("2026-11-30", Some("2026-11-30T00:00:00.000Z"));
        check_day("2028-02-29", Some("2028-02-29T00:00:00.000Z"));
        check_day("2026-02-29", None);
        check_day("2026-13-01", None);
        check_day("26-11-30", None);
        check_day("2026-1-030", None);
        check_day("2026/11/30", None);
        check_day("+026-11-30", None);
        check_day("", None);
    }

    #[test]
    fn instants_beyond_the_calendar_are_written_as_its_ends() {
        assert_eq!(Stamp(Wall(i64::MIN)).to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(Stamp(Wall(i64::MAX)).to_string(), "9999-12-31T23:59:59.999Z");
    }

    proptest! {
        #[test]
        fn a_stamp_reads_back_and_lies_in_its_day(ms in 0..=LAST_MS) {
            let wall = Wall(ms);
            prop_assert_eq!(parse_stamp(&Stamp(wall).to_string()), Some(wall));
            prop_assert_eq!(parse_day(&Day(wall).to_string()), Some(start_of_day(wall)));
            prop_assert_eq!(day_number(start_of_day(wall)), day_number(wall));
        }
    }
}
