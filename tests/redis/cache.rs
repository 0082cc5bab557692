//! Vectors that replicas share.

use deadpool_redis::redis::{Client, Commands as _};

use super::*;
use crate::support::assert_signatures;

fn config(provider: &Provider, redis: &RedisServer, backend: &str) -> String {
    let url = format!("{}/v1", provider.base_url());
    let extra = format!(
        "[store]\nredis_url = \"{}\"\nredis_timeout_ms = 1000\n[cache]\nbackend = \"{backend}\"\nttl_s = 60\n",
        redis.url()
    );
    embedding_config(&[("one", "openai", &url)], MODEL, "", &extra)
}

fn entries(redis: &RedisServer) -> Vec<String> {
    let mut connection = Client::open(redis.url()).and_then(|client| client.get_connection()).expect("connects");
    let mut keys: Vec<String> = connection.keys("vectorgate:cache:*").expect("keys");
    keys.sort();
    for key in &keys {
        let left: i64 = connection.pttl(key).expect("a life");
        assert!((1..=60_000).contains(&left), "{left}");
    }
    keys
}

async fn check(backend: &str) {
    let (redis, provider) = (RedisServer::start(), provider(0.0));
    let gateways = gateways(2, &config(&provider, &redis, backend));
    until("connections", async || gateways[1].admin_get("/readyz").await.text, |text| text == "ready\n").await;
    until("connections", async || gateways[0].admin_get("/readyz").await.text, |text| text == "ready\n").await;
    let texts = ["alpha", "beta", "gamma"];
    let miss = gateways[0].embed(json!(texts)).await;
    assert_signatures(&miss.expect(200), "A", &texts);
    assert_eq!(miss.header("x-cache"), "MISS");
    until("entries", async || entries(&redis).len(), |count| *count == 3).await;
    let hit = gateways[1].embed(json!(texts)).await;
    assert_eq!((hit.header("x-cache"), hit.header("x-gateway-cost-eur")), ("HIT", "0"));
    assert_eq!(hit.text, miss.text, "a hit and a miss answer with the same bytes");
    let part = gateways[1].embed(json!(["delta", "beta", "delta", "alpha"])).await;
    assert_signatures(&part.expect(200), "A", &["delta", "beta", "delta", "alpha"]);
    assert_eq!(part.header("x-cache"), "PARTIAL");
    assert_eq!(provider.call_count(), 2);
}

#[tokio::test]
async fn one_replica_answers_from_what_another_paid_for() {
    check("redis").await;
}

#[tokio::test]
async fn the_same_with_memory_before_redis() {
    check("tiered").await;
}

#[tokio::test]
async fn without_a_server_everything_is_a_miss_and_nothing_fails() {
    let (mut redis, provider) = (RedisServer::start(), provider(0.0));
    let gateway = Gateway::start(&config(&provider, &redis, "redis"));
    until("connections", async || gateway.admin_get("/readyz").await.text, |text| text == "ready\n").await;
    gateway.embed(json!("alpha")).await.expect(200);
    until("entries", async || entries(&redis).len(), |count| *count == 1).await;
    redis.stop();
    until("without", async || gateway.admin_get("/readyz").await.text, |text| text.contains("without redis")).await;
    for number in 0..5 {
        assert_eq!(gateway.embed(json!(format!("text {number}"))).await.header("x-cache"), "MISS");
    }
    redis.restart_empty();
    until("connections", async || gateway.admin_get("/readyz").await.text, |text| text == "ready\n").await;
    gateway.embed(json!("omega")).await.expect(200);
    until("entries", async || entries(&redis).len(), |count| *count == 1).await;
}

#[tokio::test]
async fn what_others_write_there_is_never_served() {
    let (redis, provider) = (RedisServer::start(), provider(0.0));
    let gateways = gateways(2, &config(&provider, &redis, "redis"));
    for gateway in &gateways {
        until("connections", async || gateway.admin_get("/readyz").await.text, |text| text == "ready\n").await;
    }
    gateways[0].embed(json!("alpha")).await.expect(200);
    let keys = until("entries", async || entries(&redis), |keys| keys.len() == 1).await;
    let mut connection = Client::open(redis.url()).and_then(|client| client.get_connection()).expect("connects");
    for garbage in [&b""[..], b"\x01", b"\x01\x00\x01\x00\x00\x00\x02\x00t1\x05\x00emb-aVT[1,2,3]", b"\xff\xff"] {
        connection.set::<_, _, ()>(&keys[0], garbage).expect("written");
        let answer = gateways[1].embed_with(json!({ "model": "emb-a", "input": "alpha" })).await;
        assert_signatures(&answer.expect(200), "A", &["alpha"]);
        tokio::time::sleep(Duration::from_millis(2_100)).await;
    }
}

#[tokio::test]
async fn an_operators_clear_reaches_every_replica() {
    let (redis, provider) = (RedisServer::start(), provider(0.0));
    let gateways = gateways(2, &config(&provider, &redis, "tiered"));
    for gateway in &gateways {
        until("connections", async || gateway.admin_get("/readyz").await.text, |text| text == "ready\n").await;
    }
    gateways[0].embed(json!("alpha")).await.expect(200);
    until("entries", async || entries(&redis).len(), |count| *count == 1).await;
    let hit = async || gateways[1].embed(json!("alpha")).await.header("x-cache").to_owned();
    until("a copy in its memory", hit, |seen| seen == "HIT").await;
    let client = reqwest::Client::new();
    let cleared = client.delete(format!("{}/admin/cache?model=emb-a", gateways[0].admin)).send().await;
    assert_eq!(cleared.expect("answers").status(), 200);
    assert_eq!(entries(&redis).len(), 0);
    let asked = provider.call_count();
    let miss = async || {
        let answer = gateways[1].post("/v1/embeddings", crate::support::KEY, &[("cache-control", "no-store")], {
            json!({ "model": "emb-a", "input": "alpha" }).to_string()
        });
        answer.await.header("x-cache").to_owned()
    };
    until("its memory is cleared too", miss, |seen| seen == "MISS").await;
    assert!(provider.call_count() > asked);
}
