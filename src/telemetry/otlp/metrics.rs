//! Delivery of the metrics page by OTLP: a thread of its own reads the page at each interval and sends it. Owns when and
//! to whom; knows nothing of what the numbers mean.
//!
//! Totals are cumulative, so a delivery that fails needs no second try: the next one says all that it said. At most one
//! is under way and nothing waits, so a dead receiver costs neither memory nor anybody's time but this thread's.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::{ExportMetricsServiceRequest, ExportMetricsServiceResponse};
use opentelemetry_proto::tonic::metrics::v1::{ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::clock;
use crate::telemetry::metrics::Metrics;

use super::OtlpError;
use super::delivery::{Delivery, Failing};
use super::points::{Span, metrics_of};
use super::settings::{Settings, Signal};

/// Longest wait for the last delivery, at the process's end.
const LAST: Duration = Duration::from_secs(3);

/// The export of metrics; dropping it delivers once more, for a few seconds at most, and ends it.
#[derive(Debug)]
#[must_use = "dropping it ends the export of metrics"]
pub struct MetricExport {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl MetricExport {
    /// Starts to export `metrics` if the process's environment names a receiver.
    ///
    /// # Errors
    /// A variable that cannot be used, or no thread or TLS to be had.
    pub fn from_env(metrics: &Arc<Metrics>) -> Result<Option<MetricExport>, OtlpError> {
        let settings = Settings::from_env(Signal::Metrics, |name| std::env::var(name).ok())?;
        settings.map(|settings| MetricExport::start(settings, Arc::clone(metrics))).transpose()
    }

    fn start(settings: Settings, metrics: Arc<Metrics>) -> Result<MetricExport, OtlpError> {
        let fail = |error: &dyn std::fmt::Display| OtlpError(error.to_string());
        let interval = settings.interval;
        let delivery = Delivery::new(settings)?;
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| fail(&error))?;
        let (stop, stopped) = oneshot::channel();
        let (resource, started) = (super::resource(), nanoseconds());
        let courier = Courier { delivery, interval, metrics, resource, started, failing: Failing::default() };
        let thread = std::thread::Builder::new()
            .name("otlp-metrics".to_owned())
            .spawn(move || runtime.block_on(courier.run(stopped)))
            .map_err(|error| fail(&error))?;
        Ok(MetricExport { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for MetricExport {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the export of metrics ended by a fault");
        }
    }
}

/// What the thread has at hand.
struct Courier {
    delivery: Delivery,
    interval: Duration,
    metrics: Arc<Metrics>,
    resource: Resource,
    started: u64,
    failing: Failing,
}

impl Courier {
    /// Delivers at each interval until `stopped` resolves, and then once more. Not cancel-safe: the last delivery is lost.
    async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        loop {
            tokio::select! {
                biased;
                _ = &mut stopped => break,
                () = sleep(self.interval) => {}
            }
            let result = tokio::select! {
                biased;
                _ = &mut stopped => break,
                result = self.deliver() => result,
            };
            self.note(result);
        }
        let last =
            timeout(LAST, self.deliver()).await.unwrap_or_else(|_| Err("the receiver does not answer".to_owned()));
        self.note(last);
    }

    /// Sends the page as it is now. Safe to cancel: the receiver may or may not have it then.
    async fn deliver(&self) -> Result<(), String> {
        let answer = self.delivery.send(&self.delivery.pack(self.body())).await?;
        let answer = ExportMetricsServiceResponse::decode(answer.as_slice()).unwrap_or_default();
        match answer.partial_success.map_or(0, |partly| partly.rejected_data_points.max(0)) {
            0 => Ok(()),
            points => Err(format!("the receiver refused {points} of the numbers")),
        }
    }

    fn body(&self) -> Vec<u8> {
        let (_, page) = self.metrics.render(None);
        let metrics = metrics_of(&page, Span { started: self.started, now: nanoseconds() });
        let scope = Some(super::scope());
        ExportMetricsServiceRequest {
            resource_metrics: vec![ResourceMetrics {
                resource: Some(self.resource.clone()),
                scope_metrics: vec![ScopeMetrics { scope, metrics, schema_url: String::new() }],
                schema_url: String::new(),
            }],
        }
        .encode_to_vec()
    }

    /// Counts what was lost, and tells of a beginning and an end of it.
    fn note(&mut self, result: Result<(), String>) {
        let news = self.failing.news(result.is_err());
        match result {
            Ok(()) if news => tracing::info!("metrics are delivered by OTLP again"),
            Ok(()) => {}
            Err(reason) => {
                self.metrics.export_lost();
                if news {
                    tracing::warn!(reason, "metrics could not be delivered by OTLP; the next delivery makes up for it");
                }
            }
        }
    }
}

/// The wall clock, nanoseconds since 1970.
fn nanoseconds() -> u64 {
    u64::try_from(clock::wall().0).unwrap_or_default().saturating_mul(1_000_000)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::TcpListener;
    use std::thread;

    use opentelemetry_proto::tonic::metrics::v1::Metric;

    use crate::telemetry::exposition::tests::support;

    use super::super::tests::receive_one;
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Settings {
        let get = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Settings::from_env(Signal::Metrics, get).expect("usable").expect("switched on")
    }

    fn metrics_in(body: &[u8]) -> Vec<Metric> {
        let request = ExportMetricsServiceRequest::decode(body).expect("an export");
        request.resource_metrics.into_iter().flat_map(|one| one.scope_metrics).flat_map(|scope| scope.metrics).collect()
    }

    #[test]
    fn the_last_delivery_is_made_before_the_end_with_headers_and_gzip() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let receiver = thread::spawn(move || receive_one(listener));
        let metrics = support::metrics();
        let settings = settings(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &url),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-scope=one"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
        ]);
        drop(MetricExport::start(settings, Arc::clone(&metrics)).expect("started"));
        let (head, body) = receiver.join().expect("the receiver's thread");
        assert!(head.starts_with("post /v1/metrics "), "{head}");
        for line in ["x-scope: one", "content-encoding: gzip", "content-type: application/x-protobuf"] {
            assert!(head.contains(line), "{line} in {head}");
        }
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(body.as_slice()).read_to_end(&mut plain).expect("gzip");
        assert!(memchr::memmem::find(&plain, b"service.name").is_some());
        let sent = metrics_in(&plain);
        assert!(sent.iter().any(|metric| metric.name == "vectorgate_build_info"), "{sent:?}");
        assert!(!support_lost(&metrics));
    }

    fn support_lost(metrics: &Metrics) -> bool {
        support::page(metrics).value("vectorgate_metric_exports_lost_total", &[]) != Some(0.0)
    }

    #[test]
    fn a_dead_receiver_costs_a_count_and_nothing_else() {
        let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
        let metrics = support::metrics();
        let settings = settings(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{free}"))]);
        drop(MetricExport::start(settings, Arc::clone(&metrics)).expect("started"));
        assert!(support_lost(&metrics));
    }

    #[test]
    fn a_receiver_that_never_answers_does_not_hold_up_the_end() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let metrics = support::metrics();
        let settings = settings(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &url),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "3600000"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "1"),
        ]);
        let export = MetricExport::start(settings, Arc::clone(&metrics)).expect("started");
        let (first, _) = listener.accept().expect("a delivery under way");
        drop(export);
        assert!(support_lost(&metrics));
        drop(first);
    }
}
