//! HTTP in and out. Knows routes, headers and bodies; knows nothing about providers.

pub mod admin;
pub mod auth;
pub mod body;
pub mod embeddings;
pub mod ops;
pub mod request;
pub mod respond;
pub mod scan;
pub mod stream;

use std::rc::Rc;

use actix_web::web::{self, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse};

use crate::dialects::ClientDialect;
use crate::error::{ApiError, Code};
use crate::worker::Worker;

/// The client listener's routes.
pub fn client_routes(config: &mut ServiceConfig) {
    let embeddings = |path: &str| {
        web::resource(path).route(web::post().to(embeddings::openai)).default_service(web::to(method_not_allowed))
    };
    config
        .service(embeddings("/v1/embeddings"))
        .service(web::resource("/healthz").route(web::get().to(ops::healthz)))
        .service(web::resource("/readyz").route(web::get().to(ops::readyz)))
        .default_service(web::to(not_found));
}

/// The admin listener's routes.
pub fn admin_routes(config: &mut ServiceConfig) {
    config
        .service(web::resource("/healthz").route(web::get().to(ops::healthz)))
        .service(web::resource("/readyz").route(web::get().to(ops::readyz)))
        .service(web::resource("/metrics").route(web::get().to(ops::metrics)));
    admin::routes(config);
    config.default_service(web::to(not_found));
}

/// The worker that serves this request.
fn worker(request: &HttpRequest) -> Result<Rc<Worker>, ApiError> {
    request
        .app_data::<Rc<Worker>>()
        .cloned()
        .ok_or_else(|| ApiError::new(Code::Internal, "the request reached a worker without its state"))
}

async fn not_found(request: HttpRequest) -> HttpResponse {
    let error = ApiError::new(Code::RouteNotFound, "there is no such route; the routes are listed in /openapi.json");
    respond::plain_error(&request, ClientDialect::OpenAi, &error)
}

async fn method_not_allowed(request: HttpRequest) -> HttpResponse {
    let error = ApiError::new(Code::MethodNotAllowed, format!("{} is not allowed here: use POST", request.method()));
    respond::plain_error(&request, ClientDialect::OpenAi, &error)
}
