//! The server behind TLS.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_behind_tls_is_known_by_its_certificate_and_knows_ours() {
    let (redis, port) = RedisServer::start_with_tls();
    let provider = provider(0.0);
    let file = |key: &str, name: &str| format!("{key} = \"{}\"\n", redis.file(name));
    let trusted = file("redis_ca", "ca.pem");
    let shown = file("redis_cert", "client.pem") + &file("redis_key", "client.key");
    let url = format!("rediss://127.0.0.1:{port}");
    let with =
        |files: &str| config(&provider, &url, "budget = \"1\"", &format!("redis_timeout_ms = 2000\n{files}"), "");

    let gateways = gateways(2, &with(&(trusted.clone() + &shown)));
    for gateway in &gateways {
        let ready = async || (gateway.admin_get("/readyz").await.text, gateway.log());
        until("connections", ready, |seen| seen.0 == "ready\n").await;
        assert_eq!(ask(gateway).await, 200);
    }
    assert_eq!(gateways[0].tenant("t1").await["spent"], "0.002");

    // Another one's certificate, and none of our own: no connection, and nobody with a budget is served.
    for files in [file("redis_ca", "other.pem") + &shown, trusted.clone(), shown.clone()] {
        let gateway = Gateway::start(&with(&files));
        let ready = async || gateway.admin_get("/readyz").await.text;
        until("it was looked for", ready, |text| text.contains("without redis")).await;
        assert_eq!(gateway.embed(json!("hello")).await.error_code(), "store_unavailable", "{files}");
    }

    let said = gateways[0].folder().join("gateway.toml");
    std::fs::write(said, with("redis_ca = \"no such file\"\nredis_cert = \"gateway.toml\"")).expect("written");
    let refused = gateways[0].try_command(&["check"]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    for part in ["store.redis_ca", "cannot be read", "store.redis_cert", "is not PEM", "belong together"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}
