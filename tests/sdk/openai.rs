//! The OpenAI SDK in depth: every encoding, called and cached, number for number; token ids.

use loadtest::provider::{Dialect, Provider, Script};

use super::run::{EmbeddingServer, Home, script};
use crate::support::{Gateway, KEY, embedding_config};

#[tokio::test(flavor = "multi_thread")]
async fn the_openai_sdk_gets_a_real_models_vectors_number_for_number() {
    drop(rustls::crypto::ring::default_provider().install_default());
    let server = EmbeddingServer::start().await;
    let config = embedding_config(
        &[("nano", "openai", &server.url)],
        "price_usd_per_million_tokens = \"0.02\"",
        "budget = \"5\"",
        "",
    );
    let gateway = Gateway::start(&config);
    let arguments = [&format!("{}/v1", gateway.url), KEY, "emb-a", &server.url];
    let (same, told) = script(Home::Newest, "openai_vectors", &arguments);
    assert!(same, "{told}");
    assert!(gateway.usage().iter().all(|record| record["estimated"] == false), "the server's own count is charged");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_openai_sdk_is_told_why_token_ids_cannot_be_embedded_here() {
    let provider = Provider::start(Script::new().dialect(Dialect::Tei).space("A").width(8));
    let base = provider.base_url();
    let gateway = Gateway::start(&embedding_config(&[("tei", "tei", &base)], "", "", ""));
    let arguments = [&format!("{}/v1", gateway.url), KEY, "emb-a"];
    let (refused, told) = script(Home::Newest, "openai_token_ids", &arguments);
    assert!(refused, "{told}");
    assert_eq!(told.lines().count(), 2, "{told}");
    for line in told.lines() {
        assert!(line.starts_with("400 unsupported_input_type input "), "{line}");
        assert!(line.contains("token ids"), "{line}");
    }
    assert_eq!(provider.call_count(), 0, "nothing was called");
}
