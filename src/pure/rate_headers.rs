//! Owns what providers say about their rate limits in an answer's headers, in every provider's dialect at once. Refuses
//! to know buckets and who asked.
//!
//! One reader for all providers and not one per provider: "OpenAI-compatible" hosts mix these dialects freely, and the
//! names do not collide. Every field stands alone; one that makes no sense is as good as absent.

use std::time::Duration;

use super::header_duration::{LONGEST, parse_http_date, parse_millis, parse_reset, parse_retry_after};
use super::time::Wall;

/// No pause is longer: a quota by the day is renewed within one. An operator ends it sooner by closing the breaker.
pub const LONGEST_PAUSE: Duration = LONGEST;

/// The pause for a wait of [`LONGEST_PAUSE`] or more, which is a spent budget or no sense at all, and no throttle: one call an
/// hour finds out whether things changed.
const LOOK_AGAIN: Duration = Duration::from_secs(3_600);

/// How long to leave an upstream alone that asks for this wait: as long as it says, if that can be meant.
pub fn pause_for(wait: Duration) -> Duration {
    if wait < LONGEST_PAUSE { wait } else { LOOK_AGAIN }
}

/// Limits told apart in one answer. Providers state a handful; looking each up among thousands would cost more than the
/// answer.
const MOST_LIMITS: usize = 32;

/// What a limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// Calls.
    Requests,
    /// Tokens.
    Tokens,
}

/// The provider's word on its limits. `None`: not said, or not understood.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RateHeaders {
    /// Tokens that may still be sent before `reset_tokens`.
    pub remaining_tokens: Option<u64>,
    /// Calls that may still be made before `reset_requests`.
    pub remaining_requests: Option<u64>,
    /// Tokens per minute; `None` also where the limit is stated for another span.
    pub limit_tokens: Option<u64>,
    /// Calls per minute; `None` also where the limit is stated for another span.
    pub limit_requests: Option<u64>,
    /// Time until the token limit is whole again.
    pub reset_tokens: Option<Duration>,
    /// Time until the request limit is whole again.
    pub reset_requests: Option<Duration>,
    /// The wait asked for by `retry-after-ms` or `Retry-After`.
    pub retry_after: Option<Duration>,
    /// Which limit a 429 is about, where the provider says so.
    pub tripped: Option<Axis>,
    /// Azure: how often the tripped limit is refilled.
    pub renewal: Option<Duration>,
}

/// The span that a limit is stated for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Span {
    Minute,
    Other,
}

/// One limit among those of an answer: providers may state several of one axis (a minute's, a day's, a project's).
#[derive(Debug)]
struct Bucket {
    axis: Axis,
    variant: String,
    span: Span,
    limit: Option<u64>,
    remaining: Option<u64>,
    reset: Option<String>,
    unknown_sentinel: bool,
}

#[derive(Debug, Clone, Copy)]
enum Field {
    Limit,
    Remaining,
    Reset,
}

/// Everything found before it is folded into [`RateHeaders`].
#[derive(Debug, Default)]
struct Found {
    buckets: Vec<Bucket>,
    retry_after: Option<String>,
    retry_after_ms: Option<String>,
    date: Option<Wall>,
    tripped: Option<Axis>,
    renewal_requests: Option<Duration>,
    renewal_tokens: Option<Duration>,
    minute_policies: Vec<String>,
}

impl RateHeaders {
    /// Reads an answer's headers; names in any case. `now` stands in where the answer has no `Date`.
    pub fn read<'a>(headers: impl IntoIterator<Item = (&'a str, &'a str)>, now: Wall) -> RateHeaders {
        let mut found = Found::default();
        for (name, value) in headers {
            found.take(&name.to_ascii_lowercase(), value.trim());
        }
        found.fold(now)
    }

    /// Whether anything at all was said.
    pub fn is_empty(&self) -> bool {
        *self == RateHeaders::default()
    }
}

impl Found {
    fn take(&mut self, name: &str, value: &str) {
        match name {
            "date" => self.date = parse_http_date(value),
            "retry-after" => self.retry_after = Some(value.to_owned()),
            "retry-after-ms" => self.retry_after_ms = Some(value.to_owned()),
            "x-ratelimit-type" => self.tripped = axis_of_type(value),
            "x-ratelimit-renewalperiod-requests" => self.renewal_requests = renewal(value),
            "x-ratelimit-renewalperiod-tokens" => self.renewal_tokens = renewal(value),
            "ratelimit" => self.take_combined(value),
            "ratelimit-policy" => self.take_policy(value),
            "x-trial-endpoint-call-limit" => self.put(Axis::Requests, "trial", Span::Other, Field::Limit, value),
            "x-trial-endpoint-call-remaining" => {
                self.put(Axis::Requests, "trial", Span::Other, Field::Remaining, value)
            }
            _ => self.take_named(name, value),
        }
    }

    fn take_named(&mut self, name: &str, value: &str) {
        if let Some(rest) = name.strip_prefix("x-ratelimit-") {
            match rest.split_once('-') {
                None => self.put_bare(rest, Axis::Requests, value),
                Some((field, variant)) => {
                    if let (Some(field), Some((axis, span))) = (field_of(field), axis_of_variant(variant)) {
                        self.put(axis, variant, span, field, value);
                    }
                }
            }
        } else if let Some(rest) = name.strip_prefix("anthropic-ratelimit-") {
            if let Some((variant, field)) = rest.rsplit_once('-')
                && let (Some(field), Some((axis, span))) = (field_of(field), axis_of_variant(variant))
            {
                self.put(axis, variant, span, field, value);
            }
        } else if let Some(rest) = name.strip_prefix("ratelimitbysize-") {
            self.put_bare(rest, Axis::Tokens, value);
        } else if let Some(rest) = name.strip_prefix("ratelimit-") {
            self.put_bare(rest, Axis::Requests, value);
        }
    }

    /// A limit whose name does not tell its span.
    fn put_bare(&mut self, field: &str, axis: Axis, value: &str) {
        if let Some(field) = field_of(field) {
            self.put(axis, "", Span::Other, field, value);
        }
    }

    fn put(&mut self, axis: Axis, variant: &str, span: Span, field: Field, value: &str) {
        let Some(bucket) = self.bucket(axis, variant, span) else { return };
        match field {
            Field::Limit => bucket.limit = count(value).filter(|limit| *limit > 0),
            Field::Remaining => bucket.remaining = count(value),
            Field::Reset => bucket.reset = Some(value.to_owned()),
        }
        bucket.unknown_sentinel |= value == "-1";
    }

    /// The limit of that name; `None` for one more than can be told apart.
    fn bucket(&mut self, axis: Axis, variant: &str, span: Span) -> Option<&mut Bucket> {
        let position = self.buckets.iter().position(|bucket| bucket.axis == axis && bucket.variant == variant);
        let position = position.unwrap_or(self.buckets.len());
        if position == self.buckets.len() && position < MOST_LIMITS {
            let (limit, remaining, reset) = (None, None, None);
            let variant = variant.to_owned();
            self.buckets.push(Bucket { axis, variant, span, limit, remaining, reset, unknown_sentinel: false });
        }
        self.buckets.get_mut(position)
    }

    /// The IETF drafts: `limit=100, remaining=50, reset=5`, and `"burst";r=50;t=30, "daily";r=900;t=60`.
    fn take_combined(&mut self, value: &str) {
        for member in split_outside_quotes(value, ',') {
            let mut parts = split_outside_quotes(member, ';').into_iter();
            let head = parts.next().unwrap_or_default();
            if let Some((key, value)) = head.split_once('=') {
                self.put_bare(key.trim(), Axis::Requests, value.trim());
                continue;
            }
            let policy = head.trim_matches('"');
            for (key, value) in parts.filter_map(|part| part.split_once('=')) {
                match key.trim() {
                    "r" => self.put(Axis::Requests, policy, Span::Other, Field::Remaining, value.trim()),
                    "t" => self.put(Axis::Requests, policy, Span::Other, Field::Reset, value.trim()),
                    _ => {}
                }
            }
        }
    }

    /// `"burst";q=100;w=60`: a quota, if it counts requests over a minute, is a limit that can be compared with ours.
    fn take_policy(&mut self, value: &str) {
        for member in split_outside_quotes(value, ',') {
            let parts: Vec<&str> = split_outside_quotes(member, ';');
            let head = parts.first().copied().unwrap_or_default();
            let of = |wanted: &str| {
                parts.iter().skip(1).filter_map(|part| part.split_once('=')).find(|(key, _)| key.trim() == wanted)
            };
            let counts_requests = of("qu").is_none_or(|(_, unit)| unit.trim().trim_matches('"') == "requests");
            if !counts_requests || of("w").is_none_or(|(_, window)| window.trim() != "60") {
                continue;
            }
            // Up to draft -06 the quota stood where the name stands now, and spoke of the bare RateLimit-Limit.
            let named = head.starts_with('"');
            let policy = if named { head.trim_matches('"') } else { "" };
            if self.minute_policies.len() < MOST_LIMITS {
                self.minute_policies.push(policy.to_owned());
            }
            if let (true, Some((_, quota))) = (named, of("q")) {
                self.put(Axis::Requests, policy, Span::Other, Field::Limit, quota.trim());
            }
        }
    }

    fn fold(mut self, now: Wall) -> RateHeaders {
        let now = self.date.unwrap_or(now);
        for bucket in &mut self.buckets {
            if bucket.axis == Axis::Requests && self.minute_policies.contains(&bucket.variant) {
                bucket.span = Span::Minute;
            }
        }
        let azure = self.renewal_requests.is_some() || self.renewal_tokens.is_some();
        let (remaining_tokens, reset_tokens, limit_tokens) = self.fold_axis(Axis::Tokens, self.renewal_tokens, now);
        let (remaining_requests, reset_requests, limit_requests) =
            self.fold_axis(Axis::Requests, self.renewal_requests, now);
        let seconds = self.retry_after.as_deref().and_then(|text| parse_retry_after(text, now));
        let millis = self.retry_after_ms.as_deref().and_then(parse_millis);
        // Azure sends both and means the longer; elsewhere the finer one is the more exact word.
        let retry_after = if azure { millis.max(seconds) } else { millis.or(seconds) };
        let renewal = match self.tripped {
            Some(Axis::Requests) => self.renewal_requests,
            Some(Axis::Tokens) => self.renewal_tokens,
            None => self.renewal_tokens.max(self.renewal_requests),
        };
        RateHeaders {
            remaining_tokens,
            remaining_requests,
            limit_tokens,
            limit_requests,
            reset_tokens,
            reset_requests,
            retry_after,
            tripped: self.tripped,
            renewal,
        }
    }

    /// The scarcest limit of an axis with its own reset (the later one of equals), and the smallest minute's limit.
    fn fold_axis(
        &self,
        axis: Axis,
        renewal: Option<Duration>,
        now: Wall,
    ) -> (Option<u64>, Option<Duration>, Option<u64>) {
        let per_minute = renewal.is_none_or(|period| period == Duration::from_secs(60));
        let mut scarcest: Option<(u64, Option<Duration>)> = None;
        let mut limit: Option<u64> = None;
        for bucket in self.buckets.iter().filter(|bucket| bucket.axis == axis) {
            // Where -1 means unknown, a reset of 0 does too.
            let zero_is_unknown = renewal.is_some() || bucket.unknown_sentinel;
            let reset = bucket
                .reset
                .as_deref()
                .and_then(|text| parse_reset(text, now))
                .filter(|reset| !(zero_is_unknown && reset.is_zero()));
            let remaining = bucket.remaining.unwrap_or(u64::MAX);
            scarcest = match scarcest {
                Some((least, latest)) if least < remaining => Some((least, latest)),
                Some((least, latest)) if least == remaining => Some((least, latest.max(reset))),
                Some(_) | None => Some((remaining, reset)),
            };
            if let (Span::Minute, true, Some(stated)) = (bucket.span, per_minute, bucket.limit) {
                limit = Some(limit.map_or(stated, |limit| limit.min(stated)));
            }
        }
        let (remaining, reset) = scarcest.map_or((None, None), |(remaining, reset)| (Some(remaining), reset));
        (remaining.filter(|remaining| *remaining != u64::MAX), reset, limit)
    }
}

/// How long to leave an upstream alone after a 429, at most [`LONGEST_PAUSE`]. `body_hint` is the wait that the error's
/// text suggests. `None`: the provider gave no usable hint, so the caller's own bounded back-off decides.
pub fn wait_after_429(headers: &RateHeaders, body_hint: Option<Duration>) -> Option<Duration> {
    let exhausted = exhausted_reset(headers);
    let stated = match headers.renewal {
        Some(renewal) => {
            let stated = headers.retry_after.max(exhausted);
            let tokens = headers.tripped == Some(Axis::Tokens) || headers.remaining_tokens == Some(0);
            let tiny = stated.is_none_or(|wait| wait <= Duration::from_secs(1));
            // Obeyed as it stands, "1 s" on an empty token bucket that is refilled once a minute means 60 more refusals.
            if tokens && tiny { stated.max(Some(renewal / 4)) } else { stated }
        }
        None => nonzero(headers.retry_after).or(exhausted),
    };
    nonzero(stated).or(nonzero(body_hint)).map(pause_for)
}

/// The reset of the limit that is used up: the later one if both are. A limit with calls left is not the culprit, and
/// its tiny reset must not be taken for the wait; one that does not say what is left may be.
fn exhausted_reset(headers: &RateHeaders) -> Option<Duration> {
    let axes = [
        (Axis::Requests, headers.remaining_requests, headers.reset_requests),
        (Axis::Tokens, headers.remaining_tokens, headers.reset_tokens),
    ];
    let sure = axes.iter().filter(|(axis, left, _)| *left == Some(0) || headers.tripped == Some(*axis));
    let sure = sure.filter_map(|(_, _, reset)| *reset).max();
    let maybe = || axes.iter().filter(|(_, left, _)| left.is_none()).filter_map(|(_, _, reset)| *reset).max();
    nonzero(sure).or_else(maybe)
}

fn nonzero(wait: Option<Duration>) -> Option<Duration> {
    wait.filter(|wait| !wait.is_zero())
}

fn field_of(name: &str) -> Option<Field> {
    match name {
        "limit" => Some(Field::Limit),
        "remaining" => Some(Field::Remaining),
        "reset" => Some(Field::Reset),
        _ => None,
    }
}

/// `tokens`, `requests-day`, `req-minute`, `project-tokens`, `tokens_usage_based`, `input-tokens` …
fn axis_of_variant(variant: &str) -> Option<(Axis, Span)> {
    let (base, span) = match variant.rsplit_once('-') {
        Some((base, "minute")) => (base, Span::Minute),
        Some((base, "day" | "hour" | "month" | "second")) => (base, Span::Other),
        Some(_) | None => (variant, Span::Minute),
    };
    match base {
        "requests" | "req" | "project-requests" => Some((Axis::Requests, span)),
        "tokens" | "tokens_usage_based" | "project-tokens" | "input-tokens" => Some((Axis::Tokens, span)),
        // A part of all tokens, counted apart: what is left of it says nothing about texts to embed, yet 0 stops chat.
        "output-tokens" => Some((Axis::Tokens, Span::Other)),
        _ => None,
    }
}

fn axis_of_type(value: &str) -> Option<Axis> {
    if value.eq_ignore_ascii_case("tokens") {
        Some(Axis::Tokens)
    } else if value.eq_ignore_ascii_case("requests") {
        Some(Axis::Requests)
    } else {
        None
    }
}

fn renewal(value: &str) -> Option<Duration> {
    value.parse::<u32>().ok().filter(|seconds| (1..=86_400).contains(seconds)).map(|s| Duration::from_secs(s.into()))
}

/// A count; −1 is unknown, less is nothing left, a fraction is cut.
fn count(value: &str) -> Option<u64> {
    let whole = match value.split_once('.') {
        Some((whole, fraction)) if fraction.bytes().all(|b| b.is_ascii_digit()) => whole,
        Some(_) => return None,
        None => value,
    };
    match whole.parse::<i128>().ok()? {
        -1 => None,
        negative if negative < 0 => Some(0),
        number => u64::try_from(number).ok(),
    }
}

fn split_outside_quotes(text: &str, separator: char) -> Vec<&str> {
    let mut quoted = false;
    text.split(move |c: char| {
        quoted ^= c == '"';
        c == separator && !quoted
    })
    .map(str::trim)
    .collect()
}

#[cfg(test)]
mod tests;
