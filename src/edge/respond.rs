//! Answers: bodies in the route's dialect, and the headers of the contract.

use std::time::Duration;

use actix_web::dev::ServiceResponse;
use actix_web::http::StatusCode;
use actix_web::http::header::{CONTENT_TYPE, HeaderValue};
use actix_web::{HttpRequest, HttpResponse, HttpResponseBuilder};
use bytes::Bytes;

use crate::dialects::ClientDialect;
use crate::dialects::client::{self, ErrorIds, RenderEmbed, RenderRerank, render_embed, render_error};
use crate::dialects::rerank::{Scored, rank, search_units};
use crate::error::{ApiError, Code};
use crate::ids::RequestId;
use crate::journey::classify::{EmbedTask, Task};
use crate::journey::plan::Entry;
use crate::journey::rate;
use crate::journey::rerank::RerankTask;
use crate::journey::settle::Finished;
use crate::pure::digits;
use crate::pure::tenant_limits::Allowances;
use crate::telemetry::CacheResult;
use crate::telemetry::labels::TraceId;
use crate::vector::Vector;

use super::headers::{Writer, names};
use super::request;
use super::stream::{AnswerBody, Held, Pieces};

/// What most answers are.
pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The answer to a journey; `held` is let go when it is out.
///
/// A short one is one piece with its length, a long one is written while it is sent.
pub fn answer(mut finished: Finished, held: Held) -> HttpResponse {
    let seat = std::mem::take(&mut finished.seat);
    let context = &finished.call.context;
    let dialect = context.dialect;
    let (mut builder, body) = match &finished.result {
        Ok(entries) => {
            let mut builder = HttpResponse::Ok();
            builder.insert_header((CONTENT_TYPE, JSON));
            // TEI's own routes have no room in the body for what was counted.
            if matches!(dialect, ClientDialect::Tei | ClientDialect::TeiOpenAi) {
                builder.insert_header(("x-compute-tokens", usage(entries).0.to_string()));
            }
            let body = match &finished.call.task {
                Task::Embed(task) => {
                    let said = &finished.call.model.said;
                    builder.insert_header((names::SPACE, said.space.clone()));
                    builder.insert_header((names::MODEL, said.name.clone()));
                    embedded(&finished, task, entries)
                }
                Task::Rerank(task) => Pieces::Whole(ranked(&finished, task, entries)),
            };
            (builder, body)
        }
        Err(error) => {
            let ids = ErrorIds { request: Some(context.request_id.as_str()), trace: Some(context.trace.id()) };
            let (content_type, body) = render_error(dialect, error, ids);
            let mut builder = HttpResponse::build(status(dialect, error));
            builder.insert_header((CONTENT_TYPE, content_type));
            error_headers(&mut builder, error);
            if finished.call.class.is_search() && error.code.wants_lexical() {
                builder.insert_header(("x-retrieval-fallback", "lexical-only"));
                // The person who waits gets lexical results at once instead of an SDK's retries.
                if matches!(error.code, Code::UpstreamCircuitOpen | Code::NoCompatibleUpstream) {
                    builder.insert_header(("x-should-retry", "false"));
                }
            }
            (builder, Pieces::Whole(body))
        }
    };
    let total = finished.end.tell();
    let mut answer = builder.body(AnswerBody::new(body, held, seat));
    journey_headers(Writer::new(answer.headers_mut()), &finished, total);
    answer
}

/// What an answer states of its tokens: those that its parts stand for, whether they were fresh or cached, so that a
/// hit and a miss have the same bytes; and whether any of them were estimated.
fn usage(entries: &[Entry]) -> (u64, bool) {
    (entries.iter().map(|entry| u64::from(entry.tokens)).sum(), entries.iter().any(|entry| entry.estimated))
}

fn embedded(finished: &Finished, task: &EmbedTask, entries: &[Entry]) -> Pieces {
    let context = &finished.call.context;
    let vectors: Vec<Vector> = entries.iter().filter_map(|entry| entry.vector().cloned()).collect();
    if task.similarity {
        return Pieces::Whole(client::render_similarity(&vectors));
    }
    let (tokens, estimated) = usage(entries);
    let answer = RenderEmbed {
        model: finished.call.model.plan.name.as_str(),
        id: context.request_id.as_str(),
        vectors,
        inputs: &task.inputs,
        form: &task.form,
        tokens,
        estimated,
    };
    render_embed(context.dialect, answer).whole().map_or_else(|pieces| Pieces::Vectors(*pieces), Pieces::Whole)
}

fn ranked(finished: &Finished, task: &RerankTask, entries: &[Entry]) -> Bytes {
    let context = &finished.call.context;
    let scored = entries.iter().enumerate();
    let scored = scored.filter_map(|(index, entry)| Some(Scored { index, score: entry.score()? })).collect();
    let (tokens, estimated) = usage(entries);
    let answer = RenderRerank {
        model: finished.call.model.plan.name.as_str(),
        id: context.request_id.as_str(),
        results: &rank(scored, task.top_n),
        documents: &task.documents,
        return_documents: task.return_documents,
        tokens,
        searches: search_units(task.documents.len()),
        estimated,
    };
    client::render_rerank(context.dialect, &answer)
}

fn journey_headers(mut headers: Writer<'_>, finished: &Finished, total: Duration) {
    let context = &finished.call.context;
    let money = &context.running.money_names;
    headers.text(names::REQUEST_ID, &[context.request_id.as_str()]);
    headers.trace(context.trace.id());
    headers.timing(total, finished.dwell, finished.upstream_time);
    headers.money(money.cost.clone(), finished.cost);
    if let Some(remaining) = finished.remaining {
        headers.money(money.remaining.clone(), remaining);
    }
    let result = match finished.cache {
        CacheResult::Hit => "HIT",
        CacheResult::Miss => "MISS",
        CacheResult::Partial => "PARTIAL",
        CacheResult::Bypass => "BYPASS",
    };
    headers.word(names::CACHE_RESULT, result);
    let (hits, items) = (finished.cached_items, finished.call.items.len());
    let [hits, items] = [hits, items].map(|count| digits::decimal(count as u64));
    headers.text(names::CACHE_HITS, &[hits.as_str(), "/", items.as_str()]);
    if let Some(upstream) = &finished.upstream {
        headers.text(names::UPSTREAM, &[upstream.as_str()]);
    }
    if let Some(allowances) = rate::allowances(context, finished.call.class, Some(&finished.call.model.routes)) {
        allowance_headers(&mut headers, allowances);
    }
    headers.number(names::ATTEMPTS, finished.attempts.into());
    headers.word(names::TRAFFIC_CLASS, finished.call.class.as_str());
}

pub(super) fn allowance_headers(headers: &mut Writer<'_>, allowances: Allowances) {
    let requests = [names::LIMIT_REQUESTS, names::REMAINING_REQUESTS, names::RESET_REQUESTS];
    let tokens = [names::LIMIT_TOKENS, names::REMAINING_TOKENS, names::RESET_TOKENS];
    for (names, allowance) in [(requests, allowances.requests), (tokens, allowances.tokens)] {
        let (Some(limit), Some(remaining)) = (allowance.limit, allowance.remaining) else { continue };
        let [limit_name, remaining_name, reset_name] = names;
        headers.number(limit_name, limit);
        headers.number(remaining_name, remaining);
        headers.text(reset_name, &[&rate::notation(allowance.reset)]);
    }
}

pub(super) fn status(dialect: ClientDialect, error: &ApiError) -> StatusCode {
    StatusCode::from_u16(client::status(dialect, error)).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// `Retry-After` and what goes with it, on 429 and 503.
pub(super) fn error_headers(builder: &mut HttpResponseBuilder, error: &ApiError) {
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
pub fn error(dialect: ClientDialect, id: &RequestId, trace: Option<TraceId>, error: &ApiError) -> HttpResponse {
    let (content_type, body) = render_error(dialect, error, ErrorIds { request: Some(id.as_str()), trace });
    let mut builder = HttpResponse::build(status(dialect, error));
    builder.insert_header((CONTENT_TYPE, content_type));
    builder.insert_header(("x-request-id", id.as_str()));
    if let Some(trace) = trace {
        builder.insert_header(("x-trace-id", trace.to_string()));
    }
    error_headers(&mut builder, error);
    builder.body(body)
}

/// Names the request on an answer that does not do so itself: every answer can be asked about.
pub fn identify<B>(response: &mut ServiceResponse<B>) {
    if response.headers().contains_key(names::REQUEST_ID) {
        return;
    }
    let id = request::request_id(response.request().headers());
    if let Ok(id) = HeaderValue::from_str(id.as_str()) {
        response.headers_mut().insert(names::REQUEST_ID, id);
    }
}

/// An error on a route that has no journey.
pub fn plain_error(request: &HttpRequest, dialect: ClientDialect, problem: &ApiError) -> HttpResponse {
    error(dialect, &request::request_id(request.headers()), None, problem)
}
