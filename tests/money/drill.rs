//! A fault inside an actor under load: requests go on, what the actor knew survives, and the restart is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use loadtest::provider::{Provider, Script, TokenRule};
use serde_json::{Value, json};

use super::*;
use crate::support::{Gateway, embedding_config};

const CLIENTS: usize = 6;

/// A gateway under load from `CLIENTS` clients, none of whose requests may fail.
struct Load {
    gateway: Arc<Gateway>,
    provider: Provider,
    answered: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    clients: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    fn start() -> Load {
        let provider = Provider::start(Script::new().space("A").width(8).tokens(TokenRule::PerItem(3)).delay_ms(5.0));
        let url = format!("{}/v1", provider.base_url());
        let config = embedding_config(&[("one", "openai", &url)], PRICE, "budget = \"100000\"", ONE_TO_ONE);
        let gateway = Arc::new(Gateway::start(&config));
        let (answered, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let clients = (0..CLIENTS).map(|number| {
            let (gateway, answered, stop) = (Arc::clone(&gateway), Arc::clone(&answered), Arc::clone(&stop));
            tokio::spawn(async move {
                for turn in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    gateway.embed(json!(format!("client {number} turn {turn}"))).await.expect(200);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        let clients = clients.collect();
        Load { gateway, provider, answered, stop, clients }
    }

    /// Waits for `more` further answers.
    async fn go_on(&self, more: usize) {
        let goal = self.answered.load(Ordering::Relaxed) + more;
        let until = Instant::now() + PATIENCE;
        while self.answered.load(Ordering::Relaxed) < goal {
            assert!(Instant::now() < until, "requests do not go on: {}", self.gateway.log());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Ends the load; how many requests were answered.
    async fn end(self) -> (Arc<Gateway>, Provider, usize) {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.await.expect("no request failed");
        }
        (self.gateway, self.provider, self.answered.load(Ordering::Relaxed))
    }
}

async fn counters(gateway: &Gateway) -> Value {
    let upstreams = gateway.admin_get("/admin/upstreams").await.expect(200);
    let state = upstreams["upstreams"][0]["state"].clone();
    assert!(state.is_object(), "{upstreams}");
    state["counters"].clone()
}

async fn restarts(gateway: &Gateway, actor: &str) -> f64 {
    gateway.metric(&format!("vectorgate_actor_restarts_total{{actor=\"{actor}\"}}")).await
}

/// Waits until the actor's restart is counted, and returns the count.
async fn restarted(gateway: &Gateway, actor: &str) -> f64 {
    let until = Instant::now() + PATIENCE;
    loop {
        let count = restarts(gateway, actor).await;
        if count > 0.0 || Instant::now() > until {
            return count;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_in_an_upstreams_actor_stops_no_request_and_forgets_no_count() {
    let load = Load::start();
    load.go_on(100).await;
    let before = counters(&load.gateway).await;
    assert_eq!(restarts(&load.gateway, "upstream").await, 0.0);
    load.gateway.admin_post("/admin/upstreams/one/drill", json!({})).await.expect(200);
    assert_eq!(restarted(&load.gateway, "upstream").await, 1.0);
    load.go_on(100).await;
    let (gateway, provider, answered) = load.end().await;
    assert!(before["granted"].as_u64() >= Some(100), "{before}");
    let until = Instant::now() + PATIENCE;
    loop {
        let after = counters(&gateway).await;
        if after["finished"] == json!(answered) {
            assert_eq!(
                (&after["granted"], &after["lost"], &after["unknown_reports"]),
                (&json!(answered), &json!(0), &json!(0))
            );
            break;
        }
        assert!(Instant::now() < until, "{after} after {answered} answers");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(provider.call_count(), answered as u64);
    assert_eq!(restarts(&gateway, "upstream").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_in_a_ledgers_actor_stops_no_request_and_moves_no_balance() {
    let load = Load::start();
    load.go_on(100).await;
    load.gateway.admin_post("/admin/tenants/t1/drill", json!({})).await.expect(200);
    assert_eq!(restarted(&load.gateway, "ledger").await, 1.0);
    load.go_on(100).await;
    let (gateway, _provider, answered) = load.end().await;
    let spent = money(PER_TOKEN).checked_mul(3 * answered as u64).expect("small");
    let account = settled_account(&gateway).await;
    assert_eq!(amount(&account["spent"]), spent);
    assert_eq!(amount(&account["remaining"]), minus(money("100000"), spent));
    assert_eq!(sum(gateway.usage().iter().map(|record| amount(&record["cost"]))), spent);
    assert_eq!(restarts(&gateway, "ledger").await, 1.0);
    gateway.admin_post("/admin/tenants/nobody/drill", json!({})).await.expect(404);
}
