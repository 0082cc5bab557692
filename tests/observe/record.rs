//! Percentiles on the page and on `/metrics` against the load generator's own record, under load and across the window's
//! rotation. The generator measures from outside, from when a request was due; so the provider takes its time, and on an
//! idle machine what lies between the two clocks is small beside it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use loadtest::engine::{
    Arrivals, Failure, Label, OpenLoop, Progress, Reply, Schedule, Shot, Source, Target, open_loop,
};
use loadtest::provider::{Delay, Provider, Script};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use serde_json::{Value, json};

use super::{PATIENCE, class};
use crate::support::gateway::KEY;
use crate::support::{Gateway, embedding_config};

/// A window forgets in steps of a twentieth.
const STEP: f64 = 1.0 / 20.0;

/// What the page shows may be this old: facts and percentiles are passed on once a second each at the latest.
const OLD: Duration = Duration::from_secs(3);

/// How much is sent, and what is expected of the percentiles.
struct Run {
    window: Duration,
    chunks: usize,
    per_chunk: usize,
    per_s: f64,
    upstreams: usize,
    /// Medians of the provider's time, by turns, ms.
    medians: [f64; 2],
    /// By how large a share of the requests the two records may differ about what the window still holds: answers overtake
    /// each other on their way to a busy client.
    overtaken: f64,
    /// By how much clients may have waited longer than the gateway knows, per cent: for a processor, on a busy machine.
    waiting: f64,
}

/// One answered request.
#[derive(Clone, Copy)]
struct Seen {
    ended: Instant,
    /// By the generator's clock, from when it was due.
    outside: Duration,
    /// By the gateway's own, as its answer states it.
    inside: Duration,
}

/// Every request, in the order of the answers.
type Record = Vec<Seen>;

struct Queries {
    chunk: usize,
    record: Arc<Mutex<Record>>,
}

impl Source for Queries {
    fn shot(&self, number: u64, _: Duration, _: &str) -> Shot {
        let bearer = HeaderValue::from_str(&format!("Bearer {KEY}")).expect("a header");
        let headers = [(AUTHORIZATION, bearer), (CONTENT_TYPE, HeaderValue::from_static("application/json"))];
        let body = json!({ "model": "emb-a", "input": format!("query {} {number}", self.chunk) });
        Shot {
            label: Label::default(),
            target: 0,
            path: "/v1/embeddings".to_owned(),
            headers: HeaderMap::from_iter(headers),
            body: Some(body.to_string().into()),
        }
    }

    fn seen(&self, _: &Shot, outcome: &Result<Reply, Failure>, latency: Duration) {
        let Some(reply) = outcome.as_ref().ok().filter(|reply| reply.status == 200) else { return };
        let parts = reply.headers.get("server-timing").and_then(|text| text.to_str().ok()).unwrap_or_default();
        let millis = parts.split(", ").filter_map(|part| part.split("dur=").nth(1)?.parse::<f64>().ok()).sum::<f64>();
        let inside = Duration::from_secs_f64(millis / 1_000.0);
        let seen = Seen { ended: Instant::now(), outside: latency, inside };
        self.record.lock().expect("no panic holds it").push(seen);
    }
}

/// As real providers are, and slow enough that a hundredth of it is more than the way to the gateway and back.
fn script(median_ms: f64) -> Script {
    let delay = Delay::Lognormal { median_ms, sigma: 0.4, max_ms: 9_000.0 };
    Script { delay, ..Script::new().space("A").width(8) }
}

/// The page and `/metrics` at one moment at which both hold the same requests, all that have just been sent among them.
async fn settled(gateway: &Gateway, record: &Record, window: Duration) -> (usize, Value, [[f64; 3]; 2]) {
    // What was shown before the last answer may hold as many requests, but others: older ones for the last.
    let newest = record.iter().map(|seen| seen.ended).max().expect("requests were sent");
    tokio::time::sleep_until((newest + OLD).into()).await;
    let until = Instant::now() + PATIENCE;
    let ended_since = |span: Duration| record.iter().filter(|seen| seen.ended.elapsed() <= span).count();
    loop {
        let before = gateway.admin_get("/dashboard/snapshot").await.expect(200);
        let page = gateway.admin_get("/metrics").await.text;
        let metrics = [
            "vectorgate_query_embedding_latency_seconds{",
            "vectorgate_model_latency_seconds{class=\"interactive-search\",model=\"emb-a\",",
        ]
        .map(|series| percentiles(&page, series));
        let (fewest, most) = (ended_since(window), ended_since(window.mul_f64(1.0 + STEP) + OLD));
        let after = gateway.admin_get("/dashboard/snapshot").await.expect(200);
        let count = |view: &Value| class(view, "interactive-search")["count"].as_u64().expect("a count") as usize;
        let held = count(&after);
        let same = count(&before) == held && after["models"][0]["count"] == held;
        // Gauges are set once a second: they may still be those of a moment before.
        let shown = class(&after, "interactive-search")["p50_ms"].as_f64().unwrap_or_default() / 1_000.0;
        let current = metrics.iter().all(|of| (of[0] - shown).abs() <= shown * 1e-3);
        if same && current && (fewest..=most).contains(&held) {
            return (held, after, metrics);
        }
        assert!(
            Instant::now() < until,
            "{held} requests where {fewest} to {most} belong, {metrics:?} in the metrics: {after}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The three values of a family's series, which are of the median and two higher percentiles; zeros without any.
fn percentiles(page: &str, series: &str) -> [f64; 3] {
    let values = page.lines().filter(|line| line.starts_with(series)).filter_map(|line| line.rsplit(' ').next());
    let mut values: Vec<f64> = values.map(|value| value.parse().expect("a number")).collect();
    values.sort_by(f64::total_cmp);
    values.try_into().unwrap_or_default()
}

/// The exact percentile of these latencies, seconds.
fn exact(latencies: &[Duration], q: f64) -> f64 {
    let rank = (q * latencies.len() as f64).ceil() as usize;
    latencies[rank.clamp(1, latencies.len()) - 1].as_secs_f64()
}

async fn check(run: &Run) {
    let provider = Provider::start(script(run.medians[0]));
    let url = format!("{}/v1", provider.base_url());
    // So many that hardly a request waits for a place; one that does is slower by both clocks.
    let ids: Vec<String> = (0..run.upstreams).map(|number| format!("u{number}")).collect();
    let upstreams: Vec<_> = ids.iter().map(|id| (id.as_str(), "openai", url.as_str())).collect();
    let extra = format!(
        "[slo]\nwindow_s = {}\n[breaker]\nslow_ms = 20000\n[quota]\ninteractive_max_wait_ms = 20000",
        run.window.as_secs()
    );
    let gateway = Gateway::start(&embedding_config(&upstreams, "dimensions = 8", "", &extra));
    let record = Arc::new(Mutex::new(Record::new()));
    let mut rotated = false;
    for chunk in 0..run.chunks {
        // Slower and quicker by turns: a window that forgot too little or too much would be far off.
        provider.set_script(script(run.medians[chunk % 2]));
        let lasts = Duration::from_secs_f64(run.per_chunk as f64 / run.per_s);
        let schedule = Schedule::steady(Arrivals::Poisson { per_s: run.per_s }, lasts);
        let load = OpenLoop { connections: 1_024, seed: chunk as u64, ..OpenLoop::new(schedule) };
        let source = Queries { chunk, record: Arc::clone(&record) };
        let target = Target::parse(&gateway.url).expect("a URL");
        let report = open_loop(&load, vec![target], Arc::new(source), Arc::new(Progress::default())).await;
        let seen = record.lock().expect("no panic holds it").clone();
        let answers = &report.total().by_status;
        assert_eq!(report.total().good.len(), report.due, "every request was answered: {answers:?}");

        let (held, view, [of_class, of_model]) = settled(&gateway, &seen, run.window).await;
        rotated |= held < seen.len();
        let sorted = |of: fn(&Seen) -> Duration| {
            let mut latencies: Vec<Duration> = seen[seen.len() - held..].iter().map(of).collect();
            latencies.sort_unstable();
            latencies
        };
        let (outside, inside) = (sorted(|seen| seen.outside), sorted(|seen| seen.inside));
        let of_page = |view: &Value, key: &str| view[key].as_f64().expect("a percentile") / 1_000.0;
        for (at, (q, key)) in [(0.5, "p50_ms"), (0.95, "p95_ms"), (0.99, "p99_ms")].into_iter().enumerate() {
            let page = [class(&view, "interactive-search"), &view["models"][0]].map(|view| of_page(view, key));
            let range = |record: &[Duration]| [q - run.overtaken, q, q + run.overtaken].map(|q| exact(record, q));
            let ([least, inside, most], [soonest, outside, latest]) = (range(&inside), range(&outside));
            for shown in [of_class[at], of_model[at], page[0], page[1]] {
                let off = [inside, outside].map(|right| (shown / right - 1.0) * 100.0);
                let count = seen.len();
                println!(
                    "chunk {chunk}: {held} of {count}, p{q}: shown {shown:.4} s, {:+.2} % of the gateway's own record, \
                     {:+.2} % of the generator's",
                    off[0], off[1]
                );
                let right = (least * 0.99)..=(most * 1.01);
                assert!(right.contains(&shown), "p{q} of {held} requests: {shown} s where {inside} s is exact");
                let right = (soonest * (1.0 - run.waiting / 100.0))..=(latest * 1.01);
                assert!(right.contains(&shown), "p{q} of {held} requests: {shown} s where clients waited {outside} s");
            }
        }
    }
    assert!(rotated, "nothing has left the window");
}

#[tokio::test(flavor = "multi_thread")]
async fn percentiles_are_those_of_the_generators_record_while_the_window_rotates() {
    let medians = [300.0, 700.0];
    let window = Duration::from_secs(8);
    check(&Run {
        window,
        chunks: 3,
        per_chunk: 400,
        per_s: 120.0,
        upstreams: 3,
        medians,
        overtaken: 0.05,
        waiting: 90.0,
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "five minutes of an idle machine, and --release"]
async fn percentiles_are_those_of_a_hundred_thousand_requests_within_one_percent() {
    let medians = [600.0, 1_000.0];
    let window = Duration::from_secs(60);
    check(&Run {
        window,
        chunks: 10,
        per_chunk: 10_000,
        per_s: 400.0,
        upstreams: 12,
        medians,
        overtaken: 0.0,
        waiting: 1.0,
    })
    .await;
}
