//! Failures that users of other gateways met, each as a test named by its id.

mod aborts;
mod accounting;
mod cache;
mod edges;
mod errors;
mod faces;
mod flights;
mod headers;
mod mixtures;
mod paths;
mod tokens;
mod widths;
mod wire;

use loadtest::provider::Provider;
use serde_json::{Value, json};

use crate::support::gateway::Answer;
use crate::support::{Gateway, embedding_config};

/// A price, and the width that the scripted provider has.
const PRICED: &str = "price_usd_per_million_tokens = \"0.02\"\ndimensions = 8";

/// A breaker that never opens and retries without a share, so that a script of failures runs to its end.
const PATIENT: &str = "[breaker]\nfailure_ratio = 1.0\nmin_requests = 1000000\n[retry]\nbudget_ratio = 1.0\n\
                       [quota]\ninteractive_max_wait_ms = 20000\n";

/// The same without any retry.
const ONE_TRY: &str = "[breaker]\nfailure_ratio = 1.0\nmin_requests = 1000000\n[retry]\nmax_attempts = 1\n\
                       [quota]\ninteractive_max_wait_ms = 20000\n";

/// A gateway before one OpenAI-like provider.
#[track_caller]
fn before(provider: &Provider, extra: &str) -> Gateway {
    let url = format!("{}/v1", provider.base_url());
    Gateway::start(&embedding_config(&[("one", "openai", &url)], PRICED, "budget = \"1.00\"", extra))
}

/// What a request for `input` in `format` looks like.
fn asking(input: Value, format: &str) -> Value {
    json!({ "model": "emb-a", "input": input, "encoding_format": format })
}

/// The first vector of a base64 answer.
#[track_caller]
fn base64_floats(answer: &Answer) -> Vec<f32> {
    let body = answer.expect(200);
    let text = body["data"][0]["embedding"].as_str().unwrap_or_else(|| panic!("no base64: {body}"));
    assert_eq!(text.len() % 4, 0, "padded: {text}");
    assert!(!text.contains(|c: char| c.is_whitespace() || c == '-' || c == '_'), "standard alphabet: {text}");
    let bytes = base64_simd::STANDARD.decode_to_vec(text).expect("base64");
    bytes.chunks(4).map(|four| f32::from_le_bytes(four.try_into().expect("whole floats"))).collect()
}

/// The first vector of an answer in numbers.
#[track_caller]
fn float_numbers(answer: &Answer) -> Vec<f32> {
    let vectors = crate::support::vectors(&answer.expect(200));
    vectors[0].iter().map(|number| *number as f32).collect()
}

/// The state of upstream `one` by the admin side.
async fn upstream_state(gateway: &Gateway) -> Value {
    gateway.admin_get("/admin/upstreams").await.expect(200)["upstreams"][0]["state"].clone()
}

/// Tokens that the usage records have, all together.
fn recorded_tokens(gateway: &Gateway) -> u64 {
    gateway.usage().iter().map(|record| record["tokens"].as_u64().expect("tokens")).sum()
}

/// Waits until the gateway has compared the vectors of all upstreams, so that any of them may take over.
async fn all_compared(gateway: &Gateway) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    loop {
        let upstreams = gateway.admin_get("/admin/upstreams").await.expect(200)["upstreams"].clone();
        let list = upstreams.as_array().expect("a list");
        if list.iter().all(|upstream| upstream["state"]["unverified"] == false) {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "{upstreams}");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}
