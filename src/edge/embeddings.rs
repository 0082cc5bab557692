//! `POST /v1/embeddings` and its relatives: parse, take the journey, render.

use std::rc::Rc;

use actix_web::web::Payload;
use actix_web::{HttpRequest, HttpResponse};
use tokio_util::sync::CancellationToken;

use crate::dialects::{ClientDialect, client};
use crate::error::{ApiError, Code};
use crate::journey::settle::Finished;
use crate::journey::{self, classify};
use crate::pure::class::TrafficClass;
use crate::worker::Worker;

use super::body::{self, BodyLimits};
use super::request::{self, Arrival};
use super::respond;

/// OpenAI's route.
pub async fn openai(http: HttpRequest, payload: Payload) -> HttpResponse {
    embed(http, payload, ClientDialect::OpenAi).await
}

async fn embed(http: HttpRequest, mut payload: Payload, dialect: ClientDialect) -> HttpResponse {
    let worker = match super::worker(&http) {
        Ok(worker) => worker,
        Err(error) => return respond::plain_error(&http, dialect, &error),
    };
    let arrival = request::arrive(&worker, &http);
    match answer(&worker, &http, &mut payload, dialect, arrival.clone()).await {
        Ok(finished) => respond::embeddings(finished),
        Err(error) => {
            request::refused(&worker, &arrival, "embeddings", TrafficClass::InteractiveSearch, &error);
            respond::error(dialect, &arrival.request_id, Some(arrival.trace.id()), &error)
        }
    }
}

async fn answer(
    worker: &Rc<Worker>,
    http: &HttpRequest,
    payload: &mut Payload,
    dialect: ClientDialect,
    arrival: Arrival,
) -> Result<Finished, ApiError> {
    let (context, in_flight) = request::enter(worker, http, arrival, dialect)?;
    let server = &context.running.plan.server;
    let limits = BodyLimits { max_bytes: server.max_body_bytes, idle: server.body_timeout };
    let fields = client::item_fields(dialect);
    let scan_limits = client::scan_limits(dialect);
    let stage = context.trace.stage("receive");
    let mut scanned = body::read(http, payload, fields, scan_limits, limits, &worker.gateway.bodies).await?;
    drop(stage);
    let stage = context.trace.stage("classify");
    let parsed = client::parse_embed(dialect, &scanned.scan, &scanned.bytes)?;
    let items = scanned.scan.take_items(fields);
    let call = classify::call(context, parsed, items, scanned.share)?;
    drop(stage);
    run(Rc::clone(worker), call, in_flight).await
}

/// Runs the journey as a task of its own: a client that leaves drops this future, and the journey learns of it through
/// the token instead of being cut.
async fn run(
    worker: Rc<Worker>,
    call: classify::Call,
    in_flight: crate::lifecycle::InFlight,
) -> Result<Finished, ApiError> {
    let gone = CancellationToken::new();
    let leaving = gone.clone().drop_guard();
    let task = actix_web::rt::spawn(async move {
        let finished = journey::embed(worker, call, gone).await;
        drop(in_flight);
        finished
    });
    let finished = task.await;
    leaving.disarm();
    finished.map_err(|_panicked| ApiError::new(Code::Internal, "the request hit a fault of the gateway"))
}
