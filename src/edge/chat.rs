//! Chat requests over HTTP: read, pass on, answer whole or event by event. Knows headers and bodies; what passes through is
//! the journey's.
//!
//! A stream's head leaves before its cost is known, so it says neither the cost nor what is left: those are in the ledger
//! when the stream's last event leaves.

use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use actix_web::body::{BodySize, MessageBody};
use actix_web::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use actix_web::web::Payload;
use actix_web::{HttpRequest, HttpResponse};
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::dialects::ClientDialect;
use crate::dialects::chat::ChatApi;
use crate::dialects::chat::request::{self as chat_request, Said};
use crate::dialects::client::{ErrorIds, render_error};
use crate::error::{ApiError, Code};
use crate::journey::chat::{self, ChatCall, Facts, Head, Reply, Whole};
use crate::journey::rate;
use crate::lifecycle::InFlight;
use crate::pure::class::TrafficClass;
use crate::room::Seat;
use crate::worker::Worker;

use super::body::{self, BodyLimits, Overflow};
use super::headers::{Writer, names};
use super::request::{self, Arrival};
use super::respond::{self, JSON, allowance_headers, error_headers};
use super::routes::ChatEntry;
use super::stream::{AnswerBody, Held, Pieces};

/// Longest header of a client's that goes on to its provider, bytes.
const LONGEST_WORD: usize = 1_024;

/// Answers a POST of a chat route.
pub async fn post(http: HttpRequest, mut payload: Payload, entry: ChatEntry) -> HttpResponse {
    let dialect = entry.dialect_of(http.headers());
    let worker = match super::worker(&http) {
        Ok(worker) => worker,
        Err(error) => return respond::plain_error(&http, dialect, &error),
    };
    let present = worker.crowd.enter();
    let arrival = request::arrive(&worker, &http);
    match ask(&worker, &http, &mut payload, (entry.api, dialect), arrival.clone()).await {
        Ok((Reply::Whole(whole), in_flight)) => answer(*whole, Held { present, in_flight }),
        Ok((Reply::Stream(head), in_flight)) => stream(*head, Held { present, in_flight }),
        Err(error) => {
            request::refused(&worker, &arrival, "chat", TrafficClass::Chat, &error);
            respond::error(dialect, &arrival.request_id, Some(arrival.trace.id()), &error)
        }
    }
}

async fn ask(
    worker: &Rc<Worker>,
    http: &HttpRequest,
    payload: &mut Payload,
    (api, dialect): (ChatApi, ClientDialect),
    arrival: Arrival,
) -> Result<(Reply, InFlight), ApiError> {
    let (context, in_flight) = request::enter(worker, http, arrival, dialect).await?;
    let named = super::routes::model_of(http)?;
    let scanned = {
        let server = &context.running.plan.server;
        let _stage = context.trace.stage("receive");
        let limits = BodyLimits { max_bytes: server.max_body_bytes, idle: server.body_timeout };
        let fields = (chat_request::item_fields(api), chat_request::scan_limits());
        body::read(http, payload, fields, limits, &worker.gateway.bodies, Overflow::Refuse).await?
    };
    let call = {
        let _stage = context.trace.stage("classify");
        let mut parsed = chat_request::parse(api, &scanned.scan, &scanned.bytes, said(http))?;
        parsed.model = named.or(parsed.model);
        chat::call(context, parsed, scanned.share)?
    };
    Ok((run(worker, call, in_flight.again()).await?, in_flight))
}

/// What of the request's head goes on to a provider.
fn said(http: &HttpRequest) -> Said {
    let all = |name: &str| {
        let values: Vec<&str> = http.headers().get_all(name).filter_map(|value| value.to_str().ok()).collect();
        Some(values.join(",")).filter(|joined| (1..=LONGEST_WORD).contains(&joined.len()))
    };
    Said {
        anthropic_version: all("anthropic-version"),
        anthropic_beta: all("anthropic-beta"),
        beta_query: http.query_string().split('&').any(|pair| pair == "beta=true"),
    }
}

/// Runs the journey as a task of its own: a client that leaves before its answer's head drops this future, and the journey
/// learns of it through the token; after that, through the events that nobody takes.
async fn run(worker: &Rc<Worker>, call: ChatCall, in_flight: InFlight) -> Result<Reply, ApiError> {
    let gone = CancellationToken::new();
    let leaving = gone.clone().drop_guard();
    let (told, reply) = oneshot::channel();
    let worker = Rc::clone(worker);
    actix_web::rt::spawn(async move {
        chat::serve(worker, call, gone, told).await;
        drop(in_flight);
    });
    let reply = reply.await;
    leaving.disarm();
    reply.map_err(|_panicked| ApiError::new(Code::Internal, "the request hit a fault of the gateway"))
}

/// A whole answer, or an error.
fn answer(mut whole: Whole, held: Held) -> HttpResponse {
    let context = &whole.call.context;
    let (mut builder, body) = match &whole.result {
        Ok(body) => {
            let mut builder = HttpResponse::Ok();
            builder.insert_header((CONTENT_TYPE, JSON));
            (builder, body.clone())
        }
        Err(error) => {
            let ids = ErrorIds { request: Some(context.request_id.as_str()), trace: Some(context.trace.id()) };
            let (content_type, body) = render_error(context.dialect, error, ids);
            let mut builder = HttpResponse::build(respond::status(context.dialect, error));
            builder.insert_header((CONTENT_TYPE, content_type));
            error_headers(&mut builder, error);
            (builder, body)
        }
    };
    let total = whole.end.tell();
    let mut answer = builder.body(AnswerBody::new(Pieces::Whole(body), held, Seat::default()));
    let mut headers = Writer::new(answer.headers_mut());
    facts(&mut headers, &whole.call, &whole.facts, total);
    let money = &context.running.money_names;
    headers.money(money.cost.clone(), whole.cost);
    if let Some(remaining) = whole.remaining {
        headers.money(money.remaining.clone(), remaining);
    }
    answer
}

/// A stream's head, and its events as they come.
fn stream(head: Head, held: Held) -> HttpResponse {
    let mut answer = HttpResponse::Ok().body(EventBody { events: head.events, _held: held });
    let mut headers = Writer::new(answer.headers_mut());
    headers.text(CONTENT_TYPE, &[&head.content_type]);
    headers.word(CACHE_CONTROL, "no-cache");
    // A proxy in front that gathers an answer before it passes it on would undo the streaming.
    headers.word(names::ACCEL_BUFFERING, "no");
    facts(&mut headers, &head.call, &head.facts, head.after);
    answer
}

fn facts(headers: &mut Writer<'_>, call: &ChatCall, facts: &Facts, total: Duration) {
    let context = &call.context;
    let id = context.request_id.as_str();
    headers.text(names::REQUEST_ID, &[id]);
    if context.dialect == ClientDialect::Anthropic {
        headers.text(names::PLAIN_REQUEST_ID, &[id]);
    }
    headers.trace(context.trace.id());
    headers.timing(total, facts.dwell, facts.upstream_time);
    headers.word(names::CACHE_RESULT, "BYPASS");
    if let Some(upstream) = &facts.upstream {
        headers.text(names::UPSTREAM, &[upstream.as_str()]);
    }
    if let Some(model) = &facts.model {
        headers.text(names::CHAT_MODEL, &[model.as_str()]);
    }
    if let Some(allowances) = rate::allowances(context, call.class, call.routes()) {
        allowance_headers(headers, allowances);
    }
    headers.number(names::ATTEMPTS, facts.attempts.into());
    headers.word(names::TRAFFIC_CLASS, call.class.as_str());
}

/// Events as the journey hands them over. Dropping it, when the client has left, tells the journey so.
struct EventBody {
    events: mpsc::Receiver<Bytes>,
    _held: Held,
}

impl MessageBody for EventBody {
    type Error = Infallible;

    fn size(&self) -> BodySize {
        BodySize::Stream
    }

    fn poll_next(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<Option<Result<Bytes, Infallible>>> {
        self.events.poll_recv(context).map(|piece| piece.map(Ok))
    }
}
