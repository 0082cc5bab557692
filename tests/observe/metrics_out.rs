//! The metrics by OTLP: the same names, labels and numbers as `/metrics`, when asked for and only then; and what a dead
//! receiver costs.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::time::Instant;

use loadtest::provider::{Provider, Script};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{Gauge, Metric, Sum};
use serde_json::json;

use super::receiver::Receiver;
use super::{PATIENCE, until};
use crate::support::gateway::KEY;
use crate::support::{Gateway, embedding_config};

/// Values by a series as a Prometheus page would write it, its labels in order.
type Samples = BTreeMap<String, f64>;

fn started(provider: &Provider, environment: &[(&str, &str)]) -> Gateway {
    let url = format!("{}/v1", provider.base_url());
    let model = "dimensions = 8\nprice_usd_per_million_tokens = \"0.02\"";
    let config = embedding_config(&[("one", "openai", &url)], model, "budget = \"1.00\"", "");
    Gateway::start_with(&config, environment)
}

async fn embed(gateway: &Gateway, text: &str) {
    let body = json!({ "model": "emb-a", "input": text }).to_string();
    gateway.post("/v1/embeddings", KEY, &[], body).await.expect(200);
}

fn series(name: &str, mut labels: Vec<(String, String)>) -> String {
    for (key, value) in &mut labels {
        if key == "le" && value != "+Inf" {
            *value = value.parse::<f64>().expect("a bound").to_string();
        }
    }
    labels.sort();
    format!("{name}{labels:?}")
}

fn labels(attributes: &[KeyValue]) -> Vec<(String, String)> {
    let one = |attribute: &KeyValue| match attribute.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(any_value::Value::StringValue(text)) => (attribute.key.clone(), text.clone()),
        other => panic!("{} is no text: {other:?}", attribute.key),
    };
    attributes.iter().map(one).collect()
}

fn sent(metrics: &[Metric]) -> Samples {
    let mut samples = Samples::new();
    for metric in metrics {
        let name = metric.name.as_str();
        match metric.data.as_ref().expect("data") {
            Data::Sum(Sum { data_points, .. }) | Data::Gauge(Gauge { data_points }) => {
                for point in data_points {
                    let value = match point.value.expect("a value") {
                        Value::AsInt(whole) => whole as f64,
                        Value::AsDouble(number) => number,
                    };
                    samples.insert(series(name, labels(&point.attributes)), value);
                }
            }
            Data::Histogram(histogram) => {
                for point in &histogram.data_points {
                    let labels = labels(&point.attributes);
                    samples.insert(series(&format!("{name}_sum"), labels.clone()), point.sum.expect("a sum"));
                    samples.insert(series(&format!("{name}_count"), labels.clone()), point.count as f64);
                    let mut below = 0;
                    for (at, count) in point.bucket_counts.iter().enumerate() {
                        below += count;
                        let bound = point.explicit_bounds.get(at).map_or("+Inf".to_owned(), f64::to_string);
                        let with = [labels.clone(), vec![("le".to_owned(), bound)]].concat();
                        samples.insert(series(&format!("{name}_bucket"), with), below as f64);
                    }
                }
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    samples
}

/// The page's samples. No label of these tests holds a comma, a quote or a backslash.
fn page(text: &str) -> Samples {
    let sample = |line: &str| {
        let (series_text, value) = line.rsplit_once(' ').expect("a value");
        let (name, rest) = series_text.split_once('{').unwrap_or((series_text, ""));
        let pairs = rest.trim_end_matches('}').split(',').filter(|pair| !pair.is_empty());
        let labels = pairs.map(|pair| {
            let (key, value) = pair.split_once('=').expect("a label");
            (key.to_owned(), value.trim_matches('"').to_owned())
        });
        (series(name, labels.collect()), value.parse().expect("a number"))
    };
    text.lines().filter(|line| !line.starts_with('#')).map(sample).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_of_metrics_has_what_the_page_has() {
    let receiver = Receiver::start();
    let provider = Provider::start(Script::new().space("A").width(8));
    let often = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url.as_str()),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "50"),
    ];
    let mut gateway = started(&provider, &often);
    for text in ["alpha", "beta", "alpha"] {
        embed(&gateway, text).await;
    }
    // Gauges move by themselves for a while (percentiles, buckets that fill up), so the two are compared until they agree.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let text = gateway.admin_get("/metrics").await.text;
        let (seen, _) = receiver.metrics();
        let (expected, received) = (
            page(&text),
            until("a later delivery", || Some(receiver.metrics()).filter(|(number, _)| *number > seen)).1,
        );
        let received = sent(&received);
        if expected == received {
            let requests: f64 = received
                .iter()
                .filter(|(name, _)| name.starts_with("vectorgate_request_duration_seconds_count"))
                .map(|(_, count)| count)
                .sum();
            assert_eq!(requests, 3.0, "no number is counted twice");
            break;
        }
        let odd: Vec<_> = expected.iter().filter(|(name, value)| received.get(*name) != Some(value)).take(9).collect();
        assert!(Instant::now() < deadline, "{} series, {} received: {odd:?}", expected.len(), received.len());
    }
    // What happened after the last interval is told at the end.
    embed(&gateway, "gamma").await;
    gateway.terminate();
    assert!(gateway.wait().success());
    let last = sent(&receiver.metrics().1);
    let all: f64 = last
        .iter()
        .filter(|(name, _)| name.starts_with("vectorgate_request_duration_seconds_count"))
        .map(|(_, n)| n)
        .sum();
    assert_eq!(all, 4.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_can_be_left_out_while_traces_go_on() {
    let receiver = Receiver::start();
    let provider = Provider::start(Script::new().space("A").width(8));
    let without = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url.as_str()),
        ("OTEL_METRICS_EXPORTER", "none"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "10"),
    ];
    let mut gateway = started(&provider, &without);
    embed(&gateway, "alpha").await;
    gateway.terminate();
    assert!(gateway.wait().success());
    assert!(!receiver.spans().is_empty());
    assert_eq!(receiver.metrics().0, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_receiver_of_metrics_is_counted_and_told_once_and_nothing_else_happens() {
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("an address");
    let endpoint = format!("http://{nobody}/v1/metrics");
    let provider = Provider::start(Script::new().space("A").width(8));
    let dead = [("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", endpoint.as_str()), ("OTEL_METRIC_EXPORT_INTERVAL", "10")];
    let mut gateway = started(&provider, &dead);
    for number in 0..100 {
        embed(&gateway, &format!("text {number}")).await;
    }
    let deadline = Instant::now() + PATIENCE;
    while gateway.metric("vectorgate_metric_exports_lost_total").await < 5.0 {
        assert!(Instant::now() < deadline, "no delivery was lost");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    gateway.terminate();
    assert!(gateway.wait().success());
    assert_eq!(gateway.log().matches("metrics could not be delivered").count(), 1);
}
