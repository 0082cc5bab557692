//! Why a request cannot be served now, in the client's words, with the time when it could.

use std::sync::Arc;
use std::time::Duration;

use crate::dialects::upstream::encode_embed;
use crate::dialects::{EmbedOptions, EmbedRequest, Input, Unsupported, client};
use crate::error::{ApiError, Code};
use crate::pure::admission::{Refusal, Why};
use crate::pure::class::TrafficClass;
use crate::pure::tenant_limits::{Axis, Exceeded};
use crate::pure::time::Mono;
use crate::runtime::Route;

use super::classify::Call;

/// The routes whose upstreams have words for everything the client asked for.
///
/// # Errors
/// None has: the refusal of the first one, which names the field.
pub fn capable_routes(call: &Call) -> Result<Arc<[Route]>, ApiError> {
    let routes = &call.model.routes;
    let plain = call.options == EmbedOptions::default()
        && call.asked_width.is_none()
        && !call.inputs.iter().any(Input::is_tokens);
    if routes.is_empty() {
        return Err(ApiError::new(Code::NoCompatibleUpstream, "no upstream serves this model"));
    }
    if plain {
        return Ok(Arc::clone(routes));
    }
    let mut refused = None;
    let capable: Vec<Route> = routes
        .iter()
        .filter(|route| match probe(call, route) {
            Ok(()) => true,
            Err(unsupported) => {
                refused.get_or_insert(unsupported);
                false
            }
        })
        .cloned()
        .collect();
    match refused {
        Some(unsupported) if capable.is_empty() => Err(unsupported_error(&unsupported)),
        None => Ok(Arc::clone(routes)),
        Some(_) => Ok(capable.into()),
    }
}

fn probe(call: &Call, route: &Route) -> Result<(), Unsupported> {
    // One input of each kind is enough to know: what is refused depends on the kind, not on the text.
    let inputs = [match call.inputs.iter().any(Input::is_tokens) {
        true => Input::Tokens("[0]".into()),
        false => Input::Text("\"\"".into()),
    }];
    if route.upstream.plan.provider == crate::config::plan::Provider::Simulated {
        return crate::worker::simulated_takes(&inputs, &call.options);
    }
    let request = EmbedRequest {
        remote_model: &route.remote_name,
        inputs: &inputs,
        single: false,
        width: call.asked_width,
        encoding: call.form.preferred(),
        options: &call.options,
        original: Some(&call.original)
            .filter(|_| client::shares_body(call.context.dialect, route.upstream.plan.provider)),
    };
    encode_embed(route.upstream.plan.provider, &request).map(|_| ())
}

/// What the client reads about a field that no upstream has a word for.
pub fn unsupported_error(unsupported: &Unsupported) -> ApiError {
    let code = if unsupported.input_kind { Code::UnsupportedInputType } else { Code::InvalidInput };
    ApiError::new(code, unsupported.message.clone()).param(unsupported.field.clone())
}

/// What the client reads when no upstream gave a permit.
pub fn refusal(call: &Call, refusal: &Refusal, now: Mono) -> ApiError {
    let batch = call.class == TrafficClass::BatchIngestion;
    let (code, message) = match refusal.why {
        Why::CircuitOpen => (Code::UpstreamCircuitOpen, "every upstream of this model is failing; its breaker is open"),
        Why::QueueTimeout | Why::Late if batch => {
            (Code::QueueTimeout, "the batch queue was too slow (quota.batch_max_dwell_s)")
        }
        Why::QueueTimeout | Why::Late => {
            (Code::UpstreamRateLimited, "no upstream of this model had room in time (quota.interactive_max_wait_ms)")
        }
        Why::RateLimited => (Code::UpstreamRateLimited, "the quota of every upstream of this model is used up"),
        Why::Concurrency => (Code::UpstreamRateLimited, "every upstream of this model has as many calls as it may"),
        Why::QueueFull => (Code::QueueFull, "the batch queue is full (quota.batch_queue_max_items)"),
        Why::Parked => (Code::UpstreamAuth, "the upstream refuses the gateway's own key; the operator has been told"),
        Why::TooLarge => {
            (Code::InvalidInput, "the request needs more tokens than the upstream's whole limit per minute")
        }
        Why::ShuttingDown => (Code::ShuttingDown, "the gateway is shutting down"),
        Why::Restarting => return restarting(),
        Why::Quarantined | Why::Draining => {
            (Code::NoCompatibleUpstream, "no upstream of this model's vector space is available")
        }
    };
    ApiError::new(code, message).retry_after(refusal.retry_at.map(|at| at.since(now)))
}

/// The tenant's own limit is used up.
pub fn tenant_limit(exceeded: &Exceeded, now: Mono) -> ApiError {
    let axis = match exceeded.axis {
        Axis::Tokens => "tokens",
        Axis::Requests => "requests",
    };
    let Some(retry_at) = exceeded.retry_at else {
        let message = format!("the request takes more {axis} than this tenant may use in a minute");
        return ApiError::new(Code::InvalidInput, message);
    };
    let wait = retry_at.since(now);
    let message =
        format!("this tenant's limit of {axis} per minute is used up; try again in {} ms", wait.as_millis().max(1));
    ApiError::new(Code::TenantRateLimited, message).retry_after(Some(wait))
}

/// Retries have used up their share of the traffic.
pub fn retry_budget() -> ApiError {
    ApiError::new(Code::UpstreamError, "the upstream failed, and retries have used up their share (retry.budget_ratio)")
}

/// An actor is restarting; it takes milliseconds.
pub fn restarting() -> ApiError {
    ApiError::new(Code::Overloaded, "the gateway is recovering from a fault").retry_after(Some(Duration::from_secs(1)))
}
