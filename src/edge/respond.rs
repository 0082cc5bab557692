//! Answers: bodies in the route's dialect, and the headers of the contract.

use std::time::Duration;

use actix_web::http::StatusCode;
use actix_web::http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use actix_web::{HttpRequest, HttpResponse, HttpResponseBuilder};

use crate::clock;
use crate::dialects::ClientDialect;
use crate::dialects::client::{RenderEmbed, render_embed, render_error};
use crate::error::{ApiError, Code};
use crate::ids::RequestId;
use crate::journey::rate;
use crate::journey::settle::Finished;
use crate::pure::tenant_limits::Allowances;
use crate::telemetry::CacheResult;

use super::request;
use super::stream::{EmbedBody, Held};

/// The answer to a journey.
///
/// A short one is one piece with its length, a long one is written while it is sent; `held` is let go when it is out.
pub fn embeddings(mut finished: Finished, held: Held) -> HttpResponse {
    let seat = std::mem::take(&mut finished.seat);
    let context = &finished.call.context;
    let dialect = context.dialect;
    let (mut builder, body) = match &finished.result {
        Ok(entries) => {
            let tokens = entries_tokens(&finished);
            let pieces = render_embed(
                dialect,
                RenderEmbed {
                    model: finished.call.model.plan.name.as_str(),
                    id: context.request_id.as_str(),
                    vectors: entries.iter().map(|entry| entry.vector.clone()).collect(),
                    inputs: &finished.call.inputs,
                    form: &finished.call.form,
                    tokens,
                    estimated: finished.estimated,
                },
            );
            let mut builder = HttpResponse::Ok();
            builder.insert_header((CONTENT_TYPE, "application/json"));
            builder.insert_header(("x-embedding-space", finished.call.model.plan.space.as_str()));
            builder.insert_header(("x-embedding-model", finished.call.model.plan.name.as_str()));
            (builder, pieces.whole())
        }
        Err(error) => {
            let (content_type, body) = render_error(dialect, error, Some(context.request_id.as_str()));
            let mut builder = HttpResponse::build(status(error));
            builder.insert_header((CONTENT_TYPE, content_type));
            error_headers(&mut builder, error);
            if finished.call.class.is_interactive() && wants_lexical(error.code) {
                builder.insert_header(("x-retrieval-fallback", "lexical-only"));
                // The person who waits gets lexical results at once instead of an SDK's retries.
                if matches!(error.code, Code::UpstreamCircuitOpen | Code::NoCompatibleUpstream) {
                    builder.insert_header(("x-should-retry", "false"));
                }
            }
            (builder, Ok(body))
        }
    };
    journey_headers(&mut builder, &finished);
    match body {
        Ok(whole) => builder.body(whole),
        Err(pieces) => {
            let crowd = held.present.crowd();
            builder.body(EmbedBody::new(pieces, &crowd, held, seat))
        }
    }
}

/// Errors that leave a search without vectors for want of upstreams or quota.
fn wants_lexical(code: Code) -> bool {
    matches!(
        code,
        Code::UpstreamCircuitOpen
            | Code::NoCompatibleUpstream
            | Code::UpstreamError
            | Code::UpstreamAuth
            | Code::UpstreamBadResponse
            | Code::UpstreamTimeout
            | Code::UpstreamRateLimited
            | Code::TenantRateLimited
            | Code::QueueFull
            | Code::QueueTimeout
            | Code::Overloaded
            | Code::ShuttingDown
    )
}

/// Tokens as the answer states them: those that the vectors stand for, whether they were fresh or cached, so that a hit
/// and a miss have the same bytes.
fn entries_tokens(finished: &Finished) -> u64 {
    finished.result.as_ref().map_or(0, |entries| entries.iter().map(|entry| u64::from(entry.tokens)).sum())
}

fn journey_headers(builder: &mut HttpResponseBuilder, finished: &Finished) {
    let context = &finished.call.context;
    let currency = &context.running.plan.currency;
    let total = clock::mono().since(context.started);
    let own = total.saturating_sub(finished.upstream_time).saturating_sub(finished.dwell);
    builder.insert_header(("x-request-id", context.request_id.as_str()));
    builder.insert_header(("x-gateway-latency-ms", total.as_millis().to_string()));
    let timing = format!(
        "gateway;dur={}, queue;dur={}, upstream;dur={}",
        millis(own),
        millis(finished.dwell),
        millis(finished.upstream_time)
    );
    builder.insert_header(("server-timing", timing));
    insert(builder, &format!("x-gateway-cost-{currency}"), &finished.cost.to_string());
    if let Some(remaining) = finished.remaining {
        insert(builder, &format!("x-tenant-remaining-budget-{currency}"), &remaining.to_string());
    }
    let result = match finished.cache {
        CacheResult::Hit => "HIT",
        CacheResult::Miss => "MISS",
        CacheResult::Partial => "PARTIAL",
        CacheResult::Bypass => "BYPASS",
    };
    builder.insert_header(("x-cache", result));
    builder.insert_header(("x-cache-hits", format!("{}/{}", finished.cached_items, finished.call.items.len())));
    if let Some(upstream) = &finished.upstream {
        insert(builder, "x-gateway-upstream", upstream.as_str());
    }
    if let Some(allowances) = rate::allowances(&finished.call) {
        allowance_headers(builder, allowances);
    }
    builder.insert_header(("x-gateway-attempts", finished.attempts.to_string()));
    builder.insert_header(("x-traffic-class", finished.call.class.as_str()));
}

fn allowance_headers(builder: &mut HttpResponseBuilder, allowances: Allowances) {
    for (axis, allowance) in [("requests", allowances.requests), ("tokens", allowances.tokens)] {
        let (Some(limit), Some(remaining)) = (allowance.limit, allowance.remaining) else { continue };
        insert(builder, &format!("x-ratelimit-limit-{axis}"), &limit.to_string());
        insert(builder, &format!("x-ratelimit-remaining-{axis}"), &remaining.to_string());
        insert(builder, &format!("x-ratelimit-reset-{axis}"), &rate::notation(allowance.reset));
    }
}

/// Milliseconds with three decimals.
fn millis(span: Duration) -> String {
    format!("{}.{:03}", span.as_millis(), span.as_micros() % 1000)
}

/// A header whose name or value is made at run time; what is no valid header is left out.
fn insert(builder: &mut HttpResponseBuilder, name: &str, value: &str) {
    if let (Ok(name), Ok(value)) = (HeaderName::try_from(name.to_ascii_lowercase()), HeaderValue::from_str(value)) {
        builder.insert_header((name, value));
    }
}

fn status(error: &ApiError) -> StatusCode {
    StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// `Retry-After` and what goes with it, on 429 and 503.
fn error_headers(builder: &mut HttpResponseBuilder, error: &ApiError) {
    if let Some(seconds) = error.retry_after_seconds() {
        builder.insert_header(("retry-after", seconds.to_string()));
        if let Some(exact) = error.retry_after.filter(|wait| !wait.is_zero()) {
            builder.insert_header(("retry-after-ms", exact.as_millis().max(1).to_string()));
        }
    }
    if hopeless(error) {
        builder.insert_header(("x-should-retry", "false"));
    }
}

/// The longest wait that the official SDKs honour between two tries.
const SDK_PATIENCE: Duration = Duration::from_secs(60);

/// Whether a retry within an SDK's patience cannot help: no money, no key, or a wait longer than that.
fn hopeless(error: &ApiError) -> bool {
    matches!(error.code, Code::BudgetExhausted | Code::UpstreamAuth)
        || error.retry_after.is_some_and(|wait| wait > SDK_PATIENCE)
}

/// An error before the journey began.
pub fn error(dialect: ClientDialect, id: &RequestId, error: &ApiError) -> HttpResponse {
    let (content_type, body) = render_error(dialect, error, Some(id.as_str()));
    let mut builder = HttpResponse::build(status(error));
    builder.insert_header((CONTENT_TYPE, content_type));
    builder.insert_header(("x-request-id", id.as_str()));
    error_headers(&mut builder, error);
    builder.body(body)
}

/// An error on a route that has no journey.
pub fn plain_error(request: &HttpRequest, dialect: ClientDialect, problem: &ApiError) -> HttpResponse {
    error(dialect, &request::request_id(request.headers()), problem)
}
