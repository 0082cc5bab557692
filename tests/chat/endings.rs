//! RG-whc3: an upstream that dies in the middle of an answer, in every way, and one that fails before it.

use loadtest::provider::{Chat, Cut, Effect, Fault, Framing, Pace, Provider};
use serde_json::Value;

use super::*;

/// Streams against a provider that ends so after three words; the text, and the record.
async fn broken(script: Script) -> (String, Value, Gateway) {
    let provider = Provider::start(script);
    let url = format!("{}/v1", provider.base_url());
    let mut config = chat_config(&[("one", "openai", &url)], "", "budget = \"10\"", PATIENT);
    config.push_str("timeout_s = 1\n");
    let gateway = Gateway::start(&config);
    let response = open(&gateway, "/v1/chat/completions", &ask(true)).await;
    assert_eq!(response.status(), 200);
    let text = text_of(response).await;
    assert_eq!(provider.call_count(), 1, "no second call in the middle of an answer");
    let record = records(&gateway, 1).await.remove(0);
    assert_eq!(settled(&gateway).await["held"], "0");
    (text, record, gateway)
}

/// Three words, then exactly one error event, and no marker.
#[track_caller]
fn assert_broken(text: &str, code: &str) {
    assert!(text.ends_with("\n\n"), "{text:?}");
    assert!(!text.contains("[DONE]"), "{text}");
    let events: Vec<Value> =
        data(text).iter().map(|event| serde_json::from_str(event).unwrap_or_else(|e| panic!("{e}: {event}"))).collect();
    assert_eq!(events.len(), 4, "{text}");
    let error = &events[3]["error"];
    assert!(error["message"].is_string(), "{text}");
    if !code.is_empty() {
        assert_eq!(error["code"], code, "{text}");
    }
}

#[tokio::test]
async fn rg_whc3_a_cut_stream_ends_with_a_readable_error() {
    for cut in [Cut::Close, Cut::Clean, Cut::MidEvent, Cut::Reset] {
        let shape = Chat { cut_after_events: Some(3), gap_ms: 5.0, cut, ..Chat::default() };
        let (text, record, gateway) = broken(talking(shape)).await;
        assert_broken(&text, "upstream_error");
        let (input, output, _, estimated) = bill(&record);
        assert!(estimated && input >= 3 && (3..10).contains(&output), "{cut:?}: {record}");
        assert_eq!((&record["outcome"], &record["status"]), (&json!("failed"), &json!(502)), "{cut:?}");
        let failed =
            "vectorgate_request_duration_seconds_count{class=\"chat\",model=\"talk\",outcome=\"upstream_error\"}";
        assert_eq!(gateway.metric(failed).await, 1.0, "{cut:?}");
    }
}

#[tokio::test]
async fn rg_whc3_a_stream_that_stops_ends_after_the_upstreams_time_limit() {
    let shape = Chat { cut_after_events: Some(3), cut: Cut::Silence, ..Chat::default() };
    let (text, record, _) = broken(talking(shape)).await;
    assert_broken(&text, "upstream_timeout");
    assert_eq!(record["status"], 504);
}

#[tokio::test]
async fn rg_whc3_an_error_of_the_providers_own_is_passed_and_booked_as_one() {
    let shape = Chat { error_after_events: Some(3), ..Chat::default() };
    let (text, record, _) = broken(talking(shape)).await;
    assert_broken(&text, "");
    assert!(text.contains("overloaded"), "{text}");
    assert_eq!(record["outcome"], "failed");
}

#[tokio::test]
async fn rg_whc3_before_the_first_event_another_upstream_takes_over() {
    let first_event = Chat { error_after_events: Some(0), ..Chat::default() };
    for (name, script) in [
        ("500", Script::new().always(Effect::status(500))),
        ("429", Script::new().always(Effect::status(429))),
        ("an error as the first event", talking(first_event)),
        ("a head and nothing else", talking(Chat { cut_after_events: Some(0), ..Chat::default() })),
        ("no stream at all", Script::new().always(Effect::answer(200, "<html>hello</html>").content_type("text/html"))),
    ] {
        let (bad, good) = (Provider::start(script), Provider::start(Script::new()));
        let urls = [format!("{}/v1", bad.base_url()), format!("{}/v1", good.base_url())];
        let mut config = chat_config(&[("bad", "openai", &urls[0])], "", "budget = \"10\"", PATIENT);
        config.push_str(&upstream("good", "openai", &urls[1], "talk"));
        config.push_str("tier = 1\n");
        let gateway = Gateway::start(&config);
        let response = open(&gateway, "/v1/chat/completions", &ask(true)).await;
        assert_eq!(
            (response.status().as_u16(), &response.headers()["x-gateway-upstream"]),
            (200, &"good".parse().expect("text")),
            "{name}"
        );
        assert_eq!(response.headers()["x-gateway-attempts"], "2", "{name}");
        assert!(text_of(response).await.ends_with("data: [DONE]\n\n"), "{name}");
        assert_eq!((bad.call_count(), good.call_count()), (1, 1), "{name}");
        let records = records(&gateway, 1).await;
        assert_eq!(bill(&records[0]), (3, 5, "0.013", false), "{name}");
    }
}

#[tokio::test]
async fn rg_5fbn_transport_failures_fail_over_like_errors_do() {
    let good = Provider::start(Script::new());
    let good_url = format!("{}/v1", good.base_url());
    let faults = [Fault::AcceptAndClose, Fault::ResetAfterBody, Fault::CloseAfterBody, Fault::Garbage];
    let broken: Vec<Provider> =
        faults.into_iter().map(|fault| Provider::start(Script::new().always(Effect::fault(fault)))).collect();
    let refused = std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port");
    let mut urls: Vec<String> = broken.iter().map(|provider| format!("{}/v1", provider.base_url())).collect();
    urls.push(format!("http://{refused}/v1"));
    urls.push("http://no-such-host.invalid/v1".to_owned());
    for (place, url) in urls.iter().enumerate() {
        let mut config = chat_config(&[("bad", "openai", url)], "", "budget = \"10\"", PATIENT);
        config.push_str(&upstream("good", "openai", &good_url, "talk"));
        config.push_str("tier = 1\n");
        let gateway = Gateway::start(&config);
        for streams in [true, false] {
            let answer = gateway.post("/v1/chat/completions", KEY, &[], ask(streams).to_string()).await;
            assert_eq!((answer.status, answer.header("x-gateway-upstream")), (200, "good"), "{place}: {}", answer.text);
            assert!(answer.text.contains("word4"), "{place}: {}", answer.text);
        }
        let records = records(&gateway, 2).await;
        assert!(records.iter().all(|record| bill(record) == (3, 5, "0.013", false)), "{place}: {records:?}");
    }
}

#[tokio::test]
async fn rg_whc3_without_another_upstream_it_is_an_ordinary_error() {
    let provider = Provider::start(Script::new().always(Effect::status(500)));
    let gateway = before(&provider, "budget = \"10\"", "[retry]\nmax_attempts = 1\n");
    let response = open(&gateway, "/v1/chat/completions", &ask(true)).await;
    assert_eq!(response.status(), 502);
    assert_eq!(response.headers()["content-type"], "application/json");
    let body: Value = serde_json::from_str(&text_of(response).await).expect("JSON");
    assert_eq!(body["error"]["code"], "upstream_error");
    let account = settled(&gateway).await;
    assert_eq!((&account["spent"], &account["held"]), (&json!("0"), &json!("0")));
}

#[tokio::test]
async fn rg_db2b_a_slow_stream_is_not_cut_as_long_as_it_goes_on() {
    let words = r#"data: {"choices":[{"index":0,"delta":{"content":"word "}}]}"#.to_owned() + "\n\n";
    let body = words.repeat(4) + "data: [DONE]\n\n";
    let effect = Effect {
        body: Some(body.clone()),
        content_type: Some("text/event-stream".to_owned()),
        framing: Some(Framing::Chunked(usize::MAX)),
        pace: Some(Pace::trickle(words.len(), 700.0)),
        ..Effect::default()
    };
    let provider = Provider::start(Script::new().always(effect));
    let url = format!("{}/v1", provider.base_url());
    let mut config = chat_config(&[("one", "openai", &url)], "", "", "");
    // The whole takes longer than a call may, no pause does.
    config.push_str("timeout_s = 2\n");
    let gateway = Gateway::start(&config);
    assert_eq!(stream(&gateway, &ask(true)).await, (200, body));
}

#[tokio::test]
async fn a_refusal_of_the_request_is_the_providers_own_word_and_no_reason_to_try_elsewhere() {
    let said = r#"{"error":{"message":"max_tokens is too large","type":"invalid_request_error","param":"max_tokens","code":"too_much"}}"#;
    for streams in [true, false] {
        let refusing = Provider::start(Script::new().always(Effect::answer(400, said)));
        let other = Provider::start(Script::new());
        let urls = [format!("{}/v1", refusing.base_url()), format!("{}/v1", other.base_url())];
        let mut config = chat_config(&[("one", "openai", &urls[0])], "", "budget = \"10\"", "");
        config.push_str(&upstream("two", "openai", &urls[1], "talk"));
        config.push_str("tier = 1\n");
        let gateway = Gateway::start(&config);
        let answer = gateway.post("/v1/chat/completions", KEY, &[], ask(streams).to_string()).await;
        let error = &answer.expect(400)["error"];
        assert_eq!((&error["code"], &error["param"]), (&json!("too_much"), &json!("max_tokens")), "{error}");
        assert_eq!(error["message"], "max_tokens is too large");
        assert_eq!(other.call_count(), 0);
    }
}
