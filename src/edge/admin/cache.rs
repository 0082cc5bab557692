//! Clearing the cache.

use actix_web::web;
use actix_web::{HttpRequest, HttpResponse};
use serde_json::{Value, json};

use super::{done, gate, parameters, shown};
use crate::cache::CacheFilter;
use crate::error::{ApiError, Code};
use crate::gateway::Deed;

/// `DELETE /admin/cache?model=&tenant=`: what matches both is dropped; neither: everything.
pub(super) async fn clear(request: HttpRequest) -> HttpResponse {
    let answer = async {
        let by = gate::authorize(&request)?;
        let gateway = std::sync::Arc::clone(&crate::edge::worker(&request)?.gateway);
        let [model, tenant] = parameters(&request, ["model", "tenant"])?.map(|value| value.filter(|v| !v.is_empty()));
        let subject = json!({ "model": model, "tenant": tenant });
        let filter = CacheFilter { tenant: tenant.map(Into::into), model: model.map(Into::into) };
        let shared = std::sync::Arc::clone(&gateway);
        // Every entry is visited: off the threads that answer.
        let here = filter.clone();
        let mut cleared = web::block(move || shared.cache.clear(&here))
            .await
            .map_err(|_| ApiError::new(Code::Internal, "the cache could not be cleared"))?;
        if let Some(remote) = gateway.cache.remote() {
            // What is in Redis is what the replicas share; memory holds copies of it.
            cleared = remote.clear(&filter).await.map_err(|error| {
                let message = format!("this process's memory is cleared, Redis is not: {error}");
                ApiError::new(Code::StoreUnavailable, message)
            })?;
        }
        gateway.note(
            &by,
            Deed {
                action: "clear_cache",
                subject: subject.to_string(),
                before: Value::Null,
                after: json!({ "cleared": cleared }),
            },
        );
        done(json!({ "cleared": cleared }))
    };
    shown(&request, answer.await)
}
