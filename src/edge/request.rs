//! What every client request has in common before its body is read: an id, a key, a class asked for.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix_web::HttpRequest;
use actix_web::http::header::{CACHE_CONTROL, HeaderMap, HeaderName};

use crate::clock;
use crate::dialects::ClientDialect;
use crate::error::{ApiError, Code};
use crate::gateway::Gateway;
use crate::ids::RequestId;
use crate::journey::classify::Context;
use crate::journey::refuse;
use crate::lifecycle::InFlight;
use crate::pure::class::TrafficClass;
use crate::pure::digits;
use crate::pure::time::Mono;
use crate::runtime::{KeyOwner, Running};
use crate::telemetry::requests::RequestEnd;
use crate::telemetry::traces::{Incoming, RequestTrace};
use crate::worker::Worker;

use super::auth;
use super::headers::names;

/// Longest request id that is taken over from a client.
const LONGEST_ID: usize = 128;

/// The id of a request: the client's own if it is 1 to 128 characters of letters, digits and `-_.:`, else a new one.
pub fn request_id(headers: &HeaderMap) -> RequestId {
    let given = headers.get(names::REQUEST_ID).and_then(|value| value.to_str().ok());
    match given {
        Some(id) if is_sane(id) => RequestId::from(id),
        _ => RequestId::from(digits::hex(rand::random()).as_str()),
    }
}

fn is_sane(id: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':');
    (1..=LONGEST_ID).contains(&id.len()) && id.bytes().all(plain)
}

/// A request as it arrives, before anything is known of it.
#[derive(Clone)]
pub struct Arrival {
    /// Its id.
    pub request_id: RequestId,
    /// Its trace.
    pub trace: Arc<RequestTrace>,
    /// When its first byte was seen.
    pub started: Mono,
}

/// Notes a request's arrival and begins its trace.
pub fn arrive(worker: &Worker, request: &HttpRequest) -> Arrival {
    let headers = request.headers();
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let telemetry = &worker.gateway.telemetry;
    let started = clock::mono();
    let (traceparent, tracestate) = (text(names::TRACE_PARENT), text(names::TRACE_STATE));
    let incoming = Incoming { traceparent, tracestate, fresh: rand::random(), began: started };
    let trace = telemetry.begin_trace(incoming, || request.match_pattern().unwrap_or_default());
    Arrival { request_id: request_id(headers), trace: Arc::new(trace), started }
}

/// Tells of a request that ended before its journey began. `operation` and `class` are its route's.
pub fn refused(worker: &Worker, arrival: &Arrival, operation: &'static str, class: TrafficClass, error: &ApiError) {
    let end = RequestEnd {
        request_id: arrival.request_id.clone(),
        trace: Arc::clone(&arrival.trace),
        operation,
        class,
        journey: None,
        error: Some(error.clone()),
        started: arrival.started,
    };
    worker.tell(&end, None);
}

/// Whose key the headers of a request carry that began at `started`, under the configuration in force.
///
/// # Errors
/// 401 without a known key; 503 while keys that other replicas made or revoked are still being put in force.
///
/// # Cancel safety
/// Safe.
pub async fn identify(
    gateway: &Gateway,
    headers: &HeaderMap,
    started: Mono,
) -> Result<(Arc<Running>, KeyOwner), ApiError> {
    let secret = auth::presented(headers)?;
    if !gateway.is_fresh(started) && !gateway.catch_up(started).await {
        return Err(refuse::behind());
    }
    let running = gateway.running.load_full();
    let owner = running.keys.find(secret).ok_or_else(auth::unknown_key)?.clone();
    Ok((running, owner))
}

/// Admits a request to the gateway and finds out whose it is.
///
/// # Errors
/// 503 while shutting down, over the in-flight cap, or when no record of it could be kept; 401 without a known key; 429 when
/// the tenant has as many requests under way as it may.
///
/// # Cancel safety
/// Safe.
pub async fn enter(
    worker: &Rc<Worker>,
    request: &HttpRequest,
    arrival: Arrival,
    dialect: ClientDialect,
) -> Result<(Context, InFlight), ApiError> {
    let headers = request.headers();
    let (running, owner) = identify(&worker.gateway, headers, arrival.started).await?;
    if owner.tenant.shared.as_ref().is_some_and(|shared| shared.ledger.is_full()) {
        return Err(refuse::no_room_for_records());
    }
    let in_flight = worker.gateway.lifecycle.enter()?.holding(owner.tenant.place()?);
    let asked_class = headers.get(names::TRAFFIC_CLASS).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let cache_control = headers.get(CACHE_CONTROL).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let directive = |name: &str| cache_control.split(',').any(|part| part.trim().eq_ignore_ascii_case(name));
    let context = Context {
        request_id: arrival.request_id,
        tenant: owner.tenant,
        key: owner.fingerprint,
        started: arrival.started,
        deadline: patience(headers).map(|patience| arrival.started.plus(patience)),
        dialect,
        asked_class,
        collection: collection(headers)?,
        no_cache: directive("no-cache"),
        no_store: directive("no-store"),
        trace: arrival.trace,
        running,
    };
    Ok((context, in_flight))
}

/// How long the client waits for its answer, as the official SDKs say with each request: whole seconds or a fraction.
fn patience(headers: &HeaderMap) -> Option<Duration> {
    let said = |name: HeaderName| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok();
    let seconds = said(names::READ_PATIENCE).or_else(|| said(names::PATIENCE))?;
    Duration::try_from_secs_f64(seconds).ok().filter(|patience| !patience.is_zero())
}

fn collection(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(value) = headers.get(names::COLLECTION) else { return Ok(None) };
    match value.to_str() {
        Ok(name) if !name.is_empty() && name.len() <= LONGEST_ID => Ok(Some(name.to_owned())),
        _ => Err(ApiError::new(Code::InvalidInput, "X-Collection must be 1 to 128 printable ASCII characters")
            .param("X-Collection")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sane_ids_are_taken_over() {
        for id in ["a", "req-1_2.3:4", &"x".repeat(128)] {
            assert!(is_sane(id), "{id}");
        }
        for id in ["", "a b", "a\u{e4}", "a\"b", "a\nb", &"x".repeat(129)] {
            assert!(!is_sane(id), "{id:?}");
        }
    }
}
