//! Where metrics go by OTLP and how often: the standard `OTEL_*` variables, read once. Knows nothing of what is sent.

use std::time::Duration;

use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use super::OtlpError;

/// Time between two deliveries unless `OTEL_METRIC_EXPORT_INTERVAL` says otherwise.
const INTERVAL: Duration = Duration::from_secs(60);

/// Longest wait for the receiver unless the variables say otherwise.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What the environment says about the export of metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The whole address.
    pub endpoint: Url,
    /// Sent along with each delivery; often a secret, so they are marked as such.
    pub headers: HeaderMap,
    /// Time between two deliveries, at least a millisecond.
    pub interval: Duration,
    /// Longest wait for the receiver's answer to one.
    pub timeout: Duration,
    /// Bodies are compressed.
    pub gzip: bool,
}

impl Settings {
    /// Reads the variables through `get`. `None`: no receiver is named, or the export is switched off.
    ///
    /// As with traces a receiver must be named: the specification's default of localhost would make every gateway
    /// without a collector log failures.
    ///
    /// # Errors
    /// A variable that cannot be used, by name; never its value, which may be a secret.
    pub fn from_env(get: impl Fn(&str) -> Option<String>) -> Result<Option<Settings>, OtlpError> {
        let get = |name: &str| get(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        // The signal's own variable wins over the one for all signals.
        let either = |what: &str| {
            let own = format!("OTEL_EXPORTER_OTLP_METRICS_{what}");
            let all = format!("OTEL_EXPORTER_OTLP_{what}");
            get(&own).map(|value| (own, value)).or_else(|| get(&all).map(|value| (all, value)))
        };
        let disabled = get("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let chosen = get("OTEL_METRICS_EXPORTER")
            .is_none_or(|list| list.split(',').any(|one| one.trim().eq_ignore_ascii_case("otlp")));
        let Some((name, endpoint)) = either("ENDPOINT") else { return Ok(None) };
        if disabled || !chosen {
            return Ok(None);
        }
        let whole =
            if name.contains("METRICS") { endpoint } else { format!("{}/v1/metrics", endpoint.trim_end_matches('/')) };
        let endpoint = Url::parse(&whole).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        let endpoint = endpoint.ok_or_else(|| OtlpError(format!("{name} must be an http or https address")))?;
        let headers = match either("HEADERS") {
            Some((name, list)) => {
                headers(&list).ok_or_else(|| OtlpError(format!("{name} must be name=value,name=value")))?
            }
            None => HeaderMap::new(),
        };
        let gzip = match either("COMPRESSION") {
            Some((_, word)) if word.eq_ignore_ascii_case("gzip") => true,
            Some((name, word)) if !word.eq_ignore_ascii_case("none") => {
                return Err(OtlpError(format!("{name} must be gzip or none")));
            }
            _ => false,
        };
        let interval = get("OTEL_METRIC_EXPORT_INTERVAL").map(|text| ("OTEL_METRIC_EXPORT_INTERVAL".to_owned(), text));
        Ok(Some(Settings {
            endpoint,
            headers,
            interval: milliseconds(interval, INTERVAL)?,
            timeout: milliseconds(either("TIMEOUT"), TIMEOUT)?,
            gzip,
        }))
    }
}

fn milliseconds(variable: Option<(String, String)>, otherwise: Duration) -> Result<Duration, OtlpError> {
    let Some((name, text)) = variable else { return Ok(otherwise) };
    match text.parse::<u32>() {
        Ok(number) if number > 0 => Ok(Duration::from_millis(number.into())),
        _ => Err(OtlpError(format!("{name} must be a number of milliseconds above 0"))),
    }
}

/// `name=value,name=value`, values percent-encoded.
fn headers(list: &str) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    for entry in list.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let (name, value) = entry.split_once('=')?;
        let name = HeaderName::from_bytes(name.trim().as_bytes()).ok()?;
        let mut value = HeaderValue::from_bytes(&unescaped(value.trim())?).ok()?;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Some(headers)
}

fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let pair = [rest.next()?, rest.next()?];
        bytes.push(*hex::decode(pair).ok()?.first()?);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Settings>, String> {
        let get = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Settings::from_env(get).map_err(|error| error.to_string())
    }

    const ALL: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318/");

    #[track_caller]
    fn check_off(variables: &[(&str, &str)]) {
        assert_eq!(read(variables), Ok(None), "{variables:?}");
    }

    #[test]
    fn nothing_is_exported_without_a_receiver_or_where_it_is_switched_off() {
        check_off(&[]);
        check_off(&[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]);
        check_off(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c/v1/traces")]);
        check_off(&[ALL, ("OTEL_METRICS_EXPORTER", "none")]);
        check_off(&[ALL, ("OTEL_METRICS_EXPORTER", "prometheus")]);
        check_off(&[ALL, ("OTEL_SDK_DISABLED", "TRUE")]);
    }

    #[track_caller]
    fn on(variables: &[(&str, &str)]) -> Settings {
        read(variables).expect("usable").expect("switched on")
    }

    #[test]
    fn what_is_not_said_has_the_specifications_default() {
        let settings = on(&[ALL, ("OTEL_METRICS_EXPORTER", "otlp,prometheus")]);
        assert_eq!(settings.endpoint.as_str(), "http://collector:4318/v1/metrics");
        assert_eq!((settings.interval, settings.timeout, settings.gzip), (INTERVAL, TIMEOUT, false));
        assert!(settings.headers.is_empty());
    }

    #[test]
    fn the_signals_own_variables_win() {
        let settings = on(&[
            ALL,
            ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "https://other/in"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20eDp5, x-scope = one"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "9000"),
            ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "2000"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "500"),
        ]);
        assert_eq!(settings.endpoint.as_str(), "https://other/in");
        assert_eq!(settings.headers["authorization"], "Basic eDp5");
        assert_eq!(settings.headers["x-scope"], "one");
        assert_eq!((settings.interval, settings.timeout), (Duration::from_millis(500), Duration::from_secs(2)));
        assert!(settings.gzip);
        assert!(!format!("{settings:?}").contains("eDp5"), "a secret would be logged");
    }

    #[track_caller]
    fn check_refused(name: &str, value: &str) {
        let refusal = read(&[ALL, (name, value)]).expect_err("unusable");
        assert!(refusal.starts_with(name) && !refusal.contains(value), "{refusal}");
    }

    #[test]
    fn an_interval_of_nothing_is_refused() {
        let refusal = read(&[ALL, ("OTEL_METRIC_EXPORT_INTERVAL", "0")]).expect_err("unusable");
        assert_eq!(refusal, "OTEL_METRIC_EXPORT_INTERVAL must be a number of milliseconds above 0");
    }

    #[test]
    fn what_cannot_be_used_is_named_without_its_value() {
        check_refused("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "collector;4318");
        check_refused("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "grpc://collector");
        check_refused("OTEL_EXPORTER_OTLP_HEADERS", "secret-without-a-name");
        check_refused("OTEL_EXPORTER_OTLP_HEADERS", "name=%2");
        check_refused("OTEL_EXPORTER_OTLP_HEADERS", "name=%0a%zz");
        check_refused("OTEL_EXPORTER_OTLP_COMPRESSION", "lzma");
        check_refused("OTEL_METRIC_EXPORT_INTERVAL", "-5");
        check_refused("OTEL_EXPORTER_OTLP_TIMEOUT", "soon");
    }
}
