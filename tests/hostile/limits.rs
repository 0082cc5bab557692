//! Sizes without end: each has a limit, an answer that names it where one can still be given, and a count.

use std::sync::Arc;
use std::time::{Duration, Instant};

use loadtest::provider::{Provider, Script};
use serde_json::json;

use super::{config, provider};
use crate::support::gateway::{KEY, KEY_TWO};
use crate::support::{Gateway, Raw};

/// A head that goes beyond what is read of one is answered 431, and the connection closed.
#[tokio::test]
async fn a_head_without_end_is_refused() {
    let provider = provider();
    let gateway = Gateway::start(&config(&provider, ""));
    for _ in 0..10 {
        let mut client = Raw::connect(&gateway.url);
        client.request("GET /healthz", &[], "");
        assert_eq!(client.answer_to(false).status, 200);
    }
    let many: String = (0..200).map(|number| format!("X-{number}: x\r\n")).collect();
    let long = format!("X-Long: {}\r\n", "x".repeat(256 << 10));
    let name = format!("{}: x\r\n", "X".repeat(256 << 10));
    for (what, lines) in [("many headers", many), ("a long header", long), ("a long name", name)] {
        let mut client = Raw::connect(&gateway.url);
        client.try_send(format!("POST /v1/embeddings HTTP/1.1\r\nHost: g\r\n{lines}\r\n"));
        let answer = client.maybe_answer();
        assert!(answer.is_none_or(|answer| matches!(answer.status, 400 | 431)), "{what}");
    }
    let mut client = Raw::connect(&gateway.url);
    client.try_send(format!("GET /{} HTTP/1.1\r\nHost: g\r\n\r\n", "x".repeat(256 << 10)));
    assert!(client.maybe_answer().is_none_or(|answer| matches!(answer.status, 400 | 414 | 431)));
    drop(client);
    assert_eq!(provider.call_count(), 0);
    gateway.embed(json!("afterwards")).await.expect(200);
    // The server library answers them before any code of ours: what is counted is a connection that brought no request.
    let counted = "vectorgate_connections_without_request_total{end=\"other\"}";
    let begun = Instant::now();
    while gateway.metric(counted).await < 4.0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{}", gateway.metric(counted).await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // A client library may open a connection more than it uses.
    assert!(gateway.metric(counted).await < 10.0, "those that asked are not among them");
}

#[tokio::test]
async fn bodies_that_go_on_inwards_or_in_digits_are_refused_and_counted() {
    let provider = Provider::start(Script::new().space("A").width(8));
    let gateway = Gateway::start(&config(&provider, ""));
    let deep = |open: &str, close: &str, levels: usize| {
        format!("{{\"model\":\"emb-a\",\"input\":\"a\",\"x\":{}1{}}}", open.repeat(levels), close.repeat(levels))
    };
    let number = |member: &str, value: &str| format!("{{\"model\":\"emb-a\",\"input\":\"a\",\"{member}\":{value}}}");
    let digits = "9".repeat(100_000);
    let table = [
        (deep("[", "]", 128), "invalid_json"),
        (deep("[", "]", 100_000), "invalid_json"),
        (deep("{\"a\":", "}", 100_000), "invalid_json"),
        (number("dimensions", &digits), "invalid_input"),
        (number("dimensions", "1e999"), "invalid_input"),
        (number("dimensions", "-1"), "invalid_input"),
        (number("dimensions", "4294967296"), "unsupported_dimensions"),
        (number("dimensions", &format!("0.{digits}")), "invalid_input"),
        (format!("{{\"model\":\"emb-a\",\"input\":[[{digits}]]}}"), "invalid_input"),
        ("{\"model\":\"emb-a\",\"input\":[[4294967296]]}".to_owned(), "invalid_input"),
        (format!("{{\"model\":\"{}\",\"input\":\"a\"}}", "x".repeat(1 << 20)), "model_not_found"),
    ];
    let mut counts = std::collections::BTreeMap::<&str, f64>::new();
    for (body, code) in &table {
        let answer = gateway.post("/v1/embeddings", KEY, &[], body.clone()).await;
        let shown = &body[..body.len().min(80)];
        assert_eq!(answer.error_code(), *code, "{shown}: {}", &answer.text[..answer.text.len().min(300)]);
        assert!(answer.text.len() < 4096, "{shown}: the answer is as long as what was asked");
        *counts.entry(code).or_default() += 1.0;
    }
    for (code, count) in counts {
        assert_eq!(gateway.metric(&format!("vectorgate_errors_total{{code=\"{code}\"}}")).await, count, "{code}");
    }
    assert_eq!(provider.call_count(), 0);
    gateway.post("/v1/embeddings", KEY, &[], deep("[", "]", 100)).await.expect(200);
}

#[tokio::test]
async fn a_tenant_has_as_many_requests_at_once_as_it_may() {
    let provider = Provider::start(Script::new().space("A").width(8).delay_ms(1_500.0));
    let limited = config(&provider, "").replace("budget = \"1.00\"", "budget = \"1.00\"\nmax_concurrency = 2");
    let gateway = Arc::new(Gateway::start(&limited));
    let ask = |key: &'static str, text: &str| {
        let (gateway, body) = (Arc::clone(&gateway), json!({ "model": "emb-a", "input": text }).to_string());
        async move { gateway.post("/v1/embeddings", key, &[], body).await }
    };
    let held = [tokio::spawn(ask(KEY, "the first")), tokio::spawn(ask(KEY, "the second"))];
    let waiting = tokio::task::spawn_blocking(move || (provider.wait_calls(2, Duration::from_secs(30)), provider));
    let (both, _provider) = waiting.await.expect("no panic");
    assert!(both, "both are under way: {}", gateway.log());
    let refused = ask(KEY, "the third").await;
    assert_eq!((refused.status, refused.error_code().as_str()), (429, "tenant_rate_limited"), "{}", refused.text);
    assert!(refused.text.contains(": 2") && refused.header("retry-after") == "1", "{}", refused.text);
    assert_eq!(gateway.metric("vectorgate_errors_total{code=\"tenant_rate_limited\"}").await, 1.0);
    assert_eq!(gateway.admin_get("/admin/tenants/t1").await.json()["max_concurrency"], 2);
    // Nobody else waits for it, and its places are free again once its answers are out.
    ask(KEY_TWO, "another tenant").await.expect(200);
    for request in held {
        request.await.expect("answered").expect(200);
    }
    ask(KEY, "the fourth").await.expect(200);
}
