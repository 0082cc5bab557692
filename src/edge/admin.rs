//! The admin side: balances, upstreams, usage. Its listener is its own; a bearer token guards it where one is set.

use std::collections::BTreeMap;

use actix_web::web::{self, Data, Path, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse};
use serde_json::json;

use crate::actors::upstream::Command;
use crate::actors::{ledger, upstream};
use crate::dashboard::http::{Dashboard, Denied};
use crate::dashboard::session::Who;
use crate::dialects::ClientDialect;
use crate::error::{ApiError, Code};
use crate::ids::{TenantId, UpstreamId};
use crate::runtime::TenantRuntime;

use super::respond;

/// The routes below `/admin`.
pub fn routes(config: &mut ServiceConfig) {
    config
        .service(web::resource("/admin/tenants").route(web::get().to(tenants)))
        .service(web::resource("/admin/tenants/{id}").route(web::get().to(tenant)))
        .service(web::resource("/admin/tenants/{id}/drill").route(web::post().to(drill_tenant)))
        .service(web::resource("/admin/upstreams").route(web::get().to(upstreams)))
        .service(web::resource("/admin/upstreams/{id}/{order}").route(web::post().to(order)));
}

type Answer = Result<HttpResponse, ApiError>;

/// Renders errors in the OpenAI shape, which every tool can read.
fn shown(request: &HttpRequest, answer: Answer) -> HttpResponse {
    answer.unwrap_or_else(|error| respond::plain_error(request, ClientDialect::OpenAi, &error))
}

/// Lets an administrator in, by the dashboard's rule: bearer token, session, or without a token from loopback only.
///
/// # Errors
/// Says how to get in, or that a change may come from another site's page.
pub fn authorize(request: &HttpRequest) -> Result<Who, ApiError> {
    let dashboard = request
        .app_data::<Data<Dashboard>>()
        .ok_or_else(|| ApiError::new(Code::Internal, "the admin route was reached without its state"))?;
    dashboard.authorize(request).map_err(|denied| match denied {
        Denied::Unknown => ApiError::new(
            Code::InvalidApiKey,
            "send the admin token as \"Authorization: Bearer <token>\"; without server.admin_token only loopback is \
             let in, by its own name",
        ),
        Denied::Forged => ApiError::new(Code::Forbidden, "the request does not come from the dashboard's own page"),
    })
}

async fn tenants(request: HttpRequest) -> HttpResponse {
    let answer = async {
        authorize(&request)?;
        let running = super::worker(&request)?.gateway.running.load_full();
        let sorted: BTreeMap<_, _> = running.tenants.iter().collect();
        let mut list = Vec::with_capacity(sorted.len());
        for tenant in sorted.into_values() {
            list.push(describe(tenant).await?);
        }
        Ok(HttpResponse::Ok().json(json!({ "tenants": list })))
    };
    shown(&request, answer.await)
}

async fn tenant(request: HttpRequest, id: Path<String>) -> HttpResponse {
    let answer = async {
        authorize(&request)?;
        let running = super::worker(&request)?.gateway.running.load_full();
        let tenant = running
            .tenants
            .get(&TenantId::from(id.as_str()))
            .ok_or_else(|| ApiError::new(Code::RouteNotFound, format!("there is no tenant {:?}", id.as_str())))?;
        Ok(HttpResponse::Ok().json(describe(tenant).await?))
    };
    shown(&request, answer.await)
}

/// Proves in production that a fault of the tenant's actor is survived: it panics and restarts with its balance.
async fn drill_tenant(request: HttpRequest, id: Path<String>) -> HttpResponse {
    let answer = async {
        authorize(&request)?;
        let running = super::worker(&request)?.gateway.running.load_full();
        let tenant = running
            .tenants
            .get(&TenantId::from(id.as_str()))
            .ok_or_else(|| ApiError::new(Code::RouteNotFound, format!("there is no tenant {:?}", id.as_str())))?;
        tracing::info!(tenant = %tenant.plan.id, "operator's drill");
        tenant.ledger.do_send(ledger::Drill);
        Ok(HttpResponse::Ok().json(json!({ "id": tenant.plan.id, "order": "drill" })))
    };
    shown(&request, answer.await)
}

async fn describe(tenant: &TenantRuntime) -> Result<serde_json::Value, ApiError> {
    let balance = match &tenant.shared {
        Some(shared) => shared
            .ledger
            .observe(&shared.account)
            .await
            .map_err(|error| ApiError::new(Code::StoreUnavailable, format!("the shared ledger: {error}")))?,
        None => {
            let balance = tenant.ledger.send(ledger::Observe).await.ok().flatten();
            balance.ok_or_else(|| ApiError::new(Code::StoreUnavailable, "the tenant's ledger is restarting"))?
        }
    };
    let mut value =
        serde_json::to_value(balance).map_err(|_| ApiError::new(Code::Internal, "the balance could not be written"))?;
    if let Some(object) = value.as_object_mut() {
        object.insert("id".to_owned(), json!(tenant.plan.id));
        let keys: Vec<_> = tenant.plan.keys.iter().map(|key| json!({ "fingerprint": key.fingerprint })).collect();
        object.insert("keys".to_owned(), json!(keys));
    }
    Ok(value)
}

async fn upstreams(request: HttpRequest) -> HttpResponse {
    let answer = async {
        authorize(&request)?;
        let running = super::worker(&request)?.gateway.running.load_full();
        let mut list = Vec::with_capacity(running.upstreams.len());
        for handle in &running.upstreams {
            let state = handle.actor.send(upstream::Observe).await.ok().flatten();
            list.push(json!({
                "id": handle.plan.id,
                "provider": format!("{:?}", handle.plan.provider).to_lowercase(),
                "region": handle.plan.region,
                "tier": handle.plan.tier,
                "models": handle.plan.serves.iter().map(|serves| serves.model.clone()).collect::<Vec<_>>(),
                "state": state,
            }));
        }
        Ok(HttpResponse::Ok().json(json!({ "upstreams": list })))
    };
    shown(&request, answer.await)
}

async fn order(request: HttpRequest, path: Path<(String, String)>) -> HttpResponse {
    let answer = async {
        let who = authorize(&request)?;
        let (id, order) = path.into_inner();
        let running = super::worker(&request)?.gateway.running.load_full();
        let id = UpstreamId::from(id);
        let handle = running
            .upstreams
            .iter()
            .find(|handle| handle.plan.id == id)
            .ok_or_else(|| ApiError::new(Code::RouteNotFound, format!("there is no upstream {:?}", id.as_str())))?;
        let command = match order.as_str() {
            "drain" => Command::Drain,
            "resume" => Command::Resume,
            "open" => Command::Open,
            "close" => Command::Close,
            "drill" => {
                // Proves in production that a fault of the actor is survived: it panics and restarts with its state.
                handle.actor.do_send(upstream::Drill);
                return Ok(HttpResponse::Ok().json(json!({ "id": id, "order": order })));
            }
            _ => {
                let message = format!("{order:?} is no order: use drain, resume, open, close or drill");
                return Err(ApiError::new(Code::RouteNotFound, message));
            }
        };
        let events = &super::worker(&request)?.gateway.telemetry.events;
        events.admin_action(&who.0, &order, id.as_str());
        handle.actor.do_send(upstream::Order(command));
        Ok(HttpResponse::Ok().json(json!({ "id": id, "order": order })))
    };
    shown(&request, answer.await)
}
