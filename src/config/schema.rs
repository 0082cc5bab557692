//! Every configuration key: its type, its range, its default. The one place where keys are listed.
//!
//! Knows each key on its own; refuses to know how keys depend on each other (that is `rules`).

/// What a key takes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Type {
    /// Any text.
    Text,
    /// A name that may stand in headers, labels and paths: visible ASCII, 1 to 200 characters.
    Name,
    /// One of these.
    Choice(&'static [&'static str]),
    /// A whole number in this range.
    Int(i64, i64),
    /// A number in this range, fractions allowed: seconds, milliseconds, shares.
    Number(f64, f64),
    /// A plain non-negative decimal, in quotes so that it stays exact.
    Decimal,
    /// True or false.
    Bool,
    /// `{ env }`, `{ file }` or `{ value }`.
    Secret,
    /// The same, or plain text.
    SecretOrText,
    /// A list of texts.
    Texts,
    /// A list of widths, or `{ min, max }`.
    Widths,
    /// A table of these keys; what is absent stays absent.
    Table(&'static [Key]),
    /// A list of tables of these keys.
    Tables(&'static [Key]),
}

/// What holds when a key is absent.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Otherwise {
    /// This, as TOML text.
    Is(&'static str),
    /// Nothing.
    Absent,
    /// It must be there.
    Required,
}

/// One key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Key {
    /// Its name.
    pub name: &'static str,
    /// What it takes.
    pub ty: Type,
    /// What holds without it.
    pub default: Otherwise,
}

/// One section or list at the top of the file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Section {
    /// Its name.
    pub name: &'static str,
    /// Its keys.
    pub keys: &'static [Key],
    /// Whether it is a list of tables, and which key names an entry.
    pub id_key: Option<&'static str>,
}

const fn is(name: &'static str, ty: Type, default: &'static str) -> Key {
    Key { name, ty, default: Otherwise::Is(default) }
}

const fn optional(name: &'static str, ty: Type) -> Key {
    Key { name, ty, default: Otherwise::Absent }
}

const fn required(name: &'static str, ty: Type) -> Key {
    Key { name, ty, default: Otherwise::Required }
}

/// A share of one.
const SHARE: Type = Type::Number(0.0, 1.0);
/// Seconds from a millisecond to a day.
const SECONDS: Type = Type::Number(0.001, 86_400.0);
/// Milliseconds from one to ten minutes.
const MILLIS: Type = Type::Number(1.0, 600_000.0);
/// A count per minute; 0: none known, or none set.
const PER_MINUTE: Type = Type::Int(0, 1_000_000_000_000);
/// Bytes up to 16 TiB, at least one.
const BYTES: Type = Type::Int(1, 1 << 44);
/// A vector's width. No provider comes near the upper end.
const WIDTH: Type = Type::Int(1, 65_536);

const SERVER: &[Key] = &[
    is("listen", Type::Text, r#""127.0.0.1:8080""#),
    is("admin_listen", Type::Text, r#""127.0.0.1:8081""#),
    is("admin_token", Type::Secret, r#"{ env = "VECTORGATE_ADMIN_TOKEN" }"#),
    is("workers", Type::Int(0, 1024), "0"),
    is("max_body_bytes", BYTES, "134217728"),
    is("max_buffered_bytes", BYTES, "268435456"),
    is("spool_dir", Type::Text, r#""""#),
    is("header_timeout_s", SECONDS, "10"),
    is("body_timeout_s", SECONDS, "120"),
    is("write_timeout_s", SECONDS, "30"),
    is("drain_s", Type::Number(0.0, 86_400.0), "30"),
    is("tls_cert", Type::Text, r#""""#),
    is("tls_key", Type::Text, r#""""#),
    is("cors_origins", Type::Texts, "[]"),
];

const MONEY: &[Key] = &[is("currency", Type::Text, r#""EUR""#), is("per_usd", Type::Decimal, r#""0.92""#)];

const STORE: &[Key] = &[
    is("ledger", Type::Choice(&["embedded", "redis"]), r#""embedded""#),
    is("path", Type::Text, r#""data""#),
    is("durability", Type::Choice(&["process", "power"]), r#""process""#),
    is("retention_days", Type::Int(0, 36_500), "400"),
    is("redis_url", Type::SecretOrText, r#""""#),
    is("redis_ca", Type::Text, r#""""#),
    is("redis_cert", Type::Text, r#""""#),
    is("redis_key", Type::Text, r#""""#),
    is("redis_timeout_ms", MILLIS, "50"),
    is("redis_lease_s", Type::Number(1.0, 3_600.0), "30"),
    is("redis_owed_records", Type::Int(1, 10_000_000), "100000"),
];

const NORMALIZATIONS: Type = Type::Choice(&["lowercase", "trim", "exact"]);

const CACHE: &[Key] = &[
    is("backend", Type::Choice(&["memory", "redis", "tiered", "off"]), r#""memory""#),
    is("max_bytes", BYTES, "268435456"),
    is("ttl_s", Type::Number(1.0, 315_360_000.0), "86400"),
    is("scope", Type::Choice(&["tenant", "shared"]), r#""tenant""#),
    is("normalize_queries", NORMALIZATIONS, r#""lowercase""#),
    is("normalize_documents", NORMALIZATIONS, r#""exact""#),
];

const QUOTA: &[Key] = &[
    is("shared", Type::Choice(&["local", "redis"]), r#""local""#),
    is("interactive_reserve", SHARE, "0.3"),
    is("batch_floor", SHARE, "0.05"),
    is("hedge", Type::Bool, "false"),
    is("interactive_max_wait_ms", Type::Number(0.0, 600_000.0), "250"),
    is("batch_max_dwell_s", Type::Number(0.0, 86_400.0), "300"),
    is("batch_queue_max_items", Type::Int(0, 1_000_000_000), "100000"),
    is("batch_size", Type::Int(1, 100_000), "50"),
    is("classify_batch_over_inputs", Type::Int(1, 1_000_000), "16"),
    is("interactive_max_inputs", Type::Int(1, 1_000_000), "64"),
];

const BREAKER: &[Key] = &[
    is("window_s", Type::Number(0.1, 3600.0), "30"),
    is("failure_ratio", Type::Number(0.001, 1.0), "0.05"),
    is("min_requests", Type::Int(1, 1_000_000), "20"),
    is("slow_ms", MILLIS, "2000"),
    is("cooldown_s", SECONDS, "60"),
    is("probe_ratio", Type::Number(0.000_1, 1.0), "0.01"),
    is("probe_interval_s", SECONDS, "5"),
    is("probe_successes", Type::Int(1, 1000), "3"),
];

const RETRY: &[Key] = &[
    is("max_attempts", Type::Int(1, 20), "3"),
    is("base_ms", MILLIS, "50"),
    is("cap_ms", MILLIS, "2000"),
    is("budget_ratio", SHARE, "0.1"),
];

// Lines of objectives; a model may have its own.
const INTERACTIVE_P95: Key = is("interactive_p95_ms", MILLIS, "70");
const INTERACTIVE_P99: Key = is("interactive_p99_ms", MILLIS, "120");
const RERANK_P95: Key = is("rerank_p95_ms", MILLIS, "300");
const RERANK_P99: Key = is("rerank_p99_ms", MILLIS, "600");
const CHAT_P95: Key = is("chat_p95_ms", MILLIS, "10000");
const CHAT_P99: Key = is("chat_p99_ms", MILLIS, "30000");

const SLO: &[Key] = &[
    is("window_s", Type::Number(1.0, 86_400.0), "300"),
    INTERACTIVE_P95,
    INTERACTIVE_P99,
    RERANK_P95,
    RERANK_P99,
    CHAT_P95,
    CHAT_P99,
];

/// Keys of a model's own objectives.
pub(crate) const MODEL_SLO: &[Key] = &[INTERACTIVE_P95, INTERACTIVE_P99, RERANK_P95, RERANK_P99, CHAT_P95, CHAT_P99];

// Prices of a model; an upstream's `serves` entry may have its own.
const INPUT_PRICE: Key = optional("price_usd_per_million_tokens", Type::Decimal);
const OUTPUT_PRICE: Key = optional("output_price_usd_per_million_tokens", Type::Decimal);
const SEARCH_PRICE: Key = optional("price_usd_per_thousand_searches", Type::Decimal);

const MODEL: &[Key] = &[
    required("name", Type::Name),
    is("kind", Type::Choice(&["embedding", "rerank", "chat"]), r#""embedding""#),
    optional("space", Type::Name),
    optional("dimensions", WIDTH),
    optional("matryoshka", Type::Widths),
    optional("enforce_dimensions", WIDTH),
    optional("max_input_tokens", Type::Int(1, 100_000_000)),
    optional("max_output_tokens", Type::Int(1, 100_000_000)),
    is("tokenizer", Type::Choice(&["cl100k", "o200k", "bytes", "unknown"]), r#""unknown""#),
    is("case", Type::Choice(&["folded", "kept", "unknown"]), r#""unknown""#),
    is("symmetric", Type::Bool, "false"),
    INPUT_PRICE,
    OUTPUT_PRICE,
    SEARCH_PRICE,
    is("pairwise", Type::Bool, "false"),
    is("fallbacks", Type::Texts, "[]"),
    optional("retires", Type::Text),
    is("slo", Type::Table(MODEL_SLO), "{}"),
];

const SERVES: &[Key] =
    &[required("model", Type::Text), optional("as", Type::Text), INPUT_PRICE, OUTPUT_PRICE, SEARCH_PRICE];

/// Names of providers, as in `provider`.
pub(crate) const PROVIDERS: &[&str] =
    &["openai", "azure", "cohere", "voyage", "jina", "tei", "ollama", "vllm", "anthropic", "simulated"];

const UPSTREAM: &[Key] = &[
    required("id", Type::Name),
    required("provider", Type::Choice(PROVIDERS)),
    optional("base_url", Type::Text),
    is("ca", Type::Text, r#""""#),
    optional("api_key", Type::Secret),
    is("region", Type::Text, r#""""#),
    is("tier", Type::Int(0, 1000), "0"),
    is("tpm", PER_MINUTE, "0"),
    is("rpm", PER_MINUTE, "0"),
    is("max_concurrency", Type::Int(1, 100_000), "64"),
    is("connect_timeout_ms", MILLIS, "1000"),
    is("timeout_s", SECONDS, "30"),
    is("max_batch_items", Type::Int(0, 1_000_000), "0"),
    is("max_batch_tokens", Type::Int(0, 1_000_000_000), "0"),
    is("max_batch_bytes", Type::Int(0, 1 << 40), "0"),
    is("stream_usage", Type::Bool, "true"),
    is("breaker", Type::Table(BREAKER), "{}"),
    is("serves", Type::Tables(SERVES), "[]"),
];

/// Names of traffic classes, as in `class`; the empty text for none.
const CLASSES: &[&str] = &["", "interactive-search", "batch-ingestion", "rerank", "chat"];

const TENANT: &[Key] = &[
    required("id", Type::Name),
    is("key_sha256", Type::Texts, "[]"),
    optional("budget", Type::Decimal),
    is("budget_period", Type::Choice(&["none", "day", "month"]), r#""none""#),
    is("tpm", PER_MINUTE, "0"),
    is("rpm", PER_MINUTE, "0"),
    is("max_concurrency", Type::Int(0, 1_000_000), "0"),
    is("weight", Type::Int(1, 1_000_000), "1"),
    is("class", Type::Choice(CLASSES), r#""""#),
    is("models", Type::Texts, r#"["*"]"#),
    is("serve_cached_when_exhausted", Type::Bool, "false"),
];

const COLLECTION: &[Key] = &[
    required("name", Type::Name),
    required("from", Type::Text),
    required("to", Type::Text),
    is("stage", Type::Choice(&["old", "backfill", "canary", "new"]), r#""old""#),
    is("canary", SHARE, "0.0"),
];

const fn section(name: &'static str, keys: &'static [Key]) -> Section {
    Section { name, keys, id_key: None }
}

const fn list(name: &'static str, keys: &'static [Key], id_key: &'static str) -> Section {
    Section { name, keys, id_key: Some(id_key) }
}

/// The whole file.
pub(crate) const SECTIONS: &[Section] = &[
    section("server", SERVER),
    section("money", MONEY),
    section("store", STORE),
    section("cache", CACHE),
    section("quota", QUOTA),
    section("breaker", BREAKER),
    section("retry", RETRY),
    section("slo", SLO),
    list("models", MODEL, "name"),
    list("upstreams", UPSTREAM, "id"),
    list("tenants", TENANT, "id"),
    list("collections", COLLECTION, "name"),
];

/// The section of that name.
pub(crate) fn section_named(name: &str) -> Option<&'static Section> {
    SECTIONS.iter().find(|section| section.name == name)
}

/// The key of that name among `keys`.
pub(crate) fn key_named(keys: &'static [Key], name: &str) -> Option<&'static Key> {
    keys.iter().find(|key| key.name == name)
}

/// The key that names an entry of such tables, where they have one.
pub(crate) fn id_key(keys: &'static [Key]) -> Option<&'static str> {
    ["id", "name"].into_iter().find(|name| key_named(keys, name).is_some())
}

#[cfg(test)]
mod tests {
    use super::super::tree::{Origin, parse_value};
    use super::*;

    #[track_caller]
    fn check(section: &str, keys: &[Key]) {
        for key in keys {
            if let Otherwise::Is(text) = key.default {
                assert!(parse_value(text, &Origin::Default).is_some(), "{section}.{} = {text}", key.name);
            }
            if let Type::Table(inner) | Type::Tables(inner) = key.ty {
                check(section, inner);
            }
        }
    }

    #[test]
    fn every_default_is_toml() {
        for section in SECTIONS {
            check(section.name, section.keys);
        }
    }
}
