//! Delivery by OTLP over HTTP with protobuf bodies, as the standard `OTEL_*` variables say: [`spans`] of recorded requests
//! and [`metrics`]. Knows nothing about what they mean.

use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;
use prometheus_client::metrics::counter::Counter;

mod delivery;
pub mod describe;
pub mod metrics;
pub mod pen;
mod points;
mod settings;
pub mod spans;

/// How many spans could not be delivered: shared by the exporter and the metrics page.
#[derive(Debug, Clone, Default)]
pub struct LostSpans(pub(super) Counter);

impl LostSpans {
    /// Counts `spans` more.
    pub fn add(&self, spans: usize) {
        self.0.inc_by(spans as u64);
    }

    /// How many so far.
    pub fn count(&self) -> u64 {
        self.0.get()
    }
}

/// Why traces or metrics cannot be exported.
#[derive(Debug)]
pub struct OtlpError(String);

impl std::fmt::Display for OtlpError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for OtlpError {}

/// The variables' resource; `vectorgate` is the service's name unless they give another.
fn resource() -> opentelemetry_proto::tonic::resource::v1::Resource {
    use opentelemetry_proto::tonic::common::v1::KeyValue as Attribute;

    let named = ["OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"].iter().any(|name| {
        std::env::var(name).is_ok_and(|value| *name == "OTEL_SERVICE_NAME" || value.contains("service.name"))
    });
    let mut builder = Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    if !named {
        builder = builder.with_service_name("vectorgate");
    }
    let attribute = |(key, value): (&opentelemetry::Key, &opentelemetry::Value)| Attribute {
        key: key.to_string(),
        value: Some(value.clone().into()),
        ..Attribute::default()
    };
    opentelemetry_proto::tonic::resource::v1::Resource {
        attributes: builder.build().iter().map(attribute).collect(),
        ..Default::default()
    }
}

/// Whose spans and numbers they are.
fn scope() -> opentelemetry_proto::tonic::common::v1::InstrumentationScope {
    opentelemetry_proto::tonic::common::v1::InstrumentationScope {
        name: "vectorgate".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

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
}
