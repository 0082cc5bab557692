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
    let extra = "[slo]\nwindow_s = 12\ninteractive_p95_ms = 150\ninteractive_p99_ms = 190\n\
                 [quota]\ninteractive_max_wait_ms = 5000\n";
    let gateway = Gateway::start(&embedding_config(&[("one", "openai", &url)], "dimensions = 8", "", extra));

    let (own, clients) = burst(&gateway, "slow", 200).await;
    let (values, view) = published(&gateway, own.len()).await;
    for ((value, q), shown) in values.into_iter().zip([0.5, 0.95, 0.99]).zip(["p50_ms", "p95_ms", "p99_ms"]) {
        check(&format!("p{q}"), value, exact(&own, q), BAND);
        // By its own clock the client waits at least as long, and nothing is quicker than the provider.
        let waited = exact(&clients, q);
        assert!(value <= waited * (1.0 + BAND), "p{q}: {value} where the client waited {waited}");
        assert!(value >= 0.06, "p{q}: {value}");
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
    let (own, _) = burst(&gateway, "fast", 230).await;
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
    // Levels come from the router, errors from the upstream's own actor: each when it gets to it.
    let all = |view: &Value| {
        class(view, "interactive-search")["count"] == 20 && view["upstreams"][0]["last_error"].is_object()
    };
    let view = super::shown(&gateway, "twenty requests and the error", all).await;
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

/// One model of a dashboard's view.
fn model<'a>(view: &'a Value, name: &str) -> Option<&'a Value> {
    view["models"].as_array().expect("models").iter().find(|model| model["model"] == name)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_has_percentiles_a_budget_and_lines_of_its_own() {
    let provider = Provider::start(script(100.0, 110.0));
    let url = format!("{}/v1", provider.base_url());
    let slow = format!(
        "[quota]\ninteractive_max_wait_ms = 5000\n\
         [[models]]\nname = \"emb-slow\"\nspace = \"A\"\ndimensions = 8\nretires = \"2030-01-31\"\n\
         slo = {{ interactive_p95_ms = 20000, interactive_p99_ms = 30000 }}\n\
         [[upstreams]]\nid = \"two\"\nprovider = \"openai\"\nbase_url = \"{url}\"\napi_key = {{ value = \"upstream-secret-two\" }}\n\
         serves = [{{ model = \"emb-slow\" }}]\n"
    );
    let config = |extra: &str, model: &str| {
        embedding_config(&[("one", "openai", &url)], &format!("dimensions = 8\n{model}"), "", extra)
    };
    let gateway = Gateway::start(&config(&slow, ""));
    let embed = async |model: &str, name: &str, count: usize| {
        for number in 0..count {
            let body = json!({ "model": model, "input": format!("{name} {number}") });
            gateway.embed_with(body).await.expect(200);
        }
    };
    embed("emb-a", "quick", 12).await;
    embed("emb-slow", "slow", 12).await;
    let both =
        |view: &Value| ["emb-a", "emb-slow"].iter().all(|name| model(view, name).is_some_and(|one| one["count"] == 12));
    let view = super::shown(&gateway, "twelve requests of each model", both).await;

    let (quick, slow_one) = (model(&view, "emb-a").expect("shown"), model(&view, "emb-slow").expect("shown"));
    assert_eq!((&quick["class"], &quick["errors"]), (&json!("interactive-search"), &json!(0)));
    assert!(quick["p50_ms"].as_f64().expect("a percentile") >= 99.0, "{quick}");
    let lines = |one: &Value| -> Vec<f64> {
        let objectives = one["objectives"].as_array().expect("objectives");
        objectives.iter().map(|objective| objective["line_ms"].as_f64().expect("a line")).collect()
    };
    assert_eq!((lines(quick), lines(slow_one)), (vec![70.0, 120.0], vec![20_000.0, 30_000.0]));
    let p95 = |one: &Value| one["objectives"][0].clone();
    let burn = |one: &Value| p95(one)["burn"][0]["rate"].as_f64().expect("a rate");
    check("every request missed a budget of 5 %", burn(quick), 20.0, 1e-9);
    assert_eq!((&p95(quick)["urgency"], burn(slow_one)), (&json!("fast"), 0.0));
    let of_class = view["slo"]["objectives"][0]["burn"][0]["rate"].as_f64().expect("a rate");
    check("half of the class's", of_class, 10.0, 1e-9);

    let burn_of = |model: &str| {
        format!("vectorgate_model_slo_burn_rate{{slo=\"interactive_p95\",model=\"{model}\",window=\"5m\"}}")
    };
    let left = "vectorgate_model_slo_error_budget_remaining{slo=\"interactive_p95\",model=\"emb-a\"}";
    let retires = "vectorgate_model_retirement_timestamp_seconds{model=\"emb-slow\",upstream=\"\"}";
    check("burn", gateway.metric(&burn_of("emb-a")).await, 20.0, 1e-9);
    check("what is left", gateway.metric(left).await, -19.0, 1e-9);
    check("the day", gateway.metric(retires).await, 1_896_048_000.0, 1e-12);

    // A line of its own from now on; the other model goes, and its figures with it.
    gateway.configure(&config("", "slo = { interactive_p95_ms = 20000, interactive_p99_ms = 20000 }"));
    gateway.admin_post("/admin/reload", json!({})).await.expect(200);
    embed("emb-a", "after", 12).await;
    let judged = |view: &Value| model(view, "emb-a").is_some_and(|one| one["count"] == 24);
    let view = super::shown(&gateway, "the requests after the reload", judged).await;
    let quick = model(&view, "emb-a").expect("shown");
    assert_eq!((lines(quick), model(&view, "emb-slow")), (vec![20_000.0; 2], None));
    check("half missed it", burn(quick), 10.0, 1e-9);
    let page = gateway.admin_get("/metrics").await.text;
    assert!(!page.contains("vectorgate_model_slo_burn_rate{slo=\"interactive_p95\",model=\"emb-slow\""));
    assert!(!page.contains("vectorgate_model_retirement_timestamp_seconds{"), "nothing retires any more");
}
