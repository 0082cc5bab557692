//! Every metric's name, once, with its help text and unit. Knows nothing about values or labels.

use prometheus_client::registry::{Metric, Registry, Unit};

/// What a metric's value counts, which also decides how its name ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// Seconds; the name ends in `_seconds`.
    Seconds,
    /// Bytes; the name ends in `_bytes`.
    Bytes,
    /// A running total; the name ends in `_total`.
    Total,
    /// A plain number.
    Plain,
}

impl Measure {
    const fn suffix(self) -> &'static str {
        match self {
            Measure::Seconds => "_seconds",
            Measure::Bytes => "_bytes",
            Measure::Total => "_total",
            Measure::Plain => "",
        }
    }
}

/// One metric as it appears on `/metrics`.
#[derive(Debug, Clone, Copy)]
pub struct Name {
    /// The whole name, suffix included.
    pub full: &'static str,
    /// One line for people; the exposition adds the full stop.
    pub help: &'static str,
    /// What it measures.
    pub measure: Measure,
}

impl Name {
    /// Registers `metric` under this name. The encoder writes suffix and unit by itself, so the stem is handed over.
    pub(super) fn register(self, registry: &mut Registry, metric: impl Metric) {
        let stem = self.full.strip_suffix(self.measure.suffix()).unwrap_or(self.full);
        match self.measure {
            Measure::Seconds => registry.register_with_unit(stem, self.help, Unit::Seconds, metric),
            Measure::Bytes => registry.register_with_unit(stem, self.help, Unit::Bytes, metric),
            Measure::Total | Measure::Plain => registry.register(stem, self.help, metric),
        }
    }
}

macro_rules! names {
    ($($name:ident = $full:literal, $measure:ident, $help:literal;)*) => {
        $(#[doc = concat!("`", $full, "`: ", $help, ".")]
        pub const $name: Name = Name { full: $full, help: $help, measure: Measure::$measure };)*

        /// Every name, in the order of the page.
        pub const ALL: &[Name] = &[$($name),*];
    };
}

names! {
    REQUEST_DURATION = "vectorgate_request_duration_seconds", Seconds,
        "From a request's first byte to the end of its answer, by what came of it";
    OVERHEAD = "vectorgate_overhead_seconds", Seconds,
        "A request's time in the gateway itself: neither queued nor waiting for an upstream";
    ERRORS = "vectorgate_errors_total", Total,
        "Requests that were answered with an error, by its code";
    QUERY_LATENCY = "vectorgate_query_embedding_latency_seconds", Seconds,
        "Percentiles of interactive query embedding over the last slo.window_s";
    SLO_BUDGET = "vectorgate_slo_error_budget_remaining", Plain,
        "Share of the objective's error budget left over the last six hours: 1 untouched, 0 spent, below 0 overspent";
    SLO_BURN_RATE = "vectorgate_slo_burn_rate", Plain,
        "How many times faster than allowed the error budget is being spent, by window";
    MODEL_LATENCY = "vectorgate_model_latency_seconds", Seconds,
        "Percentiles of a model's answered requests over the last slo.window_s; from its first request on";
    MODEL_SLO_BUDGET = "vectorgate_model_slo_error_budget_remaining", Plain,
        "Share of the objective's error budget that a model's requests left over the last six hours";
    MODEL_SLO_BURN_RATE = "vectorgate_model_slo_burn_rate", Plain,
        "How many times faster than allowed a model's requests spend the error budget, by window";
    MODEL_RETIREMENT = "vectorgate_model_retirement_timestamp_seconds", Seconds,
        "When a provider retires a configured model, Unix time; with an upstream, there alone";
    RETRIEVAL_FALLBACKS = "vectorgate_retrieval_fallbacks_total", Total,
        "Answers without vectors that told the client to search lexically";
    CACHE_REQUESTS = "vectorgate_cache_requests_total", Total,
        "Requests by what the cache knew of their items";
    CACHE_ITEMS = "vectorgate_cache_items_total", Total,
        "Items looked up in the cache, by whether they were there";
    CACHE_HIT_RATIO = "vectorgate_cache_hit_ratio", Plain,
        "Share of looked-up items that the cache had, since the start";
    QUEUE_DWELL = "vectorgate_queue_dwell_seconds", Seconds,
        "Time that requests spent in an upstream's queue";
    QUEUE_DEPTH = "vectorgate_queue_depth", Plain,
        "Input items waiting in an upstream's queue";
    COST = "vectorgate_cost_total", Total,
        "Settled cost in the currency of the label; the ledger keeps the exact amount";
    COST_PER_QUERY = "vectorgate_cost_per_search_query", Plain,
        "Cost of search (queries and their rerank) divided by answered search queries, since the start";
    TOKENS = "vectorgate_tokens_total", Total,
        "Tokens that upstreams charged for";
    BUDGET_REMAINING = "vectorgate_tenant_budget_remaining", Plain,
        "What a tenant may still spend, in the configured currency; absent without a budget";
    COLLECTION_STAGE = "vectorgate_collection_stage", Plain,
        "How far a collection has moved to its new model: 0 old, 1 backfill, 2 canary, 3 new";
    COLLECTION_CANARY = "vectorgate_collection_canary_ratio", Plain,
        "Share of a collection's queries that go to its new model in stage canary";
    COLLECTION_ITEMS = "vectorgate_collection_items_total", Total,
        "Inputs of a collection's answered requests, by the model that its stage chose";
    COLLECTION_TOKENS = "vectorgate_collection_tokens_total", Total,
        "Tokens that a collection's requests were charged for, by the model that its stage chose";
    UPSTREAM_REQUESTS = "vectorgate_upstream_requests_total", Total,
        "Calls to an upstream by HTTP status, or by what went wrong before there was one";
    UPSTREAM_DURATION = "vectorgate_upstream_duration_seconds", Seconds,
        "Duration of calls to an upstream";
    UPSTREAM_IN_FLIGHT = "vectorgate_upstream_in_flight", Plain,
        "Calls to an upstream that are under way";
    BREAKER_STATE = "vectorgate_breaker_state", Plain,
        "Circuit breaker: 0 closed, 1 half-open, 2 open";
    BUCKET_AVAILABLE = "vectorgate_bucket_available", Plain,
        "What an upstream's token bucket would grant now, in tokens or requests";
    COOLDOWN = "vectorgate_upstream_cooldown_seconds", Plain,
        "What is left of the pause that an upstream asked for";
    QUARANTINED = "vectorgate_upstream_quarantined", Plain,
        "1 while an upstream is out because its vectors differ from its space's reference";
    KEYS_PARKED = "vectorgate_upstream_keys_parked_total", Total,
        "Times an upstream's key was set aside because the provider refused it";
    HEDGES = "vectorgate_upstream_hedges_total", Total,
        "Second calls made at an upstream because another one was slow";
    USAGE_ODD = "vectorgate_upstream_usage_odd_total", Total,
        "Answers whose stated usage cannot be right; the estimate was charged";
    ACTOR_RESTARTS = "vectorgate_actor_restarts_total", Total,
        "Times an actor was rebuilt after a fault";
    IMPOSSIBLE = "vectorgate_impossible_transitions_total", Total,
        "Events that a state machine should never see in its state; anything but 0 is a defect";
    BUFFERED = "vectorgate_buffered_bytes", Bytes,
        "Request bodies held in memory";
    BALANCES = "vectorgate_balances", Plain,
        "Tenants' balances in memory, those included of tenants that left, until nothing of them is under way";
    STORE_ERRORS = "vectorgate_store_errors_total", Total,
        "Failed operations of the ledger's or the cache's store";
    STORE_OWED = "vectorgate_store_owed_records", Plain,
        "Usage records on their way to the ledger that replicas share";
    HOLDS_RECOVERED = "vectorgate_holds_recovered_total", Total,
        "Holds without a seen result that a start-up released";
    SHORTFALLS = "vectorgate_budget_shortfalls_total", Total,
        "Settlements that cost more than was held";
    RELOADS = "vectorgate_config_reloads_total", Total,
        "Reloads of the configuration";
    REQUESTLESS = "vectorgate_connections_without_request_total", Total,
        "Client connections that ended before a whole request head was read";
    EVENTS_DROPPED = "vectorgate_timeline_events_dropped_total", Total,
        "Events that fell off the end of the in-process timeline";
    SPANS_LOST = "vectorgate_trace_spans_lost_total", Total,
        "Finished spans that could not be delivered to the trace receiver";
    EXPORTS_LOST = "vectorgate_metric_exports_lost_total", Total,
        "Deliveries of the metrics by OTLP that the receiver did not take; the next one makes up for it";
    BUILD = "vectorgate_build", Plain,
        "The running version";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_end_as_their_measure_says() {
        let distinct: HashSet<&str> = ALL.iter().map(|name| name.full).collect();
        assert_eq!(distinct.len(), ALL.len(), "two metrics share a name");
        for name in ALL {
            assert!(name.full.starts_with("vectorgate_"), "{}", name.full);
            assert!(name.full.ends_with(name.measure.suffix()), "{}", name.full);
            assert!(name.full.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{}", name.full);
            assert!(!name.help.ends_with('.'), "{}: the exposition adds the full stop", name.full);
        }
    }

    const ALERTS: &str = include_str!("../../config/prometheus/alerts.yml");
    const SHIPPED: [&str; 4] = [
        ALERTS,
        include_str!("../../config/prometheus/rules.yml"),
        include_str!("../../config/prometheus/tests.yml"),
        include_str!("../../config/grafana/dashboard.json"),
    ];

    #[test]
    fn shipped_rules_and_dashboards_use_names_that_exist() {
        let mut used = HashSet::new();
        for text in SHIPPED {
            for (at, _) in text.match_indices("vectorgate_") {
                let rest = &text[at..];
                let end = rest.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(rest.len());
                let name = &rest[..end];
                let known = ALL.iter().any(|known| {
                    name.strip_prefix(known.full)
                        .is_some_and(|suffix| matches!(suffix, "" | "_bucket" | "_count" | "_sum" | "_info"))
                });
                assert!(known, "{name}");
                used.insert(name);
            }
        }
        assert!(used.len() > 20, "only {} names found", used.len());
    }

    #[test]
    fn every_alert_has_a_test_and_a_runbook_section() {
        let (tests, runbook) = (SHIPPED[2], include_str!("../../config/prometheus/RUNBOOK.md"));
        let alerts: Vec<&str> = ALERTS.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
        assert!(alerts.len() >= 20, "only {} alerts found", alerts.len());
        for alert in alerts {
            assert!(tests.contains(&format!("alertname=\"{alert}\"")), "{alert} has no test");
            assert!(runbook.contains(&format!("\n## {alert}\n")), "{alert} has no runbook section");
            let anchor = format!("RUNBOOK.md#{}\"", alert.to_lowercase());
            assert!(ALERTS.contains(&anchor), "{alert} does not point to its section");
        }
    }
}
