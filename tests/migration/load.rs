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

/// Answers that each client must see wholly within a step before the next one.
const ENOUGH: usize = 12;

/// How far the steps are: a request may see any step from the last that was in force when it began to the last that was
/// ordered when it ended, and no other.
#[derive(Default)]
struct Clockwork {
    ordered: AtomicUsize,
    in_force: AtomicUsize,
    /// Answers wholly within each step.
    within: [AtomicUsize; STEPS.len()],
    ended: AtomicBool,
}

fn expected(step: usize, kind: Kind, text: &str) -> Side {
    let (stage, canary) = STEPS[step];
    let class = if kind == Kind::Query { TrafficClass::InteractiveSearch } else { TrafficClass::BatchIngestion };
    let spot = Spot::of("handbook", &sha2::Sha256::digest(text.to_lowercase().as_bytes()).into());
    Position::new(stage, canary).side(class, spot)
}

async fn client(gateway: Arc<Gateway>, clockwork: Arc<Clockwork>, number: usize) -> usize {
    let mut sent = 0;
    while !clockwork.ended.load(Ordering::SeqCst) {
        let kind = if number.is_multiple_of(3) { Kind::Documents } else { Kind::Query };
        let text = format!("Client {number} asks {sent}");
        let from = clockwork.in_force.load(Ordering::SeqCst);
        let answer = match number % 2 {
            0 => ask(&gateway, kind, &text).await,
            _ => ask_as(&gateway, kind, "emb-a", &[("x-collection", "handbook")], &text).await,
        };
        let to = clockwork.ordered.load(Ordering::SeqCst);
        let got = side_of(&answer, &[&text]);
        let possible: Vec<Side> = (from..=to).map(|step| expected(step, kind, &text)).collect();
        assert!(possible.contains(&got), "{kind:?} {text:?} got {got:?} between steps {from} and {to}");
        if from == to {
            clockwork.within[from].fetch_add(1, Ordering::SeqCst);
        }
        sent += 1;
    }
    sent
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_and_back_under_load_tells_the_truth_at_every_moment() {
    let providers = Providers::with_delay(5.0);
    let gateway = Arc::new(Gateway::start(&providers.config("", "", "")));
    let clockwork = Arc::new(Clockwork::default());
    const CLIENTS: usize = 6;
    let clients: Vec<_> =
        (0..CLIENTS).map(|number| tokio::spawn(client(Arc::clone(&gateway), Arc::clone(&clockwork), number))).collect();
    for (step, (stage, canary)) in STEPS.into_iter().enumerate() {
        if step > 0 {
            clockwork.ordered.store(step, Ordering::SeqCst);
            let body = if stage == Stage::Canary {
                json!({ "stage": stage, "canary": canary })
            } else {
                json!({ "stage": stage })
            };
            let view = put(&gateway, body).await.expect(200);
            assert_eq!((&view["stage"], &view["revision"]), (&json!(stage), &json!(step)), "{view}");
            clockwork.in_force.store(step, Ordering::SeqCst);
        }
        let end = Instant::now() + PATIENCE;
        while clockwork.within[step].load(Ordering::SeqCst) < CLIENTS * ENOUGH {
            assert!(Instant::now() < end && clients.iter().all(|client| !client.is_finished()), "a client has stopped");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    clockwork.ended.store(true, Ordering::SeqCst);
    let mut sent = 0;
    for client in clients {
        sent += client.await.expect("no request failed and no vector lied");
    }
    // The books agree with the traffic: every request once, on one side.
    let view = until(&gateway, "every request is counted", |view| {
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
