//! Writes an error in the shape from which each dialect's own SDK makes its own exception.
//!
//! The words and the status are decided elsewhere; this file only dresses them.

use bytes::Bytes;

use crate::dialects::ClientDialect;
use crate::dialects::json::ObjectWriter;
use crate::error::{ApiError, Code};
use crate::telemetry::labels::TraceId;

/// The content type of every error.
const JSON: &str = "application/json";

/// By what names the gateway's own logs and traces know the request.
#[derive(Debug, Clone, Copy, Default)]
pub struct ErrorIds<'a> {
    /// Its id.
    pub request: Option<&'a str>,
    /// Its trace; written where the dialect's error has room beside the request's id.
    pub trace: Option<TraceId>,
}

/// The body of `error` for a client of `dialect`, and its content type.
pub fn render_error(dialect: ClientDialect, error: &ApiError, ids: ErrorIds<'_>) -> (&'static str, Bytes) {
    let request_id = ids.request;
    let mut object = ObjectWriter::with_capacity(256 + error.message.len());
    match dialect {
        ClientDialect::OpenAi => {
            let inner = openai(error);
            object.raw("error", &inner);
            with_id(&mut object, "request_id", request_id);
            with_trace(&mut object, ids.trace);
        }
        ClientDialect::Azure => object.raw("error", &azure(error)),
        ClientDialect::CohereV1 | ClientDialect::CohereV2 => {
            with_id(&mut object, "id", request_id);
            object.string("message", &error.message);
            object.string("code", error.shown_code());
        }
        // An `error` member makes Voyage's SDK fail in its own error handling.
        ClientDialect::Voyage | ClientDialect::Jina => {
            object.string("detail", &error.message);
            object.string("code", error.shown_code());
        }
        ClientDialect::Tei => {
            object.string("error", &error.message);
            object.string("error_type", tei_type(error));
            object.string("code", error.shown_code());
        }
        ClientDialect::TeiOpenAi => {
            object.string("message", &error.message);
            object.number("code", error.status().into());
            object.string("type", tei_type(error));
        }
        ClientDialect::Ollama | ClientDialect::OllamaLegacy => {
            object.string("error", &error.message);
            object.string("code", error.shown_code());
        }
        ClientDialect::Anthropic => {
            let mut inner = ObjectWriter::with_capacity(128 + error.message.len());
            inner.string("type", anthropic_type(error.status()));
            inner.string("message", &error.message);
            inner.string("code", error.shown_code());
            object.string("type", "error");
            object.raw("error", &inner.finish());
            with_id(&mut object, "request_id", request_id);
            with_trace(&mut object, ids.trace);
        }
    }
    (JSON, Bytes::from(object.finish()))
}

/// The status of `error` for a client of `dialect`: the error's own, except where that dialect's SDK has no class for
/// it while its provider answers the same fault otherwise.
pub fn status(dialect: ClientDialect, error: &ApiError) -> u16 {
    match (dialect, error.status()) {
        // Voyage answers an unknown model with 400; its SDK takes a 404 for a fault of its own.
        (ClientDialect::Voyage, 404) if error.code == Code::ModelNotFound || error.provider.is_some() => 400,
        (_, status) => status,
    }
}

fn with_id(object: &mut ObjectWriter, key: &str, request_id: Option<&str>) {
    if let Some(id) = request_id {
        object.string(key, id);
    }
}

fn with_trace(object: &mut ObjectWriter, trace: Option<TraceId>) {
    if let Some(id) = trace {
        object.string("trace_id", &id.to_string());
    }
}

fn openai(error: &ApiError) -> Vec<u8> {
    let mut object = ObjectWriter::with_capacity(192 + error.message.len());
    object.string("message", &error.message);
    object.string("type", error.shown_kind());
    match &error.param {
        Some(param) => object.string("param", param),
        None => object.raw("param", b"null"),
    }
    object.string("code", error.shown_code());
    object.finish()
}

/// Azure's codes are its own words or the status in digits; ours stays readable inside.
fn azure(error: &ApiError) -> Vec<u8> {
    let status = error.status().to_string();
    let code = match (error.code, error.status()) {
        (Code::ModelNotFound, 404) => "DeploymentNotFound",
        (_, 400 | 422) => "BadRequest",
        (_, 500) => "InternalServerError",
        (_, 503) => "ServiceUnavailable",
        (_, 408) => "Timeout",
        _ => &status,
    };
    let mut inner = ObjectWriter::with_capacity(64);
    inner.string("code", error.shown_code());
    let mut object = ObjectWriter::with_capacity(256 + error.message.len());
    object.string("code", code);
    object.string("message", &error.message);
    object.string("type", error.shown_kind());
    match &error.param {
        Some(param) => object.string("param", param),
        None => object.raw("param", b"null"),
    }
    object.raw("innererror", &inner.finish());
    object.finish()
}

/// TEI's vocabulary is short: five kinds for everything.
fn tei_type(error: &ApiError) -> &'static str {
    match error.status() {
        429 => "Overloaded",
        503 => "Unhealthy",
        400..=499 => "Validation",
        _ => "Backend",
    }
}

const fn anthropic_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        409 => "conflict_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        504 => "timeout_error",
        503 | 529 => "overloaded_error",
        _ => "api_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ProviderWord;

    #[track_caller]
    fn check(dialect: ClientDialect, error: &ApiError, body: &str) {
        let (content_type, made) = render_error(dialect, error, ErrorIds { request: Some("r1"), trace: None });
        assert_eq!(content_type, "application/json");
        assert_eq!(std::str::from_utf8(&made).expect("UTF-8"), body);
        serde_json::from_slice::<serde_json::Value>(&made).expect("valid JSON");
    }

    #[test]
    fn each_dialect_has_its_own_shape() {
        let error = ApiError::new(Code::QueueFull, "the \"queue\" is full");
        let words = r#"the \"queue\" is full"#;
        let openai = r#""type":"rate_limit_error","param":null,"code":"queue_full"},"request_id":"r1"}"#;
        check(ClientDialect::OpenAi, &error, &format!(r#"{{"error":{{"message":"{words}",{openai}"#));
        let azure = r#""type":"rate_limit_error","param":null,"innererror":{"code":"queue_full"}}}"#;
        check(ClientDialect::Azure, &error, &format!(r#"{{"error":{{"code":"429","message":"{words}",{azure}"#));
        let cohere = format!(r#"{{"id":"r1","message":"{words}","code":"queue_full"}}"#);
        check(ClientDialect::CohereV1, &error, &cohere);
        check(ClientDialect::CohereV2, &error, &cohere);
        let detail = format!(r#"{{"detail":"{words}","code":"queue_full"}}"#);
        check(ClientDialect::Voyage, &error, &detail);
        check(ClientDialect::Jina, &error, &detail);
        let tei = format!(r#"{{"error":"{words}","error_type":"Overloaded","code":"queue_full"}}"#);
        check(ClientDialect::Tei, &error, &tei);
        let tei = format!(r#"{{"message":"{words}","code":429,"type":"Overloaded"}}"#);
        check(ClientDialect::TeiOpenAi, &error, &tei);
        let ollama = format!(r#"{{"error":"{words}","code":"queue_full"}}"#);
        check(ClientDialect::Ollama, &error, &ollama);
        check(ClientDialect::OllamaLegacy, &error, &ollama);
        let inner = format!(r#"{{"type":"rate_limit_error","message":"{words}","code":"queue_full"}}"#);
        let anthropic = format!(r#"{{"type":"error","error":{inner},"request_id":"r1"}}"#);
        check(ClientDialect::Anthropic, &error, &anthropic);
    }

    #[test]
    fn the_trace_is_named_where_there_is_room() {
        let ids = ErrorIds { request: Some("r1"), trace: Some(TraceId(10)) };
        for dialect in [ClientDialect::OpenAi, ClientDialect::Anthropic] {
            let (_, body) = render_error(dialect, &ApiError::new(Code::QueueFull, "full"), ids);
            let body: serde_json::Value = serde_json::from_slice(&body).expect("valid JSON");
            assert_eq!(body["trace_id"], "0000000000000000000000000000000a");
        }
    }

    #[test]
    fn the_field_and_the_providers_own_code_are_kept() {
        let mut error = ApiError::new(Code::UpstreamError, "too long").param("input");
        error.provider = Some(Box::new(ProviderWord { status: 400, code: Some("context_length".into()), kind: None }));
        let (_, body) = render_error(ClientDialect::OpenAi, &error, ErrorIds::default());
        let expected =
            r#"{"error":{"message":"too long","type":"server_error","param":"input","code":"context_length"}}"#;
        assert_eq!(std::str::from_utf8(&body).expect("UTF-8"), expected);
    }

    #[test]
    fn an_unknown_model_is_a_bad_request_to_voyage_only() {
        let error = ApiError::new(Code::ModelNotFound, "no such model");
        assert_eq!(status(ClientDialect::Voyage, &error), 400);
        assert_eq!(status(ClientDialect::OpenAi, &error), 404);
        let (_, body) = render_error(ClientDialect::Azure, &error, ErrorIds::default());
        assert!(body.starts_with(br#"{"error":{"code":"DeploymentNotFound""#));
        let route = ApiError::new(Code::RouteNotFound, "no such route");
        assert_eq!(status(ClientDialect::Voyage, &route), 404);
    }
}
