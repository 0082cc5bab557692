//! Reloads of one replica among several that share a ledger.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_changes_terms_and_keeps_balances_and_tenants() {
    let (redis, provider) = (RedisServer::start(), provider(0.0));
    let with = |tenant: &str, store: &str| {
        config(&provider, &redis.url(), tenant, &format!("redis_timeout_ms = 2000\n{store}"), "")
    };
    let gateways = gateways(2, &with("budget = \"0.010\"", ""));
    for number in 0..10 {
        assert_eq!(ask(&gateways[number % 2]).await, 200);
    }
    assert_eq!(ask(&gateways[0]).await, 402);
    gateways[0].admin_post("/admin/tenants", json!({ "id": "acme", "budget": "5" })).await.expect(201);
    let key = gateways[1].admin_post("/admin/tenants/acme/keys", json!({})).await.expect(201);
    let key = key["key"].as_str().expect("a key");

    for gateway in &gateways {
        gateway.configure(&with("budget = \"0.015\"\nrpm = 1000", ""));
        gateway.admin_post("/admin/reload", json!({})).await.expect(200);
    }
    for number in 0..5 {
        assert_eq!(ask(&gateways[number % 2]).await, 200, "the larger budget holds");
    }
    assert_eq!(ask(&gateways[1]).await, 402);
    let body = json!({ "model": "emb-a", "input": "hello" }).to_string();
    for gateway in &gateways {
        let account = gateway.tenant("t1").await;
        assert_eq!((&account["spent"], &account["remaining"]), (&json!("0.015"), &json!("0")), "{account}");
        assert_eq!(account["rpm"], 1000, "{account}");
        assert_eq!(gateway.post("/v1/embeddings", key, &[], body.clone()).await.status, 200, "made at run time");
        let log = gateway.log();
        assert!(!log.contains("shared balances were lost") && !log.contains("panicked"), "{log}");
    }
    assert_eq!(gateways[0].tenant("acme").await["spent"], "0.002");

    // What holds connections and holds together stays as it was at the start, and nothing else changes either.
    let other =
        with("budget = \"0.020\"", "redis_lease_s = 5").replace("redis_timeout_ms = 2000", "redis_timeout_ms = 1999");
    gateways[0].configure(&other);
    let refused = gateways[0].admin_post("/admin/reload", json!({})).await;
    assert_eq!(refused.status, 400, "{}", refused.text);
    for word in ["redis_lease_s", "redis_timeout_ms"] {
        assert!(refused.text.contains(word), "{word} in {}", refused.text);
    }
    assert_eq!(ask(&gateways[0]).await, 402);
}

/// What the dashboard shows of a tenant is what the ledger says, whichever replica holds the money.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dashboard_shows_what_is_held_anywhere() {
    let (redis, provider) = (RedisServer::start(), provider(8_000.0));
    let config = config(&provider, &redis.url(), "budget = \"1\"", "redis_timeout_ms = 2000", "");
    let gateways = gateways(2, &config);
    let slow = {
        let gateway = Arc::clone(&gateways[0]);
        tokio::spawn(async move { ask(&gateway).await })
    };
    provider.until_calls(1).await;
    for gateway in &gateways {
        let row = async || {
            let state = gateway.admin_get("/dashboard/snapshot").await.json();
            let rows = state["tenants"].as_array().cloned().unwrap_or_default();
            rows.into_iter().find(|row| row["id"] == "t1").unwrap_or_default()
        };
        let seen = until("the hold", row, |row| row["held"].as_str().is_some_and(|held| held != "0")).await;
        assert_eq!(seen["held"], gateway.tenant("t1").await["held"], "{seen}");
    }
    assert_eq!(slow.await.expect("no panic"), 200);
}
