//! One request's place in a distributed trace: W3C trace context in and out, and the spans of its journey.
//!
//! A trace id exists whether or not spans are exported, so that logs and error bodies can always name one. Attribute
//! names follow OpenTelemetry's `gen_ai` conventions and are spelled here only.

use std::fmt;

use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceState};
use opentelemetry::{Context, trace};
use tracing::Span;
use tracing::field::Empty;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use super::labels::TraceId;

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
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
        write!(f, "00-{}-{:016x}-{:02x}", self.trace, self.span, self.flags)
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
    state: Option<String>,
}

impl RequestTrace {
    /// Starts the request's span under the client's `traceparent`, or as the root of a new trace. `fresh` is a random
    /// number for the id of a trace that nobody else names (zero is made one).
    pub fn begin(traceparent: Option<&str>, tracestate: Option<&str>, fresh: u128) -> RequestTrace {
        let parent = traceparent.and_then(TraceParent::parse);
        let state = tracestate.filter(|text| parent.is_some() && text.len() <= MAX_TRACESTATE).map(str::to_owned);
        let span = tracing::info_span!(
            "request",
            otel.name = Empty,
            otel.kind = "server",
            otel.status_code = Empty,
            trace_id = Empty,
            request_id = Empty,
            tenant = Empty,
            class = Empty,
            cache = Empty,
            attempts = Empty,
            upstream = Empty,
            http.route = Empty,
            http.response.status_code = Empty,
            error.type = Empty,
            gen_ai.operation.name = Empty,
            gen_ai.request.model = Empty,
            gen_ai.response.model = Empty,
            gen_ai.usage.input_tokens = Empty,
            gen_ai.usage.output_tokens = Empty,
            gen_ai.embeddings.dimension.count = Empty,
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
        span.record("trace_id", tracing::field::display(trace));
        RequestTrace { span, trace, flags, state }
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

    /// A child span for a stage of the journey.
    pub fn stage(&self, name: &'static str) -> Span {
        tracing::info_span!(parent: &self.span, "stage", otel.name = name)
    }

    /// A child span for one call to an upstream. `operation` is `embeddings`, `rerank` or `chat`, `provider` the
    /// upstream's wire format, `model` the model's name there.
    pub fn upstream_call(&self, operation: &'static str, provider: &'static str, model: &str, upstream: &str) -> Span {
        tracing::info_span!(
            parent: &self.span,
            "upstream_call",
            otel.name = %format_args!("{operation} {model}"),
            otel.kind = "client",
            otel.status_code = Empty,
            upstream,
            attempt = Empty,
            items = Empty,
            http.response.status_code = Empty,
            error.type = Empty,
            gen_ai.operation.name = operation,
            gen_ai.provider.name = provider,
            gen_ai.request.model = model,
            gen_ai.usage.input_tokens = Empty,
            gen_ai.usage.output_tokens = Empty,
        )
    }

    /// `traceparent` and `tracestate` for a call made under `span`. `fresh` is a random number for the id of a span
    /// that nobody exports (zero is made one).
    pub fn outgoing(&self, span: &Span, fresh: u64) -> (String, Option<String>) {
        let parent = exported(span).map_or(
            TraceParent { trace: self.trace, span: fresh.max(1), flags: self.flags },
            |context| TraceParent {
                trace: TraceId(u128::from_be_bytes(context.trace_id().to_bytes())),
                span: u64::from_be_bytes(context.span_id().to_bytes()),
                flags: context.trace_flags().to_u8(),
            },
        );
        (parent.to_string(), self.state.clone())
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
    fn without_an_exporter_the_clients_trace_goes_through() {
        let trace = RequestTrace::begin(Some(CLIENT), Some("vendor=1"), 5);
        assert_eq!(trace.id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        let (traceparent, tracestate) = trace.outgoing(trace.span(), 0xf);
        assert_eq!(traceparent, "00-0af7651916cd43dd8448eb211c80319c-000000000000000f-01");
        assert_eq!(tracestate.as_deref(), Some("vendor=1"));
        assert_eq!(trace.exemplar(), Some(trace.id()));
    }

    #[test]
    fn a_request_without_a_trace_gets_one() {
        let trace = RequestTrace::begin(Some("nonsense"), Some("vendor=1"), 0xabc);
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
            let trace = RequestTrace::begin(Some(CLIENT), None, 5);
            assert_eq!(trace.id().to_string(), "0af7651916cd43dd8448eb211c80319c");
            let call = trace.upstream_call("embeddings", "openai", "text-embedding-3-small", "u1");
            let (own, _) = trace.outgoing(trace.span(), 9);
            let (calls, _) = trace.outgoing(&call, 9);
            let (own, calls) = (TraceParent::parse(&own), TraceParent::parse(&calls));
            let (own, calls) = (own.expect("valid"), calls.expect("valid"));
            assert_eq!((own.trace, calls.trace), (trace.id(), trace.id()));
            assert!(own.span != calls.span && own.span != 9 && calls.span != 0xb7ad_6b71_6920_3331);
            assert_eq!(calls.flags, 1);
            let root = RequestTrace::begin(None, None, 5);
            assert_ne!(root.id(), TraceId(5), "the exporter's own id is the one that can be found again");
        });
    }
}
