//! The default configuration serves at once, with the headers of the contract, and a second request is a hit.

use loadtest::provider::{Provider, Script};
use serde_json::json;

use crate::support::{Gateway, assert_signatures, embedding_config};

#[tokio::test]
async fn a_request_is_answered_priced_and_cached() {
    let provider = Provider::start(Script::new().space("A").width(8));
    let url = format!("{}/v1", provider.base_url());
    let config = embedding_config(
        &[("one", "openai", &url)],
        "price_usd_per_million_tokens = \"0.02\"\ndimensions = 8",
        "budget = \"1.00\"",
        "",
    );
    let gateway = Gateway::start(&config);
    let miss = gateway.embed(json!("alpha")).await;
    assert_signatures(&miss.expect(200), "A", &["alpha"]);
    assert_eq!(miss.header("x-cache"), "MISS");
    assert_eq!(miss.header("x-gateway-upstream"), "one");
    assert_eq!(miss.header("x-traffic-class"), "interactive-search");
    assert_eq!(miss.header("x-embedding-space"), "A");
    let hit = gateway.embed(json!("alpha")).await;
    assert_eq!(hit.header("x-cache"), "HIT");
    assert_eq!(hit.header("x-gateway-cost-eur"), "0");
    assert_eq!(hit.text, miss.text, "a hit and a miss answer with the same bytes");
    assert_eq!(provider.call_count(), 1);
    let call = &provider.calls()[0];
    assert_eq!(call.header("authorization"), Some("Bearer upstream-secret-one"));
}
