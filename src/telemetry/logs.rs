//! Sets up logging and tracing for the process. Owns the choice of format and filter; what is logged is decided where
//! it happens, and never holds a key or a text.

use std::io::IsTerminal;

use tracing::Level;
use tracing_subscriber::filter::{EnvFilter, FilterExt as _, LevelFilter, Targets, filter_fn};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

use super::lines::{LineWriter, Lines};
use super::otlp::LostSpans;
use super::otlp::describe;
use super::otlp::pen::Pen;
use super::otlp::spans::{SpanCourier, SpanExport};
use super::traces::Recorder;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// Coloured text for a terminal.
    Pretty,
}

/// Filter when the environment names none: libraries speak up only when something is wrong.
const DEFAULT_FILTER: &str = "info,actix_server=warn,opentelemetry=warn,opentelemetry_sdk=warn,opentelemetry_otlp=warn";

/// What the environment says about logs.
#[derive(Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// How lines look.
    pub format: LogFormat,
    /// Levels by target, in `tracing`'s notation.
    pub filter: String,
    /// What was set but cannot be used; told once logging runs.
    pub complaints: Vec<String>,
}

impl LogOptions {
    /// Reads `VECTORGATE_LOG_FORMAT` (`json` or `pretty`; else pretty on a terminal) and the filter in
    /// `VECTORGATE_LOG`, or else `RUST_LOG`, through `get`.
    pub fn from_env(get: impl Fn(&str) -> Option<String>, terminal: bool) -> LogOptions {
        let by_place = if terminal { LogFormat::Pretty } else { LogFormat::Json };
        let mut complaints = Vec::new();
        let format = match get("VECTORGATE_LOG_FORMAT").as_deref() {
            Some("json") => LogFormat::Json,
            Some("pretty") => LogFormat::Pretty,
            None | Some("") => by_place,
            Some(_) => {
                complaints.push("VECTORGATE_LOG_FORMAT must be json or pretty".to_owned());
                by_place
            }
        };
        let mut filter = DEFAULT_FILTER.to_owned();
        for name in ["VECTORGATE_LOG", "RUST_LOG"] {
            let Some(text) = get(name).filter(|text| !text.trim().is_empty()) else { continue };
            match EnvFilter::builder().parse(&text) {
                Ok(_) => {
                    filter = text;
                    break;
                }
                Err(error) => complaints.push(format!("{name} is not a log filter: {error}")),
            }
        }
        LogOptions { format, filter, complaints }
    }
}

/// Keeps trace export alive; dropping it delivers what is still queued, for at most a few seconds.
#[derive(Debug)]
#[must_use = "dropping the guard ends the export of traces"]
pub struct TelemetryGuard {
    courier: Option<SpanCourier>,
    recorder: Option<Recorder>,
    lost: LostSpans,
    /// Nothing where logging was set up before.
    writer: Option<LineWriter>,
    requests: RequestLog,
}

/// How requests are logged.
#[derive(Debug, Clone)]
pub enum RequestLog {
    /// Like any other event.
    Events,
    /// As JSON that goes straight to where lines go.
    Json(Lines),
    /// Not at all: the filter says so.
    Off,
}

/// The target of the lines about requests, for filters.
pub const REQUEST_TARGET: &str = "vectorgate::request";

impl TelemetryGuard {
    /// What requests are recorded with, where somebody receives spans; once.
    pub fn recorder(&mut self) -> Option<Recorder> {
        self.recorder.take()
    }

    /// The count of undeliverable spans, for [`super::metrics::Metrics::new`].
    pub fn lost_spans(&self) -> &LostSpans {
        &self.lost
    }

    /// How requests are logged.
    pub fn request_log(&self) -> RequestLog {
        self.requests.clone()
    }

    /// Delivers queued spans, ends the export and writes the log lines that are still waiting; what is logged afterwards
    /// is not written. Blocks the calling thread for up to five seconds if the receiver does not answer; calling it again
    /// does nothing.
    pub fn shutdown(&mut self) {
        drop(self.courier.take());
        drop(self.writer.take());
    }
}

impl Drop for TelemetryGuard {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// Starts logging to standard error and, if the environment names a receiver, the export of traces. Once per process:
/// a later call leaves the first one's set-up in place.
pub fn init() -> TelemetryGuard {
    let get = |name: &str| std::env::var(name).ok();
    let mut options = LogOptions::from_env(get, std::io::stderr().is_terminal());
    let lost = LostSpans::default();
    let mut export = SpanExport::from_env(get, lost.clone()).unwrap_or_else(|error| {
        options.complaints.push(format!("traces are not exported: {error}"));
        None
    });
    options.complaints.extend(export.as_mut().and_then(|export| export.complaint.take()));
    let lines = Lines::default();
    let subscriber = tracing_subscriber::registry()
        .with(text_layer(&options, lines.clone()))
        .with(export.as_ref().map(|export| trace_layer(export.pen())));
    let mut writer = None;
    if subscriber.try_init().is_ok() {
        match lines.write_to(std::io::stderr()) {
            Ok(started) => writer = Some(started),
            Err(error) => eprintln!("nothing will be logged: {error}"),
        }
    } else {
        options.complaints.clear();
    }
    let started = export.map(SpanExport::start).transpose().unwrap_or_else(|error| {
        options.complaints.push(format!("traces are not exported: {error}"));
        None
    });
    for complaint in &options.complaints {
        tracing::warn!("{complaint}");
    }
    let requests = if writer.is_some() { request_log(&options, lines) } else { RequestLog::Events };
    let (recorder, courier) = started.unzip();
    TelemetryGuard { courier, recorder, lost, writer, requests }
}

/// A filter that looks at more than targets and levels is asked about each event.
fn request_log(options: &LogOptions, lines: Lines) -> RequestLog {
    let filter = options.filter.parse::<Targets>().ok().filter(|_| options.format == LogFormat::Json);
    match filter.map(|targets| targets.would_enable(REQUEST_TARGET, &Level::INFO)) {
        None => RequestLog::Events,
        Some(true) => RequestLog::Json(lines),
        Some(false) => RequestLog::Off,
    }
}

pub(super) type BoxedLayer<S> = Box<dyn Layer<S> + Send + Sync>;

fn text_layer<W>(options: &LogOptions, writer: W) -> BoxedLayer<Registry>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    // A line that cannot be written is lost in silence: the library's complaint would go to the same place, and panic when
    // that is full as well.
    // Spans are for the exporter: lines carry the ids that they need as fields of their own.
    // Two filters together know of a most verbose level only if each names one; without it, every `trace!` of the libraries
    // below would be put together and thrown away, some fifty for each request.
    let events = filter_fn(|metadata| metadata.is_event()).with_max_level_hint(LevelFilter::TRACE);
    let filter = EnvFilter::new(&options.filter).and(events);
    match options.format {
        LogFormat::Json => tracing_subscriber::fmt::layer()
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .with_writer(writer)
            .log_internal_errors(false)
            .with_filter(filter)
            .boxed(),
        LogFormat::Pretty => {
            let colour = std::io::stderr().is_terminal();
            tracing_subscriber::fmt::layer()
                .with_ansi(colour)
                .with_writer(writer)
                .log_internal_errors(false)
                .with_filter(filter)
                .boxed()
        }
    }
}

/// Brings the spans of recorded requests to `pen` whatever the log filter says: a quiet log must not cut traces.
pub(super) fn trace_layer<S>(pen: Pen) -> BoxedLayer<S>
where
    S: tracing::Subscriber + for<'span> tracing_subscriber::registry::LookupSpan<'span> + Send + Sync,
{
    tracing_opentelemetry::layer()
        .with_tracer(pen)
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false)
        .with_filter(Targets::new().with_target(describe::TARGET, LevelFilter::INFO))
        .boxed()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[track_caller]
    fn check(variables: &[(&str, &str)], terminal: bool, format: LogFormat, filter: &str, complaints: usize) {
        let get = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let options = LogOptions::from_env(get, terminal);
        assert_eq!((options.format, options.filter.as_str()), (format, filter));
        assert_eq!(options.complaints.len(), complaints, "{:?}", options.complaints);
    }

    #[test]
    fn format_and_filter_follow_the_environment() {
        check(&[], true, LogFormat::Pretty, DEFAULT_FILTER, 0);
        check(&[], false, LogFormat::Json, DEFAULT_FILTER, 0);
        check(&[("VECTORGATE_LOG_FORMAT", "json")], true, LogFormat::Json, DEFAULT_FILTER, 0);
        check(&[("VECTORGATE_LOG_FORMAT", "xml")], false, LogFormat::Json, DEFAULT_FILTER, 1);
        check(&[("RUST_LOG", "debug")], true, LogFormat::Pretty, "debug", 0);
        check(&[("RUST_LOG", "debug"), ("VECTORGATE_LOG", "warn")], true, LogFormat::Pretty, "warn", 0);
        check(&[("VECTORGATE_LOG", "a=b=c"), ("RUST_LOG", "debug")], true, LogFormat::Pretty, "debug", 1);
    }

    #[test]
    fn requests_are_logged_as_the_filter_says() {
        let check = |format, filter: &str| {
            let options = LogOptions { format, filter: filter.to_owned(), complaints: Vec::new() };
            request_log(&options, Lines::default())
        };
        assert!(matches!(check(LogFormat::Json, DEFAULT_FILTER), RequestLog::Json(_)));
        assert!(matches!(check(LogFormat::Json, "info,vectorgate::request=off"), RequestLog::Off));
        assert!(matches!(check(LogFormat::Json, "warn"), RequestLog::Off));
        assert!(matches!(check(LogFormat::Json, "info,vectorgate[request{a=1}]=debug"), RequestLog::Events));
        assert!(matches!(check(LogFormat::Pretty, "info"), RequestLog::Events));
    }

    #[track_caller]
    fn check_most_verbose(filter: &str, expected: LevelFilter) {
        let options = LogOptions { format: LogFormat::Json, filter: filter.to_owned(), complaints: Vec::new() };
        let text = text_layer(&options, std::io::sink);
        let alone = tracing_subscriber::registry().with(text).with(None::<BoxedLayer<_>>);
        assert_eq!(tracing::Subscriber::max_level_hint(&alone), Some(expected), "{filter}");
        let text = text_layer(&options, std::io::sink);
        let with_traces = tracing_subscriber::registry().with(text).with(Some(trace_layer(Pen::default())));
        let expected = expected.max(LevelFilter::INFO);
        assert_eq!(tracing::Subscriber::max_level_hint(&with_traces), Some(expected), "{filter}, with traces");
    }

    #[test]
    fn what_the_filter_leaves_out_is_not_even_looked_at() {
        check_most_verbose(DEFAULT_FILTER, LevelFilter::INFO);
        check_most_verbose("warn", LevelFilter::WARN);
        check_most_verbose("warn,vectorgate=debug", LevelFilter::DEBUG);
    }

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_no_filter_wants_is_known_beforehand() {
        let options = LogOptions { format: LogFormat::Json, filter: "warn".to_owned(), complaints: Vec::new() };
        let layers = tracing_subscriber::registry().with(text_layer(&options, std::io::sink));
        let subscriber: Box<dyn tracing::Subscriber + Send + Sync> = Box::new(layers.with(None::<BoxedLayer<_>>));
        assert_eq!(subscriber.max_level_hint(), Some(LevelFilter::WARN));
    }

    #[test]
    fn json_lines_hold_fields_and_no_spans() {
        let sink = Sink::default();
        let options = LogOptions { format: LogFormat::Json, filter: "info".to_owned(), complaints: Vec::new() };
        let writer = sink.clone();
        let subscriber = tracing_subscriber::registry().with(text_layer(&options, move || writer.clone()));
        tracing::subscriber::with_default(subscriber, || {
            let _entered = tracing::info_span!("request", trace_id = "abc").entered();
            tracing::warn!(upstream = "u1", "breaker opened");
            tracing::debug!("not shown");
        });
        let text = String::from_utf8(sink.0.lock().clone()).expect("text");
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("a JSON object a line")).collect();
        assert_eq!(lines.len(), 1, "{text}");
        assert_eq!(lines[0]["message"], "breaker opened");
        assert_eq!(lines[0]["upstream"], "u1");
        assert_eq!(lines[0]["level"], "WARN");
        assert!(lines[0].get("span").is_none(), "{text}");
    }
}
