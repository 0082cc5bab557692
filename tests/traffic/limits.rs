//! Rate limits: what providers announce is believed, what was taken is given back or charged exactly, and parallel
//! requests cannot slip under a limit.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use loadtest::provider::{Dialect, Effect, Provider, Quota, Script, TokenRule};

use super::{Config, batch, client_calls, healthy, query, statuses, until_checked, upstream};
use crate::support::gateway::KEY;

/// Two keys of one provider, the second for when the first has no room.
fn two_keys(one: &Provider, two: &Provider, keys: &str) -> Config {
    Config::new().bytes_are_tokens().upstream("one", &one.base_url(), &format!("{keys}\ntier = 0")).upstream(
        "two",
        &two.base_url(),
        "tier = 1",
    )
}

/// The pause in milliseconds after a 429 with these headers.
async fn pause_after(headers: &[(&str, &str)]) -> u64 {
    let refusal = headers.iter().fold(Effect::status(429), |effect, (name, value)| effect.header(name, value));
    let (one, two) = (healthy(), healthy());
    let gateway = two_keys(&one, &two, "").start();
    until_checked(&gateway, &[("one", &one), ("two", &two)]).await;
    one.set_script(Script::new().next(1, refusal));
    one.clear();
    two.clear();
    let answer = query(&gateway, "refused there").await;
    answer.expect(200);
    assert_eq!(answer.header("x-gateway-upstream"), "two");
    let pause = upstream(&gateway, "one").await["cool_down_ms"].as_u64().expect("a number");
    assert!(pause > 0, "{headers:?}: no pause");
    let before = one.calls().last().expect("the refused call").arrived_ns;
    let began = Instant::now();
    if pause < 2_500 {
        // The next call leaves once the pause is over, and not before.
        while one.call_count() < 2 {
            let answer = query(&gateway, &format!("again {:?}", began.elapsed())).await;
            answer.expect(200);
            assert!(began.elapsed() < super::SOON);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let waited = (one.calls()[1].arrived_ns - before) / 1_000_000;
        assert!(waited + 50 >= pause, "{headers:?}: {waited} ms of {pause}");
        assert!(waited < pause + 1_000, "{headers:?}: {waited} ms of {pause}");
    } else {
        for n in 0..5 {
            assert_eq!(query(&gateway, &format!("meanwhile {n}")).await.header("x-gateway-upstream"), "two");
        }
        assert_eq!(one.call_count(), 1);
        let series = r#"vectorgate_upstream_cooldown_seconds{upstream="one"}"#;
        while gateway.metric(series).await == 0.0 {
            assert!(began.elapsed() < super::SOON, "the pause shows in the metrics");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    pause
}

#[tokio::test]
async fn rg_c7rk_every_notation_of_a_reset_is_understood() {
    let close = |pause: u64, expected: u64, value: &str| {
        assert!(pause <= expected && pause + 1_500 > expected, "{value:?}: {pause} of {expected}");
    };
    for (value, expected) in
        [("6m0s", 360_000), ("1s", 1_000), ("500ms", 500), ("1m30.5s", 90_500), ("1h0m0s", 3_600_000), ("2", 2_000)]
    {
        let longest = expected.min(600_000);
        let pause = pause_after(&[("x-ratelimit-reset-tokens", value)]).await;
        assert!(pause <= expected, "{value}: {pause}");
        close(pause.min(longest), longest.min(pause.max(longest)), value);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let pause = pause_after(&[("x-ratelimit-reset-tokens", &(now + 40).to_string())]).await;
    assert!((25_000..=40_000).contains(&pause), "a Unix time: {pause}");
    let pause = pause_after(&[("x-ratelimit-reset-tokens", "2999-01-01T00:00:00Z")]).await;
    assert!(pause <= 3_600_000, "never for years: {pause}");
    for nonsense in ["0", "", "soon", "-3s"] {
        let pause = pause_after(&[("x-ratelimit-reset-tokens", nonsense)]).await;
        assert!(pause <= 2_000, "{nonsense:?}: bounded back-off, not {pause}");
    }
    let both = [("x-ratelimit-reset-requests", "1s"), ("x-ratelimit-reset-tokens", "3s")];
    close(pause_after(&both).await, 3_000, "the later of two");
    let requests = [
        ("x-ratelimit-remaining-requests", "0"),
        ("x-ratelimit-remaining-tokens", "5000"),
        ("x-ratelimit-reset-requests", "1s"),
        ("x-ratelimit-reset-tokens", "30s"),
    ];
    close(pause_after(&requests).await, 1_000, "the exhausted one");
}

#[tokio::test]
async fn rg_b2gq_the_providers_count_lowers_the_local_one_until_its_reset() {
    let told = |remaining: &str, reset: &str| {
        Effect::pass()
            .header("x-ratelimit-limit-tokens", "100000")
            .header("x-ratelimit-remaining-tokens", remaining)
            .header("x-ratelimit-reset-tokens", reset)
    };
    for (remaining, text) in [("50", 60), ("-20", 1)] {
        let (one, two) = (healthy(), healthy());
        let gateway = two_keys(&one, &two, "tpm = 100000").start();
        until_checked(&gateway, &[("one", &one), ("two", &two)]).await;
        one.set_script(Script::new().tokens(TokenRule::Bytes).next(1, told(remaining, "2s")));
        one.clear();
        two.clear();
        query(&gateway, "first").await.expect(200);
        let began = Instant::now();
        assert_eq!(one.call_count(), 1);
        let answer = query(&gateway, &"a".repeat(text)).await;
        assert_eq!(answer.header("x-gateway-upstream"), "two", "remaining {remaining}: to the other key");
        assert_eq!(one.call_count(), 1);
        while one.call_count() < 2 {
            query(&gateway, &format!("{:060}", began.elapsed().as_nanos())).await.expect(200);
            assert!(began.elapsed() < super::SOON);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(began.elapsed() > Duration::from_millis(1_700), "not before its reset: {:?}", began.elapsed());
    }
}

#[tokio::test]
async fn rg_b2gq_one_key_alone_waits_and_missing_headers_change_nothing() {
    let headers = [("x-ratelimit-remaining-tokens", "50"), ("x-ratelimit-reset-tokens", "2s")];
    let word = headers.iter().fold(Effect::pass(), |effect, (name, value)| effect.header(name, value));
    let one = Provider::start(Script::new().tokens(TokenRule::Bytes).next(1, word));
    let config = Config::new().bytes_are_tokens().upstream("one", &one.base_url(), "tpm = 100000");
    let gateway = config.with("[quota]\ninteractive_max_wait_ms = 5000\n").start();
    query(&gateway, "first").await.expect(200);
    let began = Instant::now();
    query(&gateway, &"a".repeat(60)).await.expect(200);
    assert!(began.elapsed() > Duration::from_millis(1_500), "it waited: {:?}", began.elapsed());
    let began = Instant::now();
    for n in 0..5 {
        query(&gateway, &format!("{n:060}")).await.expect(200);
    }
    assert!(began.elapsed() < Duration::from_secs(1), "answers without headers hold nothing back");
}

#[tokio::test]
async fn rg_b2gq_a_lower_limit_than_configured_is_believed_and_a_higher_one_is_not() {
    for (stated, expected) in [("1000", 1_000), ("900000", 100_000)] {
        let word = Effect::pass().header("x-ratelimit-limit-tokens", stated);
        let one = Provider::start(Script::new().always(word));
        let gateway = Config::new().upstream("one", &one.base_url(), "tpm = 100000").start();
        query(&gateway, "first").await.expect(200);
        assert_eq!(upstream(&gateway, "one").await["limit_tokens"], expected);
    }
}

/// Tokens that the tenant may still take, by the answer's headers.
async fn left(gateway: &crate::support::Gateway, text: &str) -> (u16, u64) {
    let answer = query(gateway, text).await;
    (answer.status, answer.header("x-ratelimit-remaining-tokens").parse().expect("a number"))
}

#[tokio::test]
async fn rg_w2jd_refused_and_failed_requests_give_back_what_they_took() {
    let provider = Provider::start(Script::new().tokens(TokenRule::Bytes));
    let start = |extra: &str| {
        let config = Config::new().bytes_are_tokens().only_tenant("tpm = 100").with(extra);
        config.upstream("one", &provider.base_url(), "tpm = 100").start()
    };
    let text = |n: usize, c: char| c.to_string().repeat(n);

    // Refused by the class: batch may take 60 of the upstream's 100.
    let gateway = start("[quota]\ninteractive_reserve = 0.4\n");
    for c in ['a', 'b', 'c', 'd', 'e'] {
        let answer = batch(&gateway, KEY, &[text(70, c)]).await;
        assert!(matches!(answer.status, 400 | 429), "{} {}", answer.status, answer.text);
    }
    let answer = batch(&gateway, KEY, &[text(50, 'f')]).await;
    answer.expect(200);
    assert_eq!(answer.header("x-ratelimit-remaining-tokens"), "50");

    // Failed upstream.
    provider.set_script(Script::new().tokens(TokenRule::Bytes).next(3, Effect::status(500)));
    let gateway = start("[retry]\nmax_attempts = 1\n");
    for c in ['a', 'b', 'c'] {
        assert_eq!(query(&gateway, &text(50, c)).await.status, 502);
    }
    assert_eq!(left(&gateway, &text(50, 'd')).await, (200, 50));

    // The client left while its request was queued.
    provider.set_script(Script::new().tokens(TokenRule::Bytes).delay_ms(700.0));
    let config = Config::new().bytes_are_tokens().only_tenant("tpm = 100");
    let gateway = config.upstream("one", &provider.base_url(), "max_concurrency = 1").start();
    provider.clear();
    let short = [text(10, 'a')];
    let first = batch(&gateway, KEY, &short);
    let abandoned = async {
        provider.until_calls(1).await;
        let queued = [text(50, 'b')];
        let leaving = batch(&gateway, KEY, &queued);
        assert!(tokio::time::timeout(Duration::from_millis(200), leaving).await.is_err(), "it is queued");
    };
    let (first, ()) = tokio::join!(first, abandoned);
    first.expect(200);
    let until = Instant::now() + super::SOON;
    loop {
        let answer = batch(&gateway, KEY, &[text(50, 'c')]).await;
        if answer.status == 200 {
            assert_eq!(answer.header("x-ratelimit-remaining-tokens"), "40", "only what was billed is gone");
            break;
        }
        assert!(Instant::now() < until, "{}", answer.text);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    // An inner try failed, the second was billed: once.
    provider.set_script(Script::new().tokens(TokenRule::Bytes).next(1, Effect::status(503)));
    let gateway = start("");
    assert_eq!(left(&gateway, &text(50, 'a')).await, (200, 50));
    assert_eq!(left(&gateway, &text(10, 'b')).await, (200, 40));
}

#[tokio::test]
async fn rg_49gv_parallel_requests_do_not_slip_under_the_limit() {
    let provider = Provider::start(Script::new().tokens(TokenRule::Bytes).delay_ms(700.0));
    let config = Config::new().bytes_are_tokens().only_tenant("tpm = 100");
    let gateway = config.upstream("one", &provider.base_url(), "").start();
    let texts: Vec<String> = (0..20).map(|n| format!("{n:040}")).collect();
    let answers = join_all(texts.iter().map(|text| query(&gateway, text))).await;
    let counts = statuses(&answers);
    assert_eq!(counts, [(200, 2), (429, 18)].into());
    assert_eq!(provider.tokens_billed(), 80);
    for refused in answers.iter().filter(|answer| answer.status == 429) {
        assert_eq!(refused.error_code(), "tenant_rate_limited");
        assert!(!refused.header("retry-after").is_empty());
    }

    let provider = Provider::start(Script::new().tokens(TokenRule::PerItem(1)).delay_ms(300.0));
    let gateway = Config::new().only_tenant("tpm = 5").upstream("one", &provider.base_url(), "").start();
    let tiny: Vec<String> = (0..20).map(|n| char::from(b'a' + n).to_string()).collect();
    let answers = join_all(tiny.iter().map(|text| query(&gateway, text))).await;
    assert!(statuses(&answers)[&200] <= 5, "an estimate is never below 1: {:?}", statuses(&answers));
}

#[tokio::test]
async fn rg_pfmw_no_double_burst_at_an_edge() {
    let quota = Quota::tpm(600).sliding();
    let provider = Provider::start(Script::new().tokens(TokenRule::Bytes).quota(quota));
    let config = Config::new().bytes_are_tokens().with("[quota]\nbatch_floor = 0.0\ninteractive_reserve = 0.0\n");
    let gateway = config.upstream("one", &provider.base_url(), "tpm = 600").start();
    let began = Instant::now();
    let mut refused = 0;
    // A second's end is an edge of every fixed window there might be.
    while began.elapsed() < Duration::from_millis(3_200) {
        let answer = query(&gateway, &format!("{:020}", began.elapsed().as_nanos())).await;
        if answer.status == 429 {
            refused += 1;
            let wait: u64 = answer.header("retry-after").parse().expect("whole seconds");
            let passed = began.elapsed().as_secs();
            assert!(wait + passed >= 58 && wait <= 62, "{wait} s after {passed} s");
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(refused > 50, "{refused}");
    assert!((560..=600).contains(&provider.tokens_billed()), "{}", provider.tokens_billed());
    assert_eq!(provider.stats().by_status.get(&429), None, "its own limiter never fires");
}

#[tokio::test]
async fn rg_94wf_every_dialects_tokens_are_charged_and_calls_without_a_model_cost_none() {
    let hundred = |n: usize| format!("{n}{}", " word".repeat(99));
    for (provider_name, dialect, path) in
        [("openai", Dialect::Openai, "/v1"), ("tei", Dialect::Tei, ""), ("ollama", Dialect::Ollama, "")]
    {
        let provider = Provider::start(Script::new().dialect(dialect).tokens(TokenRule::PerItem(100)));
        let url = format!("{}{path}", provider.base_url());
        let gateway = Config::new().only_tenant("tpm = 250").upstream_of(provider_name, "one", &url, "").start();
        for _ in 0..80 {
            drop(gateway.admin_get("/healthz").await);
            drop(gateway.admin_get("/readyz").await);
        }
        assert_eq!(left(&gateway, &hundred(0)).await, (200, 150), "{provider_name}");
        assert_eq!(left(&gateway, &hundred(1)).await, (200, 50), "{provider_name}");
        let third = query(&gateway, &hundred(2)).await;
        assert_eq!((third.status, third.error_code().as_str()), (429, "tenant_rate_limited"), "{provider_name}");
        assert_eq!(client_calls(&provider).len(), 2, "{provider_name}");
        let cached = query(&gateway, &hundred(0)).await;
        cached.expect(200);
        assert_eq!(cached.header("x-ratelimit-remaining-tokens"), "50", "a hit runs no model");
    }
}
