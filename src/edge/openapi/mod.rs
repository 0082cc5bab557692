//! `GET /openapi.json`: every route of both listeners as an OpenAPI 3.1 document.
//!
//! Client routes come out of the route table, statuses and codes out of the table of errors; what a body may hold is
//! [`schemas`]' and what the admin side takes [`admin`]'s. Nothing in it depends on the configuration, so it may be read
//! without a key.

mod admin;
mod client;
mod schemas;

use std::sync::OnceLock;

use actix_web::http::header::CONTENT_TYPE;
use actix_web::web::{self, Bytes, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse};
use serde_json::{Map, Value, json};

use crate::dialects::ClientDialect;
use crate::error::{ApiError, Code};

use super::respond;

/// Adds the document's route.
pub fn routes(config: &mut ServiceConfig) {
    let served = web::get().to(serve);
    config.service(
        web::resource("/openapi.json").route(served).route(web::head().to(serve)).default_service(web::to(refuse)),
    );
}

async fn serve() -> HttpResponse {
    static DOCUMENT: OnceLock<Bytes> = OnceLock::new();
    let text = DOCUMENT.get_or_init(|| Bytes::from(document().to_string()));
    HttpResponse::Ok()
        .insert_header((CONTENT_TYPE, "application/json"))
        .insert_header(("cache-control", "no-cache"))
        .insert_header(("x-content-type-options", "nosniff"))
        .body(text.clone())
}

async fn refuse(request: HttpRequest) -> HttpResponse {
    let error = ApiError::new(Code::MethodNotAllowed, format!("{} is not allowed here: use GET", request.method()));
    respond::plain_error(&request, ClientDialect::OpenAi, &error)
}

/// The whole document.
pub fn document() -> Value {
    let mut paths = Map::new();
    client::add(&mut paths);
    admin::add(&mut paths);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Vectorgate",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "One door for embeddings, rerank and the chat that goes with them",
            "description": "Client routes speak the words of the provider that they are named after and reach every \
                            compatible upstream. Routes tagged `admin` are on a listener of their own.",
        },
        "tags": [
            { "name": "embeddings", "description": "Texts to vectors" },
            { "name": "rerank", "description": "A query and documents to scores" },
            { "name": "chat", "description": "Messages to text, passed through" },
            { "name": "models", "description": "What a key may use" },
            { "name": "health", "description": "On both listeners" },
            { "name": "admin", "description": "On the admin listener (`server.admin_listen`)" },
        ],
        "paths": paths,
        "components": {
            "schemas": schemas::shared(),
            "headers": schemas::headers(),
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer", "description": "A tenant's key" },
                "xApiKey": { "type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same" },
                "apiKey": { "type": "apiKey", "in": "header", "name": "api-key", "description": "The same" },
                "admin": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "`server.admin_token`; where none is set, only this machine is let in",
                },
            },
        },
    })
}

/// Adds an operation under its path; `{name:.+}` of a route's pattern becomes `{name}`, and a parameter.
fn add(paths: &mut Map<String, Value>, path: &str, method: &str, mut operation: Value) {
    let (shown, names) = parts_of(path);
    for name in names {
        let parameter = json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } });
        if let Some(list) = operation["parameters"].as_array_mut() {
            list.push(parameter);
        } else {
            operation["parameters"] = json!([parameter]);
        }
    }
    operation["operationId"] = json!(id_of(method, &shown));
    let entry = paths.entry(shown).or_insert_with(|| json!({}));
    entry[method] = operation;
}

/// A pattern as the document writes it, and the names in it.
fn parts_of(pattern: &str) -> (String, Vec<&str>) {
    let mut shown = String::with_capacity(pattern.len());
    let mut names = Vec::new();
    let mut rest = pattern;
    while let Some((before, after)) = rest.split_once('{') {
        let (inside, after) = after.split_once('}').unwrap_or((after, ""));
        let name = inside.split(':').next().unwrap_or(inside);
        shown.push_str(before);
        shown.push_str(&format!("{{{name}}}"));
        names.push(name);
        rest = after;
    }
    shown.push_str(rest);
    (shown, names)
}

/// A name for generated clients: `post_v1_embeddings`.
fn id_of(method: &str, path: &str) -> String {
    let words = path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    std::iter::once(method).chain(words).collect::<Vec<_>>().join("_")
}

/// One entry a status: its codes, and the shape of its body.
fn failures(codes: impl Iterator<Item = Code>, schema: &str) -> Map<String, Value> {
    let mut by_status: std::collections::BTreeMap<u16, Vec<&str>> = std::collections::BTreeMap::new();
    for row in codes.map(Code::row) {
        by_status.entry(row.status).or_default().push(row.name);
    }
    let answer = |(status, names): (u16, Vec<&str>)| {
        let list: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        let mut answer = json!({
            "description": list.join(", "),
            "content": { "application/json": { "schema": schemas::reference(schema) } },
        });
        if matches!(status, 429 | 503) {
            answer["headers"] = schemas::waits();
        }
        (status.to_string(), answer)
    };
    by_status.into_iter().map(answer).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn operations(document: &Value) -> Vec<(&String, &String, &Value)> {
        let paths = document["paths"].as_object().expect("paths");
        paths
            .iter()
            .flat_map(|(path, item)| item.as_object().expect("an item").iter().map(move |(m, o)| (path, m, o)))
            .collect()
    }

    /// Every `$ref` below `value`.
    fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Object(members) => {
                found.extend(members.get("$ref").and_then(Value::as_str));
                members.values().for_each(|member| references(member, found));
            }
            Value::Array(list) => list.iter().for_each(|item| references(item, found)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = document();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 100);
        for reference in found {
            let pointer = reference.strip_prefix('#').expect("inside the document");
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
    }

    #[test]
    fn every_operation_has_a_name_of_its_own_its_parameters_and_its_failures() {
        let document = document();
        let operations = operations(&document);
        let names: HashSet<&str> = operations.iter().filter_map(|(_, _, o)| o["operationId"].as_str()).collect();
        assert_eq!(names.len(), operations.len());
        for (path, method, operation) in operations {
            let named = path.matches('{').count();
            let in_path = |list: &Vec<Value>| list.iter().filter(|p| p["in"] == "path").count();
            assert_eq!(operation["parameters"].as_array().map_or(0, in_path), named, "{method} {path}");
            assert!(operation["summary"].is_string() && operation["tags"].is_array(), "{method} {path}");
            assert!(!operation["responses"].as_object().expect("responses").is_empty(), "{method} {path}");
        }
    }

    #[test]
    fn patterns_become_templates() {
        assert_eq!(parts_of("/tei/{model:.+}/embed"), ("/tei/{model}/embed".to_owned(), vec!["model"]));
        assert_eq!(id_of("get", "/v1/models/{model}"), "get_v1_models_model");
    }
}
