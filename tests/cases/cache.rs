//! What shares an entry and what does not, and what never becomes one.

use std::time::Duration;

use loadtest::provider::{Defect, Effect, Fault, Provider, Script, signature, signature_tokens};
use serde_json::{Value, json};

use super::faces::Face;
use super::{ONE_TRY, PRICED, before, float_numbers};
use crate::support::gateway::KEY;
use crate::support::{Gateway, assert_signatures, embedding_config, vectors};

#[tokio::test]
async fn rg_xc68_texts_that_look_alike_when_joined() {
    let batches: [&[&str]; 6] = [&["a-b", "c"], &["a", "b-c"], &["a-b-c"], &["a\0b"], &["a", "b"], &["a\\u0000b"]];
    let classes = ["interactive-search", "batch-ingestion"];
    for (class, face) in classes.into_iter().flat_map(|class| Face::ALL.map(|face| (class, face))) {
        let provider = Provider::start(Script::new());
        let gateway = before(&provider, "");
        let mut seen: Vec<&str> = Vec::new();
        for batch in batches {
            let body = json!({ "model": "emb-a", "input": batch });
            let answer = face.ask(&gateway, KEY, &[("x-traffic-class", class)], body).await;
            assert_signatures(&answer.expect(200), "A", batch);
            let known = batch.iter().filter(|text| seen.contains(text)).count();
            assert_eq!(answer.header("x-cache-hits"), format!("{known}/{}", batch.len()), "{face:?} {batch:?}");
            seen.extend(batch);
        }
        let sent: Vec<Value> = provider.calls().iter().flat_map(|call| inputs(&call.json())).collect();
        let distinct = ["a-b", "c", "a", "b-c", "a-b-c", "a\0b", "b", "a\\u0000b"];
        assert_eq!(sent.len(), distinct.len(), "every distinct text once: {sent:?}");
        assert!(distinct.iter().all(|text| sent.contains(&json!(text))), "{sent:?}");
    }
}

fn inputs(body: &Value) -> Vec<Value> {
    body["input"].as_array().cloned().unwrap_or_else(|| vec![body["input"].clone()])
}

#[tokio::test]
async fn rg_xc68_token_lists_that_look_alike_when_joined() {
    let provider = Provider::start(Script::new());
    let gateway = before(&provider, "");
    let lists: [&[u64]; 6] = [&[1, 23], &[12, 3], &[1], &[23], &[123], &[1, 2, 3]];
    for list in lists {
        let answer = gateway.embed(json!(list)).await;
        assert_eq!(float_numbers(&answer), signature_tokens("A", list, 8), "{list:?}");
        assert_eq!(answer.header("x-cache"), "MISS", "{list:?}");
    }
    let both = gateway.embed(json!([[1], [23]])).await;
    assert_eq!(vectors(&both.expect(200)).len(), 2);
    assert_eq!(both.header("x-cache"), "HIT", "these two are known one by one");
    assert_eq!(provider.call_count(), 6);
}

#[tokio::test]
async fn rg_xc68_names_and_widths_that_look_alike_when_joined() {
    let provider = Provider::start(Script::new().width(16).space_of("m", "M").space_of("m1", "M1"));
    let url = format!("{}/v1", provider.base_url());
    let mut config = embedding_config(&[("one", "openai", &url)], PRICED, "", "");
    for name in ["m", "m1"] {
        config.push_str(&format!(
            "[[models]]\nname = \"{name}\"\ndimensions = 16\nmatryoshka = {{ min = 1, max = 16 }}\n\
             [[upstreams]]\nid = \"of-{name}\"\nprovider = \"openai\"\nbase_url = \"{url}\"\n\
             serves = [{{ model = \"{name}\" }}]\n"
        ));
    }
    let gateway = Gateway::start(&config);
    for face in Face::ALL {
        let text = format!("{face:?}");
        provider.clear();
        for (model, space, width) in [("m1", "M1", 2), ("m", "M", 12), ("m", "M", 2), ("m1", "M1", 12)] {
            let body = json!({ "model": model, "input": text, "dimensions": width });
            let answer = face.embed_with(&gateway, body.clone()).await;
            let whole = signature(space, &text, 16);
            assert_eq!(float_numbers(&answer), loadtest::provider::shorten(&whole, width), "{model} {width}");
            assert_eq!(answer.header("x-cache"), "MISS", "{face:?} {model} {width}");
            for reader in Face::ALL {
                let again = reader.embed_with(&gateway, body.clone()).await;
                assert_eq!(again.header("x-cache"), "HIT", "{reader:?} after {face:?}");
            }
        }
        assert_eq!(provider.call_count(), 4);
    }
}

/// Sends the same text while the provider fails in every way in turn, and once more when it is well again.
async fn failures_then_success(face: Face, provider: &Provider, gateway: &Gateway) {
    let text = json!(format!("alpha of {face:?}"));
    let failures = [
        (Effect::status(429), 429),
        (Effect::status(500), 502),
        (Effect::status(503), 502),
        (Effect::fault(Fault::NeverAnswer), 504),
        (Effect::defect(Defect::ErrorObject), 502),
        (Effect::defect(Defect::NoItems), 502),
        (Effect::fault(Fault::Truncate { after_bytes: 40 }), 502),
        (Effect::fault(Fault::ResetMidAnswer { after_bytes: 40 }), 502),
        (Effect::defect(Defect::ShortVector), 502),
        (Effect::defect(Defect::NullNumber), 502),
        (Effect::defect(Defect::ExtraItem), 502),
        (Effect::defect(Defect::NotJson), 502),
    ];
    provider.set_script(Script::new().sequence(failures.iter().map(|(effect, _)| effect.clone())));
    provider.clear();
    for (turn, (effect, expected)) in failures.iter().enumerate() {
        let answer = face.embed(gateway, text.clone()).await;
        assert_eq!(answer.status, *expected, "{effect:?}: {}", answer.text);
        assert_eq!((answer.header("x-cache"), answer.header("x-cache-hits")), ("MISS", "0/1"), "{effect:?}");
        assert_eq!(provider.call_count(), turn as u64 + 1, "each try reaches the provider");
    }
    let good = face.embed(gateway, text.clone()).await;
    assert_signatures(&good.expect(200), "A", &[text.as_str().expect("a text")]);
    assert_eq!(good.header("x-cache"), "MISS");
    let hit = face.embed(gateway, text.clone()).await;
    assert_eq!((hit.header("x-cache"), &hit.text), ("HIT", &good.text));
    assert_eq!(provider.call_count(), failures.len() as u64 + 1);
}

/// A gateway whose upstream call times out soon.
fn impatient(provider: &Provider, extra: &str) -> Gateway {
    let url = format!("{}/v1", provider.base_url());
    let config = embedding_config(&[("one", "openai", &url)], PRICED, "", extra);
    Gateway::start(&config.replace("provider = \"openai\"\n", "provider = \"openai\"\ntimeout_s = 1.5\n"))
}

#[tokio::test]
async fn rg_7tzj_only_a_whole_vector_enters_the_cache() {
    let provider = Provider::start(Script::new());
    let gateway = impatient(&provider, ONE_TRY);
    for face in Face::ALL {
        failures_then_success(face, &provider, &gateway).await;
    }
}

#[tokio::test]
async fn rg_7tzj_an_expired_entry_is_not_served_for_want_of_a_better() {
    let provider = Provider::start(Script::new());
    let gateway = impatient(&provider, &format!("{ONE_TRY}[cache]\nttl_s = 60\n"));
    gateway.embed(json!("alpha")).await.expect(200);
    provider.set_script(Script::new().always(Effect::status(500)));
    let near = gateway.embed(json!("alpha")).await;
    assert_eq!((near.status, near.header("x-cache")), (200, "HIT"), "as long as it lives it answers");
    drop(gateway);

    provider.set_script(Script::new());
    let gateway = impatient(&provider, &format!("{ONE_TRY}[cache]\nttl_s = 1\n"));
    gateway.embed(json!("beta")).await.expect(200);
    provider.set_script(Script::new().always(Effect::status(500)));
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    loop {
        let answer = gateway.embed(json!("beta")).await;
        if answer.status == 502 {
            assert_eq!(answer.header("x-cache"), "MISS");
            break;
        }
        assert_eq!((answer.status, answer.header("x-cache")), (200, "HIT"));
        assert!(std::time::Instant::now() < deadline, "the entry never expires");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn cache_control_skips_the_look_up_or_the_storing() {
    let provider = Provider::start(Script::new());
    let gateway = before(&provider, "");
    let body = |text: &str| json!({ "model": "emb-a", "input": text }).to_string();
    // (directive, text, cache told, calls by then)
    let steps = [
        ("no-store", "alpha", "MISS", 1),
        ("", "alpha", "MISS", 2),
        ("no-store", "alpha", "HIT", 2),
        ("no-cache", "alpha", "BYPASS", 3),
        ("max-age=0, No-Cache", "alpha", "BYPASS", 4),
        ("", "alpha", "HIT", 4),
        ("no-cache", "beta", "BYPASS", 5),
        ("", "beta", "HIT", 5),
        ("no-cache, no-store", "beta", "BYPASS", 6),
        ("no-cache, no-store", "gamma", "BYPASS", 7),
        ("", "gamma", "MISS", 8),
    ];
    for (directive, text, told, calls) in steps {
        let headers: &[(&str, &str)] = if directive.is_empty() { &[] } else { &[("cache-control", directive)] };
        let answer = gateway.post("/v1/embeddings", KEY, headers, body(text)).await;
        assert_signatures(&answer.expect(200), "A", &[text]);
        assert_eq!((answer.header("x-cache"), provider.call_count()), (told, calls), "{directive:?} {text}");
    }
}
