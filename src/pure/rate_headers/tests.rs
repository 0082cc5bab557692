//! Tables of real answers' headers and what must be read from them.

use proptest::prelude::*;

use super::*;

/// 2026-11-30T12:00:00Z.
const NOW: Wall = Wall(1_796_040_000_000);

fn read(headers: &[(&str, &str)]) -> RateHeaders {
    RateHeaders::read(headers.iter().copied(), NOW)
}

fn ms(ms: u64) -> Option<Duration> {
    Some(Duration::from_millis(ms))
}

/// Expects (tokens remaining, limit, reset ms), then the same of requests.
#[track_caller]
fn check(
    headers: &[(&str, &str)],
    tokens: (Option<u64>, Option<u64>, Option<u64>),
    requests: (Option<u64>, Option<u64>, Option<u64>),
) {
    let got = read(headers);
    let millis = |reset: Option<Duration>| reset.map(|reset| reset.as_millis() as u64);
    assert_eq!((got.remaining_tokens, got.limit_tokens, millis(got.reset_tokens)), tokens, "tokens of {headers:?}");
    let got_requests = (got.remaining_requests, got.limit_requests, millis(got.reset_requests));
    assert_eq!(got_requests, requests, "requests of {headers:?}");
}

const NOTHING: (Option<u64>, Option<u64>, Option<u64>) = (None, None, None);

#[test]
fn openai_and_its_look_alikes() {
    check(
        &[
            ("X-RateLimit-Limit-Tokens", "1000000"),
            ("x-ratelimit-remaining-tokens", "950000"),
            ("x-ratelimit-reset-tokens", "3s"),
            ("x-ratelimit-limit-requests", "3000"),
            ("x-ratelimit-remaining-requests", "2999"),
            ("x-ratelimit-reset-requests", "20ms"),
        ],
        (Some(950_000), Some(1_000_000), Some(3_000)),
        (Some(2_999), Some(3_000), Some(20)),
    );
    check(
        &[("x-ratelimit-remaining-tokens", "-20"), ("x-ratelimit-remaining-requests", "-1")],
        (Some(0), None, None),
        NOTHING,
    );
    check(&[("x-ratelimit-limit-tokens", "0"), ("x-ratelimit-remaining-tokens", "many")], NOTHING, NOTHING);
    check(&[("content-type", "application/json"), ("x-ratelimit-remaining-input-images", "3")], NOTHING, NOTHING);
}

#[test]
fn a_head_full_of_limits_is_not_kept_whole() {
    let many: String = (0..10_000).map(|number| format!("\"p{number}\";r={number};t=1;q=5;w=60,")).collect();
    let mut found = Found::default();
    found.take("ratelimit", &many);
    found.take("ratelimit-policy", &many);
    assert_eq!((found.buckets.len(), found.minute_policies.len()), (MOST_LIMITS, MOST_LIMITS));
    let read = found.fold(NOW);
    assert_eq!((read.remaining_requests, read.limit_requests, read.reset_requests), (Some(0), Some(5), ms(1_000)));
}

#[test]
fn the_scarcest_of_several_limits_counts() {
    check(
        &[
            ("x-ratelimit-remaining-tokens", "5000"),
            ("x-ratelimit-reset-tokens", "1s"),
            ("x-ratelimit-remaining-project-tokens", "70"),
            ("x-ratelimit-reset-project-tokens", "9s"),
        ],
        (Some(70), None, Some(9_000)),
        NOTHING,
    );
    check(
        &[
            ("x-ratelimit-limit-tokens-minute", "60000"),
            ("x-ratelimit-remaining-tokens-minute", "59000"),
            ("x-ratelimit-reset-tokens-minute", "7.5"),
            ("x-ratelimit-limit-requests-day", "14400"),
            ("x-ratelimit-remaining-requests-day", "12"),
            ("x-ratelimit-reset-requests-day", "33011.38"),
        ],
        (Some(59_000), Some(60_000), Some(7_500)),
        (Some(12), None, Some(33_011_380)),
    );
}

#[test]
fn azure_says_unknown_with_minus_one_and_zero() {
    check(
        &[
            ("x-ratelimit-limit-requests", "5"),
            ("x-ratelimit-limit-tokens", "5000"),
            ("x-ratelimit-remaining-requests", "4"),
            ("x-ratelimit-remaining-tokens", "0"),
            ("x-ratelimit-renewalperiod-requests", "60"),
            ("x-ratelimit-renewalperiod-tokens", "60"),
            ("x-ratelimit-reset-requests", "12"),
            ("x-ratelimit-reset-tokens", "0"),
        ],
        (Some(0), Some(5_000), None),
        (Some(4), Some(5), Some(12_000)),
    );
    check(
        &[
            ("x-ratelimit-limit-tokens", "-1"),
            ("x-ratelimit-remaining-tokens", "-1"),
            ("x-ratelimit-reset-tokens", "0"),
            ("x-ratelimit-renewalperiod-requests", "10"),
            ("x-ratelimit-limit-requests", "100"),
        ],
        NOTHING,
        NOTHING,
    );
}

#[test]
fn anthropic_mistral_openrouter_cohere() {
    check(
        &[
            ("anthropic-ratelimit-requests-limit", "50"),
            ("anthropic-ratelimit-requests-remaining", "49"),
            ("anthropic-ratelimit-requests-reset", "2026-11-30T12:00:02Z"),
            ("anthropic-ratelimit-input-tokens-remaining", "30000"),
            ("anthropic-ratelimit-input-tokens-reset", "2026-11-30T12:00:05Z"),
            ("anthropic-ratelimit-tokens-remaining", "46000"),
            ("anthropic-priority-input-tokens-remaining", "1"),
        ],
        (Some(30_000), None, Some(5_000)),
        (Some(49), Some(50), Some(2_000)),
    );
    check(
        &[
            ("x-ratelimit-limit-req-minute", "60"),
            ("x-ratelimit-remaining-req-minute", "59"),
            ("x-ratelimit-limit-tokens-minute", "20000000"),
            ("x-ratelimit-remaining-tokens-minute", "19999990"),
            ("x-ratelimit-tokens-query-cost", "10"),
        ],
        (Some(19_999_990), Some(20_000_000), None),
        (Some(59), Some(60), None),
    );
    check(
        &[("X-RateLimit-Limit", "20"), ("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "1796040030000")],
        NOTHING,
        (Some(0), None, Some(30_000)),
    );
    check(
        &[("x-trial-endpoint-call-remaining", "7"), ("x-endpoint-monthly-call-limit", "1000")],
        NOTHING,
        (Some(7), None, None),
    );
}

#[test]
fn ietf_drafts() {
    check(
        &[
            ("RateLimit-Limit", "100"),
            ("RateLimit-Remaining", "50"),
            ("RateLimit-Reset", "5"),
            ("RateLimit-Policy", "100;w=60"),
        ],
        NOTHING,
        (Some(50), Some(100), Some(5_000)),
    );
    check(&[("RateLimit", "limit=100, remaining=50, reset=5")], NOTHING, (Some(50), None, Some(5_000)));
    check(
        &[
            (
                "RateLimit-Policy",
                "\"bur,st\";q=100;w=60, \"daily\";q=1000;w=86400, \"size\";q=9;w=60;qu=\"content-bytes\"",
            ),
            ("RateLimit", "\"bur,st\";r=50;t=30, \"daily\";r=900;t=60"),
        ],
        NOTHING,
        (Some(50), Some(100), Some(30_000)),
    );
}

#[test]
fn instants_are_read_against_the_answers_own_date() {
    let skewed = [
        ("x-ratelimit-reset-tokens", "2026-11-30T11:00:30Z"),
        ("x-ratelimit-remaining-tokens", "9"),
        ("date", "Mon, 30 Nov 2026 11:00:00 GMT"),
        ("retry-after", "Mon, 30 Nov 2026 11:00:07 GMT"),
    ];
    assert_eq!(read(&skewed).reset_tokens, ms(30_000));
    assert_eq!(read(&skewed).retry_after, ms(7_000));
    assert!(read(&[]).is_empty());
}

#[track_caller]
fn check_wait(headers: &[(&str, &str)], hint: Option<u64>, expected: Option<u64>) {
    let wait = wait_after_429(&read(headers), hint.map(Duration::from_millis));
    assert_eq!(wait, expected.map(Duration::from_millis), "{headers:?}");
}

#[test]
fn the_pause_after_a_429() {
    check_wait(&[("retry-after", "30")], None, Some(30_000));
    check_wait(&[("retry-after", "2"), ("retry-after-ms", "1200")], None, Some(1_200));
    check_wait(&[("retry-after", "0"), ("retry-after-ms", "0")], None, None);
    check_wait(&[("retry-after", "86399")], None, Some(86_399_000));
    check_wait(&[("retry-after", "86400")], None, Some(3_600_000));
    check_wait(&[("x-ratelimit-reset-tokens", "2999-01-01T00:00:00Z")], None, Some(3_600_000));
    check_wait(&[], Some(180), Some(180));
    check_wait(&[("retry-after", "3")], Some(180), Some(3_000));
    check_wait(&[], None, None);
    let reset = "x-ratelimit-reset-tokens";
    for (text, expected) in [
        ("6m0s", Some(360_000)),
        ("1s", Some(1_000)),
        ("500ms", Some(500)),
        ("1m30.5s", Some(90_500)),
        ("1h2m3s", Some(3_723_000)),
        ("2", Some(2_000)),
        ("0", None),
        ("2026-11-30T12:00:04Z", Some(4_000)),
        ("1796040004", Some(4_000)),
        ("", None),
        ("soon", None),
        ("-3s", None),
    ] {
        check_wait(&[(reset, text)], None, expected);
    }
    check_wait(&[("x-ratelimit-reset-requests", "1s"), (reset, "3s")], None, Some(3_000));
    let healthy = ("x-ratelimit-remaining-tokens", "900");
    let spent = ("x-ratelimit-remaining-requests", "0");
    check_wait(&[("x-ratelimit-reset-requests", "1s"), (reset, "2ms"), healthy, spent], None, Some(1_000));
}

#[test]
fn azure_waits_for_the_longest_of_its_words() {
    let renewal = ("x-ratelimit-renewalperiod-tokens", "60");
    check_wait(&[renewal, ("retry-after", "20"), ("retry-after-ms", "500")], None, Some(20_000));
    let observed = [
        renewal,
        ("retry-after", "1"),
        ("retry-after-ms", "0"),
        ("x-ratelimit-remaining-requests", "4"),
        ("x-ratelimit-remaining-tokens", "0"),
        ("x-ratelimit-reset-requests", "12"),
        ("x-ratelimit-reset-tokens", "0"),
        ("x-ratelimit-type", "Tokens"),
    ];
    check_wait(&observed, None, Some(15_000));
}

proptest! {
    #[test]
    fn no_value_panics(value in "\\PC{0,30}|[0-9\";=,. -]{0,30}") {
        for name in ["ratelimit", "ratelimit-policy", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens", "retry-after"] {
            let headers = read(&[(name, &value), ("x-ratelimit-renewalperiod-tokens", &value)]);
            let wait = wait_after_429(&headers, None);
            prop_assert!(wait.is_none_or(|wait| !wait.is_zero() && wait <= LONGEST_PAUSE));
        }
    }
}
