//! What a provider says no with, and what the client reads of it.

use loadtest::provider::{Effect, Provider, Script};
use serde_json::json;

use super::before;
use super::faces::Face;
use crate::support::assert_signatures;
use crate::support::gateway::Answer;

/// What a client reads of a provider's refusal.
struct Expected {
    status: u16,
    kind: &'static str,
    code: &'static str,
    /// Words of the provider that must be kept.
    words: &'static str,
}

async fn refused_with(effect: Effect) -> (Answer, Provider, crate::support::Gateway) {
    refused_by(Face::OpenAi, effect).await
}

async fn refused_by(face: Face, effect: Effect) -> (Answer, Provider, crate::support::Gateway) {
    let provider = Provider::start(Script::new().always(effect));
    let gateway = before(&provider, "[retry]\nmax_attempts = 2\nbase_ms = 1\n");
    let answer = face.embed(&gateway, json!("alpha")).await;
    (answer, provider, gateway)
}

#[track_caller]
fn check(answer: &Answer, expected: &Expected) {
    let body = answer.json();
    let error = &body["error"];
    assert_eq!(answer.status, expected.status, "{}", answer.text);
    assert_eq!((&error["type"], &error["code"]), (&json!(expected.kind), &json!(expected.code)), "{}", answer.text);
    let message = error["message"].as_str().expect("a message");
    assert!(message.contains(expected.words), "{:?} in {message}", expected.words);
    assert!(error.get("param").is_some(), "{}", answer.text);
    assert!(!message.contains("upstream-secret-one") && !message.contains("127.0.0.1"), "{message}");
    assert_eq!(body["request_id"], answer.header("x-request-id"));
}

#[tokio::test]
async fn rg_5fg5_an_error_keeps_its_class_and_words() {
    const REQUEST: &str = "invalid_request_error";
    let openai = |message: &str, kind: &str, code: &str| {
        json!({ "error": { "message": message, "type": kind, "param": null, "code": code } }).to_string()
    };
    let quota = openai("You exceeded your current quota", "insufficient_quota", "insufficient_quota");
    let model = openai("The model `emb-a` does not exist", REQUEST, "model_not_found");
    let list = r#"{"detail":[{"loc":["body","input"],"msg":"ensure this value is short","type":"value_error"}]}"#;
    let page = "<html><head><title>503 Service Unavailable</title></head><body>nginx</body></html>";
    let table = [
        (
            Effect::answer(429, &quota),
            Expected {
                status: 429,
                kind: "insufficient_quota",
                code: "insufficient_quota",
                words: "exceeded your current quota",
            },
        ),
        (
            Effect::answer(400, r#"{"detail":"too many inputs"}"#),
            Expected { status: 400, kind: REQUEST, code: "invalid_input", words: "too many inputs" },
        ),
        (
            Effect::answer(400, r#"{"message":"x is not allowed"}"#),
            Expected { status: 400, kind: REQUEST, code: "invalid_input", words: "x is not allowed" },
        ),
        (
            Effect::answer(404, &model),
            Expected { status: 404, kind: REQUEST, code: "model_not_found", words: "does not exist" },
        ),
        (
            Effect::answer(413, r#"{"error":{"message":"far too large","type":"payload_too_large"}}"#),
            Expected { status: 413, kind: "payload_too_large", code: "body_too_large", words: "far too large" },
        ),
        (
            Effect::answer(422, list),
            Expected { status: 422, kind: REQUEST, code: "invalid_input", words: "ensure this value is short" },
        ),
        (
            Effect::answer(503, page).content_type("text/html"),
            Expected { status: 502, kind: "server_error", code: "upstream_error", words: "503 Service Unavailable" },
        ),
        (Effect::answer(400, ""), Expected { status: 400, kind: REQUEST, code: "invalid_input", words: "400" }),
    ];
    for (effect, expected, face) in
        table.iter().flat_map(|(effect, expected)| Face::ALL.map(|face| (effect.clone(), expected, face)))
    {
        let (answer, provider, gateway) = refused_by(face, effect).await;
        if face == Face::OpenAi {
            check(&answer, expected);
        } else {
            // Voyage's SDK takes a 404 for a fault of its own; its provider says 400.
            let status = if (face, expected.status) == (Face::Voyage, 404) { 400 } else { expected.status };
            assert_eq!((answer.status, answer.error_code().as_str()), (status, expected.code), "{face:?}");
            assert!(answer.text.contains(expected.words), "{face:?}: {}", answer.text);
        }
        let hopeless = matches!(expected.status, 400 | 404 | 413 | 422);
        if hopeless {
            assert_eq!(provider.call_count(), 1, "a retry cannot help: {}", answer.text);
        }
        let failed = gateway.usage();
        assert_eq!((failed.len(), &failed[0]["status"]), (1, &json!(expected.status)), "{face:?}");
        assert_eq!(gateway.tenant("t1").await["held"], "0", "nothing stays held");
    }
}

#[tokio::test]
async fn rg_5fg5_the_gateways_own_key_is_not_the_clients() {
    for (status, body) in [
        (401, r#"{"error":{"message":"Incorrect API key provided: sk-abcdefghijklmnop","code":"invalid_api_key"}}"#),
        (403, r#"{"message":"forbidden for key sk-abcdefghijklmnop"}"#),
    ] {
        let (answer, _provider, gateway) = refused_with(Effect::answer(status, body)).await;
        let expected = Expected { status: 502, kind: "server_error", code: "upstream_auth", words: "operator" };
        check(&answer, &expected);
        assert!(!answer.text.contains("invalid_api_key") && !answer.text.contains("sk-abc"), "{}", answer.text);
        let alarm = gateway.metric("vectorgate_upstream_keys_parked_total{upstream=\"one\"}").await;
        assert!(alarm >= 1.0, "the operator is told");
        assert!(gateway.log().contains("parked"), "{}", gateway.log());
        assert!(!gateway.log().contains("sk-abcdef") && !gateway.log().contains("upstream-secret"));
        let next = gateway.embed(json!("beta")).await;
        check(&next, &expected);
    }
}

#[tokio::test]
async fn rg_5fg5_an_empty_account_at_the_provider_is_a_limit_not_the_clients_bill() {
    let quota = r#"{"error":{"message":"You exceeded your current quota","code":"insufficient_quota"}}"#;
    let credit = r#"{"message":"Insufficient balance","code":"insufficient_balance"}"#;
    for (status, body) in [(429, quota), (402, r#"{"detail":"Payment required: add credit"}"#), (403, credit)] {
        let (answer, provider, gateway) = refused_with(Effect::answer(status, body)).await;
        assert_eq!(answer.status, 429, "{}", answer.text);
        assert!(!matches!(answer.error_code().as_str(), "budget_exhausted" | "invalid_api_key"), "{}", answer.text);
        assert_eq!(answer.header("x-should-retry"), "false", "nobody fills an account within a retry");
        assert_ne!(answer.header("retry-after"), "");
        // Asked again, the gateway does not call: it knows.
        let next = gateway.embed(json!("beta")).await;
        assert_eq!((next.status, next.error_code().as_str()), (429, "upstream_rate_limited"), "{}", next.text);
        assert_eq!(provider.call_count(), 1);
        // An operator who has paid says so.
        provider.set_script(Script::new());
        gateway.admin_post("/admin/upstreams/one/resume", json!({})).await.expect(200);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        loop {
            let answer = gateway.embed(json!("gamma")).await;
            if answer.status == 200 {
                assert_signatures(&answer.json(), "A", &["gamma"]);
                break;
            }
            assert!(std::time::Instant::now() < deadline, "{}", answer.text);
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }
}
