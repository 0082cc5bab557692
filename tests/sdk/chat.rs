//! Chat by the official OpenAI and Anthropic SDKs: whole, streamed, broken in the middle, refused.

use loadtest::provider::{Chat, Cut, Effect, Provider, Script, When};
use serde_json::{Value, json};

use super::run::{Home, told};
use crate::chat::{PRICES, bill, chat_config, records, upstream};
use crate::support::{Gateway, KEY};

/// The text that the scripted provider says.
const SAID: &str = "word0 word1 word2 word3 word4 ";

/// Both SDKs' providers as one, and a gateway before it.
fn start(script: Script) -> (Provider, Gateway) {
    let provider = Provider::start(script);
    let mut config =
        chat_config(&[("one", "openai", &format!("{}/v1", provider.base_url()))], "", "budget = \"10\"", "");
    config.push_str(&format!("[[models]]\nname = \"claude\"\nkind = \"chat\"\n{PRICES}\n"));
    config.push_str(&upstream("two", "anthropic", &provider.base_url(), "claude"));
    let gateway = Gateway::start(&config);
    (provider, gateway)
}

fn ask(sdk: &str, stream: bool) -> Value {
    json!({ "sdk": sdk, "stream": stream, "model": if sdk == "messages" { "claude" } else { "talk" } })
}

async fn all_of(home: Home, gateway: &Gateway, asks: Vec<Value>) -> Vec<Value> {
    let (url, asks) = (gateway.url.clone(), Value::Array(asks));
    tokio::task::spawn_blocking(move || told(home, "chat", &[&url, KEY], &asks)).await.expect("no panic")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_openai_and_anthropic_sdks_chat_whole_and_streamed_and_each_call_costs_its_usage() {
    for home in [Home::Newest, Home::Older] {
        let (_provider, gateway) = start(Script::new());
        let mut asks = Vec::new();
        for sdk in ["chat", "completions", "responses", "messages"] {
            asks.extend([ask(sdk, false), ask(sdk, true)]);
        }
        let mut with_usage = ask("chat", true);
        with_usage["usage"] = json!(true);
        asks.push(with_usage);
        let answers = all_of(home, &gateway, asks.clone()).await;
        assert_eq!(answers.len(), asks.len());
        for (ask, answer) in asks.iter().zip(&answers) {
            assert_eq!(answer["text"], SAID, "{home:?} {ask}: {answer}");
            let silent = ask["stream"] == true && ask["sdk"] != "messages" && ask["sdk"] != "responses";
            let usage = if silent && ask["usage"] != true { Value::Null } else { json!(5) };
            assert_eq!(answer["usage"], usage, "{home:?} {ask}");
        }
        for record in records(&gateway, asks.len()).await {
            assert_eq!(bill(&record), (3, 5, "0.013", false), "{home:?}: {record}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rg_whc3_the_sdks_raise_when_an_upstream_dies_in_the_middle() {
    let cut = Chat { cut_after_events: Some(4), gap_ms: 5.0, cut: Cut::Close, ..Chat::default() };
    for home in [Home::Newest, Home::Older] {
        let (_provider, gateway) = start(Script { chat: cut.clone(), ..Script::new() });
        let asks: Vec<Value> = ["chat", "completions", "responses", "messages"].map(|sdk| ask(sdk, true)).into();
        let answers = all_of(home, &gateway, asks.clone()).await;
        for (ask, answer) in asks.iter().zip(&answers) {
            let family =
                answer["family"].as_array().unwrap_or_else(|| panic!("{home:?} {ask} raised nothing: {answer}"));
            assert!(family.contains(&json!("APIError")), "{home:?} {ask}: {answer}");
            assert!(answer["message"].as_str().expect("words").contains("in the middle"), "{home:?} {ask}: {answer}");
        }
        assert!(records(&gateway, 4).await.iter().all(|record| record["outcome"] == "failed"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_the_sdk_leaves_is_billed_for_what_came() {
    let (_provider, gateway) =
        start(Script { chat: Chat { pieces: 200, gap_ms: 20.0, ..Chat::default() }, ..Script::new() });
    let mut leaving = ask("chat", true);
    leaving["stop"] = json!(5);
    let answers = all_of(Home::Newest, &gateway, vec![leaving]).await;
    assert_eq!(answers[0]["text"], SAID, "{answers:?}");
    let records = records(&gateway, 1).await;
    let (_, output, _, estimated) = bill(&records[0]);
    assert!(estimated && (5..100).contains(&output), "{records:?}");
    assert_eq!(records[0]["outcome"], "abandoned");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_raise_the_class_that_each_sdk_has_for_them() {
    let busy = Script::new().rule(When::path("/v1"), Effect::status(429));
    let (_provider, gateway) = start(busy);
    let mut asks = Vec::new();
    for sdk in ["chat", "messages"] {
        asks.push(ask(sdk, true));
        let mut unknown = ask(sdk, false);
        unknown["model"] = json!("none-such");
        asks.push(unknown);
    }
    let answers = all_of(Home::Newest, &gateway, asks).await;
    let raised: Vec<&Value> = answers.iter().map(|answer| &answer["raised"]).collect();
    assert_eq!(raised, ["RateLimitError", "NotFoundError", "RateLimitError", "NotFoundError"], "{answers:?}");
}
