//! The admin side: its routes, and what all of them share. Its listener is its own; who may use it is [`gate`]'s.

mod audit;
mod cache;
pub(crate) mod collections;
mod gate;
mod status;
mod tenants;
mod upstreams;
mod usage;

use actix_web::web::{self, Bytes, PayloadConfig, Query, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse};
use serde_json::json;

use crate::config::Problems;
use crate::dialects::ClientDialect;
use crate::error::{ApiError, Code};
use crate::gateway::Change;

use super::respond;

pub use gate::authorize;

/// Largest body of an admin call, bytes: a tenant with a thousand keys.
const MOST_BODY_BYTES: usize = 1 << 20;

/// The routes below `/admin`.
pub fn routes(config: &mut ServiceConfig) {
    let resource = |path: &str| web::resource(path).default_service(web::to(not_allowed));
    let order = web::post().to(upstreams::order);
    let one_key = resource("/admin/tenants/{id}/keys/{fingerprint}").route(web::delete().to(tenants::revoke_key));
    config
        .app_data(PayloadConfig::new(MOST_BODY_BYTES))
        .service(resource("/admin/status").route(web::get().to(status::status)))
        .service(resource("/admin/reload").route(web::post().to(status::reload)))
        .service(
            resource("/admin/tenants")
                .route(web::get().to(tenants::list))
                .route(web::head().to(tenants::list))
                .route(web::post().to(tenants::create)),
        )
        .service(resource("/admin/tenants/{id}").route(web::get().to(tenants::one)))
        .service(resource("/admin/tenants/{id}/credit").route(web::post().to(tenants::credit)))
        .service(resource("/admin/tenants/{id}/drill").route(web::post().to(tenants::drill)))
        .service(resource("/admin/tenants/{id}/keys").route(web::post().to(tenants::add_key)))
        .service(one_key)
        .service(resource("/admin/usage").route(web::get().to(usage::report)))
        .service(resource("/admin/audit").route(web::get().to(audit::list)))
        .service(resource("/admin/cache").route(web::delete().to(cache::clear)))
        .service(resource("/admin/collections").route(web::get().to(collections::list)))
        .service(
            resource("/admin/collections/{name}")
                .route(web::get().to(collections::one))
                .route(web::put().to(collections::change)),
        )
        .service(resource("/admin/upstreams").route(web::get().to(upstreams::list)))
        .service(resource("/admin/upstreams/{id}/{order}").route(order));
}

type Answer = Result<HttpResponse, ApiError>;

/// Renders errors in the OpenAI shape, which every tool can read.
fn shown(request: &HttpRequest, answer: Answer) -> HttpResponse {
    answer.unwrap_or_else(|error| respond::plain_error(request, ClientDialect::OpenAi, &error))
}

async fn not_allowed(request: HttpRequest) -> HttpResponse {
    let message = format!("{} is not allowed on {}", request.method(), request.path());
    shown(&request, Err(ApiError::new(Code::MethodNotAllowed, message)))
}

/// The body of a call as JSON.
fn json_body(body: Result<Bytes, actix_web::Error>) -> Result<serde_json::Value, ApiError> {
    let body = body.map_err(|error| {
        let code = match error.as_response_error().status_code().as_u16() {
            413 => Code::BodyTooLarge,
            _ => Code::InvalidJson,
        };
        ApiError::new(code, format!("the body cannot be read (at most {MOST_BODY_BYTES} bytes): {error}"))
    })?;
    let value: serde_json::Value = serde_json::from_slice(&body)
        .map_err(|error| ApiError::new(Code::InvalidJson, format!("the body is not JSON: {error}")))?;
    if value.is_object() {
        return Ok(value);
    }
    Err(ApiError::new(Code::InvalidJson, "the body must be a JSON object"))
}

/// A member of a body that must be text.
fn text_of<'a>(body: &'a serde_json::Value, member: &'static str) -> Result<&'a str, ApiError> {
    let text = body.get(member).and_then(serde_json::Value::as_str).filter(|text| !text.is_empty());
    text.ok_or_else(|| ApiError::new(Code::InvalidInput, format!("`{member}` must be text in quotes")).param(member))
}

/// The parameters of a query string, each known and given at most once: a misspelt one must not widen what a call does.
fn parameters<const N: usize>(
    request: &HttpRequest,
    known: [&'static str; N],
) -> Result<[Option<String>; N], ApiError> {
    let pairs = Query::<Vec<(String, String)>>::from_query(request.query_string())
        .map_err(|error| ApiError::new(Code::InvalidInput, format!("the query string cannot be read: {error}")))?;
    let mut values = [const { None }; N];
    for (name, value) in pairs.into_inner() {
        let slot = known.iter().zip(&mut values).find(|(known, _)| **known == name);
        let problem = match slot {
            None => format!("there is no parameter {name:?}; known are {}", known.join(", ")),
            Some((_, Some(_))) => format!("the parameter {name:?} is given twice"),
            Some((_, slot)) => {
                *slot = Some(value);
                continue;
            }
        };
        return Err(ApiError::new(Code::InvalidInput, problem).param(name));
    }
    Ok(values)
}

/// What an administrator reads about a change that was not made.
fn change_error(change: Change) -> ApiError {
    match change {
        Change::Unknown(message) => ApiError::new(Code::RouteNotFound, message),
        Change::Conflict(message) => ApiError::new(Code::Conflict, message),
        Change::Invalid(problems) => {
            let message = ApiError::new(Code::InvalidInput, of_tenant(&problems));
            match problems.0.first().map(|problem| short_key(&problem.key).to_owned()) {
                Some(key) if !key.is_empty() => message.param(key),
                _ => message,
            }
        }
        Change::Value(member, message) => {
            ApiError::new(Code::InvalidInput, format!("`{member}` {message}")).param(member)
        }
        Change::NotKept => {
            ApiError::new(Code::StoreUnavailable, "the ledger cannot take the change now; nothing was changed")
        }
        Change::Unheard => ApiError::new(
            Code::StoreUnavailable,
            "a store did not answer, so the change may take effect or not: look again in two seconds",
        ),
        Change::Doubtful => {
            ApiError::new(Code::StoreUnavailable, "the change is in force, but the disk has not confirmed it")
        }
        Change::NotShared => ApiError::new(
            Code::StoreUnavailable,
            "the store that replicas share does not answer; nothing is known to have changed, so look before sending it again",
        ),
        Change::NotHeard => ApiError::new(
            Code::StoreUnavailable,
            "the change is made, but not every replica has confirmed that it is in force; send it again to wait for them",
        ),
        Change::OnlyHere => ApiError::new(
            Code::StoreUnavailable,
            "the key is revoked on this replica only: the store that replicas share does not answer; the others follow \
             when it does",
        ),
        Change::Fault => ApiError::new(Code::Internal, "the gateway failed; nothing was changed"),
    }
}

/// The key inside the tenant: `budget` for `tenants[3].budget`.
fn short_key(key: &str) -> &str {
    key.split_once("].").map_or("", |(_, rest)| rest)
}

/// All problems of a tenant, without the places of a file that they are not in.
fn of_tenant(problems: &Problems) -> String {
    let one = |problem: &crate::config::Problem| {
        let key = short_key(&problem.key);
        let mut text = if key.is_empty() { problem.what.clone() } else { format!("{key}: {}", problem.what) };
        if !problem.right.is_empty() {
            text = format!("{text}; {}", problem.right);
        }
        text
    };
    let all: Vec<String> = problems.0.iter().map(one).collect();
    if all.is_empty() { "not the settings of a tenant".to_owned() } else { all.join(". ") }
}

/// A body that says only that something is done.
fn done(what: serde_json::Value) -> Answer {
    Ok(HttpResponse::Ok().json(json!(what)))
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    #[track_caller]
    fn check(query: &str, expected: Result<[Option<&str>; 2], &str>) {
        let request = TestRequest::with_uri(&format!("/admin/cache{query}")).to_http_request();
        let got = parameters(&request, ["model", "tenant"]);
        match (got, expected) {
            (Ok(got), Ok(expected)) => assert_eq!(got.each_ref().map(Option::as_deref), expected),
            (Err(error), Err(part)) => assert!(error.message.contains(part), "{error}"),
            (got, expected) => panic!("{query}: {got:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn only_known_parameters_are_taken_and_each_once() {
        check("", Ok([None, None]));
        check("?model=BAAI%2Fbge-m3", Ok([Some("BAAI/bge-m3"), None]));
        check("?tenant=a&model=b", Ok([Some("b"), Some("a")]));
        check("?modle=b", Err("modle"));
        check("?model=a&model=b", Err("twice"));
    }
}
