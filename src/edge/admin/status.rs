//! What runs, and putting another configuration in force.

use actix_web::{HttpRequest, HttpResponse};
use serde_json::{Value, json};

use super::{Answer, done, gate, shown};
use crate::clock;
use crate::config::Problems;
use crate::config::plan::{Plan, Retirement};
use crate::error::{ApiError, Code};
use crate::gateway::Gateway;
use crate::pure::utc::{Day, Stamp};

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
        "retirements": retirements(&running.plan),
        "reloads": status,
    }))
}

/// Models that will be retired.
fn retirements(plan: &Plan) -> Vec<Value> {
    let now = clock::wall();
    let one = |one: &Retirement| {
        let on = Day(one.on).to_string();
        json!({ "model": one.model, "upstream": one.upstream, "on": on, "days_left": one.days_left(now) })
    };
    plan.retirements.iter().map(one).collect()
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
