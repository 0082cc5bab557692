//! One configuration in force, with the living parts that belong to it.
//!
//! A request takes one [`Running`] at its start and keeps it to its end, so that a reload can never show one request
//! two configurations. What must survive a reload (balances, breakers, buckets) lives in the actors that a `Running`
//! points to.

pub mod collections;
mod fleet;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use actix::Addr;
use actix_web::http::header::HeaderValue;
use parking_lot::Mutex;

use crate::actors::ledger::{Board, LedgerActor};
use crate::actors::upstream::UpstreamHandle;
use crate::config::plan::{Model, ModelKind, Plan, Prices, Tenant};
use crate::edge::auth::KeyRing;
use crate::edge::headers::MoneyNames;
use crate::error::{ApiError, Code};
use crate::ids::{KeyFingerprint, ModelName, TenantId};
use crate::lifecycle::{AtOnce, Place};
use crate::pure::money::UnitPrice;
use crate::pure::token_estimate::{Correction, Estimate};
use crate::store::redis::account::SharedAccount;
use crate::store::redis::ledger::SharedLedger;

use collections::Collections;
pub use fleet::Fleet;

/// One configuration in force.
pub struct Running {
    /// The configuration; its list of tenants lacks those made on the admin side since it was loaded.
    pub plan: Arc<Plan>,
    /// Who holds which key.
    pub keys: KeyRing<KeyOwner>,
    /// Models by name.
    pub models: Arc<HashMap<ModelName, Arc<ModelRuntime>>>,
    /// Collections by name, with their stages.
    pub collections: Arc<Collections>,
    /// Tenants by id.
    pub tenants: HashMap<TenantId, Arc<TenantRuntime>>,
    /// Upstreams in the order of the file.
    pub upstreams: Arc<[Arc<UpstreamHandle>]>,
    /// Names of the headers that say amounts.
    pub money_names: MoneyNames,
}

/// Who a key belongs to.
#[derive(Clone)]
pub struct KeyOwner {
    /// The tenant.
    pub tenant: Arc<TenantRuntime>,
    /// Names the key in records.
    pub fingerprint: KeyFingerprint,
}

/// A tenant with its balance. A reload that changes the tenant makes another value with the same balance.
pub struct TenantRuntime {
    /// What the configuration says.
    pub plan: Arc<Tenant>,
    /// Its balance, as last published.
    pub board: Arc<Board>,
    /// Owns its balance.
    pub ledger: Addr<LedgerActor>,
    /// Its balance in the ledger that replicas share, where there is one; then the actor above owns its limits only.
    pub shared: Option<Shared>,
    /// Its requests in this process.
    pub at_once: Arc<AtOnce>,
}

impl TenantRuntime {
    /// A place for one more request; nothing where there is no limit.
    ///
    /// # Errors
    /// `tenant_rate_limited` when all are taken.
    pub fn place(&self) -> Result<Option<Place>, ApiError> {
        let Some(limit) = self.plan.max_concurrency else { return Ok(None) };
        self.at_once.take(limit).map(Some).ok_or_else(|| {
            let message = format!("the tenant has as many requests under way as it may: {limit}");
            ApiError::new(Code::TenantRateLimited, message).retry_after(Some(Duration::from_secs(1)))
        })
    }
}

/// A tenant's account in the shared ledger.
#[derive(Clone)]
pub struct Shared {
    /// The ledger.
    pub ledger: Arc<SharedLedger>,
    /// The account.
    pub account: Arc<SharedAccount>,
}

/// A model with what was learned of it.
pub struct ModelRuntime {
    /// What the configuration says.
    pub plan: Arc<Model>,
    /// Upstreams whose vectors are of this model's space, in the order of the file; `Arc` because an ask to the
    /// router carries them.
    pub routes: Arc<Fleet>,
    /// What each of its answers says of it.
    pub said: Said,
    /// Whether an upstream that serves it has a limit of tokens.
    pub tokens_limited: bool,
    /// Width seen in answers; 0 until the first. Only used where the configuration does not know it.
    learned_width: AtomicU32,
    correction: Mutex<Correction>,
}

/// Values of the headers that name a model.
pub struct Said {
    /// Its name.
    pub name: HeaderValue,
    /// Its vector space.
    pub space: HeaderValue,
}

impl Said {
    /// A name with characters that no header may have is said as nothing.
    fn of(plan: &Model) -> Said {
        let value = |text: &str| HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""));
        Said { name: value(plan.name.as_str()), space: value(plan.space.as_str()) }
    }
}

/// One way to get a model's vectors.
#[derive(Clone)]
pub struct Route {
    /// The upstream.
    pub upstream: Arc<UpstreamHandle>,
    /// The model's name there.
    pub remote_name: Arc<str>,
    /// What it costs there.
    pub prices: Prices,
}

impl ModelRuntime {
    /// A model that nothing was learned of yet.
    pub fn new(plan: Arc<Model>, routes: Vec<Route>) -> ModelRuntime {
        ModelRuntime {
            said: Said::of(&plan),
            plan,
            tokens_limited: routes.iter().any(|route| route.upstream.plan.tpm.is_some()),
            routes: Arc::new(routes.into_iter().collect()),
            learned_width: AtomicU32::new(0),
            correction: Mutex::new(Correction::default()),
        }
    }

    /// Carries over what `earlier`, the same model under the configuration before, had learned.
    pub fn inherit(&self, earlier: &ModelRuntime) {
        self.learned_width.store(earlier.learned_width.load(Ordering::Relaxed), Ordering::Relaxed);
        *self.correction.lock() = *earlier.correction.lock();
    }

    /// The native width, configured or learned.
    pub fn native_width(&self) -> Option<u32> {
        self.plan.dimensions.or_else(|| match self.learned_width.load(Ordering::Relaxed) {
            0 => None,
            width => Some(width),
        })
    }

    /// Remembers the width of a first answer; returns the native width that holds from now on.
    pub fn learn_width(&self, seen: u32) -> u32 {
        if let Some(known) = self.plan.dimensions {
            return known;
        }
        match self.learned_width.compare_exchange(0, seen, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => seen,
            Err(known) => known,
        }
    }

    /// The price of an input token at the dearest upstream that serves it, else the model's own.
    pub fn dearest_input(&self) -> Option<UnitPrice> {
        let served = self.routes.prices().iter().filter_map(|prices| prices.input).max_by_key(|price| price.0);
        served.or(self.plan.prices.input)
    }

    /// `estimate`, corrected by how this model's providers have counted so far.
    pub fn correct(&self, estimate: Estimate) -> Estimate {
        self.correction.lock().apply(estimate)
    }

    /// Learns from an answer: `likely` was estimated, `actual` was billed.
    pub fn observe_tokens(&self, likely: u64, actual: u64) {
        self.correction.lock().observe(likely, actual);
    }
}

impl Running {
    /// The model that a client asked for, if this tenant may use it and it is of that kind.
    ///
    /// # Errors
    /// `model_not_found`, `model_not_allowed`, or `invalid_input` for a model of another kind; each names the model
    /// and, where that gives nothing away, those that would do.
    pub fn model_for(
        &self,
        tenant: &TenantRuntime,
        name: &str,
        kind: ModelKind,
    ) -> Result<Arc<ModelRuntime>, ApiError> {
        let name = ModelName::from(name);
        if kind != ModelKind::Embedding && self.collections.contains_key(name.as_str()) {
            let message = format!("{:?} is a collection of embedding models: use /v1/embeddings", name.as_str());
            return Err(ApiError::new(Code::InvalidInput, message).param("model"));
        }
        let Some(model) = self.models.get(&name) else {
            let mut known: Vec<&str> = self.usable_models(tenant, kind).map(|model| model.plan.name.as_str()).collect();
            if kind == ModelKind::Embedding {
                known.extend(self.usable_collections(tenant).map(|collection| collection.plan.name.as_str()));
            }
            known.sort_unstable();
            let message =
                format!("the model {:?} does not exist here; known: {}", shorten(name.as_str()), known.join(", "));
            return Err(ApiError::new(Code::ModelNotFound, message).param("model"));
        };
        if !tenant.plan.may_use(&name) {
            let message = format!("this key may not use the model {:?}", name.as_str());
            return Err(ApiError::new(Code::ModelNotAllowed, message).param("model"));
        }
        if model.plan.kind != kind {
            let (is, route) = match model.plan.kind {
                ModelKind::Embedding => ("an embedding model", "/v1/embeddings"),
                ModelKind::Rerank => ("a reranker", "/v1/rerank"),
                ModelKind::Chat => ("a chat model", "/v1/chat/completions"),
            };
            let message = format!("the model {:?} is {is}: use {route}", name.as_str());
            return Err(ApiError::new(Code::InvalidInput, message).param("model"));
        }
        Ok(Arc::clone(model))
    }

    /// The only model of that kind that this tenant may use: dialects of servers that have one model name none.
    ///
    /// # Errors
    /// `invalid_input` when there are several, `model_not_found` when there is none.
    pub fn only_model(&self, tenant: &TenantRuntime, kind: ModelKind) -> Result<Arc<ModelRuntime>, ApiError> {
        let mut usable: Vec<&Arc<ModelRuntime>> = self.usable_models(tenant, kind).collect();
        match usable[..] {
            [only] => Ok(Arc::clone(only)),
            [] => {
                let message = format!("there is no {} model that this key may use", kind.as_str());
                Err(ApiError::new(Code::ModelNotFound, message).param("model"))
            }
            _ => {
                usable.sort_unstable_by(|a, b| a.plan.name.as_str().cmp(b.plan.name.as_str()));
                let names: Vec<&str> = usable.iter().map(|model| model.plan.name.as_str()).collect();
                let message =
                    format!("`model` is missing, and there are several {} models: {}", kind.as_str(), names.join(", "));
                Err(ApiError::new(Code::InvalidInput, message).param("model"))
            }
        }
    }

    fn usable_models(&self, tenant: &TenantRuntime, kind: ModelKind) -> impl Iterator<Item = &Arc<ModelRuntime>> {
        let models = self.models.values();
        models.filter(move |model| model.plan.kind == kind && tenant.plan.may_use(&model.plan.name))
    }
}

/// A client's text as it may stand in an error message: bounded, on a character's edge.
fn shorten(text: &str) -> &str {
    const LONGEST: usize = 100;
    if text.len() <= LONGEST {
        return text;
    }
    let end = (0..=LONGEST).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    &text[..end]
}
