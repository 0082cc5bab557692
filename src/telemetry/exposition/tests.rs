//! Both formats through a strict parser of their grammars.

use std::time::Duration;

use crate::clock;
use crate::ids::{ModelName, TenantId, UpstreamId};
use crate::pure::class::TrafficClass;
use crate::telemetry::TOTALS_STAY;
use crate::telemetry::labels::{CacheResult, CallStatus, Outcome, TraceId};
use crate::telemetry::models::tests::level;
use crate::telemetry::names;

use super::*;
use support::{Format, Page};

/// A small configuration's metrics, and a parser that refuses what the formats do not allow.
pub mod support {
    use std::collections::{BTreeMap, HashSet};
    use std::sync::Arc;
    use std::time::Duration;

    use crate::config::plan::{ModelKind, Retirement, Slo};
    use crate::ids::{ModelName, TenantId, UpstreamId};
    use crate::pure::time::Wall;
    use crate::telemetry::labels::LabelPlan;
    use crate::telemetry::metrics::Metrics;
    use crate::telemetry::otlp::LostSpans;

    /// Which grammar a page must follow.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub enum Format {
        /// Prometheus text 0.0.4.
        Prometheus,
        /// OpenMetrics 1.0.0.
        OpenMetrics,
    }

    /// Names of the test configuration.
    pub fn labels() -> LabelPlan {
        LabelPlan {
            models: vec![
                (ModelName::from("e5"), ModelKind::Embedding),
                (ModelName::from("org/ranker \"v2\"\\x"), ModelKind::Rerank),
            ],
            upstreams: vec![UpstreamId::from("u1"), UpstreamId::from("u2")],
            tenants: vec![TenantId::from("acme"), TenantId::from("zeta")],
            collections: vec![("handbook".to_owned(), [ModelName::from("e5"), ModelName::from("e6")])],
            retirements: vec![Retirement { model: ModelName::from("e5"), upstream: None, on: Wall(1_811_289_600_000) }],
            currency: "EUR".to_owned(),
        }
    }

    /// Fresh metrics of the test configuration.
    pub fn metrics() -> Arc<Metrics> {
        let slo = Slo {
            window: Duration::from_secs(300),
            interactive_p95: Duration::from_millis(70),
            interactive_p99: Duration::from_millis(120),
            rerank_p95: Duration::from_millis(300),
            rerank_p99: Duration::from_millis(600),
            chat_p95: Duration::from_secs(10),
            chat_p99: Duration::from_secs(30),
        };
        Metrics::new(&labels(), &slo, &LostSpans::default())
    }

    /// The text page of `metrics`, parsed.
    pub fn page(metrics: &Metrics) -> Page {
        Page::parse(&metrics.render(None).1, Format::Prometheus)
    }

    /// One parsed family.
    #[derive(Debug)]
    pub struct Family {
        /// The TYPE line's word.
        pub kind: String,
        /// The HELP line's text.
        pub help: String,
        /// The UNIT line's word.
        pub unit: Option<String>,
    }

    /// A parsed page.
    #[derive(Debug, Default)]
    pub struct Page {
        /// By the name on the TYPE line.
        pub families: BTreeMap<String, Family>,
        /// Values by series, labels sorted.
        pub samples: BTreeMap<(String, Vec<(String, String)>), f64>,
        /// Exemplars' labels by the series' name.
        pub exemplars: Vec<(String, Vec<(String, String)>)>,
    }

    impl Page {
        /// The value of a series, its labels in any order.
        pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
            let mut key: Vec<_> = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            key.sort();
            self.samples.get(&(name.to_owned(), key)).copied()
        }

        /// Parses a whole page and panics with the line that breaks `format`.
        pub fn parse(text: &str, format: Format) -> Page {
            let mut page = Page::default();
            let mut current: Option<String> = None;
            let mut seen_after: HashSet<String> = HashSet::new();
            let mut ended = false;
            assert!(text.ends_with('\n'), "the page must end with a line feed");
            for line in text.lines() {
                assert!(!ended, "a line after the end: {line}");
                assert!(!line.is_empty(), "an empty line");
                if line == "# EOF" {
                    assert!(format == Format::OpenMetrics, "# EOF in the text format");
                    ended = true;
                } else if let Some(rest) = line.strip_prefix("# ") {
                    page.meta(rest, &mut current, &mut seen_after, format);
                } else {
                    let family = current.as_deref().unwrap_or_else(|| panic!("a sample before any TYPE: {line}"));
                    page.sample(line, family, format);
                }
            }
            assert_eq!(ended, format == Format::OpenMetrics, "# EOF");
            page
        }

        fn meta(&mut self, rest: &str, current: &mut Option<String>, seen: &mut HashSet<String>, format: Format) {
            let mut words = rest.splitn(3, ' ');
            let (word, name, text) = (words.next(), words.next(), words.next());
            let (Some(word), Some(name), Some(text)) = (word, name, text) else { panic!("cut line: # {rest}") };
            assert!(is_name(name), "not a name: {name}");
            if current.as_deref() != Some(name) {
                assert!(seen.insert(name.to_owned()), "{name} appears in two places");
                *current = Some(name.to_owned());
                self.families.insert(name.to_owned(), Family { kind: String::new(), help: String::new(), unit: None });
            }
            let family = self.families.get_mut(name).expect("just inserted");
            match word {
                "HELP" => family.help = text.to_owned(),
                "TYPE" => {
                    let known = ["counter", "gauge", "histogram"].contains(&text)
                        || (text == "info" && format == Format::OpenMetrics);
                    assert!(known, "unknown type: {text}");
                    family.kind = text.to_owned();
                }
                "UNIT" if format == Format::OpenMetrics => {
                    assert!(name.ends_with(&format!("_{text}")), "{name} does not end in its unit {text}");
                    family.unit = Some(text.to_owned());
                }
                other => panic!("unknown comment {other}"),
            }
        }

        fn sample(&mut self, line: &str, family: &str, format: Format) {
            let kind = self.families[family].kind.clone();
            let name_end = line.find(['{', ' ']).unwrap_or_else(|| panic!("cut sample: {line}"));
            let (name, rest) = line.split_at(name_end);
            let suffix = name.strip_prefix(family).unwrap_or_else(|| panic!("{name} under {family}"));
            let allowed: &[&str] = match (kind.as_str(), format) {
                ("counter", Format::Prometheus) | ("gauge", _) => &[""],
                ("counter", Format::OpenMetrics) => &["_total"],
                ("info", _) => &["_info"],
                _ => &["_sum", "_count", "_bucket"],
            };
            assert!(allowed.contains(&suffix), "{name} is no sample of a {kind} called {family}");
            if kind == "counter" && format == Format::Prometheus {
                assert!(name.ends_with("_total"), "{name}");
            }
            let (labels, rest) = if rest.starts_with('{') { parse_labels(rest) } else { (Vec::new(), rest) };
            assert_eq!(labels.iter().any(|(key, _)| key == "le"), suffix == "_bucket", "{line}");
            let rest = rest.strip_prefix(' ').unwrap_or_else(|| panic!("no space before the value: {line}"));
            let (value, exemplar) = match rest.split_once(" # ") {
                Some((value, exemplar)) => (value, Some(exemplar)),
                None => (rest, None),
            };
            let number: f64 = value.parse().unwrap_or_else(|_| panic!("not a number: {line}"));
            assert!(number.is_finite(), "{line}");
            if kind != "gauge" {
                assert!(number >= 0.0, "{line}");
            }
            if let Some(exemplar) = exemplar {
                assert!(format == Format::OpenMetrics, "an exemplar in the text format: {line}");
                assert!(matches!(suffix, "_bucket" | "_total"), "an exemplar where none may be: {line}");
                let (labels, rest) = parse_labels(exemplar);
                rest.trim_start().parse::<f64>().unwrap_or_else(|_| panic!("exemplar value: {line}"));
                assert!(labels.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>() <= 128, "{line}");
                self.exemplars.push((name.to_owned(), labels));
            }
            let earlier = self.samples.insert((name.to_owned(), labels), number);
            assert!(earlier.is_none(), "twice: {line}");
        }

        /// Buckets ascend, and the last is the count.
        pub fn check_histograms(&self) {
            for (name, family) in self.families.iter().filter(|(_, family)| family.kind == "histogram") {
                assert!(!family.help.is_empty(), "{name}");
                for ((_, labels), count) in self.samples.iter().filter(|((n, _), _)| *n == format!("{name}_count")) {
                    let mut buckets: Vec<(f64, f64)> = self
                        .samples
                        .iter()
                        .filter(|((n, l), _)| *n == format!("{name}_bucket") && without_le(l) == *labels)
                        .map(|((_, l), value)| (bound(l), *value))
                        .collect();
                    buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
                    assert!(buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{name} {labels:?}");
                    assert_eq!(buckets.last().copied(), Some((f64::INFINITY, *count)), "{name} {labels:?}");
                }
            }
        }
    }

    fn without_le(labels: &[(String, String)]) -> Vec<(String, String)> {
        labels.iter().filter(|(key, _)| key != "le").cloned().collect()
    }

    fn bound(labels: &[(String, String)]) -> f64 {
        let text = &labels.iter().find(|(key, _)| key == "le").expect("a bucket has a bound").1;
        if text == "+Inf" { f64::INFINITY } else { text.parse().expect("a number") }
    }

    fn is_name(text: &str) -> bool {
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    }

    /// Labels of `{…}` at the start of `text`, sorted, and what follows.
    fn parse_labels(text: &str) -> (Vec<(String, String)>, &str) {
        let mut labels = Vec::new();
        let mut rest = text.strip_prefix('{').unwrap_or_else(|| panic!("no {{: {text}"));
        while !rest.starts_with('}') {
            let (key, tail) = rest.split_once("=\"").unwrap_or_else(|| panic!("no value: {text}"));
            assert!(is_name(key), "label {key}");
            let mut value = String::new();
            let mut chars = tail.char_indices();
            let end = loop {
                match chars.next().unwrap_or_else(|| panic!("open string: {text}")) {
                    (at, '"') => break at + 1,
                    (_, '\\') => value.push(match chars.next().expect("an escape's second half").1 {
                        'n' => '\n',
                        c @ ('"' | '\\') => c,
                        c => panic!("escape \\{c}: {text}"),
                    }),
                    (_, c) => value.push(c),
                }
            };
            labels.push((key.to_owned(), value));
            rest = &tail[end..];
            if let Some(tail) = rest.strip_prefix(',') {
                assert!(!tail.starts_with('}'), "a trailing comma: {text}");
                rest = tail;
            }
        }
        labels.sort();
        assert!(labels.windows(2).all(|pair| pair[0].0 != pair[1].0), "a label twice: {text}");
        (labels, &rest[1..])
    }
}

fn busy() -> std::sync::Arc<Metrics> {
    let metrics = support::metrics();
    let (acme, model, upstream) = (TenantId::from("acme"), ModelName::from("e5"), UpstreamId::from("u1"));
    let class = TrafficClass::InteractiveSearch;
    let (total, overhead) = (Duration::from_millis(71), Duration::from_micros(180));
    metrics.request_finished(class, &model, Outcome::Success, total, overhead, Some(TraceId(0xabc)));
    metrics.request_finished(class, &model, Outcome::Success, Duration::from_millis(70), overhead, None);
    metrics.cache(&acme, CacheResult::Partial, 17, 20);
    metrics.settled(&acme, &model, class, "0.0002".parse().expect("money"), 12);
    metrics.query_answered(&acme);
    metrics.query_answered(&acme);
    metrics.upstream_call(&upstream, CallStatus::Http(503), Duration::from_secs(1), Some(TraceId(7)));
    metrics.upstream_call(&upstream, CallStatus::Http(200), Duration::from_millis(3), None);
    metrics.model_levels(&[level("e5")]);
    metrics.tenant_budget_remaining(&acme, Some("142.85".parse().expect("money")));
    metrics
}

#[test]
fn both_formats_follow_their_grammar_and_hold_every_name() {
    for (accept, format) in [(None, Format::Prometheus), (Some(OPENMETRICS), Format::OpenMetrics)] {
        let (_, text) = busy().render(accept);
        let page = Page::parse(&text, format);
        page.check_histograms();
        for name in names::ALL {
            let listed = match (name.measure, format) {
                (names::Measure::Total, Format::OpenMetrics) => name.full.trim_end_matches("_total"),
                _ => name.full,
            };
            let listed = if listed == names::BUILD.full && format == Format::Prometheus {
                "vectorgate_build_info"
            } else {
                listed
            };
            let family = page.families.get(listed).unwrap_or_else(|| panic!("{listed} is missing"));
            let has_unit = matches!(name.measure, names::Measure::Seconds | names::Measure::Bytes);
            assert_eq!(family.unit.is_some(), has_unit && format == Format::OpenMetrics, "{listed}");
        }
    }
}

#[test]
fn exemplars_carry_the_trace_and_only_openmetrics_has_them() {
    let metrics = busy();
    let page = Page::parse(&metrics.render(Some(OPENMETRICS)).1, Format::OpenMetrics);
    let trace = ("trace_id".to_owned(), format!("{:032x}", 0xabc));
    assert!(page.exemplars.contains(&("vectorgate_request_duration_seconds_bucket".to_owned(), vec![trace])));
    assert_eq!(page.exemplars.len(), 2);
    Page::parse(&metrics.render(None).1, Format::Prometheus);
}

#[test]
fn values_are_where_a_dashboard_looks_for_them() {
    let page = support::page(&busy());
    let request = [("class", "interactive-search"), ("model", "e5"), ("outcome", "success")];
    let at = |bound| {
        let mut labels = request.to_vec();
        labels.push(("le", bound));
        page.value("vectorgate_request_duration_seconds_bucket", &labels)
    };
    assert_eq!(page.value("vectorgate_request_duration_seconds_count", &request), Some(2.0));
    assert_eq!((at("0.07"), at("0.12")), (Some(1.0), Some(2.0)), "the objectives' lines are bucket bounds");
    assert_eq!(page.value("vectorgate_cache_hit_ratio", &[("tenant", "acme")]), Some(0.85));
    assert_eq!(page.value("vectorgate_cost_per_search_query", &[("tenant", "acme")]), Some(0.0001));
    let spent = [("tenant", "acme"), ("model", "e5"), ("class", "interactive-search"), ("currency", "EUR")];
    assert_eq!(page.value("vectorgate_cost_total", &spent), Some(0.0002));
    assert_eq!(page.value("vectorgate_tokens_total", &spent[..3]), Some(12.0));
    let failed = [("upstream", "u1"), ("status", "503")];
    assert_eq!(page.value("vectorgate_upstream_requests_total", &failed), Some(1.0));
    assert_eq!(page.value("vectorgate_tenant_budget_remaining", &[("tenant", "acme")]), Some(142.85));
}

#[test]
fn configured_names_start_at_zero() {
    let page = support::page(&support::metrics());
    let failed = [("class", "batch-ingestion"), ("model", "e5"), ("outcome", "upstream_error")];
    assert_eq!(page.value("vectorgate_request_duration_seconds_count", &failed), Some(0.0));
    assert_eq!(page.value("vectorgate_breaker_state", &[("upstream", "u2")]), Some(0.0));
    assert_eq!(page.value("vectorgate_cache_requests_total", &[("tenant", "zeta"), ("result", "hit")]), Some(0.0));
    let spent = [("tenant", "zeta"), ("model", "org/ranker \"v2\"\\x"), ("class", "rerank"), ("currency", "EUR")];
    assert_eq!(page.value("vectorgate_cost_total", &spent), Some(0.0), "label values survive their escaping");
    assert_eq!(page.value("vectorgate_slo_error_budget_remaining", &[("slo", "interactive_p95")]), Some(1.0));
    assert_eq!(page.value("vectorgate_tenant_budget_remaining", &[("tenant", "acme")]), None);
}

#[test]
fn strangers_share_one_series() {
    let metrics = support::metrics();
    for stranger in ["m1", "m2"] {
        let model = ModelName::from(stranger);
        let zero = Duration::ZERO;
        metrics.request_finished(TrafficClass::Chat, &model, Outcome::ClientError, zero, zero, None);
        metrics.settled(&TenantId::from(stranger), &model, TrafficClass::Chat, Default::default(), 1);
        metrics.breaker_state(&UpstreamId::from(stranger), crate::telemetry::labels::BreakerLevel::Open);
    }
    let page = support::page(&metrics);
    let request = [("class", "chat"), ("model", "other"), ("outcome", "client_error")];
    assert_eq!(page.value("vectorgate_request_duration_seconds_count", &request), Some(2.0));
    let spent = [("tenant", "other"), ("model", "other"), ("class", "chat")];
    assert_eq!(page.value("vectorgate_tokens_total", &spent), Some(2.0));
    assert!(!page.samples.keys().any(|(_, labels)| labels.iter().any(|(_, value)| value == "m1")));
}

#[test]
fn a_new_configuration_keeps_totals_and_drops_gauges_of_the_gone() {
    let metrics = busy();
    let mut plan = support::labels();
    plan.tenants = vec![TenantId::from("acme"), TenantId::from("nova")];
    plan.upstreams = vec![UpstreamId::from("u1")];
    plan.models.insert(0, (ModelName::from("new"), crate::config::plan::ModelKind::Embedding));
    metrics.relabel(&plan);
    metrics.settled(
        &TenantId::from("acme"),
        &ModelName::from("e5"),
        TrafficClass::InteractiveSearch,
        "0.0002".parse().expect("money"),
        12,
    );
    let page = support::page(&metrics);
    let spent = [("tenant", "acme"), ("model", "e5"), ("class", "interactive-search")];
    assert_eq!(page.value("vectorgate_tokens_total", &spent), Some(24.0));
    assert_eq!(page.value("vectorgate_cost_per_search_query", &[("tenant", "acme")]), Some(0.0002));
    assert_eq!(page.value("vectorgate_cache_hit_ratio", &[("tenant", "nova")]), Some(0.0));
    assert_eq!(page.value("vectorgate_cache_hit_ratio", &[("tenant", "zeta")]), None);
    assert_eq!(page.value("vectorgate_breaker_state", &[("upstream", "u2")]), None);
    assert_eq!(page.value("vectorgate_breaker_state", &[("upstream", "u1")]), Some(0.0));
}

#[track_caller]
fn check_accept(accept: Option<&str>, expected: &str) {
    assert_eq!(support::metrics().render(accept).0, expected, "{accept:?}");
}

#[test]
fn the_format_follows_the_accept_header() {
    check_accept(None, PROMETHEUS);
    check_accept(Some(""), PROMETHEUS);
    check_accept(Some("*/*"), PROMETHEUS);
    check_accept(Some("text/html,application/xhtml+xml,*/*;q=0.8"), PROMETHEUS);
    check_accept(Some("text/plain"), PROMETHEUS);
    check_accept(Some("application/openmetrics-text; version=1.0.0; charset=utf-8"), OPENMETRICS);
    check_accept(Some("application/openmetrics-text;version=9.0.0"), PROMETHEUS);
    check_accept(Some("application/openmetrics-text;q=0,text/plain"), PROMETHEUS);
    check_accept(Some("application/openmetrics-text;q=0.4,text/plain;q=0.5"), PROMETHEUS);
    check_accept(Some("application/openmetrics-text;q=nonsense"), PROMETHEUS);
    // What Prometheus 2 and 3 send.
    check_accept(
        Some(
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
             text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        ),
        OPENMETRICS,
    );
    check_accept(
        Some(
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
             application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,\
             text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
        ),
        OPENMETRICS,
    );
}

/// Whether any series of the page has this text in a label.
fn names(page: &Page, text: &str) -> bool {
    page.samples.keys().any(|(_, labels)| labels.iter().any(|(_, value)| value == text))
}

#[test]
fn totals_of_names_that_left_stay_for_a_while_and_then_go() {
    let metrics = busy();
    let strange = TenantId::from("zeta");
    let ranker = ModelName::from("org/ranker \"v2\"\\x");
    metrics.settled(&strange, &ranker, TrafficClass::Rerank, Default::default(), 7);
    for status in [CallStatus::Http(200), CallStatus::Http(418), CallStatus::Outrun] {
        metrics.upstream_call(&UpstreamId::from("u2"), status, Duration::ZERO, None);
    }
    let overall = metrics.overall_ratios();
    let mut plan = support::labels();
    plan.tenants.retain(|tenant| tenant.as_str() != "zeta");
    plan.upstreams.retain(|upstream| upstream.as_str() != "u2");
    plan.models.retain(|(model, _)| *model != ranker);
    plan.collections.clear();
    metrics.relabel(&plan);
    let left = clock::mono();
    let spent = [("tenant", "zeta"), ("model", ranker.as_str()), ("class", "rerank")];
    metrics.forget_departed(left);
    let page = support::page(&metrics);
    assert_eq!(page.value("vectorgate_tokens_total", &spent), Some(7.0), "whoever scrapes now reads the last");
    assert!(names(&page, "u2") && names(&page, "handbook"));
    metrics.forget_departed(left.plus(TOTALS_STAY));
    let page = support::page(&metrics);
    for gone in ["zeta", "u2", "handbook", ranker.as_str()] {
        assert!(!names(&page, gone), "{gone}");
    }
    assert!(names(&page, "acme") && names(&page, "u1") && names(&page, "e5"));
    assert_eq!(metrics.overall_ratios(), overall, "sums over all tenants keep what they did");
}

#[test]
fn whoever_comes_back_in_time_goes_on_counting() {
    let metrics = busy();
    let (zeta, e5) = (TenantId::from("zeta"), ModelName::from("e5"));
    let tokens = |metrics: &Metrics| {
        let spent = [("tenant", "zeta"), ("model", "e5"), ("class", "interactive-search")];
        support::page(metrics).value("vectorgate_tokens_total", &spent)
    };
    let settle = |tokens| metrics.settled(&zeta, &e5, TrafficClass::InteractiveSearch, Default::default(), tokens);
    settle(5);
    let overall = metrics.overall_ratios();
    let mut plan = support::labels();
    plan.tenants.retain(|tenant| *tenant != zeta);
    metrics.relabel(&plan);
    metrics.relabel(&support::labels());
    metrics.forget_departed(clock::mono().plus(TOTALS_STAY));
    assert_eq!(metrics.overall_ratios(), overall, "nothing counts twice");
    settle(6);
    assert_eq!(tokens(&metrics), Some(11.0));
    metrics.relabel(&plan);
    metrics.forget_departed(clock::mono().plus(TOTALS_STAY));
    assert_eq!(tokens(&metrics), None, "and leaves again");
}
