//! Streams in a shutdown and over a reload: what is under way ends in order.

use loadtest::provider::{Chat, Provider};

use super::*;

#[tokio::test]
async fn rg_w9ff_a_stream_within_the_time_of_a_shutdown_finishes() {
    let provider = Provider::start(talking(Chat { pieces: 20, gap_ms: 100.0, ..Chat::default() }));
    let mut gateway = before(&provider, "budget = \"10\"", "");
    let mut response = open(&gateway, "/v1/chat/completions", &ask(true)).await;
    response.chunk().await.expect("readable").expect("an event");
    gateway.terminate();
    let text = text_of(response).await;
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    assert!(gateway.wait().success());
    let records = gateway.usage();
    assert_eq!(bill(&records[0]), (3, 20, "0.043", false));
}

#[tokio::test]
async fn rg_w9ff_a_stream_beyond_it_ends_with_an_error_and_is_billed_for_what_came() {
    let provider = Provider::start(talking(Chat { pieces: 10_000, gap_ms: 50.0, ..Chat::default() }));
    let url = format!("{}/v1", provider.base_url());
    let config = chat_config(&[("one", "openai", &url)], "", "budget = \"10\"", "");
    let mut gateway = Gateway::start(&config.replace("workers = 2\n[money]", "workers = 2\ndrain_s = 4\n[money]"));
    let mut response = open(&gateway, "/v1/chat/completions", &ask(true)).await;
    response.chunk().await.expect("readable").expect("an event");
    gateway.terminate();
    let text = text_of(response).await;
    assert!(!text.contains("[DONE]"), "{text}");
    let last: Value = serde_json::from_str(data(&text).last().expect("an event")).expect("JSON");
    assert_eq!(last["error"]["code"], "shutting_down", "{text}");
    assert!(gateway.wait().success());
    let records = gateway.usage();
    let (_, output, _, estimated) = bill(&records[0]);
    assert!(estimated && output > 1, "{records:?}");
    assert_eq!(records[0]["outcome"], "failed");
}

#[tokio::test]
async fn rg_g9xw_a_stream_ends_under_the_configuration_it_began_with() {
    let provider = Provider::start(talking(Chat { pieces: 20, gap_ms: 50.0, ..Chat::default() }));
    let gateway = before(&provider, "budget = \"10\"", "");
    let mut response = open(&gateway, "/v1/chat/completions", &ask(true)).await;
    response.chunk().await.expect("readable").expect("an event");
    let other = Provider::start(Script::new());
    let url = format!("{}/v1", other.base_url());
    let config = chat_config(&[("two", "openai", &url)], "", "budget = \"10\"", "");
    gateway.configure(&config.replace("\"1000\"", "\"9000\""));
    gateway.admin_post("/admin/reload", json!({})).await.expect(200);
    let text = text_of(response).await;
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    let records = records(&gateway, 1).await;
    assert_eq!(bill(&records[0]), (3, 20, "0.043", false), "at the old price");
    let answer = gateway.post("/v1/chat/completions", KEY, &[], ask(false).to_string()).await;
    answer.expect(200);
    assert_eq!(answer.header("x-gateway-upstream"), "two");
}
