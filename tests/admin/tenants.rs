//! Tenants that are made while the gateway runs, and money that is added.

use serde_json::{Value, json};

use loadtest::provider::{Provider, Script, TokenRule};

use super::{config_at, provider};
use crate::support::Gateway;

/// A provider and a configuration that count one token a byte, both exactly.
fn exact() -> (Provider, String) {
    let mut script = Script::new().space("A").width(8);
    script.tokens = TokenRule::Bytes;
    let provider = Provider::start(script);
    let config = config_at(&provider.base_url()).replace("dimensions = 8", "dimensions = 8\ntokenizer = \"bytes\"");
    (provider, config)
}

fn body(text: &str) -> String {
    json!({ "model": "emb-a", "input": text }).to_string()
}

/// Makes a key and returns its secret.
async fn new_key(gateway: &Gateway, tenant: &str) -> String {
    let made = gateway.admin_post(&format!("/admin/tenants/{tenant}/keys"), json!({})).await.expect(201);
    made["key"].as_str().expect("a secret").to_owned()
}

#[tokio::test]
async fn a_tenant_made_at_run_time_works_at_once_and_after_a_crash() {
    let (_provider, config) = exact();
    let mut gateway = Gateway::start(&config);
    let settings = json!({ "id": "acme", "budget": "0.00001", "models": ["emb-a"], "weight": 2 });
    let made = gateway.admin_post("/admin/tenants", settings.clone()).await.expect(201);
    assert_eq!((&made["id"], &made["source"], &made["keys"]), (&json!("acme"), &json!("admin"), &json!([])));
    assert_eq!((&made["budget"], &made["remaining"]), (&json!("0.00001"), &json!("0.00001")));
    let key = new_key(&gateway, "acme").await;
    gateway.post("/v1/embeddings", &key, &[], body("abcd")).await.expect(200);

    gateway.crash_and_restart();
    let tenant = gateway.tenant("acme").await;
    assert_eq!((&tenant["spent"], &tenant["remaining"]), (&json!("0.000004"), &json!("0.000006")), "{tenant}");
    assert_eq!(tenant["keys"][0]["fingerprint"].as_str().map(str::len), Some(16));
    assert!(tenant["keys"][0]["created"].is_string(), "{tenant}");
    gateway.post("/v1/embeddings", &key, &[], body("efghij")).await.expect(200);
    let refused = gateway.post("/v1/embeddings", &key, &[], body("k")).await;
    assert_eq!((refused.status, refused.error_code().as_str()), (402, "budget_exhausted"));
    assert!(gateway.metric("vectorgate_tenant_budget_remaining{tenant=\"acme\"}").await.abs() < 1e-12);
    assert_eq!(gateway.admin_post("/admin/tenants", settings).await.error_code(), "conflict");
}

#[tokio::test]
async fn settings_are_held_to_the_rules_of_the_file() {
    let provider = provider();
    let config = config_at(&provider.base_url()) + "[[models]]\nname = \"unpriced\"\ndimensions = 8\n";
    let config = config.replace("budget = \"1.00\"", "budget = \"1.00\"\nmodels = [\"emb-a\"]");
    let gateway = Gateway::start(&config);
    let check = async |settings: Value, status: u16, part: &str| {
        let answer = gateway.admin_post("/admin/tenants", settings.clone()).await;
        assert_eq!(answer.status, status, "{settings}: {}", answer.text);
        let message = answer.json()["error"]["message"].as_str().expect("a message").to_owned();
        assert!(message.contains(part), "{settings}: {message}");
    };
    check(json!({ "id": "t1" }), 409, "exists").await;
    check(json!({ "budget": "1" }), 400, "`id`").await;
    check(json!({ "id": "a b" }), 400, "not a usable name").await;
    check(json!({ "id": "a/b" }), 400, "not usable as a tenant's id").await;
    check(json!({ "id": "x", "bugdet": "1" }), 400, "did you mean `budget`?").await;
    check(json!({ "id": "x", "budget": 0.1 }), 400, "not exact").await;
    check(json!({ "id": "x", "budget": "-1" }), 400, "negative").await;
    check(json!({ "id": "x", "budget_period": "day" }), 400, "no budget to refill").await;
    check(json!({ "id": "x", "models": ["emb-b"] }), 400, "did you mean \"emb-a\"?").await;
    check(json!({ "id": "x", "budget": "1" }), 400, "\"unpriced\" has no price").await;
    check(json!({ "id": "x", "key_sha256": ["abc"] }), 400, "SHA-256").await;
    check(json!({ "id": "x", "weight": 0, "class": "fast" }), 400, "weight: 0 is out of range").await;
    check(json!(["x"]), 400, "JSON object").await;
    assert_eq!(gateway.admin_get("/admin/tenants/x").await.status, 404);
    gateway.admin_post("/admin/tenants", json!({ "id": "x", "budget": "1", "models": ["emb-a"] })).await.expect(201);
}

#[tokio::test]
async fn the_file_wins_over_a_tenant_of_the_same_name() {
    let provider = provider();
    let config = config_at(&provider.base_url());
    let gateway = Gateway::start(&config);
    gateway.admin_post("/admin/tenants", json!({ "id": "acme", "budget": "2" })).await.expect(201);
    let key = new_key(&gateway, "acme").await;
    gateway.configure(&format!("{config}[[tenants]]\nid = \"acme\"\nbudget = \"7\"\n"));
    gateway.admin_post("/admin/reload", json!({})).await.expect(200);
    let tenant = gateway.tenant("acme").await;
    assert_eq!((&tenant["source"], &tenant["budget"]), (&json!("file"), &json!("7")));
    gateway.post("/v1/embeddings", &key, &[], body("a key outlives the change")).await.expect(200);

    gateway.configure(&config);
    gateway.admin_post("/admin/reload", json!({})).await.expect(200);
    let tenant = gateway.tenant("acme").await;
    assert_eq!((&tenant["source"], &tenant["budget"]), (&json!("admin"), &json!("2")), "it is back as it was made");
    assert_eq!(tenant["spent"], "0.000005", "{tenant}");
}

#[tokio::test]
async fn a_reload_that_would_leave_a_tenant_out_is_refused_and_a_start_says_so() {
    let provider = provider();
    let config =
        config_at(&provider.base_url()) + "[[models]]\nname = \"more\"\nprice_usd_per_million_tokens = \"1\"\n";
    let mut gateway = Gateway::start(&config);
    gateway.admin_post("/admin/tenants", json!({ "id": "acme", "models": ["more"] })).await.expect(201);
    let without = config_at(&provider.base_url());
    gateway.configure(&without);
    let refused = gateway.admin_post("/admin/reload", json!({})).await;
    assert_eq!(refused.status, 400, "{}", refused.text);
    assert!(refused.text.contains("acme") && refused.text.contains("more"), "{}", refused.text);

    gateway.crash_and_restart();
    assert_eq!(gateway.admin_get("/admin/tenants/acme").await.status, 404, "nobody can use it");
    let status = gateway.admin_get("/admin/status").await.json();
    assert_eq!(status["reloads"]["left_out"][0]["entry"], "acme", "{status}");
    gateway.configure(&config);
    gateway.admin_post("/admin/reload", json!({})).await.expect(200);
    assert_eq!(gateway.admin_get("/admin/tenants/acme").await.status, 200, "it fits again");
    assert_eq!(gateway.admin_get("/admin/status").await.json()["reloads"]["left_out"], json!([]));
}

#[tokio::test]
async fn a_credit_counts_once_and_survives() {
    let (_provider, config) = exact();
    let mut gateway = Gateway::start(&config.replace("\"1.00\"", "\"0.000001\""));
    gateway.embed(json!("a")).await.expect(200);
    assert_eq!(gateway.embed(json!("b")).await.status, 402);
    let credit = json!({ "amount": "0.50", "idempotency_key": "order 7" });
    let answer = gateway.admin_post("/admin/tenants/t1/credit", credit.clone()).await.expect(200);
    assert_eq!((&answer["remaining"], &answer["credit"]["repeated"]), (&json!("0.5"), &json!(false)), "{answer}");
    gateway.embed(json!("b")).await.expect(200);
    let answer = gateway.admin_post("/admin/tenants/t1/credit", credit.clone()).await.expect(200);
    assert_eq!((&answer["remaining"], &answer["credit"]["repeated"]), (&json!("0.499999"), &json!(true)));

    gateway.crash_and_restart();
    let answer = gateway.admin_post("/admin/tenants/t1/credit", credit).await.expect(200);
    assert_eq!((&answer["remaining"], &answer["credit"]["repeated"]), (&json!("0.499999"), &json!(true)));
    let other = json!({ "amount": "0.51", "idempotency_key": "order 7" });
    let answer = gateway.admin_post("/admin/tenants/t1/credit", other).await;
    assert_eq!((answer.status, answer.error_code().as_str()), (409, "conflict"));
    for (body, part) in [
        (json!({ "amount": "0", "idempotency_key": "a" }), "above zero"),
        (json!({ "amount": "-1", "idempotency_key": "a" }), "amount"),
        (json!({ "amount": 5, "idempotency_key": "a" }), "`amount` must be text"),
        (json!({ "amount": "1" }), "idempotency_key"),
        (json!({ "amount": "1", "idempotency_key": "a", "currency": "USD" }), "currency"),
        (json!({ "amount": "1e3", "idempotency_key": "a" }), "amount"),
    ] {
        let answer = gateway.admin_post("/admin/tenants/t1/credit", body.clone()).await;
        assert_eq!(answer.status, 400, "{body}: {}", answer.text);
        assert!(answer.text.contains(part), "{body}: {}", answer.text);
    }
    let nobody = gateway.admin_post("/admin/tenants/nobody/credit", json!({ "amount": "1", "idempotency_key": "a" }));
    assert_eq!(nobody.await.status, 404);
    assert_eq!(gateway.tenant("t1").await["remaining"], "0.499999");
}
