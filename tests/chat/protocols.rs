//! Every chat API on its own routes: what goes on, what does not, and what is refused because nothing is translated.

use loadtest::provider::{Chat, Provider};

use super::*;

/// A gateway with `talk` at OpenAI and `claude` at Anthropic.
fn both(openai: &Provider, anthropic: &Provider) -> Gateway {
    let url = format!("{}/v1", openai.base_url());
    let mut config = chat_config(&[("one", "openai", &url)], "", "budget = \"10\"", "");
    config.push_str(&format!("[[models]]\nname = \"claude\"\nkind = \"chat\"\n{PRICES}\n"));
    config.push_str(&upstream("two", "anthropic", &format!("{}/anthropic", anthropic.base_url()), "claude"));
    Gateway::start(&config)
}

fn messages(stream: bool) -> Value {
    json!({
        "model": "claude",
        "max_tokens": 20,
        "messages": [{ "role": "user", "content": "one two three" }],
        "stream": stream,
    })
}

#[tokio::test]
async fn anthropics_messages_pass_with_their_headers_and_are_billed() {
    let (openai, anthropic) = (Provider::start(Script::new()), Provider::start(Script::new()));
    let gateway = both(&openai, &anthropic);
    let headers = [
        ("x-api-key", KEY),
        ("anthropic-version", "2026-10-21"),
        ("anthropic-beta", "one,two"),
        ("cookie", "secret-cookie"),
        ("openai-organization", "secret-org"),
        ("x-forwarded-for", "10.1.2.3"),
    ];
    let answer = gateway.post("/v1/messages?beta=true", "", &headers, messages(false).to_string()).await;
    let body = answer.expect(200);
    assert_eq!((&body["type"], &body["usage"]["output_tokens"]), (&json!("message"), &json!(5)));
    assert_eq!(answer.header("x-gateway-cost-eur"), "0.013");
    assert_eq!(answer.header("request-id"), answer.header("x-request-id"));
    let call = anthropic.calls().remove(0);
    assert_eq!(call.path, "/anthropic/v1/messages?beta=true");
    assert_eq!(call.header("x-api-key"), Some("upstream-secret-two"));
    assert_eq!(
        (call.header("anthropic-version"), call.header("anthropic-beta")),
        (Some("2026-10-21"), Some("one,two"))
    );
    assert_eq!(call.json(), {
        let mut sent = messages(false);
        sent["model"] = json!("claude-there");
        sent
    });
    let raw = format!("{:?}", call.headers);
    for secret in [KEY, "secret-cookie", "secret-org", "10.1.2.3"] {
        assert!(!raw.contains(secret), "{secret} went upstream: {raw}");
    }

    let response = open(&gateway, "/v1/messages", &messages(true)).await;
    let text = text_of(response).await;
    assert!(text.starts_with("event: message_start\ndata: {"), "{text}");
    assert!(text.ends_with("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"), "{text}");
    assert_eq!(anthropic.calls()[1].header("anthropic-version"), Some("2023-06-01"));
    let records = records(&gateway, 2).await;
    for record in &records {
        assert_eq!(bill(record), (3, 5, "0.013", false));
        assert_eq!(
            (&record["model"], &record["upstream"], &record["class"]),
            (&json!("claude"), &json!("two"), &json!("chat"))
        );
    }
}

#[tokio::test]
async fn completions_and_responses_pass_whole_and_streamed() {
    let provider = Provider::start(talking(Chat { pieces: 4, ..Chat::default() }));
    let gateway = before(&provider, "budget = \"10\"", "");
    let completions = json!({ "model": "talk", "prompt": "one two three", "max_tokens": 20 });
    let responses = json!({ "model": "talk", "input": "one two three", "max_output_tokens": 20 });
    let mut count = 0;
    for (path, body, last) in [
        ("/v1/completions", &completions, "data: [DONE]\n\n"),
        ("/openai/v1/completions", &completions, "data: [DONE]\n\n"),
        ("/v1/responses", &responses, "}\n\n"),
        ("/openai/v1/responses", &responses, "}\n\n"),
        ("/openai/v1/chat/completions", &ask(false), "data: [DONE]\n\n"),
        ("/openai/deployments/talk/chat/completions?api-version=2024-10-21", &ask(false), "data: [DONE]\n\n"),
    ] {
        for streams in [false, true] {
            let mut body = body.clone();
            body["stream"] = json!(streams);
            let response = open(&gateway, path, &body).await;
            let status = response.status();
            let text = text_of(response).await;
            assert_eq!(status, 200, "{path}: {text}");
            if streams {
                assert!(text.ends_with(last), "{path}: {text}");
                assert!(!text.contains("\"choices\":[]"), "{path}: {text}");
            }
            count += 1;
            let records = records(&gateway, count).await;
            assert_eq!(bill(records.last().expect("a record")), (3, 4, "0.011", false), "{path} {streams}");
        }
    }
    let named = |call: &loadtest::provider::Call| (call.path.clone(), call.json()["model"].clone());
    let calls: Vec<_> = provider.calls().iter().map(named).collect();
    assert_eq!(calls[0], ("/v1/completions".to_owned(), json!("talk-there")));
    assert_eq!(calls[4], ("/v1/responses".to_owned(), json!("talk-there")));
    assert!(provider.calls()[5].json().get("stream_options").is_none(), "responses tell their usage unasked");
}

#[tokio::test]
async fn a_model_is_reached_only_by_the_api_that_its_provider_speaks() {
    let (openai, anthropic) = (Provider::start(Script::new()), Provider::start(Script::new()));
    let gateway = both(&openai, &anthropic);
    let answer = gateway
        .post("/v1/messages", KEY, &[], json!({"model": "talk", "max_tokens": 1, "messages": []}).to_string())
        .await;
    let error = answer.expect(400);
    assert_eq!((&error["type"], &error["error"]["type"]), (&json!("error"), &json!("invalid_request_error")));
    let message = error["error"]["message"].as_str().expect("words");
    assert!(message.contains("/v1/chat/completions"), "{message}");
    let mut body = ask(false);
    body["model"] = json!("claude");
    let answer = gateway.post("/v1/chat/completions", KEY, &[], body.to_string()).await;
    let error = answer.expect(400);
    assert!(error["error"]["message"].as_str().expect("words").contains("/v1/messages"), "{error}");
    // Chat models make no vectors, and the other way round.
    let answer = gateway.post("/v1/embeddings", KEY, &[], json!({"model": "talk", "input": "x"}).to_string()).await;
    assert!(answer.expect(400)["error"]["message"].as_str().expect("words").contains("/v1/chat/completions"));
    assert_eq!((openai.call_count(), anthropic.call_count()), (0, 0));
}

#[tokio::test]
async fn what_is_wrong_with_a_request_is_told_in_the_routes_own_words() {
    let (openai, anthropic) = (Provider::start(Script::new()), Provider::start(Script::new()));
    let gateway = both(&openai, &anthropic);
    for (body, status, code) in [
        (json!({"messages": []}).to_string(), 404, "model_not_found"),
        (json!({"model": "other", "messages": []}).to_string(), 404, "model_not_found"),
        ("{".to_owned(), 400, "invalid_json"),
        (json!({"model": "talk", "stream": 1}).to_string(), 400, "invalid_input"),
        (json!({"model": "talk", "n": 0}).to_string(), 400, "invalid_input"),
    ] {
        let answer = gateway.post("/v1/chat/completions", KEY, &[], body.clone()).await;
        // With several chat models none is taken for granted.
        let status = if body.contains("\"model\"") || body == "{" { status } else { 400 };
        answer.expect(status);
        assert!([code, "invalid_input"].contains(&answer.error_code().as_str()), "{}", answer.text);
    }
    let unknown = gateway.post("/v1/messages", KEY, &[], json!({"model": "no", "max_tokens": 1}).to_string()).await;
    assert_eq!(unknown.expect(404)["error"]["type"], "not_found_error");
    let keyless = gateway.post("/v1/messages", "", &[], messages(false).to_string()).await;
    assert_eq!(keyless.expect(401)["error"]["type"], "authentication_error");
    let background = json!({"model": "talk", "input": "x", "background": true}).to_string();
    let refused = gateway.post("/v1/responses", KEY, &[], background).await;
    assert_eq!(refused.expect(400)["error"]["param"], "background");
    let wrong = gateway.get("/v1/chat/completions", KEY).await;
    assert_eq!((wrong.status, wrong.header("allow")), (405, "POST"));
    assert_eq!((openai.call_count(), anthropic.call_count()), (0, 0));
}

#[tokio::test]
async fn models_are_listed_with_what_their_answers_cost() {
    let (openai, anthropic) = (Provider::start(Script::new()), Provider::start(Script::new()));
    let gateway = both(&openai, &anthropic);
    let list = gateway.get("/v1/models", KEY).await.expect(200);
    let names: Vec<&Value> = list["data"].as_array().expect("a list").iter().map(|model| &model["id"]).collect();
    assert_eq!(names, ["talk", "claude"]);
    assert_eq!(
        (&list["data"][0]["kind"], &list["data"][0]["price"]["per_million_output_tokens"]),
        (&json!("chat"), &json!("2000"))
    );
}

#[tokio::test]
async fn classes_of_chat_are_chat_or_batch() {
    let provider = Provider::start(Script::new());
    let gateway = before(&provider, "", "");
    for (header, class) in
        [("", "chat"), ("chat", "chat"), ("interactive-search", "chat"), ("batch-ingestion", "batch-ingestion")]
    {
        let headers: &[(&str, &str)] = if header.is_empty() { &[] } else { &[("x-traffic-class", header)] };
        let answer = gateway.post("/v1/chat/completions", KEY, headers, ask(false).to_string()).await;
        answer.expect(200);
        assert_eq!(answer.header("x-traffic-class"), class, "{header}");
    }
    let answer =
        gateway.post("/v1/chat/completions", KEY, &[("x-traffic-class", "bulk")], ask(false).to_string()).await;
    answer.expect(400);
}

#[tokio::test]
async fn the_simulated_provider_chats_without_a_key_of_anybodys() {
    let config = "[server]\nlisten = \"127.0.0.1:0\"\nadmin_listen = \"127.0.0.1:0\"\n";
    let gateway = Gateway::start(config);
    let body = |stream: bool| json!({"model": "simulated-chat", "messages": [{"role": "user", "content": "hi"}], "stream": stream});
    let request = |body: Value| gateway.post("/v1/chat/completions", "vg-demo-key", &[], body.to_string());
    let whole = request(body(false)).await;
    let text = whole.expect(200)["choices"][0]["message"]["content"].as_str().expect("text").to_owned();
    assert_ne!(whole.header("x-gateway-cost-eur"), "0");
    let streamed = request(body(true)).await;
    assert_eq!(streamed.status, 200);
    let events = data(&streamed.text);
    let said: String = events
        .iter()
        .filter_map(|event| serde_json::from_str::<Value>(event).ok())
        .map(|event| event["choices"][0]["delta"]["content"].as_str().unwrap_or_default().to_owned())
        .collect();
    assert_eq!((said, events.last()), (text, Some(&"[DONE]")));
    let records = records(&gateway, 2).await;
    assert_eq!(bill(&records[0]).1, bill(&records[1]).1);
}
