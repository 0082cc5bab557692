//! Those who wait for money that others hold: served when it is freed, and gone from the queue when they leave.

use std::sync::Arc;

use loadtest::provider::{Effect, Provider, Script, TokenRule, When};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;

use super::*;
use crate::support::{Gateway, embedding_config};

/// A gateway whose budget of 0.010 a single rough hold takes whole, and an upstream that is slow with "first".
fn one_hold_at_a_time() -> (Provider, Arc<Gateway>) {
    let slow = Effect { delay: Some(loadtest::provider::Delay::FixedMs(1_500.0)), ..Effect::default() };
    let script = Script::new().space("A").width(8).tokens(TokenRule::PerItem(3)).rule(When::body("first"), slow);
    let provider = Provider::start(script);
    let url = format!("{}/v1", provider.base_url());
    let config = embedding_config(&[("one", "openai", &url)], PRICE, "budget = \"0.010\"", ONE_TO_ONE);
    (provider, Arc::new(Gateway::start(&config)))
}

const BATCH: (&str, &str) = ("x-traffic-class", "batch-ingestion");

fn body(text: &str) -> String {
    json!({ "model": "emb-a", "input": text }).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn bulk_waits_for_money_that_a_query_still_holds() {
    let (provider, gateway) = one_hold_at_a_time();
    let first = tokio::spawn({
        let gateway = Arc::clone(&gateway);
        async move { gateway.embed(json!("first of all")).await }
    });
    provider.until_calls(1).await;
    let second = gateway.post("/v1/embeddings", KEY, &[BATCH], body("bulk that can wait")).await;
    second.expect(200);
    assert_eq!(provider.stats().most_at_once, 1);
    first.await.expect("no panic").expect(200);
    assert_eq!(settled_account(&gateway).await["remaining"], "0.004");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_passes_bulk_that_waits() {
    let (provider, gateway) = one_hold_at_a_time();
    let spawn = |text: &'static str, headers: &'static [(&str, &str)]| {
        let gateway = Arc::clone(&gateway);
        tokio::spawn(async move { gateway.post("/v1/embeddings", KEY, headers, body(text)).await })
    };
    let first = spawn("first of all", &[]);
    provider.until_calls(1).await;
    // Bulk whose hold alone is larger than the budget waits at the head of the queue until the first has settled.
    let bulk = spawn("bulk bulk bulk bulk bulk bulk", &[BATCH]);
    // A query with words of its own class is answered or refused within its own patience, whatever bulk does.
    let query = spawn("query", &[]);
    let query = query.await.expect("no panic");
    assert_eq!(query.status, 402, "{}", query.text);
    assert_eq!(provider.stats().finished, 0, "its own patience ended, not that of bulk");
    first.await.expect("no panic").expect(200);
    bulk.await.expect("no panic").expect(200);
    settled_account(&gateway).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_leaves_while_waiting_holds_nothing_afterwards() {
    let (provider, gateway) = one_hold_at_a_time();
    let first = tokio::spawn({
        let gateway = Arc::clone(&gateway);
        async move { gateway.embed(json!("first of all")).await }
    });
    provider.until_calls(1).await;
    let address = gateway.url.strip_prefix("http://").expect("plain").to_owned();
    let mut leavers = Vec::new();
    for number in 0..5 {
        let mut socket = tokio::net::TcpStream::connect(&address).await.expect("connects");
        let body = body(&format!("leaver {number}"));
        let head = format!(
            "POST /v1/embeddings HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-type: application/json\r\n\
             x-traffic-class: batch-ingestion\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        socket.write_all(head.as_bytes()).await.expect("sent");
        leavers.push(socket);
    }
    // Bodies are being read or asks wait by the time a later request has come through the same stages.
    gateway.embed(json!("refused meanwhile")).await.expect(402);
    for socket in leavers {
        socket.set_zero_linger().expect("resets");
    }
    first.await.expect("no panic").expect(200);
    let account = settled_account(&gateway).await;
    assert_eq!((&account["remaining"], &account["held"]), (&json!("0.007"), &json!("0")), "{account}");
    assert_eq!(provider.call_count(), 1, "nothing was called for those who left");
    gateway.embed(json!("there is money again")).await.expect(200);
}
