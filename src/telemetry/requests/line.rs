//! A request's line in the log, in JSON. Written by hand, since there is one for each request: what does not change
//! stands there whole, and only what came from outside is looked at byte by byte.

use std::time::Duration;

use crate::dialects::json::write_string;
use crate::error::ApiError;
use crate::pure::digits;
use crate::pure::time::Wall;
use crate::pure::utc::Stamp;
use crate::telemetry::logs::REQUEST_TARGET;

use super::RequestEnd;

/// Room for a line of usual length.
const USUAL: usize = 768;

/// A line under way. Each method takes what stands before the value, its key in quotes included.
struct Line(Vec<u8>);

impl Line {
    fn fixed(&mut self, text: &str) -> &mut Line {
        self.0.extend_from_slice(text.as_bytes());
        self
    }

    /// A value from outside.
    fn text(&mut self, head: &str, value: &str) {
        write_string(&mut self.fixed(head).0, value);
    }

    /// A value that is written with digits, letters and the like alone.
    fn plain(&mut self, head: &str, value: &str) {
        self.fixed(head).fixed("\"").fixed(value).fixed("\"");
    }

    fn number(&mut self, head: &str, value: u64) {
        self.fixed(head).fixed(digits::decimal(value).as_str());
    }

    /// Milliseconds with three decimals.
    fn millis(&mut self, head: &str, span: Duration) {
        self.fixed(head).fixed(digits::millis(span).as_str());
    }
}

/// The line that an event with the same fields would make, with its line feed.
pub(super) fn json(end: &RequestEnd, latency: Duration, now: Wall) -> Vec<u8> {
    let mut line = Line(Vec::with_capacity(USUAL));
    line.plain("{\"timestamp\":", Stamp(now).text().as_str());
    line.text(",\"level\":\"INFO\",\"message\":\"request\",\"operation\":", end.operation);
    line.text(",\"request_id\":", end.request_id.as_str());
    line.plain(",\"trace_id\":", digits::hex(end.trace.id().0).as_str());
    if let Some(journey) = &end.journey {
        line.text(",\"tenant\":", journey.tenant.as_str());
    }
    line.text(",\"class\":", end.class.as_str());
    if let Some(journey) = &end.journey {
        line.text(",\"model\":", journey.model.as_str());
    }
    line.number(",\"status\":", u64::from(end.error.as_ref().map_or(200, ApiError::status)));
    line.millis(",\"latency_ms\":", latency);
    if let Some(journey) = &end.journey {
        line.millis(",\"upstream_ms\":", journey.upstream_time);
        line.millis(",\"queue_ms\":", journey.queued);
        journey.cost.with_text(|cost| line.plain(",\"cost\":", cost));
        if let Some(upstream) = &journey.upstream {
            line.text(",\"upstream\":", upstream.as_str());
        }
        line.number(",\"attempts\":", u64::from(journey.attempts));
        line.number(",\"items\":", journey.items as u64);
        line.number(",\"cached_items\":", journey.cached_items as u64);
        line.number(",\"tokens\":", journey.tokens);
    }
    if let Some(error) = &end.error {
        line.text(",\"error\":", error.code.row().name);
    }
    line.text(",\"target\":", REQUEST_TARGET);
    line.fixed("}\n");
    line.0
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::error::Code;
    use crate::ids::{ModelName, RequestId, TenantId, UpstreamId};
    use crate::pure::class::TrafficClass;
    use crate::pure::time::Mono;
    use crate::telemetry::labels::CacheResult;
    use crate::telemetry::requests::JourneyEnd;
    use crate::telemetry::traces::{Incoming, RequestTrace};

    fn end(journey: Option<JourneyEnd>, error: Option<ApiError>) -> RequestEnd {
        RequestEnd {
            request_id: RequestId::from("a \"quoted\" id"),
            trace: Arc::new(RequestTrace::begin(None, Incoming { fresh: 7, ..Incoming::default() }, String::new)),
            operation: "embeddings",
            class: TrafficClass::InteractiveSearch,
            journey,
            error,
            started: Mono::ZERO,
        }
    }

    fn written(end: &RequestEnd, latency: Duration) -> serde_json::Value {
        let line = String::from_utf8(json(end, latency, Wall(1_764_547_200_123))).expect("text");
        assert_eq!(line.matches('\n').count(), 1, "{line}");
        assert!(line.ends_with("}\n"), "{line}");
        serde_json::from_str(&line).expect("a JSON object")
    }

    #[test]
    fn a_line_says_what_is_known_of_a_request() {
        let journey = JourneyEnd {
            tenant: TenantId::from("acme"),
            model: ModelName::from("org/e5\\x"),
            collection: None,
            cache: CacheResult::Partial,
            items: 20,
            cached_items: 17,
            tokens: u64::MAX,
            output_tokens: 0,
            cost: "0.0002".parse().expect("money"),
            upstream: Some(UpstreamId::from("u1")),
            attempts: 2,
            upstream_time: Duration::from_micros(1_234_005),
            queued: Duration::ZERO,
        };
        let end = end(Some(journey), None);
        let expected = serde_json::json!({
            "timestamp": "2025-12-01T00:00:00.123Z", "level": "INFO", "message": "request", "operation": "embeddings",
            "request_id": "a \"quoted\" id", "trace_id": end.trace.id().to_string(), "tenant": "acme",
            "class": "interactive-search", "model": "org/e5\\x", "status": 200, "latency_ms": 1_300.25,
            "upstream_ms": 1_234.005, "queue_ms": 0.0, "cost": "0.0002", "upstream": "u1", "attempts": 2, "items": 20,
            "cached_items": 17, "tokens": u64::MAX, "target": "vectorgate::request",
        });
        assert_eq!(written(&end, Duration::from_micros(1_300_250)), expected);
    }

    #[test]
    fn a_line_of_a_refused_request_leaves_out_what_nobody_knows() {
        let end = end(None, Some(ApiError::new(Code::InvalidApiKey, "x")));
        let line = written(&end, Duration::from_nanos(999));
        assert_eq!((&line["status"], &line["error"]), (&401.into(), &"invalid_api_key".into()));
        assert_eq!((&line["latency_ms"], line.get("tenant"), line.get("cost")), (&0.0.into(), None, None));
    }
}
