use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::Span as Read;
use prost::Message as _;
use tracing::info_span;
use tracing_subscriber::layer::SubscriberExt as _;

use super::super::describe::TARGET;
use super::*;
use crate::telemetry::logs::trace_layer;

/// What a receiver reads of what is written while `write` runs.
#[track_caller]
fn read(write: impl FnOnce(&Pen)) -> Vec<Read> {
    let pen = Pen::default();
    let layers = tracing_subscriber::registry().with(trace_layer(pen.clone()));
    tracing::subscriber::with_default(layers, || write(&pen));
    let (spans, count) = pen.take();
    let (resource, scope) = (super::super::resource(), super::super::scope());
    let body = export(&resource.encode_to_vec(), &scope.encode_to_vec(), &spans);
    let mut request = ExportTraceServiceRequest::decode(body.as_slice()).expect("readable");
    assert_eq!(request.encode_to_vec().len(), body.len(), "nothing is written that a reader would skip");
    let mut resource_spans = request.resource_spans.pop().expect("one resource");
    let scope_spans = resource_spans.scope_spans.pop().expect("one scope");
    assert_eq!((resource_spans.resource, scope_spans.scope), (Some(resource), Some(scope)));
    assert!(request.resource_spans.is_empty() && resource_spans.scope_spans.is_empty());
    assert_eq!(scope_spans.spans.len(), count);
    scope_spans.spans
}

fn value(span: &Read, key: &str) -> Option<Any> {
    span.attributes.iter().find(|attribute| attribute.key == key)?.value.clone()?.value
}

#[test]
fn a_receiver_reads_what_a_span_says() {
    let identity = Identity {
        trace: 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c,
        span: 7,
        parent: Some(u64::MAX),
        remote: true,
        state: "vendor=1",
        began: 1_764_547_200_123_456_789,
        ended: u64::MAX,
    };
    let long = "x".repeat(300);
    let spans = read(|pen| {
        pen.write(identity, || {
            info_span!(
                target: TARGET,
                parent: None,
                "s",
                otel.name = "POST /v1/embeddings",
                otel.kind = "server",
                otel.status_code = "ERROR",
                text = "fünf",
                long = long.as_str(),
                empty = "",
                nothing = None::<&str>,
                count = 300_i64,
                below = -1_i64,
                share = 0.25,
                yes = true,
            )
        });
    });
    let [span] = spans.try_into().expect("one span");
    assert_eq!(hex::encode(&span.trace_id), "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(
        (hex::encode(&span.span_id), hex::encode(&span.parent_span_id)),
        ("0000000000000007".into(), "f".repeat(16))
    );
    assert_eq!((span.name.as_str(), span.kind, span.flags), ("POST /v1/embeddings", 2, 0x301));
    assert_eq!((span.start_time_unix_nano, span.end_time_unix_nano), (identity.began, identity.ended));
    assert_eq!((span.trace_state.as_str(), span.status.as_ref().map(|status| status.code)), ("vendor=1", Some(2)));
    let text = |text: &str| Some(Any::StringValue(text.to_owned()));
    for (key, expected) in [
        ("text", text("fünf")),
        ("long", text(&long)),
        ("empty", text("")),
        ("nothing", None),
        ("count", Some(Any::IntValue(300))),
        ("below", Some(Any::IntValue(-1))),
        ("share", Some(Any::DoubleValue(0.25))),
        ("yes", Some(Any::BoolValue(true))),
    ] {
        assert_eq!(value(&span, key), expected, "{key}");
    }
    assert_eq!(span.attributes.len(), 7);
}

#[test]
fn spans_are_written_one_after_the_other_and_each_once() {
    let stage = |name: &'static str| move || info_span!(target: TARGET, parent: None, "stage", otel.name = name);
    let spans = read(|pen| {
        let one = Identity { trace: 1, span: 2, began: 3, ended: 4, ..Identity::default() };
        pen.write(one, stage("first"));
        // What is made by others is not asked for.
        drop(stage("stray")());
        drop(info_span!("elsewhere"));
        pen.write(Identity { span: 5, parent: Some(2), ..one }, stage("second"));
        pen.write(one, tracing::Span::none);
        pen.bare(Identity { span: 6, parent: Some(2), ..one }, "third");
    });
    let names: Vec<(&str, u8, usize)> =
        spans.iter().map(|span| (span.name.as_str(), span.span_id[7], span.parent_span_id.len())).collect();
    assert_eq!(names, [("first", 2, 0), ("second", 5, 8), ("third", 6, 8)]);
    assert!(spans.iter().all(|span| span.kind == 1 && span.flags == 0x101 && span.status.is_none()));
}

#[test]
fn nothing_written_is_an_export_of_nothing() {
    assert!(read(|_| ()).is_empty());
}
