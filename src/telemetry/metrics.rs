//! The process's metrics: one [`Metrics`] behind an `Arc`, one typed method per fact.
//!
//! Callers hand over ids and enums; label texts, names and buckets are chosen here. A record finds its series by one or
//! two hash look-ups in a table that only a change of configuration replaces, and allocates nothing. Exact money lives
//! in the ledger: the counters here are binary floats for charts.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::clock;
use crate::config::plan::{Position, Slo};
use crate::error::Code;
use crate::ids::{ModelName, TenantId, UpstreamId};
use crate::pure::class::TrafficClass;
use crate::pure::money::Money;
use crate::pure::service_levels::ModelLevel;
use crate::pure::time::Mono;

use super::collections::{CollectionFamilies, CollectionTable};
use super::departed::{Departed, Series};
use super::labels::{
    ActorName, BreakerLevel, BurnWindow, ByActor, ByBurn, ByClass, ByCode, ByMachine, ByObjective, ByQuantile,
    ByReload, ByRequest, ByStore, ByTrace, ByVersion, ByVisit, CacheResult, CallStatus, LabelPlan, MachineName,
    Objective, Outcome, Quantile, ReloadResult, StoreName, TraceId, VisitEnd, classes_of,
};
use super::models::ModelFamilies;
use super::names;
use super::otlp::LostSpans;
use super::tenants::{FloatGauge, ModelIndex, TenantFamilies, TenantTable};
use super::upstreams::{Buckets, UpstreamFamilies, UpstreamTable};

/// Bounds for whole requests and upstream calls, seconds; the objectives' own lines are added to them.
const LATENCY_BUCKETS: [f64; 17] =
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 120.0];

/// Bounds for the gateway's own time, seconds: the goal is far below a millisecond.
const OVERHEAD_BUCKETS: [f64; 12] =
    [0.000_05, 0.000_1, 0.000_2, 0.000_3, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25, 1.0];

/// With up to this many models every outcome has its series from the start; beyond, with its first request.
const EAGER_MODELS: usize = 40;

type RequestHistogram = HistogramWithExemplars<ByTrace>;

/// What is looked up on each record; replaced as a whole when the configured names change.
#[derive(Debug)]
struct Tables {
    models: ModelIndex,
    /// By model position × class × outcome.
    requests: Vec<OnceLock<RequestHistogram>>,
    tenants: TenantTable,
    collections: CollectionTable,
    upstreams: UpstreamTable,
}

impl Tables {
    /// Series that `next` has no place for.
    fn departed<'a>(&'a self, next: &'a Tables) -> impl Iterator<Item = Series> + 'a {
        let models = self.models.names().filter(|name| !next.models.has(name)).cloned().map(Series::Model);
        let tenants = self.tenants.departed(&self.models, &next.tenants, &next.models);
        let (upstreams, collections) = (&self.upstreams, &self.collections);
        models.chain(tenants).chain(upstreams.departed(&next.upstreams)).chain(collections.departed(&next.collections))
    }
}

/// Every metric of the process.
#[derive(Debug)]
pub struct Metrics {
    pub(super) registry: Registry,
    tables: ArcSwap<Tables>,
    /// Held while names come or series go, so that no series goes while its name comes back.
    departed: Mutex<Departed>,
    requests: Family<ByRequest, RequestHistogram, Buckets>,
    tenants: TenantFamilies,
    collections: CollectionFamilies,
    upstreams: UpstreamFamilies,
    overhead: [Histogram; TrafficClass::ALL.len()],
    fallbacks: [Counter; TrafficClass::ALL.len()],
    errors: [Counter; Code::ALL.len()],
    query_latency: [FloatGauge; Quantile::ALL.len()],
    slo_budget: Family<ByObjective, FloatGauge>,
    slo_burn: Family<ByBurn, FloatGauge>,
    models: ModelFamilies,
    actor_restarts: Family<ByActor, Counter>,
    impossible: Family<ByMachine, Counter>,
    store_errors: Family<ByStore, Counter>,
    reloads: Family<ByReload, Counter>,
    buffered: Gauge,
    balances: Gauge,
    store_owed: Gauge,
    holds_recovered: Counter,
    shortfalls: Counter,
    requestless: Family<ByVisit, Counter>,
    events_dropped: Counter,
    spans_lost: Counter,
    exports_lost: Counter,
    bodies: Bodies,
}

/// Who knows how many bytes of request bodies are in memory.
#[derive(Default)]
struct Bodies(OnceLock<Box<dyn Fn() -> u64 + Send + Sync>>);

impl std::fmt::Debug for Bodies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Bodies").field(&self.0.get().is_some()).finish()
    }
}

impl Metrics {
    /// All families, with a zero for each configured name. `slo` gives the latency histograms a bucket bound at each
    /// objective's line, so that a share "faster than the line" is exact; `lost` is counted by the trace exporter.
    pub fn new(plan: &LabelPlan, slo: &Slo, lost: &LostSpans) -> Arc<Metrics> {
        let mut registry = Registry::default();
        let latency = latency_buckets(slo);
        let requests = Family::new_with_constructor(latency.clone());
        let upstreams = UpstreamFamilies::new(&latency);
        let tenants = TenantFamilies::default();
        let collections = CollectionFamilies::default();
        let overhead = Family::<ByClass, Histogram, _>::new_with_constructor(Buckets(Arc::from(OVERHEAD_BUCKETS)));
        let fallbacks = Family::<ByClass, Counter>::default();
        let errors = Family::<ByCode, Counter>::default();
        let query_latency = Family::<ByQuantile, FloatGauge>::default();
        let per_class = TrafficClass::ALL.map(|class| ByClass { class });
        let metrics = Metrics {
            tables: ArcSwap::from_pointee(tables(plan, &requests, (&tenants, &collections, &upstreams), None)),
            departed: Mutex::default(),
            overhead: per_class.clone().map(|label| overhead.get_or_create_owned(&label)),
            fallbacks: per_class.map(|label| fallbacks.get_or_create_owned(&label)),
            errors: Code::ALL.map(|code| errors.get_or_create_owned(&ByCode { code: code.row().name })),
            query_latency: std::array::from_fn(|at| {
                query_latency.get_or_create_owned(&ByQuantile { quantile: Quantile::ALL[at] })
            }),
            registry: Registry::default(),
            slo_budget: Family::default(),
            slo_burn: Family::default(),
            models: ModelFamilies::new(plan),
            actor_restarts: Family::default(),
            impossible: Family::default(),
            store_errors: Family::default(),
            reloads: Family::default(),
            buffered: Gauge::default(),
            balances: Gauge::default(),
            store_owed: Gauge::default(),
            holds_recovered: Counter::default(),
            shortfalls: Counter::default(),
            requestless: Family::default(),
            events_dropped: Counter::default(),
            spans_lost: lost.0.clone(),
            exports_lost: Counter::default(),
            bodies: Bodies::default(),
            requests,
            tenants,
            collections,
            upstreams,
        };
        names::REQUEST_DURATION.register(&mut registry, metrics.requests.clone());
        names::OVERHEAD.register(&mut registry, overhead);
        names::ERRORS.register(&mut registry, errors);
        names::QUERY_LATENCY.register(&mut registry, query_latency);
        names::SLO_BUDGET.register(&mut registry, metrics.slo_budget.clone());
        names::SLO_BURN_RATE.register(&mut registry, metrics.slo_burn.clone());
        metrics.models.register(&mut registry);
        names::RETRIEVAL_FALLBACKS.register(&mut registry, fallbacks);
        metrics.tenants.register(&mut registry);
        metrics.collections.register(&mut registry);
        metrics.upstreams.register(&mut registry);
        names::ACTOR_RESTARTS.register(&mut registry, metrics.actor_restarts.clone());
        names::IMPOSSIBLE.register(&mut registry, metrics.impossible.clone());
        names::BUFFERED.register(&mut registry, metrics.buffered.clone());
        names::BALANCES.register(&mut registry, metrics.balances.clone());
        names::STORE_OWED.register(&mut registry, metrics.store_owed.clone());
        names::STORE_ERRORS.register(&mut registry, metrics.store_errors.clone());
        names::HOLDS_RECOVERED.register(&mut registry, metrics.holds_recovered.clone());
        names::SHORTFALLS.register(&mut registry, metrics.shortfalls.clone());
        names::RELOADS.register(&mut registry, metrics.reloads.clone());
        names::REQUESTLESS.register(&mut registry, metrics.requestless.clone());
        names::EVENTS_DROPPED.register(&mut registry, metrics.events_dropped.clone());
        names::SPANS_LOST.register(&mut registry, metrics.spans_lost.clone());
        names::EXPORTS_LOST.register(&mut registry, metrics.exports_lost.clone());
        names::BUILD.register(&mut registry, Info::new(ByVersion { version: env!("CARGO_PKG_VERSION") }));
        metrics.start_from_zero();
        Arc::new(Metrics { registry, ..metrics })
    }

    fn start_from_zero(&self) {
        for slo in Objective::ALL {
            self.slo_budget.get_or_create(&ByObjective { slo: *slo }).set(1.0);
            for window in BurnWindow::ALL {
                drop(self.slo_burn.get_or_create(&ByBurn { slo: *slo, window: *window }));
            }
        }
        for actor in ActorName::ALL {
            drop(self.actor_restarts.get_or_create(&ByActor { actor: *actor }));
        }
        for machine in MachineName::ALL {
            drop(self.impossible.get_or_create(&ByMachine { machine: *machine }));
        }
        for store in StoreName::ALL {
            drop(self.store_errors.get_or_create(&ByStore { store: *store }));
        }
        for result in ReloadResult::ALL {
            drop(self.reloads.get_or_create(&ByReload { result: *result }));
        }
        for end in VisitEnd::ALL {
            drop(self.requestless.get_or_create(&ByVisit { end: *end }));
        }
    }

    /// Takes over the names of a new configuration, or a tenant made at run time. Series of names that stay are kept;
    /// gauges of names that left disappear at once, their totals after [`TOTALS_STAY`](super::TOTALS_STAY).
    pub fn relabel(&self, plan: &LabelPlan) {
        let mut departed = self.departed.lock();
        let earlier = self.tables.load_full();
        let next = tables(plan, &self.requests, (&self.tenants, &self.collections, &self.upstreams), Some(&earlier));
        departed.left(earlier.departed(&next), clock::mono());
        self.tables.store(Arc::new(next));
        self.models.relabel(plan);
    }

    /// Takes totals off the page whose names left long enough ago and did not come back.
    pub fn forget_departed(&self, now: Mono) {
        let mut departed = self.departed.lock();
        let tables = self.tables.load();
        for series in departed.due(now) {
            match series {
                Series::Tenant(tenant) if !tables.tenants.has(&tenant) => self.tenants.forget(&tenant),
                Series::Spent { tenant, model, class, currency } => {
                    let (models, spent) = (&tables.models, (&tenant, &model, class));
                    if !tables.tenants.takes_back(&self.tenants, models, spent) {
                        self.tenants.forget_spent(tenant, model, class, currency);
                    }
                }
                Series::Model(model) if !tables.models.has(&model) => {
                    for (class, outcome) in TrafficClass::ALL
                        .into_iter()
                        .flat_map(|class| Outcome::ALL.iter().map(move |outcome| (class, *outcome)))
                    {
                        self.requests.remove(&ByRequest { class, model: model.clone(), outcome });
                    }
                }
                Series::Upstream(upstream) if !tables.upstreams.has(&upstream) => self.upstreams.forget(&upstream),
                Series::Collection { collection, model } if !tables.collections.has(&collection, &model) => {
                    self.collections.forget(&collection, &model);
                }
                Series::Tenant(_) | Series::Model(_) | Series::Upstream(_) | Series::Collection { .. } => {}
            }
        }
    }

    /// One request came to its end: `total` from its first byte, `overhead` of that in the gateway itself. With a
    /// sampled trace, `trace` becomes the exemplar.
    pub fn request_finished(
        &self,
        class: TrafficClass,
        model: &ModelName,
        outcome: Outcome,
        total: Duration,
        overhead: Duration,
        trace: Option<TraceId>,
    ) {
        let tables = self.tables.load();
        let position = tables.models.position(model);
        request_cell(&tables.requests, &tables.models, &self.requests, (position, class, outcome)).observe(
            total.as_secs_f64(),
            trace.map(ByTrace),
            None,
        );
        self.overhead[class as usize].observe(overhead.as_secs_f64());
    }

    /// A request was answered with an error.
    pub fn error(&self, code: Code) {
        self.errors[code as usize].inc();
    }

    /// An answer left without vectors and told the client to search lexically.
    pub fn retrieval_fallback(&self, class: TrafficClass) {
        self.fallbacks[class as usize].inc();
    }

    /// One request asked the cache for `items` items and found `hits` of them.
    pub fn cache(&self, tenant: &TenantId, result: CacheResult, hits: u64, items: u64) {
        let tables = self.tables.load();
        tables.tenants.cache(&self.tenants, &tables.models, tenant, result, (hits, items));
    }

    /// A call's cost and tokens were settled. Zero cost is worth saying too: it counts the tokens.
    pub fn settled(&self, tenant: &TenantId, model: &ModelName, class: TrafficClass, cost: Money, tokens: u64) {
        let tables = self.tables.load();
        tables.tenants.settled(&self.tenants, &tables.models, tenant, (model, class), (cost, tokens));
    }

    /// Where a collection's move stands.
    pub fn collection_stage(&self, collection: &str, position: Position) {
        self.tables.load().collections.stands(collection, position);
    }

    /// One of a configured collection's models did this for it; other collections are not counted.
    pub fn collection_used(&self, collection: &str, model: &ModelName, class: TrafficClass, items: u64, tokens: u64) {
        self.tables.load().collections.used(collection, (model, class), items, tokens);
    }

    /// A search query was answered, from the cache or not: the divisor of the cost per search query.
    pub fn query_answered(&self, tenant: &TenantId) {
        let tables = self.tables.load();
        tables.tenants.query_answered(&self.tenants, &tables.models, tenant);
    }

    /// A journey of a tenant came to its end; `failed`: the service let it down. For the dashboard's rates.
    pub fn tenant_served(&self, tenant: &TenantId, failed: bool) {
        let tables = self.tables.load();
        tables.tenants.served(&self.tenants, &tables.models, tenant, failed);
    }

    /// How many journeys of a configured tenant have ended, and how many of those the service failed.
    pub fn tenant_counts(&self, tenant: &TenantId) -> Option<(u64, u64)> {
        self.tables.load().tenants.counts(tenant)
    }

    /// What a tenant may still spend after all open holds; `None`: it has no budget.
    pub fn tenant_budget_remaining(&self, tenant: &TenantId, remaining: Option<Money>) {
        self.tenants.set_budget(tenant, remaining);
    }

    /// Cache hit ratio (0 to 1) and cost per search query of a configured tenant, as `/metrics` shows them.
    pub fn tenant_ratios(&self, tenant: &TenantId) -> Option<(f64, f64)> {
        self.tables.load().tenants.ratios(tenant)
    }

    /// Cache hit ratio and cost per search query over all tenants.
    pub fn overall_ratios(&self) -> (f64, f64) {
        self.tables.load().tenants.overall_ratios()
    }

    /// A call to an upstream ended after `took`.
    pub fn upstream_call(&self, upstream: &UpstreamId, status: CallStatus, took: Duration, trace: Option<TraceId>) {
        self.with_upstream(upstream, |cells| cells.call(&self.upstreams, status, took, trace));
    }

    /// Where an upstream's breaker stands.
    pub fn breaker_state(&self, upstream: &UpstreamId, level: BreakerLevel) {
        self.with_upstream(upstream, |cells| cells.breaker(level));
    }

    /// A request left an upstream's queue after `waited`.
    pub fn queue_dwell(&self, upstream: &UpstreamId, class: TrafficClass, waited: Duration) {
        self.with_upstream(upstream, |cells| cells.dwell(class, waited));
    }

    /// Whether an upstream is out because of its vectors.
    pub fn quarantined(&self, upstream: &UpstreamId, out: bool) {
        self.with_upstream(upstream, |cells| cells.quarantined(out));
    }

    /// An upstream's key was set aside.
    pub fn key_parked(&self, upstream: &UpstreamId) {
        self.with_upstream(upstream, |cells| cells.key_parked());
    }

    /// A second call was made at `upstream` because another one was slow.
    pub fn hedged(&self, upstream: &UpstreamId) {
        self.with_upstream(upstream, |cells| cells.hedged());
    }

    /// An upstream stated a usage that cannot be right.
    pub fn usage_odd(&self, upstream: &UpstreamId) {
        self.with_upstream(upstream, |cells| cells.usage_odd());
    }

    /// What `record` does with the resolved metrics of an upstream.
    pub(super) fn with_upstream(&self, upstream: &UpstreamId, record: impl FnOnce(&super::upstreams::UpstreamCells)) {
        record(self.tables.load().upstreams.of(&self.upstreams, upstream));
    }

    /// A percentile of interactive query embedding over the objectives' window.
    pub fn query_latency(&self, quantile: Quantile, latency: Duration) {
        self.query_latency[quantile as usize].set(latency.as_secs_f64());
    }

    /// Share of an objective's error budget left, at most 1; negative when overspent.
    pub fn slo_budget_remaining(&self, slo: Objective, share: f64) {
        if share.is_finite() {
            self.slo_budget.get_or_create(&ByObjective { slo }).set(share);
        }
    }

    /// An objective's burn rate over a window; 1 spends the budget exactly.
    pub fn slo_burn_rate(&self, slo: Objective, window: BurnWindow, rate: f64) {
        if rate.is_finite() {
            self.slo_burn.get_or_create(&ByBurn { slo, window }).set(rate);
        }
    }

    /// How the models fare; their targets are in the order of [`Objective::ALL`].
    pub fn model_levels(&self, levels: &[ModelLevel]) {
        self.models.publish(levels);
    }

    /// An actor was rebuilt after a fault.
    pub fn actor_restarted(&self, actor: ActorName) {
        self.actor_restarts.get_or_create(&ByActor { actor }).inc();
    }

    /// A state machine saw an event that its state excludes.
    pub fn impossible_transition(&self, machine: MachineName) {
        self.impossible.get_or_create(&ByMachine { machine }).inc();
    }

    /// How many bytes of request bodies are in memory is asked of `read` at each exposition. Said once.
    pub fn buffered_by(&self, read: impl Fn() -> u64 + Send + Sync + 'static) {
        drop(self.bodies.0.set(Box::new(read)));
    }

    /// A store failed an operation.
    pub fn store_error(&self, store: StoreName) {
        self.store_errors.get_or_create(&ByStore { store }).inc();
    }

    /// A start-up released `count` holds without a seen result.
    pub fn holds_recovered(&self, count: u64) {
        self.holds_recovered.inc_by(count);
    }

    /// Balances that have an actor.
    pub fn balances(&self, count: usize) {
        self.balances.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Usage records that wait for the shared ledger.
    pub fn store_owed_records(&self, records: u64) {
        self.store_owed.set(i64::try_from(records).unwrap_or(i64::MAX));
    }

    /// A settlement cost more than was held.
    pub fn shortfall(&self) {
        self.shortfalls.inc();
    }

    /// A receiver did not take a delivery of the metrics.
    pub fn export_lost(&self) {
        self.exports_lost.inc();
    }

    /// A reload ended.
    pub fn reloaded(&self, result: ReloadResult) {
        self.reloads.get_or_create(&ByReload { result }).inc();
    }

    /// A client connection ended that brought no request.
    pub fn visit_without_request(&self, end: VisitEnd) {
        self.requestless.get_or_create(&ByVisit { end }).inc();
    }

    /// An event fell off the timeline.
    pub fn event_dropped(&self) {
        self.events_dropped.inc();
    }

    /// Brings derived gauges up to date; done before each exposition.
    pub(super) fn derive(&self) {
        if let Some(read) = self.bodies.0.get() {
            self.buffered.set(i64::try_from(read()).unwrap_or(i64::MAX));
        }
        self.tables.load().tenants.derive();
    }
}

fn latency_buckets(slo: &Slo) -> Buckets {
    let lines = Objective::ALL.iter().map(|objective| objective.target(slo).line.as_secs_f64());
    let mut bounds: Vec<f64> = LATENCY_BUCKETS.into_iter().chain(lines).filter(|bound| *bound > 0.0).collect();
    bounds.sort_by(f64::total_cmp);
    bounds.dedup();
    Buckets(bounds.into())
}

fn tables(
    plan: &LabelPlan,
    requests: &Family<ByRequest, RequestHistogram, Buckets>,
    (tenants, collections, upstreams): (&TenantFamilies, &CollectionFamilies, &UpstreamFamilies),
    earlier: Option<&Tables>,
) -> Tables {
    let models = ModelIndex::new(&plan.models);
    let slots = models.len() * TrafficClass::ALL.len() * Outcome::ALL.len();
    let cells: Vec<OnceLock<RequestHistogram>> = (0..slots).map(|_| OnceLock::new()).collect();
    if plan.models.len() <= EAGER_MODELS {
        for (position, (_, kind)) in plan.models.iter().enumerate() {
            for class in classes_of(*kind) {
                for outcome in Outcome::ALL {
                    request_cell(&cells, &models, requests, (position, *class, *outcome));
                }
            }
        }
    }
    let tenants = TenantTable::new(tenants, plan, &models, earlier.map(|old| &old.tenants));
    let collections = CollectionTable::new(collections, plan, earlier.map(|old| &old.collections));
    let upstreams = UpstreamTable::new(upstreams, plan, earlier.map(|old| &old.upstreams));
    Tables { models, requests: cells, tenants, collections, upstreams }
}

fn request_cell<'a>(
    cells: &'a [OnceLock<RequestHistogram>],
    models: &ModelIndex,
    family: &Family<ByRequest, RequestHistogram, Buckets>,
    (position, class, outcome): (usize, TrafficClass, Outcome),
) -> &'a RequestHistogram {
    let slot = (position * TrafficClass::ALL.len() + class as usize) * Outcome::ALL.len() + outcome as usize;
    cells[slot].get_or_init(|| family.get_or_create_owned(&ByRequest { class, model: models.name(position), outcome }))
}
