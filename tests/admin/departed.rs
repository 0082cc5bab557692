//! Tenants that leave the configuration and come back, with requests under way and over crashes: no amount is lost by it, none
//! is spent twice, and what is kept of them in memory goes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use loadtest::provider::TokenRule;
use parking_lot::Mutex;
use serde_json::json;
use vectorgate::pure::money::Money;

use super::*;
use crate::support::Gateway;
use crate::support::gateway::{KEY, without_t1};

/// Clients at once.
const CLIENTS: u64 = 6;

/// Answers that must come before something happens.
const SOME: usize = 30;

/// Large enough that most of it is lent for a while, and small enough to be spent in the end.
const BUDGET: &str = "0.05";

/// What clients were answered: cost by request id.
type Answered = Arc<Mutex<HashMap<String, Money>>>;

/// Asks for what nobody asked before, until `stop`.
async fn client(url: String, turns: Arc<AtomicU64>, answered: Answered, stop: Arc<AtomicBool>) {
    let client = reqwest::Client::new();
    while !stop.load(Ordering::Relaxed) {
        let id = format!("turn-{}", turns.fetch_add(1, Ordering::Relaxed));
        let body = json!({ "model": "emb-a", "input": format!("text of {id}") });
        let request = client.post(format!("{url}/v1/embeddings")).bearer_auth(KEY).header("x-request-id", &id);
        // The gateway has crashed: so has this client's wish.
        let Ok(answer) = request.json(&body).send().await else { continue };
        match answer.status().as_u16() {
            200 => {
                let cost = answer.headers().get("x-gateway-cost-eur").and_then(|cost| cost.to_str().ok());
                answered.lock().insert(id, cost.expect("a cost").parse().expect("an amount"));
            }
            // Its tenant is away, or has nothing left.
            401 | 402 => tokio::time::sleep(Duration::from_millis(2)).await,
            other => panic!("{id}: {other}"),
        }
    }
}

struct Clients {
    stop: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Clients {
    fn of(gateway: &Gateway, turns: &Arc<AtomicU64>, answered: &Answered) -> Clients {
        let stop = Arc::new(AtomicBool::new(false));
        let task = |_| {
            let (turns, answered, stop) = (Arc::clone(turns), Arc::clone(answered), Arc::clone(&stop));
            tokio::spawn(client(gateway.url.clone(), turns, answered, stop))
        };
        Clients { tasks: (0..CLIENTS).map(task).collect(), stop }
    }

    async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.expect("no client saw anything unexpected");
        }
    }
}

async fn some_more(answered: &Answered) {
    let before = answered.lock().len();
    until("answers", async || answered.lock().len() >= before + SOME).await;
}

async fn forgotten(gateway: &Gateway) {
    until("the balance is forgotten", async || gateway.metric("vectorgate_balances").await == 1.0).await;
    assert!(!gateway.admin_get("/metrics").await.text.contains("vectorgate_tenant_budget_remaining{tenant=\"t1\"}"));
}

/// Every answer is on the books, once, and the balance is what they say.
async fn check_books(gateway: &Gateway, answered: &Answered, what: &str) {
    let account = gateway.tenant("t1").await;
    let mut costs: HashMap<String, Money> = HashMap::new();
    for record in gateway.usage() {
        let cost: Money = record["cost"].as_str().expect("an amount").parse().expect("an amount");
        let id = record["request_id"].as_str().expect("an id").to_owned();
        assert!(cost == Money::ZERO || costs.insert(id.clone(), cost).is_none(), "{what}: {id} is listed twice");
    }
    for (id, cost) in answered.lock().iter() {
        assert_eq!(costs.get(id), Some(cost), "{what}: {id}");
    }
    let spent = costs.values().fold(Money::ZERO, |sum, cost| sum.checked_add(*cost).expect("small amounts"));
    assert_eq!(account["spent"], spent.to_string(), "{what}: {account}");
    assert_eq!((&account["held"], &account["open_holds"]), (&json!("0"), &json!(0)), "{what}: {account}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_that_leaves_and_comes_back_finds_its_balance() {
    let script = Script::new().space("A").width(8).tokens(TokenRule::PerItem(1)).delay_ms(25.0);
    let provider = Provider::start(script);
    let config = config_at(&provider.base_url()).replace("\"1.00\"", &format!("\"{BUDGET}\""));
    let away = without_t1(&config);
    let mut gateway = Gateway::start(&config);
    let (answered, turns) = (Answered::default(), Arc::new(AtomicU64::new(0)));
    for what in ["forgotten", "back at once", "crashed while away", "forgotten and crashed", "forgotten again"] {
        let clients = Clients::of(&gateway, &turns, &answered);
        some_more(&answered).await;
        // Calls are under way whenever it leaves.
        gateway.reload(&away).await;
        match what {
            "back at once" => {
                for _ in 0..20 {
                    gateway.reload(&config).await;
                    some_more(&answered).await;
                    gateway.reload(&away).await;
                }
            }
            "crashed while away" => {
                gateway.crash_and_restart();
                assert_eq!(gateway.metric("vectorgate_balances").await, 1.0, "nobody asks for it");
            }
            "forgotten and crashed" => {
                forgotten(&gateway).await;
                gateway.crash_and_restart();
            }
            _ => forgotten(&gateway).await,
        }
        clients.end().await;
        gateway.reload(&config).await;
        check_books(&gateway, &answered, what).await;
        let clients = Clients::of(&gateway, &turns, &answered);
        some_more(&answered).await;
        clients.end().await;
        check_books(&gateway, &answered, what).await;
    }
    // What is left is spent to the last, and no more than that: leaving in between refills nothing.
    let spent: Money = gateway.tenant("t1").await["spent"].as_str().expect("text").parse().expect("an amount");
    let left: Money = "0.000200".parse().expect("an amount");
    let budget = spent.checked_add(left).expect("small amounts").to_string();
    let last = config.replace(BUDGET, &budget);
    gateway.reload(&last).await;
    let clients = Clients::of(&gateway, &turns, &answered);
    until("it is spent", async || gateway.tenant("t1").await["spent"] == budget.as_str()).await;
    gateway.reload(&away).await;
    forgotten(&gateway).await;
    gateway.reload(&last).await;
    assert_eq!(gateway.embed(json!("one more")).await.status, 402);
    clients.end().await;
    check_books(&gateway, &answered, "spent").await;
    assert_eq!(gateway.tenant("t1").await["spent"], budget);
    assert_eq!(gateway.metric("vectorgate_actor_restarts_total{actor=\"ledger\"}").await, 0.0);
    assert!(!gateway.log().contains("panicked"), "{}", gateway.log());
}

/// Whoever has used up a limit of a minute does not get it anew by leaving for a moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_taken_of_a_tenants_own_limit_outlasts_its_absence() {
    let provider = provider();
    let config = config_at(&provider.base_url()).replace("budget = \"1.00\"", "budget = \"1.00\"\nrpm = 2");
    let gateway = Gateway::start(&config);
    for n in 0..2 {
        gateway.embed(json!(format!("text {n}"))).await.expect(200);
    }
    assert_eq!(gateway.embed(json!("too many")).await.status, 429);
    let started = Instant::now();
    gateway.reload(&without_t1(&config)).await;
    // Longer than it takes until balances are looked over.
    until("a while", async || started.elapsed() > Duration::from_secs(12)).await;
    assert_eq!(gateway.metric("vectorgate_balances").await, 2.0, "it is remembered");
    gateway.reload(&config).await;
    let status = gateway.embed(json!("still too many")).await.status;
    assert!(status == 429 || started.elapsed() > Duration::from_secs(50), "{status}");
}
