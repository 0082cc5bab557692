//! `kill -9` in mid-load: what a client was answered is on the books once, and nothing stays held.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use loadtest::provider::{Provider, Script, TokenRule};
use parking_lot::Mutex;
use serde_json::{Value, json};
use vectorgate::pure::money::Money;

use super::*;
use crate::support::{Gateway, embedding_config};

/// Crashes in a row.
const CRASHES: usize = 20;

/// Clients at once.
const CLIENTS: u64 = 8;

/// Answers that must have come in before the next crash: the load is in full swing by then.
const ANSWERS_A_ROUND: usize = 60;

const BUDGET: &str = "1000";

/// What clients were answered: cost by request id.
type Answered = Arc<Mutex<HashMap<String, Money>>>;

/// One client: single texts, batches of which part is known, and repetitions, until `stop`.
async fn client(number: u64, url: String, counter: Arc<AtomicU64>, answered: Answered, stop: Arc<AtomicBool>) {
    let client = reqwest::Client::new();
    while !stop.load(Ordering::Relaxed) {
        let turn = counter.fetch_add(1, Ordering::Relaxed);
        let input: Value = match turn % 4 {
            0 | 1 => json!(format!("client {number} asks {turn}")),
            2 => (0..20).map(|item| format!("part {}", (turn + item * item) % 500)).collect(),
            _ => json!(format!("part {}", turn % 20)),
        };
        let id = format!("crash-{turn}");
        // The gateway is gone: so is this client's wish.
        let Some((status, headers)) = try_embed(&client, &url, &id, &input).await else { continue };
        assert_eq!(status, 200, "{id}");
        let cost = headers.get("x-gateway-cost-eur").and_then(|cost| cost.to_str().ok()).expect("a cost");
        answered.lock().insert(id, money(cost));
    }
}

/// What must hold after each restart.
async fn check_books(gateway: &Gateway, answered: &Answered, round: usize) {
    let records = gateway.usage();
    let mut costs: HashMap<&str, Vec<Money>> = HashMap::new();
    for record in &records {
        costs.entry(record["request_id"].as_str().expect("an id")).or_default().push(amount(&record["cost"]));
    }
    for (id, listed) in &costs {
        assert_eq!(listed.len(), 1, "{id} is listed more than once in round {round}");
    }
    for (id, cost) in answered.lock().iter() {
        match costs.get(id.as_str()) {
            Some(listed) => assert_eq!(listed, &[*cost], "{id} in round {round}"),
            // Records of answers that cost nothing may be some milliseconds late, and then die with the process.
            None => assert_eq!(*cost, Money::ZERO, "{id} was answered and is not listed in round {round}"),
        }
    }
    let account = gateway.tenant("t1").await;
    assert_eq!((&account["open_holds"], &account["held"]), (&json!(0), &json!("0")), "{account}");
    let spent = sum(costs.values().flatten().copied());
    assert_eq!(amount(&account["spent"]), spent, "round {round}");
    assert_eq!(amount(&account["remaining"]), minus(money(BUDGET), spent), "round {round}");
}

/// Lines of the journal that contain `text`.
fn journal_lines(gateway: &Gateway, text: &str) -> usize {
    let folder = std::fs::read_dir(gateway.folder().join("data")).expect("a journal");
    let files = folder.map(|entry| entry.expect("readable").path()).filter(|path| path.extension().is_some());
    files
        .map(|path| std::fs::read_to_string(path).expect("text").lines().filter(|line| line.contains(text)).count())
        .sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_crashes_under_load_keep_every_paid_answer_once_and_hold_nothing() {
    let script = Script::new().space("A").width(8).tokens(TokenRule::Words).delay_ms(3.0);
    let provider = Provider::start(script);
    let url = format!("{}/v1", provider.base_url());
    let mut config = embedding_config(
        &[("one", "openai", &url)],
        "price_usd_per_million_tokens = \"0.123456789\"\ndimensions = 8\ntokenizer = \"cl100k\"",
        &format!("budget = \"{BUDGET}\""),
        "",
    );
    config.push_str("max_concurrency = 256\n");
    let mut gateway = Gateway::start(&config);
    let answered = Answered::default();
    let counter = Arc::new(AtomicU64::new(0));
    for round in 0..CRASHES {
        let before = answered.lock().len();
        let stop = Arc::new(AtomicBool::new(false));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (url, counter) = (gateway.url.clone(), Arc::clone(&counter));
                tokio::spawn(client(number, url, counter, Arc::clone(&answered), Arc::clone(&stop)))
            })
            .collect();
        let until = Instant::now() + PATIENCE;
        while answered.lock().len() < before + ANSWERS_A_ROUND + round {
            assert!(Instant::now() < until && !clients.iter().any(tokio::task::JoinHandle::is_finished));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // Killed with every client in the middle of something; only then they learn that it is over.
        gateway.crash_and_restart();
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.await.expect("no client saw anything but 200");
        }
        check_books(&gateway, &answered, round).await;
    }
    assert!(answered.lock().values().filter(|cost| **cost > Money::ZERO).count() > CRASHES * 10);
    let released = journal_lines(&gateway, "\"reason\":\"crash\"");
    assert!(released >= CRASHES, "only {released} holds were open at {CRASHES} crashes: they did not come in mid-load");
    // The books are as good after a quiet end.
    let records = gateway.usage();
    gateway.terminate();
    gateway.wait();
    assert_eq!(gateway.usage(), records);
}
