//! Health, readiness, metrics.

use actix_web::http::header::{ACCEPT, CONTENT_TYPE};
use actix_web::{HttpRequest, HttpResponse, HttpResponseBuilder};

use super::{request, respond};
use crate::dialects::ClientDialect;

/// The process answers.
pub async fn healthz(request: HttpRequest) -> HttpResponse {
    plain(&request, HttpResponse::Ok()).body("ok\n")
}

/// An answer in plain text with the request's id.
fn plain(request: &HttpRequest, mut builder: HttpResponseBuilder) -> HttpResponseBuilder {
    builder.insert_header((CONTENT_TYPE, "text/plain; charset=utf-8"));
    builder.insert_header(("x-request-id", request::request_id(request.headers()).as_str()));
    builder
}

/// The gateway can serve: false while it drains, and while its ledger cannot be written.
pub async fn readyz(request: HttpRequest) -> HttpResponse {
    let worker = match super::worker(&request) {
        Ok(worker) => worker,
        Err(error) => return respond::plain_error(&request, ClientDialect::OpenAi, &error),
    };
    let gateway = &worker.gateway;
    let why_not = if gateway.lifecycle.is_draining() {
        Some("draining")
    } else if !gateway.journal.healthy() {
        Some("the ledger cannot be written")
    } else {
        None
    };
    match why_not {
        None => plain(&request, HttpResponse::Ok()).body("ready\n"),
        Some(reason) => plain(&request, HttpResponse::ServiceUnavailable())
            .insert_header(("retry-after", "1"))
            .body(format!("not ready: {reason}\n")),
    }
}

/// Prometheus text or OpenMetrics, by `Accept`.
pub async fn metrics(request: HttpRequest) -> HttpResponse {
    let worker = match super::worker(&request) {
        Ok(worker) => worker,
        Err(error) => return respond::plain_error(&request, ClientDialect::OpenAi, &error),
    };
    let gateway = &worker.gateway;
    gateway.telemetry.metrics.buffered_bytes(gateway.bodies.used());
    let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
    let (content_type, text) = gateway.telemetry.metrics.render(accept);
    HttpResponse::Ok().insert_header((CONTENT_TYPE, content_type)).body(text)
}
