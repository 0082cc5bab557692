//! Owns how a client's inputs are cut into upstream calls: what a provider's quota allows, what its limits per call allow,
//! and what its refusals taught. Refuses to know clocks, queues and texts.

use std::ops::Range;

/// The last call of a batch: what its items really cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// Tokens of the whole call.
    pub tokens: u64,
    /// Its input items.
    pub items: usize,
}

/// Items of the next call: 80 % of the tokens that the provider says are left, by the cost of the last call's items, at
/// most `batch_size` and at least 1. With either unknown, `batch_size` as it is.
pub fn next_batch(remaining_tokens: Option<u64>, last: Option<Chunk>, batch_size: usize) -> usize {
    let batch_size = batch_size.max(1);
    let (Some(remaining), Some(last)) = (remaining_tokens, last) else { return batch_size };
    if last.tokens == 0 || last.items == 0 {
        return batch_size;
    }
    // remaining × 0.8 / (tokens / items), in whole numbers: 0.8 and the quotient have no exact binary fraction.
    let fits = (u128::from(remaining) * 8).saturating_mul(last.items as u128) / (10 * u128::from(last.tokens));
    usize::try_from(fits).unwrap_or(usize::MAX).clamp(1, batch_size)
}

/// Whether a call may go by the provider's own count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preflight {
    /// It may; unknown counts never hold anything back.
    Go,
    /// Wait for the token reset.
    WaitForTokens,
    /// Wait for the request reset.
    WaitForRequests,
    /// Wait for the later of the two.
    WaitForBoth,
}

/// Checks an estimate, with a tenth of headroom, against what the provider says is left.
pub fn preflight(remaining_tokens: Option<u64>, remaining_requests: Option<u64>, estimate: u64) -> Preflight {
    let tokens = remaining_tokens.is_some_and(|left| u128::from(left) * 10 < u128::from(estimate) * 11);
    match (tokens, remaining_requests == Some(0)) {
        (false, false) => Preflight::Go,
        (true, false) => Preflight::WaitForTokens,
        (false, true) => Preflight::WaitForRequests,
        (true, true) => Preflight::WaitForBoth,
    }
}

/// Limits of one upstream call; `None`: none known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Input items.
    pub max_items: Option<usize>,
    /// Tokens of all items together.
    pub max_tokens: Option<u64>,
    /// Bytes of all items together as they are written into the body.
    pub max_bytes: Option<u64>,
}

impl Limits {
    /// The tighter of two, limit by limit.
    pub fn tighter(self, other: Limits) -> Limits {
        Limits {
            max_items: tighter(self.max_items, other.max_items),
            max_tokens: tighter(self.max_tokens, other.max_tokens),
            max_bytes: tighter(self.max_bytes, other.max_bytes),
        }
    }
}

fn tighter<N: Ord>(one: Option<N>, other: Option<N>) -> Option<N> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// The size of one input item.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ItemSize {
    /// Its tokens, estimated.
    pub tokens: u64,
    /// Its bytes in the body, quotes and separator included.
    pub bytes: u64,
}

/// Cuts items into consecutive calls within `limits`. An item that alone exceeds a limit is a call of its own: whether it
/// really is too long is for the provider to say, and its neighbours shall not suffer.
pub fn split(items: &[ItemSize], limits: &Limits) -> Vec<Range<usize>> {
    let mut calls = Vec::new();
    let mut start = 0;
    while start < items.len() {
        let end = start + front(items.get(start..).unwrap_or_default(), limits);
        calls.push(start..end);
        start = end;
    }
    calls
}

/// How many of the first items make up the next call within `limits`: none only if there is no item.
pub fn front(items: &[ItemSize], limits: &Limits) -> usize {
    let max_items = limits.max_items.unwrap_or(usize::MAX).max(1);
    let max_tokens = limits.max_tokens.unwrap_or(u64::MAX);
    let max_bytes = limits.max_bytes.unwrap_or(u64::MAX);
    let mut sum = ItemSize::default();
    for (taken, item) in items.iter().enumerate() {
        sum = ItemSize { tokens: sum.tokens.saturating_add(item.tokens), bytes: sum.bytes.saturating_add(item.bytes) };
        let full = taken >= max_items || sum.tokens > max_tokens || sum.bytes > max_bytes;
        if full && taken > 0 {
            return taken;
        }
    }
    items.len()
}

/// What an upstream found too much of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TooMuch {
    /// Input items; also for a refusal that names no kind.
    Items,
    /// Tokens.
    Tokens,
    /// Bytes of the body.
    Bytes,
}

/// A limit named in a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitHint {
    /// Of what.
    pub of: TooMuch,
    /// How many are allowed.
    pub max: u64,
}

/// What a refused call carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// Input items.
    pub items: usize,
    /// Tokens, estimated.
    pub tokens: u64,
    /// Body bytes.
    pub bytes: u64,
}

/// Limits learned from an upstream's refusals. Kept until the upstream is configured anew: forgetting one costs a refused
/// call each time it is learned again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Learned {
    limits: Limits,
}

impl Learned {
    /// The limits learned so far.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Learns from a refusal: the limit it names if that is below what was sent, otherwise half of what was sent. Returns
    /// whether a smaller call can be tried; `false` for a single item, whose refusal is the client's answer.
    pub fn refused(&mut self, sent: Refused, kind: TooMuch, hint: Option<LimitHint>) -> bool {
        if sent.items <= 1 {
            return false;
        }
        let kind = hint.map_or(kind, |hint| hint.of);
        let amount = match kind {
            TooMuch::Items => sent.items as u64,
            TooMuch::Tokens => sent.tokens,
            TooMuch::Bytes => sent.bytes,
        };
        // A named limit at or above what we counted means that the provider counts otherwise: only halving is safe then.
        let named = hint.map(|hint| hint.max).filter(|max| (1..amount).contains(max));
        let max = named.unwrap_or(amount / 2).max(1);
        let learned = match kind {
            TooMuch::Items => {
                Limits { max_items: Some(usize::try_from(max).unwrap_or(usize::MAX)), ..Limits::default() }
            }
            TooMuch::Tokens => Limits { max_tokens: Some(max), ..Limits::default() },
            TooMuch::Bytes => Limits { max_bytes: Some(max), ..Limits::default() },
        };
        self.limits = self.limits.tighter(learned);
        true
    }
}

/// Words that stand before the number which is the limit.
const BEFORE: [&str; 14] = [
    "maximum allowed",
    "max allowed",
    "at most",
    "no more than",
    "not be larger than",
    "larger than",
    "more than",
    "less than",
    "up to",
    "maximum",
    "limit",
    "exceeds",
    "max",
    // "500 > 32 items"
    " > ",
];

/// Reads the limit that a refusal names ("batch size 40 > maximum allowed batch size 32", "at most 96 allowed", "array with
/// maximum length 2048"); `None` if none can be told from the other numbers of the text.
pub fn parse_limit_hint(text: &str) -> Option<LimitHint> {
    let lower = text.to_ascii_lowercase();
    let numbers: Vec<(usize, u64)> = numbers_of(&lower);
    let max = BEFORE.iter().find_map(|lead| {
        let after = lower.find(lead)? + lead.len();
        // The limit follows its lead closely; what comes a sentence later is another number.
        let near = |(start, _): &&(usize, u64)| *start >= after && *start - after <= 40;
        numbers.iter().find(near).copied()
    });
    let (start, max) = match (max, numbers.as_slice()) {
        (Some(named), _) => named,
        (None, [only]) => *only,
        (None, _) => return None,
    };
    // The word right after the number says what it counts, better than any word elsewhere.
    let counted = lower.get(start..).and_then(|rest| rest.split_whitespace().nth(1)).unwrap_or_default();
    let counts_items = ["item", "input", "text", "document", "element"].iter().any(|word| counted.starts_with(word));
    let of = if counts_items {
        TooMuch::Items
    } else if lower.contains("token") {
        TooMuch::Tokens
    } else if lower.contains("byte") || lower.contains("payload") || lower.contains("body") {
        TooMuch::Bytes
    } else {
        TooMuch::Items
    };
    (max > 0).then_some(LimitHint { of, max })
}

/// Whole numbers of a text that stand alone, with the position where each starts; thousands may be set off by commas.
fn numbers_of(text: &str) -> Vec<(usize, u64)> {
    let mut numbers = Vec::new();
    let mut start = 0;
    for piece in text.split_inclusive(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, ',' | '_' | '.'))) {
        let word = piece.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        let plain: String = word.chars().filter(|c| !matches!(c, ',' | '_')).collect();
        if plain.bytes().all(|b| b.is_ascii_digit())
            && let Ok(number) = plain.parse()
        {
            numbers.push((start, number));
        }
        start += piece.len();
    }
    numbers
}

#[cfg(test)]
mod tests;
