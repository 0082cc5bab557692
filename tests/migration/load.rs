//! A whole migration and back while queries and documents flow.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use sha2::Digest as _;
use vectorgate::pure::class::TrafficClass;
use vectorgate::pure::migration::{Position, Spot, Stage};

use super::*;

/// The stages in the order in which they are set, rollbacks included.
const STEPS: [(Stage, f64); 9] = [
    (Stage::Old, 0.0),
    (Stage::Backfill, 0.0),
    (Stage::Canary, 0.2),
    (Stage::Canary, 0.6),
    (Stage::Backfill, 0.0),
    (Stage::Canary, 0.6),
    (Stage::New, 0.0),
    (Stage::Canary, 0.3),
    (Stage::Old, 0.0),
];

/// How far the steps are: a request may see any step from the last that was in force when it began to the last that was
/// ordered when it ended, and no other.
struct Clockwork {
    steps: &'static [(Stage, f64)],
    ordered: AtomicUsize,
    in_force: AtomicUsize,
    /// Answers wholly within each step.
    within: Vec<AtomicUsize>,
    ended: AtomicBool,
}

/// A request that was answered.
pub struct Asked {
    pub kind: Kind,
    pub text: String,
    /// The side whose vectors came.
    pub side: Side,
}

fn expected((stage, canary): (Stage, f64), kind: Kind, text: &str) -> Side {
    let class = if kind == Kind::Query { TrafficClass::InteractiveSearch } else { TrafficClass::BatchIngestion };
    let spot = Spot::of("handbook", &sha2::Sha256::digest(text.to_lowercase().as_bytes()).into());
    Position::new(stage, canary).side(class, spot)
}

async fn client<A: Future<Output = Asked>>(clockwork: Arc<Clockwork>, ask: impl Fn(usize) -> A) -> usize {
    let mut sent = 0;
    while !clockwork.ended.load(Ordering::SeqCst) {
        let from = clockwork.in_force.load(Ordering::SeqCst);
        let Asked { kind, text, side } = ask(sent).await;
        let to = clockwork.ordered.load(Ordering::SeqCst);
        let mut possible = (from..=to).map(|step| expected(clockwork.steps[step], kind, &text));
        assert!(possible.any(|one| one == side), "{kind:?} {text:?} got {side:?} between steps {from} and {to}");
        if from == to {
            clockwork.within[from].fetch_add(1, Ordering::SeqCst);
        }
        sent += 1;
    }
    sent
}

/// Walks the collection through `steps`, the first of which is in force, while so many clients ask, each one request after
/// the other: the client's number and how many it has sent are given. There are `enough` answers wholly within each step
/// before the next one. Returns how many requests there were.
pub async fn walk<A>(
    gateway: &Arc<Gateway>,
    steps: &'static [(Stage, f64)],
    (clients, enough): (usize, usize),
    ask: impl Fn(usize, usize) -> A + Clone + Send + Sync + 'static,
) -> usize
where
    A: Future<Output = Asked> + Send + 'static,
{
    let clockwork = Arc::new(Clockwork {
        steps,
        ordered: AtomicUsize::new(0),
        in_force: AtomicUsize::new(0),
        within: steps.iter().map(|_| AtomicUsize::new(0)).collect(),
        ended: AtomicBool::new(false),
    });
    let clients: Vec<_> = (0..clients)
        .map(|number| {
            let (clockwork, ask) = (Arc::clone(&clockwork), ask.clone());
            tokio::spawn(client(clockwork, move |sent| ask(number, sent)))
        })
        .collect();
    for (step, (stage, canary)) in steps.iter().enumerate() {
        if step > 0 {
            clockwork.ordered.store(step, Ordering::SeqCst);
            let body = if *stage == Stage::Canary {
                json!({ "stage": stage, "canary": canary })
            } else {
                json!({ "stage": stage })
            };
            let view = put(gateway, body).await.expect(200);
            assert_eq!((&view["stage"], &view["revision"]), (&json!(stage), &json!(step)), "{view}");
            clockwork.in_force.store(step, Ordering::SeqCst);
        }
        let end = Instant::now() + PATIENCE;
        while clockwork.within[step].load(Ordering::SeqCst) < enough {
            assert!(Instant::now() < end && clients.iter().all(|client| !client.is_finished()), "a client has stopped");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    clockwork.ended.store(true, Ordering::SeqCst);
    let mut sent = 0;
    for client in clients {
        sent += client.await.expect("no request failed and no vector lied");
    }
    sent
}

/// Waits until as many requests are counted as were sent, and compares the progress with the records.
pub async fn books_agree(gateway: &Gateway, sent: usize) {
    let view = until(gateway, "every request is counted", |view| {
        let requests = |side: &str| view["progress"][side]["requests"].as_u64().expect("a count");
        requests("from") + requests("to") >= sent as u64
    })
    .await;
    let records = gateway.usage();
    for (side, model) in [("from", "emb-a"), ("to", "emb-b")] {
        let of_model = records.iter().filter(|record| record["model"] == model).count();
        assert_eq!(view["progress"][side]["requests"], of_model, "{view}");
    }
    assert_eq!(records.len(), sent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_and_back_under_load_tells_the_truth_at_every_moment() {
    let providers = Providers::with_delay(5.0);
    let gateway = Arc::new(Gateway::start(&providers.config("", "", "")));
    let asked = Arc::clone(&gateway);
    let ask = move |number: usize, sent: usize| {
        let gateway = Arc::clone(&asked);
        async move {
            let kind = if number.is_multiple_of(3) { Kind::Documents } else { Kind::Query };
            let text = format!("Client {number} asks {sent}");
            let answer = match number % 2 {
                0 => ask(&gateway, kind, &text).await,
                _ => ask_as(&gateway, kind, "emb-a", &[("x-collection", "handbook")], &text).await,
            };
            let side = side_of(&answer, &[&text]);
            Asked { kind, text, side }
        }
    };
    let sent = walk(&gateway, &STEPS, (6, 72), ask).await;
    books_agree(&gateway, sent).await;
    let audit = gateway.admin_get("/admin/audit").await.text;
    assert_eq!(audit.matches("set_stage").count(), STEPS.len() - 1, "{audit}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rg_g9xw_a_stage_change_never_divides_a_request() {
    let providers = Providers::with_delay(150.0);
    let gateway = Arc::new(Gateway::start(&providers.config("", "", "[quota]\nbatch_size = 10")));
    let texts: Vec<String> = (0..200).map(|n| format!("part {n}")).collect();
    let body = json!({ "model": "handbook", "input": texts }).to_string();
    let sent = tokio::spawn({
        let (gateway, body) = (Arc::clone(&gateway), body.clone());
        async move { gateway.post("/v1/embeddings", KEY, &[], body).await }
    });
    providers.old.until_calls(2).await;
    put(&gateway, json!({ "stage": "new" })).await.expect(200);
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let after = gateway.post("/v1/embeddings", KEY, &[], body).await;
    assert_eq!(side_of(&after, &texts), Side::To, "what begins after it is wholly new");
    assert_eq!(side_of(&sent.await.expect("sent"), &texts), Side::From, "what began before it is wholly old");
    assert_eq!((providers.old.call_count(), providers.new.call_count()), (20, 20));
    let tenant = gateway.tenant("t1").await;
    assert_eq!((&tenant["held"], &tenant["open_holds"]), (&json!("0"), &json!(0)), "{tenant}");
}
