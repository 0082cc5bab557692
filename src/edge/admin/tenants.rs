//! Tenants, their balances and their keys.

use std::collections::BTreeMap;

use actix_web::web::{Bytes, Path};
use actix_web::{HttpRequest, HttpResponse};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::{Value, json};

use super::{Answer, change_error, done, gate, json_body, shown, text_of};
use crate::actors::ledger;
use crate::clock;
use crate::error::{ApiError, Code};
use crate::gateway::Gateway;
use crate::ids::{KeyFingerprint, TenantId};
use crate::pure::money::Money;
use crate::pure::utc::Stamp;
use crate::runtime::TenantRuntime;
use crate::store::redis::directory::Heard;

/// Longest idempotency key.
const LONGEST_KEY: usize = 200;

/// Balances asked for at once where all are.
const AT_ONCE: usize = 64;

/// `GET /admin/tenants`.
pub(super) async fn list(request: HttpRequest) -> HttpResponse {
    let answer = async {
        gate::authorize(&request)?;
        let gateway = &crate::edge::worker(&request)?.gateway;
        // Where news are still being put in force, what is known is shown.
        let _known = gateway.catch_up(clock::mono()).await;
        let running = gateway.running.load_full();
        let sorted: BTreeMap<_, _> = running.tenants.iter().collect();
        let described = stream::iter(sorted.into_values().map(|tenant| describe(gateway, tenant))).buffered(AT_ONCE);
        let list: Vec<Value> = described.try_collect().await?;
        done(json!({ "tenants": list }))
    };
    shown(&request, answer.await)
}

/// `GET /admin/tenants/{id}`.
pub(super) async fn one(request: HttpRequest, id: Path<String>) -> HttpResponse {
    let answer = async {
        gate::authorize(&request)?;
        let gateway = &crate::edge::worker(&request)?.gateway;
        done(described(gateway, &TenantId::from(id.as_str())).await?)
    };
    shown(&request, answer.await)
}

/// `POST /admin/tenants`: a tenant from settings in the form of the configuration's.
pub(super) async fn create(request: HttpRequest, body: Result<Bytes, actix_web::Error>) -> HttpResponse {
    let answer = async {
        let by = gate::authorize(&request)?;
        let gateway = &crate::edge::worker(&request)?.gateway;
        let settings = json_body(body)?;
        text_of(&settings, "id")?;
        let (made, heard) = gateway.create_tenant(&by, settings).await.map_err(change_error)?;
        let answer = describe(gateway, &made).await?;
        Ok(HttpResponse::Created().json(with_replicas(answer, heard)))
    };
    shown(&request, answer.await)
}

/// `POST /admin/tenants/{id}/credit`.
pub(super) async fn credit(
    request: HttpRequest,
    id: Path<String>,
    body: Result<Bytes, actix_web::Error>,
) -> HttpResponse {
    let answer = async {
        let by = gate::authorize(&request)?;
        let gateway = &crate::edge::worker(&request)?.gateway;
        let body = json_body(body)?;
        only(&body, &["amount", "idempotency_key"])?;
        let amount: Money = text_of(&body, "amount")?
            .parse()
            .map_err(|error| ApiError::new(Code::InvalidInput, format!("`amount`: {error}")).param("amount"))?;
        let key = text_of(&body, "idempotency_key")?;
        if key.len() > LONGEST_KEY {
            let message = format!("`idempotency_key` has at most {LONGEST_KEY} bytes");
            return Err(ApiError::new(Code::InvalidInput, message).param("idempotency_key"));
        }
        let id = TenantId::from(id.as_str());
        let repeated = gateway.credit(&by, &id, amount, key).await.map_err(change_error)?;
        let mut answer = described(gateway, &id).await?;
        answer["credit"] = json!({ "amount": amount, "idempotency_key": key, "repeated": repeated });
        done(answer)
    };
    shown(&request, answer.await)
}

/// `POST /admin/tenants/{id}/keys`: the only time that the secret is told.
pub(super) async fn add_key(request: HttpRequest, id: Path<String>) -> HttpResponse {
    let answer = async {
        let by = gate::authorize(&request)?;
        let gateway = &crate::edge::worker(&request)?.gateway;
        let key = gateway.add_key(&by, &TenantId::from(id.as_str())).await.map_err(change_error)?;
        let answer = json!({
            "tenant": id.as_str(),
            "key": key.secret.expose(),
            "fingerprint": key.fingerprint,
            "created": Stamp(key.created).to_string(),
        });
        let answer = with_replicas(answer, key.heard);
        Ok(HttpResponse::Created().insert_header(("cache-control", "no-store")).json(answer))
    };
    shown(&request, answer.await)
}

/// `DELETE /admin/tenants/{id}/keys/{fingerprint}`: in force for the next request.
pub(super) async fn revoke_key(request: HttpRequest, path: Path<(String, String)>) -> HttpResponse {
    let answer = async {
        let by = gate::authorize(&request)?;
        let gateway = &crate::edge::worker(&request)?.gateway;
        let (id, fingerprint) = path.into_inner();
        let (id, fingerprint) = (TenantId::from(id), KeyFingerprint::from(fingerprint));
        let (at, heard) = gateway.revoke_key(&by, &id, &fingerprint).await.map_err(change_error)?;
        let answer = json!({ "tenant": id, "fingerprint": fingerprint, "revoked": Stamp(at).to_string() });
        done(with_replicas(answer, heard))
    };
    shown(&request, answer.await)
}

/// Proves in production that a fault of the tenant's actor is survived: it panics and restarts with its balance.
pub(super) async fn drill(request: HttpRequest, id: Path<String>) -> HttpResponse {
    let answer = || -> Answer {
        let by = gate::authorize(&request)?;
        let gateway = &crate::edge::worker(&request)?.gateway;
        let running = gateway.running.load();
        let id = TenantId::from(id.as_str());
        let tenant = running.tenants.get(&id).ok_or_else(|| unknown(&id))?;
        tenant.ledger.do_send(ledger::Drill);
        gateway.note(
            &by,
            crate::gateway::Deed { action: "drill", subject: id.to_string(), before: Value::Null, after: Value::Null },
        );
        done(json!({ "id": id, "order": "drill" }))
    };
    shown(&request, answer())
}

fn unknown(id: &TenantId) -> ApiError {
    ApiError::new(Code::RouteNotFound, format!("there is no tenant {:?}", id.as_str()))
}

/// Where replicas share tenants, an answer to a change says on which of them it is in force.
fn with_replicas(mut answer: Value, heard: Option<Heard>) -> Value {
    if let Some(heard) = heard {
        answer["replicas"] = json!({ "confirmed": heard.confirmed, "silent": heard.silent });
    }
    answer
}

/// Refuses members that mean nothing: a misspelt one would be without effect.
fn only(body: &Value, known: &[&'static str]) -> Result<(), ApiError> {
    let stranger =
        body.as_object().into_iter().flatten().map(|(name, _)| name).find(|name| !known.contains(&name.as_str()));
    match stranger {
        None => Ok(()),
        Some(name) => {
            let message = format!("there is no member {name:?}; known are {}", known.join(", "));
            Err(ApiError::new(Code::InvalidInput, message).param(name.clone()))
        }
    }
}

async fn described(gateway: &Gateway, id: &TenantId) -> Result<Value, ApiError> {
    let _known = gateway.catch_up(clock::mono()).await;
    let tenant = gateway.running.load().tenants.get(id).cloned().ok_or_else(|| unknown(id))?;
    describe(gateway, &tenant).await
}

async fn describe(gateway: &Gateway, tenant: &TenantRuntime) -> Result<Value, ApiError> {
    let mut stale = false;
    let balance = match &tenant.shared {
        Some(shared) => match shared.ledger.observe(&shared.account).await {
            Ok(balance) => balance,
            // In an outage of all times somebody looks here: what the ledger said last, and that it is that.
            Err(down) => {
                stale = true;
                let unavailable = || ApiError::new(Code::StoreUnavailable, format!("the shared ledger: {down}"));
                tenant.board.account().ok_or_else(unavailable)?
            }
        },
        None => {
            let balance = tenant.ledger.send(ledger::Observe).await.ok().flatten();
            balance.ok_or_else(|| ApiError::new(Code::StoreUnavailable, "the tenant's ledger is restarting"))?
        }
    };
    let mut value =
        serde_json::to_value(balance).map_err(|_| ApiError::new(Code::Internal, "the balance could not be written"))?;
    let plan = &tenant.plan;
    let keys: Vec<Value> = gateway
        .keys_of(plan)
        .into_iter()
        .map(|key| json!({ "fingerprint": key.fingerprint, "created": key.created.map(|at| Stamp(at).to_string()) }))
        .collect();
    let more = json!({
        "id": plan.id,
        "source": plan.source,
        "stale": stale,
        "keys": keys,
        "tpm": plan.tpm,
        "rpm": plan.rpm,
        "max_concurrency": plan.max_concurrency,
        "weight": plan.weight,
        "class": plan.class.map(|class| class.to_string()),
        "models": plan.models.clone().unwrap_or_else(|| vec!["*".into()]),
        "serve_cached_when_exhausted": plan.serve_cached_when_exhausted,
    });
    if let (Some(object), Value::Object(more)) = (value.as_object_mut(), more) {
        object.extend(more);
    }
    Ok(value)
}
