//! The orderly end: what was accepted is answered, what waits is told, and all of it is on the books.

use std::sync::Arc;
use std::time::{Duration, Instant};

use loadtest::provider::{Delay, Provider, Script};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{PRICED, until};
use crate::support::gateway::KEY;
use crate::support::{Gateway, embedding_config};

fn slow(ms: f64) -> Provider {
    let mut script = Script::new().space("A").width(8);
    script.delay = Delay::FixedMs(ms);
    Provider::start(script)
}

fn config(provider: &Provider, drain_s: f64, upstream: &str) -> String {
    let url = format!("{}/v1", provider.base_url());
    let extra = format!("drain_s = {drain_s}\n[money]\nper_usd = \"1\"\n[quota]\nbatch_size = 10");
    embedding_config(&[("one", "openai", &url)], PRICED, "budget = \"1.00\"", &extra)
        .replace("serves = [", &format!("{upstream}\nserves = ["))
}

/// What the provider billed equals what is listed, and nothing is held.
async fn check_books(gateway: &mut Gateway, provider: &Provider) {
    gateway.restart();
    let tokens: u64 = gateway.usage().iter().map(|record| record["tokens"].as_u64().expect("a number")).sum();
    assert_eq!(tokens, provider.tokens_billed(), "the ledger equals the provider's bill");
    let tenant = gateway.tenant("t1").await;
    assert_eq!((&tenant["held"], &tenant["open_holds"]), (&json!("0"), &json!(0)), "{tenant}");
    assert!(!gateway.log().contains("released a hold"), "no hold was left for the next start to find");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_under_load_cuts_no_request() {
    sigterms(20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the same at full size"]
async fn fifty_sigterms_under_load_cut_no_request() {
    sigterms(50).await;
}

async fn sigterms(rounds: u32) {
    const DRAIN_S: f64 = 10.0;
    let provider = slow(30.0);
    let mut gateway = Gateway::start(&config(&provider, DRAIN_S, ""));
    let (mut answered, mut longest) = (0, Duration::ZERO);
    for round in 0..rounds {
        let shared = Arc::new(gateway);
        let clients: Vec<_> = (0..8)
            .map(|client| {
                let gateway = Arc::clone(&shared);
                tokio::spawn(async move { until_turned_away(&gateway.url, round, client).await })
            })
            .collect();
        let seen = provider.call_count();
        until("traffic", async || provider.call_count() > seen + 20).await;
        let told = Instant::now();
        shared.terminate();
        let ready =
            async |url: &str| reqwest::get(format!("{url}/readyz")).await.map(|answer| answer.status().as_u16());
        until("readiness falls", async || ready(&shared.admin).await.is_ok_and(|status| status == 503)).await;
        for client in clients {
            let served = client.await.expect("no request was cut");
            assert!(served > 0);
            answered += served;
        }
        gateway = Arc::into_inner(shared).expect("nobody else has it");
        assert!(gateway.wait().success(), "exit 0: {}", gateway.log());
        longest = longest.max(told.elapsed());
        assert!(told.elapsed().as_secs_f64() < DRAIN_S + 1.0, "later than server.drain_s: {longest:?}");
        gateway.restart();
    }
    println!("{rounds} times, {answered} answers, gone after {longest:.1?} at the latest");
    gateway.terminate();
    check_books(&mut gateway, &provider).await;
}

/// Sends one request after the other until one is refused; a request that gets no answer is a cut one, unless its
/// connection was never accepted.
async fn until_turned_away(url: &str, round: u32, client: u32) -> u32 {
    let http = reqwest::Client::new();
    for n in 0.. {
        let body = json!({ "model": "emb-a", "input": format!("{round} {client} {n}") });
        match http.post(format!("{url}/v1/embeddings")).bearer_auth(KEY).json(&body).send().await {
            Err(error) if error.is_connect() => return n,
            Err(error) => panic!("cut without an answer: {error:?}"),
            Ok(answer) => {
                let (status, retry) = (answer.status(), answer.headers().contains_key("retry-after"));
                let text = answer.text().await.expect("a whole answer");
                if status == 503 {
                    assert!(retry && text.contains("shutting_down"), "{text}");
                    return n;
                }
                assert_eq!(status, 200, "{text}");
            }
        }
    }
    0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rg_w9ff_within_the_limit_what_has_begun_finishes_and_what_waits_is_told() {
    let provider = slow(400.0);
    // Two calls at once: the large batch keeps both busy, the next one waits.
    let mut gateway = Gateway::start(&config(&provider, 20.0, "max_concurrency = 2"));
    let url = gateway.url.clone();
    let long: Vec<String> = (0..60).map(|n| format!("long {n}")).collect();
    let long = tokio::spawn(batch(url.clone(), json!(long)));
    provider.until_calls(1).await;
    let waits: Vec<String> = (0..20).map(|n| format!("waits {n}")).collect();
    let waits = tokio::spawn(batch(url.clone(), json!(waits)));
    until("the second batch waits", async || {
        gateway.admin_get("/admin/upstreams").await.json()["upstreams"][0]["state"]["batch_waiting"].as_u64() > Some(0)
    })
    .await;
    let mut upload = upload(&gateway, 3).await;
    gateway.terminate();

    let (status, body, retry) = waits.await.expect("answered");
    assert_eq!((status, body["error"]["code"].as_str()), (503, Some("shutting_down")), "{body}");
    assert!(retry.is_some(), "it says when to come back");
    let (status, body, _) = long.await.expect("answered");
    assert_eq!((status, body["data"].as_array().map(Vec::len)), (200, Some(60)), "{body}");
    assert_eq!(finish(&mut upload).await, 200, "an upload that was half done is taken to its end");
    assert!(gateway.wait().success());
    check_books(&mut gateway, &provider).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rg_w9ff_beyond_the_limit_the_rest_gets_an_error_and_is_booked() {
    let provider = slow(60_000.0);
    let mut gateway = Gateway::start(&config(&provider, 3.0, "timeout_s = 100"));
    let url = gateway.url.clone();
    let stuck = tokio::spawn(batch(url.clone(), json!(["one two three", "four five"])));
    provider.until_calls(1).await;
    let mut upload = upload(&gateway, 2).await;
    let begun = Instant::now();
    gateway.terminate();
    let (status, body, _) = stuck.await.expect("answered");
    assert_eq!((status, body["error"]["code"].as_str()), (503, Some("shutting_down")), "{body}");
    let mut answer = String::new();
    let read = tokio::time::timeout(Duration::from_secs(10), upload.read_to_string(&mut answer)).await;
    assert!(read.is_ok() && answer.contains("shutting_down"), "{answer}");
    assert!(gateway.wait().success(), "{}", gateway.log());
    assert!(begun.elapsed() < Duration::from_secs(4), "gone at the limit and a second: {:?}", begun.elapsed());

    gateway.restart();
    let records = gateway.usage();
    let booked = records.iter().find(|record| record["status"] == 503 && record["tokens"] != 0).expect("booked");
    assert_eq!((&booked["estimated"], &booked["outcome"]), (&json!(true), &json!("failed")), "{booked}");
    let tenant = gateway.tenant("t1").await;
    assert_eq!((&tenant["held"], &tenant["spent"]), (&json!("0"), &booked["cost"]), "{tenant}");
}

/// Sends inputs as batch work: status, body and `Retry-After`.
async fn batch(url: String, input: Value) -> (u16, Value, Option<String>) {
    let request = reqwest::Client::new()
        .post(format!("{url}/v1/embeddings"))
        .bearer_auth(KEY)
        .header("x-traffic-class", "batch-ingestion")
        .json(&json!({ "model": "emb-a", "input": input }));
    let answer = request.send().await.expect("an answer");
    let retry = answer.headers().get("retry-after").map(|value| value.to_str().expect("text").to_owned());
    (answer.status().as_u16(), answer.json().await.expect("JSON"), retry)
}

const HALF: [&str; 2] = ["{\"model\":\"emb-a\",\"inp", "ut\":\"half and half\"}"];

/// A request whose body is half sent; with it so many are under way.
async fn upload(gateway: &Gateway, under_way: u64) -> tokio::net::TcpStream {
    let address = gateway.url.strip_prefix("http://").expect("plain");
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("connects");
    let head = format!(
        "POST /v1/embeddings HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {KEY}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{}",
        HALF[0].len() + HALF[1].len(),
        HALF[0]
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    until("the upload begins", async || {
        gateway.admin_get("/admin/status").await.json()["in_flight"].as_u64() == Some(under_way)
    })
    .await;
    stream
}

/// Sends the other half; the status of the answer.
async fn finish(stream: &mut tokio::net::TcpStream) -> u16 {
    stream.write_all(HALF[1].as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer, then the end of the connection");
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{answer}"))
}
