//! Keys that come and go while the gateway runs.

use serde_json::json;
use sha2::Digest as _;

use super::{config_at, provider};
use crate::support::Gateway;
use crate::support::gateway::KEY;

#[tokio::test]
async fn a_revoked_key_is_refused_on_the_next_request_and_ever_after() {
    let provider = provider();
    let mut gateway = Gateway::start(&config_at(&provider.base_url()));
    let embed = async |gateway: &Gateway, key: &str| {
        let body = json!({ "model": "emb-a", "input": "x" }).to_string();
        gateway.post("/v1/embeddings", key, &[], body).await.status
    };
    let made = gateway.admin_post("/admin/tenants/t1/keys", json!({})).await;
    assert_eq!(made.header("cache-control"), "no-store");
    let made = made.expect(201);
    let (secret, fingerprint) = (made["key"].as_str().expect("text"), made["fingerprint"].as_str().expect("text"));
    assert_eq!(fingerprint, &hex::encode(sha2::Sha256::digest(secret))[..16]);
    assert_eq!((embed(&gateway, secret).await, embed(&gateway, KEY).await), (200, 200));

    let of_the_file = hex::encode(sha2::Sha256::digest(KEY))[..16].to_owned();
    for gone in [fingerprint, &of_the_file] {
        gateway.admin("DELETE", &format!("/admin/tenants/t1/keys/{gone}"), "", None).await.expect(200);
    }
    assert_eq!((embed(&gateway, secret).await, embed(&gateway, KEY).await), (401, 401));
    let again = gateway.admin("DELETE", &format!("/admin/tenants/t1/keys/{of_the_file}"), "", None).await;
    again.expect(200);
    gateway.admin_post("/admin/reload", json!({})).await.expect(200);
    assert_eq!(embed(&gateway, KEY).await, 401, "a reload brings no revoked key back");
    gateway.crash_and_restart();
    assert_eq!((embed(&gateway, secret).await, embed(&gateway, KEY).await), (401, 401));
    assert_eq!(gateway.tenant("t1").await["keys"], json!([]));

    let stranger = gateway.admin("DELETE", "/admin/tenants/t1/keys/0123456789abcdef", "", None).await;
    assert_eq!(stranger.status, 404, "{}", stranger.text);
    assert_eq!(gateway.admin("DELETE", &format!("/admin/tenants/t2/keys/{fingerprint}"), "", None).await.status, 404);
    assert!(!gateway.log().contains(secret), "a secret is never logged");
}

#[tokio::test]
async fn the_admin_side_is_for_its_token_or_this_machine_only() {
    let provider = provider();
    let config =
        config_at(&provider.base_url()).replacen("workers = 2", "workers = 2\nadmin_token = { value = \"boss\" }", 1);
    let gateway = Gateway::start(&config);
    for (token, status) in [("", 401), ("bos", 401), ("bosss", 401), ("boss", 200)] {
        assert_eq!(gateway.admin("GET", "/admin/tenants", token, None).await.status, status, "{token:?}");
        let made = gateway.admin("POST", "/admin/tenants/t1/keys", token, None).await.status;
        assert_eq!(made, if status == 200 { 201 } else { status }, "{token:?}");
    }
    gateway.configure(&config.replace("boss", "chief"));
    gateway.admin("POST", "/admin/reload", "boss", None).await.expect(200);
    assert_eq!(gateway.admin("GET", "/admin/status", "boss", None).await.status, 401, "a token is reloaded, too");
    gateway.admin("GET", "/admin/status", "chief", None).await.expect(200);

    let open = Gateway::start(&config_at(&provider.base_url()));
    let client = reqwest::Client::new();
    let from_page =
        |name: &str, value: &str| client.post(format!("{}/admin/reload", open.admin)).header(name, value).send();
    assert_eq!(from_page("origin", "https://elsewhere.example").await.expect("answers").status(), 403);
    assert_eq!(from_page("sec-fetch-site", "cross-site").await.expect("answers").status(), 403);
    assert_eq!(from_page("host", "elsewhere.example").await.expect("answers").status(), 401);
    assert_eq!(open.admin("PATCH", "/admin/reload", "", None).await.status, 405);
    assert_eq!(open.admin_get("/admin/nothing").await.status, 404);
}
