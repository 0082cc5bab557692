//! Names and answers that try to steer the gateway elsewhere: where it calls, what it answers with, what its log says.

use std::collections::HashSet;

use loadtest::provider::{Effect, Provider, Script, When};
use serde_json::{Value, json};

use super::{config, provider};
use crate::support::gateway::{KEY, KEY_TWO};
use crate::support::{Gateway, Raw};

/// Names that mean something to URLs, headers, logs, pages and shells.
const NAMES: [&str; 14] = [
    "../../admin/tenants",
    "..%2f..%2fadmin",
    "http://127.0.0.1:1/",
    "//127.0.0.1:1/v1",
    "emb-a@127.0.0.1:1",
    "emb-a?x=1",
    "emb-a#x",
    "emb-a\r\nX-Injected: yes",
    "emb-a\nX-Injected: yes",
    "emb-a\u{0}",
    "\u{1b}[2Jemb-a",
    "{\"level\":\"ERROR\"}",
    "<img src=x onerror=alert(1)>",
    "$(touch injected)",
];

#[tokio::test]
async fn no_name_of_a_model_leads_anywhere_else() {
    let provider = provider();
    let gateway = Gateway::start(&config(&provider, ""));
    gateway.embed(json!("alpha")).await.expect(200);
    let before: Vec<String> = provider.calls().iter().map(|call| call.path.clone()).collect();
    for name in NAMES {
        let body = json!({ "model": name, "input": "beta" });
        let answer = gateway.embed_with(body.clone()).await;
        assert_eq!((answer.status, answer.error_code().as_str()), (404, "model_not_found"), "{name:?}");
        assert!(!answer.headers.contains_key("x-injected"), "{name:?}");
        // As the name of a deployment, in the path, and as a collection.
        let escaped: String = name.bytes().map(|byte| format!("%{byte:02X}")).collect();
        for path in [format!("/openai/deployments/{escaped}/embeddings"), format!("/tei/{escaped}/embed")] {
            let answer = gateway.post(&path, KEY, &[], body.to_string()).await;
            assert!(matches!(answer.status, 400 | 404), "{path}: {} {}", answer.status, answer.text);
            assert!(!answer.headers.contains_key("x-injected"), "{path}");
        }
        if name.bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
            let plain = json!({ "model": "emb-a", "input": "alpha" }).to_string();
            let answer = gateway.post("/v1/embeddings", KEY, &[("x-collection", name)], plain).await;
            answer.expect(200);
        }
    }
    let after: HashSet<String> = provider.calls().iter().map(|call| call.path.clone()).collect();
    assert_eq!(after, before.into_iter().collect(), "only ever the one path");
    assert!(!gateway.folder().join("injected").exists());
}

#[tokio::test]
async fn no_redirection_of_a_provider_is_followed() {
    let trap = provider();
    let place = format!("{}/v1/embeddings", trap.base_url());
    let script = [301, 302, 303, 307, 308].into_iter().fold(Script::new().space("A").width(8), |script, status| {
        let moved = Effect::answer(status, "{}").header("location", &place);
        script.rule(When::body(&format!("moved {status}")), moved)
    });
    let provider = Provider::start(script);
    let gateway = Gateway::start(&config(&provider, "[retry]\nmax_attempts = 1\n"));
    for status in [301, 302, 303, 307, 308] {
        let answer = gateway.embed(json!(format!("moved {status}"))).await;
        assert_eq!(answer.status, 502, "{status}: {}", answer.text);
        assert!(!answer.text.contains(&place) && !answer.headers.contains_key("location"), "{status}: {}", answer.text);
    }
    assert_eq!(trap.call_count(), 0, "the key never went there");
}

/// Lines of a log in JSON, each of which must be one object.
#[track_caller]
fn objects(log: &str) -> Vec<Value> {
    log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}"))).collect()
}

#[tokio::test]
async fn no_name_makes_a_line_of_the_log() {
    for format in ["json", "pretty"] {
        let forged = "{\"level\":\"ERROR\",\"message\":\"forged\"}";
        let script = Script::new().space("A").width(8);
        let words = format!("no\n{forged}\n\u{1b}[31mred");
        let refusal = json!({ "error": { "message": words, "type": words, "code": words } }).to_string();
        let provider = Provider::start(script.rule(When::body("refused"), Effect::answer(400, &refusal)));
        let environment = [("VECTORGATE_LOG_FORMAT", format), ("VECTORGATE_LOG", "debug")];
        let gateway = Gateway::start_with(&config(&provider, ""), &environment);
        for name in NAMES.iter().chain([&format!("x\n{forged}").as_str()]) {
            gateway.embed_with(json!({ "model": name, "input": "beta" })).await;
            gateway.admin_post("/admin/tenants", json!({ "id": format!("{name}\n{forged}") })).await;
        }
        gateway.embed(json!("refused")).await;
        let mut client = Raw::connect(&gateway.url);
        client.request("GET /v1/\u{9b}31m", &["X-Request-Id: a\u{9b}31mb"], "");
        drop(client.maybe_answer());
        let log = gateway.log();
        if format == "json" {
            assert!(objects(&log).iter().all(|line| line["message"] != "forged"), "{log}");
        }
        assert!(log.lines().all(|line| !line.starts_with(forged)), "{format}: {log}");
        assert!(!log.contains("\u{1b}[31mred") && !log.contains("\u{1b}[2J") && !log.contains('\u{9b}'), "{log:?}");
    }
}

#[tokio::test]
async fn with_a_cache_of_its_own_no_tenant_learns_what_another_asked() {
    let provider = provider();
    let gateway = Gateway::start(&config(&provider, "[cache]\nscope = \"tenant\"\n"));
    let body = json!({ "model": "emb-a", "input": "known" }).to_string();
    let mut answers = Vec::new();
    for key in [KEY, KEY, KEY_TWO, KEY_TWO] {
        let answer = gateway.post("/v1/embeddings", key, &[], body.clone()).await;
        answer.expect(200);
        answers.push(answer.header("x-cache").to_owned());
    }
    assert_eq!(answers, ["MISS", "HIT", "MISS", "HIT"]);
    assert_eq!(provider.call_count(), 2, "the second tenant's text is asked for again");
}
