//! Where metrics and spans go by OTLP and how often: the standard `OTEL_*` variables, read once. Knows nothing of what is
//! sent.

use std::time::Duration;

use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use crate::telemetry::traces::queue::Limits;

use super::OtlpError;

/// Spans that may wait unless `OTEL_BSP_MAX_QUEUE_SIZE` says otherwise: more than the specification's 2048, which a busy
/// second fills; some megabytes.
const WAITING: usize = 16_384;

/// Spans of a delivery unless `OTEL_BSP_MAX_EXPORT_BATCH_SIZE` says otherwise.
const BATCH: usize = 512;

/// What is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Numbers.
    Metrics,
    /// Spans.
    Traces,
}

impl Signal {
    /// Its name in variables, and that of the part of an address.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Signal::Metrics => ("METRICS", "metrics"),
            Signal::Traces => ("TRACES", "traces"),
        }
    }

    /// The variable with the time between two deliveries, and its default.
    const fn interval(self) -> (&'static str, Duration) {
        match self {
            Signal::Metrics => ("OTEL_METRIC_EXPORT_INTERVAL", Duration::from_secs(60)),
            Signal::Traces => ("OTEL_BSP_SCHEDULE_DELAY", Duration::from_secs(5)),
        }
    }
}

/// Longest wait for the receiver unless the variables say otherwise.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What the environment says about the export of a signal.
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
    /// A receiver must be named: the specification's default of localhost would make every gateway
    /// without a collector log failures.
    ///
    /// # Errors
    /// A variable that cannot be used, by name; never its value, which may be a secret.
    pub fn from_env(signal: Signal, get: impl Fn(&str) -> Option<String>) -> Result<Option<Settings>, OtlpError> {
        let (signal_name, path) = signal.names();
        let get = |name: &str| get(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        // The signal's own variable wins over the one for all signals.
        let either = |what: &str| {
            let own = format!("OTEL_EXPORTER_OTLP_{signal_name}_{what}");
            let all = format!("OTEL_EXPORTER_OTLP_{what}");
            get(&own).map(|value| (own, value)).or_else(|| get(&all).map(|value| (all, value)))
        };
        let disabled = get("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let chosen = get(&format!("OTEL_{signal_name}_EXPORTER"))
            .is_none_or(|list| list.split(',').any(|one| one.trim().eq_ignore_ascii_case("otlp")));
        let Some((name, endpoint)) = either("ENDPOINT") else { return Ok(None) };
        if disabled || !chosen {
            return Ok(None);
        }
        let whole =
            if name.contains(signal_name) { endpoint } else { format!("{}/v1/{path}", endpoint.trim_end_matches('/')) };
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
        let (interval_name, interval) = signal.interval();
        let given = get(interval_name).map(|text| (interval_name.to_owned(), text));
        Ok(Some(Settings {
            endpoint,
            headers,
            interval: milliseconds(given, interval)?,
            timeout: milliseconds(either("TIMEOUT"), TIMEOUT)?,
            gzip,
        }))
    }
}

/// How many spans may wait and how many are delivered at once, read through `get`.
///
/// # Errors
/// A variable that cannot be used, by name.
pub fn limits(get: impl Fn(&str) -> Option<String>) -> Result<Limits, OtlpError> {
    let number = |name: &str, otherwise| match get(name).filter(|text| !text.trim().is_empty()) {
        None => Ok(otherwise),
        Some(text) => match text.trim().parse::<u32>() {
            Ok(number) if number > 0 => Ok(number as usize),
            _ => Err(OtlpError(format!("{name} must be a number above 0"))),
        },
    };
    let waiting = number("OTEL_BSP_MAX_QUEUE_SIZE", WAITING)?;
    Ok(Limits { waiting, batch: number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", BATCH)?.min(waiting) })
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
        Settings::from_env(Signal::Metrics, get).map_err(|error| error.to_string())
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
        assert_eq!((settings.interval, settings.timeout, settings.gzip), (Duration::from_secs(60), TIMEOUT, false));
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

    #[test]
    fn traces_have_variables_of_their_own() {
        let read = |variables: &[(&str, &str)]| {
            let get = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
            Settings::from_env(Signal::Traces, get).expect("usable")
        };
        let settings = read(&[ALL, ("OTEL_METRICS_EXPORTER", "none")]).expect("switched on");
        assert_eq!(settings.endpoint.as_str(), "http://collector:4318/v1/traces");
        assert_eq!(settings.interval, Duration::from_secs(5));
        let alone = [("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c/in"), ("OTEL_BSP_SCHEDULE_DELAY", "50")];
        let settings = read(&alone).expect("switched on");
        assert_eq!((settings.endpoint.as_str(), settings.interval), ("http://c/in", Duration::from_millis(50)));
        assert_eq!(read(&[ALL, ("OTEL_TRACES_EXPORTER", "none")]), None);
        assert_eq!(read(&[ALL, ("OTEL_SDK_DISABLED", "true")]), None);
        assert_eq!(read(&[("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://c/v1/metrics")]), None);
    }

    #[track_caller]
    fn check_limits(waiting: &str, batch: &str, expected: Option<(usize, usize)>) {
        let read =
            limits(|name| Some(if name == "OTEL_BSP_MAX_QUEUE_SIZE" { waiting.to_owned() } else { batch.to_owned() }));
        assert_eq!(read.ok().map(|limits| (limits.waiting, limits.batch)), expected, "{waiting} {batch}");
    }

    #[test]
    fn what_may_wait_is_limited() {
        check_limits("", " ", Some((WAITING, BATCH)));
        check_limits("2048", "100", Some((2_048, 100)));
        check_limits("64", "", Some((64, 64)));
        check_limits("0", "", None);
        check_limits("", "many", None);
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
