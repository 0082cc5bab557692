//! HTTP in and out. Knows routes, headers and bodies; knows nothing about providers.

pub mod admin;
pub mod auth;
pub mod body;
pub mod chat;
pub mod frame;
pub mod framing;
pub mod headers;
pub mod models;
pub mod openapi;
pub mod ops;
pub mod outlive;
pub mod request;
pub mod respond;
pub mod routes;
pub mod scan;
pub mod serve;
pub mod stream;
pub mod visit;

use std::rc::Rc;

use actix_web::web::{self, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse};

use crate::error::{ApiError, Code};
use crate::worker::Worker;

/// The client listener's routes.
pub fn client_routes(config: &mut ServiceConfig) {
    routes::register(config);
    openapi::routes(config);
    config.default_service(web::to(not_found));
}

/// The admin listener's routes.
pub fn admin_routes(config: &mut ServiceConfig) {
    routes::probes(config);
    openapi::routes(config);
    config.service(web::resource("/metrics").route(web::get().to(ops::metrics)));
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
    let error = ApiError::new(Code::RouteNotFound, "there is no such route here: look at the path and the base URL");
    respond::plain_error(&request, routes::dialect_near(request.path()), &error)
}
