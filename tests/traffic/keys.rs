//! A key that is refused or has no credit is set aside alone, told about, and brought back by an operator.

use std::time::Duration;

use loadtest::provider::{Effect, Provider, Script};
use serde_json::json;

use super::{Config, batch, client_calls, healthy, load, query, statuses, texts, until_checked, until_upstream};
use crate::support::gateway::KEY;

fn out_of_credit() -> Effect {
    let body = json!({ "error": {
        "message": "You exceeded your current quota, please check your plan and billing details.",
        "type": "insufficient_quota", "param": null, "code": "insufficient_quota",
    } });
    Effect::answer(429, &body.to_string())
}

/// With a second key the first one's trouble is nobody's; an operator brings it back.
async fn parks(effect: Effect, reason: &str) {
    let (one, two) = (healthy(), healthy());
    let config =
        Config::new().upstream("one", &one.base_url(), "tier = 0").upstream("two", &two.base_url(), "tier = 1");
    let gateway = config.start();
    until_checked(&gateway, &[("one", &one), ("two", &two)]).await;
    one.set_script(Script::new().always(effect));
    one.clear();
    let answers = load(&gateway, "served", 30, Duration::from_millis(10)).await;
    assert_eq!(statuses(&answers), [(200, 30)].into(), "{reason}");
    assert!(client_calls(&one).len() <= 3, "no retries with a parked key: {}", client_calls(&one).len());
    let state = until_upstream(&gateway, "one", "parked", |state| state["parked"] == reason).await;
    assert_eq!(state["breaker"], "closed", "a key's trouble is not the host's");
    assert_eq!(gateway.metric(r#"vectorgate_upstream_keys_parked_total{upstream="one"}"#).await, 1.0);
    assert_eq!(gateway.metric(r#"vectorgate_upstream_keys_parked_total{upstream="two"}"#).await, 0.0);
    one.set_script(Script::new());
    one.clear();
    gateway.admin_post("/admin/upstreams/one/resume", json!({})).await.expect(200);
    until_upstream(&gateway, "one", "back", |state| state["parked"].is_null()).await;
    query(&gateway, "resumed").await.expect(200);
    assert_eq!(client_calls(&one).len(), 1);
}

#[tokio::test]
async fn a_key_without_credit_is_set_aside() {
    parks(out_of_credit(), "out_of_quota").await;
    parks(Effect::status(402), "out_of_quota").await;
}

#[tokio::test]
async fn a_key_that_is_refused_is_set_aside() {
    parks(Effect::status(401), "key_rejected").await;
    parks(Effect::status(403), "key_rejected").await;
}

#[tokio::test]
async fn without_another_key_the_client_hears_of_the_gateways_trouble_and_not_of_its_own() {
    let provider = Provider::start(Script::new().always(Effect::status(401)));
    let gateway = Config::new().upstream("one", &provider.base_url(), "").start();
    for n in 0..3 {
        let answer = query(&gateway, &format!("q {n}")).await;
        assert_eq!((answer.status, answer.error_code().as_str()), (502, "upstream_auth"), "{}", answer.text);
        assert_eq!(answer.header("x-should-retry"), "false");
        assert!(!answer.text.contains("upstream-secret"));
    }
    assert_eq!(batch(&gateway, KEY, &texts("b", 20)).await.error_code(), "upstream_auth");
    assert_eq!(provider.call_count(), 1);
}
