//! The rerank cache: one entry a pair, filled in part, and only where pairs are scored on their own.

use std::collections::HashSet;

use loadtest::provider::{Limits, Provider, Refusals, Script};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};

use super::{expected, gateway, one_model, post, ranking};
use crate::support::Gateway;

const PAIRWISE: &str = "kind = \"rerank\"\npairwise = true";

fn server() -> Provider {
    Provider::start(Script::new().space("A"))
}

async fn rerank(gateway: &Gateway, query: &str, documents: &[&str]) -> crate::support::gateway::Answer {
    post(gateway, "/v1/rerank", &json!({"model": "ranker", "query": query, "documents": documents})).await
}

#[tokio::test]
async fn one_changed_document_of_a_hundred_is_one_pair() {
    let server = server();
    let gateway = gateway(&one_model(&server, "voyage", "ranker", PAIRWISE), "");
    let texts: Vec<String> = (0..100).map(|n| format!("document number {n}")).collect();
    let mut documents: Vec<&str> = texts.iter().map(String::as_str).collect();
    let first = rerank(&gateway, "which?", &documents).await;
    assert_eq!(ranking(&first.expect(200)), expected("which?", &documents));
    assert_eq!((first.header("x-cache"), first.header("x-cache-hits")), ("MISS", "0/100"));
    documents[41] = "something else";
    let second = rerank(&gateway, "which?", &documents).await;
    assert_eq!(ranking(&second.expect(200)), expected("which?", &documents));
    assert_eq!((second.header("x-cache"), second.header("x-cache-hits")), ("PARTIAL", "99/100"));
    let sent = server.calls()[1].json();
    assert_eq!(sent["documents"], json!(["something else"]));
    let third = rerank(&gateway, "which?", &documents).await;
    assert_eq!((third.header("x-cache"), third.header("x-cache-hits")), ("HIT", "100/100"));
    assert_eq!(third.header("x-gateway-cost-eur"), "0");
    assert_eq!(ranking(&third.expect(200)), ranking(&second.json()));
    assert_eq!(server.call_count(), 2);
    let other_query = rerank(&gateway, "who?", &documents).await;
    assert_eq!(other_query.header("x-cache"), "MISS");
}

/// Any list over any query: what is known is not asked for, what is not is asked for once, and every score stands beside
/// its own document.
#[tokio::test]
async fn random_lists_ask_for_the_missing_pairs_only() {
    let server = server();
    let gateway = gateway(&one_model(&server, "jina", "ranker", PAIRWISE), "");
    let seed: u64 = rand::random();
    let mut random = SmallRng::seed_from_u64(seed);
    let texts: Vec<String> = (0..60).map(|n| format!("text {n} of sixty")).collect();
    let mut known: HashSet<(usize, usize)> = HashSet::new();
    for round in 0..80 {
        let note = format!("seed {seed}, round {round}");
        let query = random.random_range(0..3);
        let places: Vec<usize> =
            (0..random.random_range(1..=40)).map(|_| random.random_range(0..texts.len())).collect();
        let documents: Vec<&str> = places.iter().map(|place| texts[*place].as_str()).collect();
        let missing: HashSet<usize> =
            places.iter().copied().filter(|place| !known.contains(&(query, *place))).collect();
        let hits = places.iter().filter(|place| !missing.contains(place)).count();
        let before = server.stats();
        let words = ["first", "second", "third"][query];
        let answer = rerank(&gateway, words, &documents).await;
        assert_eq!(ranking(&answer.expect(200)), expected(words, &documents), "{note}");
        assert_eq!(answer.header("x-cache-hits"), format!("{hits}/{}", places.len()), "{note}");
        let after = server.stats();
        assert_eq!(after.items - before.items, missing.len() as u64, "{note}");
        assert_eq!(after.calls - before.calls, u64::from(!missing.is_empty()), "{note}");
        known.extend(missing.into_iter().map(|place| (query, place)));
    }
}

#[tokio::test]
async fn equal_requests_at_once_are_asked_for_once() {
    let server = Provider::start(Script::new().space("A").delay_ms(200.0));
    let gateway = gateway(&one_model(&server, "cohere", "ranker", PAIRWISE), "");
    let documents = ["a", "b", "c", "b"];
    let requests = (0..12).map(|_| rerank(&gateway, "q", &documents));
    for answer in futures_util::future::join_all(requests).await {
        assert_eq!(ranking(&answer.expect(200)), expected("q", &documents));
    }
    assert_eq!(server.stats().items, 3, "three distinct pairs");
}

#[tokio::test]
async fn a_listwise_model_is_never_cached_folded_or_split() {
    let server = server();
    for (provider, model, keys) in [
        // By the catalogue, and by default for a model that nothing is known of.
        ("jina", "jina-reranker-v3.5", ""),
        ("tei", "ranker", "kind = \"rerank\""),
    ] {
        let gateway = gateway(&one_model(&server, provider, model, keys), "");
        let documents = ["a", "b", "a"];
        let body = json!({"model": model, "query": "q", "documents": documents});
        for _ in 0..2 {
            let answer = post(&gateway, "/v1/rerank", &body).await;
            assert_eq!(ranking(&answer.expect(200)), expected("q", &documents));
            assert_eq!((answer.header("x-cache"), answer.header("x-cache-hits")), ("BYPASS", "0/3"));
        }
        let calls = server.calls();
        assert_eq!(calls.iter().map(|call| call.items).collect::<Vec<_>>(), [3, 3], "{provider}");
        server.clear();
        // More than the provider takes at once is its own refusal, and no second call in pieces.
        if provider == "tei" {
            let many = vec!["x"; 40];
            let answer = post(&gateway, "/v1/rerank", &json!({"model": model, "query": "q", "documents": many})).await;
            assert_eq!(answer.status, 422, "{}", answer.text);
            assert_eq!(server.call_count(), 1);
            server.clear();
        }
    }
}

#[tokio::test]
async fn a_long_list_for_a_pairwise_model_is_put_together_again() {
    let server = server();
    let gateway = gateway(&one_model(&server, "tei", "ranker", PAIRWISE), "");
    let texts: Vec<String> = (0..100).map(|n| format!("document {n}")).collect();
    let documents: Vec<&str> = texts.iter().map(String::as_str).collect();
    let body = json!({"model": "ranker", "query": "q", "documents": documents, "top_n": 7});
    let answer = post(&gateway, "/v2/rerank", &body).await;
    assert_eq!(ranking(&answer.expect(200)), expected("q", &documents)[..7]);
    let mut sizes: Vec<usize> = server.calls().iter().map(|call| call.items).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [4, 32, 32, 32], "TEI takes 32 at once");
    // What was cut off was paid for: it is known now.
    let rest = rerank(&gateway, "q", &documents[50..60]).await;
    assert_eq!(rest.header("x-cache"), "HIT");
}

/// Ranks a hundred documents; how many refusals that took.
async fn refusals(server: &Provider, gateway: &Gateway, query: &str) -> usize {
    server.clear();
    let texts: Vec<String> = (0..100).map(|n| format!("document {n} for {query}")).collect();
    let documents: Vec<&str> = texts.iter().map(String::as_str).collect();
    let answer = rerank(gateway, query, &documents).await;
    assert_eq!(ranking(&answer.expect(200)), expected(query, &documents));
    server.calls().iter().filter(|call| call.status != 200).count()
}

#[tokio::test]
async fn how_many_documents_a_call_may_have_is_learned_and_remembered() {
    let kinds = [Refusals::Native, Refusals::Number400, Refusals::Plain413, Refusals::List422, Refusals::Empty413];
    for words in kinds {
        let note = format!("{words:?}");
        let server = Provider::start(Script::new().space("A").width(8).limits(Limits {
            max_items: Some(10),
            words,
            ..Limits::default()
        }));
        let tables = one_model(&server, "vllm", "ranker", PAIRWISE);
        let both = "serves = [{ model = \"ranker\" }, { model = \"m\" }]";
        let tables = tables.replace("serves = [{ model = \"ranker\" }]", both);
        let gateway = gateway(&format!("[[models]]\nname = \"m\"\ndimensions = 8\n{tables}"), "");
        let first = refusals(&server, &gateway, "first").await;
        // 100 to 10 takes four halvings.
        assert!((1..=5).contains(&first), "{note}: {first}");
        assert_eq!(refusals(&server, &gateway, "second").await, 0, "{note}: remembered");
        assert!(server.calls().iter().all(|call| call.items <= 10), "{note}");
        // What is too much to rank says nothing about vectors.
        server.set_script(Script::new().space("A").width(8));
        server.clear();
        let texts: Vec<String> = (0..40).map(|n| format!("text {n}")).collect();
        post(&gateway, "/v1/embeddings", &json!({"model": "m", "input": texts})).await.expect(200);
        assert_eq!(server.calls().iter().map(|call| call.items).collect::<Vec<_>>(), [40], "{note}");
    }
}

#[tokio::test]
async fn a_refusal_of_a_list_that_cannot_be_cut_teaches_nothing() {
    let limits = Limits { max_items: Some(10), words: Refusals::Number400, ..Limits::default() };
    let server = Provider::start(Script::new().space("A").limits(limits));
    let listwise = one_model(&server, "vllm", "whole", "kind = \"rerank\"").replace("at-vllm", "other");
    let both = "serves = [{ model = \"ranker\" }, { model = \"whole\" }]";
    let tables = one_model(&server, "vllm", "ranker", PAIRWISE).replace("serves = [{ model = \"ranker\" }]", both);
    let models = listwise.split("[[upstreams]]").next().expect("its model");
    let gateway = gateway(&format!("{models}{tables}"), "");
    let many: Vec<String> = (0..40).map(|n| n.to_string()).collect();
    let refused = post(&gateway, "/v1/rerank", &json!({"model": "whole", "query": "q", "documents": many})).await;
    assert_eq!((refused.status, server.call_count()), (400, 1), "{}", refused.text);
    server.set_script(Script::new().space("A"));
    server.clear();
    let served = post(&gateway, "/v1/rerank", &json!({"model": "ranker", "query": "q", "documents": many})).await;
    assert_eq!((served.status, server.call_count()), (200, 1), "in one call: {}", served.text);
}

#[tokio::test]
async fn a_hit_has_the_bytes_of_the_miss_in_every_dialect_without_an_id() {
    let server = server();
    let gateway = gateway(&one_model(&server, "voyage", "ranker", PAIRWISE), "");
    let body = |list: &str| -> Value { json!({"model": "ranker", "query": "q", list: ["a", "b"]}) };
    for (path, list) in [("/voyage/v1/rerank", "documents"), ("/jina/v1/rerank", "documents"), ("/rerank", "texts")] {
        let mut body = body(list);
        // Each dialect begins with an empty cache.
        body["query"] = json!(path);
        let miss = post(&gateway, path, &body).await;
        let hit = post(&gateway, path, &body).await;
        assert_eq!((miss.header("x-cache"), hit.header("x-cache")), ("MISS", "HIT"), "{path}");
        assert_eq!(miss.text, hit.text);
    }
}

#[tokio::test]
async fn options_that_change_a_score_and_folding_are_part_of_the_key() {
    let server = server();
    let gateway = gateway(&one_model(&server, "tei", "ranker", PAIRWISE), "");
    let ask = |query: &'static str, text: &'static str, extra: (&'static str, Value)| {
        let mut body = json!({"query": query, "texts": [text]});
        body[extra.0] = extra.1;
        let gateway = &gateway;
        async move { post(gateway, "/rerank", &body).await.header("x-cache").to_owned() }
    };
    let no = || ("return_text", json!(false));
    assert_eq!(ask("Ab", "c", no()).await, "MISS");
    assert_eq!(ask("Ab", "c", ("return_text", json!(true))).await, "HIT", "only the answer differs");
    assert_eq!(ask(" aB ", "c", no()).await, "HIT", "queries are folded");
    assert_eq!(ask("Ab", "C", no()).await, "MISS", "documents are not");
    assert_eq!(ask("A", "bc", no()).await, "MISS");
    assert_eq!(ask("Ab", "c", ("raw_scores", json!(true))).await, "MISS");
    assert_eq!(ask("Ab", "c", ("truncate", json!(false))).await, "MISS");
}
