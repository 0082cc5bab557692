//! A request's end, told once: to the metrics, the log, the request's span and the service levels, so that the four
//! never disagree. Holds ids and numbers only: no key, no text of a request.

mod line;

use std::sync::Arc;
use std::time::Duration;

use crate::clock;
use crate::error::ApiError;
use crate::ids::{ModelName, RequestId, TenantId, UpstreamId};
use crate::pure::class::TrafficClass;
use crate::pure::money::Money;
use crate::pure::service_levels::Fact;
use crate::pure::time::Mono;

use super::hub::Telemetry;
use super::labels::{CacheResult, OTHER, Outcome};
use super::logs::RequestLog;
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
#[derive(Debug, Clone)]
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
        let model = end.journey.as_ref().map(|journey| journey.model.clone());
        Fact { class: end.class, model, verdict: outcome.verdict(), total: latency, upstream, queued }
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
        RequestLog::Json(lines) => lines.push(&line::json(end, latency, clock::wall()), false),
        RequestLog::Off => {}
    }
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
