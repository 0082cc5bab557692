//! Retries never make an outage worse, and every client is told when to come back.

use std::time::Duration;

use loadtest::provider::{Effect, Fault, Provider, Script, TokenRule};
use serde_json::json;

use super::{Config, batch, healthy, load, query, statuses, texts, until_breaker, upstream};
use crate::support::gateway::{Answer, KEY};

/// Calls at providers when everything fails; the gateway's own comparisons of vectors included.
async fn amplification(broken: fn() -> Script, settings: &str) {
    let (one, two) = (Provider::start(broken()), Provider::start(broken()));
    let config = Config::new().with(settings).upstream("one", &one.base_url(), "").upstream("two", &two.base_url(), "");
    let gateway = config.start();
    let answers = load(&gateway, "all fails", 400, Duration::from_millis(3)).await;
    assert_eq!(statuses(&answers).get(&200), None);
    let calls = one.call_count() + two.call_count();
    assert!(calls <= 450, "{calls} calls for 400 requests");
}

#[tokio::test]
async fn an_outage_is_not_amplified() {
    // A breaker that never opens leaves only the retry budget between the clients and the upstreams.
    let blind = "[breaker]\nmin_requests = 1000000\n";
    for settings in ["", blind] {
        amplification(|| Script::new().always(Effect::status(500)), settings).await;
        amplification(|| Script::new().always(Effect::fault(Fault::ResetAfterBody)), settings).await;
        amplification(|| Script::new().always(Effect::status(429)), settings).await;
    }
}

#[tokio::test]
async fn with_a_few_failures_among_many_answers_nobody_sees_one() {
    let broken = || {
        let some = loadtest::provider::When { every: 25, ..Default::default() };
        Provider::start(Script::new().rule(some, Effect::status(503)))
    };
    let (one, two) = (broken(), broken());
    let config = Config::new().with("[breaker]\nfailure_ratio = 0.5\n");
    let gateway = config.upstream("one", &one.base_url(), "").upstream("two", &two.base_url(), "").start();
    super::until_checked(&gateway, &[("one", &one), ("two", &two)]).await;
    let answers = load(&gateway, "mostly well", 500, Duration::from_millis(4)).await;
    assert_eq!(statuses(&answers), [(200, 500)].into(), "retries that worked earn the next");
}

fn told(answer: &Answer) -> u64 {
    assert!(matches!(answer.status, 429 | 503), "{} {}", answer.status, answer.text);
    answer.header("retry-after").parse().unwrap_or_else(|_| panic!("whole seconds: {:?}", answer.headers))
}

#[tokio::test]
async fn rg_czh7_an_upstreams_wait_reaches_the_client() {
    let limited = |headers: &[(&str, &str)]| {
        let effect = headers.iter().fold(Effect::status(429), |effect, (name, value)| effect.header(name, value));
        Provider::start(Script::new().next(1, effect))
    };
    for (headers, least, most) in [
        (&[("retry-after", "30")][..], 29, 30),
        (&[("retry-after-ms", "1200")][..], 2, 2),
        (&[("retry-after", "2"), ("retry-after-ms", "1700")][..], 2, 2),
        (&[][..], 1, 2),
    ] {
        let provider = limited(headers);
        let gateway = Config::new().upstream("one", &provider.base_url(), "").start();
        let first = query(&gateway, "first").await;
        assert_eq!(first.error_code(), "rate_limit_exceeded", "the provider's own word: {}", first.text);
        assert!((least..=most).contains(&told(&first)), "{headers:?}: {:?}", first.headers);
        assert_eq!(first.header("x-retrieval-fallback"), "lexical-only");
        let second = query(&gateway, "second").await;
        assert_eq!(second.error_code(), "upstream_rate_limited");
        assert!((1..=most).contains(&told(&second)), "{headers:?}: {:?}", second.headers);
        assert_eq!(provider.call_count(), 1, "nothing is sent during the pause");
        if least <= 2 {
            tokio::time::sleep(Duration::from_secs(told(&second))).await;
            query(&gateway, "as told").await.expect(200);
        }
    }
}

#[tokio::test]
async fn rg_czh7_with_several_upstreams_the_earliest_counts() {
    let limited = |wait: &str| Provider::start(Script::new().always(Effect::status(429).header("retry-after", wait)));
    let (one, two) = (limited("30"), limited("5"));
    let config =
        Config::new().upstream("one", &one.base_url(), "tier = 0").upstream("two", &two.base_url(), "tier = 1");
    let gateway = config.with("[quota]\ninteractive_max_wait_ms = 0\n").start();
    // Neither can be compared with the other while both refuse: the second is still waiting for its check.
    for n in 0..3 {
        let answer = query(&gateway, &format!("q {n}")).await;
        assert!(told(&answer) <= 30, "{:?}", answer.headers);
    }
}

#[tokio::test]
async fn rg_czh7_every_refusal_of_the_gateways_own_says_when() {
    let provider = Provider::start(Script::new().tokens(TokenRule::Bytes));
    let config = Config::new().bytes_are_tokens().only_tenant("tpm = 100").upstream("one", &provider.base_url(), "");
    let gateway = config.start();
    query(&gateway, &"a".repeat(80)).await.expect(200);
    let limited = query(&gateway, &"b".repeat(80)).await;
    assert_eq!(limited.error_code(), "tenant_rate_limited");
    assert!((50..=62).contains(&told(&limited)), "{:?}", limited.headers);
    assert!(!limited.header("retry-after-ms").is_empty());

    let provider = healthy();
    let gateway = Config::new().upstream("one", &provider.base_url(), "").start();
    gateway.admin_post("/admin/upstreams/one/drain", json!({})).await.expect(200);
    super::until_upstream(&gateway, "one", "draining", |state| state["draining"] == true).await;
    let drained = query(&gateway, "drained").await;
    assert_eq!(drained.error_code(), "no_compatible_upstream");
    assert!(told(&drained) >= 1);
    assert_eq!((drained.header("x-should-retry"), drained.header("x-retrieval-fallback")), ("false", "lexical-only"));
    let batch = batch(&gateway, KEY, &texts("drained", 3)).await;
    assert!(told(&batch) >= 1);
    gateway.admin_post("/admin/upstreams/one/resume", json!({})).await.expect(200);
    super::until_upstream(&gateway, "one", "back", |state| state["usable"] == true).await;
    query(&gateway, "resumed").await.expect(200);
    gateway.admin_post("/admin/upstreams/one/open", json!({})).await.expect(200);
    until_breaker(&gateway, "one", "open").await;
    assert!(told(&query(&gateway, "opened").await) >= 1);
    assert_eq!(upstream(&gateway, "one").await["breaker_reason"], "forced");
}
