//! A [`Running`] from a plan. Whatever the configuration before has too keeps its actor, and with it its breaker, bucket,
//! queue or balance; only what changed is told to it. Building changes nothing that runs.

use std::collections::HashMap;
use std::sync::Arc;

use actix::prelude::*;

use crate::actors::ledger::{LedgerActor, TermsChanged};
use crate::actors::upstream::{Bell, Command, Order, PolicyChanged, UpstreamActor, UpstreamHandle};
use crate::clock;
use crate::config::plan::{Collection, Model, Plan, Quota, Tenant, Upstream};
use crate::edge::auth::KeyRing;
use crate::edge::headers::MoneyNames;
use crate::ids::{ModelName, TenantId, UpstreamId};
use crate::pure::admission::Policy;
use crate::pure::ledger::Terms;
use crate::runtime::collections::{CollectionRuntime, Collections, Heard};
use crate::runtime::{KeyOwner, ModelRuntime, Route, Running, TenantRuntime};
use crate::sentinel::{self, Watch};
use crate::store::collections::{CollectionChange, CollectionRecord, Configured};
use crate::store::journal::Journal;
use crate::store::record::Record;
use crate::store::redis::ledger::SharedLedger;
use crate::store::redis::quota::SharedQuota;
use crate::telemetry::Telemetry;

use super::balances::{Balance, Balances, terms};
use super::tenants::{HeldKey, keys_by_tenant};

/// What living parts are made with.
pub(super) struct Parts {
    control: ArbiterHandle,
    /// Rung for upstreams at which calls have ended.
    bell: Arc<Bell>,
    journal: Arc<Journal>,
    telemetry: Arc<Telemetry>,
    watch: Watch,
    /// Limits of upstreams that replicas share, where they do.
    quota: Option<Arc<SharedQuota>>,
    balances: Balances,
    /// Whether stages that other replicas set are known.
    heard: Heard,
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
        let heard = Heard::new(shared.is_none());
        let balances = Balances::new(control.clone(), Arc::clone(&journal), Arc::clone(&telemetry), shared);
        Parts { bell: Bell::start(&control), control, journal, telemetry, watch, quota, balances, heard }
    }

    /// The balances of all tenants.
    pub(super) fn balances(&self) -> &Balances {
        &self.balances
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
        let collections = self.collections(&plan.collections);
        let tenants: HashMap<TenantId, Arc<TenantRuntime>> =
            plan.tenants.iter().map(|tenant| (tenant.id.clone(), self.tenant(tenant, before, &mut news))).collect();
        let keys = self.keys(&tenants);
        let (plan, models, collections) = (Arc::new(plan), Arc::new(models), Arc::new(collections));
        let money_names = MoneyNames::new(&plan.currency);
        let running = Running { plan, keys, models, collections, tenants, upstreams, money_names };
        (running, news)
    }

    /// The same configuration with other tenants.
    pub(super) fn with_tenants(&self, before: &Running, tenants: HashMap<TenantId, Arc<TenantRuntime>>) -> Running {
        Running {
            plan: Arc::clone(&before.plan),
            keys: self.keys(&tenants),
            models: Arc::clone(&before.models),
            collections: Arc::clone(&before.collections),
            tenants,
            upstreams: Arc::clone(&before.upstreams),
            money_names: before.money_names.clone(),
        }
    }

    /// The same configuration with the stages that the journal knows by now.
    pub(super) fn with_stages(&self, before: &Running) -> Running {
        let collections = Arc::new(self.collections(&before.plan.collections));
        Running { collections, ..self.with_tenants(before, before.tenants.clone()) }
    }

    /// Collections where the journal says they stand, else where the configuration says.
    fn collections(&self, plans: &[Arc<Collection>]) -> Collections {
        self.journal.with_book(|book| {
            let runtime = |plan: &Arc<Collection>| {
                let page = book.collections.0.get(&plan.name);
                let staged = page.and_then(|page| page.staged(&plan.from, &plan.to));
                let runtime = CollectionRuntime {
                    plan: Arc::clone(plan),
                    position: staged.map_or(plan.position, |staged| staged.position),
                    since: staged.map(|staged| staged.at).or(page.map(|page| page.since)).unwrap_or_default(),
                    by: staged.map(|staged| staged.by.clone()),
                    revision: staged.map_or(0, |staged| staged.revision),
                    heard: self.heard.clone(),
                };
                (plan.name.clone(), Arc::new(runtime))
            };
            plans.iter().map(runtime).collect()
        })
    }

    /// Has the journal know what the configuration says of each collection; it counts their requests from then on.
    pub(super) fn register(&self, plan: &Plan) {
        let news = self.journal.with_book(|book| {
            let says =
                |one: &Collection| Configured { from: one.from.clone(), to: one.to.clone(), position: one.position };
            let known = |one: &Collection| book.collections.0.get(&one.name).map(|page| page.configured.clone());
            let news = plan.collections.iter().filter(|one| known(one) != Some(says(one)));
            let record = |one: &Arc<Collection>| {
                Record::Collection(Box::new(CollectionRecord {
                    time: clock::wall(),
                    collection: one.name.clone(),
                    change: CollectionChange::Configured(says(one)),
                }))
            };
            news.map(record).collect::<Vec<_>>()
        });
        if !news.is_empty()
            && let Err(error) = self.journal.append_all(&news)
        {
            self.telemetry.store_failed("collections", &error);
        }
    }

    /// Whether the stages that replicas share have been read.
    pub(super) fn heard(&self) -> &Heard {
        &self.heard
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
                let (bell, telemetry) = (Arc::clone(&self.bell), Arc::clone(&self.telemetry));
                let watch = watch(&upstream.id);
                let (upstream, shared) = (Arc::clone(upstream), self.quota.clone());
                handles.push(UpstreamActor::spawn(upstream, &quota, &self.control, watch, shared, (bell, telemetry)));
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
        let (balance, fresh) = self.balances.of(plan);
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
