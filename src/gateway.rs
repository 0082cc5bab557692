//! Wiring: builds the arbiter, the actors, the store and the cache from a plan, and hands workers one shared value.

use std::collections::HashMap;
use std::sync::Arc;

use actix::prelude::*;
use arc_swap::ArcSwap;

use crate::actors::ledger::{Board, LedgerActor, limits_of};
use crate::actors::router::Router;
use crate::actors::upstream::{UpstreamActor, UpstreamHandle};
use crate::backlog::Backlog;
use crate::cache::Cache;
use crate::clock;
use crate::config::plan::{Model, Plan, Tenant};
use crate::edge::auth::KeyRing;
use crate::edge::body::BodyBudget;
use crate::ids::UpstreamId;
use crate::lifecycle::Lifecycle;
use crate::pure::ledger::{Account, Terms};
use crate::room::Room;
use crate::runtime::{KeyOwner, ModelRuntime, Route, Running, TenantRuntime};
use crate::sentinel::{self, Sentinel, Watch};
use crate::store::book::Page;
use crate::store::journal::Journal;
use crate::store::segment::StoreError;
use crate::store::writer::Limits;
use crate::telemetry::Telemetry;

/// Everything that is shared by all workers.
pub struct Gateway {
    /// The configuration in force.
    pub running: ArcSwap<Running>,
    /// Answers every ask for a permit.
    pub router: Addr<Router>,
    /// Keeps holds and records.
    pub journal: Arc<Journal>,
    /// Keeps records that cost nothing until they are written.
    pub backlog: Backlog,
    /// Keeps vectors.
    pub cache: Cache,
    /// Metrics, events, logs.
    pub telemetry: Arc<Telemetry>,
    /// Bytes of request bodies in memory.
    pub bodies: Arc<BodyBudget>,
    /// Large answers that are being put together.
    pub answers: Room,
    /// Large requests to upstreams that are under way.
    pub requests: Room,
    /// Whether work is taken.
    pub lifecycle: Arc<Lifecycle>,
}

impl Gateway {
    /// Opens the store, starts the actors and returns the whole; call inside an actix system.
    ///
    /// # Errors
    /// When the store cannot be opened.
    pub fn start(plan: Plan, telemetry: Arc<Telemetry>) -> Result<Arc<Gateway>, StoreError> {
        let (journal, recovery) = Journal::open(&plan.store.path, Limits::default(), clock::wall())?;
        let journal = Arc::new(journal);
        telemetry.recovered(&recovery);
        let backlog = Backlog::start(Arc::clone(&journal), Arc::clone(&telemetry))
            .map_err(|source| StoreError::Io { path: "backlog".into(), source })?;
        let control = Arbiter::new().handle();
        let router = Router::spawn(&plan.retry, &plan.slo, &control, Arc::clone(&telemetry));
        let cache = Cache::new(&plan.cache);
        let bodies = BodyBudget::new(plan.server.max_buffered_bytes);
        let (answers, requests) =
            (Room::new(plan.server.max_buffered_bytes), Room::new(plan.server.max_buffered_bytes));
        let (watch, asked) = sentinel::line();
        let parts = Parts { control, journal: &journal, telemetry: &telemetry, watch: &watch };
        let running = parts.running(plan);
        let sentinel = Sentinel::new(&running.plan, &running.upstreams, Arc::clone(&telemetry));
        if !sentinel.is_idle() {
            actix_web::rt::spawn(sentinel.run(asked, watch));
        }
        Ok(Arc::new(Gateway {
            running: ArcSwap::from_pointee(running),
            router,
            journal,
            backlog,
            cache,
            telemetry,
            bodies,
            answers,
            requests,
            lifecycle: Arc::new(Lifecycle::default()),
        }))
    }
}

/// What the parts of a [`Running`] are built from.
struct Parts<'a> {
    control: ArbiterHandle,
    journal: &'a Arc<Journal>,
    telemetry: &'a Arc<Telemetry>,
    watch: &'a Watch,
}

impl Parts<'_> {
    fn running(&self, plan: Plan) -> Running {
        let shared = sentinel::shared_spaces(&plan);
        let compared = |id: &UpstreamId| shared.values().flatten().any(|member| member.upstream.id == *id);
        let upstreams: Vec<Arc<UpstreamHandle>> = plan
            .upstreams
            .iter()
            .map(|upstream| {
                let watch = compared(&upstream.id).then(|| self.watch.clone());
                let telemetry = Arc::clone(self.telemetry);
                UpstreamActor::spawn(Arc::clone(upstream), &plan.quota, &self.control, watch, telemetry)
            })
            .collect();
        let models = plan
            .models
            .iter()
            .map(|model| {
                let routes = routes(model, &plan.models, &upstreams);
                (model.name.clone(), Arc::new(ModelRuntime::new(Arc::clone(model), routes)))
            })
            .collect();
        let mut keys = KeyRing::default();
        let mut tenants = HashMap::new();
        for tenant in &plan.tenants {
            let runtime = Arc::new(self.tenant(tenant));
            for key in &tenant.keys {
                let owner = KeyOwner { tenant: Arc::clone(&runtime), fingerprint: key.fingerprint.clone() };
                keys.insert(key.sha256, owner);
            }
            tenants.insert(tenant.id.clone(), runtime);
        }
        Running { plan, keys, models, tenants, upstreams }
    }

    fn tenant(&self, plan: &Arc<Tenant>) -> TenantRuntime {
        let terms = Terms { budget: plan.budget, period: plan.budget_period };
        let account = Account::restore(
            terms,
            self.journal.with_book(|book| book.tenants.get(&plan.id).map(Page::standing)).unwrap_or_default(),
        );
        let board = Arc::new(Board::default());
        let mut limits = limits_of(plan.tpm, plan.rpm);
        board.publish(&account, limits.as_mut().map(|limits| limits.allowances(clock::mono())));
        let (id, shown) = (plan.id.clone(), Arc::clone(&board));
        let (journal, telemetry) = (Arc::clone(self.journal), Arc::clone(self.telemetry));
        let ledger = Supervisor::start_in_arbiter(&self.control, move |_| {
            LedgerActor::new(id, account, limits, shown, journal, telemetry)
        });
        TenantRuntime { plan: Arc::clone(plan), board, ledger }
    }
}

/// Every upstream that serves a model of this model's space, at what that costs there.
fn routes(model: &Model, models: &[Arc<Model>], upstreams: &[Arc<UpstreamHandle>]) -> Vec<Route> {
    let mut routes = Vec::new();
    for upstream in upstreams {
        let of_space = upstream.plan.serves.iter().find(|serves| {
            // The model itself first, then any other of its space: they make the same vectors.
            serves.model == model.name
        });
        let of_space = of_space.or_else(|| {
            upstream.plan.serves.iter().find(|serves| {
                models
                    .iter()
                    .any(|other| other.name == serves.model && other.space == model.space && other.kind == model.kind)
            })
        });
        if let Some(serves) = of_space {
            routes.push(Route {
                upstream: Arc::clone(upstream),
                remote_name: Arc::from(serves.remote_name.as_str()),
                prices: serves.prices,
            });
        }
    }
    routes
}
