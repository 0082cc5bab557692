//! Who is let in on the admin side, and that open dashboards do not hold up the end of the process.

use futures_util::StreamExt as _;
use loadtest::provider::{Provider, Script};
use serde_json::json;

use super::PATIENCE;
use crate::support::{Gateway, embedding_config};

const TOKEN: &str = "an-admin-token-for-tests";

fn start(extra: &str) -> (Provider, Gateway) {
    let provider = Provider::start(Script::new().space("A").width(8));
    let url = format!("{}/v1", provider.base_url());
    let gateway = Gateway::start(&embedding_config(&[("one", "openai", &url)], "dimensions = 8", "", extra));
    (provider, gateway)
}

#[tokio::test]
async fn with_a_token_everything_but_health_asks_for_it() {
    let (_provider, gateway) = start(&format!("admin_token = {{ value = \"{TOKEN}\" }}\n"));
    for path in ["/healthz", "/readyz"] {
        assert_eq!(gateway.admin_get(path).await.status, 200, "{path}");
    }
    let guarded = ["/metrics", "/admin/tenants", "/admin/upstreams", "/dashboard/snapshot", "/dashboard/history"];
    let bearer = format!("Bearer {TOKEN}");
    for path in guarded {
        let refused = gateway.admin_get(path).await;
        assert_eq!(refused.status, 401, "{path}");
        assert!(!refused.text.contains("t1") && !refused.text.contains(TOKEN), "{path}: {}", refused.text);
        assert_eq!(gateway.admin_get_with(path, &[("authorization", "Bearer wrong")]).await.status, 401, "{path}");
        assert_eq!(gateway.admin_get_with(path, &[("authorization", &bearer)]).await.status, 200, "{path}");
    }
    let order = gateway.admin_post("/admin/upstreams/one/drain", json!({})).await;
    assert_eq!(order.status, 401, "{}", order.text);
    assert_eq!(gateway.embed(json!("alpha")).await.status, 200, "nothing was drained");
}

#[tokio::test]
async fn without_a_token_this_machine_is_let_in_by_its_own_name_only() {
    let (_provider, gateway) = start("");
    assert_eq!(gateway.admin_get("/metrics").await.status, 200);
    let renamed = gateway.admin_get_with("/metrics", &[("host", "evil.example")]).await;
    assert_eq!(renamed.status, 401, "a name that somebody else points here");
    let client = reqwest::Client::new();
    let url = format!("{}/admin/upstreams/one/drain", gateway.admin);
    let forged = client.post(&url).header("origin", "http://evil.example").send().await.expect("an answer");
    assert_eq!(forged.status().as_u16(), 403, "another site's page");
    assert_eq!(gateway.embed(json!("alpha")).await.status, 200, "nothing was drained");
}

#[tokio::test(flavor = "multi_thread")]
async fn open_dashboards_see_the_draining_and_let_go() {
    let (_provider, mut gateway) = start("");
    let mut feed = reqwest::get(format!("{}/dashboard/events", gateway.admin)).await.expect("a feed").bytes_stream();
    let first = feed.next().await.expect("a chunk").expect("bytes");
    assert!(first.starts_with(b"event: snapshot\ndata: {"));
    gateway.terminate();
    let mut seen = first.to_vec();
    let drained = async {
        while let Some(Ok(chunk)) = feed.next().await {
            seen.extend_from_slice(&chunk);
        }
    };
    tokio::time::timeout(PATIENCE, drained).await.expect("the feed ends");
    assert!(String::from_utf8_lossy(&seen).contains("\"status\":\"draining\""));
    assert!(gateway.wait().success());
    assert!(gateway.log().contains("SIGTERM: draining"));
}
