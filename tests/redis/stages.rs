//! Stages of collections that replicas share.

use super::*;

const COLLECTION: &str = "[[models]]\nname = \"emb-b\"\nspace = \"B\"\ndimensions = 12\n\
     price_usd_per_million_tokens = \"1000\"\n\
     [[upstreams]]\nid = \"two\"\nprovider = \"openai\"\nbase_url = \"NEW/v1\"\napi_key = { value = \"upstream-secret-two\" }\n\
     serves = [{ model = \"emb-b\" }]\n\
     [[collections]]\nname = \"handbook\"\nfrom = \"emb-a\"\nto = \"emb-b\"\n";

fn of_space_b() -> Provider {
    Provider::start(Script::new().space("B").width(12).tokens(TokenRule::PerItem(1)))
}

fn with_collection(old: &Provider, new: &Provider, redis: &RedisServer) -> String {
    config(old, &redis.url(), "", "redis_timeout_ms = 1000", "") + &COLLECTION.replace("NEW", &new.base_url())
}

async fn put(gateway: &Gateway, body: Value) -> crate::support::gateway::Answer {
    gateway.admin("PUT", "/admin/collections/handbook", "", Some(body)).await
}

async fn stage(gateway: &Gateway) -> String {
    let view = gateway.admin_get("/admin/collections/handbook").await.expect(200);
    format!("{} {} {}", view["stage"].as_str().expect("a stage"), view["canary"], view["known"])
}

async fn space(gateway: &Gateway, text: &str) -> String {
    let answer = gateway.embed_with(json!({ "model": "handbook", "input": text })).await;
    let space = answer.header("x-embedding-space").to_owned();
    crate::support::assert_signatures(&answer.expect(200), &space, &[text]);
    space
}

async fn until_stage(gateway: &Gateway, wanted: &str) {
    until("the stage", async || stage(gateway).await, |seen| seen == wanted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_set_at_one_replica_holds_at_all_of_them() {
    let (redis, old, new) = (RedisServer::start(), provider(0.0), of_space_b());
    let gateways = gateways(3, &with_collection(&old, &new, &redis));
    for gateway in &gateways {
        until_stage(gateway, "old 0.0 true").await;
    }
    put(&gateways[0], json!({ "stage": "backfill" })).await.expect(200);
    until_stage(&gateways[1], "backfill 0.0 true").await;
    put(&gateways[1], json!({ "stage": "canary", "canary": 1 })).await.expect(200);
    for gateway in &gateways {
        until_stage(gateway, "canary 1.0 true").await;
        assert_eq!(space(gateway, "a query").await, "B");
    }
    // Two at once: one of them is the later one, everywhere.
    let (one, two) =
        tokio::join!(put(&gateways[0], json!({ "stage": "new" })), put(&gateways[2], json!({ "stage": "old" })),);
    let (one, two) = (one.expect(200), two.expect(200));
    let later = if one["revision"].as_u64() > two["revision"].as_u64() { "new 0.0 true" } else { "old 0.0 true" };
    assert_ne!(one["revision"], two["revision"]);
    for gateway in &gateways {
        until_stage(gateway, later).await;
    }
    // What every replica's ledger counts is what all of them did.
    for gateway in &gateways {
        until(
            "progress of all replicas",
            async || {
                gateway.admin_get("/admin/collections/handbook").await.json()["progress"]["to"]["requests"].clone()
            },
            |requests| requests == 3,
        )
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fresh_replica_learns_the_stage_before_it_serves_the_collection() {
    let (redis, old, new) = (RedisServer::start(), provider(0.0), of_space_b());
    let config = with_collection(&old, &new, &redis);
    let first = Gateway::start(&config);
    until_stage(&first, "old 0.0 true").await;
    put(&first, json!({ "stage": "new" })).await.expect(200);
    // Its own folder is empty and its file says `old`.
    let fresh = Gateway::start(&config);
    let body = json!({ "model": "handbook", "input": "a query" });
    let answer = until(
        "the first answer",
        async || {
            let answer = fresh.embed_with(body.clone()).await;
            assert!(answer.status == 200 || answer.error_code() == "store_unavailable", "{}", answer.text);
            (answer.status, answer.header("x-embedding-space").to_owned())
        },
        |(status, _)| *status == 200,
    )
    .await;
    assert_eq!(answer.1, "B", "never a vector of the stage in its file");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_gone_refuses_changes_and_one_that_is_empty_is_told() {
    let (mut redis, old, new) = (RedisServer::start(), provider(0.0), of_space_b());
    let gateways = gateways(2, &with_collection(&old, &new, &redis));
    for gateway in &gateways {
        until_stage(gateway, "old 0.0 true").await;
    }
    put(&gateways[0], json!({ "stage": "canary", "canary": 1 })).await.expect(200);
    until_stage(&gateways[1], "canary 1.0 true").await;
    redis.stop();
    let refused = put(&gateways[0], json!({ "stage": "new" })).await;
    assert_eq!((refused.status, refused.error_code().as_str()), (503, "store_unavailable"), "{}", refused.text);
    assert_eq!(stage(&gateways[0]).await, "canary 1.0 true", "nothing was changed");
    assert_eq!(space(&gateways[0], "without redis").await, "B", "and the collection is served as before");
    redis.restart_empty();
    // The replicas tell the empty server; one that starts now hears of it.
    let fresh = until(
        "the server has it again",
        async || {
            let put = put(&gateways[1], json!({ "stage": "canary", "canary": 0.5 })).await;
            (put.status, if put.status == 200 { put.json()["revision"].as_u64() } else { None })
        },
        |(status, _)| *status == 200,
    )
    .await;
    assert_eq!(fresh.1, Some(2), "revisions go on where they were");
    until_stage(&gateways[0], "canary 0.5 true").await;
}
