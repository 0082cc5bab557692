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

use super::departed::Series;
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

    pub(super) fn has(&self, model: &ModelName) -> bool {
        self.by_name.contains_key(model)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &ModelName> {
        self.by_name.keys()
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
    /// Items that were counted before, where the tenant came back while its totals were still shown.
    items_before: (u64, u64),
}

impl Totals {
    /// What it adds to the sums over all tenants.
    fn sums(&self) -> Sums {
        let (hits, missed) = self.items_before;
        Sums {
            hits: self.items_hit.get().saturating_sub(hits),
            missed: self.items_missed.get().saturating_sub(missed),
            cost: self.search_cost.get(),
            queries: self.search_queries.load(Ordering::Relaxed),
        }
    }
}

/// Sums over tenants, since the start.
#[derive(Debug, Default, Clone, Copy)]
struct Sums {
    hits: u64,
    missed: u64,
    cost: f64,
    queries: u64,
}

impl std::iter::Sum for Sums {
    fn sum<I: Iterator<Item = Sums>>(sums: I) -> Sums {
        sums.fold(Sums::default(), |all, one| Sums {
            hits: all.hits + one.hits,
            missed: all.missed + one.missed,
            cost: all.cost + one.cost,
            queries: all.queries + one.queries,
        })
    }
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
        let items = [CacheResult::Hit, CacheResult::Miss].map(|result| by_result(&self.items, result));
        let items_before = (items[0].get(), items[1].get());
        let [items_hit, items_missed] = items;
        Totals {
            requests: std::array::from_fn(|at| by_result(&self.requests, CacheResult::ALL[at])),
            items_hit,
            items_missed,
            items_before,
            hit_ratio: self.hit_ratio.get_or_create_owned(&label),
            cost_per_query: self.cost_per_query.get_or_create_owned(&label),
            search_queries: AtomicU64::new(0),
            search_cost: FloatCounter::default(),
            served: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    /// Takes a tenant's totals off the page, but for what it spent.
    pub(super) fn forget(&self, tenant: &TenantId) {
        for result in CacheResult::ALL.iter().copied() {
            let label = ByTenantResult { tenant: tenant.clone(), result };
            self.requests.remove(&label);
            self.items.remove(&label);
        }
        // A late word on its balance may have brought it back.
        self.set_budget(tenant, None);
    }

    /// Takes off the page what a tenant spent on a model.
    pub(super) fn forget_spent(&self, tenant: TenantId, model: ModelName, class: TrafficClass, currency: Arc<str>) {
        self.tokens.remove(&ByTokens { tenant: tenant.clone(), model: model.clone(), class });
        self.cost.remove(&ByCost { tenant, model, class, currency });
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
    /// What tenants that left have added to the sums over all.
    left: Sums,
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
        let mut table = TenantTable {
            cells: plan.tenants.iter().map(cells_of).collect(),
            other: OnceLock::new(),
            currency: Arc::from(plan.currency.as_str()),
            left: earlier.map(|old| old.left).unwrap_or_default(),
        };
        let others = earlier.and_then(|old| old.other.get()).map(|other| other.totals.sums());
        let gone = || earlier.iter().flat_map(|old| &old.cells).filter(|(id, _)| !table.cells.contains_key(*id));
        let sums = gone().map(|(_, cells)| cells.totals.sums()).chain(others).chain([table.left]).sum();
        for (gone, _) in gone() {
            let label = ByTenant { tenant: gone.clone() };
            families.budget.remove(&label);
            families.hit_ratio.remove(&label);
            families.cost_per_query.remove(&label);
        }
        table.left = sums;
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

    pub(super) fn has(&self, tenant: &TenantId) -> bool {
        self.cells.contains_key(tenant)
    }

    /// Totals of this table, made with `models`, that `next`, made with `next_models`, has no place for.
    pub(super) fn departed(
        &self,
        models: &ModelIndex,
        next: &TenantTable,
        next_models: &ModelIndex,
    ) -> impl Iterator<Item = Series> {
        // The last position is nobody's, and stays.
        let model_left = |model: &usize| !next_models.has(&models.name(*model)) && model + 1 < models.len();
        let models_left: Vec<usize> = (0..models.len()).filter(model_left).collect();
        self.cells.iter().flat_map(move |(tenant, cells)| {
            let left = !next.has(tenant);
            let own = left.then(|| Series::Tenant(tenant.clone()));
            let gone = if left { (0..models.len()).collect() } else { models_left.clone() };
            let slots =
                gone.into_iter().flat_map(|model| (0..TrafficClass::ALL.len()).map(move |class| (model, class)));
            let is_shown = |(model, class): &(usize, usize)| {
                cells.spend.get(model * TrafficClass::ALL.len() + class).is_some_and(|spend| spend.get().is_some())
            };
            let spent = slots.filter(is_shown).map(move |(model, class)| Series::Spent {
                tenant: tenant.clone(),
                model: models.name(model),
                class: TrafficClass::ALL[class],
                currency: Arc::clone(&self.currency),
            });
            own.into_iter().chain(spent)
        })
    }

    /// Has a place again for what a tenant spent on a model, if it knows both: they came back in time.
    pub(super) fn takes_back(
        &self,
        families: &TenantFamilies,
        models: &ModelIndex,
        (tenant, model, class): (&TenantId, &ModelName, TrafficClass),
    ) -> bool {
        let knows_model = models.has(model) || model.as_str() == OTHER;
        let Some(cells) = self.cells.get(tenant).filter(|_| knows_model) else { return false };
        cells.spend(families, &self.currency, models, models.position(model), class);
        true
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
        let present = self.cells.values().chain(self.other.get()).map(|cells| cells.totals.sums());
        let Sums { hits, missed, cost, queries } = present.chain([self.left]).sum();
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
