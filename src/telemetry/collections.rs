//! The series of collections: where each stands, and what each of its two models did. Knows only collections that the
//! configuration names, so that no client can grow the page.

use std::collections::HashMap;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::config::plan::{ModelKind, Position};
use crate::ids::ModelName;
use crate::pure::class::TrafficClass;
use crate::pure::migration::Stage;

use super::departed::Series;
use super::labels::{ByCollection, ByCollectionUse, LabelPlan, classes_of};
use super::names;
use super::tenants::FloatGauge;

/// The families that carry a `collection` label.
#[derive(Debug, Default)]
pub(super) struct CollectionFamilies {
    stage: Family<ByCollection, FloatGauge>,
    canary: Family<ByCollection, FloatGauge>,
    items: Family<ByCollectionUse, Counter>,
    tokens: Family<ByCollectionUse, Counter>,
}

impl CollectionFamilies {
    pub(super) fn register(&self, registry: &mut Registry) {
        names::COLLECTION_STAGE.register(registry, self.stage.clone());
        names::COLLECTION_CANARY.register(registry, self.canary.clone());
        names::COLLECTION_ITEMS.register(registry, self.items.clone());
        names::COLLECTION_TOKENS.register(registry, self.tokens.clone());
    }

    /// Takes off the page what a model did for a collection.
    pub(super) fn forget(&self, collection: &str, model: &ModelName) {
        for class in TrafficClass::ALL {
            let label = ByCollectionUse { collection: collection.to_owned(), model: model.clone(), class };
            self.items.remove(&label);
            self.tokens.remove(&label);
        }
    }
}

#[derive(Debug)]
struct Cells {
    stage: FloatGauge,
    canary: FloatGauge,
    /// Items and tokens of each model and class.
    used: HashMap<(ModelName, TrafficClass), (Counter, Counter)>,
}

/// The configured collections' cells.
#[derive(Debug)]
pub(super) struct CollectionTable(HashMap<String, Cells>);

impl CollectionTable {
    /// The table of `plan`; collections that left lose their gauges.
    pub(super) fn new(families: &CollectionFamilies, plan: &LabelPlan, earlier: Option<&CollectionTable>) -> Self {
        let cells = |(name, models): &(String, [ModelName; 2])| {
            let label = ByCollection { collection: name.clone() };
            let pairs = models
                .iter()
                .flat_map(|model| classes_of(ModelKind::Embedding).iter().map(|class| (model.clone(), *class)));
            let used = pairs.map(|(model, class)| {
                let label = ByCollectionUse { collection: name.clone(), model: model.clone(), class };
                let counters =
                    (families.items.get_or_create_owned(&label), families.tokens.get_or_create_owned(&label));
                ((model, class), counters)
            });
            let cells = Cells {
                stage: families.stage.get_or_create_owned(&label),
                canary: families.canary.get_or_create_owned(&label),
                used: used.collect(),
            };
            (name.clone(), cells)
        };
        let table = CollectionTable(plan.collections.iter().map(cells).collect());
        let gone = earlier.iter().flat_map(|old| old.0.keys()).filter(|name| !table.0.contains_key(*name));
        for name in gone {
            let label = ByCollection { collection: name.clone() };
            families.stage.remove(&label);
            families.canary.remove(&label);
        }
        table
    }

    pub(super) fn has(&self, collection: &str, model: &ModelName) -> bool {
        self.0.get(collection).is_some_and(|cells| cells.used.keys().any(|(used, _)| used == model))
    }

    /// Pairs of collection and model that `next` does not have.
    pub(super) fn departed(&self, next: &CollectionTable) -> impl Iterator<Item = Series> {
        let pairs = self.0.iter().flat_map(|(name, cells)| cells.used.keys().map(move |(model, _)| (name, model)));
        let gone = pairs.filter(|(name, model)| !next.has(name, model));
        gone.map(|(name, model)| Series::Collection { collection: name.clone(), model: model.clone() })
    }

    pub(super) fn stands(&self, name: &str, position: Position) {
        if let Some(cells) = self.0.get(name) {
            let order = Stage::ALL.into_iter().position(|stage| stage == position.stage).unwrap_or_default();
            cells.stage.set(order as f64);
            cells.canary.set(position.canary);
        }
    }

    pub(super) fn used(&self, name: &str, (model, class): (&ModelName, TrafficClass), items: u64, tokens: u64) {
        let used = self.0.get(name).and_then(|cells| cells.used.get(&(model.clone(), class)));
        if let Some((all_items, all_tokens)) = used {
            all_items.inc_by(items);
            all_tokens.inc_by(tokens);
        }
    }
}
