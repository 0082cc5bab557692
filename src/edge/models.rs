//! What may be asked for: the list of models as OpenAI writes it, and what a TEI server tells of itself.

use actix_web::HttpRequest;
use actix_web::HttpResponse;
use serde_json::{Map, Value, json};

use crate::clock;
use crate::config::plan::{Matryoshka, ModelKind};
use crate::edge::scan::ScanLimits;
use crate::error::{ApiError, Code};
use crate::ids::ModelName;
use crate::pure::money::UnitPrice;
use crate::runtime::collections::{CollectionRuntime, Wanted};
use crate::runtime::{KeyOwner, ModelRuntime, Running};

use super::{ops, request, routes};

/// Who asks, under which configuration.
async fn enter(http: &HttpRequest) -> Result<(std::sync::Arc<Running>, KeyOwner), ApiError> {
    request::identify(&super::worker(http)?.gateway, http.headers(), clock::mono()).await
}

fn answer(body: &Value) -> HttpResponse {
    HttpResponse::Ok().json(body)
}

/// `GET /v1/models`: what the tenant may use, in the order of the configuration.
///
/// # Errors
/// `invalid_api_key`.
pub async fn list(http: &HttpRequest) -> Result<HttpResponse, ApiError> {
    let (running, owner) = enter(http).await?;
    let usable = running.plan.models.iter().filter(|model| owner.tenant.plan.may_use(&model.name));
    let models = usable.filter_map(|model| running.models.get(&model.name));
    let mut data: Vec<Value> = models.map(|model| describe(&running, model)).collect();
    let collections = running.plan.collections.iter().filter(|plan| owner.tenant.plan.may_use_collection(plan));
    let collections = collections.filter_map(|plan| running.collections.get(&plan.name));
    data.extend(collections.map(|collection| describe_collection(collection)));
    Ok(answer(&json!({"object": "list", "data": data})))
}

/// `GET /v1/models/{id}`.
///
/// # Errors
/// `invalid_api_key`, `model_not_found`, `model_not_allowed`.
pub async fn one(http: &HttpRequest) -> Result<HttpResponse, ApiError> {
    let (running, owner) = enter(http).await?;
    let name = routes::model_of(http)?.unwrap_or_default();
    if running.collections.contains_key(&name)
        && let Wanted::Collection(collection) = running.wanted(&owner.tenant, Some(&name), None)?
    {
        return Ok(answer(&describe_collection(&collection)));
    }
    let known = running.models.get(&ModelName::from(name.as_str()));
    // The kind does not matter here, and the search by kind has the right words for what is unknown.
    let kind = known.map_or(ModelKind::Embedding, |model| model.plan.kind);
    let model = running.model_for(&owner.tenant, &name, kind)?;
    Ok(answer(&describe(&running, &model)))
}

/// A model as OpenAI's clients read it, with what they do not ask for as further members. Prices are in the configured
/// currency, those of the dearest upstream, as exact decimals.
fn describe(running: &Running, model: &ModelRuntime) -> Value {
    let plan = &model.plan;
    let mut out = Map::new();
    let mut add = |name: &str, value: Value| drop(out.insert(name.to_owned(), value));
    add("id", json!(plan.name.as_str()));
    add("object", json!("model"));
    add("created", json!(0));
    add("owned_by", json!("vectorgate"));
    add("kind", json!(plan.kind.as_str()));
    if plan.kind == ModelKind::Embedding {
        add("space", json!(plan.space.as_str()));
        add("dimensions", json!(plan.enforce_dimensions.or_else(|| model.native_width())));
        match &plan.matryoshka {
            _ if plan.enforce_dimensions.is_some() => {}
            Matryoshka::None => {}
            Matryoshka::Widths(widths) => add("matryoshka", json!(widths)),
            Matryoshka::Range { min, max } => add("matryoshka", json!({"min": min, "max": max})),
        }
    }
    if let Some(limit) = plan.max_input_tokens {
        add("max_input_tokens", json!(limit));
    }
    let dearest = |of: fn(&crate::config::plan::Prices) -> Option<UnitPrice>| {
        let served = model.routes.iter().filter_map(|route| of(&route.prices)).max_by_key(|price| price.0);
        served.or_else(|| of(&plan.prices))
    };
    let mut price = Map::new();
    price.insert("currency".to_owned(), json!(running.plan.currency));
    let per = |price: UnitPrice, units: u64| json!(price.times(units).to_string());
    if let Some(input) = dearest(|prices| prices.input) {
        price.insert("per_million_tokens".to_owned(), per(input, 1_000_000));
    }
    if let Some(output) = dearest(|prices| prices.output) {
        price.insert("per_million_output_tokens".to_owned(), per(output, 1_000_000));
    }
    if let Some(search) = dearest(|prices| prices.search) {
        price.insert("per_thousand_searches".to_owned(), per(search, 1_000));
    }
    if price.len() > 1 {
        add("price", Value::Object(price));
    }
    Value::Object(out)
}

/// A collection as a model to ask for. What its vectors are like each answer says.
fn describe_collection(collection: &CollectionRuntime) -> Value {
    let plan = &collection.plan;
    json!({
        "id": plan.name,
        "object": "model",
        "created": 0,
        "owned_by": "vectorgate",
        "kind": ModelKind::Embedding.as_str(),
        "collection": {
            "from": plan.from,
            "to": plan.to,
            "stage": collection.position.stage,
            "canary": collection.position.canary,
        },
    })
}

/// TEI's `GET /info`, of the model in the path or the only one.
///
/// # Errors
/// `invalid_api_key`, or what is wrong with the model.
pub async fn tei_info(http: &HttpRequest) -> Result<HttpResponse, ApiError> {
    let (running, owner) = enter(http).await?;
    let model = match routes::model_of(http)? {
        Some(name) if running.collections.contains_key(&name) => {
            match running.wanted(&owner.tenant, Some(&name), None)? {
                Wanted::Collection(collection) => running.model_on(&collection, collection.shown_side())?,
                Wanted::Model(model) => model,
            }
        }
        Some(name) => {
            let known = running.models.get(&ModelName::from(name.as_str()));
            let kind = known.map_or(ModelKind::Embedding, |model| model.plan.kind);
            running.model_for(&owner.tenant, &name, kind)?
        }
        None => running.only_model(&owner.tenant, ModelKind::Embedding)?,
    };
    let kind = match model.plan.kind {
        ModelKind::Embedding => json!({"embedding": {"pooling": "unknown"}}),
        ModelKind::Rerank => json!({"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}}),
        ModelKind::Chat => return Err(ApiError::new(Code::InvalidInput, "a chat model is not served by this API")),
    };
    let body = json!({
        "model_id": model.plan.name.as_str(),
        "model_sha": null,
        "model_dtype": "float32",
        "served_model_name": model.plan.name.as_str(),
        "model_type": kind,
        "max_concurrent_requests": 512,
        "max_input_length": model.plan.max_input_tokens,
        "max_batch_tokens": 16_384,
        "max_batch_requests": null,
        // Whatever an upstream takes: what is more is split here.
        "max_client_batch_size": ScanLimits::default().max_items,
        // An over-long text is an error here unless a request says otherwise.
        "auto_truncate": false,
        "tokenization_workers": running.plan.server.workers,
        "version": env!("CARGO_PKG_VERSION"),
        "sha": null,
        "docker_label": null,
    });
    Ok(answer(&body))
}

/// TEI's health check: empty, and without a key.
///
/// # Errors
/// `overloaded` when the gateway cannot serve.
pub fn tei_health(http: &HttpRequest) -> Result<HttpResponse, ApiError> {
    match ops::why_not_ready(&super::worker(http)?.gateway) {
        None => Ok(HttpResponse::Ok().finish()),
        Some(reason) => Err(ApiError::new(Code::Overloaded, format!("not ready: {reason}"))),
    }
}
