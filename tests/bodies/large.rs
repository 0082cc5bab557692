//! RG-w3pk and RG-vkgk: large answers, and many large bodies at once.

use std::time::Duration;

use futures_util::future::join_all;
use loadtest::provider::{Framing, Provider, Record, Script};
use tokio::time::timeout;

use super::{body, memory, peak, text};
use crate::support::gateway::{Answer, KEY};
use crate::support::{Gateway, embedding_config};

const MIB: u64 = 1 << 20;

/// Longest wait for anything here: a bound that only a hang breaks.
const PATIENCE: Duration = Duration::from_secs(240);

fn start(script: Script, model: &str, extra: &str) -> (Provider, Gateway) {
    let provider = Provider::start(script.space("A"));
    let url = format!("{}/v1", provider.base_url());
    (provider, Gateway::start(&embedding_config(&[("one", "openai", &url)], model, "", extra)))
}

async fn post(gateway: &Gateway, body: String) -> Answer {
    let headers = [("x-traffic-class", "batch-ingestion"), ("cache-control", "no-store")];
    timeout(PATIENCE, gateway.post("/v1/embeddings", KEY, &headers, body)).await.expect("an answer in time")
}

#[track_caller]
fn assert_complete(answer: &Answer, count: usize, width: usize) {
    assert_eq!(answer.status, 200, "{}", answer.text.get(..500).unwrap_or(&answer.text));
    let json = answer.json();
    let data = json["data"].as_array().expect("a list");
    assert_eq!(data.len(), count);
    for place in [0, count / 2, count - 1] {
        assert_eq!(data[place]["index"], place);
        let got: Vec<f32> = data[place]["embedding"]
            .as_array()
            .expect("numbers")
            .iter()
            .map(|number| number.as_f64().expect("a number") as f32)
            .collect();
        let length = if count == 100 { 20 } else { 12 };
        let expected = loadtest::provider::signature("A", &text(place, length), width);
        assert_eq!(got, expected, "vector {place}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rg_w3pk_large_answers_pass_whole_at_bounded_memory() {
    for framing in [Framing::Length, Framing::Chunked(16_384)] {
        let mut script = Script::new().width(3072);
        script.framing = framing;
        let (provider, gateway) =
            start(script, "dimensions = 3072", "[cache]\nbackend = \"off\"\n[quota]\nbatch_size = 2048");
        assert_complete(&post(&gateway, body(100, 20)).await, 100, 3072);
        let answer = post(&gateway, body(2048, 12)).await;
        assert_complete(&answer, 2048, 3072);
        assert!(answer.text.len() as u64 > 50 * MIB, "{}", answer.text.len());
        let (peak, size) = (peak(&gateway), answer.text.len() as u64);
        assert!(peak < 3 * size + 64 * MIB, "{peak} bytes for an answer of {size}");
        assert_eq!(provider.call_count(), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rg_vkgk_many_large_bodies_stay_within_the_budget() {
    let mut script = Script::new().width(8).delay_ms(1_000.0).canned();
    script.record = Record::Heads;
    let limits = "max_buffered_bytes = 8388608\n[cache]\nbackend = \"off\"\n[quota]\nbatch_size = 2048\n\
                  [breaker]\nslow_ms = 600000";
    let (provider, gateway) = start(script, "dimensions = 8", limits);
    // 24 × 4 MB while the upstream takes its time; together twelve times the budget.
    let large: Vec<_> = (0..24).map(|_| post(&gateway, body(340, 12_000))).collect();
    let small = async {
        // Search queries go on meanwhile.
        for number in 0..20 {
            let query = gateway.embed(serde_json::json!(format!("query {number}")));
            timeout(PATIENCE, query).await.expect("in time").expect(200);
        }
    };
    let (answers, ()) = tokio::join!(join_all(large), small);
    for answer in &answers {
        match answer.status {
            200 => assert_eq!(answer.json()["data"].as_array().expect("a list").len(), 340),
            _ => {
                answer.expect(503);
                assert!(!answer.header("retry-after").is_empty());
            }
        }
    }
    let answered = answers.iter().filter(|answer| answer.status == 200).count();
    assert!(answered >= 12, "most complete: {answered} of 24");
    let most = peak(&gateway);
    assert!(most < 160 * MIB, "{most} bytes");
    // One request of 200,000 texts.
    let huge = post(&gateway, body(200_000, 20)).await;
    assert_eq!(huge.status, 200, "{}", huge.text.get(..300).unwrap_or(&huge.text));
    assert_eq!(gateway.metric("vectorgate_buffered_bytes").await, 0.0, "every share came back");
    assert!(memory(&gateway, "VmRSS") < 300 * MIB);
    assert!(provider.call_count() > 24);
}
