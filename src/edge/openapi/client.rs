//! The client listener's operations, out of its route table.

use serde_json::{Map, Value, json};

use crate::dialects::ClientDialect;
use crate::dialects::chat::ChatApi;
use crate::edge::routes::{self, Does, Look, Op};
use crate::error::Code;

use super::schemas;

/// Codes that only the admin side answers with, or that no client ever sees.
const NOT_HERE: [Code; 3] = [Code::Forbidden, Code::Conflict, Code::ClientGone];

/// Adds every client operation.
pub(super) fn add(paths: &mut Map<String, Value>) {
    for route in routes::listed() {
        let (method, operation) = match route.does {
            Does::Post(op) => ("post", post(op, route.dialect)),
            Does::Chat(api) => ("post", chat(api, route.dialect)),
            Does::Get(look) => ("get", get(look, route.dialect)),
        };
        super::add(paths, route.path, method, operation);
    }
    for (path, summary, codes) in [
        ("/healthz", "Whether the process answers", &[][..]),
        ("/readyz", "Whether it can serve: not while it drains, nor while its ledger cannot be written", &[503][..]),
    ] {
        let text = |description: &str| json!({ "description": description, "content": { "text/plain": {} } });
        let mut responses = json!({ "200": text("Yes") });
        for code in codes {
            responses[code.to_string()] = text("No, and why");
        }
        super::add(paths, path, "get", json!({ "tags": ["health"], "summary": summary, "responses": responses }));
    }
    let document = json!({
        "tags": ["health"],
        "summary": "This document",
        "responses": { "200": { "description": "OpenAPI 3.1", "content": { "application/json": {} } } },
    });
    super::add(paths, "/openapi.json", "get", document);
}

fn words(dialect: ClientDialect) -> &'static str {
    match dialect {
        ClientDialect::OpenAi => "OpenAI",
        ClientDialect::Azure => "Azure OpenAI",
        ClientDialect::CohereV1 => "Cohere v1",
        ClientDialect::CohereV2 => "Cohere v2",
        ClientDialect::Voyage => "Voyage AI",
        ClientDialect::Jina => "Jina",
        ClientDialect::Tei => "TEI",
        ClientDialect::TeiOpenAi => "TEI's OpenAI-like route",
        ClientDialect::Ollama => "Ollama",
        ClientDialect::OllamaLegacy => "Ollama (older form)",
        ClientDialect::Anthropic => "Anthropic",
    }
}

fn post(op: Op, dialect: ClientDialect) -> Value {
    let (tag, what, body) = match op {
        Op::Embed => ("embeddings", "Embed texts", schemas::embed(dialect)),
        Op::Rerank { .. } => ("rerank", "Score documents against a query", schemas::rerank(dialect)),
        Op::Similarity => ("embeddings", "Compare a sentence with others", schemas::similarity()),
        Op::Root => {
            let either = json!({ "anyOf": [schemas::embed(dialect), schemas::similarity(), schemas::rerank(dialect)] });
            ("embeddings", "Whatever the model is for", either)
        }
    };
    let good = json!({
        "description": "In the provider's own form",
        "headers": schemas::answer_headers(),
        "content": { "application/json": { "schema": schemas::answer(op, dialect) } },
    });
    asked(tag, what, dialect, body, good)
}

fn chat(api: ChatApi, dialect: ClientDialect) -> Value {
    let good = json!({
        "description": "The provider's own answer; with `stream`, its events as they come (cost and remaining budget are \
                        then not known when the head leaves)",
        "headers": schemas::chat_headers(),
        "content": {
            "application/json": { "schema": { "type": "object" } },
            "text/event-stream": {},
        },
    });
    asked("chat", "Pass a chat through", dialect, schemas::chat(api), good)
}

/// A POST with `body` that is answered with `good`, or fails.
fn asked(tag: &str, what: &str, dialect: ClientDialect, body: Value, good: Value) -> Value {
    let mut responses = failures(dialect);
    responses.insert("200".to_owned(), good);
    // A fault of the request that only the provider could see keeps the provider's status and words.
    responses.insert(
        "4XX".to_owned(),
        json!({ "description": "The provider's own word about the request", "content": { "application/json": {} } }),
    );
    json!({
        "tags": [tag],
        "summary": format!("{what}, in the words of {}", words(dialect)),
        "security": keys(),
        "parameters": schemas::request_headers(),
        "requestBody": {
            "required": true,
            "description": "At most `server.max_body_bytes`; gzip, deflate, br or zstd by `Content-Encoding`",
            "content": { "application/json": { "schema": body } },
        },
        "responses": responses,
    })
}

fn get(look: Look, dialect: ClientDialect) -> Value {
    let (tag, summary, schema, keyed) = match look {
        Look::Models => ("models", "Every model that the key may use", schemas::reference("ModelList"), true),
        Look::Model => ("models", "One model", schemas::reference("Model"), true),
        Look::Info => ("models", "What TEI's clients ask a server about itself", json!({ "type": "object" }), true),
        Look::Health => ("health", "TEI's health, told by the status alone", Value::Null, false),
    };
    let mut good = json!({ "description": "OK" });
    if !schema.is_null() {
        good["content"] = json!({ "application/json": { "schema": schema } });
    }
    let mut responses = failures(dialect);
    responses.insert("200".to_owned(), good);
    let mut operation = json!({ "tags": [tag], "summary": summary, "responses": responses });
    if keyed {
        operation["security"] = keys();
    }
    operation
}

/// Any one of the three places in which a key is taken.
fn keys() -> Value {
    json!([{ "bearer": [] }, { "xApiKey": [] }, { "apiKey": [] }])
}

fn failures(dialect: ClientDialect) -> Map<String, Value> {
    let codes = Code::ALL.into_iter().filter(|code| !NOT_HERE.contains(code));
    super::failures(codes, schemas::error_of(dialect))
}
