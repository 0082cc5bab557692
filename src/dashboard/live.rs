//! The dashboard's numbers as they are: read from what the actors published, asked of nobody, so that a hundred viewers
//! cost the traffic nothing. Also judges the admin token by the configuration in force.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use subtle::ConstantTimeEq as _;

use crate::actors::upstream::{Shown, UpstreamHandle};
use crate::clock;
use crate::config::plan::{Plan, Retirement};
use crate::edge::admin::collections::Progress;
use crate::gateway::Gateway;
use crate::ids::{ModelName, TenantId};
use crate::pure::admission::LastError;
use crate::pure::breaker::Phase;
use crate::pure::call_stats;
use crate::pure::class::TrafficClass;
use crate::pure::money::Money;
use crate::pure::service_levels::{ClassLevel, ModelLevel};
use crate::pure::time::{Mono, Wall};
use crate::pure::utc::Day;
use crate::runtime::collections::CollectionRuntime;
use crate::runtime::{Running, TenantRuntime};
use crate::telemetry::labels::{BreakerLevel, Objective};

use super::feed::{
    BucketView, ClassHistory, ClassView, CollectionView, DashboardSnapshot, Feed, History, LastError as LastErrorView,
    ModelView, ObjectiveView, RetirementView, Serving, ShareView, SloView, TenantView, TotalsView, UpstreamView,
};
use super::http::AdminAuth;

/// Events that the page gets; it shows a hundred.
const EVENTS: usize = 300;

/// Tenants are rendered anew this often.
const TENANTS_EVERY: Duration = Duration::from_secs(5);

/// A tenant's rates are taken over at least this long.
const RATES_OVER: Duration = Duration::from_secs(30);

/// The running gateway's dashboard feed.
pub struct Live {
    gateway: Arc<Gateway>,
    tenants: Mutex<Tenants>,
}

/// The last rendering of the tenants, and what their rates are taken from.
#[derive(Default)]
struct Tenants {
    at: Option<Mono>,
    views: Vec<TenantView>,
    older: Counts,
    newer: Counts,
}

/// Every tenant's ended and failed requests at a moment.
#[derive(Default)]
struct Counts {
    at: Mono,
    by_tenant: HashMap<TenantId, (u64, u64)>,
}

impl Live {
    /// The feed of `gateway`.
    pub fn new(gateway: Arc<Gateway>) -> Live {
        Live { gateway, tenants: Mutex::default() }
    }

    fn tenants(&self, running: &Running, now: Mono) -> Vec<TenantView> {
        let mut kept = self.tenants.lock();
        if kept.at.is_some_and(|at| now.since(at) < TENANTS_EVERY) {
            return kept.views.clone();
        }
        let metrics = &self.gateway.telemetry.metrics;
        let counts = |id: &TenantId| metrics.tenant_counts(id).unwrap_or_default();
        if kept.at.is_none() || now.since(kept.newer.at) >= RATES_OVER {
            let by_tenant = running.tenants.keys().map(|id| (id.clone(), counts(id))).collect();
            kept.older = std::mem::replace(&mut kept.newer, Counts { at: now, by_tenant });
        }
        let mut listed: Vec<&Arc<TenantRuntime>> = Vec::with_capacity(running.tenants.len());
        // Those of the file in its order, those made at run time after them.
        listed.extend(running.plan.tenants.iter().filter_map(|plan| running.tenants.get(&plan.id)));
        let named: HashSet<&TenantId> = running.plan.tenants.iter().map(|plan| &plan.id).collect();
        let mut others: Vec<_> = running.tenants.iter().filter(|(id, _)| !named.contains(id)).collect();
        others.sort_by_key(|(id, _)| (*id).clone());
        listed.extend(others.into_iter().map(|(_, tenant)| tenant));
        let views = listed
            .into_iter()
            .map(|tenant| {
                let id = &tenant.plan.id;
                let (served, failed) = counts(id);
                let (served_then, failed_then) = kept.older.by_tenant.get(id).copied().unwrap_or_default();
                let since = now.since(kept.older.at).as_secs_f64().max(1.0);
                let (served, failed) = (served.saturating_sub(served_then), failed.saturating_sub(failed_then));
                let (cache_hit_ratio, cost_per_query) = metrics.tenant_ratios(id).unwrap_or_default();
                let error_ratio = if served == 0 { 0.0 } else { failed as f64 / served as f64 };
                let rates = Rates { rate: served as f64 / since, error_ratio, cache_hit_ratio, cost_per_query };
                tenant_view(tenant, &rates)
            })
            .collect();
        kept.views = views;
        kept.at = Some(now);
        kept.views.clone()
    }
}

struct Rates {
    rate: f64,
    error_ratio: f64,
    cache_hit_ratio: f64,
    cost_per_query: f64,
}

fn tenant_view(tenant: &TenantRuntime, rates: &Rates) -> TenantView {
    let account = tenant.board.account();
    let left = tenant.board.remaining();
    let whole = match &account {
        Some(account) => account.budget.and_then(|budget| budget.checked_add(account.credits)),
        None => tenant.plan.budget,
    };
    let (held, spent) = match &account {
        Some(account) => (account.held, account.spent),
        None => (Money::ZERO, whole.zip(left).and_then(|(whole, left)| whole.checked_sub(left)).unwrap_or_default()),
    };
    let amount = |of: Option<Money>| of.map(|money| money.to_string());
    let share = whole.zip(left).map(|(whole, left)| {
        let whole = whole.to_f64_lossy();
        if whole > 0.0 { (left.to_f64_lossy() / whole).clamp(0.0, 1.0) } else { 0.0 }
    });
    TenantView {
        id: tenant.plan.id.to_string(),
        budget: amount(whole),
        remaining: amount(left),
        held: held.to_string(),
        spent: spent.to_string(),
        remaining_share: share,
        rate: rates.rate,
        error_ratio: rates.error_ratio,
        cache_hit_ratio: rates.cache_hit_ratio,
        cost_per_query: rates.cost_per_query,
    }
}

fn class_view(class: TrafficClass, level: &ClassLevel, span: f64) -> ClassView {
    let [p50, p95, p99] = level.total.map_or([None; 3], |total| total.map(|value| millis(Some(value))));
    ClassView {
        class,
        count: level.count,
        rate: level.count as f64 / span,
        errors: level.failed,
        limited: level.limited,
        p50_ms: p50,
        p95_ms: p95,
        p99_ms: p99,
        upstream_p95_ms: millis(level.upstream_p95),
        queue_p95_ms: millis(level.queued_p95),
        overhead_p95_ms: millis(level.own_p95),
    }
}

/// The models of `levels`, which may have been taken before a reload: one that left since is left out.
fn models(plan: &Plan, levels: &[ModelLevel], span: f64) -> Vec<ModelView> {
    let known: HashMap<&ModelName, _> = plan.models.iter().map(|model| (&model.name, &model.slo)).collect();
    let view = |level: &ModelLevel| {
        let slo = known.get(&level.model)?;
        let [p50, p95, p99] = level.total.map_or([None; 3], |total| total.map(|value| millis(Some(value))));
        let objective = |(position, level): &(usize, _)| {
            Objective::ALL.get(*position).map(|name| ObjectiveView::new(*name, slo, level))
        };
        Some(ModelView {
            model: level.model.to_string(),
            class: level.class,
            count: level.count,
            rate: level.count as f64 / span,
            errors: level.failed,
            limited: level.limited,
            p50_ms: p50,
            p95_ms: p95,
            p99_ms: p99,
            objectives: level.targets.iter().filter_map(objective).collect(),
        })
    };
    levels.iter().filter_map(view).collect()
}

fn upstream_view(handle: &UpstreamHandle, now: Mono, wall: Wall) -> UpstreamView {
    let plan = &handle.plan;
    let shown = handle.board.shown();
    let state = shown.as_ref().map(|shown| &shown.state);
    let calls = shown.as_ref().map(|shown| shown.calls).unwrap_or_default();
    let bucket = |available: Option<u64>, limit: Option<u64>| {
        let (available, limit) = available.zip(limit)?;
        Some(BucketView { available: available as f64, limit: limit as f64 })
    };
    let minute = call_stats::WINDOW.min(now.since(Mono::ZERO)).as_secs_f64().max(1.0);
    UpstreamView {
        id: plan.id.to_string(),
        provider: plan.provider.as_str().to_owned(),
        region: plan.region.clone(),
        tier: plan.tier,
        models: plan.serves.iter().map(|serves| serves.model.to_string()).collect(),
        breaker: state.map_or(BreakerLevel::Closed, |state| match state.breaker {
            Phase::Closed => BreakerLevel::Closed,
            Phase::HalfOpen => BreakerLevel::HalfOpen,
            Phase::Open => BreakerLevel::Open,
        }),
        drained: state.is_some_and(|state| state.draining),
        quarantined: state.is_some_and(|state| state.quarantined),
        key_parked: state.is_some_and(|state| state.parked.is_some()),
        tokens: state.and_then(|state| bucket(state.interactive_tokens, state.limit_tokens)),
        requests: state.and_then(|state| bucket(state.interactive_requests, state.limit_requests)),
        in_flight: state.map_or(0, |state| state.in_flight as u64),
        max_concurrency: plan.max_concurrency as u64,
        queued: state.map_or(0, |state| (state.interactive_waiting + state.batch_waiting_items) as u64),
        dwell_p95_ms: millis(calls.dwell_p95),
        p95_ms: millis(calls.p95),
        rate: calls.calls as f64 / minute,
        failure_ratio: calls.failure_ratio,
        last_error: shown.as_ref().and_then(|shown| last_error(shown, now, wall)),
    }
}

fn last_error(shown: &Shown, now: Mono, wall: Wall) -> Option<LastErrorView> {
    let LastError { kind, ago_ms } = shown.state.last_error?;
    let ago_ms = ago_ms.saturating_add(u64::try_from(now.since(shown.at).as_millis()).unwrap_or(u64::MAX));
    let (status, message) = match kind {
        "rate_limited" => ("429", "too many requests or tokens for its limits"),
        "out_of_quota" => ("429", "the account behind the key has no quota left"),
        "key_rejected" => ("401", "the key was refused"),
        "server_error" => ("5xx", "it failed"),
        "timeout" => ("timeout", "no whole answer in time"),
        "connect" => ("connect", "no connection"),
        "transport" => ("broken", "the connection broke, or the answer was none"),
        other => (other, ""),
    };
    Some(LastErrorView {
        at_ms: wall.0.saturating_sub(i64::try_from(ago_ms).unwrap_or(i64::MAX)),
        status: status.to_owned(),
        message: message.to_owned(),
    })
}

fn collections(gateway: &Gateway, running: &Running) -> Vec<CollectionView> {
    let plans = running.plan.collections.iter();
    plans.filter_map(|plan| Some(collection_view(gateway, running, running.collections.get(&plan.name)?))).collect()
}

fn collection_view(gateway: &Gateway, running: &Running, collection: &CollectionRuntime) -> CollectionView {
    let plan = &collection.plan;
    let page = gateway.collection_page(&plan.name);
    let progress = Progress::of(running, collection, page.as_ref());
    let share = |model: &ModelName| {
        let used = progress.total(model);
        ShareView { items: used.items, tokens: used.tokens, cost: used.cost.to_string() }
    };
    CollectionView {
        name: plan.name.clone(),
        from: plan.from.to_string(),
        to: plan.to.to_string(),
        stage: collection.position.stage.as_str().to_owned(),
        canary: collection.position.canary,
        since_ms: collection.since.0,
        old: share(&plan.from),
        new: share(&plan.to),
        cost_left: progress.cost_left().map(|cost| cost.to_string()),
    }
}

fn retirement_view(one: &Retirement, now: Wall) -> RetirementView {
    RetirementView {
        model: one.model.to_string(),
        upstream: one.upstream.as_ref().map(|upstream| upstream.to_string()),
        on: Day(one.on).to_string(),
        days_left: one.days_left(now),
    }
}

/// Milliseconds.
fn millis(span: Option<Duration>) -> Option<f64> {
    span.map(|span| span.as_secs_f64() * 1_000.0)
}

impl Feed for Live {
    fn snapshot(&self) -> DashboardSnapshot {
        let gateway = &self.gateway;
        let running = gateway.running.load_full();
        let (now, wall) = (clock::mono(), clock::wall());
        let levels = gateway.levels.levels();
        let (cache_hit_ratio, cost_per_query) = gateway.telemetry.metrics.overall_ratios();
        let slo = &running.plan.slo;
        let span = slo.window.min(now.since(Mono::ZERO)).as_secs_f64().max(1.0);
        let class = |(at, class): (usize, TrafficClass)| {
            class_view(class, &levels.as_ref().map(|levels| levels.classes[at]).unwrap_or_default(), span)
        };
        DashboardSnapshot {
            at_ms: wall.0,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            config_version: running.plan.version.clone(),
            uptime_s: now.since(Mono::ZERO).as_secs(),
            status: if gateway.lifecycle.is_draining() { Serving::Draining } else { Serving::Serving },
            currency: running.plan.currency.clone(),
            slo: SloView::new(slo, levels.as_ref().map_or(&[], |levels| &levels.targets)),
            classes: TrafficClass::ALL.into_iter().enumerate().map(class).collect(),
            models: models(&running.plan, levels.as_ref().map_or(&[], |levels| &levels.models), span),
            totals: TotalsView { cache_hit_ratio, cost_per_query },
            buffered_bytes: gateway.bodies.used(),
            upstreams: running.upstreams.iter().map(|handle| upstream_view(handle, now, wall)).collect(),
            tenants: self.tenants(&running, now),
            collections: collections(gateway, &running),
            retirements: running.plan.retirements.iter().map(|one| retirement_view(one, wall)).collect(),
            events: gateway.telemetry.events.timeline().since(0, EVENTS),
        }
    }

    fn history(&self) -> History {
        let histories = self.gateway.levels.histories();
        let (now, wall) = (clock::mono(), clock::wall());
        let columns = TrafficClass::ALL.into_iter().zip(histories.iter());
        History { classes: columns.map(|(class, points)| ClassHistory::new(class, points, now, wall)).collect() }
    }
}

/// The admin token of the configuration in force.
pub struct ConfiguredToken(
    /// Whose configuration.
    pub Arc<Gateway>,
);

impl AdminAuth for ConfiguredToken {
    fn check(&self, token: &str) -> Option<Arc<str>> {
        let running = self.0.running.load();
        let right = running.plan.server.admin_token.as_ref()?;
        bool::from(right.expose().as_bytes().ct_eq(token.as_bytes())).then(|| Arc::from("token"))
    }

    fn token_configured(&self) -> bool {
        self.0.running.load().plan.server.admin_token.is_some()
    }
}
