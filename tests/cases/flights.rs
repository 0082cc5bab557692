//! Many clients who want the same text at once.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use loadtest::provider::{Effect, Fault, Provider, Script};
use serde_json::{Value, json};

use super::faces::Face;
use super::{ONE_TRY, PATIENT, PRICED, base64_floats, before, recorded_tokens};
use crate::support::gateway::{Answer, KEY, KEY_TWO};
use crate::support::{Gateway, Raw, assert_signatures, embedding_config};

const CLIENTS: usize = 50;
const PATIENCE: Duration = Duration::from_secs(20);

fn body(format: &str) -> String {
    json!({ "model": "emb-a", "input": "alpha", "encoding_format": format }).to_string()
}

/// All clients at once, by their keys and formats.
async fn burst(gateway: &Gateway, clients: usize, key: impl Fn(usize) -> &'static str, base64: bool) -> Vec<Answer> {
    join_all((0..clients).map(|client| {
        let format = if base64 && client % 2 == 0 { "base64" } else { "float" };
        gateway.post("/v1/embeddings", key(client), &[], body(format))
    }))
    .await
}

#[track_caller]
fn assert_all_served(answers: &[Answer]) {
    for answer in answers {
        assert_signatures(&answer.expect(200), "A", &["alpha"]);
    }
}

/// The ledger charged every upstream call once, and nothing else.
async fn assert_charged_once(gateway: &Gateway, provider: &Provider, requests: usize) {
    let deadline = Instant::now() + PATIENCE;
    while gateway.usage().len() < requests {
        assert!(Instant::now() < deadline, "records are missing: {} of {requests}", gateway.usage().len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(recorded_tokens(gateway), provider.tokens_billed());
    assert_eq!(gateway.tenant("t1").await["held"], "0");
}

#[tokio::test]
async fn rg_swsr_a_burst_is_one_call() {
    let provider = Provider::start(Script::new().delay_ms(1000.0));
    let gateway = before(&provider, PATIENT);
    let answers = burst(&gateway, CLIENTS, |_| KEY, false).await;
    assert_all_served(&answers);
    assert_eq!(provider.call_count(), 1);
    let misses = answers.iter().filter(|answer| answer.header("x-cache") == "MISS").count();
    assert_eq!(misses, 1, "whoever called is the miss");
    assert!(answers.iter().all(|answer| answer.text == answers[0].text));
    assert_charged_once(&gateway, &provider, CLIENTS).await;
}

/// All clients at once, by turns through every route.
async fn burst_by_every_route(gateway: &Gateway, base64: bool) -> Vec<Answer> {
    join_all((0..CLIENTS).map(|client| {
        let face = Face::ALL[client % Face::ALL.len()];
        let wants = base64 && Face::BASE64.contains(&face);
        let asked = super::asking(json!("alpha"), if wants { "base64" } else { "float" });
        face.embed_with(gateway, asked)
    }))
    .await
}

#[tokio::test]
async fn rg_swsr_a_burst_through_every_route_is_one_call() {
    for base64 in [false, true] {
        let provider = Provider::start(Script::new().delay_ms(1000.0));
        let gateway = before(&provider, PATIENT);
        let answers = burst_by_every_route(&gateway, base64).await;
        for (client, answer) in answers.iter().enumerate() {
            if base64 && Face::BASE64.contains(&Face::ALL[client % Face::ALL.len()]) {
                assert_eq!(base64_floats(answer), loadtest::provider::signature("A", "alpha", 8));
            } else {
                assert_signatures(&answer.expect(200), "A", &["alpha"]);
            }
        }
        assert_eq!(provider.call_count(), 1);
        assert_charged_once(&gateway, &provider, CLIENTS).await;
    }
}

#[tokio::test]
async fn rg_swsr_the_upstream_fails_once_under_every_route() {
    for (extra, failed) in [(PATIENT, 0), (ONE_TRY, 1)] {
        let provider = Provider::start(Script::new().delay_ms(300.0).next(1, Effect::status(500).after_ms(300.0)));
        let gateway = before(&provider, extra);
        let (served, refused): (Vec<Answer>, Vec<Answer>) =
            burst_by_every_route(&gateway, false).await.into_iter().partition(|answer| answer.status == 200);
        assert_all_served(&served);
        assert_eq!(refused.len(), failed, "only who asked and failed is told so: {refused:?}");
        assert!(refused.iter().all(|answer| answer.status == 502), "{refused:?}");
        assert_eq!(provider.call_count(), 2);
        assert_charged_once(&gateway, &provider, CLIENTS).await;
    }
}

#[tokio::test]
async fn rg_swsr_the_first_client_leaves() {
    for face in Face::ALL {
        the_first_client_leaves(face).await;
    }
}

async fn the_first_client_leaves(face: Face) {
    let provider = Provider::start(Script::new().delay_ms(1000.0));
    let gateway = before(&provider, PATIENT);
    let mut leader = Raw::connect(&gateway.url);
    let key = format!("Authorization: Bearer {KEY}");
    let asked = face.body(&super::asking(json!("alpha"), "float"));
    leader.request(&format!("POST {}", face.path("emb-a")), &[&key], &asked.to_string());
    assert!(provider.wait_calls(1, PATIENCE));
    let followers = burst(&gateway, CLIENTS - 1, |_| KEY, false);
    let leaving = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        drop(leader);
    };
    let (answers, ()) = futures_util::future::join(followers, leaving).await;
    assert_all_served(&answers);
    assert_eq!(provider.call_count(), 1, "what was sent is finished for those who wait");
    assert_charged_once(&gateway, &provider, CLIENTS).await;
}

#[tokio::test]
async fn rg_swsr_the_upstream_fails_once() {
    // With retries whoever leads tries again; without them the next one does.
    for (extra, failed) in [(PATIENT, 0), (ONE_TRY, 1)] {
        let provider = Provider::start(Script::new().delay_ms(300.0).next(1, Effect::status(500).after_ms(300.0)));
        let gateway = before(&provider, extra);
        let answers = burst(&gateway, CLIENTS, |_| KEY, false).await;
        let (served, refused): (Vec<Answer>, Vec<Answer>) =
            answers.into_iter().partition(|answer| answer.status == 200);
        assert_all_served(&served);
        assert_eq!(refused.len(), failed, "only who asked and failed is told so: {refused:?}");
        assert!(refused.iter().all(|answer| answer.status == 502), "{refused:?}");
        assert_eq!(provider.call_count(), 2);
        assert_charged_once(&gateway, &provider, CLIENTS).await;
    }
}

#[tokio::test]
async fn rg_swsr_an_upstream_that_always_fails_is_not_stormed() {
    let provider = Provider::start(Script::new().always(Effect::status(500).after_ms(100.0)));
    let gateway = before(&provider, ONE_TRY);
    let answers = burst(&gateway, CLIENTS, |_| KEY, false).await;
    for answer in &answers {
        assert_eq!((answer.status, answer.error_code().as_str()), (502, "upstream_error"), "{}", answer.text);
    }
    assert!(provider.call_count() <= 3, "{} calls", provider.call_count());
    assert_eq!(provider.stats().most_at_once, 1, "one after the other");
}

#[tokio::test]
async fn rg_swsr_a_hopeless_text_is_called_once() {
    let said =
        json!({ "error": { "message": "input[0] is not allowed", "type": "invalid_request_error", "code": "no" } });
    let provider = Provider::start(Script::new().always(Effect::answer(400, &said.to_string()).after_ms(300.0)));
    let gateway = before(&provider, PATIENT);
    let answers = burst(&gateway, CLIENTS, |_| KEY, false).await;
    for answer in &answers {
        assert_eq!((answer.status, answer.error_code().as_str()), (400, "no"), "{}", answer.text);
        assert!(answer.text.contains("is not allowed"), "{}", answer.text);
    }
    assert_eq!(provider.call_count(), 1);
    // A follower reads the item by its own count.
    let many = async |input: Value| gateway.embed(input).await;
    let (alone, third) = futures_util::future::join(many(json!("beta")), many(json!(["x", "y", "beta"]))).await;
    assert_eq!((alone.status, third.status), (400, 400));
    assert!(alone.text.contains("input[0]"), "{}", alone.text);
}

#[tokio::test]
async fn rg_swsr_nobody_waits_past_the_timeout() {
    let provider = Provider::start(Script::new().always(Effect::fault(Fault::NeverAnswer)));
    let url = format!("{}/v1", provider.base_url());
    let config = embedding_config(&[("one", "openai", &url)], PRICED, "", ONE_TRY);
    let gateway = Gateway::start(&config.replace("provider = \"openai\"\n", "provider = \"openai\"\ntimeout_s = 1\n"));
    let answers = burst(&gateway, CLIENTS, |_| KEY, false).await;
    for answer in &answers {
        assert_eq!((answer.status, answer.error_code().as_str()), (504, "upstream_timeout"), "{}", answer.text);
    }
    assert_eq!(provider.call_count(), 1, "nobody waits for a second time-out");
}

#[tokio::test]
async fn rg_swsr_two_tenants_learn_nothing_of_each_other() {
    let key = |client: usize| if client.is_multiple_of(2) { KEY } else { KEY_TWO };
    for (scope, calls) in [("tenant", 2), ("shared", 1)] {
        let provider = Provider::start(Script::new().delay_ms(1000.0));
        let gateway = before(&provider, &format!("{PATIENT}[cache]\nscope = \"{scope}\"\n"));
        let answers = burst(&gateway, CLIENTS, key, false).await;
        assert_all_served(&answers);
        assert_eq!(provider.call_count(), calls, "{scope}");
        assert_charged_once(&gateway, &provider, CLIENTS).await;
    }
}

#[tokio::test]
async fn rg_swsr_half_of_them_want_base64() {
    let provider = Provider::start(Script::new().delay_ms(1000.0));
    let gateway = before(&provider, PATIENT);
    let answers = burst(&gateway, CLIENTS, |_| KEY, true).await;
    let expected = loadtest::provider::signature("A", "alpha", 8);
    for (client, answer) in answers.iter().enumerate() {
        match client % 2 {
            0 => assert_eq!(base64_floats(answer), expected),
            _ => assert_signatures(&answer.expect(200), "A", &["alpha"]),
        }
    }
    assert_eq!(provider.call_count(), 1);
}

#[tokio::test]
async fn rg_swsr_a_hot_entry_expires_under_the_burst() {
    let provider = Provider::start(Script::new());
    let gateway = before(&provider, &format!("{PATIENT}[cache]\nttl_s = 1\n"));
    gateway.embed(json!("alpha")).await.expect(200);
    provider.set_script(Script::new().delay_ms(300.0));
    // Clients keep coming while the entry ends: 50 within the quarter of a second around it.
    let clients = (0..CLIENTS).map(|client| {
        let gateway = &gateway;
        async move {
            tokio::time::sleep(Duration::from_millis(850 + 5 * client as u64)).await;
            gateway.post("/v1/embeddings", KEY, &[], body("float")).await
        }
    });
    assert_all_served(&join_all(clients).await);
    assert!((1..=2).contains(&provider.call_count()), "{} calls", provider.call_count());
    assert_charged_once(&gateway, &provider, CLIENTS + 1).await;
}
