//! Wiring: builds the arbiter, the actors, the store and the cache from a plan, hands workers one shared value, and
//! exchanges parts of it while it runs.
//!
//! - [`build`]: a [`Running`] from a plan, with the living parts of the one before
//! - [`balances`]: the tenants' balances that live
//! - [`reload`]: another configuration
//! - [`tenants`]: tenants, keys and credits by the admin side
//! - [`directory`]: those of all replicas, where they share them
//! - [`collections`]: how far collections have moved between models
//! - [`audit`]: what was done by the admin side

mod audit;
mod balances;
mod build;
mod collections;
mod directory;
mod reload;
mod tenants;

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use actix::prelude::*;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::task::spawn_blocking;

use crate::actors::router::{LevelBoard, Router};
use crate::backlog::Backlog;
use crate::cache::Cache;
use crate::clock;
use crate::config::plan::Plan;
use crate::config::{self, Environment, GivenTenant, Problem, Problems, Source};
use crate::edge::body::BodyBudget;
use crate::lifecycle::Lifecycle;
use crate::pure::time::Wall;
use crate::pure::utc::Day;
use crate::room::Room;
use crate::runtime::Running;
use crate::sentinel::{self, Sentinel, Watched};
use crate::store::journal::Journal;
use crate::store::redis::Redis;
use crate::store::redis::stages::SharedStages;
use crate::store::retention;
use crate::store::segment::StoreError;
use crate::store::writer::Limits;
use crate::telemetry::Telemetry;
use crate::telemetry::labels::{LabelPlan, Objective};
use crate::tls;

pub use audit::{By, Deed};
pub use collections::shown as shown_position;
pub use reload::{LastReload, Status};
pub use tenants::{Change, HeldKey, NewKey, keys_of};

use build::Parts;

/// Everything that is shared by all workers.
pub struct Gateway {
    /// The configuration in force.
    pub running: ArcSwap<Running>,
    /// Answers every ask for a permit.
    pub router: Addr<Router>,
    /// Percentiles and error budgets, as the router published them last.
    pub levels: Arc<LevelBoard>,
    /// Keeps holds and records.
    pub journal: Arc<Journal>,
    /// Keeps records that cost nothing until they are written.
    pub backlog: Backlog,
    /// What replicas share; `None`: nothing.
    pub redis: Option<Redis>,
    /// Keeps vectors.
    pub cache: Arc<Cache>,
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
    /// The certificate of the client listener, where it speaks TLS.
    pub certificate: Option<Arc<tls::Shown>>,
    parts: Parts,
    /// Stages of collections that replicas share, where they do.
    stages: Option<SharedStages>,
    /// Where the configuration comes from.
    source: Source,
    started: Wall,
    status: Mutex<Status>,
    /// Held by whoever exchanges `running`, so that changes follow each other; the text in force.
    changing: tokio::sync::Mutex<Source>,
}

/// Why a gateway cannot start.
#[derive(Debug)]
pub enum StartError {
    /// The store cannot be opened.
    Store(StoreError),
    /// The configuration is not valid together with the tenants made on the admin side.
    Configuration(Problems),
}

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StartError::Store(error) => error.fmt(f),
            StartError::Configuration(problems) => problems.fmt(f),
        }
    }
}

impl std::error::Error for StartError {}

impl From<StoreError> for StartError {
    fn from(error: StoreError) -> StartError {
        StartError::Store(error)
    }
}

impl Gateway {
    /// Opens the store, starts the actors and returns the whole; call inside an actix system. `text` is what was read
    /// from `source` and made `plan`.
    ///
    /// # Errors
    /// When the store cannot be opened, or the configuration is not valid together with what is in it.
    pub fn start(
        source: Source,
        text: Source,
        plan: Plan,
        telemetry: Arc<Telemetry>,
    ) -> Result<Arc<Gateway>, StartError> {
        let (journal, recovery) = Journal::open(&plan.store.path, Limits::default(), clock::wall())?;
        let journal = Arc::new(journal);
        telemetry.recovered(&recovery);
        let (plan, misfits) = with_given_tenants(plan, &text, &journal, &telemetry)?;
        let backlog = Backlog::start(Arc::clone(&journal), Arc::clone(&telemetry))
            .map_err(|source| StoreError::Io { path: "backlog".into(), source })?;
        let redis = Redis::prepare(&plan, &journal, &telemetry)?;
        let control = Arbiter::new().handle();
        let levels = Arc::new(LevelBoard::default());
        let promises = Objective::promises(&plan);
        let router = Router::spawn(&plan.retry, &promises, &control, Arc::clone(&levels), Arc::clone(&telemetry));
        let cache = Arc::new(Cache::new(&plan.cache, redis.as_ref().map(|redis| &redis.link)));
        let bytes = plan.server.max_buffered_bytes;
        let (bodies, answers, requests) = (BodyBudget::new(bytes), Room::new(bytes), Room::new(bytes));
        let counted = Arc::clone(&bodies);
        telemetry.metrics.buffered_by(move || counted.used());
        let (watch, asked) = sentinel::line();
        let shared = redis.as_ref().map(|redis| (redis.ledger.clone(), redis.quota.clone())).unwrap_or_default();
        let (told, kept) = (Arc::clone(&telemetry), Arc::clone(&journal));
        let parts = Parts::new(control, kept, told, watch.clone(), shared);
        parts.register(&plan);
        let running = parts.running(plan, None);
        if let Some(redis) = &redis {
            redis.start(&cache)?;
        }
        let watched = Watched::of(&running.plan, &running.upstreams, &Watched::default());
        let sentinel = Sentinel::new(watched, &running.plan.store.path, &watch, Arc::clone(&telemetry));
        actix_web::rt::spawn(sentinel.run(asked));
        let status = Status::new(misfits);
        let ledger_is_shared = redis.as_ref().filter(|redis| redis.ledger.is_some());
        let stages = ledger_is_shared.map(|redis| SharedStages::new(Arc::clone(&redis.link)));
        let gateway = Arc::new(Gateway {
            certificate: running.plan.server.tls.as_ref().map(tls::Shown::new),
            running: ArcSwap::from_pointee(running),
            router,
            levels,
            journal,
            backlog,
            redis,
            cache,
            telemetry,
            bodies,
            answers,
            requests,
            lifecycle: Arc::new(Lifecycle::default()),
            parts,
            stages,
            source,
            started: clock::wall(),
            status: Mutex::new(status),
            changing: tokio::sync::Mutex::new(text),
        });
        let running = gateway.running.load_full();
        gateway.tell_stages(&running, &running);
        gateway.warn_of_retirements(&running.plan);
        actix_web::rt::spawn(retain(Arc::downgrade(&gateway)));
        actix_web::rt::spawn(write_again(Arc::downgrade(&gateway)));
        actix_web::rt::spawn(look_over(Arc::downgrade(&gateway)));
        if let Some(handovers) = gateway.directory().and_then(|directory| directory.handovers()) {
            actix_web::rt::spawn(directory::listen(Arc::downgrade(&gateway), handovers));
        }
        actix_web::rt::spawn(collections::share(Arc::downgrade(&gateway)));
        actix_web::rt::spawn(collections::look_back(Arc::downgrade(&gateway)));
        Ok(gateway)
    }
}

impl Gateway {
    /// Says in the log which models will be retired, and when.
    fn warn_of_retirements(&self, plan: &Plan) {
        for one in &plan.retirements {
            let (model, on) = (&one.model, Day(one.on));
            let upstream = one.upstream.as_ref().map_or("all", |upstream| upstream.as_str());
            tracing::warn!(%model, upstream, %on, days_left = one.days_left(clock::wall()), "a model will be retired");
        }
    }
}

/// How often a disk that refused is asked again.
const WRITE_AGAIN_EVERY: Duration = Duration::from_millis(500);

/// Writes what the disk refused as soon as it takes it: balancers that were told of it send no request which would.
async fn write_again(gateway: Weak<Gateway>) {
    while let Some(gateway) = gateway.upgrade() {
        if !gateway.journal.healthy() {
            let journal = Arc::clone(&gateway.journal);
            let tried = spawn_blocking(move || journal.retry()).await;
            tracing::debug!(?tried, "the journal was written again");
        }
        drop(gateway);
        tokio::time::sleep(WRITE_AGAIN_EVERY).await;
    }
}

/// How often balances are looked over: a walk over the tenants, so not too often.
const LOOK_OVER_EVERY: Duration = Duration::from_secs(10);

/// Balances of tenants that left which are forgotten before a change of the configuration may come in between.
const FORGOTTEN_AT_ONCE: usize = 256;

/// Looks for holds past their time in what is lent, and forgets what is no longer needed of names that left the
/// configuration.
async fn look_over(gateway: Weak<Gateway>) {
    loop {
        tokio::time::sleep(LOOK_OVER_EVERY).await;
        let Some(gateway) = gateway.upgrade() else { return };
        let balances = gateway.parts.balances();
        balances.look_at_loans(clock::mono());
        for departed in balances.departed().chunks(FORGOTTEN_AT_ONCE) {
            let _unchanged = gateway.changing.lock().await;
            balances.forget(departed).await;
        }
        gateway.telemetry.metrics.forget_departed(clock::mono());
    }
}

/// How often old records are looked for.
const RETAIN_EVERY: Duration = Duration::from_secs(6 * 3_600);

/// Sums up old records, now and every few hours, as long as the gateway lives.
async fn retain(gateway: Weak<Gateway>) {
    while let Some(gateway) = gateway.upgrade() {
        let store = gateway.running.load().plan.store.clone();
        let telemetry = Arc::clone(&gateway.telemetry);
        drop(gateway);
        if let Some(days) = store.retention_days {
            let pass = spawn_blocking(move || retention::roll_up(&store.path, days, clock::wall())).await;
            match pass {
                Ok(Ok(pass)) if pass.segments > 0 => {
                    tracing::info!(
                        segments = pass.segments,
                        records = pass.records,
                        sums = pass.sums,
                        "old records were summed up"
                    );
                }
                Ok(Ok(_)) => {}
                Ok(Err(error)) => telemetry.store_failed("retention", &io::Error::other(error.to_string())),
                Err(panic) => telemetry.store_failed("retention", &io::Error::other(panic.to_string())),
            }
        }
        tokio::time::sleep(RETAIN_EVERY).await;
    }
}

/// The plan with the tenants of the journal, and what keeps some of them out.
fn with_given_tenants(
    plan: Plan,
    text: &Source,
    journal: &Journal,
    telemetry: &Telemetry,
) -> Result<(Plan, Vec<Problem>), StartError> {
    let given = given_tenants(journal);
    if given.is_empty() {
        return Ok((plan, Vec::new()));
    }
    let (plan, misfits) =
        config::load_without_misfits(text, &Environment::of_process(), given).map_err(StartError::Configuration)?;
    for problem in &misfits {
        tracing::error!(%problem, "a tenant made on the admin side is left out");
    }
    telemetry.metrics.relabel(&LabelPlan::from_plan(&plan));
    Ok((plan, misfits))
}

/// The tenants that were made on the admin side, whether the file names them too or not.
fn given_tenants(journal: &Journal) -> Vec<GivenTenant> {
    journal.with_book(|book| {
        let made = book.tenants.with_details().filter_map(|(id, page)| Some((id, page.created.clone()?)));
        made.map(|(id, settings)| GivenTenant { id, settings }).collect()
    })
}
