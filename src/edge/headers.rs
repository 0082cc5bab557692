//! The headers of an answer that tell of its journey. Owns their names and how values are written; refuses to know where
//! the facts come from.
//!
//! Some twenty of them go out with each answer. So names are read when the program is built or a configuration is loaded,
//! and the values of one answer share one buffer: formatting each into a string of its own took three times as long.

use std::time::Duration;

use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};
use bytes::BytesMut;

use crate::pure::digits;
use crate::pure::money::Money;
use crate::telemetry::labels::TraceId;

/// Names of headers that are the same whatever the configuration says.
pub mod names {
    use super::HeaderName;

    macro_rules! names {
        ($($name:ident = $text:literal)*) => {
            $(
                #[doc = concat!("`", $text, "`")]
                pub const $name: HeaderName = HeaderName::from_static($text);
            )*
        };
    }

    names! {
        ACCEL_BUFFERING = "x-accel-buffering"
        API_KEY = "api-key"
        ATTEMPTS = "x-gateway-attempts"
        CACHE_HITS = "x-cache-hits"
        CACHE_RESULT = "x-cache"
        CHAT_MODEL = "x-gateway-model"
        COLLECTION = "x-collection"
        LATENCY = "x-gateway-latency-ms"
        MODEL = "x-embedding-model"
        PATIENCE = "x-stainless-timeout"
        PLAIN_REQUEST_ID = "request-id"
        READ_PATIENCE = "x-stainless-read-timeout"
        REQUEST_ID = "x-request-id"
        SERVER_TIMING = "server-timing"
        SPACE = "x-embedding-space"
        TRACE_ID = "x-trace-id"
        TRACE_PARENT = "traceparent"
        TRACE_STATE = "tracestate"
        TRAFFIC_CLASS = "x-traffic-class"
        UPSTREAM = "x-gateway-upstream"
        X_API_KEY = "x-api-key"
        LIMIT_REQUESTS = "x-ratelimit-limit-requests"
        LIMIT_TOKENS = "x-ratelimit-limit-tokens"
        REMAINING_REQUESTS = "x-ratelimit-remaining-requests"
        REMAINING_TOKENS = "x-ratelimit-remaining-tokens"
        RESET_REQUESTS = "x-ratelimit-reset-requests"
        RESET_TOKENS = "x-ratelimit-reset-tokens"
    }
}

/// Names of headers with amounts of money, which say the currency.
#[derive(Debug, Clone)]
pub struct MoneyNames {
    /// What the request cost.
    pub cost: HeaderName,
    /// What the tenant may still spend.
    pub remaining: HeaderName,
}

impl MoneyNames {
    /// Those of a currency of the configuration, which has three letters.
    pub fn new(currency: &str) -> MoneyNames {
        let name = |text: &'static str| {
            let named = HeaderName::try_from(format!("{text}-{}", currency.to_ascii_lowercase()));
            named.unwrap_or(HeaderName::from_static(text))
        };
        MoneyNames { cost: name("x-gateway-cost"), remaining: name("x-tenant-remaining-budget") }
    }
}

/// Bytes of all values that are written for an answer, as a rule.
const LIKELY_TEXT: usize = 384;

/// Headers that an answer has, as a rule.
const LIKELY_NUMBER: usize = 24;

/// Adds headers to an answer. What is no valid value is left out.
pub struct Writer<'a> {
    headers: &'a mut HeaderMap,
    text: BytesMut,
}

impl<'a> Writer<'a> {
    /// Adds to `headers`.
    pub fn new(headers: &'a mut HeaderMap) -> Writer<'a> {
        headers.reserve(LIKELY_NUMBER);
        Writer { headers, text: BytesMut::with_capacity(LIKELY_TEXT) }
    }

    /// One with a value that is there already.
    pub fn value(&mut self, name: HeaderName, value: HeaderValue) {
        drop(self.headers.insert(name, value));
    }

    /// One of few words.
    pub fn word(&mut self, name: HeaderName, word: &'static str) {
        self.value(name, HeaderValue::from_static(word));
    }

    /// One whose value is made of `parts`, one behind the other.
    pub fn text(&mut self, name: HeaderName, parts: &[&str]) {
        parts.iter().for_each(|part| self.text.extend_from_slice(part.as_bytes()));
        if let Ok(value) = HeaderValue::from_maybe_shared(self.text.split().freeze()) {
            self.value(name, value);
        }
    }

    /// A whole number.
    pub fn number(&mut self, name: HeaderName, number: u64) {
        self.text(name, &[digits::decimal(number).as_str()]);
    }

    /// An amount.
    pub fn money(&mut self, name: HeaderName, amount: Money) {
        amount.with_text(|text| self.text(name, &[text]));
    }

    /// A trace's id.
    pub fn trace(&mut self, id: TraceId) {
        self.text(names::TRACE_ID, &[digits::hex(id.0).as_str()]);
    }

    /// Where the time went: as whole milliseconds, and in the form that browsers draw.
    pub fn timing(&mut self, total: Duration, queue: Duration, upstream: Duration) {
        let own = total.saturating_sub(upstream).saturating_sub(queue);
        self.number(names::LATENCY, u64::try_from(total.as_millis()).unwrap_or(u64::MAX));
        let [own, queue, upstream] = [own, queue, upstream].map(digits::millis);
        let parts =
            ["gateway;dur=", own.as_str(), ", queue;dur=", queue.as_str(), ", upstream;dur=", upstream.as_str()];
        self.text(names::SERVER_TIMING, &parts);
    }
}
