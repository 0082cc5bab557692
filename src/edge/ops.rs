//! Health, readiness, metrics.

use actix_web::http::header::{ACCEPT, CONTENT_TYPE};
use actix_web::{HttpRequest, HttpResponse, HttpResponseBuilder};

use super::{admin, respond};
use crate::dialects::ClientDialect;
use crate::gateway::Gateway;

/// The process answers.
pub async fn healthz() -> HttpResponse {
    plain(HttpResponse::Ok()).body("ok\n")
}

/// An answer in plain text.
fn plain(mut builder: HttpResponseBuilder) -> HttpResponseBuilder {
    builder.insert_header((CONTENT_TYPE, "text/plain; charset=utf-8"));
    builder
}

/// The gateway can serve: false while it drains, while its ledger cannot be written, and for a moment after the start
/// where replicas share stages of collections.
pub async fn readyz(request: HttpRequest) -> HttpResponse {
    let worker = match super::worker(&request) {
        Ok(worker) => worker,
        Err(error) => return respond::plain_error(&request, ClientDialect::OpenAi, &error),
    };
    // Without its server a replica still serves unlimited tenants, misses and local limits, and the others have the
    // same server: taking all of them out would help nobody. So it is told, not failed.
    let without = match &worker.gateway.redis {
        Some(redis) if !redis.link.is_up() => " (without redis)",
        _ => "",
    };
    match why_not_ready(&worker.gateway) {
        None => plain(HttpResponse::Ok()).body(format!("ready{without}\n")),
        Some(reason) => plain(HttpResponse::ServiceUnavailable())
            .insert_header(("retry-after", "1"))
            .body(format!("not ready: {reason}\n")),
    }
}

/// What keeps the gateway from serving, if anything does.
pub fn why_not_ready(gateway: &Gateway) -> Option<&'static str> {
    if gateway.lifecycle.is_draining() {
        Some("draining")
    } else if !gateway.journal.healthy() {
        Some("the ledger cannot be written")
    } else if gateway.awaits_stages() {
        Some("the stages of collections are being read")
    } else {
        None
    }
}

/// Prometheus text or OpenMetrics, by `Accept`. It names tenants and what they spend, so the admin side's rule holds:
/// with `server.admin_token` set, scrapers send it as a bearer token.
pub async fn metrics(request: HttpRequest) -> HttpResponse {
    let worker = match admin::authorize(&request).and_then(|_| super::worker(&request)) {
        Ok(worker) => worker,
        Err(error) => return respond::plain_error(&request, ClientDialect::OpenAi, &error),
    };
    let gateway = &worker.gateway;
    let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
    let (content_type, text) = gateway.telemetry.metrics.render(accept);
    HttpResponse::Ok().insert_header((CONTENT_TYPE, content_type)).body(text)
}
