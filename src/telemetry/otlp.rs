//! Delivery of finished spans by OTLP, as the standard `OTEL_*` variables say. Owns the exporter and its thread; knows
//! nothing about what the spans mean. [`metrics`] delivers the numbers.
//!
//! Spans wait in the batch processor's bounded queue and are dropped when it is full, so a dead receiver costs neither
//! time nor memory. The processor drives its exporter from a thread without a tokio runtime, which the asynchronous
//! HTTP client needs: [`OnOwnRuntime`] brings one along.

use std::future::{Future, ready};
use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_otlp::{SpanExporter as OtlpExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{BatchSpanProcessor, SdkTracerProvider, SpanData, SpanExporter};
use prometheus_client::metrics::counter::Counter;
use tokio::runtime::{Builder, Runtime};

pub mod metrics;
mod points;
mod settings;

/// How many finished spans could not be delivered: shared by the exporter and the metrics page.
#[derive(Debug, Clone, Default)]
pub struct LostSpans(pub(super) Counter);

/// Why traces or metrics cannot be exported.
#[derive(Debug)]
pub struct OtlpError(String);

impl std::fmt::Display for OtlpError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for OtlpError {}

/// Whether the environment, read through `get`, asks for traces to be exported.
///
/// An endpoint must be named: the specification's default of localhost would make every gateway without a collector
/// log failures.
pub fn wanted(get: impl Fn(&str) -> Option<String>) -> bool {
    let set = |name| get(name).is_some_and(|value| !value.trim().is_empty());
    let says = |name, word: &str| get(name).is_some_and(|value| value.trim().eq_ignore_ascii_case(word));
    (set("OTEL_EXPORTER_OTLP_ENDPOINT") || set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"))
        && !says("OTEL_SDK_DISABLED", "true")
        && !says("OTEL_TRACES_EXPORTER", "none")
}

/// A provider that exports by OTLP over HTTP with protobuf bodies.
///
/// Endpoint, headers, compression, time-outs, queue, sampler and resource come from the `OTEL_*` variables of the
/// process; `endpoint` (the whole URL) wins over them.
///
/// # Errors
/// A variable that cannot be used, or no thread or TLS to be had.
pub fn provider(endpoint: Option<&str>, lost: LostSpans) -> Result<SdkTracerProvider, OtlpError> {
    // A second installation is refused and means that the caller has chosen already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let fail = |error: &dyn std::fmt::Display| OtlpError(error.to_string());
    let mut builder = OtlpExporter::builder().with_http().with_protocol(opentelemetry_otlp::Protocol::HttpBinary);
    if let Some(url) = endpoint {
        builder = builder.with_endpoint(url);
    }
    let inner = builder.build().map_err(|error| fail(&error))?;
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| fail(&error))?;
    let exporter = OnOwnRuntime { inner, runtime: Arc::new(runtime), lost };
    Ok(SdkTracerProvider::builder()
        .with_span_processor(BatchSpanProcessor::builder(exporter).build())
        .with_resource(resource())
        .build())
}

/// The variables' resource; `vectorgate` is the service's name unless they give another.
fn resource() -> Resource {
    let named = ["OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"].iter().any(|name| {
        std::env::var(name).is_ok_and(|value| *name == "OTEL_SERVICE_NAME" || value.contains("service.name"))
    });
    let mut builder = Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    if !named {
        builder = builder.with_service_name("vectorgate");
    }
    builder.build()
}

/// An exporter whose futures run on a runtime of its own, on the batch processor's thread.
#[derive(Debug)]
struct OnOwnRuntime {
    inner: OtlpExporter,
    runtime: Arc<Runtime>,
    lost: LostSpans,
}

impl SpanExporter for OnOwnRuntime {
    fn export(&self, batch: Vec<SpanData>) -> impl Future<Output = OTelSdkResult> + Send {
        let spans = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        // Blocking here is the point: this is the processor's own thread and it may do nothing else meanwhile.
        let result = if tokio::runtime::Handle::try_current().is_ok() {
            Err(OTelSdkError::InternalFailure("called on a thread that must not block".to_owned()))
        } else {
            self.runtime.block_on(self.inner.export(batch))
        };
        if result.is_err() {
            self.lost.0.inc_by(spans);
        }
        ready(result)
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use opentelemetry::trace::{Tracer, TracerProvider};

    use super::*;

    #[track_caller]
    fn check_wanted(variables: &[(&str, &str)], expected: bool) {
        let get = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        assert_eq!(wanted(get), expected, "{variables:?}");
    }

    #[test]
    fn nothing_is_exported_unless_an_endpoint_is_named() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318");
        check_wanted(&[], false);
        check_wanted(&[endpoint], true);
        check_wanted(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c/v1/traces")], true);
        check_wanted(&[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")], false);
        check_wanted(&[endpoint, ("OTEL_SDK_DISABLED", "TRUE")], false);
        check_wanted(&[endpoint, ("OTEL_SDK_DISABLED", "false")], true);
        check_wanted(&[endpoint, ("OTEL_TRACES_EXPORTER", "none")], false);
    }

    /// Answers one request with 200 and returns its head and body.
    pub(in crate::telemetry::otlp) fn receive_one(listener: TcpListener) -> (String, Vec<u8>) {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut seen = Vec::new();
        let mut chunk = [0_u8; 4096];
        loop {
            let read = stream.read(&mut chunk).expect("readable");
            seen.extend_from_slice(&chunk[..read]);
            let Some(head_end) = memchr::memmem::find(&seen, b"\r\n\r\n") else { continue };
            let head = String::from_utf8_lossy(&seen[..head_end]).to_ascii_lowercase();
            let length: usize = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "))
                .and_then(|text| text.trim().parse().ok())
                .expect("a length");
            if seen.len() >= head_end + 4 + length {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").expect("writable");
                return (head, seen.split_off(head_end + 4));
            }
        }
    }

    #[test]
    fn spans_reach_a_receiver() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/v1/traces", listener.local_addr().expect("an address"));
        let receiver = thread::spawn(move || receive_one(listener));
        let lost = LostSpans::default();
        let provider = provider(Some(&url), lost.clone()).expect("buildable");
        provider.tracer("test").in_span("a-span-to-look-for", |_| ());
        provider.shutdown().expect("delivered");
        let (head, body) = receiver.join().expect("the receiver's thread");
        assert!(head.starts_with("post /v1/traces "), "{head}");
        assert!(head.contains("content-type: application/x-protobuf"), "{head}");
        assert!(memchr::memmem::find(&body, b"a-span-to-look-for").is_some());
        assert!(memchr::memmem::find(&body, b"vectorgate").is_some());
        assert_eq!(lost.0.get(), 0);
    }

    #[test]
    fn a_dead_receiver_loses_spans_and_nothing_else() {
        let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
        let lost = LostSpans::default();
        let provider = provider(Some(&format!("http://{free}/v1/traces")), lost.clone()).expect("buildable");
        for _ in 0..3 {
            provider.tracer("test").in_span("lost", |_| ());
        }
        assert!(provider.force_flush().is_err());
        assert_eq!(lost.0.get(), 3);
    }
}
