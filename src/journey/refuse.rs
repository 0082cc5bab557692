//! Why a request cannot be served now, in the client's words, with the time when it could.

use std::sync::Arc;
use std::time::Duration;

use crate::config::plan::Provider;
use crate::dialects::rerank::{Document, RerankOptions, RerankRequest};
use crate::dialects::upstream::{encode_embed, encode_rerank, takes_bare_texts};
use crate::dialects::{EmbedOptions, EmbedRequest, Input, Unsupported, client, simulated};
use crate::error::{ApiError, Code};
use crate::pure::admission::{Refusal, Why};
use crate::pure::class::TrafficClass;
use crate::pure::tenant_limits::{Axis, Exceeded};
use crate::pure::time::Mono;
use crate::runtime::{Fleet, Route};

use super::classify::{Call, EmbedTask, Task};
use super::rerank::RerankTask;

/// When to ask again once an account at a provider is used up: a person has to act, so no SDK's retry should wait for it.
pub const OUT_OF_CREDIT_WAIT: Duration = Duration::from_secs(300);

/// The routes whose upstreams have words for everything the client asked for.
///
/// # Errors
/// None has: the refusal of the first one, which names the field.
pub fn capable_routes(call: &Call) -> Result<Arc<Fleet>, ApiError> {
    let routes = &call.model.routes;
    if routes.is_empty() {
        return Err(ApiError::new(Code::NoCompatibleUpstream, "no upstream serves this model"));
    }
    if is_plain(call) {
        return Ok(Arc::clone(routes));
    }
    let mut refused = None;
    let capable: Fleet = routes
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
        Some(_) => Ok(Arc::new(capable)),
    }
}

/// Whether every upstream takes it without a look: texts alone, with nothing said that some have no word for and
/// nothing unsaid that some insist on.
fn is_plain(call: &Call) -> bool {
    match &call.task {
        Task::Embed(embed) => {
            embed.options == EmbedOptions::default()
                && embed.asked_width.is_none()
                && !embed.inputs.iter().any(Input::is_tokens)
                && call.model.routes.providers().iter().all(|provider| takes_bare_texts(*provider))
        }
        Task::Rerank(rerank) => {
            rerank.options == RerankOptions::default()
                && rerank.documents.iter().all(|document| matches!(document, Document::Text(_)))
        }
    }
}

fn probe(call: &Call, route: &Route) -> Result<(), Unsupported> {
    match &call.task {
        Task::Embed(embed) => probe_embed(call, embed, route),
        Task::Rerank(rerank) => probe_rerank(call, rerank, route),
    }
}

fn probe_embed(call: &Call, embed: &EmbedTask, route: &Route) -> Result<(), Unsupported> {
    let provider = route.upstream.plan.provider;
    // One input of each kind is enough to know: what is refused depends on the kind, not on the text.
    let inputs = [match embed.inputs.iter().any(Input::is_tokens) {
        true => Input::Tokens("[0]".into()),
        false => Input::Text("\"\"".into()),
    }];
    if provider == Provider::Simulated {
        return simulated::takes(&inputs, &embed.options);
    }
    let request = EmbedRequest {
        remote_model: &route.remote_name,
        inputs: &inputs,
        single: false,
        width: embed.asked_width,
        encoding: embed.form.preferred(),
        options: &embed.options,
        original: Some(&embed.original).filter(|_| client::shares_body(call.context.dialect, provider)),
    };
    encode_embed(provider, &request).map(|_| ())
}

fn probe_rerank(call: &Call, rerank: &RerankTask, route: &Route) -> Result<(), Unsupported> {
    let provider = route.upstream.plan.provider;
    let object = rerank.documents.iter().find(|document| matches!(document, Document::Object(_)));
    let documents = [object.or(rerank.documents.first()).cloned().unwrap_or_else(|| Document::Text("\"\"".into()))];
    if provider == Provider::Simulated {
        return simulated::takes_rerank(&rerank.options);
    }
    let request = RerankRequest {
        remote_model: &route.remote_name,
        query: &rerank.query,
        documents: &documents,
        top_n: None,
        options: &rerank.options,
        native: client::shares_body(call.context.dialect, provider),
    };
    encode_rerank(provider, &request).map(|_| ())
}

/// What the client reads about a field that no upstream has a word for.
pub fn unsupported_error(unsupported: &Unsupported) -> ApiError {
    let code = if unsupported.input_kind { Code::UnsupportedInputType } else { Code::InvalidInput };
    ApiError::new(code, unsupported.message.clone()).param(unsupported.field.clone())
}

/// What the client reads when no upstream gave a permit.
pub fn refusal(class: TrafficClass, refusal: &Refusal, now: Mono) -> ApiError {
    let batch = class == TrafficClass::BatchIngestion;
    let (code, message) = match refusal.why {
        Why::CircuitOpen => (Code::UpstreamCircuitOpen, "every upstream of this model is failing; its breaker is open"),
        Why::QueueTimeout if batch => (Code::QueueTimeout, "the batch queue was too slow (quota.batch_max_dwell_s)"),
        Why::QueueTimeout => {
            (Code::UpstreamRateLimited, "no upstream of this model had room in time (quota.interactive_max_wait_ms)")
        }
        Why::Late => {
            (Code::QueueTimeout, "the time for which the client waits was over before an upstream could be asked")
        }
        Why::RateLimited => (Code::UpstreamRateLimited, "the quota of every upstream of this model is used up"),
        Why::Concurrency => (Code::UpstreamRateLimited, "every upstream of this model has as many calls as it may"),
        Why::QueueFull => (Code::QueueFull, "the batch queue is full (quota.batch_queue_max_items)"),
        Why::Parked => (Code::UpstreamAuth, "the upstream refuses the gateway's own key; the operator has been told"),
        Why::TooLarge => {
            (Code::InvalidInput, "the request needs more tokens than the upstream's whole limit per minute")
        }
        Why::OutOfCredit => return out_of_credit(),
        Why::ShuttingDown => (Code::ShuttingDown, "the gateway is shutting down"),
        Why::Restarting => return restarting(),
        Why::Unverified => (
            Code::UpstreamCircuitOpen,
            "every upstream of this model is out, or is back and its vectors are being checked",
        ),
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

/// The gateway's account at the provider is used up: not the client's bill, and no matter of seconds.
fn out_of_credit() -> ApiError {
    ApiError::new(
        Code::UpstreamRateLimited,
        "the quota of the gateway's account at the upstream is used up; the operator has been told",
    )
    .retry_after(Some(OUT_OF_CREDIT_WAIT))
}

/// Retries have used up their share of the traffic.
pub fn retry_budget() -> ApiError {
    ApiError::new(Code::UpstreamError, "the upstream failed, and retries have used up their share (retry.budget_ratio)")
}

/// The ledger that replicas share does not answer.
pub fn ledger_unavailable() -> ApiError {
    let message = "the shared ledger does not answer, so nothing that costs money is called";
    ApiError::new(Code::StoreUnavailable, message).retry_after(Some(Duration::from_secs(1)))
}

/// Which keys hold is not known right now.
pub fn behind() -> ApiError {
    let message = "tenants and keys are being brought up to date with the other replicas";
    ApiError::new(Code::StoreUnavailable, message).retry_after(Some(Duration::from_secs(1)))
}

/// As many records as may wait for the ledger that replicas share do wait.
pub fn no_room_for_records() -> ApiError {
    let message = "the shared ledger has not answered for so long that no further usage record can be kept for it";
    ApiError::new(Code::StoreUnavailable, message).retry_after(Some(Duration::from_secs(5)))
}

/// An actor is restarting; it takes milliseconds.
pub fn restarting() -> ApiError {
    ApiError::new(Code::Overloaded, "the gateway is recovering from a fault").retry_after(Some(Duration::from_secs(1)))
}
