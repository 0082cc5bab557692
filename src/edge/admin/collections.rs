//! Collections: where each move stands, what each model did for it, what is left to pay, and moving it on or back.

use std::sync::Arc;

use actix_web::web::{Bytes, Path};
use actix_web::{HttpRequest, HttpResponse};
use serde_json::{Map, Value, json};

use super::{change_error, done, gate, json_body, shown, text_of};
use crate::config::plan::{Position, Stage};
use crate::error::{ApiError, Code};
use crate::gateway::{Gateway, shown_position};
use crate::ids::ModelName;
use crate::pure::class::TrafficClass;
use crate::pure::money::{Money, UnitPrice};
use crate::pure::utc::Stamp;
use crate::runtime::Running;
use crate::runtime::collections::CollectionRuntime;
use crate::store::collections::{CollectionPage, Used};

/// `GET /admin/collections`.
pub(super) async fn list(request: HttpRequest) -> HttpResponse {
    let answer = || {
        gate::authorize(&request)?;
        let gateway = &crate::edge::worker(&request)?.gateway;
        let running = gateway.running.load_full();
        let all = running.plan.collections.iter().filter_map(|plan| running.collections.get(&plan.name));
        done(json!({ "collections": all.map(|one| view(gateway, &running, one)).collect::<Vec<_>>() }))
    };
    shown(&request, answer())
}

/// `GET /admin/collections/{name}`.
pub(super) async fn one(request: HttpRequest, name: Path<String>) -> HttpResponse {
    let answer = || {
        gate::authorize(&request)?;
        let gateway = &crate::edge::worker(&request)?.gateway;
        let collection = gateway.collection(&name).map_err(change_error)?;
        done(view(gateway, &gateway.running.load_full(), &collection))
    };
    shown(&request, answer())
}

/// `PUT /admin/collections/{name}`.
pub(super) async fn change(
    request: HttpRequest,
    name: Path<String>,
    body: Result<Bytes, actix_web::Error>,
) -> HttpResponse {
    let answer = async {
        let by = gate::authorize(&request)?;
        let position = position(&json_body(body)?)?;
        let gateway = &crate::edge::worker(&request)?.gateway;
        let collection = gateway.set_stage(&by, &name, position).await.map_err(change_error)?;
        done(view(gateway, &gateway.running.load_full(), &collection))
    };
    shown(&request, answer.await)
}

/// The position that a body asks for: nothing in it may be without effect.
fn position(body: &Value) -> Result<Position, ApiError> {
    let wrong = |member: &'static str, what: String| Err(ApiError::new(Code::InvalidInput, what).param(member));
    let members = body.as_object().map(Map::keys).into_iter().flatten();
    if let Some(unknown) = members.into_iter().find(|name| !matches!(name.as_str(), "stage" | "canary")) {
        let what = format!("there is no member {unknown:?}; known are stage and canary");
        return Err(ApiError::new(Code::InvalidInput, what).param(unknown.clone()));
    }
    let name = text_of(body, "stage")?;
    let Some(stage) = Stage::parse(name) else {
        let known = Stage::ALL.map(Stage::as_str).join(", ");
        return wrong("stage", format!("{name:?} is no stage; known are {known}"));
    };
    match (stage, body.get("canary")) {
        (Stage::Canary, Some(Value::Number(share))) => match share.as_f64() {
            Some(share) if (0.0..=1.0).contains(&share) => Ok(Position::new(stage, share)),
            _ => wrong("canary", format!("`canary` is {share}; it is a share from 0 to 1")),
        },
        (Stage::Canary, None | Some(Value::Null)) => {
            wrong("canary", "`canary` is missing: which share of queries goes to the new model, 0 to 1?".to_owned())
        }
        (Stage::Canary, Some(_)) => wrong("canary", "`canary` must be a number from 0 to 1".to_owned()),
        // A client that repeats what it read sends the 0 of every other stage.
        (_, None | Some(Value::Null)) => Ok(Position::new(stage, 0.0)),
        (_, Some(share)) if share.as_f64() == Some(0.0) => Ok(Position::new(stage, 0.0)),
        (_, Some(_)) => wrong("canary", format!("`canary` means nothing in stage {name:?}; leave it out")),
    }
}

/// All that is told of a collection.
fn view(gateway: &Gateway, running: &Running, collection: &Arc<CollectionRuntime>) -> Value {
    let plan = &collection.plan;
    let page = gateway.collection_page(&plan.name);
    let progress = Progress::of(running, collection, page.as_ref());
    let space = |model: &ModelName| running.models.get(model).map(|model| model.plan.space.clone());
    json!({
        "name": plan.name,
        "from": plan.from,
        "to": plan.to,
        "spaces": { "from": space(&plan.from), "to": space(&plan.to) },
        "stage": collection.position.stage,
        "canary": collection.position.canary,
        "since": Stamp(collection.since).to_string(),
        "set_by": collection.by.as_deref().unwrap_or("configuration"),
        "revision": collection.revision,
        "configured": shown_position(plan.position),
        "known": collection.is_known(),
        "counted_before": page.as_ref().is_some_and(|page| page.complete),
        "progress": { "from": progress.side(&plan.from), "to": progress.side(&plan.to) },
        "reembedding": progress.reembedding(&running.plan.currency),
    })
}

/// What both models did for a collection, and what is left.
pub(crate) struct Progress<'a> {
    page: Option<&'a CollectionPage>,
    /// The new model's price of a token.
    price: Option<UnitPrice>,
    from: ModelName,
    to: ModelName,
}

/// Says how the estimate is made, where it is read.
const HOW: &str = "tokens that the old model was charged for in batch-ingestion, all that this ledger knows, times the new \
                   model's price at its dearest upstream; a document that was ingested twice counts twice, cache hits \
                   count nothing, and the new model may count tokens differently";

impl<'a> Progress<'a> {
    pub(crate) fn of(running: &Running, collection: &CollectionRuntime, page: Option<&'a CollectionPage>) -> Self {
        let (from, to) = (collection.plan.from.clone(), collection.plan.to.clone());
        let price = running.models.get(&to).and_then(|model| model.dearest_input());
        Progress { page, price, from, to }
    }

    /// What a model did, over all classes.
    pub(crate) fn total(&self, model: &ModelName) -> Used {
        let classes = self.page.and_then(|page| page.used.get(model));
        classes.into_iter().flat_map(|classes| classes.values()).fold(Used::default(), |sum, one| sum.and(*one))
    }

    fn used(&self, model: &ModelName, class: TrafficClass) -> Used {
        let classes = self.page.and_then(|page| page.used.get(model));
        classes.and_then(|classes| classes.get(&class)).copied().unwrap_or_default()
    }

    /// Tokens of documents by the old model, by the new one, and what is left of the former.
    fn tokens(&self) -> (u64, u64, u64) {
        let by = |model| self.used(model, TrafficClass::BatchIngestion).tokens;
        let (old, new) = (by(&self.from), by(&self.to));
        (old, new, old.saturating_sub(new))
    }

    fn cost_of(&self, tokens: u64) -> Option<Money> {
        Some(self.price?.times(tokens))
    }

    /// What embedding the rest of the documents will cost; `None` without a price.
    pub(crate) fn cost_left(&self) -> Option<Money> {
        self.cost_of(self.tokens().2)
    }

    fn side(&self, model: &ModelName) -> Value {
        let line = |used: Used, share: Option<f64>| {
            json!({
                "requests": used.requests,
                "items": used.items,
                "cached_items": used.cached_items,
                "tokens": used.tokens,
                "cost": used.cost,
                "share": share,
            })
        };
        let share = |mine: u64, all: u64| (all > 0).then(|| mine as f64 / all as f64);
        let mut by_class = Map::new();
        for class in [TrafficClass::InteractiveSearch, TrafficClass::BatchIngestion, TrafficClass::Rerank] {
            let used = self.used(model, class);
            let all = self.used(&self.from, class).and(self.used(&self.to, class));
            if all != Used::default() {
                by_class.insert(class.as_str().to_owned(), line(used, share(used.items, all.items)));
            }
        }
        let total = self.total(model);
        let all = self.total(&self.from).and(self.total(&self.to));
        let mut side = line(total, share(total.items, all.items));
        side["model"] = json!(model);
        side["by_class"] = Value::Object(by_class);
        side
    }

    fn reembedding(&self, currency: &str) -> Value {
        let (old, new, left) = self.tokens();
        json!({
            "tokens": old,
            "tokens_done": new,
            "tokens_left": left,
            "price_per_million_tokens": self.cost_of(1_000_000),
            "currency": currency,
            "cost": self.cost_of(old),
            "cost_left": self.cost_left(),
            "how": HOW,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(body: Value, expected: Result<Position, &str>) {
        match (position(&body), expected) {
            (Ok(got), Ok(expected)) => assert_eq!(got, expected),
            (Err(error), Err(part)) => assert!(error.message.contains(part), "{error}"),
            (got, expected) => panic!("{body}: {got:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn a_position_is_whole_or_refused() {
        for stage in [Stage::Old, Stage::Backfill, Stage::New] {
            check(json!({ "stage": stage }), Ok(Position::new(stage, 0.0)));
            check(json!({ "stage": stage, "canary": 0 }), Ok(Position::new(stage, 0.0)));
            check(json!({ "stage": stage, "canary": 0.1 }), Err("means nothing"));
        }
        check(json!({ "stage": "canary", "canary": 0.25 }), Ok(Position::new(Stage::Canary, 0.25)));
        check(json!({ "stage": "canary", "canary": 1 }), Ok(Position::new(Stage::Canary, 1.0)));
        check(json!({ "stage": "canary" }), Err("missing"));
        check(json!({ "stage": "canary", "canary": 25 }), Err("0 to 1"));
        check(json!({ "stage": "canary", "canary": -0.1 }), Err("0 to 1"));
        check(json!({ "stage": "canary", "canary": "0.1" }), Err("number"));
        check(json!({ "stage": "half" }), Err("known are old, backfill, canary, new"));
        check(json!({ "stage": "old", "share": 1 }), Err("share"));
        check(json!({}), Err("stage"));
    }
}
