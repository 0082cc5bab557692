//! Upstreams: how they are, and orders to them.

use actix_web::web::Path;
use actix_web::{HttpRequest, HttpResponse};
use serde_json::{Value, json};

use super::{done, gate, shown};
use crate::actors::upstream::{self, Command, UpstreamHandle};
use crate::error::{ApiError, Code};
use crate::gateway::Deed;
use crate::ids::UpstreamId;

/// `GET /admin/upstreams`.
pub(super) async fn list(request: HttpRequest) -> HttpResponse {
    let answer = async {
        gate::authorize(&request)?;
        let running = crate::edge::worker(&request)?.gateway.running.load_full();
        let mut list = Vec::with_capacity(running.upstreams.len());
        for handle in running.upstreams.iter() {
            let state = handle.actor.send(upstream::Observe).await.ok().flatten();
            list.push(json!({
                "id": handle.plan.id,
                "provider": handle.plan.provider.as_str(),
                "region": handle.plan.region,
                "tier": handle.plan.tier,
                "models": handle.plan.serves.iter().map(|serves| serves.model.clone()).collect::<Vec<_>>(),
                "state": state,
            }));
        }
        done(json!({ "upstreams": list }))
    };
    shown(&request, answer.await)
}

/// `POST /admin/upstreams/{id}/{order}`.
pub(super) async fn order(request: HttpRequest, path: Path<(String, String)>) -> HttpResponse {
    let answer = async {
        let by = gate::authorize(&request)?;
        let (id, order) = path.into_inner();
        let gateway = &crate::edge::worker(&request)?.gateway;
        let running = gateway.running.load_full();
        let id = UpstreamId::from(id);
        let handle = running
            .upstreams
            .iter()
            .find(|handle| handle.plan.id == id)
            .ok_or_else(|| ApiError::new(Code::RouteNotFound, format!("there is no upstream {:?}", id.as_str())))?;
        let (action, command) = match order.as_str() {
            "drain" => ("drain", Some(Command::Drain)),
            "resume" => ("resume", Some(Command::Resume)),
            "open" => ("open", Some(Command::Open)),
            "close" => ("close", Some(Command::Close)),
            // Proves in production that a fault of the actor is survived: it panics and restarts with its state.
            "drill" => ("drill", None),
            _ => {
                let message = format!("{order:?} is no order: use drain, resume, open, close or drill");
                return Err(ApiError::new(Code::RouteNotFound, message));
            }
        };
        let before = state(handle).await;
        match command {
            Some(command) => handle.actor.do_send(upstream::Order(command)),
            None => handle.actor.do_send(upstream::Drill),
        }
        let after = state(handle).await;
        gateway.note(&by, Deed { action, subject: id.to_string(), before, after: after.clone() });
        done(json!({ "id": id, "order": order, "state": after }))
    };
    shown(&request, answer.await)
}

/// What orders change, as the actor sees it now.
async fn state(handle: &UpstreamHandle) -> Value {
    let Some(state) = handle.actor.send(upstream::Observe).await.ok().flatten() else { return Value::Null };
    json!({
        "breaker": state.breaker,
        "draining": state.draining,
        "parked": state.parked,
        "quarantined": state.quarantined,
        "usable": state.usable,
    })
}
