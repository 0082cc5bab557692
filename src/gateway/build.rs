//! A [`Running`] from a plan. Whatever the configuration before has too keeps its actor, and with it its breaker, bucket,
//! queue or balance; only what changed is told to it. Building changes nothing that runs.

use std::collections::HashMap;
use std::sync::Arc;

use actix::prelude::*;
use parking_lot::Mutex;

use crate::actors::ledger::{self, LedgerActor, TermsChanged, limits_of};
use crate::actors::upstream::{Command, Order, PolicyChanged, UpstreamActor, UpstreamHandle};
use crate::clock;
use crate::config::plan::{Model, Plan, Quota, Tenant, Upstream};
use crate::edge::auth::KeyRing;
use crate::ids::{ModelName, TenantId, UpstreamId};
use crate::lifecycle::AtOnce;
use crate::pure::admission::Policy;
use crate::pure::ledger::{Account, Standing, Terms};
use crate::runtime::{KeyOwner, ModelRuntime, Route, Running, Shared, TenantRuntime};
use crate::sentinel::{self, Watch};
use crate::store::book::Page;
use crate::store::journal::Journal;
use crate::store::redis::ledger::SharedLedger;
use crate::store::redis::quota::SharedQuota;
use crate::telemetry::Telemetry;

use super::tenants::{HeldKey, keys_by_tenant};

/// What living parts are made with, and the balances that live.
pub(super) struct Parts {
    control: ArbiterHandle,
    journal: Arc<Journal>,
    telemetry: Arc<Telemetry>,
    watch: Watch,
    /// The ledger that replicas share, where there is one.
    shared: Option<Arc<SharedLedger>>,
    /// Limits of upstreams that replicas share, where they do.
    quota: Option<Arc<SharedQuota>>,
    /// Every balance that has an actor. It is kept when its tenant leaves the configuration: two actors of one balance,
    /// one for requests that began before and one for a tenant that came back, would spend it twice.
    balances: Mutex<HashMap<TenantId, Balance>>,
}

#[derive(Clone)]
struct Balance {
    board: Arc<ledger::Board>,
    actor: Addr<LedgerActor>,
    shared: Option<Shared>,
    at_once: Arc<AtOnce>,
}

/// What is told to living parts once the new configuration is in force.
#[derive(Default)]
pub(super) struct News {
    terms: Vec<(Addr<LedgerActor>, TermsChanged)>,
    policies: Vec<(Addr<UpstreamActor>, PolicyChanged)>,
    new_keys: Vec<Addr<UpstreamActor>>,
}

impl News {
    pub(super) fn tell(self) {
        for (actor, terms) in self.terms {
            actor.do_send(terms);
        }
        for (actor, policy) in self.policies {
            actor.do_send(policy);
        }
        for actor in self.new_keys {
            actor.do_send(Order(Command::Unpark));
        }
    }
}

impl Parts {
    pub(super) fn new(
        control: ArbiterHandle,
        journal: Arc<Journal>,
        telemetry: Arc<Telemetry>,
        watch: Watch,
        (shared, quota): (Option<Arc<SharedLedger>>, Option<Arc<SharedQuota>>),
    ) -> Parts {
        Parts { control, journal, telemetry, watch, shared, quota, balances: Mutex::default() }
    }

    /// The line to the sentinel.
    pub(super) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// A first configuration, or one that follows `before`; what is to be told to living parts is told.
    pub(super) fn running(&self, plan: Plan, before: Option<&Running>) -> Running {
        let (running, news) = self.build(plan, before);
        news.tell();
        running
    }

    /// A configuration and what is to be told once it is in force.
    pub(super) fn build(&self, mut plan: Plan, before: Option<&Running>) -> (Running, News) {
        let mut news = News::default();
        let upstreams = self.upstreams(&mut plan, before, &mut news);
        let models = models(&plan, &upstreams, before);
        let tenants: HashMap<TenantId, Arc<TenantRuntime>> =
            plan.tenants.iter().map(|tenant| (tenant.id.clone(), self.tenant(tenant, before, &mut news))).collect();
        let keys = self.keys(&tenants);
        let running = Running { plan: Arc::new(plan), keys, models: Arc::new(models), tenants, upstreams };
        (running, news)
    }

    /// The same configuration with other tenants.
    pub(super) fn with_tenants(&self, before: &Running, tenants: HashMap<TenantId, Arc<TenantRuntime>>) -> Running {
        Running {
            plan: Arc::clone(&before.plan),
            keys: self.keys(&tenants),
            models: Arc::clone(&before.models),
            tenants,
            upstreams: Arc::clone(&before.upstreams),
        }
    }

    fn upstreams(&self, plan: &mut Plan, before: Option<&Running>, news: &mut News) -> Arc<[Arc<UpstreamHandle>]> {
        let shared = |plan: &Plan| -> Vec<UpstreamId> {
            sentinel::shared_spaces(plan).into_values().flatten().map(|member| member.upstream.id.clone()).collect()
        };
        let compared = shared(plan);
        let compared_before = before.map(|before| shared(&before.plan)).unwrap_or_default();
        let watch = |id: &UpstreamId| compared.contains(id).then(|| self.watch.clone());
        let quota = plan.quota.clone();
        let mut handles = Vec::with_capacity(plan.upstreams.len());
        for upstream in &mut plan.upstreams {
            let known = before.and_then(|before| before.upstreams.iter().find(|one| one.plan.id == upstream.id));
            let Some(known) = known else {
                let telemetry = Arc::clone(&self.telemetry);
                let watch = watch(&upstream.id);
                let (upstream, shared) = (Arc::clone(upstream), self.quota.clone());
                handles.push(UpstreamActor::spawn(upstream, &quota, &self.control, watch, shared, telemetry));
                continue;
            };
            let id = upstream.id.clone();
            let same_quota = before.is_some_and(|before| before.plan.quota == quota);
            let same_watch = compared.contains(&id) == compared_before.contains(&id);
            if *known.plan == **upstream {
                // The same value, so that connections are kept, too.
                *upstream = Arc::clone(&known.plan);
                handles.push(Arc::clone(known));
                if !same_quota || !same_watch {
                    news.policies.push((known.actor.clone(), policy(upstream, &quota, watch(&id))));
                }
                continue;
            }
            news.policies.push((known.actor.clone(), policy(upstream, &quota, watch(&id))));
            if known.plan.api_key != upstream.api_key || known.plan.base_url != upstream.base_url {
                news.new_keys.push(known.actor.clone());
            }
            handles.push(Arc::new(UpstreamHandle {
                plan: Arc::clone(upstream),
                actor: known.actor.clone(),
                board: Arc::clone(&known.board),
            }));
        }
        handles.into()
    }

    fn tenant(&self, plan: &Arc<Tenant>, before: Option<&Running>, news: &mut News) -> Arc<TenantRuntime> {
        let known = before.and_then(|before| before.tenants.get(&plan.id));
        if let Some(known) = known.filter(|known| known.plan == *plan) {
            return Arc::clone(known);
        }
        let (balance, fresh) = self.balance(plan);
        if !fresh {
            let money = match &balance.shared {
                None => terms(plan),
                Some(shared) => {
                    shared.ledger.account(&plan.id, terms(plan), &balance.board);
                    Terms::default()
                }
            };
            let changed = TermsChanged { terms: money, limits: (plan.tpm, plan.rpm) };
            news.terms.push((balance.actor.clone(), changed));
        }
        let Balance { board, actor, shared, at_once } = balance;
        Arc::new(TenantRuntime { plan: Arc::clone(plan), board, ledger: actor, shared, at_once })
    }

    /// A tenant that was not there before.
    pub(super) fn new_tenant(&self, plan: &Arc<Tenant>) -> Arc<TenantRuntime> {
        let mut news = News::default();
        let tenant = self.tenant(plan, None, &mut news);
        news.tell();
        tenant
    }

    /// The tenant's balance, and whether its actor is new.
    fn balance(&self, plan: &Tenant) -> (Balance, bool) {
        let mut balances = self.balances.lock();
        if let Some(balance) = balances.get(&plan.id) {
            return (balance.clone(), false);
        }
        let (account, board) = match &self.shared {
            None => {
                let standing = self.journal.with_book(|book| book.tenants.get(&plan.id).map(Page::standing));
                (Account::restore(terms(plan), standing.unwrap_or_default()), Arc::new(ledger::Board::default()))
            }
            // The actor keeps the tenant's limits; its money is elsewhere.
            Some(_) => {
                (Account::restore(Terms::default(), Standing::default()), Arc::new(ledger::Board::of_shared_ledger()))
            }
        };
        let shared = self.shared.as_ref().map(|ledger| Shared {
            ledger: Arc::clone(ledger),
            account: ledger.account(&plan.id, terms(plan), &board),
        });
        let mut limits = limits_of(plan.tpm, plan.rpm);
        board.publish(&account, limits.as_mut().map(|limits| limits.allowances(clock::mono())));
        let (id, shown) = (plan.id.clone(), Arc::clone(&board));
        let (journal, telemetry) = (Arc::clone(&self.journal), Arc::clone(&self.telemetry));
        let actor = Supervisor::start_in_arbiter(&self.control, move |_| {
            LedgerActor::new(id, account, limits, shown, journal, telemetry)
        });
        let balance = Balance { board, actor, shared, at_once: Arc::default() };
        balances.insert(plan.id.clone(), balance.clone());
        (balance, true)
    }

    /// Who holds which key: those of the file and those added on the admin side, less those revoked there.
    fn keys(&self, tenants: &HashMap<TenantId, Arc<TenantRuntime>>) -> KeyRing<KeyOwner> {
        let mut ring = KeyRing::default();
        let mut all = keys_by_tenant(&self.journal, tenants);
        // The same order on all replicas, so that they agree on who has a key that two tenants claim.
        all.sort_unstable_by(|(a, _), (b, _)| a.plan.id.cmp(&b.plan.id));
        // Where two tenants claim one secret, the one whose settings name it has it: the later entry wins.
        for stated in [false, true] {
            let chosen = |key: &&HeldKey| key.created.is_none() == stated;
            for (tenant, key) in
                all.iter().flat_map(|(tenant, keys)| keys.iter().filter(chosen).map(move |key| (tenant, key)))
            {
                let owner = KeyOwner { tenant: Arc::clone(tenant), fingerprint: key.fingerprint.clone() };
                ring.insert(key.sha256, owner);
            }
        }
        ring
    }
}

fn terms(plan: &Tenant) -> Terms {
    Terms { budget: plan.budget, period: plan.budget_period }
}

fn policy(upstream: &Upstream, quota: &Quota, watch: Option<Watch>) -> PolicyChanged {
    PolicyChanged { policy: Policy::of(upstream, quota), batch_size: quota.batch_size, watch }
}

fn models(
    plan: &Plan,
    upstreams: &[Arc<UpstreamHandle>],
    before: Option<&Running>,
) -> HashMap<ModelName, Arc<ModelRuntime>> {
    let runtime = |model: &Arc<Model>| {
        let runtime = ModelRuntime::new(Arc::clone(model), routes(model, &plan.models, upstreams));
        let earlier = before.and_then(|before| before.models.get(&model.name));
        // What was learned of another space under the same name is not true of this one.
        if let Some(earlier) = earlier.filter(|one| one.plan.kind == model.kind && one.plan.space == model.space) {
            runtime.inherit(earlier);
        }
        (model.name.clone(), Arc::new(runtime))
    };
    plan.models.iter().map(runtime).collect()
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
