//! What passes through is what was sent, in both directions, however the network cuts it.

use loadtest::provider::{Chat, Effect, Framing, Pace, Provider, Script};
use serde_json::{Value, json};

use super::*;

#[tokio::test]
async fn rg_n5q3_a_chat_body_goes_on_but_for_the_models_name() {
    let provider = Provider::start(Script::new());
    let gateway = before(&provider, "budget = \"10\"", "");
    let odd = r#"{ "messages":[{"role":"user","content":"h\u00e4 \ud83d\ude00"}],"seed":9007199254740993,
        "model" : "talk", "x_trace":{"b":1,"a":[18446744073709551615]}, "temperature":1.10,
        "response_format":{"json_schema":{"schema":{"properties":{"z":{},"a":{}}}}} }"#;
    for _ in 0..2 {
        let answer = gateway.post("/v1/chat/completions", KEY, &[], odd).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
    let sent: Vec<String> =
        provider.calls().iter().map(|call| String::from_utf8(call.body.to_vec()).expect("text")).collect();
    assert_eq!(sent, vec![odd.replace("\"talk\"", "\"talk-there\""); 2]);
}

#[tokio::test]
async fn a_plain_answer_comes_back_as_it_was_with_its_price() {
    let odd = r#"{ "x_unknown" : 1.10, "choices":[{"message":{"content":"h\u00e4"}}],
        "usage":{"prompt_tokens":3,"completion_tokens":5,"total_tokens":8} }"#;
    let provider = Provider::start(Script::new().always(Effect::answer(200, odd)));
    let gateway = before(&provider, "budget = \"10\"", "");
    let answer = gateway.post("/v1/chat/completions", KEY, &[], ask(false).to_string()).await;
    assert_eq!((answer.status, answer.text.as_str()), (200, odd));
    for (name, value) in [
        ("content-type", "application/json"),
        ("x-gateway-cost-eur", "0.013"),
        ("x-tenant-remaining-budget-eur", "9.987"),
        ("x-cache", "BYPASS"),
        ("x-gateway-upstream", "one"),
        ("x-gateway-model", "talk"),
        ("x-gateway-attempts", "1"),
        ("x-traffic-class", "chat"),
    ] {
        assert_eq!(answer.header(name), value, "{name}");
    }
    let records = records(&gateway, 1).await;
    assert_eq!(bill(&records[0]), (3, 5, "0.013", false));
    for (name, value) in [
        ("class", json!("chat")),
        ("model", json!("talk")),
        ("upstream", json!("one")),
        ("space", Value::Null),
        ("unit_price", json!("0.001")),
        ("output_unit_price", json!("0.002")),
        ("status", json!(200)),
        ("outcome", json!("answered")),
    ] {
        assert_eq!(records[0][name], value, "{name}");
    }
    assert_eq!(settled(&gateway).await["spent"], "0.013");
}

#[tokio::test]
async fn a_stream_passes_event_by_event_and_is_billed_by_its_usage() {
    let provider = Provider::start(talking(Chat { pieces: 4, gap_ms: 300.0, ..Chat::default() }));
    let gateway = before(&provider, "budget = \"10\"", "");
    let mut response = open(&gateway, "/v1/chat/completions", &ask(true)).await;
    let headers = response.headers().clone();
    let first = response.chunk().await.expect("readable").expect("an event");
    // The first event is here long before the last one leaves its maker.
    assert_eq!(provider.stats().finished, 0);
    assert!(first.starts_with(b"data: {") && first.ends_with(b"\n\n"), "{first:?}");
    let rest = text_of(response).await;
    let text = format!("{}{rest}", String::from_utf8_lossy(&first));
    let events = data(&text);
    assert_eq!(events.len(), 6, "four words, a stop and a marker: {text}");
    assert_eq!(events.last(), Some(&"[DONE]"));
    assert!(text.ends_with("data: [DONE]\n\n"));
    let header = |name: &str| headers.get(name).map_or("", |value| value.to_str().expect("text"));
    assert_eq!(header("content-type"), "text/event-stream; charset=utf-8");
    assert_eq!((header("x-gateway-upstream"), header("x-traffic-class"), header("x-cache")), ("one", "chat", "BYPASS"));
    assert_eq!(header("x-gateway-cost-eur"), "", "nobody knows it yet");
    let records = records(&gateway, 1).await;
    assert_eq!(bill(&records[0]), (3, 4, "0.011", false));
    assert!(records[0]["latency_ms"].as_f64().expect("a number") < 1200.0, "time to the first event: {}", records[0]);
    assert_eq!(settled(&gateway).await["remaining"], "9.989");
}

/// Streams `body`, given by the provider in chunks of `chunk` bytes, and returns what the client got.
async fn through(body: &str, chunk: usize) -> String {
    let effect = Effect {
        body: Some(body.to_owned()),
        content_type: Some("text/event-stream".to_owned()),
        framing: Some(Framing::Chunked(chunk)),
        pace: Some(Pace::trickle(chunk, 0.01)),
        ..Effect::default()
    };
    let provider = Provider::start(Script::new().always(effect));
    let gateway = before(&provider, "budget = \"10\"", "");
    let (status, text) = stream(&gateway, &ask(true)).await;
    assert_eq!(status, 200, "{text}");
    let records = records(&gateway, 1).await;
    assert_eq!(bill(&records[0]), (3, 5, "0.013", false));
    text
}

const USAGE: &str = r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5,"total_tokens":8}}"#;

#[tokio::test]
async fn characters_and_line_ends_may_be_cut_anywhere() {
    let word = r#"{"choices":[{"index":0,"delta":{"content":"häß 😀 中"}}],"x_unknown":1.10}"#;
    let of = |usage: &str| format!(": keep-alive\n\ndata: {word}\n\n{usage}data: [DONE]\n\n");
    let text = through(&of(&format!("data: {USAGE}\n\n")), 1).await;
    assert_eq!(text, of(""), "byte by byte");
    let crlf = |text: String| text.replace('\n', "\r\n");
    let text = through(&crlf(of(&format!("data: {USAGE}\n\n"))), 1).await;
    assert_eq!(text, crlf(of("")), "with CRLF");
}

#[tokio::test]
async fn an_event_of_five_megabytes_passes_whole() {
    let word = format!(r#"{{"choices":[{{"index":0,"delta":{{"content":"{}"}}}}]}}"#, "a ".repeat(5 << 19));
    let of = |usage: &str| format!("data: {word}\n\n{usage}data: [DONE]\n\n");
    let text = through(&of(&format!("data: {USAGE}\n\n")), 64 << 10).await;
    assert!(text == of(""), "{} bytes of {}", text.len(), of("").len());
}
