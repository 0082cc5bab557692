//! How large a call may be: as configured, as the provider's refusals teach, and as its remaining tokens allow.

use std::time::Duration;

use futures_util::future::join_all;
use loadtest::provider::{Dialect, Limits, Provider, Quota, Refusals, Script, TokenRule};

use super::{Config, batch, texts};
use crate::support::gateway::KEY;
use crate::support::{Gateway, assert_signatures};

fn refs(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}

/// 500 texts through an upstream with a limit; how many calls it refused.
async fn taken(gateway: &Gateway, provider: &Provider, name: &str, padding: usize) -> u64 {
    provider.clear();
    let docs: Vec<String> = texts(name, 500).iter().map(|text| format!("{text} {}", "x".repeat(padding))).collect();
    let answer = batch(gateway, KEY, &docs).await;
    assert_signatures(&answer.expect(200), "A", &refs(&docs));
    provider.stats().by_status.iter().filter(|(status, _)| **status != 200).map(|(_, count)| count).sum()
}

async fn learns(limits: Limits, configured: &str, also: &str, padding: usize) {
    let words = format!("{:?}", limits.words);
    let provider = Provider::start(Script::new().limits(limits));
    let large = "[quota]\nbatch_size = 500\n";
    let keys = format!("{configured}\n{also}");
    let told = Config::new().with(large).upstream("one", &provider.base_url(), &keys).start();
    assert_eq!(taken(&told, &provider, "configured", padding).await, 0, "{words}: split right from the start");
    drop(told);
    let gateway = Config::new().with(large).upstream("one", &provider.base_url(), also).start();
    let refused = taken(&gateway, &provider, "unknown", padding).await;
    // 500 to 10 takes six halvings.
    assert!((1..=7).contains(&refused), "{words}: {refused} refusals are logarithmic");
    assert_eq!(taken(&gateway, &provider, "remembered", padding).await, 0, "{words}: remembered");
}

#[tokio::test]
async fn rg_93s4_limits_of_items_are_learned_from_every_providers_words() {
    let items = |max, words| Limits { max_items: Some(max), words, ..Limits::default() };
    learns(items(10, Refusals::Number400), "max_batch_items = 10", "", 0).await;
    learns(items(32, Refusals::Plain413), "max_batch_items = 32", "", 0).await;
    learns(items(64, Refusals::Json413), "max_batch_items = 64", "", 0).await;
    learns(items(96, Refusals::List422), "max_batch_items = 96", "", 0).await;
    learns(items(25, Refusals::Native), "max_batch_items = 25", "", 0).await;
    learns(items(40, Refusals::Empty413), "max_batch_items = 40", "", 0).await;
}

#[tokio::test]
async fn rg_93s4_a_limit_of_bytes_is_learned_from_an_empty_413() {
    let limits = Limits { max_bytes: Some(2_000_000), words: Refusals::Empty413, ..Limits::default() };
    // However many tokens that may be: only the bytes shall bind.
    learns(limits, "max_batch_bytes = 2000000", "max_batch_tokens = 1000000000", 9_000).await;
}

#[tokio::test]
async fn rg_93s4_what_one_upstream_takes_says_nothing_about_another() {
    let tight = Provider::start(Script::new().max_items(10, Refusals::Plain413));
    let wide = super::healthy();
    let config = Config::new().with("[quota]\nbatch_size = 500\n").upstream("tight", &tight.base_url(), "");
    let other = "[[models]]\nname = \"emb-b\"\nspace = \"B\"\ndimensions = 8\nprice_usd_per_million_tokens = \"0\"\n";
    let config = config.with(other).upstream_of("openai", "wide", &format!("{}/v1", wide.base_url()), "");
    let text = config.text().replacen("serves = [{ model = \"emb-a\" }]", "serves = [{ model = \"emb-a\" } ]", 1);
    let (first, last) = text.rsplit_once("serves = [{ model = \"emb-a\" }]").expect("the second upstream");
    let gateway = Gateway::start(&format!("{first}serves = [{{ model = \"emb-b\" }}]{last}"));
    batch(&gateway, KEY, &texts("first", 200)).await.expect(200);
    let body = serde_json::json!({ "model": "emb-b", "input": texts("second", 200) });
    let headers = [("x-traffic-class", "batch-ingestion")];
    gateway.post("/v1/embeddings", KEY, &headers, body.to_string()).await.expect(200);
    assert_eq!(wide.call_count(), 1, "all in one call");
}

#[tokio::test]
async fn rg_93s4_a_single_item_that_is_too_large_is_the_clients_to_hear_of() {
    let limits = Limits { max_bytes: Some(50_000), words: Refusals::Json413, ..Limits::default() };
    let provider = Provider::start(Script::new().limits(limits));
    let gateway = Config::new().upstream("one", &provider.base_url(), "").start();
    let docs = ["short".to_owned(), "x".repeat(60_000), "short too".to_owned()];
    let answer = batch(&gateway, KEY, &docs).await;
    let error = answer.expect(413);
    assert!(error["error"]["message"].as_str().expect("a message").contains("input[1]"), "{error}");
    batch(&gateway, KEY, &["short".to_owned(), "short too".to_owned()]).await.expect(200);
}

#[tokio::test]
async fn batches_follow_the_tokens_that_the_provider_says_are_left() {
    let script = Script {
        response_headers: vec![
            ("x-ratelimit-limit-tokens".to_owned(), "1000000".to_owned()),
            ("x-ratelimit-remaining-tokens".to_owned(), "1000".to_owned()),
            ("x-ratelimit-reset-tokens".to_owned(), "20s".to_owned()),
        ],
        ..Script::new().tokens(TokenRule::PerItem(100)).delay_ms(5.0)
    };
    let provider = Provider::start(script);
    let gateway =
        Config::new().with("[quota]\ninteractive_reserve = 0.0\n").upstream("one", &provider.base_url(), "").start();
    // Unknown at first: 50 as configured. Then floor(1000 × 0.8 / 100) = 8 at a time.
    batch(&gateway, KEY, &texts("first", 50)).await.expect(200);
    assert_eq!(provider.calls()[0].items, 50);
    provider.clear();
    batch(&gateway, KEY, &texts("then", 60)).await.expect(200);
    let sizes: Vec<usize> = provider.calls().iter().map(|call| call.items).collect();
    assert!(sizes.iter().all(|size| *size <= 8), "{sizes:?}");
    assert!(sizes.iter().filter(|size| **size == 8).count() >= 1, "{sizes:?}");
}

#[tokio::test]
async fn with_a_real_quota_no_call_asks_for_more_than_is_left() {
    let script = Script::new().tokens(TokenRule::PerItem(100)).quota(Quota::tpm(60_000)).delay_ms(3.0);
    let provider = Provider::start(script);
    let config = Config::new().upstream("one", &provider.base_url(), "tpm = 60000");
    let gateway = config.start();
    let docs: Vec<String> = texts("doc", 100).iter().map(|text| format!("{text}{}", " word".repeat(98))).collect();
    batch(&gateway, KEY, &docs).await.expect(200);
    assert_eq!(provider.stats().by_status.get(&429), None);
    // Each call is a share of what is guaranteed to batch: none of them could wait for ever behind interactive traffic.
    assert!(provider.calls().iter().all(|call| call.items <= 50));
}

#[tokio::test]
async fn servers_without_a_quota_are_not_throttled_and_their_refusals_adapt_the_concurrency() {
    let script = Script { max_concurrent_texts: 64, ..Script::new().dialect(Dialect::Tei).delay_ms(20.0) };
    let provider = Provider::start(script);
    let config = Config::new().upstream_of("tei", "one", &provider.base_url(), "max_concurrency = 512");
    let gateway =
        config.with("[breaker]\nfailure_ratio = 0.9\n[retry]\nmax_attempts = 10\nbudget_ratio = 1.0\n").start();
    let mut refused = Vec::new();
    for round in 0..4 {
        provider.clear();
        let jobs: Vec<Vec<String>> = (0..6).map(|job| texts(&format!("round {round} job {job}"), 128)).collect();
        let answers = join_all(jobs.iter().map(|job| batch(&gateway, KEY, job))).await;
        for (answer, job) in answers.iter().zip(&jobs) {
            assert_signatures(&answer.expect(200), "A", &refs(job));
        }
        refused.push(provider.stats().by_status.get(&429).copied().unwrap_or(0));
    }
    assert!(refused[0] >= 1, "more was tried than it takes: {refused:?}");
    let later: u64 = refused[2..].iter().sum();
    assert!(later <= refused[0] + 6, "and learned from: {refused:?}");
    let state = super::upstream(&gateway, "one").await;
    assert!(state["concurrency_limit"].as_u64().expect("a number") < 512, "{state}");
    assert_eq!(state["limit_tokens"], serde_json::Value::Null);

    let ollama = Provider::start(Script::new().dialect(Dialect::Ollama).delay_ms(2.0));
    let gateway = Config::new().upstream_of("ollama", "one", &ollama.base_url(), "").start();
    let began = std::time::Instant::now();
    let docs: Vec<String> = texts("doc", 400).iter().map(|text| format!("{text}{}", " word".repeat(200))).collect();
    batch(&gateway, KEY, &docs).await.expect(200);
    assert!(began.elapsed() < Duration::from_secs(10), "nothing is paced that has no quota: {:?}", began.elapsed());
}
