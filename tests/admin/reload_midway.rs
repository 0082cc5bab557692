//! A reload in the middle of a request: the request ends under the configuration that it began with.

use std::sync::Arc;

use loadtest::provider::{Delay, Provider, Script};
use serde_json::json;
use sha2::Digest as _;

use super::{config_at, until};
use crate::support::gateway::KEY;
use crate::support::{Gateway, assert_signatures};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rg_g9xw_a_request_under_way_finishes_under_its_own_configuration() {
    let slow = |space: &str| {
        let mut script = Script::new().space(space).width(8);
        script.delay = Delay::FixedMs(150.0);
        Provider::start(script)
    };
    let (before, after) = (slow("A"), slow("B"));
    let text = config_at(&before.base_url());
    let gateway = Arc::new(Gateway::start(&text.replace("[money]", "[quota]\nbatch_size = 10\n[money]")));
    let inputs: Vec<String> = (0..200).map(|n| format!("part {n}")).collect();
    let sent = tokio::spawn({
        let (gateway, inputs) = (Arc::clone(&gateway), inputs.clone());
        async move { gateway.embed(json!(inputs)).await }
    });
    before.until_calls(2).await;

    // The model is served from another space by another host, the tenant's key and the old upstream are gone.
    let hash = |key: &str| hex::encode(sha2::Sha256::digest(key.as_bytes()));
    let other = config_at(&after.base_url())
        .replace("id = \"one\"", "id = \"two\"")
        .replace("space = \"A\"", "space = \"B\"")
        .replace(&hash(KEY), &hash("t1's new key"));
    gateway.configure(&other);
    gateway.admin_post("/admin/reload", json!({})).await.expect(200);
    assert_eq!(gateway.embed(json!("new")).await.status, 401, "new requests see the new configuration");
    let new = json!({ "model": "emb-a", "input": "new" }).to_string();
    let answer = gateway.post("/v1/embeddings", "t1's new key", &[], new).await;
    assert_signatures(&answer.expect(200), "B", &["new"]);
    assert_eq!(answer.header("x-gateway-upstream"), "two");

    let answer = sent.await.expect("sent");
    let texts: Vec<&str> = inputs.iter().map(String::as_str).collect();
    assert_signatures(&answer.expect(200), "A", &texts);
    assert_eq!(answer.header("x-gateway-upstream"), "one");
    assert_eq!(before.call_count(), 20);
    let tenant = gateway.tenant("t1").await;
    assert_eq!((&tenant["held"], &tenant["spent"]), (&json!("0"), &json!("0.000401")), "{tenant}");
    until("the old upstream's actor ends", async || gateway.log().contains("the last call of an upstream")).await;
}
