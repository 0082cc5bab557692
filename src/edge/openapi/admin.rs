//! The admin listener's operations.

use serde_json::{Map, Value, json};

use crate::error::Code;

use super::schemas::reference;

/// One operation: method, path, what it does.
struct Operation {
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    /// Query parameters with what they take.
    query: &'static [(&'static str, &'static str)],
    /// The body's schema, if it takes one.
    body: Option<&'static str>,
    /// Status and schema of its answer.
    answer: (u16, &'static str),
    /// Media type of its answer.
    media: &'static str,
}

const fn operation(method: &'static str, path: &'static str, summary: &'static str) -> Operation {
    Operation { method, path, summary, query: &[], body: None, answer: (200, "Object"), media: JSON }
}

impl Operation {
    const fn answers(mut self, schema: &'static str) -> Operation {
        self.answer.1 = schema;
        self
    }

    const fn creates(mut self, schema: &'static str) -> Operation {
        self.answer = (201, schema);
        self
    }

    const fn takes(mut self, schema: &'static str) -> Operation {
        self.body = Some(schema);
        self
    }

    const fn asks(mut self, query: &'static [(&'static str, &'static str)]) -> Operation {
        self.query = query;
        self
    }

    const fn media(mut self, media: &'static str) -> Operation {
        self.media = media;
        self
    }
}

const JSON: &str = "application/json";

const SINCE_UNTIL: [(&str, &str); 2] =
    [("since", "A day (2026-11-30) or an instant, inclusive"), ("until", "The same, exclusive")];

const OPERATIONS: &[Operation] = &[
    operation("get", "/metrics", "Metrics in Prometheus' text format, or OpenMetrics with exemplars by `Accept`")
        .answers("Text")
        .media("text/plain"),
    operation("get", "/admin/status", "The configuration that runs, and what the last reload came to"),
    operation("post", "/admin/reload", "Reads the configuration again; an invalid one changes nothing (400)"),
    operation("get", "/admin/tenants", "Every tenant with its balance").answers("TenantList"),
    operation("post", "/admin/tenants", "Makes a tenant, in the form of the configuration's `[[tenants]]`")
        .takes("NewTenant")
        .creates("Tenant"),
    operation("get", "/admin/tenants/{id}", "One tenant with its balance").answers("Tenant"),
    operation("post", "/admin/tenants/{id}/credit", "Adds money; the same idempotency key again changes nothing")
        .takes("Credit")
        .answers("Tenant"),
    operation("post", "/admin/tenants/{id}/drill", "Makes the tenant's actor fail and restart, to prove that it can"),
    operation("post", "/admin/tenants/{id}/keys", "Makes a key; the only time that its secret is told")
        .creates("NewKey"),
    operation("delete", "/admin/tenants/{id}/keys/{fingerprint}", "Revokes a key, in force for the next request on every replica"),
    operation("get", "/admin/usage", "The cost report, as `vectorgate usage` prints it")
        .asks(&[
            ("tenant", "Only this tenant"),
            SINCE_UNTIL[0],
            SINCE_UNTIL[1],
            ("by", "Sums by any of tenant, key, model, class, collection, upstream, day, comma-separated; without it, the records"),
            ("format", "table, csv or jsonl (default)"),
        ])
        .answers("Text")
        .media("application/x-ndjson"),
    operation("get", "/admin/audit", "What administrators did, newest first").asks(&[
        SINCE_UNTIL[0],
        SINCE_UNTIL[1],
        ("limit", "At most so many"),
    ]),
    operation("delete", "/admin/cache", "Forgets cached vectors and scores")
        .asks(&[("model", "Only of this model"), ("tenant", "Only of this tenant")]),
    operation("get", "/admin/collections", "Collections, how far each has moved, and what each model did for it")
        .answers("CollectionList"),
    operation("get", "/admin/collections/{name}", "One collection").answers("Collection"),
    operation(
        "put",
        "/admin/collections/{name}",
        "Moves a collection on or back, in force for the next request; kept over restarts and shared with replicas",
    )
    .takes("Stage")
    .answers("Collection"),
    operation("get", "/admin/upstreams", "Every upstream with its breaker, buckets and queue"),
    operation(
        "post",
        "/admin/upstreams/{id}/{order}",
        "Tells an upstream to `drain`, `resume`, `open` or `close` its breaker, or to `drill` its actor",
    ),
];

/// Codes of the admin side.
const CODES: [Code; 12] = [
    Code::InvalidJson,
    Code::InvalidInput,
    Code::InvalidApiKey,
    Code::Forbidden,
    Code::RouteNotFound,
    Code::MethodNotAllowed,
    Code::Conflict,
    Code::BodyTooLarge,
    Code::BodyTimeout,
    Code::StoreUnavailable,
    Code::ShuttingDown,
    Code::Internal,
];

/// Adds every admin operation.
pub(super) fn add(paths: &mut Map<String, Value>) {
    for operation in OPERATIONS {
        super::add(paths, operation.path, operation.method, describe(operation));
    }
}

fn describe(operation: &Operation) -> Value {
    let mut responses = super::failures(CODES.into_iter(), "OpenAiError");
    let (status, schema) = operation.answer;
    let schema = if schema == "Text" { json!({ "type": "string" }) } else { reference(schema) };
    let content = json!({ operation.media: { "schema": schema } });
    responses.insert(status.to_string(), json!({ "description": "Done", "content": content }));
    let parameters: Vec<Value> = operation
        .query
        .iter()
        .map(|(name, text)| json!({ "name": name, "in": "query", "description": text, "schema": { "type": "string" } }))
        .collect();
    let mut described = json!({
        "tags": ["admin"],
        "summary": operation.summary,
        "security": [{ "admin": [] }],
        "parameters": parameters,
        "responses": responses,
    });
    if let Some(schema) = operation.body {
        described["requestBody"] = json!({ "required": true, "content": { JSON: { "schema": reference(schema) } } });
    }
    described
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The routes as the admin side registers them, read from its source: one that is added there and not described
    /// here fails the test.
    #[test]
    fn every_admin_route_is_described() {
        let source = include_str!("../admin/mod.rs");
        let source =
            source.split("pub fn routes").nth(1).and_then(|rest| rest.split("\n}").next()).expect("the routes");
        let registered: BTreeSet<&str> =
            source.split('"').skip(1).step_by(2).filter(|text| text.starts_with("/admin/")).collect();
        let described: BTreeSet<&str> =
            OPERATIONS.iter().map(|operation| operation.path).filter(|path| path.starts_with("/admin/")).collect();
        assert!(registered.len() > 5);
        assert_eq!(described, registered);
    }
}
