//! A receiver of traces and metrics: a small OTLP server over HTTP with protobuf bodies.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value;
use opentelemetry_proto::tonic::metrics::v1::Metric;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;

/// What came in.
#[derive(Default)]
struct Kept {
    spans: Vec<Span>,
    /// Of the last delivery.
    metrics: Vec<Metric>,
    /// Deliveries of metrics.
    deliveries: usize,
}

/// Spans and metrics as they come in.
pub struct Receiver {
    /// `http://…`, for `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub url: String,
    kept: Arc<Mutex<Kept>>,
}

impl Receiver {
    /// Listens on a free port until the test's process ends.
    pub fn start() -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let kept = Arc::new(Mutex::new(Kept::default()));
        let shared = Arc::clone(&kept);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let kept = Arc::clone(&shared);
                thread::spawn(move || serve(stream, &kept));
            }
        });
        Receiver { url, kept }
    }

    /// Every span so far.
    pub fn spans(&self) -> Vec<Span> {
        self.kept.lock().expect("nobody panics with it").spans.clone()
    }

    /// How many deliveries of metrics there were, and what the last one held.
    pub fn metrics(&self) -> (usize, Vec<Metric>) {
        let kept = self.kept.lock().expect("nobody panics with it");
        (kept.deliveries, kept.metrics.clone())
    }

    /// The spans of one trace, by its id in hex.
    pub fn trace(&self, id: &str) -> Vec<Span> {
        self.spans().into_iter().filter(|span| hex::encode(&span.trace_id) == id).collect()
    }
}

fn serve(mut stream: TcpStream, kept: &Mutex<Kept>) {
    let mut seen = Vec::new();
    let mut chunk = [0_u8; 16 << 10];
    loop {
        let head_end = seen.windows(4).position(|four| four == b"\r\n\r\n");
        let whole = head_end.and_then(|end| {
            let head = String::from_utf8_lossy(&seen[..end]).to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
            let length: usize = length.expect("a length");
            (seen.len() >= end + 4 + length).then_some((head, end + 4, length))
        });
        if let Some((head, start, length)) = whole {
            let mut body = seen[start..start + length].to_vec();
            seen.drain(..start + length);
            if head.contains("content-encoding: gzip") {
                let small = std::mem::take(&mut body);
                flate2::read::GzDecoder::new(small.as_slice()).read_to_end(&mut body).expect("gzip");
            }
            keep(&head, &body, kept);
            let answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
            if stream.write_all(answer).is_err() {
                return;
            }
            continue;
        }
        match stream.read(&mut chunk) {
            Ok(read) if read > 0 => seen.extend_from_slice(&chunk[..read]),
            _ => return,
        }
    }
}

fn keep(head: &str, body: &[u8], kept: &Mutex<Kept>) {
    if head.starts_with("post /v1/metrics ") {
        let request = ExportMetricsServiceRequest::decode(body).expect("an export of metrics");
        let of_resources = request.resource_metrics.into_iter().flat_map(|resource| resource.scope_metrics);
        let metrics = of_resources.flat_map(|scope| scope.metrics).collect();
        let mut kept = kept.lock().expect("nobody panics with it");
        kept.metrics = metrics;
        kept.deliveries += 1;
        return;
    }
    assert!(head.starts_with("post /v1/traces "), "{head}");
    let request = ExportTraceServiceRequest::decode(body).expect("an export of traces");
    let of_resources = request.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
    kept.lock().expect("nobody panics with it").spans.extend(of_resources.flat_map(|scope| scope.spans));
}

/// An attribute as text; empty if it is not there.
pub fn attribute(span: &Span, name: &str) -> String {
    let found = span.attributes.iter().find(|attribute| attribute.key == name);
    match found.and_then(|attribute| attribute.value.as_ref()?.value.as_ref()) {
        Some(any_value::Value::StringValue(text)) => text.clone(),
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        Some(any_value::Value::DoubleValue(number)) => number.to_string(),
        Some(any_value::Value::BoolValue(truth)) => truth.to_string(),
        _ => String::new(),
    }
}
