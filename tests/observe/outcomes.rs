//! Each request has exactly one outcome.

use loadtest::provider::{Provider, Script};
use serde_json::json;
use socket2::SockRef;

use crate::support::gateway::KEY;
use crate::support::{Gateway, Raw, embedding_config};

use super::PATIENCE;

fn start(provider: &Provider) -> Gateway {
    let url = format!("{}/v1", provider.base_url());
    Gateway::start(&embedding_config(&[("one", "openai", &url)], "dimensions = 8", "", ""))
}

async fn outcome(gateway: &Gateway, name: &str) -> f64 {
    let series = format!(
        "vectorgate_request_duration_seconds_count{{class=\"interactive-search\",model=\"emb-a\",outcome=\"{name}\"}}"
    );
    gateway.metric(&series).await
}

fn ask(gateway: &Gateway, text: &str) -> Raw {
    let mut client = Raw::connect(&gateway.url);
    let key = format!("Authorization: Bearer {KEY}");
    client.request("POST /v1/embeddings", &[&key], &json!({ "model": "emb-a", "input": text }).to_string());
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn rg_xw2z_a_normal_end_is_no_disconnect() {
    const REQUESTS: usize = 1000;
    let provider = Provider::start(Script::new().space("A").width(8));
    let gateway = start(&provider);
    for number in 0..REQUESTS {
        let mut client = ask(&gateway, &format!("text {}", number % 50));
        assert_eq!(client.answer().status, 200);
        if number % 2 == 0 {
            // The kernel sends a reset instead of a clean close.
            SockRef::from(client.stream()).set_linger(Some(std::time::Duration::ZERO)).expect("a socket option");
        }
    }
    assert_eq!(outcome(&gateway, "success").await, REQUESTS as f64);
    assert_eq!(outcome(&gateway, "cancelled").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn rg_xw2z_a_real_early_close_is_cancelled() {
    let provider = Provider::start(Script::new().space("A").width(8).delay_ms(300.0));
    let gateway = start(&provider);
    for number in 0..10 {
        let client = ask(&gateway, &format!("text {number}"));
        assert!(provider.wait_calls(number + 1, PATIENCE));
        if number % 2 == 0 {
            SockRef::from(client.stream()).set_linger(Some(std::time::Duration::ZERO)).expect("a socket option");
        }
    }
    let deadline = std::time::Instant::now() + PATIENCE;
    while outcome(&gateway, "cancelled").await < 10.0 {
        assert!(std::time::Instant::now() < deadline, "{} cancelled", outcome(&gateway, "cancelled").await);
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(outcome(&gateway, "success").await, 0.0);
    // What was paid for is there for the next.
    gateway.embed(json!("text 3")).await.expect(200);
    assert_eq!(provider.call_count(), 10);
    let view =
        super::shown(&gateway, "the one success", |view| super::class(view, "interactive-search")["count"] == 1).await;
    assert_eq!(super::class(&view, "interactive-search")["errors"], 0);
}
