//! What surrounds every answer of the client listener: what browsers need to read it, and the end of a connection whose
//! server is going away.
//!
//! Browsers ask first (`OPTIONS`, without a key) and read an answer only if it names their page's origin. Origins are
//! named in `server.cors_origins`; `"*"` lets any page in. Credentials in the browsers' sense (cookies) are never
//! allowed: keys travel in headers that a page sets itself.

use actix_web::body::{EitherBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderValue, ORIGIN, VARY,
};
use actix_web::http::{ConnectionType, Method};
use actix_web::middleware::Next;
use actix_web::{Error, HttpResponse};

use crate::config::plan::Plan;

use super::{framing, respond, visit};

/// How long a browser may remember the answer to its question, seconds.
const REMEMBERED_S: &str = "600";

/// Methods of the client routes.
const METHODS: &str = "GET, POST, OPTIONS";

/// Answers about which a page is told: without the list, scripts see only a few.
const EXPOSED: &str = "x-request-id, x-gateway-latency-ms, server-timing, x-cache, x-cache-hits, x-gateway-upstream, \
                       x-gateway-attempts, x-traffic-class, x-embedding-space, x-embedding-model, \
                       x-retrieval-fallback, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, \
                       x-ratelimit-reset-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, \
                       x-ratelimit-reset-tokens, retry-after, retry-after-ms, x-should-retry";

/// Surrounds one request.
///
/// # Errors
/// Those of the service inside.
///
/// # Cancel safety
/// That of the service inside.
pub async fn around<B: MessageBody + 'static>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<EitherBody<B>>, Error> {
    visit::asked(request.request());
    let worker = super::worker(request.request()).ok();
    let plan = worker.as_ref().map(|worker| std::sync::Arc::clone(&worker.gateway.running.load().plan));
    let origin = plan.as_ref().and_then(|plan| allowed(plan, request.headers()));
    let refused = framing::refusal(&request);
    let mut response = match (refused, &origin) {
        (Some(answer), _) => request.into_response(answer).map_into_right_body(),
        (None, Some(_)) if asks_first(&request) => {
            let answer = preflight(request.headers());
            request.into_response(answer).map_into_right_body()
        }
        _ => next.call(request).await?.map_into_left_body(),
    };
    respond::identify(&mut response);
    if let (Some(plan), Some(origin)) = (&plan, origin) {
        let headers = response.headers_mut();
        let currency = plan.currency.to_lowercase();
        let exposed = format!("{EXPOSED}, x-gateway-cost-{currency}, x-tenant-remaining-budget-{currency}");
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.append(VARY, HeaderValue::from_static("Origin"));
        if let Ok(exposed) = HeaderValue::from_str(&exposed) {
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
        }
    }
    if worker.is_some_and(|worker| worker.gateway.lifecycle.is_draining()) {
        // The client's next request finds another replica, or at least a connection that is still listened to.
        response.response_mut().head_mut().set_connection_type(ConnectionType::Close);
    }
    Ok(response)
}

/// The origin to name in the answer, if the request has one and it may read answers.
fn allowed(plan: &Plan, headers: &HeaderMap) -> Option<HeaderValue> {
    let origins = &plan.server.cors_origins;
    let origin = headers.get(ORIGIN)?;
    if origins.iter().any(|allowed| allowed.as_bytes() == origin.as_bytes()) {
        return Some(origin.clone());
    }
    origins.iter().any(|allowed| allowed == "*").then(|| HeaderValue::from_static("*"))
}

fn asks_first(request: &ServiceRequest) -> bool {
    request.method() == Method::OPTIONS && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// Any header may be sent: which of them mean something is decided when they come.
fn preflight(headers: &HeaderMap) -> HttpResponse {
    let mut answer = HttpResponse::NoContent();
    answer
        .insert_header((ACCESS_CONTROL_ALLOW_METHODS, METHODS))
        .insert_header((ACCESS_CONTROL_MAX_AGE, REMEMBERED_S))
        .append_header((VARY, "Access-Control-Request-Headers"));
    if let Some(asked) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
        answer.insert_header((ACCESS_CONTROL_ALLOW_HEADERS, asked.clone()));
    }
    answer.finish()
}
