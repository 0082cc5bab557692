use std::net::TcpListener;
use std::thread;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;

use crate::pure::time::Mono;
use crate::telemetry::labels::TraceId;
use crate::telemetry::traces::notes::StageNote;

use super::super::tests::receive_one;
use super::*;

fn notes(number: u64) -> Notes {
    let at = |millis| Mono::from_millis(millis);
    Notes {
        trace: TraceId(u128::from(number) + 1),
        span: 7,
        parent: None,
        state: None,
        route: "/v1/embeddings".to_owned(),
        origin: 1_000,
        began: at(1),
        ended: at(4),
        stages: vec![StageNote { name: "cache", began: at(2), ended: at(3) }],
        calls: Vec::new(),
        end: None,
    }
}

fn started(url: &str, more: &[(&str, &str)], lost: &LostSpans) -> (Recorder, SpanCourier, Pen) {
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", url), ("OTEL_BSP_SCHEDULE_DELAY", "3600000")];
    let get =
        |name: &str| variables.iter().chain(more).find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    let export = SpanExport::from_env(get, lost.clone()).expect("usable").expect("switched on");
    let pen = export.pen();
    let (recorder, courier) = export.start().expect("a thread");
    (recorder, courier, pen)
}

/// A receiver that never answers.
fn silent() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    (listener, url)
}

#[test]
fn nothing_is_exported_without_a_receiver() {
    let export = SpanExport::from_env(|_| None, LostSpans::default()).expect("usable");
    assert!(export.is_none());
}

#[tokio::test]
async fn a_batch_holds_whole_requests_and_no_more_than_it_must() {
    use tracing_subscriber::layer::SubscriberExt as _;

    let (_listener, url) = silent();
    let lost = LostSpans::default();
    let url = url.as_str();
    let get = |name: &str| match name {
        "OTEL_EXPORTER_OTLP_ENDPOINT" => Some(url.to_owned()),
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE" => Some("5".to_owned()),
        _ => None,
    };
    let mut courier = SpanExport::from_env(get, lost.clone()).expect("usable").expect("switched on").courier;
    let layers = tracing_subscriber::registry().with(crate::telemetry::logs::trace_layer(courier.pen.clone()));
    courier.taken.extend((0..4).map(notes));
    let sizes: Vec<usize> = tracing::subscriber::with_default(layers, || {
        std::iter::from_fn(|| courier.batch()).map(|(_, spans)| spans).collect()
    });
    assert_eq!((sizes, lost.count()), (vec![6, 2], 0));
    courier.taken.extend((0..2).map(notes));
    assert!(
        courier.batch().is_some_and(|(_, spans)| spans == 2) && lost.count() == 2,
        "where spans come from nowhere they are lost"
    );
}

#[test]
fn what_waits_is_delivered_before_the_end() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let receiver = thread::spawn(move || receive_one(listener));
    let lost = LostSpans::default();
    let gzip = [("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"), ("OTEL_EXPORTER_OTLP_HEADERS", "x-scope=one")];
    let (recorder, courier, pen) = started(&url, &gzip, &lost);
    // Written here, as the courier's thread has no subscriber in a test and brings only what needs none.
    use tracing_subscriber::layer::SubscriberExt as _;
    let layers = tracing_subscriber::registry().with(crate::telemetry::logs::trace_layer(pen.clone()));
    tracing::subscriber::with_default(layers, || describe(&notes(1), &pen, || 9));
    recorder.queue.push(notes(2));
    drop(courier);
    let (head, body) = receiver.join().expect("the receiver's thread");
    assert!(head.starts_with("post /v1/traces "), "{head}");
    assert!(head.contains("x-scope: one") && head.contains("content-type: application/x-protobuf"), "{head}");
    let mut plain = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(body.as_slice()), &mut plain).expect("gzip");
    let request = ExportTraceServiceRequest::decode(plain.as_slice()).expect("an export");
    let spans = &request.resource_spans[0].scope_spans[0].spans;
    let times: Vec<(&str, u64, u64)> =
        spans.iter().map(|span| (span.name.as_str(), span.start_time_unix_nano, span.end_time_unix_nano)).collect();
    let stage = ("cache", 2_001_000, 3_001_000);
    assert_eq!(times, [stage, ("POST /v1/embeddings", 1_001_000, 4_001_000), stage]);
}

#[test]
fn a_dead_receiver_loses_spans_and_nothing_else() {
    let lost = LostSpans::default();
    let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let (recorder, courier, _) = started(&format!("http://{free}"), &[("OTEL_BSP_MAX_QUEUE_SIZE", "6")], &lost);
    (0..10).for_each(|number| recorder.queue.push(notes(number)));
    drop(courier);
    assert_eq!(lost.count(), 20);
}
