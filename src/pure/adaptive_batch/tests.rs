//! The formula's table, the splitter's properties, and the providers' own words of refusal.

use proptest::prelude::*;

use super::*;

#[track_caller]
fn check_next(remaining: Option<u64>, tokens: u64, items: usize, batch_size: usize, expected: usize) {
    assert_eq!(next_batch(remaining, Some(Chunk { tokens, items }), batch_size), expected);
}

#[test]
fn the_next_batch_takes_four_fifths_of_what_is_left() {
    check_next(Some(10_000), 5_000, 50, 50, 50);
    check_next(Some(5_000), 5_000, 50, 50, 40);
    check_next(Some(1_000), 5_000, 50, 50, 8);
    check_next(Some(1_000), 500, 1, 50, 1);
    check_next(Some(0), 500, 1, 50, 1);
    check_next(None, 500, 1, 50, 50);
    check_next(Some(100), 0, 10, 50, 50);
    check_next(Some(100), 10, 0, 50, 50);
    check_next(Some(1_000), 300, 7, 50, 18);
    check_next(Some(u64::MAX), 1, usize::MAX, 50, 50);
    check_next(Some(100), 1, 1, 0, 1);
    assert_eq!(next_batch(Some(100), None, 50), 50);
}

#[track_caller]
fn check_preflight(tokens: Option<u64>, requests: Option<u64>, estimate: u64, expected: Preflight) {
    assert_eq!(preflight(tokens, requests, estimate), expected, "{tokens:?} {requests:?} {estimate}");
}

#[test]
fn preflight_keeps_a_tenth_of_headroom() {
    check_preflight(Some(110), Some(1), 100, Preflight::Go);
    check_preflight(Some(109), Some(1), 100, Preflight::WaitForTokens);
    check_preflight(Some(110), Some(0), 100, Preflight::WaitForRequests);
    check_preflight(Some(0), Some(0), 1, Preflight::WaitForBoth);
    check_preflight(None, None, u64::MAX, Preflight::Go);
    check_preflight(Some(u64::MAX), None, u64::MAX, Preflight::WaitForTokens);
    check_preflight(Some(0), None, 0, Preflight::Go);
}

#[test]
fn a_refusal_halves_or_says_the_number() {
    let sent = Refused { items: 500, tokens: 10_000, bytes: 3_000_000 };
    let mut learned = Learned::default();
    assert!(learned.refused(sent, TooMuch::Items, None));
    assert_eq!(learned.limits().max_items, Some(250));
    assert!(learned.refused(Refused { items: 250, ..sent }, TooMuch::Items, parse_limit_hint("at most 96 allowed")));
    assert_eq!(learned.limits().max_items, Some(96));
    assert!(learned.refused(Refused { items: 96, ..sent }, TooMuch::Items, parse_limit_hint("at most 96 allowed")));
    assert_eq!(learned.limits().max_items, Some(48), "the provider counts otherwise");
    assert!(learned.refused(sent, TooMuch::Bytes, None));
    assert_eq!(learned.limits(), Limits { max_items: Some(48), max_tokens: None, max_bytes: Some(1_500_000) });
    assert!(!learned.refused(Refused { items: 1, ..sent }, TooMuch::Bytes, None));
}

#[test]
fn learning_an_unknown_limit_takes_a_logarithmic_number_of_refusals() {
    for limit in [1, 10, 25, 32, 64, 96, 2_048] {
        let mut learned = Learned::default();
        let mut refusals = 0;
        while learned.limits().max_items.unwrap_or(5_000) > limit {
            let items = learned.limits().max_items.unwrap_or(5_000);
            assert!(learned.refused(Refused { items, tokens: 1, bytes: 1 }, TooMuch::Items, None));
            refusals += 1;
        }
        assert!(refusals <= 13, "{refusals} refusals for {limit}");
    }
}

#[track_caller]
fn check_hint(text: &str, expected: Option<(TooMuch, u64)>) {
    assert_eq!(parse_limit_hint(text).map(|hint| (hint.of, hint.max)), expected, "{text}");
}

#[test]
fn limits_in_the_words_of_providers() {
    use TooMuch::{Bytes, Items, Tokens};
    check_hint("500 > 32 items: payload too large", Some((Items, 32)));
    check_hint("6000000 > 2000000 bytes: payload too large", Some((Bytes, 2_000_000)));
    check_hint("batch size 40 > maximum allowed batch size 32", Some((Items, 32)));
    check_hint("invalid request: 104 texts given, at most 96 allowed", Some((Items, 96)));
    check_hint("Expected an array with maximum length 2048, but got one of length 3000.", Some((Items, 2_048)));
    check_hint("batch size is invalid, it should not be larger than 10", Some((Items, 10)));
    check_hint("The batch size limit is 1,000. Yours is 1,500.", Some((Items, 1_000)));
    check_hint("got 500 inputs; the max is 25", Some((Items, 25)));
    check_hint("10", Some((Items, 10)));
    check_hint("max allowed tokens per batch is 120000, yours has 130000", Some((Tokens, 120_000)));
    check_hint("inputs must have less than 512 tokens. Given: 900", Some((Tokens, 512)));
    check_hint("body exceeds 2000000 bytes", Some((Bytes, 2_000_000)));
    check_hint("Payload Too Large", None);
    check_hint("too many: 5 of 7", None);
    check_hint("limit 0", None);
    check_hint("", None);
}

#[test]
fn an_item_over_the_limit_goes_alone() {
    let size = |tokens| ItemSize { tokens, bytes: 1 };
    let limits = Limits { max_tokens: Some(100), ..Limits::default() };
    assert_eq!(split(&[size(40), size(60), size(500), size(1)], &limits), vec![0..2, 2..3, 3..4]);
    assert!(split(&[], &limits).is_empty());
    assert_eq!(split(&[size(1), size(1)], &Limits { max_items: Some(0), ..limits }), vec![0..1, 1..2]);
}

proptest! {
    #[test]
    fn calls_cover_all_items_in_order_within_the_limits(
        sizes in prop::collection::vec((0_u64..500, 0_u64..500), 0..200),
        max_items in 1_usize..40, max_tokens in 1_u64..2_000, max_bytes in 1_u64..2_000,
    ) {
        let items: Vec<ItemSize> = sizes.iter().map(|(tokens, bytes)| ItemSize { tokens: *tokens, bytes: *bytes }).collect();
        let limits = Limits { max_items: Some(max_items), max_tokens: Some(max_tokens), max_bytes: Some(max_bytes) };
        let calls = split(&items, &limits);
        let covered: Vec<usize> = calls.iter().cloned().flatten().collect();
        prop_assert_eq!(covered, (0..items.len()).collect::<Vec<_>>());
        for call in calls {
            let part = &items[call];
            prop_assert!(!part.is_empty() && part.len() <= max_items);
            let (tokens, bytes) = part.iter().fold((0, 0), |(t, b), item| (t + item.tokens, b + item.bytes));
            prop_assert!(part.len() == 1 || (tokens <= max_tokens && bytes <= max_bytes));
        }
    }

    #[test]
    fn no_text_panics_the_hint(text in "\\PC{0,60}|[a-z0-9 ,._]{0,60}") {
        let _ = parse_limit_hint(&format!("maximum {text}"));
    }
}
