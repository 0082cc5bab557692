//! The sections at the top of the file: server, money, store, cache, quota, breaker, retry, slo.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use crate::config::environment::Environment;
use crate::config::fields::Fields;
use crate::config::plan::{
    Breaker, Cache, CacheBackend, CacheScope, Durability, LedgerStore, ModelKind, Normalization, Quota, RedisTls,
    Retry, Server, Slo, Store,
};
use crate::config::problem::Report;
use crate::config::tree::Table;
use crate::pure::money::{MoneyError, UnitPrice};
use crate::tls::{self, Certificate, Unusable};

/// `[money]`, and the way from a list price to a unit price.
pub(crate) struct MoneyRules {
    /// Three upper-case letters.
    pub currency: String,
    /// The currency's worth of one USD; `None`: it was refused, and prices are not checked against it.
    per_usd: Option<String>,
}

impl MoneyRules {
    /// The price of one unit in the currency, from the key `key` of `fields`, which is in USD for `per` units.
    pub(crate) fn price(&self, fields: &Fields, key: &str, per: u32, report: &mut Report) -> Option<UnitPrice> {
        let text = fields.opt_text(key)?;
        let per_usd = self.per_usd.as_deref()?;
        match UnitPrice::from_usd(text, per_usd, per) {
            Ok(price) => Some(price),
            Err(MoneyError::NotADecimal) => {
                fields.problem(
                    report,
                    key,
                    format!("\"{text}\" is no price"),
                    "expected a plain decimal such as \"0.02\"",
                );
                None
            }
            Err(MoneyError::TooPrecise) => {
                let what = format!("\"{text}\" times money.per_usd \"{per_usd}\" cannot be kept exactly for one unit");
                fields.problem(report, key, what, "use fewer decimals in one of them");
                None
            }
        }
    }
}

pub(super) fn server(fields: &Fields, environment: &Environment, report: &mut Report) -> Server {
    let listen = address(fields, "listen", report);
    let admin_listen = address(fields, "admin_listen", report);
    let admin_token = fields.secret("admin_token", environment, report);
    if let (Some(listen), Some(admin)) = (listen, admin_listen) {
        if listen == admin && listen.port() != 0 {
            fields.problem(report, "admin_listen", format!("{admin} is server.listen too"), "give it another port");
        }
        if admin_token.is_none() && !admin.ip().is_loopback() {
            let what = format!("{admin} can be reached from other machines, but there is no server.admin_token");
            let right = "set VECTORGATE_ADMIN_TOKEN or server.admin_token, or listen on 127.0.0.1";
            fields.problem(report, "admin_listen", what, right);
        }
    }
    let tls = match (path(fields, "tls_cert"), path(fields, "tls_key")) {
        (Some(cert), Some(key)) => certificate(fields, &cert, &key, report),
        (None, None) => None,
        (Some(_), None) => half_tls(fields, "tls_cert", "tls_key", report),
        (None, Some(_)) => half_tls(fields, "tls_key", "tls_cert", report),
    };
    let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    Server {
        listen: listen.unwrap_or(nowhere),
        admin_listen: admin_listen.unwrap_or(nowhere),
        admin_token,
        workers: fields.int_unless_zero("workers").unwrap_or_else(cores),
        max_body_bytes: fields.int("max_body_bytes"),
        max_buffered_bytes: fields.int("max_buffered_bytes"),
        spool_dir: path(fields, "spool_dir"),
        header_timeout: fields.seconds("header_timeout_s"),
        body_timeout: fields.seconds("body_timeout_s"),
        write_timeout: fields.seconds("write_timeout_s"),
        drain: fields.seconds("drain_s"),
        tls,
        cors_origins: origins(fields, report),
    }
}

fn certificate(fields: &Fields, cert: &Path, key: &Path, report: &mut Report) -> Option<Certificate> {
    let right = "a PEM file; the path is relative to the current directory";
    match tls::read(cert, key) {
        Ok(certificate) => return Some(certificate),
        Err(Unusable::Certificate(what)) => {
            fields.problem(report, "tls_cert", format!("the file {} {what}", cert.display()), right);
        }
        Err(Unusable::Key(what)) => {
            fields.problem(report, "tls_key", format!("the file {} {what}", key.display()), right);
        }
    }
    None
}

/// Origins as browsers send them: scheme, host and port, nothing behind.
fn origins(fields: &Fields, report: &mut Report) -> Vec<String> {
    let path = fields.path.key("cors_origins");
    let listed = fields.texts("cors_origins");
    for (origin, at) in &listed {
        let rest = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
        let sane = rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(['/', '?', '#', '@', ' ', '*']));
        if *origin != "*" && (!sane || origin.chars().any(char::is_uppercase)) {
            let right = "expected what a browser sends, such as \"https://app.example.com\", or \"*\" for any page";
            report.problem(at, &path, format!("\"{origin}\" is no origin"), right);
        }
    }
    listed.into_iter().map(|(origin, _)| origin.to_owned()).collect()
}

fn half_tls(fields: &Fields, set: &str, missing: &str, report: &mut Report) -> Option<Certificate> {
    fields.problem(report, set, format!("set without server.{missing}"), "set both for HTTPS, or neither");
    None
}

fn path(fields: &Fields, key: &str) -> Option<PathBuf> {
    fields.opt_text(key).filter(|text| !text.is_empty()).map(PathBuf::from)
}

fn address(fields: &Fields, key: &str, report: &mut Report) -> Option<SocketAddr> {
    let text = fields.text(key);
    // No name is looked up, but this one has a meaning without a look.
    let numeric = text.strip_prefix("localhost:").map_or_else(|| text.to_owned(), |port| format!("127.0.0.1:{port}"));
    match numeric.parse() {
        Ok(address) => Some(address),
        Err(_) => {
            let what = format!("\"{text}\" is not an address");
            fields.problem(report, key, what, "expected address and port, such as \"127.0.0.1:8080\" or \"[::]:8080\"");
            None
        }
    }
}

pub(super) fn money(fields: &Fields, report: &mut Report) -> MoneyRules {
    let currency = fields.text("currency");
    if currency.len() != 3 || !currency.bytes().all(|byte| byte.is_ascii_uppercase()) {
        let what = format!("\"{currency}\" is not a currency");
        fields.problem(report, "currency", what, "expected three capital letters, such as \"EUR\"");
    }
    let per_usd = fields.text("per_usd");
    let usable = UnitPrice::from_usd("1", per_usd, 1);
    match usable {
        Ok(price) if price != UnitPrice::default() => {}
        Ok(_) => {
            fields.problem(report, "per_usd", "is zero, which makes everything free", "expected what one USD is worth")
        }
        Err(error) => {
            fields.problem(report, "per_usd", error.to_string(), "expected what one USD is worth, such as \"0.92\"")
        }
    }
    let one = UnitPrice::from_usd("1", "1", 1);
    if currency == "USD" && usable != one {
        fields.warning(report, "per_usd", format!("one USD is counted as {per_usd} USD: set it to \"1\""));
    } else if currency != "EUR" && !fields.is_written("per_usd") {
        fields.warning(report, "per_usd", format!("not set: {per_usd} is the default for EUR, not for {currency}"));
    }
    MoneyRules { currency: currency.to_owned(), per_usd: usable.is_ok().then(|| per_usd.to_owned()) }
}

pub(super) fn store(fields: &Fields, environment: &Environment, report: &mut Report) -> Store {
    if fields.text("path").is_empty() {
        fields.problem(report, "path", "empty", "expected the folder of the embedded store, such as \"data\"");
    }
    Store {
        ledger: if fields.text("ledger") == "redis" { LedgerStore::Redis } else { LedgerStore::Embedded },
        path: PathBuf::from(fields.text("path")),
        durability: if fields.text("durability") == "power" { Durability::Power } else { Durability::Process },
        retention_days: fields.int_unless_zero("retention_days"),
        redis_url: redis_url(fields, environment, report),
        redis_tls: redis_tls(fields, report),
        redis_timeout: fields.millis("redis_timeout_ms"),
        redis_lease: fields.seconds("redis_lease_s"),
        redis_owed_records: fields.int("redis_owed_records"),
    }
}

fn redis_url(fields: &Fields, environment: &Environment, report: &mut Report) -> Option<crate::config::secret::Secret> {
    let url = fields.secret("redis_url", environment, report)?;
    let schemes = ["redis://", "rediss://", "redis+unix://", "unix://"];
    if !schemes.iter().any(|scheme| url.expose().starts_with(scheme)) {
        fields.problem(report, "redis_url", "is not the URL of a Redis server", "expected redis://host:6379");
    }
    Some(url)
}

/// The PEM files for `rediss:`; what is in them is judged when they are used.
fn redis_tls(fields: &Fields, report: &mut Report) -> RedisTls {
    let mut file = |key: &'static str| {
        let path = path(fields, key)?;
        let what = match std::fs::read(&path) {
            Ok(bytes) if memchr::memmem::find(&bytes, b"-----BEGIN ").is_some() => return Some(path),
            Ok(_) => "is not PEM".to_owned(),
            Err(error) => format!("cannot be read: {error}"),
        };
        let right = "a PEM file; the path is relative to the current directory";
        fields.problem(report, key, format!("the file {} {what}", path.display()), right);
        None
    };
    let (ca, cert, key) = (file("redis_ca"), file("redis_cert"), file("redis_key"));
    if path(fields, "redis_cert").is_some() != path(fields, "redis_key").is_some() {
        let right = "store.redis_cert and store.redis_key belong together: set both or none";
        fields.problem(report, "redis_cert", "one of two", right);
    }
    RedisTls { ca, identity: cert.zip(key) }
}

/// Whoever uses Redis needs its address.
pub(super) fn check_redis(tree: &Table, store: &Store, report: &mut Report) {
    if store.redis_url.is_some() {
        return;
    }
    for (name, key, values) in [
        ("store", "ledger", &["redis"][..]),
        ("cache", "backend", &["redis", "tiered"]),
        ("quota", "shared", &["redis"]),
    ] {
        let fields = super::section(tree, name);
        if values.contains(&fields.text(key)) {
            let what = format!("\"{}\" needs store.redis_url", fields.text(key));
            fields.problem(report, key, what, "set it to redis://host:6379");
        }
    }
}

pub(super) fn cache(fields: &Fields) -> Cache {
    let normalization = |key| match fields.text(key) {
        "lowercase" => Normalization::Lowercase,
        "trim" => Normalization::Trim,
        _ => Normalization::Exact,
    };
    Cache {
        backend: match fields.text("backend") {
            "redis" => CacheBackend::Redis,
            "tiered" => CacheBackend::Tiered,
            "off" => CacheBackend::Off,
            _ => CacheBackend::Memory,
        },
        max_bytes: fields.int("max_bytes"),
        ttl: fields.seconds("ttl_s"),
        scope: if fields.text("scope") == "shared" { CacheScope::Shared } else { CacheScope::Tenant },
        normalize_queries: normalization("normalize_queries"),
        normalize_documents: normalization("normalize_documents"),
    }
}

pub(super) fn quota(fields: &Fields, report: &mut Report) -> Quota {
    let (reserve, floor) = (fields.number("interactive_reserve"), fields.number("batch_floor"));
    if reserve + floor > 1.0 {
        let what = format!("with quota.batch_floor {floor} more than the whole is promised ({})", reserve + floor);
        fields.problem(report, "interactive_reserve", what, "let the two sum up to at most 1");
    }
    let quota = Quota {
        shared: fields.text("shared") == "redis",
        interactive_reserve: reserve,
        batch_floor: floor,
        hedge: fields.flag("hedge"),
        interactive_max_wait: fields.millis("interactive_max_wait_ms"),
        batch_max_dwell: fields.seconds("batch_max_dwell_s"),
        batch_queue_max_items: fields.int("batch_queue_max_items"),
        batch_size: fields.int("batch_size"),
        classify_batch_over_inputs: fields.int("classify_batch_over_inputs"),
        interactive_max_inputs: fields.int("interactive_max_inputs"),
    };
    if quota.classify_batch_over_inputs > quota.interactive_max_inputs {
        let text = "larger than quota.interactive_max_inputs, which then decides alone";
        fields.warning(report, "classify_batch_over_inputs", text);
    }
    quota
}

pub(super) fn breaker(fields: &Fields) -> Breaker {
    Breaker {
        window: fields.seconds("window_s"),
        failure_ratio: fields.number("failure_ratio"),
        min_requests: fields.int("min_requests"),
        slow: fields.millis("slow_ms"),
        cooldown: fields.seconds("cooldown_s"),
        probe_ratio: fields.number("probe_ratio"),
        probe_interval: fields.seconds("probe_interval_s"),
        probe_successes: fields.int("probe_successes"),
    }
}

/// `general` with what an upstream's own table says instead.
pub(super) fn breaker_with(general: &Breaker, own: &Fields) -> Breaker {
    let seconds = |key, otherwise| if own.has(key) { own.seconds(key) } else { otherwise };
    Breaker {
        window: seconds("window_s", general.window),
        failure_ratio: own.opt_number("failure_ratio").unwrap_or(general.failure_ratio),
        min_requests: own.opt_int("min_requests").unwrap_or(general.min_requests),
        slow: if own.has("slow_ms") { own.millis("slow_ms") } else { general.slow },
        cooldown: seconds("cooldown_s", general.cooldown),
        probe_ratio: own.opt_number("probe_ratio").unwrap_or(general.probe_ratio),
        probe_interval: seconds("probe_interval_s", general.probe_interval),
        probe_successes: if own.has("probe_successes") { own.int("probe_successes") } else { general.probe_successes },
    }
}

pub(super) fn retry(fields: &Fields, report: &mut Report) -> Retry {
    if fields.number("cap_ms") < fields.number("base_ms") {
        fields.problem(report, "cap_ms", "less than retry.base_ms", "expected at least retry.base_ms");
    }
    Retry {
        max_attempts: fields.int("max_attempts"),
        base: fields.millis("base_ms"),
        cap: fields.millis("cap_ms"),
        budget_ratio: fields.number("budget_ratio"),
    }
}

/// The two lines of each objective, and the kind of model that they are about.
const LINES: [(&str, &str, ModelKind); 3] = [
    ("interactive_p95_ms", "interactive_p99_ms", ModelKind::Embedding),
    ("rerank_p95_ms", "rerank_p99_ms", ModelKind::Rerank),
    ("chat_p95_ms", "chat_p99_ms", ModelKind::Chat),
];

pub(super) fn slo(fields: &Fields, report: &mut Report) -> Slo {
    for (p95, p99, _) in LINES {
        if fields.number(p99) < fields.number(p95) {
            let right = format!("expected at least slo.{p95}");
            fields.problem(report, p99, format!("less than slo.{p95}"), right);
        }
    }
    Slo {
        window: fields.seconds("window_s"),
        interactive_p95: fields.millis("interactive_p95_ms"),
        interactive_p99: fields.millis("interactive_p99_ms"),
        rerank_p95: fields.millis("rerank_p95_ms"),
        rerank_p99: fields.millis("rerank_p99_ms"),
        chat_p95: fields.millis("chat_p95_ms"),
        chat_p99: fields.millis("chat_p99_ms"),
    }
}

/// `general` with what the table of a model of that kind says instead.
pub(super) fn slo_with(general: &Slo, own: &Fields, kind: ModelKind, report: &mut Report) -> Slo {
    let millis = |key, otherwise| if own.has(key) { own.millis(key) } else { otherwise };
    let slo = Slo {
        window: general.window,
        interactive_p95: millis("interactive_p95_ms", general.interactive_p95),
        interactive_p99: millis("interactive_p99_ms", general.interactive_p99),
        rerank_p95: millis("rerank_p95_ms", general.rerank_p95),
        rerank_p99: millis("rerank_p99_ms", general.rerank_p99),
        chat_p95: millis("chat_p95_ms", general.chat_p95),
        chat_p99: millis("chat_p99_ms", general.chat_p99),
    };
    let pairs =
        [(slo.interactive_p95, slo.interactive_p99), (slo.rerank_p95, slo.rerank_p99), (slo.chat_p95, slo.chat_p99)];
    for ((p95, p99, about), (first, second)) in LINES.into_iter().zip(pairs) {
        if about != kind {
            let (this, right) = LINES.iter().find(|(.., of)| *of == kind).map_or(("", ""), |(p95, p99, _)| (p95, p99));
            for key in [p95, p99].into_iter().filter(|key| own.has(key)) {
                let what = format!("of no use to a model of kind \"{}\"", kind.as_str());
                own.problem(report, key, what, format!("its objectives are {this} and {right}"));
            }
        } else if second < first && (own.has(p95) || own.has(p99)) {
            let (wrong, other, other_ms) = if own.has(p99) { (p99, p95, first) } else { (p95, p99, second) };
            let relation = if wrong == p99 { "less" } else { "more" };
            let of = if own.has(other) { "its own" } else { "[slo]'s" };
            let what = format!("{relation} than {of} {other}, {} ms", other_ms.as_secs_f64() * 1_000.0);
            own.problem(report, wrong, what, format!("expected {p95} to be at most {p99}"));
        }
    }
    slo
}
