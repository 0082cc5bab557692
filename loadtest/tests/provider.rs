//! The scripted provider as a client on a raw socket sees it: every fault, and what the log says of it.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use loadtest::clock;
use loadtest::provider::{
    Call, Delay, Dialect, Effect, Fault, Framing, Limits, Notation, Pace, Provider, Quota, Refusals, Script, TokenRule,
    UsageShape, When, rerank_score, shorten, signature,
};
use serde_json::Value;

/// Long enough for any machine; nothing here waits for it unless a test is about to fail.
const PATIENCE: Duration = Duration::from_secs(20);

/// How a read of everything ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Closed,
    Reset,
}

fn connect(provider: &Provider) -> TcpStream {
    let stream = TcpStream::connect(provider.addr()).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

fn post(path: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn embeddings(text: &str) -> String {
    post("/v1/embeddings", &format!(r#"{{"model":"m","input":"{text}"}}"#))
}

fn read_all(stream: &mut TcpStream) -> (Vec<u8>, End) {
    let mut seen = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => return (seen, End::Closed),
            Ok(length) => seen.extend_from_slice(&chunk[..length]),
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {
                return (seen, End::Reset);
            }
            Err(error) => panic!("unexpected end: {error}"),
        }
    }
}

/// Sends one request and reads until the connection ends.
fn raw(provider: &Provider, request: &str) -> (String, End) {
    let mut stream = connect(provider);
    // A connection that is reset at once tells so to whoever comes first, the writer or the reader.
    let refused = stream.write_all(request.as_bytes()).is_err();
    let (seen, end) = read_all(&mut stream);
    (String::from_utf8_lossy(&seen).into_owned(), if refused { End::Reset } else { end })
}

/// One answer on a connection that stays open.
fn exchange(stream: &mut TcpStream, request: &str) -> (u16, String, Vec<u8>) {
    stream.write_all(request.as_bytes()).expect("sent");
    let mut seen = Vec::new();
    let mut byte = [0; 1];
    while !seen.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).expect("a head");
        seen.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&seen).to_ascii_lowercase();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(0, |text| text.parse().expect("a length"));
    let mut body = vec![0; length];
    stream.read_exact(&mut body).expect("a body");
    (status, head, body)
}

fn ask(provider: &Provider, path: &str, body: &str) -> (u16, String, Value) {
    let (status, head, body) = exchange(&mut connect(provider), &post(path, body));
    (status, head, serde_json::from_slice(&body).unwrap_or_default())
}

fn last(provider: &Provider) -> Call {
    provider.calls().pop().expect("a call")
}

/// A fault on the first call; the second, on a new connection, is good.
#[track_caller]
fn check_fault(fault: Fault, seen: impl Fn(&str) -> bool, end: End) {
    let label = format!("{fault:?}");
    let provider = Provider::start(Script::new().next(1, Effect::fault(fault)));
    let (text, ended) = raw(&provider, &embeddings("a"));
    assert_eq!(ended, end, "{label}: {text}");
    assert!(seen(&text), "{label}: {text}");
    let (status, _, _) = ask(&provider, "/v1/embeddings", r#"{"input":"a"}"#);
    assert_eq!(status, 200, "{label}: the next call is good");
}

#[test]
fn faults_are_seen_on_the_wire() {
    check_fault(Fault::AcceptAndClose, str::is_empty, End::Closed);
    check_fault(Fault::ResetOnAccept, str::is_empty, End::Reset);
    check_fault(Fault::CloseAfterHead, str::is_empty, End::Closed);
    check_fault(Fault::ResetAfterHead, str::is_empty, End::Reset);
    check_fault(Fault::CloseAfterBody, str::is_empty, End::Closed);
    check_fault(Fault::ResetAfterBody, str::is_empty, End::Reset);
    check_fault(Fault::HalfClose, str::is_empty, End::Closed);
    check_fault(Fault::Garbage, |text| text.contains("not HTTP"), End::Closed);
    check_fault(
        Fault::CloseAfterAnswer,
        |text| text.ends_with("}}") && !text.contains("connection: close"),
        End::Closed,
    );
    let body = |text: &str| text.split_once("\r\n\r\n").map(|(_, body)| body.len());
    check_fault(Fault::Truncate { after_bytes: 9 }, |text| body(text) == Some(9), End::Closed);
    check_fault(Fault::Truncate { after_bytes: 0 }, |text| body(text) == Some(0), End::Closed);
    check_fault(Fault::ResetMidAnswer { after_bytes: 9 }, |text| body(text) == Some(9), End::Reset);
    let claimed = |text: &str| -> Option<i64> {
        text.lines().find_map(|line| line.strip_prefix("content-length: ")).and_then(|text| text.parse().ok())
    };
    for by in [7, -7] {
        let off = |text: &str| {
            claimed(text).zip(body(text)).is_some_and(|(claimed, true_length)| claimed - true_length as i64 == by)
        };
        check_fault(Fault::WrongLength { by }, off, End::Closed);
    }
}

#[test]
fn a_silent_provider_says_nothing_until_the_client_leaves() {
    for fault in [Fault::NeverAnswer, Fault::NeverRead] {
        let provider = Provider::start(Script::new().next(1, Effect::fault(fault)));
        let mut stream = connect(&provider);
        stream.write_all(embeddings("a").as_bytes()).expect("sent");
        assert!(provider.wait_calls(1, PATIENCE));
        stream.set_nonblocking(true).expect("non-blocking");
        assert_eq!(stream.read(&mut [0; 1]).expect_err("nothing").kind(), ErrorKind::WouldBlock);
        assert_eq!(provider.stats().finished, 0);
        drop(stream);
        assert!(provider.wait_finished(1, PATIENCE), "noticed that the client left");
        assert_eq!(ask(&provider, "/v1/embeddings", r#"{"input":"a"}"#).0, 200);
    }
}

#[test]
fn an_endless_header_never_ends() {
    let provider = Provider::start(Script::new().always(Effect::fault(Fault::EndlessHeader)));
    let mut stream = connect(&provider);
    stream.write_all(embeddings("a").as_bytes()).expect("sent");
    let mut seen = vec![0; 20_000];
    stream.read_exact(&mut seen).expect("header upon header");
    let text = String::from_utf8_lossy(&seen);
    assert!(text.starts_with("HTTP/1.1 200") && !text.contains("\r\n\r\n"));
    drop(stream);
    assert!(provider.wait_finished(1, PATIENCE));
    assert!(!last(&provider).fully_written);
}

#[test]
fn a_refusing_provider_refuses_and_comes_back_at_its_port() {
    let provider = Provider::start(Script::new());
    let mut kept = connect(&provider);
    assert_eq!(exchange(&mut kept, &embeddings("a")).0, 200);
    provider.set_script(Script::new().always(Effect::fault(Fault::Refuse)));
    let (rest, _) = read_all(&mut kept);
    assert!(rest.is_empty(), "the kept connection ends");
    let refused = TcpStream::connect(provider.addr()).expect_err("refused");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    provider.set_script(Script::new());
    let deadline = clock::now() + PATIENCE;
    while TcpStream::connect(provider.addr()).is_err() {
        assert!(clock::now() < deadline, "back at its port");
        std::thread::yield_now();
    }
    assert_eq!(ask(&provider, "/v1/embeddings", r#"{"input":"a"}"#).0, 200);
}

#[test]
fn a_call_is_logged_as_it_came() {
    let provider = Provider::start(Script::new().tokens(TokenRule::PerItem(5)));
    let mut stream = connect(&provider);
    let body = r#"{"input":["a","b"]}"#;
    let chunked = format!(
        "POST /v1/embeddings?x=1 HTTP/1.1\r\nHost: x\r\nX-One: 1\r\nx-one: 2\r\nTransfer-Encoding: chunked\r\n\r\n\
         4\r\n{}\r\n{:x}\r\n{}\r\n0\r\n\r\n",
        &body[..4],
        body.len() - 4,
        &body[4..]
    );
    assert_eq!(exchange(&mut stream, &chunked).0, 200);
    assert_eq!(exchange(&mut stream, &embeddings("c")).0, 200);
    assert!(provider.wait_finished(2, PATIENCE));
    let calls = provider.calls();
    let first = &calls[0];
    assert_eq!((first.method.as_str(), first.path.as_str()), ("POST", "/v1/embeddings?x=1"));
    assert_eq!(first.headers[1..3], [("X-One".to_owned(), "1".to_owned()), ("x-one".to_owned(), "2".to_owned())]);
    assert_eq!(first.body, body.as_bytes());
    assert_eq!((first.items, first.tokens_billed, first.status, first.fully_written), (2, 10, 200, true));
    assert_eq!(first.connection, calls[1].connection);
    assert!(first.arrived_ns < calls[1].arrived_ns);
    assert_eq!(provider.tokens_billed(), 15);
    provider.clear();
    assert_eq!((provider.call_count(), provider.tokens_billed()), (0, 0));
}

#[test]
fn expect_continue_is_answered_before_the_body() {
    let provider = Provider::start(Script::new());
    let mut stream = connect(&provider);
    let body = r#"{"input":"a"}"#;
    let head =
        format!("POST /v1/embeddings HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n", body.len());
    let (status, _, _) = exchange(&mut stream, &head);
    assert_eq!(status, 100);
    assert_eq!(exchange(&mut stream, body).0, 200);
}

#[test]
fn a_client_that_leaves_is_noticed() {
    for (drop_abandoned, billed) in [(false, 1), (true, 0)] {
        let script = Script { delay: Delay::FixedMs(60.0), drop_abandoned, ..Script::new() };
        let provider = Provider::start(script);
        let mut stream = connect(&provider);
        stream.write_all(embeddings("a").as_bytes()).expect("sent");
        assert!(provider.wait_calls(1, PATIENCE));
        stream.shutdown(Shutdown::Both).expect("left");
        drop(stream);
        assert!(provider.wait_finished(1, PATIENCE));
        assert!(last(&provider).client_left);
        assert_eq!(provider.tokens_billed(), billed);
    }
}

#[test]
fn answers_can_be_spread_chunked_and_closed() {
    let slow = Pace { stall_after_bytes: Some(5), stall_ms: 1.0, ..Pace::trickle(7, 0.1) };
    for framing in [Framing::Length, Framing::Chunked(11), Framing::Close] {
        let script = Script {
            pace: slow.clone(),
            framing,
            trailers: vec![("X-End".to_owned(), "1".to_owned())],
            ..Script::new()
        };
        let provider = Provider::start(script);
        let request = embeddings("a").replace("Host: x", "Host: x\r\nConnection: close");
        let (text, end) = raw(&provider, &request);
        assert_eq!(end, End::Closed);
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        let body = match framing {
            Framing::Chunked(_) => {
                assert!(head.contains("transfer-encoding: chunked") && body.ends_with("0\r\nX-End: 1\r\n\r\n"));
                // Every second line is a size.
                body.lines().skip(1).step_by(2).take_while(|line| !line.starts_with("X-")).collect::<String>()
            }
            _ => body.to_owned(),
        };
        let value: Value = serde_json::from_str(&body).expect("whole JSON");
        assert_eq!(value["data"][0]["embedding"].as_array().map(Vec::len), Some(8));
        assert!(provider.wait_finished(1, PATIENCE));
        assert!(last(&provider).fully_written);
    }
}

#[test]
fn rules_force_answers_by_order_text_and_count() {
    let script = Script::new()
        .rule(When::body("poison"), Effect::answer(400, r#"{"detail":"no"}"#).header("X-Why", "poison"))
        .sequence([Effect::status(429), Effect::usage(UsageShape::Null), Effect::status(503)]);
    let provider = Provider::start(script);
    let (status, head, body) = ask(&provider, "/v1/embeddings", r#"{"input":"poison"}"#);
    assert_eq!((status, body["detail"].as_str()), (400, Some("no")));
    assert!(head.contains("x-why: poison"));
    let statuses: Vec<u16> = (0..4).map(|_| ask(&provider, "/v1/embeddings", r#"{"input":"a"}"#).0).collect();
    assert_eq!(statuses, [429, 200, 503, 200]);
    assert_eq!(provider.tokens_billed(), 2, "refused calls are not billed");
}

#[test]
fn limits_and_keys_are_enforced() {
    let script = Script::new().api_key("secret").max_items(2, Refusals::Plain413);
    let provider = Provider::start(script);
    assert_eq!(ask(&provider, "/v1/embeddings", r#"{"input":"a"}"#).0, 401);
    let keyed = |header: &str, body: &str| {
        exchange(&mut connect(&provider), &post("/v1/embeddings", body).replace("Host: x", header))
    };
    assert_eq!(keyed("Authorization: Bearer secret", r#"{"input":["a","b"]}"#).0, 200);
    let (status, head, _) = keyed("api-key: secret", r#"{"input":["a","b","c"]}"#);
    assert_eq!(status, 413);
    assert!(head.contains("content-type: text/plain"));
    let long = Limits { max_item_bytes: Some(3), ..Limits::default() };
    let provider = Provider::start(Script::new().limits(long));
    assert_eq!(ask(&provider, "/embed", r#"{"inputs":["ab","abcd"]}"#).0, 422);
    let (status, _, body) = ask(&provider, "/embed", r#"{"inputs":["ab","abcd"],"truncate":true}"#);
    assert_eq!(status, 200);
    assert_eq!(floats(&body[1]), signature("A", "abc", 8), "cut before it was embedded");
    let texts = vec!["x"; 33];
    let (status, _, body) = ask(&provider, "/embed", &serde_json::json!({"inputs": texts}).to_string());
    assert_eq!((status, body["error_type"].as_str()), (422, Some("Validation")), "TEI's own batch limit");
}

#[test]
fn a_quota_refuses_with_headers() {
    let quota = Quota::tpm(10).headers(Notation::Openai);
    for script in [
        Script::new().quota(quota.clone()),
        Script { canned_tokens_per_item: 4, ..Script::new().quota(quota).canned() },
    ] {
        let provider = Provider::start(script.tokens(TokenRule::PerItem(4)));
        let (status, head, _) = ask(&provider, "/v1/embeddings", r#"{"input":["a","b"]}"#);
        assert_eq!(status, 200);
        assert!(head.contains("x-ratelimit-remaining-tokens: 2"), "{head}");
        let (status, head, body) = ask(&provider, "/v1/embeddings", r#"{"input":"a"}"#);
        assert_eq!((status, body["error"]["code"].as_str()), (429, Some("rate_limit_exceeded")));
        assert!(head.contains("retry-after: "), "{head}");
        assert_eq!(provider.tokens_billed(), 8);
    }
}

#[test]
fn places_for_texts_are_counted_as_tei_does() {
    let script = Script { max_concurrent_texts: 3, ..Script::new().delay_ms(80.0) };
    let provider = Provider::start(script);
    let mut first = connect(&provider);
    first.write_all(post("/embed", r#"{"inputs":["a","b"]}"#).as_bytes()).expect("sent");
    assert!(provider.wait_calls(1, PATIENCE));
    let (status, _, body) = ask(&provider, "/embed", r#"{"inputs":["c","d"]}"#);
    assert_eq!((status, body["error_type"].as_str()), (429, Some("Overloaded")));
    assert_eq!(ask(&provider, "/embed", r#"{"inputs":"c"}"#).0, 200);
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().expect("a list").iter().map(|number| number.as_f64().expect("a number") as f32).collect()
}

#[test]
fn vectors_and_scores_can_be_verified() {
    let provider = Provider::start(Script::new().space("S").space_of("other", "T").dialect(Dialect::Vllm));
    let (_, _, body) = ask(&provider, "/v1/embeddings", r#"{"model":"other","input":"a","dimensions":4}"#);
    assert_eq!(floats(&body["data"][0]["embedding"]), shorten(&signature("T", "a", 8), 4));
    assert!(body["id"].is_string(), "vLLM's form");
    let (_, _, body) = ask(&provider, "/cohere/v2/rerank", r#"{"model":"r","query":"q","documents":["a","b"]}"#);
    let best = &body["results"][0];
    let text = ["a", "b"][best["index"].as_u64().expect("an index") as usize];
    assert_eq!(best["relevance_score"].as_f64(), Some(rerank_score("S", "q", text)));
}

#[test]
fn the_control_routes_steer_a_running_provider() {
    let provider = Provider::start(Script::new());
    ask(&provider, "/v1/embeddings", r#"{"input":"a"}"#);
    let get = |path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        serde_json::from_slice::<Value>(&exchange(&mut connect(&provider), &request).2).expect("JSON")
    };
    assert_eq!(get("/__control/calls")[0]["body"], r#"{"input":"a"}"#);
    assert_eq!(get("/__control/stats")["calls"], 1);
    assert_eq!(ask(&provider, "/__control/script", r#"{"rules":[{"then":{"status":503}}]}"#).0, 200);
    assert_eq!(ask(&provider, "/v1/embeddings", r#"{"input":"a"}"#).0, 503);
    let (status, _, body) = ask(&provider, "/__control/script", r#"{"nonsense":1}"#);
    assert!(status == 400 && body["error"].as_str().is_some_and(|why| why.contains("nonsense")));
    assert_eq!(ask(&provider, "/__control/reset", "").0, 200);
    assert_eq!(get("/__control/stats")["calls"], 0);
    assert_eq!(get("/__control/script")["rules"][0]["then"]["status"], 503);
}

#[tokio::test]
async fn a_test_on_one_thread_can_wait_too() {
    let cut = loadtest::provider::Chat { cut_after_events: Some(2), ..Default::default() };
    let provider = Provider::start(Script::new().next(1, Effect::chat(cut)));
    let mut stream = tokio::net::TcpStream::connect(provider.addr()).await.expect("connects");
    let request = post("/v1/chat/completions", r#"{"model":"m","stream":true,"messages":[]}"#);
    tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await.expect("sent");
    provider.until_calls(1).await;
    provider.until_finished(1).await;
    let mut seen = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut seen).await.expect("read");
    assert_eq!(seen.matches("data: ").count(), 2, "{seen}");
    assert!(!last(&provider).fully_written, "a stream without its end is not whole");
}

#[test]
fn a_stopped_provider_is_gone() {
    let provider = Provider::start(Script::new());
    let address = provider.addr();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(provider.stop());
    assert_eq!(TcpStream::connect(address).expect_err("gone").kind(), ErrorKind::ConnectionRefused);
}
