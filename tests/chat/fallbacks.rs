//! Other models that answer instead: before the first byte, where the configuration says so, and nowhere else.

use loadtest::provider::{Chat, Cut, Effect, Provider};

use super::*;

/// `talk` at `first`, which falls back to `spare` at `second`, which costs twice as much.
fn pair(first: &Provider, second: &Provider, tenant: &str) -> Gateway {
    let urls = [format!("{}/v1", first.base_url()), format!("{}/v1", second.base_url())];
    let extra = "[retry]\nbase_ms = 1\ncap_ms = 2\nbudget_ratio = 1.0\n";
    let mut config = chat_config(&[("one", "openai", &urls[0])], "fallbacks = [\"spare\"]", tenant, extra);
    config.push_str(
        "[[models]]\nname = \"spare\"\nkind = \"chat\"\nprice_usd_per_million_tokens = \"2000\"\n\
         output_price_usd_per_million_tokens = \"4000\"\n",
    );
    config.push_str(&upstream("two", "openai", &urls[1], "spare"));
    Gateway::start(&config)
}

#[tokio::test]
async fn another_model_answers_before_the_first_byte_at_its_own_price() {
    for streams in [true, false] {
        let (down, up) = (Provider::start(Script::new().always(Effect::status(500))), Provider::start(Script::new()));
        let gateway = pair(&down, &up, "budget = \"10\"");
        let response = open(&gateway, "/v1/chat/completions", &ask(streams)).await;
        assert_eq!(response.status(), 200);
        let header = |name: &str| response.headers()[name].to_str().expect("text").to_owned();
        assert_eq!(
            (header("x-gateway-model"), header("x-gateway-upstream"), header("x-gateway-attempts")),
            ("spare".to_owned(), "two".to_owned(), "2".to_owned())
        );
        assert!(text_of(response).await.contains("word4"));
        assert_eq!(up.calls()[0].json()["model"], "spare-there");
        let records = records(&gateway, 1).await;
        assert_eq!(bill(&records[0]), (3, 5, "0.026", false));
        assert_eq!((&records[0]["model"], &records[0]["upstream"]), (&json!("talk"), &json!("two")));
        let account = settled(&gateway).await;
        assert_eq!((&account["spent"], &account["held"]), (&json!("0.026"), &json!("0")));
    }
}

#[tokio::test]
async fn an_open_breaker_and_a_used_up_quota_are_reasons_too() {
    let (first, second) = (Provider::start(Script::new()), Provider::start(Script::new()));
    let gateway = pair(&first, &second, "");
    gateway.admin_post("/admin/upstreams/one/open", json!({})).await.expect(200);
    let answer = gateway.post("/v1/chat/completions", KEY, &[], ask(false).to_string()).await;
    answer.expect(200);
    assert_eq!((answer.header("x-gateway-model"), answer.header("x-gateway-attempts")), ("spare", "1"));
    assert_eq!((first.call_count(), second.call_count()), (0, 1));
    gateway.admin_post("/admin/upstreams/two/open", json!({})).await.expect(200);
    let answer = gateway.post("/v1/chat/completions", KEY, &[], ask(false).to_string()).await;
    answer.expect(503);
    assert_eq!(answer.error_code(), "upstream_circuit_open");
    assert_eq!(answer.header("x-retrieval-fallback"), "", "a chat is no search");
}

#[tokio::test]
async fn after_the_first_byte_and_for_a_refused_request_there_is_no_other_model() {
    let cut = Chat { cut_after_events: Some(2), cut: Cut::Close, gap_ms: 5.0, ..Chat::default() };
    for (script, status) in [(talking(cut), 200), (Script::new().always(Effect::status(400)), 400)] {
        let (first, second) = (Provider::start(script), Provider::start(Script::new()));
        let gateway = pair(&first, &second, "budget = \"10\"");
        let response = open(&gateway, "/v1/chat/completions", &ask(true)).await;
        assert_eq!(response.status(), status);
        let text = text_of(response).await;
        assert!(text.contains("\"error\"") && !text.contains("[DONE]"), "{text}");
        assert_eq!(second.call_count(), 0);
    }
}

#[tokio::test]
async fn where_all_fail_the_model_asked_for_has_the_word() {
    let said = |text: &str| Effect::answer(503, &format!("{{\"error\":{{\"message\":\"{text}\"}}}}"));
    let first = Provider::start(Script::new().always(said("first is down")));
    let second = Provider::start(Script::new().always(said("second is down")));
    let gateway = pair(&first, &second, "budget = \"10\"");
    let answer = gateway.post("/v1/chat/completions", KEY, &[], ask(false).to_string()).await;
    answer.expect(502);
    assert!(answer.text.contains("first is down"), "{}", answer.text);
    assert!(second.call_count() >= 1);
    let account = settled(&gateway).await;
    assert_eq!((&account["spent"], &account["held"]), (&json!("0"), &json!("0")));
}

#[tokio::test]
async fn a_fallback_that_the_tenant_may_not_use_is_not_used() {
    let (down, up) = (Provider::start(Script::new().always(Effect::status(500))), Provider::start(Script::new()));
    let gateway = pair(&down, &up, "models = [\"talk\"]");
    gateway.post("/v1/chat/completions", KEY, &[], ask(false).to_string()).await.expect(502);
    assert_eq!(up.call_count(), 0);
}

#[tokio::test]
async fn a_fallback_beyond_the_budget_is_not_called() {
    let (down, up) = (Provider::start(Script::new().always(Effect::status(500))), Provider::start(Script::new()));
    // Enough for the first model's longest answer, with its bytes as the input's bound; not for the second's.
    let gateway = pair(&down, &up, "budget = \"0.2\"");
    let answer = gateway.post("/v1/chat/completions", KEY, &[], ask(false).to_string()).await;
    answer.expect(502);
    assert_eq!(up.call_count(), 0);
    let account = settled(&gateway).await;
    assert_eq!((&account["remaining"], &account["held"]), (&json!("0.2"), &json!("0")));
}
