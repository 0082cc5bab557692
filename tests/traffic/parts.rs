//! A large request goes in parts: one that fails is repeated alone, what succeeded is kept, and an error names the item
//! by its place in the client's list.

use std::time::Duration;

use loadtest::provider::{Effect, Provider, Script, When};
use serde_json::json;

use super::{Config, batch, inputs_of, texts};
use crate::support::gateway::{KEY, KEY_TWO};
use crate::support::{Gateway, assert_signatures};

/// Ten texts a call; pauses between tries that give the other parts time.
const TENS: &str = "[quota]\nbatch_size = 10\n[retry]\nbase_ms = 200\n[cache]\nscope = \"tenant\"\n";

fn started(script: Script) -> (Provider, Gateway) {
    let provider = Provider::start(script);
    let gateway = Config::new().with(TENS).upstream("one", &provider.base_url(), "").start();
    (provider, gateway)
}

fn poison() -> When {
    When::body("\"doc 63\"")
}

fn refs(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}

fn assert_billed(gateway: &Gateway, provider: &Provider) {
    let recorded: u64 = gateway.usage().iter().map(|record| record["tokens"].as_u64().expect("a number")).sum();
    assert_eq!(recorded, provider.tokens_billed(), "the ledger holds what was billed");
}

#[tokio::test]
async fn rg_sghg_a_part_that_fails_once_is_repeated_alone() {
    let (provider, gateway) = started(Script::new().rule(poison().times(1), Effect::status(500)));
    let (docs, others) = (texts("doc", 100), texts("other", 10));
    let (answer, other) = tokio::join!(batch(&gateway, KEY, &docs), batch(&gateway, KEY_TWO, &others));
    assert_signatures(&answer.expect(200), "A", &refs(&docs));
    assert_eq!(answer.header("x-gateway-attempts"), "11");
    assert_signatures(&other.expect(200), "A", &refs(&others));
    assert_eq!(provider.call_count(), 12, "ten parts, one of them twice, and the other client's");
    assert_billed(&gateway, &provider);
}

#[tokio::test]
async fn rg_sghg_after_a_part_that_always_fails_the_retry_costs_only_what_is_missing() {
    let (provider, gateway) = started(Script::new().rule(poison(), Effect::status(500)));
    let (docs, others) = (texts("doc", 100), texts("other", 10));
    let (answer, other) = tokio::join!(batch(&gateway, KEY, &docs), batch(&gateway, KEY_TWO, &others));
    assert_eq!((answer.status, answer.error_code().as_str()), (502, "upstream_error"), "{}", answer.text);
    assert!(answer.json().get("data").is_none(), "never a short list");
    other.expect(200);
    let before = provider.tokens_billed();
    assert_billed(&gateway, &provider);
    provider.set_script(Script::new());
    provider.clear();
    let again = batch(&gateway, KEY, &docs).await;
    assert_signatures(&again.expect(200), "A", &refs(&docs));
    assert_eq!(again.header("x-cache-hits"), "90/100");
    let sent: Vec<String> = provider.calls().iter().flat_map(inputs_of).collect();
    assert_eq!(sent, docs[60..70], "just the part that was missing");
    let recorded: u64 = gateway.usage().iter().map(|record| record["tokens"].as_u64().expect("a number")).sum();
    assert_eq!(recorded, before + provider.tokens_billed());
}

#[tokio::test]
async fn rg_sghg_an_item_is_named_by_its_place_in_the_clients_list() {
    for said in [
        "input[3] has 9001 tokens, the maximum context length is 8192",
        "'$.input[3]' is invalid",
        "The example at index 3 in your batch has too many tokens",
    ] {
        let body =
            json!({ "error": { "message": said, "type": "invalid_request_error", "param": "input", "code": null } });
        let (provider, gateway) = started(Script::new().rule(poison(), Effect::answer(400, &body.to_string())));
        let (docs, others) = (texts("doc", 100), texts("other", 10));
        let (answer, other) = tokio::join!(batch(&gateway, KEY, &docs), batch(&gateway, KEY_TWO, &others));
        let error = answer.expect(400);
        let message = error["error"]["message"].as_str().expect("a message");
        assert!(message.contains("input[63]") && !message.contains("[3]"), "{said}: {message}");
        other.expect(200);
        assert_eq!(
            provider.calls().iter().filter(|call| call.status == 400).count(),
            1,
            "a hopeless part is sent once"
        );
        assert_billed(&gateway, &provider);
        let rest: Vec<String> = docs.iter().filter(|doc| *doc != "doc 63").cloned().collect();
        provider.clear();
        batch(&gateway, KEY, &rest).await.expect(200);
        let sent: usize = provider.calls().iter().map(|call| call.items).sum();
        assert!(sent <= 49, "what was finished is not paid for again: {sent}");
    }
}

#[tokio::test]
async fn rg_sghg_a_long_item_beside_good_ones_is_named_even_after_cache_hits() {
    let body =
        json!({ "error": { "message": "input[1] is too long", "type": "invalid_request_error", "param": "input" } });
    let script = Script::new().rule(When::body("\"doc 5\""), Effect::answer(400, &body.to_string()));
    let (_provider, gateway) = started(script);
    batch(&gateway, KEY, &texts("doc", 4)).await.expect(200);
    let answer = batch(&gateway, KEY, &texts("doc", 6)).await;
    let error = answer.expect(400);
    assert!(error["error"]["message"].as_str().expect("a message").contains("input[5]"), "{error}");
}

#[tokio::test]
async fn parts_that_were_under_way_when_one_failed_are_kept() {
    let script = Script::new().delay_ms(300.0).rule(When::body("\"doc 0\""), Effect::status(500));
    let provider = Provider::start(script);
    let config = Config::new().with("[quota]\nbatch_size = 10\n[retry]\nmax_attempts = 1\n");
    let gateway = config.upstream("one", &provider.base_url(), "").start();
    let docs = texts("doc", 40);
    assert_eq!(batch(&gateway, KEY, &docs).await.status, 502);
    let finished = provider.calls().iter().filter(|call| call.status == 200).count();
    assert!((1..=3).contains(&finished), "{finished}");
    provider.set_script(Script::new());
    assert!(provider.wait_finished(4, Duration::from_secs(5)));
    let again = batch(&gateway, KEY, &docs).await;
    again.expect(200);
    assert_eq!(again.header("x-cache-hits"), format!("{}/40", finished * 10));
}
