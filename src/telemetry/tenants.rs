//! The counters and gauges of tenants. Knows no histogram: with a thousand tenants each would cost megabytes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::config::plan::ModelKind;
use crate::ids::{ModelName, TenantId};
use crate::pure::class::TrafficClass;
use crate::pure::money::Money;

use super::labels::{ByCost, ByTenant, ByTenantResult, ByTokens, CacheResult, LabelPlan, OTHER, classes_of};
use super::names;

pub(super) type FloatGauge = Gauge<f64, AtomicU64>;
type FloatCounter = Counter<f64, AtomicU64>;

/// Up to this many (tenant, model, class) triples exist from the start; beyond, each appears with its first use, since
/// a page with every triple of a thousand tenants would be mostly zeros.
const EAGER_TRIPLES: usize = 2_000;

/// Configured models by position; the position after the last stands for all others.
#[derive(Debug)]
pub(super) struct ModelIndex {
    by_name: HashMap<ModelName, usize>,
    names: Vec<ModelName>,
}

impl ModelIndex {
    pub(super) fn new(models: &[(ModelName, ModelKind)]) -> ModelIndex {
        let by_name = models.iter().enumerate().map(|(at, (name, _))| (name.clone(), at)).collect();
        let others = std::iter::once(ModelName::from(OTHER));
        ModelIndex { by_name, names: models.iter().map(|(name, _)| name.clone()).chain(others).collect() }
    }

    pub(super) fn position(&self, model: &ModelName) -> usize {
        self.by_name.get(model).copied().unwrap_or(self.names.len() - 1)
    }

    pub(super) fn name(&self, position: usize) -> ModelName {
        self.names.get(position).cloned().unwrap_or_else(|| ModelName::from(OTHER))
    }

    pub(super) fn len(&self) -> usize {
        self.names.len()
    }
}

#[derive(Debug)]
struct Spend {
    cost: FloatCounter,
    tokens: Counter,
}

/// What survives a change of the model list.
#[derive(Debug)]
struct Totals {
    requests: [Counter; CacheResult::ALL.len()],
    items_hit: Counter,
    items_missed: Counter,
    hit_ratio: FloatGauge,
    cost_per_query: FloatGauge,
    search_queries: AtomicU64,
    search_cost: FloatCounter,
    served: AtomicU64,
    failed: AtomicU64,
}

#[derive(Debug)]
struct Cells {
    tenant: TenantId,
    totals: Arc<Totals>,
    /// By model position × class; resolved with the first use.
    spend: Vec<OnceLock<Spend>>,
}

/// The families that carry a `tenant` label.
#[derive(Debug, Default)]
pub(super) struct TenantFamilies {
    requests: Family<ByTenantResult, Counter>,
    items: Family<ByTenantResult, Counter>,
    hit_ratio: Family<ByTenant, FloatGauge>,
    cost: Family<ByCost, FloatCounter>,
    cost_per_query: Family<ByTenant, FloatGauge>,
    tokens: Family<ByTokens, Counter>,
    budget: Family<ByTenant, FloatGauge>,
}

impl TenantFamilies {
    pub(super) fn register(&self, registry: &mut Registry) {
        names::CACHE_REQUESTS.register(registry, self.requests.clone());
        names::CACHE_ITEMS.register(registry, self.items.clone());
        names::CACHE_HIT_RATIO.register(registry, self.hit_ratio.clone());
        names::COST.register(registry, self.cost.clone());
        names::COST_PER_QUERY.register(registry, self.cost_per_query.clone());
        names::TOKENS.register(registry, self.tokens.clone());
        names::BUDGET_REMAINING.register(registry, self.budget.clone());
    }

    fn totals(&self, tenant: &TenantId) -> Totals {
        let by_result = |family: &Family<ByTenantResult, Counter>, result| {
            family.get_or_create_owned(&ByTenantResult { tenant: tenant.clone(), result })
        };
        let label = ByTenant { tenant: tenant.clone() };
        Totals {
            requests: std::array::from_fn(|at| by_result(&self.requests, CacheResult::ALL[at])),
            items_hit: by_result(&self.items, CacheResult::Hit),
            items_missed: by_result(&self.items, CacheResult::Miss),
            hit_ratio: self.hit_ratio.get_or_create_owned(&label),
            cost_per_query: self.cost_per_query.get_or_create_owned(&label),
            search_queries: AtomicU64::new(0),
            search_cost: FloatCounter::default(),
            served: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    pub(super) fn set_budget(&self, tenant: &TenantId, remaining: Option<Money>) {
        let label = ByTenant { tenant: tenant.clone() };
        match remaining {
            Some(amount) => {
                self.budget.get_or_create(&label).set(amount.to_f64_lossy());
            }
            None => {
                self.budget.remove(&label);
            }
        }
    }
}

/// The configured tenants' cells.
#[derive(Debug)]
pub(super) struct TenantTable {
    cells: HashMap<TenantId, Cells>,
    other: OnceLock<Cells>,
    currency: Arc<str>,
}

impl TenantTable {
    /// The table of `plan`; tenants that `earlier` already knew keep their totals, those that left lose their gauges.
    pub(super) fn new(
        families: &TenantFamilies,
        plan: &LabelPlan,
        models: &ModelIndex,
        earlier: Option<&TenantTable>,
    ) -> TenantTable {
        let known = |tenant: &TenantId| earlier.and_then(|table| table.cells.get(tenant));
        let cells_of = |tenant: &TenantId| {
            let totals = known(tenant).map_or_else(|| Arc::new(families.totals(tenant)), |old| Arc::clone(&old.totals));
            (tenant.clone(), Cells::new(tenant.clone(), totals, models))
        };
        let table = TenantTable {
            cells: plan.tenants.iter().map(cells_of).collect(),
            other: OnceLock::new(),
            currency: Arc::from(plan.currency.as_str()),
        };
        for (gone, _) in earlier.iter().flat_map(|old| &old.cells).filter(|(id, _)| !table.cells.contains_key(id)) {
            let label = ByTenant { tenant: gone.clone() };
            families.budget.remove(&label);
            families.hit_ratio.remove(&label);
            families.cost_per_query.remove(&label);
        }
        let pairs: Vec<(usize, TrafficClass)> = plan
            .models
            .iter()
            .enumerate()
            .flat_map(|(at, (_, kind))| classes_of(*kind).iter().map(move |class| (at, *class)))
            .collect();
        if pairs.len() * table.cells.len() <= EAGER_TRIPLES {
            for cells in table.cells.values() {
                for (model, class) in &pairs {
                    cells.spend(families, &table.currency, models, *model, *class);
                }
            }
        }
        table
    }

    fn of(&self, families: &TenantFamilies, models: &ModelIndex, tenant: &TenantId) -> &Cells {
        self.cells.get(tenant).unwrap_or_else(|| {
            self.other.get_or_init(|| {
                let other = TenantId::from(OTHER);
                Cells::new(other.clone(), Arc::new(families.totals(&other)), models)
            })
        })
    }

    pub(super) fn cache(
        &self,
        families: &TenantFamilies,
        models: &ModelIndex,
        tenant: &TenantId,
        result: CacheResult,
        (hits, items): (u64, u64),
    ) {
        let totals = &self.of(families, models, tenant).totals;
        totals.requests[result as usize].inc();
        if result != CacheResult::Bypass {
            totals.items_hit.inc_by(hits);
            totals.items_missed.inc_by(items.saturating_sub(hits));
        }
    }

    pub(super) fn settled(
        &self,
        families: &TenantFamilies,
        models: &ModelIndex,
        tenant: &TenantId,
        (model, class): (&ModelName, TrafficClass),
        (cost, tokens): (Money, u64),
    ) {
        let cells = self.of(families, models, tenant);
        let cost = cost.to_f64_lossy().max(0.0);
        let spend = cells.spend(families, &self.currency, models, models.position(model), class);
        spend.cost.inc_by(cost);
        spend.tokens.inc_by(tokens);
        if matches!(class, TrafficClass::InteractiveSearch | TrafficClass::Rerank) {
            cells.totals.search_cost.inc_by(cost);
        }
    }

    pub(super) fn query_answered(&self, families: &TenantFamilies, models: &ModelIndex, tenant: &TenantId) {
        self.of(families, models, tenant).totals.search_queries.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn served(&self, families: &TenantFamilies, models: &ModelIndex, tenant: &TenantId, failed: bool) {
        let totals = &self.of(families, models, tenant).totals;
        totals.served.fetch_add(1, Ordering::Relaxed);
        totals.failed.fetch_add(u64::from(failed), Ordering::Relaxed);
    }

    pub(super) fn counts(&self, tenant: &TenantId) -> Option<(u64, u64)> {
        let totals = &self.cells.get(tenant)?.totals;
        Some((totals.served.load(Ordering::Relaxed), totals.failed.load(Ordering::Relaxed)))
    }

    /// Brings the gauges that are quotients of counters up to date.
    pub(super) fn derive(&self) {
        for cells in self.cells.values().chain(self.other.get()) {
            let totals = &cells.totals;
            totals.hit_ratio.set(hit_ratio(totals));
            totals.cost_per_query.set(cost_per_query(totals));
        }
    }

    /// Cache hit ratio and cost per search query of a tenant, as the page shows them; `None` for an unknown tenant.
    pub(super) fn ratios(&self, tenant: &TenantId) -> Option<(f64, f64)> {
        let totals = &self.cells.get(tenant)?.totals;
        Some((hit_ratio(totals), cost_per_query(totals)))
    }

    /// The same over all tenants.
    pub(super) fn overall_ratios(&self) -> (f64, f64) {
        let all = || self.cells.values().chain(self.other.get()).map(|cells| &cells.totals);
        let hits = all().map(|totals| totals.items_hit.get()).sum();
        let missed = all().map(|totals| totals.items_missed.get()).sum();
        let cost = all().map(|totals| totals.search_cost.get()).sum();
        let queries = all().map(|totals| totals.search_queries.load(Ordering::Relaxed)).sum();
        (share(hits, missed), average(cost, queries))
    }
}

fn hit_ratio(totals: &Totals) -> f64 {
    share(totals.items_hit.get(), totals.items_missed.get())
}

fn cost_per_query(totals: &Totals) -> f64 {
    average(totals.search_cost.get(), totals.search_queries.load(Ordering::Relaxed))
}

fn share(part: u64, rest: u64) -> f64 {
    if part + rest == 0 { 0.0 } else { part as f64 / (part + rest) as f64 }
}

fn average(sum: f64, count: u64) -> f64 {
    if count == 0 { 0.0 } else { sum / count as f64 }
}

impl Cells {
    fn new(tenant: TenantId, totals: Arc<Totals>, models: &ModelIndex) -> Cells {
        let slots = models.len() * TrafficClass::ALL.len();
        Cells { tenant, totals, spend: (0..slots).map(|_| OnceLock::new()).collect() }
    }

    fn spend(
        &self,
        families: &TenantFamilies,
        currency: &Arc<str>,
        models: &ModelIndex,
        model: usize,
        class: TrafficClass,
    ) -> &Spend {
        self.spend[model * TrafficClass::ALL.len() + class as usize].get_or_init(|| {
            let (tenant, name) = (self.tenant.clone(), models.name(model));
            Spend {
                cost: families.cost.get_or_create_owned(&ByCost {
                    tenant: tenant.clone(),
                    model: name.clone(),
                    class,
                    currency: Arc::clone(currency),
                }),
                tokens: families.tokens.get_or_create_owned(&ByTokens { tenant, model: name, class }),
            }
        })
    }
}
