//! Collections that move from one model to another, as one configuration and the stages set since see them.
//!
//! A request sees the stages of the [`Running`] that it began with, so a stage change never divides it. Which side a
//! stage means is `pure::migration`'s to say.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::config::plan::{Collection, ModelKind, Position};
use crate::error::{ApiError, Code};
use crate::ids::ModelName;
use crate::pure::class::TrafficClass;
use crate::pure::migration::{Side, Spot, Stage};
use crate::pure::time::Wall;

use super::{ModelRuntime, Running, TenantRuntime, shorten};

/// Collections by name.
pub type Collections = HashMap<String, Arc<CollectionRuntime>>;

/// One collection and where its move stands.
#[derive(Debug)]
pub struct CollectionRuntime {
    /// What the configuration says.
    pub plan: Arc<Collection>,
    /// Where the move stands.
    pub position: Position,
    /// Since when.
    pub since: Wall,
    /// By which right it was set; `None`: it is what the configuration says.
    pub by: Option<String>,
    /// Counts the changes of this move over all replicas; 0: none yet.
    pub revision: u64,
    /// Whether what other replicas may have set is known: false only before the shared store was first read.
    pub heard: Heard,
}

/// Whether the store that replicas share has been read since the start.
#[derive(Debug, Clone)]
pub struct Heard(Arc<AtomicBool>);

impl Heard {
    /// Known from the start where nothing is shared.
    pub fn new(known: bool) -> Heard {
        Heard(Arc::new(AtomicBool::new(known)))
    }

    /// It has been read.
    pub fn now(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it has been read.
    pub fn yet(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// How long a client waits before it asks again for a collection whose stage is not known yet.
const UNHEARD_RETRY: Duration = Duration::from_secs(1);

impl CollectionRuntime {
    /// Whether the stage is known: set here before, or nothing else can have been set.
    pub fn is_known(&self) -> bool {
        self.revision > 0 || self.heard.yet()
    }

    /// The name of the model on that side.
    pub fn model(&self, side: Side) -> &ModelName {
        match side {
            Side::From => &self.plan.from,
            Side::To => &self.plan.to,
        }
    }

    /// The side that most queries are on: what is shown where one model must stand for the collection.
    pub fn shown_side(&self) -> Side {
        if self.position.stage == Stage::New { Side::To } else { Side::From }
    }

    fn has(&self, name: &str) -> bool {
        [self.plan.name.as_str(), self.plan.from.as_str(), self.plan.to.as_str()].contains(&name)
    }
}

/// What an embedding request asks of: a model, or a collection whose stage decides.
pub enum Wanted {
    /// This model.
    Model(Arc<ModelRuntime>),
    /// One of this collection's two.
    Collection(Arc<CollectionRuntime>),
}

impl Running {
    /// What a request for vectors asks of, by the model that it names and the value of `X-Collection`.
    ///
    /// A configured collection is meant by its name as the model, or by the header together with its name, one of its
    /// two models, or none. The stage decides then, whichever of the two was named: a client that was written for the
    /// old model moves without being changed, and moves back. A header that names no configured collection is a label
    /// for the books.
    ///
    /// # Errors
    /// Those of [`Running::model_for`]; `invalid_input` where header and model contradict each other;
    /// `model_not_allowed` where the tenant may not use the collection; `store_unavailable` while its stage is not known.
    pub fn wanted(
        &self,
        tenant: &TenantRuntime,
        named: Option<&str>,
        header: Option<&str>,
    ) -> Result<Wanted, ApiError> {
        let alias = named.and_then(|name| self.collections.get(name));
        let labelled = header.and_then(|name| self.collections.get(name));
        let collection = match (alias, labelled) {
            (Some(alias), None) if header.is_some_and(|header| header != alias.plan.name) => {
                return Err(two_collections(alias, header.unwrap_or_default()));
            }
            (Some(alias), Some(labelled)) if alias.plan.name != labelled.plan.name => {
                return Err(two_collections(alias, &labelled.plan.name));
            }
            (Some(collection), _) => collection,
            (None, Some(collection)) => {
                if let Some(name) = named.filter(|name| !collection.has(name)) {
                    // A name that is unknown or not allowed is told as such.
                    self.model_for(tenant, name, ModelKind::Embedding)?;
                    return Err(other_model(collection, name));
                }
                collection
            }
            (None, None) => {
                return match named {
                    Some(name) => self.model_for(tenant, name, ModelKind::Embedding),
                    None => self.only_model(tenant, ModelKind::Embedding),
                }
                .map(Wanted::Model);
            }
        };
        if !tenant.plan.may_use_collection(&collection.plan) {
            let plan = &collection.plan;
            let message = format!(
                "this key may not use the collection {:?}: that takes its name, or both of its models, {:?} and {:?}",
                plan.name,
                plan.from.as_str(),
                plan.to.as_str()
            );
            return Err(ApiError::new(Code::ModelNotAllowed, message).param("model"));
        }
        if !collection.is_known() {
            let message = format!(
                "the stage of the collection {:?} is not known yet: the shared store was not read since the \
                         start",
                collection.plan.name
            );
            return Err(ApiError::new(Code::StoreUnavailable, message).retry_after(Some(UNHEARD_RETRY)));
        }
        Ok(Wanted::Collection(Arc::clone(collection)))
    }

    /// The model of a collection's request of that class whose query stands there.
    ///
    /// # Errors
    /// `internal` for a model that the configuration lost, which its rules exclude.
    pub fn model_of(
        &self,
        collection: &CollectionRuntime,
        class: TrafficClass,
        spot: Spot,
    ) -> Result<Arc<ModelRuntime>, ApiError> {
        self.model_on(collection, collection.position.side(class, spot))
    }

    /// The model on one side of a collection.
    ///
    /// # Errors
    /// As [`Running::model_of`].
    pub fn model_on(&self, collection: &CollectionRuntime, side: Side) -> Result<Arc<ModelRuntime>, ApiError> {
        let model = self.models.get(collection.model(side)).cloned();
        model.ok_or_else(|| ApiError::new(Code::Internal, "a collection's model is not there"))
    }

    /// The collections that a tenant may ask for by name, in no order.
    pub fn usable_collections(&self, tenant: &TenantRuntime) -> impl Iterator<Item = &Arc<CollectionRuntime>> {
        self.collections.values().filter(|collection| tenant.plan.may_use_collection(&collection.plan))
    }
}

fn two_collections(alias: &CollectionRuntime, header: &str) -> ApiError {
    let message = format!(
        "`model` names the collection {:?} and X-Collection {:?}: a request belongs to one; leave the header out",
        alias.plan.name,
        shorten(header)
    );
    ApiError::new(Code::InvalidInput, message).param("X-Collection")
}

fn other_model(collection: &CollectionRuntime, named: &str) -> ApiError {
    let plan = &collection.plan;
    let message = format!(
        "the collection {:?} has vectors of {:?} or {:?} (its stage decides), not of {:?}: ask for the model {:?}, or leave \
         X-Collection out",
        plan.name,
        plan.from.as_str(),
        plan.to.as_str(),
        shorten(named),
        plan.name
    );
    ApiError::new(Code::InvalidInput, message).param("model")
}
