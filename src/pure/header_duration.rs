//! Owns the reading of times that providers put into headers and error texts: durations, seconds, dates, epochs.
//! Refuses to know which header means what.
//!
//! Everything is capped and nothing panics: these texts come from outside, and a year-long pause because of a typing
//! error there is an outage here. What cannot be read is `None`, never a guess.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::time::Wall;

/// The longest time any header can ask for.
pub const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Units, longest name first, so that `ms` is not read as minutes. Nanoseconds each.
const UNITS: [(&str, u128); 9] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// A duration such as `6m0s`, `200ms`, `1.5s`, or a bare number of seconds; capped at [`LONGEST`].
pub fn parse_duration(text: &str) -> Option<Duration> {
    let (nanos, rest) = read_duration(text.trim())?;
    if rest.is_empty() { capped(nanos) } else { None }
}

/// The value of a `*-reset*` header: a duration, seconds from now, RFC 3339, or an epoch in seconds or milliseconds.
/// Instants count from `now`, which should be the answer's own `Date` where it has one; past ones are zero.
pub fn parse_reset(text: &str, now: Wall) -> Option<Duration> {
    let text = text.trim();
    if let Ok(instant) = OffsetDateTime::parse(text, &Rfc3339) {
        return Some(until(instant.unix_timestamp_nanos() / 1_000_000, now));
    }
    // 10⁹ seconds from now would be thirty years: such a number can only be an instant.
    match text.parse::<u64>() {
        Ok(number) if number >= 1_000_000_000_000 => Some(until(i128::from(number), now)),
        Ok(number) if number >= 1_000_000_000 => Some(until(i128::from(number) * 1_000, now)),
        Ok(_) | Err(_) => parse_duration(text),
    }
}

/// The value of `Retry-After`: seconds, decimal seconds, a duration, or an HTTP date in any of its three forms.
pub fn parse_retry_after(text: &str, now: Wall) -> Option<Duration> {
    match parse_http_date(text) {
        Some(date) => Some(until(i128::from(date.0), now)),
        None => parse_reset(text, now),
    }
}

/// The value of `retry-after-ms`: decimal milliseconds. Zero is `None`: obeyed, it would make a busy loop.
pub fn parse_millis(text: &str) -> Option<Duration> {
    let (nanos, rest) = read_number(text.trim(), 1_000_000)?;
    if rest.is_empty() && nanos > 0 { capped(nanos) } else { None }
}

/// An HTTP date (IMF-fixdate, RFC 850 or asctime).
pub fn parse_http_date(text: &str) -> Option<Wall> {
    let date: SystemTime = httpdate::parse_http_date(text.trim()).ok()?;
    let since = date.duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(since.as_millis()).ok().map(Wall)
}

/// The wait that an error text suggests ("try again in 1.2s", "retry after 7 seconds"); `None` if it names none.
pub fn error_text_hint(text: &str) -> Option<Duration> {
    let lower = text.to_ascii_lowercase();
    ["try again in ", "retry in ", "retry after ", "try again after "].iter().find_map(|lead| {
        let start = lower.find(lead)? + lead.len();
        let tail = lower.get(start..)?.trim_start();
        spelled_out(tail).or_else(|| {
            let (nanos, rest) = read_duration(tail)?;
            if rest_is_a_word_end(rest) { capped(nanos) } else { None }
        })
    })
}

/// Whole seconds to wait, rounded up and at least 1: what `Retry-After` may say, since some SDKs read whole seconds
/// only and take 0 for "at once".
pub fn wait_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

/// A number followed by a unit as a word: `7 seconds`, `350 milliseconds`.
fn spelled_out(text: &str) -> Option<Duration> {
    const WORDS: [(&str, u128); 4] = [
        ("millisecond", 1_000_000),
        ("second", 1_000_000_000),
        ("minute", 60_000_000_000),
        ("hour", 3_600_000_000_000),
    ];
    WORDS.iter().find_map(|(word, unit)| {
        let (nanos, rest) = read_number(text, *unit)?;
        if rest.trim_start().starts_with(word) { capped(nanos) } else { None }
    })
}

fn rest_is_a_word_end(rest: &str) -> bool {
    !rest.starts_with(|c: char| c.is_alphanumeric())
}

/// Reads `number unit` pairs from the start; a lone number is seconds.
fn read_duration(text: &str) -> Option<(u128, &str)> {
    let mut total: u128 = 0;
    let mut rest = text;
    loop {
        let (_, after) = read_number(rest, 1)?;
        let Some((unit, next)) = UNITS.iter().find_map(|(name, unit)| Some((*unit, after.strip_prefix(name)?))) else {
            let bare = rest.len() == text.len();
            return if bare { read_number(rest, 1_000_000_000) } else { None };
        };
        let (nanos, _) = read_number(rest, unit)?;
        total = total.checked_add(nanos)?;
        rest = next;
        if !rest.starts_with(|c: char| c.is_ascii_digit() || c == '.') || !rest.contains(|c: char| c.is_ascii_digit()) {
            return Some((total, rest));
        }
    }
}

/// Reads `12`, `1.5`, `7.` or `.5` from the start and multiplies by `unit`; a fraction of a unit rounds up.
fn read_number(text: &str, unit: u128) -> Option<(u128, &str)> {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let (whole, mut rest) = text.split_at_checked(digits(text))?;
    let mut fraction = "";
    // A full stop that ends a sentence is not a decimal point, unless nothing follows it at all.
    if let Some(after) = rest.strip_prefix('.') {
        let (found, tail) = after.split_at_checked(digits(after))?;
        if !(found.is_empty() && (whole.is_empty() || tail.starts_with(char::is_whitespace))) {
            (fraction, rest) = (found, tail);
        }
    }
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let mut value = if whole.is_empty() { 0 } else { whole.parse::<u128>().ok()?.checked_mul(unit)? };
    let mut left_over = false;
    let mut place = unit;
    for digit in fraction.bytes() {
        let worth = u128::from(digit - b'0') * place;
        value = value.checked_add(worth / 10)?;
        left_over |= !worth.is_multiple_of(10);
        place /= 10;
        left_over |= place == 0 && digit != b'0';
    }
    Some((value + u128::from(left_over), rest))
}

/// Long but possible times are capped; what does not even fit (584 years) is nonsense.
fn capped(nanos: u128) -> Option<Duration> {
    u64::try_from(nanos).ok().map(|nanos| Duration::from_nanos(nanos).min(LONGEST))
}

fn until(instant_ms: i128, now: Wall) -> Duration {
    let ms = (instant_ms - i128::from(now.0)).max(0);
    u64::try_from(ms).map_or(LONGEST, |ms| Duration::from_millis(ms).min(LONGEST))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 2026-11-30T12:00:00Z.
    const NOW: Wall = Wall(1_796_040_000_000);

    #[track_caller]
    fn check(text: &str, expected_ms: Option<u64>) {
        assert_eq!(parse_reset(text, NOW), expected_ms.map(Duration::from_millis), "{text:?}");
    }

    #[test]
    fn resets_in_every_notation() {
        check("1s", Some(1_000));
        check("6m0s", Some(360_000));
        check("200ms", Some(200));
        check("500ms", Some(500));
        check("0s", Some(0));
        check("0ms", Some(0));
        check("0", Some(0));
        check("6ms", Some(6));
        check("1m30.951s", Some(90_951));
        check("1m30.5s", Some(90_500));
        check("16m17.764s", Some(977_764));
        check("1h2m3s", Some(3_723_000));
        check("1h0m0s", Some(3_600_000));
        check("7m12s", Some(432_000));
        check("0.8s", Some(800));
        check(".5s", Some(500));
        check("1.s", Some(1_000));
        check("7.66", Some(7_660));
        check("7.", Some(7_000));
        check("2m59.56s", Some(179_560));
        check("12", Some(12_000));
        check(" 12 ", Some(12_000));
        check("1d", Some(86_400_000));
        check("9d", Some(86_400_000));
        check("99999999999999999999d", None);
        check("123456789", Some(86_400_000));
    }

    #[test]
    fn instants_count_from_now_and_past_ones_are_zero() {
        check("2026-11-30T12:00:30Z", Some(30_000));
        check("2026-11-30T12:00:30.250Z", Some(30_250));
        check("2026-11-30T13:00:30+01:00", Some(30_000));
        check("2026-11-30T11:59:30Z", Some(0));
        check("1796040030", Some(30_000));
        check("1796040030000", Some(30_000));
        check("1000000000", Some(0));
        check("9999999999999", Some(86_400_000));
    }

    #[test]
    fn nonsense_is_unknown() {
        for text in
            ["", " ", "-1", "-3s", "soon", "5x", "s", ".", "1m2x", "1 s", "1s2", "NaN", "inf", "1e3", "+5", "1,5s"]
        {
            check(text, None);
        }
        check("340282366920938463463374607431768211456", None);
    }

    #[test]
    fn microseconds_round_up_to_a_nanosecond_and_never_to_zero() {
        assert_eq!(parse_duration("350\u{b5}s"), Some(Duration::from_micros(350)));
        assert_eq!(parse_duration("350\u{3bc}s"), Some(Duration::from_micros(350)));
        assert_eq!(parse_duration("0.4ns"), Some(Duration::from_nanos(1)));
        assert_eq!(parse_duration("1.0000000000001s"), Some(Duration::from_nanos(1_000_000_001)));
    }

    #[test]
    fn retry_after_in_its_forms() {
        let read = |text| parse_retry_after(text, NOW).map(|wait| wait.as_millis());
        assert_eq!(read("30"), Some(30_000));
        assert_eq!(read("1.5"), Some(1_500));
        assert_eq!(read("Mon, 30 Nov 2026 12:00:30 GMT"), Some(30_000));
        assert_eq!(read("Monday, 30-Nov-26 12:00:30 GMT"), Some(30_000));
        assert_eq!(read("Mon Nov 30 12:00:30 2026"), Some(30_000));
        assert_eq!(read("Mon, 30 Nov 2026 11:00:00 GMT"), Some(0));
        assert_eq!(read("never"), None);
        assert_eq!(parse_millis("1200"), Some(Duration::from_millis(1_200)));
        assert_eq!(parse_millis("0.5"), Some(Duration::from_micros(500)));
        assert_eq!(parse_millis("0"), None);
        assert_eq!(parse_millis("-1"), None);
        assert_eq!(parse_millis("1s"), None);
    }

    #[test]
    fn waits_suggested_by_error_texts() {
        let read = |text| error_text_hint(text).map(|wait| wait.as_millis());
        assert_eq!(read("Limit 1000000, Used 999000. Please try again in 180ms."), Some(180));
        assert_eq!(read("try again in 1.2s. Visit"), Some(1_200));
        assert_eq!(read("Try again in 6m0s"), Some(360_000));
        assert_eq!(read("Please retry after 7 seconds."), Some(7_000));
        assert_eq!(read("Please retry after 1 second"), Some(1_000));
        assert_eq!(read("try again in 350 milliseconds"), Some(350));
        assert_eq!(read("retry after 5. Thanks"), Some(5_000));
        assert_eq!(read("please try again in a while"), None);
        assert_eq!(read("no hint"), None);
    }

    #[test]
    fn waits_round_up_to_whole_seconds() {
        assert_eq!(wait_seconds(Duration::ZERO), 1);
        assert_eq!(wait_seconds(Duration::from_millis(200)), 1);
        assert_eq!(wait_seconds(Duration::from_secs(6)), 6);
        assert_eq!(wait_seconds(Duration::from_nanos(6_000_000_001)), 7);
        assert_eq!(wait_seconds(Duration::from_secs(360)), 360);
    }

    proptest! {
        #[test]
        fn no_text_panics_or_asks_for_more_than_a_day(text in "\\PC{0,24}|[0-9.mshdun: TZ-]{0,24}") {
            for wait in [parse_reset(&text, NOW), parse_retry_after(&text, NOW), parse_millis(&text), error_text_hint(&text)] {
                prop_assert!(wait.is_none_or(|wait| wait <= LONGEST));
            }
            let hint = error_text_hint(&format!("try again in {text}"));
            prop_assert!(hint.is_none_or(|wait| wait <= LONGEST));
        }

        #[test]
        fn a_duration_reads_back_as_written(h in 0_u64..20, m in 0_u64..60, s in 0_u64..60, ms in 0_u64..1_000) {
            let expected = Duration::from_millis(((h * 60 + m) * 60 + s) * 1_000 + ms);
            prop_assert_eq!(parse_duration(&format!("{h}h{m}m{s}s{ms}ms")), Some(expected));
            prop_assert_eq!(parse_duration(&format!("{h}h{m}m{s}.{ms:03}s")), Some(expected));
        }
    }
}
