//! What was done on the admin side, newest first.

use actix_web::web;
use actix_web::{HttpRequest, HttpResponse};
use serde_json::json;

use super::{done, gate, parameters, shown};
use crate::error::{ApiError, Code};
use crate::store::audit::{self, AuditFilter};
use crate::store::usage::{parse_since, parse_until};

/// Deeds of an answer where nothing else is asked for.
const USUAL: usize = 100;

/// Most deeds of one answer.
const MOST: usize = 10_000;

/// `GET /admin/audit?since=&until=&limit=`.
pub(super) async fn list(request: HttpRequest) -> HttpResponse {
    let answer = async {
        gate::authorize(&request)?;
        let running = crate::edge::worker(&request)?.gateway.running.load_full();
        let [since, until, limit] = parameters(&request, ["since", "until", "limit"])?;
        let wrong = |name: &'static str, expected: &str| {
            ApiError::new(Code::InvalidInput, format!("`{name}`: expected {expected}")).param(name)
        };
        let bound = |name, text: Option<&str>, parse: fn(&str) -> Option<_>| match text {
            None => Ok(None),
            Some(text) => parse(text)
                .map(Some)
                .ok_or_else(|| wrong(name, "a day such as 2026-11-30 or an instant such as 2026-11-30T16:30:00Z")),
        };
        let limit = match limit.as_deref().map(str::parse) {
            None => USUAL,
            Some(Ok(limit)) if (1..=MOST).contains(&limit) => limit,
            Some(_) => return Err(wrong("limit", &format!("a number from 1 to {MOST}"))),
        };
        let filter = AuditFilter {
            since: bound("since", since.as_deref(), parse_since)?,
            until: bound("until", until.as_deref(), parse_until)?,
            limit,
        };
        let folder = running.plan.store.path.clone();
        let deeds = web::block(move || audit::latest(&folder, &filter))
            .await
            .map_err(|_| ApiError::new(Code::Internal, "the journal could not be read"))?
            .map_err(|error| ApiError::new(Code::StoreUnavailable, error.to_string()))?;
        done(json!({ "deeds": deeds }))
    };
    shown(&request, answer.await)
}
