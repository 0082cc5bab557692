//! The document of routes against the running gateway.

use std::collections::BTreeSet;

use loadtest::provider::{Provider, Script};
use reqwest::Method;
use serde_json::Value;

use crate::support::gateway::KEY;
use crate::support::{Gateway, embedding_config};

#[tokio::test]
async fn every_route_is_there_and_answers_only_what_is_documented() {
    let provider = Provider::start(Script::new().space("A").width(8));
    let url = format!("{}/v1", provider.base_url());
    let gateway = Gateway::start(&embedding_config(&[("one", "openai", &url)], "dimensions = 8", "", ""));
    let document = gateway.admin_get("/openapi.json").await.expect(200);
    let client = reqwest::Client::new();
    let same: Value = client
        .get(format!("{}/openapi.json", gateway.url))
        .send()
        .await
        .expect("an answer")
        .json()
        .await
        .expect("JSON");
    assert_eq!(document, same, "both listeners have it");

    let mut asked = BTreeSet::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("an item") {
            let admin = operation["tags"][0] == "admin";
            let base = if admin { &gateway.admin } else { &gateway.url };
            let filled = path
                .replace("{model}", "emb-a")
                .replace("{id}", if path.contains("upstreams") { "one" } else { "t1" })
                .replace("{order}", "resume")
                .replace("{fingerprint}", "0123456789abcdef");
            let verb = Method::from_bytes(method.to_uppercase().as_bytes()).expect("a method");
            for body in ["", "{", "{}", "{\"model\":\"emb-a\"}"] {
                let mut request = client.request(verb.clone(), format!("{base}{filled}"));
                if !admin {
                    request = request.bearer_auth(KEY);
                }
                if verb == Method::POST {
                    request = request.header("content-type", "application/json").body(body);
                }
                let answer = request.send().await.expect("an answer");
                let status = answer.status().as_u16();
                let text = answer.text().await.unwrap_or_default();
                let what = format!("{method} {filled} with {body:?}: {status} {text}");
                let responses = operation["responses"].as_object().expect("responses");
                let hundred = format!("{}XX", status / 100);
                assert!(responses.contains_key(&status.to_string()) || responses.contains_key(&hundred), "{what}");
                assert!(status < 500 && status != 405 && !text.contains("no such route"), "{what}");
            }
            asked.insert(format!("{method} {path}"));
        }
    }
    for known in ["post /v1/embeddings", "post /tei/{model}/rerank", "get /v1/models", "get /metrics"] {
        assert!(asked.contains(known), "{known} of {asked:?}");
    }
    let page = gateway.admin_get("/dashboard/api").await;
    assert_eq!(page.status, 200);
    assert!(page.header("content-security-policy").contains("default-src 'none'"));
}
