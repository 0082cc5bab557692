//! One request's place in a distributed trace: W3C trace context in and out, and the spans of its journey.
//!
//! A trace id exists whether or not spans are exported, so that logs and error bodies can always name one. Spans exist
//! only where somebody receives them: without an exporter, or in a trace that its sampler left out, a stage costs a
//! comparison. Attribute names follow OpenTelemetry's `gen_ai` conventions and are spelled here only.

use std::fmt;

use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceState};
use opentelemetry::{Context, trace};
use tracing::Span;
use tracing::field::{Empty, display};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::config::plan::{Provider, Upstream};
use crate::error::ApiError;
use crate::pure::digits;

use super::labels::{CallStatus, TraceId};
use super::requests::RequestEnd;

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(digits::hex(self.0).as_str())
    }
}

/// A valid `traceparent` header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace, never zero.
    pub trace: TraceId,
    /// The caller's span, never zero.
    pub span: u64,
    /// The caller's flags; bit 0: sampled.
    pub flags: u8,
}

impl TraceParent {
    /// Reads a header; `None` for anything the W3C recommendation calls invalid, which then starts a new trace.
    pub fn parse(header: &str) -> Option<TraceParent> {
        let header = header.trim();
        let hex = |part: &str, length: usize| {
            let lower = part.len() == length && part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
            lower.then_some(()).and_then(|()| u128::from_str_radix(part, 16).ok())
        };
        let mut parts = header.split('-');
        let version = hex(parts.next()?, 2)?;
        let trace = hex(parts.next()?, 32)?;
        let span = hex(parts.next()?, 16)?;
        let flags = hex(parts.next()?, 2)?;
        // Version 0 has exactly four parts; a later one may append more; 255 is forbidden.
        let shape = version < 255 && (version > 0 || parts.next().is_none());
        (shape && trace != 0 && span != 0).then_some(TraceParent {
            trace: TraceId(trace),
            span: span as u64,
            flags: flags as u8,
        })
    }

    const fn sampled(self) -> bool {
        self.flags & 1 == 1
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = *b"00-00000000000000000000000000000000-0000000000000000-00";
        let [trace, span, flags] = [self.trace.0, self.span.into(), self.flags.into()].map(digits::hex);
        text[3..35].copy_from_slice(trace.as_str().as_bytes());
        text[36..52].copy_from_slice(&span.as_str().as_bytes()[16..]);
        text[53..].copy_from_slice(&flags.as_str().as_bytes()[30..]);
        f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

/// Longest `tracestate` that is passed on; longer ones are dropped whole, as the recommendation allows.
const MAX_TRACESTATE: usize = 512;

/// A request's trace.
#[derive(Debug)]
pub struct RequestTrace {
    span: Span,
    trace: TraceId,
    flags: u8,
    /// Whether this process exports the trace's spans.
    recorded: bool,
    /// The client's own span.
    parent: Option<u64>,
    state: Option<String>,
}

impl RequestTrace {
    /// Begins under the client's `traceparent`, or as the root of a new trace. `route` is the pattern of the route that
    /// was entered by a POST, where spans are received by anybody; without one there will be none. `fresh` is a random number for the id of a trace that nobody else names (zero is made one).
    pub fn begin(
        route: Option<&str>,
        traceparent: Option<&str>,
        tracestate: Option<&str>,
        fresh: u128,
    ) -> RequestTrace {
        let parent = traceparent.and_then(TraceParent::parse);
        let state = tracestate.filter(|text| parent.is_some() && text.len() <= MAX_TRACESTATE).map(str::to_owned);
        let Some(route) = route else {
            let trace = parent.map_or(TraceId(fresh.max(1)), |parent| parent.trace);
            let flags = parent.map_or(0, |parent| parent.flags);
            let parent = parent.map(|parent| parent.span);
            return RequestTrace { span: Span::none(), trace, flags, recorded: false, parent, state };
        };
        let span = tracing::info_span!(
            "request",
            otel.name = %format_args!("POST {route}"),
            otel.kind = "server",
            otel.status_code = Empty,
            request_id = Empty,
            tenant = Empty,
            class = Empty,
            cache = Empty,
            items = Empty,
            cached_items = Empty,
            attempts = Empty,
            upstream = Empty,
            cost = Empty,
            http.request.method = "POST",
            http.route = route,
            http.response.status_code = Empty,
            error.type = Empty,
            gen_ai.operation.name = Empty,
            gen_ai.request.model = Empty,
            gen_ai.usage.input_tokens = Empty,
            gen_ai.usage.output_tokens = Empty,
        );
        if let Some(parent) = parent {
            // Refused only when nobody exports spans.
            let _ = span.set_parent(remote(parent, state.as_deref()));
        }
        let exported = exported(&span);
        let trace = exported
            .as_ref()
            .map(|context| TraceId(u128::from_be_bytes(context.trace_id().to_bytes())))
            .or(parent.map(|parent| parent.trace))
            .unwrap_or(TraceId(fresh.max(1)));
        let flags = exported
            .as_ref()
            .map(|context| context.trace_flags().to_u8())
            .or(parent.map(|parent| parent.flags))
            .unwrap_or(0);
        let recorded = exported.is_some_and(|context| context.is_sampled());
        RequestTrace { span, trace, flags, recorded, parent: parent.map(|parent| parent.span), state }
    }

    /// Whether this process exports the trace's spans.
    pub const fn is_recorded(&self) -> bool {
        self.recorded
    }

    /// The request's span: enter it around synchronous work, instrument futures with it, and record its fields.
    pub fn span(&self) -> &Span {
        &self.span
    }

    /// The trace's id, for logs and error bodies.
    pub const fn id(&self) -> TraceId {
        self.trace
    }

    /// The trace's id if its spans are kept somewhere: what an exemplar should point to.
    pub const fn exemplar(&self) -> Option<TraceId> {
        if self.flags & 1 == 1 { Some(self.trace) } else { None }
    }

    /// A child span for a stage of the journey: it lasts until it is dropped.
    pub fn stage(&self, name: &'static str) -> Span {
        if !self.recorded {
            return Span::none();
        }
        tracing::info_span!(parent: &self.span, "stage", otel.name = name)
    }

    /// A child span for one call to an upstream: `operation` is `embeddings`, `rerank` or `chat`, `model` the model's
    /// name there, `items` how many inputs the call carries.
    pub fn upstream_call(&self, operation: &'static str, upstream: &Upstream, model: &str, items: usize) -> Span {
        if !self.recorded {
            return Span::none();
        }
        tracing::info_span!(
            parent: &self.span,
            "upstream_call",
            otel.name = %format_args!("{operation} {model}"),
            otel.kind = "client",
            otel.status_code = Empty,
            upstream = upstream.id.as_str(),
            items,
            http.response.status_code = Empty,
            error.type = Empty,
            gen_ai.operation.name = operation,
            gen_ai.provider.name = provider_name(upstream.provider),
            gen_ai.request.model = model,
            gen_ai.usage.input_tokens = Empty,
        )
    }

    /// `traceparent` and `tracestate` for a call made under `span`. Where no span is exported, the client's own goes on
    /// as it came, so that its trace has no hole where this process is; and `fresh` is a random number for the id of a
    /// span that nobody knows (zero is made one).
    pub fn outgoing(&self, span: &Span, fresh: u64) -> (String, Option<String>) {
        let own = if self.recorded { exported(span) } else { None };
        let parent = own.map_or_else(
            || TraceParent { trace: self.trace, span: self.parent.unwrap_or(fresh.max(1)), flags: self.flags },
            |context| TraceParent {
                trace: TraceId(u128::from_be_bytes(context.trace_id().to_bytes())),
                span: u64::from_be_bytes(context.span_id().to_bytes()),
                flags: context.trace_flags().to_u8(),
            },
        );
        (parent.to_string(), self.state.clone())
    }

    /// Writes what is known at the end onto the request's span, which ends when the trace is dropped.
    pub fn ended(&self, end: &RequestEnd) {
        if !self.recorded {
            return;
        }
        let (span, status) = (&self.span, end.error.as_ref().map_or(200, ApiError::status));
        span.record("request_id", end.request_id.as_str());
        span.record("class", end.class.as_str());
        span.record("http.response.status_code", status);
        span.record("gen_ai.operation.name", end.operation);
        if let Some(error) = &end.error {
            span.record("error.type", error.code.row().name);
            if status >= 500 {
                span.record("otel.status_code", "ERROR");
            }
        }
        let Some(journey) = &end.journey else { return };
        span.record("tenant", journey.tenant.as_str());
        span.record("cache", journey.cache.as_str());
        span.record("items", journey.items);
        span.record("cached_items", journey.cached_items);
        span.record("attempts", journey.attempts);
        span.record("cost", display(journey.cost));
        span.record("gen_ai.request.model", journey.model.as_str());
        span.record("gen_ai.usage.input_tokens", journey.tokens.saturating_sub(journey.output_tokens));
        if journey.output_tokens > 0 {
            span.record("gen_ai.usage.output_tokens", journey.output_tokens);
        }
        if let Some(upstream) = &journey.upstream {
            span.record("upstream", upstream.as_str());
        }
    }
}

/// Writes how a call ended onto its span; `tokens` as the provider billed them.
pub fn call_ended(span: &Span, status: CallStatus, tokens: Option<u64>) {
    if span.is_none() {
        return;
    }
    if let CallStatus::Http(code) = status {
        span.record("http.response.status_code", code);
    }
    if status != CallStatus::Http(200) {
        span.record("error.type", status.as_str());
        // A call that another one outran, or that nobody waited for any more, is no failure of its upstream.
        if !matches!(status, CallStatus::Outrun | CallStatus::Cancelled) {
            span.record("otel.status_code", "ERROR");
        }
    }
    if let Some(tokens) = tokens {
        span.record("gen_ai.usage.input_tokens", tokens);
    }
}

/// A provider's name in the `gen_ai` conventions, which know some by longer names than the configuration.
pub const fn provider_name(provider: Provider) -> &'static str {
    match provider {
        Provider::Azure => "azure.ai.openai",
        other => other.as_str(),
    }
}

/// The span's identity in the exported trace, if spans are exported.
fn exported(span: &Span) -> Option<SpanContext> {
    let context = span.context();
    let identity = context.span().span_context().clone();
    identity.is_valid().then_some(identity)
}

fn remote(parent: TraceParent, state: Option<&str>) -> Context {
    let flags = if parent.sampled() { TraceFlags::SAMPLED } else { TraceFlags::default() };
    let state = state.and_then(|text| text.parse::<TraceState>().ok()).unwrap_or_default();
    let (trace, span) = (trace::TraceId::from(parent.trace.0), SpanId::from(parent.span));
    Context::new().with_remote_span_context(SpanContext::new(trace, span, flags, true, state))
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::TracerProvider;
    use opentelemetry_sdk::trace::SdkTracerProvider;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    const CLIENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[track_caller]
    fn check(header: &str, valid: bool) {
        assert_eq!(TraceParent::parse(header).is_some(), valid, "{header}");
    }

    #[test]
    fn headers_are_read_as_the_recommendation_says() {
        assert_eq!(TraceParent::parse(CLIENT).expect("valid").to_string(), CLIENT);
        check("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", true);
        check("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-the-future-holds", true);
        check("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", false);
        check("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", false);
        check("00-00000000000000000000000000000000-b7ad6b7169203331-01", false);
        check("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", false);
        check("00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", false);
        check("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331", false);
        check("00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", false);
        check("", false);
    }

    #[test]
    fn without_an_exporter_the_clients_trace_goes_through_as_it_came() {
        let trace = RequestTrace::begin(None, Some(CLIENT), Some("vendor=1"), 5);
        assert_eq!(trace.id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        let (traceparent, tracestate) = trace.outgoing(trace.span(), 0xf);
        assert_eq!(traceparent, CLIENT);
        assert!(trace.stage("cache").is_none() && !trace.is_recorded());
        assert_eq!(tracestate.as_deref(), Some("vendor=1"));
        assert_eq!(trace.exemplar(), Some(trace.id()));
    }

    #[test]
    fn a_request_without_a_trace_gets_one() {
        let trace = RequestTrace::begin(None, Some("nonsense"), Some("vendor=1"), 0xabc);
        assert_eq!(trace.id(), TraceId(0xabc));
        let (traceparent, tracestate) = trace.outgoing(trace.span(), 0);
        assert_eq!(traceparent, format!("00-{:032x}-{:016x}-00", 0xabc, 1));
        assert_eq!((tracestate, trace.exemplar()), (None, None));
    }

    #[test]
    fn with_an_exporter_the_upstream_sees_the_calls_own_span() {
        let provider = SdkTracerProvider::builder().build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let trace = RequestTrace::begin(Some("/v1/embeddings"), Some(CLIENT), None, 5);
            assert_eq!(trace.id().to_string(), "0af7651916cd43dd8448eb211c80319c");
            let call = trace.stage("call");
            let (own, _) = trace.outgoing(trace.span(), 9);
            let (calls, _) = trace.outgoing(&call, 9);
            let (own, calls) = (TraceParent::parse(&own), TraceParent::parse(&calls));
            let (own, calls) = (own.expect("valid"), calls.expect("valid"));
            assert_eq!((own.trace, calls.trace), (trace.id(), trace.id()));
            assert!(own.span != calls.span && own.span != 9 && calls.span != 0xb7ad_6b71_6920_3331);
            assert_eq!(calls.flags, 1);
            let root = RequestTrace::begin(Some("/v1/embeddings"), None, None, 5);
            assert_ne!(root.id(), TraceId(5), "the exporter's own id is the one that can be found again");
        });
    }
}
