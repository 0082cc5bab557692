//! One line a request, with what on-call looks for and nothing that must not be written down.

use loadtest::provider::{Effect, Provider, Script, When};
use serde_json::{Value, json};

use super::until;
use crate::support::gateway::KEY;
use crate::support::{Gateway, embedding_config};

fn start(provider: &Provider, environment: &[(&str, &str)]) -> Gateway {
    let url = format!("{}/v1", provider.base_url());
    let model = "dimensions = 8\nprice_usd_per_million_tokens = \"0.02\"";
    Gateway::start_with(&embedding_config(&[("one", "openai", &url)], model, "budget = \"1.00\"", ""), environment)
}

/// The log's request lines.
fn lines(gateway: &Gateway) -> Vec<Value> {
    let log = gateway.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["target"] == "vectorgate::request").collect()
}

#[tokio::test]
async fn every_request_has_one_line_and_no_line_has_a_text_or_a_key() {
    let script = Script::new().space("A").width(8);
    let provider = Provider::start(script.rule(When::body("poison"), Effect::status(500)));
    let gateway = start(&provider, &[]);
    let miss = gateway.embed(json!("a-secret-text")).await;
    let cost = miss.header("x-gateway-cost-eur").to_owned();
    miss.expect(200);
    gateway.embed(json!("a-secret-text")).await.expect(200);
    let failed = gateway.embed(json!("poison")).await;
    failed.expect(502);
    let refused = gateway.post("/v1/embeddings", "a-wrong-key", &[], "{\"input\":\"a-secret-text\"}").await;
    refused.expect(401);
    let unread = gateway.post("/v1/embeddings", KEY, &[], "{\"input\":\"a-secret-text").await;
    unread.expect(400);
    until("five lines", || (lines(&gateway).len() == 5).then_some(()));

    let all = lines(&gateway);
    let by_id = |id: &str| all.iter().find(|line| line["request_id"] == id).unwrap_or_else(|| panic!("{id}: {all:?}"));
    let line = by_id(miss.header("x-request-id"));
    for (name, value) in [
        ("level", json!("INFO")),
        ("operation", json!("embeddings")),
        ("trace_id", json!(miss.header("x-trace-id"))),
        ("tenant", json!("t1")),
        ("class", json!("interactive-search")),
        ("model", json!("emb-a")),
        ("status", json!(200)),
        ("cost", json!(cost)),
        ("upstream", json!("one")),
        ("attempts", json!(1)),
        ("items", json!(1)),
        ("cached_items", json!(0)),
    ] {
        assert_eq!(line[name], value, "{name}: {line}");
    }
    assert!(line["latency_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{line}");
    let line = by_id(failed.header("x-request-id"));
    assert_eq!((&line["status"], &line["error"]), (&json!(502), &json!("upstream_error")));
    let line = by_id(refused.header("x-request-id"));
    assert_eq!(
        (&line["status"], &line["error"], &line["tenant"]),
        (&json!(401), &json!("invalid_api_key"), &Value::Null)
    );
    assert_eq!(by_id(unread.header("x-request-id"))["status"], 400);
    let log = gateway.log();
    for forbidden in ["a-secret-text", "poison", KEY, "a-wrong-key", "upstream-secret-one"] {
        assert!(!log.contains(forbidden), "{forbidden} in the log");
    }
}

#[tokio::test]
async fn request_lines_can_be_switched_off_alone() {
    let provider = Provider::start(Script::new().space("A").width(8));
    let gateway = start(&provider, &[("VECTORGATE_LOG", "info,vectorgate::request=off")]);
    gateway.embed(json!("alpha")).await.expect(200);
    gateway.admin_post("/admin/upstreams/one/drain", json!({})).await.expect(200);
    until("the action's line", || gateway.log().contains("admin action").then_some(()));
    assert!(lines(&gateway).is_empty());
}
