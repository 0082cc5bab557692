//! Percentiles and error budgets against the exact ones of the requests that were sent.

use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use loadtest::provider::{Delay, Provider, Script};
use serde_json::{Value, json};

use super::{PATIENCE, class};
use crate::support::gateway::Answer;
use crate::support::{Gateway, embedding_config};

/// Right within 1 %, and one step of the histogram's two digits.
const BAND: f64 = 0.01 + 0.01;

/// Requests at once.
const ABREAST: usize = 24;

fn script(low_ms: f64, high_ms: f64) -> Script {
    Script { delay: Delay::UniformMs([low_ms, high_ms]), ..Script::new().space("A").width(8) }
}

/// The gateway's own measurement of a request: what its answer states, in seconds.
fn measured(answer: &Answer) -> f64 {
    let parts = answer.header("server-timing").split(", ");
    parts.map(|part| part.split("dur=").nth(1).and_then(|ms| ms.parse::<f64>().ok()).expect("a duration")).sum::<f64>()
        / 1_000.0
}

/// Sends `count` different texts; the time of each by the gateway's measurement and by the client's own clock.
async fn burst(gateway: &Gateway, name: &str, count: usize) -> (Vec<f64>, Vec<f64>) {
    let one = |number: usize| async move {
        let begun = std::time::Instant::now();
        let answer = gateway.embed(json!(format!("{name} {number}"))).await;
        answer.expect(200);
        (measured(&answer), begun.elapsed().as_secs_f64())
    };
    stream::iter(0..count).map(one).buffer_unordered(ABREAST).unzip().await
}

/// The smallest value that a share `q` of `values` does not exceed.
fn exact(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// The published percentiles of a moment at which the window holds exactly `count` requests.
async fn published(gateway: &Gateway, count: usize) -> ([f64; 3], Value) {
    let deadline = std::time::Instant::now() + PATIENCE;
    let held = |view: &Value| class(view, "interactive-search")["count"] == count;
    loop {
        let before = gateway.admin_get("/dashboard/snapshot").await.expect(200);
        let mut values = [0.0; 3];
        for (value, quantile) in values.iter_mut().zip(["0.5", "0.95", "0.99"]) {
            let series = format!("vectorgate_query_embedding_latency_seconds{{quantile=\"{quantile}\"}}");
            *value = gateway.metric(&series).await;
        }
        let after = gateway.admin_get("/dashboard/snapshot").await.expect(200);
        if held(&before) && held(&after) {
            return (values, after);
        }
        assert!(std::time::Instant::now() < deadline, "never exactly {count} requests: {after}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[track_caller]
fn check(what: &str, got: f64, expected: f64, band: f64) {
    assert!((got / expected - 1.0).abs() <= band, "{what}: {got} where {expected} is exact");
}

#[tokio::test(flavor = "multi_thread")]
async fn percentiles_are_those_of_the_requests_across_the_windows_rotation() {
    let provider = Provider::start(script(60.0, 200.0));
    let url = format!("{}/v1", provider.base_url());
    let extra = "[slo]\nwindow_s = 8\ninteractive_p95_ms = 150\ninteractive_p99_ms = 190\n\
                 [quota]\ninteractive_max_wait_ms = 5000\n";
    let gateway = Gateway::start(&embedding_config(&[("one", "openai", &url)], "dimensions = 8", "", extra));

    let (own, clients) = burst(&gateway, "slow", 300).await;
    let (values, view) = published(&gateway, own.len()).await;
    for ((value, q), shown) in values.into_iter().zip([0.5, 0.95, 0.99]).zip(["p50_ms", "p95_ms", "p99_ms"]) {
        check(&format!("p{q}"), value, exact(&own, q), BAND);
        // The client sees its own machine's delays too.
        check(&format!("p{q} by the client's clock"), value, exact(&clients, q), 0.15);
        let page = class(&view, "interactive-search")[shown].as_f64().expect("a percentile") / 1_000.0;
        check("the page and /metrics", page, value, 1e-9);
    }
    for (slo, line, allowed) in [("interactive_p95", 0.15, 0.05), ("interactive_p99", 0.19, 0.01)] {
        // A time within a hair of the line may be judged either way by its second measurement.
        let bad = |line: f64| own.iter().filter(|time| **time > line).count() as f64 / own.len() as f64 / allowed;
        let rate = gateway.metric(&format!("vectorgate_slo_burn_rate{{slo=\"{slo}\",window=\"5m\"}}")).await;
        assert!((bad(line + 0.001)..=bad(line - 0.001)).contains(&rate), "{slo}: {rate}");
        let left = gateway.metric(&format!("vectorgate_slo_error_budget_remaining{{slo=\"{slo}\"}}")).await;
        check("what is left", left, 1.0 - rate, 1e-9);
    }

    // Other latencies follow; once the first have left the window, only the later ones count.
    provider.set_script(script(20.0, 60.0));
    let (own, _) = burst(&gateway, "fast", 400).await;
    let (values, _) = published(&gateway, own.len()).await;
    for (value, q) in values.into_iter().zip([0.5, 0.95, 0.99]) {
        check(&format!("p{q} after the rotation"), value, exact(&own, q), BAND);
    }
    let (values, _) = published(&gateway, 0).await;
    assert_eq!(values, [0.0; 3], "an empty window has no percentiles");
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_spend_the_budget_and_the_clients_own_faults_do_not() {
    use loadtest::provider::{Effect, When};

    let broken = When::body("broken");
    let provider = Provider::start(Script::new().space("A").width(8).rule(broken, Effect::status(500)));
    let url = format!("{}/v1", provider.base_url());
    let extra = "[slo]\ninteractive_p95_ms = 20000\ninteractive_p99_ms = 20000\n[retry]\nmax_attempts = 1\n\
                 [breaker]\nmin_requests = 1000\n";
    let gateway = Gateway::start(&embedding_config(&[("one", "openai", &url)], "dimensions = 8", "", extra));
    for number in 0..19 {
        gateway.embed(json!(format!("text {number}"))).await.expect(200);
        gateway.embed_with(json!({ "model": "emb-a", "input": "x", "dimensions": 7 })).await.expect(400);
    }
    gateway.embed(json!("broken")).await.expect(502);
    let view = super::shown(&gateway, "twenty requests", |view| class(view, "interactive-search")["count"] == 20).await;
    assert_eq!(class(&view, "interactive-search")["errors"], 1);
    let objective = &view["slo"]["objectives"][0];
    assert_eq!((&objective["name"], &objective["urgency"]), (&json!("interactive_p95"), &json!("calm")));
    check("burn", objective["burn"][0]["rate"].as_f64().expect("a rate"), 1.0, 1e-9);
    let objective = &view["slo"]["objectives"][1];
    check("burn", objective["burn"][0]["rate"].as_f64().expect("a rate"), 5.0, 1e-9);
    check("what is left", objective["budget_remaining"].as_f64().expect("a share"), -4.0, 1e-9);
    let tenant = &view["tenants"][0];
    assert_eq!(tenant["id"], "t1");
    let upstream = &view["upstreams"][0];
    assert_eq!((&upstream["last_error"]["status"], &upstream["breaker"]), (&json!("5xx"), &json!("closed")));
    let history = gateway.admin_get("/dashboard/history").await.expect(200);
    assert_eq!(history["classes"].as_array().expect("classes").len(), 4);
}
