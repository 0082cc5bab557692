//! Usage and money: what is missing, what is odd, what was paid for already.

use loadtest::provider::{Defect, Effect, Provider, Script, TokenRule, UsageShape};
use serde_json::{Value, json};

use super::faces::Face;
use super::{PRICED, asking, base64_floats, before, recorded_tokens, upstream_state};
use crate::support::{Gateway, assert_signatures, embedding_config};

const SEVEN: &str = "one two three four five six seven";
const FIVE: &str = "eight nine ten eleven twelve";
const TOKENS: &str = "vectorgate_tokens_total{tenant=\"t1\",model=\"emb-a\",class=\"interactive-search\"}";

/// An amount as the number of its smallest unit of 18 decimals.
#[track_caller]
fn exact(amount: &Value) -> i128 {
    let text = amount.as_str().unwrap_or_else(|| panic!("no amount: {amount}"));
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    format!("{whole}{fraction:0<18}").parse().expect("an amount")
}

#[tokio::test]
async fn rg_bz5z_usage_is_missing_or_in_part() {
    // (what the provider tells, tokens that must be charged if it is a statement)
    let rounds: [(Effect, Option<u64>); 6] = [
        (Effect::usage(UsageShape::Absent), None),
        (Effect::usage(UsageShape::Null), None),
        (Effect::usage(UsageShape::TotalOnly), Some(7)),
        (Effect::usage(UsageShape::PromptOnly), Some(7)),
        (Effect::usage(UsageShape::Empty), None),
        (Effect::defect(Defect::BareObject), Some(7)),
    ];
    for ((effect, stated), face) in rounds.into_iter().flat_map(|round| Face::ALL.map(|face| (round.clone(), face))) {
        let provider = Provider::start(Script::new().always(effect.clone()));
        let url = format!("{}/v1", provider.base_url());
        let config = embedding_config(&[("one", "openai", &url)], PRICED, "budget = \"1.00\"", "");
        let gateway =
            Gateway::start(&config.replace("provider = \"openai\"\n", "provider = \"openai\"\ntpm = 100000\n"));
        let before = upstream_state(&gateway).await["interactive_tokens"].as_u64().expect("a bucket");
        let answer = face.embed(&gateway, json!(SEVEN)).await;
        let body = answer.expect(200);
        assert_signatures(&body, "A", &[SEVEN]);
        if face == Face::OpenAi {
            assert_eq!((&body["object"], &body["model"]), (&json!("list"), &json!("emb-a")), "{effect:?}");
            assert_eq!(body["data"][0]["object"], "embedding");
            assert_eq!(body["usage"].get("estimated").is_some(), stated.is_none(), "{effect:?}");
        }

        let records = gateway.usage();
        let tokens = records[0]["tokens"].as_u64().expect("tokens");
        assert!(tokens > 0 && stated.is_none_or(|stated| stated == tokens), "{effect:?}: {tokens}");
        assert_eq!(records[0]["estimated"], stated.is_none(), "{effect:?}");
        assert_eq!(body["usage"]["prompt_tokens"], tokens, "the client reads what was charged");
        assert_eq!(body["usage"]["total_tokens"], tokens);
        assert_eq!(gateway.metric(TOKENS).await, tokens as f64);
        let tenant = gateway.tenant("t1").await;
        assert_eq!(tenant["held"], "0", "{effect:?}");
        assert!(exact(&tenant["spent"]) > 0, "{tenant}");
        assert_eq!(exact(&tenant["spent"]) + exact(&tenant["remaining"]), exact(&json!("1.00")));
        let after = upstream_state(&gateway).await["interactive_tokens"].as_u64().expect("a bucket");
        assert_eq!(before - after, tokens, "the bucket settles on the same number: {effect:?}");
    }
}

#[tokio::test]
async fn rg_bz5z_base64_without_usage() {
    let provider = Provider::start(Script::new().usage(UsageShape::Absent));
    let gateway = before(&provider, "");
    let answer = gateway.embed_with(asking(json!("alpha"), "base64")).await;
    assert_eq!(base64_floats(&answer), loadtest::provider::signature("A", "alpha", 8));
}

#[tokio::test]
async fn rg_bz5z_an_estimate_leaves_no_hold_behind() {
    // One token costs 0.92: the budget is exactly two texts of seven bytes.
    let provider = Provider::start(Script::new().tokens(TokenRule::Bytes).usage(UsageShape::Null));
    let url = format!("{}/v1", provider.base_url());
    let model = "dimensions = 8\ntokenizer = \"bytes\"\nprice_usd_per_million_tokens = \"1000000\"";
    let gateway = Gateway::start(&embedding_config(&[("one", "openai", &url)], model, "budget = \"12.88\"", ""));
    gateway.embed(json!("1234567")).await.expect(200);
    let second = gateway.embed(json!("abcdefg")).await;
    assert_signatures(&second.expect(200), "A", &["abcdefg"]);
    assert_eq!(exact(&gateway.tenant("t1").await["remaining"]), 0);
    let third = gateway.embed(json!("x")).await;
    assert_eq!((third.status, third.error_code().as_str()), (402, "budget_exhausted"));
    assert_eq!(provider.call_count(), 2);
}

#[tokio::test]
async fn rg_z4ds_hits_state_usage_and_cost_nothing() {
    for face in Face::ALL {
        hits_state_usage_and_cost_nothing(face).await;
    }
}

async fn hits_state_usage_and_cost_nothing(face: Face) {
    let provider = Provider::start(Script::new());
    let gateway = before(&provider, "");
    // (input, tokens stated, fresh tokens, cache)
    let steps = [
        (json!(SEVEN), 7, 7, "MISS"),
        (json!(SEVEN), 7, 0, "HIT"),
        (json!([SEVEN, FIVE]), 12, 5, "PARTIAL"),
        (json!([SEVEN]), 7, 0, "HIT"),
        (json!(SEVEN), 7, 0, "HIT"),
        (json!([FIVE, SEVEN, FIVE]), 17, 0, "HIT"),
    ];
    let mut fresh_so_far = 0;
    let mut spent_so_far = 0;
    let mut bucket = u64::MAX;
    for (turn, (input, stated, fresh, told)) in steps.into_iter().enumerate() {
        let answer = face.embed(&gateway, input.clone()).await;
        let usage = answer.expect(200)["usage"].clone();
        assert_eq!((&usage["prompt_tokens"], &usage["total_tokens"]), (&json!(stated), &json!(stated)), "{input}");
        assert_eq!(answer.header("x-cache"), told, "{input}");
        fresh_so_far += fresh;
        assert_eq!(gateway.metric(TOKENS).await, fresh_so_far as f64, "{input}");
        let spent = exact(&gateway.tenant("t1").await["spent"]);
        // 0.02 USD a million tokens, 0.92 to the USD.
        assert_eq!(spent - spent_so_far, i128::from(fresh) * 18_400_000_000, "{input}");
        assert_eq!(exact(&json!(answer.header("x-gateway-cost-eur"))), spent - spent_so_far);
        spent_so_far = spent;
        let left = upstream_state(&gateway).await["interactive_tokens"].as_u64().unwrap_or(u64::MAX);
        assert!(left <= bucket);
        bucket = left;
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while gateway.usage().len() <= turn {
            assert!(std::time::Instant::now() < deadline, "a hit leaves a record too");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }
    assert_eq!(recorded_tokens(&gateway), provider.tokens_billed());
    assert_eq!(provider.tokens_billed(), 12);
}

#[tokio::test]
async fn rg_xt2d_odd_usage_never_pays_back() {
    let canned = |usage: &str| {
        let vector: Vec<String> = loadtest::provider::signature("A", SEVEN, 8).iter().map(f32::to_string).collect();
        let body = format!("{{\"data\":[{{\"index\":0,\"embedding\":[{}]}}],\"usage\":{usage}}}", vector.join(","));
        Effect::answer(200, &body)
    };
    // (what the provider tells, tokens charged if its word is believed, whether the oddity is counted)
    let rounds: [(Effect, Option<u64>, bool); 12] = [
        (Effect::usage(UsageShape::CachedTooMany), Some(7), true),
        (
            canned(r#"{"prompt_tokens":56322,"total_tokens":56322,"prompt_tokens_details":{"cached_tokens":72960}}"#),
            Some(56_322),
            true,
        ),
        (Effect::usage(UsageShape::Negative), None, true),
        (canned(r#"{"prompt_tokens":-5,"total_tokens":7}"#), Some(7), true),
        (Effect::usage(UsageShape::TotalTooSmall), Some(7), true),
        (Effect::usage(UsageShape::Huge), None, true),
        (Effect::usage(UsageShape::Text), None, true),
        (Effect::usage(UsageShape::Fraction), None, true),
        (canned(r#"{"prompt_tokens":1e999,"total_tokens":1e999}"#), None, true),
        (canned(r#"[7]"#), None, true),
        (canned(r#"{"prompt_tokens":7.0,"total_tokens":7.0}"#), Some(7), false),
        (canned(r#"{"prompt_tokens":0,"total_tokens":0}"#), Some(0), false),
    ];
    let provider = Provider::start(Script::new());
    let url = format!("{}/v1", provider.base_url());
    let config =
        embedding_config(&[("one", "openai", &url)], PRICED, "budget = \"1.00\"", "[cache]\nbackend = \"off\"\n");
    let gateway = Gateway::start(&config.replace("provider = \"openai\"\n", "provider = \"openai\"\ntpm = 1000000\n"));
    let (mut spent, mut bucket, mut odd) = (0, u64::MAX, 0.0);
    for (effect, stated, counted) in rounds {
        provider.set_script(Script::new().always(effect.clone()));
        let answer = gateway.embed(json!(SEVEN)).await;
        assert_signatures(&answer.expect(200), "A", &[SEVEN]);
        let record = gateway.usage().pop().expect("a record");
        let tokens = record["tokens"].as_u64().expect("tokens");
        match stated {
            Some(stated) => assert_eq!(tokens, stated, "{effect:?}"),
            None => assert!((1..1000).contains(&tokens) && record["estimated"] == true, "{effect:?}: {record}"),
        }
        let now = exact(&gateway.tenant("t1").await["spent"]);
        assert_eq!(now - spent, i128::from(tokens) * 18_400_000_000, "{effect:?}");
        spent = now;
        let left = upstream_state(&gateway).await["interactive_tokens"].as_u64().expect("a bucket");
        assert!(left <= bucket, "{effect:?}: {left} after {bucket}");
        bucket = left;
        odd += if counted { 1.0 } else { 0.0 };
        assert_eq!(gateway.metric("vectorgate_upstream_usage_odd_total{upstream=\"one\"}").await, odd, "{effect:?}");
    }
}

#[test]
fn rg_xt2d_a_price_below_zero_is_refused_at_start() {
    for price in ["-1", "-0.000001", "1e-3", "NaN"] {
        let config = embedding_config(
            &[("one", "openai", "http://127.0.0.1:9/v1")],
            &format!("price_usd_per_million_tokens = \"{price}\""),
            "",
            "",
        );
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("gateway.toml"), config).expect("written");
        let output = std::process::Command::new(crate::support::gateway::binary())
            .args(["check", "--config", "gateway.toml"])
            .current_dir(folder.path())
            .output()
            .expect("runs");
        assert_eq!(output.status.code(), Some(1), "{price}");
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(text.contains("price_usd_per_million_tokens"), "{price}: {text}");
    }
}
