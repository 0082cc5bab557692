//! What runs, and putting another configuration in force.

use actix_web::{HttpRequest, HttpResponse};
use serde_json::{Value, json};

use super::{Answer, done, gate, shown};
use crate::config::Problems;
use crate::error::{ApiError, Code};
use crate::gateway::Gateway;
use crate::pure::utc::Stamp;

/// `GET /admin/status`: the version that runs, and what the last reload came to.
pub(super) async fn status(request: HttpRequest) -> HttpResponse {
    let answer = || {
        gate::authorize(&request)?;
        done(describe(&crate::edge::worker(&request)?.gateway)?)
    };
    shown(&request, answer())
}

/// `POST /admin/reload`.
pub(super) async fn reload(request: HttpRequest) -> HttpResponse {
    let answer = async {
        let by = gate::authorize(&request)?;
        let gateway = &crate::edge::worker(&request)?.gateway;
        if gateway.lifecycle.is_draining() {
            return Err(ApiError::new(Code::ShuttingDown, "the gateway is shutting down"));
        }
        match gateway.reload(&by).await {
            Ok(_version) => done(describe(gateway)?),
            Err(problems) => Ok(refused(gateway, &problems)?),
        }
    };
    shown(&request, answer.await)
}

/// `GET /admin/collections`.
pub(super) async fn collections(request: HttpRequest) -> HttpResponse {
    shown(&request, gate::authorize(&request).and_then(|_| done(json!({ "collections": [] }))))
}

fn describe(gateway: &Gateway) -> Result<Value, ApiError> {
    let status = serde_json::to_value(gateway.status())
        .map_err(|_| ApiError::new(Code::Internal, "the status could not be written"))?;
    let running = gateway.running.load();
    Ok(json!({
        "version": running.plan.version,
        "configuration": gateway.source().name(),
        "started": Stamp(gateway.started()).to_string(),
        "program": env!("CARGO_PKG_VERSION"),
        "draining": gateway.lifecycle.is_draining(),
        "in_flight": gateway.lifecycle.in_flight(),
        "warnings": running.plan.warnings,
        "reloads": status,
    }))
}

/// The problems where a person reads them, one a line, and where a program does.
fn refused(gateway: &Gateway, problems: &Problems) -> Answer {
    let message = format!("the configuration is not valid, so nothing was changed:\n{problems}");
    let mut body = json!({
        "error": {
            "message": message,
            "type": "invalid_request_error",
            "param": null,
            "code": Code::InvalidInput.row().name,
        },
        "problems": problems.0,
    });
    body["version"] = gateway.running.load().plan.version.clone().into();
    Ok(HttpResponse::BadRequest().json(body))
}
