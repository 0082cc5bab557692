//! The listeners: HTTPS whose certificate can be exchanged, browsers of other origins, and what every answer says.

use std::path::Path;

use reqwest::{Client, Method, Response, StatusCode};
use serde_json::json;

use super::{config_at, provider};
use crate::support::Gateway;
use crate::support::gateway::KEY;

/// Writes a new certificate for this machine and its key; the certificate.
fn certify(folder: &Path) -> reqwest::Certificate {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("a certificate");
    let pem = made.cert.pem();
    std::fs::write(folder.join("cert.pem"), &pem).expect("written");
    std::fs::write(folder.join("key.pem"), made.signing_key.serialize_pem()).expect("written");
    reqwest::Certificate::from_pem(pem.as_bytes()).expect("a certificate")
}

/// A client that trusts this certificate and no other.
fn trusting(certificate: reqwest::Certificate) -> Client {
    Client::builder().tls_certs_only([certificate]).build().expect("a client")
}

async fn embed(client: &Client, url: &str) -> reqwest::Result<Response> {
    let body = json!({ "model": "emb-a", "input": "x" });
    client.post(format!("{url}/v1/embeddings")).bearer_auth(KEY).json(&body).send().await
}

#[tokio::test]
async fn a_certificate_is_exchanged_by_a_reload_and_a_bad_one_is_not() {
    let provider = provider();
    let folder = tempfile::tempdir().expect("a folder");
    drop(rustls::crypto::ring::default_provider().install_default());
    let first = certify(folder.path());
    let tls = "workers = 2\ntls_cert = \"cert.pem\"\ntls_key = \"key.pem\"";
    let config = config_at(&provider.base_url()).replacen("workers = 2", tls, 1);
    std::fs::write(folder.path().join("gateway.toml"), &config).expect("written");
    let gateway = Gateway::start_in(folder);
    assert!(gateway.url.starts_with("https://"), "{}", gateway.url);
    let old = trusting(first);
    assert_eq!(embed(&old, &gateway.url).await.expect("answers").status(), 200);

    let key = std::fs::read(gateway.folder().join("key.pem")).expect("read");
    let second = certify(gateway.folder());
    let fitting = std::fs::read(gateway.folder().join("key.pem")).expect("read");
    std::fs::write(gateway.folder().join("key.pem"), key).expect("written");
    let refused = gateway.admin_post("/admin/reload", json!({})).await;
    assert_eq!(refused.status, 400, "{}", refused.text);
    assert!(refused.text.contains("server.tls_key") && refused.text.contains("does not fit"), "{}", refused.text);
    assert!(embed(&trusting(second.clone()), &gateway.url).await.is_err(), "the old certificate is still shown");

    std::fs::write(gateway.folder().join("key.pem"), fitting).expect("written");
    gateway.admin_post("/admin/reload", json!({})).await.expect(200);
    assert_eq!(embed(&trusting(second), &gateway.url).await.expect("answers").status(), 200);
    assert_eq!(embed(&old, &gateway.url).await.expect("answers").status(), 200, "an open connection goes on");
    gateway.configure(&config_at(&provider.base_url()));
    let refused = gateway.admin_post("/admin/reload", json!({})).await;
    assert!(refused.status == 400 && refused.text.contains("server.tls_cert"), "{}", refused.text);
}

const PAGE: &str = "https://app.example.com";

async fn ask_first(gateway: &Gateway, origin: &str) -> Response {
    Client::new()
        .request(Method::OPTIONS, format!("{}/v1/embeddings", gateway.url))
        .header("origin", origin)
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "authorization, content-type")
        .send()
        .await
        .expect("answers")
}

/// Sends a query from a page with a key.
async fn from_page(gateway: &Gateway, origin: &str, key: &str) -> Response {
    let body = json!({ "model": "emb-a", "input": "x" });
    let request = Client::new().post(format!("{}/v1/embeddings", gateway.url)).bearer_auth(key).json(&body);
    request.header("origin", origin).send().await.expect("answers")
}

fn header<'a>(answer: &'a Response, name: &str) -> &'a str {
    answer.headers().get(name).map_or("", |value| value.to_str().expect("text"))
}

#[tokio::test]
async fn rg_qpn2_a_browsers_question_needs_no_key() {
    let provider = provider();
    let cors = format!("workers = 2\ncors_origins = [\"{PAGE}\"]");
    let config = config_at(&provider.base_url()).replacen("workers = 2", &cors, 1);
    let gateway = Gateway::start(&config.replace("budget = \"1.00\"", "budget = \"1.00\"\nrpm = 1"));
    let answer = ask_first(&gateway, PAGE).await;
    assert_eq!(answer.status(), StatusCode::NO_CONTENT);
    assert_eq!(header(&answer, "access-control-allow-origin"), PAGE);
    assert_eq!(header(&answer, "access-control-allow-headers"), "authorization, content-type");
    assert!(header(&answer, "access-control-allow-methods").contains("POST"));
    assert!(answer.headers().get_all("vary").iter().any(|value| value == "Origin"));

    let foreign = ask_first(&gateway, "https://elsewhere.example").await;
    assert!(matches!(foreign.status().as_u16(), 404 | 405), "{}", foreign.status());
    assert_eq!(header(&foreign, "access-control-allow-origin"), "");

    let answer = from_page(&gateway, PAGE, KEY).await;
    assert_eq!((answer.status().as_u16(), header(&answer, "access-control-allow-origin")), (200, PAGE));
    assert!(header(&answer, "access-control-expose-headers").contains("x-gateway-cost-eur"));
    for (key, status) in [("wrong", 401), ("", 401)] {
        let answer = from_page(&gateway, PAGE, key).await;
        assert_eq!((answer.status().as_u16(), header(&answer, "access-control-allow-origin")), (status, PAGE));
        assert_eq!(header(&answer, "access-control-allow-credentials"), "");
    }
    let body = json!({ "model": "emb-a", "input": "another" });
    let request = Client::new().post(format!("{}/v1/embeddings", gateway.url)).bearer_auth(KEY).json(&body);
    let limited = request.header("origin", PAGE).send().await.expect("answers");
    assert_eq!((limited.status().as_u16(), header(&limited, "access-control-allow-origin")), (429, PAGE));
    let foreign = from_page(&gateway, "https://elsewhere.example", KEY).await;
    assert_eq!((foreign.status().as_u16(), header(&foreign, "access-control-allow-origin")), (200, ""));
    assert_eq!(provider.call_count(), 1, "questions reach nobody");

    gateway.configure(&config.replace(&format!("\"{PAGE}\""), "\"*\""));
    gateway.admin_post("/admin/reload", json!({})).await.expect(200);
    let any = from_page(&gateway, "https://elsewhere.example", KEY).await;
    assert_eq!(header(&any, "access-control-allow-origin"), "*");
    assert_eq!(header(&any, "access-control-allow-credentials"), "", "never together with a star");
    gateway.configure(&config.replace(&format!("\"{PAGE}\""), ""));
    gateway.admin_post("/admin/reload", json!({})).await.expect(200);
    let off = ask_first(&gateway, PAGE).await;
    assert!(matches!(off.status().as_u16(), 404 | 405), "{}", off.status());
    assert_eq!(header(&off, "access-control-allow-origin"), "");
    gateway.configure(&config.replace(PAGE, "app.example.com/"));
    assert_eq!(gateway.admin_post("/admin/reload", json!({})).await.status, 400, "no origin");
}

#[tokio::test]
async fn every_answer_of_both_listeners_names_the_request() {
    let provider = provider();
    let gateway = Gateway::start(&config_at(&provider.base_url()));
    for path in ["/metrics", "/openapi.json", "/dashboard", "/healthz", "/readyz", "/admin/status", "/admin/nothing"] {
        let answer = gateway.admin_get_with(path, &[("x-request-id", "mine-1")]).await;
        assert_eq!(answer.header("x-request-id"), "mine-1", "{path}: {answer:?}");
        let answer = gateway.admin_get_with(path, &[("x-request-id", "not sane")]).await;
        let made = answer.header("x-request-id");
        assert!(!made.is_empty() && made != "not sane", "{path}: {answer:?}");
    }
    for path in ["/healthz", "/openapi.json", "/v1/models", "/v1/models/none", "/nothing"] {
        assert_ne!(gateway.get(path, KEY).await.header("x-request-id"), "", "{path}");
    }
    let open = Gateway::start(&config_at(&provider.base_url()).replacen(
        "workers = 2",
        &format!("workers = 2\ncors_origins = [\"{PAGE}\"]"),
        1,
    ));
    assert!(ask_first(&open, PAGE).await.headers().contains_key("x-request-id"));
}
