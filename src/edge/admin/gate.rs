//! Who may use the admin side: whoever has its token, or without one this machine itself.
//!
//! A browser on this machine would let any page on the web act without a token. So a request that changes something
//! must not come from another site's page, and it must have called us by a name of this machine.

use actix_web::HttpRequest;
use actix_web::http::Method;
use actix_web::http::header::{AUTHORIZATION, HOST, ORIGIN};
use subtle::ConstantTimeEq as _;

use crate::dashboard::session::{is_loopback_host, is_same_origin};
use crate::error::{ApiError, Code};
use crate::gateway::By;

/// Lets an administrator in; by which right.
///
/// # Errors
/// 401 without the token, or from elsewhere when there is none; 403 for what another site's page may have sent.
pub(super) fn authorize(request: &HttpRequest) -> Result<By, ApiError> {
    let worker = crate::edge::worker(request)?;
    let running = worker.gateway.running.load();
    let Some(token) = &running.plan.server.admin_token else {
        return by_nearness(request);
    };
    let given = text(request, AUTHORIZATION.as_str()).and_then(|text| text.split_once(' '));
    let given = given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map_or("", |(_, token)| token.trim());
    if bool::from(given.as_bytes().ct_eq(token.expose().as_bytes())) {
        Ok(By("token".into()))
    } else {
        Err(ApiError::new(Code::InvalidApiKey, "send the admin token as \"Authorization: Bearer <token>\""))
    }
}

fn by_nearness(request: &HttpRequest) -> Result<By, ApiError> {
    let near = request.peer_addr().is_some_and(|peer| peer.ip().to_canonical().is_loopback());
    let host = text(request, HOST.as_str());
    if !near || !host.is_some_and(is_loopback_host) {
        return Err(ApiError::new(
            Code::InvalidApiKey,
            "the admin side answers this machine only, by a name such as localhost: no server.admin_token is set",
        ));
    }
    let changes = !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    if changes && !is_same_origin(text(request, ORIGIN.as_str()), text(request, "sec-fetch-site"), host) {
        return Err(ApiError::new(Code::Forged, "the request comes from another site's page"));
    }
    Ok(By("loopback".into()))
}

fn text<'a>(request: &'a HttpRequest, name: &str) -> Option<&'a str> {
    request.headers().get(name).and_then(|value| value.to_str().ok())
}
