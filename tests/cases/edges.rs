//! Answers before any provider is asked: readable by whoever sent the request, however far it has got.

use std::time::Duration;

use loadtest::provider::{Provider, Script};
use serde_json::json;

use super::before;
use crate::support::gateway::KEY;
use crate::support::raw::RawAnswer;
use crate::support::{Gateway, Raw};

/// Larger than what sockets buffer on both sides together, so that a client which only writes is really stuck in its
/// writing while the gateway has long made up its mind.
const LARGE: usize = 16 << 20;

/// Sends a request with a large body to its end, whatever comes meanwhile, and only then reads.
#[track_caller]
fn send_all_then_read(gateway: &Gateway, line: &str, headers: &[&str], chunked: bool) -> Option<RawAnswer> {
    let mut client = Raw::connect(&gateway.url);
    let mut head = format!("{line} HTTP/1.1\r\nHost: g\r\n");
    for header in headers {
        head.push_str(&format!("{header}\r\n"));
    }
    let piece = vec![b' '; 64 << 10];
    match chunked {
        true => head.push_str("Transfer-Encoding: chunked\r\n\r\n"),
        false => head.push_str(&format!("Content-Length: {LARGE}\r\n\r\n")),
    }
    client.send(head);
    for _ in 0..LARGE / piece.len() {
        let sent = match chunked {
            true => {
                client.try_send(format!("{:x}\r\n", piece.len())) && client.try_send(&piece) && client.try_send("\r\n")
            }
            false => client.try_send(&piece),
        };
        if !sent {
            break;
        }
    }
    if chunked {
        client.try_send("0\r\n\r\n");
    }
    client.maybe_answer()
}

#[tokio::test]
async fn a_refusal_reaches_a_client_that_is_still_sending() {
    let provider = Provider::start(Script::new());
    let gateway = before(&provider, "max_body_bytes = 1000000\n");
    let key = format!("Authorization: Bearer {KEY}");
    let json = "Content-Type: application/json";
    let table: [(&str, Vec<&str>, u16, &str); 8] = [
        ("POST /v1/embeddings", vec![&key, json], 413, "body_too_large"),
        ("POST /v1/embeddings", vec![&key, json, "Expect: 100-continue"], 413, "body_too_large"),
        ("POST /v1/embeddings", vec![json], 401, "invalid_api_key"),
        ("POST /v1/embeddings", vec!["Authorization: Bearer wrong", json], 401, "invalid_api_key"),
        ("POST /v1/embeddings", vec![&key, "Content-Type: text/plain"], 415, "unsupported_media_type"),
        ("POST /v1/embeddings", vec![&key, json, "Content-Encoding: compress"], 415, "unsupported_media_type"),
        ("POST /v1/nothing", vec![&key, json], 404, "route_not_found"),
        ("PUT /v1/embeddings", vec![&key, json], 405, "method_not_allowed"),
    ];
    for (line, headers, status, code) in table {
        for chunked in [false, true] {
            let answer = send_all_then_read(&gateway, line, &headers, chunked);
            let Some(mut answer) = answer else { panic!("{line} {headers:?} chunked {chunked}: no answer to be read") };
            if answer.status == 100 {
                // The interim answer came first; the final one follows on the same connection.
                answer = second_answer(&gateway, line, &headers);
            }
            assert_eq!((answer.status, answer.error_code().as_str()), (status, code), "{line} {headers:?} {chunked}");
            assert_ne!(answer.header("x-request-id"), "", "{line}");
            if status == 413 {
                assert!(answer.body.contains("1000000"), "states the limit: {}", answer.body);
            }
        }
    }
    assert_eq!(provider.call_count(), 0);
    assert_eq!(gateway.metric("vectorgate_buffered_bytes").await, 0.0);
    gateway.embed(json!("alpha")).await.expect(200);
}

/// A client that waits for leave to send its body.
#[track_caller]
fn second_answer(gateway: &Gateway, line: &str, headers: &[&str]) -> RawAnswer {
    let mut client = Raw::connect(&gateway.url);
    let mut head = format!("{line} HTTP/1.1\r\nHost: g\r\nContent-Length: {LARGE}\r\n");
    for header in headers {
        head.push_str(&format!("{header}\r\n"));
    }
    client.send(format!("{head}\r\n"));
    let first = client.answer();
    if first.status == 100 { client.answer() } else { first }
}

#[tokio::test]
async fn a_body_that_stops_is_answered_408() {
    let provider = Provider::start(Script::new());
    let gateway = before(&provider, "body_timeout_s = 1.5\nheader_timeout_s = 1.5\n");
    let mut client = Raw::connect(&gateway.url);
    client.send(format!(
        "POST /v1/embeddings HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n\
         Content-Length: 1000\r\n\r\n{{\"model\":"
    ));
    let answer = client.answer();
    assert_eq!((answer.status, answer.error_code().as_str()), (408, "body_timeout"));
    assert!(answer.body.contains("1.5 s"), "states the limit: {}", answer.body);
    assert_ne!(answer.header("x-request-id"), "");
    assert!(client.is_closed());

    // A body that goes on, 16 KiB and more within each limit but slower than one limit for all of it, is read to its end.
    let body = json!({ "model": "emb-a", "input": "alpha ".repeat(27_000) }).to_string();
    let mut client = Raw::connect(&gateway.url);
    client.send(format!(
        "POST /v1/embeddings HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    ));
    for piece in body.as_bytes().chunks(body.len().div_ceil(8)) {
        tokio::time::sleep(Duration::from_millis(300)).await;
        client.send(piece);
    }
    assert_eq!(client.answer().status, 200);

    // A head that stops gets its end as well.
    let mut client = Raw::connect(&gateway.url);
    client.send("POST /v1/embeddings HTTP/1.1\r\nHost:");
    let answer = client.maybe_answer();
    assert!(answer.is_none_or(|answer| answer.status == 408));
}

#[tokio::test]
async fn every_answer_has_a_request_id() {
    let provider = Provider::start(Script::new());
    let gateway = before(&provider, "");
    let key = format!("Authorization: Bearer {KEY}");
    let good = json!({ "model": "emb-a", "input": "alpha" }).to_string();
    let table = [
        ("POST /v1/embeddings", true, good.as_str(), 200),
        ("POST /v1/embeddings", true, "{", 400),
        ("POST /v1/embeddings", true, "{\"model\":\"nope\",\"input\":\"a\"}", 404),
        ("POST /v1/embeddings", false, good.as_str(), 401),
        ("GET /v1/embeddings", true, "", 405),
        ("GET /nothing", true, "", 404),
        ("GET /healthz", false, "", 200),
        ("HEAD /healthz", false, "", 200),
        ("GET /readyz", false, "", 200),
        ("HEAD /readyz", false, "", 200),
    ];
    for (line, keyed, body, status) in table {
        for (given, kept) in [("", false), ("my-id.1:2_3", true), ("not sane!", false), (&"x".repeat(129), false)] {
            let id = format!("X-Request-Id: {given}");
            let mut headers = vec![id.as_str()];
            if keyed {
                headers.push(&key);
            }
            let mut client = Raw::connect(&gateway.url);
            client.request(line, &headers, body);
            let answer = client.answer_to(line.starts_with("HEAD"));
            assert_eq!(answer.status, status, "{line}: {}", answer.body);
            let shown = answer.header("x-request-id");
            assert!(!shown.is_empty() && (shown == given) == kept, "{line}: {shown:?} for {given:?}");
        }
    }
}

#[tokio::test]
async fn an_error_names_the_field_and_the_item() {
    let provider = Provider::start(Script::new());
    let gateway = before(&provider, "");
    // (body, status, code, param, words)
    let table = [
        ("", 400, "invalid_json", "", "body"),
        ("{", 400, "invalid_json", "", ""),
        ("[]", 400, "invalid_json", "", "object"),
        ("{\"model\":\"emb-a\"}", 400, "invalid_input", "input", "missing"),
        ("{\"input\":\"a\"}", 400, "invalid_input", "model", "missing"),
        ("{\"model\":7,\"input\":\"a\"}", 400, "invalid_input", "model", "string"),
        ("{\"model\":\"emb-a\",\"input\":null}", 400, "invalid_input", "input", ""),
        ("{\"model\":\"emb-a\",\"input\":7}", 400, "invalid_input", "input", ""),
        ("{\"model\":\"emb-a\",\"input\":{}}", 400, "invalid_input", "input", ""),
        ("{\"model\":\"emb-a\",\"input\":\"\"}", 400, "invalid_input", "input", "empty"),
        ("{\"model\":\"emb-a\",\"input\":[\"a\",\"\",\"b\"]}", 400, "invalid_input", "input", "input[1]"),
        ("{\"model\":\"emb-a\",\"input\":[\"a\",\"b\",7]}", 400, "invalid_input", "input", "input[2]"),
        ("{\"model\":\"emb-a\",\"input\":[[1],[2],[-3]]}", 400, "invalid_input", "input", "input[2]"),
        ("{\"model\":\"emb-a\",\"input\":\"a\",\"dimensions\":\"x\"}", 400, "invalid_input", "dimensions", ""),
        ("{\"model\":\"emb-a\",\"input\":\"a\",\"dimensions\":1.5}", 400, "invalid_input", "dimensions", ""),
        ("{\"model\":\"emb-a\",\"input\":\"a\",\"dimensions\":4}", 400, "unsupported_dimensions", "dimensions", "8"),
        (
            "{\"model\":\"emb-a\",\"input\":\"a\",\"encoding_format\":\"hex\"}",
            400,
            "unknown_parameter_value",
            "encoding_format",
            "base64",
        ),
        ("{\"model\":\"emb-z\",\"input\":\"a\"}", 404, "model_not_found", "model", "emb-a"),
    ];
    for (body, status, code, param, words) in table {
        let answer = gateway.post("/v1/embeddings", KEY, &[], body).await;
        let error = answer.json()["error"].clone();
        assert_eq!((answer.status, &error["code"]), (status, &json!(code)), "{body}: {}", answer.text);
        assert_eq!(error["param"].as_str().unwrap_or(""), param, "{body}: {}", answer.text);
        assert_eq!(error["type"], "invalid_request_error", "{body}");
        assert!(error["message"].as_str().expect("a message").contains(words), "{body}: {}", answer.text);
        assert_eq!(answer.header("content-type"), "application/json");
    }
    let unknown = gateway
        .post("/v1/embeddings", KEY, &[("x-traffic-class", "fast")], "{\"model\":\"emb-a\",\"input\":\"a\"}")
        .await;
    assert_eq!((unknown.status, unknown.error_code().as_str()), (400, "unknown_parameter_value"));
    assert_eq!(provider.call_count(), 0);
}
