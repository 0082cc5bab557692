//! Rerank calls under faults: they fail over like queries do, and say when lexical search has to stand in.

use std::time::{Duration, Instant};

use loadtest::provider::{Effect, Fault, Pace, Provider, Script};
use serde_json::json;

use super::{healthy, until_breaker};
use crate::dialects::{expected, ranking};
use crate::support::Gateway;
use crate::support::gateway::{Answer, KEY, embedding_config};

const DOCUMENTS: [&str; 3] = ["the first text", "another one", "what was asked for"];

/// A reranker served by the first upstream, and by the second when that one fails.
fn pair(one: &str, two: &str, keys: &str) -> Gateway {
    let upstream = |id: &str, url: &str, tier: u32| {
        format!(
            "[[upstreams]]\nid = \"{id}\"\nprovider = \"cohere\"\nbase_url = \"{url}\"\ntier = {tier}\n\
             api_key = {{ value = \"k-{id}\" }}\nserves = [{{ model = \"ranker\" }}]\n{keys}\n"
        )
    };
    let extra = format!(
        "[cache]\nbackend = \"off\"\n[retry]\nbase_ms = 10\n[breaker]\ncooldown_s = 2\nmin_requests = 5\nslow_ms = 300\n\
         [[models]]\nname = \"ranker\"\nkind = \"rerank\"\n{}{}",
        upstream("one", one, 0),
        upstream("two", two, 1)
    );
    Gateway::start(&embedding_config(&[("embedder", "openai", two)], "", "", &extra))
}

async fn rank(gateway: &Gateway, query: &str) -> Answer {
    let body = json!({ "model": "ranker", "query": query, "documents": DOCUMENTS }).to_string();
    gateway.post("/v2/rerank", KEY, &[], body).await
}

#[tokio::test]
async fn rg_5fbn_every_kind_of_fault_fails_over() {
    let bound = Duration::from_secs(5);
    for (name, script) in [
        ("refused", Script::new().always(Effect::fault(Fault::Refuse))),
        ("accepts and closes", Script::new().always(Effect::fault(Fault::AcceptAndClose))),
        ("resets", Script::new().always(Effect::fault(Fault::ResetMidAnswer { after_bytes: 20 }))),
        ("garbage", Script::new().always(Effect::fault(Fault::Garbage))),
        ("stalls", Script::new().always(Effect::pace(Pace::stall(0, 3_600_000.0)))),
        ("500", Script::new().always(Effect::status(500))),
        ("429", Script::new().always(Effect::status(429))),
        ("wrong key", Script::new().always(Effect::status(401))),
    ] {
        let (one, two) = (Provider::start(script), healthy());
        let gateway = pair(&one.base_url(), &two.base_url(), "connect_timeout_ms = 300\ntimeout_s = 1");
        for n in 0..3 {
            let began = Instant::now();
            let query = format!("{name} {n}");
            let answer = rank(&gateway, &query).await;
            assert_eq!(ranking(&answer.expect(200)), expected(&query, &DOCUMENTS), "{name}");
            assert_eq!(answer.header("x-gateway-upstream"), "two", "{name}");
            assert_eq!(answer.header("x-traffic-class"), "rerank");
            assert!(began.elapsed() < bound, "{name}: {:?}", began.elapsed());
        }
        two.stop().await;
        let answer = rank(&gateway, "nobody is left").await;
        assert!(matches!(answer.status, 502..=504), "{name}: {} {}", answer.status, answer.text);
        assert_eq!(answer.header("x-retrieval-fallback"), "lexical-only", "{name}");
    }
}

#[tokio::test]
async fn an_outage_opens_the_breakers_and_ends_with_probes() {
    let (one, two) = (healthy(), healthy());
    let gateway = pair(&one.base_url(), &two.base_url(), "");
    rank(&gateway, "before").await.expect(200);
    for provider in [&one, &two] {
        provider.set_script(Script::new().always(Effect::status(503)));
    }
    let until = Instant::now() + super::SOON;
    let refused = loop {
        let answer = rank(&gateway, "during").await;
        assert!(answer.status >= 500, "{}", answer.text);
        assert_eq!(answer.header("x-retrieval-fallback"), "lexical-only");
        if answer.json()["code"] == "upstream_circuit_open" {
            break answer;
        }
        assert!(Instant::now() < until, "it opens: {}", answer.text);
    };
    assert_eq!((refused.status, refused.header("x-should-retry")), (503, "false"));
    until_breaker(&gateway, "one", "open").await;
    for provider in [&one, &two] {
        provider.set_script(Script::new());
    }
    while rank(&gateway, "after").await.status != 200 {
        assert!(Instant::now() < until, "it is probed and comes back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
