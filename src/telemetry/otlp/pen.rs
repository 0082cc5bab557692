//! Finished spans as OTLP's protobuf: the tracer behind the `tracing` layer. A span that ends is written to the page of a
//! delivery, field by field; in between there are none of the values that a general exporter copies a span into, and that
//! was most of the cost of a trace.
//!
//! Ids and times are given beforehand, as the spans are made after the fact ([`super::describe`]).

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use opentelemetry::trace::{Span, SpanBuilder, SpanContext, SpanKind, Status, Tracer};
use opentelemetry::{Context, KeyValue, Value};
use parking_lot::Mutex;
use prost::encoding::{WireType, encode_varint, encoded_len_varint, key_len};

/// Which span is made, when it was, and under which other.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Identity<'a> {
    pub trace: u128,
    pub span: u64,
    /// The span above it.
    pub parent: Option<u64>,
    /// The span above it is another process's.
    pub remote: bool,
    /// The client's `tracestate`.
    pub state: &'a str,
    /// Nanoseconds since 1970.
    pub began: u64,
    /// Nanoseconds since 1970.
    pub ended: u64,
}

/// Writes spans; clones write to the same page.
#[derive(Clone, Default)]
pub struct Pen {
    page: Arc<Mutex<Page>>,
}

impl fmt::Debug for Pen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pen")
    }
}

#[derive(Default)]
struct Page {
    /// Spans in full, each as a field of `ScopeSpans`.
    spans: Vec<u8>,
    count: usize,
    /// The next span as far as it was given, and whether it is awaited.
    head: Vec<u8>,
    awaited: bool,
}

impl Pen {
    /// Writes the span that `make` makes, as the one that `identity` says.
    pub(super) fn write(&self, identity: Identity<'_>, make: impl FnOnce() -> tracing::Span) {
        {
            let mut page = self.page.lock();
            page.head.clear();
            given(&mut page.head, identity);
            page.awaited = true;
        }
        // It ends here, and with that it is written.
        drop(make());
        self.page.lock().awaited = false;
    }

    /// Writes a span that has a name and nothing else. It needs no layer: most spans are such, and bringing one through the
    /// layer costs twenty times as much.
    pub(super) fn bare(&self, identity: Identity<'_>, name: &'static str) {
        let mut page = self.page.lock();
        let Page { spans, count, head, .. } = &mut *page;
        head.clear();
        given(head, identity);
        named(head, name, None);
        nested(spans, field::SPANS, head);
        *count += 1;
    }

    /// What was written since the last time, and how many spans that is.
    pub(super) fn take(&self) -> (Vec<u8>, usize) {
        let mut page = self.page.lock();
        let room = page.spans.len();
        (std::mem::replace(&mut page.spans, Vec::with_capacity(room)), std::mem::take(&mut page.count))
    }
}

impl Tracer for Pen {
    type Span = Draft;

    fn build_with_context(&self, builder: SpanBuilder, _: &Context) -> Draft {
        Draft { pen: Some(self.clone()), builder, status: Status::Unset }
    }
}

/// A span that is not written yet.
#[derive(Debug)]
pub struct Draft {
    /// `None`: it is written.
    pen: Option<Pen>,
    builder: SpanBuilder,
    status: Status,
}

impl Span for Draft {
    fn add_event_with_timestamp<T: Into<Cow<'static, str>>>(&mut self, _: T, _: SystemTime, _: Vec<KeyValue>) {}

    fn span_context(&self) -> &SpanContext {
        &SpanContext::NONE
    }

    fn is_recording(&self) -> bool {
        self.pen.is_some()
    }

    fn set_attribute(&mut self, attribute: KeyValue) {
        self.builder.attributes.get_or_insert_default().push(attribute);
    }

    fn set_status(&mut self, status: Status) {
        self.status = status;
    }

    fn update_name<T: Into<Cow<'static, str>>>(&mut self, name: T) {
        self.builder.name = name.into();
    }

    fn add_link(&mut self, _: SpanContext, _: Vec<KeyValue>) {}

    fn end_with_timestamp(&mut self, _: SystemTime) {
        let Some(pen) = self.pen.take() else { return };
        let mut page = pen.page.lock();
        let Page { spans, count, head, awaited } = &mut *page;
        if std::mem::take(awaited) {
            said(head, &self.builder, &self.status);
            nested(spans, field::SPANS, head);
            *count += 1;
        }
    }
}

/// Numbers of fields, from OTLP's `trace.proto` and `common.proto`.
mod field {
    /// Of `ExportTraceServiceRequest`.
    pub const RESOURCE_SPANS: u32 = 1;
    /// Of `ResourceSpans`.
    pub const RESOURCE: u32 = 1;
    pub const SCOPE_SPANS: u32 = 2;
    /// Of `ScopeSpans`.
    pub const SCOPE: u32 = 1;
    pub const SPANS: u32 = 2;
    /// Of `Span`.
    pub const TRACE_ID: u32 = 1;
    pub const SPAN_ID: u32 = 2;
    pub const TRACE_STATE: u32 = 3;
    pub const PARENT_SPAN_ID: u32 = 4;
    pub const NAME: u32 = 5;
    pub const KIND: u32 = 6;
    pub const START: u32 = 7;
    pub const END: u32 = 8;
    pub const ATTRIBUTES: u32 = 9;
    pub const STATUS: u32 = 15;
    pub const FLAGS: u32 = 16;
    /// Of `Status`.
    pub const MESSAGE: u32 = 2;
    pub const CODE: u32 = 3;
    /// Of `KeyValue`.
    pub const KEY: u32 = 1;
    pub const VALUE: u32 = 2;
    /// Of `AnyValue`.
    pub const STRING: u32 = 1;
    pub const BOOL: u32 = 2;
    pub const INT: u32 = 3;
    pub const DOUBLE: u32 = 4;
}

/// Bits of a span's flags: the trace is recorded; it is known whether the parent is another process's; it is.
const SAMPLED: u32 = 0x1;
const KNOWS_REMOTE: u32 = 0x100;
const REMOTE: u32 = 0x200;

/// A whole request of an export, from what [`Pen::take`] gave and the encoded resource and scope.
pub(super) fn export(resource: &[u8], scope: &[u8], spans: &[u8]) -> Vec<u8> {
    let scope_spans = len(field::SCOPE, scope.len()) + spans.len();
    let resource_spans = len(field::RESOURCE, resource.len()) + len(field::SCOPE_SPANS, scope_spans);
    let mut out = Vec::with_capacity(len(field::RESOURCE_SPANS, resource_spans));
    begin(&mut out, field::RESOURCE_SPANS, resource_spans);
    nested(&mut out, field::RESOURCE, resource);
    begin(&mut out, field::SCOPE_SPANS, scope_spans);
    nested(&mut out, field::SCOPE, scope);
    out.extend_from_slice(spans);
    out
}

/// Bytes of a field with `content` bytes in it.
fn len(field: u32, content: usize) -> usize {
    key_len(field) + encoded_len_varint(content as u64) + content
}

/// A number of variable length; nearly all of them have one byte.
fn number(out: &mut Vec<u8>, number: u64) {
    match u8::try_from(number) {
        Ok(small @ ..0x80) => out.push(small),
        _ => encode_varint(number, out),
    }
}

fn key(out: &mut Vec<u8>, field: u32, wire: WireType) {
    number(out, u64::from((field << 3) | wire as u32));
}

fn begin(out: &mut Vec<u8>, field: u32, content: usize) {
    key(out, field, WireType::LengthDelimited);
    number(out, content as u64);
}

fn nested(out: &mut Vec<u8>, field: u32, content: &[u8]) {
    begin(out, field, content.len());
    out.extend_from_slice(content);
}

fn fixed64(out: &mut Vec<u8>, field: u32, bits: u64) {
    key(out, field, WireType::SixtyFourBit);
    out.extend_from_slice(&bits.to_le_bytes());
}

fn varint(out: &mut Vec<u8>, field: u32, value: u64) {
    key(out, field, WireType::Varint);
    number(out, value);
}

/// What is known of a span beforehand.
fn given(out: &mut Vec<u8>, identity: Identity<'_>) {
    nested(out, field::TRACE_ID, &identity.trace.to_be_bytes());
    nested(out, field::SPAN_ID, &identity.span.to_be_bytes());
    if !identity.state.is_empty() {
        nested(out, field::TRACE_STATE, identity.state.as_bytes());
    }
    if let Some(parent) = identity.parent {
        nested(out, field::PARENT_SPAN_ID, &parent.to_be_bytes());
    }
    fixed64(out, field::START, identity.began);
    fixed64(out, field::END, identity.ended);
    key(out, field::FLAGS, WireType::ThirtyTwoBit);
    let flags = SAMPLED | KNOWS_REMOTE | if identity.remote { REMOTE } else { 0 };
    out.extend_from_slice(&flags.to_le_bytes());
}

fn named(out: &mut Vec<u8>, name: &str, kind: Option<&SpanKind>) {
    nested(out, field::NAME, name.as_bytes());
    let kind = match kind {
        None | Some(SpanKind::Internal) => 1,
        Some(SpanKind::Server) => 2,
        Some(SpanKind::Client) => 3,
        Some(SpanKind::Producer) => 4,
        Some(SpanKind::Consumer) => 5,
    };
    varint(out, field::KIND, kind);
}

/// What the layer says of a span.
fn said(out: &mut Vec<u8>, builder: &SpanBuilder, status: &Status) {
    named(out, &builder.name, builder.span_kind.as_ref());
    for KeyValue { key, value, .. } in builder.attributes.iter().flatten() {
        attribute(out, key.as_str(), value);
    }
    match status {
        Status::Unset => {}
        Status::Ok => nested(out, field::STATUS, &[(field::CODE << 3) as u8, 1]),
        Status::Error { description } => {
            let described = if description.is_empty() { 0 } else { len(field::MESSAGE, description.len()) };
            begin(out, field::STATUS, described + 2);
            if described > 0 {
                nested(out, field::MESSAGE, description.as_bytes());
            }
            varint(out, field::CODE, 2);
        }
    }
}

fn attribute(out: &mut Vec<u8>, name: &str, value: &Value) {
    let size = match value {
        Value::Bool(_) => 2,
        Value::I64(number) => 1 + encoded_len_varint(*number as u64),
        Value::F64(_) => 9,
        // Lists are written as their text; there are none.
        _ => len(field::STRING, value.as_str().len()),
    };
    begin(out, field::ATTRIBUTES, len(field::KEY, name.len()) + len(field::VALUE, size));
    nested(out, field::KEY, name.as_bytes());
    begin(out, field::VALUE, size);
    match value {
        Value::Bool(truth) => varint(out, field::BOOL, (*truth).into()),
        Value::I64(number) => varint(out, field::INT, *number as u64),
        Value::F64(number) => fixed64(out, field::DOUBLE, number.to_bits()),
        _ => nested(out, field::STRING, value.as_str().as_bytes()),
    }
}

#[cfg(test)]
mod tests;
