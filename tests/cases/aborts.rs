//! Clients that leave before their answer.

use std::time::{Duration, Instant};

use loadtest::provider::{Provider, Script};
use serde_json::{Value, json};

use super::PRICED;
use crate::support::gateway::KEY;
use crate::support::{Gateway, Raw, assert_signatures, embedding_config};

const PATIENCE: Duration = Duration::from_secs(20);

/// A gateway that makes one call at a time, of one text each.
fn one_at_a_time(provider: &Provider) -> Gateway {
    let url = format!("{}/v1", provider.base_url());
    let extra = "[quota]\nbatch_size = 1\ninteractive_max_wait_ms = 20000\n";
    let config = embedding_config(&[("one", "openai", &url)], PRICED, "budget = \"1.00\"", extra);
    Gateway::start(&config.replace("provider = \"openai\"\n", "provider = \"openai\"\nmax_concurrency = 1\n"))
}

fn send(gateway: &Gateway, class: &str, input: Value) -> Raw {
    let mut client = Raw::connect(&gateway.url);
    let (key, class) = (format!("Authorization: Bearer {KEY}"), format!("X-Traffic-Class: {class}"));
    client.request("POST /v1/embeddings", &[&key, &class], &json!({ "model": "emb-a", "input": input }).to_string());
    client
}

/// Waits until the records have one with this status, and returns it.
async fn record_with(gateway: &Gateway, status: u16) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let records = gateway.usage();
        if let Some(record) = records.iter().find(|record| record["status"] == status) {
            return record.clone();
        }
        assert!(Instant::now() < deadline, "no record with {status}: {records:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn waiting(gateway: &Gateway, count: u64) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let state = super::upstream_state(gateway).await;
        let now = state["interactive_waiting"].as_u64().unwrap_or(0) + state["batch_waiting"].as_u64().unwrap_or(0);
        if now == count {
            return;
        }
        assert!(Instant::now() < deadline, "{count} should wait: {state}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn rg_r5q7_a_batch_whose_client_leaves_stops() {
    let provider = Provider::start(Script::new().delay_ms(1000.0));
    let gateway = one_at_a_time(&provider);
    let texts: Vec<String> = (0..40).map(|part| format!("part {part}")).collect();
    let client = send(&gateway, "batch-ingestion", json!(texts));
    assert!(provider.wait_calls(3, PATIENCE), "part 3 is sent");
    drop(client);
    let next = gateway.embed(json!("alpha")).await;
    assert_signatures(&next.expect(200), "A", &["alpha"]);
    let waited: u64 = next.header("x-gateway-latency-ms").parse().expect("milliseconds");
    assert!(waited < 5000, "{waited} ms: the abandoned parts went first");
    assert!(provider.call_count() <= 5, "{} calls", provider.call_count());

    let record = record_with(&gateway, 499).await;
    assert_eq!((&record["outcome"], &record["items"]), (&json!("abandoned"), &json!(40)), "{record}");
    let cancelled =
        "vectorgate_request_duration_seconds_count{class=\"batch-ingestion\",model=\"emb-a\",outcome=\"cancelled\"}";
    assert_eq!(gateway.metric(cancelled).await, 1.0);
    waiting(&gateway, 0).await;
    assert_eq!(gateway.tenant("t1").await["held"], "0");
    // What was sent was paid for, and is there for whoever asks next.
    let billed = provider.tokens_billed();
    let body = json!({ "model": "emb-a", "input": texts[..3] }).to_string();
    let again = gateway.post("/v1/embeddings", KEY, &[("x-traffic-class", "batch-ingestion")], body).await;
    let sent = provider.call_count();
    assert_signatures(&again.expect(200), "A", &["part 0", "part 1", "part 2"]);
    assert_eq!((again.header("x-cache"), provider.call_count()), ("HIT", sent));
    assert_eq!(super::recorded_tokens(&gateway), billed, "the bill is the provider's");
}

#[tokio::test]
async fn rg_r5q7_a_queued_request_whose_client_leaves_is_never_sent() {
    for class in ["interactive-search", "batch-ingestion"] {
        let provider = Provider::start(Script::new().delay_ms(1000.0));
        let gateway = one_at_a_time(&provider);
        let mut first = send(&gateway, class, json!("first"));
        assert!(provider.wait_calls(1, PATIENCE));
        let second = send(&gateway, class, json!("second"));
        waiting(&gateway, 1).await;
        let mut third = send(&gateway, class, json!("third"));
        waiting(&gateway, 2).await;
        drop(second);
        waiting(&gateway, 1).await;
        assert_eq!((first.answer().status, third.answer().status), (200, 200));
        let sent: Vec<String> = provider.calls().iter().map(|call| call.json()["input"].to_string()).collect();
        assert_eq!(sent, ["\"first\"", "\"third\""], "{class}");
        let record = record_with(&gateway, 499).await;
        assert_eq!((&record["tokens"], &record["cost"]), (&json!(0), &json!("0")), "{class}: {record}");
        assert_eq!(gateway.tenant("t1").await["held"], "0", "{class}");
    }
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_of_its_body_costs_nothing() {
    let provider = Provider::start(Script::new());
    let gateway = one_at_a_time(&provider);
    let mut client = Raw::connect(&gateway.url);
    client.send(format!(
        "POST /v1/embeddings HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n\
         Content-Length: 100000\r\n\r\n{{\"model\":\"emb-a\",\"input\":\"alp"
    ));
    let deadline = Instant::now() + PATIENCE;
    while gateway.metric("vectorgate_buffered_bytes").await == 0.0 {
        assert!(Instant::now() < deadline, "the body is being read");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(client);
    while gateway.metric("vectorgate_buffered_bytes").await > 0.0 {
        assert!(Instant::now() < deadline, "its share of memory comes back");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(provider.call_count(), 0);
}
