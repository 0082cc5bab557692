//! What was noted of a request as spans: one for the request, one for each stage and each call to an upstream. Names of
//! spans and attributes are spelled here only and follow OpenTelemetry's conventions, those of `gen_ai` among them.

use tracing::info_span;

use crate::config::plan::Provider;
use crate::telemetry::labels::CallStatus;
use crate::telemetry::traces::notes::{CallNote, EndNote, Notes};

use super::pen::{Identity, Pen};

/// The target of the spans, for filters.
pub const TARGET: &str = "vectorgate::trace";

/// What shows a span as failed.
const ERROR: &str = "ERROR";

/// Writes the spans of a request with `pen`; `fresh` gives random ids.
pub(super) fn describe(notes: &Notes, pen: &Pen, mut fresh: impl FnMut() -> u64) {
    let state = notes.state.as_deref().unwrap_or_default();
    let whole = Identity {
        trace: notes.trace.0,
        span: notes.span,
        parent: notes.parent,
        remote: notes.parent.is_some(),
        state,
        began: notes.origin.saturating_add(notes.began.0),
        ended: notes.origin.saturating_add(notes.ended.0),
    };
    let within = |span, began: u64, ended: u64| Identity {
        span,
        parent: Some(notes.span),
        remote: false,
        began: notes.origin.saturating_add(began),
        ended: notes.origin.saturating_add(ended),
        ..whole
    };
    for stage in &notes.stages {
        pen.bare(within(fresh().max(1), stage.began.0, stage.ended.0), stage.name);
    }
    for note in &notes.calls {
        pen.write(within(note.span, note.began.0, note.ended.0), || call(note));
    }
    pen.write(whole, || request(&notes.route, notes.end.as_ref()));
}

fn request(route: &str, end: Option<&EndNote>) -> tracing::Span {
    let name = format!("POST {route}");
    let journey = end.and_then(|end| end.journey.as_ref());
    let cost = journey.map(|journey| journey.cost.with_text(str::to_owned));
    let generated = journey.map(|journey| journey.output_tokens).filter(|tokens| *tokens > 0);
    let read = journey.map(|journey| journey.tokens.saturating_sub(journey.output_tokens));
    info_span!(
        target: TARGET,
        parent: None,
        "request",
        otel.name = name.as_str(),
        otel.kind = "server",
        otel.status_code = end.filter(|end| end.status >= 500).map(|_| ERROR),
        request_id = end.map(|end| end.request_id.as_str()),
        tenant = journey.map(|journey| journey.tenant.as_str()),
        class = end.map(|end| end.class.as_str()),
        cache = journey.map(|journey| journey.cache.as_str()),
        items = journey.map(|journey| number(journey.items as u64)),
        cached_items = journey.map(|journey| number(journey.cached_items as u64)),
        attempts = journey.map(|journey| i64::from(journey.attempts)),
        upstream = journey.and_then(|journey| journey.upstream.as_ref()).map(|upstream| upstream.as_str()),
        cost = cost.as_deref(),
        http.request.method = "POST",
        http.route = route,
        http.response.status_code = end.map(|end| i64::from(end.status)),
        error.type = end.and_then(|end| end.error),
        gen_ai.operation.name = end.map(|end| end.operation),
        gen_ai.request.model = journey.map(|journey| journey.model.as_str()),
        gen_ai.usage.input_tokens = read.map(number),
        gen_ai.usage.output_tokens = generated.map(number),
    )
}

fn call(note: &CallNote) -> tracing::Span {
    let name = format!("{} {}", note.operation, note.model);
    let failed = note.status.filter(|status| *status != CallStatus::Http(200));
    // A call that another one outran, or that nobody waited for any more, is no failure of its upstream.
    let at_fault = failed.filter(|status| !matches!(status, CallStatus::Outrun | CallStatus::Cancelled));
    let code = match note.status {
        Some(CallStatus::Http(code)) => Some(i64::from(code)),
        _ => None,
    };
    info_span!(
        target: TARGET,
        parent: None,
        "upstream_call",
        otel.name = name.as_str(),
        otel.kind = "client",
        otel.status_code = at_fault.map(|_| ERROR),
        upstream = note.upstream.as_str(),
        items = number(note.items as u64),
        http.response.status_code = code,
        error.type = failed.map(CallStatus::as_str),
        gen_ai.operation.name = note.operation,
        gen_ai.provider.name = provider_name(note.provider),
        gen_ai.request.model = &*note.model,
        gen_ai.usage.input_tokens = note.tokens.map(number),
    )
}

/// As the protocol has it: signed.
fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// A provider's name in the `gen_ai` conventions, which know some by longer names than the configuration.
const fn provider_name(provider: Provider) -> &'static str {
    match provider {
        Provider::Azure => "azure.ai.openai",
        other => other.as_str(),
    }
}
