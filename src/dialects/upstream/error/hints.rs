//! What the sentences of error messages give away: a batch that is too large, its limit, and how long to wait.
//!
//! Providers have no common field for these, and their words change; a hint that is not found costs a guess, one that
//! is wrong costs a call, so nothing relies on them.

use std::time::Duration;

/// Longest wait that a sentence is believed, one week.
const MAX_WAIT: Duration = Duration::from_secs(7 * 24 * 3600);

/// Words about the length of one input. It is the request's own fault: smaller calls would meet it again.
const ONE_INPUT: [&str; 11] = [
    "context length",
    "context window",
    "input length",
    "sequence length",
    "per input",
    "each input",
    "must have less than",
    "text at index",
    "example at index",
    "input is too long",
    "exceeds context",
];

/// Whether lower-case `text` or `code` refuses the length of one input.
pub(super) fn one_too_long(text: &str, code: Option<&str>) -> bool {
    const CODES: [&str; 3] = ["context_length_exceeded", "string_above_max_length", "too_long"];
    code.is_some_and(|code| CODES.contains(&code))
        || text.contains("too long")
        || ONE_INPUT.iter().any(|words| text.contains(words))
}

/// Whether lower-case `text` refuses the size of a whole call, not the length of one input.
pub(super) fn batch_too_large(text: &str) -> bool {
    const TOO_MUCH: [&str; 14] = [
        "too many",
        "at most",
        "maximum",
        "max ",
        "exceed",
        "limit",
        "larger than",
        "more than",
        "too large",
        "too long",
        "greater than",
        "up to",
        "less than or equal",
        "fewer",
    ];
    const WHOLE: [&str; 19] = [
        "batch",
        "inputs",
        "texts",
        "documents",
        "elements",
        "items",
        "array",
        "list ",
        "per request",
        "in request",
        "in the request",
        "in your request",
        "this request",
        "total tokens",
        "total number of tokens",
        "request body",
        "request size",
        "payload",
        "body too large",
    ];
    let any = |words: &[&str]| words.iter().any(|word| text.contains(word));
    !any(&ONE_INPUT) && any(&TOO_MUCH) && any(&WHOLE)
}

/// The limit that a refusal names: the first number that follows the words for a limit.
pub(super) fn limit(text: &str) -> Option<u64> {
    const NAMES: [&str; 11] = [
        "maximum allowed",
        "at most",
        "no more than",
        "less than or equal to",
        "up to",
        "maximum",
        "max",
        "limit",
        "allowed",
        "larger than",
        "exceeds",
    ];
    // What follows these is what was sent, not what may be.
    const SENT: [&str; 8] = ["but", "got", "your", "received", "requested", "given", "used", ". "];
    let lower = text.to_ascii_lowercase();
    NAMES.iter().find_map(|name| {
        lower.match_indices(name).find_map(|(at, _)| {
            let after = lower.get(at + name.len()..)?;
            let end = SENT.iter().filter_map(|word| after.find(word)).min().unwrap_or(after.len());
            first_number(after.get(..end.min(80))?)
        })
    })
}

/// The first whole number of `text`, thousands separated by commas or not; not a part of a name such as `v3`.
fn first_number(text: &str) -> Option<u64> {
    let bytes = text.as_bytes();
    let start = (0..bytes.len()).find(|&at| {
        let fresh = at == 0 || !(bytes[at - 1].is_ascii_alphanumeric() || matches!(bytes[at - 1], b'-' | b'.' | b'_'));
        fresh && bytes[at].is_ascii_digit()
    })?;
    let mut digits = String::new();
    for (at, &byte) in bytes.iter().enumerate().skip(start) {
        match byte {
            b'0'..=b'9' => digits.push(char::from(byte)),
            b',' | b'_' if bytes.get(at + 1).is_some_and(u8::is_ascii_digit) => {}
            _ => break,
        }
    }
    digits.parse().ok().filter(|&limit| limit > 0)
}

/// The wait that a sentence such as "try again in 1.2s" or "retry after 34 seconds" suggests.
pub(super) fn wait(text: &str) -> Option<Duration> {
    const NAMES: [&str; 6] = ["try again in", "retry after", "retry in", "try again after", "wait for", "wait"];
    let lower = text.to_ascii_lowercase();
    NAMES.iter().find_map(|name| {
        let at = lower.find(name)? + name.len();
        span(lower.get(at..)?)
    })
}

/// The span at the start of `text`: numbers with units one after another (`6m0s`, `1.5 seconds`), or seconds.
fn span(text: &str) -> Option<Duration> {
    let mut seconds = 0.0;
    let mut found = false;
    let mut rest = text.trim_start_matches([' ', ':']);
    loop {
        let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
        let (number, after) = rest.split_at(end);
        let Ok(value) = number.trim_end_matches('.').parse::<f64>() else { break };
        let after = after.trim_start();
        let end = after.find(|c: char| !(c.is_alphabetic() || c == 'µ')).unwrap_or(after.len());
        let (unit, next) = after.split_at(end);
        let factor = match unit {
            "ms" | "milliseconds" | "millisecond" => 0.001,
            "us" | "µs" | "μs" | "ns" => 0.000_001,
            "s" | "sec" | "secs" | "second" | "seconds" => 1.0,
            "m" | "min" | "mins" | "minute" | "minutes" => 60.0,
            "h" | "hr" | "hour" | "hours" => 3600.0,
            "d" | "day" | "days" => 86_400.0,
            // A bare number is seconds, but only where nothing else follows that might be its unit.
            "" if !found => return Some(capped(value)),
            _ => break,
        };
        seconds += value * factor;
        found = true;
        rest = next.trim_start();
    }
    found.then(|| capped(seconds))
}

fn capped(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).map_or(MAX_WAIT, |wait| wait.min(MAX_WAIT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, too_large: bool, expected: Option<u64>) {
        assert_eq!(batch_too_large(&text.to_ascii_lowercase()), too_large, "{text}");
        if too_large {
            assert_eq!(limit(text), expected, "{text}");
        }
    }

    #[test]
    fn refusals_of_a_whole_call_name_their_limit() {
        check("batch size 40 > maximum allowed batch size 32", true, Some(32));
        check("invalid request: 104 texts given, at most 96 allowed", true, Some(96));
        check("total number of texts must be at most 96 - received 97", true, Some(96));
        check("Requested 301,000 tokens, max 300,000 tokens per request", true, Some(300_000));
        check("The batch size limit is 1000. Your batch size is 1001.", true, Some(1000));
        check(
            "The max allowed tokens per submitted batch is 120000. Your batch has 130000 tokens",
            true,
            Some(120_000),
        );
        check("Expected an array with maximum length 2048, but got an array with length 3000", true, Some(2048));
        check("Too many tokens in batch. Max is 16384 got 20000", true, Some(16_384));
        check("Too many inputs in request, split into more batches.", true, None);
        check("too many inputs", true, None);
        check("the model jina-embeddings-v4 takes a list of up to 512 elements", true, Some(512));
    }

    #[test]
    fn one_long_input_is_not_a_large_batch() {
        check("This model's maximum context length is 8192 tokens, however you requested 9001 tokens", false, None);
        check("`inputs` must have less than 512 tokens. Given: 600", false, None);
        check("The example at index 0 in your batch has too many tokens. Please lower the number", false, None);
        check("input length exceeds context", false, None);
        check("the input length exceeds the context length", false, None);
        check("Invalid value for encoding_format", false, None);
        check("model not found", false, None);
    }

    #[test]
    fn waits_are_read_in_every_notation() {
        let ms = |text: &str| wait(text).map(|wait| wait.as_millis());
        assert_eq!(ms("Please try again in 666ms. Contact us"), Some(666));
        assert_eq!(ms("Please try again in 1.2s."), Some(1200));
        assert_eq!(ms("try again in 6m0s"), Some(360_000));
        assert_eq!(ms("Try again in 1h2m3.5s"), Some(3_723_500));
        assert_eq!(ms("Please retry after 34 seconds."), Some(34_000));
        assert_eq!(ms("retry after 1 minute"), Some(60_000));
        assert_eq!(ms("Retry after: 12"), Some(12_000));
        assert_eq!(ms("retry after 99999999999999999999 seconds"), Some(604_800_000));
        assert_eq!(ms("try again in a moment"), None);
        assert_eq!(ms("try again later"), None);
        assert_eq!(ms(""), None);
    }
}
