//! Outages, quota, queues and failover through real processes and sockets.

mod breaker;
mod connections;
mod failover;
mod hedge;
mod keys;
mod limits;
mod neighbours;
mod parts;
mod rerank;
mod retries;
mod sizes;
mod spaces;

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use loadtest::provider::{Call, Provider, Script};
use serde_json::{Value, json};

use crate::support::Gateway;
use crate::support::gateway::{Answer, KEY, KEY_TWO};

/// Longest wait for something that should happen soon.
const SOON: Duration = Duration::from_secs(20);

/// A configuration with model `emb-a` of space `A`.
struct Config {
    sections: String,
    model: String,
    upstreams: String,
    tenants: String,
}

impl Config {
    /// Tenants `t1` and `t2` without limits; no upstreams yet.
    fn new() -> Config {
        let (sections, model, upstreams, tenants) = Default::default();
        Config { sections, model, upstreams, tenants }.tenant("t1", KEY, "").tenant("t2", KEY_TWO, "")
    }

    /// Adds whole sections.
    fn with(mut self, sections: &str) -> Config {
        self.sections.push_str(sections);
        self.sections.push('\n');
        self
    }

    /// Counts a token for each byte, exactly, as [`loadtest::provider::TokenRule::Bytes`] does.
    fn bytes_are_tokens(mut self) -> Config {
        self.model.push_str("tokenizer = \"bytes\"\n");
        self
    }

    /// Adds a tenant with further keys of its table.
    fn tenant(mut self, id: &str, key: &str, keys: &str) -> Config {
        use sha2::Digest as _;
        let hash = hex::encode(sha2::Sha256::digest(key.as_bytes()));
        self.tenants.push_str(&format!("[[tenants]]\nid = \"{id}\"\nkey_sha256 = [\"{hash}\"]\n{keys}\n"));
        self
    }

    /// Only this tenant `t1`, with further keys of its table.
    fn only_tenant(mut self, keys: &str) -> Config {
        self.tenants.clear();
        self.tenant("t1", KEY, keys)
    }

    /// Adds an OpenAI-like upstream with further keys of its table.
    fn upstream(self, id: &str, url: &str, keys: &str) -> Config {
        self.upstream_of("openai", id, &format!("{url}/v1"), keys)
    }

    /// Adds an upstream of any provider at its own base URL.
    fn upstream_of(mut self, provider: &str, id: &str, url: &str, keys: &str) -> Config {
        self.upstreams.push_str(&format!(
            "[[upstreams]]\nid = \"{id}\"\nprovider = \"{provider}\"\nbase_url = \"{url}\"\n\
             api_key = {{ value = \"upstream-secret-{id}\" }}\nserves = [{{ model = \"emb-a\" }}]\n{keys}\n"
        ));
        self
    }

    fn text(&self) -> String {
        format!(
            "[server]\nlisten = \"127.0.0.1:0\"\nadmin_listen = \"127.0.0.1:0\"\nworkers = 2\n{}\n\
             [[models]]\nname = \"emb-a\"\nspace = \"A\"\ndimensions = 8\nprice_usd_per_million_tokens = \"0.02\"\n{}{}{}",
            self.sections, self.model, self.upstreams, self.tenants
        )
    }

    #[track_caller]
    fn start(&self) -> Gateway {
        Gateway::start(&self.text())
    }
}

/// A body for these inputs.
fn asking(input: &Value) -> String {
    json!({ "model": "emb-a", "input": input }).to_string()
}

/// `n` different texts with a common start.
fn texts(start: &str, n: usize) -> Vec<String> {
    (0..n).map(|i| format!("{start} {i}")).collect()
}

/// One interactive query by `t1`.
async fn query(gateway: &Gateway, text: &str) -> Answer {
    gateway.post("/v1/embeddings", KEY, &[("x-traffic-class", "interactive-search")], asking(&json!(text))).await
}

/// One batch request by `key`.
async fn batch(gateway: &Gateway, key: &str, inputs: &[String]) -> Answer {
    gateway.post("/v1/embeddings", key, &[("x-traffic-class", "batch-ingestion")], asking(&json!(inputs))).await
}

/// What the admin side shows of one upstream's state.
async fn upstream(gateway: &Gateway, id: &str) -> Value {
    let all = gateway.admin_get("/admin/upstreams").await.json();
    let list = all["upstreams"].as_array().expect("a list");
    list.iter().find(|one| one["id"] == id).unwrap_or_else(|| panic!("no {id}: {all}"))["state"].clone()
}

/// Waits until an upstream's state is as `wanted`; returns the state.
async fn until_upstream(gateway: &Gateway, id: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let until = Instant::now() + SOON;
    loop {
        let state = upstream(gateway, id).await;
        if wanted(&state) {
            return state;
        }
        assert!(Instant::now() < until, "{id} is never {what}: {state}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn until_breaker(gateway: &Gateway, id: &str, phase: &str) -> Value {
    until_upstream(gateway, id, phase, |state| state["breaker"] == phase).await
}

/// Sends queries until single ones of them have shown that an upstream is back.
async fn until_closed(gateway: &Gateway, id: &str) {
    let until = Instant::now() + SOON;
    while upstream(gateway, id).await["breaker"] != "closed" {
        assert!(Instant::now() < until, "{id} stays out: {}", upstream(gateway, id).await);
        drop(load(gateway, &format!("{:?}", until - Instant::now()), 20, Duration::from_millis(10)).await);
    }
}

/// Waits until an upstream of a shared space has been looked at.
async fn until_verified(gateway: &Gateway, id: &str) -> Value {
    until_upstream(gateway, id, "verified", |state| state["unverified"] == false && state["usable"] == true).await
}

/// Waits until the gateway has what it asks every upstream of a shared space for at its start. A space's first upstream is
/// in use before it was looked at, so what the admin side shows of it does not tell whether its check is still to come.
async fn until_checked(gateway: &Gateway, all: &[(&str, &Provider)]) {
    let until = Instant::now() + SOON;
    for (id, provider) in all {
        while !provider.calls().iter().any(|call| is_check(call) && call.finished_ns > 0) {
            assert!(Instant::now() < until, "{id} is never asked for its check");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        until_verified(gateway, id).await;
    }
}

/// Sends `count` different queries, one every `gap`, whatever becomes of the others; the answers in the order in which
/// they came. A vector of another space fails the test.
async fn load(gateway: &Gateway, name: &str, count: usize, gap: Duration) -> Vec<Answer> {
    let mut tick = tokio::time::interval(gap.max(Duration::from_micros(1)));
    let mut running = FuturesUnordered::new();
    let mut answers = Vec::with_capacity(count);
    let mut sent = 0;
    while answers.len() < count {
        tokio::select! {
            _ = tick.tick(), if sent < count => {
                let text = format!("{name} {sent}");
                running.push(async move {
                    let answer = query(gateway, &text).await;
                    if answer.status == 200 {
                        crate::support::assert_signatures(&answer.json(), "A", &[&text]);
                    }
                    answer
                });
                sent += 1;
            }
            Some(answer) = running.next() => answers.push(answer),
        }
    }
    answers
}

/// How many answers have each status.
fn statuses(answers: &[Answer]) -> std::collections::BTreeMap<u16, usize> {
    let mut counts = std::collections::BTreeMap::new();
    for answer in answers {
        *counts.entry(answer.status).or_default() += 1;
    }
    counts
}

/// Whether the gateway itself compares vectors with this call.
fn is_check(call: &Call) -> bool {
    String::from_utf8_lossy(&call.body).contains("mutual TLS")
}

/// Calls that carried client texts: not those with which the gateway itself compares vectors.
fn client_calls(provider: &Provider) -> Vec<Call> {
    provider.calls().into_iter().filter(|call| !is_check(call)).collect()
}

/// The texts of a call.
fn inputs_of(call: &Call) -> Vec<String> {
    match &call.json()["input"] {
        Value::Array(list) => list.iter().map(|text| text.as_str().expect("a text").to_owned()).collect(),
        Value::String(text) => vec![text.clone()],
        other => panic!("no texts: {other}"),
    }
}

/// A healthy provider.
fn healthy() -> Provider {
    Provider::start(Script::new())
}
