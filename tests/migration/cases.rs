//! Failures that other gateways have had, replayed against a collection on the move.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rg_4w8r_a_bad_file_in_the_middle_of_a_migration_changes_no_stage() {
    let providers = Providers::start();
    let good = providers.config("", "", "");
    let gateway = Arc::new(Gateway::start(&good));
    put(&gateway, json!({ "stage": "new" })).await.expect(200);
    let (ended, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let load = tokio::spawn({
        let (gateway, ended, sent) = (Arc::clone(&gateway), Arc::clone(&ended), Arc::clone(&sent));
        async move {
            while !ended.load(Ordering::Relaxed) {
                let text = format!("question {}", sent.fetch_add(1, Ordering::Relaxed));
                assert_eq!(side(&gateway, Kind::Query, &text).await, Side::To);
            }
        }
    });
    let bad = [
        good.replace("to = \"emb-b\"", "to = \"emb-x\""),
        good.replace("to = \"emb-b\"", "too = \"emb-b\""),
        good.replace("name = \"handbook\"", "name = \"emb-a\""),
        good[..good.len() - 20].to_owned(),
    ];
    for text in bad {
        gateway.configure(&text);
        let answer = gateway.admin_post("/admin/reload", json!({})).await;
        assert_eq!(answer.status, 400, "{}", answer.text);
        assert!(answer.text.contains("gateway.toml"), "{}", answer.text);
        let view = look(&gateway).await;
        assert_eq!((&view["stage"], &view["to"]), (&json!("new"), &json!("emb-b")), "what runs is shown");
        let from = sent.load(Ordering::Relaxed);
        let end = Instant::now() + PATIENCE;
        while sent.load(Ordering::Relaxed) < from + 10 {
            assert!(Instant::now() < end && !load.is_finished(), "requests go on");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    gateway.configure(&good);
    gateway.admin_post("/admin/reload", json!({})).await.expect(200);
    assert_eq!(look(&gateway).await["stage"], "new");
    ended.store(true, Ordering::Relaxed);
    load.await.expect("no request failed, none went to another space");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rg_w9ff_what_is_under_way_at_the_end_is_in_its_space_and_on_the_books() {
    let providers = Providers::with_delay(200.0);
    let gateway = Arc::new(Gateway::start(&providers.config("stage = \"backfill\"", "", "[quota]\nbatch_size = 10")));
    let texts: Vec<String> = (0..40).map(|n| format!("part {n}")).collect();
    let sent = tokio::spawn({
        let (gateway, body) = (Arc::clone(&gateway), json!({ "model": "handbook", "input": texts }).to_string());
        async move { gateway.post("/v1/embeddings", KEY, &[], body).await }
    });
    providers.new.until_calls(1).await;
    put(&gateway, json!({ "stage": "old" })).await.expect(200);
    gateway.terminate();
    let answer = sent.await.expect("sent");
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    assert_eq!(side_of(&answer, &texts), Side::To);
    let mut gateway = Arc::into_inner(gateway).expect("nobody else has it");
    assert!(gateway.wait().success(), "{}", gateway.log());
    gateway.restart();
    let view = look(&gateway).await;
    assert_eq!((&view["stage"], &view["progress"]["to"]["items"]), (&json!("old"), &json!(40)), "{view}");
    assert_eq!(view["progress"]["to"]["cost"], "0.08", "{view}");
}

#[tokio::test]
async fn rg_qpn2_a_browser_may_ask_a_collection() {
    let providers = Providers::start();
    let config = providers.config("stage = \"new\"", "", "");
    let gateway =
        Gateway::start(&config.replace("workers = 2", "workers = 2\ncors_origins = [\"https://shop.example\"]"));
    let url = format!("{}/v1/embeddings", gateway.url);
    let preflight = |origin: &'static str| {
        reqwest::Client::new()
            .request(reqwest::Method::OPTIONS, &url)
            .header("origin", origin)
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", "authorization,content-type,x-collection")
            .send()
    };
    let allowed = preflight("https://shop.example").await.expect("answered");
    assert!(allowed.status().is_success(), "{allowed:?}");
    let header = |name: &str| {
        let value = allowed.headers().get(name).map(|value| value.to_str().expect("text").to_ascii_lowercase());
        value.unwrap_or_default()
    };
    assert_eq!(header("access-control-allow-origin"), "https://shop.example");
    assert!(header("access-control-allow-headers").contains("x-collection"), "{allowed:?}");
    let foreign = preflight("https://other.example").await.expect("answered");
    assert!(foreign.headers().get("access-control-allow-origin").is_none(), "{foreign:?}");
    let headers = [("origin", "https://shop.example"), ("x-collection", "handbook")];
    let answer = ask_as(&gateway, Kind::Query, "emb-a", &headers, "t").await;
    assert_eq!(side_of(&answer, &["t"]), Side::To);
    assert!(answer.header("access-control-expose-headers").to_ascii_lowercase().contains("x-embedding-space"));
}
