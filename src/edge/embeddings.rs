//! `POST /v1/embeddings` and its relatives: parse, take the journey, render.

use std::rc::Rc;

use actix_web::web::Payload;
use actix_web::{HttpRequest, HttpResponse};
use tokio_util::sync::CancellationToken;

use crate::dialects::{ClientDialect, client};
use crate::error::{ApiError, Code};
use crate::ids::RequestId;
use crate::journey::settle::Finished;
use crate::journey::{self, classify};
use crate::lifecycle::InFlight;
use crate::worker::Worker;

use super::body::{self, BodyLimits, Overflow};
use super::stream::Held;
use super::{request, respond};

/// OpenAI's route.
pub async fn openai(http: HttpRequest, payload: Payload) -> HttpResponse {
    embed(http, payload, ClientDialect::OpenAi).await
}

async fn embed(http: HttpRequest, mut payload: Payload, dialect: ClientDialect) -> HttpResponse {
    let id = request::request_id(http.headers());
    match answer(&http, &mut payload, dialect, id.clone()).await {
        Ok((finished, held)) => respond::embeddings(finished, held),
        Err(error) => respond::error(dialect, &id, &error),
    }
}

async fn answer(
    http: &HttpRequest,
    payload: &mut Payload,
    dialect: ClientDialect,
    id: RequestId,
) -> Result<(Finished, Held), ApiError> {
    let worker = super::worker(http)?;
    let present = worker.crowd.enter();
    let (context, in_flight) = request::enter(&worker, http, id, dialect)?;
    let server = &context.running.plan.server;
    let limits = BodyLimits { max_bytes: server.max_body_bytes, idle: server.body_timeout };
    let fields = client::item_fields(dialect);
    let scanning = (fields, client::scan_limits(dialect));
    let overflow = match client::may_spool(dialect) {
        true => Overflow::Spool(server.spool_dir.clone()),
        false => Overflow::Refuse,
    };
    let mut scanned = body::read_or_spool(http, payload, scanning, limits, &worker.gateway.bodies, overflow).await?;
    let parsed = client::parse_embed(dialect, &scanned.scan, &scanned.bytes)?;
    let items = scanned.scan.take_items(fields);
    let call = classify::call(context, parsed, items, scanned.share)?;
    let (finished, in_flight) = run(worker, call, in_flight).await?;
    Ok((finished, Held { present, in_flight }))
}

/// Runs the journey as a task of its own: a client that leaves drops this future, and the journey learns of it through
/// the token instead of being cut.
async fn run(worker: Rc<Worker>, call: classify::Call, in_flight: InFlight) -> Result<(Finished, InFlight), ApiError> {
    let gone = CancellationToken::new();
    let leaving = gone.clone().drop_guard();
    let task = actix_web::rt::spawn(async move { (journey::embed(worker, call, gone).await, in_flight) });
    let finished = task.await;
    leaving.disarm();
    finished.map_err(|_panicked| ApiError::new(Code::Internal, "the request hit a fault of the gateway"))
}
