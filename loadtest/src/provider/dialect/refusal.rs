//! Errors in each provider's own words.

use serde_json::json;

use super::{Dialect, Op, Route};
use crate::provider::limits::{Excess, Refusals, Unit};
use crate::provider::script::Script;
use crate::provider::wire::Answer;

/// What is wrong with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::provider) enum Kind {
    BadJson,
    BadRequest,
    /// Nothing to embed, or an empty text.
    Empty,
    /// One text is longer than the model takes.
    TooLong,
    /// The call as a whole is larger than one call may be.
    TooMuch(Unit),
    NoKey,
    NoModel,
    NoRoute,
    RequestLimit,
    TokenLimit,
    /// No free place for all texts of the call.
    Overloaded,
    /// Whatever a script orders; the number is the status.
    Forced(u16),
}

/// A refusal before it is written in a dialect.
#[derive(Clone, Debug)]
pub(in crate::provider) struct Refusal {
    pub kind: Kind,
    pub message: String,
    pub param: Option<String>,
}

impl Refusal {
    pub fn new(kind: Kind, message: &str) -> Self {
        Self { kind, message: message.to_owned(), param: None }
    }

    pub fn param(mut self, name: &str) -> Self {
        self.param = Some(name.to_owned());
        self
    }

    /// The call exceeds a limit on whole calls.
    pub fn excess(dialect: Dialect, excess: Excess) -> Self {
        let Excess { unit, given, limit } = excess;
        let message = match (dialect, unit) {
            (Dialect::Tei, Unit::Items) => format!("batch size {given} > maximum allowed batch size {limit}"),
            (Dialect::CohereV1 | Dialect::CohereV2, Unit::Items) => {
                format!("invalid request: {given} texts given, at most {limit} allowed")
            }
            _ => format!("{given} {} in one request, at most {limit} allowed", unit.name()),
        };
        Self::new(Kind::TooMuch(unit), &message)
    }
}

/// A refusal as an answer of the dialect.
pub(in crate::provider) fn answer(route: Route, refusal: &Refusal, script: &Script) -> Answer {
    let (status, kind) = (status(route, refusal.kind, script), refusal.kind);
    let (message, param) = (&refusal.message, &refusal.param);
    let body = match (route.dialect, route.op) {
        (Dialect::Tei, _) if kind == Kind::NoKey => return Answer::new(401, None, ""),
        (Dialect::Tei, _) if matches!(kind, Kind::BadJson | Kind::BadRequest | Kind::NoRoute) => {
            // What the web framework refuses never reaches TEI's own error form.
            return Answer::new(status, Some("text/plain; charset=utf-8"), message.clone());
        }
        (Dialect::Tei, Op::OpenaiEmbed) => json!({"message": message, "code": status, "type": tei_type(kind)}),
        (Dialect::Tei, _) => json!({"error": message, "error_type": tei_type(kind)}),
        (Dialect::Ollama, Op::OpenaiEmbed) => {
            let kind = if status == 404 {
                "not_found_error"
            } else if status < 500 {
                "invalid_request_error"
            } else {
                "api_error"
            };
            json!({"error": {"message": message, "type": kind, "param": null, "code": null}})
        }
        (Dialect::Ollama, _) => json!({"error": message}),
        (Dialect::CohereV1 | Dialect::CohereV2, _) => json!({"id": "call-1", "message": message}),
        (Dialect::Voyage | Dialect::Jina, _) => json!({"detail": message}),
        (Dialect::Mistral, _) if status == 422 => {
            json!({"detail": [{"loc": ["body", param], "msg": message, "type": "value_error"}]})
        }
        (Dialect::Mistral, _) => {
            json!({"object": "error", "message": message, "type": "invalid_request_error", "param": param, "code": null})
        }
        (Dialect::Vllm, _) if kind == Kind::NoKey => json!({"error": "Unauthorized"}),
        (Dialect::Vllm, _) => {
            json!({"error": {"message": message, "type": "BadRequestError", "param": param, "code": status}})
        }
        (Dialect::Azure, _) => {
            let code = if kind == Kind::NoModel { "DeploymentNotFound".to_owned() } else { status.to_string() };
            json!({"error": {"code": code, "message": message}})
        }
        (Dialect::Anthropic, _) => json!({"type": "error", "request_id": "req_1",
            "error": {"type": anthropic_type(status), "message": message}}),
        (Dialect::Openai, _) => {
            let (kind, code) = openai_type(kind, status);
            json!({"error": {"message": message, "type": kind, "param": param, "code": code}})
        }
    };
    Answer::json(status, body.to_string())
}

/// A call that is too large, in the words a script names.
pub(in crate::provider) fn too_much(route: Route, excess: Excess, script: &Script) -> Answer {
    let limit = excess.limit;
    match script.limits.words {
        Refusals::Native => answer(route, &Refusal::excess(route.dialect, excess), script),
        Refusals::Number400 => {
            let refusal = Refusal::new(Kind::Forced(400), &format!("limit is {limit}"));
            answer(route, &refusal, script)
        }
        Refusals::Plain413 => {
            let text = format!("{} > {limit} {}: payload too large", excess.given, excess.unit.name());
            Answer::new(413, Some("text/plain; charset=utf-8"), text)
        }
        Refusals::Json413 => {
            let message = format!("too many {}: {} > {limit}", excess.unit.name(), excess.given);
            Answer::json(413, json!({"error": {"message": message, "type": "payload_too_large"}}).to_string())
        }
        Refusals::List422 => {
            let message = format!("ensure this value has at most {limit} {}", excess.unit.name());
            Answer::json(422, json!({"detail": [{"loc": ["body", "input"], "msg": message}]}).to_string())
        }
        Refusals::Empty413 => Answer::new(413, None, ""),
    }
}

fn status(route: Route, kind: Kind, script: &Script) -> u16 {
    let dialect = route.dialect;
    // Validation errors moved from 413 to 422 in TEI 1.9.
    let tei = || if tei_before_1_9(&script.tei.version) { 413 } else { 422 };
    match kind {
        Kind::Forced(status) => status,
        Kind::BadJson => 400,
        Kind::BadRequest if dialect == Dialect::Tei => 422,
        Kind::BadRequest if matches!(dialect, Dialect::Jina | Dialect::Mistral) => 422,
        Kind::BadRequest => 400,
        Kind::Empty => 400,
        Kind::TooMuch(Unit::Bytes) => 413,
        Kind::TooLong | Kind::TooMuch(_) if dialect == Dialect::Tei => tei(),
        Kind::TooLong | Kind::TooMuch(_) => 400,
        Kind::NoKey => 401,
        Kind::NoModel if matches!(dialect, Dialect::Voyage | Dialect::Jina) => 400,
        Kind::NoModel | Kind::NoRoute => 404,
        Kind::RequestLimit | Kind::TokenLimit => 429,
        Kind::Overloaded if dialect == Dialect::Tei => 429,
        Kind::Overloaded if dialect == Dialect::Anthropic => 529,
        Kind::Overloaded => 503,
    }
}

fn tei_before_1_9(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) < (1, 9)
}

fn tei_type(kind: Kind) -> &'static str {
    match kind {
        Kind::Empty => "Empty",
        Kind::Overloaded | Kind::RequestLimit | Kind::TokenLimit | Kind::Forced(429) => "Overloaded",
        Kind::Forced(424) => "Backend",
        Kind::Forced(503) => "Unhealthy",
        _ => "Validation",
    }
}

fn anthropic_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        409 => "conflict_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        504 => "timeout_error",
        529 => "overloaded_error",
        status if status >= 500 => "api_error",
        _ => "invalid_request_error",
    }
}

fn openai_type(kind: Kind, status: u16) -> (&'static str, Option<&'static str>) {
    match kind {
        Kind::RequestLimit => ("requests", Some("rate_limit_exceeded")),
        Kind::TokenLimit | Kind::Forced(429) => ("tokens", Some("rate_limit_exceeded")),
        Kind::TooMuch(Unit::Tokens) => ("max_tokens_per_request", Some("max_tokens_per_request")),
        Kind::NoKey | Kind::Forced(401) => ("invalid_request_error", Some("invalid_api_key")),
        Kind::NoModel => ("invalid_request_error", Some("model_not_found")),
        _ if status >= 500 => ("server_error", None),
        _ => ("invalid_request_error", None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::dialect::route;
    use crate::provider::wire::Body;

    #[track_caller]
    fn check(target: &str, kind: Kind, status: u16, part: &str) {
        let answer = answer(route("POST", target, None), &Refusal::new(kind, "why"), &Script::default());
        let Body::Whole(body) = &answer.body else { panic!("a whole body") };
        let body = String::from_utf8_lossy(body);
        assert_eq!(answer.status, status, "{body}");
        assert!(body.contains(part), "{body} has {part}");
    }

    #[test]
    fn every_dialect_refuses_in_its_own_form() {
        check("/v1/embeddings", Kind::NoKey, 401, r#""code":"invalid_api_key""#);
        check("/v1/embeddings", Kind::TokenLimit, 429, r#""type":"tokens""#);
        check("/v1/embeddings", Kind::TooMuch(Unit::Tokens), 400, "max_tokens_per_request");
        check("/v1/embeddings", Kind::Forced(500), 500, "server_error");
        check("/openai/v1/embeddings", Kind::TokenLimit, 429, r#"{"error":{"code":"429","message":"why"}}"#);
        check("/v1/embed", Kind::BadRequest, 400, r#""message":"why""#);
        check("/voyage/v1/embeddings", Kind::TokenLimit, 429, r#"{"detail":"why"}"#);
        check("/jina/v1/embeddings", Kind::BadRequest, 422, r#"{"detail":"why"}"#);
        check("/embed", Kind::TooMuch(Unit::Items), 422, r#""error_type":"Validation""#);
        check("/embed", Kind::Overloaded, 429, r#""error_type":"Overloaded""#);
        check("/embed", Kind::NoKey, 401, "");
        check("/tei/v1/embeddings", Kind::Overloaded, 429, r#""type":"Overloaded""#);
        check("/api/embed", Kind::NoModel, 404, r#"{"error":"why"}"#);
        check("/vllm/v1/embeddings", Kind::BadRequest, 400, r#""code":400"#);
        check("/mistral/v1/embeddings", Kind::BadRequest, 422, r#""detail":[{"#);
        check("/v1/messages", Kind::Overloaded, 529, "overloaded_error");
    }

    #[test]
    fn an_older_tei_validates_with_413() {
        let mut script = Script::default();
        script.tei.version = "1.8.3".to_owned();
        let refusal = Refusal::new(Kind::TooMuch(Unit::Items), "why");
        assert_eq!(answer(route("POST", "/embed", None), &refusal, &script).status, 413);
    }

    #[test]
    fn a_script_may_choose_the_words_for_too_much() {
        let excess = Excess { unit: Unit::Items, given: 40, limit: 32 };
        let route = route("POST", "/v1/embeddings", None);
        let told = |words| {
            let mut script = Script::default();
            script.limits.words = words;
            let answer = too_much(route, excess, &script);
            let Body::Whole(body) = answer.body else { panic!("a whole body") };
            (answer.status, String::from_utf8_lossy(&body).into_owned())
        };
        assert_eq!(told(Refusals::Empty413), (413, String::new()));
        assert_eq!(told(Refusals::Plain413).0, 413);
        assert!(told(Refusals::Json413).1.contains("40 > 32"));
        assert_eq!(told(Refusals::List422).0, 422);
        let (status, text) = told(Refusals::Number400);
        assert_eq!(status, 400);
        assert!(text.contains("limit is 32") && !text.contains("40"));
    }
}
