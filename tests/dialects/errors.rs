//! Each kind of error in each client dialect: the status, and the body from which the dialect's own SDK makes its own
//! exception.

use loadtest::provider::{Effect, Fault, Provider, Script, When};
use serde_json::{Value, json};
use sha2::Digest as _;

use super::base_url;
use crate::support::Gateway;
use crate::support::gateway::Answer;

/// One client dialect: a route, and how its errors are built.
#[derive(Clone, Copy)]
struct Face {
    path: &'static str,
    /// The member that carries texts.
    field: &'static str,
    form: Form,
}

#[derive(Clone, Copy, PartialEq)]
enum Form {
    OpenAi,
    Azure,
    Message,
    Detail,
    Tei,
    TeiOpenAi,
    Ollama,
}

const FACES: [Face; 12] = [
    Face { path: "/v1/embeddings", field: "input", form: Form::OpenAi },
    Face { path: "/openai/v1/embeddings", field: "input", form: Form::OpenAi },
    Face { path: "/openai/deployments/{}/embeddings?api-version=2024-10-21", field: "input", form: Form::Azure },
    Face { path: "/v1/embed", field: "texts", form: Form::Message },
    Face { path: "/cohere/v2/embed", field: "texts", form: Form::Message },
    Face { path: "/voyage/v1/embeddings", field: "input", form: Form::Detail },
    Face { path: "/jina/v1/embeddings", field: "input", form: Form::Detail },
    Face { path: "/tei/{}/embed", field: "inputs", form: Form::Tei },
    Face { path: "/tei/{}", field: "inputs", form: Form::Tei },
    Face { path: "/tei/{}/v1/embeddings", field: "input", form: Form::TeiOpenAi },
    Face { path: "/api/embed", field: "input", form: Form::Ollama },
    Face { path: "/ollama/api/embed", field: "input", form: Form::Ollama },
];

/// The message of an error, out of where the dialect's SDK looks for it.
#[track_caller]
fn message(form: Form, answer: &Answer) -> String {
    let body = answer.json();
    assert!(answer.header("content-type").starts_with("application/json"), "{answer:?}");
    assert!(!answer.header("x-request-id").is_empty(), "{answer:?}");
    let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("no message: {body}")).to_owned();
    match form {
        Form::OpenAi => {
            let error = &body["error"];
            assert!(error["code"].is_string() && error["type"].is_string() && error.get("param").is_some(), "{body}");
            text(&error["message"])
        }
        Form::Azure => {
            assert!(body["error"]["code"].is_string(), "{body}");
            text(&body["error"]["message"])
        }
        Form::Message => text(&body["message"]),
        Form::Detail => {
            // An `error` member breaks Voyage's SDK.
            assert!(body.get("error").is_none(), "{body}");
            text(&body["detail"])
        }
        Form::Tei => {
            assert!(body["error_type"].is_string(), "{body}");
            text(&body["error"])
        }
        Form::TeiOpenAi => {
            assert_eq!(body["code"], answer.status, "{body}");
            assert!(body["type"].is_string(), "{body}");
            text(&body["message"])
        }
        Form::Ollama => text(&body["error"]),
    }
}

/// A provider with a text for each way to fail.
pub fn failing() -> Script {
    Script::new()
        .width(8)
        .rule(When::body("too-fast"), Effect::status(429).header("retry-after", "3"))
        .rule(When::body("broken"), Effect::status(500))
        .rule(When::body("locked-out"), Effect::status(401))
        .rule(When::body("never"), Effect::fault(Fault::NeverAnswer))
        .rule(When::body("unfit"), Effect::answer(422, r#"{"error":{"message":"that is unfit","code":"odd"}}"#))
        .rule(When::body("nonsense"), Effect::answer(400, r#"{"error":{"message":"that is nonsense","code":"odd"}}"#))
}

/// Keys `k1` and `poor` (without money), and a model for each way to be refused: `m` works, `secret` is not for `k1`,
/// `nowhere` has no upstream, `limited` and `parked` have one that takes the consequences of its failures alone.
pub fn config(server: &Provider, provider: &str) -> String {
    let hash = |key: &str| hex::encode(sha2::Sha256::digest(key));
    let url = base_url(server, provider);
    let price = "dimensions = 8\nprice_usd_per_million_tokens = \"1\"";
    format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nadmin_listen = \"127.0.0.1:0\"\nworkers = 2\nmax_body_bytes = 4096\n\
         [retry]\nmax_attempts = 1\n[breaker]\nmin_requests = 100000\n\
         [[models]]\nname = \"m\"\n{price}\n[[models]]\nname = \"secret\"\n{price}\n\
         [[models]]\nname = \"nowhere\"\n{price}\n[[models]]\nname = \"limited\"\n{price}\n\
         [[models]]\nname = \"parked\"\n{price}\n\
         [[upstreams]]\nid = \"u\"\nprovider = \"{provider}\"\nbase_url = \"{url}\"\ntimeout_s = 2\n\
         serves = [{{ model = \"m\" }}, {{ model = \"secret\" }}]\n\
         [[upstreams]]\nid = \"slow\"\nprovider = \"{provider}\"\nbase_url = \"{url}\"\nserves = [{{ model = \"limited\" }}]\n\
         [[upstreams]]\nid = \"shut\"\nprovider = \"{provider}\"\nbase_url = \"{url}\"\nserves = [{{ model = \"parked\" }}]\n\
         [[tenants]]\nid = \"t1\"\nkey_sha256 = [\"{}\"]\nmodels = [\"m\", \"nowhere\", \"limited\", \"parked\"]\n\
         [[tenants]]\nid = \"poor\"\nkey_sha256 = [\"{}\"]\nbudget = \"0\"\n",
        hash("k1"),
        hash("poor"),
    )
}

impl Face {
    async fn ask(self, gateway: &Gateway, key: &str, model: &str, text: Value) -> Answer {
        let body = json!({"model": model, self.field: text, "input_type": Value::Null});
        gateway.post(&self.path.replace("{}", model), key, &[], body.to_string()).await
    }

    #[track_caller]
    fn check(self, answer: &Answer, status: u16, part: &str) {
        assert_eq!(answer.status, status, "{}: {}", self.path, answer.text);
        let message = message(self.form, answer);
        assert!(message.contains(part), "{}: {message:?} lacks {part:?}", self.path);
    }
}

#[tokio::test]
async fn every_kind_of_error_in_every_dialect() {
    let server = Provider::start(failing());
    let gateway = Gateway::start(&config(&server, "openai"));
    futures_util::future::join_all(FACES.map(|face| check_every_kind(face, &gateway))).await;
}

async fn check_every_kind(face: Face, gateway: &Gateway) {
    let ask = |key: &'static str, model: &'static str, text: Value| face.ask(gateway, key, model, text);
    let good = ask("k1", "m", json!(["fine"])).await;
    assert_eq!(good.status, 200, "{}: {}", face.path, good.text);
    // The request is at fault.
    let path = face.path.replace("{}", "m");
    face.check(&ask("k1", "m", json!({"a": 1})).await, 400, face.field);
    face.check(&ask("k1", "m", json!(["a", 7.5])).await, 400, face.field);
    face.check(&gateway.post(&path, "k1", &[], "{nope").await, 400, "JSON");
    face.check(&ask("", "m", json!(["a"])).await, 401, "key");
    face.check(&ask("wrong", "m", json!(["a"])).await, 401, "key");
    face.check(&ask("k1", "secret", json!(["a"])).await, 403, "secret");
    // Voyage's SDK takes a 404 for a fault of its own; its provider answers 400.
    let unknown = if face.path.starts_with("/voyage") { 400 } else { 404 };
    face.check(&ask("k1", "none-such", json!(["a"])).await, unknown, "none-such");
    face.check(&ask("k1", "m", json!(["x".repeat(5000)])).await, 413, "4096");
    face.check(&ask("poor", "m", json!(["a"])).await, 402, "Payment Required");
    face.check(&gateway.post(&path, "k1", &[("content-type", "text/csv")], "a,b").await, 415, "text/csv");
    face.check(&ask("k1", "m", json!([format!("nonsense {}", face.path)])).await, 400, "that is nonsense");
    // The upstream is.
    let limited = ask("k1", "limited", json!([format!("too-fast {}", face.path)])).await;
    face.check(&limited, 429, "");
    assert!(limited.header("retry-after").parse::<u64>().is_ok(), "{limited:?}");
    assert_eq!(limited.header("x-retrieval-fallback"), "lexical-only");
    face.check(&ask("k1", "m", json!([format!("broken {}", face.path)])).await, 502, "");
    face.check(&ask("k1", "m", json!([format!("never {}", face.path)])).await, 504, "");
    face.check(&ask("k1", "nowhere", json!(["a"])).await, 503, "no upstream");
    face.check(&ask("k1", "parked", json!([format!("locked-out {}", face.path)])).await, 502, "key");
}

#[tokio::test]
async fn rerank_errors_are_in_the_dialect_that_the_body_shows() {
    let server = Provider::start(Script::new());
    let tables = super::one_model(&server, "cohere", "ranker", "kind = \"rerank\"");
    let gateway = super::gateway(&tables, "");
    let check = |path: &'static str, body: Value, form: Form, status: u16, part: &'static str| {
        let gateway = &gateway;
        async move {
            let answer = super::post(gateway, path, &body).await;
            assert_eq!(answer.status, status, "{path} {body}: {}", answer.text);
            let message = message(form, &answer);
            assert!(message.contains(part), "{path}: {message:?} lacks {part:?}");
        }
    };
    let cohere = json!({"model": "ranker", "query": "q", "documents": []});
    check("/v1/rerank", cohere.clone(), Form::Message, 400, "documents").await;
    check("/rerank", cohere.clone(), Form::Tei, 400, "documents").await;
    check("/v2/rerank", json!({"model": "ranker", "documents": ["a"]}), Form::Message, 400, "query").await;
    let unknown = json!({"model": "x", "query": "q", "documents": ["a"]});
    check("/v1/rerank", unknown.clone(), Form::Message, 404, "\"x\"").await;
    check("/rerank", unknown.clone(), Form::Message, 404, "\"x\"").await;
    check("/voyage/v1/rerank", unknown.clone(), Form::Detail, 400, "\"x\"").await;
    check("/jina/v1/rerank", unknown, Form::Detail, 404, "\"x\"").await;
    let voyage = json!({"model": "ranker", "query": "q", "documents": ["a"], "top_k": 0});
    check("/v1/rerank", voyage, Form::Detail, 400, "top_k").await;
    let tei = json!({"query": "", "texts": ["a"]});
    check("/rerank", tei.clone(), Form::Tei, 400, "query").await;
    check("/tei/ranker/rerank", tei, Form::Tei, 400, "query").await;
    let embeds = json!({"model": "ranker", "input": "a"});
    check("/v1/embeddings", embeds, Form::OpenAi, 400, "/v1/rerank").await;
    // A field that the upstream has no word for is named, never dropped in silence.
    let raw = json!({"query": "q", "texts": ["a"], "raw_scores": true});
    check("/rerank", raw, Form::Tei, 400, "raw_scores").await;
    assert_eq!(server.call_count(), 0);
}
