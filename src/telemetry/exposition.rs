//! What `GET /metrics` answers: OpenMetrics with exemplars for those who ask for it, else the Prometheus text format.
//! Knows the formats; what is in them is [`super::metrics`]'.

use prometheus_client::encoding::{prometheus_text, text};

use super::metrics::Metrics;

/// Media type of the OpenMetrics text format.
pub const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Media type of the Prometheus text format 0.0.4.
pub const PROMETHEUS: &str = prometheus_text::CONTENT_TYPE;

impl Metrics {
    /// The page and its media type for a request with that `Accept` header.
    pub fn render(&self, accept: Option<&str>) -> (&'static str, String) {
        self.derive();
        let mut page = String::new();
        let (media_type, written) = if prefers_openmetrics(accept.unwrap_or_default()) {
            (OPENMETRICS, text::encode(&mut page, &self.registry))
        } else {
            (PROMETHEUS, prometheus_text::encode(&mut page, &self.registry))
        };
        if written.is_err() {
            // Writing to a String cannot fail; a metric that refuses to be encoded would show as a cut page.
            tracing::error!("a metric could not be encoded");
        }
        (media_type, page)
    }
}

/// Whether `accept` names OpenMetrics with a weight that no plain text entry exceeds. Wildcards count as text: a
/// browser or curl should see the format that most tools read.
fn prefers_openmetrics(accept: &str) -> bool {
    let mut openmetrics = 0.0_f64;
    let mut plain = 0.0_f64;
    for entry in accept.split(',') {
        let mut parts = entry.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        let parameter = |name: &str, part: &str| {
            let (key, value) = part.split_once('=')?;
            key.trim().eq_ignore_ascii_case(name).then(|| value.trim().trim_matches('"').to_owned())
        };
        let (mut weight, mut readable) = (1.0, true);
        for part in parts {
            if let Some(text) = parameter("q", part) {
                weight = text.parse::<f64>().ok().filter(|q| (0.0..=1.0).contains(q)).unwrap_or(0.0);
            }
            if let Some(version) = parameter("version", part) {
                readable = matches!(version.as_str(), "1.0.0" | "0.0.1" | "0.0.4");
            }
        }
        if !readable {
            continue;
        }
        if media.eq_ignore_ascii_case("application/openmetrics-text") {
            openmetrics = openmetrics.max(weight);
        } else if media.eq_ignore_ascii_case("text/plain") {
            plain = plain.max(weight);
        }
    }
    openmetrics > 0.0 && openmetrics >= plain
}

#[cfg(test)]
pub(crate) mod tests;
