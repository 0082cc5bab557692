//! A request's end, told once: to the metrics, the log, the request's span and the service levels, so that the four
//! never disagree. Holds ids and numbers only: no key, no text of a request.

use std::sync::Arc;
use std::time::Duration;

use crate::clock;
use crate::dialects::json::ObjectWriter;
use crate::error::ApiError;
use crate::ids::{ModelName, RequestId, TenantId, UpstreamId};
use crate::pure::class::TrafficClass;
use crate::pure::digits;
use crate::pure::money::Money;
use crate::pure::service_levels::Fact;
use crate::pure::time::{Mono, Wall};
use crate::pure::utc::Stamp;

use super::hub::Telemetry;
use super::labels::{CacheResult, OTHER, Outcome};
use super::logs::{REQUEST_TARGET, RequestLog};
use super::traces::RequestTrace;

/// What is known of a request at its end.
#[derive(Debug)]
pub struct RequestEnd {
    /// Its id.
    pub request_id: RequestId,
    /// Its trace.
    pub trace: Arc<RequestTrace>,
    /// `embeddings`, `rerank` or `chat`.
    pub operation: &'static str,
    /// Its class; where it was refused before it had one, the class of its route.
    pub class: TrafficClass,
    /// What it cost whom, if it got as far as a journey.
    pub journey: Option<JourneyEnd>,
    /// Why it was not answered as asked.
    pub error: Option<ApiError>,
    /// When its first byte was seen.
    pub started: Mono,
}

/// What only a request with a known tenant and model has.
#[derive(Debug)]
pub struct JourneyEnd {
    /// Whose it is.
    pub tenant: TenantId,
    /// The model that was chosen for it.
    pub model: ModelName,
    /// Its collection, if it has one.
    pub collection: Option<String>,
    /// What the cache knew of it.
    pub cache: CacheResult,
    /// Inputs.
    pub items: usize,
    /// Inputs answered from the cache.
    pub cached_items: usize,
    /// Tokens billed or estimated, all of them.
    pub tokens: u64,
    /// Those of them that were generated.
    pub output_tokens: u64,
    /// What it cost.
    pub cost: Money,
    /// Who answered, if anybody was asked.
    pub upstream: Option<UpstreamId>,
    /// Upstream calls made.
    pub attempts: u32,
    /// Time at upstreams.
    pub upstream_time: Duration,
    /// Time in queues.
    pub queued: Duration,
}

impl Telemetry {
    /// Counts, logs and describes a request that came to its end `latency` after its first byte; returns what the
    /// service levels must hear.
    pub fn request_ended(&self, end: &RequestEnd, latency: Duration) -> Fact {
        let outcome = end.error.as_ref().map_or(Outcome::Success, Outcome::of);
        let (upstream, queued) =
            end.journey.as_ref().map_or_else(Default::default, |journey| (journey.upstream_time, journey.queued));
        let overhead = latency.saturating_sub(upstream).saturating_sub(queued);
        let exemplar = end.trace.exemplar();
        match &end.journey {
            Some(journey) => {
                self.metrics.request_finished(end.class, &journey.model, outcome, latency, overhead, exemplar);
                self.journey_ended(end.class, journey, outcome, end.error.as_ref());
            }
            None => {
                let model = ModelName::from(OTHER);
                self.metrics.request_finished(end.class, &model, outcome, latency, overhead, exemplar);
            }
        }
        if let Some(error) = &end.error {
            self.metrics.error(error.code);
        }
        log(end, latency, &self.request_log);
        end.trace.ended(end);
        Fact { class: end.class, verdict: outcome.verdict(), total: latency, upstream, queued }
    }

    fn journey_ended(&self, class: TrafficClass, journey: &JourneyEnd, outcome: Outcome, error: Option<&ApiError>) {
        let metrics = &self.metrics;
        metrics.cache(&journey.tenant, journey.cache, journey.cached_items as u64, journey.items as u64);
        if journey.tokens > 0 || journey.cost > Money::ZERO {
            metrics.settled(&journey.tenant, &journey.model, class, journey.cost, journey.tokens);
        }
        if let Some(collection) = &journey.collection {
            let items = if outcome == Outcome::Success { journey.items as u64 } else { 0 };
            metrics.collection_used(collection, &journey.model, class, items, journey.tokens);
        }
        if outcome == Outcome::Success && class == TrafficClass::InteractiveSearch {
            metrics.query_answered(&journey.tenant);
        }
        if class.is_search() && error.is_some_and(|error| error.code.wants_lexical()) {
            metrics.retrieval_fallback(class);
        }
        metrics.tenant_served(&journey.tenant, outcome.counts_against_slo());
    }
}

/// One line a request, at level `info` under the target `vectorgate::request`.
fn log(end: &RequestEnd, latency: Duration, how: &RequestLog) {
    match how {
        RequestLog::Events => event(end, latency),
        // Written by hand, which takes a fifth of the time: there is such a line for each request.
        RequestLog::Json(lines) => lines.push(&json_line(end, latency, clock::wall()), false),
        RequestLog::Off => {}
    }
}

/// The line that [`event`] would make of it in JSON.
fn json_line(end: &RequestEnd, latency: Duration, now: Wall) -> Vec<u8> {
    let mut line = ObjectWriter::with_capacity(640);
    line.string("timestamp", Stamp(now).text().as_str());
    line.string("level", "INFO");
    line.string("message", "request");
    line.string("operation", end.operation);
    line.string("request_id", end.request_id.as_str());
    line.string("trace_id", digits::hex(end.trace.id().0).as_str());
    if let Some(journey) = &end.journey {
        line.string("tenant", journey.tenant.as_str());
    }
    line.string("class", end.class.as_str());
    if let Some(journey) = &end.journey {
        line.string("model", journey.model.as_str());
    }
    line.number("status", end.error.as_ref().map_or(200, |error| u64::from(error.status())));
    line.raw("latency_ms", digits::millis(latency).as_str().as_bytes());
    if let Some(journey) = &end.journey {
        line.raw("upstream_ms", digits::millis(journey.upstream_time).as_str().as_bytes());
        line.raw("queue_ms", digits::millis(journey.queued).as_str().as_bytes());
        journey.cost.with_text(|cost| line.string("cost", cost));
        if let Some(upstream) = &journey.upstream {
            line.string("upstream", upstream.as_str());
        }
        line.number("attempts", u64::from(journey.attempts));
        line.number("items", journey.items as u64);
        line.number("cached_items", journey.cached_items as u64);
        line.number("tokens", journey.tokens);
    }
    if let Some(error) = &end.error {
        line.string("error", error.code.row().name);
    }
    line.string("target", REQUEST_TARGET);
    let mut line = line.finish();
    line.push(b'\n');
    line
}

fn event(end: &RequestEnd, latency: Duration) {
    let status = end.error.as_ref().map_or(200, ApiError::status);
    let error = end.error.as_ref().map(|error| error.code.row().name);
    let latency_ms = millis(latency);
    match &end.journey {
        Some(journey) => tracing::info!(
            target: "vectorgate::request",
            operation = end.operation,
            request_id = end.request_id.as_str(),
            trace_id = %end.trace.id(),
            tenant = journey.tenant.as_str(),
            class = end.class.as_str(),
            model = journey.model.as_str(),
            status,
            latency_ms,
            upstream_ms = millis(journey.upstream_time),
            queue_ms = millis(journey.queued),
            cost = %journey.cost,
            upstream = journey.upstream.as_ref().map(UpstreamId::as_str),
            attempts = journey.attempts,
            items = journey.items,
            cached_items = journey.cached_items,
            tokens = journey.tokens,
            error,
            "request"
        ),
        None => tracing::info!(
            target: "vectorgate::request",
            operation = end.operation,
            request_id = end.request_id.as_str(),
            trace_id = %end.trace.id(),
            class = end.class.as_str(),
            status,
            latency_ms,
            error,
            "request"
        ),
    }
}

/// Milliseconds with three decimals.
fn millis(span: Duration) -> f64 {
    span.as_micros() as f64 / 1_000.0
}
