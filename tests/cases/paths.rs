//! Spellings of paths that a gate and a router might read differently.

use loadtest::provider::{Provider, Script};
use serde_json::json;

use super::before;
use crate::support::Raw;
use crate::support::gateway::KEY;

/// Request lines without the version.
const TRICKS: [&str; 31] = [
    "GET /health/../v1/models",
    "GET /health/%2e%2e/admin",
    "GET /healthz/../admin/tenants",
    "GET /healthz/%2e%2e/admin/tenants",
    "GET /healthz%2f..%2fadmin%2ftenants",
    "POST /healthz/../v1/embeddings",
    "POST //v1/embeddings",
    "POST /v1//embeddings",
    "POST /./v1/embeddings",
    "POST /v1/./embeddings",
    "POST /v1/embeddings/",
    "POST /V1/Embeddings",
    "POST /v1/EMBEDDINGS",
    "POST /v1/embeddings;x",
    "POST /v1/embeddings;x=1",
    "POST /v1/embeddings%00",
    "POST /v1/embeddings%20",
    "POST /v1%2fembeddings",
    "POST /v1%2Fembeddings",
    "POST /v1/%65mbeddings",
    "POST /v1\\embeddings",
    "GET /metrics/../admin",
    "GET /metrics",
    "GET /admin/tenants",
    "GET /dashboard",
    "POST http://evil.test/v1/embeddings",
    "POST http://evil.test//v1/embeddings",
    "GET http://evil.test/admin/tenants",
    "OPTIONS *",
    "TRACE /v1/embeddings",
    "CONNECT evil.test:443",
];

fn body() -> String {
    json!({ "model": "emb-a", "input": "alpha" }).to_string()
}

#[tokio::test]
async fn rg_26gd_no_spelling_of_a_path_gets_past_the_key() {
    let provider = Provider::start(Script::new());
    let gateway = before(&provider, "");
    for line in TRICKS {
        let mut client = Raw::connect(&gateway.url);
        let body = if line.starts_with("POST") { body() } else { String::new() };
        client.request(line, &[], &body);
        // Something that is no HTTP at all may be met with a closed connection.
        let Some(answer) = client.maybe_answer() else { continue };
        assert!(matches!(answer.status, 400 | 401 | 404 | 405), "{line}: {} {}", answer.status, answer.body);
        assert!(!answer.body.contains("\"data\"") && !answer.body.contains("budget"), "{line}: {}", answer.body);
    }
    let overrides = ["X-HTTP-Method-Override: POST", "X-Method-Override: POST", "X-HTTP-Method: POST"];
    for method in ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"] {
        for header in overrides {
            for path in ["/v1/embeddings", "/v1/embeddings?_method=POST"] {
                let mut client = Raw::connect(&gateway.url);
                client.request(&format!("{method} {path}"), &[header], "");
                let answer = client.answer_to(method == "HEAD");
                assert!(matches!(answer.status, 401 | 404 | 405), "{method} {header}: {}", answer.status);
            }
        }
    }
    for method in ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"] {
        let mut client = Raw::connect(&gateway.url);
        let key = format!("Authorization: Bearer {KEY}");
        client.request(&format!("{method} /v1/embeddings"), &[&key, overrides[0]], "");
        let answer = client.answer_to(method == "HEAD");
        assert_eq!((answer.status, answer.header("allow")), (405, "POST"), "{method}");
        assert_ne!(answer.header("x-request-id"), "");
    }
    assert_eq!(provider.call_count(), 0);
    assert_eq!(gateway.usage().len(), 0, "nothing is billed");
}

#[tokio::test]
async fn rg_26gd_with_a_key_only_the_documented_spelling_serves() {
    let provider = Provider::start(Script::new());
    let gateway = before(&provider, "");
    let key = format!("Authorization: Bearer {KEY}");
    for line in TRICKS {
        let mut client = Raw::connect(&gateway.url);
        let body = if line.starts_with("POST") { body() } else { String::new() };
        client.request(line, &[&key], &body);
        let Some(answer) = client.maybe_answer() else { continue };
        // An absolute target names the same route; its host is not looked at. Escapes of plain letters are the letters.
        let same = matches!(line, "POST http://evil.test/v1/embeddings" | "POST /v1/%65mbeddings");
        if same && answer.status == 200 {
            assert_eq!(answer.header("x-traffic-class"), "interactive-search", "{line}");
            assert_ne!(answer.header("x-tenant-remaining-budget-eur"), "", "{line}");
            continue;
        }
        assert!(matches!(answer.status, 400 | 404 | 405), "{line}: {} {}", answer.status, answer.body);
    }
    let served = provider.call_count();
    assert!(served <= 1, "{served} calls");
    for path in ["/v1/embeddings", "/v1/embeddings?api-version=2024-10-21"] {
        let mut client = Raw::connect(&gateway.url);
        client.request(&format!("POST {path}"), &[&key], &body());
        assert_eq!(client.answer().status, 200, "{path}");
    }
}

#[tokio::test]
async fn rg_26gd_the_admin_side_is_not_on_the_client_listener() {
    let provider = Provider::start(Script::new());
    let gateway = before(&provider, "");
    let key = format!("Authorization: Bearer {KEY}");
    for path in ["/admin/tenants", "/admin/upstreams", "/admin/upstreams/one/open", "/metrics", "/dashboard"] {
        for method in ["GET", "POST"] {
            let mut client = Raw::connect(&gateway.url);
            client.request(&format!("{method} {path}"), &[&key], "");
            assert_eq!((client.answer().status, path), (404, path));
        }
    }
}
