//! The metrics page as OTLP data. What OTLP is told is read off the very text that Prometheus would be given, so that
//! the two can never differ and nothing is counted twice. Knows our encoder's page, not the format at large.

use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, Sum,
};

/// When totals began and when the page was written, nanoseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    /// Totals count from here.
    pub started: u64,
    /// The page's moment.
    pub now: u64,
}

/// The metrics of a page in the Prometheus text format, by the page's names and labels: totals as cumulative sums,
/// histograms with their bounds, everything else as gauges. Lines that make no sense are left out.
pub fn metrics_of(page: &str, span: Span) -> Vec<Metric> {
    let mut metrics: Vec<Metric> = Vec::new();
    let mut help = "";
    for line in page.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.splitn(3, ' ');
            match (words.next(), words.next(), words.next()) {
                (Some("HELP"), Some(_), text) => help = text.unwrap_or_default(),
                (Some("TYPE"), Some(name), Some(kind)) => metrics.push(empty(name, help, kind)),
                _ => {}
            }
        } else if let Some(metric) = metrics.last_mut() {
            // A family without this line's sample is still the truth about the others.
            let _ = add(metric, line, span);
        }
    }
    metrics
}

fn empty(name: &str, help: &str, kind: &str) -> Metric {
    let cumulative = AggregationTemporality::Cumulative.into();
    let data = match kind {
        "counter" => {
            Data::Sum(Sum { data_points: Vec::new(), aggregation_temporality: cumulative, is_monotonic: true })
        }
        "histogram" => Data::Histogram(Histogram { data_points: Vec::new(), aggregation_temporality: cumulative }),
        _ => Data::Gauge(Gauge { data_points: Vec::new() }),
    };
    Metric { name: name.to_owned(), description: help.to_owned(), data: Some(data), ..Metric::default() }
}

/// Adds one sample's line to its family; `None`: it is not a sample of it.
fn add(metric: &mut Metric, line: &str, span: Span) -> Option<()> {
    let (name, rest) = line.split_at(line.find(['{', ' '])?);
    let suffix = name.strip_prefix(metric.name.as_str())?;
    let (mut labels, rest) = if rest.starts_with('{') { labels(rest)? } else { (Vec::new(), rest) };
    let value = rest.trim();
    match metric.data.as_mut()? {
        Data::Sum(sum) => sum.data_points.push(number(labels, value, span.started, span.now)?),
        // A gauge has no beginning.
        Data::Gauge(gauge) => gauge.data_points.push(number(labels, value, 0, span.now)?),
        Data::Histogram(histogram) => {
            let bound = labels.iter().position(|(key, _)| key == "le").map(|at| labels.remove(at).1);
            let attributes = attributes(labels);
            // A series' lines stand together, its buckets from the lowest.
            if histogram.data_points.last().is_none_or(|point| point.attributes != attributes) {
                histogram.data_points.push(HistogramDataPoint {
                    attributes,
                    start_time_unix_nano: span.started,
                    time_unix_nano: span.now,
                    ..HistogramDataPoint::default()
                });
            }
            let point = histogram.data_points.last_mut()?;
            match (suffix, bound) {
                ("_sum", None) => point.sum = Some(value.parse().ok()?),
                ("_count", None) => point.count = value.parse().ok()?,
                ("_bucket", Some(bound)) => {
                    let up_to_here: u64 = value.parse().ok()?;
                    let below: u64 = point.bucket_counts.iter().sum();
                    point.bucket_counts.push(up_to_here.saturating_sub(below));
                    if bound != "+Inf" {
                        point.explicit_bounds.push(bound.parse().ok()?);
                    }
                }
                _ => return None,
            }
        }
        Data::ExponentialHistogram(_) | Data::Summary(_) => {}
    }
    Some(())
}

fn number(labels: Vec<(String, String)>, value: &str, started: u64, now: u64) -> Option<NumberDataPoint> {
    let value = match value.parse::<i64>() {
        Ok(whole) => Value::AsInt(whole),
        Err(_) => Value::AsDouble(value.parse().ok()?),
    };
    Some(NumberDataPoint {
        attributes: attributes(labels),
        start_time_unix_nano: started,
        time_unix_nano: now,
        value: Some(value),
        ..NumberDataPoint::default()
    })
}

fn attributes(labels: Vec<(String, String)>) -> Vec<KeyValue> {
    let text = |value| Some(AnyValue { value: Some(any_value::Value::StringValue(value)) });
    labels.into_iter().map(|(key, value)| KeyValue { key, value: text(value), ..KeyValue::default() }).collect()
}

/// `{name="value",…}`, and what follows it.
fn labels(text: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut labels = Vec::new();
    let mut rest = text.strip_prefix('{')?;
    loop {
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (key, after) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut characters = after.char_indices();
        let end = loop {
            match characters.next()? {
                (at, '"') => break at,
                (_, '\\') => value.push(match characters.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, plain) => value.push(plain),
            }
        };
        labels.push((key.to_owned(), value));
        rest = after.get(end + 1..)?;
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use crate::ids::ModelName;
    use crate::pure::class::TrafficClass;
    use crate::telemetry::exposition::tests::support;
    use crate::telemetry::labels::{Outcome, TraceId};

    use super::*;

    const SPAN: Span = Span { started: 1_000, now: 2_000 };

    type Samples = BTreeMap<(String, Vec<(String, String)>), f64>;

    fn key(name: &str, attributes: &[KeyValue], bound: Option<String>) -> (String, Vec<(String, String)>) {
        let mut labels: Vec<_> = attributes
            .iter()
            .map(|attribute| match attribute.value.as_ref().and_then(|value| value.value.as_ref()) {
                Some(any_value::Value::StringValue(text)) => (attribute.key.clone(), text.clone()),
                other => panic!("a label that is no text: {other:?}"),
            })
            .collect();
        labels.extend(bound.map(|bound| ("le".to_owned(), bound)));
        labels.sort();
        (name.to_owned(), labels)
    }

    /// Every sample that a Prometheus page with these metrics would have.
    fn flattened(metrics: &[Metric]) -> Samples {
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
                        assert!(samples.insert(key(name, &point.attributes, None), value).is_none(), "{point:?}");
                    }
                }
                Data::Histogram(histogram) => {
                    for point in &histogram.data_points {
                        assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1, "{name}");
                        assert_eq!(point.bucket_counts.iter().sum::<u64>(), point.count, "{name}");
                        let under = |suffix: &str| key(&format!("{name}{suffix}"), &point.attributes, None);
                        samples.insert(under("_sum"), point.sum.expect("a sum"));
                        samples.insert(under("_count"), point.count as f64);
                        let mut below = 0;
                        for (at, count) in point.bucket_counts.iter().enumerate() {
                            below += count;
                            let bound = point.explicit_bounds.get(at);
                            let bound = bound.map_or("+Inf".to_owned(), |bound| format!("{bound:?}"));
                            let full = key(&format!("{name}_bucket"), &point.attributes, Some(bound));
                            samples.insert(full, below as f64);
                        }
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        samples
    }

    /// Bounds spelled one way.
    fn spelled(samples: Samples) -> Samples {
        let spell = |(name, labels): (String, Vec<(String, String)>)| {
            let one = |(key, value): (String, String)| match value.parse::<f64>() {
                Ok(bound) if key == "le" && bound.is_finite() => (key, format!("{bound:?}")),
                _ => (key, value),
            };
            (name, labels.into_iter().map(one).collect())
        };
        samples.into_iter().map(|(key, value)| (spell(key), value)).collect()
    }

    #[test]
    fn names_labels_and_values_are_the_pages() {
        let metrics = support::metrics();
        let model = ModelName::from("org/ranker \"v2\"\\x");
        for milliseconds in [3, 71, 71, 250_000] {
            metrics.request_finished(
                TrafficClass::Rerank,
                &model,
                Outcome::Success,
                Duration::from_millis(milliseconds),
                Duration::from_micros(180),
                Some(TraceId(0xabc)),
            );
        }
        metrics.retrieval_fallback(TrafficClass::InteractiveSearch);
        let text = metrics.render(None).1;
        let page = support::Page::parse(&text, support::Format::Prometheus);
        let sent = metrics_of(&text, SPAN);
        assert_eq!(flattened(&sent), spelled(page.samples));
        for metric in &sent {
            let family = &page.families[&metric.name];
            assert_eq!(metric.description, family.help, "{}", metric.name);
            let (kind, cumulative) = match metric.data.as_ref().expect("data") {
                Data::Sum(sum) => ("counter", sum.is_monotonic && sum.aggregation_temporality == 2),
                Data::Histogram(histogram) => ("histogram", histogram.aggregation_temporality == 2),
                _ => ("gauge", true),
            };
            assert!(kind == family.kind && cumulative, "{}", metric.name);
        }
    }

    #[test]
    fn totals_have_a_beginning_and_gauges_have_none() {
        let page = "# HELP a_total A.\n# TYPE a_total counter\na_total 3\n# TYPE g gauge\ng{x=\"1\"} -0.5\n";
        let sent = metrics_of(page, SPAN);
        let [Some(Data::Sum(sum)), Some(Data::Gauge(gauge))] = [&sent[0].data, &sent[1].data] else {
            panic!("{sent:?}")
        };
        let (total, level) = (&sum.data_points[0], &gauge.data_points[0]);
        assert_eq!(
            (total.start_time_unix_nano, total.time_unix_nano, total.value),
            (1_000, 2_000, Some(Value::AsInt(3)))
        );
        assert_eq!((level.start_time_unix_nano, level.value), (0, Some(Value::AsDouble(-0.5))));
    }

    #[test]
    fn lines_that_make_no_sense_are_left_out() {
        let page = "x 1\n# TYPE a gauge\na{b=\"1} 2\na{b=\"1\"} many\nother 1\na\n\na{b=\"1\"} 2\n";
        let sent = metrics_of(page, SPAN);
        assert_eq!(flattened(&sent).into_values().collect::<Vec<_>>(), [2.0]);
    }
}
