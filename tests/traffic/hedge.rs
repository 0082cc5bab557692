//! Hedging: a query whose upstream is slower than usual is asked a second time elsewhere, within the retry budget.

use std::time::{Duration, Instant};

use loadtest::provider::{Effect, Provider, Script, When};

use super::{Config, batch, client_calls, query, texts, until_checked};
use crate::support::Gateway;
use crate::support::gateway::KEY;

/// Every tenth call takes long.
fn sometimes_slow() -> Script {
    let tenth = When { every: 10, ..When::default() };
    Script::new().delay_ms(5.0).rule(tenth, Effect::delay_ms(600.0))
}

async fn warmed(one: &Provider, two: &Provider, hedge: bool) -> Gateway {
    let extra = format!("[quota]\nhedge = {hedge}\n[breaker]\nfailure_ratio = 0.5\n");
    let config = Config::new().with(&extra).upstream("one", &one.base_url(), "tier = 0").upstream(
        "two",
        &two.base_url(),
        "tier = 1",
    );
    let gateway = config.start();
    until_checked(&gateway, &[("one", one), ("two", two)]).await;
    for n in 0..150 {
        query(&gateway, &format!("warm {n}")).await.expect(200);
    }
    // The percentiles are taken once a second.
    tokio::time::sleep(Duration::from_millis(1_300)).await;
    one.set_script(sometimes_slow());
    one.clear();
    two.clear();
    gateway
}

/// The slowest of 100 queries, and how many needed two calls.
async fn slowest(gateway: &Gateway) -> (Duration, usize) {
    let (mut slowest, mut twice) = (Duration::ZERO, 0);
    for n in 0..100 {
        let began = Instant::now();
        let text = format!("query {n}");
        let answer = query(gateway, &text).await;
        crate::support::assert_signatures(&answer.expect(200), "A", &[&text]);
        slowest = slowest.max(began.elapsed());
        twice += usize::from(answer.header("x-gateway-attempts") == "2");
    }
    (slowest, twice)
}

fn plain() -> Provider {
    Provider::start(Script::new().delay_ms(5.0))
}

#[tokio::test]
async fn a_slow_call_is_raced_and_the_first_answer_wins() {
    let (one, two) = (plain(), plain());
    let gateway = warmed(&one, &two, true).await;
    let hedges = async || {
        let of = |id: &str| format!("vectorgate_upstream_hedges_total{{upstream=\"{id}\"}}");
        gateway.metric(&of("one")).await + gateway.metric(&of("two")).await
    };
    let before = hedges().await;
    let (slowest, twice) = slowest(&gateway).await;
    assert!(slowest < Duration::from_millis(550), "nobody waits for the slow one: {slowest:?}");
    assert!(twice >= 3, "{twice}");
    let calls = client_calls(&one).len() + client_calls(&two).len();
    // A second call may be dropped before it has left, when the first answers in that moment.
    assert!((100..=100 + twice).contains(&calls), "{calls} with {twice}");
    assert!(twice <= 20, "within the retry budget: {twice}");
    assert_eq!(hedges().await - before, twice as f64);
    let recorded: u64 = gateway.usage().iter().filter(|record| record["status"] == 200).count() as u64;
    assert_eq!(recorded, 250, "one record an answer");
    let busy = async |id: &str| super::upstream(&gateway, id).await["in_flight"].as_u64().expect("a number");
    assert_eq!((busy("one").await, busy("two").await), (0, 0), "the loser's place is free");
}

#[tokio::test]
async fn without_the_switch_and_for_batch_nothing_is_raced() {
    let (one, two) = (plain(), plain());
    let gateway = warmed(&one, &two, false).await;
    let (slowest, twice) = slowest(&gateway).await;
    assert!(slowest >= Duration::from_millis(550), "somebody waits for the slow one: {slowest:?}");
    assert_eq!(twice, 0);

    let gateway = warmed(&one, &two, true).await;
    for n in 0..40 {
        batch(&gateway, KEY, &texts(&format!("batch {n}"), 2)).await.expect(200);
    }
    assert_eq!(client_calls(&one).len() + client_calls(&two).len(), 40);
}
