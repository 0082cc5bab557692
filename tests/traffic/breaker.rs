//! Outages: the breaker opens within its window, nothing is sent while it is open, and only single queries look whether
//! the upstream is back.

use std::time::{Duration, Instant};

use loadtest::provider::{Effect, Fault, Provider, Script, When};
use serde_json::json;

use super::{Config, batch, healthy, load, query, statuses, texts, until_breaker, upstream};
use crate::support::Gateway;
use crate::support::gateway::{Answer, KEY};

/// A breaker whose life fits into a test.
const SHORT: &str = "[breaker]\nwindow_s = 5\nmin_requests = 20\nslow_ms = 200\ncooldown_s = 2\nprobe_interval_s = 0.2\n\
                     [retry]\nmax_attempts = 1\n";

async fn opens(gateway: &Gateway) {
    let began = Instant::now();
    for round in 0.. {
        drop(load(gateway, &format!("outage {round}"), 30, Duration::from_millis(10)).await);
        if upstream(gateway, "one").await["breaker"] == "open" {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(5), "it opens within its window");
    }
}

/// Calls that left for the upstream, as the gateway counts them; a dead port counts none itself.
async fn calls_made(gateway: &Gateway) -> f64 {
    let page = gateway.admin_get("/metrics").await.text;
    let own = page.lines().filter(|line| line.starts_with("vectorgate_upstream_requests_total{"));
    own.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

fn assert_refused(answer: &Answer, interactive: bool) {
    assert_eq!(answer.status, 503, "{}", answer.text);
    assert_eq!(answer.error_code(), "upstream_circuit_open");
    let wait: u64 = answer.header("retry-after").parse().expect("whole seconds");
    assert!((1..=2).contains(&wait), "the rest of the cool-down: {wait}");
    let (fallback, retry) = if interactive { ("lexical-only", "false") } else { ("", "") };
    assert_eq!(answer.header("x-retrieval-fallback"), fallback);
    assert_eq!(answer.header("x-should-retry"), retry);
}

async fn outage(broken: Script) {
    let provider = healthy();
    let gateway = Config::new().with(SHORT).upstream("one", &provider.base_url(), "timeout_s = 5").start();
    query(&gateway, "before").await.expect(200);
    provider.set_script(broken);
    opens(&gateway).await;
    provider.set_script(Script::new());

    let calls = calls_made(&gateway).await;
    let began = Instant::now();
    for _ in 0..5 {
        assert_refused(&query(&gateway, "while open").await, true);
        assert_refused(&batch(&gateway, KEY, &texts("while open", 3)).await, false);
    }
    if began.elapsed() < Duration::from_millis(1_500) {
        assert_eq!(calls_made(&gateway).await, calls, "nothing is sent while it is open");
    }

    until_breaker(&gateway, "one", "half_open").await;
    for n in 0..20 {
        assert_eq!(batch(&gateway, KEY, &texts(&format!("half-open {n}"), 2)).await.status, 503, "batch never probes");
    }
    assert_eq!(calls_made(&gateway).await, calls);
    let began = Instant::now();
    while upstream(&gateway, "one").await["breaker"] != "closed" {
        drop(load(&gateway, &format!("after {:?}", began.elapsed()), 20, Duration::from_millis(5)).await);
        assert!(began.elapsed() < super::SOON, "it closes");
    }
    let after = load(&gateway, "flows", 50, Duration::from_millis(2)).await;
    assert_eq!(statuses(&after), [(200, 50)].into(), "everything flows again");
    batch(&gateway, KEY, &texts("flows", 5)).await.expect(200);
}

#[tokio::test]
async fn an_outage_of_server_errors() {
    outage(Script::new().always(Effect::status(503))).await;
}

#[tokio::test]
async fn an_outage_of_slow_answers() {
    outage(Script::new().delay_ms(400.0)).await;
}

#[tokio::test]
async fn an_outage_of_resets() {
    outage(Script::new().always(Effect::fault(Fault::ResetAfterBody))).await;
}

#[tokio::test]
async fn an_outage_of_a_dead_port() {
    outage(Script::new().always(Effect::fault(Fault::Refuse))).await;
}

#[tokio::test]
async fn an_answer_while_open_takes_no_time() {
    let provider = Provider::start(Script::new().always(Effect::status(500)));
    let config = Config::new().with("[breaker]\nmin_requests = 5\n[retry]\nmax_attempts = 1\n");
    let gateway = config.upstream("one", &provider.base_url(), "").start();
    drop(load(&gateway, "outage", 10, Duration::from_millis(5)).await);
    until_breaker(&gateway, "one", "open").await;
    let mut fastest = Duration::MAX;
    for n in 0..20 {
        let began = Instant::now();
        assert_eq!(batch(&gateway, KEY, &texts(&format!("b {n}"), 100)).await.status, 503);
        fastest = fastest.min(began.elapsed());
    }
    assert!(fastest < Duration::from_millis(10), "at once, if nothing else keeps the machine busy: {fastest:?}");
}

#[tokio::test]
async fn probes_are_one_in_a_hundred_queries() {
    let provider = healthy();
    let slow = "[breaker]\nmin_requests = 5\ncooldown_s = 1\nprobe_interval_s = 3600\nprobe_successes = 1000\n\
                [retry]\nmax_attempts = 1\n";
    let gateway = Config::new().with(slow).upstream("one", &provider.base_url(), "").start();
    provider.set_script(Script::new().always(Effect::status(500)));
    drop(load(&gateway, "outage", 10, Duration::from_millis(5)).await);
    provider.set_script(Script::new());
    until_breaker(&gateway, "one", "half_open").await;
    provider.clear();
    let answers = load(&gateway, "query", 2_000, Duration::from_micros(500)).await;
    let probes = provider.call_count();
    assert!((5..=45).contains(&probes), "{probes} of 2,000");
    assert_eq!(statuses(&answers)[&200] as u64, probes, "each probe is a client's own query");
}

#[tokio::test]
async fn at_low_traffic_one_query_an_interval_probes() {
    let provider = healthy();
    let quick = "[breaker]\nmin_requests = 5\ncooldown_s = 1\nprobe_interval_s = 0.5\nprobe_ratio = 0.0001\n\
                 [retry]\nmax_attempts = 1\n";
    let gateway = Config::new().with(quick).upstream("one", &provider.base_url(), "").start();
    provider.set_script(Script::new().always(Effect::status(500)));
    drop(load(&gateway, "outage", 10, Duration::from_millis(5)).await);
    provider.set_script(Script::new());
    until_breaker(&gateway, "one", "half_open").await;
    let began = Instant::now();
    while upstream(&gateway, "one").await["breaker"] != "closed" {
        drop(query(&gateway, &format!("slowly {:?}", began.elapsed())).await);
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(began.elapsed() < super::SOON, "three probes, one each half second, close it");
    }
}

/// `failures` of `requests` fail, spread evenly; the breaker's phase afterwards.
async fn phase_after(requests: usize, every: u64, settings: &str) -> String {
    let broken = When { every, ..When::default() };
    let provider = Provider::start(Script::new().rule(broken, Effect::status(500)));
    let config = Config::new().with(&format!("[breaker]\n{settings}\n[retry]\nmax_attempts = 1\n"));
    let gateway = config.upstream("one", &provider.base_url(), "").start();
    for n in 0..requests.min(10) {
        drop(query(&gateway, &format!("first {n}")).await);
    }
    if requests > 10 {
        drop(load(&gateway, "rest", requests - 10, Duration::from_micros(500)).await);
    }
    upstream(&gateway, "one").await["breaker"].as_str().expect("a phase").to_owned()
}

#[tokio::test]
async fn rg_mp3d_one_failure_opens_nothing_and_a_share_only_with_volume() {
    assert_eq!(phase_after(1, 1, "").await, "closed", "one of one");
    assert_eq!(phase_after(2_000, 100, "").await, "closed", "one in a hundred");
    assert_eq!(phase_after(10, 1, "min_requests = 10").await, "open", "all of ten");
    assert_eq!(phase_after(10, 1, "min_requests = 11").await, "closed", "too few");
    assert_eq!(phase_after(100, 2, "failure_ratio = 0.6").await, "closed", "half, with more allowed");
    assert_eq!(phase_after(100, 2, "failure_ratio = 0.4").await, "open", "half, with less allowed");
}

#[tokio::test]
async fn rg_mp3d_an_upstreams_own_settings_win() {
    let provider = Provider::start(Script::new().always(Effect::status(500)));
    let config = Config::new().with("[retry]\nmax_attempts = 1\n");
    let gateway =
        config.upstream("one", &provider.base_url(), "breaker = { min_requests = 3, cooldown_s = 9 }").start();
    for n in 0..3 {
        assert_eq!(query(&gateway, &format!("q {n}")).await.status, 502);
    }
    let refused = query(&gateway, "q").await;
    assert_eq!(refused.error_code(), "upstream_circuit_open");
    assert!((8..=9).contains(&refused.header("retry-after").parse::<u64>().expect("seconds")));
}

/// Opens the breaker under 200 clients, lets it come to half-open with the upstream in another state, and returns the
/// most calls that were at the upstream at once after that.
async fn half_open(then: Script, provider: &Provider) -> (Gateway, Vec<Answer>) {
    let config = "[breaker]\nmin_requests = 10\ncooldown_s = 1\nprobe_interval_s = 0.1\nprobe_successes = 2\nslow_ms = 500\n\
                  [retry]\nmax_attempts = 1\n";
    let gateway = Config::new().with(config).upstream("one", &provider.base_url(), "timeout_s = 1").start();
    provider.set_script(Script::new().always(Effect::status(500)));
    drop(load(&gateway, "outage", 40, Duration::from_millis(2)).await);
    until_breaker(&gateway, "one", "open").await;
    provider.set_script(then);
    provider.clear();
    until_breaker(&gateway, "one", "half_open").await;
    let answers = load(&gateway, "clients", 600, Duration::from_millis(2)).await;
    (gateway, answers)
}

#[tokio::test]
async fn rg_jpqx_half_open_lets_one_query_at_a_time_through() {
    let fine = healthy();
    let (gateway, answers) = half_open(Script::new().delay_ms(50.0), &fine).await;
    // A machine that stood still for half a second has made calls slow, and then only traffic closes it again.
    recovers(&gateway).await;
    let first = &fine.calls()[..2];
    assert!(first[1].arrived_ns >= first[0].finished_ns, "the second probe leaves after the first has answered");
    assert!(statuses(&answers)[&200] > 100, "then everything flows: {:?}", statuses(&answers));

    let hanging = healthy();
    let began = Instant::now();
    let (gateway, answers) = half_open(Script::new().always(Effect::fault(Fault::NeverAnswer)), &hanging).await;
    assert!(hanging.stats().most_at_once <= 1, "hanging probes do not pile up");
    assert!(hanging.call_count() <= 3, "and each opens it again: {}", hanging.call_count());
    assert_eq!(statuses(&answers).get(&200), None);
    assert!(began.elapsed() < Duration::from_secs(10), "no client waits longer than the probe");
    hanging.set_script(Script::new());
    recovers(&gateway).await;

    let failing = healthy();
    let (gateway, _) = half_open(Script::new().always(Effect::status(500)), &failing).await;
    assert!(failing.call_count() <= 3, "one failure opens it again: {}", failing.call_count());
    failing.set_script(Script::new());
    recovers(&gateway).await;
}

async fn recovers(gateway: &Gateway) {
    let began = Instant::now();
    while upstream(gateway, "one").await["breaker"] != "closed" {
        drop(query(gateway, &format!("again {:?}", began.elapsed())).await);
        assert!(began.elapsed() < super::SOON, "half-open is no state to stay in");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn rg_jpqx_a_probing_client_that_leaves_does_not_block_the_next_probe() {
    let provider = healthy();
    let config = "[breaker]\nmin_requests = 5\ncooldown_s = 1\nprobe_interval_s = 0.1\nprobe_successes = 1\n\
                  [retry]\nmax_attempts = 1\n";
    let gateway = Config::new().with(config).upstream("one", &provider.base_url(), "timeout_s = 1").start();
    provider.set_script(Script::new().always(Effect::status(500)));
    drop(load(&gateway, "outage", 10, Duration::from_millis(5)).await);
    until_breaker(&gateway, "one", "open").await;
    provider.set_script(Script::new().always(Effect::fault(Fault::NeverAnswer)));
    provider.clear();
    until_breaker(&gateway, "one", "half_open").await;
    let body = json!({ "model": "emb-a", "input": "left alone" }).to_string();
    let began = Instant::now();
    while provider.call_count() == 0 {
        let mut raw = crate::support::Raw::connect(&gateway.url);
        raw.request("POST /v1/embeddings", &[&format!("authorization: Bearer {KEY}")], &body);
        drop(tokio::time::timeout(Duration::from_millis(100), provider.until_calls(1)).await);
        assert!(began.elapsed() < super::SOON, "one of them probes");
    }
    provider.set_script(Script::new());
    recovers(&gateway).await;
}
