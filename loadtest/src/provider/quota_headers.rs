//! Rate-limit headers in the notations of several providers.

use super::quota::{Axis, Exhausted, Level, Levels, Notation, RetryAfter};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

/// The headers that tell `levels`, and on a refusal the wait.
pub(super) fn headers(
    notation: Notation,
    retry_after: RetryAfter,
    levels: Levels,
    refusal: Option<Exhausted>,
    unix_ms: u64,
) -> Vec<(String, String)> {
    let mut out = Vec::new();
    for (axis, level) in [(Axis::Requests, levels.requests), (Axis::Tokens, levels.tokens)] {
        if let Some(level) = level {
            describe(&mut out, notation, axis, level, unix_ms);
        }
    }
    let Some(refusal) = refusal else { return out };
    if notation == Notation::Azure {
        let tripped = if refusal.axis == Axis::Tokens { "Tokens" } else { "Requests" };
        out.push(("x-ratelimit-type".to_owned(), tripped.to_owned()));
    }
    // A call that can never fit is told to come back in a minute, as the providers do.
    let wait_ns = refusal.wait_ns.min(60 * SECOND);
    if matches!(retry_after, RetryAfter::Seconds | RetryAfter::Both) {
        out.push(("retry-after".to_owned(), wait_ns.div_ceil(SECOND).max(1).to_string()));
    }
    if matches!(retry_after, RetryAfter::Millis | RetryAfter::Both) {
        out.push(("retry-after-ms".to_owned(), wait_ns.div_ceil(MS).max(1).to_string()));
    }
    out
}

fn describe(out: &mut Vec<(String, String)>, notation: Notation, axis: Axis, level: Level, unix_ms: u64) {
    let name = match axis {
        Axis::Requests => "requests",
        Axis::Tokens => "tokens",
    };
    let mut add = |name: String, value: String| out.push((name, value));
    let (limit, remaining) = (level.limit.to_string(), level.remaining.to_string());
    match notation {
        Notation::None => {}
        Notation::Openai | Notation::Groq | Notation::Azure => {
            add(format!("x-ratelimit-limit-{name}"), limit);
            add(format!("x-ratelimit-remaining-{name}"), remaining);
            let reset = match notation {
                Notation::Azure => level.reset_ns.div_ceil(SECOND).to_string(),
                Notation::Groq => decimal(level.reset_ns),
                _ => duration(level.reset_ns),
            };
            add(format!("x-ratelimit-reset-{name}"), reset);
            if notation == Notation::Azure {
                add(format!("x-ratelimit-renewalperiod-{name}"), "60".to_owned());
            }
        }
        Notation::Anthropic => {
            add(format!("anthropic-ratelimit-{name}-limit"), limit);
            add(format!("anthropic-ratelimit-{name}-remaining"), remaining);
            let reset_s = (unix_ms + level.reset_ns.div_ceil(MS)).div_ceil(1000);
            add(format!("anthropic-ratelimit-{name}-reset"), rfc3339(reset_s));
        }
        Notation::Mistral => {
            let name = if axis == Axis::Requests { "req" } else { name };
            add(format!("x-ratelimit-limit-{name}-minute"), limit);
            add(format!("x-ratelimit-remaining-{name}-minute"), remaining);
        }
    }
}

/// OpenAI's form: `6m0s`, `1.5s`, `200ms`, `0s`.
fn duration(ns: u64) -> String {
    let ms = ns.div_ceil(MS);
    let (hours, minutes, seconds, millis) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60, ms % 1000);
    if ms > 0 && ms < 1000 {
        return format!("{ms}ms");
    }
    let fraction = if millis == 0 { String::new() } else { format!(".{millis:03}").trim_end_matches('0').to_owned() };
    match (hours, minutes) {
        (0, 0) => format!("{seconds}{fraction}s"),
        (0, _) => format!("{minutes}m{seconds}{fraction}s"),
        _ => format!("{hours}h{minutes}m{seconds}{fraction}s"),
    }
}

/// Groq's form: `7.66s`, `2m59.56s`.
fn decimal(ns: u64) -> String {
    let hundredths = ns.div_ceil(10 * MS);
    let (minutes, rest) = (hundredths / 6000, hundredths % 6000);
    let seconds = format!("{}.{:02}s", rest / 100, rest % 100);
    if minutes == 0 { seconds } else { format!("{minutes}m{seconds}") }
}

/// Seconds since 1970 as `2026-11-30T16:30:00Z`.
fn rfc3339(unix_s: u64) -> String {
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    // Civil date from a day count, with years that begin in March so that the leap day comes last.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(notation: Notation, expected: &[(&str, &str)]) {
        let levels =
            Levels { requests: None, tokens: Some(Level { limit: 1000, remaining: 40, reset_ns: 57_600 * MS }) };
        let refusal = Exhausted { axis: Axis::Tokens, wait_ns: 1200 * MS, requested: 60 };
        let seen = headers(notation, RetryAfter::Both, levels, Some(refusal), 1_796_056_200_000);
        let seen: Vec<(&str, &str)> = seen.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let wait = [("retry-after", "2"), ("retry-after-ms", "1200")];
        assert_eq!(seen, [expected, &wait].concat());
    }

    #[test]
    fn each_provider_tells_its_levels_its_own_way() {
        check(
            Notation::Openai,
            &[
                ("x-ratelimit-limit-tokens", "1000"),
                ("x-ratelimit-remaining-tokens", "40"),
                ("x-ratelimit-reset-tokens", "57.6s"),
            ],
        );
        check(
            Notation::Azure,
            &[
                ("x-ratelimit-limit-tokens", "1000"),
                ("x-ratelimit-remaining-tokens", "40"),
                ("x-ratelimit-reset-tokens", "58"),
                ("x-ratelimit-renewalperiod-tokens", "60"),
                ("x-ratelimit-type", "Tokens"),
            ],
        );
        check(
            Notation::Groq,
            &[
                ("x-ratelimit-limit-tokens", "1000"),
                ("x-ratelimit-remaining-tokens", "40"),
                ("x-ratelimit-reset-tokens", "57.60s"),
            ],
        );
        check(
            Notation::Anthropic,
            &[
                ("anthropic-ratelimit-tokens-limit", "1000"),
                ("anthropic-ratelimit-tokens-remaining", "40"),
                ("anthropic-ratelimit-tokens-reset", "2026-11-30T16:30:58Z"),
            ],
        );
        check(
            Notation::Mistral,
            &[("x-ratelimit-limit-tokens-minute", "1000"), ("x-ratelimit-remaining-tokens-minute", "40")],
        );
        check(Notation::None, &[]);
    }

    #[test]
    fn durations_are_written_as_openai_writes_them() {
        let written = |ms: u64| duration(ms * MS);
        assert_eq!(written(0), "0s");
        assert_eq!(written(6), "6ms");
        assert_eq!(written(1000), "1s");
        assert_eq!(written(360_000), "6m0s");
        assert_eq!(written(90_951), "1m30.951s");
        assert_eq!(written(3_723_000), "1h2m3s");
        assert_eq!(decimal(179_560 * MS), "2m59.56s");
    }

    #[test]
    fn dates_know_leap_days() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(rfc3339(951_868_800), "2000-03-01T00:00:00Z");
    }
}
