//! The trail of what was done, the cost report over HTTP, and clearing the cache.

use serde_json::{Value, json};

use super::{config_at, provider};
use crate::support::Gateway;
use crate::support::gateway::KEY_TWO;

#[tokio::test]
async fn every_deed_is_on_the_trail_with_who_and_what_changed() {
    let provider = provider();
    let mut gateway = Gateway::start(&config_at(&provider.base_url()));
    gateway.admin_post("/admin/tenants", json!({ "id": "acme" })).await.expect(201);
    let key = gateway.admin_post("/admin/tenants/acme/keys", json!({})).await.expect(201);
    let fingerprint = key["fingerprint"].as_str().expect("text");
    gateway.admin("DELETE", &format!("/admin/tenants/acme/keys/{fingerprint}"), "", None).await.expect(200);
    let credit = json!({ "amount": "2.50", "idempotency_key": "k" });
    gateway.admin_post("/admin/tenants/t1/credit", credit).await.expect(200);
    gateway.admin_post("/admin/upstreams/one/drain", json!({})).await.expect(200);
    gateway.admin("DELETE", "/admin/cache", "", None).await.expect(200);
    gateway.admin_post("/admin/reload", json!({})).await.expect(200);
    gateway.configure("[[[");
    assert_eq!(gateway.admin_post("/admin/reload", json!({})).await.status, 400);
    gateway.configure(&config_at(&provider.base_url()));
    gateway.crash_and_restart();

    let deeds = gateway.admin_get("/admin/audit").await.expect(200)["deeds"].clone();
    let deeds = deeds.as_array().expect("a list");
    let actions: Vec<&str> = deeds.iter().map(|deed| deed["action"].as_str().expect("text")).collect();
    let expected =
        ["reload_refused", "reload", "clear_cache", "drain", "credit", "revoke_key", "add_key", "create_tenant"];
    assert_eq!(actions, expected);
    assert!(deeds.iter().all(|deed| deed["who"] == "loopback" && deed["time"].is_string()));
    assert_eq!((&deeds[3]["before"]["draining"], &deeds[3]["after"]["draining"]), (&json!(false), &json!(true)));
    assert_eq!((&deeds[4]["before"]["remaining"], &deeds[4]["after"]["remaining"]), (&json!("1"), &json!("3.5")));
    assert_eq!(deeds[7]["after"], json!({ "id": "acme" }));
    let text = deeds.iter().map(Value::to_string).collect::<String>();
    assert!(!text.contains(key["key"].as_str().expect("text")), "no secret is on the trail");
    let two = gateway.admin_get("/admin/audit?limit=2").await.expect(200);
    assert_eq!(two["deeds"].as_array().map(Vec::len), Some(2));
    assert_eq!(gateway.admin_get("/admin/audit?limit=many").await.status, 400);
}

#[tokio::test]
async fn the_report_over_http_is_the_command_lines() {
    let provider = provider();
    let gateway = Gateway::start(&config_at(&provider.base_url()));
    for text in ["one", "one two", "one two three"] {
        gateway.embed(json!(text)).await.expect(200);
    }
    let body = json!({ "model": "emb-a", "input": "four five six seven" }).to_string();
    gateway.post("/v1/embeddings", KEY_TWO, &[], body).await.expect(200);
    for query in
        ["by=tenant,model&format=csv", "by=day&format=table", "by=tenant&format=jsonl", "tenant=t2&format=jsonl"]
    {
        let arguments: Vec<String> = query
            .split('&')
            .flat_map(|pair| pair.split_once('='))
            .flat_map(|(k, v)| [format!("--{k}"), v.to_owned()])
            .collect();
        let arguments: Vec<&str> = ["usage"].into_iter().chain(arguments.iter().map(String::as_str)).collect();
        let answer = gateway.admin_get(&format!("/admin/usage?{query}")).await;
        assert_eq!(answer.status, 200, "{query}: {}", answer.text);
        assert_eq!(answer.text, gateway.command(&arguments), "{query}");
    }
    let by_tenant = gateway.admin_get("/admin/usage?by=tenant&format=jsonl").await.text;
    let costs: Vec<Value> =
        by_tenant.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON")["cost"].clone()).collect();
    assert_eq!(costs, ["0.000006", "0.000004"]);
    for (query, part) in
        [("by=colour", "colour"), ("since=yesterday", "yesterday"), ("tennant=t1", "tennant"), ("format=xml", "xml")]
    {
        let answer = gateway.admin_get(&format!("/admin/usage?{query}")).await;
        assert_eq!(answer.status, 400, "{query}");
        assert!(answer.text.contains(part), "{query}: {}", answer.text);
    }
}

#[tokio::test]
async fn the_cache_is_cleared_by_tenant_and_model_and_never_by_mistake() {
    let provider = provider();
    let gateway = Gateway::start(&config_at(&provider.base_url()));
    let cache_of = async |key: &str| {
        let body = json!({ "model": "emb-a", "input": "x" }).to_string();
        gateway.post("/v1/embeddings", key, &[], body).await.header("x-cache").to_owned()
    };
    let (one, two) = (crate::support::gateway::KEY, KEY_TWO);
    assert_eq!((cache_of(one).await, cache_of(two).await), ("MISS".to_owned(), "MISS".to_owned()));
    let cleared = async |query: &str, status| {
        gateway.admin("DELETE", &format!("/admin/cache{query}"), "", None).await.expect(status)
    };
    cleared("?tenent=t1", 400).await;
    assert_eq!(cleared("?model=other", 200).await["cleared"], 0);
    assert_eq!(cleared("?model=emb-a&tenant=t1", 200).await["cleared"], 1);
    assert_eq!((cache_of(one).await, cache_of(two).await), ("MISS".to_owned(), "HIT".to_owned()));
    assert_eq!(cleared("", 200).await["cleared"], 2);
}
